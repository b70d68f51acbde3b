import { randomUUID } from 'node:crypto'
import { once } from 'node:events'
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { setImmediate as turn } from 'node:timers/promises'
import fc from 'fast-check'
import t from 'tap'
import { CodedError, createJsonLogger, definePlugin, schemaOf } from '../../kernel/index.ts'
import { cutText, cutValue } from '../../plugins/audit/bounds.ts'
import audit from '../../plugins/audit/index.ts'
import { createAudit, createState, type Options } from '../../plugins/audit/service.ts'
import type { AuditChange, AuditRow } from '../../plugins/audit/types.ts'
import auth from '../../plugins/auth/index.ts'
import type { Route } from '../../plugins/http/types.ts'
import { openEngine } from '../../plugins/store/lmdb.ts'
import { createStore } from '../../plugins/store/service.ts'
import type { Store } from '../../plugins/store/types.ts'
import workers from '../../plugins/workers/index.ts'
import { collect, type HouseEntry, type HouseOptions, startHouse } from '../harness.ts'
import { startFixture } from '../process.ts'

type T = Parameters<typeof startHouse>[0]

const adminSecret = 'adm'
const address = '127.0.0.1'

/** A change of the entry `id`, with whatever else it should say. */
const change = (id: string, more: Partial<AuditChange> = {}): AuditChange => ({
  actor: 'admin_secret',
  address,
  action: 'entry.patch',
  resource: { type: 'entry', id },
  ...more
})

/** What an administrator can do: writes the setting that stands for a program file, through the log. */
const settings = definePlugin({
  name: 'settings',
  inject: ['audit'],
  apply(ctx) {
    const world: string[] = []
    const patch: Route<{ id: string }, unknown, Record<string, unknown>> = {
      method: 'PATCH',
      path: '/api/admin/settings/{id}',
      operationId: 'patchSetting',
      summary: 'Change a setting',
      guard: 'admin',
      body: schemaOf({ type: 'object' }),
      replies: { 200: { type: 'array' } },
      errors: { AUDIT_FAILED: 503, SETTING_UNKNOWN: 404 },
      handle: async ({ params, body, principal, address, id }) => {
        const made = await ctx.services.audit.around(
          {
            actor: principal.id,
            address,
            requestId: id,
            action: 'setting.patch',
            resource: { type: 'setting', id: params.id },
            fields: Object.keys(body).map((key) => `config.${key}`)
          },
          () => {
            if (params.id === 'unknown') throw new CodedError('SETTING_UNKNOWN', 'no such setting')
            world.push(params.id)
            return { world: [...world], applied: [{ id: params.id, action: 'update-config', ok: true }] }
          },
          ({ applied }) => applied
        )
        return { body: made.world }
      }
    }
    ctx.contribute('http.routes', patch as Route)
  }
})

/** A real store that refuses commits when a test says so, and tells of each. */
class BreakableStore {
  /** `before`: nothing of a transaction stays. `after`: it is all there, but says that it failed. */
  fails: 'never' | 'before' | 'after' = 'never'
  /** Commits wait for it. */
  held: Promise<void> | undefined
  /** Whether each commit was asked to be on disk. */
  readonly durable: boolean[] = []
  readonly plugin = definePlugin({
    name: 'store',
    provides: ['store'],
    apply: async (ctx) => {
      const engine = await ctx.resource(
        'environment',
        0,
        () => openEngine(this.folder),
        (engine) => engine.close()
      )
      const store = createStore(engine)
      const atomically: Store['atomically'] = async (work, options) => {
        if (this.fails === 'before') throw new CodedError('STORE_FAILED', 'the disk is broken')
        await this.held
        const result = await store.atomically(work, options)
        this.durable.push(options?.durable === true)
        if (this.fails === 'after') throw new CodedError('STORE_FAILED', 'the disk did not say')
        return result
      }
      ctx.provide('store', { ...store, atomically })
    }
  })
  readonly folder: string

  constructor(folder: string) {
    this.folder = folder
  }
}

async function startAudit(t: T, config: object = {}, options: HouseOptions & { entries?: readonly HouseEntry[] } = {}) {
  const house = await startHouse(
    t,
    [
      ...(options.entries ?? []),
      { plugin: workers },
      { plugin: auth, config: { jwt_secret: 'a secret of the tests, long enough to sign', admin_secret: adminSecret } },
      { plugin: audit, config },
      { plugin: settings }
    ],
    options
  )
  const headers = { 'x-admin-secret': adminSecret }
  const http = house.services('http')
  const get = (query = '') => http.dispatch({ method: 'GET', path: `/api/admin/audit-log${query}`, headers })
  return {
    ...house,
    audit: house.services('audit'),
    store: house.services('store'),
    get,
    /** What the log shows, oldest first. */
    rows: async () => ((await get('?limit=200')).body as Record<string, unknown>[]).reverse(),
    record: (...changes: AuditChange[]) =>
      house.services('store').atomically((tx) => {
        for (const each of changes) house.services('audit').record(tx, each)
      }),
    patch: (id: string, body: object) =>
      http.dispatch({ method: 'PATCH', path: `/api/admin/settings/${id}`, headers, body }),
    health: async () => {
      const { body } = await http.dispatch({ method: 'GET', path: '/health/detailed' })
      return (body as { checks: Record<string, { status: string; error?: string }> }).checks['audit']
    }
  }
}

/** A house with a store that can be broken. */
async function startBreakable(t: T & { testdir(): string }, folder = t.testdir()) {
  const store = new BreakableStore(folder)
  const house = await startAudit(t, {}, { store: false, entries: [{ plugin: store.plugin }] })
  return { ...house, disk: store }
}

/** The service over a store, with a clock that stands still until it is set. */
function serviceOver(store: Store, options: Options, state = createState()) {
  const clock = { ms: Date.UTC(2026, 0, 1) }
  const lines: string[] = []
  const log = createJsonLogger({ write: (line) => lines.push(line) })
  const service = createAudit(options, { store, state, log, now: () => clock.ms, randomUUID })
  const record = (id: string) => store.atomically((tx) => service.record(tx, change(id)))
  return { service, clock, lines, record, ids: async () => idsOf(await service.list({ limit: 10_000, offset: 0 })) }
}

/** Lets `work` begin, and waits until a test lets it end. */
function gate() {
  let open = (): void => {}
  let enter = (): void => {}
  const opened = new Promise<void>((resolve) => (open = resolve))
  const entered = new Promise<void>((resolve) => (enter = resolve))
  const work = async () => {
    enter()
    await opened
    return 'made'
  }
  return { work, entered, open }
}

const idsOf = (rows: readonly AuditRow[]) => rows.map(({ resource }) => resource.id)
const column = (rows: readonly Record<string, unknown>[], name: string) => rows.map((row) => row[name])
const numbers = (count: number) => Array.from({ length: count }, (_, i) => String(i))

async function until(isTrue: () => boolean | Promise<boolean>): Promise<void> {
  while (!(await isTrue())) await turn()
}

t.test('a change reads as the contract prints it', async (t) => {
  const { record, get } = await startAudit(t)
  const before = Math.floor(Date.now() / 1000)
  await record(
    change('acme', {
      action: 'update_quota',
      resource: { type: 'tenant', id: 'acme' },
      requestId: 'r-1',
      fields: ['requests_per_day'],
      before: { requests_per_day: 50 },
      after: { requests_per_day: 100 }
    })
  )
  const { status, headers, body } = await get()
  t.equal(status, 200)
  t.equal(headers['cache-control'], 'no-store')
  const [row] = body as [Record<string, unknown>]
  t.strictSame(body, [
    {
      id: row['id'],
      action: 'update_quota',
      resource_type: 'tenant',
      resource_id: 'acme',
      details: {
        fields: ['requests_per_day'],
        before: { requests_per_day: 50 },
        after: { requests_per_day: 100 }
      },
      admin_ip: address,
      created_at: row['created_at'],
      actor: 'admin_secret',
      status: 'done',
      settled_at: row['created_at'],
      request_id: 'r-1'
    }
  ])
  t.match(row['id'], /^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$/)
  const at = row['created_at'] as number
  t.ok(Number.isInteger(at) && at >= before && at <= Date.now() / 1000)
})

t.test('the list is newest first, in pages that are brought into their bounds', async (t) => {
  const { record, get } = await startAudit(t)
  t.strictSame((await get()).body, [], 'nothing yet')
  await record(...numbers(205).map((id) => change(id)))
  const newest = numbers(205).reverse()
  const shown = async (query: string) => column((await get(query)).body as Record<string, unknown>[], 'resource_id')

  t.strictSame(await shown(''), newest.slice(0, 50))
  t.strictSame(await shown('?limit=1&offset=1'), newest.slice(1, 2))
  t.strictSame(await shown('?limit=120&offset=30'), newest.slice(30, 150), 'over more than one page of the store')
  t.strictSame(await shown('?limit=999'), newest.slice(0, 200))
  t.strictSame(await shown('?limit=0'), newest.slice(0, 1))
  t.strictSame(await shown('?limit=-5&offset=-5'), newest.slice(0, 1))
  t.strictSame(await shown('?offset=200'), newest.slice(200))
  t.strictSame(await shown('?offset=205'), [])
  t.strictSame(await shown('?offset=1e300'), [])
  for (const query of ['?limit=many', '?limit=1.5', '?offset=', '?limit=1&limit=2']) {
    t.match(await get(query), { status: 400, body: { code: 'INVALID_INPUT' } }, query)
  }
})

t.test('only administrators see the log', async (t) => {
  const { services } = await startAudit(t)
  for (const headers of [{}, { 'x-admin-secret': 'wrong' }] as Record<string, string>[]) {
    t.match(await services('http').dispatch({ method: 'GET', path: '/api/admin/audit-log', headers }), {
      status: 401,
      body: {
        error: 'Admin access requires X-Admin-Secret header or JWT with admin role',
        code: 'AUTHENTICATION_FAILED'
      }
    })
  }
})

t.test('a change in the store and its row are there together or not at all', async (t) => {
  const { store, audit, rows } = await startAudit(t)
  const rename = (name: string, fails: boolean) =>
    store.atomically((tx) => {
      tx.put('tenants', ['t'], name)
      audit.record(tx, change(name))
      if (fails) throw new CodedError('NAME_TAKEN', 'this name is taken')
    })

  await t.rejects(rename('a', true), { code: 'NAME_TAKEN' })
  t.strictSame(await rows(), [])
  await rename('b', false)
  t.strictSame(column(await rows(), 'resource_id'), ['b'])
  t.equal((await store.get('tenants', ['t']))?.value, 'b')
})

t.test('a transaction that runs again leaves one row', async (t) => {
  const { store, audit, rows } = await startAudit(t)
  let runs = 0
  const count = () =>
    store.atomically(async (tx) => {
      runs++
      const value = (await tx.get<number>('counts', ['n']))?.value ?? 0
      await turn()
      tx.put('counts', ['n'], value + 1)
      audit.record(tx, change(String(value + 1)))
    })
  await Promise.all(numbers(5).map(count))
  t.ok(runs > 5, 'some lost a race')
  t.strictSame(new Set(column(await rows(), 'resource_id')), new Set(['1', '2', '3', '4', '5']))
  t.equal((await rows()).length, 5)
})

t.test('a change elsewhere is on record before it is made, and its outcome after', async (t) => {
  const { audit, rows } = await startAudit(t)
  const { work, entered, open } = gate()
  const made = audit.around(change('calc', { fields: ['config.precision'] }), work, (result) => [result])
  await entered
  const [during] = await rows()
  t.match(during, { status: 'pending', settled_at: null, details: { fields: ['config.precision'] } })
  open()
  t.equal(await made, 'made')
  const [after] = await rows()
  t.match(after, { id: during?.['id'], status: 'done', settled_at: Number, created_at: during?.['created_at'] })
  t.strictSame(after?.['details'], { fields: ['config.precision'], applied: ['made'] })
})

t.test('a change that fails is on record with its error, and fails as it did', async (t) => {
  const { audit, rows, patch } = await startAudit(t)
  t.match(await patch('unknown', { precision: 2 }), { status: 404, body: { error: 'no such setting' } })
  const bug = new TypeError('cannot read sk-secret')
  await t.rejects(
    audit.around(change('x'), () => {
      throw bug
    }),
    bug
  )
  const wrapped = new CodedError('PROGRAM_APPLY_FAILED', 'staged apply failed: bad sk-secret; rolled back', {
    cause: new CodedError('PLUGIN_FAILED', 'it failed', { cause: new Error('bad sk-secret') })
  })
  await t.rejects(
    audit.around(change('y'), () => Promise.reject(wrapped)),
    wrapped
  )

  const found = await rows()
  t.strictSame(column(found, 'status'), ['failed', 'failed', 'failed'])
  t.strictSame(column(found, 'details'), [
    { fields: ['config.precision'], error: { code: 'SETTING_UNKNOWN', message: 'no such setting' } },
    { error: { code: 'INTERNAL_ERROR', message: 'an unexpected error; the log of the server has it' } },
    { error: { code: 'PROGRAM_APPLY_FAILED', message: 'staged apply failed: …; rolled back' } }
  ])
})

t.test('what a change applied is left out when it cannot be said, and the change stands', async (t) => {
  const { audit, rows, lines } = await startAudit(t)
  const made = await audit.around(
    change('x'),
    () => 'made',
    () => {
      throw new TypeError('no such member')
    }
  )
  t.equal(made, 'made')
  t.match(await rows(), [{ status: 'done', details: null }])
  t.match(
    lines.filter(({ level }) => level === 'error'),
    [{ error: { message: 'no such member' } }]
  )
})

t.test('a process that dies in the middle of a change leaves it unknown', async (t) => {
  const dataFolder = t.testdir()
  const child = startFixture(t, 'audit-process', [dataFolder])
  await once(child.stdout, 'data')
  child.kill('SIGKILL')
  await once(child, 'exit')

  const first = await startAudit(t, {}, { dataFolder })
  const found = await first.rows()
  t.strictSame(column(found, 'resource_id'), ['made', 'caught'])
  t.strictSame(column(found, 'status'), ['done', 'unknown'])
  t.ok((found[1]?.['settled_at'] as number) >= (found[1]?.['created_at'] as number))
  t.match(
    first.lines.filter(({ level }) => level === 'warn'),
    [{ audit_id: found[1]?.['id'] }]
  )
  await first.record(change('next'))
  await first.kernel.stop()

  const second = await startAudit(t, {}, { dataFolder })
  t.strictSame((await second.rows()).slice(0, 2), found, 'settled once')
  t.notOk(second.lines.some(({ level }) => level === 'warn'))
})

t.test('a change that runs while the log is swapped or retired is not taken for one that was cut short', async (t) => {
  const { kernel, audit, rows, store } = await startAudit(t)
  const swapped = gate()
  const one = audit.around(change('one'), swapped.work)
  await swapped.entered
  await kernel.update('audit', { max_rows: 50 })
  t.strictSame(column(await rows(), 'status'), ['pending'])
  swapped.open()
  await one
  t.strictSame(column(await rows(), 'status'), ['done'])

  const retired = gate()
  const two = audit.around(change('two'), retired.work)
  await retired.entered
  const gone = kernel.retire('audit')
  retired.open()
  t.equal(await two, 'made')
  await gone
  t.match((await collect(store.range('audit.rows', []))).at(-1)?.[1].value, { status: 'done' })
  t.strictSame(await collect(store.range('audit.pending', [])), [])
})

t.test('a change whose intent cannot be written is not made', async (t) => {
  for (const fails of ['before', 'after'] as const) {
    const { disk, patch, rows, lines, health, kernel } = await startBreakable(t)
    t.match(await patch('one', {}), { status: 200, body: ['one'] })
    await rows()
    t.strictSame(disk.durable, [true, true], 'intent and outcome are on disk')
    t.strictSame(await health(), { status: 'healthy' })
    disk.fails = fails

    t.match(await patch('two', {}), {
      status: 503,
      body: {
        error: 'Service unavailable: the change was not made, since it could not be written to the audit log first',
        code: 'INTERNAL_ERROR'
      }
    })

    t.match(
      lines.filter(({ level }) => level === 'error'),
      [{ action: 'setting.patch', error: { code: 'STORE_FAILED' } }]
    )
    t.strictSame(await health(), { status: 'unhealthy', error: 'AUDIT_BEHIND' })
    disk.fails = 'never'
    t.match(await patch('three', {}), { status: 200, body: ['one', 'three'] }, 'two was not made')
    await kernel.update('audit', { max_rows: 500 })
    await until(async () => (await health())?.status === 'healthy')
    const found = await rows()
    t.strictSame(column(found, 'resource_id'), ['one', 'two', 'three'])
    t.strictSame(column(found, 'status'), ['done', 'failed', 'done'])
    t.match(found[1], { details: { error: { code: 'AUDIT_FAILED' } } })
  }
})

t.test('a change whose outcome cannot be written stands, and the log is mended later', async (t) => {
  const { disk, audit, rows, lines, kernel, health } = await startBreakable(t)
  const made = await audit.around(change('made'), () => {
    disk.fails = 'before'
    return 'made'
  })
  t.equal(made, 'made')
  const refusal = new CodedError('SETTING_UNKNOWN', 'no such setting')
  disk.fails = 'never'
  await t.rejects(
    audit.around(change('refused'), () => {
      disk.fails = 'before'
      throw refusal
    }),
    refusal
  )
  t.strictSame(column(await rows(), 'status'), ['pending', 'pending'])
  t.match(
    lines.filter(({ level }) => level === 'error'),
    [
      { action: 'entry.patch', status: 'done', error: { code: 'STORE_FAILED' } },
      { action: 'entry.patch', status: 'failed', error: { code: 'STORE_FAILED' } }
    ]
  )
  t.strictSame(await health(), { status: 'unhealthy', error: 'AUDIT_BEHIND' })

  await kernel.update('audit', { max_rows: 500 })
  t.strictSame(column(await rows(), 'status'), ['pending', 'pending'], 'the store is still broken')
  disk.fails = 'never'
  await kernel.update('audit', { max_rows: 501 })
  await until(async () => (await health())?.status === 'healthy')
  t.strictSame(column(await rows(), 'status'), ['done', 'failed'])
  t.notOk(
    lines.some(({ message }) => /nobody knows/.test(message)),
    'they were never taken for cut short'
  )
})

t.test('a change is answered while its outcome is written, and the log and a stop wait for that', async (t) => {
  const folder = t.testdir()
  const { disk, audit, rows, kernel } = await startBreakable(t, folder)
  const hold = () => {
    let release = (): void => {}
    disk.held = new Promise((resolve) => (release = resolve))
    return release
  }
  let release = (): void => {}
  const holding = () => {
    release = hold()
    return 'made'
  }
  t.equal(await audit.around(change('made'), holding), 'made', 'while the disk takes its time')
  const shown = rows()
  t.equal(await Promise.race([shown, turn('nothing yet')]), 'nothing yet')
  // Another generation of the log waits for what the one before it is writing.
  const swapped = kernel.update('audit', { max_rows: 500 })
  disk.held = undefined
  release()
  t.strictSame(column(await shown, 'status'), ['done'])
  await swapped

  const failing = () => {
    release = hold()
    throw new CodedError('SETTING_UNKNOWN', 'no such setting')
  }
  await t.rejects(audit.around(change('refused'), failing), { code: 'SETTING_UNKNOWN' })
  let stopped = false
  const stopping = kernel.stop().then(() => (stopped = true))
  for (let turns = 0; turns < 50; turns++) await turn()
  t.notOk(stopped)
  disk.held = undefined
  release()
  await stopping

  const again = await startBreakable(t, folder)
  t.strictSame(column(await again.rows(), 'status'), ['done', 'failed'])
})

t.test('a process that dies before the outcome is written leaves it unknown', async (t) => {
  const disk = new BreakableStore(t.testdir())
  const { services } = await startHouse(t, [{ plugin: disk.plugin }], { store: false })
  const died = serviceOver(services('store'), { max_rows: 10 })
  let release = (): void => {}
  await died.service.around(change('made'), () => {
    disk.held = new Promise((resolve) => (release = resolve))
  })
  disk.held = undefined

  const { service, lines } = serviceOver(services('store'), { max_rows: 10 })
  await service.reconcile()
  t.match(await service.list({ limit: 1, offset: 0 }), [{ status: 'unknown', resource: { id: 'made' } }])
  t.match(lines, [/nobody knows how a change ended/])
  release()
  await died.service.close()
})

t.test('an outcome that waits is written when the server stops, or left to the next start', async (t) => {
  for (const recovers of [true, false]) {
    const folder = t.testdir()
    const { disk, audit, kernel } = await startBreakable(t, folder)
    await audit.around(change('made'), () => {
      disk.fails = 'before'
    })
    if (recovers) disk.fails = 'never'
    await kernel.stop()

    const { rows } = await startBreakable(t, folder)
    t.strictSame(column(await rows(), 'status'), [recovers ? 'done' : 'unknown'])
  }
})

t.test('a log that cannot be reconciled refuses changes instead of letting them through', async (t) => {
  const folder = t.testdir()
  const first = await startBreakable(t, folder)
  await first.audit.around(change('caught'), () => {
    first.disk.fails = 'before'
  })
  await first.kernel.stop()

  const store = new BreakableStore(folder)
  store.fails = 'before'
  const { patch, kernel, rows, health, lines } = await startAudit(
    t,
    {},
    { store: false, entries: [{ plugin: store.plugin }] }
  )
  t.equal(kernel.fibers().find(({ entry }) => entry === 'audit')?.state, 'Active')
  t.match(await health(), { status: 'unhealthy', error: 'AUDIT_BEHIND' })
  t.match(await patch('one', {}), { status: 503 })
  t.ok(lines.some(({ message }) => /could not be reconciled/.test(message)))
  store.fails = 'never'
  await kernel.update('audit', { max_rows: 500 })
  await until(async () => (await health())?.status === 'healthy')
  t.strictSame(column(await rows(), 'status'), ['unknown', 'failed'])
})

t.test('a log is reconciled as soon as the store allows it', async (t) => {
  const disk = new BreakableStore(t.testdir())
  const { services } = await startHouse(t, [{ plugin: disk.plugin }], { store: false })
  const died = serviceOver(services('store'), { max_rows: 10 })
  const { work, entered, open } = gate()
  const caught = died.service.around(change('caught'), work)
  await entered

  const { service, lines } = serviceOver(services('store'), { max_rows: 10 })
  const status = async () => (await service.list({ limit: 1, offset: 0 }))[0]?.status
  disk.fails = 'before'
  await t.rejects(service.reconcile(), { code: 'STORE_FAILED' })
  await service.tend()
  t.match(lines, [/could not be put in order/])
  t.equal(await status(), 'pending')
  await t.rejects(service.check(), { code: 'AUDIT_BEHIND' })
  disk.fails = 'never'
  await service.tend()
  t.equal(await status(), 'unknown')
  await service.check()

  open()
  await caught
  await died.service.close()
  t.equal(await status(), 'done', 'an outcome that comes after all is better than none')
})

t.test('no more outcomes wait than there is room for', async (t) => {
  const disk = new BreakableStore(t.testdir())
  const { services } = await startHouse(t, [{ plugin: disk.plugin }], { store: false })
  const { service, ids } = serviceOver(services('store'), { max_rows: 10_000 })
  disk.fails = 'before'
  for (const id of numbers(1_005)) await service.around(change(id), () => {}).catch(() => {})
  disk.fails = 'never'
  await service.tend()
  t.strictSame(await ids(), numbers(1_005).reverse().slice(0, 1_000), 'the newest of them')
})

t.test('the oldest rows go when there are too many', async (t) => {
  const dataFolder = t.testdir()
  const first = await startAudit(t, {}, { dataFolder })
  await first.record(...numbers(450).map((id) => change(id)))
  await first.kernel.stop()

  const { audit, kernel } = await startAudit(t, { max_rows: 120 }, { dataFolder })
  const ids = async () => idsOf(await audit.list({ limit: 500, offset: 0 }))
  await until(async () => (await ids()).length <= 120)
  t.strictSame(await ids(), numbers(450).reverse().slice(0, 120))
  await kernel.update('audit', { max_rows: 10 })
  await until(async () => (await ids()).length <= 10)
  t.strictSame(await ids(), numbers(450).reverse().slice(0, 10))
})

t.test('pruning works in small steps, and only when there is something to do', async (t) => {
  const { services } = await startHouse(t, [])
  const store = services('store')
  const steps: number[] = []
  let reads = 0
  const counting: Store = {
    ...store,
    range: (...args) => {
      reads++
      return store.range(...args)
    },
    atomically: (work, options) =>
      store.atomically(async (tx) => {
        let removed = 0
        const remove = (collection: string, key: readonly (string | number)[]) => {
          if (collection === 'audit.rows') removed++
          tx.remove(collection, key)
        }
        const result = await work({ ...tx, remove })
        if (removed > 0) steps.push(removed)
        return result
      }, options)
  }
  const { service, record, ids } = serviceOver(counting, { max_rows: 200 })
  await store.atomically((tx) => {
    for (const id of numbers(530)) service.record(tx, change(id))
  })
  let turns = 0
  const tending = service.tend()
  const ended = tending.then(() => true)
  while (!(await Promise.race([ended, turn(false)]))) turns++
  t.strictSame(steps, [100, 100, 100, 30])
  t.ok(turns >= 8, `others had their turn ${turns} times`)
  t.strictSame(await ids(), numbers(530).reverse().slice(0, 200))

  await record('a')
  await record('b')
  reads = 0
  await service.tend()
  t.equal(reads, 0, 'two more than the number is within the slack')
  await record('c')
  await service.tend()
  t.strictSame(steps.slice(4), [3])
  t.strictSame((await ids()).slice(0, 4), ['c', 'b', 'a', '529'])
})

t.test('two generations that prune at the same time remove no more than one would', async (t) => {
  const { services } = await startHouse(t, [])
  const store = services('store')
  const old = serviceOver(store, { max_rows: 50 })
  const next = serviceOver(store, { max_rows: 50 })
  await store.atomically((tx) => {
    for (const id of numbers(600)) old.service.record(tx, change(id))
  })
  const first = old.service.tend()
  await until(async () => (await old.ids()).length < 600)
  await Promise.all([first, next.service.tend()])
  t.strictSame(await next.ids(), numbers(600).reverse().slice(0, 50))
})

t.test('stopping ends a pruning that is under way', async (t) => {
  const { services } = await startHouse(t, [])
  const store = services('store')
  let closed: Promise<void> | undefined
  const closing: Store = {
    ...store,
    async atomically(work, options) {
      const result = await store.atomically(work, options)
      closed = service.close()
      return result
    }
  }
  const { service, ids } = serviceOver(closing, { max_rows: 1 })
  await store.atomically((tx) => {
    for (const id of numbers(500)) service.record(tx, change(id))
  })
  await service.tend()
  await closed
  t.equal((await ids()).length, 400, 'after the first step')
})

t.test('rows go when they are old', async (t) => {
  const { services } = await startHouse(t, [])
  const { service, clock, record, ids } = serviceOver(services('store'), { max_rows: 1_000, max_age_days: 30 })
  const dayMs = 86_400_000
  await service.around(change('old'), () => {})
  clock.ms += dayMs
  await record('young')
  clock.ms += 29 * dayMs
  await service.tend()
  t.strictSame(await ids(), ['young', 'old'], 'thirty days old, to the millisecond')
  clock.ms += 1
  await service.tend()
  t.strictSame(await ids(), ['young'])
})

t.test('rows stay in the order in which they were written when the clock goes back', async (t) => {
  const { services } = await startHouse(t, [])
  const store = services('store')
  const { clock, record, ids } = serviceOver(store, { max_rows: 100_000 })
  await record('1')
  clock.ms -= 3_600_000
  await record('2')
  t.strictSame(await ids(), ['2', '1'])

  const next = serviceOver(store, { max_rows: 100_000 })
  next.clock.ms -= 7_200_000
  await next.service.reconcile()
  await next.record('3')
  t.strictSame(await next.ids(), ['3', '2', '1'], 'also after a start')
  await store.atomically((tx) => {
    for (const id of numbers(5_000)) next.service.record(tx, change(id))
  })
  t.strictSame((await next.ids()).slice(0, 5_000), numbers(5_000).reverse(), 'many within a millisecond')
  t.equal((await next.service.list({ limit: 1, offset: 0 }))[0]?.atMs, next.clock.ms, 'the time is what the clock said')
})

t.test('texts and values of any size become rows of a bounded one', async (t) => {
  const { record, rows } = await startAudit(t)
  const huge = 'x'.repeat(1_000_000)
  const circular: Record<string, unknown> = { name: 'ring' }
  circular['self'] = circular
  await record(
    change(huge, {
      actor: huge,
      address: huge,
      action: huge,
      requestId: huge,
      fields: Array.from({ length: 1_000 }, () => huge),
      before: Array.from({ length: 100_000 }, () => ({ [huge]: huge })),
      after: circular
    })
  )
  const [row] = await rows()
  t.ok(JSON.stringify(row).length < 20_000)
  t.match(row, { resource_id: /^x{499}…$/, details: { fields: { length: 51 }, after: { name: 'ring', self: {} } } })
})

t.test('values are kept as JSON, as far as there is room', (t) => {
  const small = { a: [1, 'two', true, null, { b: 'c' }], ['__proto__']: 1 }
  t.strictSame(cutValue(small), small)
  t.strictSame(cutValue({ n: 12n, date: new Date(0), none: undefined, f: () => {}, nan: Number.NaN }), {
    n: '12',
    date: '1970-01-01T00:00:00.000Z',
    nan: null
  })
  t.equal(cutText('a👍b', 3), 'a…', 'no half of a character')
  t.equal(cutText('a👍b', 4), 'a👍b')
  fc.assert(
    fc.property(fc.jsonValue({ maxDepth: 12 }), (value) => {
      const text = JSON.stringify(value)
      const kept = JSON.stringify(cutValue(value))
      if (text.length <= 128) t.equal(kept, text)
      t.ok(kept.length < 13_000)
    }),
    { numRuns: 200 }
  )
  t.end()
})

t.test('a value that a change sets is nowhere in the data folder', async (t) => {
  const dataFolder = t.testdir()
  const { patch, rows, kernel } = await startAudit(t, {}, { dataFolder })
  const secret = `sk-${randomUUID()}`
  t.match(await patch('models:openai', { api_key: secret, base_url: `https://u:${secret}@x.test` }), { status: 200 })
  const found = await rows()
  t.match(found, [{ details: { fields: ['config.api_key', 'config.base_url'], applied: [{ ok: true }] } }])
  t.notMatch(JSON.stringify(found), secret)
  await kernel.stop()
  const file = readFileSync(join(dataFolder, 'data.mdb'), 'latin1')
  t.ok(file.includes('config.api_key'), 'the row is')
  t.notOk(file.includes(secret))
})

t.test('retiring the entry takes its route, its check and its service away', async (t) => {
  const { kernel, get, health, services, audit } = await startAudit(t)
  await kernel.retire('audit')
  t.match(await get(), { status: 404 })
  t.equal(await health(), undefined)
  t.equal(services('audit'), undefined)
  t.throws(() => audit.list({ limit: 1, offset: 0 }), { code: 'KERNEL_SERVICE_GONE' })
})
