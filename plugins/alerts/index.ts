import { randomUUID } from 'node:crypto'
import { definePlugin, schemaOf } from '../../kernel/index.ts'
import type {} from '../audit/types.ts'
import type {} from '../http/types.ts'
import type {} from '../stats/types.ts'
import type {} from '../store/types.ts'
import { routes } from './routes.ts'
import { type Config, createAlerts } from './service.ts'
import type {} from './types.ts'

const config = schemaOf<Config>({
  type: 'object',
  additionalProperties: false,
  properties: {
    max_rows: { type: 'integer', minimum: 1, default: 10_000, description: 'Alerts that are kept; the oldest go first' }
  }
})

const prunePeriodMs = 600_000

export default definePlugin({
  name: 'alerts',
  inject: ['store'],
  optional: ['audit'],
  provides: ['alerts'],
  config,
  apply(ctx, config) {
    const { store, audit } = ctx.services
    const alerts = createAlerts(store, audit, config, { now: Date.now, randomUUID })
    ctx.provide('alerts', alerts)
    ctx.contribute('http.routes', ...routes(alerts))
    ctx.contribute('stats', { name: 'active_alerts', value: () => alerts.count() })
    ctx.setInterval(() => alerts.prune(), prunePeriodMs)
  }
})
