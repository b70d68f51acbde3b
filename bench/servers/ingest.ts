/**
 * The product with documents and chat, for `ingest`. With the argument `in-process` what its threads do is done in the
 * process itself.
 */
import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { CodedError, definePlugin, type Plugin } from '../../kernel/index.ts'
import { Kernel } from '../../kernel/kernel.ts'
import agent from '../../plugins/agent/index.ts'
import auth from '../../plugins/auth/index.ts'
import chat from '../../plugins/chat/index.ts'
import embeddings from '../../plugins/embeddings/index.ts'
import http from '../../plugins/http/index.ts'
import localModel from '../../plugins/local-model/index.ts'
import rag from '../../plugins/rag/index.ts'
import store from '../../plugins/store/index.ts'
import tools from '../../plugins/tools/index.ts'
import workers from '../../plugins/workers/index.ts'
import type { TaskResult, Workers, WorkerTask } from '../../plugins/workers/types.ts'
import { jwtSecret } from './login-secret.ts'

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

const folder = await mkdtemp(join(tmpdir(), 'heartwood-bench-'))
const kernel = new Kernel()
const entries: readonly (readonly [id: string, Plugin, object])[] = [
  ['store', store, { path: folder }],
  ['http', http, { port: 0 }],
  ['workers', process.argv.includes('in-process') ? inProcess : workers, {}],
  ['auth', auth, { jwt_secret: jwtSecret }],
  ['tools', tools, {}],
  ['models:local', localModel, {}],
  ['chat', chat, {}],
  ['agents:writer', agent, { model: 'local', description: 'Writes.', system_prompt: 'You write.' }],
  ['embeddings', embeddings, { threads: 1, cache_entries: 0 }],
  ['rag', rag, {}]
]
await Promise.all(entries.map(([id, plugin, config]) => kernel.begin({ id, plugin, config })))
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
