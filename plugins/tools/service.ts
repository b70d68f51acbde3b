import { type Awaitable, type Collector, type Logger, renderIssues } from '../../kernel/index.ts'
import type { Audit } from '../audit/types.ts'
import type { Store } from '../store/types.ts'
import { AbortFan } from './abort-fan.ts'
import { type Answer, failed } from './answer.ts'
import { createBatch } from './batch.ts'
import { Call, type CallHost } from './call.ts'
import { createExecutions, type Executions } from './executions.ts'
import { cancelled, failureOf, invalidArguments } from './failures.ts'
import { createGrants, createGrantsState, type Grants, type GrantsState } from './grants.ts'
import { createHistory, createHistoryState, type History, type HistoryState } from './history.ts'
import { createOnce } from './once.ts'
import { createPolicies, type PolicyOptions, type Windows } from './policies.ts'
import { createRegistry, type ListedTool, type RegistryState } from './registry.ts'
import { type Claims, createReplay } from './replay.ts'
import type { Turns } from './turns.ts'
import type { ExecuteRequest, Execution, Tool, ToolFailure, Tools } from './types.ts'

const maxRequestIdBytes = 256

/** What all generations of the registry share. Plain data: the next generation may be other code. */
export interface SharedState extends RegistryState {
  readonly turns: Turns
  readonly claims: Claims
  readonly grants: GrantsState
  readonly windows: Windows
  readonly history: HistoryState
}

export function createSharedState(): SharedState {
  return {
    revision: 0,
    shown: [],
    checks: new WeakMap(),
    turns: new Map(),
    claims: new Map(),
    grants: createGrantsState(),
    windows: new Map(),
    history: createHistoryState()
  }
}

export interface Options extends PolicyOptions {
  /** Deadline of tools that set none of their own. */
  readonly timeout_ms: number
  readonly max_output_bytes: number
  /** How long an answer is kept for its request id. */
  readonly request_id_ttl_seconds: number
  /** Request ids that are kept for one principal. */
  readonly max_request_ids: number
  /** Permissions by principal. */
  readonly grants: Readonly<Record<string, readonly string[]>>
  /** One line for each call. */
  readonly log_executions: boolean
}

export interface ToolsDependencies {
  readonly store: Store
  readonly audit: Audit | undefined
  readonly state: SharedState
  readonly log: Logger
  /** Unix time in milliseconds. */
  readonly now: () => number
  /** Milliseconds of a clock that only goes forward. */
  readonly monotonicMs: () => number
  /** An id that was never given out before, as `createExecutionIds` makes them. */
  readonly newExecutionId: () => string
}

export interface ToolsParts {
  readonly tools: Tools
  readonly collector: Collector<Tool>
  readonly grants: Grants
  readonly history: History
  readonly executions: Executions
  /** Removes answers that are older than what is kept. Never rejects. */
  tend(): Promise<void>
  /** Resolves when nothing is being removed any more. */
  close(): Promise<void>
}

/** The registry and the pipeline, what has to be told of the tools that come and go, and what operators work with. */
export function createTools(options: Options, dependencies: ToolsDependencies): ToolsParts {
  const { store, audit, state, log, now, monotonicMs, newExecutionId } = dependencies
  const maxOutputBytes = options.max_output_bytes
  const registry = createRegistry(state, (error, { entry }) => log.error('a tool was left out', { entry, error }))
  const { turns, claims } = state
  const host: CallHost = {
    turns,
    aborts: new AbortFan(),
    timeoutMs: options.timeout_ms,
    maxOutputBytes,
    monotonicMs,
    log
  }
  const bounds = { maxIds: options.max_request_ids, ttlMs: options.request_id_ttl_seconds * 1_000 }
  const replay = createReplay(store, createBatch(store), bounds, now)
  const once = createOnce(replay, claims, host, () => void tend(), now)
  const grants = createGrants(store, audit, state.grants, options.grants)
  const refusalOf = createPolicies(options, state.windows, monotonicMs)
  const history = createHistory(state.history, log, options.log_executions)
  const executions = createExecutions({
    replay,
    claims,
    find: (name) => registry.find(name),
    audit,
    maxOutputBytes,
    log
  })
  let tending: Promise<void> | undefined
  let isClosing = false

  function tend(): Promise<void> {
    tending ??= replay
      .expire(() => isClosing)
      .catch((error: unknown) => log.error('old answers could not be removed; it will be tried again', { error }))
      .finally(() => {
        tending = undefined
      })
    return tending
  }

  function execute(request: ExecuteRequest): Awaitable<Execution> {
    const id = newExecutionId()
    const startedAtMs = now()
    const startedMs = monotonicMs()
    const listed = registry.find(request.tool)
    request.listener?.({ event: 'execution.started', data: { execution_id: id, tool: request.tool } })
    const answer = run(request, listed, id)
    if (answer instanceof Promise) {
      return answer.then((answer) => conclude(id, request, listed, answer, startedAtMs, startedMs))
    }
    return conclude(id, request, listed, answer, startedAtMs, startedMs)
  }

  function conclude(
    id: string,
    request: ExecuteRequest,
    listed: ListedTool | undefined,
    answer: Answer,
    startedAtMs: number,
    startedMs: number
  ): Answer {
    const durationMs = Math.max(0, Math.round((monotonicMs() - startedMs) * 1_000) / 1_000)
    history.note(id, request, listed?.tool.effect, answer, startedAtMs, durationMs)
    return answer
  }

  function run(request: ExecuteRequest, listed: ListedTool | undefined, id: string): Awaitable<Answer> {
    const { tool: name, requestId, caller } = request
    if (listed === undefined) return failed(id, name, unknownTool(name))
    const permissions = grants.of(caller)
    const refusal = refusalOf(listed, caller, permissions)
    if (refusal !== undefined) return failed(id, name, refusal)
    if (requestId !== undefined && !isRequestId(requestId)) return failed(id, name, invalidId())
    const issues = listed.checkInput(request.arguments)
    if (issues.length > 0) return failed(id, name, invalidArguments(renderIssues(issues)))
    if (typeof request.signal === 'object' && request.signal.aborted) return failed(id, name, cancelled(false))
    const call = new Call(host, listed, request, id, permissions)
    return requestId === undefined ? call.run() : once(call, requestId)
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
  return {
    tools,
    collector: registry.collector,
    grants,
    history,
    executions,
    tend,
    async close() {
      isClosing = true
      await tending
    }
  }
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
