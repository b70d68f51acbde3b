import { randomBytes, randomUUID } from 'node:crypto'
import { type Contribution, definePlugin, type Plugin, schemaOf } from '../../kernel/index.ts'
import type {} from '../audit/types.ts'
import type {} from '../auth/types.ts'
import type {} from '../stats/types.ts'
import type {} from '../store/types.ts'
import { routes } from './routes.ts'
import { createState, createTenants } from './service.ts'
import type { TenantData, TenantProvision } from './types.ts'

interface Config {
  readonly write_interval_ms: number
}

const config = schemaOf<Config>({
  type: 'object',
  additionalProperties: false,
  properties: {
    write_interval_ms: {
      type: 'integer',
      minimum: 0,
      maximum: 1_000,
      default: 0,
      description:
        'How long the record of a request may wait to be written. 0: it is on disk before the answer. More costs less ' +
        'CPU, and a crash loses the records of that time; limits are exact either way'
    }
  }
})

const tendPeriodMs = 600_000

export default tenantsAt(Date.now)

/** @param now Unix time in milliseconds */
export function tenantsAt(now: () => number): Plugin {
  return definePlugin({
    name: 'tenants',
    inject: ['store'],
    optional: ['audit'],
    provides: ['tenants'],
    config,
    async apply(ctx, config) {
      const { store, audit } = ctx.services
      // The number stands for the shape of the state: code that keeps another one starts with its own.
      const state = await ctx.resource('state', 2, createState, () => {})
      let data: readonly Contribution<TenantData>[] = []
      let provisions: readonly Contribution<TenantProvision>[] = []
      const tenants = createTenants({
        store,
        audit,
        state,
        data: () => data,
        provisions: () => provisions,
        log: ctx.log,
        writeIntervalMs: config.write_interval_ms,
        now,
        randomUUID,
        randomBytes
      })
      ctx.effect(() => () => tenants.close(), 'tenants')
      ctx.collect('tenants.data', { update: (present) => (data = present) })
      ctx.collect('tenants.provisions', { update: (present) => (provisions = present) })
      ctx.provide('tenants', tenants)
      ctx.contribute('auth.credentials', {
        prefix: 'ares_',
        check(key) {
          const toPrincipal = (holder: Awaited<ReturnType<typeof tenants.verifyKey>>) =>
            holder && ({ kind: 'tenant', id: holder.tenant.id } as const)
          const holder = tenants.verifyKey(key)
          return holder instanceof Promise ? holder.then(toPrincipal) : toPrincipal(holder)
        }
      })
      ctx.contribute('auth.tenants', {
        has(tenantId) {
          const tenant = tenants.find(tenantId)
          return tenant instanceof Promise ? tenant.then((found) => found !== undefined) : tenant !== undefined
        }
      })
      ctx.contribute('http.routes', ...routes(tenants))
      ctx.contribute('stats', { name: 'total_tenants', value: async () => (await tenants.list()).length })
      ctx.setTimeout(() => tenants.tend(), 0)
      ctx.setInterval(() => tenants.tend(), tendPeriodMs)
    }
  })
}
