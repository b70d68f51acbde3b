import type { Awaitable, JsonSchema, Schema } from '../../kernel/index.ts'

/** What running a tool changes: nothing, nothing (it reads), our own system, somebody else's, or for good. */
export type Effect = 'none' | 'read' | 'write' | 'external_write' | 'destructive'

export type ErrorCategory =
  | 'validation'
  | 'not_found'
  | 'permission'
  | 'conflict'
  | 'cancelled'
  | 'timeout'
  | 'internal'
  | 'capacity'

/** A failure as an agent reads it. Absent facts are left out, never `null`. */
export interface ToolFailure {
  readonly code: string
  readonly message: string
  readonly category: ErrorCategory
  /** The caller can mend the request and go on. */
  readonly recoverable: boolean
  /** The same request may succeed later. Implies `recoverable`. */
  readonly retryable: boolean
  /** Whole seconds. */
  readonly retry_after?: number
  /** Name of a tool that helps. */
  readonly suggested_action?: string
  readonly details?: unknown
}

/** The `detail` of a CodedError with which a tool reports a failure of its own. */
export interface ToolErrorDetail {
  readonly category: ErrorCategory
  readonly recoverable?: boolean
  readonly retryable?: boolean
  readonly retry_after?: number
  readonly suggested_action?: string
  readonly details?: unknown
}

/** What a tool knows about its call. Built by the host, never from the arguments. */
export interface ToolContext {
  readonly executionId: string
  readonly requestId: string | undefined
  /** `user:<id>`, `tenant:<id>`, or `undefined` for anonymous callers. */
  readonly principal: string | undefined
  readonly permissions: ReadonlySet<string>
  /** Fires at the deadline, when the caller leaves, and when the tool's generation must end. */
  readonly signal: AbortSignal
  /** Tells a listening caller how far the work is. No-op when nobody listens. Needs no `this`. */
  readonly progress: (update: ProgressUpdate) => void
}

/**
 * What {@link Tool.verify} found out about an earlier call: its effect came about, and this is its output; it did not, and
 * will not; or nobody can tell.
 */
export type Verdict<R = unknown> =
  | { readonly happened: true; readonly output: R }
  | { readonly happened: false }
  | 'unknown'

export interface ProgressUpdate {
  readonly progress: number
  readonly total?: number
  readonly message?: string
  /** Plain JSON; anything else is left out. */
  readonly partial?: unknown
}

/** A tool as data, contributed to `tools`. */
export interface Tool<I = unknown, R = unknown> {
  /** 1 to 128 of `A-Z a-z 0-9 _ - .` */
  readonly name: string
  readonly description: string
  readonly input: Schema<I>
  readonly output: Schema<R>
  readonly effect: Effect
  readonly idempotent?: boolean
  /** Calls may overlap; false when left out: one at a time. */
  readonly parallelSafe?: boolean
  readonly confirmation?: 'none' | 'required'
  /** Callers without a credential may use it; false when left out. */
  readonly anonymous?: boolean
  /** Instead of the default deadline, in milliseconds. */
  readonly timeoutMs?: number
  /** One of the server's own. These are called `carmy_…`, and nobody else is. */
  readonly system?: boolean
  /** What the caller could do after a success. Of the output alone: a replay says the same. */
  next?(output: R): readonly NextAction[]
  /**
   * Throw a CodedError whose `detail` is a {@link ToolErrorDetail} for a failure the caller should read: its code and
   * message go out as they are. Anything else thrown is logged whole and answered as `TOOL_PANIC`, showing nothing.
   */
  run(input: I, context: ToolContext): Awaitable<R>
  /**
   * Asks the world how an earlier call with a request id ended, where nobody knows: its process was killed, its client
   * left, or its answer could not be kept. Called when the same call comes again, with its input, and once the earlier
   * `run` has ended for certain; `context.executionId` is that of the earlier call. Changes nothing. The answer becomes
   * the recorded result, frees the id for this very call, or leaves it uncertain, as throwing does, and taking longer
   * than the tool's deadline.
   */
  verify?(input: I, context: ToolContext): Awaitable<Verdict<R>>
}

/** A tool as the catalog shows it: exactly these eight members, in this order. */
export interface ToolDescription {
  readonly name: string
  readonly description: string
  readonly input_schema: JsonSchema
  readonly output_schema: JsonSchema
  readonly effect: Effect
  readonly idempotent: boolean
  readonly parallel_safe: boolean
  readonly confirmation: 'none' | 'required'
}

/** Who runs a tool. */
export interface Caller {
  readonly principal: string | undefined
  readonly session?: string | undefined
  /** Beside those that configuration and administrators grant to the principal. */
  readonly permissions?: ReadonlySet<string> | undefined
}

export interface ExecuteRequest {
  readonly tool: string
  readonly arguments: unknown
  readonly requestId?: string | undefined
  readonly caller: Caller
  /**
   * Cancels the execution; or a function that makes the signal once there is something to wait for, of a caller that
   * has not left yet. A reason with the code `CLIENT_GONE` says that nobody will hear the answer: the `requestId` of a
   * tool that was running then stays uncertain.
   */
  readonly signal?: AbortSignal | (() => AbortSignal) | undefined
  /** Whether the caller has left, without a signal being made; asked when the call has had to wait for a reservation. */
  readonly isGone?: (() => boolean) | undefined
  /** Told in order, synchronously: the events of a stream before its last one. Must not throw. */
  readonly listener?: ((event: ExecutionEvent) => void) | undefined
}

export type ExecutionEvent =
  | { readonly event: 'execution.started'; readonly data: { readonly execution_id: string; readonly tool: string } }
  | { readonly event: 'tool.started'; readonly data: { readonly execution_id: string; readonly tool: string } }
  | {
      readonly event: 'tool.progress'
      readonly data: {
        readonly execution_id: string
        readonly tool: string
        readonly progress: number
        readonly total?: number
        readonly message?: string
        readonly partial?: unknown
      }
    }
  | {
      readonly event: 'tool.completed'
      readonly data: {
        readonly execution_id: string
        readonly tool: string
        readonly duration_ms: number
        readonly ok: boolean
      }
    }

export interface NextAction {
  readonly tool: string
  readonly reason: string
  readonly after_ms?: number
  readonly arguments?: unknown
}

/** The answer to an execution, with its members in the order of the wire. */
export interface ExecutionResponse {
  readonly execution_id: string
  readonly status: 'completed' | 'failed' | 'cancelled' | 'timed_out'
  readonly data?: unknown
  readonly error?: ToolFailure
  readonly _agent: { readonly cacheable: boolean; readonly next_actions: readonly NextAction[] }
}

export interface Execution {
  readonly response: ExecutionResponse
  /** The response as JSON text: the same bytes for a replay as for the first answer. */
  readonly text: string
  /** Of the response's error; `undefined` when it completed. */
  readonly category: ErrorCategory | undefined
  readonly replayed: boolean
}

/** What the tools are, for whoever shows them. The same object until the catalog changes. */
export interface Catalog {
  /** `{"tools":[…]}` as canonical JSON (RFC 8785). */
  readonly text: string
  /** SHA-256 of `text` in lower-case hex. */
  readonly version: string
}

/**
 * The one registry of tools, shared by chat and carmy, and the one pipeline every call goes through: policies, ids,
 * input schema, replay or reservation, deadline, serial lock, run, output schema, record.
 */
export interface Tools {
  /** In the byte order of their names. */
  list(): readonly ToolDescription[]
  get(name: string): ToolDescription | undefined
  /** Whether a caller without a credential may use it. */
  isAnonymous(name: string): boolean
  /** Grows by one whenever the catalog changes, in the same step. */
  readonly revision: number
  catalog(): Catalog
  /** Never rejects: every outcome is in the response. At hand when nothing had to be awaited. */
  execute(request: ExecuteRequest): Awaitable<Execution>
}

declare module '../../kernel/index.ts' {
  interface Services {
    tools: Tools
  }
  interface Contributions {
    tools: Tool
  }
  interface Events {
    /** The catalog has changed, and with it the revision; told after the commit that did it. */
    'tools/changed': []
  }
}
