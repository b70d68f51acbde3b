import { nextActions, statusOf } from './failures.ts'
import type { ErrorCategory, Execution, ExecutionResponse, ToolFailure } from './types.ts'

/** An answer as text; its object is made from the text when somebody asks for it, which the hot path never does. */
export class Answer implements Execution {
  /** Of a replay, that of the first call. */
  readonly executionId: string
  readonly text: string
  readonly category: ErrorCategory | undefined
  /** Of the error; `undefined` when it has none. */
  readonly code: string | undefined
  readonly replayed: boolean
  #response: ExecutionResponse | undefined

  constructor(
    executionId: string,
    text: string,
    category: ErrorCategory | undefined,
    code: string | undefined,
    replayed: boolean
  ) {
    this.executionId = executionId
    this.text = text
    this.category = category
    this.code = code
    this.replayed = replayed
  }

  get response(): ExecutionResponse {
    this.#response ??= JSON.parse(this.text) as ExecutionResponse
    return this.#response
  }
}

/**
 * @param json the output, as JSON
 * @param next what the caller could do now, as JSON
 */
export function completed(executionId: string, json: string, cacheable: boolean, next = '[]'): Answer {
  return new Answer(
    executionId,
    `{"execution_id":"${executionId}","status":"completed","data":${json},"_agent":{"cacheable":${cacheable},"next_actions":${next}}}`,
    undefined,
    undefined,
    false
  )
}

export function failed(executionId: string, tool: string, failure: ToolFailure): Answer {
  const response: ExecutionResponse = {
    execution_id: executionId,
    status: statusOf(failure.category),
    error: failure,
    _agent: { cacheable: false, next_actions: nextActions(tool, failure) }
  }
  return new Answer(executionId, JSON.stringify(response), failure.category, failure.code, false)
}
