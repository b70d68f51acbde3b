import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { type CodeLoader, createCodeLoader } from '../kernel/code.ts'
import { type ProgramHost, startKernel } from '../kernel/host.ts'
import { createJsonLogger, type LogFields, type Plugin, type ServiceName, type Services } from '../kernel/index.ts'
import { Kernel } from '../kernel/kernel.ts'
import type { ProgramSettings } from '../kernel/program.ts'
import type { DispatchReply, Http } from '../plugins/http/types.ts'

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
    assertNothingLeft(kernel)
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

export interface ProgramHouse extends House {
  readonly host: ProgramHost
  /** Path of the program file. */
  readonly file: string
  /** The text of the program file as it is now. */
  text(): string
  /** A request in process, with the admin secret. */
  admin(method: string, path: string, body?: unknown, headers?: Record<string, string>): Promise<DispatchReply>
}

const adminSecret = 'the-admin-secret-of-the-tests'

/** What an admin needs to be heard, before the entries of the test. */
const adminProgram = `
[[entry]]
id = "store"
plugin = "store"

[[entry]]
id = "workers"
plugin = "workers"

[[entry]]
id = "http"
plugin = "http"
config = { listen = false }

[[entry]]
id = "auth"
plugin = "auth"

[[entry]]
id = "admin"
plugin = "admin"
`

/**
 * Starts a program file: the given text behind what an admin needs. Labels of `plugins` win over built-in ones.
 * Everything is stopped when the test ends, as by {@link startHouse}.
 * @param files texts of other files beside it, by name
 */
export async function startProgram(
  t: Test & { testdir(content: Record<string, string>): string },
  text: string,
  plugins: Readonly<Record<string, Plugin>> = {},
  files: Readonly<Record<string, string>> = {}
): Promise<ProgramHouse> {
  const folder = t.testdir({ ...files, 'program.toml': adminProgram + text })
  const file = join(folder, 'program.toml')
  const lines: LogLine[] = []
  const log = createJsonLogger({ level: 'debug', write: (line) => lines.push(JSON.parse(line) as LogLine) })
  const loader = loaderOf(plugins, folder)
  const overrides = { store: { path: join(folder, 'data') }, auth: { admin_secret: adminSecret } }
  const host = await startKernel({ program: file, loader, env: {}, overrides, log })
  const { kernel } = host
  t.teardown(async () => {
    await host.stop()
    assertNothingLeft(kernel)
  })
  return {
    host,
    kernel,
    lines,
    file,
    services: (name) => kernel.service(name) as never,
    text: () => readFileSync(file, 'utf8'),
    admin: (method, path, body, headers = {}) =>
      (kernel.service('http') as Http).dispatch({
        method,
        path: `/api/admin/cordis${path}`,
        headers: { 'x-admin-secret': adminSecret, ...headers },
        ...(body === undefined ? {} : { body })
      })
  }
}

/** Loads the given plugins by their labels, and everything else as the program does. */
export function loaderOf(plugins: Readonly<Record<string, Plugin>>, base: string): CodeLoader {
  const builtins = createCodeLoader({ builtins: fileURLToPath(new URL('../plugins', import.meta.url)), base })
  return {
    ...builtins,
    labels: () => [...Object.keys(plugins), ...builtins.labels()],
    load: async (label, options) => {
      const plugin = Object.hasOwn(plugins, label) ? plugins[label] : undefined
      return plugin === undefined ? builtins.load(label, options) : { plugin, files: [] }
    }
  }
}

export function assertNothingLeft(kernel: Kernel): void {
  const left = kernel.fibers().map((fiber) => `${fiber.entry} (${fiber.pendingUndoLabels.join(', ')})`)
  // Assertions inside a teardown count against the wrong test: the harness throws.
  if (left.length > 0) throw new Error(`fibers left after stop: ${left.join('; ')}`)
  if (kernel.resources.size > 0) throw new Error(`${kernel.resources.size} resources left after stop`)
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
