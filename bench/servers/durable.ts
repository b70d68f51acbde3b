/** The product with tools that do nothing, for calls with request ids; `durable.js log` writes a line for each call. */
import { createJsonLogger, createLineWriter, definePlugin, silentLogger } from '../../kernel/index.ts'
import carmy from '../../plugins/carmy/index.ts'
import http from '../../plugins/http/index.ts'
import type { Guard } from '../../plugins/http/types.ts'
import store from '../../plugins/store/index.ts'
import type { Effect, Tool } from '../../plugins/tools/types.ts'
import tools from '../../plugins/tools/index.ts'
import { toolInput } from './checks.ts'
import { serveHouse } from './house.ts'

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

const log =
  process.argv[2] === 'log' ? createJsonLogger({ write: createLineWriter(process.stderr.fd).write }) : silentLogger
await serveHouse(
  [
    [store, {}],
    [http, { port: 0, transport: 'uws' }],
    [tools, { max_request_ids: 1_000_000_000 }],
    [carmy, {}],
    [subject, {}]
  ],
  { log }
)
