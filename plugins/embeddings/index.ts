import { availableParallelism } from 'node:os'
import { CodedError, definePlugin, schemaOf } from '../../kernel/index.ts'
import type {} from '../store/types.ts'
import type { Workers, WorkerTask } from '../workers/types.ts'
import { createVectorCache } from './cache.ts'
import type { Encoder } from './encoder.ts'
import { findModel } from './model-folder.ts'
import { createRemoteEncoder } from './remote-encoder.ts'
import { createEmbeddings } from './service.ts'
import type {} from './types.ts'
import { createWorkerEncoder } from './worker-encoder.ts'

interface Config {
  /** The default first. */
  readonly models: readonly ModelConfig[]
  /** Threads that embed at once. */
  readonly threads?: number
  readonly cache_entries: number
}

type ModelConfig = EnergeticConfig | OnnxConfig | OpenAiConfig

interface Common {
  readonly name: string
  readonly document_prefix: string
  readonly query_prefix: string
  readonly max_text_chars: number
}

interface EnergeticConfig extends Common {
  readonly provider: 'energetic'
}

interface OnnxConfig extends Common {
  readonly provider: 'onnx'
  readonly path?: string
  readonly dimensions?: number
  readonly max_tokens: number
  readonly pooling: 'mean' | 'first'
}

interface OpenAiConfig extends Common {
  readonly provider: 'openai'
  readonly base_url: string
  readonly api_key?: string
  readonly model?: string
  readonly dimensions?: number
  readonly ask_dimensions: boolean
  readonly batch_texts: number
  readonly parallel_requests: number
  readonly timeout_ms: number
  readonly max_retries: number
  readonly retry_delay_ms: number
}

const shipped = { name: 'use-lite', provider: 'energetic' } as const

const config = schemaOf<Config>({
  type: 'object',
  additionalProperties: false,
  properties: {
    models: {
      type: 'array',
      minItems: 1,
      default: [shipped],
      description: 'The models that may be used, the default first',
      items: {
        type: 'object',
        additionalProperties: false,
        required: ['name', 'provider'],
        properties: {
          name: { type: 'string', minLength: 1, maxLength: 200, description: 'What collections remember' },
          provider: {
            enum: ['energetic', 'onnx', 'openai'],
            description:
              '`energetic`: the sentence encoder that ships with Heartwood (English, 512 dimensions); `onnx`: a ' +
              'folder with an ONNX model; `openai`: a server that speaks the OpenAI embeddings API'
          },
          document_prefix: { type: 'string', default: '', description: 'Put before texts that are stored' },
          query_prefix: { type: 'string', default: '', description: 'Put before texts that are sought' },
          max_text_chars: {
            type: 'integer',
            minimum: 1,
            default: 8_000,
            description: 'Of one text; what comes behind is not read'
          },
          path: {
            type: 'string',
            minLength: 1,
            description: 'onnx: a folder with `model.onnx` (also in `onnx/`) and `tokenizer.json`'
          },
          max_tokens: { type: 'integer', minimum: 2, maximum: 32_768, default: 512, description: 'onnx: of one text' },
          pooling: {
            enum: ['mean', 'first'],
            default: 'mean',
            description: 'onnx: what becomes of the vectors of the tokens; `first` for models that say CLS'
          },
          base_url: {
            type: 'string',
            pattern: '^https?://[^\\s@]+$',
            description: 'openai: where `/embeddings` is found, such as `https://api.openai.com/v1`'
          },
          api_key: {
            type: 'string',
            writeOnly: true,
            description: 'openai: sent as a bearer token; write `${NAME}` and keep it in the environment'
          },
          model: { type: 'string', minLength: 1, description: 'openai: what the server calls it; default: its name' },
          dimensions: { type: 'integer', minimum: 1, maximum: 65_536, description: 'What its vectors must have' },
          ask_dimensions: {
            type: 'boolean',
            default: false,
            description: 'openai: ask the server for vectors of so many dimensions; many servers refuse that'
          },
          batch_texts: {
            type: 'integer',
            minimum: 1,
            maximum: 2_048,
            default: 64,
            description: 'openai: of one request'
          },
          parallel_requests: { type: 'integer', minimum: 1, maximum: 64, default: 4, description: 'openai: at once' },
          timeout_ms: {
            type: 'integer',
            minimum: 1,
            maximum: 300_000,
            default: 60_000,
            description: 'openai: of one request'
          },
          max_retries: {
            type: 'integer',
            minimum: 0,
            maximum: 10,
            default: 3,
            description: 'openai: further tries where a server is away, busy or broken'
          },
          retry_delay_ms: {
            type: 'integer',
            minimum: 0,
            default: 500,
            description: 'openai: before the first further try; doubled before each one after'
          }
        }
      }
    },
    threads: {
      type: 'integer',
      minimum: 1,
      maximum: 64,
      description: 'That embed at once; default: one a core but one'
    },
    cache_entries: {
      type: 'integer',
      minimum: 0,
      default: 50_000,
      description: 'Vectors of texts that are kept, so that the same text is not embedded again; about 3 KB each'
    }
  }
})

/** A model takes half a second to load and holds some 100 MB: a thread waits five minutes for more texts. */
const inPool = { pool: 'embed', poolDefaults: { idleTimeoutMs: 300_000, maxHeapMb: 512 } } as const
const tasks = {
  energetic: {
    ...inPool,
    name: 'embeddings/embed-energetic',
    module: new URL('./tasks/embed-energetic.js', import.meta.url).href
  },
  onnx: {
    ...inPool,
    name: 'embeddings/embed-onnx',
    module: new URL('./tasks/embed-onnx.js', import.meta.url).href,
    isUnstoppable: true
  }
} as const satisfies Readonly<Record<string, WorkerTask>>

export default definePlugin({
  name: 'embeddings',
  inject: ['store', 'workers'],
  provides: ['embeddings'],
  config,
  async apply(ctx, config) {
    const { store, workers } = ctx.services
    const threads = config.threads ?? Math.max(1, availableParallelism() - 1)
    const encoders = await Promise.all(config.models.map((model) => toEncoder(model, workers, threads)))
    const names = encoders.map((encoder) => encoder.name)
    const twice = names.find((name, at) => names.indexOf(name) !== at)
    if (twice !== undefined) {
      throw new CodedError('EMBEDDINGS_DUPLICATE_MODEL', `two models are called '${twice}': give each another name`)
    }
    const cache = config.cache_entries < 2 ? undefined : createVectorCache(store, config.cache_entries, ctx.log)
    if (cache !== undefined) ctx.effect(() => () => cache.settled(), 'cache of embeddings')
    ctx.provide(
      'embeddings',
      createEmbeddings(encoders, cache, () => performance.now())
    )
    ctx.contribute('workers.tasks', tasks.energetic, tasks.onnx)
  }
})

/** @throws CodedError `EMBEDDINGS_CONFIG_INVALID`, `EMBEDDINGS_FOLDER_INVALID` */
async function toEncoder(model: ModelConfig, workers: Workers, threads: number): Promise<Encoder> {
  const common = {
    name: model.name,
    prefixes: { document: model.document_prefix, query: model.query_prefix },
    maxTextUnits: model.max_text_chars
  }
  switch (model.provider) {
    case 'energetic':
      return createWorkerEncoder(workers, {
        ...common,
        identity: 'energetic-en-0.2.0',
        dimensions: 512,
        threads,
        task: tasks.energetic,
        input: {}
      })
    case 'onnx': {
      const { stamp, ...files } = await findModel(model.name, required(model, 'path'))
      const settings = { maxTokens: model.max_tokens, pooling: model.pooling }
      return createWorkerEncoder(workers, {
        ...common,
        identity: JSON.stringify(['onnx', stamp, settings]),
        dimensions: model.dimensions,
        threads,
        task: tasks.onnx,
        input: { ...files, ...settings }
      })
    }
    case 'openai':
      return createRemoteEncoder({
        ...common,
        baseUrl: required(model, 'base_url'),
        apiKey: model.api_key,
        model: model.model ?? model.name,
        dimensions: model.dimensions,
        askDimensions: model.ask_dimensions,
        batchTexts: model.batch_texts,
        parallel: model.parallel_requests,
        timeoutMs: model.timeout_ms,
        maxRetries: model.max_retries,
        retryDelayMs: model.retry_delay_ms
      })
  }
}

function required<M extends ModelConfig, K extends keyof M & string>(model: M, key: K): NonNullable<M[K]> {
  const value = model[key]
  if (value === undefined || value === null) {
    throw new CodedError(
      'EMBEDDINGS_CONFIG_INVALID',
      `embedding model '${model.name}' (${model.provider}) needs ${key}`
    )
  }
  return value
}
