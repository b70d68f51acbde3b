import { type Collection, Item } from './collections.ts'
import { CodedError } from './errors.ts'
import { type AnyListener, Listener } from './events.ts'
import type { Fiber } from './fiber.ts'
import type { Logger } from './log.ts'
import type {
  Awaitable,
  Child,
  CollectionName,
  Collector,
  Context,
  Contributions,
  EventBus,
  EventName,
  Events,
  Gate,
  Lease,
  ListenOptions,
  Overlay,
  Plugin,
  ProvideOptions,
  ServiceName,
  Undo,
  UpdateVerdict
} from './plugin.ts'
import { commonRealm, type Offer, type Slot } from './services.ts'

/**
 * `building`: `apply` runs, nothing is visible. `parked`: built, and out of sight until its gates open. `live`: visible.
 * `leaving`: nobody new gets in, what was begun goes on. `undoing`, `ended`.
 */
export type Phase = 'building' | 'parked' | 'live' | 'leaving' | 'undoing' | 'ended'

/** What one generation is built from. */
export interface Target {
  readonly plugin: Plugin
  /** Checked, with its defaults. */
  readonly config: unknown
  /** Service → the realm in which the plugin sees and provides it; the common one where none is named. */
  readonly realms?: Readonly<Record<string, string>>
  /** Service → what is laid over its config for this plugin. */
  readonly overlays?: Readonly<Record<string, Overlay>>
}

/** The realm in which a target sees and provides a service. */
export function realmOf(target: Target, service: string): string {
  return target.realms?.[service] ?? commonRealm
}

interface Provided extends Offer {
  readonly check: (() => boolean) | undefined
}

interface Effect {
  readonly label: string | undefined
  readonly undo: Undo
}

/** How long an aborted generation may still take to end what it began, such as the last event of a stream. */
const graceMs = 2_000

const nothing: Undo = () => {}

/** One run of a plugin's `apply`, with all that it made: staged while it builds, shown in one commit, undone at the end. */
export class Generation {
  readonly fiber: Fiber
  /** Replaced only when the plugin took a new config in place. */
  target: Target
  readonly log: Logger
  phase: Phase = 'building'
  readonly #effects: Effect[] = []
  #provided: Map<Slot, Provided> | undefined
  #items: Map<Collection, Item[]> | undefined
  #collectors: Map<Collection, Collector<unknown>> | undefined
  #listeners: [event: string, listener: Listener][] | undefined
  #commitSteps: (() => void)[] | undefined
  #children: MountedPlugin[] | undefined
  #updateHooks: ((config: never) => Awaitable<UpdateVerdict>)[] | undefined
  #closedGates = 0
  #onReady: (() => void) | undefined
  /** Generations that were built on what this one provides and have to end before it. */
  readonly dependents = new Set<Generation>()
  #ended: Promise<void> | undefined
  #leases = 0
  #onEnd: ((ended: Promise<void>) => void) | undefined
  #onIdle: (() => void) | undefined
  #expire: ((reason: CodedError) => void) | undefined
  #abort: AbortController | undefined

  constructor(fiber: Fiber, target: Target) {
    this.fiber = fiber
    this.target = target
    this.log = fiber.kernel.log
  }

  /** Runs `apply`. What it made stays staged until {@link commit}. */
  build(): Awaitable<void> {
    const context = new PluginContext(this)
    return this.target.plugin.apply(
      context as unknown as Context<never, never, never, never>,
      this.target.config as never
    )
  }

  /** Every gate is open. */
  get ready(): boolean {
    return this.#closedGates === 0
  }

  /** Resolves when every gate is open. */
  whenReady(): Promise<void> {
    if (this.ready) return Promise.resolve()
    return new Promise((resolve) => {
      this.#onReady = resolve
    })
  }

  gate(label: string): Gate {
    this.assertBuilding(`make the gate '${label}'`)
    let open = false
    this.#closedGates += 1
    const turn = (to: boolean) => {
      if (open === to || this.phase === 'undoing' || this.phase === 'ended') return
      open = to
      this.#closedGates += open ? -1 : 1
      if (this.ready) this.#onReady?.()
      this.fiber.kick()
    }
    return { open: () => turn(true), close: () => turn(false) }
  }

  hookUpdate(hook: (config: never) => Awaitable<UpdateVerdict>): void {
    this.assertOpen()
    if (this.#updateHooks === undefined) {
      this.#updateHooks = []
      this.record('update hooks', nothing)
    }
    this.#updateHooks.push(hook)
  }

  /** What the plugin says to a new config; the first hook that decides. @throws what a hook threw */
  async askUpdate(config: unknown): Promise<UpdateVerdict> {
    for (const hook of this.#updateHooks ?? []) {
      const verdict = await hook(config as never)
      if (verdict !== undefined) return verdict
    }
    return undefined
  }

  mount(plugin: Plugin, config: unknown): Child {
    this.assertOpen()
    const child = new MountedPlugin(this, plugin, config)
    this.#children ??= []
    this.#children.push(child)
    this.record(`plugin:${plugin.name}`, () => child.dispose())
    if (this.phase === 'live') child.start()
    return child
  }

  get signal(): AbortSignal {
    this.#abort ??= new AbortController()
    return this.#abort.signal
  }

  abort(reason: CodedError): void {
    this.#abort ??= new AbortController()
    this.#abort.abort(reason)
    this.#expire?.(reason)
  }

  get leases(): number {
    return this.#leases
  }

  enter(): void {
    this.#leases += 1
  }

  leave(): void {
    this.#leases -= 1
    if (this.#leases === 0) this.#onIdle?.()
  }

  lease(): Lease {
    return new GenerationLease(this)
  }

  get providedSlots(): Iterable<Slot> {
    return this.#provided?.keys() ?? []
  }

  get pendingUndoCount(): number {
    return this.#effects.length
  }

  get pendingUndoLabels(): readonly string[] {
    return this.#effects.flatMap((effect) => effect.label ?? [])
  }

  /** Whether new effects are still undone in their turn. */
  get isOpen(): boolean {
    return this.phase === 'building' || this.phase === 'live' || this.phase === 'parked'
  }

  /** @throws CodedError `KERNEL_INACTIVE` once the generation is going away */
  assertOpen(): void {
    if (this.isOpen) return
    throw new CodedError('KERNEL_INACTIVE', `cannot create effect on inactive context of entry '${this.fiber.entry}'`)
  }

  /** @throws TypeError when `apply` has ended already */
  assertBuilding(what: string): void {
    this.assertOpen()
    if (this.phase !== 'building') throw new TypeError(`entry '${this.fiber.entry}' can only ${what} within apply`)
  }

  record(label: string | undefined, undo: Undo): void {
    this.#effects.push({ label, undo })
  }

  slot(name: string): Slot {
    return this.fiber.kernel.services.slot(name, realmOf(this.target, name))
  }

  provide(name: string, service: object, options: ProvideOptions = {}): void {
    this.assertOpen()
    const { plugin } = this.target
    if (!(plugin.provides as readonly string[]).includes(name)) {
      throw new TypeError(`plugin '${plugin.name}' provides '${name}' without declaring it in provides`)
    }
    assertService(name, service)
    const slot = this.slot(name)
    this.#assertFree(slot)
    const { check, withOverlay } = options
    const provided = { service, version: plugin.versions[name] ?? '0', withOverlay, check }
    this.#provided ??= new Map()
    this.#provided.set(slot, provided)
    this.record(`provide:${name}`, () => slot.empty(this))
    if (this.phase === 'live') {
      assertAvailable(name, provided, this.log)
      slot.fill(this, provided, false)
      this.fiber.kernel.wake(slot)
    }
  }

  /** @throws CodedError when somebody else provides it, or nobody */
  set(name: string, service: object): void {
    this.assertOpen()
    assertService(name, service)
    const slot = this.slot(name)
    const provided = this.#provided?.get(slot)
    if (provided === undefined) {
      const why = slot.provider === undefined ? 'without provide' : 'in multiple fibers'
      throw new CodedError('KERNEL_NOT_PROVIDED', `cannot set property "${name}" ${why}`)
    }
    const next = { ...provided, service }
    this.#provided?.set(slot, next)
    if (this.phase === 'live') slot.fill(this, next, true)
  }

  contribute(name: string, values: readonly unknown[]): void {
    this.assertOpen()
    const collection = this.fiber.kernel.collection(name)
    const items = values.map((value) => new Item(value, this))
    if (this.phase === 'live') {
      const next = [...collection.items, ...items]
      collection.check(next, undefined)
      collection.show(next)
      collection.tell()
    }
    this.#items ??= new Map()
    const staged = this.#items.get(collection)
    if (staged === undefined) {
      this.#items.set(collection, items)
      this.record(`contribute:${name}`, nothing)
    } else {
      staged.push(...items)
    }
  }

  collect(name: string, collector: Collector<unknown>): void {
    this.assertBuilding(`collect '${name}'`)
    const collection = this.fiber.kernel.collection(name)
    collection.assertFree(this)
    this.#collectors ??= new Map()
    this.#collectors.set(collection, collector)
    this.record(`collect:${name}`, () => collection.unseat(this))
  }

  listen(event: string, call: AnyListener, options: ListenOptions | undefined): () => void {
    this.assertOpen()
    const listener = new Listener(call, this, options)
    const pair: [string, Listener] = [event, listener]
    this.#listeners ??= []
    this.#listeners.push(pair)
    if (this.#listeners.length === 1) this.record('listeners', nothing)
    if (this.phase === 'live') this.fiber.kernel.events.add(event, listener)
    return () => {
      if (this.phase === 'live') this.fiber.kernel.events.remove(event, listener)
      this.#listeners = this.#listeners?.filter((other) => other !== pair)
    }
  }

  atCommit(step: () => void): void {
    this.assertBuilding('add a commit step')
    this.#commitSteps ??= []
    this.#commitSteps.push(step)
  }

  /**
   * Puts this generation in the place of `old` (or where nothing was): everything is asked first, then everything
   * changes in one synchronous step, so that no caller finds a gap or a mixture.
   * @throws CodedError when a service is taken or a collector refuses an item; nothing has changed then
   */
  commit(old: Generation | undefined): void {
    const { kernel } = this.fiber
    for (const [slot, provided] of this.#provided ?? []) {
      this.#assertFree(slot)
      assertAvailable(slot.name, provided, this.log)
    }
    for (const collection of this.#collectors?.keys() ?? []) collection.assertFree(this)

    const touched = new Map<Collection, readonly Item[]>()
    for (const collection of new Set([...keysOf(old === undefined ? undefined : old.#items), ...keysOf(this.#items)])) {
      touched.set(collection, collection.after(old, this.#items?.get(collection) ?? []))
    }
    for (const collection of this.#collectors?.keys() ?? []) {
      if (!touched.has(collection)) touched.set(collection, collection.items)
    }
    for (const [collection, next] of touched) collection.check(next, this.#collectors?.get(collection))

    this.phase = 'live'
    if (old !== undefined) old.phase = 'leaving'
    const woken: Slot[] = []
    for (const [slot, provided] of this.#provided ?? []) {
      const swapped = old !== undefined && slot.provider === old
      if (!swapped) woken.push(slot)
      slot.fill(this, provided, swapped)
    }
    for (const [collection, next] of touched) collection.show(next)
    for (const [event, listener] of (old === undefined ? undefined : old.#listeners) ?? [])
      kernel.events.remove(event, listener)
    for (const [event, listener] of this.#listeners ?? []) kernel.events.add(event, listener)
    for (const [collection, collector] of this.#collectors ?? []) collection.seat(this, collector)
    for (const step of this.#commitSteps ?? []) this.#contain(step, 'a commit step')
    for (const collection of touched.keys())
      this.#contain(() => collection.tell(), `the collector of ${collection.name}`)
    for (const child of old === undefined ? [] : (old.#children ?? [])) child.hide()
    for (const child of this.#children ?? []) child.start()
    for (const slot of woken) kernel.wake(slot)
    // A service that this generation no longer offers goes away with the old one.
    if (old !== undefined) kernel.withdrawDependents(old)
  }

  /** Takes everything out of sight, synchronously: nobody new gets in. Services stay for those who are still leaving. */
  withdraw(next: 'leaving' | 'parked'): void {
    const wasLive = this.phase === 'live'
    this.phase = next
    if (!wasLive) return
    for (const child of this.#children ?? []) child.hide()
    for (const collection of this.#items?.keys() ?? []) {
      collection.show(collection.after(this, []))
      this.#contain(() => collection.tell(), `the collector of ${collection.name}`)
    }
    for (const [event, listener] of this.#listeners ?? []) this.fiber.kernel.events.remove(event, listener)
  }

  /** Whether this generation waits, directly or not, for the end of `other`. */
  waitsFor(other: Generation): boolean {
    const seen = new Set<Generation>()
    const queue: Generation[] = [this]
    for (let at = queue.pop(); at !== undefined; at = queue.pop()) {
      if (at === other) return true
      if (seen.has(at)) continue
      seen.add(at)
      queue.push(...at.dependents)
    }
    return false
  }

  /** Ends it: its dependents first, then what it serves, then its effects. Never rejects; one end for all who ask. */
  end(drainMs: number, undoMs: number): Promise<void> {
    this.#ended ??= (async () => {
      if (this.dependents.size > 0) {
        const limit = after(drainMs + graceMs + undoMs, () => undefined)
        await Promise.race([Promise.all([...this.dependents].map((dependent) => dependent.ended())), limit.promise])
        limit.cancel()
        this.dependents.clear()
      }
      await this.drain(drainMs)
      await this.undo(undoMs)
    })()
    this.#onEnd?.(this.#ended)
    return this.#ended
  }

  /** Resolves once it has ended, whoever ends it. */
  ended(): Promise<void> {
    if (this.#ended !== undefined) return this.#ended
    return new Promise((resolve) => {
      const before = this.#onEnd
      this.#onEnd = (ended) => {
        before?.(ended)
        resolve(ended)
      }
    })
  }

  /**
   * Waits until the last lease has ended. After `limitMs` (or when {@link abort} is called) the signal fires, and what
   * does not end then within a short grace is given up.
   */
  async drain(limitMs: number): Promise<void> {
    if (this.#leases === 0) return
    const idle = new Promise<'idle'>((resolve) => {
      this.#onIdle = () => resolve('idle')
    })
    const expired = new Promise<CodedError>((resolve) => {
      this.#expire = resolve
      if (this.#abort?.signal.aborted) resolve(this.#abort.signal.reason as CodedError)
    })
    const overdue = after(limitMs, () => drainTimeout(this.fiber.entry, limitMs))
    const first = await Promise.race([idle, expired, overdue.promise])
    overdue.cancel()
    if (first !== 'idle') {
      this.#expire = undefined
      this.abort(first)
      const grace = after(graceMs, () => undefined)
      const last = await Promise.race([idle, grace.promise])
      grace.cancel()
      if (last !== 'idle') {
        this.log.warn('work of an old generation was given up', { entry: this.fiber.entry, leases: this.#leases })
      }
    }
    this.#onIdle = undefined
    this.#expire = undefined
  }

  /** Undoes every effect, last in first out, each awaited; one that fails or hangs does not keep the others from it. */
  async undo(limitMs: number): Promise<void> {
    if (this.phase === 'undoing' || this.phase === 'ended') return
    this.phase = 'undoing'
    for (let effect = this.#effects.at(-1); effect !== undefined; effect = this.#effects.at(-1)) {
      try {
        const { label } = effect
        const undone = effect.undo()
        if (undone instanceof Promise) await within(limitMs, undone, () => undoTimeout(label, limitMs))
      } catch (error) {
        this.log.error('an undo failed', { entry: this.fiber.entry, label: effect.label ?? 'anonymous', error })
      }
      this.#effects.pop()
    }
    this.phase = 'ended'
  }

  #assertFree(slot: Slot): void {
    const present = slot.provider
    if (present === undefined || !slot.open || present.fiber === this.fiber) return
    throw new CodedError(
      'KERNEL_DUPLICATE_PROVIDER',
      `service '${slot.name}' is provided by entry '${present.fiber.entry}'; entry '${this.fiber.entry}' cannot provide it too`
    )
  }

  #contain(step: () => void, what: string): void {
    try {
      step()
    } catch (error) {
      this.log.error(`${what} threw within a commit`, { entry: this.fiber.entry, error })
    }
  }
}

class GenerationLease implements Lease {
  #generation: Generation | undefined
  readonly signal: AbortSignal

  constructor(generation: Generation) {
    this.#generation = generation
    this.signal = generation.signal
    generation.enter()
  }

  release(): void {
    this.#generation?.leave()
    this.#generation = undefined
  }
}

/** Answers every name that was not injected. Own members of a services object are found before it is asked. */
const notInjected = new Proxy(Object.create(null) as object, {
  get(_target, key) {
    if (typeof key === 'symbol') return undefined
    throw new CodedError('KERNEL_NOT_INJECTED', `cannot get property "${key}" without inject`)
  }
})

/** A child's place in the generation that mounted it: a fiber of its own each time that generation comes into sight. */
class MountedPlugin implements Child {
  readonly entry: string
  readonly #parent: Generation
  readonly #plugin: Plugin
  #config: unknown
  #fiber: Fiber | undefined
  #done = false

  constructor(parent: Generation, plugin: Plugin, config: unknown) {
    this.#parent = parent
    this.#plugin = plugin
    this.#config = config
    this.entry = parent.fiber.kernel.childId(parent.fiber.entry, plugin.name)
  }

  start(): void {
    if (this.#done) return
    const { kernel } = this.#parent.fiber
    if (this.#fiber !== undefined) {
      this.#fiber.kick()
      return
    }
    const { realms, overlays } = this.#parent.target
    const mount = { id: this.entry, plugin: this.#plugin, config: this.#config, realms, overlays }
    this.#fiber = kernel.mountChild(mount)
  }

  hide(): void {
    if (this.#fiber?.current !== undefined) this.#parent.fiber.kernel.withdraw(this.#fiber.current)
  }

  async update(config: unknown): Promise<void> {
    this.#config = config
    if (this.#fiber !== undefined) await this.#parent.fiber.kernel.update(this.entry, config)
  }

  async dispose(): Promise<void> {
    this.#done = true
    if (this.#fiber === undefined) this.#parent.fiber.kernel.dropChildId(this.entry)
    else await this.#fiber.retire()
  }
}

class PluginContext {
  readonly #generation: Generation
  readonly services: object
  #log: Logger | undefined
  #timers: Set<NodeJS.Timeout> | undefined

  constructor(generation: Generation) {
    const { kernel } = generation.fiber
    this.#generation = generation
    this.services = Object.create(notInjected) as object
    const { target } = generation
    const handle = (name: string) => kernel.services.handle(name, realmOf(target, name), target.overlays?.[name])
    for (const name of target.plugin.inject) this.#inject(name, handle(name))
    for (const name of target.plugin.optional)
      this.#inject(name, generation.fiber.meets(name) ? handle(name) : undefined)
  }

  #inject(name: string, value: unknown): void {
    Object.defineProperty(this.services, name, { value, enumerable: true })
  }

  get entry(): string {
    return this.#generation.fiber.entry
  }

  get log(): Logger {
    this.#log ??= this.#generation.log.with({ entry: this.entry })
    return this.#log
  }

  get signal(): AbortSignal {
    return this.#generation.signal
  }

  get events(): EventBus {
    return this.#generation.fiber.kernel.events
  }

  lease(): Lease {
    return this.#generation.lease()
  }

  provide(name: string, service: object, options?: ProvideOptions): void {
    this.#generation.provide(name, service, options)
  }

  set(name: string, service: object): void {
    this.#generation.set(name, service)
  }

  get(name: ServiceName): object | undefined {
    const { target, fiber } = this.#generation
    const slot = this.#generation.slot(name)
    if (!slot.open && slot.provider !== this.#generation) return undefined
    return fiber.kernel.services.handle(name, slot.realm, target.overlays?.[name])
  }

  overlay(service: ServiceName): Overlay {
    return this.#generation.target.overlays?.[service] ?? {}
  }

  gate(label: string): Gate {
    return this.#generation.gate(label)
  }

  onUpdate(hook: (config: never) => Awaitable<UpdateVerdict>): void {
    this.#generation.hookUpdate(hook)
  }

  mount(plugin: Plugin, config: unknown = {}): Child {
    return this.#generation.mount(plugin, config)
  }

  async dispose(): Promise<void> {
    const { fiber, phase } = this.#generation
    if (phase === 'building' || phase === 'undoing') {
      throw new CodedError('KERNEL_REENTRANT', `reentrant transition on fiber ${fiber.id} (entry '${fiber.entry}')`)
    }
    if (phase === 'ended') return
    fiber.kernel.events.emit('kernel/self-disposed', { entry: fiber.entry })
    await fiber.retire()
  }

  contribute<K extends CollectionName>(collection: K, ...items: readonly Contributions[K][]): void {
    this.#generation.contribute(collection, items)
  }

  collect(collection: string, collector: Collector<unknown>): void {
    this.#generation.collect(collection, collector)
  }

  effect(start: () => Awaitable<Undo | void>, label?: string): void | Promise<void> {
    const generation = this.#generation
    generation.assertOpen()
    const made = start()
    if (!(made instanceof Promise)) {
      if (made !== undefined) generation.record(label, made)
      return undefined
    }
    return made.then(async (undo) => {
      if (undo === undefined) return
      // It arrived too late to be undone in its turn: at once, so that nothing stays behind.
      if (generation.isOpen) generation.record(label, undo)
      else await undo()
    })
  }

  async resource<T>(
    key: string,
    identity: unknown,
    open: () => Awaitable<T>,
    close: (resource: T) => Awaitable<void>
  ): Promise<T> {
    const generation = this.#generation
    generation.assertOpen()
    const { resources } = generation.fiber.kernel
    const held = await resources.take(generation.fiber.entry, key, identity, open, close)
    if (!generation.isOpen) {
      await held.release()
      generation.assertOpen()
    }
    generation.record(`resource:${key}`, () => held.release())
    return held.value
  }

  onCommit(step: () => void): void {
    this.#generation.atCommit(step)
  }

  on<K extends EventName>(event: K, listener: (...args: Events[K]) => unknown, options?: ListenOptions): () => void {
    return this.#generation.listen(event, listener, options)
  }

  setTimeout(callback: () => unknown, delayMs: number): void {
    const timer = setTimeout(() => {
      this.#timers?.delete(timer)
      this.#run(callback)
    }, delayMs)
    this.#keep(timer)
  }

  setInterval(callback: () => unknown, periodMs: number): void {
    this.#keep(setInterval(() => this.#run(callback), periodMs))
  }

  #keep(timer: NodeJS.Timeout): void {
    try {
      this.#generation.assertOpen()
    } catch (error) {
      clearTimeout(timer)
      throw error
    }
    if (this.#timers === undefined) {
      const timers = new Set<NodeJS.Timeout>()
      this.#timers = timers
      this.#generation.record('timers', () => {
        for (const each of timers) clearTimeout(each)
      })
    }
    this.#timers.add(timer)
  }

  #run(callback: () => unknown): void {
    const report = (error: unknown) => this.log.error('a timer callback failed', { error })
    try {
      const result = callback()
      if (result instanceof Promise) result.catch(report)
    } catch (error) {
      report(error)
    }
  }
}

function assertService(name: string, service: unknown): asserts service is object {
  if (typeof service === 'object' && service !== null) return
  throw new TypeError(
    `service '${name}' is an object with methods, found ${service === null ? 'null' : typeof service}`
  )
}

/** @throws CodedError `KERNEL_UNAVAILABLE` when the provider's own check says no, or throws */
function assertAvailable(name: string, provided: Provided, log: Logger): void {
  if (provided.check === undefined) return
  let available = false
  try {
    available = provided.check()
  } catch (error) {
    log.error(`the availability check of service '${name}' threw`, { error })
  }
  if (!available) throw new CodedError('KERNEL_UNAVAILABLE', `availability predicate rejected service '${name}'`)
}

function keysOf<K>(map: ReadonlyMap<K, unknown> | undefined): Iterable<K> {
  return map?.keys() ?? []
}

/** A promise for `make()` after `delayMs`, which does not keep the process alive, and the way to call it off. */
function after<T>(delayMs: number, make: () => T): { readonly promise: Promise<T>; cancel(): void } {
  let timer: NodeJS.Timeout | undefined
  const promise = new Promise<T>((resolve) => {
    timer = setTimeout(() => resolve(make()), delayMs)
  })
  return { promise, cancel: () => clearTimeout(timer) }
}

/** Awaits `work` for at most `limitMs`, then rejects with `late()`; how `work` ends after that is nobody's concern. */
export function within<T>(limitMs: number, work: T, late: () => CodedError): Promise<Awaited<T>> {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(() => reject(late()), limitMs)
    Promise.resolve(work)
      .finally(() => clearTimeout(timer))
      .then(resolve, reject)
  })
}

function drainTimeout(entry: string, limitMs: number): CodedError {
  return new CodedError('DRAIN_TIMEOUT', `entry '${entry}' was replaced and its drain time of ${limitMs} ms is over`)
}

function undoTimeout(label: string | undefined, limitMs: number): CodedError {
  return new CodedError('KERNEL_UNDO_TIMEOUT', `the undo '${label ?? 'anonymous'}' did not end within ${limitMs} ms`)
}
