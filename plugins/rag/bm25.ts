import { setImmediate } from 'node:timers/promises'
import { CodedError } from '../../kernel/index.ts'
import type { Reader, Store, Transaction } from '../store/types.ts'
import { createCache } from './cache.ts'
import {
  type ChunksPart,
  decodePostings,
  decodeTerms,
  decodeWords,
  fromBase64,
  type Part,
  type Postings,
  type Segment,
  type TermBlock,
  type TermsPart,
  type WordBlock,
  type WordsPart
} from './segment.ts'
import { mergeSegments, type MergeSource } from './merge.ts'
import {
  bitsOf,
  createSegments,
  hasBit,
  markDead,
  mergeable,
  mergedOf,
  readDead,
  type SegmentWork
} from './segments.ts'
import type { Analyser, Analysis, Language } from './text.ts'

/**
 * An inverted index in the store: segments (`segment.ts`) and a head that lists them. Whatever is not in the head does
 * not exist: adding, removing and dropping change the head within the caller's transaction, so they happen together
 * with the caller's own records or not at all. Small segments are merged into larger ones beside searches
 * ({@link TextIndex.maintain}); a search that meets a segment that has just gone begins again.
 *
 * An index is named by its owner, who never gives a name twice. Its chunks are known by their ordinals: numbers that
 * grow and are never given twice either.
 */
export interface TextIndex {
  /** Takes `count` ordinals. @returns the first */
  reserve(tx: Transaction, index: string, count: number): Promise<number>
  /**
   * Makes the chunks of a segment searchable; they have the ordinals from `first` on. A large segment takes time to
   * write: stage it before, in steps that let others through.
   */
  add(tx: Transaction, index: string, first: number, segment: Segment | StagedSegment): Promise<void>
  /** Writes a segment without making it searchable. If it never is, {@link sweep} takes it away at the next start. */
  stage(index: string, first: number, segment: Segment): Promise<StagedSegment>
  /** Writes off what was staged, where it will not be added. */
  discard(index: string, staged: StagedSegment): Promise<void>
  /** Takes away `count` chunks from `first` on. @returns how many of them were there */
  remove(tx: Transaction, index: string, first: number, count: number): Promise<number>
  /** Takes away all. */
  drop(tx: Transaction, index: string): Promise<void>
  size(index: string, reader?: Reader): Promise<IndexSize>
  /**
   * The chunks that fit best, by BM25. An index that is not there has none.
   * @param accept leaves out the chunks that it refuses, by their ordinals; scores are those of a search without it
   */
  search(index: string, query: string, limit: number, accept?: Accept): Promise<Found>
  /** As {@link search}, for a query that `plan` makes of what the index knows. */
  find(
    index: string,
    plan: (view: IndexView) => Promise<readonly QueryGroup[]>,
    limit: number,
    accept?: Accept
  ): Promise<Found>
  /** What a text that the index does not have would be worth among its chunks, to the same query. */
  rate(index: string, query: string, text: Analysis): Promise<Pick<Hit, 'raw' | 'score'>>
  /**
   * Merges segments until there are few, and frees what they took. Call it after an `add` or `remove` has committed,
   * and wait for it before stopping; one at a time works on an index. Searches and changes go on meanwhile.
   */
  maintain(index: string): Promise<void>
  /** Frees what a process that was killed left behind. At start, before anything is staged. */
  sweep(): Promise<void>
}

export type Accept = (ordinal: number) => boolean

export interface IndexSize {
  readonly chunks: number
  /** Terms of all chunks. */
  readonly length: number
  readonly segments: number
  readonly languages: readonly Language[]
}

export interface StagedSegment {
  readonly id: string
  readonly chunks: number
  readonly length: number
  readonly languages: Readonly<Record<string, number>>
}

export interface Found {
  /** Best first; equal ones by ordinal. */
  readonly hits: readonly Hit[]
  /** Chunks with at least one term of the query. */
  readonly total: number
}

export interface Hit {
  readonly ordinal: number
  /** From 0 to 1: see {@link toScore}. */
  readonly score: number
  /** The BM25 sum. */
  readonly raw: number
}

/** A word of a query with the terms that answer it; of several, a chunk counts the first that it has. */
export interface QueryGroup {
  readonly weight: number
  readonly variants: readonly { readonly term: string; readonly weight: number }[]
}

/** What an index knows at the moment of a search. */
export interface IndexView {
  readonly chunks: number
  readonly languages: readonly Language[]
  /** Shows every written word, in sorted blocks; a word may occur once in each segment. */
  words(visit: (block: WordBlock) => void): Promise<void>
}

export interface TextIndexOptions {
  readonly analyser: Analyser
  /** Decoded postings, blocks and words that are kept, in bytes. */
  readonly cacheBytes: number
  /** How much repetition counts. */
  readonly k1?: number
  /** How much the length of a chunk counts. */
  readonly b?: number
  /** Monotonic milliseconds. */
  readonly clock?: () => number
  /** Its own when left out. */
  readonly work?: IndexWork
}

export type IndexWork = SegmentWork

export function createIndexWork(): IndexWork {
  return { staging: new Set(), freeing: new Map(), maintained: new Map() }
}

interface Head {
  /** The next ordinal to be given. */
  next: number
  segments: SegmentEntry[]
}

interface SegmentEntry {
  readonly id: string
  /** Ordinals of the first chunk and behind the last one. */
  readonly first: number
  readonly end: number
  readonly chunks: number
  readonly languages: Readonly<Record<string, number>>
  /** Of the chunks that are not dead. */
  length: number
  dead: number
}

/** A segment's chunks made ready for searches. */
interface OpenSegment {
  /** The families of its postings and of its words in the cache. */
  readonly postings: number
  readonly words: number
  readonly lengths: Float64Array
  readonly ordinals: Float64Array
  readonly firstTerms: readonly string[]
  readonly wordBlocks: number
}

interface VersionedHead {
  readonly head: Head
  readonly version: number
}

/** What a head names, made ready for searches. */
interface OpenHead {
  readonly segments: readonly SearchedSegment[]
  readonly languages: readonly Language[]
  /** Those that are not dead. */
  readonly chunks: number
  readonly length: number
  /** Chunks of all segments, the dead ones too. */
  readonly slots: number
}

interface SearchedSegment extends OpenSegment {
  readonly entry: SegmentEntry
  /** One bit a chunk. */
  readonly dead: Uint8Array | undefined
  /** Where its chunks begin among those of all segments. */
  readonly base: number
}

const collection = 'rag-index'
const headKey = 'head'

/** Of one transaction: characters of values. */
const sliceUnits = 262_144
/** Of one word of a query. */
export const mostVariants = 16
/** Words of a query that are looked up; a longer query is a text, and its first words tell what it is about. */
export const maxQueryWords = 256

const noHead: Head = { next: 0, segments: [] }
const nothing: Postings = { chunks: new Uint32Array(0), counts: new Uint32Array(0) }

export function createTextIndex(store: Store, options: TextIndexOptions): TextIndex {
  const { analyser, k1 = 1.2, b = 0.75, clock = () => performance.now() } = options
  const cache = createCache<OpenHead | OpenSegment | TermBlock | WordBlock | Postings | Uint8Array>(options.cacheBytes)
  const segments = createSegments(store, {
    collection,
    looseCollection: 'rag-loose',
    work: options.work ?? createIndexWork(),
    clock,
    partsAtOnce: 64
  })
  const { breather } = segments
  let spare = new Float64Array(0)
  let opened = 0

  const readHead = async (reader: Reader, index: string): Promise<Head> =>
    (await reader.get<Head>(collection, [index, headKey]))?.value ?? { next: 0, segments: [] }

  const readPart = <T>(index: string, id: string, kind: Part['kind'] | 'dead', number: number): Promise<T> =>
    segments.readPart<T>(index, id, kind, number)

  const openSegment = async (index: string, { id, first }: SegmentEntry): Promise<OpenSegment> => {
    const key = `s\0${index}\0${id}`
    const cached = cache.get(key)
    if (cached !== undefined) return cached as OpenSegment
    const part = await readPart<ChunksPart>(index, id, 'chunks', 0)
    const open: OpenSegment = {
      postings: (opened += 1),
      words: (opened += 1),
      lengths: fromBase64(part.lengths, false),
      ordinals: fromBase64(part.ordinals, true).map((distance) => first + distance),
      firstTerms: part.firstTerms,
      wordBlocks: part.wordBlocks
    }
    return cache.set(key, open, segmentBytes(open)) as OpenSegment
  }

  /** Which chunks are gone. The number of them tells one state from the next. */
  const openDead = async (index: string, entry: SegmentEntry): Promise<Uint8Array | undefined> => {
    if (entry.dead === 0) return undefined
    const key = `d\0${index}\0${entry.id}\0${entry.dead}`
    const cached = cache.get(key)
    if (cached !== undefined) return cached as Uint8Array
    const bits = Buffer.from(await readPart<string>(index, entry.id, 'dead', 0), 'base64')
    return cache.set(key, bits, bits.length + 256) as Uint8Array
  }

  const openTerms = async (index: string, id: string, number: number): Promise<TermBlock> => {
    const key = `t\0${index}\0${id}\0${number}`
    const cached = cache.get(key)
    if (cached !== undefined) return cached as TermBlock
    const block = decodeTerms(await readPart<TermsPart>(index, id, 'terms', number))
    return cache.set(key, block, block.bytes.length + block.terms.length * 40 + 256) as TermBlock
  }

  const openWords = async (index: string, segment: SearchedSegment, number: number): Promise<WordBlock> => {
    const block = decodeWords(await readPart<WordsPart>(index, segment.entry.id, 'words', number))
    const bytes = block.text.length + block.terms.length + block.counts.length * 17
    return cache.set(number, block, bytes + 512, segment.words) as WordBlock
  }

  /** As {@link postingsOf}. */
  const wordsOf = (index: string, segment: SearchedSegment, number: number): WordBlock | Promise<WordBlock> =>
    (cache.get(number, segment.words) as WordBlock | undefined) ?? openWords(index, segment, number)

  const openPostings = async (index: string, segment: SearchedSegment, term: string): Promise<Postings> => {
    const number = blockOf(segment.firstTerms, term)
    if (number < 0) return nothing
    const block = await openTerms(index, segment.entry.id, number)
    const at = placeOf(block.terms, term)
    if (at < 0) return nothing
    return decodePostings(block, at)
  }

  /** At hand when it was asked for before, which is worth a walk without promises. */
  const postingsOf = (index: string, segment: SearchedSegment, term: string): Postings | Promise<Postings> => {
    const cached = cache.get(term, segment.postings)
    if (cached !== undefined) return cached as Postings
    return openPostings(index, segment, term).then(
      (postings) =>
        cache.set(term, postings, postings.chunks.length * 8 + 128 + term.length, segment.postings) as Postings
    )
  }

  /** Kept for as long as the head stays as it is: what it names never changes. */
  const openHead = async (index: string, { head, version }: VersionedHead): Promise<OpenHead> => {
    const key = `a\0${index}\0${version}`
    const cached = cache.get(key)
    if (cached !== undefined) return cached as OpenHead
    const searched: SearchedSegment[] = []
    let slots = 0
    // With its segments, which it keeps also when they are no longer kept for themselves.
    let bytes = 512
    for (const entry of head.segments) {
      const open = await openSegment(index, entry)
      const dead = await openDead(index, entry)
      searched.push({ ...open, entry, dead, base: slots })
      slots += entry.chunks
      bytes += segmentBytes(open) + (dead?.length ?? 0)
    }
    const open: OpenHead = {
      segments: searched,
      languages: languagesOf(head),
      chunks: liveChunks(head),
      length: totalLength(head),
      slots
    }
    return cache.set(key, open, bytes) as OpenHead
  }

  const whileThere = <R>(index: string, work: (head: VersionedHead) => Promise<R>): Promise<R> =>
    segments.whileThere(
      async () => {
        const found = await store.get<Head>(collection, [index, headKey])
        return { head: found?.value ?? noHead, version: found?.version ?? 0 }
      },
      work,
      () => damaged(index)
    )

  const find: TextIndex['find'] = (index, plan, limit, accept) =>
    whileThere(index, async (versioned) => {
      const { segments: searched, languages, chunks, length, slots } = await openHead(index, versioned)
      if (chunks === 0) return { hits: [], total: 0 }
      const breathe = breather()
      const groups = await plan({
        chunks,
        languages,
        async words(visit) {
          for (const segment of searched) {
            for (let number = 0; number < segment.wordBlocks; number++) {
              const block = wordsOf(index, segment, number)
              visit(block instanceof Promise ? await block : block)
              await breathe()
            }
          }
        }
      })
      const scores = spare.length >= slots ? spare : new Float64Array(slots + (slots >> 2))
      spare = new Float64Array(0)
      const touched: number[] = []
      // Which variant of which group a chunk has counted last.
      const taken = groups.some(({ variants }) => variants.length > 1) ? new Uint32Array(slots) : undefined
      try {
        const perLength = (k1 * b * chunks) / Math.max(1, length)
        let best = 0
        for (const [number, group] of groups.entries()) {
          const lists: (readonly [SearchedSegment, Postings, number, number])[] = []
          let frequency = 0
          for (const [rank, { term, weight }] of group.variants.slice(0, mostVariants).entries()) {
            for (const segment of searched) {
              const found = postingsOf(index, segment, term)
              const postings = found instanceof Promise ? await found : found
              if (postings.chunks.length === 0) continue
              lists.push([segment, postings, weight, rank])
              frequency += liveIn(postings, segment.dead)
            }
          }
          const idf = inverseFrequency(chunks, Math.min(frequency, chunks)) * group.weight
          best += idf
          for (const [segment, postings, weight, rank] of lists) {
            const factor = idf * weight * (k1 + 1)
            const { dead, base, lengths } = segment
            for (let at = 0; at < postings.chunks.length; at++) {
              const chunk = postings.chunks[at]!
              if (dead !== undefined && (dead[chunk >> 3]! & (1 << (chunk & 7))) !== 0) continue
              const slot = base + chunk
              if (taken !== undefined) {
                if (taken[slot]! > number * mostVariants && taken[slot] !== number * mostVariants + rank + 1) continue
                taken[slot] = number * mostVariants + rank + 1
              }
              const count = postings.counts[at]!
              if (scores[slot] === 0) touched.push(slot)
              scores[slot]! += (factor * count) / (count + k1 * (1 - b) + perLength * lengths[chunk]!)
            }
          }
          await breathe()
        }
        const ordinalOf = (slot: number): number => {
          const segment = searched[lastAtOrBelow(searched, slot)]!
          return segment.ordinals[slot - segment.base]!
        }
        const accepted = accept === undefined ? touched : touched.filter((slot) => accept(ordinalOf(slot)))
        const hits = bestOf(accepted, scores, limit).map((slot): Hit => {
          const raw = scores[slot]!
          return { ordinal: ordinalOf(slot), raw, score: toScore(raw, best) }
        })
        return { hits, total: accepted.length }
      } finally {
        for (const slot of touched) scores[slot] = 0
        spare = scores
      }
    })

  const plainGroups = (query: string, languages: readonly Language[]): readonly QueryGroup[] =>
    analyser.analyseQuery(query, languages, maxQueryWords).map(({ weight, terms }) => ({
      weight,
      variants: terms.map((term) => ({ term, weight: 1 }))
    }))

  const writeParts = async (index: string, id: string, parts: readonly Part[]): Promise<void> => {
    for (let at = 0; at < parts.length; ) {
      const slice: Part[] = []
      let units = 0
      while (at < parts.length && (slice.length === 0 || units < sliceUnits)) {
        const part = parts[at++]!
        slice.push(part)
        units += unitsOf(part)
      }
      await store.atomically((tx) => putParts(tx, index, id, slice))
      await setImmediate()
    }
  }

  const merge = async (index: string, entries: readonly SegmentEntry[]): Promise<void> => {
    const sources: MergeSource[] = []
    for (const entry of entries) {
      const { lengths, ordinals, firstTerms, wordBlocks } = await openSegment(index, entry)
      const dead = await openDead(index, entry)
      sources.push({
        lengths,
        ordinals,
        dead,
        termBlocks: firstTerms.length,
        wordBlocks,
        terms: async (number) => decodeTerms(await readPart<TermsPart>(index, entry.id, 'terms', number)),
        words: (number) => readPart<WordsPart>(index, entry.id, 'words', number)
      })
    }
    const { id, first, end } = mergedOf(entries)
    await segments.build(index, id, async () => {
      const waiting: Part[] = []
      let units = 0
      const write = async () => {
        await writeParts(index, id, waiting.splice(0))
        units = 0
      }
      const merged = await mergeSegments(sources, first, breather(), async (part) => {
        waiting.push(part)
        units += unitsOf(part)
        if (units >= sliceUnits) await write()
      })
      await write()
      await store.atomically(async (tx) => {
        const head = await readHead(tx, index)
        const now = entries.map((entry) => head.segments.find((one) => one.id === entry.id))
        if (now.some((entry) => entry === undefined)) return
        const length = now.reduce((sum, entry) => sum + entry!.length, 0)
        const left = head.segments.filter((one) => !now.includes(one))
        // What died while the merge went on dies in its result too.
        const died: number[] = []
        for (const [at, entry] of now.entries()) {
          if (entry!.dead === entries[at]!.dead) continue
          const bits = await readDead(tx, collection, index, entry!.id, entry!.chunks)
          merged.places[at]!.forEach((place, chunk) => {
            if (place >= 0 && hasBit(bits, chunk)) died.push(place)
          })
        }
        if (died.length > 0) tx.put(collection, [index, id, 'dead', 0], bitsOf(merged.chunks, died).toString('base64'))
        const languages: Record<string, number> = {}
        for (const entry of entries) {
          for (const [language, count] of Object.entries(entry.languages)) {
            languages[language] = (languages[language] ?? 0) + count
          }
        }
        if (merged.chunks > died.length) {
          left.push({ id, first, end, chunks: merged.chunks, languages, length, dead: died.length })
        }
        head.segments = left
        tx.put(collection, [index, headKey], head)
        if (merged.chunks > died.length) segments.named(tx, index, id)
        for (const entry of entries) segments.gone(tx, index, entry.id)
      })
    })
  }

  const work = async (index: string): Promise<void> => {
    for (;;) {
      const head = await readHead(store, index)
      segments.settle(index, head.segments)
      const entries = mergeable(head.segments, { countOf: (entry) => entry.chunks })
      if (entries !== undefined) await merge(index, entries)
      await segments.freeLoose([index])
      if (entries === undefined) return
    }
  }

  const add: TextIndex['add'] = async (tx, index, first, segment) => {
    const head = await readHead(tx, index)
    const id = `${first}-0`
    if ('parts' in segment) putParts(tx, index, id, segment.parts)
    else segments.named(tx, index, id)
    head.segments.push({
      id,
      first,
      end: first + segment.chunks,
      chunks: segment.chunks,
      languages: segment.languages,
      length: segment.length,
      dead: 0
    })
    tx.put(collection, [index, headKey], head)
  }

  return {
    async reserve(tx, index, count) {
      const head = await readHead(tx, index)
      const first = head.next
      head.next += count
      tx.put(collection, [index, headKey], head)
      return first
    },

    add,

    async stage(index, first, segment) {
      const id = `${first}-0`
      await segments.stage(index, id, () => writeParts(index, id, segment.parts))
      const { chunks, length, languages } = segment
      return { id, chunks, length, languages }
    },

    discard: (index, staged) => segments.discard(index, staged.id),

    async remove(tx, index, first, count) {
      const head = await readHead(tx, index)
      let removed = 0
      for (const entry of [...head.segments]) {
        if (entry.first >= first + count || entry.end <= first) continue
        const { ordinals, lengths } = await openSegment(index, entry)
        const bits = await readDead(tx, collection, index, entry.id, entry.chunks)
        const marked = markDead(bits, ordinals, first, count, (at) => (entry.length -= lengths[at]!))
        if (marked === 0) continue
        entry.dead += marked
        removed += marked
        if (entry.dead < entry.chunks) tx.put(collection, [index, entry.id, 'dead', 0], bits.toString('base64'))
        else {
          head.segments.splice(head.segments.indexOf(entry), 1)
          segments.gone(tx, index, entry.id)
        }
      }
      if (removed > 0) tx.put(collection, [index, headKey], head)
      return removed
    },

    async drop(tx, index) {
      const head = await readHead(tx, index)
      tx.remove(collection, [index, headKey])
      for (const { id } of head.segments) segments.gone(tx, index, id)
    },

    async size(index, reader = store) {
      const head = await readHead(reader, index)
      return {
        chunks: liveChunks(head),
        length: totalLength(head),
        segments: head.segments.length,
        languages: languagesOf(head)
      }
    },

    find,

    search: (index, query, limit, accept) =>
      find(index, async ({ languages }) => plainGroups(query, languages), limit, accept),

    rate: (index, query, { terms, length }) =>
      whileThere(index, async (versioned) => {
        const head = await openHead(index, versioned)
        const counts = new Map<string, number>()
        for (const term of terms) counts.set(term, (counts.get(term) ?? 0) + 1)
        const norm = k1 * (1 - b + (b * length * head.chunks) / Math.max(1, head.length))
        let raw = 0
        let best = 0
        for (const { weight, variants } of plainGroups(query, head.languages)) {
          let frequency = 0
          for (const { term } of variants) {
            for (const segment of head.segments) {
              frequency += liveIn(await postingsOf(index, segment, term), segment.dead)
            }
          }
          const idf = inverseFrequency(head.chunks, Math.min(frequency, head.chunks)) * weight
          best += idf
          const count = counts.get(variants.find(({ term }) => counts.has(term))?.term ?? '') ?? 0
          raw += (idf * count * (k1 + 1)) / (count + norm)
        }
        return { raw, score: toScore(raw, best) }
      }),

    maintain: (index) => segments.inTurn(index, () => work(index)),

    sweep: () => segments.freeLoose([])
  }
}

/**
 * A BM25 sum on the scale of all strategies: `1 − 4^(−raw ÷ best)`, where `best` is the sum of the weights of the query's
 * words. A chunk of average length that has every word once gets 0.75, one that has half of them (by weight) 0.5; a word
 * that no chunk has lowers the score of all. It never quite reaches 1, and it keeps the order.
 */
export function toScore(raw: number, best: number): number {
  return best <= 0 ? 0 : 1 - 4 ** (-raw / best)
}

/** `ln(1 + (N − n + ½) ÷ (n + ½))`. */
export function inverseFrequency(chunks: number, frequency: number): number {
  return Math.log(1 + (chunks - frequency + 0.5) / (frequency + 0.5))
}

function liveChunks(head: Head): number {
  return head.segments.reduce((sum, entry) => sum + entry.chunks - entry.dead, 0)
}

function totalLength(head: Head): number {
  return head.segments.reduce((sum, entry) => sum + entry.length, 0)
}

function segmentBytes({ lengths, firstTerms }: OpenSegment): number {
  return lengths.length * 16 + firstTerms.length * 48 + 256
}

/** Those of the most chunks first; a query is read in few of them. */
function languagesOf(head: Head): readonly Language[] {
  const counts = new Map<string, number>()
  for (const { languages } of head.segments) {
    for (const [language, count] of Object.entries(languages)) {
      counts.set(language, (counts.get(language) ?? 0) + count)
    }
  }
  return [...counts]
    .sort(([, a], [, b]) => b - a)
    .slice(0, 6)
    .map(([language]) => language as Language)
}

function putParts(tx: Transaction, index: string, id: string, parts: readonly Part[]): void {
  for (const { kind, number, value } of parts) tx.put(collection, [index, id, kind, number], value)
}

function unitsOf({ value }: Part): number {
  if ('postings' in value) return value.postings.length + value.terms.length
  if ('words' in value) return value.words.length + value.terms.length + value.counts.length * 3
  return value.lengths.length + value.ordinals.length + value.firstTerms.length * 12
}

function liveIn(postings: Postings, dead: Uint8Array | undefined): number {
  if (dead === undefined) return postings.chunks.length
  let live = 0
  for (const chunk of postings.chunks) if (!hasBit(dead, chunk)) live += 1
  return live
}

/** The block in which a term would stand: the last one that does not begin behind it. */
function blockOf(firstTerms: readonly string[], term: string): number {
  let low = 0
  let high = firstTerms.length
  while (low < high) {
    const middle = (low + high) >> 1
    if (firstTerms[middle]! <= term) low = middle + 1
    else high = middle
  }
  return low - 1
}

function placeOf(terms: readonly string[], term: string): number {
  const at = blockOf(terms, term)
  return at >= 0 && terms[at] === term ? at : -1
}

function lastAtOrBelow(segments: readonly SearchedSegment[], slot: number): number {
  let at = segments.length - 1
  while (segments[at]!.base > slot) at -= 1
  return at
}

/** The `limit` slots with the highest scores, best first: a heap whose root is the worst that is kept. */
function bestOf(touched: readonly number[], scores: Float64Array, limit: number): number[] {
  if (limit <= 0) return []
  const worse = (a: number, b: number) => scores[a]! < scores[b]! || (scores[a] === scores[b] && a > b)
  const heap: number[] = []
  const sink = (from: number) => {
    let at = from
    for (;;) {
      let child = at * 2 + 1
      if (child >= heap.length) return
      if (child + 1 < heap.length && worse(heap[child + 1]!, heap[child]!)) child += 1
      if (!worse(heap[child]!, heap[at]!)) return
      const kept = heap[at]!
      heap[at] = heap[child]!
      heap[child] = kept
      at = child
    }
  }
  for (const slot of touched) {
    if (heap.length < limit) {
      heap.push(slot)
      if (heap.length === limit) for (let at = limit >> 1; at >= 0; at--) sink(at)
    } else if (worse(heap[0]!, slot)) {
      heap[0] = slot
      sink(0)
    }
  }
  return heap.sort((a, b) => (worse(a, b) ? 1 : -1))
}

function damaged(index: string): CodedError {
  return new CodedError('RAG_INDEX_DAMAGED', `the text index '${index}' names a segment that is not in the store`, {
    detail: { index }
  })
}
