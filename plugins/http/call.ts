import { type Awaitable, CodedError, type Issue, isCoded, type Lease } from '../../kernel/index.ts'
import type { AbortWatcher } from './aborts.ts'
import { networkOf } from './client-address.ts'
import type { Dispatcher } from './dispatcher.ts'
import { type AnswerKind, Head } from './heads.ts'
import { parseJson } from './json.ts'
import { codeOf, messageFor, toProblem } from './problems.ts'
import { parseQuery, type Query } from './query.ts'
import type { Endpoint } from './router.ts'
import { BytesFeed, EventFeed, type Feed, Outlet } from './stream.ts'
import type { ParsedLong } from './tasks/parse-json.ts'
import type { BodyReader, Exchange, ExchangeListener } from './transport.ts'
import type { Guard, Principal, Problem, Reply, Request } from './types.ts'

const nobody: Principal = Object.freeze({ kind: 'anonymous', id: '' })
const noBytes = new Uint8Array(0)
const saneId = /^[\x21-\x7e]{1,128}$/
const jsonType = /^application\/(?:[\w!#$&^.+-]+\+)?json[ \t]*(?:;|$)/i
const foreignCharset = /;[ \t]*charset[ \t]*=[ \t]*(?!"?utf-8)/i
/** A refused body of up to this size is read to its end, so that the client gets to see why; a longer one is cut. */
const maxDiscardedBytes = 64 * 1024 * 1024
/** To parse as much takes some milliseconds; a way through a thread about one. */
const longBytes = 256 * 1024

/**
 * One request on its way: found, let in, checked, handled, answered. It is also the {@link Request} its handler sees.
 *
 * As long as nothing has to be waited for, nothing is: with a guard and a handler that are at hand, the answer is
 * written in the turn in which the request came. What outlives that turn holds leases on the generation of the route
 * and on the one of http, until both its work and its answer have ended.
 */
export class Call implements Request, ExchangeListener, BodyReader, AbortWatcher {
  readonly id: string
  params: Readonly<Record<string, string>> = {}
  query: unknown
  body: unknown
  longText: Uint16Array | undefined
  rawBody: Uint8Array | undefined
  principal: Principal = nobody
  readonly #dispatcher: Dispatcher
  readonly #exchange: Exchange
  #endpoint: Endpoint | undefined
  #guard: Guard | undefined
  #search: Query | undefined
  #address: string | undefined
  #lease: Lease | undefined
  #ownLease: Lease | undefined
  #controller: AbortController | undefined
  #outlet: Outlet | undefined
  #feed: Feed | undefined
  /** How many pieces of work go on beside the exchange: a guard, a handler, a producer. */
  #working = 0
  /** Where the body goes while the guard is still thinking; `undefined` is sent there for one that is too large. */
  #onBody: ((bytes: Uint8Array | undefined) => void) | undefined

  constructor(dispatcher: Dispatcher, exchange: Exchange) {
    this.#dispatcher = dispatcher
    this.#exchange = exchange
    const given = exchange.header('x-request-id')
    this.id = given !== undefined && saneId.test(given) ? given : dispatcher.options.nextId()
    exchange.listener = this
  }

  get method(): string {
    return this.#exchange.method
  }

  get path(): string {
    return this.#exchange.path
  }

  get address(): string {
    this.#address ??= this.#dispatcher.options.proxies.clientOf(this.#exchange)
    return this.#address
  }

  get network(): string {
    return networkOf(this.address)
  }

  get trusted(): Principal | undefined {
    return this.#exchange.trusted
  }

  header(name: string): string | undefined {
    return this.#exchange.header(name)
  }

  queryValue(name: string): string | undefined {
    try {
      const value = this.#readSearch()[name]
      return typeof value === 'object' ? value[0] : value
    } catch {
      // A query that cannot be read names nothing; a route that wants one refuses it with the reason.
      return undefined
    }
  }

  json(): unknown {
    return parseJson(this.rawBody ?? noBytes)
  }

  /** Made when it is first asked for: most handlers never do. */
  get signal(): AbortSignal {
    if (this.#controller === undefined) {
      this.#controller = new AbortController()
      if (this.#exchange.isGone) this.#controller.abort(clientGone())
      else if (!this.#exchange.isOver) {
        this.#hold()
        const { aborts } = this.#dispatcher
        if (this.#lease !== undefined) aborts.add(this.#lease.signal, this)
        if (this.#ownLease !== undefined) aborts.add(this.#ownLease.signal, this)
      }
    }
    return this.#controller.signal
  }

  get isGone(): boolean {
    return this.#exchange.isGone
  }

  // Found and let in.

  begin(): void {
    try {
      const { rateLimits } = this.#dispatcher.options
      const waitSeconds = rateLimits === undefined ? 0 : rateLimits.admit(this)
      if (waitSeconds === 0) this.#find()
      else this.#refuseRate(waitSeconds)
    } catch (error) {
      this.#fail(error)
    }
  }

  #find(): void {
    const { table, guards, options } = this.#dispatcher
    const match = table.find(this.path)
    if (match === undefined) {
      if (options.isReady()) return this.#refuse(404, 'nothing is at this path')
      const problem = { status: 503, code: 'INTERNAL_ERROR', message: 'the server is starting', retryAfterSeconds: 1 }
      return this.refuse(problem)
    }
    if (match.isMalformed) return this.#refuse(400, 'the path holds a percent escape that is not valid UTF-8, or NUL')
    const endpoint = match.resource.endpoints.get(this.method)
    if (endpoint === undefined) {
      if (this.method !== 'OPTIONS') {
        return this.#refuse(405, `${this.method} is not possible here`, ['allow', match.resource.allow])
      }
      const lines = ['allow', match.resource.allow, ...options.always, ...options.cors.vary]
      const origin = this.header('origin')
      if (origin !== undefined) options.cors.preflight(origin, lines)
      return this.#exchange.send(204, this.id, new Head(lines), undefined)
    }
    this.#endpoint = endpoint
    this.params = match.params
    const name = endpoint.route.guard
    if (name === undefined) return this.#enter()
    const guard = guards.get(name)
    if (guard === undefined) return this.#refuse(503, `the guard '${name}' of this path is not there`)
    this.#guard = guard.item
    const principal = guard.item.check(this)
    if (isPromise(principal)) {
      this.#hold()
      void this.#enterLater(principal, guard.lease())
    } else {
      this.principal = principal
      this.#enter()
    }
  }

  /** The body is read meanwhile: a reader that came later would miss it. */
  async #enterLater(principal: Promise<Principal>, guardLease: Lease): Promise<void> {
    this.#working += 1
    const { readsBody } = this.#endpoint as Endpoint
    let received: Promise<Uint8Array | undefined> | undefined
    if (readsBody && this.#exchange.bodyLength !== 0) {
      received = new Promise((resolve) => {
        this.#onBody = resolve
      })
      this.#readBody()
    }
    try {
      this.principal = await principal
      if (received === undefined) {
        if (!this.#exchange.isOver) this.#enter()
      } else if (!this.#exchange.isOver && this.#isReady()) {
        const bytes = await received
        if (!this.#exchange.isOver) {
          if (bytes === undefined) this.#refuseSize()
          else this.#handleBody(bytes)
        }
      }
    } catch (error) {
      this.#fail(error)
    }
    guardLease.release()
    this.#endWork()
  }

  #enter(): void {
    if (!this.#isReady()) return
    if (!(this.#endpoint as Endpoint).readsBody) return this.#handle()
    if (this.#exchange.bodyLength === 0) return this.#handleBody(noBytes)
    this.#hold()
    this.#readBody()
  }

  /** Checks what can be checked without the body. */
  #isReady(): boolean {
    const { checks, route } = this.#endpoint as Endpoint
    // An id that cannot be is one that is not there.
    if (checks.params !== undefined && checks.params(this.params).length > 0) {
      this.#refuse(404, 'nothing is at this path')
      return false
    }
    if (checks.query !== undefined) {
      // A copy: the schema's numbers and defaults go into it.
      const query = Object.assign(Object.create(null) as Query, this.#readSearch())
      if (!this.#isValid(checks.query(query))) return false
      this.query = query
    }
    if (route.body !== undefined && (this.#exchange.bodyLength !== 0 || route.bodyOptional !== true)) {
      const type = this.header('content-type')
      if (type !== 'application/json' && !isJson(type)) {
        this.#refuse(415, 'the content type must be application/json')
        return false
      }
    }
    return true
  }

  #isValid(issues: readonly Issue[]): boolean {
    if (issues.length === 0) return true
    this.#refuse(400, describe(issues))
    return false
  }

  #readSearch(): Query {
    this.#search ??= parseQuery(this.#exchange.search)
    return this.#search
  }

  // The body.

  get #maxBodyBytes(): number {
    return (this.#endpoint as Endpoint).route.maxBodyBytes ?? this.#dispatcher.options.maxBodyBytes
  }

  #readBody(): void {
    const shared = (this.#endpoint as Endpoint).route.longText !== undefined
    // What comes chunked tells no length.
    const { bodyLength } = this.#exchange
    this.#exchange.readBody(this.#maxBodyBytes, this, shared && (bodyLength < 0 || bodyLength >= longBytes))
  }

  onBody(bytes: Uint8Array): void {
    if (this.#onBody !== undefined) return this.#onBody(owned(bytes))
    try {
      this.#handleBody(bytes)
    } catch (error) {
      this.#fail(error)
    }
  }

  onTooLarge(): void {
    if (this.#onBody !== undefined) this.#onBody(undefined)
    else this.#refuseSize()
  }

  #refuseSize(): void {
    if (this.#exchange.bodyLength > maxDiscardedBytes) this.#exchange.isLast = true
    this.#refuse(413, `the body is longer than ${this.#maxBodyBytes} bytes`)
  }

  #handleBody(bytes: Uint8Array): void {
    const { checks, route } = this.#endpoint as Endpoint
    if (route.rawBody === true) this.rawBody = new Uint8Array(bytes)
    if (checks.body !== undefined) {
      if (route.longText !== undefined && bytes.length >= longBytes) {
        const parsing = this.#dispatcher.options.parseInThread(owned(bytes), route.longText)
        if (parsing !== undefined) {
          this.#hold()
          this.#working += 1
          return void this.#handleLater(parsing)
        }
      }
      this.body = bytes.length === 0 && route.bodyOptional === true ? {} : parseJson(bytes)
      if (!this.#isValid(checks.body(this.body))) return
    }
    this.#handle()
  }

  async #handleLater(parsing: Promise<ParsedLong>): Promise<void> {
    try {
      const { value, text } = await parsing
      this.body = value
      this.longText = text
      const check = (this.#endpoint as Endpoint).checks.body
      if (!this.#exchange.isOver && (check === undefined || this.#isValid(check(this.body)))) this.#handle()
    } catch (error) {
      this.#fail(error)
    }
    this.#endWork()
  }

  // Handled and answered.

  #handle(): void {
    const reply = (this.#endpoint as Endpoint).route.handle(this)
    if (!isPromise(reply)) return this.#answer(reply)
    this.#hold()
    this.#working += 1
    void this.#answerLater(reply)
  }

  async #answerLater(reply: Promise<Reply>): Promise<void> {
    try {
      this.#answer(await reply)
    } catch (error) {
      this.#fail(error)
    }
    this.#endWork()
  }

  /** @param more name, value, name, value, …: headers where the reply does not say otherwise */
  #answer(reply: Reply, more?: readonly string[]): void {
    const exchange = this.#exchange
    if (exchange.isOver) return this.#drop(reply)
    let kind: AnswerKind = 'other'
    let body: string | Uint8Array | undefined = ''
    let feed: Feed | undefined
    if (isResponse(reply)) {
      if (reply.body !== null) feed = new BytesFeed(reply.body)
    } else if ('body' in reply) {
      kind = 'json'
      body = JSON.stringify(reply.body) ?? 'null'
    } else if ('text' in reply) {
      kind = 'text'
      body = reply.text
    } else if ('bytes' in reply) {
      kind = 'bytes'
      body = reply.bytes
    } else if ('events' in reply) {
      kind = 'events'
      feed = new EventFeed(reply.events)
    }
    const status = reply.status ?? 200
    const head = this.#headOf(reply, kind, more)
    const isEmpty = status === 204 || status === 304
    if (feed === undefined) {
      exchange.send(status, this.id, head, isEmpty ? undefined : body)
      if (exchange.isOver) this.#rest()
      else this.#hold()
    } else if (isEmpty || exchange.method === 'HEAD') {
      exchange.send(status, this.id, head, undefined)
      this.#follow(feed)
    } else {
      const { keepAliveIntervalMs, stallTimeoutMs } = this.#dispatcher.options
      this.#hold()
      this.#outlet = new Outlet(exchange.open(status, this.id, head), {
        stallTimeoutMs,
        // The frames of a Response are its own: a comment of ours could fall into the middle of one.
        keepAliveIntervalMs: kind === 'events' ? keepAliveIntervalMs : undefined,
        cut: () => exchange.cut()
      })
      this.#follow(feed, this.#outlet)
    }
  }

  #headOf(reply: Reply, kind: AnswerKind, more: readonly string[] | undefined): Head {
    const { heads, options } = this.#dispatcher
    const origin = this.header('origin')
    const isApi = this.#endpoint?.isApi === true
    if (origin === undefined && more === undefined && !isResponse(reply)) return heads.get(reply.headers, kind, isApi)
    const lines = heads.make(reply.headers, kind, isApi, more ?? [])
    if (origin !== undefined) options.cors.decorate(origin, lines)
    return new Head(lines)
  }

  /** Lets a producer feed the outlet, or tells it at once that nobody wants to hear it; works until it has ended. */
  #follow(feed: Feed, outlet?: Outlet): void {
    this.#feed = feed
    this.#working += 1
    const work = async () => {
      try {
        await outlet?.drawFrom(feed)
      } catch (error) {
        if (!this.#isExpected(error)) this.#log('error', 'a stream failed; its client was cut off', error)
        this.#exchange.cut()
      }
      await this.#cancel()
      this.#endWork()
    }
    void work()
  }

  async #cancel(): Promise<void> {
    try {
      await this.#feed?.cancel()
    } catch (error) {
      if (!this.#isExpected(error)) this.#log('error', 'the producer of a stream failed to end', error)
    }
  }

  /** An answer that came after the client had left. */
  #drop(reply: Reply): void {
    if (isResponse(reply)) {
      if (reply.body !== null) this.#follow(new BytesFeed(reply.body))
    } else if ('events' in reply) {
      this.#follow(new EventFeed(reply.events))
    }
    this.#rest()
  }

  // Refused.

  #refuse(status: number, message: string, head: readonly string[] = []): void {
    this.refuse({ status, code: codeOf(status), message }, head)
  }

  #refuseRate(retryAfterSeconds: number): void {
    // Found only for the form in which it is told.
    this.#endpoint = this.#dispatcher.table.find(this.path)?.resource.endpoints.get(this.method)
    this.refuse({ status: 429, code: 'RATE_LIMITED', message: 'rate limited', retryAfterSeconds })
  }

  /** Answers with a problem, in the form of the route if it has one of its own. */
  refuse(problem: Problem, head: readonly string[] = []): void {
    const more = ['cache-control', 'no-store', ...head]
    if (problem.retryAfterSeconds !== undefined) more.push('retry-after', String(problem.retryAfterSeconds))
    if (problem.status === 401) more.push('www-authenticate', 'Bearer')
    const render = this.#endpoint?.route.renderProblem
    if (render !== undefined) {
      try {
        return this.#answer(render(problem), more)
      } catch (error) {
        this.#log('error', 'a problem could not be rendered in the form of its route', error)
      }
    }
    const { status, code } = problem
    this.#answer({ status, body: { error: messageFor(problem), code } }, more)
  }

  #fail(error: unknown): void {
    if (this.#exchange.isOver) {
      if (!this.#isExpected(error)) this.#log('error', 'a request failed after its client had left', error)
      return this.#rest()
    }
    const problem = toProblem(error, this.#endpoint?.route.errors, this.#guard?.errors)
    if (problem.status === 503 && isCoded(error)) {
      // Overload comes in crowds: the place where it was noticed would be the same stack in each line.
      const { code, message, detail, cause } = error
      this.#log('warn', 'a request was refused', { code, message, detail, cause })
    } else if (problem.status >= 500) {
      this.#log('error', 'a request failed', error)
    }
    this.refuse(problem)
  }

  #log(level: 'warn' | 'error', message: string, error: unknown): void {
    const { id, method, path } = this
    this.#dispatcher.options.log[level](message, { requestId: id, method, path, error })
  }

  /** Whether `error` is only the echo of the client's leaving. */
  #isExpected(error: unknown): boolean {
    if (!this.#exchange.isGone) return false
    return isCoded(error, 'CLIENT_GONE') || (error instanceof Error && error.name === 'AbortError')
  }

  // The end.

  onOver(): void {
    if (this.#exchange.isGone) {
      this.onAbort(clientGone())
      this.#onBody?.(undefined)
      this.#outlet?.close()
      if (this.#feed !== undefined) void this.#cancel()
    }
    this.#rest()
  }

  #endWork(): void {
    this.#working -= 1
    this.#rest()
  }

  #rest(): void {
    if (this.#working > 0 || !this.#exchange.isOver || this.#lease === undefined) return
    this.#lease.release()
    this.#ownLease?.release()
    if (this.#controller === undefined) return
    const { aborts } = this.#dispatcher
    aborts.remove(this.#lease.signal, this)
    if (this.#ownLease !== undefined) aborts.remove(this.#ownLease.signal, this)
  }

  #hold(): void {
    if (this.#lease !== undefined || this.#endpoint === undefined) return
    this.#lease = this.#endpoint.contribution.lease()
    this.#ownLease = this.#dispatcher.options.hold()
  }

  /** A generation must end, that of the route or that of http; or the client has left. */
  onAbort(reason: unknown): void {
    if (this.#controller?.signal.aborted === false) this.#controller.abort(reason)
  }
}

function clientGone(): CodedError {
  return new CodedError('CLIENT_GONE', 'the client left before it had its answer')
}

/** Bytes that stay when the call that brought them returns. */
function owned(bytes: Uint8Array): Uint8Array {
  return bytes.buffer instanceof SharedArrayBuffer ? bytes : new Uint8Array(bytes)
}

function isPromise<T>(value: Awaitable<T>): value is Promise<T> {
  return typeof (value as Promise<T>).then === 'function'
}

/** Without touching the global `Response`, which loads a whole HTTP client. */
function isResponse(reply: Reply): reply is Response {
  return typeof (reply as Response).arrayBuffer === 'function'
}

function isJson(type: string | undefined): boolean {
  return type !== undefined && jsonType.test(type) && !foreignCharset.test(type)
}

/** `missing name (at user.name)`: the path only where the message does not say it all. */
function describe(issues: readonly Issue[]): string {
  return issues.map(({ message, path }) => (path.length > 1 ? `${message} (at ${path.join('.')})` : message)).join('; ')
}
