import { isCoded } from '../../kernel/index.ts'
import type { ErrorMap, Problem } from './types.ts'

/** The code that goes with a status when a route's map names only the status. */
const codes: Readonly<Record<number, string>> = {
  400: 'INVALID_INPUT',
  401: 'AUTHENTICATION_FAILED',
  403: 'FORBIDDEN',
  404: 'NOT_FOUND',
  405: 'METHOD_NOT_ALLOWED',
  409: 'CONFLICT',
  412: 'PRECONDITION_FAILED',
  413: 'PAYLOAD_TOO_LARGE',
  415: 'UNSUPPORTED_MEDIA_TYPE',
  422: 'INVALID_INPUT',
  502: 'EXTERNAL_SERVICE_ERROR'
}

export function codeOf(status: number): string {
  return codes[status] ?? (status < 500 && status !== 429 ? 'INVALID_INPUT' : 'INTERNAL_ERROR')
}

/** What the code does not tell, the text begins with. */
const prefixes: Readonly<Record<number, string>> = {
  400: 'Feature disabled: ',
  429: 'Rate limited: ',
  503: 'Service unavailable: '
}

/** The message as it goes out in the plain envelope. */
export function messageFor(problem: Problem): string {
  const prefix = problem.code === 'INTERNAL_ERROR' ? prefixes[problem.status] : undefined
  return prefix === undefined || problem.message.startsWith(prefix) ? problem.message : prefix + problem.message
}

/** Errors that any handler may meet without having planned for it. Their own messages are for the log. */
const commonErrors: Readonly<
  Record<string, { readonly status: number; readonly code?: string; readonly message: string }>
> = {
  HTTP_BODY_INVALID: { status: 400, message: '' },
  HTTP_BODY_UNREAD: { status: 503, message: '' },
  HTTP_QUERY_INVALID: { status: 400, message: '' },
  WORKERS_BUSY: { status: 503, message: 'too much work is waiting already; try again later' },
  STORE_FAILED: { status: 500, code: 'DATABASE_ERROR', message: 'the data could not be read or written' },
  STORE_FULL: { status: 507, message: 'there is no room left to store this' },
  SHUTTING_DOWN: { status: 503, message: 'the server is shutting down' },
  DRAIN_TIMEOUT: { status: 503, message: 'this took longer than a replaced part of the server is kept; try again' },
  KERNEL_SERVICE_GONE: { status: 503, message: 'a part of the server that this needs is not there' }
}

/**
 * What a thrown value becomes: by the given maps (the first that knows its code wins), by what is common to all, or a
 * 500 that shows nothing. A mapped error shows its message: whoever mapped it knows that it may be read.
 */
export function toProblem(error: unknown, ...maps: readonly (ErrorMap | undefined)[]): Problem {
  if (isCoded(error)) {
    const seconds = error.detail?.['retryAfterSeconds']
    const retry = typeof seconds === 'number' ? { retryAfterSeconds: Math.max(0, Math.ceil(seconds)) } : {}
    for (const map of maps) {
      if (map === undefined || !Object.hasOwn(map, error.code)) continue
      const target = map[error.code] as ErrorMap[string]
      const { status, code } = typeof target === 'number' ? { status: target, code: codeOf(target) } : target
      return { status, code, message: error.message, ...retry }
    }
    if (Object.hasOwn(commonErrors, error.code)) {
      const { status, code, message } = commonErrors[error.code] as (typeof commonErrors)[string]
      return { status, code: code ?? codeOf(status), message: message || error.message, ...retry }
    }
  }
  return { status: 500, code: 'INTERNAL_ERROR', message: 'internal error' }
}

const reasons: Readonly<Record<number, string>> = {
  200: '200 OK',
  201: '201 Created',
  202: '202 Accepted',
  204: '204 No Content',
  206: '206 Partial Content',
  301: '301 Moved Permanently',
  302: '302 Found',
  303: '303 See Other',
  304: '304 Not Modified',
  307: '307 Temporary Redirect',
  308: '308 Permanent Redirect',
  400: '400 Bad Request',
  401: '401 Unauthorized',
  402: '402 Payment Required',
  403: '403 Forbidden',
  404: '404 Not Found',
  405: '405 Method Not Allowed',
  406: '406 Not Acceptable',
  408: '408 Request Timeout',
  409: '409 Conflict',
  410: '410 Gone',
  412: '412 Precondition Failed',
  413: '413 Payload Too Large',
  415: '415 Unsupported Media Type',
  422: '422 Unprocessable Entity',
  428: '428 Precondition Required',
  429: '429 Too Many Requests',
  500: '500 Internal Server Error',
  501: '501 Not Implemented',
  502: '502 Bad Gateway',
  503: '503 Service Unavailable',
  504: '504 Gateway Timeout',
  505: '505 HTTP Version Not Supported',
  507: '507 Insufficient Storage'
}

/** Status code and reason phrase, as in a status line. */
export function statusText(status: number): string {
  return reasons[status] ?? `${status} Status`
}
