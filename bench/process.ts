import { type ChildProcess, spawn, spawnSync } from 'node:child_process'
import { once } from 'node:events'
import { cpus } from 'node:os'
import { fileURLToPath } from 'node:url'

/** Of what a process writes, this much is kept to be shown should it end badly. */
const keptOutputUnits = 65_536

/** What a process has used since it began: all its threads, user and system time. */
export interface Usage {
  readonly cpuUs: number
  readonly rssBytes: number
  readonly heapBytes: number
  /** Where {@link ProcessOptions.turns} asks for it. */
  readonly turns?: WorstTurn
}

/** The longest turn of the event loop since it was asked for last, in milliseconds. */
export interface WorstTurn {
  /** By the clock: also what others on the machine took. */
  readonly wallMs: number
  /** What its thread itself has used, which tells the same on a machine with much to do; 0 where the system does not tell. */
  readonly cpuMs: number
}

/** What a process of ours holds once its garbage has been collected. */
export interface Kept {
  readonly fibers: number
  /** Generations of fibers: those that serve, and those that something keeps from ending. */
  readonly generations: number
  /** On the kernel's bus and on the process. */
  readonly listeners: number
  readonly timers: number
  /** Open handles and pending requests of the event loop, timers left out. */
  readonly handles: number
  /** Open file descriptors. */
  readonly files: number
  /** Without `--expose-gc` a figure without meaning. */
  readonly heapBytes: number
}

export interface ProcessOptions {
  readonly args?: readonly string[]
  /** Flags for Node itself. */
  readonly nodeArgs?: readonly string[]
  /** Another Node than the running one. */
  readonly execPath?: string
  readonly env?: Readonly<Record<string, string>>
  readonly cwd?: string
  /**
   * `server`: on the first core, away from the load generator. `all`: on every core, for servers whose threads are
   * the point. Where cores cannot be chosen, nothing happens.
   */
  readonly cores?: 'server' | 'all'
  /** Watches the turns of its event loop. */
  readonly turns?: boolean
}

/** A server in a process of its own. */
export interface ServerProcess {
  readonly port: number
  readonly pid: number
  /** From the start of the process to the line that told the port. */
  readonly startMs: number
  /** All it wrote so far, both streams. */
  output(): string
  usage(): Promise<Usage>
  kept(): Promise<Kept>
  /** SIGTERM; SIGKILL when it has not ended 10 s later. Resolves when it is gone. */
  stop(): Promise<void>
  /** SIGKILL. Resolves when it is gone. */
  kill(): Promise<void>
}

const canPin = process.platform === 'linux' && cpus().length > 1 && spawnSync('taskset', ['-V']).status === 0

/** Keeps this process, the load generator, off the core of the servers. */
export function pinGenerator(): void {
  if (canPin) spawnSync('taskset', ['-cp', `1-${cpus().length - 1}`, String(process.pid)])
}

/** The command that runs `command` on the core of the servers, or on all. */
export function onServerCore(command: readonly string[], cores: ProcessOptions['cores'] = 'server'): readonly string[] {
  if (!canPin) return command
  return ['taskset', '-c', cores === 'all' ? `0-${cpus().length - 1}` : '0', ...command]
}

/**
 * Starts `module` and waits until it printed `http://<host>:<port>`.
 * @param module URL of a compiled module
 * @throws Error with what it wrote, when it ends before, or has not listened 30 s later
 */
export async function startServer(module: URL, options: ProcessOptions = {}): Promise<ServerProcess> {
  const startedAt = performance.now()
  const { child, output } = launch(module, options)
  const gone = once(child, 'exit')
  const end = async (signal: 'SIGTERM' | 'SIGKILL') => {
    if (child.exitCode === null && child.signalCode === null) {
      child.kill(signal)
      const timer = setTimeout(() => child.kill('SIGKILL'), 10_000)
      await gone
      clearTimeout(timer)
    }
  }
  const port = await new Promise<number>((resolve, reject) => {
    const late = setTimeout(() => {
      child.kill('SIGKILL')
      reject(new Error(`${fileURLToPath(module)} did not listen within 30 s:\n${output()}`))
    }, 30_000)
    const look = () => {
      const found = output().match(/http:\/\/[^\s/"]+:(\d+)/)
      if (found === null) return
      clearTimeout(late)
      for (const stream of [child.stdout!, child.stderr!]) stream.off('data', look)
      resolve(Number(found[1]))
    }
    child.stdout!.on('data', look)
    child.stderr!.on('data', look)
    child.once('error', reject)
    child.once('exit', (code, signal) => {
      clearTimeout(late)
      reject(new Error(`${fileURLToPath(module)} ended (${code ?? signal}) before it listened:\n${output()}`))
    })
  })
  return {
    port,
    pid: child.pid!,
    startMs: performance.now() - startedAt,
    output,
    usage: () => ask<Usage>(child, 'usage'),
    kept: () => ask<Kept>(child, 'kept'),
    stop: () => end('SIGTERM'),
    kill: () => end('SIGKILL')
  }
}

/**
 * Runs `module` to its end in a process of its own and returns the one message it sent (`process.send`).
 * @throws Error with what it wrote, when it ends without one
 */
export async function runProcess<T>(module: URL, options: ProcessOptions = {}): Promise<T> {
  const { child, output } = launch(module, options)
  const gone = once(child, 'exit')
  const answer = new Promise<T>((resolve, reject) => {
    child.once('message', (message) => resolve(message as T))
    child.once('error', reject)
    void gone.then(() => reject(new Error(`${fileURLToPath(module)} ended without an answer:\n${output()}`)), reject)
  })
  const result = await answer
  child.disconnect()
  await gone
  return result
}

/** A process that says `ready`, and then answers each message with one of its own. */
export interface Worker {
  /** One at a time. @throws Error with what it wrote, when it ends instead */
  ask<T>(question: unknown): Promise<T>
  stop(): Promise<void>
}

export async function startWorker(module: URL, options: ProcessOptions = {}): Promise<Worker> {
  const { child, output } = launch(module, options)
  const gone = once(child, 'exit')
  const unlessGone = <T>(answer: Promise<T>) =>
    Promise.race([
      answer,
      gone.then(([code, signal]) => {
        throw new Error(`${fileURLToPath(module)} ended (${code ?? signal}):\n${output()}`)
      })
    ])
  await unlessGone(once(child, 'message'))
  return {
    ask: <T>(question: unknown) => unlessGone(ask<T>(child, question)),
    async stop() {
      child.kill('SIGKILL')
      await gone
    }
  }
}

function launch(module: URL, options: ProcessOptions): { child: ChildProcess; output: () => string } {
  const node = [
    options.execPath ?? process.execPath,
    ...(options.nodeArgs ?? []),
    '--import',
    new URL('./probe.js', import.meta.url).href,
    fileURLToPath(module),
    ...(options.args ?? [])
  ]
  const [file, ...args] = onServerCore(node, options.cores)
  const child = spawn(file!, args, {
    stdio: ['ignore', 'pipe', 'pipe', 'ipc'],
    env: { ...process.env, ...options.env, HEARTWOOD_BENCH_TURNS: options.turns === true ? '1' : '0' },
    ...(options.cwd === undefined ? {} : { cwd: options.cwd })
  })
  let written = ''
  for (const stream of [child.stdout!, child.stderr!]) {
    stream.setEncoding('utf8').on('data', (text: string) => {
      written = (written + text).slice(-keptOutputUnits)
    })
  }
  return { child, output: () => written }
}

async function ask<T>(child: ChildProcess, question: unknown): Promise<T> {
  const answer = once(child, 'message')
  child.send(question as string, () => {}) // one that has ended answers nothing
  return ((await answer) as [T])[0]
}
