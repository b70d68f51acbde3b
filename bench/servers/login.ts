/**
 * The product with a route behind a token, for `login-storm`. With the argument `libuv` passwords are hashed in the
 * process itself, as a server without the worker pool would do it: argon2 then has libuv's threads to itself. With
 * `unthrottled` any number of logins may fail.
 */
import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { CodedError, definePlugin, type Plugin } from '../../kernel/index.ts'
import { Kernel } from '../../kernel/kernel.ts'
import auth from '../../plugins/auth/index.ts'
import http from '../../plugins/http/index.ts'
import type { Route } from '../../plugins/http/types.ts'
import store from '../../plugins/store/index.ts'
import workers from '../../plugins/workers/index.ts'
import type { TaskResult, Workers, WorkerTask } from '../../plugins/workers/types.ts'
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

/** Runs tasks where it is called. */
const inProcess: Plugin = definePlugin({
  name: 'in-process',
  provides: ['workers'],
  apply(ctx) {
    const tasks = new Map<string, WorkerTask>()
    ctx.collect('workers.tasks', {
      update(now) {
        for (const { item } of now) tasks.set(item.name, item)
      }
    })
    const run: Workers['run'] = async <T>(task: string, input: unknown) => {
      const { default: work } = (await import(tasks.get(task)?.module ?? '')) as {
        default: (input: unknown) => Promise<TaskResult<T>>
      }
      const result = await work(input)
      if (!result.ok) throw new CodedError(result.code, result.message)
      return result.value
    }
    ctx.provide('workers', { run, load: () => ({}) })
  }
})

const unlimited = { max_failures_per_account: 0, max_failures_per_address: 0 }

const folder = await mkdtemp(join(tmpdir(), 'heartwood-bench-'))
const kernel = new Kernel()
const entries: readonly (readonly [Plugin, object])[] = [
  [store, { path: folder }],
  [http, { port: 0 }],
  [process.argv.includes('libuv') ? inProcess : workers, {}],
  [auth, { jwt_secret: jwtSecret, ...(process.argv.includes('unthrottled') ? { login_throttle: unlimited } : {}) }],
  [note, {}]
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
