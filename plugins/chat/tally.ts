import type { Store } from '../store/types.ts'

export interface DayTotal {
  readonly runs: number
  readonly tokens: number
}

/**
 * How many turns asked a model today, whoever asked, and the tokens they took. Counted in memory and written now and
 * then: figures for people, of which a crash may take the last few seconds.
 */
export interface Tally {
  add(tokens: number): void
  today(): Promise<DayTotal>
  /** Writes what has been counted since. What cannot be written is kept for the next time. */
  flush(): Promise<void>
}

/** By `YYYY-MM-DD`, UTC. */
const collection = 'chat.days'
const nothing: DayTotal = { runs: 0, tokens: 0 }

/** @param now Unix time in milliseconds */
export function createTally(store: Store, now: () => number): Tally {
  let unwritten = new Map<string, DayTotal>()
  const today = (): string => new Date(now()).toISOString().slice(0, 10)

  function count(day: string, { runs, tokens }: DayTotal): void {
    const before = unwritten.get(day) ?? nothing
    unwritten.set(day, { runs: before.runs + runs, tokens: before.tokens + tokens })
  }

  return {
    add(tokens) {
      count(today(), { runs: 1, tokens })
    },

    async today() {
      const day = today()
      const { runs, tokens } = (await store.get<DayTotal>(collection, [day]))?.value ?? nothing
      const more = unwritten.get(day) ?? nothing
      return { runs: runs + more.runs, tokens: tokens + more.tokens }
    },

    async flush() {
      if (unwritten.size === 0) return
      const batch = unwritten
      unwritten = new Map()
      try {
        await store.atomically(async (tx) => {
          for (const [day, more] of batch) {
            const { runs, tokens } = (await tx.get<DayTotal>(collection, [day]))?.value ?? nothing
            tx.put<DayTotal>(collection, [day], { runs: runs + more.runs, tokens: tokens + more.tokens })
          }
        })
      } catch (error) {
        for (const [day, more] of batch) count(day, more)
        throw error
      }
    }
  }
}
