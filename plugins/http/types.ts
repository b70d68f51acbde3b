import type { Awaitable, JsonSchema, Schema } from '../../kernel/index.ts'

/** Who is calling, as a guard found out. Never taken from a body. */
export interface Principal {
  readonly kind: 'user' | 'tenant' | 'admin' | 'anonymous' | 'host'
  /** User id, tenant id, `admin_secret`, or what the program around this server calls it; empty for anonymous. */
  readonly id: string
  readonly email?: string
  readonly tenantId?: string
  /** Grants that only trusted configuration gives, such as `confirm:<tool>`. */
  readonly permissions?: ReadonlySet<string>
  /** A conversation or connection with request ids of its own. */
  readonly session?: string
}

/** What a guard may look at. */
export interface GuardRequest {
  readonly method: string
  readonly path: string
  /** Address of the client: that of the peer, or what a trusted proxy tells of it. */
  readonly address: string
  /** Who counts as one client: the address, or the /64 network of an IPv6 address, which is one customer's. */
  readonly network: string
  /** By lower-case name; several lines of one name are joined by `, `. */
  header(name: string): string | undefined
  /** First decoded value of a query parameter. */
  queryValue(name: string): string | undefined
  /** Whom the program around this server says it is, where it hands the request over by `fetch`. */
  readonly trusted?: Principal | undefined
}

/** Lets a request in, contributed to `http.guards`. Routes name the guard they stand behind. */
export interface Guard {
  readonly name: string
  /** How OpenAPI describes it. */
  readonly scheme: JsonSchema
  /** At hand where possible: the hot path does not wait. @throws CodedError whose code is in `errors` */
  check(request: GuardRequest): Awaitable<Principal>
  readonly errors: ErrorMap
}

export interface Request<P = Record<string, string>, Q = unknown, B = unknown> extends GuardRequest {
  /** The `x-request-id` of the answer. */
  readonly id: string
  readonly params: P
  readonly query: Q
  /** Parsed and checked against the route's schema; `undefined` where the route has none. */
  readonly body: B
  /**
   * The UTF-16 units of the member that the route names with `longText`, in memory that threads share: as a string, it
   * would be copied here in one piece. Only of a long body; the member itself is empty then.
   */
  readonly longText?: Uint16Array | undefined
  /** The bytes of the body, only where the route asks with `rawBody`. */
  readonly rawBody: Uint8Array | undefined
  /**
   * The bytes as JSON, with the checks of a JSON route: for a route that looks at the bytes first.
   * @throws CodedError `HTTP_BODY_INVALID`
   */
  json(): unknown
  readonly principal: Principal
  /**
   * Fires when the work is pointless or must end: the client left (`CLIENT_GONE`), the server stops
   * (`SHUTTING_DOWN`) or the generation's drain time is over (`DRAIN_TIMEOUT`). Its reason is a CodedError. Made when
   * it is first read, which costs about a microsecond: read it where something can be aborted.
   */
  readonly signal: AbortSignal
  /** The client has left. For work that has had to wait, and makes no signal of its own. */
  readonly isGone: boolean
}

/** One event of a stream. `data` is written as one line of JSON. */
export interface StreamEvent {
  readonly event?: string
  readonly data: unknown
}

/** Names in any case, values in visible ASCII. Headers that never change are cheapest as one frozen object. */
export type Headers = Readonly<Record<string, string>>

/**
 * - `body`: answered as JSON
 * - `text`: answered as it is, `text/plain` unless a header says otherwise
 * - `bytes`: answered as they are; give a content type
 * - `events`: a stream of server-sent events. The iterator is closed when the client leaves; when `signal` fires for
 *   another reason it should yield its last event and end
 * - none of them: an empty answer
 */
export type Reply<R = unknown> =
  | { readonly status?: number; readonly headers?: Headers; readonly body: R }
  | { readonly status?: number; readonly headers?: Headers; readonly text: string }
  | { readonly status?: number; readonly headers?: Headers; readonly bytes: Uint8Array }
  | { readonly status?: number; readonly headers?: Headers; readonly events: AsyncIterable<StreamEvent> }
  | { readonly status: number; readonly headers?: Headers }
  | Response

/**
 * What an error code of a service becomes. A number takes the catalog's code for that status (404: `NOT_FOUND`, …).
 * The message of a mapped error goes out as it is, also with a 5xx: map only what may be read. Where the code is
 * `INTERNAL_ERROR`, a 400, 429 or 503 begins with what the code does not tell (`Rate limited: …`). A numeric
 * `retryAfterSeconds` in the error's detail becomes `Retry-After`.
 */
export type ErrorMap = Readonly<Record<string, number | { readonly status: number; readonly code: string }>>

/** What http refuses by itself, or what a handler's error became. */
export interface Problem {
  readonly status: number
  /** Of the catalog: `INVALID_INPUT`, `PAYLOAD_TOO_LARGE`, `UNSUPPORTED_MEDIA_TYPE`, `INTERNAL_ERROR`, … */
  readonly code: string
  readonly message: string
  readonly retryAfterSeconds?: number
}

/** An operation as data, contributed to `http.routes`. Validation, refusals, CORS and OpenAPI come from it. */
export interface Route<P = Record<string, string>, Q = unknown, B = unknown, R = unknown> {
  readonly method: 'GET' | 'POST' | 'PUT' | 'PATCH' | 'DELETE'
  /** An OpenAPI path template, from the root: `/api/chat/{id}`. A literal segment wins over a parameter. */
  readonly path: string
  readonly operationId: string
  readonly summary: string
  /** Name of the guard; left out: open to everyone. */
  readonly guard?: string
  readonly params?: Schema<P>
  readonly query?: Schema<Q>
  /**
   * Makes this a JSON route: content type, syntax and schema are checked. Refused as well: invalid UTF-8, more than 64
   * levels, integers beyond 2^53 and numbers no double can hold.
   */
  readonly body?: Schema<B>
  /** An absent body counts as `{}`. */
  readonly bodyOptional?: boolean
  /**
   * Names a member of the body that may be a long text. A body of 256 KiB and more is then parsed in a thread, where
   * there are any, the text is handed over as `longText`, and one that holds more than 10,000 values is refused.
   */
  readonly longText?: string
  /** Hands over the bytes as well; without a `body` schema nothing is parsed. */
  readonly rawBody?: boolean
  /** Longest body in bytes; 1 MiB when left out. */
  readonly maxBodyBytes?: number
  /** Answers by status, for OpenAPI. */
  readonly replies: Readonly<Record<number, JsonSchema>>
  readonly errors?: ErrorMap
  /** Another form for refusals on this route than `{ error, code }`. */
  readonly renderProblem?: (problem: Problem) => Reply
  handle(request: Request<P, Q, B>): Awaitable<Reply<R>>
}

/** A request made in process, without a socket: for tests and for plugins that face another protocol. */
export interface DispatchRequest {
  readonly method: string
  /** With the query string. */
  readonly path: string
  readonly headers?: Headers
  /** A string or bytes as they are; anything else as JSON, with the content type set. */
  readonly body?: unknown
  readonly signal?: AbortSignal
}

export interface FetchOptions {
  /** Address of the client; unknown when left out. */
  readonly address?: string
  /** Who is calling, as the program that hands the request over has found out. Guards see it as `trusted`. */
  readonly principal?: Principal
}

/** The part of an app of uWebSockets.js that {@link Http.mount} needs. */
export interface MountTarget {
  // biome-ignore lint/suspicious/noExplicitAny: those of a package that may not be there
  any(pattern: string, handler: (response: any, request: any) => void): unknown
}

export interface DispatchReply {
  readonly status: number
  readonly headers: Headers
  /** Parsed when the answer is JSON, text otherwise; `undefined` when empty. Streams are read to their end. */
  readonly body: unknown
}

/**
 * Owns the socket; finds the route; checks; answers.
 *
 * Codes: `HTTP_PORT_IN_USE`, `HTTP_LISTEN_FAILED` (detail `host`, `port`, `reason`), `HTTP_TRANSPORT_MISSING`,
 * `HTTP_PROXY_INVALID`, when it starts; `HTTP_ROUTE_INVALID`, `HTTP_ROUTE_CONFLICT`, `HTTP_GUARD_CONFLICT`, for whoever
 * contributes such a thing.
 */
export interface Http {
  /** Rejects when the answer is cut off, or with the reason of the request's signal. */
  dispatch(request: DispatchRequest): Promise<DispatchReply>
  /**
   * The same for a Web `Request`, whose answer may be a stream. Rejects when the answer is cut off before it has begun,
   * or with the reason of the request's signal.
   */
  fetch(request: globalThis.Request, options?: FetchOptions): Promise<Response>
  /**
   * Answers on paths of somebody else's app of uWebSockets.js, through every swap of this plugin. An app cannot take a
   * route back: once this server has stopped, it answers 503 there.
   * @param patterns of uWebSockets.js: `/agent/*`
   */
  mount(app: MountTarget, patterns: readonly string[]): void
  /** Where it listens; `undefined` with `listen = false`. */
  readonly address: { readonly host: string; readonly port: number; readonly transport: 'uws' | 'node' } | undefined
}

/** A line of `GET /health/detailed`, contributed to `http.checks`. */
export interface HealthCheck {
  readonly name: string
  /** Rejects when the part is not well; at most 5 s are given. */
  check(): Promise<void>
}

/** A part of `GET /config/info`, contributed to `http.info`: names only, never a secret. */
export interface InfoPart {
  readonly name: 'providers' | 'models' | 'agents' | 'tools' | 'workflows'
  values(): readonly string[]
}

declare module '../../kernel/index.ts' {
  interface Services {
    http: Http
  }
  interface Contributions {
    'http.routes': Route
    'http.guards': Guard
    'http.checks': HealthCheck
    'http.info': InfoPart
  }
}
