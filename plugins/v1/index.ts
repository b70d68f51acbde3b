import { definePlugin } from '../../kernel/index.ts'
import type { Tenants } from '../tenants/types.ts'
import { tenantKeyGuard } from './guard.ts'
import { routes } from './routes.ts'

/** What machine clients with a tenant's key may do. Without `tenants` every key is refused with the reason. */
export default definePlugin({
  name: 'v1',
  inject: ['chat'],
  optional: ['tenants'],
  apply(ctx) {
    const { chat, tenants } = ctx.services
    ctx.contribute('http.guards', tenantKeyGuard(tenants))
    // The guard lets nobody in as long as there are no tenants.
    ctx.contribute('http.routes', ...routes(chat, tenants as Tenants))
  }
})
