import { definePlugin, schemaOf } from '../../kernel/index.ts'
import type {} from '../chat/types.ts'
import { type Config, createProvider } from './provider.ts'

const config = schemaOf<Config>({
  type: 'object',
  required: ['base_url', 'models'],
  additionalProperties: false,
  properties: {
    name: { type: 'string', pattern: '^[^/]+$', description: "Left out: the last segment of the entry's id" },
    base_url: {
      type: 'string',
      pattern: '^https?://[^\\s@]+$',
      description: 'Where `/chat/completions` is found, such as `https://api.openai.com/v1`'
    },
    api_key: {
      type: 'string',
      writeOnly: true,
      description: 'Sent as a bearer token; write `${NAME}` and keep it in the environment'
    },
    models: {
      type: 'array',
      items: { type: 'string', minLength: 1 },
      minItems: 1,
      uniqueItems: true,
      description: 'The models that may be used, the default first'
    },
    timeout_ms: {
      type: 'integer',
      minimum: 1,
      // Beyond it the HTTP client of Node gives up by itself.
      maximum: 300_000,
      default: 120_000,
      description: 'Longest silence of the server within a call'
    },
    max_retries: {
      type: 'integer',
      minimum: 0,
      maximum: 10,
      default: 2,
      description: 'Further tries of a call that failed before its answer began'
    },
    retry_delay_ms: {
      type: 'integer',
      minimum: 0,
      default: 500,
      description: 'Before the first further try; doubled before each one after'
    },
    stream_usage: {
      type: 'boolean',
      default: true,
      description: 'Ask for token counts in streams; a few servers refuse the question'
    }
  }
})

/** One server that speaks the OpenAI chat completions API. */
export default definePlugin({
  name: 'openai-compatible',
  config,
  apply(ctx, config) {
    const name = config.name ?? ctx.entry.slice(ctx.entry.lastIndexOf(':') + 1)
    ctx.contribute('chat.providers', createProvider(name, config))
  }
})
