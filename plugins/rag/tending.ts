import { setImmediate } from 'node:timers/promises'
import type { Logger } from '../../kernel/index.ts'
import type { Key, Store } from '../store/types.ts'
import type { TextIndex } from './bm25.ts'
import { markOf } from './ingest.ts'
import { kept, type LooseRecord } from './records.ts'
import type { RagState } from './state.ts'
import type { VectorIndex } from './vectors.ts'

/** Work that changes leave behind, done beside everything else. */
export interface Tending {
  /** Looks after a collection: merges its segments, and takes away what was deleted. Nobody waits for it. */
  tend(collectionId: string, ...spaces: readonly string[]): void
  /** Takes away what a process before this one left behind. */
  sweep(): Promise<void>
  /** Resolves when nothing is under way. */
  settled(): Promise<void>
}

/** Records of one transaction that takes away. */
const sliceRecords = 128

export function createTending(parts: {
  readonly store: Store
  readonly text: TextIndex
  readonly vectors: VectorIndex
  readonly state: RagState
  readonly log: Logger
}): Tending {
  const { store, text, vectors, state, log } = parts
  const running = new Set<Promise<void>>()

  const keep = (work: Promise<void>): void => {
    const run: Promise<void> = work
      .catch((error: unknown) => log.error('a collection could not be looked after', { error }))
      .finally(() => running.delete(run))
    running.add(run)
  }

  const removeAll = async (collection: string, prefix: Key): Promise<void> => {
    for (;;) {
      const keys: Key[] = []
      for await (const [key] of store.range(collection, prefix, { limit: sliceRecords })) keys.push(key)
      if (keys.length === 0) return
      await store.atomically((tx) => {
        for (const key of keys) tx.remove(collection, key)
      })
      await setImmediate()
    }
  }

  const free = async (collectionId: string, first: number, { count, unborn }: LooseRecord): Promise<void> => {
    if (first < 0) {
      for (const collection of [kept.documents, kept.identities, kept.chunks, kept.trusts]) {
        await removeAll(collection, [collectionId])
      }
    }
    for (let at = 0; at < count; at += sliceRecords) {
      await store.atomically((tx) => {
        for (let each = at; each < Math.min(count, at + sliceRecords); each++) {
          tx.remove(kept.chunks, [collectionId, first + each])
        }
      })
      await setImmediate()
    }
    await store.atomically(async (tx) => {
      tx.remove(kept.loose, [collectionId, first])
      if (!unborn) return
      await text.drop(tx, collectionId)
      await vectors.drop(tx, collectionId)
    })
  }

  const freeLoose = async (prefix: Key): Promise<void> => {
    const loose: (readonly [string, number, LooseRecord])[] = []
    for await (const [key, { value }] of store.range<LooseRecord>(kept.loose, prefix)) {
      const [id, first] = key as Key & readonly [string, number]
      loose.push([id, first, value])
    }
    for (const [id, first, record] of loose) {
      if (!state.writing.has(markOf(id, first))) await free(id, first, record)
    }
  }

  return {
    tend(collectionId, ...spaces) {
      const under = state.tending.get(collectionId)
      if (under !== undefined) {
        under.again = true
        for (const space of spaces) under.spaces.add(space)
        return
      }
      const task = { again: true, spaces: new Set(spaces) }
      state.tending.set(collectionId, task)
      const work = async () => {
        try {
          while (task.again) {
            task.again = false
            await freeLoose([collectionId])
            await text.maintain(collectionId)
            for (const space of [...task.spaces]) await vectors.maintain(space)
          }
        } finally {
          state.tending.delete(collectionId)
        }
      }
      keep(work())
    },

    async sweep() {
      if (state.swept) return
      state.swept = true
      await freeLoose([])
      await text.sweep()
      await vectors.sweep()
    },

    async settled() {
      while (running.size > 0) await Promise.all(running)
    }
  }
}
