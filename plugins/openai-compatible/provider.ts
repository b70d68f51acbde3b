import { setTimeout as sleep } from 'node:timers/promises'
import type { LanguageModelV3, LanguageModelV3CallOptions, LanguageModelV3StreamPart } from '@ai-sdk/provider'
import { CodedError, isCoded, messageOf } from '../../kernel/index.ts'
import type { ModelProvider } from '../chat/types.ts'
import { createModelFetch, type Ending } from './fetch.ts'

export interface Config {
  readonly name?: string
  readonly base_url: string
  readonly api_key?: string
  /** At least one; the first is the default. */
  readonly models: readonly string[]
  readonly timeout_ms: number
  readonly max_retries: number
  readonly retry_delay_ms: number
  readonly stream_usage: boolean
}

/** The longest time that a server may ask us to wait before the next try; beyond it the call fails. */
const maxRetryAfterMs = 20_000

export function createProvider(name: string, config: Config): ModelProvider {
  return {
    name,
    models: config.models,
    streamsUsage: config.stream_usage,
    languageModel(model) {
      if (model === name && !config.models.includes(name)) return createModel(name, config.models[0] as string, config)
      if (config.models.includes(model)) return createModel(name, model, config)
      throw new CodedError('CHAT_MODEL_UNKNOWN', `Provider '${name}' has no model '${model}'`)
    }
  }
}

function createModel(provider: string, modelId: string, config: Config): LanguageModelV3 {
  /** The package is large: it is loaded by the first call. */
  async function connect(ending: Ending): Promise<LanguageModelV3> {
    const { createOpenAICompatible } = await import('@ai-sdk/openai-compatible')
    return createOpenAICompatible({
      name: provider,
      baseURL: config.base_url,
      includeUsage: config.stream_usage,
      fetch: createModelFetch(config.timeout_ms, ending),
      ...(config.api_key ? { apiKey: config.api_key } : {})
    }).chatModel(modelId)
  }

  async function attempt<T>(options: LanguageModelV3CallOptions, call: () => PromiseLike<T>): Promise<T> {
    for (let failed = 0; ; failed += 1) {
      try {
        return await call()
      } catch (error) {
        const { abortSignal } = options
        if (abortSignal?.aborted) throw abortSignal.reason
        const delayMs = failed < config.max_retries ? retryDelay(error, failed, config.retry_delay_ms) : undefined
        if (delayMs === undefined) throw toFailure(error, config)
        await sleep(delayMs, undefined, abortSignal === undefined ? {} : { signal: abortSignal })
      }
    }
  }

  return {
    specificationVersion: 'v3',
    provider,
    modelId,
    supportedUrls: {},
    doGenerate: (options) => attempt(options, async () => (await connect({ done: false })).doGenerate(options)),
    doStream: (options) =>
      attempt(options, async () => {
        const ending: Ending = { done: false }
        const result = await (await connect(ending)).doStream(options)
        return { ...result, stream: mend(result.stream, ending, config) }
      })
  }
}

/**
 * The package takes a stream without a finish reason for a broken one; here one that said `[DONE]` is whole. Errors
 * lose what must not go out.
 */
function mend(
  parts: ReadableStream<LanguageModelV3StreamPart>,
  ending: Ending,
  config: Config
): ReadableStream<LanguageModelV3StreamPart> {
  const reader = parts.getReader()
  return new ReadableStream<LanguageModelV3StreamPart>({
    async pull(controller) {
      try {
        let { done, value: part } = await reader.read()
        if (part?.type === 'error' && ending.done && isMissingFinish(part.error)) {
          ;({ done, value: part } = await reader.read())
        }
        if (done || part === undefined) controller.close()
        else if (part.type === 'error') controller.enqueue({ type: 'error', error: toFailure(part.error, config) })
        else if (part.type === 'finish' && ending.done && part.finishReason.raw === undefined) {
          controller.enqueue({ ...part, finishReason: { unified: 'stop', raw: undefined } })
        } else controller.enqueue(part)
      } catch (error) {
        controller.error(toFailure(error, config))
      }
    },
    cancel: (reason) => reader.cancel(reason)
  })
}

/** Milliseconds to wait before the next try; `undefined` when there should be none. */
function retryDelay(error: unknown, failed: number, firstDelayMs: number): number | undefined {
  const refused = error as { isRetryable?: boolean; responseHeaders?: Record<string, string> } | undefined
  if (refused?.isRetryable !== true) return undefined
  const askedMs = Number(refused.responseHeaders?.['retry-after']) * 1_000
  if (!(askedMs > 0)) return firstDelayMs * 2 ** failed
  return askedMs <= maxRetryAfterMs ? askedMs : undefined
}

/** What the package throws names the host and repeats what the server said: the log gets that, the message does not. */
function toFailure(error: unknown, config: Config): CodedError {
  const chain = [...causes(error)]
  const coded = chain.find((link) => isCoded(link))
  if (coded !== undefined) return coded as CodedError
  const whole = chain.map(describe).join(': ')
  const reason = config.api_key ? whole.replaceAll(config.api_key, '[api_key]') : whole
  const detail = { reason: reason.slice(0, 500) }
  const network = chain.map((link) => (link as { code?: unknown }).code).find((code) => typeof code === 'string') ?? ''
  if (/^(?:E(?:CONNREFUSED|NOTFOUND|AI_AGAIN|HOST|NET)|UND_ERR_CONNECT)/.test(network)) {
    return new CodedError('CHAT_PROVIDER_UNREACHABLE', 'the provider cannot be reached', { detail })
  }
  if (isMissingFinish(error) || /^(?:E(?:CONN|PIPE)|UND_ERR_)/.test(network)) {
    return new CodedError('CHAT_PROVIDER_CLOSED', 'the provider closed the connection', { detail })
  }
  const status = (error as { statusCode?: number } | undefined)?.statusCode
  return new CodedError('CHAT_PROVIDER_FAILED', `the provider failed (status ${status ?? 'unknown'})`, { detail })
}

function isMissingFinish(error: unknown): boolean {
  return error instanceof Error && error.name === 'AI_InvalidResponseDataError'
}

function* causes(error: unknown): Generator<unknown> {
  let link = error
  for (let depth = 0; depth < 10 && link !== undefined && link !== null; depth += 1) {
    yield link
    link = (link as { cause?: unknown }).cause
  }
}

/** An error, or what a server sent as one. */
function describe(error: unknown): string {
  return typeof error === 'object' && !(error instanceof Error) ? JSON.stringify(error) : messageOf(error)
}
