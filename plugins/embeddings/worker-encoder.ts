import { CodedError, isCoded, messageOf } from '../../kernel/index.ts'
import type { Workers, WorkerTask } from '../workers/types.ts'
import type { Encoder } from './encoder.ts'

export interface WorkerEncoderOptions {
  readonly name: string
  readonly identity: string
  /** What its vectors must have; `undefined` when they tell it. */
  readonly dimensions: number | undefined
  /** Threads at work at once. */
  readonly threads: number
  /** The task that embeds, and what it is told besides the texts. */
  readonly task: string | WorkerTask
  readonly input: Readonly<Record<string, unknown>>
  readonly prefixes: { readonly document: string; readonly query: string }
  /** UTF-16 units of a text that can matter. */
  readonly maxTextUnits: number
}

/** A batch is about a fifth of a second of one thread: so long does a query wait behind documents. */
const batch = { texts: 32, units: 2_400 }

/** An encoder that computes in worker threads. */
export function createWorkerEncoder(workers: Workers, options: WorkerEncoderOptions): Encoder {
  const { name, identity, task, prefixes } = options
  let { dimensions } = options

  async function attempt(texts: readonly string[]): Promise<Float32Array> {
    const input = { ...options.input, texts }
    // The caller's signal is not handed over: it would end the thread, and the model with it. What comes here was let in
    // by the queue of the model, which knows what may be refused.
    const run = (): Promise<Float32Array> => workers.run<Float32Array>(task, input, { goesOn: true })
    try {
      return await run()
    } catch (error) {
      if (!isCoded(error, 'WORKERS_CRASHED')) throw error
      return run()
    }
  }

  return {
    name,
    identity,
    dimensions: () => dimensions,
    batch,
    parallel: options.threads,
    prepare: (text, kind) => prefixes[kind] + text.slice(0, options.maxTextUnits),
    async run(texts) {
      let rows: Float32Array
      try {
        rows = await attempt(texts)
      } catch (error) {
        throw toFailure(name, error)
      }
      const found = rows.length / texts.length
      dimensions ??= found
      if (found !== dimensions) {
        throw new CodedError(
          'EMBEDDINGS_DIMENSIONS',
          `model '${name}' gives vectors of ${found} dimensions, not of ${dimensions}`,
          { detail: { model: name, expected: dimensions, found } }
        )
      }
      if (!rows.every(Number.isFinite)) {
        throw new CodedError('EMBEDDINGS_INVALID', `model '${name}' gave a vector that is not of finite numbers`, {
          detail: { model: name }
        })
      }
      return rows
    }
  }
}

function toFailure(model: string, error: unknown): unknown {
  if (!isCoded(error)) return error
  const detail = (error.detail ?? {}) as Record<string, unknown>
  if (error.code === 'WORKERS_CRASHED') {
    return new CodedError('EMBEDDINGS_UNAVAILABLE', `the thread of embedding model '${model}' died twice`, {
      cause: error,
      detail: { model, reason: messageOf(error) }
    })
  }
  // Nobody but the server or the entry ends a thread that embeds.
  if (error.code === 'WORKERS_ABORTED') {
    return new CodedError('EMBEDDINGS_UNAVAILABLE', `embedding model '${model}' was stopped while it was at work`, {
      cause: error,
      detail: { model, reason: messageOf(error) }
    })
  }
  if (error.code === 'WORKERS_FAILED' || error.code === 'EMBEDDINGS_UNAVAILABLE') {
    return new CodedError('EMBEDDINGS_UNAVAILABLE', `embedding model '${model}' cannot be used: ${error.message}`, {
      cause: error,
      detail: { model, reason: detail['reason'] ?? error.message }
    })
  }
  return error
}
