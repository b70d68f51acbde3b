import { type JsonSchema, schemaOf } from '../../kernel/index.ts'
import type { ErrorMap, Headers, Principal, Problem, Reply, Request, Route } from '../http/types.ts'
import type { Reservation, Tenant, Tenants } from '../tenants/types.ts'
import { type Face, ragErrors, toMetadata } from './routes.ts'
import type { RagService } from './service.ts'

/** Refusals of tenants' limits. */
const tenantErrors: ErrorMap = {
  TENANTS_MONTH_EXHAUSTED: 429,
  TENANTS_TOKENS_EXHAUSTED: 429,
  TENANTS_DAY_EXHAUSTED: 429,
  TENANTS_UNKNOWN: 401,
  TENANTS_PURGED: 409,
  TENANTS_USAGE_FAILED: { status: 500, code: 'DATABASE_ERROR' },
  TENANTS_RATE_FAILED: { status: 500, code: 'DATABASE_ERROR' }
}

/** The guard of plugin `v1`. */
const guard = 'tenant-key'

/** Characters of a text that count as one token. */
const charactersPerToken = 4

/** What tenants can do with collections of their own: each search and each ingest is one counted request. */
export function tenantFace(tenants: Tenants): Face {
  return {
    path: '/api/v1/rag',
    prefix: 'v1Rag',
    guard,
    kind: 'tenant',
    errors: tenantErrors,
    renderProblem,
    async headers(principal) {
      const standing = await tenants.standing(principal.id)
      if (standing === undefined) return {}
      const { limits, left, monthEndsAtMs, dayEndsAtMs } = standing
      return {
        ...quotaHeaders('x-quota-requests', limits.requestsPerMonth, left.requestsInMonth, monthEndsAtMs),
        ...quotaHeaders('x-quota-tokens', limits.tokensPerMonth, left.tokensInMonth, monthEndsAtMs),
        ...quotaHeaders('x-ratelimit', limits.requestsPerDay, left.requestsInDay, dayEndsAtMs)
      }
    },
    async counted(principal, units, work) {
      const tokens = Math.max(1, Math.ceil(units / charactersPerToken))
      const reservation = await reserve(tenants, principal, tokens)
      let ok = false
      try {
        const result = await work((tx) => tenants.assertCurrent(tx, reservation))
        ok = true
        return result
      } finally {
        // What was refused or failed took nothing.
        if (ok) await tenants.settle(reservation, { agent: undefined, ok, tokens })
        else await tenants.release(reservation)
      }
    }
  }
}

async function reserve(tenants: Tenants, principal: Principal, tokens: number): Promise<Reservation> {
  const { tenant } = principal as Principal & { readonly tenant?: Tenant }
  return tenants.reserve(principal.id, tokens, tenant?.purges)
}

function quotaHeaders(name: string, limit: number | null, left: number | null, endsAtMs: number): Headers {
  if (limit === null || left === null) return {}
  return {
    [`${name}-limit`]: String(limit),
    [`${name}-remaining`]: String(left),
    [`${name}-reset`]: String(endsAtMs / 1_000)
  }
}

/** As http renders it, but that the texts of the quotas stand whole in the contract. */
function renderProblem({ status, code, message }: Problem): Reply {
  const prefix = status === 503 ? 'Service unavailable: ' : status === 400 && code === 'INTERNAL_ERROR' ? disabled : ''
  return { status, body: { error: prefix + message, code } }
}

const disabled = 'Feature disabled: '

interface SemanticBody {
  readonly collection?: string | null
  readonly query?: string | null
  readonly limit?: number | null
  readonly threshold?: number | null
}

const text = { type: 'string' } as const
const optional = (type: string): JsonSchema => ({ type: [type, 'null'] })

/** The one search of the contract, by meaning, in the collections that the rest of the face keeps. */
export function semanticRoute(rag: RagService, face: Face): Route {
  const route: Route<object, unknown, SemanticBody> = {
    method: 'POST',
    path: '/api/v1/search/semantic',
    operationId: 'v1SemanticSearch',
    summary: 'Find the chunks of a collection whose meaning is nearest to that of a query; counted',
    guard,
    body: schemaOf<SemanticBody>({
      type: 'object',
      properties: {
        collection: optional('string'),
        query: optional('string'),
        limit: { type: ['integer', 'null'], minimum: 0 },
        threshold: optional('number')
      }
    }),
    replies: {
      200: {
        type: 'object',
        required: ['results', 'total', 'duration_ms'],
        properties: {
          results: {
            type: 'array',
            items: {
              type: 'object',
              required: ['id', 'content', 'similarity', 'metadata'],
              properties: {
                id: text,
                content: text,
                similarity: { type: 'number', minimum: 0, maximum: 1 },
                metadata: { type: 'object' }
              }
            }
          },
          total: { type: 'integer', minimum: 0 },
          duration_ms: { type: 'integer', minimum: 0 }
        }
      }
    },
    errors: { ...ragErrors, ...tenantErrors },
    renderProblem,
    async handle(request: Request<object, unknown, SemanticBody>) {
      const { body, principal, signal } = request
      const startedMs = performance.now()
      const query = body.query ?? ''
      const { hits, total } = await face.counted(principal, query.length, () =>
        rag.search(
          { kind: 'tenant', id: principal.id },
          {
            collection: body.collection ?? '',
            query,
            limit: body.limit ?? undefined,
            threshold: body.threshold ?? undefined,
            strategy: 'semantic',
            signal
          }
        )
      )
      const results = hits.map((hit) => ({
        id: hit.id,
        content: hit.content,
        similarity: hit.score,
        metadata: toMetadata(hit)
      }))
      return {
        headers: await face.headers(principal),
        body: { results, total, duration_ms: Math.round(performance.now() - startedMs) }
      }
    }
  }
  return route as unknown as Route
}
