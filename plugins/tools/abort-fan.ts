export interface AbortListener {
  onAbort(reason: unknown): void
}

/**
 * Many short-lived listeners on signals that may live long: one real listener a signal, since adding and removing one
 * takes a walk over all that are there, and eleven of them draw a warning.
 */
export class AbortFan {
  readonly #listeners = new WeakMap<AbortSignal, Set<AbortListener>>()

  /** Tells the listener when the signal fires, or at once when it has. */
  add(signal: AbortSignal | undefined, listener: AbortListener): void {
    if (signal === undefined) return
    if (signal.aborted) {
      listener.onAbort(signal.reason)
      return
    }
    const listeners = this.#listeners.get(signal) ?? this.#watch(signal)
    listeners.add(listener)
  }

  remove(signal: AbortSignal | undefined, listener: AbortListener): void {
    if (signal !== undefined) this.#listeners.get(signal)?.delete(listener)
  }

  #watch(signal: AbortSignal): Set<AbortListener> {
    const listeners = new Set<AbortListener>()
    this.#listeners.set(signal, listeners)
    const tellAll = (): void => {
      for (const listener of listeners) listener.onAbort(signal.reason)
    }
    signal.addEventListener('abort', tellAll, { once: true })
    return listeners
  }
}
