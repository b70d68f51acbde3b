import { createRequire } from 'node:module'
import t, { type Test } from 'tap'
import { CodedError, definePlugin, schemaOf } from '../../kernel/index.ts'
import { networkOf, TrustedProxies } from '../../plugins/http/client-address.ts'
import http from '../../plugins/http/index.ts'
import { createRateState, type RateLimitConfig, RateLimits, type RateState } from '../../plugins/http/rate-limits.ts'
import type { GuardRequest, Headers, Reply, Route } from '../../plugins/http/types.ts'
import carmy from '../../plugins/carmy/index.ts'
import tools from '../../plugins/tools/index.ts'
import { askRaw } from '../fixtures/raw-client.ts'
import { type HouseEntry, startHouse } from '../harness.ts'

const off: RateLimitConfig = {
  global_requests_per_minute: 0,
  per_client_requests_per_minute: 0,
  per_key_requests_per_minute: 0,
  burst: 1
}

interface Asked {
  readonly method?: string
  readonly path?: string
  readonly address?: string
  readonly headers?: Headers
  readonly token?: string
}

function asked({ method = 'GET', path = '/api/x', address = '192.0.2.1', headers = {}, token }: Asked): GuardRequest {
  return {
    method,
    path,
    address,
    network: networkOf(address),
    header: (name) => headers[name],
    queryValue: () => token
  }
}

/** Limits over a clock that stands still until it is moved. */
function limited(config: Partial<RateLimitConfig>, state: RateState = createRateState()) {
  const clock = { ms: 1_000_000 }
  const limits = RateLimits.create({ ...off, ...config }, state, () => clock.ms)
  if (limits === undefined) throw new Error('nothing is limited')
  const admit = (request: Asked = {}) => limits.admit(asked(request))
  return { clock, admit, admitted: (count: number, request?: Asked) => times(count, () => admit(request) === 0) }
}

/** How often something held. */
function times(count: number, holds: () => boolean): number {
  let held = 0
  for (let at = 0; at < count; at += 1) if (holds()) held += 1
  return held
}

t.test('with every limit at 0 there is nothing to ask', async (t) => {
  t.equal(
    RateLimits.create(off, createRateState(), () => 0),
    undefined
  )
})

t.test('a burst goes through at once, then as many as the rate, whatever the numbers', async (t) => {
  for (const perMinute of [1, 7, 60, 113, 100_000]) {
    for (const burst of [0, 1, 3, 10]) {
      const { clock, admit, admitted } = limited({ per_client_requests_per_minute: perMinute, burst })
      const name = `${perMinute} a minute, burst ${burst}`
      t.equal(admitted(50), Math.max(1, burst), name)
      const wait = admit()
      t.equal(wait, Math.max(1, Math.ceil(60 / perMinute)), `${name}: told when to come back`)
      clock.ms += 60_000 / perMinute - 0.1
      t.equal(admitted(1), 0, `${name}: not before its time`)
      clock.ms += 0.2
      t.equal(admitted(2), 1, `${name}: one at its time`)
      clock.ms += 10 * 60_000
      t.equal(admitted(50), Math.max(1, burst), `${name}: silence is not saved up beyond the burst`)
      let over = 0
      for (let ms = 0; ms < 60_000; ms += 60_000 / perMinute / 3) {
        clock.ms += 60_000 / perMinute / 3
        over += admitted(1)
        if (over > 500) break
      }
      t.ok(over <= Math.min(perMinute, 500) + 1, `${name}: ${over} in a minute of knocking`)
    }
  }
})

t.test('clients are apart, and so are keys; all together share what is global', async (t) => {
  const one = limited({ per_client_requests_per_minute: 1, burst: 2 })
  t.equal(one.admitted(5), 2)
  t.equal(one.admitted(5, { address: '192.0.2.2' }), 2)
  t.equal(one.admitted(5, { address: '2001:db8:1:2::1' }), 2)
  t.equal(one.admitted(5, { address: '2001:db8:1:2:ffff::9' }), 0, 'one customer, however many addresses')
  t.equal(one.admitted(5, { address: '2001:db8:1:3::1' }), 2)

  const keys = limited({ per_key_requests_per_minute: 1, burst: 2 })
  const bearer = (key: string) => ({ headers: { authorization: `Bearer ${key}` } })
  t.equal(keys.admitted(5, bearer('ares_a')), 2)
  t.equal(keys.admitted(5, bearer('ares_b')), 2)
  t.equal(keys.admitted(5, { ...bearer('ares_a'), address: '192.0.2.9' }), 0, 'wherever it is used')
  t.equal(keys.admitted(5, { token: 'ares_a' }), 0, 'and however it is sent')
  t.equal(keys.admitted(20), 20, 'who has none is not meant')

  const all = limited({ global_requests_per_minute: 60, burst: 3 })
  t.equal(
    times(5, () => all.admit({ address: `192.0.2.${Math.random()}` }) === 0),
    3
  )
})

t.test('who is refused by one limit uses up nothing of another', async (t) => {
  const { admitted } = limited({ global_requests_per_minute: 60, per_client_requests_per_minute: 60, burst: 5 })
  t.equal(admitted(1, { address: '192.0.2.2' }), 1)
  t.equal(admitted(500), 4, 'what was left of the global burst')
  t.equal(admitted(1, { address: '192.0.2.2' }), 0)
  const other = limited({ global_requests_per_minute: 600, per_client_requests_per_minute: 1, burst: 1 })
  t.equal(other.admitted(500), 1)
  other.clock.ms += 100
  t.equal(other.admitted(1, { address: '192.0.2.2' }), 1, 'a noisy neighbour takes nothing away')
})

t.test('GET and HEAD of /health and /ready are never refused nor counted', async (t) => {
  const { admitted } = limited({ global_requests_per_minute: 1 })
  t.equal(admitted(100, { path: '/health' }), 100)
  t.equal(admitted(100, { path: '/health', method: 'HEAD' }), 100)
  t.equal(admitted(100, { path: '/ready' }), 100)
  t.equal(admitted(2, { path: '/health', method: 'POST' }), 1)
  t.equal(admitted(2, { path: '/health/detailed' }), 0)
})

t.test('memory is bounded: who was quiet longest is forgotten, and what is paid is let go', async (t) => {
  const state = createRateState()
  const { clock, admitted } = limited({ per_client_requests_per_minute: 1 }, state)
  const addressOf = (at: number) => `10.${at >> 16}.${(at >> 8) & 255}.${at & 255}`
  let most = 0
  for (let at = 0; at < 150_000; at += 1) {
    admitted(1, { address: addressOf(at) })
    most = Math.max(most, state.clients.size)
  }
  t.equal(most, 100_000)
  for (let at = 100_001; at < 150_000; at += 1_000) t.equal(admitted(1, { address: addressOf(at) }), 0, 'still owes')
  t.equal(admitted(1, { address: addressOf(1) }), 1, 'forgotten')
  for (let at = 0; at < 2; at += 1) {
    clock.ms += 60_001
    admitted(1)
  }
  t.ok(state.clients.size <= 2, `${state.clients.size} left`)
})

t.test('the address of a client is told by trusted proxies, and by nobody else', async (t) => {
  const proxies = new TrustedProxies(['127.0.0.0/8', '::1', '10.1.0.0/16', '2001:db8:ff::/48', '192.0.2.7'])
  const clientOf = (address: string, headers: Headers = {}) =>
    proxies.clientOf({ address, header: (name) => headers[name] })
  const from = (text: string) => ({ 'x-forwarded-for': text })
  const cases: readonly [address: string, headers: Headers, client: string][] = [
    ['127.0.0.1', {}, '127.0.0.1'],
    ['203.0.113.5', from('198.51.100.1'), '203.0.113.5'],
    ['203.0.113.5', { 'x-real-ip': '198.51.100.1' }, '203.0.113.5'],
    ['127.0.0.1', from('198.51.100.1'), '198.51.100.1'],
    ['127.0.0.1', { 'x-real-ip': '198.51.100.1' }, '198.51.100.1'],
    ['127.0.0.1', { ...from('198.51.100.1'), 'x-real-ip': '198.51.100.2' }, '198.51.100.1'],
    ['192.0.2.7', from('198.51.100.1'), '198.51.100.1'],
    ['192.0.2.8', from('198.51.100.1'), '192.0.2.8'],
    // What the client wrote itself is at the far end.
    ['127.0.0.1', from('1.1.1.1, 198.51.100.1'), '198.51.100.1'],
    ['127.0.0.1', from('1.1.1.1, 198.51.100.1, 10.1.2.3'), '198.51.100.1'],
    ['127.0.0.1', from('10.1.9.9,10.1.2.3'), '10.1.9.9'],
    ['127.0.0.1', from('198.51.100.1, garbage'), '127.0.0.1'],
    ['127.0.0.1', from('198.51.100.1, garbage, 10.1.2.3'), '10.1.2.3'],
    ['127.0.0.1', from(''), '127.0.0.1'],
    ['127.0.0.1', from(',,'), '127.0.0.1'],
    ['127.0.0.1', from('198.51.100.1:4711'), '198.51.100.1'],
    ['127.0.0.1', from('[2001:DB8::1]:4711'), '2001:db8::1'],
    ['127.0.0.1', from('[2001:db8::1]'), '2001:db8::1'],
    ['127.0.0.1', from('::ffff:198.51.100.1'), '198.51.100.1'],
    ['::1', from('2001:db8:ff::1, 2001:db8:ff::2'), '2001:db8:ff::1'],
    ['::1', from('198.51.100.1, 2001:db8:ff::2'), '198.51.100.1'],
    ['127.0.0.1', from('fe80::1%eth0'), '127.0.0.1'],
    ['', from('198.51.100.1'), '']
  ]
  for (const [address, headers, client] of cases) {
    t.equal(clientOf(address, headers), client, `${address} ${JSON.stringify(headers)}`)
  }
  const nobody = new TrustedProxies([])
  t.equal(nobody.clientOf({ address: '127.0.0.1', header: () => '198.51.100.1' }), '127.0.0.1')
  for (const wrong of ['', 'proxy', '10.0.0.0/33', '10.0.0.0/', '::/129', '10.0.0.0/8/8', '10.0.0/8', '1.2.3.4/-1']) {
    t.throws(() => new TrustedProxies([wrong]), { code: 'HTTP_PROXY_INVALID' }, wrong)
  }
})

t.test('an IPv6 client is its network', async (t) => {
  for (const [address, network] of [
    ['192.0.2.1', '192.0.2.1'],
    ['2001:db8:1:2:3:4:5:6', '2001:db8:1:2'],
    ['2001:db8::1', '2001:db8:0:0'],
    ['2001:0db8:0000:0001::1', '2001:db8:0:1'],
    ['::1', '0:0:0:0'],
    ['::', '0:0:0:0'],
    ['1::', '1:0:0:0'],
    ['fe80::1%eth0', 'fe80:0:0:0'],
    ['', '']
  ] as const) {
    t.equal(networkOf(address), network, address)
  }
})

const rig = definePlugin({
  name: 'rig',
  apply(ctx) {
    const route = (method: Route['method'], path: string, handle: () => Reply): Route => ({
      method,
      path,
      operationId: `${method} ${path}`,
      summary: path,
      replies: {},
      ...(method === 'POST' ? { body: schemaOf({}) } : {}),
      handle
    })
    ctx.contribute(
      'http.routes',
      route('GET', '/api/x', () => ({ body: 'x' })),
      route('POST', '/api/x', () => ({ body: 'x' })),
      route('GET', '/api/broken', () => {
        throw new CodedError('RIG_BROKEN', 'broken')
      })
    )
  }
})

function startLimited(t: Test, rate_limit: object, more: readonly HouseEntry[] = [], config: object = {}) {
  const entries = [{ plugin: http, config: { listen: false, ...config, rate_limit } }, { plugin: rig }, ...more]
  return startHouse(t, entries, { store: more.length > 0 })
}

const rateLimited = {
  status: 429,
  headers: { 'retry-after': /^[1-9]\d*$/, 'cache-control': 'no-store', 'x-request-id': /./ },
  body: { error: 'rate limited', code: 'RATE_LIMITED' }
}

t.test('a request too many is answered 429 with a time to come back, whatever it asks for', async (t) => {
  const { services } = await startLimited(t, { per_client_requests_per_minute: 1, burst: 3 })
  const ask = (method: string, path: string, headers: Headers = {}) =>
    services('http').dispatch({ method, path, headers })
  t.strictSame((await ask('GET', '/api/nowhere')).status, 404, 'what is not there counts')
  t.strictSame((await ask('GET', '/api/broken')).status, 500)
  t.strictSame((await ask('GET', '/api/x')).status, 200)
  for (const path of ['/api/x', '/api/nowhere', '/', '/api/x/%00']) t.match(await ask('GET', path), rateLimited, path)
  t.strictSame((await ask('GET', '/api/x')).body, rateLimited.body, 'and no other member')
  t.match(await ask('OPTIONS', '/api/x'), { status: 429 })
  t.match(await ask('GET', '/health'), { status: 200, body: 'OK' })
  t.match(await ask('HEAD', '/health'), { status: 200 })

  const elsewhere = { 'x-forwarded-for': '198.51.100.1' }
  t.match(await ask('GET', '/api/x', elsewhere), { status: 200 }, 'the word of a proxy on this machine is taken')
  const page = await ask('GET', '/api/x', { origin: 'http://localhost:3000' })
  t.match(page, {
    status: 429,
    headers: { 'access-control-allow-origin': 'http://localhost:3000', 'access-control-expose-headers': /retry-after/ }
  })
})

t.test('a proxy that is not trusted is the client itself', async (t) => {
  const { services } = await startLimited(t, { per_client_requests_per_minute: 1, burst: 1, trusted_proxies: [] })
  const statuses = []
  for (let at = 1; at <= 3; at += 1) {
    const headers = { 'x-forwarded-for': `198.51.100.${at}`, 'x-real-ip': `198.51.100.${at}` }
    statuses.push((await services('http').dispatch({ method: 'GET', path: '/api/x', headers })).status)
  }
  t.strictSame(statuses, [200, 429, 429])
})

t.test('carmy says it in its own form', async (t) => {
  const { services } = await startLimited(t, { global_requests_per_minute: 1, burst: 1 }, [
    { plugin: tools },
    { plugin: carmy, config: { server: 'x' } },
    {
      plugin: definePlugin({
        name: 'callers',
        apply: (ctx) =>
          ctx.contribute('http.guards', {
            name: 'caller',
            scheme: {},
            errors: {},
            check: () => ({ kind: 'anonymous', id: '' })
          })
      })
    }
  ])
  const execute = () => services('http').dispatch({ method: 'POST', path: '/agent/execute', body: { tool: 'none' } })
  t.match(await execute(), { status: 404 })
  t.match(await execute(), {
    status: 429,
    headers: { 'retry-after': '60' },
    body: { error: { code: 'RATE_LIMITED', category: 'capacity', retryable: true, retry_after: 60 } }
  })
})

t.test('a change of the config forgives nobody, and takes the limit away when it says so', async (t) => {
  const { kernel, services } = await startLimited(t, { per_client_requests_per_minute: 1, burst: 1 })
  const status = async () => (await services('http').dispatch({ method: 'GET', path: '/api/x' })).status
  t.equal(await status(), 200)
  t.equal(await status(), 429)
  await kernel.update('http', { listen: false, rate_limit: { per_client_requests_per_minute: 2, burst: 1 } })
  t.equal(await status(), 429)
  await kernel.update('http', { listen: false })
  t.equal(await status(), 200)
  t.equal(await status(), 200)
  for (const rate_limit of [{ burst: -1 }, { per_minute: 3 }, { trusted_proxies: ['nowhere'] }]) {
    await t.rejects(kernel.update('http', { listen: false, rate_limit }), JSON.stringify(rate_limit))
  }
  t.equal(await status(), 200)
})

for (const transport of ['uws', 'node']) {
  const isThere = transport === 'node' || canLoad('uWebSockets.js')
  t.test(`over a socket of ${transport}`, { skip: !isThere && 'it does not load here' }, async (t) => {
    const limits = { per_key_requests_per_minute: 1, burst: 2 }
    const { services } = await startLimited(t, limits, [], { listen: true, port: 0, transport })
    const port = services('http').address?.port as number
    const post = (key: string) => {
      const body = JSON.stringify('y'.repeat(2_000))
      return `POST /api/x HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer ${key}\r\nContent-Type: application/json\r\nContent-Length: ${body.length}\r\n\r\n${body}`
    }
    const answers = await askRaw(port, [post('a'), post('a'), post('a'), post('b')].join(''), 4)
    t.match(answers, [
      { status: 200 },
      { status: 200 },
      { status: 429, body: '{"error":"rate limited","code":"RATE_LIMITED"}', headers: { 'retry-after': '60' } },
      { status: 200 }
    ])
  })
}

function canLoad(name: string): boolean {
  try {
    createRequire(import.meta.url)(name)
    return true
  } catch {
    return false
  }
}
