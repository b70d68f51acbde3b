import { setImmediate } from 'node:timers/promises'
import type { Awaitable } from '../../kernel/index.ts'
import type { Store, Transaction } from '../store/types.ts'

/** Work of one transaction, after which others get their turn. */
const maxWorks = 128

interface Waiting {
  readonly work: (tx: Transaction) => Awaitable<unknown>
  readonly resolve: (result: never) => void
  readonly reject: (error: unknown) => void
}

type Outcome = { readonly result: unknown } | { readonly error: unknown }

/** Makes one transaction of what many want to write at about the same time: one commit, one wait for the disk. */
export interface Batch {
  /**
   * Runs `work` in a transaction together with that of others, in the order in which they came, and resolves once it is
   * on disk. May run it again, as any transaction. When it throws, nobody else is concerned, and what it had written stays: so it does all its
   * reading before it writes.
   * @throws what `work` threw, or the store
   */
  add<R>(work: (tx: Transaction) => Awaitable<R>): Promise<R>
}

export function createBatch(store: Store): Batch {
  const waiting: Waiting[] = []
  let isRunning = false

  /** What comes in this turn of the event loop goes along, and in those after it as long as they bring more. */
  async function gather(): Promise<void> {
    let before: number
    do {
      before = waiting.length
      await setImmediate()
    } while (waiting.length > before && waiting.length < maxWorks)
  }

  async function run(): Promise<void> {
    while (waiting.length > 0) {
      await gather()
      const works = waiting.splice(0, maxWorks)
      try {
        const outcomes = await store.atomically((tx) => tryAll(works, tx), { durable: true })
        for (const [index, outcome] of outcomes.entries()) {
          const { resolve, reject } = works[index]!
          if ('error' in outcome) reject(outcome.error)
          else resolve(outcome.result as never)
        }
      } catch (error) {
        for (const { reject } of works) reject(error)
      }
    }
    isRunning = false
  }

  return {
    add: (work) =>
      new Promise((resolve, reject) => {
        waiting.push({ work, resolve, reject })
        if (isRunning) return
        isRunning = true
        void run()
      })
  }
}

async function tryAll(works: readonly Waiting[], tx: Transaction): Promise<Outcome[]> {
  const outcomes: Outcome[] = []
  for (const { work } of works) {
    try {
      const result = work(tx)
      outcomes.push({ result: result instanceof Promise ? await result : result })
    } catch (error) {
      outcomes.push({ error })
    }
  }
  return outcomes
}
