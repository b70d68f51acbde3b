import type { Logger } from '../../kernel/index.ts'
import type { Answer } from './answer.ts'
import { statusOf } from './failures.ts'
import type { Effect, ExecuteRequest, ExecutionResponse } from './types.ts'

const maxRecords = 1_000

/** How a call ended: never what it was given, nor what it gave. */
export interface ExecutionRecord {
  /** Of a replay, that of the first call. */
  readonly executionId: string
  readonly requestId: string | undefined
  readonly principal: string | undefined
  readonly session: string | undefined
  readonly tool: string
  /** `undefined` where there is no such tool. */
  readonly effect: Effect | undefined
  readonly status: ExecutionResponse['status']
  readonly errorCode: string | undefined
  readonly durationMs: number
  /** Unix time in milliseconds. */
  readonly startedAtMs: number
  readonly replayed: boolean
}

/** The last calls. Plain data, shared by all generations. */
export interface HistoryState {
  readonly records: ExecutionRecord[]
  /** Where the next one goes, once there are as many as are kept. */
  next: number
}

export function createHistoryState(): HistoryState {
  return { records: [], next: 0 }
}

export interface History {
  /** Keeps how a call ended, and logs one line. @param executionId of this call, also where it is a replay */
  note(executionId: string, record: ExecutionRecord): void
  /** Newest first. */
  list(page: { readonly limit: number; readonly offset: number }): readonly ExecutionRecord[]
}

export function recordOf(
  { requestId, caller, tool }: ExecuteRequest,
  effect: Effect | undefined,
  answer: Answer,
  startedAtMs: number,
  durationMs: number
): ExecutionRecord {
  return {
    executionId: answer.executionId,
    requestId,
    principal: caller.principal,
    session: caller.session,
    tool,
    effect,
    status: answer.category === undefined ? 'completed' : statusOf(answer.category),
    errorCode: answer.code,
    durationMs,
    startedAtMs,
    replayed: answer.replayed
  }
}

/** @param isLogging whether calls that went well are worth a line */
export function createHistory(state: HistoryState, log: Logger, isLogging: boolean): History {
  const { records } = state
  const logsSuccess = isLogging && (log.level === 'debug' || log.level === 'info')
  const logsFailure = isLogging && log.level !== 'error' && log.level !== 'silent'

  return {
    note(executionId, record) {
      if (records.length < maxRecords) {
        records.push(record)
      } else {
        records[state.next] = record
        state.next = (state.next + 1) % maxRecords
      }
      if (record.errorCode === undefined) {
        if (logsSuccess) log.info('tool executed', fieldsOf(executionId, record))
      } else if (logsFailure) {
        log.warn('tool not executed', fieldsOf(executionId, record))
      }
    },

    list({ limit, offset }) {
      const found: ExecutionRecord[] = []
      for (let back = offset; back < records.length && found.length < limit; back += 1) {
        const index = (state.next - 1 - back + 2 * records.length) % records.length
        found.push(records[index]!)
      }
      return found
    }
  }
}

function fieldsOf(execution_id: string, record: ExecutionRecord) {
  const { requestId, tool, effect, status, durationMs, replayed, errorCode } = record
  return {
    execution_id,
    ...(requestId === undefined ? {} : { request_id: requestId }),
    // What a caller makes up may be long.
    tool: tool.slice(0, 128),
    ...(effect === undefined ? {} : { effect }),
    status,
    duration_ms: durationMs,
    replayed,
    ...(errorCode === undefined ? {} : { error_code: errorCode })
  }
}
