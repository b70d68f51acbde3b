/** The product with a tool that does nothing and a guarded route that reads the store: `heartwood.js uws|node`. */
import { definePlugin, schemaOf } from '../../kernel/index.ts'
import auth from '../../plugins/auth/index.ts'
import carmy from '../../plugins/carmy/index.ts'
import http from '../../plugins/http/index.ts'
import type { Route } from '../../plugins/http/types.ts'
import mcp from '../../plugins/mcp/index.ts'
import store from '../../plugins/store/index.ts'
import tools from '../../plugins/tools/index.ts'
import workers from '../../plugins/workers/index.ts'
import { answers } from './answers.ts'
import { noteBody, toolInput } from './checks.ts'
import { serveHouse } from './house.ts'
import { jwtSecret } from './login-secret.ts'

const subject = definePlugin({
  name: 'subject',
  inject: ['store'],
  async apply(ctx) {
    const { store } = ctx.services
    await store.atomically((tx) => tx.put('bench.notes', ['n1'], answers['/bench/note']!({ id: 'n1' })))
    ctx.contribute('tools', {
      name: 'noop',
      description: 'Does nothing',
      input: toolInput,
      output: { type: 'object' },
      effect: 'none',
      idempotent: true,
      parallelSafe: true,
      anonymous: true,
      run: () => ({})
    })
    const route: Route<unknown, unknown, { readonly id: string }> = {
      method: 'POST',
      path: '/bench/note',
      operationId: 'readNote',
      summary: 'One store read behind a token',
      guard: 'user',
      body: schemaOf(noteBody),
      replies: { 200: { type: 'object' } },
      handle: async ({ body }) => ({ body: (await store.get('bench.notes', [body.id]))?.value })
    }
    ctx.contribute('http.routes', route as Route)
  }
})

await serveHouse([
  [store, {}],
  [workers, {}],
  [http, { port: 0, transport: process.argv[2] }],
  [auth, { jwt_secret: jwtSecret }],
  [tools, {}],
  [carmy, {}],
  [mcp, {}],
  [subject, {}]
])
