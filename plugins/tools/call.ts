import { type Awaitable, CodedError, isCoded, type Lease, type Logger } from '../../kernel/index.ts'
import type { AbortFan, AbortListener } from './abort-fan.ts'
import { type Answer, failed } from './answer.ts'
import { cancelled, failureOf, isHarmless, reportedFailure, uncopiedOutput } from './failures.ts'
import { toExactJson } from './json.ts'
import { judgeOutput } from './output.ts'
import type { ListedTool } from './registry.ts'
import { enterTurn, leaveTurn, quitTurn, type Turns, type Waiting } from './turns.ts'
import type { ExecuteRequest, ProgressUpdate, ToolContext, ToolFailure } from './types.ts'

/** What every call of a registry works with. */
export interface CallHost {
  readonly turns: Turns
  readonly aborts: AbortFan
  /** For tools that set none of their own, in milliseconds. */
  readonly timeoutMs: number
  /** Longest output, as JSON. */
  readonly maxOutputBytes: number
  /** Milliseconds of a clock that only goes forward. */
  readonly monotonicMs: () => number
  readonly log: Logger
}

/** What is to become of a reservation: its answer is kept, its id is free again, or its id stays taken without an answer. */
export type Fate = 'record' | 'release' | 'leave'

/**
 * One run of a tool, from `tool.started` to `tool.completed`. A tool that answers at once is answered at once: no
 * promise, no timer, no signal. Any other meets the caller's leave, the deadline or its own end, whichever is first, in
 * that order; what it does after that goes unheard, but its turn and its lease last until it has settled.
 */
export class Call implements AbortListener, Waiting {
  readonly #host: CallHost
  readonly #listed: ListedTool
  readonly #request: ExecuteRequest
  readonly #id: string
  readonly #permissions: ReadonlySet<string>
  #fate: Fate = 'record'
  #startedAtMs = 0
  /** `run` of the tool was called. */
  #began = false
  #hasTurn = false
  /** Nothing can come of it any more. */
  #isOver = false
  #whenOver: (() => void) | undefined
  #answer: Answer | undefined
  #lease: Lease | undefined
  #promise: Promise<Answer> | undefined
  #resolve: ((answer: Answer) => void) | undefined
  #timer: NodeJS.Timeout | undefined
  #caller: AbortSignal | undefined
  #controller: AbortController | undefined
  /** Why the tool should stop. */
  #reason: unknown

  constructor(
    host: CallHost,
    listed: ListedTool,
    request: ExecuteRequest,
    executionId: string,
    permissions: ReadonlySet<string>
  ) {
    this.#host = host
    this.#listed = listed
    this.#request = request
    this.#id = executionId
    this.#permissions = permissions
  }

  get executionId(): string {
    return this.#id
  }

  get listed(): ListedTool {
    return this.#listed
  }

  get request(): ExecuteRequest {
    return this.#request
  }

  get permissions(): ReadonlySet<string> {
    return this.#permissions
  }

  /** What is to become of a reservation, once {@link run} has answered. */
  get fate(): Fate {
    return this.#fate
  }

  /** Holds the tool's generation; to be called before anything is awaited. */
  hold(): void {
    this.#lease ??= this.#listed.contribution.lease()
  }

  /** For a call that is not going to run. */
  drop(): void {
    this.#settled()
  }

  /** Calls back once nothing can come of the call any more: at once, or when its tool has settled. */
  whenOver(tell: () => void): void {
    if (this.#isOver) tell()
    else this.#whenOver = tell
  }

  run(): Awaitable<Answer> {
    const { tool } = this.#listed
    this.#request.listener?.({ event: 'tool.started', data: { execution_id: this.#id, tool: tool.name } })
    this.#startedAtMs = this.#host.monotonicMs()
    // Who had to wait for a reservation may have left meanwhile.
    if (this.#lease !== undefined && this.#request.isGone?.() !== false) {
      const signal = this.#callerSignal()
      if (signal?.aborted) this.onAbort(signal.reason)
      if (this.#answer !== undefined) return this.#answer
    }
    if (tool.parallelSafe !== true) {
      if (!enterTurn(this.#host.turns, tool.name, this)) return this.#pending()
      this.#hasTurn = true
    }
    return this.#begin()
  }

  /** Fires when the tool should stop. Made when it is first asked for. */
  get signal(): AbortSignal {
    if (this.#controller === undefined) {
      this.#controller = new AbortController()
      if (this.#reason !== undefined) this.#controller.abort(this.#reason)
    }
    return this.#controller.signal
  }

  progress({ progress, total, message, partial }: ProgressUpdate): void {
    const { listener } = this.#request
    if (listener === undefined || this.#answer !== undefined) return
    const json = toExactJson(partial, this.#host.maxOutputBytes)
    listener({
      event: 'tool.progress',
      data: {
        execution_id: this.#id,
        tool: this.#listed.tool.name,
        progress: Number.isFinite(progress) ? progress : 0,
        ...(Number.isFinite(total) ? { total: total as number } : {}),
        ...(message === undefined || message === '' ? {} : { message }),
        // As it is now: the tool may go on working on it.
        ...(json === undefined ? {} : { partial: JSON.parse(json) as unknown })
      }
    })
  }

  /** The turn has come, after a wait that may have been in vain. */
  takeTurn(): void {
    this.#hasTurn = this.#answer === undefined
    if (this.#hasTurn) void this.#begin()
    else leaveTurn(this.#host.turns, this.#listed.tool.name)
  }

  /** The caller has left, or the generation of the tool must end. */
  onAbort(reason: unknown): void {
    if (this.#answer !== undefined) return
    // Nobody hears the answer of a client that is gone: what was begun stays uncertain, what was not never was.
    if (isCoded(reason, 'CLIENT_GONE')) this.#fate = this.#began ? 'leave' : 'release'
    this.#interrupt(cancelled(this.#began), reason)
  }

  onDeadline(): void {
    const message = `the tool did not end within ${this.#limitMs} ms; its effects may have happened`
    this.#interrupt(failureOf('TIMEOUT', 'timeout', message), new CodedError('TIMEOUT', message))
  }

  #begin(): Awaitable<Answer> {
    this.#began = true
    let output: unknown
    try {
      output = this.#listed.tool.run(this.#request.arguments, new CallContext(this))
    } catch (error) {
      this.#settled()
      return this.#thrown(error)
    }
    if (!isPromiseLike(output)) {
      this.#settled()
      return this.#returned(output)
    }
    const execution = this.#pending()
    output.then(
      (value) => this.#land(() => this.#returned(value)),
      (error) => this.#land(() => this.#thrown(error))
    )
    return execution
  }

  /** From here on the answer is a promise, and all that can end the call before its tool does is watched. */
  #pending(): Promise<Answer> {
    if (this.#promise !== undefined) return this.#promise
    const promise = new Promise<Answer>((resolve) => {
      this.#resolve = resolve
    })
    this.#promise = promise
    this.hold()
    this.#timer = setTimeout(expire, this.#limitMs, this)
    this.#host.aborts.add(this.#lease?.signal, this)
    this.#host.aborts.add(this.#callerSignal(), this)
    return promise
  }

  #callerSignal(): AbortSignal | undefined {
    const { signal } = this.#request
    this.#caller ??= typeof signal === 'function' ? signal() : signal
    return this.#caller
  }

  get #limitMs(): number {
    return this.#listed.tool.timeoutMs ?? this.#host.timeoutMs
  }

  /** The promise of the tool has settled, in time or not. */
  #land(conclude: () => void): void {
    this.#settled()
    if (this.#answer !== undefined) return
    // Where the process was busy the timer may come late; the deadline goes first all the same.
    if (this.#host.monotonicMs() - this.#startedAtMs >= this.#limitMs) this.onDeadline()
    else conclude()
  }

  #settled(): void {
    if (this.#hasTurn) leaveTurn(this.#host.turns, this.#listed.tool.name)
    this.#lease?.release()
    this.#isOver = true
    this.#whenOver?.()
  }

  #interrupt(failure: ToolFailure, reason: unknown): void {
    this.#reason = reason
    this.#fail(failure)
    if (!this.#began) {
      quitTurn(this.#host.turns, this.#listed.tool.name, this)
      this.#settled()
    }
    this.#controller?.abort(reason)
  }

  #returned(output: unknown): Answer {
    const { maxOutputBytes, log } = this.#host
    const { answer, reason } = judgeOutput(this.#listed, this.#id, output, maxOutputBytes, log)
    return answer === undefined ? this.#unpromised(reason) : this.#finish(answer)
  }

  #unpromised(reason: string): Answer {
    this.#logFault('a tool gave an output that it does not promise', { reason })
    return this.#fail(failureOf('INVALID_OUTPUT', 'internal', 'the tool gave an output that it does not promise'))
  }

  #thrown(error: unknown): Answer {
    const reported = reportedFailure(error, isHarmless(this.#listed.tool.effect), this.#host.maxOutputBytes)
    if (reported !== undefined) {
      // The advice to call again with the same request_id is true only when the id is free again.
      if (reported.retryable) this.#fate = 'release'
      return this.#fail(reported)
    }
    const reason = uncopiedOutput(error)
    if (reason !== undefined) return this.#unpromised(reason)
    this.#logFault('a tool threw', { error })
    return this.#fail(failureOf('TOOL_PANIC', 'internal', 'the tool broke down; the log of the server says why'))
  }

  #logFault(message: string, fields: Readonly<Record<string, unknown>>): void {
    this.#host.log.error(message, { tool: this.#listed.tool.name, execution_id: this.#id, ...fields })
  }

  #fail(failure: ToolFailure): Answer {
    return this.#finish(failed(this.#id, this.#listed.tool.name, failure))
  }

  #finish(answer: Answer): Answer {
    this.#answer = answer
    if (this.#promise !== undefined) {
      clearTimeout(this.#timer)
      this.#host.aborts.remove(this.#lease?.signal, this)
      this.#host.aborts.remove(this.#caller, this)
    }
    this.#request.listener?.({
      event: 'tool.completed',
      data: {
        execution_id: this.#id,
        tool: this.#listed.tool.name,
        duration_ms: Math.max(0, Math.round(this.#host.monotonicMs() - this.#startedAtMs)),
        ok: answer.category === undefined
      }
    })
    this.#resolve?.(answer)
    return answer
  }
}

function expire(call: Call): void {
  call.onDeadline()
}

/** What the tool sees of its call. */
class CallContext implements ToolContext {
  readonly #call: Call
  readonly executionId: string
  readonly requestId: string | undefined
  readonly principal: string | undefined
  readonly permissions: ReadonlySet<string>

  constructor(call: Call) {
    const { requestId, caller } = call.request
    this.#call = call
    this.executionId = call.executionId
    this.requestId = requestId
    this.principal = caller.principal
    this.permissions = call.permissions
  }

  get signal(): AbortSignal {
    return this.#call.signal
  }

  /** Bound, since tools take it apart: `run(input, { progress })`. */
  get progress(): ToolContext['progress'] {
    return (update) => this.#call.progress(update)
  }
}

function isPromiseLike(value: unknown): value is PromiseLike<unknown> {
  return typeof value === 'object' && value !== null && typeof (value as { then?: unknown }).then === 'function'
}
