import { randomBytes } from 'node:crypto'
import { CodedError, type Contribution, definePlugin, isCoded, schemaOf } from '../../kernel/index.ts'
import { TrustedProxies } from './client-address.ts'
import { Cors } from './cors.ts'
import { Dispatcher, guardsOf } from './dispatcher.ts'
import { Front } from './front.ts'
import { securityHeaders } from './heads.ts'
import { assertFree, openServer, type TransportChoice } from './listen.ts'
import { embeddedRoutes, ownRoutes } from './own-routes.ts'
import { createRateState, type RateLimitConfig, RateLimits } from './rate-limits.ts'
import { CompiledRoutes } from './route-checks.ts'
import type { WorkerTask } from '../workers/types.ts'
import type { HealthCheck, Http, InfoPart } from './types.ts'
import type { ParsedLong, ParseInput } from './tasks/parse-json.ts'
import { mountUws } from './uws.ts'

export interface Config {
  readonly host: string
  readonly port: number
  readonly transport: TransportChoice
  readonly listen: boolean
  readonly embedded: boolean
  readonly cors_origins: readonly string[]
  readonly security_headers: boolean
  readonly max_body_bytes: number
  readonly max_connections: number
  readonly keep_alive_interval_ms: number
  readonly stall_timeout_ms: number
  readonly rate_limit: RateLimitConfig & { readonly trusted_proxies: readonly string[] }
}

const perMinute = { type: 'integer', minimum: 0, default: 0 } as const

const config = schemaOf<Config>({
  type: 'object',
  additionalProperties: false,
  properties: {
    host: { type: 'string', minLength: 1, default: '127.0.0.1', description: 'Address to listen on' },
    port: { type: 'integer', minimum: 0, maximum: 65_535, default: 3000, description: '0 takes any that is free' },
    transport: {
      enum: ['auto', 'uws', 'node'],
      default: 'auto',
      description: 'uWebSockets.js, node:http, or the first of them that loads'
    },
    listen: {
      type: 'boolean',
      default: true,
      description: 'Without a socket, requests come from within the process only'
    },
    embedded: {
      type: 'boolean',
      default: false,
      description: 'Part of another program: GET /health answers {"ok":true}, and nothing tells what is configured'
    },
    cors_origins: {
      type: 'array',
      items: { type: 'string', pattern: '^(\\*|[a-z][a-z0-9+.-]*://[^/?#]+)$' },
      default: ['http://localhost:3000'],
      description:
        'Origins whose pages may call with credentials, such as https://app.example; "*" is any, without them'
    },
    security_headers: {
      type: 'boolean',
      default: false,
      description: 'Answers tell browsers not to guess their type, nor to show them as pages or in frames'
    },
    max_body_bytes: {
      type: 'integer',
      minimum: 0,
      maximum: 1_073_741_824,
      default: 1_048_576,
      description: 'Longest request body of a route that sets no limit of its own'
    },
    max_connections: {
      type: 'integer',
      minimum: 1,
      default: 10_000,
      description: 'Open connections; further ones are closed as they come'
    },
    keep_alive_interval_ms: {
      type: 'integer',
      minimum: 1,
      maximum: 2_147_483_647,
      default: 15_000,
      description: 'After such a silence a comment is sent on an event stream'
    },
    stall_timeout_ms: {
      type: 'integer',
      minimum: 1,
      maximum: 2_147_483_647,
      default: 15_000,
      description: 'How long a client may leave an answer unread before it is cut off'
    },
    rate_limit: {
      type: 'object',
      additionalProperties: false,
      default: {},
      description: 'Requests beyond these are answered 429; 0 is no limit. GET /health and /ready are not counted',
      properties: {
        global_requests_per_minute: { ...perMinute, description: 'From everybody together' },
        per_client_requests_per_minute: { ...perMinute, description: 'From one IPv4 address, or one IPv6 /64' },
        per_key_requests_per_minute: { ...perMinute, description: 'With one bearer token' },
        burst: {
          type: 'integer',
          minimum: 0,
          default: 10,
          description: 'Requests that may come at once before the rate counts; at least 1'
        },
        trusted_proxies: {
          type: 'array',
          items: { type: 'string' },
          default: ['127.0.0.0/8', '::1'],
          description:
            'Peers whose X-Forwarded-For or X-Real-IP tells the address of the client, also with no limit set'
        }
      }
    }
  }
})

/** Of a long text with some facts beside it. More would take time to be handed over by a thread. */
const maxLongValues = 10_000
const parseTask: WorkerTask = {
  name: 'http/parse-json',
  pool: 'bodies',
  // As much as a body may be long.
  poolDefaults: { maxHeapMb: 512, maxOutputMb: 128 },
  module: new URL('./tasks/parse-json.js', import.meta.url).href
}

export default definePlugin({
  name: 'http',
  essential: true,
  optional: ['kernel', 'workers'],
  provides: ['http'],
  config,
  preflight: ({ listen, host, port }) => (listen && port !== 0 ? assertFree(host, port) : undefined),
  async apply(ctx, config) {
    const { host, port, transport } = config
    const proxies = new TrustedProxies(config.rate_limit.trusted_proxies)
    // The number stands for the shape of the state: code that keeps another one starts with its own.
    const rates = await ctx.resource('rates', 1, createRateState, () => {})
    const compiled = await ctx.resource(
      'compiled',
      1,
      () => new CompiledRoutes(),
      () => {}
    )
    const limits = { maxConnections: config.max_connections, stallTimeoutMs: config.stall_timeout_ms }
    const front = await ctx.resource(
      'front',
      null,
      () => new Front(`${randomBytes(6).toString('base64url')}-`),
      () => {}
    )
    const server = config.listen
      ? await ctx.resource(
          'socket',
          { host, port, transport },
          () => openServer(host, port, transport, ctx.log),
          (server) => front.close(server)
        )
      : undefined
    const address = server && { host: server.host, port: server.port, transport: server.transport }
    if (config.cors_origins.includes('*')) {
      ctx.log.warn('cors_origins holds "*": pages of any origin may call, without credentials')
    }

    const dispatcher = new Dispatcher({
      log: ctx.log,
      cors: new Cors(config.cors_origins),
      always: config.security_headers ? securityHeaders : [],
      isReady: () => ctx.services.kernel?.isReady() ?? true,
      hold: () => ctx.lease(),
      nextId: front.nextId,
      compiled,
      proxies,
      rateLimits: RateLimits.create(config.rate_limit, rates, () => performance.now()),
      parseInThread(bytes, member) {
        const { workers } = ctx.services
        const input: ParseInput = { bytes, member, maxValues: maxLongValues }
        return workers?.run<ParsedLong>(parseTask, input).catch((error: unknown) => {
          if (!isCoded(error) || !/^WORKERS_(CRASHED|ABORTED)$/.test(error.code)) throw error
          const message = 'the thread that read the body ended; nothing was done: try again'
          throw new CodedError('HTTP_BODY_UNREAD', message, { cause: error })
        })
      },
      maxBodyBytes: config.max_body_bytes,
      keepAliveIntervalMs: config.keep_alive_interval_ms,
      stallTimeoutMs: config.stall_timeout_ms
    })
    const stop = () => front.stop(dispatcher, limits)

    let checks: readonly Contribution<HealthCheck>[] = []
    let parts: readonly Contribution<InfoPart>[] = []
    const own = config.embedded
      ? embeddedRoutes()
      : ownRoutes({
          checks: () => checks,
          parts: () => parts,
          server: () => ({
            host: address?.host ?? host,
            port: address?.port ?? port,
            log_level: ctx.log.level
          }),
          log: ctx.log,
          now: Date.now
        })
    ctx.collect('http.checks', { update: (now) => (checks = now) })
    ctx.collect('http.info', { update: (now) => (parts = now) })
    ctx.collect('http.guards', {
      check: (next) => guardsOf(next),
      update: (now) => (dispatcher.guards = guardsOf(now))
    })
    ctx.collect('http.routes', {
      check: (next) => dispatcher.tableOf(next),
      update(now) {
        dispatcher.table = dispatcher.tableOf(now)
        // Its own routes leave before anything else when this generation goes away with no other in its place.
        if (!now.some(({ item }) => item === own[0])) stop()
      }
    })
    ctx.contribute('workers.tasks', parseTask)
    ctx.contribute('http.routes', ...own)
    if (address !== undefined) {
      const url = `http://${address.host.includes(':') ? `[${address.host}]` : address.host}:${address.port}`
      const by = address.transport === 'uws' ? 'uWebSockets.js' : 'node:http'
      ctx.contribute(
        'notices',
        { label: 'listening', text: `${url} (${by})` },
        { label: 'try', text: `curl ${url}/agent/tools` }
      )
    }
    ctx.on('kernel/stopping', stop)
    ctx.onCommit(() => front.point(dispatcher, server, limits))

    const http: Http = {
      dispatch: (request) => dispatcher.dispatch(request),
      fetch: (request, options = {}) => dispatcher.fetch(request, options),
      mount: (app, patterns) => front.mount(mountUws(app, patterns), limits),
      get address() {
        return address
      }
    }
    ctx.provide('http', http)
  }
})
