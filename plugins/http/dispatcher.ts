import { CodedError, type Contribution, type Lease, type Logger } from '../../kernel/index.ts'
import { Aborts } from './aborts.ts'
import { Call } from './call.ts'
import type { TrustedProxies } from './client-address.ts'
import type { Cors } from './cors.ts'
import { FetchExchange } from './fetch.ts'
import { Heads } from './heads.ts'
import { LocalExchange } from './local.ts'
import type { RateLimits } from './rate-limits.ts'
import type { CompiledRoutes } from './route-checks.ts'
import { RouteTable } from './router.ts'
import type { ParsedLong } from './tasks/parse-json.ts'
import type { Exchange, Handler } from './transport.ts'
import type { DispatchReply, DispatchRequest, FetchOptions, Guard, Route } from './types.ts'

export interface DispatcherOptions {
  readonly log: Logger
  readonly cors: Cors
  /** Headers of every answer: name, value, name, value, … */
  readonly always: readonly string[]
  /** False while plugins start: what is not there yet may be in a moment. */
  readonly isReady: () => boolean
  /** Holds the generation of http the dispatcher belongs to. */
  readonly hold: () => Lease
  /** Makes the `x-request-id` of a request that brings none. */
  readonly nextId: () => string
  /** Checks of routes that were compiled before. */
  readonly compiled: CompiledRoutes
  readonly proxies: TrustedProxies
  /** Left out when nothing is limited. */
  readonly rateLimits: RateLimits | undefined
  /**
   * Parses a long body in a thread, as `parseJson` would here; `undefined` while there are no threads.
   * @param bytes not borrowed
   * @param member that may be a long text
   */
  readonly parseInThread: (bytes: Uint8Array, member: string) => Promise<ParsedLong> | undefined
  /** For routes that set no limit of their own. */
  readonly maxBodyBytes: number
  readonly keepAliveIntervalMs: number
  readonly stallTimeoutMs: number
}

/** Where requests of every transport come together: the routes and guards that are there now, and how to answer. */
export class Dispatcher implements Handler {
  readonly options: DispatcherOptions
  readonly aborts = new Aborts()
  readonly heads: Heads
  table: RouteTable
  guards: ReadonlyMap<string, Contribution<Guard>> = new Map()

  constructor(options: DispatcherOptions) {
    this.options = options
    this.heads = new Heads(options.cors, options.always)
    this.table = this.tableOf([])
  }

  /** @throws CodedError `HTTP_ROUTE_INVALID` or `HTTP_ROUTE_CONFLICT` */
  tableOf(routes: readonly Contribution<Route>[]): RouteTable {
    return new RouteTable(routes, this.options.compiled)
  }

  handle(exchange: Exchange): void {
    new Call(this, exchange).begin()
  }

  refuse(exchange: Exchange, status: 400 | 501 | 505): void {
    new Call(this, exchange).refuse({ status, ...framingProblems[status] })
  }

  dispatch(request: DispatchRequest): Promise<DispatchReply> {
    const exchange = new LocalExchange(request)
    this.handle(exchange)
    return exchange.reply
  }

  fetch(request: Request, options: FetchOptions): Promise<Response> {
    const exchange = new FetchExchange(request, options)
    this.handle(exchange)
    return exchange.response
  }
}

const framingProblems = {
  400: { code: 'INVALID_INPUT', message: 'the framing of the request is in doubt: see its Host, lengths and target' },
  501: { code: 'NOT_IMPLEMENTED', message: 'this method is not known here' },
  505: { code: 'HTTP_VERSION_NOT_SUPPORTED', message: 'HTTP/1.1 is spoken here' }
} as const

/** Stands at the door when the server stops: 503 for whoever still comes on a connection that is open. */
export function closedDoor(dispatcher: Dispatcher): Handler {
  return {
    handle(exchange) {
      exchange.isLast = true
      new Call(dispatcher, exchange).refuse({
        status: 503,
        code: 'INTERNAL_ERROR',
        message: 'the server is shutting down',
        retryAfterSeconds: 1
      })
    },
    refuse: (exchange, status) => dispatcher.refuse(exchange, status)
  }
}

/** @throws CodedError `HTTP_GUARD_CONFLICT` when two guards have one name */
export function guardsOf(guards: readonly Contribution<Guard>[]): ReadonlyMap<string, Contribution<Guard>> {
  const byName = new Map<string, Contribution<Guard>>()
  for (const guard of guards) {
    const present = byName.get(guard.item.name)
    if (present !== undefined) {
      throw new CodedError(
        'HTTP_GUARD_CONFLICT',
        `the guard '${guard.item.name}' of entry '${guard.entry}' is there already, from entry '${present.entry}'`
      )
    }
    byName.set(guard.item.name, guard)
  }
  return byName
}
