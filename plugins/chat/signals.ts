import { setMaxListeners } from 'node:events'
import type { LanguageModelV3CallOptions } from '@ai-sdk/provider'

/**
 * A signal that fires with the first of several. It is made when it is first asked for: a model that answers at once
 * never does, and an AbortSignal with its listeners costs as much as the rest of such a turn.
 */
export class LinkedSignal {
  readonly #sources: () => readonly AbortSignal[]
  #watched: readonly AbortSignal[] = []
  #controller: AbortController | undefined

  /** @param sources called at most once */
  constructor(sources: () => readonly AbortSignal[]) {
    this.#sources = sources
  }

  get signal(): AbortSignal {
    if (this.#controller === undefined) {
      this.#controller = new AbortController()
      this.#watched = this.#sources()
      // As many turns may wait on the signal of one agent as there are; it is no leak.
      setMaxListeners(0, ...this.#watched)
      for (const source of this.#watched) {
        if (source.aborted) this.#controller.abort(source.reason)
        else source.addEventListener('abort', this)
      }
    }
    return this.#controller.signal
  }

  /** False as well as long as nobody has asked for the signal. */
  get hasFired(): boolean {
    return this.#controller?.signal.aborted === true
  }

  handleEvent(event: Event): void {
    this.#controller?.abort((event.target as AbortSignal).reason)
  }

  /** Leaves no listener behind; the signal does not fire any more. */
  release(): void {
    for (const source of this.#watched) source.removeEventListener('abort', this)
  }
}

const kEnding = Symbol('ending')

interface Watched {
  readonly [kEnding]: LinkedSignal
}

/** One getter for all: a closure in each object would give each a shape of its own. */
const abortSignal: PropertyDescriptor & ThisType<Watched> = {
  enumerable: true,
  configurable: true,
  get() {
    return this[kEnding].signal
  }
}

/** The options of a call whose `abortSignal` is made when the model asks for it. */
export function withAbortSignal(
  options: Omit<LanguageModelV3CallOptions, 'abortSignal'>,
  ending: LinkedSignal
): LanguageModelV3CallOptions {
  const watched: LanguageModelV3CallOptions & Watched = { ...options, [kEnding]: ending }
  return Object.defineProperty(watched, 'abortSignal', abortSignal)
}

/** Settles with `work`, or rejects with the reason of the signal when that fires first. */
export async function untilAborted<T>(work: PromiseLike<T>, ending: LinkedSignal): Promise<T> {
  let isPending = true
  const settle = (): void => {
    isPending = false
  }
  work.then(settle, settle)
  // What is at hand is there after a few microtasks, in which no signal could fire.
  for (let turn = 0; turn < 4 && isPending; turn += 1) await Promise.resolve()
  return isPending ? race(work, ending.signal) : work
}

function race<T>(work: PromiseLike<T>, signal: AbortSignal): Promise<T> {
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
        reject(error)
      }
    )
  })
}
