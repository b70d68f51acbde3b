import { CodedError, type JsonSchema, schemaOf } from '../../kernel/index.ts'
import type { ErrorMap, Reply, Request, Route } from '../http/types.ts'
import { type Actor, checkName, type TenantsService } from './service.ts'
import type { ApiKey, Limits, Tenant } from './types.ts'

const base = '/api/admin/tenants/{tenant}'
const text = { type: 'string' } as const
const count = { type: 'integer', minimum: 0 } as const
const unixSeconds = { type: 'integer', description: 'Unix time in seconds' } as const
const limit = { type: ['integer', 'null'], description: '`null` is no limit' } as const
const maxLimit = Number.MAX_SAFE_INTEGER
const maxDays = 90

const limits = { requests_per_month: limit, requests_per_day: limit, tokens_per_month: limit, agents: limit }

const tenant: JsonSchema = {
  $id: 'Tenant',
  type: 'object',
  required: ['id', 'name', 'tier', 'created_at'],
  properties: {
    id: text,
    name: text,
    tier: { enum: ['free', 'dev', 'pro', 'enterprise'] },
    created_at: unixSeconds,
    ...limits
  }
}

const apiKey: JsonSchema = {
  type: 'object',
  required: ['id', 'tenant_id', 'key_prefix', 'name', 'is_active', 'created_at', 'expires_at'],
  properties: {
    id: text,
    tenant_id: text,
    key_prefix: text,
    name: text,
    is_active: { type: 'boolean' },
    created_at: unixSeconds,
    expires_at: { ...unixSeconds, type: ['integer', 'null'] },
    last_used_at: { ...unixSeconds, type: ['integer', 'null'], description: 'Unix time in seconds, to the minute' }
  }
}

const errors: ErrorMap = {
  TENANTS_UNKNOWN: 404,
  TENANTS_KEY_UNKNOWN: 404,
  TENANTS_INVALID: 400,
  TENANTS_KEYS_FULL: 409,
  TENANTS_PROVISION_REFUSED: 409,
  TENANTS_USAGE_FAILED: { status: 500, code: 'DATABASE_ERROR' },
  TENANTS_RATE_FAILED: { status: 500, code: 'DATABASE_ERROR' }
}

const warning = 'Store this key now: it is kept only as a hash and cannot be shown again.'

interface NewTenantBody {
  readonly name: string
  readonly tier: string
}

interface KeyBody {
  readonly name: string
  readonly expires_in_days?: number | null
}

interface QuotaBody {
  readonly tier: string
  readonly requests_per_month?: number | null
  readonly requests_per_day?: number | null
  readonly tokens_per_month?: number | null
}

interface ProvisionBody extends NewTenantBody {
  readonly product_type: string
  readonly api_key_name: string
}

type TenantParams = { readonly tenant: string }

const own = {
  type: ['integer', 'null'],
  minimum: 0,
  maximum: maxLimit,
  description: "A limit of its own; left out, the tier's"
} as const

export function routes(tenants: TenantsService): readonly Route[] {
  const need = async (id: string): Promise<Tenant> => {
    const found = await tenants.find(id)
    if (found === undefined) throw new CodedError('TENANTS_UNKNOWN', 'Tenant not found')
    return found
  }

  const create: Route<object, unknown, NewTenantBody> = {
    method: 'POST',
    path: '/api/admin/tenants',
    operationId: 'createTenant',
    summary: 'Make a tenant',
    guard: 'admin',
    body: schemaOf({ type: 'object', required: ['name', 'tier'], properties: { name: text, tier: text } }),
    replies: { 200: tenant },
    errors,
    handle: async (request) => ({ body: toTenantBody(await tenants.create(request.body, actorOf(request))) })
  }

  const list: Route = {
    method: 'GET',
    path: '/api/admin/tenants',
    operationId: 'listTenants',
    summary: 'List the tenants, oldest first',
    guard: 'admin',
    replies: { 200: { type: 'array', items: tenant } },
    errors,
    handle: async () => ({ body: (await tenants.list()).map(toTenantBody) })
  }

  const get: Route<TenantParams> = {
    method: 'GET',
    path: base,
    operationId: 'getTenant',
    summary: 'Read a tenant',
    guard: 'admin',
    replies: { 200: tenant },
    errors,
    handle: async ({ params }) => ({ body: toTenantBody(await need(params.tenant)) })
  }

  const remove: Route<TenantParams> = {
    method: 'DELETE',
    path: base,
    operationId: 'deleteTenant',
    summary: 'Delete a tenant with its keys and all that is kept for it',
    guard: 'admin',
    replies: { 204: {} },
    errors,
    async handle(request) {
      await tenants.remove(request.params.tenant, actorOf(request))
      return { status: 204 }
    }
  }

  const createKey: Route<TenantParams, unknown, KeyBody> = {
    method: 'POST',
    path: `${base}/api-keys`,
    operationId: 'createTenantKey',
    summary: 'Make an API key; the answer is the only place where it is shown',
    guard: 'admin',
    body: schemaOf({
      type: 'object',
      required: ['name'],
      properties: { name: text, expires_in_days: { type: ['integer', 'null'] } }
    }),
    replies: {
      200: {
        type: 'object',
        required: ['api_key', 'raw_key', 'warning'],
        properties: { api_key: apiKey, raw_key: text, warning: text }
      }
    },
    errors,
    async handle(request) {
      const { name, expires_in_days } = request.body
      const wanted = { name, expiresInDays: expires_in_days ?? undefined }
      const { key, secret } = await tenants.createKey(request.params.tenant, wanted, actorOf(request))
      return uncached({ api_key: toKeyBody(request.params.tenant, key), raw_key: secret, warning })
    }
  }

  const listKeys: Route<TenantParams> = {
    method: 'GET',
    path: `${base}/api-keys`,
    operationId: 'listTenantKeys',
    summary: "List a tenant's API keys, oldest first",
    guard: 'admin',
    replies: { 200: { type: 'array', items: apiKey } },
    errors,
    async handle({ params }) {
      await need(params.tenant)
      return { body: (await tenants.keys(params.tenant)).map((key) => toKeyBody(params.tenant, key)) }
    }
  }

  const revokeKey: Route<TenantParams & { readonly key: string }> = {
    method: 'DELETE',
    path: `${base}/api-keys/{key}`,
    operationId: 'revokeTenantKey',
    summary: 'Revoke an API key, at once',
    guard: 'admin',
    replies: { 204: {} },
    errors,
    async handle(request) {
      await need(request.params.tenant)
      await tenants.revokeKey(request.params.tenant, request.params.key, actorOf(request))
      return { status: 204 }
    }
  }

  const usage: Route<TenantParams> = {
    method: 'GET',
    path: `${base}/usage`,
    operationId: 'getTenantUsage',
    summary: 'What a tenant used in the month and the day (UTC)',
    guard: 'admin',
    replies: {
      200: {
        type: 'object',
        required: ['monthly_requests', 'monthly_tokens', 'daily_requests'],
        properties: { monthly_requests: count, monthly_tokens: count, daily_requests: count, daily_tokens: count }
      }
    },
    errors,
    async handle({ params }) {
      const standing = await tenants.standing(params.tenant)
      if (standing === undefined) throw new CodedError('TENANTS_UNKNOWN', 'Tenant not found')
      const { inMonth, inDay } = standing
      return {
        body: {
          monthly_requests: inMonth.requests,
          monthly_tokens: inMonth.tokens,
          daily_requests: inDay.requests,
          daily_tokens: inDay.tokens
        }
      }
    }
  }

  const setQuota: Route<TenantParams, unknown, QuotaBody> = {
    method: 'PUT',
    path: `${base}/quota`,
    operationId: 'setTenantQuota',
    summary: 'Set the tier, and limits of its own; they hold at once',
    guard: 'admin',
    body: schemaOf({
      type: 'object',
      required: ['tier'],
      properties: { tier: text, requests_per_month: own, requests_per_day: own, tokens_per_month: own }
    }),
    replies: { 200: tenant },
    errors,
    async handle(request) {
      const { tier } = request.body
      const quota = { tier, own: toOwnLimits(request.body) }
      return { body: toTenantBody(await tenants.setQuota(request.params.tenant, quota, actorOf(request))) }
    }
  }

  const daily: Route<TenantParams, { readonly days: number }> = {
    method: 'GET',
    path: `${base}/usage/daily`,
    operationId: 'getTenantDailyUsage',
    summary: 'What a tenant used on each of the last days, oldest first; days without any are left out',
    guard: 'admin',
    query: schemaOf({
      type: 'object',
      properties: { days: { type: 'integer', default: 30, description: `Brought into 1 to ${maxDays}` } }
    }),
    replies: {
      200: {
        type: 'array',
        maxItems: maxDays,
        items: {
          type: 'object',
          required: ['date', 'requests', 'tokens'],
          properties: { date: unixSeconds, requests: count, tokens: count }
        }
      }
    },
    errors,
    async handle({ params, query }) {
      await need(params.tenant)
      const days = await tenants.daily(params.tenant, Math.min(Math.max(query.days, 1), maxDays))
      return {
        body: days.map(({ day, requests, tokens }) => ({ date: toSeconds(Date.parse(day)), requests, tokens }))
      }
    }
  }

  const provision: Route<object, unknown, ProvisionBody> = {
    method: 'POST',
    path: '/api/admin/provision-client',
    operationId: 'provisionClient',
    summary: 'Make a tenant, its first API key and the agents of its product type: all, or nothing',
    guard: 'admin',
    body: schemaOf({
      type: 'object',
      required: ['name', 'tier', 'product_type', 'api_key_name'],
      properties: { name: text, tier: text, product_type: text, api_key_name: text }
    }),
    replies: {
      200: {
        type: 'object',
        required: [
          'tenant_id',
          'tenant_name',
          'tier',
          'product_type',
          'api_key_id',
          'api_key_prefix',
          'raw_api_key',
          'agents_created'
        ],
        properties: {
          tenant_id: text,
          tenant_name: text,
          tier: text,
          product_type: text,
          api_key_id: text,
          api_key_prefix: text,
          raw_api_key: text,
          agents_created: { type: 'array', items: text }
        }
      }
    },
    errors,
    async handle(request) {
      const { name, tier, product_type, api_key_name } = request.body
      const productType = checkName(product_type, 'product_type').toLowerCase()
      const client = { name, tier, productType, keyName: checkName(api_key_name, 'api_key_name') }
      const made = await tenants.provision(client, actorOf(request))
      return uncached({
        tenant_id: made.tenant.id,
        tenant_name: made.tenant.name,
        tier: made.tenant.tier,
        product_type: productType,
        api_key_id: made.key.id,
        api_key_prefix: made.key.prefix,
        raw_api_key: made.secret,
        agents_created: made.agents
      })
    }
  }

  return [
    create,
    list,
    get,
    remove,
    createKey,
    listKeys,
    revokeKey,
    usage,
    setQuota,
    daily,
    provision
  ] as readonly Route[]
}

function actorOf({ principal, address, id }: Pick<Request, 'principal' | 'address' | 'id'>): Actor {
  return { actor: principal.id, address, requestId: id }
}

/** A key is shown once, and kept by no cache. */
function uncached<T>(body: T): Reply<T> {
  return { headers: { 'cache-control': 'no-store' }, body }
}

function toOwnLimits(body: QuotaBody): Partial<Limits> {
  const { requests_per_month, requests_per_day, tokens_per_month } = body
  return {
    ...(requests_per_month == null ? {} : { requestsPerMonth: requests_per_month }),
    ...(requests_per_day == null ? {} : { requestsPerDay: requests_per_day }),
    ...(tokens_per_month == null ? {} : { tokensPerMonth: tokens_per_month })
  }
}

function toTenantBody({ id, name, tier, createdAtMs, limits }: Tenant): object {
  return {
    id,
    name,
    tier,
    created_at: toSeconds(createdAtMs),
    requests_per_month: limits.requestsPerMonth,
    requests_per_day: limits.requestsPerDay,
    tokens_per_month: limits.tokensPerMonth,
    agents: limits.agents
  }
}

function toKeyBody(tenantId: string, key: ApiKey): object {
  return {
    id: key.id,
    tenant_id: tenantId,
    key_prefix: key.prefix,
    name: key.name,
    is_active: key.isActive,
    created_at: toSeconds(key.createdAtMs),
    expires_at: key.expiresAtMs === null ? null : toSeconds(key.expiresAtMs),
    last_used_at: key.lastUsedAtMs === null ? null : toSeconds(key.lastUsedAtMs)
  }
}

function toSeconds(ms: number): number {
  return Math.floor(ms / 1000)
}
