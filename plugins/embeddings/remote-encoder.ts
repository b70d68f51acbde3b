import { setTimeout as sleep } from 'node:timers/promises'
import { CodedError, isCoded, messageOf } from '../../kernel/index.ts'
import type { Encoder } from './encoder.ts'
import { toUnitLength } from './unit-length.ts'

export interface RemoteOptions {
  readonly name: string
  /** Where `/embeddings` is found. */
  readonly baseUrl: string
  readonly apiKey: string | undefined
  /** What the server calls it. */
  readonly model: string
  /** `undefined` when the first answer shall tell. */
  readonly dimensions: number | undefined
  /** Ask the server for vectors of that many dimensions; many servers refuse the question. */
  readonly askDimensions: boolean
  readonly prefixes: { readonly document: string; readonly query: string }
  readonly maxTextUnits: number
  readonly batchTexts: number
  /** Requests at once. */
  readonly parallel: number
  readonly timeoutMs: number
  readonly maxRetries: number
  readonly retryDelayMs: number
}

/** The longest time that a server may ask us to wait before the next try; beyond it the call fails. */
const maxRetryAfterMs = 20_000
/** Far above what a batch of vectors takes, and a bound for a server that does not end. */
const maxAnswerBytes = 64 * 1024 * 1024
const maxBatchUnits = 262_144

/** An answer that may be another one the next time. */
class Passing extends Error {
  readonly retryAfterMs: number | undefined
  constructor(message: string, retryAfterMs?: number) {
    super(message)
    this.retryAfterMs = retryAfterMs
  }
}

/** An encoder behind any server that speaks the OpenAI embeddings API. */
export function createRemoteEncoder(options: RemoteOptions): Encoder {
  const { name, prefixes } = options
  const url = `${options.baseUrl.replace(/\/+$/, '')}/embeddings`
  let { dimensions } = options

  async function ask(texts: readonly string[], signal: AbortSignal | undefined): Promise<unknown> {
    const timeout = AbortSignal.timeout(options.timeoutMs)
    try {
      const response = await fetch(url, {
        method: 'POST',
        // A key is meant for one host.
        redirect: 'manual',
        headers: {
          'content-type': 'application/json',
          accept: 'application/json',
          ...(options.apiKey ? { authorization: `Bearer ${options.apiKey}` } : {})
        },
        body: JSON.stringify({
          model: options.model,
          input: texts,
          encoding_format: 'float',
          ...(options.askDimensions && options.dimensions !== undefined ? { dimensions: options.dimensions } : {})
        }),
        signal: signal === undefined ? timeout : AbortSignal.any([signal, timeout])
      })
      const body = await readBody(response)
      if (response.ok) return JSON.parse(body)
      const what = `status ${response.status}: ${body.slice(0, 300)}`
      if (response.status !== 429 && response.status !== 408 && response.status < 500) throw new Error(what)
      throw new Passing(what, toDelayMs(response.headers.get('retry-after')))
    } catch (error) {
      signal?.throwIfAborted()
      if (timeout.aborted) throw new Passing(`no answer within ${options.timeoutMs} ms`)
      // What `fetch` throws when the connection fails.
      if (error instanceof TypeError) throw new Passing(reasonOf(error))
      throw error
    }
  }

  async function askUntilAnswered(texts: readonly string[], signal: AbortSignal | undefined): Promise<unknown> {
    for (let failed = 0; ; failed++) {
      try {
        return await ask(texts, signal)
      } catch (error) {
        signal?.throwIfAborted()
        const asked = error instanceof Passing ? error.retryAfterMs : undefined
        const retries = error instanceof Passing && failed < options.maxRetries && (asked ?? 0) <= maxRetryAfterMs
        if (!retries) throw toFailure(error)
        await sleep(asked ?? options.retryDelayMs * 2 ** failed, undefined, signal === undefined ? {} : { signal })
      }
    }
  }

  function toFailure(error: unknown): CodedError {
    const whole = reasonOf(error)
    const reason = (options.apiKey ? whole.replaceAll(options.apiKey, '[api_key]') : whole).slice(0, 500)
    if (error instanceof Passing && error.retryAfterMs !== undefined) {
      const retryAfterSeconds = Math.ceil(error.retryAfterMs / 1_000)
      return new CodedError('EMBEDDINGS_BUSY', `the server of embedding model '${name}' refuses for now`, {
        detail: { model: name, retryAfterSeconds, reason }
      })
    }
    return new CodedError(
      'EMBEDDINGS_UNAVAILABLE',
      `the server of embedding model '${name}' does not answer as it should`,
      {
        detail: { model: name, reason }
      }
    )
  }

  function invalid(what: string): CodedError {
    return new CodedError('EMBEDDINGS_INVALID', `the server of embedding model '${name}' sent ${what}`, {
      detail: { model: name }
    })
  }

  function toRows(answer: unknown, count: number): Float32Array {
    const data = (answer as { data?: unknown } | null)?.data
    if (!Array.isArray(data)) throw invalid('no list of vectors')
    if (data.length !== count) throw invalid(`${data.length} vectors for ${count} texts`)
    let rows: Float32Array | undefined
    const filled = new Set<number>()
    for (const [at, item] of (data as ({ index?: unknown; embedding?: unknown } | null)[]).entries()) {
      const vector = item?.embedding
      if (!Array.isArray(vector) || vector.length === 0) throw invalid('something that is no vector')
      dimensions ??= vector.length
      if (vector.length !== dimensions) {
        throw new CodedError(
          'EMBEDDINGS_DIMENSIONS',
          `the server of embedding model '${name}' sent a vector of ${vector.length} dimensions, not of ${dimensions}`,
          { detail: { model: name, expected: dimensions, found: vector.length } }
        )
      }
      const place = item?.index ?? at
      if (!Number.isInteger(place) || (place as number) < 0 || (place as number) >= count)
        throw invalid('a wrong index')
      filled.add(place as number)
      rows ??= new Float32Array(count * dimensions)
      for (const [column, number] of vector.entries()) {
        if (typeof number !== 'number' || !Number.isFinite(number))
          throw invalid('a vector that is not of finite numbers')
        rows[(place as number) * dimensions + column] = number
      }
    }
    if (filled.size !== count) throw invalid('two vectors for one text')
    return toUnitLength(rows!, dimensions!)
  }

  return {
    name,
    identity: JSON.stringify(['openai', url, options.model, options.dimensions ?? null, options.askDimensions]),
    dimensions: () => dimensions,
    batch: { texts: options.batchTexts, units: maxBatchUnits },
    parallel: options.parallel,
    // Half of a surrogate pair is no text; some servers refuse it, and the rest make something of their own of it.
    prepare: (text, kind) => prefixes[kind] + text.slice(0, options.maxTextUnits).replace(/\p{Surrogate}/gu, '\ufffd'),
    run: async (texts, signal) => toRows(await askUntilAnswered(texts, signal), texts.length)
  }
}

async function readBody(response: Response): Promise<string> {
  const chunks: Uint8Array[] = []
  let bytes = 0
  for await (const chunk of response.body ?? []) {
    bytes += (chunk as Uint8Array).byteLength
    if (bytes > maxAnswerBytes) throw new Error(`the answer is longer than ${maxAnswerBytes} bytes`)
    chunks.push(chunk as Uint8Array)
  }
  return Buffer.concat(chunks).toString('utf8')
}

/** Of a `Retry-After` in seconds, or as a date. */
function toDelayMs(header: string | null): number | undefined {
  if (header === null) return undefined
  const seconds = Number(header)
  const delayMs = Number.isFinite(seconds) ? seconds * 1_000 : Date.parse(header) - Date.now()
  return Number.isFinite(delayMs) ? Math.max(0, delayMs) : undefined
}

function reasonOf(error: unknown): string {
  if (isCoded(error)) return error.message
  const cause = error instanceof Error ? error.cause : undefined
  return cause === undefined ? messageOf(error) : `${messageOf(error)}: ${messageOf(cause)}`
}
