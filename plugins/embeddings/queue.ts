import { CodedError } from '../../kernel/index.ts'

/** Work for one encoder, some of it at a time. */
export interface Queue {
  /** @throws CodedError `EMBEDDINGS_BUSY` when too much waits */
  run<T>(work: () => Promise<T>, how: QueueHow): Promise<T>
}

export interface QueueHow {
  /** Goes before what is not. */
  readonly urgent: boolean
  /** Was let in before: it is never refused. */
  readonly goesOn: boolean
  readonly signal: AbortSignal | undefined
}

const mostUrgent = 256
const mostWaiting = 10_000

/**
 * @param parallel pieces of work at once
 * @param now milliseconds, monotonic
 */
export function createQueue(model: string, parallel: number, now: () => number): Queue {
  const urgentOnes = new Set<() => void>()
  const others = new Set<() => void>()
  let running = 0
  let averageMs = 0

  function startNext(): void {
    for (const waiting of [urgentOnes, others]) {
      for (const begin of waiting) {
        if (running >= parallel) return
        waiting.delete(begin)
        begin()
      }
    }
  }

  async function start<T>(work: () => Promise<T>): Promise<T> {
    const startedMs = now()
    running++
    try {
      return await work()
    } finally {
      averageMs += (now() - startedMs - averageMs) * (averageMs === 0 ? 1 : 0.2)
      running--
      startNext()
    }
  }

  return {
    run(work, { urgent, goesOn, signal }) {
      if (signal?.aborted) return Promise.reject(signal.reason as Error)
      if (running < parallel) return start(work)
      const waiting = urgent ? urgentOnes : others
      if (!goesOn && waiting.size >= (urgent ? mostUrgent : mostWaiting)) {
        const retryAfterSeconds = Math.min(60, Math.max(1, Math.ceil((averageMs * waiting.size) / parallel / 1_000)))
        return Promise.reject(
          new CodedError('EMBEDDINGS_BUSY', `${waiting.size} batches of texts wait for model '${model}'`, {
            detail: { model, retryAfterSeconds }
          })
        )
      }
      return new Promise((resolve, reject) => {
        const giveUp = (): void => {
          waiting.delete(begin)
          reject(signal?.reason as Error)
        }
        const begin = (): void => {
          signal?.removeEventListener('abort', giveUp)
          resolve(start(work))
        }
        waiting.add(begin)
        signal?.addEventListener('abort', giveUp, { once: true })
      })
    }
  }
}
