import { readdirSync, readFileSync, renameSync, symlinkSync, writeFileSync } from 'node:fs'
import { dirname, join } from 'node:path'
import t from 'tap'
import { CodedError, definePlugin, schemaOf } from '../../kernel/index.ts'
import type {} from '../../plugins/audit/types.ts'
import { type ProgramHouse, startProgram } from '../harness.ts'

// Rows H01 to H56 of the kernel's table of cases, each named by its id.

interface Calc {
  precision(): number
}

interface Slow {
  now(): number
  later(): Promise<number>
}

declare module '../../kernel/index.ts' {
  interface Services {
    calc_service: Calc
    slow_service: Slow
  }
}

/** Provides a service that tells its config; refuses what its schema does, and throws for precision 13. */
function calcPlugin(applied: number[] = []) {
  return definePlugin({
    name: 'calc',
    provides: ['calc_service'],
    config: schemaOf<{ precision: number; url: string }>({
      type: 'object',
      additionalProperties: false,
      required: ['url'],
      properties: { precision: { type: 'integer', default: 1 }, url: { type: 'string' } }
    }),
    apply(ctx, { precision }) {
      applied.push(precision)
      if (precision === 13) throw new Error('thirteen is refused')
      ctx.provide('calc_service', { precision: () => precision })
    }
  })
}

const userPlugin = (started: string[] = []) =>
  definePlugin({
    name: 'user',
    inject: ['calc_service'],
    apply(ctx) {
      started.push(ctx.entry)
    }
  })

const plainPlugin = definePlugin({
  name: 'plain',
  config: schemaOf<Record<string, unknown>>({ type: 'object' }),
  apply(ctx) {
    ctx.effect(() => () => {}, 'labelled')
    ctx.effect(() => () => {})
  }
})

const calcEntry = `
# two places is enough
[[entry]]
id = "calc"
plugin = "calc"
config = { precision = 6, url = "x" } # kept
`

const entry = (id: string, more = '') => `
[[entry]]
id = "${id}"
plugin = "plain"
${more}`

const group = (id: string, more = '') => `
[[entry]]
id = "${id}"
plugin = "@group"
${more}`

/** Waits for something that comes about by itself. */
async function until(condition: () => boolean): Promise<void> {
  while (!condition()) await new Promise((resolve) => setImmediate(resolve))
}

function fiberOf(house: ProgramHouse, id: string) {
  return house.kernel.fibers().find((fiber) => fiber.entry === id)
}

const ids = (house: ProgramHouse) => house.host.program.entries.slice(5).map((each) => each.id)

t.test('H01 without the secret, or with another, every route answers the seed’s refusal', async (t) => {
  const house = await startProgram(t, '')
  const paths = [
    ['GET', '/services'],
    ['GET', '/undo'],
    ['GET', '/events'],
    ['GET', '/entries'],
    ['PUT', '/entries'],
    ['PATCH', '/entries/x'],
    ['DELETE', '/entries/x'],
    ['POST', '/entries/x/toggle'],
    ['POST', '/entries/x/move'],
    ['POST', '/entries/reload'],
    ['POST', '/services/x/retire'],
    ['POST', '/services/x/provide'],
    ['POST', '/services/x/replace']
  ] as const
  for (const [method, path] of paths) {
    for (const secret of ['', 'wrong']) {
      const reply = await house.admin(method, path, method === 'GET' ? undefined : {}, { 'x-admin-secret': secret })
      t.match(reply, {
        status: 401,
        body: { error: 'Admin access requires X-Admin-Secret header or JWT with admin role' }
      })
    }
  }
})

t.test('H02 H03 H04 events_service is retired, stays away, and is provided again', async (t) => {
  const house = await startProgram(t, '')
  t.match(await house.admin('GET', '/events'), { status: 200, body: { by_event: Object } })
  t.match(await house.admin('POST', '/services/events_service/retire'), {
    status: 200,
    body: { retired: true, service: 'events_service', removed_type: 'cordis::events::EventsService' }
  })
  t.match(await house.admin('GET', '/events'), {
    status: 503,
    body: { total_dispatched: 0, by_event: {}, error: 'EventsService is not provided on this context' }
  })
  t.match(await house.admin('POST', '/services/events_service/retire'), {
    status: 200,
    body: { retired: false, service: 'events_service', removed_type: null }
  })
  t.strictSame((await house.admin('POST', '/services/events_service/provide')).body, {
    provided: true,
    service: 'events_service',
    type: 'cordis::events::EventsService'
  })
  t.strictSame((await house.admin('POST', '/services/events_service/provide')).body, {
    provided: false,
    service: 'events_service',
    reason: 'already present'
  })
  t.match(await house.admin('GET', '/events'), { status: 200 })
})

t.test(
  'H05 H08 a service that an active entry needs is guarded, with the true number of consumers; who waits for it comes back with it',
  async (t) => {
    const needy = definePlugin({ name: 'needy', inject: ['events_service'], apply() {} })
    const house = await startProgram(t, '\n[[entry]]\nid = "needy"\nplugin = "needy"\n', { needy })
    t.match(await house.admin('POST', '/services/events_service/retire'), {
      status: 409,
      body: { retired: false, service: 'events_service', reason: 'guarded', consumers: 1 }
    })
    t.match(await house.admin('GET', '/events'), { status: 200 }, 'it still resolves')
    await house.admin('POST', '/entries/needy/toggle')
    t.match(await house.admin('POST', '/services/events_service/retire'), { status: 200, body: { retired: true } })
    await house.admin('POST', '/entries/needy/toggle')
    t.match(fiberOf(house, 'needy'), { state: 'Inactive', waitingFor: ['events_service'] })
    await house.admin('POST', '/services/events_service/provide')
    await until(() => fiberOf(house, 'needy')?.state === 'Active')
  }
)

t.test('H06 H07 services that are not the kernel’s own are neither retired nor provided', async (t) => {
  const house = await startProgram(t, '')
  const retire = await house.admin('POST', '/services/store/retire')
  t.equal(retire.status, 409)
  t.match(retire.body, {
    retired: false,
    service: 'store',
    error: /^service store is not retirably supported: only direct/
  })
  t.match(await house.admin('POST', '/services/nope/provide'), {
    status: 400,
    body: { error: /^service nope cannot be provided dynamically/, code: 'INVALID_INPUT' }
  })
})

t.test(
  'H09 H14 H16 replace swaps the provider: a new fiber id, no gap, no consumer restarted, kept in the file',
  async (t) => {
    const started: string[] = []
    const program = `${calcEntry}\n[[entry]]\nid = "user"\nplugin = "user"\n`
    const house = await startProgram(t, program, { calc: calcPlugin(), user: userPlugin(started) })
    const before = fiberOf(house, 'calc')
    const calc = house.services('calc_service')
    let seen = 0
    let gaps = 0
    let probing = true
    const probe = (async () => {
      while (probing) {
        if (calc.precision() > 0) seen += 1
        else gaps += 1
        await new Promise((resolve) => setImmediate(resolve))
      }
    })()
    const reply = await house.admin('POST', '/services/calc/replace', { config: { precision: 9, url: 'x' } })
    const both = await Promise.all([
      house.admin('POST', '/services/calc/replace', { config: { precision: 10, url: 'x' } }),
      house.admin('POST', '/services/calc/replace', { config: { precision: 11, url: 'x' } })
    ])
    probing = false
    await probe
    t.match(reply, { status: 200, body: { replaced: true, plugin: 'calc', fiber_id: Number } })
    const fiberIds = [before?.fiberId, ...[reply, ...both].map((each) => (each.body as { fiber_id: number }).fiber_id)]
    t.equal(new Set(fiberIds).size, 4)
    t.equal(calc.precision(), 11)
    t.equal(fiberOf(house, 'calc')?.generation, 4)
    t.ok(seen > 0)
    t.equal(gaps, 0)
    t.strictSame(started, ['user'])
    t.match(house.text(), 'config = { precision = 11, url = "x" } # kept')
  }
)

t.test('H10 H11 H12 a replacement that cannot be is refused, and the old provider is untouched', async (t) => {
  const house = await startProgram(t, calcEntry, { calc: calcPlugin() })
  const before = { fiber: fiberOf(house, 'calc'), text: house.text() }
  for (const body of [{}, 'x', [1], { config: 5 }]) {
    t.match(
      await house.admin('POST', '/services/calc/replace', JSON.stringify(body), { 'content-type': 'application/json' }),
      {
        status: 400,
        body: { replaced: false, error: /^body must be \{"config": <value>\}/ }
      }
    )
  }
  t.match(await house.admin('POST', '/services/nope/replace', { config: {} }), {
    status: 409,
    body: { replaced: false, service: 'nope', reason: /no journaled entry for plugin 'nope'/ }
  })
  t.match(await house.admin('POST', '/services/calc/replace', { config: { precision: 2 } }), {
    status: 409,
    body: { replaced: false, service: 'calc', reason: /missing url/, issues: [{ path: ['calc', 'url'] }] }
  })
  t.match(await house.admin('POST', '/services/calc/replace', { config: { precision: 13, url: 'x' } }), {
    status: 409,
    body: { replaced: false, service: 'calc', reason: 'thirteen is refused' }
  })
  t.match(fiberOf(house, 'calc'), { ...before.fiber })
  t.equal(house.text(), before.text)
})

/** Provides a service with a call that takes until `open`, or until its time is over. */
function slowPlugin(events: string[]) {
  let open = () => {}
  const plugin = definePlugin({
    name: 'slow',
    provides: ['slow_service'],
    config: schemaOf<{ value: number }>({ type: 'object', properties: { value: { type: 'integer' } } }),
    apply(ctx, { value }) {
      ctx.effect(() => () => events.push(`undo ${value}`))
      ctx.signal.addEventListener('abort', () => events.push(`abort ${value}`))
      ctx.provide('slow_service', {
        now: () => value,
        later: async () => {
          await new Promise<void>((resolve) => {
            open = resolve
            ctx.signal.addEventListener('abort', () => resolve())
          })
          return value
        }
      })
    }
  })
  return { plugin, open: () => open() }
}

const slowEntry = '\n[[entry]]\nid = "slow"\nplugin = "slow"\nconfig = { value = 1 }\n'

t.test('H13 a call in flight ends on the provider it began on, which is undone after it', async (t) => {
  const events: string[] = []
  const { plugin, open } = slowPlugin(events)
  const house = await startProgram(t, slowEntry, { slow: plugin })
  const slow = house.services('slow_service')
  const call = slow.later()
  t.match(await house.admin('POST', '/services/slow/replace', { config: { value: 2 } }), { status: 200 })
  t.equal(slow.now(), 2)
  t.strictSame(events, [])
  t.equal(fiberOf(house, 'slow')?.draining, 1)
  open()
  t.equal(await call, 1)
  await until(() => events.length > 0)
  t.strictSame(events, ['undo 1'])
})

t.test('H15 a replacement answers at once; what is in flight has the drain time to end', async (t) => {
  const events: string[] = []
  const { plugin } = slowPlugin(events)
  const house = await startProgram(t, `${slowEntry}\n[kernel]\ndrain_timeout_ms = 50\n`, { slow: plugin })
  const slow = house.services('slow_service')
  const call = slow.later()
  t.match(await house.admin('POST', '/services/slow/replace', { config: { value: 2 } }), { status: 200 })
  t.strictSame(events, [], 'nothing has been waited for')
  t.equal(await call, 1)
  await until(() => events.includes('undo 1'))
  t.strictSame(events, ['abort 1', 'undo 1'])
  t.equal(slow.now(), 2)
})

t.test('H17 H18 H23 H24 H55 entries are listed, and patched field by field', async (t) => {
  const applied: number[] = []
  const house = await startProgram(t, `${calcEntry}${entry('grp:calc')}`, {
    calc: calcPlugin(applied),
    plain: plainPlugin
  })
  const list = await house.admin('GET', '/entries')
  t.match(list, { status: 200, body: { pending: [], path: house.file, dependency_cycles: [] } })
  t.match((list.body as { current: unknown[] }).current[5], {
    id: 'calc',
    plugin: 'calc',
    config: { precision: 6, url: 'x' },
    disabled: false,
    isolate: null,
    intercept: {}
  })
  const patched = await house.admin('PATCH', '/entries/calc', { config: { precision: 2, url: 'x' } })
  t.strictSame(patched.body, {
    applied: [{ id: 'calc', action: 'update-config', ok: true, verified: true }],
    patched: true,
    entry: {
      id: 'calc',
      plugin: 'calc',
      config: { precision: 2, url: 'x' },
      disabled: false,
      isolate: null,
      intercept: {}
    }
  })
  t.strictSame(applied, [6, 2])
  const text = house.text()
  t.match(await house.admin('PATCH', '/entries/calc', {}), { status: 200, body: { applied: [], patched: true } })
  t.equal(house.text(), text)
  for (const path of ['grp:calc', 'grp%3Acalc']) {
    t.match(await house.admin('PATCH', `/entries/${path}`, {}), { status: 200, body: { entry: { id: 'grp:calc' } } })
  }
  writeFileSync(house.file, text.replace('precision = 2', 'precision = 4'))
  t.match((await house.admin('GET', '/entries')).body, { pending: [{ id: 'calc', action: 'UpdateConfig' }] })
})

t.test('H19 H20 H21 H22 put adds an entry, replaces it whole, and changes nothing for an equal one', async (t) => {
  const house = await startProgram(t, '', { plain: plainPlugin })
  for (const body of [{ id: ' ', plugin: 'plain' }, { id: 'x', plugin: '' }, { plugin: 'plain' }]) {
    t.match(await house.admin('PUT', '/entries', body), {
      status: 400,
      body: { error: 'entry id and plugin must be non-empty' }
    })
  }
  const whole = { id: 'new', plugin: 'plain', config: { a: [1, { b: 'c' }] }, isolate: { calc_service: true } }
  t.strictSame((await house.admin('PUT', '/entries', whole)).body, {
    applied: [{ id: 'new', action: 'begin', ok: true, verified: true }]
  })
  t.strictSame((await house.admin('PUT', '/entries', whole)).body, { applied: [] })
  await house.admin('PUT', '/entries', { id: 'new', plugin: 'plain', config: { a: 1 } })
  t.same(house.host.program.entries.at(-1), { id: 'new', plugin: 'plain', config: { a: 1 }, disabled: false })
  t.match(await house.admin('PUT', '/entries', { id: 'odd', plugin: 'nope' }), {
    status: 422,
    body: { applied: [], error: "no factory registered for plugin 'nope'" }
  })
  t.strictSame(ids(house), ['new'])
})

t.test(
  'H25 H26 H27 H28 a bad patch answers 422 with issues, leaves nothing behind, and the next good one passes',
  async (t) => {
    const house = await startProgram(t, calcEntry, { calc: calcPlugin() })
    const text = house.text()
    t.strictSame(await house.admin('PATCH', '/entries/nope', {}).then(({ status, body }) => ({ status, body })), {
      status: 404,
      body: { patched: false, error: 'no such entry', code: 'NOT_FOUND' }
    })
    const bad = await house.admin('PATCH', '/entries/calc', { config: { precision: 2 } })
    t.equal(bad.status, 422)
    t.strictSame(bad.body, {
      applied: [],
      patched: false,
      reloaded: false,
      error: 'config pre-flight failed: invalid config: - missing url (at calc.url)',
      issues: [{ message: 'missing url', path: ['calc', 'url'] }]
    })
    const thrown = await house.admin('PATCH', '/entries/calc', { config: { precision: 13, url: 'x' } })
    t.equal(thrown.status, 422)
    t.strictSame(thrown.body, {
      applied: [],
      patched: false,
      reloaded: false,
      error: 'config pre-flight failed: thirteen is refused'
    })
    t.equal(house.text(), text)
    t.equal(house.services('calc_service').precision(), 6)
    const good = await house.admin('PATCH', '/entries/calc', { config: { precision: 3, url: 'x' } })
    t.equal(good.status, 200)
    t.notOk('issues' in (good.body as object))
    t.equal(house.services('calc_service').precision(), 3)
  }
)

t.test('H29 H30 H31 H32 H33 H34 a patch moves first, then changes the moved root; both or neither', async (t) => {
  const program = `${group('tools-group')}${calcEntry}${entry('calc:leaf')}${entry('other')}`
  const house = await startProgram(t, program, { calc: calcPlugin(), plain: plainPlugin })
  const before = { calc: fiberOf(house, 'calc')?.fiberId, leaf: fiberOf(house, 'calc:leaf')?.fiberId }
  const text = house.text()
  t.match(await house.admin('PATCH', '/entries/calc', { parent: 'tools-group', config: { precision: 2 } }), {
    status: 422,
    body: { patched: false, issues: [{ path: ['calc', 'url'] }] }
  })
  t.equal(house.text(), text, 'nothing moved')
  t.equal(fiberOf(house, 'calc')?.fiberId, before.calc)

  const moved = await house.admin('PATCH', '/entries/calc', {
    parent: 'tools-group',
    config: { precision: 2, url: 'x' }
  })
  t.match(moved, {
    status: 200,
    body: {
      patched: true,
      renamed: [
        ['calc', 'tools-group:calc'],
        ['calc:leaf', 'tools-group:calc:leaf']
      ],
      entry: { id: 'tools-group:calc', config: { precision: 2, url: 'x' } }
    }
  })
  t.equal(house.services('calc_service').precision(), 2)
  t.match(fiberOf(house, 'tools-group:calc'), { fiberId: before.calc, generation: 2 })
  t.match(fiberOf(house, 'tools-group:calc:leaf'), { fiberId: before.leaf, generation: 1 })

  t.match((await house.admin('PATCH', '/entries/other', { position: 0 })).body, { applied: [], renamed: [] })
  t.strictSame(ids(house).slice(-1), ['tools-group:calc:leaf'])
  t.match((await house.admin('PATCH', '/entries/tools-group:calc', { parent: null })).body, { entry: { id: 'calc' } })
  await house.admin('PUT', '/entries', { id: 'tools-group:calc', plugin: 'plain' })
  const taken = house.text()
  t.match(await house.admin('PATCH', '/entries/calc', { parent: 'tools-group' }), {
    status: 409,
    body: { patched: false, error: /already used/ }
  })
  t.equal(house.text(), taken)
})

t.test('H35 H36 delete takes the subtree, the deepest first; a second time it is not there', async (t) => {
  const house = await startProgram(t, `${group('g')}${entry('g:a')}${entry('g:a:b')}${entry('x')}`, {
    plain: plainPlugin
  })
  const reply = await house.admin('DELETE', '/entries/g')
  t.match(reply, { status: 200, body: { applied: [{ id: 'g:a:b' }, { id: 'g:a' }] } })
  t.strictSame(ids(house), ['x'])
  t.equal(fiberOf(house, 'g:a'), undefined)
  t.match(await house.admin('DELETE', '/entries/g'), { status: 404, body: { deleted: false, error: 'no such entry' } })
})

t.test(
  'H37 H38 toggle flips an entry; of a group it takes all below it along, and keeps their own flags',
  async (t) => {
    const program = `${group('g')}${entry('g:a')}${entry('g:b', 'disabled = true')}`
    const house = await startProgram(t, program, { plain: plainPlugin })
    t.strictSame((await house.admin('POST', '/entries/g/toggle')).body, {
      applied: [{ id: 'g:a', action: 'retire', ok: true, verified: true }],
      disabled: true
    })
    // Within a group that is off a change is kept, and starts nothing.
    t.match(await house.admin('PATCH', '/entries/g:a', { config: { x: 1 } }), { status: 200, body: { applied: [] } })
    t.strictSame((await house.admin('POST', '/entries/g/toggle')).body, {
      applied: [{ id: 'g:a', action: 'begin', ok: true, verified: true }],
      disabled: false
    })
    t.equal(house.host.program.entries.find((each) => each.id === 'g:b')?.disabled, true)
    t.match(await house.admin('POST', '/entries/nope/toggle'), { status: 404, body: { toggled: false } })
  }
)

t.test('H39 H40 H41 H44 H45 H46 H47 moves rename subtrees and restart nothing', async (t) => {
  const program = `${group('t')}${entry('t:one')}${entry('a')}${entry('a:b')}${entry('a:b:deep')}${entry('z')}`
  const house = await startProgram(t, program, { plain: plainPlugin })
  const fibers = new Map(house.kernel.fibers().map((fiber) => [fiber.entry, fiber.fiberId]))
  const reply = await house.admin('POST', '/entries/a/move', { parent: 't', position: 0 })
  t.strictSame(reply.body, {
    applied: [],
    moved: true,
    noop: false,
    renamed: [
      ['a', 't:a'],
      ['a:b', 't:a:b'],
      ['a:b:deep', 't:a:b:deep']
    ]
  })
  t.strictSame(ids(house), ['t', 't:a', 't:a:b', 't:a:b:deep', 't:one', 'z'])
  t.equal(fiberOf(house, 't:a:b')?.fiberId, fibers.get('a:b'))
  t.match((await house.admin('POST', '/entries/t:one/move', { parent: 't', position: 0 })).body, {
    noop: true,
    renamed: []
  })
  t.match((await house.admin('POST', '/entries/t:one/move', { parent: 't', position: 99 })).body, { noop: true })
  t.strictSame(ids(house), ['t', 't:a', 't:a:b', 't:a:b:deep', 't:one', 'z'])
  t.match((await house.admin('POST', '/entries/t:a/move', {})).body, {
    renamed: [
      ['t:a', 'a'],
      ['t:a:b', 'a:b'],
      ['t:a:b:deep', 'a:b:deep']
    ]
  })
  t.strictSame(ids(house), ['t', 't:one', 'z', 'a', 'a:b', 'a:b:deep'])

  const text = house.text()
  const refusals: readonly [string, unknown, number, string][] = [
    ['a', { parent: 'a' }, 409, "cannot move entry 'a' under itself"],
    ['a', { parent: 'a:b' }, 409, "cannot move entry 'a' under its own descendant 'a:b'"],
    ['a', { parent: 'nope' }, 409, "no such entry 'nope'"],
    ['nope', {}, 404, 'no such entry'],
    ...[-1, 1.5, '0', true].map(
      (position) => ['a', { position }, 400, '"position" must be a non-negative integer'] as const
    ),
    ...[5, [], {}].map((parent) => ['a', { parent }, 400, '"parent" must be a string or null'] as const)
  ].map((row) => row as [string, unknown, number, string])
  for (const [id, body, status, error] of refusals) {
    t.match(await house.admin('POST', `/entries/${id}/move`, body), { status, body: { error } })
  }
  t.equal(house.text(), text)
})

t.test('H42 entries that only point to their parent can make a move impossible, in words', async (t) => {
  const pointer = (parent: string) => entry('a:b', `position = { parent = "${parent}" }`)
  const shapes = [
    `${entry('g:a')}${entry('g:a:b')}${pointer('g:a')}`,
    `${pointer('g:a')}${entry('g:a')}${entry('g:a:b')}`,
    `${entry('g:a')}${entry('g:a:b')}${entry('g:a:b:c')}${pointer('g:a:b:c')}`
  ]
  for (const shape of shapes) {
    const house = await startProgram(t, group('g') + shape, { plain: plainPlugin })
    const text = house.text()
    const reply = await house.admin('POST', '/entries/g:a/move', {})
    t.match(reply, {
      status: 409,
      body: { error: /^cannot move entry 'g:a': entries '\S+' and '\S+' would both end up with id 'a:b'$/ }
    })
    t.equal(house.text(), text)
  }
})

t.test('H48 ids that follow each other in a move all keep their fibers', async (t) => {
  const house = await startProgram(t, `${entry('a:a')}${entry('a:a:a')}${entry('a:a:a:a')}`, { plain: plainPlugin })
  const fibers = ids(house).map((id) => fiberOf(house, id)?.fiberId)
  const reply = await house.admin('POST', '/entries/a:a/move', { parent: null })
  t.strictSame((reply.body as { renamed: unknown }).renamed, [
    ['a:a', 'a'],
    ['a:a:a', 'a:a'],
    ['a:a:a:a', 'a:a:a']
  ])
  t.strictSame(ids(house), ['a', 'a:a', 'a:a:a'])
  t.strictSame(
    ids(house).map((id) => fiberOf(house, id)?.fiberId),
    fibers
  )
  for (const id of ids(house)) t.match(fiberOf(house, id), { state: 'Active', generation: 1 })
})

t.test('an id may be any text; in a path it is percent-encoded, or raw where a path can hold it', async (t) => {
  const house = await startProgram(t, '', { plain: plainPlugin })
  const odd = ['a:b', 'a/b', 'a b', '漢字', 'ü?#', '100%', '%41', 'reload', '..', "it's", '"q"', 'a\\b', '\u{1F600}']
  for (const id of odd) t.equal((await house.admin('PUT', '/entries', { id, plugin: 'plain' })).status, 200, id)
  t.strictSame(ids(house), odd)
  const pathOf = (id: string) => `/entries/${encodeURIComponent(id)}`
  for (const id of odd) {
    const reply = await house.admin('PATCH', pathOf(id), { config: { id } })
    t.match(reply, { status: 200, body: { entry: { id, config: { id } } } })
  }
  for (const path of ['a:b', '漢字', 'a%3ab', '%61%3A%62', '%E6%BC%A2%E5%AD%97']) {
    t.equal((await house.admin('PATCH', `/entries/${path}`, {})).status, 200, path)
  }
  for (const path of ['a/b', 'A', '%2542', '']) {
    t.equal((await house.admin('PATCH', `/entries/${path}`, {})).status, 404, path)
  }
  for (const path of ['%00', '%zz', '%E6%BC']) {
    t.match((await house.admin('PATCH', `/entries/${path}`, {})).status, 400, path)
  }
  for (const id of ['a\u0000', 'two\nlines', 'x'.repeat(257), '\ud800']) {
    t.equal((await house.admin('PUT', '/entries', { id, plugin: 'plain' })).status, 422, JSON.stringify(id))
  }
  t.match((await house.admin('POST', '/entries/reload')).body, { applied: [] }, 'no entry takes POST itself')
  t.match((await house.admin('PATCH', '/entries/%72eload', {})).status, 200)
  t.match((await house.admin('POST', '/entries/reload/toggle')).body, { disabled: true })
  t.match(await house.admin('POST', '/entries/a%2Fb/move', { parent: 'a b' }), {
    status: 200,
    body: { renamed: [['a/b', 'a b:a/b']] }
  })
  for (const id of ids(house).filter((each) => each !== 'a b:a/b')) {
    t.equal((await house.admin('DELETE', pathOf(id))).status, 200, id)
  }
  t.strictSame(ids(house), [])
})

t.test('two toggles at once are one after the other', async (t) => {
  const house = await startProgram(t, calcEntry, { calc: calcPlugin() })
  const toggle = () => house.admin('POST', '/entries/calc/toggle').then(({ status, body }) => ({ status, body }))
  t.match(await Promise.all([toggle(), toggle()]), [
    { status: 200, body: { applied: [{ action: 'retire' }], disabled: true } },
    { status: 200, body: { applied: [{ action: 'begin' }], disabled: false } }
  ])
  t.equal(house.services('calc_service').precision(), 6)
})

t.test('included entries are listed with their file, and refuse changes with 409', async (t) => {
  const program = '\n[[entry]]\nid = "parts"\nplugin = "@include"\nconfig = { path = "parts.toml" }\n'
  const house = await startProgram(t, program, { plain: plainPlugin }, { 'parts.toml': entry('part') })
  const { current } = (await house.admin('GET', '/entries')).body as { current: Record<string, unknown>[] }
  t.match(current.at(-1), { id: 'part', source: house.file.replace('program.toml', 'parts.toml') })
  t.notOk('source' in (current.at(-2) ?? {}))
  const error = /^entry 'part' comes from \S+parts\.toml; edit it there, or let its include say writable = true$/
  const code = 'CONFLICT'
  const requests: [string, string, unknown, object][] = [
    ['PUT', '/entries', { ...current.at(-1), config: { a: 1 } }, { error, code }],
    ['PATCH', '/entries/part', { config: { a: 1 } }, { patched: false, error, code }],
    ['DELETE', '/entries/part', undefined, { deleted: false, error, code }],
    ['POST', '/entries/part/toggle', undefined, { toggled: false, error, code }],
    ['POST', '/entries/part/move', { parent: 'parts' }, { moved: false, error, code }],
    ['POST', '/services/part/replace', { config: { a: 1 } }, { replaced: false, service: 'part', reason: error }]
  ]
  for (const [method, path, body, wanted] of requests) {
    t.match(await house.admin(method, path, body), { status: 409, body: wanted })
  }
  await house.admin('PATCH', '/entries/parts', { config: { path: 'parts.toml', writable: true } })
  t.match(await house.admin('PUT', '/entries', { ...current.at(-1), config: { a: 1 } }), {
    status: 200,
    body: { applied: [{ id: 'part', action: 'update-config' }] }
  })
  t.match(readFileSync(house.file.replace('program.toml', 'parts.toml'), 'utf8'), 'config = { a = 1 }')
})

t.test('H49 H50 a move into a group that is off, or sees another realm, has its natural effect', async (t) => {
  const program = `${group('off', 'disabled = true')}${group('own', 'isolate = { calc_service = true }')}${calcEntry}
[[entry]]
id = "user"
plugin = "user"
${entry('still')}`
  const started: string[] = []
  const house = await startProgram(t, program, { calc: calcPlugin(), user: userPlugin(started), plain: plainPlugin })
  t.strictSame(started, ['user'])
  await house.admin('POST', '/entries/user/move', { parent: 'own' })
  t.equal(fiberOf(house, 'own:user')?.state, 'Pending', 'its realm has no provider')
  const still = fiberOf(house, 'still')?.fiberId
  await house.admin('POST', '/entries/still/move', { parent: 'own' })
  t.match(fiberOf(house, 'own:still'), { fiberId: still, generation: 1 }, 'it needs nothing of that realm')
  await house.admin('POST', '/entries/own:still/move', { parent: 'off' })
  t.equal(fiberOf(house, 'off:still'), undefined)
  const back = await house.admin('POST', '/entries/off/toggle')
  t.match(back.body, { applied: [{ id: 'off:still', action: 'begin' }] })
})

t.test(
  'H52 H53 labelled undos are listed in order, anonymous ones only count; states and errors are shown',
  async (t) => {
    const program = `${entry('plain')}\n[[entry]]\nid = "waits"\nplugin = "user"\n\n[[entry]]\nid = "fails"\nplugin = "calc"\nconfig = { precision = 13, url = "x" }\n`
    const house = await startProgram(t, program, { plain: plainPlugin, user: userPlugin(), calc: calcPlugin() })
    const { fibers } = (await house.admin('GET', '/services')).body as { fibers: Record<string, unknown>[] }
    const find = (id: string) => fibers.find((fiber) => fiber['entry_id'] === id)
    t.match(find('plain'), { state: 'Active', error: null, disposed: false, pending_undo_count: 2 })
    t.match(find('waits'), {
      state: 'Inactive',
      waiting_for: ['calc_service'],
      error: /missing or inactive dependency/
    })
    t.match(find('fails'), { state: 'Failed', error: 'thirteen is refused', pending_undo_count: 0 })
    const undo = (await house.admin('GET', '/undo')).body as { fibers: Record<string, unknown>[] }
    t.match(
      undo.fibers.find((fiber) => fiber['fiber_id'] === find('plain')?.['fiber_id']),
      { disposed: false, pending_undo_labels: ['labelled'] }
    )
    // What has been active once and lost what it needs is pending.
    await house.admin('PATCH', '/entries/fails', { config: { precision: 6, url: 'x' } })
    await until(() => fiberOf(house, 'waits')?.state === 'Active')
    await house.admin('POST', '/entries/fails/toggle')
    const after = (await house.admin('GET', '/services')).body as { fibers: Record<string, unknown>[] }
    t.match(
      after.fibers.find((fiber) => fiber['entry_id'] === 'waits'),
      { state: 'Pending', waiting_for: ['calc_service'], disposed: false, pending_undo_count: 0 }
    )
  }
)

t.test('H54 many writers at once end with file, tree and listing in agreement', async (t) => {
  const house = await startProgram(t, calcEntry, { calc: calcPlugin(), plain: plainPlugin })
  const replies = await Promise.all(
    Array.from({ length: 24 }, (_, i) => {
      if (i % 3 === 0) return house.admin('PUT', '/entries', { id: `e${i}`, plugin: 'plain' })
      if (i % 3 === 1) return house.admin('PATCH', '/entries/calc', { config: { precision: 100 + i, url: 'x' } })
      return house.admin('POST', '/entries/calc/toggle')
    })
  )
  t.ok(replies.every((reply) => reply.status === 200))
  const { current, pending } = (await house.admin('GET', '/entries')).body as {
    current: { id: string }[]
    pending: unknown[]
  }
  t.strictSame(pending, [], 'the file says what runs')
  t.equal(current.filter(({ id }) => id.startsWith('e')).length, 8)
  for (const { id } of current.slice(6)) t.equal(fiberOf(house, id)?.state, 'Active')
})

t.test('H56 every change is on record: who, what and how it ended, never a value', async (t) => {
  const audit = entry('audit').replace('"plain"', '"audit"')
  const house = await startProgram(t, `${audit}${calcEntry}${entry('old')}${group('g')}`, {
    calc: calcPlugin(),
    plain: plainPlugin
  })
  const secret = 'sesame-open'
  const config = { api_key: secret, url: secret, nested: { token: secret } }
  const requests: [string, string, unknown?][] = [
    ['PUT', '/entries', { id: 'new', plugin: 'plain', config, disabled: false }],
    ['PATCH', '/entries/new', { config: { api_key: secret }, intercept: { calc_service: { password: secret } } }],
    ['POST', '/entries/new/toggle'],
    ['POST', '/entries/new/move', { parent: 'g', position: 0 }],
    ['DELETE', '/entries/old'],
    ['PATCH', '/entries/calc', { config: { precision: 2 } }],
    ['PATCH', '/entries/nope', { disabled: true }],
    ['POST', '/entries/reload'],
    ['POST', '/services/calc/replace', { config: { precision: 13, url: secret } }],
    ['POST', '/services/events_service/retire'],
    ['POST', '/services/events_service/provide'],
    ['POST', '/services/nope/provide']
  ]
  const unrecorded: [string, string, unknown?][] = [
    ['PUT', '/entries?dry_run=true', { id: 'dry', plugin: 'plain' }],
    ['POST', '/entries/calc/move', { position: -1 }],
    ['GET', '/entries']
  ]
  const ids: (string | undefined)[] = []
  for (const [method, path, body] of [...requests, ...unrecorded]) {
    const { headers } = await house.admin(method, path, body)
    ids.unshift(headers['x-request-id'])
  }
  const rows = await house.services('audit').list({ limit: 50, offset: 0 })
  t.strictSame(
    rows.toReversed().map(({ action, resource, status, details }) => {
      const { fields = [], applied, error } = details ?? {}
      return [action, `${resource.type} ${resource.id}`, fields.join(), status, error?.code ?? applied]
    }),
    [
      [
        'entry.put',
        'entry new',
        'id,plugin,config.api_key,config.url,config.nested,disabled',
        'done',
        { steps: ['begin new'] }
      ],
      ['entry.patch', 'entry new', 'config.api_key,intercept', 'done', { steps: ['update-config new'] }],
      ['entry.toggle', 'entry new', '', 'done', { steps: ['retire new'], disabled: true }],
      ['entry.move', 'entry new', 'parent,position', 'done', { steps: [], renamed: [['new', 'g:new']] }],
      ['entry.delete', 'entry old', '', 'done', { steps: ['retire old'] }],
      ['entry.patch', 'entry calc', 'config.precision', 'failed', 'PROGRAM_PREFLIGHT_FAILED'],
      ['entry.patch', 'entry nope', 'disabled', 'failed', 'PROGRAM_NO_ENTRY'],
      ['program.reload', 'program program', '', 'done', { steps: [] }],
      ['service.replace', 'service calc', 'config.precision,config.url', 'failed', 'PROVIDER_NOT_REPLACED'],
      ['service.retire', 'service events_service', '', 'done', {}],
      ['service.provide', 'service events_service', '', 'done', {}],
      ['service.provide', 'service nope', '', 'failed', 'SERVICE_NOT_DIRECT']
    ]
  )
  t.strictSame(
    rows.map(({ requestId }) => requestId),
    ids.slice(unrecorded.length)
  )
  for (const { actor, address } of rows) t.match({ actor, address }, { actor: 'admin_secret', address: /./ })
  t.notMatch(JSON.stringify(rows), secret)
})

t.test('the log itself is switched off on record; after that nothing is recorded', async (t) => {
  const house = await startProgram(t, entry('audit').replace('"plain"', '"audit"'), { plain: plainPlugin })
  t.match(await house.admin('POST', '/entries/audit/toggle'), { status: 200, body: { disabled: true } })
  t.match(await house.admin('PUT', '/entries', { id: 'x', plugin: 'plain' }), { status: 200 })
  t.match(await house.admin('POST', '/entries/audit/toggle'), { status: 200, body: { disabled: false } })
  t.match(await house.admin('POST', '/entries/x/toggle'), { status: 200 })
  const rows = await house.services('audit').list({ limit: 50, offset: 0 })
  t.match(rows, [
    { action: 'entry.toggle', resource: { id: 'x' }, status: 'done' },
    { action: 'entry.toggle', resource: { id: 'audit' }, status: 'done' }
  ])
  t.equal(rows.length, 2)
})

t.test('KERNEL-15 what an entry brings is gone, or there, when its change is answered', async (t) => {
  const hook = definePlugin({
    name: 'hook',
    apply(ctx) {
      ctx.contribute('http.routes', {
        method: 'GET',
        path: '/hook/ping',
        operationId: 'pingHook',
        summary: 'Answers',
        replies: { 200: {} },
        handle: () => ({ body: {} })
      })
      ctx.contribute('tools', {
        name: 'hook_tool',
        description: 'Does nothing',
        input: { type: 'object' },
        output: { type: 'object' },
        effect: 'none',
        idempotent: true,
        parallelSafe: true,
        anonymous: true,
        run: () => ({})
      })
    }
  })
  const more = ['tools', 'carmy'].map((name) => `[[entry]]\nid = "${name}"\nplugin = "${name}"\n`).join('')
  const house = await startProgram(t, `${more}[[entry]]\nid = "hook"\nplugin = "hook"\n`, { hook })
  const get = (path: string) => house.services('http').dispatch({ method: 'GET', path, headers: {} })
  const seen = async () => {
    const [ping, tools, agent] = [await get('/hook/ping'), await get('/agent/tools'), await get('/.well-known/agent')]
    const { tools_version: version } = agent.body as { tools_version: string }
    t.equal(tools.headers['etag'], `"${version}"`)
    return { status: ping.status, isListed: JSON.stringify(tools.body).includes('"hook_tool"'), version }
  }
  const on = await seen()
  t.match(on, { status: 200, isListed: true })
  await house.admin('PATCH', '/entries/hook', { disabled: true })
  const off = await seen()
  t.match(off, { status: 404, isListed: false })
  t.not(off.version, on.version)
  await house.admin('PATCH', '/entries/hook', { disabled: false })
  t.strictSame(await seen(), on)
})

t.test('a change that cannot be put on record first is not made', async (t) => {
  const deaf = definePlugin({
    name: 'deaf',
    provides: ['audit'],
    apply(ctx) {
      const refuse = () => Promise.reject(new CodedError('AUDIT_FAILED', 'the change was not made'))
      ctx.provide('audit', { record: () => {}, around: refuse, list: () => Promise.resolve([]) })
    }
  })
  const house = await startProgram(t, `${calcEntry}${entry('audit').replace('"plain"', '"deaf"')}`, {
    calc: calcPlugin(),
    deaf
  })
  const text = house.text()
  const beside = readdirSync(dirname(house.file))
  const requests: [string, string, unknown?][] = [
    ['PATCH', '/entries/calc', { config: { precision: 2, url: 'x' } }],
    ['DELETE', '/entries/calc'],
    ['POST', '/services/calc/replace', { config: { precision: 2, url: 'x' } }],
    ['POST', '/services/events_service/retire']
  ]
  for (const [method, path, body] of requests) {
    t.match(await house.admin(method, path, body), { status: 503, body: { error: /the change was not made/ } })
  }
  t.equal(house.text(), text)
  t.strictSame(readdirSync(dirname(house.file)), beside, 'nothing of it is left beside the file')
  t.equal(house.services('calc_service').precision(), 6)
})

t.test('a reload takes the file as it is; a broken one changes nothing and refuses edits', async (t) => {
  const house = await startProgram(t, calcEntry, { calc: calcPlugin(), plain: plainPlugin })
  const good = house.text()
  writeFileSync(house.file, `${good}${entry('more')}`)
  t.strictSame((await house.admin('POST', '/entries/reload')).body, {
    applied: [{ id: 'more', action: 'begin', ok: true, verified: true }]
  })
  writeFileSync(house.file, `${good}\nid = [`)
  t.match(await house.admin('POST', '/entries/reload'), {
    status: 422,
    body: { reloaded: false, error: /program\.toml/ }
  })
  t.match(await house.admin('GET', '/entries'), { status: 422, body: { listed: false } })
  t.match(await house.admin('PATCH', '/entries/calc', { config: { precision: 3, url: 'x' } }), { status: 422 })
  t.match(readFileSync(house.file, 'utf8'), /id = \[$/, 'the half-edited file is left alone')
  t.equal(fiberOf(house, 'more')?.state, 'Active', 'what ran runs on')
  writeFileSync(house.file, good)
  t.match((await house.admin('POST', '/entries/reload')).body, { applied: [{ id: 'more', action: 'retire' }] })
})

t.test('P18 a batch that fails is rolled back whole, naming the entry', async (t) => {
  const house = await startProgram(t, `${calcEntry}${entry('b')}`, { calc: calcPlugin(), plain: plainPlugin })
  const fiber = fiberOf(house, 'calc')
  const text = house.text()
  const next = text
    .replace('precision = 6', 'precision = 13')
    .replace('id = "b"\nplugin = "plain"', 'id = "c"\nplugin = "plain"')
  writeFileSync(house.file, next)
  t.match(await house.admin('POST', '/entries/reload'), {
    status: 422,
    body: {
      reloaded: false,
      error: /^calc \(update-config\): staged apply failed: thirteen is refused; batch rolled back$/
    }
  })
  t.equal(house.services('calc_service').precision(), 6)
  t.match(fiberOf(house, 'calc'), { fiberId: fiber?.fiberId, generation: fiber?.generation })
  t.equal(fiberOf(house, 'b')?.state, 'Active')
  t.equal(fiberOf(house, 'c'), undefined)
})

t.test('P04 a file that cannot be written answers 500, and what was applied is taken back', async (t) => {
  const house = await startProgram(t, calcEntry, { calc: calcPlugin() })
  // No room for the name of the file that would be written beside it: so also for root.
  const long = join(dirname(house.file), `${'p'.repeat(240)}.toml`)
  renameSync(house.file, long)
  symlinkSync(long, house.file)
  const text = house.text()
  const reply = await house.admin('PATCH', '/entries/calc', { config: { precision: 3, url: 'x' } })
  t.match(reply, { status: 500, body: { error: /could not be written/ } })
  t.equal(house.services('calc_service').precision(), 6)
  t.equal(house.text(), text)
})

t.test('writes may ask for the program they have read, and for the plan alone', async (t) => {
  const house = await startProgram(t, calcEntry, { calc: calcPlugin() })
  const { headers } = await house.admin('GET', '/entries')
  const etag = headers['etag'] as string
  t.match(etag, /^"[0-9a-f]{64}"$/)
  const text = house.text()
  const config = { precision: 2, url: 'x' }
  t.strictSame((await house.admin('PATCH', '/entries/calc?dry_run=true', { config })).body, {
    applied: [],
    dry_run: true,
    planned: [{ id: 'calc', action: 'UpdateConfig' }]
  })
  t.equal(house.text(), text)
  t.equal(house.services('calc_service').precision(), 6)
  t.equal((await house.admin('PATCH', '/entries/calc', { config }, { 'if-match': etag })).status, 200)
  t.match(await house.admin('PATCH', '/entries/calc', { config: {} }, { 'if-match': etag }), {
    status: 412,
    body: { code: 'PRECONDITION_FAILED' }
  })
  t.match(
    await house.admin('PATCH', '/entries/calc', { config: { precision: 2 }, parent: null }, { 'if-match': '*' }),
    { status: 422 }
  )
})

t.test('what a schema calls writeOnly is masked where it is shown, and the mask keeps it', async (t) => {
  const seen: string[] = []
  const keeper = definePlugin({
    name: 'keeper',
    config: schemaOf<{ api_key: string; note: string }>({
      type: 'object',
      properties: { api_key: { type: 'string', writeOnly: true }, note: { type: 'string', default: '' } }
    }),
    apply(_ctx, config) {
      seen.push(`${config.api_key} ${config.note}`)
    }
  })
  const house = await startProgram(
    t,
    '\n[[entry]]\nid = "keeper"\nplugin = "keeper"\nconfig = { api_key = "hush" }\n',
    { keeper }
  )
  const shown = JSON.stringify((await house.admin('GET', '/entries')).body)
  t.notMatch(shown, 'hush')
  const patched = await house.admin('PATCH', '/entries/keeper', { config: { api_key: '********', note: 'n' } })
  t.match(patched.body, { entry: { config: { api_key: '********', note: 'n' } } })
  t.strictSame(seen, ['hush ', 'hush n'])
  t.match(house.text(), 'api_key = "hush"')
})

t.test('whatever kind of rule calls a value writeOnly, it is masked', async (t) => {
  const secret = { type: 'string', writeOnly: true } as const
  const keeper = definePlugin({
    name: 'keeper',
    config: schemaOf<Record<string, unknown>>({
      type: 'object',
      $defs: { secret: { ...secret, $anchor: 'part' } },
      properties: {
        ref: { $ref: '#/$defs/secret' },
        anchored: { $ref: '#part' },
        either: { anyOf: [{ type: 'integer' }, secret] },
        both: { allOf: [{ type: 'string' }, { oneOf: [secret, { const: '' }] }] },
        pair: { type: 'array', prefixItems: [{ type: 'string' }, secret], minItems: 2, maxItems: 2 },
        rest: { type: 'object', additionalProperties: secret },
        plain: { type: 'string' }
      },
      patternProperties: { _key$: secret },
      if: { required: ['when'] },
      // oxlint-disable-next-line unicorn/no-thenable -- a keyword of JSON Schema
      then: { properties: { when: secret } }
    }),
    apply() {}
  })
  const config =
    '{ ref = "hush", anchored = "hush", either = "hush", both = "hush", pair = ["shown", "hush"], rest = { a = "hush" }, my_key = "hush", when = "hush", plain = "shown" }'
  const house = await startProgram(t, `\n[[entry]]\nid = "keeper"\nplugin = "keeper"\nconfig = ${config}\n`, { keeper })
  const mask = '********'
  const masked = {
    ref: mask,
    anchored: mask,
    either: mask,
    both: mask,
    pair: ['shown', mask],
    rest: { a: mask },
    my_key: mask,
    when: mask,
    plain: 'shown'
  }
  const listed = (await house.admin('GET', '/entries')).body as { current: { id: string; config: object }[] }
  t.same(listed.current.find(({ id }) => id === 'keeper')?.config, masked)
  t.match((await house.admin('PATCH', '/entries/keeper', { config: masked })).status, 200)
  t.match(house.text(), config)
})

t.test('what is laid over a service is masked as the config of its provider is', async (t) => {
  const keeper = definePlugin({
    name: 'keeper',
    provides: ['calc_service'],
    config: schemaOf<Record<string, unknown>>({
      type: 'object',
      properties: { api_key: { type: 'string', writeOnly: true }, note: { type: 'string' } }
    }),
    apply: (ctx) => ctx.provide('calc_service', { precision: () => 1 })
  })
  const intercept = '{ calc_service = { api_key = "hush", note = "shown" }, slow_service = { note = "hush" } }'
  const house = await startProgram(
    t,
    `\n[[entry]]\nid = "keeper"\nplugin = "keeper"\n[[entry]]\nid = "g"\nplugin = "@group"\nintercept = ${intercept}\n`,
    { keeper }
  )
  const mask = '********'
  const masked = { calc_service: { api_key: mask, note: 'shown' }, slow_service: { note: mask } }
  const listed = (await house.admin('GET', '/entries')).body as { current: { id: string; intercept: object }[] }
  t.same(listed.current.find(({ id }) => id === 'g')?.intercept, masked)
  t.match((await house.admin('PATCH', '/entries/g', { intercept: masked })).body, { entry: { intercept: masked } })
  t.match(house.text(), intercept)
})

t.test('of a plugin whose code does not load no value is shown: what of it is secret is not known', async (t) => {
  const config =
    '{ api_key = "hush", port = 7777, on = true, deep = { list = ["hush"] }, from_env = "${HEARTWOOD_NONE:-}" }'
  const house = await startProgram(
    t,
    `\n[[entry]]\nid = "broken"\nplugin = "./broken.mjs"\nconfig = ${config}\n`,
    {},
    {
      'broken.mjs': 'export default {'
    }
  )
  t.match(fiberOf(house, 'broken'), { state: 'Failed' })
  const mask = '********'
  const masked = { api_key: mask, port: mask, on: mask, deep: { list: [mask] }, from_env: '${HEARTWOOD_NONE:-}' }
  const listed = (await house.admin('GET', '/entries')).body as { current: { id: string; config: object }[] }
  t.same(listed.current.find(({ id }) => id === 'broken')?.config, masked)
  t.match((await house.admin('PATCH', '/entries/broken', { disabled: true, config: masked })).body, {
    patched: true,
    entry: { config: masked }
  })
  t.match(house.text(), config, 'written back, a mask stands for what is there')
})

t.test('P27 a plugin that ends itself stays off, also at the next start', async (t) => {
  let end: (() => Promise<void>) | undefined
  const quitter = definePlugin({
    name: 'quitter',
    apply(ctx) {
      end = () => ctx.dispose()
    }
  })
  const house = await startProgram(t, '\n[[entry]]\nid = "quitter"\nplugin = "quitter"\n', { quitter })
  await end?.()
  t.match(await house.admin('GET', '/entries'), { status: 200 })
  await house.admin('PATCH', '/entries/quitter', {})
  t.match(house.text(), /id = "quitter"\nplugin = "quitter"\ndisabled = true/)
  t.equal(fiberOf(house, 'quitter'), undefined)
  t.match((await house.admin('POST', '/entries/quitter/toggle')).body, {
    applied: [{ action: 'begin' }],
    disabled: false
  })
})
