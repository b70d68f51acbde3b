/**
 * The product with a route behind a token, for `login-storm`. With the argument `libuv` passwords are hashed in the
 * process itself, as a server without the worker pool would do it: argon2 then has libuv's threads to itself. With
 * `unthrottled` any number of logins may fail.
 */
import { definePlugin } from '../../kernel/index.ts'
import auth from '../../plugins/auth/index.ts'
import http from '../../plugins/http/index.ts'
import type { Route } from '../../plugins/http/types.ts'
import store from '../../plugins/store/index.ts'
import workers from '../../plugins/workers/index.ts'
import { serveHouse } from './house.ts'
import { inProcess } from './in-process.ts'
import { jwtSecret } from './login-secret.ts'

const note = definePlugin({
  name: 'note',
  inject: ['store'],
  async apply(ctx) {
    const { store } = ctx.services
    await store.atomically((tx) => tx.put('bench.notes', ['n1'], { text: 'what was written there' }))
    const route: Route = {
      method: 'GET',
      path: '/bench/note',
      operationId: 'readNote',
      summary: 'One store read behind a token',
      guard: 'user',
      replies: { 200: { type: 'object' } },
      handle: async () => ({ body: (await store.get('bench.notes', ['n1']))?.value })
    }
    ctx.contribute('http.routes', route)
  }
})

const unlimited = { max_failures_per_account: 0, max_failures_per_address: 0 }

await serveHouse([
  [store, {}],
  [http, { port: 0 }],
  [process.argv.includes('libuv') ? inProcess : workers, {}],
  [auth, { jwt_secret: jwtSecret, ...(process.argv.includes('unthrottled') ? { login_throttle: unlimited } : {}) }],
  [note, {}]
])
