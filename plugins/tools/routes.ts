import { type JsonSchema, schemaOf } from '../../kernel/index.ts'
import type { ErrorMap, Request, Route } from '../http/types.ts'
import { executionSchema, toSeconds, toWire } from './audit-tool.ts'
import type { Executions, Settlement, UncertainExecution } from './executions.ts'
import type { Actor, Grants, GrantsOf } from './grants.ts'
import type { History } from './history.ts'

const base = '/api/admin/carmy'
const maxLimit = 200
const text = { type: 'string' } as const
const textOrNull = { type: ['string', 'null'] } as const
const noStore = { 'cache-control': 'no-store' } as const

interface ExecutionsQuery {
  readonly limit: number
  readonly offset: number
  readonly state?: 'uncertain'
}

const execution: JsonSchema = { $id: 'ToolExecution', ...executionSchema }

const settled: JsonSchema = {
  type: 'object',
  required: ['execution_id', 'request_id', 'principal', 'session', 'tool', 'outcome'],
  properties: {
    execution_id: text,
    request_id: text,
    principal: textOrNull,
    session: textOrNull,
    tool: text,
    outcome: { enum: ['completed', 'failed', 'released'] }
  }
}

const settlement: JsonSchema = {
  type: 'object',
  required: ['outcome'],
  properties: {
    outcome: { enum: ['completed', 'failed', 'released'] },
    data: { description: 'With completed: what the tool would have answered' },
    error: {
      type: 'object',
      required: ['code', 'message'],
      properties: {
        code: { type: 'string', minLength: 1, maxLength: 128 },
        message: { type: 'string', maxLength: 2_000 },
        category: {
          enum: ['validation', 'not_found', 'permission', 'conflict', 'cancelled', 'timeout', 'internal', 'capacity']
        },
        recoverable: { type: 'boolean' },
        suggested_action: { type: 'string', maxLength: 128 },
        details: {}
      }
    }
  },
  oneOf: [
    { properties: { outcome: { const: 'completed' } }, required: ['data'] },
    { properties: { outcome: { const: 'failed' } }, required: ['error'] },
    { properties: { outcome: { const: 'released' } } }
  ]
}

const permissions: JsonSchema = {
  type: 'array',
  maxItems: 1_000,
  items: {
    type: 'string',
    pattern: '^(?:confirm|tool):[A-Za-z0-9_.-]{1,128}$',
    description: '`confirm:<tool>`, or `tool:<tool>` where every call needs a permission'
  }
}

/** Permissions by principal, as configuration gives them. */
export const grantsSchema: JsonSchema = {
  type: 'object',
  default: {},
  propertyNames: { minLength: 1, maxLength: 256 },
  additionalProperties: permissions,
  description: 'Permissions by principal: `user:<id>`, `tenant:<id>`, or `*` for every caller'
}

const grants: JsonSchema = {
  $id: 'ToolGrants',
  type: 'object',
  required: ['principal', 'permissions', 'configured'],
  properties: {
    principal: { ...text, description: '`user:<id>`, `tenant:<id>`, or `*` for every caller' },
    permissions: { type: 'array', items: text, description: 'Granted by administrators' },
    configured: { type: 'array', items: text, description: 'Given by the program file, and not changed here' }
  }
}

const errors: ErrorMap = {
  EXECUTIONS_UNKNOWN: 404,
  EXECUTIONS_NOT_UNCERTAIN: 409,
  EXECUTIONS_TOOL_GONE: 409,
  EXECUTIONS_OUTPUT_INVALID: 400
}

type ExecutionParams = { readonly id: string }
type GrantsParams = { readonly principal: string }

const principalParams = schemaOf<GrantsParams>({
  type: 'object',
  properties: { principal: { type: 'string', minLength: 1, maxLength: 256 } }
})

/** What operators see and decide. */
export function routes(history: History, executions: Executions, granted: Grants): readonly Route[] {
  const list: Route<object, ExecutionsQuery> = {
    method: 'GET',
    path: `${base}/executions`,
    operationId: 'listToolExecutions',
    summary: 'List the last 1,000 tool calls, or all whose end nobody knows, newest first',
    guard: 'admin',
    query: schemaOf<ExecutionsQuery>({
      type: 'object',
      properties: {
        limit: { type: 'integer', default: 50, description: `Brought into 1 to ${maxLimit}` },
        offset: { type: 'integer', default: 0, description: 'Rows to leave out; 0 when negative' },
        state: { enum: ['uncertain'], description: 'Those that wait to be settled' }
      }
    }),
    replies: { 200: { type: 'array', items: execution } },
    async handle({ query }) {
      const page = { limit: Math.min(Math.max(query.limit, 1), maxLimit), offset: Math.max(query.offset, 0) }
      const body =
        query.state === undefined
          ? history.list(page).map(toWire)
          : (await executions.listUncertain(page)).map(uncertainToWire)
      return { headers: noStore, body }
    }
  }

  const settle: Route<ExecutionParams, unknown, Settlement> = {
    method: 'POST',
    path: `${base}/executions/{id}/settle`,
    operationId: 'settleToolExecution',
    summary: 'Say how a call ended of which nobody knows: what its request id is answered from then on',
    guard: 'admin',
    body: schemaOf<Settlement>(settlement),
    replies: { 200: settled },
    errors,
    async handle(request) {
      const { executionId, requestId, principal, session, tool } = await executions.settle(
        request.params.id,
        request.body,
        actorOf(request)
      )
      const body = {
        execution_id: executionId,
        request_id: requestId,
        principal: principal ?? null,
        session: session ?? null,
        tool,
        outcome: request.body.outcome
      }
      return { headers: noStore, body }
    }
  }

  const listGrants: Route = {
    method: 'GET',
    path: `${base}/grants`,
    operationId: 'listToolGrants',
    summary: 'List the principals to whom administrators granted permissions',
    guard: 'admin',
    replies: { 200: { type: 'array', items: grants } },
    handle: () => ({ headers: noStore, body: granted.list() })
  }

  const getGrants: Route<GrantsParams> = {
    method: 'GET',
    path: `${base}/grants/{principal}`,
    operationId: 'getToolGrants',
    summary: 'Read the permissions of a principal; one without any is no error',
    guard: 'admin',
    params: principalParams,
    replies: { 200: grants },
    handle: ({ params }) => ({ headers: noStore, body: granted.get(params.principal) })
  }

  const putGrants: Route<GrantsParams, unknown, Pick<GrantsOf, 'permissions'>> = {
    method: 'PUT',
    path: `${base}/grants/{principal}`,
    operationId: 'putToolGrants',
    summary: 'Set all that administrators grant to a principal',
    guard: 'admin',
    params: principalParams,
    body: schemaOf<Pick<GrantsOf, 'permissions'>>({
      type: 'object',
      required: ['permissions'],
      properties: { permissions }
    }),
    replies: { 200: grants },
    handle: async (request) => ({
      headers: noStore,
      body: await granted.set(request.params.principal, request.body.permissions, actorOf(request))
    })
  }

  return [list, settle, listGrants, getGrants, putGrants] as unknown as readonly Route[]
}

function actorOf({ principal, address, id }: Request<unknown>): Actor {
  return { actor: principal.id, address, requestId: id }
}

function uncertainToWire(execution: UncertainExecution): object {
  return {
    execution_id: execution.executionId,
    request_id: execution.requestId,
    principal: execution.principal ?? null,
    session: execution.session ?? null,
    tool: execution.tool,
    effect: execution.effect,
    status: 'uncertain',
    error_code: null,
    duration_ms: null,
    started_at: toSeconds(execution.startedAtMs),
    replayed: false
  }
}
