import { createHmac } from 'node:crypto'
import { readdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import t, { type Test } from 'tap'
import agent from '../../plugins/agent/index.ts'
import alerts from '../../plugins/alerts/index.ts'
import auth from '../../plugins/auth/index.ts'
import chat from '../../plugins/chat/index.ts'
import http from '../../plugins/http/index.ts'
import type { DispatchReply, Headers } from '../../plugins/http/types.ts'
import localModel from '../../plugins/local-model/index.ts'
import memory from '../../plugins/memory/index.ts'
import runtimeTools from '../../plugins/runtime-tools/index.ts'
import stats from '../../plugins/stats/index.ts'
import tenants from '../../plugins/tenants/index.ts'
import tools from '../../plugins/tools/index.ts'
import v1 from '../../plugins/v1/index.ts'
import workers from '../../plugins/workers/index.ts'
import { startHouse } from '../harness.ts'

/** Rows of F.1 to F.4 of the API's table of cases, each named by its id, over everything they touch. */

const secret = 'a secret of the tests, long enough to sign'
const password = 'pass-word-1'
const origin = 'http://localhost:3000'

async function start(t: Test) {
  const dataFolder = t.testdir()
  const house = await startHouse(
    t,
    [
      { plugin: http, config: { listen: false, cors_origins: [origin] } },
      { plugin: workers },
      { plugin: auth, config: { jwt_secret: secret, admin_secret: 'adm' } },
      { plugin: alerts },
      { plugin: stats },
      { plugin: runtimeTools },
      { plugin: tenants },
      { plugin: tools },
      { plugin: localModel, id: 'models:local' },
      { plugin: chat },
      { plugin: agent, id: 'agents:product', config: { model: 'local' } },
      { plugin: memory },
      { plugin: v1 }
    ],
    { dataFolder }
  )
  const ask = (method: string, path: string, options: { body?: unknown; headers?: Headers } = {}) =>
    house.services('http').dispatch({ method, path, ...options })
  return {
    ...house,
    dataFolder,
    ask,
    get: (path: string, authorization?: string) =>
      ask('GET', `/api${path}`, authorization === undefined ? {} : { headers: { authorization } }),
    post: (path: string, body: unknown) => ask('POST', `/api/auth/${path}`, { body })
  }
}

interface Pair {
  readonly access_token: string
  readonly refresh_token: string
  readonly expires_in: number
}

const pairOf = ({ status, body }: DispatchReply): Pair => {
  if (status !== 200) throw new Error(`no tokens but ${status} ${JSON.stringify(body)}`)
  return body as Pair
}
const errorOf = ({ body }: DispatchReply): string => (body as { error: string }).error
const claimsOf = (token: string, part = 1): Record<string, unknown> =>
  JSON.parse(Buffer.from(token.split('.')[part] ?? '', 'base64url').toString()) as Record<string, unknown>
const nowSeconds = () => Math.floor(Date.now() / 1000)

function forge(claims: object, { alg = 'HS256', key = secret, hmac = 'sha256' } = {}): string {
  const encode = (value: unknown) => Buffer.from(JSON.stringify(value)).toString('base64url')
  const base = { sub: 'u', email: 'u@x.test', exp: nowSeconds() + 900, iat: nowSeconds() }
  const signed = `${encode({ alg, typ: 'JWT' })}.${encode({ ...base, ...claims })}`
  return `${signed}.${alg === 'none' ? '' : createHmac(hmac, key).update(signed).digest('base64url')}`
}

t.test('F.1 Health and transport', async (t) => {
  const { ask } = await start(t)
  const health = await ask('GET', '/health')
  t.match([health.status, health.body, health.headers['content-type']], [200, 'OK', /^text\/plain/], 'H-01')
  t.match(
    await ask('GET', '/health/detailed'),
    { status: 200, body: { status: 'healthy', version: String, agents: ['product'], latency_ms: Number } },
    'H-02'
  )
  const info = await ask('GET', '/config/info')
  t.match(
    info,
    {
      status: 200,
      body: { server: {}, providers: ['local'], models: [], agents: ['product'], tools: [], workflows: [] }
    },
    'H-03'
  )
  t.notMatch(JSON.stringify(info.body), new RegExp(`${secret}|adm`), 'H-03: no secret')
  t.equal((await ask('GET', '/api/nope')).status, 404, 'H-04')
  t.equal((await ask('DELETE', '/api/auth/login')).status, 405, 'H-05')
  const broken = { body: '{not json', headers: { 'content-type': 'application/json' } }
  t.match(await ask('POST', '/api/auth/login', broken), { status: 400, body: { error: String } }, 'H-06')
  const preflight = (from: string) =>
    ask('OPTIONS', '/api/chat', {
      headers: {
        origin: from,
        'access-control-request-method': 'POST',
        'access-control-request-headers': 'x-admin-secret'
      }
    })
  const listed = await preflight(origin)
  t.equal(listed.status, 204, 'H-07')
  t.equal(listed.headers['access-control-allow-origin'], origin, 'H-07')
  for (const method of ['PUT', 'DELETE', 'PATCH'])
    t.match(listed.headers['access-control-allow-methods'], method, 'H-07')
  t.notOk((await preflight('http://evil.test')).headers['access-control-allow-origin'], 'H-08')
  t.match(listed.headers['access-control-allow-headers']?.toLowerCase(), 'x-admin-secret', 'H-09')
})

t.test('F.2 Auth', async (t) => {
  const { post, dataFolder } = await start(t)
  const register = (email: string, typed = password) => post('register', { email, password: typed, name: 'N' })
  const login = (email: string, typed: string) => post('login', { email, password: typed })
  const refresh = (refresh_token: string) => post('refresh', { refresh_token })
  const logout = (refresh_token: string) => post('logout', { refresh_token })
  const shape = {
    status: 400,
    body: { error: 'Email required and password must be at least 8 characters', code: 'INVALID_INPUT' }
  }
  const revoked = { status: 401, body: { error: 'Refresh token has been revoked or expired' } }

  const first = pairOf(await register('u1@x.test'))
  t.strictSame(Object.keys(first), ['access_token', 'refresh_token', 'expires_in'], 'A-01')
  t.equal(first.expires_in, 900, 'A-01')
  t.match(await register('u2@x.test', '7654321'), shape, 'A-02')
  t.match(await register(''), shape, 'A-03')
  t.match(await register('u1@x.test'), { status: 400, body: { error: 'User already exists' } }, 'A-04')
  t.match(await register('u1@x.test', '54321'), shape, 'A-05')
  t.match(await register('u2@x.test', '87654321'), { status: 200 }, 'A-06')
  t.match(await post('register', { email: 'u3@x.test', password }), { status: 400, body: { error: String } }, 'A-07')

  const access = claimsOf(first.access_token)
  t.equal(claimsOf(first.access_token, 0)['alg'], 'HS256', 'A-08')
  t.strictSame(Object.keys(access).sort(), ['email', 'exp', 'iat', 'sub'], 'A-08')
  t.equal(Number(access['exp']) - Number(access['iat']), 900, 'A-08')
  const long = claimsOf(first.refresh_token)
  t.match(long['jti'], /^[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}$/, 'A-09')
  t.equal(Number(long['exp']) - Number(long['iat']), 604_800, 'A-09')
  t.equal(long['sub'], access['sub'], 'A-09')

  t.match(await login('u1@x.test', password), { status: 200, body: { expires_in: 900 } }, 'A-10')
  const wrong = await login('u1@x.test', 'wrong-pass-1')
  t.match(wrong, { status: 401, body: { error: 'Invalid credentials', code: 'AUTHENTICATION_FAILED' } }, 'A-11')
  const unknown = await login('nobody@x.test', 'wrong-pass-1')
  t.strictSame([unknown.status, unknown.body], [wrong.status, wrong.body], 'A-12')
  t.match(await login('u1@x.test', ''), { status: 400, body: { error: 'Email and password are required' } }, 'A-13')

  const second = pairOf(await refresh(first.refresh_token))
  t.not(second.refresh_token, first.refresh_token, 'A-14')
  t.match(await refresh(first.refresh_token), revoked, 'A-15')
  const third = pairOf(await refresh(second.refresh_token))
  t.ok(third, 'A-16')
  t.equal((await refresh('garbage')).status, 401, 'A-17')
  t.equal((await refresh(forge({ jti: 'x' }, { key: 'another key, long enough to sign with' }))).status, 401, 'A-18')
  t.equal((await refresh(third.access_token)).status, 401, 'A-19')
  t.equal((await refresh(forge({ jti: 'x', exp: nowSeconds() - 120 }))).status, 401, 'A-20')
  t.match(await post('refresh', {}), { status: 400, body: { error: String } }, 'A-21')
  const out = { status: 200, body: { message: 'Logged out successfully' } }
  t.match(await logout(third.refresh_token), out, 'A-22')
  t.match(await logout(third.refresh_token), out, 'A-23')
  t.match(await logout('garbage'), out, 'A-23')
  t.match(await refresh(third.refresh_token), revoked, 'A-24')

  const one = pairOf(await login('u1@x.test', password))
  const race = await Promise.all([refresh(one.refresh_token), refresh(one.refresh_token)])
  t.strictSame(
    race.map(({ status }) => status).sort((a, b) => a - b),
    [200, 401],
    'A-25'
  )
  const [kept, ended] = [pairOf(await login('u1@x.test', password)), pairOf(await login('u1@x.test', password))]
  await logout(ended.refresh_token)
  t.equal((await refresh(kept.refresh_token)).status, 200, 'A-26')

  const stored = readdirSync(dataFolder).map((name) => readFileSync(join(dataFolder, name), 'latin1'))
  for (const clear of [password, first.refresh_token, third.refresh_token]) {
    t.notOk(
      stored.some((text) => text.includes(clear)),
      'A-27'
    )
  }
})

t.test('F.3 JWT middleware', async (t) => {
  const { get, post } = await start(t)
  const { access_token: token, refresh_token: long } = pairOf(
    await post('register', { email: 'u1@x.test', password, name: 'N' })
  )
  const refused = async (name: string, reply: Promise<DispatchReply>) => {
    t.match(await reply, { status: 401, body: { error: 'Unauthorized' } }, name)
  }
  await refused('J-01', get('/memory'))
  t.equal((await get(`/memory?token=${token}`)).status, 204, 'J-02 (R2)')
  await refused('J-03', get('/memory', `bearer ${token}`))
  t.equal((await get('/memory', `Bearer ${forge({ exp: nowSeconds() - 30 })}`)).status, 204, 'J-04 (R2)')
  await refused('J-05', get('/memory', `Bearer ${forge({ exp: nowSeconds() - 90 })}`))
  await refused('J-06', get('/memory', `Bearer ${forge({}, { alg: 'none' })}`))
  await refused('J-07', get('/memory', `Bearer ${forge({}, { key: 'another key, long enough to sign with' })}`))
  await refused('J-08', get('/memory', `Bearer ${forge({}, { alg: 'HS512', hmac: 'sha512' })}`))
  await refused('J-09', get('/conversations', `Bearer ${forge({ tenant_id: 'no-such-tenant' })}`))
  t.match(errorOf(await get('/v1/agents', `Bearer ${token}`)), /Must start with ares_/, 'J-10')
  await refused('J-11', get('/memory', `Bearer ares_${'0'.repeat(64)}`))
  await refused('J-12', get('/memory', `Bearer ${long}`))
})

t.test('F.4 Admin auth', async (t) => {
  const { ask, get, post } = await start(t)
  const { access_token: token } = pairOf(await post('register', { email: 'u1@x.test', password, name: 'N' }))
  const text = 'Admin access requires X-Admin-Secret header or JWT with admin role'
  const refused = async (name: string, reply: Promise<DispatchReply>) => {
    t.match(await reply, { status: 401, body: { error: text } }, name)
  }
  const bySecret = (path: string, given: string) => ask('GET', `/api${path}`, { headers: { 'x-admin-secret': given } })
  const byRole = (roles: object, more: object = {}) => get('/admin/stats', `Bearer ${forge({ roles, ...more })}`)
  await refused('G-01', get('/admin/stats'))
  await refused('G-02', bySecret('/admin/stats', 'wrong'))
  t.equal((await bySecret('/admin/stats', 'adm')).status, 200, 'G-03')
  await refused('G-04', get('/admin/stats', `Bearer ${token}`))
  t.equal((await byRole({ ares: [{ role: 'admin' }] })).status, 200, 'G-05')
  t.equal((await byRole({ admin: [{ role: 'super_admin' }] })).status, 200, 'G-06')
  await refused('G-07', byRole({ ares: [{ role: 'viewer' }] }))
  await refused('G-08', byRole({ other: [{ role: 'admin' }] }))
  t.equal((await get(`/admin/stats?token=${forge({ roles: { ares: [{ role: 'admin' }] } })}`)).status, 200, 'G-09')
  await refused('G-10', byRole({ ares: [{ role: 'admin' }] }, { exp: nowSeconds() - 120 }))
  await refused('G-11', get('/mcp/runtime_tool_capabilities'))
  // None are listed as long as no plugin executes them: see operations.test.ts.
  t.match(await bySecret('/mcp/runtime_tool_capabilities', 'adm'), { status: 200, body: { tool_types: [] } }, 'G-12')
})
