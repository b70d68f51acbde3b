/** The product with a tool that does nothing and a guarded route that reads the store: `heartwood.js uws|node`. */
import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { definePlugin, type Plugin, schemaOf } from '../../kernel/index.ts'
import { Kernel } from '../../kernel/kernel.ts'
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

const folder = await mkdtemp(join(tmpdir(), 'heartwood-bench-'))
const kernel = new Kernel()
const entries: readonly (readonly [Plugin, object])[] = [
  [store, { path: folder }],
  [workers, {}],
  [http, { port: 0, transport: process.argv[2] }],
  [auth, { jwt_secret: jwtSecret }],
  [tools, {}],
  [carmy, {}],
  [mcp, {}],
  [subject, {}]
]
await Promise.all(entries.map(([plugin, config]) => kernel.begin({ id: plugin.name, plugin, config })))
await kernel.settled()
for (const { entry, state, error } of kernel.fibers()) {
  if (state !== 'Active') throw new Error(`${entry} is ${state}: ${error}`)
}
process.once('SIGTERM', () => {
  void kernel
    .stop()
    .then(() => rm(folder, { recursive: true }))
    .then(() => process.exit(0))
})
console.log(`http://127.0.0.1:${kernel.service('http')?.address?.port}`)
