import type {} from '../../kernel/index.ts'
import type { Reader } from '../store/types.ts'

/** Whose collections: those of one owner are unknown to every other. */
export interface Owner {
  readonly kind: 'user' | 'tenant'
  readonly id: string
}

/**
 * - `bm25`: by words
 * - `fuzzy`: by words, also mistyped ones
 * - `semantic`: by meaning, as an encoder understands it
 * - `hybrid`: both, weighed by what the collection shows
 */
export type Strategy = 'semantic' | 'bm25' | 'fuzzy' | 'hybrid'

export type MetadataValue = string | number | boolean

export interface NewDocument {
  /** 1 to 256 UTF-16 units of any script; made when it is not there. */
  readonly collection: string
  /** A long text may also come as its UTF-16 units, in memory that threads share; nobody changes them then. */
  readonly content: string | Uint16Array
  readonly title?: string | undefined
  /** Where it comes from. A document of the same source and title takes the place of the one before. */
  readonly source?: string | undefined
  readonly tags?: readonly string[] | undefined
  readonly metadata?: Readonly<Record<string, MetadataValue>> | undefined
  /** `word`, `semantic`, `character` or an alias; left out, what finds most. */
  readonly chunking?: string | undefined
  /** Of a new collection; of one that is there, the model that it has. */
  readonly model?: string | undefined
}

export interface Progress {
  readonly chunksDone: number
  readonly chunksTotal: number
}

export interface IngestOptions {
  /** Gives up; nothing is left then. */
  readonly signal?: AbortSignal | undefined
  /** Asked within the transaction that makes the document known: what it throws keeps it from being so. */
  readonly check?: ((tx: Reader) => Promise<void>) | undefined
  /** Told in order, synchronously; must not throw. */
  readonly onProgress?: ((progress: Progress) => void) | undefined
}

export interface Ingested {
  readonly collection: string
  readonly documentId: string
  /** One of each chunk: that of the document, `_` and its number from 0. */
  readonly chunkIds: readonly string[]
  /** Documents whose place it took. */
  readonly replaced: number
}

/** Documents that have all of this. */
export interface Filter {
  /** Each of them. */
  readonly tags?: readonly string[] | undefined
  readonly title?: string | undefined
  readonly source?: string | undefined
  readonly metadata?: Readonly<Record<string, MetadataValue>> | undefined
}

export interface SearchRequest {
  /** Left out: all of the owner's. */
  readonly collection?: string | undefined
  readonly query: string
  /** Clamped to 100. */
  readonly limit?: number | undefined
  /** A name or alias; left out, `hybrid`, or `bm25` where nothing was embedded. */
  readonly strategy?: string | undefined
  /** Hits that score less are left out. */
  readonly threshold?: number | undefined
  readonly rerank?: boolean | undefined
  readonly reranker?: string | undefined
  readonly filter?: Filter | undefined
  readonly signal?: AbortSignal | undefined
}

/** How one part of a search saw a chunk. */
export interface PartOfHit {
  /** From 1. */
  readonly rank: number
  readonly score: number
  /** A BM25 sum or a cosine. */
  readonly raw: number
}

export interface SearchHit {
  /** Of the chunk. */
  readonly id: string
  readonly documentId: string
  readonly collection: string
  readonly content: string
  /** From 0 to 1, on one scale for all strategies. */
  readonly score: number
  readonly title: string | null
  readonly source: string | null
  readonly tags: readonly string[]
  readonly metadata: Readonly<Record<string, MetadataValue>>
  /** Unix time in milliseconds. */
  readonly createdAtMs: number
  /** Place in the document, in UTF-16 units of its text. */
  readonly start: number
  readonly end: number
  readonly parts: Readonly<Partial<Record<'bm25' | 'fuzzy' | 'semantic' | 'rerank', PartOfHit>>>
}

export interface SearchOutcome {
  /** Best first. */
  readonly hits: readonly SearchHit[]
  /** Chunks that answer, before the limit; not fewer than the hits. */
  readonly total: number
  readonly strategy: Strategy
  readonly reranked: boolean
  /** What was taken for words that no chunk has. */
  readonly corrections: readonly { readonly word: string; readonly corrections: readonly string[] }[]
  /** The part of meaning in a hybrid search, from 0 to 1. */
  readonly semanticWeight: number | undefined
  readonly model: string | undefined
}

export interface CollectionInfo {
  readonly name: string
  readonly chunks: number
  readonly documents: number
  /** Of its vectors; 0 when there are none. */
  readonly dimensions: number
  readonly model: string | undefined
  /** The model that it is being embedded with anew. */
  readonly nextModel: string | undefined
  /** Unix times in milliseconds. */
  readonly createdAtMs: number
  readonly updatedAtMs: number
}

/**
 * Documents in collections, and what answers a question in them. What `ingest` and `remove` answered is on disk and is
 * what every later search sees; no search sees a part of a document, or two states of one.
 *
 * Codes: `RAG_INVALID` (of an input; the message says which and why), `RAG_COLLECTION_UNKNOWN`, `RAG_DISABLED` (it needs
 * an encoder, and there is none), `RAG_MODEL_DIFFERS` (the collection has another model; the message says the way out),
 * `RAG_CONFLICT` (the collection was changed again and again under it), `RAG_BUSY` (too many documents are on their way;
 * detail `retryAfterSeconds`), `RAG_JOB_UNKNOWN`, `RAG_ENCODER_FAILED`,
 * `RAG_INDEX_DAMAGED`, those of `workers`, and `RAG_ABORTED` when its signal fired.
 */
export interface Rag {
  ingest(owner: Owner, document: NewDocument, options?: IngestOptions): Promise<Ingested>
  search(owner: Owner, request: SearchRequest): Promise<SearchOutcome>
  /** By name. */
  collections(owner: Owner): Promise<readonly CollectionInfo[]>
  /** Deletes a collection. @returns the chunks that it had */
  remove(owner: Owner, collection: string): Promise<number>
}

declare module '../../kernel/index.ts' {
  interface Services {
    rag: Rag
  }
}
