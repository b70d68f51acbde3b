import { setImmediate } from 'node:timers/promises'
import type { Key, Reader, Store, Transaction } from '../store/types.ts'

/**
 * What both indexes (`bm25.ts`, `vectors.ts`) do with their segments: an index is a head that lists segments, and what no
 * head names does not exist. A segment is written before it is named and taken away after; what is loose at either time is
 * told on disk, so that the next process takes away what this one leaves.
 */
export interface Segments {
  /** @throws StaleSegment when it is gone */
  readPart<T>(index: string, id: string, kind: string, number: number): Promise<T>
  /**
   * Runs `work` again with the next head when a segment went away under it.
   * @throws what `damaged` makes when that happens again and again
   */
  whileThere<H, R>(readHead: () => Promise<H>, work: (head: H) => Promise<R>, damaged: () => Error): Promise<R>
  /** Waits for a turn of the event loop where this one has taken long enough. */
  readonly breather: () => () => Promise<void>
  /** Writes a segment that stays loose until it is {@link named}. */
  stage(index: string, id: string, write: () => Promise<void>): Promise<void>
  /** Writes a segment, and has it named (or not) before it resolves. */
  build(index: string, id: string, write: () => Promise<void>): Promise<void>
  discard(index: string, id: string): Promise<void>
  /** Within the transaction that puts it into a head. */
  named(tx: Transaction, index: string, id: string): void
  /** Within the transaction that takes it out of a head. */
  gone(tx: Transaction, index: string, id: string): void
  /** Of a head that was read: what it names is being written no more. */
  settle(index: string, segments: readonly { readonly id: string }[]): void
  /** Takes away what is loose and not being written. */
  freeLoose(prefix: Key): Promise<void>
  /** Runs one piece of work on an index at a time. */
  inTurn(index: string, work: () => Promise<void>): Promise<void>
}

/** What is being done to the indexes of a store. All who change them share it: one would free what another writes. */
export interface SegmentWork {
  /** Segments that are being written, by key. */
  readonly staging: Set<string>
  /** Segments that are being taken away, by key. */
  readonly freeing: Map<string, Promise<void>>
  readonly maintained: Map<string, Promise<void>>
}

export interface SegmentsOptions {
  /** Of the store: parts of segments, by `[index, segment, kind, number]`. */
  readonly collection: string
  /** Segments that are written but not (or no longer) in a head, by `[index, segment]`. */
  readonly looseCollection: string
  readonly work: SegmentWork
  /** Monotonic milliseconds. */
  readonly clock: () => number
  /** Parts that are taken away in one transaction. */
  readonly partsAtOnce: number
  /** Takes away what is no segment, but loose like one. @returns whether it was that */
  readonly freeOther?: (id: string) => Promise<boolean>
}

/** A segment that the head named was gone when it was read: another head has come. */
export class StaleSegment extends Error {}

/** `gone` is what a head named once; what is only being written has a mark in {@link SegmentWork.staging}. */
type Loose = 'writing' | 'gone'

/** Of one turn of the event loop. */
const sliceMs = 5
export const mostTries = 16

export function createSegments(store: Store, options: SegmentsOptions): Segments {
  const { collection, looseCollection, work, clock, partsAtOnce, freeOther } = options
  const { staging, freeing, maintained } = work

  const mark = (index: string, id: string): string => `${index}\0${id}`

  const tell = (index: string, id: string): Promise<void> =>
    store.atomically((tx) => tx.put<Loose>(looseCollection, [index, id], 'writing'))

  /** Takes away what no head names, then what told of it. */
  const takeAway = async (index: string, id: string): Promise<void> => {
    if ((await freeOther?.(id)) !== true) {
      for (;;) {
        const keys: Key[] = []
        for await (const [key] of store.range(collection, [index, id], { limit: partsAtOnce })) keys.push(key)
        if (keys.length === 0) break
        await store.atomically((tx) => {
          for (const key of keys) tx.remove(collection, key)
        })
        await setImmediate()
      }
    }
    await store.atomically((tx) => tx.remove(looseCollection, [index, id]))
  }

  /** Once for all who want it: one who began earlier would take away what is written after another has ended. */
  const free = (index: string, id: string): Promise<void> => {
    const key = mark(index, id)
    let run = freeing.get(key)
    if (run === undefined) {
      run = takeAway(index, id).finally(() => freeing.delete(key))
      freeing.set(key, run)
    }
    return run
  }

  return {
    async readPart<T>(index: string, id: string, kind: string, number: number) {
      const found = await store.get<T>(collection, [index, id, kind, number])
      if (found === undefined) throw new StaleSegment()
      return found.value
    },

    async whileThere(readHead, work, damaged) {
      for (let tries = 1; ; tries++) {
        try {
          return await work(await readHead())
        } catch (error) {
          if (!(error instanceof StaleSegment)) throw error
          if (tries === mostTries) throw damaged()
        }
      }
    },

    breather() {
      let since = clock()
      return async () => {
        if (clock() - since < sliceMs) return
        await setImmediate()
        since = clock()
      }
    },

    async stage(index, id, write) {
      staging.add(mark(index, id))
      try {
        await tell(index, id)
        await write()
      } catch (error) {
        staging.delete(mark(index, id))
        throw error
      }
    },

    async build(index, id, write) {
      staging.add(mark(index, id))
      try {
        // An attempt that failed may have left something.
        if ((await store.get(looseCollection, [index, id])) !== undefined) await free(index, id)
        await tell(index, id)
        await write()
      } finally {
        staging.delete(mark(index, id))
      }
    },

    async discard(index, id) {
      staging.delete(mark(index, id))
      await free(index, id)
    },

    named(tx, index, id) {
      tx.remove(looseCollection, [index, id])
    },

    gone(tx, index, id) {
      tx.put<Loose>(looseCollection, [index, id], 'gone')
    },

    settle(index, segments) {
      for (const { id } of segments) staging.delete(mark(index, id))
    },

    async freeLoose(prefix) {
      const loose: (readonly [index: string, id: string, state: Loose])[] = []
      for await (const [key, { value }] of store.range<Loose>(looseCollection, prefix)) {
        loose.push([key[0] as string, key[1] as string, value])
      }
      for (const [index, id, state] of loose) {
        if (state === 'gone') staging.delete(mark(index, id))
        if (!staging.has(mark(index, id))) await free(index, id)
      }
    },

    inTurn(index, work) {
      const before = maintained.get(index) ?? Promise.resolve()
      const run = before
        .catch(() => {}) // told to the one who asked for it
        .then(work)
        .finally(() => {
          if (maintained.get(index) === run) maintained.delete(index)
        })
      maintained.set(index, run)
      return run
    }
  }
}

/** Of the segment in which those come together. */
export function mergedOf(entries: readonly { readonly id: string; readonly first: number; readonly end: number }[]): {
  readonly id: string
  readonly first: number
  readonly end: number
} {
  const first = Math.min(...entries.map((entry) => entry.first))
  const end = Math.max(...entries.map((entry) => entry.end))
  return { id: `${first}-${1 + Math.max(...entries.map((entry) => Number(entry.id.split('-')[1])))}`, first, end }
}

/** Segments of about one size that are merged into one, and how much larger those of the next size are. */
const mergeFactor = 8
const smallestTier = 64
const mostMerged = 32

export interface MergeOptions<E> {
  /** Of an entry, also those that are dead. */
  readonly countOf: (entry: E) => number
  /** Those of a segment that is merged no further. */
  readonly largest?: number
  /** Only segments of one kind are merged. */
  readonly kindOf?: (entry: E) => string
}

/** Segments of about one size once there are enough of them, or one of which too much is dead. */
export function mergeable<E extends { readonly first: number; readonly dead: number }>(
  segments: readonly E[],
  { countOf, largest = Number.POSITIVE_INFINITY, kindOf = () => '' }: MergeOptions<E>
): readonly E[] | undefined {
  const tiers = new Map<string, E[]>()
  for (const entry of segments) {
    if (entry.dead * 4 > countOf(entry)) return [entry]
    const size = Math.max(smallestTier, countOf(entry) - entry.dead)
    if (size * mergeFactor > largest * 2) continue
    const tier = `${Math.floor(Math.log(size / smallestTier) / Math.log(mergeFactor))} ${kindOf(entry)}`
    tiers.set(tier, [...(tiers.get(tier) ?? []), entry])
  }
  for (const [, entries] of [...tiers].sort(([a], [b]) => (a < b ? -1 : 1))) {
    if (entries.length >= mergeFactor) return entries.sort((a, b) => a.first - b.first).slice(0, mostMerged)
  }
  return undefined
}

/** The dead of a segment, one bit each, as they are within a transaction. */
export async function readDead(
  reader: Reader,
  collection: string,
  index: string,
  id: string,
  count: number
): Promise<Buffer> {
  const stored = (await reader.get<string>(collection, [index, id, 'dead', 0]))?.value
  return stored === undefined ? bitsOf(count, []) : Buffer.from(stored, 'base64')
}

export function hasBit(bits: Uint8Array, at: number): boolean {
  return (bits[at >> 3]! & (1 << (at & 7))) !== 0
}

export function bitsOf(size: number, set: readonly number[]): Buffer {
  const bits = Buffer.alloc((size + 7) >> 3)
  for (const at of set) bits[at >> 3]! |= 1 << (at & 7)
  return bits
}

/**
 * Marks those whose ordinals lie from `first` on, `count` of them, as dead.
 * @param ordinals in order
 * @param onDead told the place of each that was not
 * @returns how many were not
 */
export function markDead(
  bits: Buffer,
  ordinals: Float64Array,
  first: number,
  count: number,
  onDead: (at: number) => void = () => {}
): number {
  let marked = 0
  for (let at = lowerBound(ordinals, first); at < ordinals.length && ordinals[at]! < first + count; at++) {
    if (hasBit(bits, at)) continue
    bits[at >> 3]! |= 1 << (at & 7)
    marked += 1
    onDead(at)
  }
  return marked
}

export function lowerBound(sorted: Float64Array, value: number): number {
  let low = 0
  let high = sorted.length
  while (low < high) {
    const middle = (low + high) >> 1
    if (sorted[middle]! < value) low = middle + 1
    else high = middle
  }
  return low
}
