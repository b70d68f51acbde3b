import { createHash, createHmac, randomUUID } from 'node:crypto'
import { readdirSync, readFileSync, statSync } from 'node:fs'
import { join } from 'node:path'
import { hash } from 'argon2'
import fc from 'fast-check'
import t from 'tap'
import { definePlugin } from '../../kernel/index.ts'
import auth from '../../plugins/auth/index.ts'
import { argon2id, nobody } from '../../plugins/auth/parameters.ts'
import { createAuth, normaliseEmail, type Options, type TokenPair } from '../../plugins/auth/service.ts'
import { createTokens, importSecret, openJws } from '../../plugins/auth/tokens.ts'
import type { DispatchReply, Route } from '../../plugins/http/types.ts'
import type { Workers } from '../../plugins/workers/types.ts'
import workers from '../../plugins/workers/index.ts'
import { collect, type HouseOptions, startHouse } from '../harness.ts'

type T = Parameters<typeof startHouse>[0]

const secret = 'a secret of the tests, long enough to sign'
const adminSecret = 'adm'
const adminText = 'Admin access requires X-Admin-Secret header or JWT with admin role'
const password = 'pass-word-1'
const defaults: Options = {
  access_ttl_seconds: 900,
  refresh_ttl_seconds: 604_800,
  on_reuse: 'refuse',
  blocked_passwords: [],
  block_common_passwords: false
}

/** One route behind each guard; it answers whom the guard let in. */
const doors = definePlugin({
  name: 'doors',
  apply(ctx) {
    for (const guard of ['user', 'admin', 'caller']) {
      const route: Route = {
        method: 'GET',
        path: `/door/${guard}`,
        operationId: `enter-${guard}`,
        summary: 'Who is there',
        guard,
        replies: { 200: { type: 'object' } },
        handle: ({ principal }) => ({ body: principal })
      }
      ctx.contribute('http.routes', route)
    }
  }
})

async function startAuth(t: T, config: object = {}, options: HouseOptions = {}) {
  const house = await startHouse(
    t,
    [
      { plugin: workers },
      { plugin: auth, config: { jwt_secret: secret, admin_secret: adminSecret, ...config } },
      { plugin: doors }
    ],
    options
  )
  const http = house.services('http')
  const post = (path: string, body: unknown) => http.dispatch({ method: 'POST', path: `/api/auth/${path}`, body })
  return {
    ...house,
    post,
    register: (email: string, typed = password) => post('register', { email, password: typed, name: 'N' }),
    login: (email: string, typed = password) => post('login', { email, password: typed }),
    refresh: (token: string) => post('refresh', { refresh_token: token }),
    enter: (guard: string, headers: Record<string, string> = {}, query = '') =>
      http.dispatch({ method: 'GET', path: `/door/${guard}${query}`, headers })
  }
}

const pairOf = (reply: DispatchReply): TokenPair => {
  if (reply.status !== 200) throw new Error(`no tokens but ${reply.status} ${JSON.stringify(reply.body)}`)
  return reply.body as TokenPair
}
const statuses = (replies: readonly DispatchReply[]) => replies.map(({ status }) => status).sort((a, b) => a - b)
const bearer = (token: string) => ({ authorization: `Bearer ${token}` })
const nowSeconds = () => Math.floor(Date.now() / 1000)
const encode = (value: unknown) => Buffer.from(JSON.stringify(value)).toString('base64url')
const decode = (token: string, part: 0 | 1) =>
  JSON.parse(Buffer.from(token.split('.')[part] ?? '', 'base64url').toString()) as Record<string, unknown>

/** A token with any header and claims, signed by hand with HMAC. */
function forge(claims: object, header: object = { alg: 'HS256', typ: 'JWT' }, key = secret, hmac = 'sha256'): string {
  const signed = `${encode(header)}.${encode(claims)}`
  return `${signed}.${createHmac(hmac, key).update(signed).digest('base64url')}`
}
const access = (more: object = {}) => ({
  sub: 'u',
  email: 'u@x.test',
  exp: nowSeconds() + 900,
  iat: nowSeconds(),
  ...more
})

const unauthorized = { status: 401, body: { error: 'Unauthorized', code: 'AUTHENTICATION_FAILED' } }
const wrongCredentials = { status: 401, body: { error: 'Invalid credentials', code: 'AUTHENTICATION_FAILED' } }
const revoked = {
  status: 401,
  body: { error: 'Refresh token has been revoked or expired', code: 'AUTHENTICATION_FAILED' }
}
const shape = {
  status: 400,
  body: { error: 'Email required and password must be at least 8 characters', code: 'INVALID_INPUT' }
}

t.test('registration answers a pair of tokens with the claims of the contract', async (t) => {
  const { register, enter } = await startAuth(t)
  const reply = await register('ann@x.test')
  const pair = pairOf(reply)
  t.strictSame(Object.keys(pair), ['access_token', 'refresh_token', 'expires_in'])
  t.equal(pair.expires_in, 900)
  t.equal(reply.headers['cache-control'], 'no-store')

  t.strictSame(decode(pair.access_token, 0), { alg: 'HS256', typ: 'JWT' })
  const claims = decode(pair.access_token, 1)
  t.strictSame(Object.keys(claims).sort(), ['email', 'exp', 'iat', 'sub'])
  t.equal((claims['exp'] as number) - (claims['iat'] as number), 900)
  t.equal(claims['email'], 'ann@x.test')

  const long = decode(pair.refresh_token, 1)
  t.strictSame(Object.keys(long).sort(), ['email', 'exp', 'iat', 'jti', 'sub'])
  t.equal((long['exp'] as number) - (long['iat'] as number), 604_800)
  t.equal(long['sub'], claims['sub'])
  t.match(long['jti'], /^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$/)

  t.match(await enter('user', bearer(pair.access_token)), {
    status: 200,
    body: { kind: 'user', id: claims['sub'], email: 'ann@x.test' }
  })
})

t.test('registration refuses what has not the right shape before it looks who is there', async (t) => {
  const { register, post, services } = await startAuth(t)
  t.match(await register('ann@x.test', 'seven77'), shape)
  t.match(await register('', password), shape)
  t.match(await register(' \t', password), shape)
  t.match(await register('ann@x.test', '👍👍👍👍👍👍👍'), shape, 'seven characters, 14 units, 28 bytes')
  t.match(await register('ann@x.test', 'e\u0301'.repeat(7)), shape, 'seven characters, however they are composed')
  for (const email of [
    'ann',
    '@x.test',
    'ann@',
    'a b@x.test',
    'a@b@x.test',
    'ann@x..test',
    `${'a'.repeat(250)}@x.test`
  ]) {
    t.match(await register(email), {
      status: 400,
      body: { error: 'Email address is not valid', code: 'INVALID_INPUT' }
    })
  }
  t.match(await register('ann@x.test', 'x'.repeat(1_025)), { status: 400, body: { code: 'INVALID_INPUT' } })
  t.match(await register('ann@x.test', 'ü'.repeat(513)), { status: 400 }, 'bytes are counted, not characters')
  for (const body of [{}, { email: 'ann@x.test', password }, { email: 1, password, name: 'N' }, [], null]) {
    t.match(await post('register', body), { status: 400, body: { code: 'INVALID_INPUT' } })
  }
  t.strictSame(await collect(services('store').range('auth.users', [])), [], 'nobody was let in')

  t.equal((await register('eight@x.test', '12345678')).status, 200)
  t.equal((await register('long@x.test', 'x'.repeat(1_024))).status, 200)
  t.match(await register('eight@x.test', 'short'), shape, 'the shape comes first')
})

t.test('an address belongs to one account, however it is written', async (t) => {
  const { register, login } = await startAuth(t)
  const taken = { status: 400, body: { error: 'User already exists', code: 'INVALID_INPUT' } }
  await register('Ann.Lee@X.test', 'pass-word-1')
  for (const same of ['Ann.Lee@X.test', 'ann.lee@x.test', '  ANN.LEE@X.TEST ', 'ａnn.lee＠x.test']) {
    t.match(await register(same, 'pass-word-2'), taken)
  }
  t.equal((await login('ANN.LEE@x.TEST', 'pass-word-1')).status, 200)

  const raced = await Promise.all(Array.from({ length: 6 }, () => register('race@x.test')))
  t.strictSame(statuses(raced), [200, 400, 400, 400, 400, 400])
})

t.test('an address in its normal form stays as it is', async () => {
  const text = fc.string({ unit: 'grapheme', maxLength: 20 })
  fc.assert(
    fc.property(text, text, (local, domain) => {
      const once = normaliseEmail(`${local}@${domain}`)
      return once === undefined || normaliseEmail(once) === once
    }),
    { numRuns: 2_000 }
  )
})

t.test('login takes the right password, composed in any way, and no other', async (t) => {
  const { register, login, post } = await startAuth(t)
  await register('n@x.test', 'Süße-mäuse-1')
  t.equal((await login('n@x.test', 'Su\u0308ße-ma\u0308use-1')).status, 200)
  const wrong = await login('n@x.test', 'Susse-mause-1')
  t.match(wrong, wrongCredentials)
  const unknown = await login('nobody@x.test', 'Susse-mause-1')
  t.strictSame(unknown.body, wrong.body, 'an unknown address is answered as a wrong password')
  t.match(await login('no address', 'Susse-mause-1'), wrongCredentials)

  const both = { status: 400, body: { error: 'Email and password are required', code: 'INVALID_INPUT' } }
  t.match(await login('n@x.test', ''), both)
  t.match(await login(' ', 'x'), both)
  t.match(await post('login', { email: 'n@x.test' }), { status: 400, body: { code: 'INVALID_INPUT' } })
})

t.test(
  'an unknown address costs one hash of the same price as a wrong password, an overlong password none',
  async (t) => {
    const { services, register } = await startAuth(t)
    await register('known@x.test')
    const runs: { task: string; phc: string }[] = []
    const real = services('workers')
    const counted: Workers = {
      run: (task, input) => {
        const name = typeof task === 'string' ? task : task.name
        runs.push({ task: name, phc: (input as { phc: string }).phc })
        return real.run(task, input)
      },
      load: () => real.load()
    }
    const tokens = await createTokens(secret, Date.now)
    const accounts = createAuth(services('store'), counted, tokens, defaults, { now: Date.now, randomUUID })

    for (const email of ['known@x.test', 'nobody@x.test', 'no address']) {
      await t.rejects(accounts.login({ email, password: 'wrong-pass-1' }), { code: 'AUTH_CREDENTIALS_WRONG' })
    }
    const price = /^\$argon2id\$v=19\$m=19456,t=2,p=1\$/
    t.match(runs, [{ phc: price }, { phc: nobody }, { phc: nobody }])
    t.match(nobody, price)
    t.strictSame([...new Set(runs.map(({ task }) => task))], ['auth/verify-password'])

    runs.length = 0
    for (const email of ['known@x.test', 'nobody@x.test']) {
      await t.rejects(accounts.login({ email, password: 'x'.repeat(900_000) }), { code: 'AUTH_CREDENTIALS_WRONG' })
    }
    t.strictSame(runs, [])
  }
)

t.test('a password hashed with older parameters is hashed anew by the login that proves it', async (t) => {
  const { services, register, login } = await startAuth(t)
  await register('old@x.test')
  const store = services('store')
  const found = await collect(store.range<{ phc: string }>('auth.users', []))
  const [key, user] = found[0] as (typeof found)[0]
  const phc = await hash(password, { ...argon2id, memoryCost: 1_024 })
  await store.atomically((tx) => tx.put('auth.users', key, { ...user.value, phc }))

  t.equal((await login('old@x.test', 'wrong-pass-1')).status, 401)
  t.match((await store.get('auth.users', key))?.value, { phc }, 'not by one that does not')
  t.equal((await login('old@x.test')).status, 200)
  t.match((await store.get('auth.users', key))?.value, { phc: /m=19456,t=2,p=1/ })
  t.equal((await login('old@x.test')).status, 200)
})

t.test('a full hash queue answers 503 with the time to come back', async (t) => {
  const { kernel, login } = await startAuth(t)
  await kernel.update('workers', { pools: { hash: { max_threads: 1, max_queue: 0 } } })
  const replies = await Promise.all([login('a@x.test'), login('a@x.test'), login('a@x.test')])
  t.strictSame(statuses(replies), [401, 503, 503])
  for (const reply of replies.filter(({ status }) => status === 503)) {
    t.match(reply, {
      headers: { 'retry-after': /^[1-9]\d*$/ },
      body: { error: /^Service unavailable:/, code: 'INTERNAL_ERROR' }
    })
  }
})

t.test('a refresh token works once and makes the next', async (t) => {
  const { register, refresh, enter } = await startAuth(t)
  const first = pairOf(await register('r@x.test'))
  const second = pairOf(await refresh(first.refresh_token))
  t.not(second.refresh_token, first.refresh_token)
  t.equal((await enter('user', bearer(second.access_token))).status, 200)
  t.match(await refresh(first.refresh_token), revoked)
  const third = pairOf(await refresh(second.refresh_token))
  t.equal(decode(third.access_token, 1)['sub'], decode(first.access_token, 1)['sub'])
})

t.test('what is no refresh token of ours is refused', async (t) => {
  const { register, refresh, post } = await startAuth(t)
  const pair = pairOf(await register('r@x.test'))
  const sub = decode(pair.access_token, 1)['sub']
  const claims = { sub, email: 'r@x.test', iat: nowSeconds(), exp: nowSeconds() + 604_800, jti: randomUUID() }
  const invalid = { status: 401, body: { error: 'Invalid token', code: 'AUTHENTICATION_FAILED' } }
  t.match(await refresh('garbage'), invalid)
  t.match(await refresh(''), invalid)
  t.match(await refresh(forge(claims, undefined, 'another secret that is long enough too')), invalid)
  t.match(await refresh(pair.access_token), invalid, 'an access token')
  t.match(await refresh(forge({ ...claims, exp: nowSeconds() - 120 })), invalid, 'expired')
  t.match(await refresh(forge(claims)), revoked, 'well signed, but no session of ours')
  t.match(await post('refresh', {}), { status: 400, body: { error: String, code: 'INVALID_INPUT' } })
  t.equal((await refresh(pair.refresh_token)).status, 200, 'the true one still works')
})

t.test('a session of another user than the token names is refused', async (t) => {
  const { services, register, refresh } = await startAuth(t)
  const { refresh_token } = pairOf(await register('a@x.test'))
  const key = [decode(refresh_token, 1)['exp'] as number, createHash('sha256').update(refresh_token).digest('hex')]
  t.match((await services('store').get('auth.sessions', key))?.value, { user_id: String }, 'kept by its hash')
  await services('store').atomically((tx) => tx.put('auth.sessions', key, { user_id: 'somebody else', created_at: 0 }))
  t.match(await refresh(refresh_token), {
    status: 401,
    body: { error: 'Token mismatch', code: 'AUTHENTICATION_FAILED' }
  })
})

t.test('of twenty refreshes of one token at the same time exactly one wins, fifty times', async (t) => {
  const { register, refresh } = await startAuth(t)
  let token = pairOf(await register('race@x.test')).refresh_token
  for (let round = 0; round < 50; round++) {
    const replies = await Promise.all(Array.from({ length: 20 }, () => refresh(token)))
    const won = replies.filter(({ status }) => status === 200)
    const lost = replies.filter(({ status }) => status === 401)
    if (won.length !== 1 || lost.length !== 19) t.fail(`round ${round}: ${won.length} winners, ${lost.length} losers`)
    token = pairOf(won[0] as DispatchReply).refresh_token
  }
  t.equal((await refresh(token)).status, 200, 'reuse leaves the session that won alone')
})

t.test('with revoke_family a token that comes again ends the session that grew out of it, and no other', async (t) => {
  const { register, login, refresh } = await startAuth(t, { on_reuse: 'revoke_family' })
  const first = pairOf(await register('f@x.test'))
  const other = pairOf(await login('f@x.test'))
  const second = pairOf(await refresh(first.refresh_token))
  const third = pairOf(await refresh(second.refresh_token))
  t.match(await refresh(first.refresh_token), revoked)
  t.match(await refresh(third.refresh_token), revoked)
  t.equal((await refresh(other.refresh_token)).status, 200)
})

t.test('logout ends its session, always says so, and leaves access tokens alone', async (t) => {
  const { register, login, refresh, post, enter } = await startAuth(t)
  const one = pairOf(await register('o@x.test'))
  const two = pairOf(await login('o@x.test'))
  const done = { status: 200, body: { message: 'Logged out successfully' } }
  t.match(await post('logout', { refresh_token: one.refresh_token }), done)
  t.match(await post('logout', { refresh_token: one.refresh_token }), done)
  t.match(await post('logout', { refresh_token: 'garbage' }), done)
  t.match(await post('logout', { refresh_token: two.access_token }), done)
  t.match(await refresh(one.refresh_token), revoked)
  t.equal((await enter('user', bearer(one.access_token))).status, 200)
  t.equal((await refresh(two.refresh_token)).status, 200, 'the other session goes on')
})

t.test('user: a bearer token in exactly one form, or the query parameter, and nothing else', async (t) => {
  const { enter, register } = await startAuth(t)
  const pair = pairOf(await register('u@x.test'))
  const token = pair.access_token
  const there = { status: 200, body: { kind: 'user' } }
  t.match(await enter('user'), unauthorized)
  t.match(await enter('user', bearer(token)), there)
  t.match(await enter('user', {}, `?token=${token}`), there)
  t.match(await enter('user', { authorization: 'Basic eDp5' }, `?token=${token}`), there, 'beside another scheme')
  t.match(await enter('user', bearer('bad'), `?token=${token}`), unauthorized, 'the header wins')
  t.match(await enter('user', bearer(token), '?token=bad'), there)
  for (const authorization of [
    `bearer ${token}`,
    `Bearer  ${token}`,
    `Bearer\t${token}`,
    token,
    `Bearer ${token}, Bearer ${token}`
  ]) {
    t.match(await enter('user', { authorization }), unauthorized, authorization.slice(0, 10))
  }
  t.match(await enter('user', bearer(pair.refresh_token)), unauthorized, 'a refresh token')
  t.match(await enter('user', {}, `?token=${pair.refresh_token}`), unauthorized)
  t.match(await enter('user', bearer('ares_0123456789')), unauthorized, 'a tenant key')
  t.match(await enter('user', { 'x-admin-secret': adminSecret }), unauthorized)
})

t.test('a token that does not say HS256 and nothing odd is refused, however it is signed', async (t) => {
  const { enter } = await startAuth(t)
  const sound = forge(access())
  const [, payload] = sound.split('.')
  const odd: object[] = [
    { alg: 'none' },
    { alg: 'None' },
    { alg: 'HS512' },
    { alg: 'RS256' },
    { alg: 'hs256' },
    { alg: ['HS256'] },
    {},
    { alg: 'HS256', jwk: { kty: 'oct', k: '' } },
    { alg: 'HS256', jku: 'https://x.test/keys' },
    { alg: 'HS256', x5u: 'https://x.test/cert' },
    { alg: 'HS256', crit: ['b64'], b64: false },
    { alg: 'HS256', crit: ['exp'] },
    { alg: 'HS256', b64: true },
    { alg: 'HS256', typ: 'JWE' },
    { alg: 'HS256', typ: 1 }
  ]
  for (const header of odd) {
    const name = JSON.stringify(header)
    t.match(await enter('user', bearer(`${encode(header)}.${payload}.`)), unauthorized, `${name} unsigned`)
    t.match(await enter('user', bearer(forge(access(), header, ''))), unauthorized, `${name} signed with nothing`)
    t.match(await enter('user', bearer(forge(access(), header))), unauthorized, `${name} signed with the secret`)
  }
  const kid = { alg: 'HS256', kid: '../../dev/null' }
  t.match(await enter('user', bearer(forge(access(), kid, ''))), unauthorized)
  t.match(await enter('user', bearer(forge(access(), { alg: 'HS512', typ: 'JWT' }, secret, 'sha512'))), unauthorized)
  t.match(
    await enter('user', bearer(forge(access(), undefined, 'another secret that is long enough too'))),
    unauthorized
  )
  t.match(await enter('user', bearer(sound)), { status: 200 }, 'the sound one is let in')
})

t.test('the times of a token are numbers within a minute of our clock', async (t) => {
  const { enter } = await startAuth(t)
  const now = nowSeconds()
  const status = async (claims: object) => (await enter('user', bearer(forge(access(claims))))).status
  t.equal(await status({ iat: now + 5, nbf: now + 5 }), 200)
  t.equal(await status({ exp: now - 1 }), 200, 'leeway')
  t.equal(await status({ exp: now - 30 }), 200)
  for (const claims of [
    { exp: now - 90 },
    { exp: now - 600 },
    { iat: now + 600 },
    { nbf: now + 600 },
    { exp: '9999999999' },
    { exp: undefined },
    { exp: null },
    { exp: 1e300 },
    { exp: -1 },
    { iat: 'yesterday' },
    { nbf: {} },
    { sub: undefined },
    { sub: '' },
    { sub: 7 },
    { sub: 'x'.repeat(300) },
    { email: 7 },
    { jti: 'x' },
    { jti: null },
    { tenant_id: 'nobody' }
  ]) {
    t.equal(await status(claims), 401, JSON.stringify(claims))
  }
  t.match(await enter('user', bearer(forge([]))), unauthorized)
  t.match(await enter('user', bearer(forge(access({ pad: 'x'.repeat(4_000) })))), unauthorized, 'too long')
})

t.test('whatever is sent as a token is refused without an error of ours', async (t) => {
  const tokens = await createTokens(secret, Date.now)
  const sound = forge(access())
  t.ok(await tokens.verify(sound))
  const part = fc.oneof(
    fc.string(),
    fc.base64String(),
    fc.json().map((text) => Buffer.from(text).toString('base64url'))
  )
  await fc.assert(
    fc.asyncProperty(fc.tuple(part, part, part), async (parts) => (await tokens.verify(parts.join('.'))) === undefined),
    { numRuns: 500 }
  )
  await fc.assert(
    fc.asyncProperty(fc.nat(sound.length - 1), fc.string({ minLength: 1, maxLength: 1 }), async (at, character) => {
      const changed = sound.slice(0, at) + character + sound.slice(at + 1)
      return changed === sound || (await tokens.verify(changed)) === undefined
    }),
    { numRuns: 500 }
  )
})

const data = process.env['HEARTWOOD_TEST_DATA']
t.test(
  'the HS256 vectors of Wycheproof',
  { skip: data === undefined && 'HEARTWOOD_TEST_DATA is not set' },
  async (t) => {
    interface Vectors {
      readonly testGroups: readonly {
        readonly private?: { readonly alg?: string; readonly k?: string }
        readonly tests: readonly {
          readonly tcId: number
          readonly result: string
          readonly jws: unknown
          readonly comment: string
        }[]
      }[]
    }
    const file = join(data ?? '', 'corpora/jws/testvectors_v1/json_web_signature_test.json')
    const { testGroups } = JSON.parse(readFileSync(file, 'utf8')) as Vectors
    // Those say the contrary of what they hold: identical to a valid one, or junk that should pass.
    const unsound = [367, 370, 372, 373]
    const count = { accepted: 0, refused: 0 }
    for (const group of testGroups) {
      if (group.private?.alg !== 'HS256' || group.private.k === undefined) continue
      const key = await importSecret(Uint8Array.from(Buffer.from(group.private.k, 'base64url')))
      for (const { tcId, result, jws, comment } of group.tests) {
        if (unsound.includes(tcId)) continue
        const payload = await openJws(typeof jws === 'string' ? jws : JSON.stringify(jws), key)
        t.equal(payload !== undefined, result === 'valid', `${tcId} ${comment}`)
        count[payload === undefined ? 'refused' : 'accepted']++
      }
    }
    t.strictSame(count, { accepted: 8, refused: 28 })
  }
)

t.test('admin: the secret, or a token with an admin role', async (t) => {
  const { enter, register } = await startAuth(t)
  const refused = { status: 401, body: { error: adminText, code: 'AUTHENTICATION_FAILED' } }
  const role = (product: string, role: unknown) => bearer(forge(access({ roles: { [product]: [{ role }] } })))
  t.match(await enter('admin'), refused)
  t.match(await enter('admin', { 'x-admin-secret': adminSecret }), {
    status: 200,
    body: { kind: 'admin', id: 'admin_secret' }
  })
  for (const wrong of [
    'wrong',
    '',
    'ADM',
    'adm, wrong',
    'wrong, adm',
    'adm, adm',
    'undefined',
    'null',
    'x'.repeat(10_000)
  ]) {
    t.match(await enter('admin', { 'x-admin-secret': wrong }), refused, wrong.slice(0, 20))
  }
  t.match(await enter('admin', {}, `?token=${adminSecret}`), refused, 'the secret is no token')
  t.match(await enter('admin', bearer(adminSecret)), refused)
  t.match(await enter('admin', bearer(pairOf(await register('a@x.test')).access_token)), refused, 'an ordinary user')
  t.match(await enter('admin', role('ares', 'admin')), { status: 200, body: { kind: 'admin', id: 'u' } })
  t.match(await enter('admin', role('admin', 'super_admin')), { status: 200 })
  t.match(await enter('admin', role('eruka', 'admin')), { status: 200 })
  t.match(await enter('admin', role('ares', 'viewer')), refused)
  t.match(await enter('admin', role('other', 'admin')), refused)
  t.match(await enter('admin', role('ares', ['admin'])), refused)
  for (const roles of [
    null,
    'admin',
    ['admin'],
    { ares: 'admin' },
    { ares: [null, 'admin'] },
    { ares: { role: 'admin' } }
  ]) {
    t.match(await enter('admin', bearer(forge(access({ roles })))), refused, JSON.stringify(roles))
  }
  const admin = access({ roles: { ares: [{ role: 'admin' }] } })
  t.match(await enter('admin', {}, `?token=${forge(admin)}`), { status: 200 })
  t.match(await enter('admin', bearer(forge({ ...admin, exp: nowSeconds() - 120 }))), refused)
  t.match(await enter('admin', bearer(forge(admin, undefined, 'another secret that is long enough too'))), refused)
  t.match(
    await enter('admin', { 'x-admin-secret': 'wrong', ...bearer(forge(admin)) }),
    { status: 200 },
    'either will do'
  )
})

t.test('caller: nobody is anonymous, a wrong credential is refused', async (t) => {
  const { enter } = await startAuth(t)
  const token = forge(access())
  t.match(await enter('caller'), { status: 200, body: { kind: 'anonymous', id: '' } })
  t.match(await enter('caller', bearer(token)), { status: 200, body: { kind: 'user', id: 'u' } })
  t.match(await enter('caller', {}, `?token=${token}`), { status: 200, body: { kind: 'user' } })
  for (const authorization of ['Bearer bad', 'Basic eDp5', 'Bearer', 'ares_0123']) {
    t.match(await enter('caller', { authorization }), unauthorized, authorization)
  }
  t.match(await enter('caller', {}, '?token='), unauthorized)
  t.match(await enter('caller', {}, '?token=bad'), unauthorized)
})

t.test('caller: credentials that another plugin gives out, and tokens of tenants that one knows', async (t) => {
  const { enter, kernel } = await startAuth(t)
  const token = forge(access({ tenant_id: 't1' }))
  const machine = { kind: 'tenant', id: 't1' } as const
  for (const later of [false, true]) {
    const answer = <R>(value: R): R | Promise<R> => (later ? Promise.resolve(value) : value)
    const plugin = definePlugin({
      name: 'machines',
      apply(ctx) {
        ctx.contribute('auth.credentials', {
          prefix: 'm_',
          check: (credential) => answer(credential === 'm_1' ? machine : undefined)
        })
        ctx.contribute('auth.tenants', { has: (id) => answer(id === 't1') })
      }
    })
    t.match(await enter('caller', bearer('m_1')), unauthorized, 'nobody gives them out')
    t.match(await enter('user', bearer(token)), unauthorized, 'nobody knows the tenant')

    await kernel.begin({ id: 'machines', plugin, config: {} })
    t.match(await enter('caller', bearer('m_1')), { status: 200, body: machine })
    for (const wrong of ['m_', 'm_2', 'm_1 ', 'M_1']) t.match(await enter('caller', bearer(wrong)), unauthorized, wrong)
    t.match(await enter('caller', {}, '?token=m_1'), unauthorized, 'R15: never in a URL')
    t.match(await enter('caller', { authorization: 'Basic m_1' }), unauthorized)
    t.match(await enter('user', bearer('m_1')), unauthorized, 'J-11: it is no token of a person')
    for (const guard of ['user', 'caller']) {
      t.match(await enter(guard, bearer(token)), { status: 200, body: { kind: 'user', id: 'u', tenantId: 't1' } })
      t.match(await enter(guard, bearer(forge(access({ tenant_id: 't2' })))), unauthorized, 'J-09')
      t.match(await enter(guard, bearer(forge(access({ tenant_id: '' })))), unauthorized)
    }
    await kernel.retire('machines')
  }
})

t.test('an access token that was seen is at hand until it expires', async (t) => {
  const { services } = await startAuth(t)
  let nowMs = Date.UTC(2030, 0, 1)
  const now = () => nowMs
  const accounts = createAuth(services('store'), services('workers'), await createTokens(secret, now), defaults, {
    now,
    randomUUID
  })
  const { access_token } = await accounts.register({ email: 'c@x.test', password, name: 'N' })
  const claims = await accounts.verifyAccess(access_token)
  const again = accounts.verifyAccess(access_token)
  t.equal(again, claims, 'no promise the second time')
  nowMs += (900 + 59) * 1000
  t.equal(accounts.verifyAccess(access_token), claims, 'leeway')
  nowMs += 1000
  t.throws(() => accounts.verifyAccess(access_token), { code: 'AUTH_TOKEN_INVALID' })
  await t.rejects(async () => accounts.verifyAccess(access_token), { code: 'AUTH_TOKEN_INVALID' })
})

t.test('a session lives as long as its refresh token, then it is pruned', async (t) => {
  const { services } = await startAuth(t)
  let nowMs = Date.UTC(2030, 0, 1)
  const now = () => nowMs
  const options = { ...defaults, on_reuse: 'revoke_family' } as const
  const accounts = createAuth(services('store'), services('workers'), await createTokens(secret, now), options, {
    now,
    randomUUID
  })
  const left = async () => ({
    sessions: (await collect(services('store').range('auth.sessions', []))).length,
    successors: (await collect(services('store').range('auth.successors', []))).length
  })
  const first = await accounts.register({ email: 'c@x.test', password, name: 'N' })
  nowMs += 604_000 * 1000
  const second = await accounts.refresh(first.refresh_token)
  nowMs += 859 * 1000
  await accounts.prune()
  t.strictSame(await left(), { sessions: 1, successors: 1 }, 'nothing that may still be taken is pruned')
  nowMs += 1000
  await accounts.prune()
  t.strictSame(await left(), { sessions: 1, successors: 0 })
  nowMs += 604_800 * 1000
  await t.rejects(accounts.refresh(second.refresh_token), { code: 'AUTH_TOKEN_INVALID' })
  await accounts.prune()
  t.strictSame(await left(), { sessions: 0, successors: 0 })
})

t.test('accounts and sessions are there after a restart, also with secrets that were made', async (t) => {
  const dataFolder = (t as unknown as { testdir(): string }).testdir()
  const blank = { jwt_secret: '', admin_secret: ' ' }
  const before = await startAuth(t, blank, { dataFolder })
  const pair = pairOf(await before.register('r@x.test'))
  await before.kernel.stop()

  const after = await startAuth(t, blank, { dataFolder })
  t.equal((await after.login('r@x.test')).status, 200)
  t.equal((await after.enter('user', bearer(pair.access_token))).status, 200)
  t.equal((await after.refresh(pair.refresh_token)).status, 200)
})

t.test('without an admin secret one is made, and nothing blank or guessable opens the door', async (t) => {
  for (const config of [{}, { admin_secret: '' }, { admin_secret: ' ' }]) {
    const dataFolder = (t as unknown as { testdir(): string }).testdir()
    const house = await startHouse(t, [{ plugin: workers }, { plugin: auth, config }, { plugin: doors }], {
      dataFolder
    })
    const enter = (headers: Record<string, string>) =>
      house.services('http').dispatch({ method: 'GET', path: '/door/admin', headers })
    for (const guess of ['', ' ', 'undefined', 'null', ', ']) {
      t.match(await enter({ 'x-admin-secret': guess }), { status: 401, body: { error: adminText } }, `[${guess}]`)
    }
    const made = await house.services('store').secret('ADMIN_API_KEY', () => 'never called')
    t.ok(!made.created && made.value.length >= 32)
    t.equal(statSync(made.path).mode & 0o777, 0o600)
    t.match(await enter({ 'x-admin-secret': made.value }), { status: 200 })
    t.notOk(JSON.stringify(house.lines).includes(made.value), 'it is not logged')
    await house.kernel.stop()
  }
})

t.test('a short jwt_secret stops the start and is not repeated', async (t) => {
  const short = 'thirty-one characters, not more'
  const { kernel, lines, services } = await startHouse(t, [
    { plugin: workers },
    { plugin: auth, config: { jwt_secret: short } }
  ])
  t.match(
    kernel.fibers().filter(({ entry }) => entry === 'auth'),
    [{ state: 'Failed', error: /JWT_SECRET.* 31 .*32/ }]
  )
  t.equal(services('auth'), undefined)
  t.notOk(JSON.stringify([kernel.fibers(), lines]).includes(short))
})

t.test('nothing secret is stored in clear, logged, or repeated in an answer', async (t) => {
  const dataFolder = (t as unknown as { testdir(): string }).testdir()
  const house = await startAuth(t, {}, { dataFolder })
  const typed = 'Sekret-pass-77'
  const first = pairOf(await house.register('s@x.test', typed))
  const second = pairOf(await house.refresh(first.refresh_token))
  const answers = [
    await house.login('s@x.test', 'Sekret-pass-78'),
    await house.refresh(first.refresh_token),
    await house.enter('user', {}, `?token=${first.refresh_token}`),
    await house.enter('admin', { 'x-admin-secret': 'Wrong-adm-79' })
  ]
  await house.services('store').flushed()
  await house.kernel.stop()

  const told = JSON.stringify([answers, house.lines])
  for (const text of [typed, 'Sekret-pass-78', 'Wrong-adm-79', secret, first.refresh_token, second.refresh_token]) {
    t.notOk(told.includes(text), `${text.slice(0, 12)}… is not told`)
  }
  const files = readdirSync(dataFolder, { recursive: true, withFileTypes: true }).filter((entry) => entry.isFile())
  const bytes = Buffer.concat(files.map((file) => readFileSync(join(file.parentPath, file.name))))
  t.ok(bytes.includes('s@x.test'), 'the account is in what was read')
  for (const text of [typed, first.refresh_token, second.refresh_token, second.access_token]) {
    t.notOk(bytes.includes(text), `${text.slice(0, 12)}… is not stored`)
    t.notOk(bytes.includes(text.split('.').at(-1) as string), 'nor the end of it')
  }
})

t.test('a new configuration takes over without a token or a session lost', async (t) => {
  const { kernel, register, refresh, enter } = await startAuth(t)
  const pair = pairOf(await register('p@x.test'))
  await kernel.update('auth', { jwt_secret: secret, admin_secret: 'another', access_ttl_seconds: 60 })
  t.equal((await enter('user', bearer(pair.access_token))).status, 200)
  t.match(await refresh(pair.refresh_token), { status: 200, body: { expires_in: 60 } })
  t.equal((await enter('admin', { 'x-admin-secret': adminSecret })).status, 401)
  t.equal((await enter('admin', { 'x-admin-secret': 'another' })).status, 200)
})

t.test('retiring the entry takes its routes, guards, tasks and service away', async (t) => {
  const { kernel, post, services, enter } = await startAuth(t)
  await kernel.retire('doors')
  await kernel.retire('auth')
  t.match(await post('login', {}), { status: 404 })
  t.match(await enter('user'), { status: 404 })
  t.equal(services('auth'), undefined)
  await t.rejects(services('workers').run('auth/hash-password', 'x'), { code: 'WORKERS_UNKNOWN_TASK' })
})
