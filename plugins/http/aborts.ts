export interface AbortWatcher {
  onAbort(reason: unknown): void
}

/**
 * Passes the abort of a few long-lived signals on to many short-lived watchers: one listener for each signal, so that
 * a thousand open streams are neither a thousand listeners nor a warning, and leaving costs the same for all.
 */
export class Aborts {
  readonly #watchers = new WeakMap<AbortSignal, Set<AbortWatcher>>()

  add(signal: AbortSignal, watcher: AbortWatcher): void {
    if (signal.aborted) return watcher.onAbort(signal.reason)
    let watchers = this.#watchers.get(signal)
    if (watchers === undefined) {
      const all = new Set<AbortWatcher>()
      watchers = all
      this.#watchers.set(signal, all)
      signal.addEventListener('abort', () => {
        for (const each of all) each.onAbort(signal.reason)
      })
    }
    watchers.add(watcher)
  }

  remove(signal: AbortSignal, watcher: AbortWatcher): void {
    this.#watchers.get(signal)?.delete(watcher)
  }
}
