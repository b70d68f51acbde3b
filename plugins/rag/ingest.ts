import { CodedError, isCoded } from '../../kernel/index.ts'
import type { Store, Transaction } from '../store/types.ts'
import type { Workers, WorkerTask } from '../workers/types.ts'
import type { StagedSegment, TextIndex } from './bm25.ts'
import { bestChunks, type ChunkOptions, chunkDefaults, findChunkStrategy } from './chunk.ts'
import { assertDimensions, type Encoder } from './encoder.ts'
import { hashOf } from './fingerprint.ts'
import {
  checkName,
  type ChunkRecord,
  type CollectionRecord,
  type DocumentRecord,
  findCollection,
  invalid,
  keyOf,
  kept,
  type LooseRecord,
  shorten
} from './records.ts'
import { buildSegment, type Segment } from './segment.ts'
import type { RagState } from './state.ts'
import type { AnalyseInput } from './tasks/analyse.ts'
import { type Cut, type CutInput, cutText } from './tasks/cut.ts'
import { isBlank, textOf, toWellFormed } from './units.ts'
import type { Analyser, Language } from './text.ts'
import type { Ingested, IngestOptions, MetadataValue, NewDocument, Owner } from './types.ts'
import type { StagedVectors, VectorIndex } from './vectors.ts'

/** What an ingest works with. */
export interface IngestParts {
  readonly store: Store
  readonly workers: Workers
  readonly text: TextIndex
  readonly analyser: Analyser
  readonly vectors: VectorIndex
  readonly encoder: Encoder
  readonly state: RagState
  /** The last write of a document into a collection, by owner and name; the next waits for it. */
  readonly turns: Map<string, Promise<unknown>>
  readonly chunks: ChunkOptions
  readonly now: () => number
  readonly newId: () => string
  /** Called when something was committed that leaves work behind. */
  readonly tend: (collectionId: string, ...spaces: readonly string[]) => void
}

export interface IngestHow extends IngestOptions {
  /** It was promised: no part of it may be refused. */
  readonly goesOn?: boolean
}

/** A document that was checked. */
export interface CheckedDocument {
  readonly collection: string
  readonly content: string | Uint16Array
  readonly title: string | null
  readonly source: string | null
  readonly tags: readonly string[]
  readonly metadata: Readonly<Record<string, MetadataValue>>
  readonly chunks: ChunkOptions
  readonly model: string | undefined
}

const inPool = { pool: 'rag', poolDefaults: { maxHeapMb: 512 } } as const
export const cutTask: WorkerTask = {
  ...inPool,
  name: 'rag/cut',
  module: new URL('./tasks/cut.js', import.meta.url).href
}
export const analyseTask: WorkerTask = {
  ...inPool,
  name: 'rag/analyse',
  module: new URL('./tasks/analyse.js', import.meta.url).href
}
/** Texts up to this many units are cut and analysed at once: a thread would take longer. */
const smallText = 4_000
/** A document of up to this many chunks is written in one transaction. */
const smallDocument = 48
/** Chunks that are analysed, embedded and written together. */
const pieceChunks = 192
/** Of one transaction: characters of chunks. */
const sliceUnits = 131_072
const maxFieldUnits = 10_000
const maxTags = 1_000
const maxTagUnits = 1_000
const maxMetadata = 64
/** How often an ingest begins again when its collection was deleted or got another model meanwhile. */
const mostTries = 5

/** The collection is not what it was when the ingest began. */
class CollectionChanged extends Error {}

/** @throws CodedError `RAG_INVALID` */
export function checkDocument(document: NewDocument, chunks: ChunkOptions = bestChunks): CheckedDocument {
  const collection = checkName(document.collection)
  const { content } = document
  // What comes as units is looked at in a thread.
  if (typeof content === 'string' && isBlank(content)) throw invalid('Content required')
  return {
    collection,
    content: typeof content === 'string' ? toWellFormed(content) : content,
    title: checkField('title', document.title),
    source: checkField('source', document.source),
    tags: checkTags(document.tags ?? []),
    metadata: checkMetadata(document.metadata ?? {}),
    chunks: document.chunking === undefined ? chunks : chunksNamed(document.chunking),
    model: document.model
  }
}

function checkField(name: string, text: string | undefined): string | null {
  if (text === undefined || text === '') return null
  if (text.length > maxFieldUnits) {
    throw invalid(`${name} has ${text.length} characters, at most ${maxFieldUnits} are allowed`)
  }
  return toWellFormed(text)
}

function checkTags(tags: readonly string[]): readonly string[] {
  if (tags.length > maxTags) throw invalid(`there are ${tags.length} tags, at most ${maxTags} are allowed`)
  const long = tags.find((tag) => tag.length > maxTagUnits)
  if (long !== undefined) {
    throw invalid(`a tag has ${long.length} characters, at most ${maxTagUnits} are allowed`)
  }
  return tags.map(toWellFormed)
}

function checkMetadata(metadata: Readonly<Record<string, MetadataValue>>): Readonly<Record<string, MetadataValue>> {
  const entries = Object.entries(metadata)
  if (entries.length > maxMetadata) {
    throw invalid(`metadata has ${entries.length} members, at most ${maxMetadata} are allowed`)
  }
  return Object.fromEntries(
    entries.map(([name, value]) => {
      if (name.length > maxFieldUnits || (typeof value === 'string' && value.length > maxFieldUnits)) {
        throw invalid(`a member of metadata is longer than ${maxFieldUnits} characters`)
      }
      return [toWellFormed(name), typeof value === 'string' ? toWellFormed(value) : value]
    })
  )
}

function chunksNamed(name: string): ChunkOptions {
  const strategy = findChunkStrategy(name)
  if (strategy === undefined) {
    throw invalid(`Unknown chunking strategy: ${shorten(name)}. Use: word, semantic, character`)
  }
  return chunkDefaults[strategy]
}

/**
 * Takes a document in: cuts it, analyses and embeds its chunks beside everything else, writes them where nobody looks,
 * and shows all of it in one transaction.
 */
export async function ingest(
  parts: IngestParts,
  owner: Owner,
  document: CheckedDocument,
  options: IngestHow
): Promise<Ingested> {
  const cut = await cutDocument(parts, document, options)
  for (let tries = 1; ; tries++) {
    try {
      return await attempt(parts, owner, document, cut, options)
    } catch (error) {
      if (!(error instanceof CollectionChanged)) throw error
      if (tries === mostTries) {
        throw new CodedError('RAG_CONFLICT', `collection '${shorten(document.collection)}' was changed again and again`)
      }
    }
  }
}

interface CutDocument extends Cut {
  readonly language: Language | undefined
}

async function cutDocument(
  { workers, analyser }: IngestParts,
  { content, chunks }: CheckedDocument,
  { signal, goesOn = false }: IngestHow
): Promise<CutDocument> {
  const input: CutInput = { text: content, options: chunks }
  const cut =
    content.length <= smallText
      ? cutText(textOf(content), chunks)
      : await runTask<Cut>(workers, cutTask, input, { signal, goesOn })
  if (cut.isBlank) throw invalid('Content required')
  if (cut.places.length === 0) throw invalid('Content too small to chunk')
  return { ...cut, language: analyser.detect(textOf(content, 0, smallText)) }
}

/** A thread may die under a task for reasons of its own: that is tried once more. */
async function runTask<T>(
  workers: Workers,
  task: WorkerTask,
  input: unknown,
  { signal, goesOn }: { readonly signal: AbortSignal | undefined; readonly goesOn: boolean }
): Promise<T> {
  for (let tries = 1; ; tries++) {
    try {
      return await workers.run<T>(task, input, signal === undefined ? { goesOn } : { signal, goesOn })
    } catch (error) {
      throwIfAborted(signal)
      if (!isCoded(error) || !/^WORKERS_(CRASHED|ABORTED)$/.test(error.code)) throw error
      if (tries === 2) {
        const message = 'the thread that worked on the document ended twice; nothing was kept: try again'
        throw new CodedError('RAG_UNAVAILABLE', message, { cause: error })
      }
    }
  }
}

/** Documents of one collection write the same records: racing, each would write all of itself again for every other. */
async function inTurn<R>(turns: IngestParts['turns'], name: string, work: () => Promise<R>): Promise<R> {
  const mine = (turns.get(name) ?? Promise.resolve()).then(work)
  const ended = mine.catch(() => {})
  turns.set(name, ended)
  try {
    return await mine
  } finally {
    if (turns.get(name) === ended) turns.delete(name)
  }
}

/** What belongs to the chunks of a document from one on. */
interface Piece {
  readonly at: number
  readonly texts: readonly string[]
  readonly segment: Segment
  readonly vectors: readonly Float32Array[] | undefined
}

async function attempt(
  parts: IngestParts,
  owner: Owner,
  document: CheckedDocument,
  { places, language, fingerprint }: CutDocument,
  { signal, check, onProgress }: IngestOptions
): Promise<Ingested> {
  const { store, workers, text, vectors: vectorIndex, analyser, encoder, state, now, newId } = parts
  const count = places.length / 2
  const found = (await findCollection(store, owner, document.collection))?.value
  const model = encoder.modelFor(document.collection, found, document.model)
  const collectionId = found?.id ?? newId()
  const space = model === undefined ? undefined : (found?.vectors?.index ?? collectionId)
  const documentId = newId()
  const chunkText = (at: number) => textOf(document.content, places[at * 2], places[at * 2 + 1])

  const embed = async (texts: readonly string[]): Promise<readonly Float32Array[] | undefined> => {
    if (model === undefined) return undefined
    const vectors = await encoder.embed(model, texts, 'document', signal)
    if (found?.vectors !== undefined) assertDimensions(document.collection, found.vectors, vectors[0]!)
    return vectors
  }

  const prepare = async (at: number): Promise<Piece> => {
    throwIfAborted(signal)
    const texts = Array.from({ length: Math.min(pieceChunks, count - at) }, (_, step) => chunkText(at + step))
    const units = texts.reduce((sum, text) => sum + text.length, 0)
    const input: AnalyseInput = { texts, language }
    const [segment, vectors] = await Promise.all([
      units <= smallText
        ? buildSegment(texts.map((text) => analyser.analyse(text, language)))
        : runTask<Segment>(workers, analyseTask, input, { signal, goesOn: true }),
      embed(texts)
    ])
    return { at, texts, segment, vectors }
  }

  const chunkRecord = (at: number): ChunkRecord => ({
    document: documentId,
    number: at,
    text: chunkText(at),
    start: places[at * 2]!,
    end: places[at * 2 + 1]!
  })

  /** Makes the document known, in place of those that it replaces. @returns how many */
  const show = async (tx: Transaction, first: number, dimensions: number): Promise<number> => {
    await check?.(tx)
    const stored = (await findCollection(tx, owner, document.collection))?.value
    // Deleted, made by another, or embedded anew since this ingest began.
    if (stored?.id !== found?.id) throw new CollectionChanged()
    if (found !== undefined && stored?.vectors?.index !== space) throw new CollectionChanged()
    const createdAtMs = now()
    let record: CollectionRecord = stored ?? {
      id: collectionId,
      createdAtMs,
      updatedAtMs: createdAtMs,
      documents: 0,
      chunks: 0,
      ...(space === undefined || model === undefined ? {} : { vectors: { index: space, model, dimensions } })
    }
    const identities = identitiesOf(document, fingerprint)
    const same = new Set<string>()
    for (const identity of identities) {
      const known = await tx.get<string>(kept.identities, [collectionId, identity])
      if (known !== undefined) same.add(known.value)
    }
    for (const id of same) record = await removeDocument(parts, tx, record, id)
    const shown: DocumentRecord = {
      title: document.title,
      source: document.source,
      tags: document.tags,
      metadata: document.metadata,
      createdAtMs,
      first,
      count,
      identities,
      spaces: space === undefined ? [] : [space]
    }
    tx.put(kept.documents, [collectionId, documentId], shown)
    for (const identity of identities) tx.put(kept.identities, [collectionId, identity], documentId)
    tx.put<CollectionRecord>(kept.collections, keyOf(owner, document.collection), {
      ...record,
      updatedAtMs: createdAtMs,
      documents: record.documents + 1,
      chunks: record.chunks + count
    })
    return same.size
  }

  const tell = (chunksDone: number) => onProgress?.({ chunksDone, chunksTotal: count })
  const done = (replaced: number): Ingested => {
    parts.tend(collectionId, ...(space === undefined ? [] : [space]))
    return {
      collection: document.collection,
      documentId,
      chunkIds: Array.from({ length: count }, (_, at) => `${documentId}_${at}`),
      replaced
    }
  }
  const durable = { durable: true }

  tell(0)
  if (count <= smallDocument) {
    const { segment, vectors } = await prepare(0)
    throwIfAborted(signal)
    const turn = JSON.stringify(keyOf(owner, document.collection))
    const write = async (tx: Transaction): Promise<number> => {
      const first = await text.reserve(tx, collectionId, count)
      const replaced = await show(tx, first, vectors?.[0]?.length ?? 0)
      await text.add(tx, collectionId, first, segment)
      if (space !== undefined && vectors !== undefined) await vectorIndex.add(tx, space, first, vectors)
      for (let at = 0; at < count; at++) tx.put(kept.chunks, [collectionId, first + at], chunkRecord(at))
      return replaced
    }
    const replaced = await inTurn(parts.turns, turn, () => store.atomically(write, durable))
    tell(count)
    return done(replaced)
  }

  const loose: LooseRecord = { count, unborn: found === undefined }
  let mark = ''
  const first = await store.atomically(async (tx) => {
    const stored = (await findCollection(tx, owner, document.collection))?.value
    if (stored?.id !== found?.id) throw new CollectionChanged()
    const first = await text.reserve(tx, collectionId, count)
    tx.put(kept.loose, [collectionId, first], loose)
    // Before it can be seen: whoever sweeps would take it for something that was left behind.
    state.writing.delete(mark)
    mark = markOf(collectionId, first)
    state.writing.add(mark)
    return first
  })
  const staged: (readonly [first: number, segment: StagedSegment])[] = []
  const stagedVectors: (readonly [first: number, vectors: StagedVectors])[] = []
  let isShown = false
  let next: Promise<Piece> | undefined
  try {
    next = prepare(0)
    while (next !== undefined) {
      const piece: Piece = await next
      const end = piece.at + piece.texts.length
      next = end < count ? prepare(end) : undefined
      // Its failure is met when it is awaited.
      next?.catch(() => undefined)
      staged.push([first + piece.at, await text.stage(collectionId, first + piece.at, piece.segment)])
      if (space !== undefined && piece.vectors !== undefined) {
        const at = first + piece.at
        stagedVectors.push([at, await vectorIndex.stage(space, at, piece.vectors)])
      }
      await writeChunks(store, collectionId, first, piece, chunkRecord)
      tell(end)
    }
    throwIfAborted(signal)
    const replaced = await store.atomically(async (tx) => {
      const replaced = await show(tx, first, stagedVectors[0]?.[1].dimensions ?? 0)
      for (const [at, segment] of staged) await text.add(tx, collectionId, at, segment)
      for (const [at, vectors] of stagedVectors) await vectorIndex.add(tx, space!, at, vectors)
      tx.remove(kept.loose, [collectionId, first])
      return replaced
    }, durable)
    isShown = true
    return done(replaced)
  } finally {
    await next?.catch(() => undefined)
    state.writing.delete(mark)
    if (!isShown) {
      for (const [, segment] of staged) await text.discard(collectionId, segment)
      for (const [, vectors] of stagedVectors) await vectorIndex.discard(space!, vectors)
      parts.tend(collectionId)
    }
  }
}

export const markOf = (collectionId: string, first: number): string => `${collectionId}\0${first}`

async function writeChunks(
  store: Store,
  collectionId: string,
  first: number,
  { at, texts }: Piece,
  recordOf: (at: number) => ChunkRecord
): Promise<void> {
  const end = at + texts.length
  for (let from = at; from < end; ) {
    let to = from
    for (let units = 0; to < end && units < sliceUnits; to++) units += texts[to - at]!.length
    await store.atomically((tx) => {
      for (let each = from; each < to; each++) tx.put(kept.chunks, [collectionId, first + each], recordOf(each))
    })
    from = to
  }
}

/**
 * Takes a document away, in the transaction of whatever comes in its place.
 * @returns what is to be written of the collection
 */
export async function removeDocument(
  { text, vectors }: Pick<IngestParts, 'text' | 'vectors'>,
  tx: Transaction,
  collection: CollectionRecord,
  documentId: string
): Promise<CollectionRecord> {
  const { id } = collection
  const stored = await tx.get<DocumentRecord>(kept.documents, [id, documentId])
  if (stored === undefined) return collection
  const { first, count, identities, spaces } = stored.value
  await text.remove(tx, id, first, count)
  for (const space of spaces) await vectors.remove(tx, space, first, count)
  for (const identity of identities) tx.remove(kept.identities, [id, identity])
  tx.remove(kept.documents, [id, documentId])
  // Without the document nobody finds its chunks: they go when there is time.
  tx.put<LooseRecord>(kept.loose, [id, first], { count, unborn: false })
  const { next } = collection
  const left = { documents: collection.documents - 1, chunks: collection.chunks - count }
  if (next === undefined || !spaces.includes(next.index)) return { ...collection, ...left }
  return { ...collection, ...left, next: { ...next, done: next.done - 1 } }
}

/**
 * What makes two documents the same: source and title, where there is a source; and the text itself, blanks apart,
 * from one source.
 */
function identitiesOf({ source, title }: CheckedDocument, fingerprint: string): string[] {
  const identities = [hashOf(JSON.stringify(['text', source, fingerprint]))]
  if (source !== null) identities.push(hashOf(JSON.stringify(['source', source, title])))
  return identities
}

export function throwIfAborted(signal: AbortSignal | undefined): void {
  if (signal?.aborted !== true) return
  const reason: unknown = signal.reason
  throw reason instanceof CodedError ? reason : new CodedError('RAG_ABORTED', 'it was given up', { cause: reason })
}
