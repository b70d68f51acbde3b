/** The product with the tools of the bench `carmy`, and a catalog as long as is asked: `carmy.js uws|node [tools]`. */
import { setImmediate } from 'node:timers/promises'
import { definePlugin, schemaOf } from '../../kernel/index.ts'
import carmy from '../../plugins/carmy/index.ts'
import http from '../../plugins/http/index.ts'
import type { Guard } from '../../plugins/http/types.ts'
import store from '../../plugins/store/index.ts'
import type { Tool } from '../../plugins/tools/types.ts'
import tools from '../../plugins/tools/index.ts'
import { catalogOf, reportsAtOnce, Watched } from '../carmy-shapes.ts'
import { serveHouse } from './house.ts'

const watched = new Watched()

const common = { output: {}, effect: 'read', parallelSafe: true, anonymous: true } as const

const report: Tool<{ reports: number }> = {
  ...common,
  name: 'report',
  description: 'Reports so often how far it is',
  input: schemaOf({ type: 'object', required: ['reports'], properties: { reports: { type: 'integer' } } }),
  async run({ reports }, { progress }) {
    for (let at = 1; at <= reports; at += 1) {
      progress({ progress: at, total: reports, message: 'on its way' })
      if (at % reportsAtOnce === 0) await setImmediate()
    }
    return {}
  }
}

const watch: Tool<{ id: number }> = {
  ...common,
  name: 'watch',
  description: 'Runs until its client has gone',
  input: schemaOf({ type: 'object', required: ['id'], properties: { id: { type: 'integer' } } }),
  run({ id }, { signal, progress }) {
    watched.begin()
    progress({ progress: 0, message: 'began' })
    return new Promise((resolve) => {
      const tell = () => {
        watched.tell(id)
        resolve({})
      }
      if (signal.aborted) tell()
      else signal.addEventListener('abort', tell, { once: true })
    })
  }
}

const seen: Tool = {
  ...common,
  name: 'seen',
  description: 'What has become of the calls of watch',
  input: {},
  run: () => watched.seen()
}

const subject = definePlugin({
  name: 'subject',
  apply(ctx) {
    const guard: Guard = { name: 'caller', scheme: {}, errors: {}, check: () => ({ kind: 'anonymous', id: '' }) }
    ctx.contribute('http.guards', guard)
    ctx.contribute('tools', report as Tool, watch as Tool, seen)
    const many = catalogOf(Number(process.argv[3] ?? 0)).map(({ name, description, input_schema, output_schema }) => {
      return { ...common, name, description, input: input_schema, output: output_schema, run: () => ({}) }
    })
    ctx.contribute('tools', ...many)
  }
})

await serveHouse([
  [store, {}],
  [http, { port: 0, transport: process.argv[2] }],
  [tools, {}],
  [carmy, {}],
  [subject, {}]
])
