import type {} from '../../kernel/index.ts'

/** An encoder that the entry names. */
export interface EmbeddingModel {
  /** Unique in the entry. What was embedded by one model is compared only with what the same one embedded. */
  readonly name: string
  /** Of its vectors; `undefined` for a model of a remote server that has not answered yet, and whose config leaves it out. */
  readonly dimensions: number | undefined
}

export interface EmbedOptions {
  /** Its name; the default model when left out. */
  readonly model?: string
  /** Some models want to know on which side of a search a text stands. `query` goes before documents that wait. */
  readonly kind?: 'document' | 'query'
  readonly signal?: AbortSignal
  /** With work that was let in before: it is not refused however much waits. */
  readonly goesOn?: boolean
  /** Told after each batch: how many of the texts are done. */
  readonly onProgress?: (done: number) => void
}

/**
 * Turns texts into vectors whose cosine tells how near their meanings are.
 *
 * Codes: `EMBEDDINGS_MODEL_UNKNOWN` (no entry names it), `EMBEDDINGS_UNAVAILABLE` (the model cannot be loaded, its
 * thread died twice, or the server is away, refuses or does not answer in time; detail `model`, and `reason` for the
 * log), `EMBEDDINGS_BUSY` (the server refuses for now, or too many texts wait; detail `retryAfterSeconds`),
 * `EMBEDDINGS_DIMENSIONS` (vectors of another length than the config or an earlier answer said; detail `expected` and
 * `found`), `EMBEDDINGS_INVALID` (what came is no vector of finite numbers). An aborted call rejects with the reason of
 * its signal.
 */
export interface Embeddings {
  /** The default first. Nothing is loaded or asked for it. */
  models(): readonly EmbeddingModel[]
  /**
   * Vectors of unit length, in the order of `texts`. Any number of texts may be given: they are cut into batches here,
   * and what was embedded before is not embedded again. A long text is read from its beginning, as far as the model reads.
   */
  embed(texts: readonly string[], options?: EmbedOptions): Promise<readonly Float32Array[]>
}

declare module '../../kernel/index.ts' {
  interface Services {
    embeddings: Embeddings
  }
}
