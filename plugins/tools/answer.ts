import { nextActions, statusOf } from './failures.ts'
import type { ErrorCategory, Execution, ExecutionResponse, ToolFailure } from './types.ts'

/** An answer as text, with the object made from the text when somebody asks for it. */
export class Answer implements Execution {
  readonly text: string
  readonly category: ErrorCategory | undefined
  readonly replayed: boolean
  #response: ExecutionResponse | undefined

  constructor(text: string, category: ErrorCategory | undefined, replayed: boolean, response?: ExecutionResponse) {
    this.text = text
    this.category = category
    this.replayed = replayed
    this.#response = response
  }

  get response(): ExecutionResponse {
    this.#response ??= JSON.parse(this.text) as ExecutionResponse
    return this.#response
  }
}

/** @param json `data` as JSON, so that it is written only once */
export function completed(executionId: string, data: unknown, json: string, cacheable: boolean): Answer {
  const text = `{"execution_id":"${executionId}","status":"completed","data":${json},"_agent":{"cacheable":${cacheable},"next_actions":[]}}`
  return new Answer(text, undefined, false, {
    execution_id: executionId,
    status: 'completed',
    data,
    _agent: { cacheable, next_actions: [] }
  })
}

export function failed(executionId: string, tool: string, failure: ToolFailure): Answer {
  const response: ExecutionResponse = {
    execution_id: executionId,
    status: statusOf(failure.category),
    error: failure,
    _agent: { cacheable: false, next_actions: nextActions(tool, failure) }
  }
  return new Answer(JSON.stringify(response), failure.category, false, response)
}
