import { createHash } from 'node:crypto'
import type { Logger } from '../../kernel/index.ts'
import type { Store } from '../store/types.ts'

/**
 * Vectors of texts that were embedded before, in the store: two generations, each half of the limit. What was not asked
 * for during one of them is gone after the next. Losing it loses time, so it is written without waiting for the disk, and
 * a store that fails is told to the log and to nobody else.
 */
export interface VectorCache {
  /** Of each key: the vector, or `undefined`. */
  get(keys: readonly string[]): Promise<readonly (Float32Array | undefined)[]>
  put(entries: readonly (readonly [key: string, vector: Float32Array])[]): Promise<void>
  /** Resolves when nothing is being written any more. */
  settled(): Promise<void>
}

interface State {
  /** The young generation; the one before it is the old one, and those before that are to be taken away. */
  readonly generation: number
  /** Entries of the young generation. */
  readonly entries: number
}

const collection = 'embeddings'
const stateKey = ['state'] as const
const kind = 'vectors'
/** Keys that are taken away in one transaction. */
const removedAtOnce = 64

/** @param limit entries, at least 2 */
export function createVectorCache(store: Store, limit: number, log: Logger): VectorCache {
  const half = Math.floor(limit / 2)
  const writing = new Set<Promise<void>>()

  const readState = async (reader: Pick<Store, 'get'>): Promise<State> =>
    (await reader.get<State>(collection, stateKey))?.value ?? { generation: 1, entries: 0 }

  const guarded = async <T>(work: () => Promise<T>, otherwise: T): Promise<T> => {
    try {
      return await work()
    } catch (error) {
      log.warn('the cache of embeddings cannot be used', { error })
      return otherwise
    }
  }

  const put = async (entries: readonly (readonly [string, string])[]): Promise<void> => {
    const turned = await store.atomically(async (tx) => {
      const state = await readState(tx)
      const turns = state.entries + entries.length > half && state.entries > 0
      const generation = state.generation + (turns ? 1 : 0)
      for (const [key, text] of entries) tx.put(collection, [kind, generation, key], text)
      tx.put(collection, stateKey, { generation, entries: (turns ? 0 : state.entries) + entries.length })
      return turns ? generation : undefined
    })
    if (turned !== undefined) await removeBefore(turned - 1)
  }

  const removeBefore = async (generation: number): Promise<void> => {
    for (;;) {
      const keys: string[][] = []
      for await (const [key] of store.range(collection, [kind], { limit: removedAtOnce })) {
        if ((key[1] as number) < generation) keys.push(key as unknown as string[])
      }
      if (keys.length === 0) return
      await store.atomically((tx) => {
        for (const key of keys) tx.remove(collection, key)
      })
    }
  }

  const write = (entries: readonly (readonly [string, string])[]): Promise<void> => {
    const written = guarded(() => put(entries), undefined).finally(() => writing.delete(written))
    writing.add(written)
    return written
  }

  return {
    get: (keys) =>
      guarded(
        async () => {
          const { generation } = await readState(store)
          const old: [string, string][] = []
          const found: (Float32Array | undefined)[] = []
          for (const key of keys) {
            const young = await store.get<string>(collection, [kind, generation, key])
            const text = young ?? (await store.get<string>(collection, [kind, generation - 1, key]))
            if (young === undefined && text !== undefined) old.push([key, text.value])
            found.push(text === undefined ? undefined : toVector(text.value))
          }
          if (old.length > 0) void write(old)
          return found
        },
        keys.map(() => undefined)
      ),
    put: (entries) => write(entries.map(([key, vector]) => [key, toText(vector)] as const)),
    async settled() {
      while (writing.size > 0) await Promise.all(writing)
    }
  }
}

/** @param identity of the encoder @param text as it was prepared for it */
export function cacheKey(identity: string, text: string): string {
  return createHash('sha256').update(identity).update('\0').update(text).digest('base64url').slice(0, 27)
}

function toText(vector: Float32Array): string {
  return Buffer.from(vector.buffer, vector.byteOffset, vector.byteLength).toString('base64')
}

function toVector(text: string): Float32Array {
  const bytes = Buffer.from(text, 'base64')
  const vector = new Float32Array(bytes.length / 4)
  new Uint8Array(vector.buffer).set(bytes)
  return vector
}
