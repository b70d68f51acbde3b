import { Collection } from './collections.ts'
import type { FiberStatus } from './control.ts'
import { CodedError, messageOf } from './errors.ts'
import { findCycles } from './cycles.ts'
import { Bus, Listener } from './events.ts'
import { Fiber } from './fiber.ts'
import { Generation, type MountedPlugin, realmOf, type Target } from './generation.ts'
import { type Logger, silentLogger } from './log.ts'
import { assertManifest, definePlugin, type Plugin, type ServiceName, type Services } from './plugin.ts'
import { EndOrder } from './order.ts'
import { defaultSettings, type ProgramSettings } from './program.ts'
import { Resources } from './resources.ts'
import { type Check, compileSchema, renderIssues } from './schema.ts'
import { commonRealm, meets, ServiceTable, type Slot } from './services.ts'

export interface KernelOptions {
  readonly log?: Logger
  readonly settings?: Partial<ProgramSettings>
}

/** A plugin to run under an id. */
export interface Mount {
  readonly id: string
  readonly plugin: Plugin
  /** Checked against the plugin's schema; its defaults are filled in on a copy. */
  readonly config?: unknown
  /** Service → realm; see {@link Target}. */
  readonly realms?: Target['realms'] | undefined
  /** Service → what is laid over its config; see {@link Target}. */
  readonly overlays?: Target['overlays'] | undefined
}

/** Runs plugins: who provides what to whom, and what happens when one comes, changes or goes. */
export class Kernel {
  readonly log: Logger
  settings: ProgramSettings
  readonly services = new ServiceTable()
  readonly resources = new Resources()
  readonly order = new EndOrder()
  readonly events: Bus
  /** Everything that can start has started: from here on a failure of an essential plugin is its own. */
  started = false
  readonly #collections = new Map<string, Collection>()
  readonly #fibers = new Map<number, Fiber>()
  readonly #byEntry = new Map<string, Fiber>()
  readonly #checks = new WeakMap<object, Check>()
  /** What the kernel itself provides. */
  readonly #own = new Map<string, Generation>()
  #lastId = 0
  #transitions = 0
  #onSettled: (() => void)[] = []
  #stopping: Promise<void> | undefined
  #drainTimeMs: number | undefined

  constructor(options: KernelOptions = {}) {
    this.log = options.log ?? silentLogger
    this.settings = { ...defaultSettings, ...options.settings }
    this.events = new Bus({
      onError: (event, error, owner) => {
        owner?.fault(error)
        this.log.error(`a listener of '${event}' failed`, { entry: owner?.fiber.entry, error })
      },
      realmOf: (entry, service) => {
        const target = this.#byEntry.get(entry)?.target
        return target === undefined ? commonRealm : realmOf(target, service)
      }
    })
  }

  /**
   * Starts a plugin. Resolves once it rests: active, or waiting for a service it needs.
   * @throws CodedError `KERNEL_DUPLICATE_ENTRY`, `PLUGIN_CONFIG_INVALID`, or what its `apply` threw; it stays `Failed`
   */
  async begin(mount: Mount): Promise<void> {
    const target = this.targetOf(mount)
    const { id } = mount
    for (;;) {
      if (this.stopping) {
        throw new CodedError('KERNEL_STOPPING', `the kernel is stopping; entry '${id}' was not started`)
      }
      const present = this.#byEntry.get(id)
      if (present === undefined) break
      const inTheWay = this.#mountedAs(id)
      if (inTheWay !== undefined) {
        const fiber = this.#add(id, target)
        this.resources.rename(this.#renameMounted(inTheWay))
        await fiber.begin()
        return
      }
      if (present.target !== undefined) {
        throw new CodedError('KERNEL_DUPLICATE_ENTRY', `entry '${id}' is running already`)
      }
      if (!target.plugin.exclusive) break
      await present.retire().catch(() => {})
    }
    await this.#add(id, target).begin()
  }

  /** Swaps the entry to another config. @throws what the next generation failed with; the old one serves on then */
  async update(id: string, config: unknown): Promise<void> {
    const fiber = this.#live(id)
    const { target } = fiber
    if (target === undefined) throw new CodedError('KERNEL_DISPOSED', `entry '${id}' has been retired`)
    await fiber.update({ ...target, ...this.toTarget(target.plugin, config, id) })
  }

  /**
   * Swaps the entry to a whole new target: another plugin, config, realms, overlays; an equal one is built anew. Nothing
   * is built where only realms and overlays of services change that the plugin does not name.
   */
  async retarget(mount: Mount): Promise<void> {
    await this.#live(mount.id).retarget(this.targetOf(mount))
  }

  /** Tries a start that failed once more. */
  async refresh(id: string): Promise<void> {
    await this.#live(id).refresh()
  }

  /** The fiber counts as a new one from here on: its id is the next. */
  renew(id: string): void {
    const fiber = this.#live(id)
    this.#fibers.delete(fiber.id)
    this.#lastId += 1
    fiber.id = this.#lastId
    this.#fibers.set(fiber.id, fiber)
  }

  /**
   * Gives entries other ids, all at once, and so to what they mounted; fibers keep theirs, and nobody notices. What was
   * mounted elsewhere and has one of those ids gives way.
   */
  rename(ids: readonly (readonly [old: string, next: string])[]): void {
    const moved = ids.map(([old, next]) => [this.#byEntry.get(old), next] as const)
    const inTheWay = ids.flatMap(([, next]) => this.#mountedAs(next) ?? [])
    for (const [old] of ids) this.#byEntry.delete(old)
    for (const [fiber, next] of moved) {
      if (fiber === undefined) continue
      fiber.entry = next
      this.#byEntry.set(next, fiber)
    }
    const owned = moved.flatMap(([fiber]) => (fiber === undefined ? [] : [...mountedIn(fiber)]))
    this.resources.rename([...ids, ...this.#renameMounted([...owned, ...inTheWay])])
  }

  /** The plugin that was mounted under an id, with all that it mounted. */
  #mountedAs(id: string): readonly MountedPlugin[] | undefined {
    const fiber = this.#byEntry.get(id)
    const mounted = fiber?.parent?.mounted.find((child) => child.fiber === fiber)
    return fiber === undefined || mounted === undefined ? undefined : [mounted, ...mountedIn(fiber)]
  }

  /** @param mounted those that mount before those they have mounted */
  #renameMounted(mounted: Iterable<MountedPlugin>): readonly (readonly [old: string, next: string])[] {
    const held: MountedPlugin[] = []
    const all = new Set(mounted)
    for (const child of all) {
      if (child.fiber === undefined || this.#byEntry.get(child.entry) !== child.fiber) continue
      held.push(child)
      this.#byEntry.delete(child.entry)
    }
    const renamed = [...all].map((child) => child.rename())
    for (const { entry, fiber } of held) this.#byEntry.set(entry, fiber as Fiber)
    return renamed
  }

  /** Out of sight when this returns; the promise resolves when everything it made has been undone. */
  retire(id: string): Promise<void> {
    return this.#byEntry.get(id)?.retire() ?? Promise.resolve()
  }

  fiber(id: string): Fiber | undefined {
    return this.#byEntry.get(id)
  }

  /**
   * Closed paths of entries that wait for each other, such as `['a', 'b', 'a']`; each ring once, beginning with its
   * first id.
   */
  cycles(): readonly (readonly string[])[] {
    const waiting = [...this.#fibers.values()].filter((fiber) => fiber.missing.length > 0)
    const providers = this.#providers(waiting)
    const edges = waiting.map((fiber) => {
      const needs = fiber.missing.flatMap((slot) => providers.get(slot)?.entry ?? [])
      return [fiber.entry, needs] as const
    })
    return findCycles(new Map(edges))
  }

  /** Who of `fibers` would provide what. */
  #providers(fibers: Iterable<Fiber>): ReadonlyMap<Slot, Fiber> {
    const providers = new Map<Slot, Fiber>()
    for (const fiber of fibers) {
      const { target } = fiber
      if (target === undefined) continue
      for (const name of target.plugin.provides) {
        const slot = this.services.slot(name, realmOf(target, name))
        if (!providers.has(slot)) providers.set(slot, fiber)
      }
    }
    return providers
  }

  /** The late-bound handle of a service; `undefined` while nobody provides it. */
  service<K extends ServiceName>(name: K): Services[K] | undefined {
    return this.services.slot(name).open ? (this.services.handle(name) as Services[K]) : undefined
  }

  /** A service of the kernel itself. */
  provide<K extends ServiceName>(name: K, service: Services[K]): void {
    const plugin = definePlugin({ name: 'kernel', provides: [name], apply: () => {} })
    const owner = new Fiber(this, 0, 'kernel', { plugin, config: {} })
    const generation = new Generation(owner, { plugin, config: {} })
    generation.phase = 'live'
    generation.provide(name, service as object)
    this.#own.set(name, generation)
  }

  /**
   * Takes a service of the kernel itself away.
   * @returns whether it was there, and whether anybody was told
   * @throws CodedError `SERVICE_GUARDED` while active fibers need it; detail `consumers` counts them
   */
  unprovide(name: ServiceName): { readonly retired: boolean; readonly woken: boolean } {
    const generation = this.#own.get(name)
    const slot = this.services.slot(name)
    const users = [...slot.consumers].filter((fiber) => fiber.state === 'Active')
    if (generation === undefined) return { retired: false, woken: false }
    const consumers = users.filter((fiber) => fiber.target?.plugin.inject.includes(name)).length
    if (consumers > 0) {
      throw new CodedError('SERVICE_GUARDED', `${consumers} active consumer(s) still rely on service '${name}'`, {
        detail: { consumers }
      })
    }
    this.#own.delete(name)
    this.withdraw(generation)
    slot.empty(generation)
    void generation.end(this.drainTimeMs, this.undoTimeMs)
    return { retired: true, woken: users.length > 0 }
  }

  fibers(): readonly FiberStatus[] {
    const fibers = [...this.#fibers.values()]
    const explain = fibers.some((fiber) => fiber.state === 'Inactive') ? this.#explainer() : () => null
    return fibers.map((fiber) => statusOf(fiber, explain))
  }

  /** The fibers of a program that run, or are to run, what is `wanted`. */
  fibersOf(wanted: (target: Target) => boolean): readonly Fiber[] {
    return [...this.#fibers.values()].filter(({ target }) => target !== undefined && wanted(target))
  }

  targetOf(mount: Mount): Target {
    const { plugin, config, id, realms, overlays } = mount
    return { plugin, config: this.toTarget(plugin, config, id).config, realms, overlays }
  }

  /** The checked config with its defaults, beside the plugin it is for. @throws CodedError `PLUGIN_CONFIG_INVALID` */
  toTarget(plugin: Plugin, config: unknown, entry: string): Target {
    // What is frozen has been looked at by definePlugin.
    if (typeof plugin !== 'object' || !Object.isFrozen(plugin)) assertManifest(plugin)
    const copy: unknown = config == null ? {} : structuredClone(config)
    const issues = this.#checkOf(plugin)(copy)
    if (issues.length > 0) {
      throw new CodedError('PLUGIN_CONFIG_INVALID', `invalid config: ${renderIssues(issues)}`, {
        detail: { entry, plugin: plugin.name, issues, schema: plugin.config }
      })
    }
    return { plugin, config: copy }
  }

  /** Calls back when a plugin has ended its own entry. */
  onSelfDisposed(call: (id: string) => void): void {
    this.events.add('kernel/self-disposed', new Listener(({ entry }: { entry: string }) => call(entry), undefined))
  }

  /** Resolves when no fiber is on its way to another state; old generations may still be draining. */
  settled(): Promise<void> {
    if (this.#transitions === 0) return Promise.resolve()
    return new Promise((resolve) => {
      this.#onSettled.push(resolve)
    })
  }

  /**
   * Retires everything, those that need others first. Leases get the first part of `timeoutMs` to end by themselves,
   * then their signal fires with `SHUTTING_DOWN`. Harmless when called again.
   */
  stop(timeoutMs = this.settings.shutdown_timeout_ms): Promise<void> {
    this.#stopping ??= this.#stop(timeoutMs)
    return this.#stopping
  }

  get stopping(): boolean {
    return this.#stopping !== undefined
  }

  async #stop(timeoutMs: number): Promise<void> {
    // Half of the time is for leases; grace and undos have the rest.
    this.#drainTimeMs = timeoutMs / 2
    this.events.emit('kernel/stopping')
    const deadline = setTimeout(() => {
      const reason = new CodedError('SHUTTING_DOWN', 'the server is shutting down')
      for (const fiber of this.#fibers.values()) fiber.abort(reason)
    }, this.#drainTimeMs)
    // What a plugin mounted goes with it, in its turn.
    const entries = [...this.#fibers.values()].filter((fiber) => fiber.parent === undefined)
    await Promise.allSettled(entries.map((fiber) => fiber.retire()))
    clearTimeout(deadline)
  }

  // What fibers and generations ask of the kernel.

  get drainTimeMs(): number {
    // While stopping, the deadline above ends what is left; the generation's own limit is only the net below it.
    return this.#drainTimeMs === undefined ? this.settings.drain_timeout_ms : this.#drainTimeMs * 2
  }

  /** How long one undo may take: while stopping, no more of the time than leases have. */
  get undoTimeMs(): number {
    const { undo_timeout_ms } = this.settings
    return this.#drainTimeMs === undefined
      ? undo_timeout_ms
      : Math.min(undo_timeout_ms, Math.max(1_000, this.#drainTimeMs))
  }

  collection(name: string): Collection {
    let collection = this.#collections.get(name)
    if (collection === undefined) {
      collection = new Collection(name)
      this.#collections.set(name, collection)
    }
    return collection
  }

  /** A service came or went: whoever uses it looks again. */
  wake(slot: Slot): void {
    for (const fiber of slot.consumers) fiber.kick()
  }

  /** A service came, or is there in another version: those it does not suit go, the others look again. */
  offer(slot: Slot): void {
    for (const user of slot.users) {
      const suits = meets(slot.version, user.target.plugin.requires[slot.name])
      if (!suits && user.stands && user.needs(slot)) this.withdraw(user)
    }
    this.wake(slot)
  }

  /**
   * Takes a generation out of sight with all that need what it provides, and those that need them, in one synchronous
   * step; each then ends after its dependents have.
   */
  withdraw(generation: Generation): void {
    if (!generation.stands) return
    generation.withdraw('leaving')
    this.withdrawDependents(generation)
  }

  /** As {@link withdraw}, but the generation may come back into sight as it is. */
  park(generation: Generation): void {
    generation.withdraw('parked')
    this.withdrawDependents(generation)
  }

  /** As {@link withdraw}, for those who need services that `first` holds and offers no longer. */
  withdrawDependents(first: Generation): void {
    const queue = [first]
    for (let provider = queue.pop(); provider !== undefined; provider = queue.pop()) {
      for (const slot of provider.providedSlots) {
        if (slot.provider !== provider) continue
        for (const user of slot.users) {
          const needed = user.needs(slot)
          this.order.link(provider, user, needed)
          if (!needed || !user.stands) continue
          user.withdraw('leaving')
          queue.push(user)
        }
        this.wake(slot)
      }
    }
  }

  enterTransition(): void {
    this.#transitions += 1
  }

  leaveTransition(): void {
    this.#transitions -= 1
    if (this.#transitions > 0) return
    const waiters = this.#onSettled
    this.#onSettled = []
    for (const resolve of waiters) resolve()
  }

  forget(fiber: Fiber): void {
    this.#fibers.delete(fiber.id)
    if (this.#byEntry.get(fiber.entry) === fiber) this.#byEntry.delete(fiber.entry)
  }

  /** Whether the id is that of an entry, not of a plugin that another one mounted. */
  isProgramEntry(id: string): boolean {
    const fiber = this.#byEntry.get(id)
    return fiber !== undefined && fiber.parent === undefined
  }

  mountChild(parent: Generation, id: string, target: Target): Fiber {
    const fiber = this.#add(id, target, parent)
    // Its failure is its state; it takes nobody else down.
    fiber.begin().catch(() => {})
    return fiber
  }

  #add(id: string, target: Target, parent?: Generation): Fiber {
    this.#lastId += 1
    const fiber = new Fiber(this, this.#lastId, id, target, parent)
    this.#fibers.set(fiber.id, fiber)
    this.#byEntry.set(id, fiber)
    return fiber
  }

  #checkOf(plugin: Plugin): Check {
    if (plugin.config === undefined) return isEmpty
    let check = this.#checks.get(plugin.config)
    if (check === undefined) {
      check = compileSchema(plugin.config, 'config')
      this.#checks.set(plugin.config, check)
    }
    return check
  }

  #live(id: string): Fiber {
    const fiber = this.#byEntry.get(id)
    if (fiber === undefined) throw new CodedError('KERNEL_NO_ENTRY', `no entry '${id}' is running`)
    return fiber
  }

  /** Says what an inactive fiber waits for, and which ring it is part of. */
  #explainer(): (fiber: Fiber) => string | null {
    const providers = this.#providers(this.#fibers.values())
    const cycles = this.cycles()
    const explainSlot = (fiber: Fiber, slot: Slot) => {
      const { name } = slot
      const owner = providers.get(slot)
      if (slot.open) {
        const needed = fiber.target?.plugin.requires[name]
        return `version ${needed} of service '${name}', which is there in version ${slot.version}`
      }
      if (owner === undefined) return `service '${name}', which no plugin in the program provides`
      return `service '${name}' of entry '${owner.entry}', which is ${owner.state}`
    }
    return (fiber) => {
      const needs = fiber.missing.map((slot) => explainSlot(fiber, slot))
      if (needs.length === 0) return null
      const cycle = cycles.find((ring) => ring.includes(fiber.entry))
      const why = cycle === undefined ? '' : `; they wait for each other: ${cycle.join(' → ')}`
      return `missing or inactive dependency: needs ${needs.join(' and ')}${why}`
    }
  }
}

/** What is mounted in a fiber, those that mount before those they have mounted. */
function* mountedIn(fiber: Fiber): Iterable<MountedPlugin> {
  for (const generation of fiber.generations) {
    for (const child of generation.mounted) {
      yield child
      if (child.fiber !== undefined) yield* mountedIn(child.fiber)
    }
  }
}

/** @param explain why a fiber is inactive */
function statusOf(fiber: Fiber, explain: (fiber: Fiber) => string | null): FiberStatus {
  const { current, state, error } = fiber
  const plugin = fiber.target?.plugin ?? current?.target.plugin
  const note = state === 'Inactive' && !fiber.disposed ? explain(fiber) : null
  return {
    fiberId: fiber.id,
    entry: fiber.entry,
    plugin: plugin?.name ?? '',
    state,
    error: error === undefined ? note : messageOf(error),
    disposed: fiber.disposed,
    generation: fiber.generation,
    pendingUndoCount: current?.pendingUndoCount ?? 0,
    pendingUndoLabels: current?.pendingUndoLabels ?? [],
    waitingFor: [...fiber.missing.map((slot) => slot.name), ...(current?.closedGates ?? [])],
    provides: plugin?.provides ?? [],
    draining: fiber.drainingCount,
    faults: current?.faults ?? 0,
    lastFault: current?.lastFault === undefined ? null : messageOf(current.lastFault)
  }
}

/** The check of a plugin without a schema: it takes no config. */
const isEmpty: Check = (config) =>
  Object.keys(config as object).map((key) => ({ path: [key], message: `unknown key ${key}` }))
