import t from 'tap'
import { call, serve } from './server.ts'

const builtins = ['store', 'workers', 'http', 'auth', 'admin']
/** Where the lines of the log point to. */
const source = 'boom.mjs:'
const adminKey = 'an-admin-key-for-the-tests'
const admin = { 'x-admin-secret': adminKey }

/** Everything that a plugin can let go of: nothing of it goes through its context, but the first. */
const boom = `
import { EventEmitter } from 'node:events'

export default {
  name: 'boom',
  config: { type: 'object' },
  apply(ctx, config) {
    if (config.quiet) return
    ctx.setTimeout(() => { throw new Error('in a timer of its context') }, 0)
    setTimeout(() => { throw new Error('in a timer of its own') }, 0)
    setImmediate(() => new EventEmitter().emit('error', new Error('of an emitter')))
    Promise.reject(new Error('of a promise'))
    const later = async () => { await null; throw new Error('of a call nobody waits for') }
    later()
    queueMicrotask(() => { throw 1 })
    ctx.contribute('http.routes', {
      method: 'GET', path: '/boom', operationId: 'boom', summary: 'Answers and lets a promise go', replies: { 200: {} },
      handle: () => { Promise.reject(new Error('of a handler')); return { body: {} } }
    })
  }
}
`

t.test('KERNEL-12 what a plugin lets go of ends nothing, and is told with its fiber and in the log', async (t) => {
  const entry = (id: string, plugin = id) => `[[entry]]\nid = "${id}"\nplugin = "${plugin}"\n`
  const boomed = entry('boom', './boom.mjs') + entry('twin', './boom.mjs')
  const cwd = t.testdir({
    'program.toml': `${builtins.map((name) => entry(name)).join('')}${boomed}config = { quiet = true }\n`,
    'boom.mjs': boom
  })
  const server = await serve(t, { cwd, env: { ADMIN_API_KEY: adminKey } })
  const fibers = async () => {
    const { json } = await call(server, 'GET', '/api/admin/cordis/services', { headers: admin })
    return json.fibers as { entry_id: string; state: string; faults: number; last_fault: string }[]
  }
  const faults = async (id: string) => (await fibers()).find((fiber) => fiber.entry_id === id)?.faults
  while ((await faults('boom')) !== 5) await new Promise((resolve) => setImmediate(resolve))
  t.match(await call(server, 'GET', '/boom'), { status: 200 })
  while ((await faults('boom')) !== 6) await new Promise((resolve) => setImmediate(resolve))
  for (const { entry_id, state, faults, last_fault } of await fibers()) {
    if (entry_id === 'boom') t.match({ state, last_fault }, { state: 'Active', last_fault: 'of a handler' })
    else if (entry_id === 'twin') t.strictSame([state, faults], ['Active', 5], 'its code is the same: who can tell')
    else t.strictSame([entry_id, state, faults], [entry_id, 'Active', 0])
  }
  t.match(await call(server, 'GET', '/health'), { status: 200 })

  server.child.kill()
  const { code, stderr } = await server.ended
  t.equal(code, 0, 'the process it was from the start')
  const lines = stderr.split('\n').flatMap((line) => (line === '' ? [] : JSON.parse(line)))
  const strays = lines.filter(({ message }) => /outside of any request|was not handled/.test(message))
  t.equal(strays.length, 6)
  for (const { plugin, entries, error } of strays) {
    if (error === 1) t.equal(plugin, undefined, 'what has no stack is of nobody')
    else
      t.match({ plugin, entries, error }, { plugin: './boom.mjs', entries: ['boom', 'twin'], error: { stack: source } })
  }
})
