import { randomUUID } from 'node:crypto'
import { readdir, rm } from 'node:fs/promises'
import { join } from 'node:path'
import { setImmediate } from 'node:timers/promises'
import { CodedError, type Logger } from '../../kernel/index.ts'
import type { Reader, Store, Transaction } from '../store/types.ts'
import type { Workers } from '../workers/types.ts'
import { createCache } from './cache.ts'
import {
  bitsOf,
  createSegments,
  hasBit,
  lowerBound,
  markDead,
  mergeable,
  mergedOf,
  type MergeOptions,
  mostTries,
  readDead,
  type SegmentWork,
  StaleSegment
} from './segments.ts'
import type { Extended, ExtendInput } from './tasks/extend-graph.ts'
import { assertGraphs, type Graph, graphTask, openGraph } from './vectors-graph.ts'
import { createBest, fromHalves, type Matches, scan, toHalves } from './vectors-scan.ts'

/**
 * Vectors in the store, beside the text index (`bm25.ts`) and after its fashion: segments and a head that lists them.
 * Whatever is not in the head does not exist, so adding, removing and dropping happen together with the caller's own
 * records or not at all. An index has the name and the ordinals of the text index of the same collection; its vectors are
 * of unit length and of one number of dimensions.
 *
 * A search looks at every vector, which is exact, until there are so many that a graph is worth it (`vectors-graph.ts`):
 * that is made in a worker thread, beside searches and changes, and kept in a file that can be made again. What it does
 * not have yet is still looked at, and what it has and was removed is left out.
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
  /** Ends the making of graphs, of which what was made so far counts. Searches and changes go on. */
  stop(): Promise<void>
}

export interface VectorIndexSize {
  readonly vectors: number
  /** `undefined` before the first vector. */
  readonly dimensions: number | undefined
  readonly segments: number
  /** Of them, those that the graph has. */
  readonly graphed: number
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
  /** Without it every search is exact. */
  readonly graphs?: GraphOptions
  /** Its own when left out. */
  readonly work?: VectorWork
  /** Monotonic milliseconds. */
  readonly clock?: () => number
}

export interface GraphOptions {
  /** Runs the task `rag/extend-graph`. */
  readonly workers: Workers
  /**
   * Vectors from which on an index gets a graph. It is extended when a quarter of that (and a sixteenth of what it has) is
   * not in it yet, and made anew when a third of what it has was removed.
   */
  readonly from: number
  readonly log: Logger
}

export interface VectorWork extends SegmentWork {
  /** Indexes whose graph is being made, and the segments that are put into it. */
  readonly growing: Map<string, Set<string>>
  /** Graphs are made one at a time: this resolves after the last one. */
  turn: Promise<void>
}

export function createVectorWork(): VectorWork {
  return { staging: new Set(), freeing: new Map(), maintained: new Map(), growing: new Map(), turn: Promise.resolve() }
}

interface Head {
  dimensions: number
  segments: SegmentEntry[]
  graph?: GraphEntry
}

interface GraphEntry {
  /** Its name in the folder of graphs. */
  readonly file: string
  readonly bytes: number
  /** In it, also those that were removed since. */
  readonly vectors: number
}

interface SegmentEntry {
  readonly id: string
  /** Ordinals of the first vector and behind the last one. */
  readonly first: number
  readonly end: number
  readonly vectors: number
  dead: number
  /** The graph has its vectors. */
  graphed: boolean
}

const collection = 'rag-vectors'
const headCollection = 'rag-vectors-heads'
/** Before the name of the file of a graph, among what is loose. */
const graphMark = 'graph:'

/** Of one value, before it is text: vectors of one block. */
const blockBytes = 98_304
/** Of one transaction: blocks. */
const blocksAtOnce = 4
/** Vectors of a segment that is merged no further. */
const largestSegment = 16_384
/** Vectors that are put into a graph at once: each time its file is written anew. A quarter of the graph, within these. */
const leastGrowth = 8_192
const mostGrowth = 32_768
/** Nodes that are asked of a graph before a search rather looks at all vectors. */
const mostAsked = 2_048
const graphsOpen = 32
/** After a graph could not be made. */
const pauseMs = 60_000

const merging: MergeOptions<SegmentEntry> = {
  countOf: (entry) => entry.vectors,
  largest: largestSegment,
  // Those that the graph has are not mixed with those that it has not.
  kindOf: (entry) => String(entry.graphed)
}

export function createVectorIndex(store: Store, options: VectorIndexOptions): VectorIndex {
  const { clock = () => performance.now() } = options
  const cache = createCache<Float32Array | Float64Array | Uint8Array>(options.cacheBytes)
  const { graphs, work = createVectorWork() } = options
  const { growing } = work
  const pathOf = async (file: string): Promise<string> => join(await store.scratch('rag'), file)
  /** By file; the oldest first. */
  const opened = new Map<string, Promise<Graph | undefined>>()
  /** Files that turned out not to be what the head says. */
  const broken = new Set<string>()
  const growths = new Set<Promise<void>>()
  const stopping = new AbortController()
  const stop = new Int32Array(new SharedArrayBuffer(4))
  /** Who has it open goes on reading it. */
  const removeFile = async (file: string): Promise<void> => {
    opened.delete(file)
    broken.delete(file)
    await rm(await pathOf(file), { force: true })
  }
  // Graphs are loose as segments are, so that they are taken away like them.
  const stored = createSegments(store, {
    collection,
    looseCollection: 'rag-vectors-loose',
    work,
    clock,
    partsAtOnce: 16,
    async freeOther(id) {
      if (!id.startsWith(graphMark)) return false
      await removeFile(id.slice(graphMark.length))
      return true
    }
  })
  const { breather } = stored
  let usable: Promise<boolean> | undefined
  let pausedUntilMs = Number.NEGATIVE_INFINITY

  const readHead = async (reader: Reader, index: string): Promise<Head | undefined> =>
    (await reader.get<Head>(headCollection, [index]))?.value

  const readPart = async (index: string, id: string, kind: 'rows' | 'ordinals' | 'dead', number: number) =>
    Buffer.from(await stored.readPart<string>(index, id, kind, number), 'base64')

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
  const whileThere = <R>(index: string, work: (head: Head) => Promise<R>, none: R): Promise<R> =>
    stored.whileThere(
      () => readHead(store, index),
      async (head) => (head === undefined ? none : work(head)),
      () => damaged(index)
    )

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
    rows: AsyncIterable<Buffer> | Iterable<Buffer>
  ): Promise<void> => {
    const perBlock = rowsPerBlock(dimensions)
    let blocks: [number, string][] = []
    let block: Buffer[] = []
    let number = 0
    const write = async () => {
      const written = blocks
      blocks = []
      await store.atomically((tx) => {
        for (const [at, text] of written) tx.put(collection, [index, id, 'rows', at], text)
      })
      await setImmediate()
    }
    for await (const row of rows) {
      block.push(row)
      if (block.length < perBlock) continue
      blocks.push([number++, Buffer.concat(block.splice(0)).toString('base64')])
      if (blocks.length === blocksAtOnce) await write()
    }
    if (block.length > 0) blocks.push([number, Buffer.concat(block).toString('base64')])
    await write()
    await store.atomically((tx) => tx.put(collection, [index, id, 'ordinals', 0], ordinalsText(ordinals)))
  }

  const merge = async (index: string, dimensions: number, entries: readonly SegmentEntry[]): Promise<void> => {
    const { id, first, end } = mergedOf(entries)
    const perBlock = rowsPerBlock(dimensions)
    await stored.build(index, id, async () => {
      const places: { readonly ordinal: number; readonly source: number; readonly row: number }[] = []
      for (const [source, entry] of entries.entries()) {
        const ordinals = await openOrdinals(index, entry.id)
        const dead = await openDead(index, entry)
        for (let row = 0; row < entry.vectors; row++) {
          if (dead === undefined || !hasBit(dead, row)) places.push({ ordinal: ordinals[row]!, source, row })
        }
      }
      places.sort((a, b) => a.ordinal - b.ordinal)
      const breathe = breather()
      const blocks: { number: number; bytes: Buffer }[] = []
      async function* rows(): AsyncIterable<Buffer> {
        for (const { source, row } of places) {
          const number = Math.floor(row / perBlock)
          let block = blocks[source]
          if (block?.number !== number) {
            block = { number, bytes: await readPart(index, entries[source]!.id, 'rows', number) }
            blocks[source] = block
          }
          const start = (row % perBlock) * dimensions * 2
          yield block.bytes.subarray(start, start + dimensions * 2)
          await breathe()
        }
      }
      const ordinals = Float64Array.from(places, (place) => place.ordinal)
      await writeSegment(index, id, ordinals, dimensions, rows())
      await store.atomically(async (tx) => {
        const head = await readHead(tx, index)
        const now = entries.map((entry) => head?.segments.find((one) => one.id === entry.id))
        if (head === undefined || now.some((entry) => entry === undefined)) return
        // What died while the merge went on dies in its result too.
        const died: number[] = []
        for (const [source, entry] of now.entries()) {
          if (entry!.dead === entries[source]!.dead) continue
          const bits = await readDead(tx, collection, index, entry!.id, entry!.vectors)
          places.forEach((place, at) => {
            if (place.source === source && hasBit(bits, place.row)) died.push(at)
          })
        }
        head.segments = head.segments.filter((one) => !now.includes(one))
        if (places.length > died.length) {
          const graphed = now.every((entry) => entry!.graphed)
          head.segments.push({ id, first, end, vectors: places.length, dead: died.length, graphed })
          if (died.length > 0) {
            tx.put(collection, [index, id, 'dead', 0], bitsOf(places.length, died).toString('base64'))
          }
          stored.named(tx, index, id)
        }
        tx.put(headCollection, [index], head)
        for (const entry of entries) stored.gone(tx, index, entry.id)
      })
    })
  }

  const mergeAll = async (index: string): Promise<void> => {
    for (;;) {
      const head = await readHead(store, index)
      const segments = head?.segments ?? []
      stored.settle(index, segments)
      const taken = growing.get(index)
      const entries = mergeable(
        segments.filter(({ id }) => taken?.has(id) !== true),
        merging
      )
      if (entries !== undefined) await merge(index, head!.dimensions, entries)
      await stored.freeLoose([index])
      if (entries === undefined) break
    }
    consider(index, await readHead(store, index))
  }

  // ---- graphs

  const canUseGraphs = (): Promise<boolean> => {
    usable ??= assertGraphs().then(
      () => true,
      (error: unknown) => {
        graphs?.log.warn('approximate search does not run on this machine: searches look at every vector', { error })
        return false
      }
    )
    return usable
  }

  const graphOf = async ({ dimensions, graph }: Head): Promise<Graph | undefined> => {
    if (graphs === undefined || graph === undefined || !(await canUseGraphs())) return undefined
    let open = opened.get(graph.file)
    if (open === undefined) {
      open = pathOf(graph.file)
        .then((path) => openGraph(path, dimensions, graph.bytes))
        .catch((error: unknown) => {
          graphs.log.warn('the graph of an index of vectors is lost, and will be made again', { error })
          broken.add(graph.file)
          return undefined
        })
      opened.set(graph.file, open)
      for (const file of opened.keys()) {
        if (opened.size <= graphsOpen) break
        opened.delete(file)
      }
    }
    return open
  }

  /** @returns whether it has found enough */
  const searchGraph = async (
    index: string,
    head: Head,
    graph: Graph,
    query: Float32Array,
    limit: number,
    best: Matches,
    accept: VectorSearchOptions['accept']
  ): Promise<boolean> => {
    const segments: { entry: SegmentEntry; ordinals: Float64Array; dead: Uint8Array | undefined }[] = []
    for (const entry of head.segments) {
      if (!entry.graphed) continue
      segments.push({ entry, ordinals: await openOrdinals(index, entry.id), dead: await openDead(index, entry) })
    }
    const isThere = (ordinal: number): boolean =>
      segments.some(({ entry, ordinals, dead }) => {
        if (ordinal < entry.first || ordinal >= entry.end) return false
        const at = lowerBound(ordinals, ordinal)
        return ordinals[at] === ordinal && (dead === undefined || !hasBit(dead, at))
      })
    const all = head.graph!.vectors
    const there = segments.reduce((sum, { entry }) => sum + entry.vectors - entry.dead, 0)
    let asked = Math.ceil((limit * all) / Math.max(1, there)) + 8
    if (accept !== undefined) asked *= 4
    for (; ; asked *= 4) {
      if (asked > mostAsked && asked < all) return false
      const hits = graph.search(query, Math.min(asked, all))
      const kept = hits.filter(({ ordinal }) => isThere(ordinal) && (accept === undefined || accept(ordinal)))
      if (kept.length < Math.min(limit, there) && asked < all) continue
      for (const { ordinal, raw } of kept) best.add(ordinal, Math.min(1, Math.max(-1, raw)))
      return true
    }
  }

  /** What is to be done to the graph of an index. */
  const planOf = ({ segments, graph }: Head): 'extend' | 'renew' | 'drop' | undefined => {
    const from = graphs?.from ?? Number.POSITIVE_INFINITY
    const fresh = countThere(segments.filter((entry) => !entry.graphed))
    const all = countThere(segments)
    if (graph === undefined) return all >= from ? 'extend' : undefined
    if (broken.has(graph.file) || all < from / 2) return 'drop'
    if (graph.vectors > (all - fresh) * 1.5) return 'renew'
    return fresh > Math.max(from / 4, graph.vectors / 16) ? 'extend' : undefined
  }

  /** Begins to make or extend the graph of an index, where that is due. Nobody waits for it. */
  const consider = (index: string, head: Head | undefined): void => {
    if (graphs === undefined || head === undefined || planOf(head) === undefined) return
    if (growing.has(index) || stopping.signal.aborted || clock() < pausedUntilMs) return
    growing.set(index, new Set())
    const growth: Promise<void> = work.turn
      .then(() => grow(index, graphs))
      .catch((error: unknown) => {
        if (stopping.signal.aborted) return
        pausedUntilMs = clock() + pauseMs
        graphs.log.warn('a graph for approximate search could not be made', { error })
      })
      .finally(() => {
        growing.delete(index)
        growths.delete(growth)
      })
    growths.add(growth)
    work.turn = growth
  }

  const grow = async (index: string, options: GraphOptions): Promise<void> => {
    if (!(await canUseGraphs())) return
    for (let stale = 0; stale < mostTries; ) {
      stopping.signal.throwIfAborted()
      const head = await readHead(store, index)
      const plan = head === undefined ? undefined : planOf(head)
      if (head === undefined || plan === undefined) return
      try {
        if (plan === 'drop') await dropGraph(index, head)
        else await build(index, head, plan, options)
      } catch (error) {
        if (!(error instanceof StaleSegment)) throw error
        stale += 1
      } finally {
        growing.get(index)?.clear()
      }
      await stored.freeLoose([index])
    }
  }

  /** Puts another graph, or none, in the place of the one that `from` names, unless that has gone. */
  const replaceGraph = async (
    index: string,
    from: Head,
    to: GraphEntry | undefined,
    has: (entry: SegmentEntry) => boolean
  ): Promise<void> => {
    await store.atomically(async (tx) => {
      const head = await readHead(tx, index)
      if (head === undefined || head.graph?.file !== from.graph?.file) return
      for (const entry of head.segments) entry.graphed = has(entry)
      if (head.graph !== undefined) stored.gone(tx, index, graphMark + head.graph.file)
      delete head.graph
      if (to !== undefined) {
        head.graph = to
        stored.named(tx, index, graphMark + to.file)
      }
      tx.put(headCollection, [index], head)
    })
  }

  const dropGraph = (index: string, head: Head): Promise<void> => replaceGraph(index, head, undefined, () => false)

  const build = async (
    index: string,
    head: Head,
    plan: 'extend' | 'renew',
    { workers }: GraphOptions
  ): Promise<void> => {
    const { dimensions } = head
    const taken = growing.get(index)!
    const present = plan === 'extend' ? head.graph : undefined
    const most = Math.min(mostGrowth, Math.max(leastGrowth, (present?.vectors ?? 0) / 4))
    const waiting = head.segments.filter((entry) => plan === 'renew' || !entry.graphed)
    // A little that would be left over is taken too.
    const chosen = plan === 'renew' || countThere(waiting) <= 2 * most ? waiting : firstOf(waiting, most)
    for (const { id } of chosen) taken.add(id)
    let made = present
    const own: string[] = []
    try {
      for (const some of stepsOf(chosen, 2 * most)) {
        const { ordinals, rows } = await gather(index, dimensions, some)
        const file = `${randomUUID()}.usearch`
        own.push(file)
        await stored.stage(index, graphMark + file, async () => {})
        const input: ExtendInput = {
          dimensions,
          base: made === undefined ? undefined : await pathOf(made.file),
          target: await pathOf(file),
          ordinals,
          rows,
          stop
        }
        const before = made
        made = { file, ...(await workers.run<Extended>(graphTask.name, input)) }
        if (before !== present) await removeFile(before!.file)
      }
      await replaceGraph(index, head, made, ({ id, graphed }) => taken.has(id) || (plan === 'extend' && graphed))
    } finally {
      stored.settle(
        index,
        own.map((file) => ({ id: graphMark + file }))
      )
    }
  }

  /** The vectors of segments, without those that were removed, where a thread reads them without a copy. */
  const gather = async (
    index: string,
    dimensions: number,
    entries: readonly SegmentEntry[]
  ): Promise<{ readonly ordinals: Float64Array; readonly rows: Uint8Array }> => {
    const breathe = breather()
    const perBlock = rowsPerBlock(dimensions)
    const rowBytes = dimensions * 2
    const found: number[] = []
    const rows = new Uint8Array(new SharedArrayBuffer(countThere(entries) * rowBytes))
    for (const entry of entries) {
      const ordinals = await openOrdinals(index, entry.id)
      const dead = await openDead(index, entry)
      for (let number = 0; number * perBlock < entry.vectors; number++) {
        const block = await readPart(index, entry.id, 'rows', number)
        for (let at = 0; at < block.length / rowBytes; at++) {
          const row = number * perBlock + at
          if (dead !== undefined && hasBit(dead, row)) continue
          rows.set(block.subarray(at * rowBytes, (at + 1) * rowBytes), found.length * rowBytes)
          found.push(ordinals[row]!)
        }
        await breathe()
      }
    }
    return { ordinals: Float64Array.from(found), rows }
  }

  return {
    async add(tx, index, first, vectors) {
      const staged = 'id' in vectors
      const count = staged ? vectors.count : vectors.length
      if (count === 0) return
      const dimensions = staged ? vectors.dimensions : vectors[0]!.length
      const head = (await readHead(tx, index)) ?? { dimensions, segments: [] as SegmentEntry[] }
      if (head.dimensions !== dimensions) throw otherDimensions(index, head.dimensions, dimensions)
      const id = `${first}-0`
      if (staged) stored.named(tx, index, id)
      else {
        const perBlock = rowsPerBlock(dimensions)
        const rows = vectors.map((vector) => toRow(index, vector, dimensions))
        for (let number = 0; number * perBlock < rows.length; number++) {
          const block = rows.slice(number * perBlock, (number + 1) * perBlock)
          tx.put(collection, [index, id, 'rows', number], Buffer.concat(block).toString('base64'))
        }
        tx.put(collection, [index, id, 'ordinals', 0], ordinalsText(ordinalsFrom(first, count)))
      }
      head.segments.push({ id, first, end: first + count, vectors: count, dead: 0, graphed: false })
      tx.put(headCollection, [index], head)
    },

    async stage(index, first, vectors) {
      const id = `${first}-0`
      const dimensions = vectors[0]?.length ?? 0
      const rows = function* () {
        for (const vector of vectors) yield toRow(index, vector, dimensions)
      }
      const ordinals = ordinalsFrom(first, vectors.length)
      await stored.stage(index, id, () => writeSegment(index, id, ordinals, dimensions, rows()))
      return { id, count: vectors.length, dimensions }
    },

    discard: (index, staged) => stored.discard(index, staged.id),

    async remove(tx, index, first, count) {
      const head = await readHead(tx, index)
      if (head === undefined) return 0
      let removed = 0
      for (const entry of [...head.segments]) {
        if (entry.first >= first + count || entry.end <= first) continue
        const ordinals = await openOrdinals(index, entry.id)
        const bits = await readDead(tx, collection, index, entry.id, entry.vectors)
        const marked = markDead(bits, ordinals, first, count)
        if (marked === 0) continue
        entry.dead += marked
        removed += marked
        if (entry.dead < entry.vectors) tx.put(collection, [index, entry.id, 'dead', 0], bits.toString('base64'))
        else {
          head.segments.splice(head.segments.indexOf(entry), 1)
          stored.gone(tx, index, entry.id)
        }
      }
      if (removed > 0) tx.put(headCollection, [index], head)
      return removed
    },

    async drop(tx, index) {
      const head = await readHead(tx, index)
      if (head === undefined) return
      tx.remove(headCollection, [index])
      for (const { id } of head.segments) stored.gone(tx, index, id)
      if (head.graph !== undefined) stored.gone(tx, index, graphMark + head.graph.file)
    },

    async size(index, reader = store) {
      const head = await readHead(reader, index)
      const segments = head?.segments ?? []
      return {
        vectors: countThere(segments),
        dimensions: head?.dimensions,
        segments: segments.length,
        graphed: countThere(segments.filter((entry) => entry.graphed))
      }
    },

    search: (index, query, limit, options = {}) =>
      whileThere(
        index,
        async (head) => {
          const { dimensions, segments } = head
          if (dimensions !== query.length) throw otherDimensions(index, dimensions, query.length)
          options.signal?.throwIfAborted()
          if (limit <= 0) return []
          const best = createBest(limit)
          const graph = await graphOf(head)
          consider(index, head)
          const enough =
            graph !== undefined && (await searchGraph(index, head, graph, query, limit, best, options.accept))
          const unseen = enough ? segments.filter((entry) => !entry.graphed) : segments
          await scanSegments(index, dimensions, unseen, query, best, options)
          return best.list().map(({ ordinal, raw }) => ({ ordinal, raw, score: Math.min(1, Math.max(0, raw)) }))
        },
        []
      ),

    maintain: (index) => stored.inTurn(index, () => mergeAll(index)),

    async sweep() {
      await stored.freeLoose([])
      if (graphs === undefined) return
      const named = new Set<string>()
      for await (const [, { value }] of store.range<Head>(headCollection, [])) {
        if (value.graph !== undefined) named.add(value.graph.file)
      }
      for (const file of await readdir(await store.scratch('rag'))) if (!named.has(file)) await removeFile(file)
    },

    async stop() {
      Atomics.store(stop, 0, 1)
      stopping.abort(new CodedError('RAG_STOPPED', 'the index is closed'))
      await Promise.all(growths)
    }
  }
}

function rowsPerBlock(dimensions: number): number {
  return Math.max(1, Math.floor(blockBytes / (dimensions * 2)))
}

function toRow(index: string, vector: Float32Array, dimensions: number): Buffer {
  if (vector.length !== dimensions) throw otherDimensions(index, dimensions, vector.length)
  return toHalves(vector)
}

function countThere(segments: readonly SegmentEntry[]): number {
  return segments.reduce((sum, entry) => sum + entry.vectors - entry.dead, 0)
}

/** So many of the segments that they have at least `count` vectors. */
function firstOf(segments: readonly SegmentEntry[], count: number): readonly SegmentEntry[] {
  let sum = 0
  const end = segments.findIndex((entry) => (sum += entry.vectors - entry.dead) >= count)
  return end < 0 ? segments : segments.slice(0, end + 1)
}

/** The segments in groups of at least `count` vectors, but for the last. */
function stepsOf(segments: readonly SegmentEntry[], count: number): readonly (readonly SegmentEntry[])[] {
  const steps: (readonly SegmentEntry[])[] = []
  for (let at = 0; at < segments.length; at += steps.at(-1)!.length) steps.push(firstOf(segments.slice(at), count))
  return steps
}

function ordinalsFrom(first: number, count: number): Float64Array {
  return Float64Array.from({ length: count }, (_, at) => first + at)
}

function ordinalsText(ordinals: Float64Array): string {
  const bytes = Buffer.alloc(ordinals.length * 8)
  ordinals.forEach((ordinal, at) => bytes.writeDoubleLE(ordinal, at * 8))
  return bytes.toString('base64')
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
