import { isCoded } from '../../kernel/index.ts'
import { toExactJson } from './json.ts'
import type { Effect, ErrorCategory, ExecutionResponse, NextAction, ToolErrorDetail, ToolFailure } from './types.ts'

const categories: readonly string[] = [
  'validation',
  'not_found',
  'permission',
  'conflict',
  'cancelled',
  'timeout',
  'internal',
  'capacity'
] satisfies readonly ErrorCategory[]

/** A failure with its members in the order of the wire. */
export function failureOf(
  code: string,
  category: ErrorCategory,
  message: string,
  more: Omit<ToolErrorDetail, 'category'> = {}
): ToolFailure {
  const retryable = more.retryable ?? false
  return {
    code,
    message,
    category,
    recoverable: retryable || (more.recoverable ?? false),
    retryable,
    ...(more.retry_after === undefined ? {} : { retry_after: Math.ceil(more.retry_after) }),
    ...(more.suggested_action === undefined ? {} : { suggested_action: more.suggested_action }),
    ...(more.details === undefined ? {} : { details: more.details })
  }
}

/** Longest reason, in UTF-16 units: it may name a member that the caller made up. */
const maxReasonChars = 500

/** @param reason what is wrong, and where */
export function invalidArguments(reason: string): ToolFailure {
  if (reason.length > maxReasonChars) reason = `${reason.slice(0, maxReasonChars)}…`
  const message = 'the arguments are not what the input schema of the tool asks for'
  return failureOf('INVALID_ARGUMENTS', 'validation', message, { details: { reason } })
}

/** @param began the tool was running, so that something may have come of it */
export function cancelled(began: boolean): ToolFailure {
  const what = began ? 'while the tool ran; its effects may have happened' : 'before the tool began'
  return failureOf('CANCELLED', 'cancelled', `the call was cancelled ${what}`)
}

/** Running it a second time is no second time. */
export function isHarmless(effect: Effect): boolean {
  return effect === 'none' || effect === 'read'
}

/**
 * The failure a tool reports with a CodedError; `undefined` for anything else that was thrown.
 * @param isRepeatable the tool has no effects, so that whatever passes may be tried again
 * @param maxBytes of its details, as JSON
 */
export function reportedFailure(error: unknown, isRepeatable: boolean, maxBytes: number): ToolFailure | undefined {
  if (!isCoded(error)) return undefined
  if (error.code === 'WORKERS_BUSY') {
    const seconds = error.detail?.['retryAfterSeconds']
    const retry_after = typeof seconds === 'number' ? seconds : 1
    return failureOf(error.code, 'capacity', 'too much work is waiting already', {
      retryable: isRepeatable,
      retry_after
    })
  }
  if (!isToolErrorDetail(error.detail, maxBytes)) return undefined
  const { category, ...more } = error.detail
  return failureOf(error.code, category, error.message, more)
}

/** Why the output of a tool could not come back from a worker thread; `undefined` for anything else that was thrown. */
export function uncopiedOutput(error: unknown): string | undefined {
  if (!isCoded(error, 'WORKERS_UNCLONABLE') && !isCoded(error, 'WORKERS_TOO_LARGE')) return undefined
  const { side } = (error.detail ?? {}) as { readonly side?: unknown }
  return side === 'output' ? error.message : undefined
}

function isToolErrorDetail(detail: unknown, maxBytes: number): detail is ToolErrorDetail {
  if (typeof detail !== 'object' || detail === null) return false
  const { category, recoverable, retryable, retry_after, suggested_action, details } = detail as Record<string, unknown>
  return (
    typeof category === 'string' &&
    categories.includes(category) &&
    (recoverable === undefined || typeof recoverable === 'boolean') &&
    (retryable === undefined || typeof retryable === 'boolean') &&
    (retry_after === undefined || (Number.isFinite(retry_after) && (retry_after as number) >= 0)) &&
    (suggested_action === undefined || typeof suggested_action === 'string') &&
    (details === undefined || toExactJson(details, maxBytes) !== undefined)
  )
}

export function statusOf(category: ErrorCategory): ExecutionResponse['status'] {
  if (category === 'cancelled') return 'cancelled'
  return category === 'timeout' ? 'timed_out' : 'failed'
}

/** What the caller could do next. Of the tool and the failure alone, so that a replay says the same. */
export function nextActions(tool: string, failure: ToolFailure): readonly NextAction[] {
  if (failure.retryable) {
    const reason = 'The failure may pass: make the same call again, with the same request_id if it had one.'
    const { retry_after } = failure
    return [{ tool, reason, ...(retry_after === undefined ? {} : { after_ms: retry_after * 1_000 }) }]
  }
  if (failure.code === 'CONFIRMATION_REQUIRED') {
    return [{ tool, reason: 'Ask a person. Once the caller has been granted the confirmation, make the same call.' }]
  }
  return []
}
