import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { basename, dirname, join, parse } from 'node:path'
import { fileURLToPath } from 'node:url'
import { type CodeLoader, createCodeLoader } from '../kernel/code.ts'
import { startKernel } from '../kernel/host.ts'
import {
  CodedError,
  createJsonLogger,
  type FiberStatus,
  type JsonObject,
  type LogFields,
  type Plugin,
  type ServiceName,
  type Services
} from '../kernel/index.ts'
import { defaultSettings, type Entry, type ProgramSettings } from '../kernel/program.ts'

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
  const base = options.base.startsWith('file:') ? dirname(fileURLToPath(options.base)) : options.base
  const made = new Map<string, Plugin>()
  const entries = options.entries.map(({ plugin, id, config = {} }): Entry => {
    const label = typeof plugin === 'string' ? plugin : plugin.name
    if (typeof plugin !== 'string') made.set(label, plugin)
    return { id: id ?? parse(basename(label)).name, plugin: label, config, disabled: false }
  })
  const dataFolder = await mkdtemp(join(tmpdir(), 'heartwood-test-'))
  const own = new Set(entries.map((entry) => entry.plugin))
  const given = [
    { id: 'http', plugin: 'http', config: { listen: false }, disabled: false },
    { id: 'store', plugin: 'store', config: { path: dataFolder }, disabled: false }
  ].filter((entry) => !own.has(entry.plugin))

  const lines: LogLine[] = []
  const builtins = fileURLToPath(new URL('../plugins', import.meta.url))
  const host = await startKernel({
    program: { settings: { ...defaultSettings, ...options.settings }, entries: [...given, ...entries] },
    loader: withPlugins(createCodeLoader({ builtins, base }), made),
    env: options.env ?? {},
    log: createJsonLogger({ level: 'debug', write: (line) => lines.push(JSON.parse(line) as LogLine) })
  })
  const { kernel } = host
  const program: TestProgram = {
    service: (name) => kernel.service(name) as never,
    fibers: () => kernel.fibers(),
    log: lines,
    async stop() {
      await host.stop()
      await rm(dataFolder, { recursive: true, force: true })
      const left = kernel.fibers().map((fiber) => `${fiber.entry} (${fiber.pendingUndoLabels.join(', ')})`)
      if (left.length > 0) throw new Error(`fibers left after stop: ${left.join('; ')}`)
      if (kernel.resources.size > 0) throw new Error(`${kernel.resources.size} resources left after stop`)
    }
  }
  const idle = kernel.fibers().find((fiber) => fiber.state !== 'Active')
  if (idle === undefined) return program
  const failure: unknown = kernel.fiber(idle.entry)?.error
  await program.stop()
  throw failure ?? new CodedError('TEST_NOT_STARTED', `entry '${idle.entry}' is ${idle.state}: ${idle.error}`)
}

/** A loader that knows plugins made in the test by their names. */
function withPlugins(loader: CodeLoader, plugins: ReadonlyMap<string, Plugin>): CodeLoader {
  return {
    ...loader,
    async load(label, options) {
      const plugin = plugins.get(label)
      return plugin === undefined ? loader.load(label, options) : { plugin, files: [] }
    }
  }
}
