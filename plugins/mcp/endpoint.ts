import type { AuthInfo, Server, ServerContext } from '@modelcontextprotocol/server'
import { CodedError } from '../../kernel/index.ts'
import type { Request as HttpRequest, Reply } from '../http/types.ts'
import { callerOf } from './callers.ts'
import type { Face, Origin } from './face.ts'
import type { Sdk } from './sdk.ts'
import { canElicit, createServer } from './server.ts'
import { modernOf, type Session, type SharedState, tellCatalog } from './state.ts'
import { watch } from './watch.ts'

/** Headers that the protocol reads. */
const headerNames = [
  'accept',
  'content-type',
  'last-event-id',
  'mcp-method',
  'mcp-name',
  'mcp-protocol-version',
  'mcp-session-id'
]

export interface EndpointOptions {
  readonly state: SharedState
  readonly load: () => Promise<Sdk>
  readonly maxSessions: number
  readonly sessionIdleTimeoutMs: number
  /** Milliseconds of a clock that only goes forward. */
  readonly monotonicMs: () => number
  readonly newSessionId: () => string
  /** Told of what went wrong out of band; never decides anything. */
  readonly onError: (error: Error) => void
}

export interface Endpoint {
  readonly post: (request: HttpRequest) => Promise<Reply>
  /** Opens the stream on which a session is told what it did not ask for. */
  readonly get: (request: HttpRequest) => Promise<Response>
  /** Ends a session. */
  readonly delete: (request: HttpRequest) => Promise<Response>
  /** Ends the sessions that nobody has used for too long. */
  readonly sweep: () => void
  /** For one request that stands for itself. */
  readonly newServer: (sdk: Sdk) => Server
}

/**
 * The protocol over HTTP, in both of its forms: revision 2026-07-28, where each request stands for itself, and the
 * sessions of those before it.
 *
 * Codes: `MCP_SESSION_MISSING`, `MCP_SESSION_UNKNOWN`, `MCP_SESSIONS_FULL`.
 */
export function createEndpoint(options: EndpointOptions): Endpoint {
  const { state, load, monotonicMs, onError } = options
  const { sessions } = state
  // Asked for each call: the generation that answers may be newer than the one in which a connection began.
  const face = (): Face => state.face as Face

  function newServer(sdk: Sdk): Server {
    const server = createServer(sdk, face, (context) => ({
      ...originOf(context),
      canElicit: canElicit(server),
      endsWithClient: true
    }))
    return server
  }

  /** Makes a session, and has it answer the request that asks for it; one that comes to nothing is gone again. */
  async function begin(sdk: Sdk, request: HttpRequest, web: Request): Promise<Response> {
    sweep()
    if (sessions.size >= options.maxSessions) makeRoom()
    const server = createServer(sdk, face, (context) => {
      session.calls += 1
      const done = () => {
        session.calls -= 1
        session.lastUsedMs = monotonicMs()
      }
      return { ...originOf(context), canElicit: canElicit(server), endsWithClient: false, done }
    })
    const id = options.newSessionId()
    const transport = new sdk.WebStandardStreamableHTTPServerTransport({ sessionIdGenerator: () => id })
    const session: Session = {
      server,
      transport,
      principal: callerOf(request.principal).principal,
      told: face().revision,
      isListening: false,
      calls: 0,
      lastUsedMs: monotonicMs()
    }
    server.onerror = onError
    server.onclose = () => {
      sessions.delete(id)
    }
    // Counted from now on: others may ask for one while this one begins.
    sessions.set(id, session)
    try {
      await server.connect(transport)
      return await transport.handleRequest(web, { parsedBody: request.body, authInfo: authInfoOf(request) })
    } finally {
      if (transport.sessionId === undefined) {
        sessions.delete(id)
        await server.close()
      }
    }
  }

  /** @throws CodedError `MCP_SESSION_MISSING`, `MCP_SESSION_UNKNOWN` */
  function find(request: HttpRequest): Session {
    const id = request.header('mcp-session-id')
    if (id === undefined) {
      throw new CodedError('MCP_SESSION_MISSING', 'the header Mcp-Session-Id is missing, and this is no initialize')
    }
    const session = sessions.get(id)
    // Somebody else's is none.
    if (session === undefined || session.principal !== callerOf(request.principal).principal) {
      throw new CodedError('MCP_SESSION_UNKNOWN', 'there is no such session of yours: initialize a new one')
    }
    session.lastUsedMs = monotonicMs()
    return session
  }

  function isIdle({ calls, isListening }: Session): boolean {
    return calls === 0 && !isListening
  }

  function sweep(): void {
    const before = monotonicMs() - options.sessionIdleTimeoutMs
    for (const session of sessions.values()) {
      if (isIdle(session) && session.lastUsedMs <= before) void session.server.close()
    }
  }

  /** Ends the session that has been idle for longest; one of an anonymous client first, since anybody can have those. */
  function makeRoom(): void {
    const rank = ({ principal }: Session) => (principal === undefined ? 0 : 1)
    let found: readonly [id: string, session: Session] | undefined
    for (const entry of sessions) {
      const [, session] = entry
      if (!isIdle(session)) continue
      const order = found && (rank(session) - rank(found[1]) || session.lastUsedMs - found[1].lastUsedMs)
      if (order === undefined || order < 0) found = entry
    }
    if (found === undefined) {
      const message = `all ${options.maxSessions} sessions are in use`
      throw new CodedError('MCP_SESSIONS_FULL', message, { detail: { retryAfterSeconds: 10 } })
    }
    const [id, { server }] = found
    sessions.delete(id)
    void server.close()
  }

  return {
    async post(request) {
      const sdk = (state.sdk ??= await load())
      const { body } = request
      const authInfo = authInfoOf(request)
      // A session's calls outlive the requests that brought them; a request that stands for itself ends with its client.
      const isSession = request.header('mcp-session-id') !== undefined
      const web = toWebRequest(request, isSession ? undefined : request.signal)
      if (hasClaim(sdk, body) || !(await sdk.isLegacyRequest(web, body))) {
        return whole(await modernOf(state, sdk).fetch(web, { parsedBody: body, authInfo }))
      }
      if (isSession || !sdk.isInitializeRequest(body)) {
        return find(request).transport.handleRequest(web, { parsedBody: body, authInfo })
      }
      return begin(sdk, request, web)
    },

    async get(request) {
      const session = find(request)
      const response = await session.transport.handleRequest(toWebRequest(request))
      const { body } = response
      if (!response.ok || body === null) return response
      session.isListening = true
      // What happened while it did not listen.
      tellCatalog(session, face().revision)
      request.signal.addEventListener('abort', () => session.transport.closeStandaloneSSEStream(), { once: true })
      const watched = watch(body, () => {
        session.isListening = false
        session.lastUsedMs = monotonicMs()
      })
      return new Response(watched, { status: response.status, headers: response.headers })
    },

    delete: async (request) => find(request).transport.handleRequest(toWebRequest(request)),
    sweep,
    newServer
  }
}

/** The way the SDK has for what is known of a request to come to its handler. */
function authInfoOf(request: HttpRequest): AuthInfo {
  return { token: '', clientId: request.principal.id, scopes: [], extra: { request } }
}

function originOf({ http }: ServerContext): Pick<Origin, 'caller' | 'ended'> {
  const request = http?.authInfo?.extra?.['request'] as HttpRequest
  return { caller: callerOf(request.principal), ended: () => request.signal }
}

/** Whether a message says by itself that it is of revision 2026-07-28: what the SDK's predicate asks first, without the rest. */
function hasClaim(sdk: Sdk, body: unknown): boolean {
  const meta = (body as { params?: { _meta?: object } } | null)?.params?._meta
  return typeof meta === 'object' && meta !== null && sdk.PROTOCOL_VERSION_META_KEY in meta
}

/** One message goes out in one piece: a stream costs a turn of the event loop more, and has no length. */
async function whole(response: Response): Promise<Reply> {
  if (response.headers.get('content-type') !== 'application/json') return response
  return { status: response.status, headers: Object.fromEntries(response.headers), text: await response.text() }
}

function toWebRequest(request: HttpRequest, signal?: AbortSignal): Request {
  const headers: [string, string][] = []
  for (const name of headerNames) {
    const value = request.header(name)
    if (value !== undefined) headers.push([name, value])
  }
  const init = signal === undefined ? { method: request.method, headers } : { method: request.method, headers, signal }
  return new Request(`http://localhost${request.path}`, init)
}
