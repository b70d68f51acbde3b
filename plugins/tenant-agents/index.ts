import { randomUUID } from 'node:crypto'
import { definePlugin } from '../../kernel/index.ts'
import type {} from '../audit/types.ts'
import type {} from '../chat/types.ts'
import type {} from '../http/types.ts'
import type {} from '../store/types.ts'
import type {} from '../tenants/types.ts'
import type {} from '../tools/types.ts'
import { routes, templateRoutes } from './routes.ts'
import { createState, createTenantAgents } from './service.ts'
import { createTemplates } from './templates.ts'

/** Agents that belong to one tenant, made by administrators while the server runs; as many as the tenant's tier has. */
export default definePlugin({
  name: 'tenant-agents',
  inject: ['store', 'tenants', 'tools'],
  optional: ['audit'],
  async apply(ctx) {
    const { store, tenants, tools, audit } = ctx.services
    // The number stands for the shape of the state: code that keeps another one starts with its own.
    const state = await ctx.resource('state', 1, createState, () => {})
    const environment = { isTool: (name: string) => tools.get(name) !== undefined, now: Date.now, newId: randomUUID }
    const agents = createTenantAgents(store, tenants, audit, state, environment)
    const templates = createTemplates(store, audit, environment)
    ctx.contribute('chat.own-agents', agents)
    ctx.contribute('tenants.data', { name: 'agents', remove: (tenantId, most) => agents.clear(tenantId, most) })
    ctx.contribute('tenants.provisions', { agents: (...args) => templates.provision(...args) })
    ctx.contribute('http.routes', ...routes(agents), ...templateRoutes(templates))
  }
})
