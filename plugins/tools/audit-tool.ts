import { CodedError, type JsonSchema, schemaOf } from '../../kernel/index.ts'
import type { ExecutionRecord, History } from './history.ts'
import type { Tool, ToolErrorDetail } from './types.ts'

const maxLimit = 1_000
const text = { type: 'string' } as const
const textOrNull = { type: ['string', 'null'] } as const

/** A call as operators see it; never what it was given, nor what it gave. */
export interface ExecutionWire {
  readonly execution_id: string
  readonly request_id: string | null
  readonly principal: string | null
  readonly session: string | null
  readonly tool: string
  readonly effect: string | null
  readonly status: string
  readonly error_code: string | null
  readonly duration_ms: number | null
  /** Unix time in seconds. */
  readonly started_at: number
  readonly replayed: boolean
}

export const executionSchema: JsonSchema = {
  type: 'object',
  required: ['execution_id', 'request_id', 'principal', 'session', 'tool', 'effect', 'status', 'started_at'],
  properties: {
    execution_id: { ...text, description: 'Of a replay, that of the first call' },
    request_id: textOrNull,
    principal: textOrNull,
    session: textOrNull,
    tool: text,
    effect: { ...textOrNull, description: '`null` where there is no such tool' },
    status: { enum: ['completed', 'failed', 'cancelled', 'timed_out', 'uncertain'] },
    error_code: textOrNull,
    duration_ms: { type: ['number', 'null'] },
    started_at: { type: 'integer', description: 'Unix time in seconds' },
    replayed: { type: 'boolean' }
  }
}

export function toWire(record: ExecutionRecord): ExecutionWire {
  return {
    execution_id: record.executionId,
    request_id: record.requestId ?? null,
    principal: record.principal ?? null,
    session: record.session ?? null,
    tool: record.tool,
    effect: record.effect ?? null,
    status: record.status,
    error_code: record.errorCode ?? null,
    duration_ms: record.durationMs,
    started_at: toSeconds(record.startedAtMs),
    replayed: record.replayed
  }
}

export function toSeconds(ms: number): number {
  return Math.floor(ms / 1_000)
}

interface Listed {
  readonly executions: readonly ExecutionWire[]
}

/** @param operators principals that may use it */
export function auditTool(history: History, operators: readonly string[]): Tool<{ limit?: number }, Listed> {
  return {
    name: 'carmy_audit',
    system: true,
    description: 'Lists the last tool calls and how they ended, newest first.',
    input: schemaOf<{ limit?: number }>({
      type: 'object',
      additionalProperties: false,
      properties: { limit: { type: 'integer', description: `Brought into 1 to ${maxLimit}; 20 when left out` } }
    }),
    output: schemaOf<Listed>({
      type: 'object',
      required: ['executions'],
      properties: { executions: { type: 'array', items: executionSchema } }
    }),
    effect: 'read',
    idempotent: false,
    parallelSafe: true,
    run({ limit = 20 }, { principal }) {
      if (principal === undefined || !operators.includes(principal)) {
        const detail: ToolErrorDetail = { category: 'permission' }
        throw new CodedError('FORBIDDEN', 'this tool is for operators', { detail: { ...detail } })
      }
      const found = history.list({ limit: Math.min(Math.max(limit, 1), maxLimit), offset: 0 })
      return { executions: found.map(toWire) }
    }
  }
}
