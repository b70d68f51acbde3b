import type { ExecutionResponse, ToolDescription, ToolFailure } from '../tools/types.ts'

/** What becomes of a job after an attempt. */
export type Outcome =
  | { readonly status: 'succeeded'; readonly result: unknown }
  | { readonly status: 'failed' | 'dead_lettered'; readonly error: ToolFailure }
  | { readonly status: 'queued'; readonly error: ToolFailure; readonly delayMs: number }

export interface RetryRules {
  readonly backoffMs: number
  readonly maxBackoffMs: number
}

interface Attempt {
  readonly attempts: number
  readonly maxAttempts: number
}

/** The tool may have done something, and nobody knows. */
const unknownEnds: readonly string[] = [
  'TIMEOUT',
  'CANCELLED',
  'TOOL_PANIC',
  'EXECUTION_UNCERTAIN',
  // An operator settled the attempt while it ran.
  'IDEMPOTENCY_CONFLICT'
]

/** The tool did not run, and may next time: its plugin may be back by then, or old request ids may have gone. */
const passing: readonly string[] = ['TOOL_NOT_FOUND', 'IDEMPOTENCY_CAPACITY']

/** @param tool as the catalog had it when the attempt began */
export function outcomeOf(
  { error, data }: Pick<ExecutionResponse, 'error' | 'data'>,
  tool: Pick<ToolDescription, 'idempotent'> | undefined,
  attempt: Attempt,
  rules: RetryRules
): Outcome {
  if (error === undefined) return { status: 'succeeded', result: data }
  if (error.retryable || passing.includes(error.code)) return again(error, attempt, rules)
  // A record that could not be written: the tool ran.
  if (unknownEnds.includes(error.code) || error.code === 'STORE_ERROR') {
    return tool?.idempotent === true
      ? again(error, attempt, rules)
      : { status: 'dead_lettered', error: uncertain(error, attempt) }
  }
  return { status: 'failed', error }
}

function again(error: ToolFailure, { attempts, maxAttempts }: Attempt, rules: RetryRules): Outcome {
  if (attempts >= maxAttempts) return { status: 'dead_lettered', error }
  const backoffMs = Math.min(rules.maxBackoffMs, rules.backoffMs * 2 ** (attempts - 1))
  return { status: 'queued', error, delayMs: Math.max(backoffMs, (error.retry_after ?? 0) * 1_000) }
}

function uncertain(error: ToolFailure, { attempts }: Attempt): ToolFailure {
  return {
    code: 'EXECUTION_UNCERTAIN',
    message: `attempt ${attempts} ended without a known result (${error.code}); the tool is not idempotent, so it is not run again`,
    category: 'conflict',
    recoverable: false,
    retryable: false,
    details: { cause: error.code }
  }
}
