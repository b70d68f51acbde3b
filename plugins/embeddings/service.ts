import { CodedError } from '../../kernel/index.ts'
import { cacheKey, type VectorCache } from './cache.ts'
import type { BatchLimits, Encoder } from './encoder.ts'
import { createQueue, type Queue } from './queue.ts'
import type { Embeddings } from './types.ts'

/** Vectors of queries that are kept in memory, for each model. */
const keptQueries = 500

interface Served {
  readonly encoder: Encoder
  readonly queue: Queue
  /** The oldest first. */
  readonly queries: Map<string, Float32Array>
}

/**
 * @param encoders at least one, the default first
 * @param now milliseconds, monotonic
 */
export function createEmbeddings(
  encoders: readonly Encoder[],
  cache: VectorCache | undefined,
  now: () => number
): Embeddings {
  const served = new Map<string, Served>(
    encoders.map((encoder) => [
      encoder.name,
      { encoder, queue: createQueue(encoder.name, encoder.parallel, now), queries: new Map() }
    ])
  )

  function find(name: string | undefined): Served {
    const found = served.get(name ?? encoders[0]!.name)
    if (found === undefined) {
      const names = [...served.keys()].join(', ')
      throw new CodedError('EMBEDDINGS_MODEL_UNKNOWN', `there is no embedding model '${name}', only ${names}`, {
        detail: { model: name }
      })
    }
    return found
  }

  return {
    models: () => encoders.map((encoder) => ({ name: encoder.name, dimensions: encoder.dimensions() })),

    async embed(texts, { model, kind = 'document', signal, goesOn = false, onProgress } = {}) {
      const { encoder, queue, queries } = find(model)
      signal?.throwIfAborted()
      // Texts that are the same are embedded once.
      const vectors = new Map<string, Float32Array>()
      const prepared = texts.map((text) => encoder.prepare(text, kind))
      const different = [...new Set(prepared)]
      let done = 0
      const tell = (count: number): void => {
        done += count
        onProgress?.(Math.min(texts.length, done + texts.length - different.length))
      }

      if (kind === 'query') {
        for (const text of different) {
          const known = queries.get(text)
          if (known !== undefined) vectors.set(text, known)
        }
      } else if (cache !== undefined) {
        for (const some of batchesOf(different, { texts: 64, units: 1_048_576 })) {
          const found = await cache.get(some.map((text) => cacheKey(encoder.identity, text)))
          found.forEach((vector, at) => vector && vectors.set(some[at]!, vector))
          signal?.throwIfAborted()
        }
      }
      // What was kept of a model that has had its files or its server changed may have another length by now.
      const isUsable = (text: string): boolean => {
        const length = vectors.get(text)?.length
        return length !== undefined && length === (encoder.dimensions() ?? length)
      }
      const missing = different.filter((text) => !isUsable(text))
      if (missing.length < different.length) tell(different.length - missing.length)

      let failed = false
      const embedBatch = async (batch: readonly string[]): Promise<void> => {
        signal?.throwIfAborted()
        if (failed) return
        try {
          const rows = await encoder.run(batch, signal)
          const dimensions = rows.length / batch.length
          const found = batch.map((text, at) => [text, rows.subarray(at * dimensions, (at + 1) * dimensions)] as const)
          for (const [text, vector] of found) vectors.set(text, vector)
          if (kind === 'query') keep(queries, found)
          else void cache?.put(found.map(([text, vector]) => [cacheKey(encoder.identity, text), vector]))
        } catch (error) {
          failed = true
          throw error
        }
        tell(batch.length)
      }
      const embedAll = async (some: readonly string[]): Promise<void> => {
        // A batch takes as long as its longest text makes it: texts of about one length go together.
        const batches = batchesOf(
          some.toSorted((a, b) => a.length - b.length),
          encoder.batch
        )
        const urgent = kind === 'query'
        await allOf(batches.map((batch) => queue.run(() => embedBatch(batch), { urgent, goesOn, signal })))
      }
      await embedAll(missing)
      // The first answer may have told the length.
      const odd = different.filter((text) => !isUsable(text))
      if (odd.length > 0) await embedAll(odd)
      return prepared.map((text) => vectors.get(text)!)
    }
  }
}

/** The first failure, but only after everything that was begun has ended. */
async function allOf(work: readonly Promise<void>[]): Promise<void> {
  const failed = (await Promise.allSettled(work)).find((outcome) => outcome.status === 'rejected')
  if (failed !== undefined) throw failed.reason
}

function keep(queries: Map<string, Float32Array>, found: readonly (readonly [string, Float32Array])[]): void {
  for (const [text, vector] of found) queries.set(text, vector.slice())
  for (const text of queries.keys()) {
    if (queries.size <= keptQueries) return
    queries.delete(text)
  }
}

function batchesOf(texts: readonly string[], limits: BatchLimits): string[][] {
  const batches: string[][] = []
  let units = Number.POSITIVE_INFINITY
  for (const text of texts) {
    const last = batches.at(-1)
    if (last === undefined || last.length >= limits.texts || units + text.length > limits.units) {
      batches.push([text])
      units = text.length
    } else {
      last.push(text)
      units += text.length
    }
  }
  return batches
}
