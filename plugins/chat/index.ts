import { definePlugin, schemaOf } from '../../kernel/index.ts'
import type { NewAlert } from '../alerts/types.ts'
import type {} from '../http/types.ts'
import type {} from '../stats/types.ts'
import type {} from '../store/types.ts'
import type {} from '../tenants/types.ts'
import type {} from '../tools/types.ts'
import { type Config, createChat } from './chat.ts'
import { conversationRoutes } from './conversation-routes.ts'
import { createConversations } from './conversations.ts'
import { createId } from './ids.ts'
import { createRegistry } from './registry.ts'
import { routes } from './routes.ts'
import { createTally } from './tally.ts'

const config = schemaOf<Config>({
  type: 'object',
  additionalProperties: false,
  properties: {
    history_messages: {
      type: 'integer',
      minimum: 0,
      maximum: 1_000,
      default: 10,
      description: 'Messages of the conversation that the model is shown again'
    },
    max_message_chars: {
      type: 'integer',
      minimum: 1,
      default: 100_000,
      description: 'Longest message, in UTF-16 units'
    }
  }
})

const flushPeriodMs = 5_000

export default definePlugin({
  name: 'chat',
  inject: ['store', 'tools'],
  optional: ['tenants'],
  provides: ['chat'],
  config,
  apply(ctx, config) {
    const { store, tools, tenants } = ctx.services
    const registry = createRegistry()
    ctx.collect('chat.agents', registry.agentCollector)
    ctx.collect('chat.providers', registry.providerCollector)
    ctx.collect('chat.own-agents', registry.ownCollector)
    const tally = createTally(store, Date.now)
    const flush = () => tally.flush().catch((error: unknown) => ctx.log.warn('turns could not be counted', { error }))
    ctx.effect(() => flush, 'tally')
    const raise = (alert: NewAlert): void => {
      // Nobody waits for it, and there may be nobody to tell.
      void ctx
        .get('alerts')
        ?.raise(alert)
        .catch((error: unknown) => ctx.log.warn('an alert could not be raised', { error }))
    }
    const chat = createChat({
      registry,
      store,
      tools,
      tenants,
      tally,
      raise,
      log: ctx.log,
      config,
      now: Date.now,
      newId: () => createId(Date.now())
    })
    ctx.provide('chat', chat)
    ctx.contribute('tenants.data', {
      name: 'conversations',
      remove: (tenantId, most) => createConversations(store, 'tenant').clear(tenantId, most)
    })
    ctx.contribute('http.routes', ...routes(chat), ...conversationRoutes(createConversations(store)))
    ctx.setInterval(flush, flushPeriodMs)
    ctx.contribute(
      'stats',
      { name: 'total_agents', value: () => registry.agents().length },
      { name: 'total_runs_today', value: async () => (await tally.today()).runs },
      { name: 'total_tokens_today', value: async () => (await tally.today()).tokens }
    )
    ctx.contribute(
      'http.info',
      { name: 'agents', values: () => registry.agents().map(({ item }) => item.name) },
      { name: 'providers', values: () => registry.providerNames() },
      { name: 'models', values: () => registry.modelNames() }
    )
  }
})
