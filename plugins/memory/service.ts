import type { Key, Store } from '../store/types.ts'

/** How a user likes things to be. Kept under `[userId, category, key]`, so that a newer value replaces an older one. */
export interface Preference {
  readonly value: string
  /** In [0, 1]. */
  readonly confidence: number
}

/** What is known of a user. Kept under `[userId, category, fact key]`, likewise. Times are Unix milliseconds. */
export interface Fact {
  readonly id: string
  readonly value: string
  /** In [0, 1]. */
  readonly confidence: number
  readonly createdAtMs: number
  readonly updatedAtMs: number
}

/** Something of a kind, with the key it is kept under. */
export interface Kept<T> {
  readonly category: string
  readonly key: string
  readonly item: T
}

export interface Recollection {
  readonly preferences: readonly Kept<Preference>[]
  readonly facts: readonly Kept<Fact>[]
}

/** What the server remembers of its users. */
export interface Memory {
  /** In the order of category and key, at most 1,000 of each kind. */
  recall(userId: string): Promise<Recollection>
}

const preferences = 'memory.preferences'
const facts = 'memory.facts'
const maxItems = 1_000

export function createMemory(store: Store): Memory {
  async function kept<T>(collection: string, userId: string): Promise<readonly Kept<T>[]> {
    const all: Kept<T>[] = []
    for await (const [key, { value }] of store.range<T>(collection, [userId], { limit: maxItems })) {
      const [, category, name] = key as Key & readonly [string, string, string]
      all.push({ category, key: name, item: value })
    }
    return all
  }

  return {
    recall: async (userId) => ({
      preferences: await kept<Preference>(preferences, userId),
      facts: await kept<Fact>(facts, userId)
    })
  }
}
