import { mkdirSync } from 'node:fs'
import t, { type Test } from 'tap'
import { CodedError, definePlugin, schemaOf } from '../../kernel/index.ts'
import type { DispatchReply, Headers } from '../../plugins/http/types.ts'
import { openEngine } from '../../plugins/store/lmdb.ts'
import { createStore } from '../../plugins/store/service.ts'
import type { Store } from '../../plugins/store/types.ts'
import { tenantsAt } from '../../plugins/tenants/index.ts'
import { adminSecret, password, secret, startShipped } from '../fixtures/shipped-house.ts'

/** The real store, whose disk a test fills. */
function fillable() {
  const disk = { isFull: false, path: '/data/of/the/operator' }
  const plugin = definePlugin({
    name: 'store',
    provides: ['store'],
    config: schemaOf<{ readonly path: string }>({ type: 'object', properties: { path: { type: 'string' } } }),
    async apply(ctx, { path: folder }) {
      mkdirSync(folder)
      const engine = await ctx.resource(
        'environment',
        folder,
        () => openEngine(folder),
        (engine) => engine.close()
      )
      const real = createStore(engine)
      const store: Store = {
        ...real,
        async atomically(work, options) {
          // What only looks something up needs no room.
          if (!disk.isFull) return real.atomically(work, options)
          return real.atomically(async (tx) => {
            const refuse = () => {
              throw new CodedError(
                'STORE_FULL',
                `no room on the disk of ${disk.path}: free some, writes then work again`
              )
            }
            return work({ ...tx, get: tx.get.bind(tx), range: tx.range.bind(tx), put: refuse, remove: refuse })
          }, options)
        }
      }
      ctx.provide('store', store)
    }
  })
  return { disk, plugin }
}

type House = Awaited<ReturnType<typeof startShipped>>

/** Each operation that acknowledges something, by name. */
function operations({ ask, credentials, tenant, pair }: House) {
  const admin = credentials['admin'] as Headers
  const key = credentials['tenant-key'] as Headers
  const user = credentials['user'] as Headers
  let made = 0
  const account = (email: string) => ({ email, password, name: 'N' })
  return {
    register: () => ask('POST', '/api/auth/register', { body: account(`p${made++}@x.test`) }),
    login: () => ask('POST', '/api/auth/login', { body: account('ann@x.test') }),
    refresh: () => ask('POST', '/api/auth/refresh', { body: { refresh_token: pair['refresh_token'] } }),
    'make a tenant': () => ask('POST', '/api/admin/tenants', { headers: admin, body: { name: 'n', tier: 'free' } }),
    provision: () => {
      const body = { name: 'n', tier: 'free', product_type: 'p', api_key_name: 'k' }
      return ask('POST', '/api/admin/provision-client', { headers: admin, body })
    },
    'set a quota': () => {
      return ask('PUT', `/api/admin/tenants/${tenant}/quota`, { headers: admin, body: { tier: 'enterprise' } })
    },
    'make a key as administrator': () => {
      return ask('POST', `/api/admin/tenants/${tenant}/api-keys`, { headers: admin, body: { name: 'k' } })
    },
    'make a key as tenant': () => ask('POST', '/api/v1/api-keys', { headers: key, body: { name: 'k' } }),
    'a metered turn': () =>
      ask('POST', '/api/v1/chat', { headers: key, body: { message: 'hi', agent_type: 'writer' } }),
    'a turn': () => ask('POST', '/api/chat', { headers: user, body: { message: 'hi', agent_type: 'writer' } })
  }
}

/** An error of ours says nothing of the inside, and is in the log under its request id. */
function assertTold(t: Test, { lines }: House, reply: DispatchReply, name: string, inside: string): void {
  t.match(reply.body, { error: String, code: String }, name)
  t.notOk(JSON.stringify(reply.body).includes(inside), `${name}: nothing of the inside`)
  const id = reply.headers['x-request-id']
  t.ok(
    lines.some(({ level, requestId }) => level === 'error' && requestId === id),
    `${name}: in the log under ${id}`
  )
}

t.test(
  'STORAGE-03: on a full disk nothing is acknowledged, all else goes on, and so do writes once there is room',
  async (t) => {
    const { disk, plugin } = fillable()
    const house = await startShipped(t, { store: plugin })
    const { ask, credentials, tenant } = house
    const counts = async () => {
      const headers = credentials['admin'] as Headers
      const read = async (path: string) => (await ask('GET', `/api/admin/tenants${path}`, { headers })).body
      const [tenants, keys] = [await read(''), await read(`/${tenant}/api-keys`)] as [unknown[], unknown[]]
      return { tenants: tenants.length, keys: keys.length }
    }
    // So that the last use of the key has been noted.
    await ask('GET', '/api/v1/usage', { headers: credentials['tenant-key'] as Headers })
    const before = await counts()
    const all = operations(house)
    disk.isFull = true
    for (const [name, run] of Object.entries(all)) {
      const reply = await run()
      t.ok([500, 507].includes(reply.status), `${name} is answered ${reply.status}`)
      assertTold(t, house, reply, name, disk.path)
    }
    t.equal((await ask('GET', '/health')).status, 200)
    for (const path of ['/api/memory', '/api/conversations']) {
      t.ok((await ask('GET', path, { headers: credentials['user'] as Headers })).status < 300, `${path} is read`)
    }
    t.strictSame(await counts(), before, 'nothing was made')
    disk.isFull = false
    for (const [name, run] of Object.entries(all)) t.equal((await run()).status, 200, `${name}, with room again`)
  }
)

t.test('a clock that jumps forward and back lets nobody in more often than each day allows', async (t) => {
  const clock = { ms: Date.parse('2027-03-31T23:59:00Z') }
  const { ask, must, credentials } = await startShipped(t, { tenants: tenantsAt(() => clock.ms) })
  const admin = credentials['admin'] as Headers
  const client = { name: 'n', tier: 'enterprise', product_type: 'p', api_key_name: 'k' }
  const made = await must('POST', '/api/admin/provision-client', { headers: admin, body: client })
  const quota = { tier: 'enterprise', requests_per_day: 5, requests_per_month: 8 }
  await must('PUT', `/api/admin/tenants/${made['tenant_id']}/quota`, { headers: admin, body: quota })
  const headers = { authorization: `Bearer ${made['raw_api_key']}` }
  const letIn = async (count: number): Promise<number> => {
    const body = { message: 'hi', agent_type: 'writer' }
    const replies = await Promise.all(
      Array.from({ length: count }, () => ask('POST', '/api/v1/chat', { headers, body }))
    )
    for (const { status, headers } of replies) {
      if (status === 200) continue
      t.equal(status, 429)
      t.ok(Number(headers['retry-after']) >= 1, `come again in ${headers['retry-after']} s`)
    }
    return replies.filter(({ status }) => status === 200).length
  }
  const jumps = [
    ['2027-03-31T23:59:00Z', 5],
    ['2027-04-01T00:00:01Z', 5],
    ['2027-03-31T12:00:00Z', 0],
    ['2027-04-01T12:00:00Z', 0],
    // Three are left in March.
    ['2027-03-30T00:00:00Z', 3],
    ['2027-04-30T00:00:00Z', 3],
    ['2030-01-01T00:00:00Z', 5],
    ['1970-01-01T00:00:00Z', 5],
    ['2027-04-30T00:00:00Z', 0]
  ] as const
  for (const [time, expected] of jumps) {
    clock.ms = Date.parse(time)
    t.equal(await letIn(9), expected, time)
  }
})

t.test('OPS-03: no secret of a whole walk through accounts, tenants and turns is logged, at debug level', async (t) => {
  const { disk, plugin } = fillable()
  const house = await startShipped(t, { store: plugin })
  const { ask, credentials, pair, lines, tenant } = house
  const secrets = new Set([secret, adminSecret, password, 'Wrong-pass-77', 'Wrong-secret-78', 'Wr0ng-token-79'])
  /** Everything that is given out or sent as a credential is a secret from then on. */
  const learn = ({ body }: DispatchReply): void => {
    for (const name of ['access_token', 'refresh_token', 'raw_api_key', 'raw_key', 'secret']) {
      const value = (body as Record<string, unknown> | undefined)?.[name]
      if (typeof value === 'string') secrets.add(value)
    }
  }
  for (const value of Object.values(pair)) if (typeof value === 'string') secrets.add(value)
  for (const { authorization } of Object.values(credentials)) if (authorization) secrets.add(authorization.slice(7))

  for (const isFull of [false, true]) {
    disk.isFull = isFull
    for (const run of Object.values(operations(house))) learn(await run())
    const user = credentials['user'] as Headers
    const token = (user['authorization'] ?? '').slice(7)
    await ask('POST', '/api/auth/login', { body: { email: 'ann@x.test', password: 'Wrong-pass-77' } })
    await ask('POST', '/api/auth/login', {
      headers: { 'content-type': 'application/json' },
      body: '{"email":"ann@x.test","password":"Wrong-pass-77"'
    })
    await ask('POST', '/api/auth/login', { body: { email: ['x'], password: 'Wrong-pass-77' } })
    await ask('POST', '/api/auth/logout', { body: { refresh_token: pair['refresh_token'] } })
    await ask('GET', '/api/admin/stats', { headers: { 'x-admin-secret': 'Wrong-secret-78' } })
    await ask('GET', '/api/memory?token=Wr0ng-token-79')
    await ask('GET', `/api/chat/stream?message=hi&agent_type=writer&token=${token}`)
    await ask('GET', `/api/chat/stream?%74oken=${token}&message=`)
    await ask('GET', `/api/nope?token=${token}`)
    await ask('GET', `/api/admin/stats?token=${token}`)
    await ask('GET', '/api/v1/agents', { headers: { authorization: 'Bearer ares_Wr0ng-token-79' } })
    for (const path of ['', `/${tenant}`, `/${tenant}/api-keys`, `/${tenant}/usage`]) {
      const { body } = await ask('GET', `/api/admin/tenants${path}`, { headers: credentials['admin'] as Headers })
      for (const each of secrets) t.notOk(JSON.stringify(body).includes(each), 'no secret is read again')
    }
  }
  disk.isFull = false
  t.ok(secrets.size >= 15, `${secrets.size} secrets`)
  t.ok(lines.filter(({ level }) => level === 'error').length >= 8, 'there is something to look at')
  const log = JSON.stringify(lines)
  for (const each of secrets) {
    // A part of it is as bad; tokens of one account begin alike.
    for (const part of [each, each.slice(-24)]) t.notOk(log.includes(part), `${each.slice(0, 6)}… is nowhere`)
  }
})
