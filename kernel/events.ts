import type { Generation } from './generation.ts'
import type { EventBus, EventName, Events, ListenOptions } from './plugin.ts'

export type AnyListener = (...args: never[]) => unknown

/** A listener and the generation it belongs to. */
export class Listener {
  readonly call: (...args: unknown[]) => unknown
  readonly owner: Generation | undefined
  readonly once: boolean
  readonly prepend: boolean
  /** Visible, and not called yet if it is to be called once. */
  on = false

  constructor(call: AnyListener, owner: Generation | undefined, options: ListenOptions = {}) {
    this.call = call as (...args: unknown[]) => unknown
    this.owner = owner
    this.once = options.once ?? false
    this.prepend = options.prepend ?? false
  }
}

interface Topic {
  /** Replaced, never changed: a dispatch goes on over the list it began with. */
  listeners: readonly Listener[]
  dispatched: number
}

export interface BusOptions {
  /** Told of what a listener threw; must not throw. */
  readonly onError: (event: string, error: unknown, owner: Generation | undefined) => void
}

/** The event bus. Dispatches to the listeners that were there when it began, less those that have left since. */
export class Bus implements EventBus {
  readonly #topics = new Map<string, Topic>()
  readonly #onError: BusOptions['onError']

  constructor(options: BusOptions) {
    this.#onError = options.onError
  }

  add(event: string, listener: Listener): void {
    const topic = this.#topic(event)
    listener.on = true
    topic.listeners = listener.prepend ? [listener, ...topic.listeners] : [...topic.listeners, listener]
  }

  remove(event: string, listener: Listener): void {
    listener.on = false
    const topic = this.#topic(event)
    topic.listeners = topic.listeners.filter((other) => other !== listener)
  }

  emit<K extends EventName>(event: K, ...args: Events[K]): void {
    for (const listener of this.#dispatch(event)) {
      if (!listener.on) continue
      if (listener.once) this.remove(event, listener)
      try {
        const result = listener.call(...args)
        if (result instanceof Promise) result.catch((error: unknown) => this.#onError(event, error, listener.owner))
      } catch (error) {
        this.#onError(event, error, listener.owner)
      }
    }
  }

  async parallel<K extends EventName>(event: K, ...args: Events[K]): Promise<void> {
    const outcomes = await Promise.allSettled(
      this.#dispatch(event)
        .filter((listener) => listener.on)
        .map(async (listener) => {
          if (listener.once) this.remove(event, listener)
          await listener.call(...args)
        })
    )
    const errors = outcomes.flatMap((outcome) => (outcome.status === 'rejected' ? [outcome.reason as unknown] : []))
    if (errors.length > 0) throw new AggregateError(errors, `${errors.length} of the listeners of '${event}' failed`)
  }

  async serial<K extends EventName>(event: K, ...args: Events[K]): Promise<unknown> {
    for (const listener of this.#dispatch(event)) {
      if (!listener.on) continue
      if (listener.once) this.remove(event, listener)
      const result = await listener.call(...args)
      if (isAnswer(result)) return result
    }
    return undefined
  }

  bail<K extends EventName>(event: K, ...args: Events[K]): unknown {
    for (const listener of this.#dispatch(event)) {
      if (!listener.on) continue
      if (listener.once) this.remove(event, listener)
      const result = listener.call(...args)
      if (isAnswer(result)) return result
    }
    return undefined
  }

  counts(): ReturnType<EventBus['counts']> {
    const byEvent: Record<string, number> = {}
    let total = 0
    for (const [event, topic] of [...this.#topics].sort(([a], [b]) => (a < b ? -1 : 1))) {
      if (event.startsWith('internal/') || topic.dispatched === 0) continue
      byEvent[event] = topic.dispatched
      total += topic.dispatched
    }
    return { total, byEvent }
  }

  #dispatch(event: string): readonly Listener[] {
    const topic = this.#topic(event)
    topic.dispatched += 1
    return topic.listeners
  }

  #topic(event: string): Topic {
    let topic = this.#topics.get(event)
    if (topic === undefined) {
      topic = { listeners: [], dispatched: 0 }
      this.#topics.set(event, topic)
    }
    return topic
  }
}

/** Whether a listener's result ends a `serial` or `bail` dispatch. */
function isAnswer(result: unknown): boolean {
  return result !== undefined && result !== null && result !== false
}
