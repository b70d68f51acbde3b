import { type Awaitable, isCoded, type Logger, messageOf } from '../../kernel/index.ts'
import type { Key } from '../store/types.ts'
import { Answer, failed } from './answer.ts'
import type { Call } from './call.ts'
import { failureOf, invalidArguments } from './failures.ts'
import { canonicalJson, sha256 } from './json.ts'
import { keyOf, type Replay, type Reservation, type Taken } from './replay.ts'
import type { ExecuteRequest, Execution } from './types.ts'

/**
 * Runs a call with a request id: the id is reserved, the tool runs, its answer is recorded, each on disk before the
 * next. A call that comes again gets what was recorded, at hand where the store is.
 * @param now Unix time in milliseconds
 */
export function createOnce(
  replay: Replay,
  log: Logger,
  now: () => number
): (call: Call, request: ExecuteRequest, requestId: string, executionId: string) => Awaitable<Execution> {
  async function runReserved(
    call: Call,
    key: Key,
    mine: Reservation,
    reserving: Promise<Taken | undefined>
  ): Promise<Execution> {
    let taken: Taken | undefined
    try {
      taken = await reserving
    } catch (error) {
      call.drop()
      return unreserved(mine, error)
    }
    if (taken !== undefined) {
      call.drop()
      return answerTaken(mine, taken)
    }
    const execution = await call.run()
    try {
      await replay.settle(key, mine, call.fate, execution.category, execution.text)
      return execution
    } catch (error) {
      return unrecorded(mine, error)
    }
  }

  function unreserved({ execution_id, tool }: Reservation, error: unknown): Execution {
    log.error('a request id could not be reserved', { tool, execution_id, error })
    const message = 'the store could not reserve the request_id; the tool did not run'
    return failed(execution_id, tool, failureOf('STORE_ERROR', 'internal', message, { retryable: true }))
  }

  /** Not retryable: whoever sends the same id again learns only that it is uncertain. */
  function unrecorded({ execution_id, tool }: Reservation, error: unknown): Execution {
    if (isCoded(error, 'IDEMPOTENCY_CONFLICT')) {
      return failed(execution_id, tool, failureOf(error.code, 'conflict', error.message))
    }
    log.error('an answer could not be recorded', { tool, execution_id, error })
    const message = 'the tool ran, but the store could not keep its answer; the request_id stays uncertain'
    return failed(execution_id, tool, failureOf('STORE_ERROR', 'internal', message))
  }

  return (call, { tool, arguments: input, caller }, requestId, executionId) => {
    let fingerprint: string
    try {
      fingerprint = fingerprintOf(tool, input)
    } catch (error) {
      return failed(executionId, tool, invalidArguments(messageOf(error)))
    }
    const key = keyOf(caller, requestId)
    const mine: Reservation = { state: 'reserved', tool, fingerprint, execution_id: executionId, created_at_ms: now() }
    try {
      const taken = replay.reserve(key, mine)
      if (!(taken instanceof Promise)) return answerTaken(mine, taken)
      call.hold()
      return runReserved(call, key, mine, taken)
    } catch (error) {
      return unreserved(mine, error)
    }
  }
}

/** What a call is recognised by when it comes again: lower-case hex SHA-256 of its canonical JSON. */
export function fingerprintOf(tool: string, input: unknown): string {
  // The two objects are the metadata of request and context, which nothing sets.
  return sha256(canonicalJson([tool, input, {}, {}]))
}

function answerTaken({ execution_id, tool }: Reservation, taken: Taken): Execution {
  if (taken === 'conflict') {
    const message = 'the request_id was used for another call: another tool, or other arguments'
    return failed(execution_id, tool, failureOf('IDEMPOTENCY_CONFLICT', 'conflict', message))
  }
  if (taken === 'uncertain') {
    const message = 'a call with this request_id is running, or ended without a known result; it is not run again'
    return failed(execution_id, tool, failureOf('EXECUTION_UNCERTAIN', 'conflict', message))
  }
  return new Answer(taken.text, taken.category ?? undefined, true)
}
