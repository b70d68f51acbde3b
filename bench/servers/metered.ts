/**
 * The product with a route that counts each request for a tenant, and an answer that costs nothing:
 * `metered.js [write_interval_ms]`. The tenant and its key are made through the admin routes, as an operator does it.
 */
import { definePlugin, schemaOf } from '../../kernel/index.ts'
import auth from '../../plugins/auth/index.ts'
import chat from '../../plugins/chat/index.ts'
import http from '../../plugins/http/index.ts'
import type { Route } from '../../plugins/http/types.ts'
import store from '../../plugins/store/index.ts'
import tenants from '../../plugins/tenants/index.ts'
import tools from '../../plugins/tools/index.ts'
import v1 from '../../plugins/v1/index.ts'
import workers from '../../plugins/workers/index.ts'
import { answers } from './answers.ts'
import { serveHouse } from './house.ts'
import { adminSecret } from './login-secret.ts'

const answer = answers['/bench/metered']!

const subject = definePlugin({
  name: 'subject',
  inject: ['tenants'],
  apply(ctx) {
    const { tenants } = ctx.services
    const route: Route<unknown, unknown, { readonly message: string }> = {
      method: 'POST',
      path: '/bench/metered',
      operationId: 'metered',
      summary: 'One counted request',
      guard: 'tenant-key',
      body: schemaOf({ type: 'object', required: ['message'], properties: { message: { type: 'string' } } }),
      replies: { 200: { type: 'object' } },
      async handle({ principal, body }) {
        const reservation = await tenants.reserve(principal.id, 1)
        const reply = { body: answer(body as never) }
        await tenants.settle(reservation, { agent: 'none', ok: true, tokens: 15 })
        return reply
      }
    }
    ctx.contribute('http.routes', route as Route)
  }
})

await serveHouse([
  [store, {}],
  [workers, {}],
  [http, { port: 0, transport: 'uws' }],
  [auth, { admin_secret: adminSecret }],
  [tenants, { write_interval_ms: Number(process.argv[2] ?? 0) }],
  [tools, {}],
  [chat, {}],
  [v1, {}],
  [subject, {}]
])
