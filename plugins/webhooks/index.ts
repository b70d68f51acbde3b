import { definePlugin, type Plugin, schemaOf } from '../../kernel/index.ts'
import type {} from '../carmy/types.ts'
import type {} from '../http/types.ts'
import type {} from '../jobs/types.ts'
import type {} from '../tools/types.ts'
import { routeOf } from './routes.ts'
import { assertConnected, assertSound, type Webhook } from './webhook.ts'

const text = { type: 'string', minLength: 1 } as const
const secret = { type: 'string', writeOnly: true } as const

const config = schemaOf<{ readonly webhooks: readonly Webhook[] }>({
  type: 'object',
  additionalProperties: false,
  properties: {
    webhooks: {
      type: 'array',
      default: [],
      items: {
        type: 'object',
        required: ['path', 'tool'],
        additionalProperties: false,
        properties: {
          path: { ...text, description: 'Where deliveries are posted, such as /hooks/payments' },
          tool: { ...text, description: 'Is called with the payload as its arguments' },
          mode: {
            enum: ['inline', 'enqueue'],
            default: 'inline',
            description: 'The answer waits for the tool; or the call becomes a job'
          },
          event_id: {
            type: 'string',
            description: 'JSON pointer to what names an event, such as /id: one delivered again does nothing again'
          },
          check: {
            enum: ['hmac-sha256', 'shared-secret'],
            default: 'hmac-sha256',
            description: 'The header holds the HMAC of the body in hex, with or without sha256=; or the secret itself'
          },
          signature_header: { ...text, default: 'x-hub-signature-256' },
          secret: { ...secret, description: 'Write ${NAME} for a variable of the environment' },
          previous_secret: { ...secret, description: 'Is taken as well, while the sender changes to another one' },
          timestamp_header: {
            ...text,
            description: 'Holds Unix seconds; what is signed is then the timestamp, a dot and the body'
          },
          tolerance_seconds: {
            type: 'integer',
            minimum: 1,
            default: 300,
            description: 'How far the timestamp may be off'
          },
          unverified: {
            type: 'boolean',
            default: false,
            description:
              'Anybody may post here: without a secret, the tool is called as for a caller without a credential'
          }
        }
      }
    }
  }
})

export default webhooksAt(Date.now)

/** @param now Unix time in milliseconds */
export function webhooksAt(now: () => number): Plugin {
  return definePlugin({
    name: 'webhooks',
    inject: ['http', 'tools'],
    optional: ['kernel'],
    config,
    apply(ctx, { webhooks }) {
      const { kernel, tools } = ctx.services
      const parts = { tools, jobs: () => ctx.get('jobs') }
      assertSound(webhooks)
      if (kernel?.isReady() ?? true) assertConnected(webhooks, parts)
      // Before that the plugin of a tool may be on its way.
      ctx.on('kernel/started', () => {
        try {
          assertConnected(webhooks, parts)
        } catch (error) {
          ctx.log.error('a webhook cannot do its work', { error })
        }
      })
      ctx.contribute('http.routes', ...webhooks.map((webhook) => routeOf(webhook, parts, now)))
      if (webhooks.length === 0) return
      ctx.contribute('carmy.faces', {
        capability: 'webhooks',
        members: {
          webhooks: webhooks.map(({ path, tool, mode, event_id = null, unverified }) => ({
            path,
            tool,
            mode,
            event_id,
            verified: !unverified
          }))
        }
      })
    }
  })
}
