import { setImmediate } from 'node:timers/promises'
import { isCoded } from '../../kernel/index.ts'
import type { Reader, Store, Versioned } from '../store/types.ts'
import type { Accept, TextIndex } from './bm25.ts'
import { createCache } from './cache.ts'
import { assertDimensions, type Encoder } from './encoder.ts'
import { fuse, toRanked } from './fusion.ts'
import { type Correction, searchFuzzy } from './fuzzy.ts'
import {
  checkName,
  type ChunkRecord,
  type CollectionRecord,
  type DocumentRecord,
  findCollection,
  invalid,
  kept,
  shorten,
  unknownCollection
} from './records.ts'
import { rerank } from './rerank.ts'
import type { Analyser } from './text.ts'
import type { Trusting } from './trust.ts'
import type { Filter, Owner, PartOfHit, SearchHit, SearchOutcome, SearchRequest, Strategy } from './types.ts'
import { isBlank } from './units.ts'
import type { VectorIndex } from './vectors.ts'

export interface SearchParts {
  readonly store: Store
  readonly text: TextIndex
  readonly analyser: Analyser
  readonly vectors: VectorIndex
  readonly encoder: Encoder
  readonly trusting: Trusting
}

export const defaultLimit = 10
export const maxLimit = 100
/** Candidates of each part of a search. */
const candidates = 100
/** The best of them that are read again. */
const rerankDepth = 50
/** Collections that one search without a collection goes through. */
const maxCollections = 64
/** Of a query, for the encoder: no model reads more. */
const encodedUnits = 8_000
/** A search by words whose best hit scores less may have met mistyped ones. A higher bar costs clean queries. */
const unsureScore = 0.3
/** How often a search begins again when what it found was replaced meanwhile. */
const mostTries = 16
const cachedFilters = 64

const aliases: Readonly<Record<string, Strategy>> = {
  semantic: 'semantic',
  dense: 'semantic',
  vector: 'semantic',
  bm25: 'bm25',
  lexical: 'bm25',
  sparse: 'bm25',
  fuzzy: 'fuzzy',
  approximate: 'fuzzy',
  hybrid: 'hybrid',
  combined: 'hybrid',
  rrf: 'hybrid'
}

const rerankers: readonly string[] = ['proximity']

type PartName = keyof SearchHit['parts']

/** What one collection has found, best first, before anything was read. */
interface Candidates {
  readonly hits: readonly {
    readonly ordinal: number
    readonly score: number
    readonly parts: Partial<Record<PartName, PartOfHit>>
  }[]
  readonly total: number
  readonly strategy: Strategy
  readonly corrections: readonly Correction[]
  readonly semanticWeight: number | undefined
  readonly model: string | undefined
}

interface CheckedRequest {
  readonly query: string
  readonly limit: number
  /** `undefined`: the best that can be had. */
  readonly strategy: Strategy | undefined
  readonly threshold: number
  readonly rerank: boolean
  readonly filter: Filter | undefined
  readonly signal: AbortSignal | undefined
}

export interface Searcher {
  readonly search: (owner: Owner, request: SearchRequest) => Promise<SearchOutcome>
}

export function createSearcher(parts: SearchParts): Searcher {
  const { store, text, analyser, vectors, encoder, trusting } = parts
  const filters = createCache<Accept>(cachedFilters)

  const embedQuery = async (
    name: string,
    record: CollectionRecord,
    { query, signal }: CheckedRequest
  ): Promise<Float32Array> => {
    const model = encoder.modelOf(name, record)
    const [vector] = await encoder.embed(model, [query.slice(0, encodedUnits)], 'query', signal)
    assertDimensions(name, record.vectors!, vector!)
    return vector!
  }

  /** Vector of the query for a search that takes what can be had; `undefined` when the encoder does not answer. */
  const tryToEmbed = async (
    name: string,
    record: CollectionRecord,
    request: CheckedRequest
  ): Promise<Float32Array | undefined> => {
    try {
      return await embedQuery(name, record, request)
    } catch (error) {
      if (isCoded(error) && /^(RAG_DISABLED|RAG_MODEL_DIFFERS|EMBEDDINGS_)/.test(error.code)) return undefined
      throw error
    }
  }

  /** Documents that fit, as the ordinals of their chunks. Kept until the collection changes. */
  const acceptOf = async (
    { value, version }: Versioned<CollectionRecord>,
    filter: Filter | undefined
  ): Promise<Accept | undefined> => {
    if (filter === undefined) return undefined
    const key = `${value.id}\0${version}\0${JSON.stringify(filter)}`
    const known = filters.get(key)
    if (known !== undefined) return known
    const runs: (readonly [first: number, end: number])[] = []
    let read = 0
    for await (const [, { value: document }] of store.range<DocumentRecord>(kept.documents, [value.id])) {
      if (fits(document, filter)) runs.push([document.first, document.first + document.count])
      if (++read % 256 === 0) await setImmediate()
    }
    runs.sort(([a], [b]) => a - b)
    return filters.set(key, (ordinal) => isWithin(runs, ordinal), 1)
  }

  const lexical = async (id: string, { query }: CheckedRequest, depth: number, accept: Accept | undefined) => {
    const plain = await text.search(id, query, depth, accept)
    const isSure = (plain.hits[0]?.score ?? 0) >= unsureScore
    if (isSure) return { found: plain, corrections: [], name: 'bm25' as const }
    const fuzzy = await searchFuzzy(text, analyser, id, query, depth, accept)
    const better = fuzzy.corrections.length > 0
    return {
      found: better ? fuzzy : plain,
      corrections: fuzzy.corrections,
      name: better ? ('fuzzy' as const) : ('bm25' as const)
    }
  }

  const findCandidates = async (
    owner: Owner,
    name: string,
    entry: Versioned<CollectionRecord>,
    request: CheckedRequest
  ): Promise<Candidates> => {
    const { value: record } = entry
    const { id } = record
    const { query } = request
    const depth = Math.max(candidates, request.limit)
    const plain = { corrections: [], semanticWeight: undefined, model: undefined }
    const strategy = request.strategy ?? (record.vectors === undefined ? 'bm25' : 'hybrid')

    const byWords = async (): Promise<Candidates> => {
      const accept = await acceptOf(entry, request.filter)
      const { hits, total } = await text.search(id, query, depth, accept)
      return { ...plain, hits: partsOf('bm25', hits), total, strategy: 'bm25' }
    }
    if (strategy === 'bm25') return byWords()

    if (strategy === 'fuzzy') {
      const accept = await acceptOf(entry, request.filter)
      const { hits, total, corrections } = await searchFuzzy(text, analyser, id, query, depth, accept)
      return { ...plain, hits: partsOf('fuzzy', hits), total, corrections, strategy }
    }

    const vector =
      request.strategy === undefined ? await tryToEmbed(name, record, request) : await embedQuery(name, record, request)
    if (vector === undefined) return byWords()
    const { index, model } = record.vectors!
    const accept = await acceptOf(entry, request.filter)
    const nearest = async () =>
      vectors.search(index, vector, depth, {
        ...(accept === undefined ? {} : { accept }),
        ...(request.signal === undefined ? {} : { signal: request.signal })
      })
    if (strategy === 'semantic') {
      const hits = await nearest()
      return { ...plain, hits: partsOf('semantic', hits), total: hits.length, strategy, model }
    }

    const [words, near] = await Promise.all([lexical(id, request, depth, accept), nearest()])
    const trust = await trusting.trustIn(owner, name, record)
    const fusion = fuse(toRanked(words.found.hits), toRanked(near), trust, depth)
    const hits = fusion.hits.map(({ id: ordinal, score, lexicalRank, semanticRank }) => ({
      ordinal,
      score,
      parts: {
        ...(lexicalRank === undefined ? {} : { [words.name]: partOf(words.found.hits, lexicalRank) }),
        ...(semanticRank === undefined ? {} : { semantic: partOf(near, semanticRank) })
      }
    }))
    const { corrections } = words
    return {
      hits,
      total: Math.max(words.found.total, hits.length),
      strategy,
      corrections,
      semanticWeight: fusion.semanticWeight,
      model
    }
  }

  const searchOne = async (owner: Owner, name: string, request: CheckedRequest): Promise<SearchOutcome> => {
    for (let tries = 1; ; tries++) {
      const entry = await findCollection(store, owner, name)
      if (entry === undefined) throw unknownCollection(name)
      const { id, vectors: space } = entry.value
      const found = await findCandidates(owner, name, entry, request)
      const wanted = request.rerank
        ? found.hits.slice(0, Math.max(rerankDepth, request.limit))
        : found.hits.filter(({ score }) => score >= request.threshold).slice(0, request.limit)
      const read: SearchHit[] = []
      let isStale = false
      for (const { ordinal, score, parts } of wanted) {
        const hit = await readHit(store, id, name, ordinal, score, parts)
        if (hit === undefined) isStale = true
        else read.push(hit)
      }
      const now = (await findCollection(store, owner, name))?.value
      // What was found may have been replaced since: then both what was and what is now would be missing.
      const isChanged = now?.id !== id || now.vectors?.index !== space?.index
      if (isChanged || (isStale && tries < mostTries)) continue
      const { strategy, corrections, semanticWeight, model } = found
      const ranked = request.rerank ? await rerank(analyser, request.query, read) : read
      const hits = ranked.filter(({ score }) => score >= request.threshold).slice(0, request.limit)
      const passed = request.rerank
        ? ranked.filter(({ score }) => score >= request.threshold).length
        : found.hits.filter(({ score }) => score >= request.threshold).length
      // Where none of the candidates fell below the threshold, those behind them may not either.
      const total = passed === found.hits.length ? Math.max(passed, found.total) : passed
      return {
        hits,
        total: Math.max(total, hits.length),
        strategy,
        reranked: request.rerank && hits.length > 0,
        corrections,
        semanticWeight,
        model
      }
    }
  }

  const searchAll = async (owner: Owner, request: CheckedRequest): Promise<SearchOutcome> => {
    const outcomes: SearchOutcome[] = []
    for (const name of await namesOf(store, owner)) {
      try {
        outcomes.push(await searchOne(owner, name, request))
      } catch (error) {
        if (!isCoded(error) || error.code !== 'RAG_COLLECTION_UNKNOWN') throw error
        // It was deleted meanwhile.
      }
    }
    const hits = outcomes
      .flatMap((outcome) => outcome.hits)
      .sort((a, b) => b.score - a.score)
      .slice(0, request.limit)
    const isHybrid = outcomes.some(({ strategy }) => strategy === 'hybrid')
    return {
      hits,
      total: outcomes.reduce((sum, { total }) => sum + total, 0),
      strategy: request.strategy ?? (isHybrid ? 'hybrid' : 'bm25'),
      reranked: request.rerank && hits.length > 0,
      corrections: outcomes.flatMap((outcome) => outcome.corrections),
      semanticWeight: undefined,
      model: outcomes.find(({ model }) => model !== undefined)?.model
    }
  }

  return {
    async search(owner, request) {
      const checked = checkRequest(request)
      const { collection } = request
      return collection === undefined ? searchAll(owner, checked) : searchOne(owner, checkName(collection), checked)
    }
  }
}

/** @throws CodedError `RAG_INVALID` */
function checkRequest(request: SearchRequest): CheckedRequest {
  const { query, limit = defaultLimit, strategy, threshold = 0, reranker, filter, signal } = request
  if (isBlank(query)) throw invalid('Query required')
  if (reranker !== undefined && !rerankers.includes(reranker)) {
    throw invalid(`Unknown reranker model: ${shorten(reranker)}. Use one of: ${rerankers.join(', ')}`)
  }
  const isFiltered = filter !== undefined && Object.values(filter).some((part: unknown) => part !== undefined)
  return {
    query,
    limit: Math.min(maxLimit, Math.max(0, limit)),
    strategy: strategy === undefined ? undefined : strategyNamed(strategy),
    threshold,
    rerank: request.rerank ?? false,
    filter: isFiltered ? filter : undefined,
    signal
  }
}

function strategyNamed(name: string): Strategy {
  const lower = name.toLowerCase()
  const strategy = Object.hasOwn(aliases, lower) ? aliases[lower] : undefined
  if (strategy === undefined) {
    throw invalid(`Unknown search strategy: ${shorten(name)}. Use: semantic, bm25, fuzzy, hybrid`)
  }
  return strategy
}

async function namesOf(reader: Reader, owner: Owner): Promise<string[]> {
  const names: string[] = []
  for await (const [key] of reader.range(kept.collections, [owner.kind, owner.id], { limit: maxCollections })) {
    names.push(key[2] as string)
  }
  return names
}

/** @returns `undefined` when the chunk is not there any more */
async function readHit(
  reader: Reader,
  id: string,
  collection: string,
  ordinal: number,
  score: number,
  parts: SearchHit['parts']
): Promise<SearchHit | undefined> {
  const chunk = (await reader.get<ChunkRecord>(kept.chunks, [id, ordinal]))?.value
  if (chunk === undefined) return undefined
  const document = (await reader.get<DocumentRecord>(kept.documents, [id, chunk.document]))?.value
  if (document === undefined) return undefined
  const { title, source, tags, metadata, createdAtMs } = document
  return {
    id: `${chunk.document}_${chunk.number}`,
    documentId: chunk.document,
    collection,
    content: chunk.text,
    score,
    title,
    source,
    tags,
    metadata,
    createdAtMs,
    start: chunk.start,
    end: chunk.end,
    parts
  }
}

function fits(document: DocumentRecord, { tags = [], title, source, metadata = {} }: Filter): boolean {
  return (
    tags.every((tag) => document.tags.includes(tag)) &&
    (title === undefined || document.title === title) &&
    (source === undefined || document.source === source) &&
    Object.entries(metadata).every(
      ([name, value]) => Object.hasOwn(document.metadata, name) && document.metadata[name] === value
    )
  )
}

/** @param runs sorted, and apart from each other */
function isWithin(runs: readonly (readonly [first: number, end: number])[], ordinal: number): boolean {
  let low = 0
  let high = runs.length
  while (low < high) {
    const middle = (low + high) >> 1
    if (runs[middle]![0] <= ordinal) low = middle + 1
    else high = middle
  }
  return low > 0 && ordinal < runs[low - 1]![1]
}

type Found = { readonly ordinal: number; readonly raw: number; readonly score: number }

function partOf(hits: readonly Found[], rank: number): PartOfHit {
  const { raw, score } = hits[rank - 1]!
  return { rank, score, raw }
}

function partsOf(name: PartName, hits: readonly Found[]): Candidates['hits'] {
  return hits.map(({ ordinal, score, raw }, at) => ({
    ordinal,
    score,
    parts: { [name]: { rank: at + 1, score, raw } }
  }))
}
