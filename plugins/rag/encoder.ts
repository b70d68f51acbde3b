import { CodedError } from '../../kernel/index.ts'
import type { Embeddings } from '../embeddings/types.ts'
import { type CollectionRecord, invalid, shorten } from './records.ts'

type Space = NonNullable<CollectionRecord['vectors']>

/** Which model a collection is embedded with, and its vectors. */
export interface Encoder {
  /** There is an encoder at all. */
  isThere(): boolean
  /**
   * The model for what is put into a collection; `undefined` where it has no vectors.
   * @param record `undefined` for a collection that is to be made
   * @param wanted by the caller
   * @throws CodedError `RAG_DISABLED`, `RAG_MODEL_DIFFERS`, `RAG_INVALID`
   */
  modelFor(name: string, record: CollectionRecord | undefined, wanted: string | undefined): string | undefined
  /**
   * The model that a collection is searched with by meaning.
   * @throws CodedError `RAG_DISABLED`, `RAG_MODEL_DIFFERS`
   */
  modelOf(name: string, record: CollectionRecord): string
  /** @throws CodedError `RAG_INVALID`, `RAG_DISABLED` */
  assertModel(model: string): void
  /** Whether a model is known to give vectors of other dimensions than those that were made with it. */
  hasChanged(space: Space): boolean
  embed(
    model: string,
    texts: readonly string[],
    kind: 'document' | 'query',
    signal: AbortSignal | undefined
  ): Promise<readonly Float32Array[]>
}

/** @param preferred model of new collections; the default one when left out */
export function createEncoder(embeddings: Embeddings | undefined, preferred: string | undefined): Encoder {
  const names = () => embeddings?.models().map((model) => model.name) ?? []
  const list = () => names().join(', ')

  const assertModel = (model: string): void => {
    if (embeddings === undefined) throw disabled('no encoder is there: the program has no entry that gives embeddings')
    if (!names().includes(model)) {
      throw invalid(`Unknown embedding model: ${shorten(model)}. Use one of: ${list()}`)
    }
  }

  const modelOf = (name: string, { vectors }: CollectionRecord): string => {
    if (vectors === undefined) {
      const wayOut = embeddings === undefined ? 'no encoder is there' : 'embed it with POST /api/rag/reembed'
      throw disabled(`collection '${name}' has no vectors; ${wayOut}`)
    }
    if (embeddings === undefined) {
      throw disabled(`collection '${name}' was embedded with '${vectors.model}', and no encoder is there`)
    }
    if (!names().includes(vectors.model)) {
      throw differs(
        `collection '${name}' was embedded with '${vectors.model}' (${vectors.dimensions} dimensions), which no entry ` +
          `provides; bring it back, or embed the collection anew with one of ${list()} (POST /api/rag/reembed)`
      )
    }
    return vectors.model
  }

  return {
    isThere: () => names().length > 0,

    modelFor(name, record, wanted) {
      if (record === undefined) {
        if (wanted !== undefined) {
          assertModel(wanted)
          return wanted
        }
        return preferred !== undefined && names().includes(preferred) ? preferred : names()[0]
      }
      const { vectors } = record
      if (wanted !== undefined && wanted !== vectors?.model) {
        const has = vectors === undefined ? 'has no vectors' : `is embedded with '${vectors.model}'`
        throw differs(
          `collection '${name}' ${has}, not with '${shorten(wanted)}'; leave the model out, embed the collection anew ` +
            '(POST /api/rag/reembed), or take another collection'
        )
      }
      return vectors === undefined ? undefined : modelOf(name, record)
    },

    modelOf,
    assertModel,

    hasChanged({ model, dimensions }) {
      const now = embeddings?.models().find(({ name }) => name === model)?.dimensions
      return now !== undefined && now !== dimensions
    },

    async embed(model, texts, kind, signal) {
      if (embeddings === undefined) throw disabled('no encoder is there')
      // Of documents, only so many are let in; what was begun would be lost just when there is too much to do.
      const goesOn = kind === 'document'
      return embeddings.embed(texts, { model, kind, goesOn, ...(signal === undefined ? {} : { signal }) })
    }
  }
}

/**
 * The files or the server behind a name may have been changed since a collection was embedded.
 * @throws CodedError `RAG_MODEL_DIFFERS`
 */
export function assertDimensions(name: string, { model, dimensions }: Space, vector: Float32Array): void {
  if (vector.length === dimensions) return
  throw differs(
    `collection '${name}' has vectors of ${dimensions} dimensions, and model '${model}' gives ${vector.length} by now; ` +
      'bring the former one back, or embed the collection anew (POST /api/rag/reembed)'
  )
}

export function disabled(message: string): CodedError {
  return new CodedError('RAG_DISABLED', message)
}

function differs(message: string): CodedError {
  return new CodedError('RAG_MODEL_DIFFERS', message)
}
