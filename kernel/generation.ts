import { setMaxListeners } from 'node:events'
import { type Collection, Item } from './collections.ts'
import { PluginContext } from './context.ts'
import { CodedError } from './errors.ts'
import { type AnyListener, Listener } from './events.ts'
import type { Fiber } from './fiber.ts'
import type { Logger } from './log.ts'
import type {
  Awaitable,
  Child,
  Collector,
  Context,
  Gate,
  Lease,
  ListenOptions,
  Overlay,
  Plugin,
  ProvideOptions,
  Undo,
  UpdateVerdict
} from './plugin.ts'
import { commonRealm, isSameScope, type Offer, type Placed, type Slot, type View } from './services.ts'

/**
 * `building`: `apply` runs, nothing is visible. `parked`: built, and out of sight until its gates open. `live`: visible.
 * `leaving`: nobody new gets in, what was begun goes on. `undoing`, `ended`.
 */
export type Phase = 'building' | 'parked' | 'live' | 'leaving' | 'undoing' | 'ended'

/** What one generation is built from. */
export interface Target extends Placed {
  readonly plugin: Plugin
  /** Checked, with its defaults. */
  readonly config: unknown
}

/** The realm in which a target sees and provides a service. */
export function realmOf(target: Target, service: string): string {
  return target.realms?.[service] ?? commonRealm
}

/** What has to be there before the plugin can be built: what it injects and does not provide itself. */
export function needsOf({ inject, provides }: Plugin): readonly string[] {
  return without(inject, provides)
}

/** What it is rebuilt for when it comes or goes. */
export function likesOf({ optional, provides }: Plugin): readonly string[] {
  return without(optional, provides)
}

function without(names: readonly string[], others: readonly string[]): readonly string[] {
  return names.length > 0 && names.some((name) => others.includes(name))
    ? names.filter((name) => !others.includes(name))
    : names
}

interface Provided extends Offer {
  readonly check: (() => boolean) | undefined
}

/** Something made, and how it is taken back. */
export interface Effect {
  readonly label: string | undefined
  readonly undo: Undo
}

/** How long an aborted generation may still take to end what it began, such as the last event of a stream. */
const graceMs = 2_000

const nothing = () => {}

/** One run of a plugin's `apply`, with all that it made: staged while it builds, shown in one commit, undone at the end. */
export class Generation {
  readonly fiber: Fiber
  /** Replaced only when the plugin took a new config in place. */
  target: Target
  readonly log: Logger
  phase: Phase = 'building'
  /** What its timers and listeners have thrown: how often, and what last. */
  faults = 0
  lastFault: unknown
  readonly #effects: Effect[] = []
  #uses: readonly Slot[] = []
  #views: Map<Slot, View> | undefined
  #lookedUp: Set<string> | undefined
  #provided: Map<Slot, Provided> | undefined
  #items: Map<Collection, Item[]> | undefined
  #collectors: Map<Collection, Collector<unknown>> | undefined
  #listeners: [event: string, listener: Listener][] | undefined
  #commitSteps: (() => void)[] | undefined
  #children: MountedPlugin[] | undefined
  #updateHooks: ((config: never) => Awaitable<UpdateVerdict>)[] | undefined
  #gates: { readonly label: string; open: boolean }[] | undefined
  #onReady: (() => void) | undefined
  #ended: Promise<void> | undefined
  #leases = 0
  #onIdle: (() => void)[] | undefined
  #abort: AbortController | undefined

  constructor(fiber: Fiber, target: Target) {
    this.fiber = fiber
    this.target = target
    this.log = fiber.kernel.log
  }

  /** Runs `apply`. What it made stays staged until {@link commit}. */
  build(): Awaitable<void> {
    const { plugin, config } = this.target
    if (plugin.inject.length > 0 || plugin.optional.length > 0) {
      const likes = likesOf(plugin).filter((name) => this.fiber.meets(name))
      this.#uses = [...needsOf(plugin), ...likes].map((name) => this.slot(name))
      for (const slot of this.#uses) slot.users.add(this)
    }
    const context = new PluginContext(this)
    return plugin.apply(context as unknown as Context<never, never, never, never>, config as never)
  }

  /** Whether it cannot go on without the service. */
  needs(slot: Slot): boolean {
    return needsOf(this.target.plugin).includes(slot.name)
  }

  /** Services whose place it knows: those of its manifest, and those it has looked up. */
  get seen(): readonly string[] {
    const { inject, optional, provides } = this.target.plugin
    return [...inject, ...optional, ...provides, ...(this.#lookedUp ?? [])]
  }

  /** A service that was not injected is asked for by its name. */
  lookUp(name: string): object | undefined {
    this.#lookedUp ??= new Set()
    this.#lookedUp.add(name)
    return this.own(name) ?? (this.#isThere(name) ? this.handle(name) : undefined)
  }

  /** What is laid over the config of a service, for this plugin. */
  overlay(name: string): Overlay {
    this.#lookedUp ??= new Set()
    this.#lookedUp.add(name)
    return this.target.overlays?.[name] ?? {}
  }

  /** The late-bound handle of a service, seen through this generation's overlay. */
  handle(name: string): object {
    const overlay = this.target.overlays?.[name]
    if (overlay === undefined) return this.fiber.kernel.services.handle(name, realmOf(this.target, name))
    const slot = this.slot(name)
    let view = this.#views?.get(slot)
    if (view === undefined) {
      view = slot.view(overlay)
      this.#views ??= new Map()
      this.#views.set(slot, view)
    }
    return view.handle
  }

  /** Whether somebody provides the service now. */
  #isThere(name: string): boolean {
    return this.fiber.kernel.services.find(name, realmOf(this.target, name))?.open ?? false
  }

  /** What this generation itself provides under a name, visible or not. */
  own(name: string): object | undefined {
    return this.#provided?.get(this.slot(name))?.service
  }

  /** Every gate is open. */
  get ready(): boolean {
    return this.#gates === undefined || this.#gates.every((gate) => gate.open)
  }

  get closedGates(): readonly string[] {
    return (this.#gates ?? []).flatMap((gate) => (gate.open ? [] : gate.label))
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
    const gate = { label, open: false }
    this.#gates ??= []
    this.#gates.push(gate)
    const turn = (open: boolean) => {
      if (gate.open === open) return
      gate.open = open
      if (this.ready) this.#onReady?.()
      this.fiber.kick()
    }
    return { open: () => turn(true), close: () => turn(false) }
  }

  get hasUpdateHooks(): boolean {
    return this.#updateHooks !== undefined
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

  /** The plugins it runs, in the order in which they were mounted. */
  get mounted(): readonly MountedPlugin[] {
    return this.#children ?? []
  }

  /** An id for a plugin that it mounts, which no other of them and no entry has. */
  idOf(plugin: Plugin, self?: MountedPlugin): string {
    const { kernel, entry } = this.fiber
    const isTaken = (id: string) =>
      kernel.isProgramEntry(id) || this.mounted.some((other) => other !== self && other.entry === id)
    let id = `${entry}/${plugin.name}`
    for (let n = 2; isTaken(id); n++) id = `${entry}/${plugin.name}#${n}`
    return id
  }

  mount(plugin: Plugin, config: unknown): Child {
    this.assertOpen()
    const { kernel } = this.fiber
    this.#children ??= []
    const siblings = this.#children
    const id = this.idOf(plugin)
    const { realms, overlays } = this.target
    const target = kernel.targetOf({ id, plugin, config, realms, overlays })
    const child = new MountedPlugin(this, id, target, () => {
      siblings.splice(siblings.indexOf(child), 1)
      this.#forget(effect)
    })
    siblings.push(child)
    const effect = this.record(`plugin:${plugin.name}`, () => child.retire())
    if (this.phase === 'live') child.start()
    return child
  }

  /** Takes over a target in which nothing that matters to this generation is another. */
  adopt(target: Target): void {
    this.target = target
    for (const child of this.#children ?? []) child.rescope(target)
  }

  /** Ends the whole entry. @throws CodedError `KERNEL_REENTRANT` within apply and undos */
  async disposeFiber(): Promise<void> {
    const { fiber, phase } = this
    if (phase === 'building' || phase === 'undoing') {
      throw new CodedError('KERNEL_REENTRANT', `reentrant transition on fiber ${fiber.id} (entry '${fiber.entry}')`)
    }
    const replaced = fiber.current !== undefined && fiber.current !== this
    if (phase === 'ended' || replaced) return
    // What another plugin mounted is no entry of the program.
    const isEntry = fiber.parent === undefined && fiber.target !== undefined
    if (isEntry) fiber.kernel.events.emit('kernel/self-disposed', { entry: fiber.entry })
    await fiber.retire()
  }

  get signal(): AbortSignal {
    this.#abort ??= newAbort()
    return this.#abort.signal
  }

  abort(reason: CodedError): void {
    this.#abort ??= newAbort()
    this.#abort.abort(reason)
    for (const child of this.#children ?? []) child.abort(reason)
  }

  get aborted(): boolean {
    return this.#abort?.signal.aborted ?? false
  }

  fault(error: unknown): void {
    this.faults += 1
    this.lastFault = error
  }

  get leases(): number {
    return this.#leases
  }

  enter(): void {
    this.#leases += 1
  }

  leave(): void {
    this.#leases -= 1
    if (this.#leases > 0 || this.#onIdle === undefined) return
    for (const resolve of this.#onIdle) resolve()
    this.#onIdle = undefined
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

  /** Built, and not on its way out. */
  get stands(): boolean {
    return this.phase === 'live' || this.phase === 'parked'
  }

  /** Whether new effects are still undone in their turn. */
  get isOpen(): boolean {
    return this.phase === 'building' || this.stands
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

  record(label: string | undefined, undo: Undo): Effect {
    const effect = { label, undo }
    this.#effects.push(effect)
    return effect
  }

  /** As {@link record}, for an undo that may come too late to be undone in its turn: it is then run at once. */
  keep(label: string | undefined, undo: Undo): Awaitable<Effect | undefined> {
    if (this.isOpen) return this.record(label, undo)
    return this.#takeBack({ label, undo }, this.fiber.kernel.undoTimeMs)?.then(() => undefined)
  }

  /** Takes some effects back before their turn, the last one first. */
  async revoke(effects: readonly Effect[]): Promise<void> {
    const mine = effects.filter((effect) => this.#forget(effect))
    for (const effect of mine.reverse()) await this.#takeBack(effect, this.fiber.kernel.undoTimeMs)
  }

  #forget(effect: Effect): boolean {
    const at = this.#effects.lastIndexOf(effect)
    if (at >= 0) this.#effects.splice(at, 1)
    return at >= 0
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
    if (this.#provided?.has(slot)) throw new TypeError(`plugin '${plugin.name}' provides '${name}' twice; use set`)
    const { check, withOverlay } = options
    const provided = { service, version: plugin.versions[name] ?? '0', withOverlay, check }
    if (this.phase === 'live') assertAvailable(name, provided, this.log)
    this.#provided ??= new Map()
    this.#provided.set(slot, provided)
    this.record(`provide:${name}`, () => slot.empty(this))
    if (this.phase !== 'live') return
    slot.fill(this, provided, false)
    this.fiber.kernel.wake(slot)
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
    const next = [...collection.items, ...items]
    if (this.phase === 'live') collection.check(next, undefined)
    this.#items ??= new Map()
    const staged = this.#items.get(collection)
    if (staged === undefined) {
      this.#items.set(collection, items)
      this.record(`contribute:${name}`, nothing)
    } else {
      staged.push(...items)
    }
    if (this.phase === 'live') this.#show(collection, next)
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
    const gone = old === undefined ? undefined : { listeners: old.#listeners, children: old.#children }
    this.#provided?.forEach((provided, slot) => {
      this.#assertFree(slot)
      assertAvailable(slot.name, provided, this.log)
    })
    const touched = this.#touched(old)
    if (touched !== undefined) {
      for (const [collection, next] of touched) collection.check(next, this.#collectors?.get(collection))
    }

    this.phase = 'live'
    if (old !== undefined) old.phase = 'leaving'
    const woken: Slot[] = []
    this.#provided?.forEach((provided, slot) => {
      const swapped = old !== undefined && slot.provider === old
      if (!swapped || slot.version !== provided.version) woken.push(slot)
      slot.fill(this, provided, swapped)
    })
    if (touched !== undefined) for (const [collection, next] of touched) collection.show(next)
    if (gone?.listeners !== undefined || this.#listeners !== undefined) {
      kernel.events.replace(gone?.listeners ?? [], this.#listeners ?? [])
    }
    if (this.#collectors !== undefined) {
      for (const [collection, collector] of this.#collectors) collection.seat(this, collector)
    }
    if (this.#commitSteps !== undefined) for (const step of this.#commitSteps) this.#contain(step, 'a commit step')
    if (touched !== undefined) for (const collection of touched.keys()) this.#tell(collection)
    if (gone?.children !== undefined) for (const child of gone.children) child.hide()
    if (this.#children !== undefined) for (const child of this.#children) child.start()
    for (const slot of woken) kernel.offer(slot)
    // A service that this generation no longer offers goes away with the old one.
    if (old !== undefined) kernel.withdrawDependents(old)
  }

  /**
   * What every collection will hold that gains or loses anything, or is collected here; nothing where there is none.
   * @throws CodedError when another collector sits there
   */
  #touched(old: Generation | undefined): ReadonlyMap<Collection, readonly Item[]> | undefined {
    const before = old === undefined ? undefined : old.#items
    if (before === undefined && this.#items === undefined && this.#collectors === undefined) return undefined
    for (const collection of keysOf(this.#collectors)) collection.assertFree(this)
    const touched = new Map<Collection, readonly Item[]>()
    for (const collection of new Set([...keysOf(before), ...keysOf(this.#items)])) {
      touched.set(collection, collection.after(old, this.#items?.get(collection) ?? []))
    }
    for (const collection of keysOf(this.#collectors)) {
      if (!touched.has(collection)) touched.set(collection, collection.items)
    }
    return touched
  }

  /** Takes everything out of sight, synchronously: nobody new gets in. Services stay for those who are still leaving. */
  withdraw(next: 'leaving' | 'parked'): void {
    const wasLive = this.phase === 'live'
    this.phase = next
    if (!wasLive) return
    for (const child of this.#children ?? []) child.hide()
    for (const collection of this.#items?.keys() ?? []) this.#show(collection, collection.after(this, []))
    for (const [event, listener] of this.#listeners ?? []) this.fiber.kernel.events.remove(event, listener)
  }

  /** Ends it: those that use it first, then what it serves, then its effects. Never rejects; one end for all who ask. */
  end(drainMs: number, undoMs: number): Promise<void> {
    this.#ended ??= (async () => {
      const free = this.fiber.kernel.order.free(this)
      if (free !== undefined) {
        const limit = after(drainMs + graceMs + undoMs)
        await Promise.race([free, limit.promise])
        limit.cancel()
      }
      const drained = this.drain(drainMs)
      if (drained !== undefined) await drained
      await this.#undo(undoMs)
    })()
    return this.#ended
  }

  /** Ends one that was built for nothing: what it began is not waited for. Never rejects. */
  discard(reason: CodedError, undoMs: number): Promise<void> {
    this.abort(reason)
    this.#ended ??= this.#undo(undoMs)
    return this.#ended
  }

  /**
   * Waits until the last lease has ended, here and in the plugins mounted here. After `limitMs` (or when {@link abort}
   * is called) the signal fires, and what does not end then within a short grace is given up. Nothing where there is
   * nothing to wait for.
   */
  drain(limitMs: number): Promise<unknown> | undefined {
    const mounted = (this.#children ?? []).flatMap((child) => child.drain(limitMs) ?? [])
    const mine = this.#leases > 0 ? this.#drain(limitMs) : undefined
    return mounted.length === 0 ? mine : Promise.all([mine, ...mounted])
  }

  async #drain(limitMs: number): Promise<void> {
    const idle = new Promise<'idle'>((resolve) => {
      this.#onIdle ??= []
      this.#onIdle.push(() => resolve('idle'))
    })
    const { signal } = this
    const aborted = new Promise<'aborted'>((resolve) => {
      if (signal.aborted) resolve('aborted')
      else signal.addEventListener('abort', () => resolve('aborted'), { once: true })
    })
    const overdue = setTimeout(() => this.abort(drainTimeout(this.fiber.entry, limitMs)), limitMs)
    const first = await Promise.race([idle, aborted])
    clearTimeout(overdue)
    if (first === 'idle') return
    const grace = after(graceMs)
    const last = await Promise.race([idle, grace.promise])
    grace.cancel()
    if (last === 'idle') return
    this.log.warn('work of an old generation was given up', { entry: this.fiber.entry, leases: this.#leases })
  }

  /** Undoes every effect, last in first out, each awaited. */
  async #undo(limitMs: number): Promise<void> {
    this.phase = 'undoing'
    for (let effect = this.#effects.at(-1); effect !== undefined; effect = this.#effects.at(-1)) {
      const undone = this.#takeBack(effect, limitMs)
      if (undone !== undefined) await undone
      this.#forget(effect)
    }
    this.phase = 'ended'
    for (const slot of this.#uses) slot.users.delete(this)
    for (const [slot, view] of this.#views ?? []) slot.drop(view)
    this.fiber.kernel.order.done(this)
  }

  /** Undoes one effect; one that fails or hangs is logged and does not keep the others from it. */
  #takeBack({ label, undo }: Effect, limitMs: number): Promise<void> | undefined {
    const failed = (error: unknown) =>
      this.log.error('an undo failed', { entry: this.fiber.entry, label: label ?? 'anonymous', error })
    try {
      const undone = undo()
      if (!(undone instanceof Promise)) return undefined
      return within(limitMs, undone, () => undoTimeout(label, limitMs)).then(nothing, failed)
    } catch (error) {
      failed(error)
      return undefined
    }
  }

  #assertFree(slot: Slot): void {
    const present = slot.provider
    if (present === undefined || !slot.open || present.fiber === this.fiber) return
    throw new CodedError(
      'KERNEL_DUPLICATE_PROVIDER',
      `service '${slot.name}' is provided by entry '${present.fiber.entry}'; entry '${this.fiber.entry}' cannot provide it too`
    )
  }

  #show(collection: Collection, next: readonly Item[]): void {
    collection.show(next)
    this.#tell(collection)
  }

  #tell(collection: Collection): void {
    this.#contain(() => collection.tell(), `the collector of ${collection.name}`)
  }

  #contain(step: () => void, what: string): void {
    try {
      step()
    } catch (error) {
      this.log.error(`${what} threw within a commit`, { entry: this.fiber.entry, error })
    }
  }
}

/** Everybody whose work a generation holds listens to it: many listeners are no leak. */
function newAbort(): AbortController {
  const controller = new AbortController()
  setMaxListeners(0, controller.signal)
  return controller
}

class GenerationLease implements Lease {
  readonly #generation: Generation
  #held = true

  constructor(generation: Generation) {
    this.#generation = generation
    generation.enter()
  }

  get signal(): AbortSignal {
    return this.#generation.signal
  }

  release(): void {
    if (!this.#held) return
    this.#held = false
    this.#generation.leave()
  }
}

/** A child's place in the generation that mounted it. Its fiber begins when that generation comes into sight. */
export class MountedPlugin implements Child {
  entry: string
  readonly #parent: Generation
  readonly #onDispose: () => void
  #target: Target
  #fiber: Fiber | undefined

  constructor(parent: Generation, entry: string, target: Target, onDispose: () => void) {
    this.entry = entry
    this.#parent = parent
    this.#target = target
    this.#onDispose = onDispose
  }

  get fiber(): Fiber | undefined {
    return this.#fiber
  }

  /** Takes the id that it has under its parent's present one. @returns the one it had, and the one it has */
  rename(): readonly [old: string, next: string] {
    const old = this.entry
    this.entry = this.#parent.idOf(this.#target.plugin, this)
    if (this.#fiber !== undefined) this.#fiber.entry = this.entry
    return [old, this.entry]
  }

  start(): void {
    if (this.#fiber === undefined)
      this.#fiber = this.#parent.fiber.kernel.mountChild(this.#parent, this.entry, this.#target)
    else this.#fiber.kick()
  }

  /** Out of sight with its parent. It goes down when its turn among the parent's undos has come. */
  hide(): void {
    if (this.#fiber?.current !== undefined) this.#parent.fiber.kernel.withdraw(this.#fiber.current)
    if (this.#parent.phase === 'parked') this.#fiber?.kick()
  }

  drain(limitMs: number): Promise<unknown> | undefined {
    return this.#fiber?.current?.drain(limitMs)
  }

  abort(reason: CodedError): void {
    this.#fiber?.abort(reason)
  }

  async update(config: unknown): Promise<void> {
    const { kernel } = this.#parent.fiber
    this.#target = { ...this.#target, ...kernel.toTarget(this.#target.plugin, config, this.entry) }
    await this.#fiber?.update(this.#target)
  }

  rescope({ realms, overlays }: Target): void {
    if (isSameScope(this.#target, { realms, overlays })) return
    this.#target = { ...this.#target, realms, overlays }
    this.#fiber?.retarget(this.#target).catch(nothing)
  }

  async retire(): Promise<void> {
    await this.#fiber?.retire()
  }

  async dispose(): Promise<void> {
    this.#onDispose()
    await this.retire()
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

/** A promise that resolves after `delayMs`, and the way to call it off. */
function after(delayMs: number): { readonly promise: Promise<void>; cancel(): void } {
  let timer: NodeJS.Timeout | undefined
  const promise = new Promise<void>((resolve) => {
    timer = setTimeout(resolve, delayMs)
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
