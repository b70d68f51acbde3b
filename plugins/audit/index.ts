import { randomUUID } from 'node:crypto'
import { definePlugin, schemaOf } from '../../kernel/index.ts'
import type {} from '../http/types.ts'
import type {} from '../store/types.ts'
import { routes } from './routes.ts'
import { createAudit, createState, type Options } from './service.ts'
import type {} from './types.ts'

const config = schemaOf<Options>({
  type: 'object',
  additionalProperties: false,
  properties: {
    max_rows: {
      type: 'integer',
      minimum: 1,
      default: 100_000,
      description: 'Rows that are kept; while they are pruned there may be a hundredth more, and what came meanwhile'
    },
    max_age_days: {
      type: 'integer',
      minimum: 1,
      description: 'Days that rows are kept; when left out, only their number counts'
    }
  }
})

const tendPeriodMs = 10_000

export default definePlugin({
  name: 'audit',
  inject: ['store'],
  provides: ['audit'],
  config,
  async apply(ctx, config) {
    // The number stands for the shape of the state: code that keeps another one starts with its own.
    const state = await ctx.resource('state', 2, createState, () => {})
    const { store } = ctx.services
    const audit = createAudit(config, { store, state, log: ctx.log, now: Date.now, randomUUID })
    ctx.effect(() => () => audit.close(), 'audit log')
    try {
      await audit.reconcile()
    } catch (error) {
      // A log that does not start would let changes through that nobody records; this one refuses them.
      ctx.log.error('the audit log could not be reconciled; it will be tried again', { error })
    }
    ctx.provide('audit', {
      record: (tx, change) => audit.record(tx, change),
      around: (change, work, appliedOf) => audit.around(change, work, appliedOf),
      list: (page) => audit.list(page)
    })
    ctx.contribute('http.routes', ...routes(audit))
    ctx.contribute('http.checks', { name: 'audit', check: () => audit.check() })
    ctx.setTimeout(() => audit.tend(), 0)
    ctx.setInterval(() => audit.tend(), tendPeriodMs)
  }
})
