import type { Headers, Problem, Reply } from '../http/types.ts'
import type { ErrorCategory, ToolFailure } from '../tools/types.ts'

export const answerHeaders: Headers = Object.freeze({
  'content-type': 'application/json',
  'cache-control': 'no-store'
})

interface Shape {
  readonly status?: number
  readonly code: string
  readonly category: ErrorCategory
  readonly recoverable?: boolean
  readonly retryable?: boolean
}

/** What is wrong with the request itself is one code, whichever way http found out. */
const malformed: Shape = { status: 400, code: 'INVALID_REQUEST', category: 'validation', recoverable: true }

const shapes: Readonly<Record<number, Shape>> = {
  401: { code: 'UNAUTHORIZED', category: 'permission' },
  403: { code: 'FORBIDDEN', category: 'permission' },
  404: { code: 'NOT_FOUND', category: 'not_found' },
  405: { code: 'METHOD_NOT_ALLOWED', category: 'not_found' },
  413: { code: 'PAYLOAD_TOO_LARGE', category: 'capacity', recoverable: true },
  429: { code: 'RATE_LIMITED', category: 'capacity', retryable: true },
  503: { code: 'UNAVAILABLE', category: 'capacity', retryable: true }
}

/** A refusal before anything was executed: `{"error":{…}}` alone, without an execution id. */
export function renderProblem({ status, message, retryAfterSeconds }: Problem): Reply {
  const shape = shapes[status] ?? (status < 500 ? malformed : { code: 'INTERNAL_ERROR', category: 'internal' })
  const retryable = shape.retryable ?? false
  const error: ToolFailure = {
    code: shape.code,
    message,
    category: shape.category,
    recoverable: retryable || (shape.recoverable ?? false),
    retryable,
    ...(retryAfterSeconds === undefined ? {} : { retry_after: Math.ceil(retryAfterSeconds) }),
    ...(shape.recoverable === true ? { details: { reason: message } } : {})
  }
  return { status: shape.status ?? status, headers: answerHeaders, text: JSON.stringify({ error }) }
}
