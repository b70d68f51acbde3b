import { type JsonSchema, schemaOf } from '../../kernel/index.ts'
import type { ErrorMap, Request, Route } from '../http/types.ts'
import type { AgentConfig } from './definition.ts'
import type { Actor, TenantAgent, TenantAgents } from './service.ts'
import type { AgentTemplate, Templates } from './templates.ts'

type TenantParams = { readonly tenant: string }
type AgentParams = TenantParams & { readonly agent: string }

interface NewAgentBody {
  readonly agent_name: string
  readonly display_name: string
  readonly description?: string | null
  readonly config: unknown
}

interface ChangesBody {
  readonly display_name?: string | null
  readonly description?: string | null
  readonly config?: AgentConfig | null
  readonly enabled?: boolean | null
}

const base = '/api/admin/tenants/{tenant}/agents'
const text = { type: 'string' } as const
const maybeText = { type: ['string', 'null'] } as const
const unixSeconds = { type: 'integer', description: 'Unix time in seconds' } as const

const agent: JsonSchema = {
  $id: 'TenantAgent',
  type: 'object',
  required: [
    'id',
    'tenant_id',
    'agent_name',
    'display_name',
    'description',
    'config',
    'enabled',
    'created_at',
    'updated_at'
  ],
  properties: {
    id: text,
    tenant_id: text,
    agent_name: text,
    display_name: text,
    description: maybeText,
    config: { type: 'object' },
    enabled: { type: 'boolean' },
    created_at: unixSeconds,
    updated_at: unixSeconds
  }
}

const errors: ErrorMap = {
  TENANTS_UNKNOWN: 404,
  TENANT_AGENTS_UNKNOWN: 404,
  TENANT_AGENTS_INVALID: 400,
  TENANT_AGENTS_EXIST: 409,
  TENANT_AGENTS_FULL: 409,
  TENANT_AGENTS_TEMPLATES_FULL: 409,
  TENANT_AGENTS_NO_TEMPLATE: 404
}

const template: JsonSchema = {
  $id: 'AgentTemplate',
  type: 'object',
  required: ['id', 'product_type', 'agent_name', 'display_name', 'description', 'config', 'created_at'],
  properties: {
    id: text,
    product_type: text,
    agent_name: text,
    display_name: text,
    description: maybeText,
    config: { type: 'object' },
    created_at: unixSeconds
  }
}

export function routes(agents: TenantAgents): readonly Route[] {
  const list: Route<TenantParams> = {
    method: 'GET',
    path: base,
    operationId: 'listTenantAgents',
    summary: 'List the agents of a tenant, by name',
    guard: 'admin',
    replies: { 200: { type: 'array', items: agent } },
    errors,
    handle: async ({ params }) => ({ body: (await agents.all(params.tenant)).map(toBody) })
  }

  const create: Route<TenantParams, unknown, NewAgentBody> = {
    method: 'POST',
    path: base,
    operationId: 'createTenantAgent',
    summary: 'Make an agent that only this tenant has; at most as many as its tier has',
    guard: 'admin',
    body: schemaOf({
      type: 'object',
      required: ['agent_name', 'display_name', 'config'],
      properties: { agent_name: text, display_name: text, description: maybeText, config: {} }
    }),
    replies: { 200: agent },
    errors,
    async handle(request) {
      const { agent_name: name, display_name: displayName, description, config } = request.body
      const made = await agents.create(
        request.params.tenant,
        { name, displayName, description, config },
        actorOf(request)
      )
      return { body: toBody(made) }
    }
  }

  const update: Route<AgentParams, unknown, ChangesBody> = {
    method: 'PUT',
    path: `${base}/{agent}`,
    operationId: 'updateTenantAgent',
    summary: 'Change an agent of a tenant: members of config that are given replace, null removes, others stay',
    guard: 'admin',
    body: schemaOf({
      type: 'object',
      properties: {
        display_name: maybeText,
        description: maybeText,
        config: { type: ['object', 'null'] },
        enabled: { type: ['boolean', 'null'] }
      }
    }),
    replies: { 200: agent },
    errors,
    async handle(request) {
      const { tenant, agent: name } = request.params
      const { display_name, description, config, enabled } = request.body
      const changes = {
        displayName: display_name ?? undefined,
        description: description ?? undefined,
        config: config ?? undefined,
        enabled: enabled ?? undefined
      }
      return { body: toBody(await agents.update(tenant, name, changes, actorOf(request))) }
    }
  }

  const remove: Route<AgentParams> = {
    method: 'DELETE',
    path: `${base}/{agent}`,
    operationId: 'deleteTenantAgent',
    summary: 'Delete an agent of a tenant',
    guard: 'admin',
    replies: { 204: {} },
    errors,
    async handle(request) {
      await agents.remove(request.params.tenant, request.params.agent, actorOf(request))
      return { status: 204 }
    }
  }

  return [list, create, update, remove] as readonly Route[]
}

export function templateRoutes(templates: Templates): readonly Route[] {
  const list: Route<object, { readonly product_type?: string }> = {
    method: 'GET',
    path: '/api/admin/agent-templates',
    operationId: 'listAgentTemplates',
    summary: 'List what the agents of new clients are made from',
    guard: 'admin',
    query: schemaOf({ type: 'object', properties: { product_type: text } }),
    replies: { 200: { type: 'array', items: template } },
    errors,
    handle: async ({ query }) => ({ body: (await templates.list(query.product_type)).map(toTemplateBody) })
  }

  const create: Route<object, unknown, NewAgentBody & { readonly product_type: string }> = {
    method: 'POST',
    path: '/api/admin/agent-templates',
    operationId: 'createAgentTemplate',
    summary: 'Make a template: a client that is provisioned with its product type gets such an agent',
    guard: 'admin',
    body: schemaOf({
      type: 'object',
      required: ['product_type', 'agent_name', 'display_name', 'config'],
      properties: { product_type: text, agent_name: text, display_name: text, description: maybeText, config: {} }
    }),
    replies: { 200: template },
    errors,
    async handle(request) {
      const {
        product_type: productType,
        agent_name: name,
        display_name: displayName,
        description,
        config
      } = request.body
      const wanted = { productType, name, displayName, description, config }
      return { body: toTemplateBody(await templates.create(wanted, actorOf(request))) }
    }
  }

  const remove: Route<{ readonly id: string }> = {
    method: 'DELETE',
    path: '/api/admin/agent-templates/{id}',
    operationId: 'deleteAgentTemplate',
    summary: 'Delete a template; agents that were made from it stay',
    guard: 'admin',
    replies: { 204: {} },
    errors,
    async handle(request) {
      await templates.remove(request.params.id, actorOf(request))
      return { status: 204 }
    }
  }

  return [list, create, remove] as readonly Route[]
}

function actorOf({ principal, address, id }: Pick<Request, 'principal' | 'address' | 'id'>): Actor {
  return { actor: principal.id, address, requestId: id }
}

function toBody(agent: TenantAgent): object {
  const { tenantId, name, displayName, description, config, enabled, createdAtMs, updatedAtMs } = agent
  return {
    id: `tenant:${tenantId}:${name}`,
    tenant_id: tenantId,
    agent_name: name,
    display_name: displayName,
    description,
    config,
    enabled,
    created_at: Math.floor(createdAtMs / 1000),
    updated_at: Math.floor(updatedAtMs / 1000)
  }
}

function toTemplateBody({
  id,
  productType,
  name,
  displayName,
  description,
  config,
  createdAtMs
}: AgentTemplate): object {
  return {
    id,
    product_type: productType,
    agent_name: name,
    display_name: displayName,
    description,
    config,
    created_at: Math.floor(createdAtMs / 1000)
  }
}
