import t from 'tap'
import { definePlugin, type JsonSchema, type Plugin, schemaOf } from '../../kernel/index.ts'
import type { DispatchReply } from '../../plugins/http/types.ts'
import { type ProgramHouse, startProgram } from '../harness.ts'

// The requests and responses that the API's document prints for services and entries, replayed as printed. Bodies are
// compared whole: members that it does not print are written out beside those it does.

const anything: JsonSchema = { type: 'object' }

/** `calc` of the examples. */
function calcPlugin(config: JsonSchema = anything): Plugin {
  return definePlugin({
    name: 'calc',
    config: schemaOf<Record<string, unknown>>(config),
    apply(_ctx, { precision }) {
      if (precision === 13) throw new Error('thirteen is refused')
    }
  })
}

const needsUrl: JsonSchema = { type: 'object', required: ['url'], properties: { url: { type: 'string' } } }

const entry = (id: string, plugin: string, more = '') => `
[[entry]]
id = "${id}"
plugin = "${plugin}"
${more}`

const calc = entry('calc', 'calc', 'config = { precision = 6 }')
const toolsGroup = entry('tools-group', '@group')

/** An entry as it is listed. */
function shown(id: string, config: object): object {
  return { id, plugin: 'calc', config, disabled: false, isolate: null, intercept: {} }
}

/** Runs a printed `curl` command: its method, its path, its body. */
function curl(house: ProgramHouse, command: string): Promise<DispatchReply> {
  const method = /-X (\w+)/.exec(command)?.[1] ?? 'GET'
  const path = /http:\/\/localhost:3000\/api\/admin\/cordis(\S*)/.exec(command)?.[1] ?? ''
  const body = /-d '(.*)'/s.exec(command)?.[1]
  const headers = [...command.matchAll(/-H "([^:]+): ([^"]+)"/g)].map(([, name = '', value = '']) => [
    name.toLowerCase(),
    value
  ])
  const { 'x-admin-secret': _, ...others } = Object.fromEntries(headers) as Record<string, string>
  return house.admin(method, path, body, others)
}

/** The whole body is the printed one, with `more` where the document prints only a part of it. */
function answers(t: Tap, reply: DispatchReply, status: number, text: string, more: object = {}): void {
  t.equal(reply.status, status)
  t.strictSame(JSON.parse(JSON.stringify(reply.body)), { ...(JSON.parse(text) as object), ...more })
}

type Tap = Pick<typeof t, 'equal' | 'strictSame'>

t.test('a direct service is retired and provided', async (t) => {
  const needy = definePlugin({ name: 'needy', inject: ['events_service'], apply() {} })
  const house = await startProgram(t, entry('needy', 'needy'), { needy })
  const retire = () => house.admin('POST', '/services/events_service/retire')
  const service = 'events_service'
  answers(t, await retire(), 409, '{"retired": false, "reason": "guarded", "consumers": 1}', {
    service,
    cascaded_notify: false
  })
  await house.admin('POST', '/entries/needy/toggle')
  const removed_type = 'cordis::events::EventsService'
  answers(t, await retire(), 200, '{"retired": true}', { service, removed_type, cascaded_notify: true })
  answers(t, await retire(), 200, '{"retired": false}', { service, removed_type: null, cascaded_notify: false })
  const provide = `curl -s -X POST http://localhost:3000/api/admin/cordis/services/events_service/provide \\
    -H "X-Admin-Secret: $ADMIN_API_KEY"`
  answers(
    t,
    await curl(house, provide),
    200,
    '{"provided": true, "service": "events_service", "type": "cordis::events::EventsService"}'
  )
  answers(t, await curl(house, provide), 200, '{"provided": false}', { service, reason: 'already present' })
  answers(t, await house.admin('POST', '/services/store/retire'), 409, '{"retired": false}', {
    service: 'store',
    error:
      'service store is not retirably supported: only direct Cordis services (concrete-type provides) can be retired; wrapper services are not supported today',
    cascaded_notify: false
  })
})

t.test('fibers and their pending undos are listed', async (t) => {
  const plain = definePlugin({
    name: 'plain',
    apply(ctx) {
      ctx.effect(() => () => {}, 'first')
      ctx.effect(() => () => {})
      ctx.effect(() => () => {}, 'second')
    }
  })
  const failing = definePlugin({
    name: 'failing',
    apply() {
      throw new Error('no')
    }
  })
  const house = await startProgram(t, entry('plain', 'plain') + entry('failing', 'failing'), { plain, failing })
  const { fibers } = (await house.admin('GET', '/services')).body as { fibers: Record<string, unknown>[] }
  const states = ['Active', 'Inactive', 'Loading', 'Failed', 'Reloading', 'Unloading', 'Pending']
  for (const fiber of fibers) {
    t.match(fiber, { fiber_id: Number, disposed: false, pending_undo_count: Number })
    t.ok(states.includes(String(fiber['state'])))
    const { fiber_id, state, error, disposed, pending_undo_count, ...more } = fiber
    t.ok([fiber_id, state, error, disposed, pending_undo_count].every((value) => value !== undefined))
    const members = 'entry_id plugin generation draining waiting_for provides faults last_fault'
    t.equal(Object.keys(more).join(' '), members)
  }
  t.match(fibers.at(-1), { state: 'Failed', error: 'no' })
  t.match(fibers.at(-2), { state: 'Active', error: null, pending_undo_count: 3 })
  const undo = (await house.admin('GET', '/undo')).body as { fibers: Record<string, unknown>[] }
  t.match(undo.fibers.at(-2), { fiber_id: fibers.at(-2)?.['fiber_id'], pending_undo_labels: ['first', 'second'] })
})

t.test('a provider is replaced, or stays untouched', async (t) => {
  // So that the new fiber is the seventeenth.
  const others = Array.from({ length: 10 }, (_, index) => entry(`other-${index}`, 'calc')).join('')
  const house = await startProgram(t, others + calc, { calc: calcPlugin() })
  const replace = (body: unknown) => house.admin('POST', '/services/calc/replace', body)
  answers(t, await replace({ config: { precision: 9 } }), 200, '{"replaced": true, "plugin": "calc", "fiber_id": 17}')
  const refused = await replace({ config: { precision: 13 } })
  answers(t, refused, 409, '{"replaced": false, "service": "calc", "reason": "thirteen is refused"}')
  answers(t, await replace({}), 400, '{"replaced": false}', {
    error: 'body must be {"config": <value>} carrying the new provider configuration; got {}',
    code: 'INVALID_INPUT'
  })
  t.match(house.kernel.fibers().at(-1), { fiberId: 17, entry: 'calc', state: 'Active', generation: 2 })
})

t.test('a config that is refused answers its issues, and leaves nothing behind', async (t) => {
  const house = await startProgram(t, entry('calc', 'calc', 'config = { url = "x" }'), { calc: calcPlugin(needsUrl) })
  answers(
    t,
    await house.admin('PATCH', '/entries/calc', { config: { precision: 2 } }),
    422,
    `{
      "applied": [],
      "patched": false,
      "reloaded": false,
      "error": "config pre-flight failed: invalid config: - missing url (at calc.url)",
      "issues": [{"message": "missing url", "path": ["calc", "url"]}]
    }`
  )
  const good = await house.admin('PATCH', '/entries/calc', { config: { url: 'y' } })
  answers(t, good, 200, '{"patched": true}', {
    applied: [{ id: 'calc', action: 'update-config', ok: true, verified: true }],
    entry: shown('calc', { url: 'y' })
  })
})

t.test('an empty patch is a checked change of nothing; invalid moves and unknown ids are refused', async (t) => {
  const house = await startProgram(t, calc, { calc: calcPlugin() })
  const text = house.text()
  const entry = shown('calc', { precision: 6 })
  answers(t, await house.admin('PATCH', '/entries/calc'), 200, '{"applied": [], "patched": true}', { entry })
  answers(t, await house.admin('PATCH', '/entries/calc', {}), 200, '{"applied": [], "patched": true}', { entry })
  answers(t, await house.admin('PATCH', '/entries/calc', { parent: 'calc' }), 409, '{"patched": false}', {
    error: "cannot move entry 'calc' under itself",
    code: 'CONFLICT'
  })
  answers(t, await house.admin('PATCH', '/entries/nope', {}), 404, '{"patched": false, "error": "no such entry"}', {
    code: 'NOT_FOUND'
  })
  t.equal(house.text(), text)
})

t.test('one request moves an entry and configures it anew', async (t) => {
  const house = await startProgram(t, toolsGroup + calc, { calc: calcPlugin() })
  const { fiberId } = house.kernel.fibers().at(-1) ?? {}
  const patch = `curl -s -X PATCH http://localhost:3000/api/admin/cordis/entries/calc \\
    -H "X-Admin-Secret: $ADMIN_API_KEY" \\
    -H "Content-Type: application/json" \\
    -d '{"parent": "tools-group", "config": {"precision": 2}}'`
  answers(
    t,
    await curl(house, patch),
    200,
    `{
      "applied": [],
      "patched": true,
      "renamed": [["calc", "tools-group:calc"]],
      "entry": {"id": "tools-group:calc"}
    }`,
    { entry: shown('tools-group:calc', { precision: 2 }) }
  )
  t.match(house.kernel.fibers().at(-1), { fiberId, entry: 'tools-group:calc', generation: 2 })
  t.match(house.text(), 'id = "tools-group:calc"\nplugin = "calc"\nconfig = { precision = 2 }')
  t.match((await house.admin('PATCH', '/entries/tools-group:calc', { parent: null })).body, { entry: { id: 'calc' } })
})

t.test('a move keeps fibers, and says what it is called now', async (t) => {
  const house = await startProgram(t, toolsGroup + calc, { calc: calcPlugin() })
  const { fiberId } = house.kernel.fibers().at(-1) ?? {}
  const move = `curl -s -X POST http://localhost:3000/api/admin/cordis/entries/calc/move \\
    -H "X-Admin-Secret: $ADMIN_API_KEY" \\
    -H "Content-Type: application/json" \\
    -d '{"parent": "tools-group", "position": 0}'`
  answers(
    t,
    await curl(house, move),
    200,
    `{
      "moved": true,
      "noop": false,
      "renamed": [["calc", "tools-group:calc"]],
      "applied": []
    }`
  )
  t.match(house.kernel.fibers().at(-1), { fiberId, entry: 'tools-group:calc', generation: 1 })
  const again = (body: unknown) => house.admin('POST', '/entries/tools-group:calc/move', body)
  answers(t, await again({ parent: 'tools-group' }), 200, '{"moved": true, "noop": true, "renamed": [], "applied": []}')
  const code = 'INVALID_INPUT'
  for (const position of ['0', -1, 1.5]) {
    answers(t, await again({ position }), 400, '{"error": "\\"position\\" must be a non-negative integer"}', {
      code
    })
  }
  answers(t, await again({ parent: 5 }), 400, '{"error": "\\"parent\\" must be a string or null"}', {
    code
  })
  const back = '{"moved": true, "noop": false, "renamed": [["tools-group:calc", "calc"]], "applied": []}'
  answers(t, await again({ parent: null }), 200, back)
  await curl(house, move)
  answers(t, await again({}), 200, back)
})

t.test('H51 while the kernel starts, its entries are not known yet', async (t) => {
  const replies: DispatchReply[] = []
  const early = definePlugin({
    name: 'early',
    inject: ['http', 'auth'],
    async apply(ctx) {
      const headers = { 'x-admin-secret': 'the-admin-secret-of-the-tests' }
      for (const [method, path] of [
        ['GET', '/entries'],
        ['PUT', '/entries'],
        ['POST', '/entries/calc/toggle'],
        ['POST', '/services/calc/replace']
      ] as const) {
        const body = method === 'GET' ? {} : { body: { id: 'x', plugin: 'calc', config: {} } }
        replies.push(await ctx.services.http.dispatch({ method, path: `/api/admin/cordis${path}`, headers, ...body }))
      }
    }
  })
  await startProgram(t, calc + entry('early', 'early'), { calc: calcPlugin(), early })
  const error = 'the kernel has not started yet'
  t.match(replies, [
    { status: 503, body: { listed: false, error } },
    { status: 503, body: { applied: [], error } },
    { status: 503, body: { toggled: false, error } },
    { status: 503, body: { replaced: false, error } }
  ])
})
