import { CodedError, type JsonSchema } from '../../kernel/index.ts'
import type { ErrorMap, Problem, Reply, Request, Route } from '../http/types.ts'
import type { Endpoint } from './endpoint.ts'

export interface RouteOptions {
  readonly path: string
  readonly require_auth: boolean
  readonly allowed_hosts: readonly string[]
  readonly allowed_origins: readonly string[]
}

const errors: ErrorMap = {
  MCP_UNAUTHORIZED: 401,
  MCP_HOST_REFUSED: 403,
  MCP_ORIGIN_REFUSED: 403,
  MCP_SESSION_MISSING: 400,
  MCP_SESSION_UNKNOWN: 404,
  MCP_SESSIONS_FULL: 503
}

const message: JsonSchema = { type: 'object', description: 'JSON-RPC 2.0, or a stream of server-sent events of it' }

export function routes(endpoint: Endpoint, options: RouteOptions): Route[] {
  const route = (
    method: 'GET' | 'POST' | 'DELETE',
    operationId: string,
    summary: string,
    handle: (request: Request) => Promise<Reply>
  ): Route => ({
    method,
    path: options.path,
    operationId,
    summary,
    guard: 'caller',
    ...(method === 'POST' ? { body: {} } : {}),
    replies: { 200: message, 202: {}, 400: message, 401: message, 403: message, 404: message },
    errors,
    renderProblem,
    handle(request) {
      assertAllowed(request, options)
      return handle(request)
    }
  })
  return [
    route('POST', 'callMcp', 'Speak the Model Context Protocol', endpoint.post),
    route('GET', 'listenToMcp', 'Listen to what a session is told', endpoint.get),
    route('DELETE', 'endMcpSession', 'End a session', endpoint.delete)
  ]
}

/**
 * A page of anywhere can have a browser ask this machine; what it cannot do is to forge where it comes from, or which
 * name it has for us.
 * @throws CodedError `MCP_HOST_REFUSED`, `MCP_ORIGIN_REFUSED`, `MCP_UNAUTHORIZED`
 */
function assertAllowed(request: Request, { allowed_hosts, allowed_origins, require_auth }: RouteOptions): void {
  const host = request.header('host')
  if (!isAmong(allowed_hosts, host)) {
    throw new CodedError('MCP_HOST_REFUSED', `the host '${host}' is not among the allowed_hosts of this server`)
  }
  const origin = request.header('origin')
  if (origin !== undefined && !isAmong(allowed_origins, /^https?:\/\/(.*)$/.exec(origin)?.[1])) {
    throw new CodedError('MCP_ORIGIN_REFUSED', `the origin '${origin}' is not among the allowed_origins of this server`)
  }
  if (require_auth && request.principal.kind === 'anonymous') {
    throw new CodedError('MCP_UNAUTHORIZED', 'this server answers only callers with a credential: a token or a key')
  }
}

/** @param authority a name or an address, with or without a port */
function isAmong(names: readonly string[], authority: string | undefined): boolean {
  if (names.includes('*')) return true
  const name = authority === undefined ? undefined : /^(\[[^\]]*\]|[^:]*)(?::\d*)?$/.exec(authority)?.[1]
  return name !== undefined && names.includes(name.toLowerCase())
}

/** A refusal before anything was asked of the protocol, in its form. */
function renderProblem({ status, message }: Problem): Reply {
  return { status, body: { jsonrpc: '2.0', id: null, error: { code: errorCode(status), message } } }
}

function errorCode(status: number): number {
  if (status === 400) return -32_700
  if (status === 404) return -32_001
  return status >= 500 ? -32_603 : -32_000
}
