import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { basename, join, parse } from 'node:path'
import {
  CodedError,
  createJsonLogger,
  definePlugin,
  type FiberStatus,
  type JsonObject,
  type LogFields,
  type Plugin,
  type ServiceName,
  type Services
} from '../kernel/index.ts'
import type { ProgramSettings } from '../kernel/program.ts'
import type { ExecutionEvent, ExecutionResponse, Tool } from '../plugins/tools/types.ts'
import { startKernel } from './start.ts'

export interface TestEntry {
  /** A path from `base`, a built-in label, a package name, or a plugin made in the test. */
  readonly plugin: string | Plugin
  /** The label, or the name of the file without its ending, when left out. */
  readonly id?: string
  readonly config?: JsonObject
}

export interface TestOptions {
  /** Where paths and packages are looked up: a folder, or the `import.meta.url` of the test. */
  readonly base: string
  readonly entries: readonly TestEntry[]
  /** What `${NAME}` in a config stands for; nothing of the machine's own environment when left out. */
  readonly env?: Readonly<Record<string, string>>
  /** Time limits, in milliseconds. */
  readonly settings?: Partial<ProgramSettings>
}

export interface LogLine extends LogFields {
  readonly level: string
  readonly message: string
}

export interface TestProgram {
  /** The late-bound handle of a service; `undefined` while nobody provides it. Typed as there, for short tests. */
  service<K extends ServiceName>(name: K): Services[K]
  fibers(): readonly FiberStatus[]
  /** What was logged so far, oldest first. */
  readonly log: readonly LogLine[]
  /** Ends everything. @throws Error when a fiber or a resource is left: something that was started is not undone */
  stop(): Promise<void>
}

/**
 * Runs a program for a test: the entries, a store in a folder of its own, and an http that listens nowhere and answers
 * `dispatch`. Both are replaced by an entry of their label.
 * @throws what an entry failed to start with; CodedError `TEST_NOT_STARTED` for one that waits for a service
 */
export async function startProgram(options: TestOptions): Promise<TestProgram> {
  const entries = options.entries.map(({ plugin, id, config = {} }) => {
    const label = typeof plugin === 'string' ? plugin : plugin.name
    return { id: id ?? parse(basename(label)).name, plugin, config }
  })
  const dataFolder = await mkdtemp(join(tmpdir(), 'heartwood-test-'))
  const own = new Set(entries.map(({ plugin }) => (typeof plugin === 'string' ? plugin : plugin.name)))
  const given = [
    { id: 'http', plugin: 'http', config: { listen: false } },
    { id: 'store', plugin: 'store', config: { path: dataFolder } }
  ].filter((entry) => !own.has(entry.plugin))

  const lines: LogLine[] = []
  const removeData = () => rm(dataFolder, { recursive: true, force: true })
  const running = await startKernel({
    program: { settings: options.settings ?? {}, entries: [...given, ...entries] },
    base: options.base,
    env: options.env ?? {},
    log: createJsonLogger({ level: 'debug', write: (line) => lines.push(JSON.parse(line) as LogLine) })
  }).catch(async (error: unknown) => {
    await removeData()
    throw error
  })
  const program: TestProgram = {
    service: (name) => running.service(name),
    fibers: () => running.fibers(),
    log: lines,
    async stop() {
      try {
        await running.stop()
      } finally {
        await removeData()
      }
      const left = running.leftovers()
      if (left.length > 0) throw new Error(`left after stop: ${left.join('; ')}`)
    }
  }
  const idle = running.fibers().find((fiber) => fiber.state !== 'Active')
  if (idle === undefined) return program
  const failure = running.failureOf(idle.entry)
  await program.stop()
  throw failure ?? new CodedError('TEST_NOT_STARTED', `entry '${idle.entry}' is ${idle.state}: ${idle.error}`)
}

export interface ToolCall {
  /** Calls with the same one run once. */
  readonly requestId?: string
  /** `user:<id>`, `tenant:<id>`; anonymous when left out. */
  readonly principal?: string
  /** Such as `confirm:<tool>`. */
  readonly permissions?: readonly string[]
  readonly signal?: AbortSignal
}

export interface ToolOutcome {
  readonly response: ExecutionResponse
  /** What a listening caller was told before the answer, in order. */
  readonly events: readonly ExecutionEvent[]
  readonly replayed: boolean
}

export interface ToolBench {
  /** Runs a tool as a caller would: policies, schemas, deadline, replay, over a real store. Never rejects. */
  call(tool: string, input: unknown, call?: ToolCall): Promise<ToolOutcome>
  readonly log: readonly LogLine[]
  stop(): Promise<void>
}

export interface ToolsOptions extends Partial<TestOptions> {
  /** Tools made in the test, beside those that the entries bring. */
  readonly tools?: readonly Tool[]
}

/**
 * Puts tools into a registry of their own, for a test.
 * @throws what is wrong with one of them, or what an entry failed to start with
 */
export async function startTools({
  tools = [],
  entries = [],
  base = tmpdir(),
  ...rest
}: ToolsOptions): Promise<ToolBench> {
  const contributor = definePlugin({
    name: 'tools-under-test',
    inject: ['tools'],
    apply(ctx) {
      ctx.contribute('tools', ...tools)
    }
  })
  const registry = entries.some(({ plugin }) => plugin === 'tools') ? [] : [{ plugin: 'tools' }]
  const program = await startProgram({ ...rest, base, entries: [...registry, ...entries, { plugin: contributor }] })
  return {
    async call(tool, input, { requestId, principal, permissions = [], signal } = {}) {
      const events: ExecutionEvent[] = []
      const { response, replayed } = await program.service('tools').execute({
        tool,
        arguments: input,
        requestId,
        caller: { principal, permissions: new Set(permissions) },
        signal,
        listener: (event) => events.push(event)
      })
      return { response, events, replayed }
    },
    log: program.log,
    stop: () => program.stop()
  }
}

/** Runs one tool once through the whole pipeline. */
export async function runTool(tool: Tool, input: unknown, call?: ToolCall): Promise<ToolOutcome> {
  const bench = await startTools({ tools: [tool] })
  try {
    return await bench.call(tool.name, input, call)
  } finally {
    await bench.stop()
  }
}
