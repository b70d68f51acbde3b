import { createJsonLogger, type LogFields, type Plugin, type ServiceName, type Services } from '../kernel/index.ts'
import { Kernel } from '../kernel/kernel.ts'
import type { ProgramSettings } from '../kernel/program.ts'

/** The part of a tap test that the harness uses. */
interface Test {
  testdir(): string
  teardown(work: () => unknown): void
}

export interface HouseEntry {
  readonly plugin: Plugin
  /** The plugin's name when left out. */
  readonly id?: string
  readonly config?: unknown
}

export interface HouseOptions {
  /** The store in `dataFolder`; true unless said otherwise. */
  readonly store?: boolean
  /** The dispatch-only http; true unless said otherwise. */
  readonly http?: boolean
  /** The test's own folder when left out. */
  readonly dataFolder?: string
  readonly settings?: Partial<ProgramSettings>
}

export interface LogLine extends LogFields {
  readonly level: string
  readonly message: string
}

export interface House {
  readonly kernel: Kernel
  /** The late-bound handle of a service; `undefined` while nobody provides it. Typed as there, for short tests. */
  readonly services: <K extends ServiceName>(name: K) => Services[K]
  /** What was logged so far, oldest first. */
  readonly lines: readonly LogLine[]
}

/**
 * Starts a kernel with the given plugins, over a real store and the dispatch-only http unless told otherwise. When the
 * test ends it stops them, and throws if an effect, a fiber or a resource is left.
 */
export async function startHouse(t: Test, entries: readonly HouseEntry[], options: HouseOptions = {}): Promise<House> {
  const lines: LogLine[] = []
  const log = createJsonLogger({ level: 'debug', write: (line) => lines.push(JSON.parse(line) as LogLine) })
  const kernel = new Kernel({ log, ...(options.settings === undefined ? {} : { settings: options.settings }) })

  const own = new Set(entries.map((entry) => entry.plugin.name))
  const all = [...entries]
  if (options.store !== false && !own.has('store')) {
    const config = { path: options.dataFolder ?? t.testdir() }
    all.unshift({ plugin: await pluginNamed('store'), config })
  }
  if (options.http !== false && !own.has('http')) {
    all.unshift({ plugin: await pluginNamed('http'), config: { listen: false } })
  }

  let stopped = false
  t.teardown(async () => {
    if (!stopped) await kernel.stop()
    stopped = true
    const left = kernel.fibers().map((fiber) => `${fiber.entry} (${fiber.pendingUndoLabels.join(', ')})`)
    // Assertions inside a teardown count against the wrong test: the harness throws.
    if (left.length > 0) throw new Error(`fibers left after stop: ${left.join('; ')}`)
    if (kernel.resources.size > 0) throw new Error(`${kernel.resources.size} resources left after stop`)
  })

  const started = await Promise.allSettled(
    all.map((entry) =>
      kernel.begin({ id: entry.id ?? entry.plugin.name, plugin: entry.plugin, config: entry.config ?? {} })
    )
  )
  await kernel.settled()
  const failures = started.flatMap((outcome) => (outcome.status === 'rejected' ? [outcome.reason as unknown] : []))
  if (failures.length === 1) throw failures[0]
  if (failures.length > 1) throw new AggregateError(failures, 'several entries of the house failed to start')
  return { kernel, lines, services: (name) => kernel.service(name) as never }
}

/** The built-in plugin of a label. */
export async function pluginNamed(label: string): Promise<Plugin> {
  const module = (await import(new URL(`../plugins/${label}/index.js`, import.meta.url).href)) as { default: Plugin }
  return module.default
}

/** Everything an async iterable yields. */
export async function collect<T>(iterable: AsyncIterable<T>): Promise<T[]> {
  const all: T[] = []
  for await (const item of iterable) all.push(item)
  return all
}
