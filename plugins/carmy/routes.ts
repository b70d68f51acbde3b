import { type JsonSchema, schemaOf } from '../../kernel/index.ts'
import type { ErrorMap, Reply, Request, Route } from '../http/types.ts'
import type { ErrorCategory, ExecuteRequest, Execution, Tools } from '../tools/types.ts'
import { assertKnown, callerOf } from './callers.ts'
import { answer, createDocuments, type Documents } from './documents.ts'
import { streamExecution } from './execution-stream.ts'
import type { ShownFaces } from './faces.ts'
import { answerHeaders, renderProblem } from './problems.ts'

export interface Config {
  /** Name of this server in the discovery document. */
  readonly server: string
  readonly require_auth: boolean
}

interface ExecuteBody {
  readonly tool: string
  readonly arguments?: unknown
  readonly request_id?: string | null
}

const executeBody = schemaOf<ExecuteBody>({
  type: 'object',
  required: ['tool'],
  additionalProperties: false,
  properties: {
    tool: { type: 'string' },
    arguments: { description: 'What the input schema of the tool asks for; {} when left out' },
    request_id: {
      type: ['string', 'null'],
      description: '1 to 256 bytes. A call is run once for each; sent again, it gets the same answer'
    }
  }
})

const failure: JsonSchema = {
  type: 'object',
  required: ['code', 'message', 'category', 'recoverable', 'retryable'],
  properties: {
    code: { type: 'string' },
    message: { type: 'string' },
    category: {
      enum: ['validation', 'not_found', 'permission', 'conflict', 'cancelled', 'timeout', 'internal', 'capacity']
    },
    recoverable: { type: 'boolean' },
    retryable: { type: 'boolean' },
    retry_after: { type: 'integer', description: 'Seconds' },
    suggested_action: { type: 'string', description: 'Name of a tool' },
    details: {}
  }
}

/** Of a request that was not executed. */
const refusal: JsonSchema = { type: 'object', required: ['error'], properties: { error: failure } }

const execution: JsonSchema = {
  type: 'object',
  properties: {
    execution_id: { type: 'string' },
    status: { enum: ['completed', 'failed', 'cancelled', 'timed_out'] },
    data: {},
    error: failure,
    _agent: {
      type: 'object',
      required: ['cacheable', 'next_actions'],
      properties: { cacheable: { type: 'boolean' }, next_actions: { type: 'array', items: { type: 'object' } } }
    }
  }
}

/** The body tells what happened; the status is a courtesy to tools that know only HTTP. */
const statuses: Readonly<Record<ErrorCategory, number>> = {
  validation: 400,
  permission: 403,
  not_found: 404,
  cancelled: 408,
  conflict: 409,
  internal: 500,
  capacity: 503,
  timeout: 504
}

const errors: ErrorMap = { CARMY_UNAUTHORIZED: { status: 401, code: 'UNAUTHORIZED' } }

export function routes(tools: Tools, { server, require_auth }: Config, faces: () => ShownFaces): Route[] {
  const documents = createDocuments(tools, server, faces)

  const document = (path: string, operationId: string, summary: string, name: keyof Documents): Route => ({
    method: 'GET',
    path,
    operationId,
    summary,
    // A wrong credential is refused here too: whoever has one should learn that it is wrong.
    guard: 'caller',
    replies: { 200: { type: 'object' }, 304: {}, 401: refusal },
    errors,
    renderProblem,
    handle(request) {
      if (require_auth) assertKnown(request.principal)
      return answer(documents()[name], request.header('if-none-match'))
    }
  })

  const execute: Route<Record<string, string>, unknown, ExecuteBody> = {
    method: 'POST',
    path: '/agent/execute',
    operationId: 'executeTool',
    summary: 'Run a tool; answered as a stream of events where the client accepts text/event-stream',
    guard: 'caller',
    body: executeBody,
    replies: {
      200: execution,
      401: refusal,
      413: refusal,
      ...Object.fromEntries(Object.values(statuses).map((status) => [status, execution]))
    },
    errors,
    renderProblem,
    handle(request) {
      if (require_auth) assertKnown(request.principal)
      if (request.header('accept')?.includes('text/event-stream')) {
        return { events: streamExecution((listener) => tools.execute({ ...toExecuteRequest(request), listener })) }
      }
      const execution = tools.execute(toExecuteRequest(request))
      return execution instanceof Promise ? execution.then(toReply) : toReply(execution)
    }
  }

  return [
    document('/.well-known/agent', 'discoverAgent', 'What this server speaks, and where', 'discovery'),
    document('/agent/tools', 'listTools', 'The tools, with their schemas and effects', 'catalog'),
    execute as Route
  ]
}

function toExecuteRequest(request: Request<unknown, unknown, ExecuteBody>): ExecuteRequest {
  const { tool, arguments: input, request_id } = request.body
  return {
    tool,
    arguments: input === undefined ? {} : input,
    requestId: request_id ?? undefined,
    caller: callerOf(request.principal),
    signal: () => request.signal,
    isGone: () => request.isGone
  }
}

function toReply(execution: Execution): Reply {
  const { category, text, replayed } = execution
  if (category === undefined) return { status: 200, headers: answerHeaders, text }
  // What is on record does not change, however long its caller waits.
  const seconds = category === 'capacity' && !replayed ? execution.response.error?.retry_after : undefined
  const headers = seconds === undefined ? answerHeaders : { ...answerHeaders, 'retry-after': String(seconds) }
  return { status: statuses[category], headers, text }
}
