import { dirname, extname } from 'node:path'
import { fileURLToPath } from 'node:url'
import { type CodeLoader, createCodeLoader } from '../kernel/code.ts'
import { startKernel as startHost } from '../kernel/host.ts'
import {
  createJsonLogger,
  createLineWriter,
  type Entry,
  type FiberStatus,
  type Logger,
  type Plugin,
  type ServiceName,
  type Services
} from '../kernel/index.ts'
import { defaultSettings, type ProgramSettings } from '../kernel/program.ts'

/** An entry of a program that is given as data: as in `program.toml`, or with a plugin in place of a label. */
export interface EntryData extends Partial<Omit<Entry, 'plugin'>> {
  /** A built-in label, a package name, a path from `base`, or a plugin made by the program itself. */
  readonly plugin: string | Plugin
}

export interface StartOptions {
  /** Path of a program file, or the program itself: then nothing is written anywhere. */
  readonly program: string | { readonly entries: readonly EntryData[]; readonly settings?: Partial<ProgramSettings> }
  /** Where paths and packages are looked up: a folder or an `import.meta.url`. Default: the working directory. */
  readonly base?: string
  /** What `${NAME}` in a config stands for. Default: the environment of the process. */
  readonly env?: Readonly<Record<string, string | undefined>>
  /** Default: lines of JSON on stderr, from `info` up. */
  readonly log?: Logger
  /** Follows the program file and the files of plugins, and swaps what has changed. Default: false. */
  readonly watch?: boolean
}

/** A server that was started from code. */
export interface RunningProgram {
  /** The late-bound handle of a service; `undefined` while nobody provides it. Typed as there, for short programs. */
  service<K extends ServiceName>(name: K): Services[K]
  fibers(): readonly FiberStatus[]
  /** What the entry of this id failed to start with; `undefined` where it did not. */
  failureOf(entry: string): unknown
  /** How many effects, fibers and resources are left, by name; none after {@link stop}. */
  leftovers(): readonly string[]
  /** Drains and ends everything. Resolves when all of it has ended. Harmless when called again. */
  stop(): Promise<void>
}

/**
 * Starts a server from code. Resolves once everything that can start has started; a plugin that fails leaves the rest
 * serving, unless it is essential. Signals of the process are the caller's.
 * @throws CodedError `PROGRAM_INVALID`: nothing was started. What an essential plugin failed with: all was stopped
 */
export async function startKernel(options: StartOptions): Promise<RunningProgram> {
  const { program, base = process.cwd(), env = process.env } = options
  const made = new Map<string, Plugin>()
  const host = await startHost({
    program:
      typeof program === 'string'
        ? program
        : {
            settings: { ...defaultSettings, ...program.settings },
            entries: program.entries.map((entry) => toEntry(entry, made))
          },
    loader: withPlugins(createLoader(base.startsWith('file:') ? dirname(fileURLToPath(base)) : base), made),
    env,
    log: options.log ?? createJsonLogger({ level: 'info', write: createLineWriter(process.stderr.fd).write }),
    ...(options.watch === true ? { watch: { settleMs: 200 } } : {})
  })
  const { kernel } = host
  return {
    service: (name) => kernel.service(name) as never,
    fibers: () => kernel.fibers(),
    failureOf: (entry) => kernel.fiber(entry)?.error,
    leftovers: () => [
      ...kernel.fibers().map((fiber) => `fiber ${fiber.entry} (${fiber.pendingUndoLabels.join(', ')})`),
      ...(kernel.resources.size > 0 ? [`${kernel.resources.size} resources`] : [])
    ],
    stop: () => host.stop()
  }
}

/** Loads built-in plugins, and others from a folder; for those `heartwood` is what authors import. */
export function createLoader(base: string): CodeLoader {
  const builtins = fileURLToPath(new URL('../plugins', import.meta.url))
  return createCodeLoader({
    builtins,
    base,
    surface: new URL(`./index${extname(import.meta.url)}`, import.meta.url).href
  })
}

function toEntry({ plugin, ...entry }: EntryData, made: Map<string, Plugin>): Entry {
  const label = typeof plugin === 'string' ? plugin : plugin.name
  if (typeof plugin !== 'string') made.set(label, plugin)
  return { config: {}, disabled: false, ...entry, id: entry.id ?? label, plugin: label }
}

/** A loader that knows plugins made by the program by their names. */
function withPlugins(loader: CodeLoader, plugins: ReadonlyMap<string, Plugin>): CodeLoader {
  return {
    ...loader,
    async load(label, options) {
      const plugin = plugins.get(label)
      return plugin === undefined ? loader.load(label, options) : { plugin, files: [] }
    }
  }
}
