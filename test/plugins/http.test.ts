import { once } from 'node:events'
import { readFileSync } from 'node:fs'
import t from 'tap'
import { CodedError, definePlugin, type KernelControl, type Plugin, schemaOf } from '../../kernel/index.ts'
import http from '../../plugins/http/index.ts'
import { CompiledRoutes } from '../../plugins/http/route-checks.ts'
import type { DispatchRequest, Guard, Reply, Request, Route, StreamEvent } from '../../plugins/http/types.ts'
import { version } from '../../plugins/http/version.ts'
import { type House, startHouse } from '../harness.ts'

type Handle = (request: Request) => Reply | Promise<Reply>

function route(method: Route['method'], path: string, handle: Handle, more: Partial<Route> = {}): Route {
  return { method, path, operationId: `${method} ${path}`, summary: path, replies: {}, handle, ...more }
}

const anything = schemaOf({})
const echo = (path: string, more: Partial<Route> = {}) =>
  route('POST', path, ({ body }) => ({ body: { got: body } }), { body: anything, ...more })

function plugin(name: string, routes: readonly Route[], guards: readonly Guard[] = []): Plugin {
  return definePlugin({
    name,
    inject: ['http'],
    apply(ctx) {
      ctx.contribute('http.guards', ...guards)
      ctx.contribute('http.routes', ...routes)
    }
  })
}

/** A house with these routes, and a short way to ask. */
async function house(t: Parameters<typeof startHouse>[0], routes: readonly Route[], guards: readonly Guard[] = []) {
  const started = await startHouse(t, [{ plugin: plugin('rig', routes, guards) }], { store: false })
  const ask = (method: string, path: string, more: Partial<DispatchRequest> = {}) =>
    started.services('http').dispatch({ method, path, ...more })
  const post = (path: string, body: unknown, headers: Record<string, string> = {}) =>
    ask('POST', path, { body, headers: { 'content-type': 'application/json', ...headers } })
  return { ...started, ask, post }
}

function deferred<T>(): { readonly promise: Promise<T>; readonly resolve: (value: T) => void } {
  let resolve: (value: T) => void = () => {}
  const promise = new Promise<T>((settle) => {
    resolve = settle
  })
  return { promise, resolve }
}

const errorLines = ({ lines }: Pick<House, 'lines'>) => lines.filter(({ level }) => level === 'error')

t.test('row 107: GET /health answers OK as plain text, and HEAD the same without the text', async (t) => {
  const { ask } = await house(t, [])

  const got = await ask('GET', '/health')
  t.match(got, { status: 200, body: 'OK', headers: { 'content-type': 'text/plain', 'x-request-id': String } })
  t.match(await ask('HEAD', '/health'), { status: 200, body: undefined, headers: { 'content-type': 'text/plain' } })
})

t.test('GET /health/detailed tells which part is not well, by its code alone', async (t) => {
  let asked = 0
  let isWell = true
  const checks = definePlugin({
    name: 'checks',
    apply(ctx) {
      ctx.contribute('http.checks', {
        name: 'database',
        async check() {
          asked += 1
          await new Promise((resolve) => setImmediate(resolve))
          if (!isWell) throw new CodedError('STORE_FAILED', 'cannot read /secret/path')
        }
      })
      ctx.contribute('http.info', { name: 'agents', values: () => ['router', 'writer'] })
      ctx.contribute('http.info', { name: 'agents', values: () => ['writer', 'researcher'] })
      ctx.contribute('http.info', { name: 'tools', values: () => ['calculator'] })
    }
  })
  const started = await startHouse(t, [{ plugin: checks }], { store: false })
  const ask = (path: string) => started.services('http').dispatch({ method: 'GET', path })

  const many = await Promise.all([ask('/health/detailed'), ask('/health/detailed'), ask('/health/detailed')])
  t.match(many[2], {
    status: 200,
    body: {
      status: 'healthy',
      version,
      checks: { database: { status: 'healthy' } },
      providers: [],
      agents: ['router', 'writer', 'researcher'],
      latency_ms: Number,
      timestamp: /^\d{4}-\d\d-\d\dT/
    }
  })
  t.equal(asked, 1, 'those who ask at once share one check')

  isWell = false
  const ill = await ask('/health/detailed')
  t.match(ill, { status: 200, body: { status: 'degraded', checks: { database: { status: 'unhealthy' } } } })
  t.strictSame((ill.body as { checks: unknown }).checks, { database: { status: 'unhealthy', error: 'STORE_FAILED' } })
  t.match(errorLines(started), [{ error: { message: 'cannot read /secret/path' } }], 'the log has it whole')

  const info = await ask('/config/info')
  t.strictSame(info.body, {
    server: { host: '127.0.0.1', port: 3000, log_level: 'debug' },
    providers: [],
    models: [],
    agents: ['router', 'writer', 'researcher'],
    tools: ['calculator'],
    workflows: [],
    ui_enabled: false
  })
})

t.test('the version it tells is that of the package', async (t) => {
  const file = JSON.parse(readFileSync('package.json', 'utf8')) as { version: string }
  t.equal(version, file.version)
})

t.test('what is not there is 404, a method that is not there 405 with what is', async (t) => {
  const { ask } = await house(t, [
    echo('/api/thing'),
    route('GET', '/api/thing', () => ({ body: 1 })),
    echo('/api/only')
  ])

  t.match(await ask('GET', '/api/nope'), { status: 404, body: { error: String, code: 'NOT_FOUND' } })
  t.match(await ask('DELETE', '/api/thing'), {
    status: 405,
    body: { code: 'METHOD_NOT_ALLOWED' },
    headers: { allow: 'POST, GET, HEAD, OPTIONS' }
  })
  t.match(await ask('GET', '/api/only'), { status: 405, headers: { allow: 'POST, OPTIONS' } })
  t.match(await ask('HEAD', '/api/only'), { status: 405, body: undefined })
  t.match(await ask('OPTIONS', '/api/thing'), {
    status: 204,
    body: undefined,
    headers: { allow: 'POST, GET, HEAD, OPTIONS' }
  })
})

t.test('a path parameter is decoded once and stays within its segment', async (t) => {
  const show = route('GET', '/entries/{id}', ({ params }) => ({ body: params }))
  const { ask } = await house(t, [show, route('GET', '/entries/{id}/parts/{part}', ({ params }) => ({ body: params }))])
  const idOf = async (path: string) => (await ask('GET', `/entries/${path}`)).body

  t.strictSame(await idOf('grp%3Acalc'), { id: 'grp:calc' })
  t.strictSame(await idOf('grp:calc'), { id: 'grp:calc' })
  t.strictSame(await idOf('a%2Fb'), { id: 'a/b' })
  t.strictSame(await idOf('%E4%BD%A0'), { id: '你' })
  t.strictSame(await idOf('%252e'), { id: '%2e' }, 'not twice')
  t.strictSame(await idOf('..%2f..%2fetc'), { id: '../../etc' })
  t.strictSame(await idOf('a/parts/b%2F'), { id: 'a', part: 'b/' })
  for (const bad of ['%zz', '%00', 'a%00b', '%', '%ff', '%c0%af', 'a/parts/%']) {
    t.match(await ask('GET', `/entries/${bad}`), { status: 400, body: { code: 'INVALID_INPUT' } }, bad)
  }
  for (const other of ['', 'a/', 'a/parts', 'a/parts/', '/a']) {
    t.match(await ask('GET', `/entries/${other}`), { status: 404 }, `/entries/${other}`)
  }
})

t.test('a literal segment wins over a parameter, which stays reachable beside it', async (t) => {
  const named = (path: string) => route('GET', path, ({ params }) => ({ body: { path, ...params } }))
  const { ask } = await house(t, ['/a/{x}', '/a/b', '/a/{x}/c', '/a/b/d', '/{p}/b/e'].map(named))
  const found = async (path: string) => (await ask('GET', path)).body

  t.strictSame(await found('/a/b'), { path: '/a/b' })
  t.strictSame(await found('/a/z'), { path: '/a/{x}', x: 'z' })
  t.strictSame(await found('/a/b/c'), { path: '/a/{x}/c', x: 'b' })
  t.strictSame(await found('/a/b/d'), { path: '/a/b/d' })
  t.strictSame(await found('/a/b/e'), { path: '/{p}/b/e', p: 'a' })
  t.match(await ask('GET', '/a/b/f'), { status: 404 })
})

const closed: Guard = {
  name: 'closed',
  scheme: {},
  errors: { NO_ENTRY: 401 },
  check: () => {
    throw new CodedError('NO_ENTRY', 'Unauthorized')
  }
}

t.test('no spelling of a path walks around its guard', async (t) => {
  const { ask } = await house(
    t,
    [route('GET', '/api/admin/services', () => ({ body: 'secret' }), { guard: 'closed' })],
    [closed]
  )

  t.match(await ask('GET', '/api/admin/services'), { status: 401 })
  for (const path of [
    '/api/admin/services/',
    '//api/admin/services',
    '/api//admin/services',
    '/api/admin/./services',
    '/api/x/../admin/services',
    '/api/ADMIN/services',
    '/api/admin%2Fservices',
    '/api/%61dmin/services',
    '/api/admin/services%00',
    '/api/admin/services;x=1'
  ]) {
    t.match(await ask('GET', path), { status: 404 }, path)
  }
  t.match(await ask('HEAD', '/api/admin/services'), { status: 401 })
})

t.test('two entries cannot have one route, nor the same shape under other names', async (t) => {
  const first = route('GET', '/api/things/{id}', () => ({ body: 'first' }))
  const { kernel, ask } = await house(t, [first])
  const refusal = (entry: string, ...routes: Route[]) => kernel.begin({ id: entry, plugin: plugin(entry, routes) })

  await t.rejects(refusal('again', first), { code: 'HTTP_ROUTE_CONFLICT', message: /'again'.*'rig'/ })
  await t.rejects(
    refusal(
      'other',
      route('PUT', '/api/things/{name}', () => ({ body: 1 }))
    ),
    {
      code: 'HTTP_ROUTE_CONFLICT',
      message: /PUT \/api\/things\/\{name\} of entry 'other'.*GET \/api\/things\/\{id\} of entry 'rig'/
    }
  )
  for (const path of ['no-slash', '/a{b}', '/{a}/{a}', '/{__proto__}', '/{}']) {
    await t.rejects(
      refusal(
        'odd',
        route('GET', path, () => ({ body: 1 }))
      ),
      { code: 'HTTP_ROUTE_INVALID' },
      path
    )
    await kernel.retire('odd')
  }
  await t.rejects(refusal('broken', echo('/api/x', { body: schemaOf({ type: 'nonsense' }) })), {
    code: 'HTTP_ROUTE_INVALID',
    message: /POST \/api\/x of entry 'broken'/
  })
  t.match(await ask('GET', '/api/things/1'), { status: 200, body: 'first' }, 'what was there is there')
})

t.test('routes come with their plugin and leave with it', async (t) => {
  const { kernel, ask } = await house(t, [])
  const extra = plugin('extra', [route('GET', '/api/extra/{id}', () => ({ body: 1 }))])

  t.match(await ask('GET', '/api/extra/1'), { status: 404 })
  await kernel.begin({ id: 'extra', plugin: extra })
  t.match(await ask('GET', '/api/extra/1'), { status: 200 })
  await kernel.retire('extra')
  t.match(await ask('GET', '/api/extra/1'), { status: 404 })
})

t.test('a schema is compiled once, however often its route is brought anew', (t) => {
  const compiled = new CompiledRoutes()
  const schema = () => ({ type: 'object', properties: { count: { type: 'integer' } } })
  const route = (more: Partial<Route> = {}): Route => ({
    method: 'POST',
    path: '/things',
    operationId: 'addThing',
    summary: 'Add a thing',
    query: schema(),
    body: schema(),
    replies: { 200: {} },
    handle: () => ({ status: 204 }),
    ...more
  })
  const first = compiled.of(route())
  const second = compiled.of(route())
  t.equal(second.body, first.body)
  t.equal(second.query, first.query)
  t.not(first.query, first.body, 'a query is checked in another way')
  t.strictSame(first.query?.({ count: '7' }), [])
  t.not(first.body?.({ count: '7' }).length, 0)

  const other = compiled.of(route({ body: { ...schema(), required: ['count'] } }))
  t.not(other.body, first.body)
  t.match(other.body?.({}), [{ message: 'missing count' }])
  t.strictSame(first.body?.({}), [])
  t.throws(() => compiled.of(route({ body: { type: 'thing' } })))
  t.end()
})

t.test('a guard says who is calling, at hand or later, and the body waits for it', async (t) => {
  const atHand: Guard = {
    name: 'at-hand',
    scheme: {},
    errors: {},
    check: (request) => ({
      kind: 'user',
      id: `${request.header('x-user')} ${request.queryValue('q')} ${request.address}`
    })
  }
  const later: Guard = {
    ...atHand,
    name: 'later',
    errors: { REFUSED: { status: 403, code: 'NOT_YOURS' } },
    async check(request) {
      await new Promise((resolve) => setImmediate(resolve))
      if (request.header('x-user') === 'eve') throw new CodedError('REFUSED', 'not for you')
      return { kind: 'user', id: 'later' }
    }
  }
  const tell: Handle = ({ principal, body }) => ({ body: { principal, body: body ?? null } })
  const { ask, post } = await house(
    t,
    [
      route('GET', '/at-hand', tell, { guard: 'at-hand' }),
      route('GET', '/later', tell, { guard: 'later' }),
      route('POST', '/later', tell, { guard: 'later', body: anything }),
      route('GET', '/open', tell)
    ],
    [atHand, later]
  )

  t.match(await ask('GET', '/at-hand?q=a%20b+c&q=2', { headers: { 'X-User': 'ann' } }), {
    body: { principal: { kind: 'user', id: 'ann a b c 127.0.0.1' } }
  })
  t.match(await ask('GET', '/at-hand?q=%ff'), { body: { principal: { id: 'undefined undefined 127.0.0.1' } } })
  t.match(await ask('GET', '/later'), { body: { principal: { id: 'later' } } })
  t.match(await post('/later', { a: 1 }), { body: { principal: { id: 'later' }, body: { a: 1 } } })
  t.match(await post('/later', '{'), { status: 400 })
  t.match(await post('/later', 'x'.repeat(1_048_577)), { status: 413 })
  t.match(await post('/later', 'x', { 'content-type': 'text/plain' }), { status: 415 })
  t.match(await post('/later', { a: 1 }, { 'x-user': 'eve' }), {
    status: 403,
    body: { error: 'not for you', code: 'NOT_YOURS' }
  })
  t.strictSame((await ask('GET', '/open')).body, { principal: { kind: 'anonymous', id: '' }, body: null })
})

t.test('a route whose guard is not there is closed, and opens when it comes', async (t) => {
  const { kernel, ask } = await house(t, [route('GET', '/guarded', () => ({ body: 1 }), { guard: 'late' })])

  t.match(await ask('GET', '/guarded'), {
    status: 503,
    body: { error: /^Service unavailable: .*'late'/, code: 'INTERNAL_ERROR' }
  })
  const late: Guard = { name: 'late', scheme: {}, errors: {}, check: () => ({ kind: 'user', id: 'u' }) }
  await kernel.begin({ id: 'late', plugin: plugin('late', [], [late]) })
  t.match(await ask('GET', '/guarded'), { status: 200 })
  await t.rejects(kernel.begin({ id: 'twice', plugin: plugin('twice', [], [late]) }), {
    code: 'HTTP_GUARD_CONFLICT',
    message: /'late' of entry 'twice'.*entry 'late'/
  })
  await kernel.retire('late')
  t.match(await ask('GET', '/guarded'), { status: 503 })
})

t.test('a body that is no JSON of the right form is a 400 that says why and quotes nothing', async (t) => {
  const named = schemaOf<{ name: string }>({
    type: 'object',
    required: ['name'],
    properties: { name: { type: 'string' }, inner: { type: 'object', required: ['deep'] } }
  })
  const started = await house(t, [echo('/api/any'), echo('/api/named', { body: named })])
  const { post, ask, lines } = started
  const reason = async (path: string, body: unknown) => {
    const { status, body: answer } = await post(path, body)
    t.equal(status, 400)
    t.match(answer, { error: String, code: 'INVALID_INPUT' })
    return (answer as { error: string }).error
  }

  t.equal(await reason('/api/any', '{"password":"Sekret-77"'), 'the body is not valid JSON (at character 23)')
  t.match(await reason('/api/any', '{not json'), /^the body is not valid JSON/)
  t.match(await reason('/api/any', '"Sekret-77'), /^the body is not valid JSON/)
  t.match(await reason('/api/any', '\ufeff{}'), /^the body is not valid JSON/, 'a byte-order mark')
  t.match(await reason('/api/any', ''), /empty/)
  t.equal(await reason('/api/named', {}), 'missing name')
  t.equal(await reason('/api/named', { name: 1 }), 'name must be string')
  t.equal(await reason('/api/named', { name: 'a', inner: {} }), 'missing deep (at inner.deep)')
  t.match(await reason('/api/named', '[]'), /must be object/)
  t.notMatch(JSON.stringify(lines), /Sekret/, 'nor does the log')
  t.strictSame(errorLines(started), [], 'a bad body is no failure of ours')
  t.match(await ask('POST', '/api/any', { headers: { 'content-type': 'application/json' } }), { status: 400 })
})

t.test('bytes that are no UTF-8 are refused, and what is stays as it was', async (t) => {
  const { post } = await house(t, [echo('/api/any')])
  const bytes = (text: string) => post('/api/any', Buffer.from(text, 'latin1'))

  for (const bad of [
    '{"t":"a\xff"}',
    '{"t":"\xc3("}',
    '{"t":"\xed\xa0\x80"}',
    '{"t":"\xc0\xaf"}',
    '\xff\xfe{}',
    '"\xe2\x82'
  ]) {
    t.match(await bytes(bad), { status: 400, body: { error: 'the body is not valid UTF-8', code: 'INVALID_INPUT' } })
  }
  const text = 'é 价格 🙂 \u2028 \ud83d'
  t.strictSame((await post('/api/any', { text })).body, { got: { text } })
})

t.test('a deep body is refused before anybody has to walk it', async (t) => {
  const { post } = await house(t, [echo('/api/any')])
  const nested = (depth: number) => `${'['.repeat(depth)}${']'.repeat(depth)}`

  t.match(await post('/api/any', nested(64)), { status: 200 })
  for (const deep of [nested(65), nested(10_000), '['.repeat(100_000), '{"a":'.repeat(10_000), `{"a":${nested(64)}}`]) {
    t.match(await post('/api/any', deep), { status: 400, body: { error: /deeper than 64 levels/ } })
  }
  t.match(
    await post('/api/any', JSON.stringify(`${'['.repeat(100)}\\"${'{'.repeat(100)}`)),
    { status: 200 },
    'not in a string'
  )
})

t.test('a number that would change its value is refused by name, others are taken', async (t) => {
  const { post } = await house(t, [echo('/api/any')])

  for (const bent of [
    '9007199254740993',
    '-9007199254740993',
    '9007199254740992',
    '12345678901234567890',
    '1e400',
    '-1E+400',
    '1e309',
    `1${'0'.repeat(400)}.5`
  ]) {
    const { status, body } = await post('/api/any', `{"a":["x",${bent}]}`)
    t.equal(status, 400, bent.slice(0, 30))
    t.ok((body as { error: string }).error.includes(bent.slice(0, 30)), 'the number is named')
  }
  for (const fine of [
    '9007199254740991',
    '-9007199254740991',
    '0.1234567890123456789',
    '1e308',
    '1e22',
    '-0',
    '1e-400',
    '123456789012345.5',
    '"9007199254740993"'
  ]) {
    const { status, body } = await post('/api/any', `[${fine}]`)
    t.equal(status, 200, fine)
    t.strictSame((body as { got: unknown }).got, [JSON.parse(fine)], fine)
  }
  t.match(await post('/api/any', '[1234567890123456-]'), { status: 400, body: { error: /not valid JSON/ } })
})

t.test('keys named as parts of objects are plain keys', async (t) => {
  const { post } = await house(t, [
    route(
      'POST',
      '/api/any',
      ({ body }) => ({ body: { text: JSON.stringify(body), admin: String((body as { admin?: unknown }).admin) } }),
      {
        body: schemaOf({ type: 'object', additionalProperties: true })
      }
    ),
    echo('/api/register', { body: schemaOf({ type: 'object', required: ['email'] }) })
  ])
  const text = '{"__proto__":{"admin":true},"constructor":{"prototype":{"z":1}},"toString":"t"}'

  t.strictSame((await post('/api/any', text)).body, { text, admin: 'undefined' })
  t.match(await post('/api/register', '{"__proto__":{"email":"p@x.test"}}'), { status: 400 })
  t.equal(({} as { z?: unknown }).z, undefined)
})

t.test('only JSON is taken where JSON is wanted', async (t) => {
  const { ask, post } = await house(t, [echo('/api/any'), echo('/api/optional', { bodyOptional: true })])

  for (const type of [
    'application/json',
    'APPLICATION/JSON',
    'application/json; charset=utf-8',
    'application/json;charset="UTF-8"',
    'application/merge-patch+json'
  ]) {
    t.match(await post('/api/any', '{}', { 'content-type': type }), { status: 200 }, type)
  }
  for (const type of [
    'text/plain',
    'application/jsonp',
    'application/x-www-form-urlencoded',
    'application/json; charset=latin1',
    ''
  ]) {
    t.match(
      await post('/api/any', '{}', { 'content-type': type }),
      { status: 415, body: { code: 'UNSUPPORTED_MEDIA_TYPE' } },
      type
    )
  }
  t.match(await ask('POST', '/api/any', { body: '{}' }), { status: 415 })
  t.match(await ask('POST', '/api/any'), { status: 415 })
  t.strictSame((await ask('POST', '/api/optional')).body, { got: {} }, 'no body, no type')
  t.match(await ask('POST', '/api/optional', { body: 'x' }), { status: 415 })
  t.match(await post('/api/optional', { a: 1 }), { body: { got: { a: 1 } } })
})

t.test('a body may be as long as its route allows', async (t) => {
  const { post } = await house(t, [
    echo('/api/any'),
    echo('/api/large', { maxBodyBytes: 2_000_000 }),
    echo('/api/small', { maxBodyBytes: 4 })
  ])
  const sized = (bytes: number) => `"${'x'.repeat(bytes - 2)}"`

  t.match(await post('/api/any', sized(1_048_576)), { status: 200 })
  t.match(await post('/api/any', sized(1_048_577)), {
    status: 413,
    body: { error: /1048576 bytes/, code: 'PAYLOAD_TOO_LARGE' }
  })
  t.match(await post('/api/large', sized(1_048_577)), { status: 200 })
  t.match(await post('/api/small', '"12"'), { status: 200 })
  t.match(await post('/api/small', '"123"'), { status: 413 })
})

t.test('a query is checked, and its texts become what the schema says', async (t) => {
  const page = schemaOf({
    type: 'object',
    properties: { page: { type: 'integer', default: 1 }, all: { type: 'boolean' }, q: { type: 'string' } }
  })
  const { ask } = await house(t, [route('GET', '/api/list', ({ query }) => ({ body: query }), { query: page })])

  t.strictSame((await ask('GET', '/api/list')).body, { page: 1 })
  t.strictSame((await ask('GET', '/api/list?page=2&all=true&q=a%26b+c&other=1&__proto__=x')).body, {
    page: 2,
    all: true,
    q: 'a&b c',
    other: '1',
    ['__proto__']: 'x'
  })
  t.match(await ask('GET', '/api/list?page=abc'), { status: 400, body: { error: 'page must be integer' } })
  t.match(await ask('GET', '/api/list?q=1&q=2'), { status: 400 })
  t.match(await ask('GET', '/api/list?q=%ff&token=Sekret-77'), { status: 400, body: { error: /percent escape/ } })
})

t.test('a handler may look at the bytes first and read them as JSON then', async (t) => {
  const { ask } = await house(t, [
    route('POST', '/hook', (request) => ({ body: { got: request.json() } }), { rawBody: true })
  ])
  const send = (body: string) => ask('POST', '/hook', { body, headers: { 'content-type': 'text/plain' } })

  t.match(await send('{"a":[1]}'), { status: 200, body: { got: { a: [1] } } })
  for (const wrong of ['{', '', '9007199254740993', 'null,']) {
    t.match(await send(wrong), { status: 400, body: { code: 'INVALID_INPUT' } }, wrong)
  }
})

t.test('row 121: headers for browsers stand on every answer where the program says so, and on none else', async (t) => {
  const headers = {
    'x-content-type-options': 'nosniff',
    'x-frame-options': 'DENY',
    'referrer-policy': 'no-referrer',
    'content-security-policy': "default-src 'none'; frame-ancestors 'none'"
  }
  const own = { 'content-security-policy': "default-src 'self'" }
  const rig = plugin('rig', [
    echo('/api/echo'),
    route('GET', '/page', () => ({ headers: own, text: 'x' })),
    route('GET', '/response', () => new Response('x', { headers: { 'X-Frame-Options': 'SAMEORIGIN' } }))
  ])
  for (const security_headers of [true, false]) {
    const config = { listen: false, security_headers }
    const { services } = await startHouse(t, [{ plugin: http, config }, { plugin: rig }], { store: false })
    const ask = async (method: string, path: string, more: object = {}) =>
      (await services('http').dispatch({ method, path, ...more })).headers
    const found = [
      await ask('GET', '/health'),
      await ask('GET', '/nowhere'),
      await ask('DELETE', '/api/echo'),
      await ask('OPTIONS', '/api/echo'),
      await ask('POST', '/api/echo', { body: { a: 1 } }),
      await ask('POST', '/api/echo', { body: '{', headers: { 'content-type': 'application/json' } }),
      await ask('GET', '/health', { headers: { origin: 'http://localhost:3000' } })
    ]
    for (const each of found) {
      if (security_headers) t.match(each, headers)
      else for (const name of Object.keys(headers)) t.notOk(name in each, name)
    }
    if (!security_headers) continue
    t.match(await ask('GET', '/page'), { ...headers, ...own }, 'what an answer says itself stays')
    t.match(await ask('GET', '/response'), { ...headers, 'x-frame-options': 'SAMEORIGIN' })
  }
})

t.test('the bytes of a body are handed over where the route asks for them', async (t) => {
  const bytes = ({ rawBody, body }: Request) => ({
    body: { hex: Buffer.from(rawBody ?? []).toString('hex'), body: body ?? null }
  })
  const { ask, post } = await house(t, [
    route('POST', '/hook', bytes, { rawBody: true }),
    route('POST', '/both', bytes, { rawBody: true, body: anything })
  ])

  t.strictSame((await ask('POST', '/hook', { body: Buffer.from([0, 255, 1]) })).body, { hex: '00ff01', body: null })
  t.strictSame((await ask('POST', '/hook')).body, { hex: '', body: null })
  t.strictSame((await post('/both', '[1]')).body, { hex: '5b315d', body: [1] })
})

t.test('errors become what the route, then its guard, then the house makes of them', async (t) => {
  const fail = (error: unknown, more: Partial<Route> = {}) => {
    const path = `/api/fail/${count++}`
    return {
      path,
      route: route(
        'GET',
        path,
        async () => {
          throw error
        },
        more
      )
    }
  }
  let count = 0
  const coded = (code: string, detail?: Record<string, unknown>) =>
    new CodedError(code, `text of ${code}`, detail === undefined ? {} : { detail })
  const errors = {
    LONG: 422,
    BUSY: 503,
    SLOW: 429,
    OFF: { status: 400, code: 'INTERNAL_ERROR' },
    QUOTA: { status: 429, code: 'RATE_LIMITED' },
    UP: 502
  }
  const guard: Guard = {
    name: 'g',
    scheme: {},
    errors: { LONG: 400, OLD: 401 },
    check: () => ({ kind: 'user', id: 'u' })
  }
  const cases = {
    mapped: fail(coded('LONG'), { errors, guard: 'g' }),
    guards: fail(coded('OLD'), { errors, guard: 'g' }),
    busy: fail(coded('BUSY', { retryAfterSeconds: 1.2 }), { errors }),
    slow: fail(coded('SLOW'), { errors }),
    off: fail(coded('OFF'), { errors }),
    quota: fail(coded('QUOTA'), { errors }),
    up: fail(coded('UP'), { errors }),
    workers: fail(coded('WORKERS_BUSY', { retryAfterSeconds: 3 })),
    full: fail(coded('STORE_FULL')),
    store: fail(coded('STORE_FAILED'), { errors }),
    unknown: fail(coded('NOBODY_KNOWS'), { errors }),
    inherited: fail(coded('toString'), { errors }),
    plain: fail(new Error('at /home/secret')),
    nothing: fail(undefined)
  }
  const started = await house(
    t,
    Object.values(cases).map((each) => each.route),
    [guard]
  )
  const outcome = async (name: keyof typeof cases) => {
    const { status, body, headers } = await started.ask('GET', cases[name].path)
    return [status, (body as { code: string }).code, (body as { error: string }).error, headers['retry-after'] ?? null]
  }

  t.strictSame(await outcome('mapped'), [422, 'INVALID_INPUT', 'text of LONG', null])
  t.strictSame(await outcome('guards'), [401, 'AUTHENTICATION_FAILED', 'text of OLD', null])
  t.strictSame(await outcome('busy'), [503, 'INTERNAL_ERROR', 'Service unavailable: text of BUSY', '2'])
  t.strictSame(await outcome('slow'), [429, 'INTERNAL_ERROR', 'Rate limited: text of SLOW', null])
  t.strictSame(await outcome('off'), [400, 'INTERNAL_ERROR', 'Feature disabled: text of OFF', null])
  t.strictSame(
    await outcome('quota'),
    [429, 'RATE_LIMITED', 'text of QUOTA', null],
    'a code that tells needs no prefix'
  )
  t.strictSame(await outcome('up'), [502, 'EXTERNAL_SERVICE_ERROR', 'text of UP', null])
  t.match(await outcome('workers'), [503, 'INTERNAL_ERROR', /^Service unavailable: /, '3'])
  t.match(await outcome('full'), [507, 'INTERNAL_ERROR', /no room/, null])
  t.strictSame(await outcome('store'), [500, 'DATABASE_ERROR', 'the data could not be read or written', null])
  for (const name of ['unknown', 'inherited', 'plain', 'nothing'] as const) {
    t.strictSame(await outcome(name), [500, 'INTERNAL_ERROR', 'internal error', null], name)
  }

  const { headers } = await started.ask('GET', cases.plain.path, { headers: { 'x-request-id': 'find-me' } })
  t.equal(headers['cache-control'], 'no-store')
  t.match(
    errorLines(started).at(-1),
    { requestId: 'find-me', path: cases.plain.path, error: { message: 'at /home/secret', stack: String } },
    'the log has it whole, under the id of the answer'
  )
  t.match(await started.ask('GET', cases.guards.path), { headers: { 'www-authenticate': 'Bearer' } })
})

t.test('a route may have a form of its own for refusals', async (t) => {
  const renderProblem: NonNullable<Route['renderProblem']> = ({ status, code, message }) => ({
    status: status === 415 ? 400 : status,
    headers: { 'x-form': 'own' },
    body: { failure: { code, message } }
  })
  const broken = () => {
    throw new Error('cannot render')
  }
  const started = await house(
    t,
    [
      echo('/run', { renderProblem, guard: 'closed' }),
      echo('/open', { renderProblem }),
      echo('/broken', { renderProblem: broken })
    ],
    [closed]
  )
  const { post, ask } = started

  t.match(await post('/run', {}), {
    status: 401,
    body: { failure: { code: 'AUTHENTICATION_FAILED', message: 'Unauthorized' } }
  })
  t.match(await post('/open', '{'), {
    status: 400,
    headers: { 'x-form': 'own', 'cache-control': 'no-store' },
    body: { failure: { code: 'INVALID_INPUT' } }
  })
  t.match(await ask('POST', '/open', { body: 'x' }), {
    status: 400,
    body: { failure: { code: 'UNSUPPORTED_MEDIA_TYPE' } }
  })
  t.match(await post('/open', 'x'.repeat(1_048_577)), { status: 413, body: { failure: { code: 'PAYLOAD_TOO_LARGE' } } })
  t.match(
    await post('/broken', '{'),
    { status: 400, body: { code: 'INVALID_INPUT' } },
    'a form that fails gives way to the plain one'
  )
  t.match(errorLines(started), [{ error: { message: 'cannot render' } }])
})

t.test('every answer has an id, that of the request if it is sane', async (t) => {
  const { ask } = await house(t, [
    route('GET', '/id', ({ id }) => ({ headers: { 'X-Request-Id': 'forged' }, body: id }))
  ])
  const idFor = async (given?: string) => {
    const { headers, body } = await ask('GET', '/id', { headers: given === undefined ? {} : { 'x-request-id': given } })
    t.equal(headers['x-request-id'], body)
    return body
  }

  t.equal(await idFor('abc-123'), 'abc-123')
  t.equal(await idFor('x'.repeat(128)), 'x'.repeat(128))
  const made = await Promise.all([idFor(), idFor(), idFor(''), idFor('a b'), idFor('x'.repeat(129)), idFor('é')])
  t.equal(new Set(made).size, made.length, 'no two are alike')
  for (const id of made) t.match(id, /^[\w-]{9,40}$/)
})

t.test('a page of a listed origin may call and read, another may not', async (t) => {
  const routes = [
    route('POST', '/api/chat', () => ({ headers: { 'x-input-tokens': '5' }, body: 1 }), { body: anything })
  ]
  const { ask, post, kernel } = await house(t, routes)
  const home = { origin: 'http://localhost:3000' }
  const asked = await ask('OPTIONS', '/api/chat', {
    headers: { ...home, 'access-control-request-method': 'POST', 'access-control-request-headers': 'x-admin-secret' }
  })

  t.match(asked, {
    status: 204,
    headers: {
      'access-control-allow-origin': 'http://localhost:3000',
      'access-control-allow-credentials': 'true',
      'access-control-allow-methods': /GET.*POST.*PUT.*PATCH.*DELETE/,
      'access-control-allow-headers': /X-Admin-Secret/,
      vary: 'origin'
    }
  })
  t.match((await post('/api/chat', {}, home)).headers, {
    'access-control-allow-origin': 'http://localhost:3000',
    'access-control-expose-headers': /x-request-id.*x-input-tokens/
  })
  t.match(
    (await post('/api/nope', {}, home)).headers,
    { 'access-control-allow-origin': 'http://localhost:3000' },
    'a refusal too'
  )
  for (const origin of ['http://evil.test', 'http://localhost:3000.evil.test', 'null', 'http://localhost']) {
    const { headers } = await ask('OPTIONS', '/api/chat', { headers: { origin } })
    t.equal(headers['access-control-allow-origin'], undefined, origin)
    t.equal((await post('/api/chat', {}, { origin })).headers['access-control-allow-origin'], undefined, origin)
  }

  await kernel.update('http', { listen: false, cors_origins: ['*'] })
  t.match((await post('/api/chat', {}, { origin: 'http://any.test' })).headers, { 'access-control-allow-origin': '*' })
  t.equal(
    (await post('/api/chat', {}, { origin: 'http://any.test' })).headers['access-control-allow-credentials'],
    undefined
  )
  await t.rejects(kernel.update('http', { listen: false, cors_origins: ['https://a.test/'] }), {
    code: 'PLUGIN_CONFIG_INVALID'
  })
})

t.test('headers that are shared by many answers stay as they are', async (t) => {
  const headers = Object.freeze({ 'Content-Type': 'text/x', 'x-a': '1' })
  const text = () => ({ headers, text: 'x' })
  const { ask } = await house(t, [
    route('GET', '/plain', text),
    route('GET', '/api/plain', text),
    route('GET', '/json', () => ({ headers, body: 'x' })),
    route('GET', '/empty', () => ({ status: 204, headers }))
  ])
  const origin = 'http://localhost:3000'
  for (let round = 0; round < 3; round++) {
    t.match(await ask('GET', '/plain'), {
      headers: { 'content-type': 'text/x', 'x-a': '1', 'cache-control': undefined }
    })
    t.match(await ask('GET', '/api/plain'), { headers: { 'content-type': 'text/x', 'cache-control': 'no-store' } })
    t.match(await ask('GET', '/plain', { headers: { origin } }), { headers: { 'access-control-allow-origin': origin } })
    t.equal((await ask('GET', '/plain')).headers['access-control-allow-origin'], undefined)
    t.match(await ask('GET', '/json'), { headers: { 'content-type': 'text/x' } })
    t.match(await ask('GET', '/empty'), { status: 204, headers: { 'x-a': '1' } })
  }
})

t.test('a reply may be a value, text, bytes, nothing, or a Response', async (t) => {
  const kinds: Record<string, Handle> = {
    value: () => ({ status: 201, body: { a: 1 } }),
    none: () => ({ body: undefined }),
    text: () => ({ text: 'hé' }),
    typed: () => ({ headers: { 'Content-Type': 'text/x-toon', 'cache-control': 'private' }, text: 'a: 1' }),
    bytes: () => ({ headers: { 'content-type': 'image/png' }, bytes: new Uint8Array([1, 2]) }),
    empty: () => ({ status: 204 }),
    unchanged: () => ({ status: 304, headers: { etag: '"x"' } }),
    response: () => new Response('made elsewhere', { status: 202, headers: { 'x-a': '1', 'content-length': '14' } }),
    bare: () => new Response(null, { status: 204 })
  }
  const { ask } = await house(
    t,
    Object.entries(kinds).map(([name, handle]) => route('GET', `/api/${name}`, handle))
  )
  const get = (name: string) => ask('GET', `/api/${name}`)

  t.match(await get('value'), {
    status: 201,
    body: { a: 1 },
    headers: { 'content-type': 'application/json', 'cache-control': 'no-store' }
  })
  t.match(await get('none'), { status: 200, body: null })
  t.match(await get('text'), { body: 'hé', headers: { 'content-type': 'text/plain; charset=utf-8' } })
  t.match(await get('typed'), { body: 'a: 1', headers: { 'content-type': 'text/x-toon', 'cache-control': 'private' } })
  t.match(await get('bytes'), { body: '\x01\x02', headers: { 'content-type': 'image/png' } })
  t.match(await get('empty'), { status: 204, body: undefined })
  t.equal((await get('empty')).headers['content-type'], undefined)
  t.match(await get('unchanged'), { status: 304, body: undefined, headers: { etag: '"x"' } })
  t.match(await get('response'), { status: 202, body: 'made elsewhere', headers: { 'x-a': '1' } })
  t.equal((await get('response')).headers['content-length'], undefined, 'framing is for the transport')
  t.match(await get('bare'), { status: 204, body: undefined })
})

t.test('a handler cannot break the head of its answer', async (t) => {
  const bad = [{ 'x-a': 'b\r\nset-cookie: c' }, { 'x-a\r\n': 'b' }, { 'x a': 'b' }, { 'x-a': 'b\0' }, { 'x-a': 'é' }]
  const started = await house(
    t,
    bad.map((headers, at) => route('GET', `/bad/${at}`, () => ({ headers, body: 1 })))
  )

  for (const at of bad.keys()) {
    const { status, headers } = await started.ask('GET', `/bad/${at}`)
    t.equal(status, 500)
    t.equal(headers['set-cookie'], undefined)
  }
  t.equal(errorLines(started).length, bad.length)
})

t.test('events become lines that no content can break', async (t) => {
  const nasty = 'a\rdata: {"event":"done"}\r\rb\n\nevent: done\n\nc\u2028\u2029'
  async function* events(): AsyncGenerator<StreamEvent> {
    yield { event: 'token', data: { content: nasty } }
    yield { data: undefined }
  }
  const { ask } = await house(t, [route('GET', '/events', () => ({ events: events() }))])

  const { body, headers } = await ask('GET', '/events')
  t.match(headers, {
    'content-type': 'text/event-stream',
    'cache-control': 'no-cache, no-transform',
    'x-accel-buffering': 'no'
  })
  const text = body as string
  t.notMatch(text, /[\r\u2028\u2029]/)
  t.strictSame(text.split('\n').length, 6)
  t.strictSame(JSON.parse((text.split('\n')[1] as string).slice(6)), { content: nasty })
  t.match(text, /\n\ndata: null\n\n$/)
})

t.test('a producer that fails cuts its stream, so that nobody takes it for whole', async (t) => {
  async function* events(): AsyncGenerator<StreamEvent> {
    yield { data: 1 }
    throw new Error('gone wrong')
  }
  async function* named(): AsyncGenerator<StreamEvent> {
    yield { event: 'a\nb', data: 1 }
  }
  const started = await house(t, [
    route('GET', '/events', () => ({ events: events() })),
    route('GET', '/named', () => ({ events: named() }))
  ])

  await t.rejects(started.ask('GET', '/events'))
  await t.rejects(started.ask('GET', '/named'))
  t.match(errorLines(started), [{ error: { message: 'gone wrong' } }, { error: { message: /name of an event/ } }])
})

/** A stream that tells why it has to end, as its last event. */
const patient = (started: () => void) =>
  route('GET', '/patient', ({ signal }) => ({
    events: (async function* (): AsyncGenerator<StreamEvent> {
      yield { data: 'first' }
      started()
      if (!signal.aborted) await once(signal, 'abort')
      yield { event: 'error', data: (signal.reason as CodedError).code }
    })()
  }))

t.test('a stream hears that its generation must end, and says its last word', async (t) => {
  for (const [entry, config] of [
    ['rig', {}],
    ['http', { listen: false, cors_origins: ['*'] }]
  ] as const) {
    const begun = deferred<void>()
    const started = await startHouse(t, [{ plugin: plugin('rig', [patient(begun.resolve)]) }], {
      store: false,
      settings: { drain_timeout_ms: 1 }
    })
    const reply = started.services('http').dispatch({ method: 'GET', path: '/patient' })
    await begun.promise
    await started.kernel.update(entry, config)
    t.match(
      await reply,
      { body: /data: "first"\n\nevent: error\ndata: "DRAIN_TIMEOUT"\n\n$/ },
      `when ${entry} is swapped`
    )
  }

  const begun = deferred<void>()
  const started = await startHouse(t, [{ plugin: plugin('rig', [patient(begun.resolve)]) }], { store: false })
  const reply = started.services('http').dispatch({ method: 'GET', path: '/patient' })
  await begun.promise
  const stopped = started.kernel.stop(10)
  t.match(await reply, { body: /data: "SHUTTING_DOWN"/ }, 'when the server stops')
  await stopped
})

t.test('a thousand streams hear it together, without a warning', async (t) => {
  const warnings: Error[] = []
  const note = (warning: Error) => warnings.push(warning)
  process.on('warning', note)
  t.teardown(() => process.off('warning', note))
  const count = 1_000
  let waiting = 0
  const begun = deferred<void>()
  const started = await startHouse(
    t,
    [
      {
        plugin: plugin('rig', [
          patient(() => {
            waiting += 1
            if (waiting === count) begun.resolve()
          })
        ])
      }
    ],
    { store: false, settings: { drain_timeout_ms: 1 } }
  )
  const replies = Array.from({ length: count }, () =>
    started.services('http').dispatch({ method: 'GET', path: '/patient' })
  )
  await begun.promise
  await started.kernel.update('http', { listen: false, cors_origins: ['*'] })
  const bodies = new Set((await Promise.all(replies)).map(({ body }) => body))
  t.strictSame([...bodies], ['data: "first"\n\nevent: error\ndata: "DRAIN_TIMEOUT"\n\n'])
  t.strictSame(warnings, [])
})

t.test('who asks in process may leave, and the handler hears of it', async (t) => {
  const heard = deferred<unknown>()
  const begun = deferred<void>()
  const { ask } = await house(t, [
    route('GET', '/slow', async ({ signal }) => {
      begun.resolve()
      await once(signal, 'abort')
      heard.resolve(signal.reason)
      return { body: 1 }
    })
  ])
  const leaving = new AbortController()
  const reply = ask('GET', '/slow', { signal: leaving.signal })
  await begun.promise
  leaving.abort(new Error('enough'))

  await t.rejects(reply, { message: 'enough' })
  t.match(await heard.promise, { code: 'CLIENT_GONE' })
})

t.test('while plugins start, what is not there yet is answered 503 with a time to come back', async (t) => {
  let ready = false
  const kernel = definePlugin({
    name: 'kernel-stub',
    provides: ['kernel'],
    apply(ctx) {
      ctx.provide('kernel', { isReady: () => ready } as KernelControl)
    }
  })
  const { services } = await startHouse(t, [{ plugin: kernel }], { store: false })
  const ask = () => services('http').dispatch({ method: 'GET', path: '/agent/tools' })
  t.match(await ask(), {
    status: 503,
    headers: { 'retry-after': '1' },
    body: { error: 'Service unavailable: the server is starting', code: 'INTERNAL_ERROR' }
  })
  t.match(await services('http').dispatch({ method: 'GET', path: '/health' }), { status: 200, body: 'OK' })
  ready = true
  t.match(await ask(), { status: 404 })
})
