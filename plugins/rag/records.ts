import { CodedError } from '../../kernel/index.ts'
import type { Reader, Versioned } from '../store/types.ts'
import type { MetadataValue, Owner } from './types.ts'
import { isBlank, toWellFormed } from './units.ts'

/** Where the vectors of a collection are, and what made them. */
export interface VectorSpace {
  /** Names the index of vectors; never given twice. */
  readonly index: string
  readonly model: string
  readonly dimensions: number
}

/** Kept under `[owner kind, owner id, name]`. */
export interface CollectionRecord {
  /** Names everything the collection has, also its text index; never given twice. */
  readonly id: string
  readonly createdAtMs: number
  readonly updatedAtMs: number
  readonly documents: number
  readonly chunks: number
  readonly vectors?: VectorSpace
  /** What it is being embedded with anew, of how many documents the vectors are there, and the job that does it. */
  readonly next?: VectorSpace & { readonly done: number; readonly job: string }
}

/** Kept under `[collection id, document id]`. While there is none, its chunks do not exist. */
export interface DocumentRecord {
  readonly title: string | null
  readonly source: string | null
  readonly tags: readonly string[]
  readonly metadata: Readonly<Record<string, MetadataValue>>
  readonly createdAtMs: number
  /** Ordinals of its chunks: from `first`, `count` of them. */
  readonly first: number
  readonly count: number
  /** By which a later document is known as the same. */
  readonly identities: readonly string[]
  /** Indexes of vectors that have its chunks. */
  readonly spaces: readonly string[]
}

/** Kept under `[collection id, ordinal]`. */
export interface ChunkRecord {
  readonly document: string
  /** From 0 in its document. */
  readonly number: number
  readonly text: string
  readonly start: number
  readonly end: number
}

/**
 * What is to be taken away, or is being written and will be if it is cut short. Kept under `[collection id, first
 * ordinal]`; -1 for all that a collection had.
 */
export interface LooseRecord {
  readonly count: number
  /** There is no collection yet. */
  readonly unborn: boolean
}

/** Names of the collections of the store. */
export const kept = {
  collections: 'rag-collections',
  documents: 'rag-documents',
  /** `[collection id, identity]` → document id. */
  identities: 'rag-identities',
  chunks: 'rag-chunks',
  loose: 'rag-loose-chunks',
  /** `[collection id]` → how far its list of meaning is to be believed. */
  trusts: 'rag-trusts',
  /** `[owner kind, owner id, job id]` */
  jobs: 'rag-jobs',
  /** `[job id, number]` → a piece of the text of a document that is to be taken in. */
  spool: 'rag-spool'
} as const

const maxNameUnits = 256

export const keyOf = (owner: Owner, name: string) => [owner.kind, owner.id, name] as const

export async function findCollection(
  reader: Reader,
  owner: Owner,
  name: string
): Promise<Versioned<CollectionRecord> | undefined> {
  return reader.get<CollectionRecord>(kept.collections, keyOf(owner, name))
}

export function unknownCollection(name: string): CodedError {
  return new CodedError('RAG_COLLECTION_UNKNOWN', `Collection '${shorten(name)}' not found`)
}

export function invalid(message: string): CodedError {
  return new CodedError('RAG_INVALID', message)
}

/** The name of a collection is whatever somebody calls it: it never becomes a path. @throws CodedError `RAG_INVALID` */
export function checkName(name: string): string {
  if (isBlank(name)) throw invalid('Collection name required')
  if (name.length > maxNameUnits) {
    throw invalid(`Collection name has ${name.length} characters, at most ${maxNameUnits} are allowed`)
  }
  if (/\p{Cc}/u.test(name)) throw invalid('Collection name has a control character')
  if (/\p{Surrogate}/u.test(name)) throw invalid('Collection name has half of a surrogate pair')
  return name
}

export function shorten(text: string): string {
  return text.length > 80 ? `${toWellFormed(text.slice(0, 79))}…` : text
}
