import { setImmediate } from 'node:timers/promises'
import { CodedError } from '../../kernel/index.ts'
import type { Key, Reader, Store, Transaction } from '../store/types.ts'
import { createCache } from './cache.ts'
import { createBest, fromHalves, type Matches, scan, toHalves } from './vectors-scan.ts'

/**
 * Vectors in the store, beside the text index (`bm25.ts`) and after its fashion: segments and a head that lists them.
 * Whatever is not in the head does not exist, so adding, removing and dropping happen together with the caller's own
 * records or not at all. An index has the name and the ordinals of the text index of the same collection; its vectors are
 * of unit length and of one number of dimensions.
 *
 * Codes: `RAG_VECTORS_DIMENSIONS` (vectors or a query of other dimensions than the index; detail `expected` and `found`),
 * `RAG_VECTORS_DAMAGED`.
 */
export interface VectorIndex {
  /**
   * Makes vectors searchable; they have the ordinals from `first` on. Many of them take time to write: stage them before,
   * in steps that let others through.
   */
  add(tx: Transaction, index: string, first: number, vectors: readonly Float32Array[] | StagedVectors): Promise<void>
  /** Writes vectors without making them searchable. If they never are, {@link sweep} takes them away at the next start. */
  stage(index: string, first: number, vectors: readonly Float32Array[]): Promise<StagedVectors>
  /** Writes off what was staged, where it will not be added. */
  discard(index: string, staged: StagedVectors): Promise<void>
  /** Takes away the vectors of `count` ordinals from `first` on. @returns how many of them were there */
  remove(tx: Transaction, index: string, first: number, count: number): Promise<number>
  /** Takes away all. */
  drop(tx: Transaction, index: string): Promise<void>
  size(index: string, reader?: Reader): Promise<VectorIndexSize>
  /**
   * The nearest vectors, the nearest first; equal ones by ordinal. An index that is not there has none.
   * @param query of unit length
   */
  search(
    index: string,
    query: Float32Array,
    limit: number,
    options?: VectorSearchOptions
  ): Promise<readonly VectorHit[]>
  /**
   * Merges segments until there are few, and frees what they took. Call it after an `add` or `remove` has committed, and
   * wait for it before stopping; one at a time works on an index. Searches and changes go on meanwhile.
   */
  maintain(index: string): Promise<void>
  /** Frees what a process that was killed left behind. At start, before anything is staged. */
  sweep(): Promise<void>
}

export interface VectorIndexSize {
  readonly vectors: number
  /** `undefined` before the first vector. */
  readonly dimensions: number | undefined
  readonly segments: number
}

export interface StagedVectors {
  readonly id: string
  readonly count: number
  readonly dimensions: number
}

export interface VectorSearchOptions {
  /** Only these ordinals are found. */
  readonly accept?: (ordinal: number) => boolean
  readonly signal?: AbortSignal
}

export interface VectorHit {
  readonly ordinal: number
  /** The cosine, where it is above 0, else 0. */
  readonly score: number
  /** The cosine, from -1 to 1. */
  readonly raw: number
}

export interface VectorIndexOptions {
  /** Decoded vectors that are kept, in bytes. */
  readonly cacheBytes: number
  /** Monotonic milliseconds. */
  readonly clock?: () => number
}

interface Head {
  dimensions: number
  segments: SegmentEntry[]
}

interface SegmentEntry {
  readonly id: string
  /** Ordinals of the first vector and behind the last one. */
  readonly first: number
  readonly end: number
  readonly vectors: number
  dead: number
}

const collection = 'rag-vectors'
/** Segments that are written but not (or no longer) in a head. */
const looseCollection = 'rag-vectors-loose'
const headKey = 'head'

/** Of one turn of the event loop. */
const sliceMs = 5
/** Of one value, before it is text: vectors of one block. */
const blockBytes = 98_304
/** Of one transaction: blocks. */
const blocksAtOnce = 4
/** Segments of about one size that are merged into one, and how much larger those of the next size are. */
const mergeFactor = 8
const smallestTier = 64
const mostMerged = 32
/** Vectors of a segment that is merged no further. */
const largestSegment = 16_384
const mostTries = 16

/** A segment that the head named was gone when it was read: another head has come. */
class StaleSegment extends Error {}

export function createVectorIndex(store: Store, options: VectorIndexOptions): VectorIndex {
  const { clock = () => performance.now() } = options
  const cache = createCache<Float32Array | Float64Array | Uint8Array>(options.cacheBytes)
  /** Segments that this process is writing, by key. */
  const staging = new Set<string>()
  const maintained = new Map<string, Promise<void>>()

  const readHead = async (reader: Reader, index: string): Promise<Head | undefined> =>
    (await reader.get<Head>(collection, [index, headKey]))?.value

  const readPart = async (index: string, id: string, kind: 'rows' | 'ordinals' | 'dead', number: number) => {
    const found = await store.get<string>(collection, [index, id, kind, number])
    if (found === undefined) throw new StaleSegment()
    return Buffer.from(found.value, 'base64')
  }

  const openRows = async (index: string, id: string, number: number): Promise<Float32Array> => {
    const key = `r\0${index}\0${id}\0${number}`
    const cached = cache.get(key)
    if (cached !== undefined) return cached as Float32Array
    const rows = fromHalves(await readPart(index, id, 'rows', number))
    return cache.set(key, rows, rows.byteLength + 256) as Float32Array
  }

  /** The ordinal of each vector. */
  const openOrdinals = async (index: string, id: string): Promise<Float64Array> => {
    const key = `o\0${index}\0${id}`
    const cached = cache.get(key)
    if (cached !== undefined) return cached as Float64Array
    const bytes = await readPart(index, id, 'ordinals', 0)
    const ordinals = new Float64Array(bytes.length / 8)
    for (let at = 0; at < ordinals.length; at++) ordinals[at] = bytes.readDoubleLE(at * 8)
    return cache.set(key, ordinals, bytes.length + 256) as Float64Array
  }

  /** Which vectors are gone. The number of them tells one state from the next. */
  const openDead = async (index: string, entry: SegmentEntry): Promise<Uint8Array | undefined> => {
    if (entry.dead === 0) return undefined
    const key = `d\0${index}\0${entry.id}\0${entry.dead}`
    const cached = cache.get(key)
    if (cached !== undefined) return cached as Uint8Array
    const bits = await readPart(index, entry.id, 'dead', 0)
    return cache.set(key, bits, bits.length + 256) as Uint8Array
  }

  /** Runs `work` again with the next head when a segment went away under it. */
  const whileThere = async <R>(index: string, work: (head: Head) => Promise<R>, none: R): Promise<R> => {
    for (let tries = 1; ; tries++) {
      const head = await readHead(store, index)
      if (head === undefined) return none
      try {
        return await work(head)
      } catch (error) {
        if (!(error instanceof StaleSegment)) throw error
        if (tries === mostTries) throw damaged(index)
      }
    }
  }

  const breather = () => {
    let since = clock()
    return async () => {
      if (clock() - since < sliceMs) return
      await setImmediate()
      since = clock()
    }
  }

  const scanSegments = async (
    index: string,
    dimensions: number,
    segments: readonly SegmentEntry[],
    query: Float32Array,
    best: Matches,
    { accept, signal }: VectorSearchOptions
  ): Promise<void> => {
    const breathe = breather()
    const perBlock = rowsPerBlock(dimensions)
    for (const entry of segments) {
      const ordinals = await openOrdinals(index, entry.id)
      const dead = await openDead(index, entry)
      for (let number = 0, row = 0; row < entry.vectors; number++, row += perBlock) {
        const rows = await openRows(index, entry.id, number)
        scan(rows, query, (at, raw) => {
          const ordinal = ordinals[row + at]!
          if (raw < best.least() || (dead !== undefined && hasBit(dead, row + at))) return
          if (accept === undefined || accept(ordinal)) best.add(ordinal, raw)
        })
        await breathe()
        signal?.throwIfAborted()
      }
    }
  }

  const writeSegment = async (
    index: string,
    id: string,
    ordinals: Float64Array,
    dimensions: number,
    vectors: AsyncIterable<Float32Array> | Iterable<Float32Array>
  ): Promise<void> => {
    let blocks: [number, string][] = []
    let number = 0
    const write = async () => {
      const written = blocks
      blocks = []
      await store.atomically((tx) => {
        for (const [at, text] of written) tx.put(collection, [index, id, 'rows', at], text)
      })
      await setImmediate()
    }
    for await (const block of toBlocks(vectors, dimensions)) {
      blocks.push([number++, toHalves(block).toString('base64')])
      if (blocks.length === blocksAtOnce) await write()
    }
    await write()
    await store.atomically((tx) => tx.put(collection, [index, id, 'ordinals', 0], ordinalsText(ordinals)))
  }

  /** Takes away the parts of a segment that no head names, then what told of it. */
  const free = async (index: string, id: string): Promise<void> => {
    for (;;) {
      const keys: Key[] = []
      for await (const [key] of store.range(collection, [index, id], { limit: 16 })) keys.push(key)
      if (keys.length === 0) break
      await store.atomically((tx) => {
        for (const key of keys) tx.remove(collection, key)
      })
      await setImmediate()
    }
    await store.atomically((tx) => tx.remove(looseCollection, [index, id]))
  }

  const freeLoose = async (prefix: Key): Promise<void> => {
    const loose: Key[] = []
    for await (const [key] of store.range(looseCollection, prefix)) loose.push(key)
    for (const [index, id] of loose as [string, string][]) {
      if (!staging.has(`${index}\0${id}`)) await free(index, id)
    }
  }

  const merge = async (index: string, dimensions: number, entries: readonly SegmentEntry[]): Promise<void> => {
    const first = Math.min(...entries.map((entry) => entry.first))
    const end = Math.max(...entries.map((entry) => entry.end))
    const id = `${first}-${1 + Math.max(...entries.map((entry) => Number(entry.id.split('-')[1])))}`
    const mark = `${index}\0${id}`
    const perBlock = rowsPerBlock(dimensions)
    staging.add(mark)
    try {
      // An attempt that failed may have left something.
      if ((await store.get(looseCollection, [index, id])) !== undefined) await free(index, id)
      await store.atomically((tx) => tx.put(looseCollection, [index, id], true))
      /** Of each vector that is there: its ordinal, in which of the segments, and where. */
      const places: { ordinal: number; source: number; row: number }[] = []
      for (const [source, entry] of entries.entries()) {
        const ordinals = await openOrdinals(index, entry.id)
        const dead = await openDead(index, entry)
        for (let row = 0; row < entry.vectors; row++) {
          if (dead === undefined || !hasBit(dead, row)) places.push({ ordinal: ordinals[row]!, source, row })
        }
      }
      const breathe = breather()
      async function* vectors(): AsyncIterable<Float32Array> {
        for (const { source, row } of places) {
          const rows = await openRows(index, entries[source]!.id, Math.floor(row / perBlock))
          yield rows.subarray((row % perBlock) * dimensions, ((row % perBlock) + 1) * dimensions)
          await breathe()
        }
      }
      const ordinals = Float64Array.from(places, (place) => place.ordinal)
      await writeSegment(index, id, ordinals, dimensions, vectors())
      await store.atomically(async (tx) => {
        const head = await readHead(tx, index)
        const now = entries.map((entry) => head?.segments.find((one) => one.id === entry.id))
        if (head === undefined || now.some((entry) => entry === undefined)) return
        // What died while the merge went on dies in its result too.
        const died: number[] = []
        for (const [source, entry] of now.entries()) {
          if (entry!.dead === entries[source]!.dead) continue
          const bits = Buffer.from((await tx.get<string>(collection, [index, entry!.id, 'dead', 0]))!.value, 'base64')
          places.forEach((place, at) => {
            if (place.source === source && hasBit(bits, place.row)) died.push(at)
          })
        }
        head.segments = head.segments.filter((one) => !now.includes(one))
        if (places.length > died.length) {
          head.segments.push({ id, first, end, vectors: places.length, dead: died.length })
          if (died.length > 0) {
            tx.put(collection, [index, id, 'dead', 0], bitsOf(places.length, died).toString('base64'))
          }
          tx.remove(looseCollection, [index, id])
        }
        tx.put(collection, [index, headKey], head)
        for (const entry of entries) tx.put(looseCollection, [index, entry.id], true)
      })
    } finally {
      staging.delete(mark)
    }
  }

  const work = async (index: string): Promise<void> => {
    for (;;) {
      const head = await readHead(store, index)
      const segments = head?.segments ?? []
      for (const { id } of segments) staging.delete(`${index}\0${id}`)
      const entries = mergeable(segments)
      if (entries !== undefined) await merge(index, head!.dimensions, entries)
      await freeLoose([index])
      if (entries === undefined) return
    }
  }

  return {
    async add(tx, index, first, vectors) {
      const staged = 'id' in vectors
      const count = staged ? vectors.count : vectors.length
      if (count === 0) return
      const dimensions = staged ? vectors.dimensions : vectors[0]!.length
      const head = (await readHead(tx, index)) ?? { dimensions, segments: [] }
      if (head.dimensions !== dimensions) throw otherDimensions(index, head.dimensions, dimensions)
      const id = `${first}-0`
      if (staged) tx.remove(looseCollection, [index, id])
      else {
        let number = 0
        for (const block of blocksOf(vectors, dimensions)) {
          tx.put(collection, [index, id, 'rows', number++], toHalves(block).toString('base64'))
        }
        tx.put(collection, [index, id, 'ordinals', 0], ordinalsText(ordinalsFrom(first, count)))
      }
      head.segments.push({ id, first, end: first + count, vectors: count, dead: 0 })
      tx.put(collection, [index, headKey], head)
    },

    async stage(index, first, vectors) {
      const id = `${first}-0`
      const mark = `${index}\0${id}`
      const dimensions = vectors[0]?.length ?? 0
      staging.add(mark)
      try {
        await store.atomically((tx) => tx.put(looseCollection, [index, id], true))
        await writeSegment(index, id, ordinalsFrom(first, vectors.length), dimensions, vectors)
      } catch (error) {
        staging.delete(mark)
        throw error
      }
      return { id, count: vectors.length, dimensions }
    },

    async discard(index, staged) {
      staging.delete(`${index}\0${staged.id}`)
      await free(index, staged.id)
    },

    async remove(tx, index, first, count) {
      const head = await readHead(tx, index)
      if (head === undefined) return 0
      let removed = 0
      for (const entry of [...head.segments]) {
        if (entry.first >= first + count || entry.end <= first) continue
        const ordinals = await openOrdinals(index, entry.id)
        const stored = (await tx.get<string>(collection, [index, entry.id, 'dead', 0]))?.value
        const bits = stored === undefined ? bitsOf(entry.vectors, []) : Buffer.from(stored, 'base64')
        const before = removed
        for (let at = 0; at < ordinals.length; at++) {
          if (ordinals[at]! < first || ordinals[at]! >= first + count || hasBit(bits, at)) continue
          bits[at >> 3]! |= 1 << (at & 7)
          entry.dead += 1
          removed += 1
        }
        if (removed === before) continue
        if (entry.dead < entry.vectors) tx.put(collection, [index, entry.id, 'dead', 0], bits.toString('base64'))
        else {
          head.segments.splice(head.segments.indexOf(entry), 1)
          tx.put(looseCollection, [index, entry.id], true)
        }
      }
      if (removed > 0) tx.put(collection, [index, headKey], head)
      return removed
    },

    async drop(tx, index) {
      const head = await readHead(tx, index)
      if (head === undefined) return
      tx.remove(collection, [index, headKey])
      for (const { id } of head.segments) tx.put(looseCollection, [index, id], true)
    },

    async size(index, reader = store) {
      const head = await readHead(reader, index)
      return {
        vectors: head?.segments.reduce((sum, entry) => sum + entry.vectors - entry.dead, 0) ?? 0,
        dimensions: head?.dimensions,
        segments: head?.segments.length ?? 0
      }
    },

    search: (index, query, limit, options = {}) =>
      whileThere(
        index,
        async (head) => {
          if (head.dimensions !== query.length) throw otherDimensions(index, head.dimensions, query.length)
          const best = createBest(limit)
          if (limit > 0) await scanSegments(index, head.dimensions, head.segments, query, best, options)
          return best.list().map(({ ordinal, raw }) => ({ ordinal, raw, score: Math.min(1, Math.max(0, raw)) }))
        },
        []
      ),

    maintain(index) {
      const before = maintained.get(index) ?? Promise.resolve()
      const run = before
        .catch(() => {}) // told to the one who asked for it
        .then(() => work(index))
        .finally(() => {
          if (maintained.get(index) === run) maintained.delete(index)
        })
      maintained.set(index, run)
      return run
    },

    sweep: () => freeLoose([])
  }
}

/** Segments of about one size once there are enough of them, or one of which too much is dead. */
function mergeable(segments: readonly SegmentEntry[]): readonly SegmentEntry[] | undefined {
  const tiers = new Map<number, SegmentEntry[]>()
  for (const entry of segments) {
    if (entry.dead * 4 > entry.vectors) return [entry]
    const size = Math.max(smallestTier, entry.vectors - entry.dead)
    if (size * mergeFactor > largestSegment * 2) continue
    const tier = Math.floor(Math.log(size / smallestTier) / Math.log(mergeFactor))
    tiers.set(tier, [...(tiers.get(tier) ?? []), entry])
  }
  for (const [, entries] of [...tiers].sort(([a], [b]) => a - b)) {
    if (entries.length >= mergeFactor) return entries.sort((a, b) => a.first - b.first).slice(0, mostMerged)
  }
  return undefined
}

function rowsPerBlock(dimensions: number): number {
  return Math.max(1, Math.floor(blockBytes / (dimensions * 2)))
}

function* blocksOf(vectors: Iterable<Float32Array>, dimensions: number): Iterable<Float32Array> {
  const perBlock = rowsPerBlock(dimensions)
  let block: Float32Array[] = []
  for (const vector of vectors) {
    block.push(vector)
    if (block.length < perBlock) continue
    yield joined(block, dimensions)
    block = []
  }
  if (block.length > 0) yield joined(block, dimensions)
}

async function* toBlocks(
  vectors: AsyncIterable<Float32Array> | Iterable<Float32Array>,
  dimensions: number
): AsyncIterable<Float32Array> {
  const perBlock = rowsPerBlock(dimensions)
  let block: Float32Array[] = []
  for await (const vector of vectors) {
    block.push(vector)
    if (block.length < perBlock) continue
    yield joined(block, dimensions)
    block = []
  }
  if (block.length > 0) yield joined(block, dimensions)
}

function joined(vectors: readonly Float32Array[], dimensions: number): Float32Array {
  const rows = new Float32Array(vectors.length * dimensions)
  for (const [at, vector] of vectors.entries()) {
    if (vector.length !== dimensions) throw otherDimensions('', dimensions, vector.length)
    rows.set(vector, at * dimensions)
  }
  return rows
}

function ordinalsFrom(first: number, count: number): Float64Array {
  return Float64Array.from({ length: count }, (_, at) => first + at)
}

function ordinalsText(ordinals: Float64Array): string {
  const bytes = Buffer.alloc(ordinals.length * 8)
  ordinals.forEach((ordinal, at) => bytes.writeDoubleLE(ordinal, at * 8))
  return bytes.toString('base64')
}

function hasBit(bits: Uint8Array, at: number): boolean {
  return (bits[at >> 3]! & (1 << (at & 7))) !== 0
}

function bitsOf(size: number, set: readonly number[]): Buffer {
  const bits = Buffer.alloc((size + 7) >> 3)
  for (const at of set) bits[at >> 3]! |= 1 << (at & 7)
  return bits
}

function otherDimensions(index: string, expected: number, found: number): CodedError {
  return new CodedError(
    'RAG_VECTORS_DIMENSIONS',
    `the vectors have ${found} dimensions, those of the index ${expected}: search with the model that embedded it`,
    { detail: { index, expected, found } }
  )
}

function damaged(index: string): CodedError {
  return new CodedError('RAG_VECTORS_DAMAGED', `the vectors of '${index}' name a segment that is not in the store`, {
    detail: { index }
  })
}
