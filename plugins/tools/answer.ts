import { nextActions, statusOf } from './failures.ts'
import type { ErrorCategory, Execution, ExecutionResponse, ToolFailure } from './types.ts'

/** An answer as text; its object is made from the text when somebody asks for it, which the hot path never does. */
export class Answer implements Execution {
  readonly text: string
  readonly category: ErrorCategory | undefined
  readonly replayed: boolean
  #response: ExecutionResponse | undefined

  constructor(text: string, category: ErrorCategory | undefined, replayed: boolean) {
    this.text = text
    this.category = category
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
    `{"execution_id":"${executionId}","status":"completed","data":${json},"_agent":{"cacheable":${cacheable},"next_actions":${next}}}`,
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
  return new Answer(JSON.stringify(response), failure.category, false)
}
