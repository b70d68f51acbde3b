import type { Logger } from './log.ts'
import type { Schema } from './schema.ts'

/** Services by name. A plugin that provides one adds its type here: `declare module '…/kernel/index.ts'`. */
export interface Services {}

/** Events by name: the tuple of arguments a listener gets. */
export interface Events {
  /** Everything that can start has started. */
  'kernel/started': []
  /** The kernel is about to stop: nothing new should be let in. */
  'kernel/stopping': []
  /** A fiber came to rest in another state, or began to leave one; the last time with `disposed`. */
  'kernel/fiber-changed': [
    status: { readonly entry: string; readonly state: FiberState; readonly was: FiberState; readonly disposed: boolean }
  ]
  /** A plugin ended its own entry; the program should remember. */
  'kernel/self-disposed': [status: { readonly entry: string }]
  /** A dispatch is about to begin; those of `internal/…` events are not announced. */
  'internal/dispatch': [dispatch: { readonly mode: string; readonly event: string; readonly args: readonly unknown[] }]
  /** Somebody is about to listen. An answer (see {@link EventBus.bail}) or an error keeps the listener from being heard. */
  'internal/listener': [listener: { readonly event: string; readonly entry: string | undefined }]
}

/** What plugins hand to a collecting plugin, by the name of the collection: the type of one item. */
export interface Contributions {
  /** Lines an operator wants to see when the server has started, such as where it listens. */
  notices: { readonly label: string; readonly text: string }
}

export type ServiceName = keyof Services
export type EventName = keyof Events
export type CollectionName = keyof Contributions

/** A value that may be at hand or on its way. */
export type Awaitable<T> = T | Promise<T>

/** Takes back one effect. Called once, after every effect that was made later has been taken back. */
export type Undo = () => unknown

/**
 * `Inactive`: not started, a needed service was never there. `Loading`: `apply` runs. `Active`: serving. `Reloading`:
 * serving while its next generation is built. `Unloading`: effects are being undone. `Pending`: was active, lost a
 * service it needs, comes back by itself. `Failed`: could not start; stays so until its entry or code changes.
 */
export type FiberState = 'Inactive' | 'Loading' | 'Active' | 'Reloading' | 'Unloading' | 'Pending' | 'Failed'

/** Keeps one generation alive while something it contributed is at work. */
export interface Lease {
  /** Fires when the holder must end: the drain time of the generation is over. Its reason is a CodedError. */
  readonly signal: AbortSignal
  /** The holder is done. Harmless when called again. */
  release(): void
}

/** One item of a collection, with the generation it belongs to. */
export interface Contribution<T> {
  readonly item: T
  /** Id of the entry that contributed it. */
  readonly entry: string
  /** Holds the generation that contributed it. Take it in the same synchronous step in which the item was found. */
  lease(): Lease
}

/** The two moments in which a collecting plugin sees its collection. Both are synchronous. */
export interface Collector<T> {
  /** Before a commit, with what would then be there. @throws CodedError to refuse it; nothing has changed then */
  check?(next: readonly Contribution<T>[]): void
  /** Within a commit (and once at the collector's own), with what is there now. Must not throw. */
  update(now: readonly Contribution<T>[]): void
}

/** What an entry and the groups around it lay over the config of one service, innermost key wins. */
export type Overlay = Readonly<Record<string, unknown>>

export interface ProvideOptions {
  /** Asked just before the commit; `false` fails the start: this will not become available as it was built. */
  readonly check?: () => boolean
  /** The service as consumers see it whose entry lays something over its config (`intercept`). */
  readonly withOverlay?: (overlay: Overlay) => object
}

/** Keeps a generation that was built from being seen until it is open. Closed when made. */
export interface Gate {
  open(): void
  /** Takes the generation out of sight again, with all that need it. Nothing is undone. */
  close(): void
}

/** A plugin that another one runs; it lives in the generation that mounted it. */
export interface Child {
  readonly entry: string
  update(config: unknown): Promise<void>
  dispose(): Promise<void>
}

/**
 * - `handled`: the plugin took the new config in place; nothing is rebuilt
 * - `veto`: the present config stays
 * - anything else: the plugin is rebuilt
 */
export type UpdateVerdict = 'handled' | 'veto' | undefined | void

/** The services a plugin sees: those it injects, and those it would like and may find missing. */
export type Injected<I extends readonly ServiceName[], O extends readonly ServiceName[]> = {
  readonly [K in I[number]]: Services[K]
} & { readonly [K in O[number]]: Services[K] | undefined }

/**
 * What `apply` works with. Everything made through it belongs to one generation of the fiber: it becomes visible in
 * one step when `apply` has ended well, and is undone in reverse order when the generation ends.
 */
export interface Context<
  I extends readonly ServiceName[] = readonly ServiceName[],
  O extends readonly ServiceName[] = readonly [],
  P extends readonly ServiceName[] = readonly ServiceName[],
  C = unknown
> {
  /** Id of the entry, such as `agents:researcher`. */
  readonly entry: string
  /** Late-bound handles: they stay valid when a provider is swapped. Keep the handle, not what a call returned. */
  readonly services: Injected<I, O>
  readonly log: Logger
  /**
   * Fires when this generation must end its work: its start is of no use any more, or its drain time is over. Its reason
   * is a CodedError.
   */
  readonly signal: AbortSignal
  /** Holds this generation, for work it began on its own. */
  lease(): Lease
  /** Offers a service. Visible to others from the commit on. */
  provide<K extends P[number]>(name: K, service: Services[K], options?: ProvideOptions): void
  /** Puts another object in the place of a service this generation provides; nobody is woken. */
  set<K extends P[number]>(name: K, service: Services[K]): void
  /**
   * A service that was not injected, as it is now: `undefined` while nobody provides it. Nothing waits for it; but who
   * has asked for it is rebuilt when another realm or overlay holds for it. What this generation provides itself is
   * there before the commit.
   */
  get<K extends ServiceName>(name: K): Services[K] | undefined
  /** What this entry and its groups lay over the config of a service. */
  overlay(service: ServiceName): Overlay
  /** Something that has to come about before this generation may be seen; ask for it within `apply`. */
  gate(label: string): Gate
  /** Is asked before a config change rebuilds this plugin. */
  onUpdate(hook: (config: C) => Awaitable<UpdateVerdict>): void
  /**
   * Runs another plugin from the commit on, until this generation ends, in the realms and under the overlays of this
   * entry. Its failure to start is its own.
   * @throws CodedError `PLUGIN_CONFIG_INVALID`
   */
  mount(plugin: Plugin, config?: unknown): Child
  /** Ends this entry; it is remembered as disabled. Refused while `apply` or an undo runs: it would wait for itself. */
  dispose(): Promise<void>
  /** Hands items to whoever collects `collection`, now or later. */
  contribute<K extends CollectionName>(collection: K, ...items: readonly Contributions[K][]): void
  /** Becomes the collector of `collection`; there is at most one. */
  collect<K extends CollectionName>(collection: K, collector: Collector<Contributions[K]>): void
  /**
   * Runs `start` at once and keeps the undo it returns, or each that it yields. The label shows in the admin's list of
   * pending undos. When a generator throws, what it yielded is undone; when the start is given up, an async one is not
   * asked for its next step. An undo that comes after this generation has ended runs at once.
   */
  effect<R extends Undo | void>(start: () => R, label?: string): void
  effect(start: () => Promise<Undo | void> | AsyncIterable<Undo>, label?: string): Promise<void>
  effect(start: () => Iterable<Undo>, label?: string): void
  /**
   * Something that cannot exist twice (a port, a database) or is worth keeping (a cache): opened once for each
   * `identity` (compared as JSON), shared by every generation of this fiber that asks for the same one, closed after
   * the last of them has ended.
   */
  resource<T>(
    key: string,
    identity: unknown,
    open: () => Awaitable<T>,
    close: (resource: T) => Awaitable<void>
  ): Promise<T>
  /** Runs within the commit of this generation, synchronously: the moment to point a kept resource at it. */
  onCommit(step: () => void): void
  /** Listens from the commit on. @returns takes the listener away */
  on<K extends EventName>(event: K, listener: (...args: Events[K]) => unknown, options?: ListenOptions): () => void
  readonly events: EventBus
  /** `setTimeout` whose callback never runs after the generation has ended, and whose errors are logged. */
  setTimeout(callback: () => unknown, delayMs: number): void
  /** `setInterval`, likewise. */
  setInterval(callback: () => unknown, periodMs: number): void
}

export interface ListenOptions {
  /** Before the listeners that are there. */
  readonly prepend?: boolean
  /** Hears what is meant for others too. */
  readonly global?: boolean
  /** Taken away just before its first call. */
  readonly once?: boolean
}

/** Announces facts. To make something happen, call a service. */
export interface EventBus {
  /** Calls every listener in order. One that throws is logged and does not keep the others from it. */
  emit<K extends EventName>(event: K, ...args: Events[K]): void
  /** Calls all at once; rejects with one AggregateError after all have settled. */
  parallel<K extends EventName>(event: K, ...args: Events[K]): Promise<void>
  /** One at a time, until one answers something other than `null`, `undefined` or `false`; that is the result. */
  serial<K extends EventName>(event: K, ...args: Events[K]): Promise<unknown>
  /** As {@link serial}, without awaiting. */
  bail<K extends EventName>(event: K, ...args: Events[K]): unknown
  /**
   * Around-middleware: each listener gets the arguments and `next`, which runs the rest and at last `core`; what the
   * outermost returns is the result. `next` may be called once.
   */
  waterfall<K extends EventName, R>(event: K, args: Events[K], core: (...args: Events[K]) => R): R
  /** The bus, heard only by listeners whose entry `accepts` takes, and by global ones. */
  only(accepts: (entry: string) => boolean): EventBus
  /** The bus, heard only by those who see the same realm of `service` as `entry` does, and by global ones. */
  within(service: ServiceName, entry: string): EventBus
  /** Dispatches so far; `internal/…` events are not counted. */
  counts(): { readonly total: number; readonly byEvent: Readonly<Record<string, number>> }
}

/** A feature as the kernel sees it. Made by {@link definePlugin}. */
export interface Plugin {
  readonly name: string
  readonly inject: readonly ServiceName[]
  readonly optional: readonly ServiceName[]
  readonly provides: readonly ServiceName[]
  readonly config: Schema<unknown> | undefined
  readonly exclusive: boolean
  readonly essential: boolean
  readonly preflight: ((config: never) => Awaitable<void>) | undefined
  readonly requires: Readonly<Record<string, string>>
  readonly versions: Readonly<Record<string, string>>
  // The kernel calls it with the context its manifest promises and a config its schema has checked.
  readonly apply: (ctx: Context<never, never, never, never>, config: never) => Awaitable<void>
}

export interface Manifest<
  I extends readonly ServiceName[],
  O extends readonly ServiceName[],
  P extends readonly ServiceName[],
  C
> {
  /** Lower case, kebab-case; the label entries use. */
  readonly name: string
  /** Services without which it does not run. */
  readonly inject?: I
  /** Services it uses when they are there; it is rebuilt when one comes or goes. */
  readonly optional?: O
  readonly provides?: P
  /** Checked, and filled with its defaults, before `apply`. Without one the config must be empty. */
  readonly config?: Schema<C>
  /** Two generations cannot overlap: the old one is undone before the next is built. */
  readonly exclusive?: boolean
  /** Versions of injected services: `^2.1` takes a provider of the same first number that is not older. */
  readonly requires?: { readonly [K in I[number]]?: string }
  /** Versions of provided services; `0` when left out, which meets no requirement. */
  readonly versions?: { readonly [K in P[number]]?: string }
  /** A program is not worth running without it: when it cannot start together with the kernel, the kernel stops. */
  readonly essential?: boolean
  /**
   * Looks whether the world lets it run, and changes nothing: called before anything of a program is started. What it
   * throws ends the start.
   */
  preflight?(config: C): Awaitable<void>
  apply(ctx: Context<I, O, P, C>, config: C): Awaitable<void>
}

const keys = [
  'name',
  'inject',
  'optional',
  'provides',
  'config',
  'exclusive',
  'essential',
  'preflight',
  'requires',
  'versions',
  'apply'
]

/**
 * Declares a plugin.
 * @throws TypeError when the manifest has another shape: a mistake of its author, found when the module is loaded
 */
export function definePlugin<
  const I extends readonly ServiceName[] = readonly [],
  const O extends readonly ServiceName[] = readonly [],
  const P extends readonly ServiceName[] = readonly [],
  C = Record<never, never>
>(manifest: Manifest<I, O, P, C>): Plugin {
  assertManifest(manifest)
  const plugin: Plugin = {
    name: manifest.name,
    inject: manifest.inject ?? [],
    optional: manifest.optional ?? [],
    provides: manifest.provides ?? [],
    config: manifest.config as Schema<unknown> | undefined,
    exclusive: manifest.exclusive ?? false,
    essential: manifest.essential ?? false,
    preflight: manifest.preflight?.bind(manifest) as Plugin['preflight'],
    requires: (manifest.requires ?? {}) as Readonly<Record<string, string>>,
    versions: (manifest.versions ?? {}) as Readonly<Record<string, string>>,
    apply: manifest.apply.bind(manifest) as Plugin['apply']
  }
  return Object.freeze(plugin)
}

/** @throws TypeError naming what is wrong with something that should be a plugin */
export function assertManifest(value: unknown): asserts value is Plugin {
  if (value === null || typeof value !== 'object') {
    throw new TypeError(`a plugin is an object made by definePlugin, found ${value === null ? 'null' : typeof value}`)
  }
  const manifest = value as Record<string, unknown>
  const name = manifest['name']
  if (typeof name !== 'string' || name === '') throw new TypeError('a plugin needs a name: a string that is not empty')
  if (typeof manifest['apply'] !== 'function') {
    throw new TypeError(`plugin '${name}' needs an apply function, found ${typeof manifest['apply']}`)
  }
  for (const key of Object.keys(manifest)) {
    if (!keys.includes(key))
      throw new TypeError(`plugin '${name}' has an unknown key '${key}'; known: ${keys.join(', ')}`)
  }
  for (const key of ['inject', 'optional', 'provides']) {
    const list = manifest[key]
    if (list !== undefined && !(Array.isArray(list) && list.every((item) => typeof item === 'string'))) {
      throw new TypeError(`plugin '${name}': ${key} is a list of service names`)
    }
  }
  const used = [...((manifest['inject'] as string[] | undefined) ?? []), ...((manifest['optional'] as string[]) ?? [])]
  const twice = used.find((service, at) => used.indexOf(service) !== at)
  if (twice !== undefined) throw new TypeError(`plugin '${name}' names the service '${twice}' twice`)
  for (const key of ['requires', 'versions']) assertVersions(name, key, manifest[key])
}

function assertVersions(name: string, key: string, versions: unknown): void {
  if (versions === undefined) return
  if (versions === null || typeof versions !== 'object')
    throw new TypeError(`plugin '${name}': ${key} is a table of versions`)
  for (const [service, version] of Object.entries(versions)) {
    const form = key === 'requires' ? /^\^?\d+(\.\d+){0,3}$/ : /^\d+(\.\d+){0,3}$/
    if (typeof version === 'string' && form.test(version)) continue
    throw new TypeError(
      `plugin '${name}': ${key}.${service} is a version such as '2.1', found ${JSON.stringify(version)}`
    )
  }
}
