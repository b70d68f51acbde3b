import { setImmediate } from 'node:timers/promises'
import type { Store } from '../store/types.ts'
import type { TextIndex } from './bm25.ts'
import type { Encoder } from './encoder.ts'
import { assumedTrust, chooseTrust, gainsOf, type RankedHit, toRanked } from './fusion.ts'
import { type ChunkRecord, type CollectionRecord, type DocumentRecord, findCollection, kept } from './records.ts'
import type { KnownTrust, RagState, TrustRecord } from './state.ts'
import type { Analyser } from './text.ts'
import type { Owner } from './types.ts'
import type { VectorIndex } from './vectors.ts'

/**
 * How far the list of meaning of a collection is to be believed. The collection itself tells: sentences of some of its
 * chunks are questions whose answers are known. Each is asked as it is, with every second word, and of its chunk without
 * it; the trust that brings most of the chunks is the one that searches go by.
 */
export interface Trusting {
  /**
   * As it was measured last. Where that was never, or of a collection half or twice as large, or with another model, it is
   * measured beside whatever goes on.
   */
  trustIn(owner: Owner, name: string, record: CollectionRecord): Promise<number>
}

export interface TrustParts {
  readonly store: Store
  readonly text: TextIndex
  readonly analyser: Analyser
  readonly vectors: VectorIndex
  readonly encoder: Encoder
  readonly state: RagState
  readonly now: () => number
  /** Fires when what nobody waits for must end. */
  readonly signal: AbortSignal
  /** Work that nobody waits for. */
  readonly keep: (work: Promise<unknown>) => void
}

/** Chunks whose sentences are asked. */
const sampleChunks = 96
/** Fewer tell nothing: every strategy finds everything. */
const leastChunks = 16
const depth = 100
/** Of a chunk: its beginning, where a sentence is sought. */
const soughtUnits = 4_000
const leastUnits = 20
const mostUnits = 400
/** A question of less says nothing any more. */
const leastWords = 3
const pauseAfterFailureMs = 60_000
const rememberedCollections = 10_000

/** A chunk and a sentence of it. */
interface Sample {
  readonly ordinal: number
  readonly sentence: string
  /** Every second word of it. */
  readonly words: string | undefined
  /** The chunk without it. */
  readonly rest: string | undefined
  /** Chunks that have the sentence, since neighbours share text. */
  readonly holders: ReadonlySet<number>
}

type Hits = readonly RankedHit<number>[]

export function createTrusting(parts: TrustParts): Trusting {
  const { store, text, analyser, vectors, encoder, state, now, signal, keep } = parts

  const entryOf = async (id: string): Promise<KnownTrust> => {
    const present = state.trusts.get(id)
    if (present !== undefined) return present
    const known = (await store.get<TrustRecord>(kept.trusts, [id]))?.value
    if (state.trusts.size >= rememberedCollections) state.trusts.clear()
    const entry = state.trusts.get(id) ?? { known, isBeingMeasured: false, againAtMs: 0 }
    state.trusts.set(id, entry)
    return entry
  }

  const measure = async (owner: Owner, name: string, record: CollectionRecord, entry: KnownTrust): Promise<void> => {
    const { id, chunks } = record
    const { index, model } = record.vectors!
    try {
      const trust = await trustOf(id, index, model)
      const known: TrustRecord = { trust, index, chunks }
      await store.atomically(async (tx) => {
        if ((await findCollection(tx, owner, name))?.value.id === id) tx.put(kept.trusts, [id], known)
      })
      entry.known = known
    } catch (error) {
      if (signal.aborted) return
      entry.againAtMs = now() + pauseAfterFailureMs
      throw error
    } finally {
      entry.isBeingMeasured = false
    }
  }

  const trustOf = async (id: string, index: string, model: string): Promise<number> => {
    const samples = await samplesOf(store, id)
    const questions = samples.flatMap(({ sentence, words }) => (words === undefined ? [sentence] : [sentence, words]))
    const rests = samples.flatMap(({ rest }) => (rest === undefined ? [] : [rest]))
    const asked = await encoder.embed(model, questions, 'query', signal)
    const left = await encoder.embed(model, rests, 'document', signal)
    const gains: (readonly number[])[] = []
    let question = 0
    let rest = 0
    for (const sample of samples) {
      const { ordinal, sentence, words, holders } = sample
      const vector = asked[question++]!
      const few = words === undefined ? undefined : ([words, asked[question++]!] as const)
      const without = sample.rest === undefined ? undefined : ([sample.rest, left[rest++]!] as const)
      const all = [await bothLists(id, index, sentence, vector, depth + holders.size)]
      if (without !== undefined) all.push(await heldOut(id, sample, vector, without, all[0]!))
      if (few !== undefined) all.push(await bothLists(id, index, ...few, depth))
      const own = all.map(([lexical, semantic]) => gainsOf(ordinal, lexical.slice(0, depth), semantic.slice(0, depth)))
      gains.push(own[0]!.map((_, at) => own.reduce((sum, one) => sum + one[at]!, 0)))
      await setImmediate()
      signal.throwIfAborted()
    }
    return chooseTrust(gains)
  }

  const bothLists = async (
    id: string,
    index: string,
    question: string,
    vector: Float32Array,
    limit: number
  ): Promise<readonly [Hits, Hits]> => {
    const { hits } = await text.search(id, question, limit)
    return [toRanked(hits), toRanked(await vectors.search(index, vector, limit, { signal }))]
  }

  /** The lists of a question, as if its chunk did not have it. */
  const heldOut = async (
    id: string,
    { ordinal, sentence, holders }: Sample,
    vector: Float32Array,
    [rest, restVector]: readonly [string, Float32Array],
    [lexical, semantic]: readonly [Hits, Hits]
  ): Promise<readonly [Hits, Hits]> => {
    const words = await text.rate(id, sentence, analyser.analyse(rest))
    const cosine = vector.reduce((sum, value, at) => sum + value * restVector[at]!, 0)
    const others = (hits: Hits) => hits.filter((hit) => !holders.has(hit.id))
    return [
      words.raw > 0 ? insert(others(lexical), { id: ordinal, ...words }) : others(lexical),
      insert(others(semantic), { id: ordinal, raw: cosine, score: Math.max(0, cosine) })
    ]
  }

  return {
    async trustIn(owner, name, record) {
      const entry = await entryOf(record.id)
      const { known } = entry
      const { chunks } = record
      const isOfModel = known?.index === record.vectors!.index
      const isTrue = isOfModel && chunks <= known.chunks * 2 && known.chunks <= chunks * 2
      if (!isTrue && !entry.isBeingMeasured && chunks >= leastChunks && now() >= entry.againAtMs) {
        entry.isBeingMeasured = true
        keep(measure(owner, name, record, entry))
      }
      return isOfModel ? known.trust : assumedTrust
    }
  }
}

/** From all over the collection, always the same ones. */
async function samplesOf(store: Store, id: string): Promise<readonly Sample[]> {
  let end = 0
  for await (const [key] of store.range(kept.chunks, [id], { reverse: true, limit: 1 })) end = (key[1] as number) + 1
  const samples: Sample[] = []
  let last = -1
  for (let at = 0; at < sampleChunks; at++) {
    const from = Math.max(last + 1, Math.floor((at * end) / sampleChunks))
    for await (const [key, { value }] of store.range<ChunkRecord>(kept.chunks, [id], {
      after: [id, from - 1],
      limit: 1
    })) {
      last = key[1] as number
      // Without its document it is on its way, or gone.
      if ((await store.get<DocumentRecord>(kept.documents, [id, value.document])) === undefined) continue
      const sample = await sampleOf(store, id, last, value)
      if (sample !== undefined) samples.push(sample)
    }
    await setImmediate()
  }
  return samples
}

async function sampleOf(store: Store, id: string, ordinal: number, chunk: ChunkRecord): Promise<Sample | undefined> {
  const segments = new Intl.Segmenter('und', { granularity: 'sentence' }).segment(chunk.text.slice(0, soughtUnits))
  const sentences = [...segments].filter(
    ({ segment }) => segment.length <= mostUnits && segment.trim().length >= leastUnits
  )
  const chosen = sentences[ordinal % sentences.length]
  if (chosen === undefined) return undefined
  const { segment, index } = chosen
  const rest = chunk.text.slice(0, index) + chunk.text.slice(index + segment.length)
  const words = segment.trim().split(/\s+/)
  const few = words.filter((_, at) => at % 2 === 0)
  const holders = new Set([ordinal])
  const place = { start: chunk.start + index, end: chunk.start + index + segment.length }
  for (const step of [-1, 1]) {
    for (let at = ordinal + step; at >= 0; at += step) {
      const other = (await store.get<ChunkRecord>(kept.chunks, [id, at]))?.value
      if (other?.document !== chunk.document || other.end <= place.start || other.start >= place.end) break
      holders.add(at)
    }
  }
  return {
    ordinal,
    sentence: segment.trim(),
    words: few.length >= leastWords ? few.join(' ') : undefined,
    rest: rest.trim().length >= segment.length ? rest : undefined,
    holders
  }
}

function insert(hits: Hits, hit: RankedHit<number>): Hits {
  return [...hits, hit].sort((a, b) => b.raw - a.raw)
}
