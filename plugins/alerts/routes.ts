import { type JsonSchema, schemaOf } from '../../kernel/index.ts'
import type { Request, Route } from '../http/types.ts'
import type { Alert, Alerts, Severity } from './types.ts'

interface Query {
  readonly limit: number
  readonly severity?: Severity
  readonly resolved?: boolean
}

type Params = { id: string }
type Body = { readonly resolved_by?: string | null }

const maxLimit = 200
const text = { type: 'string' } as const
const unixSeconds = { type: 'integer', description: 'Unix time in seconds' } as const
const severities = ['critical', 'warning', 'info'] as const

const alert: JsonSchema = {
  $id: 'Alert',
  type: 'object',
  required: ['id', 'severity', 'source', 'title', 'message', 'resolved', 'created_at', 'resolved_at', 'resolved_by'],
  properties: {
    id: text,
    severity: { enum: severities },
    source: text,
    title: text,
    message: text,
    resolved: { type: 'boolean' },
    created_at: unixSeconds,
    resolved_at: { ...unixSeconds, type: ['integer', 'null'] },
    resolved_by: { type: ['string', 'null'] }
  }
}

export function routes(alerts: Alerts): readonly Route[] {
  const list: Route<object, Query> = {
    method: 'GET',
    path: '/api/admin/alerts',
    operationId: 'listAlerts',
    summary: 'List what operators should know of, newest first',
    guard: 'admin',
    query: schemaOf<Query>({
      type: 'object',
      properties: {
        limit: { type: 'integer', default: 50, description: `Brought into 1 to ${maxLimit}` },
        severity: { enum: severities },
        resolved: { type: 'boolean' }
      }
    }),
    replies: { 200: { type: 'array', items: alert } },
    handle: async ({ query }) => {
      const limit = Math.min(Math.max(query.limit, 1), maxLimit)
      const found = await alerts.list({ limit, severity: query.severity, resolved: query.resolved })
      return { body: found.map(toWire) }
    }
  }
  const resolve: Route<Params, unknown, Body> = {
    method: 'POST',
    path: '/api/admin/alerts/{id}/resolve',
    operationId: 'resolveAlert',
    summary: 'Note that an alert has been taken care of',
    guard: 'admin',
    body: schemaOf<Body>({
      type: 'object',
      properties: { resolved_by: { type: ['string', 'null'], maxLength: 256, description: 'Left out: who asks' } }
    }),
    bodyOptional: true,
    replies: { 200: alert },
    errors: { ALERTS_UNKNOWN: 404 },
    handle: async ({ params, body, principal, address, id }: Request<Params, unknown, Body>) => {
      const by = body.resolved_by
      const actor = { actor: principal.id, address, requestId: id }
      return { body: toWire(await alerts.resolve(params.id, actor, by || undefined)) }
    }
  }
  return [list, resolve] as unknown as readonly Route[]
}

function toWire({ id, severity, source, title, message, createdAtMs, resolvedAtMs, resolvedBy }: Alert): object {
  return {
    id,
    severity,
    source,
    title,
    message,
    resolved: resolvedAtMs !== null,
    created_at: toSeconds(createdAtMs),
    resolved_at: resolvedAtMs === null ? null : toSeconds(resolvedAtMs),
    resolved_by: resolvedBy
  }
}

function toSeconds(ms: number): number {
  return Math.floor(ms / 1000)
}
