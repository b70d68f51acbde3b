import type { LogFields, Logger } from '../../kernel/index.ts'
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

type Slot = { -readonly [K in keyof ExecutionRecord]: ExecutionRecord[K] }

/** The last calls. Plain data, shared by all generations. */
export interface HistoryState {
  /** Written over once there are as many as are kept: records that die old are what a collector of garbage likes least. */
  readonly records: Slot[]
  /** Where the next one goes. */
  next: number
}

export function createHistoryState(): HistoryState {
  return { records: [], next: 0 }
}

export interface History {
  /**
   * Keeps how a call ended, and logs one line.
   * @param executionId of this call, also where it is a replay
   * @param effect of the tool, where there is one
   * @param startedAtMs Unix time in milliseconds
   */
  note(
    executionId: string,
    request: ExecuteRequest,
    effect: Effect | undefined,
    answer: Answer,
    startedAtMs: number,
    durationMs: number
  ): void
  /** Newest first. */
  list(page: { readonly limit: number; readonly offset: number }): readonly ExecutionRecord[]
}

/** @param isLogging whether calls that went well are worth a line */
export function createHistory(state: HistoryState, log: Logger, isLogging: boolean): History {
  const { records } = state
  const logsSuccess = isLogging && (log.level === 'debug' || log.level === 'info')
  const logsFailure = isLogging && log.level !== 'error' && log.level !== 'silent'

  return {
    note(
      executionId,
      { requestId, caller, tool },
      effect,
      { executionId: first, category, code, replayed },
      startedAtMs,
      durationMs
    ) {
      const status = category === undefined ? 'completed' : statusOf(category)
      const { principal, session } = caller
      let record = records[state.next]
      if (record === undefined) {
        record = {
          executionId: first,
          requestId,
          principal,
          session,
          tool,
          effect,
          status,
          errorCode: code,
          durationMs,
          startedAtMs,
          replayed
        }
        records.push(record)
      } else {
        record.executionId = first
        record.requestId = requestId
        record.principal = principal
        record.session = session
        record.tool = tool
        record.effect = effect
        record.status = status
        record.errorCode = code
        record.durationMs = durationMs
        record.startedAtMs = startedAtMs
        record.replayed = replayed
      }
      state.next = state.next === maxRecords - 1 ? 0 : state.next + 1
      if (code === undefined) {
        if (logsSuccess) log.info('tool executed', fieldsOf(executionId, record))
      } else if (logsFailure) {
        log.warn('tool not executed', fieldsOf(executionId, record))
      }
    },

    list({ limit, offset }) {
      const found: ExecutionRecord[] = []
      for (let back = offset; back < records.length && found.length < limit; back += 1) {
        const index = (state.next - 1 - back + 2 * records.length) % records.length
        found.push({ ...records[index]! })
      }
      return found
    }
  }
}

function fieldsOf(
  execution_id: string,
  { requestId, tool, effect, status, durationMs, replayed, errorCode }: ExecutionRecord
): LogFields {
  // JSON leaves out what is undefined.
  return {
    execution_id,
    request_id: requestId,
    // What a caller makes up may be long.
    tool: tool.length > 128 ? tool.slice(0, 128) : tool,
    effect,
    status,
    duration_ms: durationMs,
    replayed,
    error_code: errorCode
  }
}
