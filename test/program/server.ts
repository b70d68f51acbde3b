import { type ChildProcess, spawn } from 'node:child_process'
import { createInterface } from 'node:readline'
import { fileURLToPath } from 'node:url'
import { cleanEnv } from '../process.ts'

const main = fileURLToPath(new URL('../../main.js', import.meta.url))

export interface ServerOptions {
  readonly cwd: string
  readonly args?: readonly string[]
  readonly env?: Readonly<Record<string, string | undefined>>
}

export interface Ended {
  readonly code: number | null
  readonly signal: NodeJS.Signals | null
  readonly stdout: string
  readonly stderr: string
}

export interface Server {
  readonly url: string
  readonly child: ChildProcess
  /** What was printed so far. */
  output(): string
  /** Log lines so far, as text. */
  log(): string
  readonly ended: Promise<Ended>
}

interface Test {
  teardown(work: () => unknown): void
}

/** Runs the command as a user would; resolves when the process has ended. */
export function run(t: Test, command: readonly string[], options: ServerOptions): Promise<Ended> {
  return start(t, command, options).ended
}

/** Starts `heartwood serve` on a free port; resolves once it has said where it listens. */
export async function serve(t: Test, options: ServerOptions): Promise<Server> {
  const started = start(t, ['serve', '--port', '0', ...(options.args ?? [])], options)
  const url = await Promise.race([
    started.listening,
    started.ended.then((ended) => {
      throw new Error(`the server ended with ${ended.code ?? ended.signal}: ${ended.stderr}`)
    })
  ])
  return { ...started, url }
}

function start(t: Test, command: readonly string[], options: ServerOptions) {
  const [file, ...args] = [...cleanEnv(options.env), process.execPath, main, ...command]
  const child = spawn(file!, args, {
    cwd: options.cwd,
    stdio: ['ignore', 'pipe', 'pipe']
  })
  t.teardown(() => child.kill('SIGKILL'))
  let stdout = ''
  let stderr = ''
  child.stderr.on('data', (chunk: Buffer) => {
    stderr += chunk.toString()
  })
  const listening = new Promise<string>((resolve) => {
    createInterface({ input: child.stdout }).on('line', (line) => {
      stdout += `${line}\n`
      const url = /http:\/\/[\w.:[\]]+/.exec(line)?.[0]
      if (url !== undefined) resolve(url)
    })
  })
  const ended = new Promise<Ended>((resolve) => {
    child.on('close', (code, signal) => resolve({ code, signal, stdout, stderr }))
  })
  return { child, listening, ended, output: () => stdout, log: () => stderr }
}

export interface Answer {
  readonly status: number
  readonly headers: Headers
  readonly text: string
  /** The body as JSON. */
  // biome-ignore lint/suspicious/noExplicitAny: a test reads what it expects to be there
  readonly json: any
}

/** One request with a JSON body. */
export async function call(
  server: { readonly url: string },
  method: string,
  path: string,
  options: {
    readonly body?: unknown
    readonly headers?: Readonly<Record<string, string>>
    readonly signal?: AbortSignal
  } = {}
): Promise<Answer> {
  const response = await fetch(server.url + path, {
    method,
    headers: { ...(options.body === undefined ? {} : { 'content-type': 'application/json' }), ...options.headers },
    ...(options.body === undefined ? {} : { body: JSON.stringify(options.body) }),
    ...(options.signal === undefined ? {} : { signal: options.signal })
  })
  const text = await response.text()
  return {
    status: response.status,
    headers: response.headers,
    text,
    get json() {
      return JSON.parse(text)
    }
  }
}
