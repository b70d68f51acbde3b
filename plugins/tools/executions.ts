import { CodedError, type Logger } from '../../kernel/index.ts'
import type { Audit } from '../audit/types.ts'
import type { Key, Transaction } from '../store/types.ts'
import { type Answer, failed } from './answer.ts'
import { failureOf } from './failures.ts'
import type { Actor } from './grants.ts'
import { resultOf } from './once.ts'
import { judgeOutput } from './output.ts'
import type { ListedTool } from './registry.ts'
import type { Claim, Claims, Replay, Reservation } from './replay.ts'
import type { Effect, ErrorCategory } from './types.ts'

/** An id of which nobody knows how its call ended. */
export interface UncertainExecution {
  readonly executionId: string
  readonly requestId: string
  readonly principal: string | undefined
  readonly session: string | undefined
  readonly tool: string
  readonly effect: Effect
  /** Unix time in milliseconds. */
  readonly startedAtMs: number
}

/** How a call ended, as an operator found out. */
export type Settlement =
  | { readonly outcome: 'completed'; readonly data: unknown }
  | {
      readonly outcome: 'failed'
      readonly error: {
        readonly code: string
        readonly message: string
        readonly category?: ErrorCategory
        readonly recoverable?: boolean
        readonly suggested_action?: string
        readonly details?: unknown
      }
    }
  | { readonly outcome: 'released' }

/**
 * The way out of uncertainty for operators.
 *
 * Codes: `EXECUTIONS_UNKNOWN`, `EXECUTIONS_NOT_UNCERTAIN` (it runs, or has a result), `EXECUTIONS_TOOL_GONE`,
 * `EXECUTIONS_OUTPUT_INVALID`.
 */
export interface Executions {
  /** Newest first. */
  listUncertain(page: { readonly limit: number; readonly offset: number }): Promise<readonly UncertainExecution[]>
  /** Resolves once it is on disk, together with its row in the audit log. @throws CodedError */
  settle(executionId: string, settlement: Settlement, by: Actor): Promise<UncertainExecution>
}

export function createExecutions(dependencies: {
  readonly replay: Replay
  readonly claims: Claims
  readonly find: (tool: string) => ListedTool | undefined
  readonly audit: Audit | undefined
  readonly maxOutputBytes: number
  readonly log: Logger
}): Executions {
  const { replay, claims, find, audit, maxOutputBytes, log } = dependencies

  const isAtWork = (claim: Claim | undefined): boolean => claim !== undefined && !claim.isVerifying

  async function findOpen(executionId: string): Promise<readonly [Key, Reservation] | undefined> {
    for await (const found of replay.openIds()) if (found[1].execution_id === executionId) return found
    return undefined
  }

  function answerOf({ tool, execution_id }: Reservation, settlement: Settlement): Answer | undefined {
    if (settlement.outcome === 'released') return undefined
    if (settlement.outcome === 'failed') {
      const { code, message, category = 'internal', ...more } = settlement.error
      return failed(execution_id, tool, failureOf(code, category, message, more))
    }
    const listed = find(tool)
    if (listed === undefined) {
      const message = `tool '${tool}' is not there now, so that its output cannot be checked: settle it as failed or released, or bring the tool back`
      throw new CodedError('EXECUTIONS_TOOL_GONE', message)
    }
    const { answer, reason } = judgeOutput(listed, execution_id, settlement.data, maxOutputBytes, log)
    if (answer !== undefined) return answer
    throw new CodedError('EXECUTIONS_OUTPUT_INVALID', `data is not an output of tool '${tool}': ${reason}`)
  }

  return {
    async listUncertain({ limit, offset }) {
      const most = offset + limit
      let found: UncertainExecution[] = []
      const trim = (): void => {
        // Ids begin with the time.
        found.sort((a, b) => (a.executionId < b.executionId ? 1 : -1))
        found = found.slice(0, most)
      }
      for await (const [key, reservation] of replay.openIds()) {
        if (isAtWork(claims.get(JSON.stringify(key)))) continue
        found.push(toUncertain(key, reservation))
        if (found.length >= 2 * most + 1_000) trim()
      }
      trim()
      return found.slice(offset)
    },

    async settle(executionId, settlement, by) {
      if (!/^exec_[0-9a-f-]{36}$/.test(executionId)) throw unknown(executionId)
      const found = await findOpen(executionId)
      if (found === undefined) {
        const isKnown = [...claims.values()].some((claim) => claim.execution_id === executionId)
        if (isKnown || (await replay.isFinished(executionId))) throw notUncertain(executionId)
        throw unknown(executionId)
      }
      const [key, reservation] = found
      const name = JSON.stringify(key)
      if (isAtWork(claims.get(name))) throw notUncertain(executionId)
      const answer = answerOf(reservation, settlement)
      const { fingerprint, tool } = reservation
      // Whoever comes again meanwhile is told that it is uncertain; a tool that is being asked is no longer heard.
      const claim: Claim = { fingerprint, execution_id: executionId, isVerifying: false }
      claims.set(name, claim)
      try {
        const recordChange = (tx: Transaction): void =>
          audit?.record(tx, {
            ...by,
            action: 'settle_execution',
            resource: { type: 'execution', id: executionId },
            after: { tool, outcome: settlement.outcome }
          })
        if (answer === undefined) await replay.release(key, reservation, true, recordChange)
        else await replay.record(key, reservation, resultOf(answer), true, recordChange)
      } catch (error) {
        if (error instanceof CodedError && error.code === 'IDEMPOTENCY_CONFLICT') throw notUncertain(executionId)
        throw error
      } finally {
        claims.delete(name)
      }
      return toUncertain(key, reservation)
    }
  }
}

function toUncertain(
  [principal, session, requestId]: Key,
  { execution_id, tool, effect, created_at_ms }: Reservation
): UncertainExecution {
  const nameOf = (part: string | number | undefined) => (typeof part === 'string' ? part : undefined)
  return {
    executionId: execution_id,
    requestId: String(requestId),
    principal: nameOf(principal),
    session: nameOf(session),
    tool,
    effect,
    startedAtMs: created_at_ms
  }
}

function unknown(executionId: string): CodedError {
  return new CodedError('EXECUTIONS_UNKNOWN', `there is no execution '${executionId.slice(0, 64)}'`)
}

function notUncertain(executionId: string): CodedError {
  const message = `execution '${executionId}' is not uncertain: it runs, is being settled, or has a result`
  return new CodedError('EXECUTIONS_NOT_UNCERTAIN', message)
}
