/** The product with tools that do nothing, for calls with request ids; `durable.js log` writes a line for each call. */
import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { createJsonLogger, createLineWriter, definePlugin, type Plugin, silentLogger } from '../../kernel/index.ts'
import { Kernel } from '../../kernel/kernel.ts'
import carmy from '../../plugins/carmy/index.ts'
import http from '../../plugins/http/index.ts'
import type { Guard } from '../../plugins/http/types.ts'
import store from '../../plugins/store/index.ts'
import type { Effect, Tool } from '../../plugins/tools/types.ts'
import tools from '../../plugins/tools/index.ts'
import { toolInput } from './checks.ts'

const noop = (name: string, effect: Effect): Tool => ({
  name,
  description: 'Does nothing',
  input: toolInput,
  output: { type: 'object' },
  effect,
  parallelSafe: true,
  anonymous: true,
  run: () => ({})
})

const subject = definePlugin({
  name: 'subject',
  apply(ctx) {
    const guard: Guard = { name: 'caller', scheme: {}, errors: {}, check: () => ({ kind: 'anonymous', id: '' }) }
    ctx.contribute('http.guards', guard)
    ctx.contribute('tools', noop('read', 'read'), noop('write', 'write'))
  }
})

const folder = await mkdtemp(join(tmpdir(), 'heartwood-bench-'))
const log =
  process.argv[2] === 'log' ? createJsonLogger({ write: createLineWriter(process.stderr.fd).write }) : silentLogger
const kernel = new Kernel({ log })
const entries: readonly (readonly [Plugin, object])[] = [
  [store, { path: folder }],
  [http, { port: 0, transport: 'uws' }],
  [tools, { max_request_ids: 1_000_000_000 }],
  [carmy, {}],
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
