import { type JsonSchema, schemaOf } from '../../kernel/index.ts'
import type { Request, Route } from '../http/types.ts'
import type { Audit, AuditRow } from './types.ts'

interface Page {
  readonly limit: number
  readonly offset: number
}

const maxLimit = 200
const text = { type: 'string' } as const
const unixSeconds = { type: 'integer', description: 'Unix time in seconds' } as const

const row: JsonSchema = {
  type: 'object',
  required: ['id', 'action', 'resource_type', 'resource_id', 'details', 'admin_ip', 'created_at', 'actor', 'status'],
  properties: {
    id: text,
    action: text,
    resource_type: text,
    resource_id: text,
    details: {
      type: ['object', 'null'],
      properties: {
        fields: { type: 'array', items: text },
        before: true,
        after: true,
        applied: true,
        error: { type: 'object', required: ['code', 'message'], properties: { code: text, message: text } }
      }
    },
    admin_ip: text,
    created_at: unixSeconds,
    actor: text,
    status: { enum: ['pending', 'done', 'failed', 'unknown'] },
    settled_at: { ...unixSeconds, type: ['integer', 'null'] },
    request_id: { type: ['string', 'null'] }
  }
}

export function routes(audit: Audit): Route[] {
  const list: Route<object, Page> = {
    method: 'GET',
    path: '/api/admin/audit-log',
    operationId: 'listAuditLog',
    summary: 'List what administrators changed, newest first',
    guard: 'admin',
    query: schemaOf<Page>({
      type: 'object',
      properties: {
        limit: { type: 'integer', default: 50, description: `Brought into 1 to ${maxLimit}` },
        offset: { type: 'integer', default: 0, description: 'Rows to leave out; 0 when negative' }
      }
    }),
    replies: { 200: { type: 'array', items: row } },
    handle: async ({ query }: Request<object, Page>) => {
      const limit = Math.min(Math.max(query.limit, 1), maxLimit)
      const offset = Math.max(query.offset, 0)
      const found = await audit.list({ limit, offset })
      return { headers: { 'cache-control': 'no-store' }, body: found.map(toWire) }
    }
  }
  return [list as Route]
}

function toWire(row: AuditRow): object {
  return {
    id: row.id,
    action: row.action,
    resource_type: row.resource.type,
    resource_id: row.resource.id,
    details: row.details,
    admin_ip: row.address,
    created_at: toSeconds(row.atMs),
    actor: row.actor,
    status: row.status,
    settled_at: row.settledAtMs === null ? null : toSeconds(row.settledAtMs),
    request_id: row.requestId
  }
}

function toSeconds(ms: number): number {
  return Math.floor(ms / 1000)
}
