import { Collection } from './collections.ts'
import type { FiberStatus } from './control.ts'
import { CodedError, messageOf } from './errors.ts'
import { findCycles } from './cycles.ts'
import { Bus, Listener } from './events.ts'
import { Fiber } from './fiber.ts'
import { Generation, realmOf, type Target } from './generation.ts'
import { type Logger, silentLogger } from './log.ts'
import { definePlugin, type Plugin, type ServiceName, type Services } from './plugin.ts'
import { defaultSettings, type ProgramSettings } from './program.ts'
import { Resources } from './resources.ts'
import { type Check, compileSchema, renderIssues } from './schema.ts'
import { commonRealm, ServiceTable, type Slot } from './services.ts'

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
  readonly events: Bus
  /** Everything that can start has started: from here on a failure of an essential plugin is its own. */
  started = false
  readonly #collections = new Map<string, Collection>()
  readonly #fibers = new Map<number, Fiber>()
  readonly #byEntry = new Map<string, Fiber>()
  readonly #checks = new WeakMap<object, Check>()
  readonly #childIds = new Set<string>()
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
      onError: (event, error, owner) =>
        this.log.error(`a listener of '${event}' failed`, { entry: owner?.fiber.entry, error }),
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
    await this.#mount(mount.id, target)
  }

  /** Swaps the entry to another config. @throws what the next generation failed with; the old one serves on then */
  async update(id: string, config: unknown): Promise<void> {
    const fiber = this.#live(id)
    const { target } = fiber
    if (target === undefined) throw new CodedError('KERNEL_DISPOSED', `entry '${id}' has been retired`)
    await fiber.update({ ...target, ...this.toTarget(target.plugin, config, id) })
  }

  /** Moves the entry to a whole new target: other realms, other overlays, another config. */
  async retarget(mount: Mount): Promise<void> {
    await this.#live(mount.id).update(this.targetOf(mount))
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

  /** Gives entries other ids, all at once; fibers keep theirs, and nobody notices. */
  rename(ids: readonly (readonly [old: string, next: string])[]): void {
    const moved = ids.map(([old, next]) => [this.#byEntry.get(old), next] as const)
    for (const [old] of ids) this.#byEntry.delete(old)
    for (const [fiber, next] of moved) {
      if (fiber === undefined) continue
      fiber.entry = next
      this.#byEntry.set(next, fiber)
    }
    this.resources.rename(ids)
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
    const waiting = [...this.#fibers.values()].filter((fiber) => fiber.waitingFor.length > 0)
    const providers = new Map<string, string>()
    for (const fiber of waiting)
      for (const name of fiber.target?.plugin.provides ?? []) providers.set(name, fiber.entry)
    const edges = new Map(
      waiting.map((fiber) => {
        const needs = fiber.waitingFor.flatMap((name) => providers.get(name) ?? [])
        return [fiber.entry, needs.filter((entry) => entry !== fiber.entry)] as const
      })
    )
    return findCycles(edges)
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
    const consumers = users.filter((fiber) => (fiber.target?.plugin.inject as readonly string[]).includes(name)).length
    if (consumers > 0) {
      throw new CodedError('SERVICE_GUARDED', `${consumers} active consumer(s) still rely on service '${name}'`, {
        detail: { consumers }
      })
    }
    this.#own.delete(name)
    this.withdraw(generation)
    slot.empty(generation)
    return { retired: true, woken: users.length > 0 }
  }

  fibers(): readonly FiberStatus[] {
    return [...this.#fibers.values()].map((fiber) => this.#status(fiber))
  }

  targetOf(mount: Mount): Target {
    const { plugin, config, id, realms, overlays } = mount
    return {
      ...this.toTarget(plugin, config, id),
      ...(realms === undefined ? {} : { realms }),
      ...(overlays === undefined ? {} : { overlays })
    }
  }

  /** The checked config with its defaults, beside the plugin it is for. @throws CodedError `PLUGIN_CONFIG_INVALID` */
  toTarget(plugin: Plugin, config: unknown, entry: string): Target {
    const copy: unknown = structuredClone(config ?? {})
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
    const fibers = [...this.#fibers.values()]
    const deadline = setTimeout(() => {
      const reason = new CodedError('SHUTTING_DOWN', 'the server is shutting down')
      for (const fiber of fibers) for (const generation of fiber.draining) generation.abort(reason)
    }, this.#drainTimeMs)
    await Promise.all(fibers.map((fiber) => fiber.retire()))
    clearTimeout(deadline)
  }

  // What fibers and generations ask of the kernel.

  get drainTimeMs(): number {
    // While stopping, the deadline above ends what is left; the generation's own limit is only the net below it.
    return this.#drainTimeMs === undefined ? this.settings.drain_timeout_ms : this.#drainTimeMs * 2
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

  /**
   * Takes a generation out of sight with all that need what it provides, and those that need them, in one synchronous
   * step; each then ends after its dependents have.
   */
  withdraw(generation: Generation): void {
    if (generation.phase !== 'live' && generation.phase !== 'parked') return
    generation.withdraw('leaving')
    this.withdrawDependents(generation)
  }

  /** As {@link withdraw}, but the generation may come back into sight as it is. */
  park(generation: Generation): void {
    generation.withdraw('parked')
    this.withdrawDependents(generation)
    generation.dependents.clear()
  }

  /** As {@link withdraw}, for those who need services that `first` holds and offers no longer. */
  withdrawDependents(first: Generation): void {
    const queue = [first]
    for (let provider = queue.pop(); provider !== undefined; provider = queue.pop()) {
      for (const slot of provider.providedSlots) {
        if (slot.provider !== provider) continue
        for (const fiber of slot.consumers) {
          for (const user of fiber.generations()) {
            if (user === provider) continue
            const needed = (user.target.plugin.inject as readonly string[]).includes(slot.name)
            // Two that merely like each other would wait for each other's end.
            if (needed || !user.waitsFor(provider)) provider.dependents.add(user)
            if (!needed || user.phase !== 'live') continue
            user.withdraw('leaving')
            queue.push(user)
          }
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
    this.#childIds.delete(fiber.entry)
    this.#fibers.delete(fiber.id)
    if (this.#byEntry.get(fiber.entry) === fiber) this.#byEntry.delete(fiber.entry)
  }

  /** A name for a plugin mounted by another: `parent/name`, numbered from the second on. */
  childId(parent: string, name: string): string {
    for (let n = 1; ; n++) {
      const id = `${parent}/${name}${n === 1 ? '' : `#${n}`}`
      if (this.#childIds.has(id)) continue
      this.#childIds.add(id)
      return id
    }
  }

  dropChildId(id: string): void {
    this.#childIds.delete(id)
  }

  mountChild(mount: Mount): Fiber {
    const fiber = this.#add(mount.id, this.targetOf(mount))
    // Its failure is its state; it takes nobody else down.
    fiber.begin().catch(() => {})
    return fiber
  }

  #add(id: string, target: Target): Fiber {
    this.#lastId += 1
    const fiber = new Fiber(this, this.#lastId, id, target)
    this.#fibers.set(fiber.id, fiber)
    this.#byEntry.set(id, fiber)
    return fiber
  }

  async #mount(id: string, target: Target): Promise<void> {
    if (this.stopping) throw new CodedError('KERNEL_STOPPING', `the kernel is stopping; entry '${id}' was not started`)
    const present = this.#byEntry.get(id)
    if (present?.target !== undefined) {
      throw new CodedError('KERNEL_DUPLICATE_ENTRY', `entry '${id}' is running already`)
    }
    if (present !== undefined && target.plugin.exclusive) await present.retire()
    await this.#add(id, target).begin()
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

  #status(fiber: Fiber): FiberStatus {
    const plugin = fiber.target?.plugin ?? fiber.current?.target.plugin
    const { current } = fiber
    return {
      fiberId: fiber.id,
      entry: fiber.entry,
      plugin: plugin?.name ?? '',
      state: fiber.state,
      error: this.#note(fiber),
      disposed: fiber.disposed,
      generation: fiber.generation,
      pendingUndoCount: current?.pendingUndoCount ?? 0,
      pendingUndoLabels: current?.pendingUndoLabels ?? [],
      waitingFor: fiber.waitingFor,
      provides: plugin?.provides ?? [],
      draining: fiber.draining.size
    }
  }

  #note(fiber: Fiber): string | null {
    if (fiber.error !== undefined) return messageOf(fiber.error)
    if (fiber.state !== 'Inactive' || fiber.disposed) return null
    const waiting = fiber.waitingFor.map((name) => {
      const owner = [...this.#fibers.values()].find((other) =>
        (other.target?.plugin.provides as readonly string[] | undefined)?.includes(name)
      )
      return owner === undefined
        ? `service '${name}', which no plugin in the program provides`
        : `service '${name}' of entry '${owner.entry}', which is ${owner.state}`
    })
    return waiting.length === 0 ? null : `missing or inactive dependency: needs ${waiting.join(' and ')}`
  }
}

/** The check of a plugin without a schema: it takes no config. */
const isEmpty: Check = (config) =>
  Object.keys(config as object).map((key) => ({ path: [key], message: `unknown key ${key}` }))
