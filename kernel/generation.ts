import { type Collection, Item } from './collections.ts'
import { CodedError } from './errors.ts'
import { type AnyListener, Listener } from './events.ts'
import type { Fiber } from './fiber.ts'
import type { Logger } from './log.ts'
import type {
  Awaitable,
  CollectionName,
  Collector,
  Context,
  Contributions,
  EventBus,
  EventName,
  Events,
  Lease,
  ListenOptions,
  Plugin,
  Undo
} from './plugin.ts'
import type { Slot } from './services.ts'

/**
 * `building`: `apply` runs, nothing is visible. `live`: visible. `leaving`: nobody new gets in, what was begun goes on.
 * `undoing`, `ended`.
 */
export type Phase = 'building' | 'live' | 'leaving' | 'undoing' | 'ended'

/** The plugin and the checked config one generation is built from. */
export interface Target {
  readonly plugin: Plugin
  readonly config: unknown
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
  readonly target: Target
  readonly log: Logger
  phase: Phase = 'building'
  readonly #effects: Effect[] = []
  #provided: Map<Slot, object> | undefined
  #items: Map<Collection, Item[]> | undefined
  #collectors: Map<Collection, Collector<unknown>> | undefined
  #listeners: [event: string, listener: Listener][] | undefined
  #commitSteps: (() => void)[] | undefined
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
    return this.target.plugin.apply(context as unknown as Context<never, never, never>, this.target.config as never)
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

  /** @throws CodedError `KERNEL_INACTIVE` once the generation is going away */
  assertOpen(): void {
    if (this.phase === 'building' || this.phase === 'live') return
    throw new CodedError('KERNEL_INACTIVE', `cannot create effect on inactive context of entry '${this.fiber.entry}'`)
  }

  record(label: string | undefined, undo: Undo): void {
    this.#effects.push({ label, undo })
  }

  provide(name: string, service: object): void {
    this.assertOpen()
    if (!(this.target.plugin.provides as readonly string[]).includes(name)) {
      throw new TypeError(`plugin '${this.target.plugin.name}' provides '${name}' without declaring it in provides`)
    }
    if (typeof service !== 'object' || service === null) {
      throw new TypeError(`service '${name}' is an object with methods, found ${typeof service}`)
    }
    const slot = this.fiber.kernel.services.slot(name)
    this.#assertFree(slot)
    this.#provided ??= new Map()
    this.#provided.set(slot, service)
    this.record(`provide:${name}`, () => slot.empty(this))
    if (this.phase === 'live') {
      slot.fill(this, service, false)
      this.fiber.kernel.wake(slot)
    }
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
    this.assertOpen()
    if (this.phase === 'live') throw new TypeError(`entry '${this.fiber.entry}' must collect '${name}' while it starts`)
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
    this.assertOpen()
    if (this.phase === 'live') throw new TypeError(`entry '${this.fiber.entry}' has committed already`)
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
    for (const slot of this.#provided?.keys() ?? []) this.#assertFree(slot)
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
    for (const [slot, service] of this.#provided ?? []) {
      const swapped = old !== undefined && slot.provider === old
      if (!swapped) woken.push(slot)
      slot.fill(this, service, swapped)
    }
    for (const [collection, next] of touched) collection.show(next)
    for (const [event, listener] of (old === undefined ? undefined : old.#listeners) ?? [])
      kernel.events.remove(event, listener)
    for (const [event, listener] of this.#listeners ?? []) kernel.events.add(event, listener)
    for (const [collection, collector] of this.#collectors ?? []) collection.seat(this, collector)
    for (const step of this.#commitSteps ?? []) this.#contain(step, 'a commit step')
    this.#commitSteps = undefined
    for (const collection of touched.keys())
      this.#contain(() => collection.tell(), `the collector of ${collection.name}`)
    for (const slot of woken) kernel.wake(slot)
    // A service that this generation no longer offers goes away with the old one.
    if (old !== undefined) kernel.withdrawDependents(old)
  }

  /** Takes everything out of sight, synchronously: nobody new gets in. Services stay for those who are still leaving. */
  withdraw(): void {
    if (this.phase !== 'live') return
    this.phase = 'leaving'
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

class PluginContext {
  readonly #generation: Generation
  readonly services: object
  #log: Logger | undefined
  #timers: Set<NodeJS.Timeout> | undefined

  constructor(generation: Generation) {
    const { kernel } = generation.fiber
    this.#generation = generation
    this.services = Object.create(notInjected) as object
    for (const name of generation.target.plugin.inject) this.#inject(name, kernel.services.handle(name))
    for (const name of generation.target.plugin.optional) {
      this.#inject(name, kernel.services.slot(name).open ? kernel.services.handle(name) : undefined)
    }
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

  provide(name: string, service: object): void {
    this.#generation.provide(name, service)
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
      if (generation.phase === 'building' || generation.phase === 'live') generation.record(label, undo)
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
    if (generation.phase !== 'building' && generation.phase !== 'live') {
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
