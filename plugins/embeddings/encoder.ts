/** What one model of the entry is made of. */
export interface Encoder {
  readonly name: string
  /** Tells this encoder from every other one that ever gave vectors: part of the key of the cache. */
  readonly identity: string
  /** `undefined` while it is not known. */
  dimensions(): number | undefined
  /** How texts are cut into batches. */
  readonly batch: BatchLimits
  /** Batches at work at once. */
  readonly parallel: number
  /** What a text becomes before it is embedded. */
  prepare(text: string, kind: 'document' | 'query'): string
  /**
   * @param texts of one batch
   * @returns vectors of unit length, one behind the other
   * @throws CodedError as {@link Embeddings} says
   */
  run(texts: readonly string[], signal: AbortSignal | undefined): Promise<Float32Array>
}

export interface BatchLimits {
  readonly texts: number
  /** UTF-16 units of all texts together; a longer text is a batch of its own. */
  readonly units: number
}
