import { type Awaitable, CodedError } from '../../kernel/index.ts'
import type { ErrorMap, Headers, Problem, Reply, Request, Route } from '../http/types.ts'
import type { Caller, ErrorCategory, Execution, NextAction, ToolFailure } from '../tools/types.ts'
import { isGenuine } from './signature.ts'
import { eventIdOf, type Parts, type Webhook } from './webhook.ts'

const maxBodyBytes = 1_048_576

const answerHeaders: Headers = Object.freeze({ 'content-type': 'application/json', 'cache-control': 'no-store' })

/** As of `POST /agent/execute`. */
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

const errors: ErrorMap = {
  WEBHOOK_UNAUTHORIZED: { status: 401, code: 'WEBHOOK_UNAUTHORIZED' },
  JOBS_INVALID: { status: 400, code: 'INVALID_ID' },
  JOBS_CONFLICT: { status: 409, code: 'IDEMPOTENCY_CONFLICT' },
  JOBS_CAPACITY: { status: 503, code: 'JOBS_CAPACITY' },
  JOBS_UNBOUND: { status: 500, code: 'JOBS_UNBOUND' }
}

/** @param now Unix time in milliseconds */
export function routeOf(webhook: Webhook, parts: Parts, now: () => number): Route {
  const { path, tool, mode, event_id } = webhook
  const caller = callerOf(webhook)

  async function enqueue(payload: unknown, requestId: string | undefined): Promise<Reply> {
    const jobs = parts.jobs()
    if (jobs === undefined) throw new CodedError('JOBS_UNBOUND', 'there is no queue to put the delivery into')
    // Whoever has delivered it has no credential to ask with, but is told an id that cannot be guessed.
    const job = await jobs.enqueue({ tool, arguments: payload, requestId, caller, byIdAlone: true })
    const next: NextAction = {
      tool: 'carmy_job',
      reason: 'The delivery is a job now: ask what has become of it.',
      arguments: { job_id: job.id }
    }
    const body = { job_id: job.id, request_id: requestId ?? null, _agent: { next_actions: [next] } }
    return { status: 202, headers: answerHeaders, body }
  }

  return {
    method: 'POST',
    path,
    operationId: `receive${path.replaceAll(/[^A-Za-z0-9]+([A-Za-z0-9]?)/g, (_all, first: string) => first.toUpperCase())}`,
    summary: `Deliver an event, for which the tool ${tool} is called`,
    rawBody: true,
    maxBodyBytes,
    replies: { [mode === 'inline' ? 200 : 202]: { type: 'object' }, 400: refusal, 401: refusal, 413: refusal },
    errors,
    renderProblem,
    handle(request: Request): Awaitable<Reply> {
      const bytes = request.rawBody ?? new Uint8Array(0)
      if (!isGenuine(webhook, { header: (name) => request.header(name), bytes }, now())) {
        throw new CodedError('WEBHOOK_UNAUTHORIZED', 'the delivery is not signed as this webhook asks for')
      }
      const payload = request.json()
      const requestId = eventIdOf(payload, event_id)
      if (mode === 'enqueue') return enqueue(payload, requestId)
      const signal = (): AbortSignal => request.signal
      const execution = parts.tools.execute({ tool, arguments: payload, requestId, caller, signal })
      return execution instanceof Promise ? execution.then(toReply) : toReply(execution)
    }
  }
}

/** Ids of events are those of one webhook: no other, and no caller of carmy, can take them. */
function callerOf({ path, unverified }: Webhook): Caller {
  return unverified ? { principal: undefined, session: `webhook:${path}` } : { principal: `webhook:${path}` }
}

function toReply({ category, text }: Execution): Reply {
  return { status: category === undefined ? 200 : statuses[category], headers: answerHeaders, text }
}

const refusal = {
  type: 'object',
  required: ['error'],
  properties: { error: { type: 'object', required: ['code', 'message', 'category', 'recoverable', 'retryable'] } }
}

const shapes: Readonly<Record<number, { readonly code?: string; readonly category: ErrorCategory }>> = {
  400: { code: 'INVALID_REQUEST', category: 'validation' },
  401: { category: 'permission' },
  405: { category: 'not_found' },
  409: { category: 'conflict' },
  413: { category: 'capacity' },
  429: { code: 'RATE_LIMITED', category: 'capacity' },
  503: { category: 'capacity' }
}

/** `{"error":{…}}` alone: nothing was executed. */
function renderProblem({ status, code, message, retryAfterSeconds }: Problem): Reply {
  const { category, code: own } = shapes[status] ?? { category: 'internal' as const }
  const retryable = status === 429 || status === 503
  const error: ToolFailure = {
    code: code === 'INVALID_ID' ? code : (own ?? code),
    message,
    category,
    recoverable: retryable,
    retryable,
    ...(retryAfterSeconds === undefined ? {} : { retry_after: Math.ceil(retryAfterSeconds) }),
    ...(status === 400 || status === 413 ? { details: { reason: message } } : {})
  }
  return { status, headers: answerHeaders, text: JSON.stringify({ error }) }
}
