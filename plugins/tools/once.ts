import { type Awaitable, isCoded, messageOf } from '../../kernel/index.ts'
import type { Key } from '../store/types.ts'
import { Answer, failed } from './answer.ts'
import type { Call, CallHost } from './call.ts'
import { failureOf, invalidArguments, isHarmless } from './failures.ts'
import { canonicalJson, sha256 } from './json.ts'
import { judgeOutput } from './output.ts'
import { type Claim, type Claims, keyOf, type Known, type Replay, type Reservation, type Result } from './replay.ts'
import { startVerifying } from './verify.ts'

/** A call with a request id, while this process is at work on it. */
interface Once {
  readonly call: Call
  readonly key: Key
  /** Text of the key. */
  readonly name: string
  readonly mine: Reservation
  readonly claim: Claim
}

/**
 * Runs a call with a request id. The id is reserved, the tool runs, its answer is recorded, each on disk before the
 * next; but a tool without effects runs while its reservation is on its way, and where the answer is faster the two are
 * one write. A call that comes again gets what was recorded, at hand where the store is.
 * @param isFullNow told when a principal has no room for another id
 * @param now Unix time in milliseconds
 */
export function createOnce(
  replay: Replay,
  claims: Claims,
  host: CallHost,
  isFullNow: () => void,
  now: () => number
): (call: Call, requestId: string) => Awaitable<Answer> {
  const { log } = host

  function free({ name, claim }: Once): void {
    // An operator may have settled it while its tool was asked: then the claim is no longer there, or another's.
    if (claims.get(name) === claim) claims.delete(name)
  }

  async function begin(once: Once, finding: Awaitable<Known>): Promise<Answer> {
    const { call, key, mine } = once
    let isAsked = false
    let answer: Answer | undefined
    let isReserved = false
    try {
      const known = await finding
      if (known !== undefined && 'finished' in known) {
        answer = judgeFinished(known.finished, mine)
      } else if (known !== undefined) {
        const { open } = known
        if (open.fingerprint !== mine.fingerprint) answer = conflict(mine)
        else if (call.listed.tool.verify === undefined) answer = uncertain(mine)
        else {
          isAsked = true
          answer = await ask(once, open)
          isReserved = answer === undefined
        }
      } else if (isHarmless(mine.effect)) {
        if (await replay.isFull(key)) answer = full(mine)
      } else {
        isReserved = await replay.reserve(key, mine)
        if (!isReserved) answer = full(mine)
      }
    } catch (error) {
      answer = isCoded(error, 'IDEMPOTENCY_CONFLICT') ? uncertain(mine) : unreserved(mine, error)
    }
    if (answer === undefined) return isReserved ? runReserved(once) : runAtOnce(once)
    call.drop()
    if (!isAsked) free(once)
    return answer
  }

  /** For a tool with effects: it runs only once its reservation is on disk. */
  async function runReserved(once: Once): Promise<Answer> {
    const { call, key, mine } = once
    const answer = await call.run()
    try {
      if (call.fate === 'record') await replay.record(key, mine, resultOf(answer))
      else if (call.fate === 'release') await replay.release(key, mine)
      else return leave(once, answer)
    } catch (error) {
      return leave(once, unrecorded(mine, error))
    }
    free(once)
    return answer
  }

  /** For a tool without effects: nothing is lost when a crash takes the reservation along. */
  async function runAtOnce(once: Once): Promise<Answer> {
    const { call, key, mine } = once
    const reservation = replay.reserveUnless(key, mine)
    let answer = await call.run()
    try {
      if (call.fate === 'leave') {
        await reservation.made
        return leave(once, answer)
      }
      reservation.isNeedless = true
      if (call.fate === 'release') await replay.release(key, mine, false)
      else if (!(await replay.record(key, mine, resultOf(answer), false))) answer = full(mine)
    } catch (error) {
      return leave(once, unrecorded(mine, error))
    }
    free(once)
    return answer
  }

  /** As long as the tool is at work, nobody is to ask it how the call has ended. */
  function leave(once: Once, answer: Answer): Answer {
    once.call.whenOver(() => free(once))
    return answer
  }

  /**
   * Asks the tool how the earlier call ended. Frees the claim where there is an answer.
   * @returns `undefined` when the earlier call had no effect, and its id is now that of this one
   */
  async function ask(once: Once, earlier: Reservation): Promise<Answer | undefined> {
    const { call, key, mine, claim } = once
    claim.isVerifying = true
    const { listed, request, permissions } = call
    const context = {
      executionId: earlier.execution_id,
      requestId: request.requestId,
      principal: request.caller.principal,
      permissions,
      progress: () => {}
    }
    const lease = listed.contribution.lease()
    const { verdict, over } = startVerifying(listed, request.arguments, context, lease, host)
    let found = await verdict
    let taken: Answer | undefined = uncertain(mine)
    // An operator was faster.
    if (claims.get(once.name) !== claim) found = 'unknown'
    // From here on it is for the verdict to settle it.
    if (found !== 'unknown') claim.isVerifying = false
    try {
      if (found !== 'unknown' && !found.happened) {
        if (await replay.takeOver(key, earlier, mine)) taken = undefined
      } else if (found !== 'unknown') {
        const { answer, reason } = judgeOutput(listed, earlier.execution_id, found.output, host.maxOutputBytes, log)
        if (answer === undefined) {
          log.error('a tool verified an output that it does not promise', { ...fieldsOf(earlier), reason })
        } else {
          await replay.record(key, earlier, resultOf(answer))
          taken = replayOf(answer)
        }
      }
      if (found !== 'unknown') {
        log.info('a tool said how an earlier call had ended', { ...fieldsOf(earlier), happened: found.happened })
      }
    } catch (error) {
      if (!isCoded(error, 'IDEMPOTENCY_CONFLICT')) taken = unreserved(mine, error)
    }
    // Asked once at a time: who comes again meanwhile is told that it is uncertain.
    if (taken !== undefined) void over.then(() => free(once))
    return taken
  }

  function full(mine: Reservation): Answer {
    isFullNow()
    const message =
      'no more request ids can be remembered for this caller until older ones expire; the call was not made'
    return failed(mine.execution_id, mine.tool, failureOf('IDEMPOTENCY_CAPACITY', 'capacity', message))
  }

  function unreserved(mine: Reservation, error: unknown): Answer {
    log.error('a request id could not be reserved', { ...fieldsOf(mine), error })
    const message = 'the store could not reserve the request_id; the tool did not run'
    return failed(mine.execution_id, mine.tool, failureOf('STORE_ERROR', 'internal', message, { retryable: true }))
  }

  /** Where there may have been effects not retryable: whoever sends the same id again learns only that it is uncertain. */
  function unrecorded(mine: Reservation, error: unknown): Answer {
    const { execution_id, tool, effect } = mine
    if (isCoded(error, 'IDEMPOTENCY_CONFLICT')) {
      return failed(execution_id, tool, failureOf(error.code, 'conflict', error.message))
    }
    log.error('an answer could not be recorded', { ...fieldsOf(mine), error })
    if (isHarmless(effect)) {
      const message = 'the store could not keep the answer of the tool'
      return failed(execution_id, tool, failureOf('STORE_ERROR', 'internal', message, { retryable: true }))
    }
    const message = 'the tool ran, but the store could not keep its answer; the request_id stays uncertain'
    return failed(execution_id, tool, failureOf('STORE_ERROR', 'internal', message))
  }

  return (call, requestId) => {
    const { request, executionId, listed } = call
    const { tool, arguments: input, caller } = request
    let fingerprint: string
    try {
      fingerprint = fingerprintOf(tool, input)
    } catch (error) {
      return failed(executionId, tool, invalidArguments(messageOf(error)))
    }
    const key = keyOf(caller, requestId)
    const name = JSON.stringify(key)
    const { effect } = listed.tool
    const mine: Reservation = { tool, effect, fingerprint, execution_id: executionId, created_at_ms: now() }
    // An answer that is visible but not yet on disk is not given again: it could still be lost.
    const rival = claims.get(name)
    if (rival !== undefined) return rival.fingerprint === fingerprint ? uncertain(mine) : conflict(mine)
    let known: Awaitable<Known>
    try {
      known = replay.find(key)
    } catch (error) {
      return unreserved(mine, error)
    }
    if (known !== undefined && 'finished' in known) return judgeFinished(known.finished, mine)
    const claim: Claim = { fingerprint, execution_id: executionId, isVerifying: false }
    claims.set(name, claim)
    call.hold()
    return begin({ call, key, name, mine, claim }, known)
  }
}

/** What a call is recognised by when it comes again: lower-case hex SHA-256 of its canonical JSON. */
export function fingerprintOf(tool: string, input: unknown): string {
  // The two objects are the metadata of request and context, which nothing sets.
  return sha256(canonicalJson([tool, input, {}, {}]))
}

export function resultOf({ category, code, text }: Answer): Result {
  return { category: category ?? null, code: code ?? null, text }
}

function replayOf({ executionId, text, category, code }: Answer): Answer {
  return new Answer(executionId, text, category, code, true)
}

function judgeFinished(
  { execution_id, fingerprint, text, category, code }: Reservation & Result,
  mine: Reservation
): Answer {
  if (fingerprint !== mine.fingerprint) return conflict(mine)
  return new Answer(execution_id, text, category ?? undefined, code ?? undefined, true)
}

function conflict({ execution_id, tool }: Reservation): Answer {
  const message = 'the request_id was used for another call: another tool, or other arguments'
  return failed(execution_id, tool, failureOf('IDEMPOTENCY_CONFLICT', 'conflict', message))
}

function uncertain({ execution_id, tool }: Reservation): Answer {
  const message = 'a call with this request_id is running, or ended without a known result; it is not run again'
  return failed(execution_id, tool, failureOf('EXECUTION_UNCERTAIN', 'conflict', message))
}

function fieldsOf({ tool, execution_id }: Reservation): { readonly tool: string; readonly execution_id: string } {
  return { tool, execution_id }
}
