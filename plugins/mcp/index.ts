import { randomUUID } from 'node:crypto'
import { definePlugin, schemaOf } from '../../kernel/index.ts'
import type {} from '../carmy/types.ts'
import type {} from '../http/types.ts'
import type {} from '../tools/types.ts'
import { createEndpoint } from './endpoint.ts'
import { createFace } from './face.ts'
import { type RouteOptions, routes } from './routes.ts'
import { loadSdk, type Sdk } from './sdk.ts'
import { announceCatalog, closeSharedState, createSharedState } from './state.ts'
import { serveClient } from './stdio.ts'
import type {} from './types.ts'
import { version } from './version.ts'

interface Config extends RouteOptions {
  readonly server: string
  readonly execution_meta: boolean
  readonly elicit_confirmation: boolean
  readonly max_sessions: number
  readonly session_idle_timeout_ms: number
  readonly stdio_permissions: readonly string[]
}

const local = ['localhost', '127.0.0.1', '[::1]']

const config = schemaOf<Config>({
  type: 'object',
  additionalProperties: false,
  properties: {
    server: { type: 'string', minLength: 1, default: 'heartwood', description: 'Name that clients are told' },
    path: { type: 'string', pattern: '^/[^{}?#]+$', default: '/mcp' },
    require_auth: { type: 'boolean', default: false, description: 'Nothing without a credential' },
    allowed_hosts: {
      type: 'array',
      items: { type: 'string', minLength: 1 },
      default: local,
      description: 'Names of this server in the Host header, without a port; "*" is any. Others are answered 403'
    },
    allowed_origins: {
      type: 'array',
      items: { type: 'string', minLength: 1 },
      default: local,
      description:
        'Names in the Origin header of pages that may ask, without scheme and port; "*" is any. Their full origins belong into cors_origins of http, too'
    },
    execution_meta: {
      type: 'boolean',
      default: false,
      description: 'Results tell carmy/execution_id and carmy/status also when nothing failed'
    },
    elicit_confirmation: {
      type: 'boolean',
      default: false,
      description:
        "Where a tool needs a person's confirmation, the client is asked for it. That trusts every client to ask one"
    },
    max_sessions: { type: 'integer', minimum: 1, default: 1_000, description: 'The one idle for longest makes room' },
    session_idle_timeout_ms: {
      type: 'integer',
      minimum: 1,
      maximum: 2_147_483_647,
      default: 1_800_000,
      description: 'A session that nobody uses or listens to ends after this time'
    },
    stdio_permissions: {
      type: 'array',
      items: { type: 'string', minLength: 1 },
      default: [],
      description: 'What the client of `heartwood mcp` may do beyond calling every tool, such as "confirm:cancel_order"'
    }
  }
})

export default definePlugin({
  name: 'mcp',
  inject: ['http', 'tools'],
  provides: ['mcp'],
  config,
  async apply(ctx, config) {
    const { tools } = ctx.services
    // The number stands for the shape of the state: code that keeps another one starts with its own.
    const state = await ctx.resource('state', 2, createSharedState, closeSharedState)
    const onError = (error: Error) => ctx.log.debug('a client of MCP did something wrong, or has left', { error })
    const face = createFace(
      tools,
      () => state.sdk as Sdk,
      { name: config.server, version },
      { withIds: config.execution_meta, elicitConfirmation: config.elicit_confirmation }
    )
    const endpoint = createEndpoint({
      state,
      load: loadSdk,
      maxSessions: config.max_sessions,
      sessionIdleTimeoutMs: config.session_idle_timeout_ms,
      monotonicMs: () => performance.now(),
      newSessionId: randomUUID,
      onError
    })
    const announce = () => announceCatalog(state, tools.revision)

    ctx.contribute('http.routes', ...routes(endpoint, config))
    ctx.contribute('carmy.faces', { capability: 'mcp', members: { mcp_url: config.path } })
    ctx.on('tools/changed', announce)
    ctx.onCommit(() => {
      state.face = face
      state.newServer = endpoint.newServer
      state.onError = onError
      // It may have changed while nobody was here to hear of it.
      announce()
    })
    ctx.setInterval(endpoint.sweep, Math.min(config.session_idle_timeout_ms, 60_000))
    ctx.provide('mcp', {
      async serveStdio(client) {
        const sdk = (state.sdk ??= await loadSdk())
        const caller = { principal: 'local:stdio', permissions: new Set(config.stdio_permissions) }
        await serveClient(state, sdk, caller, client, onError)
      }
    })
  }
})
