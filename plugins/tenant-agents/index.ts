import { definePlugin } from '../../kernel/index.ts'
import type {} from '../audit/types.ts'
import type {} from '../chat/types.ts'
import type {} from '../http/types.ts'
import type {} from '../store/types.ts'
import type {} from '../tenants/types.ts'
import type {} from '../tools/types.ts'
import { routes } from './routes.ts'
import { createState, createTenantAgents } from './service.ts'

/** Agents that belong to one tenant, made by administrators while the server runs; as many as the tenant's tier has. */
export default definePlugin({
  name: 'tenant-agents',
  inject: ['store', 'tenants', 'tools'],
  optional: ['audit'],
  async apply(ctx) {
    const { store, tenants, tools, audit } = ctx.services
    // The number stands for the shape of the state: code that keeps another one starts with its own.
    const state = await ctx.resource('state', 1, createState, () => {})
    const agents = createTenantAgents(store, tenants, audit, state, {
      isTool: (name) => tools.get(name) !== undefined,
      now: Date.now
    })
    ctx.contribute('chat.own-agents', agents)
    ctx.contribute('tenants.data', { name: 'agents', remove: (tenantId, most) => agents.clear(tenantId, most) })
    ctx.contribute('http.routes', ...routes(agents))
  }
})
