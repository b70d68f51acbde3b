import { messageOf } from './errors.ts'
import type { Generation } from './generation.ts'
import type { EventBus, EventName, Events, ListenOptions, ServiceName } from './plugin.ts'

export type AnyListener = (...args: never[]) => unknown

/** A listener and the generation it belongs to. */
export class Listener {
  readonly call: (...args: unknown[]) => unknown
  readonly owner: Generation | undefined
  readonly once: boolean
  readonly prepend: boolean
  readonly global: boolean
  /** It was to be called once, and has been. */
  spent = false

  constructor(call: AnyListener, owner: Generation | undefined, options: ListenOptions = {}) {
    this.call = call as (...args: unknown[]) => unknown
    this.owner = owner
    this.once = options.once ?? false
    this.prepend = options.prepend ?? false
    this.global = options.global ?? false
  }

  /** Whether a dispatch that began with it still calls it. Taking it away is for the next one; its owner's end is not. */
  get isHeard(): boolean {
    return !this.spent && (this.owner === undefined || this.owner.phase === 'live')
  }
}

/** A listener and what it listens to. */
export type Heard = readonly [event: string, listener: Listener]

/** What all views of one bus share. */
interface Shared {
  readonly topics: Map<string, Topic>
  /** A dispatch is being announced: those that its observers begin are not. */
  announcing: boolean
}

interface Topic {
  /** Replaced, never changed: a dispatch goes on over the list it began with. */
  listeners: readonly Listener[]
  dispatched: number
}

type Accepts = (listener: Listener) => boolean

export interface BusOptions {
  /** Told of what a listener threw; must not throw. */
  readonly onError: (event: string, error: unknown, owner: Generation | undefined) => void
  /** The realm in which an entry sees a service. */
  readonly realmOf: (entry: string, service: string) => string
}

/** The event bus. Dispatches to the listeners that were there when it began, less those whose owners have left since. */
export class Bus implements EventBus {
  readonly #shared: Shared
  readonly #options: BusOptions
  readonly #accepts: Accepts | undefined
  readonly #watchers: Topic

  constructor(options: BusOptions, parent?: Bus, accepts?: Accepts) {
    this.#options = options
    this.#shared = parent === undefined ? { topics: new Map(), announcing: false } : parent.#shared
    this.#accepts = accepts
    this.#watchers = this.#topic('internal/dispatch')
  }

  add(event: string, listener: Listener): void {
    if (listener.spent || this.#isVetoed(event, listener)) return
    const topic = this.#topic(event)
    topic.listeners = listener.prepend ? [listener, ...topic.listeners] : [...topic.listeners, listener]
  }

  remove(event: string, listener: Listener): void {
    const topic = this.#topic(event)
    topic.listeners = topic.listeners.filter((other) => other !== listener)
  }

  /** What comes stands where the first of its kind of what goes has stood; what is new comes as by {@link add}. */
  replace(gone: readonly Heard[], come: readonly Heard[]): void {
    if (gone.length === 0) {
      for (const [event, listener] of come) this.add(event, listener)
      return
    }
    const events = new Set([...gone, ...come].map(([event]) => event))
    // Guards that go have no say any more, and those that come have.
    const ordered = [...events].sort((a, b) => Number(isInternal(b)) - Number(isInternal(a)))
    for (const event of ordered) this.#replaceIn(event, gone, come)
  }

  #replaceIn(event: string, gone: readonly Heard[], come: readonly Heard[]): void {
    const leaving = new Set(gone.map(([, listener]) => listener))
    const arriving = come.flatMap(([name, listener]) => (name === event ? listener : []))
    const heard = arriving.filter((listener) => !listener.spent && !this.#isVetoed(event, listener))
    const topic = this.#topic(event)
    const front = heard.filter(({ prepend }) => prepend).reverse()
    const back = heard.filter(({ prepend }) => !prepend)
    const next: Listener[] = []
    if (!topic.listeners.some((listener) => listener.prepend && leaving.has(listener))) next.push(...front.splice(0))
    for (const listener of topic.listeners) {
      if (leaving.has(listener)) next.push(...(listener.prepend ? front : back).splice(0))
      else next.push(listener)
    }
    next.push(...back)
    topic.listeners = next
  }

  emit<K extends EventName>(event: K, ...args: Events[K]): void {
    for (const listener of this.#dispatch('emit', event, args)) {
      if (!listener.isHeard) continue
      if (listener.once) this.#spend(event, listener)
      try {
        const result = listener.call(...args)
        if (result instanceof Promise) {
          result.catch((error: unknown) => this.#options.onError(event, error, listener.owner))
        }
      } catch (error) {
        this.#options.onError(event, error, listener.owner)
      }
    }
  }

  async parallel<K extends EventName>(event: K, ...args: Events[K]): Promise<void> {
    const outcomes = await Promise.allSettled(
      this.#dispatch('parallel', event, args)
        .filter((listener) => listener.isHeard)
        .map(async (listener) => {
          if (listener.once) this.#spend(event, listener)
          await listener.call(...args)
        })
    )
    const errors = outcomes.flatMap((outcome) => (outcome.status === 'rejected' ? [outcome.reason as unknown] : []))
    if (errors.length > 0) {
      const list = errors.map(messageOf).join('; ')
      throw new AggregateError(errors, `${errors.length} of the listeners of '${event}' failed: ${list}`)
    }
  }

  async serial<K extends EventName>(event: K, ...args: Events[K]): Promise<unknown> {
    for (const listener of this.#dispatch('serial', event, args)) {
      if (!listener.isHeard) continue
      if (listener.once) this.#spend(event, listener)
      const result = await listener.call(...args)
      if (isAnswer(result)) return result
    }
    return undefined
  }

  bail<K extends EventName>(event: K, ...args: Events[K]): unknown {
    for (const listener of this.#dispatch('bail', event, args)) {
      if (!listener.isHeard) continue
      if (listener.once) this.#spend(event, listener)
      const result = listener.call(...args)
      if (isAnswer(result)) return result
    }
    return undefined
  }

  waterfall<K extends EventName, R>(event: K, args: Events[K], core: (...args: Events[K]) => R): R {
    const listeners = this.#dispatch('waterfall', event, args)
    const run = (index: number): R => {
      const listener = listeners[index]
      if (listener === undefined) return core(...args)
      if (!listener.isHeard) return run(index + 1)
      if (listener.once) this.#spend(event, listener)
      let called = false
      const next = (): R => {
        if (called) throw new Error('next() called multiple times')
        called = true
        return run(index + 1)
      }
      return listener.call(...args, next) as R
    }
    return run(0)
  }

  only(accepts: (entry: string) => boolean): EventBus {
    const before = this.#accepts
    return new Bus(
      this.#options,
      this,
      (listener) =>
        (before === undefined || before(listener)) &&
        (listener.owner === undefined || accepts(listener.owner.fiber.entry))
    )
  }

  within(service: ServiceName, entry: string): EventBus {
    const { realmOf } = this.#options
    return this.only((other) => realmOf(other, service) === realmOf(entry, service))
  }

  counts(): ReturnType<EventBus['counts']> {
    const byEvent: Record<string, number> = {}
    let total = 0
    for (const [event, topic] of [...this.#shared.topics].sort(([a], [b]) => (a < b ? -1 : 1))) {
      if (isInternal(event) || topic.dispatched === 0) continue
      byEvent[event] = topic.dispatched
      total += topic.dispatched
    }
    return { total, byEvent }
  }

  #spend(event: string, listener: Listener): void {
    listener.spent = true
    this.remove(event, listener)
  }

  #dispatch(mode: string, event: string, args: readonly unknown[]): readonly Listener[] {
    const topic = this.#topic(event)
    topic.dispatched += 1
    const shared = this.#shared
    if (this.#watchers.listeners.length > 0 && !shared.announcing && !isInternal(event)) {
      shared.announcing = true
      this.emit('internal/dispatch', { mode, event, args })
      shared.announcing = false
    }
    const accepts = this.#accepts
    if (accepts === undefined) return topic.listeners
    return topic.listeners.filter((listener) => listener.global || accepts(listener))
  }

  /** Fails closed: a guard that throws keeps the listener out. */
  #isVetoed(event: string, listener: Listener): boolean {
    const guards = this.#shared.topics.get('internal/listener')
    if (guards === undefined || guards.listeners.length === 0 || isInternal(event)) return false
    const entry = listener.owner?.fiber.entry
    try {
      return this.bail('internal/listener', { event, entry }) !== undefined
    } catch (error) {
      this.#options.onError('internal/listener', error, listener.owner)
      return true
    }
  }

  #topic(event: string): Topic {
    let topic = this.#shared.topics.get(event)
    if (topic === undefined) {
      topic = { listeners: [], dispatched: 0 }
      this.#shared.topics.set(event, topic)
    }
    return topic
  }
}

function isInternal(event: string): boolean {
  return event.startsWith('internal/')
}

/** Whether a listener's result ends a `serial` or `bail` dispatch. */
function isAnswer(result: unknown): boolean {
  return result !== undefined && result !== null && result !== false
}
