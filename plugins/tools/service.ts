import { type Awaitable, type Collector, type Logger, renderIssues } from '../../kernel/index.ts'
import type { Store } from '../store/types.ts'
import { AbortFan } from './abort-fan.ts'
import { failed } from './answer.ts'
import { Call, type CallHost } from './call.ts'
import { cancelled, failureOf, invalidArguments } from './failures.ts'
import { createOnce } from './once.ts'
import { createRegistry, type ListedTool, type RegistryState } from './registry.ts'
import { createReplay } from './replay.ts'
import type { Turns } from './turns.ts'
import type { Caller, ExecuteRequest, Execution, Tool, ToolFailure, Tools } from './types.ts'

const maxRequestIdBytes = 256

/** What all generations of the registry share. Plain data: the next generation may be other code. */
export interface SharedState extends RegistryState {
  readonly turns: Turns
  /** Execution ids. */
  readonly running: Set<string>
}

export function createSharedState(): SharedState {
  return { revision: 0, shown: [], checks: new WeakMap(), turns: new Map(), running: new Set() }
}

export interface ToolsDependencies {
  readonly store: Store
  readonly state: SharedState
  readonly log: Logger
  /** Deadline of tools that set none of their own, in milliseconds. */
  readonly timeoutMs: number
  /** Unix time in milliseconds. */
  readonly now: () => number
  /** Milliseconds of a clock that only goes forward. */
  readonly monotonicMs: () => number
  /** An id that was never given out before: `exec_` and a UUID. */
  readonly newExecutionId: () => string
}

/** The registry and the pipeline, and what has to be told of the tools that come and go. */
export function createTools(dependencies: ToolsDependencies): { tools: Tools; collector: Collector<Tool> } {
  const { store, state, log, now, newExecutionId } = dependencies
  const once = createOnce(createReplay(store, state.running), log, now)
  const registry = createRegistry(state, (error, { entry }) => log.error('a tool was left out', { entry, error }))
  const { turns } = state
  const { timeoutMs, monotonicMs } = dependencies
  const host: CallHost = { turns, aborts: new AbortFan(), timeoutMs, monotonicMs, log }

  function execute(request: ExecuteRequest): Awaitable<Execution> {
    const id = newExecutionId()
    const { tool: name, requestId } = request
    request.listener?.({ event: 'execution.started', data: { execution_id: id, tool: name } })
    const listed = registry.find(name)
    if (listed === undefined) return failed(id, name, unknownTool(name))
    const refusal = refusalOf(listed, request.caller)
    if (refusal !== undefined) return failed(id, name, refusal)
    if (requestId !== undefined && !isRequestId(requestId)) return failed(id, name, invalidId())
    const issues = listed.checkInput(request.arguments)
    if (issues.length > 0) return failed(id, name, invalidArguments(renderIssues(issues)))
    if (typeof request.signal === 'object' && request.signal.aborted) return failed(id, name, cancelled(false))
    const call = new Call(host, listed, request, id)
    return requestId === undefined ? call.run() : once(call, request, requestId, id)
  }

  const tools: Tools = {
    list: () => registry.list(),
    get: (name) => registry.find(name)?.description,
    isAnonymous: (name) => registry.find(name)?.tool.anonymous === true,
    get revision() {
      return state.revision
    },
    catalog: () => registry.catalog(),
    execute
  }
  return { tools, collector: registry.collector }
}

/** Trusted context alone decides: nothing of the request but the name of the tool. */
function refusalOf({ tool, confirmation }: ListedTool, { principal, permissions }: Caller): ToolFailure | undefined {
  if (confirmation !== undefined && permissions?.has(confirmation) !== true) {
    const message = `tool '${tool.name}' needs a person's confirmation: the caller has no permission '${confirmation}'`
    return failureOf('CONFIRMATION_REQUIRED', 'permission', message)
  }
  if (principal === undefined && tool.anonymous !== true) {
    return failureOf('FORBIDDEN', 'permission', `tool '${tool.name}' is not open to callers without a credential`)
  }
  return undefined
}

/** Counted in bytes; and well-formed, since half a surrogate pair has no bytes of its own to be told apart by. */
function isRequestId(requestId: string): boolean {
  if (requestId.length === 0 || requestId.length > maxRequestIdBytes) return false
  return Buffer.byteLength(requestId) <= maxRequestIdBytes && !/\p{Surrogate}/u.test(requestId)
}

function unknownTool(name: string): ToolFailure {
  return failureOf('TOOL_NOT_FOUND', 'not_found', `there is no tool '${name.slice(0, 128)}'`)
}

function invalidId(): ToolFailure {
  return failureOf('INVALID_ID', 'validation', `request_id has to be 1 to ${maxRequestIdBytes} bytes of Unicode text`)
}
