import { createHash } from 'node:crypto'
import { once } from 'node:events'
import { readdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { setImmediate as turn } from 'node:timers/promises'
import t from 'tap'
import { CodedError, definePlugin, isCoded, silentLogger } from '../../kernel/index.ts'
import { openEngine } from '../../plugins/store/lmdb.ts'
import { createStore } from '../../plugins/store/service.ts'
import type { Store } from '../../plugins/store/types.ts'
import { createState, createTenants, type TenantsDependencies } from '../../plugins/tenants/service.ts'
import type { Reservation, Tenants } from '../../plugins/tenants/types.ts'
import { FaultyStore } from '../fakes/faulty-store.ts'
import { type Body, startTenants, type TenantHouse } from '../fixtures/tenant-house.ts'
import { collect } from '../harness.ts'
import { startFixture } from '../process.ts'

const actor = { actor: 'admin_secret', address: '127.0.0.1' }
const tokens = 15
const work = { agent: 'helper', ok: true, tokens }
const limitless = { requests_per_month: null, requests_per_day: null, tokens_per_month: null, agents: null }
const notFound = { status: 404, body: { error: 'Tenant not found', code: 'NOT_FOUND' } }

/** Tenants over a store, without a kernel; a test moves the time. */
function createOver(store: Store, startAt = '2027-01-15T12:00:00Z', more: Partial<TenantsDependencies> = {}) {
  const clock = { ms: Date.parse(startAt) }
  let made = 0
  const tenants = createTenants({
    store,
    audit: undefined,
    state: createState(),
    data: () => [],
    provisions: () => [],
    log: silentLogger,
    writeIntervalMs: 0,
    now: () => clock.ms,
    randomUUID: () => `id-${++made}`,
    randomBytes: (size) => Buffer.alloc(size, ++made),
    ...more
  })
  return { tenants, clock }
}

async function openStore(t: { testdir(): string; teardown(work: () => unknown): void }): Promise<Store> {
  const engine = await openEngine(t.testdir())
  t.teardown(() => engine.close())
  return createStore(engine)
}

/** An attempt to get a place; what is refused at once rejects. */
const attempt = async (tenants: Tenants, id: string, tokens = 1): Promise<Reservation> => tenants.reserve(id, tokens)

/** What became of many attempts: how many got a place, and how many which refusal. */
async function race(attempts: readonly Promise<Reservation>[]): Promise<Record<string, number>> {
  const counts: Record<string, number> = {}
  for (const outcome of await Promise.allSettled(attempts)) {
    const name = outcome.status === 'fulfilled' ? 'let in' : (outcome.reason as Error).message
    counts[name] = (counts[name] ?? 0) + 1
  }
  return counts
}

const times = <R>(count: number, work: (index: number) => R): R[] => Array.from({ length: count }, (_, at) => work(at))

async function used(house: TenantHouse, id: string): Promise<Body> {
  return (await house.admin('GET', `/tenants/${id}/usage`)).body as Body
}

t.test('tenants are made, listed and read (F.15)', async (t) => {
  const house = await startTenants(t)
  const { admin } = house
  const create = (name: unknown, tier: unknown) => admin('POST', '/tenants', { name, tier })

  t.test('D-01: a new tenant has what its tier has', async (t) => {
    const reply = await create('t1', 'free')
    t.match(reply, { status: 200, body: { id: /^.+$/, name: 't1', tier: 'free', created_at: 1_800_014_400 } })
    t.match(reply.body, { requests_per_month: 1_000, requests_per_day: 50, tokens_per_month: 100_000, agents: 1 })
    t.match((await create('d', 'dev')).body, { requests_per_month: 50_000, requests_per_day: 2_000, agents: 10 })
    t.match((await create('p', 'pro')).body, { requests_per_month: 500_000, requests_per_day: 20_000, agents: null })
    t.match((await create('e', 'enterprise')).body, limitless)
  })

  t.test('D-02: a tier that is none is refused', async (t) => {
    for (const tier of ['gold', '', 'free ', 'constructor']) {
      t.match(await create('x', tier), { status: 400, body: { error: /^Invalid tier/, code: 'INVALID_INPUT' } }, tier)
    }
  })

  t.test('D-03: a tier is known in any case, and by its other names', async (t) => {
    t.match(await create('x', 'PRO'), { status: 200, body: { tier: 'pro' } })
    t.match(await create('x', 'starter'), { status: 200, body: { tier: 'dev' } })
    t.match(await create('x', 'Growth'), { status: 200, body: { tier: 'pro' } })
  })

  t.test('D-04: one is read by its id, and an id that is none is not found (R11)', async (t) => {
    const made = await create('t4', 'free')
    t.strictSame((await admin('GET', `/tenants/${(made.body as Body)['id']}`)).body, made.body)
    for (const id of ['unknown', '7', 'x'.repeat(3_000), '%F0%9F%92%A9', '..', 'a%2Fb']) {
      t.match(await admin('GET', `/tenants/${id}`), notFound, id.slice(0, 20))
      t.match(await admin('GET', `/tenants/${id}/usage`), notFound)
      t.match(await admin('GET', `/tenants/${id}/usage/daily`), notFound)
      t.match(await admin('GET', `/tenants/${id}/api-keys`), notFound)
      t.match(await admin('POST', `/tenants/${id}/api-keys`, { name: 'k' }), notFound)
      t.match(await admin('DELETE', `/tenants/${id}/api-keys/k`), notFound)
      t.match(await admin('PUT', `/tenants/${id}/quota`, { tier: 'dev' }), notFound)
      t.match(await admin('DELETE', `/tenants/${id}`), notFound)
    }
  })

  t.test('a name is text that says something, at most 128 characters of it', async (t) => {
    for (const name of ['', ' \n', 'x'.repeat(129), 'a\u0000b', '\ud800']) {
      t.match(await create(name, 'free'), { status: 400, body: { code: 'INVALID_INPUT' } }, JSON.stringify(name))
    }
    t.match(await create(7, 'free'), { status: 400 })
    t.match(await admin('POST', '/tenants', {}), { status: 400 })
    t.match(await create('Ünïcödé 社 🏢', 'free'), { status: 200, body: { name: 'Ünïcödé 社 🏢' } })
  })

  t.test('the list is a plain array, oldest first', async (t) => {
    house.clock.ms += 60_000
    const last = (await create('the last', 'free')).body
    const list = (await admin('GET', '/tenants')).body as Body[]
    t.strictSame(list.at(-1), last)
    t.equal(new Set(list.map(({ id }) => id)).size, list.length)
  })

  t.test('nobody but an administrator is heard', async (t) => {
    const { key } = await house.client()
    for (const headers of [{}, { 'x-admin-secret': 'wrong' }, { authorization: `Bearer ${key}` }]) {
      t.match(await house.send('GET', '/api/admin/tenants', { headers }), { status: 401 })
      t.match(await house.send('POST', '/api/admin/provision-client', { headers, body: {} }), { status: 401 })
    }
  })
})

t.test('keys', async (t) => {
  const house = await startTenants(t)
  const { admin, clock, services } = house
  const { id } = await house.client()
  const path = `/tenants/${id}/api-keys`

  t.test('D-05: a key is shown once, with a warning, and never its hash', async (t) => {
    clock.ms += 1_000
    const reply = await admin('POST', path, { name: 'k' })
    const { api_key, raw_key, warning } = reply.body as { api_key: Body; raw_key: string; warning: string }
    t.equal(reply.headers['cache-control'], 'no-store')
    t.match(raw_key, /^ares_[0-9a-f]{64}$/)
    t.match(warning, /cannot be shown again/)
    t.match(api_key, { tenant_id: id, key_prefix: raw_key.slice(0, 13), name: 'k', is_active: true, expires_at: null })
    t.notOk('key_hash' in api_key)
    const hash = createHash('sha256').update(raw_key).digest('hex')
    t.notOk(JSON.stringify(reply.body).includes(hash))

    const listed = await admin('GET', path)
    t.match(listed.body, [{ name: 'first' }, { id: api_key['id'], is_active: true, last_used_at: null }], 'D-06')
    t.notOk(JSON.stringify(listed.body).includes(raw_key.slice(13)), 'D-06: without the key')
    t.match(await services('tenants').verifyKey(raw_key), { tenant: { id } })
  })

  t.test('K-09: a key is good until it expires, also one that was seen before', async (t) => {
    const { raw_key } = (await admin('POST', path, { name: 'short', expires_in_days: 2 })).body as { raw_key: string }
    t.ok(await services('tenants').verifyKey(raw_key))
    const before = clock.ms
    clock.ms += 2 * 86_400_000 - 1
    t.ok(await services('tenants').verifyKey(raw_key))
    clock.ms += 1
    t.equal(await services('tenants').verifyKey(raw_key), undefined)
    t.match(
      ((await admin('GET', path)).body as Body[]).find(({ name }) => name === 'short'),
      { is_active: false, expires_at: before / 1000 + 2 * 86_400 }
    )
    clock.ms = before
  })

  t.test('X-30: days to live are whole and from 1 to 3650', async (t) => {
    for (const expires_in_days of [0, -1, 3_651, 1.5, '7', 1e300]) {
      t.match(await admin('POST', path, { name: 'x', expires_in_days }), { status: 400 }, String(expires_in_days))
    }
    t.match(await admin('POST', path, { name: 'x', expires_in_days: 3_650 }), { status: 200 })
    t.match(await admin('POST', path, { name: 'x', expires_in_days: null }), { status: 200 })
  })

  t.test('a revoked key opens nothing from then on, and is gone', async (t) => {
    const { api_key, raw_key } = (await admin('POST', path, { name: 'gone' })).body as {
      api_key: Body
      raw_key: string
    }
    t.ok(await services('tenants').verifyKey(raw_key))
    const other = await house.client()
    t.match(await admin('DELETE', `/tenants/${other.id}/api-keys/${api_key['id']}`), { status: 404 }, 'TENANCY-01')
    t.ok(await services('tenants').verifyKey(raw_key), 'another tenant has no say')
    t.match(await admin('DELETE', `${path}/${api_key['id']}`), { status: 204, body: undefined })
    t.equal(await services('tenants').verifyKey(raw_key), undefined)
    t.match(await admin('DELETE', `${path}/${api_key['id']}`), {
      status: 404,
      body: { error: `API key '${api_key['id']}' not found for tenant '${id}'` }
    })
    t.match(await admin('DELETE', `${path}/${'x'.repeat(3_000)}`), { status: 404 })
  })

  t.test('the time of the last use is known to the minute, also after a restart', async (t) => {
    const client = await house.client()
    const list = async () => (await house.admin('GET', `/tenants/${client.id}/api-keys`)).body as Body[]
    await services('tenants').verifyKey(client.key)
    t.match(await list(), [{ last_used_at: clock.ms / 1000 }])
    clock.ms += 59_000
    await services('tenants').verifyKey(client.key)
    t.match(await list(), [{ last_used_at: clock.ms / 1000 - 59 }])
    clock.ms += 1_000
    await services('tenants').verifyKey(client.key)
    t.match(await list(), [{ last_used_at: clock.ms / 1000 }])
  })

  t.test('what is no key is found out without the store', async (t) => {
    const { tenants } = createOver({} as Store)
    for (const key of ['', 'ares_', 'ares_unknown', `ares_${'A'.repeat(64)}`, `ares_${'a'.repeat(65)}`, '\u0000']) {
      t.equal(tenants.verifyKey(key), undefined, key)
    }
  })

  t.test('a tenant has at most a hundred; those that expired make room', async (t) => {
    const client = await house.client()
    const create = (expires_in_days?: number) =>
      admin('POST', `/tenants/${client.id}/api-keys`, { name: 'k', expires_in_days })
    const replies = await Promise.all(times(120, (at) => create(at < 10 ? 1 : undefined)))
    t.equal(replies.filter(({ status }) => status === 200).length, 99)
    t.match(await create(), { status: 409, body: { code: 'CONFLICT' } })
    clock.ms += 86_400_000
    t.match(await create(), { status: 200 })
  })

  t.test('no key is on disk, in the log or in an answer but its own', async (t) => {
    const client = await house.client()
    await services('tenants').verifyKey(client.key)
    const secret = client.key.slice(13)
    t.notOk(house.lines.some((line) => JSON.stringify(line).includes(secret)))
    t.notOk(JSON.stringify((await admin('GET', '/audit-log')).body).includes(secret))
    await services('store').flushed()
    const folder = (t as unknown as { parent: { testdirName: string } }).parent.testdirName
    const files = readdirSync(folder).filter((name) => name.endsWith('.mdb'))
    t.ok(files.includes('data.mdb'))
    for (const name of files) t.notOk(readFileSync(join(folder, name)).includes(secret), name)
  })
})

t.test('a key that expired long ago is cleared away, without a word to say', async (t) => {
  const store = await openStore(t)
  const { tenants, clock } = createOver(store)
  const { id } = await tenants.create({ name: 'n', tier: 'free' }, actor)
  for (const expiresInDays of [1, 40, undefined]) await tenants.createKey(id, { name: 'k', expiresInDays })
  clock.ms += 31 * 86_400_000 - 1
  await tenants.tend()
  t.equal((await tenants.keys(id)).length, 3, 'for a month it is listed')
  clock.ms += 1
  await tenants.tend()
  t.equal((await tenants.keys(id)).length, 2)
  t.equal((await collect(store.range('tenants.hashes', []))).length, 2)
})

t.test('quotas and usage (F.15)', async (t) => {
  const house = await startTenants(t)
  const { admin, services, clock } = house

  t.test('D-08: a tier and limits of its own hold at once; what is left out is the tier', async (t) => {
    const { id } = await house.client('free')
    const put = (body: object) => admin('PUT', `/tenants/${id}/quota`, body)
    t.match(await put({ tier: 'dev' }), { status: 200, body: { id, tier: 'dev', requests_per_day: 2_000 } })
    t.match((await put({ tier: 'dev', requests_per_day: 7, tokens_per_month: 0 })).body, {
      requests_per_day: 7,
      tokens_per_month: 0,
      requests_per_month: 50_000
    })
    t.match((await put({ tier: 'dev', requests_per_month: 9, requests_per_day: null })).body, {
      requests_per_day: 2_000,
      tokens_per_month: 5_000_000,
      requests_per_month: 9
    })
    for (const bad of [
      {},
      { tier: 'gold' },
      { tier: 'dev', requests_per_day: -1 },
      { tier: 'dev', requests_per_month: 1.5 },
      { tier: 'dev', tokens_per_month: '5' },
      { tier: 'dev', requests_per_month: 2 ** 53 }
    ]) {
      t.match(await put(bad), { status: 400, body: { code: 'INVALID_INPUT' } }, JSON.stringify(bad))
    }
    t.match((await admin('GET', `/tenants/${id}`)).body, { requests_per_month: 9 }, 'as it was')
  })

  t.test('D-07, D-09: usage in numbers, and day by day', async (t) => {
    const { id } = await house.client()
    t.strictSame(await used(house, id), { monthly_requests: 0, monthly_tokens: 0, daily_requests: 0, daily_tokens: 0 })
    const start = clock.ms
    for (const days of [0, 1, 40, 60]) {
      clock.ms = start + days * 86_400_000
      for (const ok of [true, false]) {
        const reservation = await services('tenants').reserve(id, 3)
        await services('tenants').settle(reservation, { ...work, ok })
      }
    }
    t.match(await used(house, id), { monthly_requests: 2, monthly_tokens: 30, daily_requests: 2 })
    const daily = async (query = '') => (await admin('GET', `/tenants/${id}/usage/daily${query}`)).body as Body[]
    const today = Date.parse('2027-03-16T00:00:00Z') / 1000
    t.strictSame(await daily(), [
      { date: today - 20 * 86_400, requests: 2, tokens: 30 },
      { date: today, requests: 2, tokens: 30 }
    ])
    t.equal((await daily('?days=500')).length, 4)
    t.equal((await daily('?days=1')).length, 1)
    t.equal((await daily('?days=-5')).length, 1)
    t.equal((await daily('?days=60')).length, 3, 'today is one of the days')
    t.match(await admin('GET', `/tenants/${id}/usage/daily?days=x`), { status: 400 })
    t.strictSame(await services('tenants').runs(id), [{ agent: 'helper', runs: 8, failures: 4, lastRunAtMs: clock.ms }])
    clock.ms = start
  })
})

t.test('a client is provisioned whole or not at all (F.15)', async (t) => {
  const house = await startTenants(t)
  const { admin } = house
  const body = { name: 'Acme', tier: 'Dev', product_type: 'Support Desk', api_key_name: 'live' }

  t.test('D-10: tenant and key are there, and the key works', async (t) => {
    const reply = await admin('POST', '/provision-client', body)
    const made = reply.body as Record<string, string>
    t.equal(reply.status, 200)
    t.equal(reply.headers['cache-control'], 'no-store')
    t.match(made, { tenant_name: 'Acme', tier: 'dev', product_type: 'support desk', agents_created: [] })
    t.equal(made['api_key_prefix'], made['raw_api_key']?.slice(0, 13))
    t.match(await house.services('tenants').verifyKey(made['raw_api_key'] ?? ''), {
      keyId: made['api_key_id'],
      tenant: { id: made['tenant_id'], tier: 'dev' }
    })
  })

  t.test('D-11: what is refused leaves nothing', async (t) => {
    const before = (await admin('GET', '/tenants')).body
    for (const bad of [{ tier: 'gold' }, { name: ' ' }, { api_key_name: '' }, { product_type: '' }, { tier: 3 }]) {
      t.match(await admin('POST', '/provision-client', { ...body, ...bad }), { status: 400 }, JSON.stringify(bad))
    }
    t.match(await admin('POST', '/provision-client', { name: 'n', tier: 'dev' }), { status: 400 })
    t.strictSame((await admin('GET', '/tenants')).body, before)
  })
})

t.test(
  'D-35, D-36: every change of an administrator is in the audit log, in the transaction that makes it',
  async (t) => {
    const house = await startTenants(t)
    const { admin } = house
    const { id } = (await admin('POST', '/tenants', { name: 'n', tier: 'free' })).body as { id: string }
    await admin('PUT', `/tenants/${id}/quota`, { tier: 'dev', requests_per_day: 3 })
    const { api_key } = (await admin('POST', `/tenants/${id}/api-keys`, { name: 'k' })).body as { api_key: Body }
    await admin('DELETE', `/tenants/${id}/api-keys/${api_key['id']}`)
    const client = await house.client('pro', 'whole')
    await admin('DELETE', `/tenants/${client.id}`)
    await admin('PUT', `/tenants/${id}/quota`, { tier: 'gold' })

    const rows = (await admin('GET', '/audit-log')).body as Body[]
    t.match(rows, [
      { action: 'delete_tenant', resource_type: 'tenant', resource_id: client.id },
      { action: 'provision_client', resource_id: client.id, details: { after: { name: 'whole', tier: 'pro' } } },
      { action: 'revoke_api_key', resource_type: 'api_key', resource_id: api_key['id'] },
      {
        action: 'create_api_key',
        resource_id: api_key['id'],
        details: { after: { tenant: id, prefix: api_key['key_prefix'] } }
      },
      {
        action: 'update_quota',
        resource_id: id,
        details: { before: { tier: 'free' }, after: { tier: 'dev', requestsPerDay: 3 } }
      },
      { action: 'create_tenant', resource_id: id, details: { after: { name: 'n', tier: 'free' } } }
    ])
    t.equal(rows.length, 6, 'what was refused changed nothing')
    for (const row of rows) t.match(row, { actor: 'admin_secret', admin_ip: '127.0.0.1', status: 'done' })

    t.strictSame((await admin('GET', '/audit-log?limit=1&offset=1')).body, [rows[1]], 'D-36: the second newest')

    await house.kernel.retire('audit')
    t.match(await admin('POST', '/tenants', { name: 'unrecorded', tier: 'free' }), { status: 200 }, 'audit is a choice')
  }
)

t.test('the limit is exact', async (t) => {
  const store = await openStore(t)
  const make = async (own: object, state = createState()) => {
    const made = createOver(store, '2027-01-31T23:59:59.000Z', { randomUUID: () => `t-${++count}`, state })
    const { id } = await made.tenants.create({ name: 'n', tier: 'enterprise' }, actor)
    await made.tenants.setQuota(id, { tier: 'enterprise', own }, actor)
    return { ...made, id }
  }
  let count = 0

  t.test('QUOTA-01: of 2,000 at once on a limit of 200 a month exactly 200 are let in', async (t) => {
    const { tenants, id } = await make({ requestsPerMonth: 200 })
    t.strictSame(await race(times(2_000, () => attempt(tenants, id))), {
      'let in': 200,
      'Monthly request quota exceeded': 1_800
    })
  })

  t.test('QUOTA-01: the same for a day, and from two generations at once', async (t) => {
    const state = createState()
    const { tenants, id } = await make({ requestsPerDay: 200 }, state)
    const next = createOver(store, '2027-01-31T23:59:59.000Z', { state }).tenants
    t.strictSame(await race(times(1_000, (at) => attempt(at % 2 === 0 ? tenants : next, id))), {
      'let in': 200,
      'Daily rate limit exceeded': 800
    })
  })

  t.test('at the turn of a month each window gets its own, whatever is settled when', async (t) => {
    const { tenants, clock, id } = await make({ requestsPerMonth: 150, requestsPerDay: 100 })
    const early = await Promise.all(times(60, () => attempt(tenants, id)))
    const before = times(300, () => attempt(tenants, id))
    clock.ms += 1_000
    const after = times(300, () => attempt(tenants, id))
    const [first, second] = [await race(before), await race(after)]
    // Those that had to wait for a place are counted where they got one.
    t.equal((first['let in'] ?? 0) + (second['let in'] ?? 0), 100 + (first['let in'] === 140 ? 40 : 0))
    for (const reservation of early) await tenants.settle(reservation, work)
    t.match(await tenants.daily(id, 2), [
      { day: '2027-01-31', tokens: 60 * tokens },
      { day: '2027-02-01', requests: 100, tokens: 0 }
    ])
    clock.ms += 86_400_000
    t.strictSame(await race(times(300, () => attempt(tenants, id))), {
      'let in': 50,
      'Monthly request quota exceeded': 250
    })
    clock.ms -= 86_400_000
    t.strictSame(
      await race(times(10, () => attempt(tenants, id))),
      { 'Monthly request quota exceeded': 10 },
      'a clock that goes back finds what was counted there'
    )
  })

  for (const start of [101, 108, 113]) {
    t.test(
      `no window gives more than it has, wherever the clock jumps and whenever something is written (${start})`,
      async (t) => {
        const own = { requestsPerMonth: 90, requestsPerDay: 40 }
        const shared = createState()
        const first = await make(own, shared)
        const { id, clock } = first
        const second = createOver(store, undefined, { state: shared, now: () => clock.ms }).tenants
        const third = createOver(store, undefined, { now: () => clock.ms }).tenants
        const all: readonly Tenants[] = [first.tenants, second, third]
        const days = ['2027-01-30', '2027-01-31', '2027-02-01', '2027-02-02', '2027-02-03', '2027-02-04']
        const open: Reservation[] = []
        const taken: Reservation[] = []
        // A generator of its own, so that a failure can be seen again.
        let seed = start
        const dice = (sides: number): number => {
          seed = (seed * 1_103_515_245 + 12_345) % 2_147_483_648
          return Math.floor((seed / 2_147_483_648) * sides)
        }
        const pending: Promise<unknown>[] = []
        for (let step = 0; step < 3_000; step++) {
          const tenants = all[dice(3)] as Tenants
          const what = dice(20)
          if (what < 12) {
            const getting = attempt(tenants, id).then(
              (reservation) => void (open.push(reservation), taken.push(reservation)),
              () => {}
            )
            pending.push(getting)
          } else if (what < 16) {
            const reservation = open.splice(dice(open.length), 1)[0]
            if (reservation !== undefined) pending.push(tenants.settle(reservation, work))
          } else if (what === 16) {
            const reservation = open.splice(dice(open.length), 1)[0]
            if (reservation === undefined) continue
            taken.splice(taken.indexOf(reservation), 1)
            pending.push(tenants.release(reservation))
          } else if (what === 17) {
            clock.ms = Date.parse(`${days[dice(days.length)]}T12:00:00Z`)
          } else {
            await turn()
          }
        }
        await Promise.all(pending)
        const per = (window: 'day' | 'month') => {
          const counts = new Map<string, number>()
          for (const place of taken) counts.set(place[window], (counts.get(place[window]) ?? 0) + 1)
          return counts
        }
        for (const [day, count] of per('day')) t.ok(count <= 40, `${day}: ${count} of 40`)
        for (const [month, count] of per('month')) t.ok(count <= 90, `${month}: ${count} of 90`)
        for (const tenants of [third, second, first.tenants])
          await (tenants as ReturnType<typeof createOver>['tenants']).close()
        const { tenants: fresh, clock: freshClock } = createOver(store)
        freshClock.ms = Date.parse('2027-02-04T12:00:00Z')
        for (const { day, requests } of await fresh.daily(id, 90)) {
          t.equal(requests, per('day').get(day), `${day} is on record as it was`)
        }
        t.equal(
          (await fresh.standing(id))?.left.requestsInMonth,
          90 - (per('month').get('2027-02') ?? 0),
          'none is lost'
        )
      }
    )
  }

  t.test('QUOTA-02: months are those of the calendar, in UTC', async (t) => {
    const { tenants, clock, id } = await make({ requestsPerMonth: 10 })
    const at = async (time: string, attempts = 1) => {
      clock.ms = Date.parse(time)
      return race(times(attempts, () => attempt(tenants, id)))
    }
    const full = { 'Monthly request quota exceeded': 1 }
    t.strictSame(await at('2027-01-30T12:00:00Z', 5), { 'let in': 5 })
    t.strictSame(await at('2027-01-31T12:00:00Z', 5), { 'let in': 5 })
    t.strictSame(await at('2027-01-31T23:59:59Z'), full)
    t.strictSame(await at('2027-02-01T00:00:00Z'), { 'let in': 1 })
    t.strictSame(await at('2027-03-01T12:00:00Z', 10), { 'let in': 10 })
    t.strictSame(await at('2027-03-31T12:00:00Z'), full)
    t.strictSame(await at('2028-02-29T23:59:59.999Z', 10), { 'let in': 10 })
    t.strictSame(await at('2028-02-29T12:00:00Z'), full)
    t.strictSame(await at('2028-03-01T00:00:00Z'), { 'let in': 1 })
  })

  t.test('the month is named first, then its tokens, then the day; each with when to come again', async (t) => {
    const { tenants, id } = await make({ requestsPerMonth: 1, requestsPerDay: 1, tokensPerMonth: 1 })
    await tenants.reserve(id, 1)
    const refusal = () =>
      attempt(tenants, id).then(
        () => undefined,
        (error: CodedError) => [error.code, error.detail?.['retryAfterSeconds']]
      )
    t.strictSame(await refusal(), ['TENANTS_MONTH_EXHAUSTED', 1])
    await tenants.setQuota(id, { tier: 'enterprise', own: { requestsPerDay: 1, tokensPerMonth: 1 } }, actor)
    t.strictSame(await refusal(), ['TENANTS_TOKENS_EXHAUSTED', 1])
    await tenants.setQuota(id, { tier: 'enterprise', own: { requestsPerDay: 1 } }, actor)
    t.strictSame(await refusal(), ['TENANTS_DAY_EXHAUSTED', 1])
    await tenants.setQuota(id, { tier: 'enterprise', own: {} }, actor)
    t.equal(await refusal(), undefined)
  })

  t.test('tokens are held while it is open how many it takes, then counted as they were', async (t) => {
    const { tenants, id } = await make({ tokensPerMonth: 100 })
    t.strictSame(await race(times(50, () => attempt(tenants, id, 10))), {
      'let in': 10,
      'Monthly token quota exceeded': 40
    })
    const again = await make({ tokensPerMonth: 100 })
    const reservation = await again.tenants.reserve(again.id, 90)
    await again.tenants.settle(reservation, { ...work, tokens: 5 })
    t.match(await again.tenants.daily(again.id, 1), [{ requests: 1, tokens: 5 }])
    await again.tenants.settle(await again.tenants.reserve(again.id, 1), { ...work, tokens: 500 })
    t.match(await again.tenants.daily(again.id, 1), [{ requests: 2, tokens: 505 }], 'what was taken is counted')
    await t.rejects(attempt(again.tenants, again.id), { code: 'TENANTS_TOKENS_EXHAUSTED' })
  })

  t.test('what is released was never there', async (t) => {
    const { tenants, id } = await make({ requestsPerDay: 3 })
    const places = await Promise.all(times(3, () => attempt(tenants, id, 7)))
    await t.rejects(attempt(tenants, id), { code: 'TENANTS_DAY_EXHAUSTED' })
    await Promise.all(places.map((place) => tenants.release(place)))
    t.strictSame(await tenants.daily(id, 1), [])
    t.strictSame(await tenants.runs(id), [])
    t.strictSame(await race(times(4, () => attempt(tenants, id))), { 'let in': 3, 'Daily rate limit exceeded': 1 })
  })

  t.test('the last thousand runs of an agent are kept, in order, in pages', async (t) => {
    const { tenants, id } = await make({})
    for (const count of [600, 405]) {
      const from = count === 600 ? 0 : 600
      await Promise.all(
        times(count, async (at) => {
          const run = {
            id: `r${from + at}`,
            inputTokens: 1,
            outputTokens: 2,
            startedAtMs: 3,
            finishedAtMs: 4,
            error: null
          }
          await tenants.settle(await attempt(tenants, id), { ...work, run })
        })
      )
    }
    t.match(await tenants.runs(id), [{ runs: 1_005 }])
    const newest = await tenants.runsOf(id, 'helper', { offset: 0, limit: 2 })
    t.match(newest, { runs: [{ id: 'r1004' }, { id: 'r1003' }], total: 1_000 })
    const oldest = await tenants.runsOf(id, 'helper', { offset: 998, limit: 50 })
    t.match(oldest, { runs: [{ id: 'r6' }, { id: 'r5' }], total: 1_000 })
    t.strictSame((await tenants.runsOf(id, 'helper', { offset: 1_000, limit: 50 })).runs, [])
    t.strictSame(await tenants.runsOf(id, 'other', { offset: 0, limit: 50 }), { runs: [], total: 0 })
  })

  t.test('one tenant takes nothing from another', async (t) => {
    const all = await Promise.all(times(20, () => make({ requestsPerDay: 5 })))
    const outcomes = await Promise.all(all.map(({ id }) => race(times(10, () => attempt(all[0]!.tenants, id)))))
    for (const outcome of outcomes) t.strictSame(outcome, { 'let in': 5, 'Daily rate limit exceeded': 5 })
  })

  t.test('a tenant that is not there has nothing', async (t) => {
    const { tenants } = await make({})
    await t.rejects(attempt(tenants, 'nobody'), { code: 'TENANTS_UNKNOWN' })
  })
})

t.test('a server that stops in order reserves nothing ahead with its last write', async (t) => {
  const engine = await openEngine(t.testdir())
  t.teardown(() => engine.close())
  const store = createStore(engine)
  const { tenants } = createOver(store)
  const { id } = await tenants.create({ name: 'n', tier: 'free' }, actor)
  for (let calls = 0; calls < 5; calls += 1) await attempt(tenants, id)
  await tenants.close()
  t.match(await createOver(store).tenants.standing(id), { left: { requestsInDay: 45, requestsInMonth: 995 } })
})

t.test('a restart in the middle lets nobody in twice', async (t) => {
  const folder = t.testdir()
  const first = await openEngine(folder)
  const before = createOver(createStore(first))
  const { id } = await before.tenants.create({ name: 'n', tier: 'free' }, actor)
  const places = await Promise.all(times(20, () => attempt(before.tenants, id, 2)))
  await Promise.all(places.slice(0, 10).map((place) => before.tenants.settle(place, work)))
  await before.tenants.close()
  await first.close()

  const second = await openEngine(folder)
  const after = createOver(createStore(second))
  t.match(await after.tenants.daily(id, 1), [{ requests: 20, tokens: 10 * tokens }])
  t.match(await after.tenants.standing(id), { left: { requestsInDay: 30, requestsInMonth: 980 } }, 'none is lost')
  await after.tenants.settle(places[15]!, work)
  t.match(await after.tenants.runs(id), [{ runs: 11 }], 'who lived through it is settled by the next')
  await Promise.all(times(10, () => attempt(after.tenants, id)))
  await after.tenants.settle(places[16]!, work)
  // It ends without a word, as by kill -9.
  await second.close()

  const third = await openEngine(folder)
  t.teardown(() => third.close())
  const { tenants } = createOver(createStore(third))
  const left = (await tenants.standing(id))?.left.requestsInDay ?? 0
  t.ok(left <= 20 && left >= 18, `a few places went with it: ${left} are left of 20`)
  t.strictSame(await race(times(100, () => attempt(tenants, id))), {
    'let in': left,
    'Daily rate limit exceeded': 100 - left
  })
})

t.test('with a write interval nobody waits for the disk, limits stay exact, and an end writes all', async (t) => {
  const folder = t.testdir()
  const open = async () => {
    const engine = await openEngine(folder)
    return { engine, ...createOver(createStore(engine), undefined, { writeIntervalMs: 1_000 }) }
  }
  const first = await open()
  const { id } = await first.tenants.create({ name: 'n', tier: 'enterprise' }, actor)
  await first.tenants.setQuota(id, { tier: 'enterprise', own: { requestsPerDay: 300 } }, actor)
  const call = async (tenants: Tenants): Promise<Reservation> => {
    const reservation = await tenants.reserve(id, 1)
    await tenants.settle(reservation, work)
    return reservation
  }
  t.strictSame(await race(times(100, () => call(first.tenants))), { 'let in': 100 })
  t.match(await first.tenants.standing(id), { inDay: { requests: 100, tokens: 100 * tokens } }, 'known at once')
  await first.tenants.close()
  await first.engine.close()

  const second = await open()
  t.match(await second.tenants.daily(id, 1), [{ requests: 100, tokens: 100 * tokens }])
  t.match(await second.tenants.runs(id), [{ runs: 100 }])
  t.strictSame(await race(times(50, () => call(second.tenants))), { 'let in': 50 })
  // It ends without a word: records may be lost, places are not given twice.
  await second.engine.close()

  const third = await open()
  t.teardown(() => third.engine.close())
  const counts = await race(times(1_000, () => call(third.tenants)))
  t.ok((counts['let in'] ?? 0) <= 150 && (counts['let in'] ?? 0) >= 150 - 150 / 16, `${counts['let in']} of 150`)
  await third.tenants.close()
})

t.test('kill -9: what was acknowledged is counted, and no more than the limit is let in', async (t) => {
  const limit = 400
  const folder = t.testdir()
  const begun = new Set<string>()
  const settled = new Set<string>()
  for (let round = 0; round < 4; round++) {
    const child = startFixture(t, 'tenants-process', [folder, String(limit), String(round)])
    const gone = once(child, 'exit')
    let seen = 0
    for await (const line of createInterface({ input: child.stdout })) {
      const [what, which] = line.split(' ') as [string, string]
      if (what === 'begun') begun.add(which)
      if (what === 'settled') settled.add(which)
      if (what === 'end' || (++seen === 150 && round < 3)) child.kill('SIGKILL')
    }
    await gone
  }
  const engine = await openEngine(folder)
  t.teardown(() => engine.close())
  const { tenants } = createOver(createStore(engine))
  const [day] = await tenants.daily('t', 1)
  const [runs] = await tenants.runs('t')
  t.ok(begun.size <= limit, `${begun.size} of ${limit} were begun`)
  t.match(await tenants.standing('t'), { left: { requestsInDay: 0 } }, 'the last process used up what was left')
  t.ok((day?.requests ?? 0) >= settled.size && (day?.requests ?? 0) <= limit)
  t.ok((runs?.runs ?? 0) >= settled.size, `${runs?.runs} runs are on record, ${settled.size} were acknowledged`)
  t.ok(begun.size >= limit - 3 * 128, 'only places at hand, and what was under way, went with a process')
})

t.test('a store that fails at the n-th write: nothing is acknowledged that is not kept', async (t) => {
  const during = async <R>(faulty: FaultyStore, commits: number, work: () => Promise<R>): Promise<R | undefined> => {
    faulty.commitsLeft = commits
    try {
      return await work()
    } catch (error) {
      if (!isCoded(error)) throw error
      return undefined
    } finally {
      faulty.commitsLeft = Number.POSITIVE_INFINITY
    }
  }
  const start = async () => {
    const faulty = new FaultyStore()
    const { tenants } = createOver(faulty.store)
    const { id } = await tenants.create({ name: 'n', tier: 'free' }, actor)
    return { faulty, tenants, id }
  }

  t.test('key creation', async (t) => {
    for (let n = 0; ; n++) {
      const { faulty, tenants, id } = await start()
      const made = await during(faulty, n, () => tenants.createKey(id, { name: 'k' }))
      t.equal((await tenants.keys(id)).length, made === undefined ? 0 : 1, `failing after ${n}`)
      const next = await tenants.createKey(id, { name: 'next' })
      t.ok(await tenants.verifyKey(next.secret), 'the next one works')
      if (made === undefined) continue
      t.ok(await tenants.verifyKey(made.secret))
      break
    }
  })

  t.test('a metered call', async (t) => {
    for (let n = 0; ; n++) {
      const { faulty, tenants, id } = await start()
      const done = await during(faulty, n, async () => {
        const reservation = await tenants.reserve(id, 1)
        await tenants.settle(reservation, work)
        return true
      })
      const [day] = await tenants.daily(id, 1)
      t.equal(day?.requests ?? 0, Math.min(n, 1), `failing after ${n}: counted once it was let in`)
      t.equal(day?.tokens ?? 0, n === 0 ? 0 : tokens, 'and written with what comes next')
      t.equal((await tenants.runs(id)).length, Math.min(n, 1))
      await tenants.settle(await tenants.reserve(id, 1), work)
      if (done === true) break
    }
  })

  t.test('reads say what could not be checked', async (t) => {
    const { faulty, tenants, id } = await start()
    const { secret } = await tenants.createKey(id, { name: 'k' })
    faulty.failsToRead = true
    await t.rejects(Promise.resolve(tenants.verifyKey(secret)), {
      code: 'TENANTS_VERIFY_FAILED',
      message: 'Failed to verify API key'
    })
    await t.rejects(Promise.resolve(tenants.standing(id)), { message: 'Failed to check usage' })
    await t.rejects(attempt(tenants, id), { code: 'TENANTS_USAGE_FAILED', message: 'Failed to check usage' })
    faulty.failsToRead = false
    t.ok(await tenants.verifyKey(secret))
  })
})

t.test('TENANCY-02: names that look like parts of each other have nothing in common', async (t) => {
  const house = await startTenants(t)
  const names = ['acme', 'acme:eu', 'acme/keys', 'ACME', 'acme\u00a0', 'acm', 'acme ']
  const clients = []
  for (const name of names) clients.push({ name, ...(await house.client('free', name)) })
  for (const [at, { id }] of clients.entries()) {
    for (let n = 0; n <= at; n++) {
      await house.services('tenants').settle(await house.services('tenants').reserve(id, 1), work)
    }
  }
  for (const [at, { id }] of clients.entries()) t.match(await used(house, id), { monthly_requests: at + 1 })

  t.match(await house.admin('DELETE', `/tenants/${clients[0]?.id}`), { status: 204 })
  t.match(await house.admin('GET', `/tenants/${clients[0]?.id}`), notFound)
  t.equal(await house.services('tenants').verifyKey(clients[0]?.key ?? ''), undefined)
  const left = (await house.admin('GET', '/tenants')).body as Body[]
  t.strictSame(new Set(left.map(({ name }) => name)), new Set(names.slice(1)))
  for (const [at, { id, key }] of clients.entries()) {
    if (at === 0) continue
    t.match(await used(house, id), { monthly_requests: at + 1 })
    t.match(await house.services('tenants').verifyKey(key), { tenant: { id } })
  }

  t.test('ids that are parts of each other neither', async (t) => {
    const store = await openStore(t)
    const ids = ['a', 'a:b', 'ab', 'a\u0000b', 'a/', 'A', '']
    const { tenants } = createOver(store, undefined, { randomUUID: () => ids[next++ % ids.length] ?? '' })
    let next = 0
    for (const id of ids) t.equal((await tenants.create({ name: 'n', tier: 'free' }, actor)).id, id)
    for (const id of ids) await tenants.settle(await tenants.reserve(id, 1), { ...work, agent: `b:${id}` })
    await tenants.purge('a')
    await tenants.remove('a/', actor)
    for (const id of ids) {
      const gone = id === 'a' || id === 'a/'
      t.equal((await tenants.runs(id)).length, gone ? 0 : 1, JSON.stringify(id))
      t.match((await tenants.daily(id, 1))[0]?.requests, id === 'a/' ? undefined : 1)
    }
  })
})

t.test('deleting the data of a tenant', async (t) => {
  /** Something that another plugin keeps for tenants. */
  const kept = new Map<string, number>()
  let removing = async (): Promise<void> => {}
  const keeper = definePlugin({
    name: 'keeper',
    apply(ctx) {
      ctx.contribute('tenants.data', {
        name: 'things',
        async remove(tenantId, most) {
          await removing()
          const present = kept.get(tenantId) ?? 0
          kept.set(tenantId, Math.max(0, present - most))
          return Math.min(present, most)
        }
      })
    }
  })
  const house = await startTenants(t, [{ plugin: keeper }])
  const { services, clock, admin } = house
  const tenants = services('tenants')
  const call = async (id: string, agent = 'helper') => tenants.settle(await tenants.reserve(id, 1), { ...work, agent })

  t.test('takes keys, records and what others keep; the limits go on to hold', async (t) => {
    const client = await house.client('free', 'n', { requests_per_month: 4, requests_per_day: 2 })
    const other = await house.client('free')
    await call(client.id)
    await call(client.id, 'second')
    await call(other.id)
    clock.ms += 86_400_000
    await call(client.id)
    kept.set(client.id, 1_000).set(other.id, 5)

    t.strictSame(await tenants.purge(client.id), { requests: 2, runs: 3, keys: 1 })
    t.equal(await tenants.verifyKey(client.key), undefined)
    t.strictSame(await tenants.keys(client.id), [])
    t.strictSame(await tenants.runs(client.id), [])
    t.match(await tenants.daily(client.id, 30), [{ requests: 1 }], 'today is still counted')
    t.equal(kept.get(client.id), 0)
    t.match(await admin('GET', `/tenants/${client.id}`), { status: 200 })
    await call(client.id)
    await t.rejects(attempt(tenants, client.id), { code: 'TENANTS_MONTH_EXHAUSTED' }, 'no trick to get more')

    t.equal(kept.get(other.id), 5)
    t.match(await tenants.runs(other.id), [{ runs: 1 }])
    t.match(await tenants.verifyKey(other.key), { tenant: { id: other.id } })
    t.match(await tenants.purge(client.id), { requests: 0, runs: 1, keys: 0 }, 'again is harmless')
    await t.rejects(tenants.purge('nobody'), { code: 'TENANTS_UNKNOWN' })
  })

  t.test('what was under way does not bring it back', async (t) => {
    const client = await house.client()
    const reservation = await tenants.reserve(client.id, 1)
    const store = services('store')
    const keep = () =>
      store.atomically(async (tx) => {
        await tenants.assertCurrent(tx, reservation)
        tx.put('test.kept', [client.id], true)
      })
    await keep()
    await tenants.purge(client.id)
    await t.rejects(keep(), { code: 'TENANTS_PURGED' })
    await tenants.settle(reservation, work)
    t.strictSame(await tenants.runs(client.id), [])
    t.match(await tenants.daily(client.id, 1), [{ requests: 1, tokens }], 'but it is counted')

    const last = await tenants.reserve(client.id, 1)
    t.match(await admin('DELETE', `/tenants/${client.id}`), { status: 204 })
    await tenants.settle(last, work)
    await tenants.release(last)
    await t.rejects(
      store.atomically((tx) => tenants.assertCurrent(tx, last)),
      { code: 'TENANTS_PURGED' }
    )
    for (const collection of ['tenants.tenants', 'tenants.months', 'tenants.days', 'tenants.runs', 'tenants.keys']) {
      t.strictSame(await collect(store.range(collection, [client.id])), [], collection)
    }
  })

  t.test('one that is cut short is taken up by the next start', async (t) => {
    const client = await house.client()
    await call(client.id)
    kept.set(client.id, 1_000)
    removing = () => Promise.reject(new CodedError('STORE_FAILED', 'the disk is broken'))
    await t.rejects(tenants.purge(client.id), { code: 'STORE_FAILED' })
    t.equal(await tenants.verifyKey(client.key), undefined, 'no key is good any more')
    t.equal(kept.get(client.id), 1_000)
    removing = async () => {}

    // It is rebuilt when the audit log goes.
    await house.kernel.retire('audit')
    const store = services('store')
    while ((await collect(store.range('tenants.purges', []))).length > 0) await turn()
    t.equal(kept.get(client.id), 0)
    t.strictSame(await tenants.runs(client.id), [])
  })
})

t.test('calls that are under way while the plugin is swapped are settled by the next generation', async (t) => {
  const house = await startTenants(t)
  const tenants = house.services('tenants')
  const { id } = await house.client('free')
  const places = await Promise.all(times(20, () => attempt(tenants, id)))
  const during = race(times(60, () => attempt(tenants, id)))
  // It sees the audit log come and go, and is rebuilt for it.
  await house.kernel.retire('audit')
  t.strictSame(await during, { 'let in': 30, 'Daily rate limit exceeded': 30 })
  await Promise.all(places.map((place) => tenants.settle(place, work)))
  t.match(await used(house, id), { daily_requests: 50, daily_tokens: 20 * tokens })
})

t.test('retiring the entry takes its routes and its service away', async (t) => {
  const house = await startTenants(t)
  await house.kernel.retire('tenants')
  t.match(await house.admin('GET', '/tenants'), { status: 404 })
  t.equal(house.services('tenants') as Tenants | undefined, undefined)
})
