import { setMaxListeners } from 'node:events'

/** A signal that fires with the first of several, and leaves no listener behind once it is released. */
export interface LinkedSignal {
  readonly signal: AbortSignal
  release(): void
}

/** As `AbortSignal.any`, which keeps what it made for as long as its sources live. */
export function linkSignals(sources: readonly AbortSignal[]): LinkedSignal {
  const controller = new AbortController()
  // As many turns may wait on the signal of one agent as there are; it is no leak.
  setMaxListeners(0, ...sources)
  const abort = (event: Event): void => controller.abort((event.target as AbortSignal).reason)
  for (const source of sources) {
    if (source.aborted) controller.abort(source.reason)
    else source.addEventListener('abort', abort)
  }
  return {
    signal: controller.signal,
    release() {
      for (const source of sources) source.removeEventListener('abort', abort)
    }
  }
}

/** Settles with `work`, or rejects with the reason of `signal` when that fires first. */
export function untilAborted<T>(work: PromiseLike<T>, signal: AbortSignal): Promise<T> {
  return new Promise<T>((resolve, reject) => {
    const abort = (): void => reject(signal.reason)
    if (signal.aborted) abort()
    else signal.addEventListener('abort', abort)
    work.then(
      (value) => {
        signal.removeEventListener('abort', abort)
        resolve(value)
      },
      (error: unknown) => {
        signal.removeEventListener('abort', abort)
        reject(signal.aborted ? signal.reason : error)
      }
    )
  })
}
