type Listener = (reason: unknown) => void

/**
 * Many short-lived listeners on signals that may live long: one real listener a signal, since adding and removing one
 * takes a walk over all that are there, and eleven of them draw a warning.
 */
export class AbortFan {
  readonly #listeners = new WeakMap<AbortSignal, Set<Listener>>()

  /** Calls the listener when the signal fires, or at once when it has. */
  add(signal: AbortSignal | undefined, listener: Listener): void {
    if (signal === undefined) return
    const listeners = this.#listeners.get(signal) ?? this.#watch(signal)
    listeners.add(listener)
    if (signal.aborted) listener(signal.reason)
  }

  remove(signal: AbortSignal | undefined, listener: Listener): void {
    if (signal !== undefined) this.#listeners.get(signal)?.delete(listener)
  }

  #watch(signal: AbortSignal): Set<Listener> {
    const listeners = new Set<Listener>()
    this.#listeners.set(signal, listeners)
    const tellAll = (): void => {
      for (const listener of listeners) listener(signal.reason)
    }
    signal.addEventListener('abort', tellAll, { once: true })
    return listeners
  }
}
