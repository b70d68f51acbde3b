import { createHmac } from 'node:crypto'
import t from 'tap'
import carmy from '../../plugins/carmy/index.ts'
import http from '../../plugins/http/index.ts'
import { jobsAt } from '../../plugins/jobs/index.ts'
import tools from '../../plugins/tools/index.ts'
import { webhooksAt } from '../../plugins/webhooks/index.ts'
import { isGenuine } from '../../plugins/webhooks/signature.ts'
import { eventIdOf } from '../../plugins/webhooks/webhook.ts'
import { ManualClock } from '../fakes/manual-clock.ts'
import { fixtureTools, toolOf, toolsPlugin, trustingGuard, World } from '../fixtures/carmy-tools.ts'
import { startHouse, startProgram } from '../harness.ts'

type T = Parameters<typeof startHouse>[0]

const secret = 'kept-between-the-two'
const counting = { path: '/hooks/count', tool: 'count', event_id: '/id', secret }
const queued = { ...counting, path: '/hooks/queued', mode: 'enqueue' }

interface Answer {
  readonly status: number
  readonly headers: Headers
  readonly text: string
  readonly body: Record<string, unknown> & { readonly error?: Record<string, unknown> }
}

interface Options {
  readonly transport?: string
  readonly clock?: ManualClock
  readonly jobsConfig?: object
}

/** A house with these webhooks behind a real socket, and short ways to deliver. */
async function startWebhooks(
  t: T,
  webhooks: readonly object[],
  { transport = 'node', clock = new ManualClock(), jobsConfig = {} }: Options = {}
) {
  const world = new World()
  const seen: unknown[] = []
  const spy = toolOf<unknown, unknown>({
    name: 'spy',
    effect: 'write',
    anonymous: false,
    run(input, { requestId, principal, permissions }) {
      seen.push({ input, requestId, principal, permissions: [...permissions] })
      return 'seen'
    }
  })
  const house = await startHouse(t, [
    { plugin: http, config: { port: 0, transport } },
    { plugin: tools },
    { plugin: trustingGuard },
    { plugin: toolsPlugin(() => [...fixtureTools(world), spy]) },
    { plugin: carmy, config: { server: 'fix' } },
    { plugin: jobsAt(clock), config: { anonymous: true, ...jobsConfig } }
  ])
  await house.kernel.begin({ id: 'webhooks', plugin: webhooksAt(() => clock.now()), config: { webhooks } })
  const base = `http://127.0.0.1:${house.services('http').address?.port}`
  async function ask(path: string, init: RequestInit = {}): Promise<Answer> {
    const response = await fetch(base + path, init)
    const text = await response.text()
    return { status: response.status, headers: response.headers, text, body: text === '' ? {} : JSON.parse(text) }
  }
  const post = (path: string, body: string | Buffer, headers: Record<string, string> = {}) =>
    ask(path, { method: 'POST', body, headers })
  const deliver = (path: string, payload: unknown, form: (hex: string) => string = (hex) => hex) => {
    const body = JSON.stringify(payload)
    return post(path, body, { 'x-hub-signature-256': form(sign(body)) })
  }
  const run = (tool: string, input: unknown, headers: Record<string, string> = {}) =>
    post('/agent/execute', JSON.stringify({ tool, arguments: input }), {
      'content-type': 'application/json',
      ...headers
    })
  return { ...house, world, clock, seen, ask, post, deliver, run }
}

function sign(body: string | Uint8Array, key = secret): string {
  return createHmac('sha256', key).update(body).digest('hex')
}

for (const transport of ['node', 'uws']) {
  t.test(`over ${transport}`, async (t) => {
    const { post, deliver, run, ask, world, services } = await startWebhooks(
      t,
      [counting, queued, { path: '/hooks/spy', tool: 'spy', secret }],
      { transport }
    )

    t.test('row 109: a delivery that is not signed as it should be is refused, and no tool runs', async (t) => {
      const body = '{"k":"a"}'
      const wrong: Record<string, string>[] = [
        {},
        { 'x-hub-signature-256': '' },
        { 'x-hub-signature-256': sign(body, 'another') },
        { 'x-hub-signature-256': sign(`${body} `) },
        { 'x-hub-signature-256': `sha1=${sign(body)}` },
        { 'x-hub-signature-256': sign(body).slice(0, 62) },
        { 'x-hub-signature-256': `${sign(body)}00` },
        { 'x-hub-signature-256': secret },
        { 'x-signature': sign(body) }
      ]
      for (const headers of wrong) {
        const refused = await post('/hooks/count', body, headers)
        t.equal(refused.status, 401)
        t.strictSame(Object.keys(refused.body), ['error'])
        t.match(refused.body.error, {
          code: 'WEBHOOK_UNAUTHORIZED',
          category: 'permission',
          recoverable: false,
          retryable: false
        })
        t.equal(refused.headers.get('cache-control'), 'no-store')
        t.notMatch(refused.text, secret)
      }
      t.match(await post('/hooks/queued', body), { status: 401 })
      t.equal((await post('/hooks/count', 'no JSON at all')).status, 401, 'the signature is looked at first')
      t.equal(world.count('count'), 0)
    })

    t.test('row 110: one that is, with or without sha256= and white space, is answered as execute is', async (t) => {
      for (const form of [
        (hex: string) => hex,
        (hex: string) => `sha256=${hex}`,
        (hex: string) => `  sha256=${hex} `
      ]) {
        const answer = await deliver('/hooks/count', { k: 'form' }, form)
        t.equal(answer.status, 200)
        t.match(answer.body, {
          execution_id: /^exec_/,
          status: 'completed',
          data: { n: Number },
          _agent: { cacheable: false, next_actions: [] }
        })
        t.equal(answer.headers.get('cache-control'), 'no-store')
        t.equal(answer.headers.get('content-type'), 'application/json')
      }
      t.match(await deliver('/hooks/count', { wrong: true }), {
        status: 400,
        body: { error: { code: 'INVALID_ARGUMENTS' } }
      })
    })

    t.test('row 111: one that is signed and no JSON is INVALID_REQUEST', async (t) => {
      for (const body of ['{', '', 'a=b', '"\xff']) {
        const bytes = Buffer.from(body, 'latin1')
        const answer = await post('/hooks/count', bytes, { 'x-hub-signature-256': sign(bytes) })
        t.equal(answer.status, 400)
        t.match(answer.body, {
          error: { code: 'INVALID_REQUEST', category: 'validation', recoverable: false, details: { reason: String } }
        })
      }
      const number = await deliver('/hooks/count', { k: 'a' }).then(() =>
        post('/hooks/count', '{"id":9007199254740993}', { 'x-hub-signature-256': sign('{"id":9007199254740993}') })
      )
      t.match(number.body, { error: { code: 'INVALID_REQUEST' } }, 'a number that would change names another event')
      const large = Buffer.alloc(1_048_577, 0x20)
      t.match(await post('/hooks/count', large, { 'x-hub-signature-256': sign(large) }), {
        status: 413,
        body: { error: { code: 'PAYLOAD_TOO_LARGE' } }
      })
    })

    t.test('row 112: the same event delivered again gets the same bytes, and nothing is done again', async (t) => {
      const before = world.count('count')
      const first = await deliver('/hooks/count', { id: 'evt_1', k: 'once' })
      const again = await deliver('/hooks/count', { k: 'once', id: 'evt_1' })
      t.equal(first.status, 200)
      t.equal(again.text, first.text)
      t.equal(world.count('count'), before + 1)
      t.match(await deliver('/hooks/count', { id: 'evt_1', k: 'other' }), {
        body: { error: { code: 'IDEMPOTENCY_CONFLICT' } }
      })
      await deliver('/hooks/count', { id: 7, k: 'number' })
      await deliver('/hooks/count', { id: 7, k: 'number' })
      t.equal(world.count('count'), before + 2, 'a number is an identity as well')
      for (const payload of [{ k: 'none' }, { id: '', k: 'none' }, { id: null, k: 'none' }]) {
        await deliver('/hooks/count', payload)
        await deliver('/hooks/count', payload)
      }
      t.equal(world.count('count'), before + 8, 'what has none is told from nothing')
    })

    t.test('row 113: a delivery becomes a job, which carmy_job tells of', async (t) => {
      const accepted = await deliver('/hooks/queued', { id: 'evt_q', k: 'q' })
      t.equal(accepted.status, 202)
      t.equal(accepted.headers.get('cache-control'), 'no-store')
      const { job_id } = accepted.body as { job_id: string }
      t.match(accepted.body, {
        job_id: /^job_/,
        request_id: 'evt_q',
        _agent: { next_actions: [{ tool: 'carmy_job', arguments: { job_id } }] }
      })
      const jobs = services('jobs')
      while ((await jobs.get(job_id))?.status !== 'succeeded') await new Promise((resolve) => setImmediate(resolve))
      const told = await run('carmy_job', { job_id })
      t.match(told.body, { status: 'completed', data: { status: 'succeeded', attempts: 1, result: { n: 1 } } })
      t.notMatch(told.text, 'evt_q","k"', 'never the arguments')
      t.equal((await deliver('/hooks/queued', { id: 'evt_q', k: 'q' })).body['job_id'], job_id, 'delivered again')
      t.match(await deliver('/hooks/queued', { id: 'evt_q', k: 'z' }), {
        status: 409,
        body: { error: { code: 'IDEMPOTENCY_CONFLICT', category: 'conflict' } }
      })
      t.equal((await deliver('/hooks/queued', { k: 'none' })).body['request_id'], null)
      t.match(await deliver('/hooks/queued', { id: 'x'.repeat(257), k: 'long' }), {
        status: 400,
        body: { error: { code: 'INVALID_ID', category: 'validation' } }
      })
    })

    t.test('row 114: a job nobody knows is JOB_NOT_FOUND', async (t) => {
      t.match(await run('carmy_job', { job_id: 'job_none' }), {
        status: 404,
        body: { error: { code: 'JOB_NOT_FOUND', category: 'not_found', recoverable: true } }
      })
    })

    t.test('row 115: discovery lists webhooks, without their secrets', async (t) => {
      const { body, text } = await ask('/.well-known/agent')
      t.ok((body['capabilities'] as string[]).includes('webhooks'))
      t.strictSame(body['webhooks'], [
        { event_id: '/id', mode: 'inline', path: '/hooks/count', tool: 'count', verified: true },
        { event_id: '/id', mode: 'enqueue', path: '/hooks/queued', tool: 'count', verified: true },
        { event_id: null, mode: 'inline', path: '/hooks/spy', tool: 'spy', verified: true }
      ])
      t.notMatch(text, secret)
    })
  })
}

for (const transport of ['node', 'uws']) {
  t.test(`row 113, over ${transport}: a job of a delivery is queued until a worker takes it`, async (t) => {
    const { deliver, run, world, clock, services } = await startWebhooks(t, [{ ...queued, tool: 'sleep' }], {
      transport,
      jobsConfig: { concurrency: 1 }
    })
    await services('jobs').enqueue({ tool: 'sleep', arguments: { gate: 'first' }, caller: { principal: 'user:ann' } })
    await world.until('sleep first')
    const accepted = await deliver('/hooks/queued', { gate: 'g' })
    const { job_id } = accepted.body as { job_id: string }
    // The worker is busy.
    t.match((await run('carmy_job', { job_id })).body, {
      data: { job_id, status: 'queued', attempts: 0, run_at: new Date(clock.now()).toISOString() },
      _agent: { cacheable: false, next_actions: [{ tool: 'carmy_job', after_ms: 1_000 }] }
    })
    world.open('first')
    await world.until('sleep g').catch(() => {})
    world.open('g')
  })
}

t.test('a delivery runs as its webhook and nobody else, with no permissions', async (t) => {
  const { deliver, seen } = await startWebhooks(t, [
    { path: '/hooks/spy', tool: 'spy', event_id: '/id', secret },
    { path: '/hooks/wipe', tool: 'wipe', secret }
  ])
  await deliver('/hooks/spy', { id: 'e', deep: [1, { a: null }] })
  t.strictSame(seen, [
    { input: { id: 'e', deep: [1, { a: null }] }, requestId: 'e', principal: 'webhook:/hooks/spy', permissions: [] }
  ])
  t.match(await deliver('/hooks/wipe', {}), { status: 403, body: { error: { code: 'CONFIRMATION_REQUIRED' } } })
})

t.test('ids of events belong to their webhook', async (t) => {
  const other = { ...counting, path: '/hooks/other' }
  const open = { path: '/hooks/open', tool: 'count', event_id: '/id', unverified: true }
  const { deliver, post, world } = await startWebhooks(t, [counting, other, open])
  const payload = { id: 'same', k: 'a' }
  await deliver('/hooks/count', payload)
  await deliver('/hooks/other', payload)
  await post('/hooks/open', JSON.stringify(payload))
  const execute = { tool: 'count', arguments: { k: 'b' }, request_id: 'same' }
  t.match(await post('/agent/execute', JSON.stringify(execute), { 'content-type': 'application/json' }), {
    status: 200
  })
  t.equal(world.count('count'), 4)
})

t.test('an unverified webhook may do what anybody may, and says so in discovery', async (t) => {
  const { post, ask, seen } = await startWebhooks(t, [
    { path: '/hooks/open', tool: 'peek', unverified: true },
    { path: '/hooks/spy', tool: 'spy', unverified: true }
  ])
  t.match(await post('/hooks/open', '{}'), { status: 200, body: { data: { ok: true } } })
  t.match(await post('/hooks/spy', '{}'), { status: 403, body: { error: { code: 'FORBIDDEN' } } })
  t.strictSame(seen, [])
  t.match((await ask('/.well-known/agent')).body['webhooks'], [{ verified: false }, { verified: false }])
})

t.test('webhooks come and go with a swap, and discovery with them', async (t) => {
  const { kernel, ask, deliver, world } = await startWebhooks(t, [counting])
  const before = await ask('/.well-known/agent')
  await kernel.update('webhooks', { webhooks: [{ ...counting, path: '/hooks/new' }] })
  t.equal((await deliver('/hooks/count', { k: 'a' })).status, 404)
  t.equal((await deliver('/hooks/new', { k: 'a' })).status, 200)
  t.equal(world.count('count'), 1)
  t.match((await ask('/.well-known/agent')).body['webhooks'], [{ path: '/hooks/new' }])
  await kernel.update('webhooks', { webhooks: [] })
  const after = await ask('/.well-known/agent')
  t.notOk('webhooks' in after.body)
  t.notMatch(after.body['capabilities'], ['webhooks'])
  t.not(after.headers.get('etag'), before.headers.get('etag'))
})

t.test('a webhook that cannot work is refused with INVALID_WEBHOOK, and says why', async (t) => {
  const { kernel } = await startWebhooks(t, [counting])
  const wrong: readonly (readonly [webhooks: readonly object[], message: RegExp])[] = [
    [[{ ...counting, path: 'hooks' }], /begin with '\/'/],
    [[{ ...counting, path: '/hooks/{id}' }], /taken as it is/],
    ...['/agent/execute', '/agent/tools', '/.well-known/agent', '/health', '/ready'].map(
      (path) => [[{ ...counting, path }], /taken already/] as const
    ),
    [[counting, counting], /taken already/],
    [[{ ...counting, tool: 'nobody' }], /no plugin in the program has the tool 'nobody'/],
    [[{ ...counting, secret: '' }], /no secret/],
    [[{ path: '/hooks/a', tool: 'count' }], /no secret/],
    [[{ ...counting, unverified: true }], /unverified, and has a secret/],
    [[{ ...counting, event_id: 'id' }], /no JSON pointer/],
    [[{ ...counting, event_id: '/a~2' }], /no JSON pointer/],
    [[{ ...counting, check: 'shared-secret', timestamp_header: 'x-time' }], /not signed/]
  ]
  for (const [webhooks, message] of wrong) {
    await t.rejects(kernel.update('webhooks', { webhooks }), { code: 'INVALID_WEBHOOK', message })
  }
  await kernel.retire('jobs')
  await t.rejects(kernel.update('webhooks', { webhooks: [queued] }), {
    code: 'INVALID_WEBHOOK',
    message: /plugin = 'jobs'/
  })
})

t.test('a queue that is gone or full says so, and the delivery may come again', async (t) => {
  const { kernel, deliver } = await startWebhooks(t, [queued], { jobsConfig: { max_jobs: 1, concurrency: 1 } })
  await kernel.retire('jobs')
  t.match(await deliver('/hooks/queued', { k: 'a' }), { status: 500, body: { error: { code: 'JOBS_UNBOUND' } } })
  const clock = new ManualClock()
  await kernel.begin({ id: 'jobs', plugin: jobsAt(clock), config: { max_jobs: 1 } })
  const jobs = kernel.service('jobs') as { enqueue(request: object): Promise<unknown> }
  await jobs.enqueue({ tool: 'count', arguments: {}, caller: { principal: undefined }, afterMs: 1_000 })
  const refused = await deliver('/hooks/queued', { k: 'a' })
  t.match(refused, { status: 503, body: { error: { code: 'JOBS_CAPACITY', category: 'capacity', retryable: true } } })
  t.equal(refused.headers.get('retry-after'), '10')
})

t.test('what counts as genuine', (t) => {
  const bytes = Buffer.from('{"a":1}')
  const rules = {
    check: 'hmac-sha256',
    signature_header: 'X-Sig',
    secret,
    tolerance_seconds: 300,
    unverified: false
  } as const
  const now = 1_800_000_000_000
  const asks = (more: object, headers: Record<string, string>, at = now) =>
    isGenuine({ ...rules, ...more }, { header: (name) => headers[name], bytes }, at)

  t.ok(asks({}, { 'x-sig': sign(bytes) }))
  t.ok(asks({}, { 'x-sig': sign(bytes).toUpperCase() }))
  t.ok(asks({ previous_secret: 'old' }, { 'x-sig': sign(bytes, 'old') }), 'while the sender changes')
  t.ok(asks({ previous_secret: 'old' }, { 'x-sig': sign(bytes) }))
  t.notOk(asks({ previous_secret: '' }, { 'x-sig': sign(bytes, '') }), 'an empty secret is none')
  t.notOk(asks({ secret: undefined }, { 'x-sig': '00'.repeat(32) }))

  const shared = { check: 'shared-secret' }
  t.ok(asks(shared, { 'x-sig': secret }))
  for (const wrong of ['', 'x', `${secret}x`, sign(bytes)]) t.notOk(asks(shared, { 'x-sig': wrong }))

  const timed = { timestamp_header: 'X-Time' }
  const seconds = now / 1_000
  const signedAt = (at: number | string) => ({
    'x-time': String(at),
    'x-sig': sign(Buffer.concat([Buffer.from(`${at}.`), bytes]))
  })
  for (const at of [seconds, seconds - 300, seconds + 300]) t.ok(asks(timed, signedAt(at)))
  for (const at of [seconds - 301, seconds + 301, 0, 'soon', '-1', '']) t.notOk(asks(timed, signedAt(at)), String(at))
  t.notOk(asks(timed, { ...signedAt(seconds - 5_000), 'x-time': String(seconds) }), 'another time than was signed')
  t.notOk(asks(timed, { 'x-sig': sign(bytes) }), 'no time at all')
  t.end()
})

t.test('what names an event', (t) => {
  const payload = { id: 'a', n: 7, zero: 0, empty: '', no: null, list: [{ x: 'b' }], 'a/b': { '~': 'c' }, flag: true }
  const found: readonly (readonly [pointer: string | undefined, id: string | undefined])[] = [
    ['/id', 'a'],
    ['/n', '7'],
    ['/zero', '0'],
    ['/list/0/x', 'b'],
    ['/a~1b/~0', 'c'],
    ['/empty', undefined],
    ['/no', undefined],
    ['/flag', undefined],
    ['/list', undefined],
    ['/list/1/x', undefined],
    ['/list/length', undefined],
    ['/nowhere/x', undefined],
    ['/constructor/name', undefined],
    [undefined, undefined]
  ]
  for (const [pointer, id] of found) t.equal(eventIdOf(payload, pointer), id, String(pointer))
  t.equal(eventIdOf('whole', ''), 'whole')
  t.equal(eventIdOf(null, '/id'), undefined)
  t.end()
})

t.test('in a program: secrets are shown to nobody, and what is wrong is refused before it is written', async (t) => {
  const house = await startProgram(
    t,
    `
[[entry]]
id = "tools"
plugin = "tools"

[[entry]]
id = "webhooks"
plugin = "webhooks"

[[entry.config.webhooks]]
path = "/hooks/time"
tool = "clock"
secret = "${secret}"

[[entry]]
id = "clock"
plugin = "clock"
config = { anonymous = true }
`
  )
  const body = '{}'
  const headers = { 'x-hub-signature-256': sign(body) }
  t.match(await house.services('http').dispatch({ method: 'POST', path: '/hooks/time', body, headers }), {
    status: 200
  })
  const entries = await house.admin('GET', '/entries')
  t.equal(entries.status, 200)
  t.notMatch(JSON.stringify(entries.body), secret)
  t.match(JSON.stringify(entries.body), '/hooks/time')
  const before = house.text()
  const patched = await house.admin('PATCH', '/entries/webhooks', {
    config: { webhooks: [{ path: '/hooks/time', tool: 'nobody', secret }] }
  })
  t.ok(patched.status >= 400 && patched.status < 500, `${patched.status}`)
  t.match(JSON.stringify(patched.body), /no plugin in the program has the tool/)
  t.notMatch(JSON.stringify(patched.body), secret)
  t.equal(house.text(), before)
  t.match(await house.services('http').dispatch({ method: 'POST', path: '/hooks/time', body, headers }), {
    status: 200
  })
})

t.test(
  'in a program: the order of entries is no matter, and what is missing once all has started is told',
  async (t) => {
    const start = (tool: string) =>
      startProgram(
        t,
        `
[[entry]]
id = "webhooks"
plugin = "webhooks"

[[entry.config.webhooks]]
path = "/hooks/later"
tool = "${tool}"
mode = "enqueue"
secret = "${secret}"

[[entry]]
id = "jobs"
plugin = "jobs"

[[entry]]
id = "clock"
plugin = "clock"

[[entry]]
id = "tools"
plugin = "tools"
`
      )
    const told = 'a webhook cannot do its work'
    const whole = await start('clock')
    t.notOk(whole.lines.some(({ message }) => message === told))
    const headers = { 'x-hub-signature-256': sign('{}') }
    const accepted = await whole
      .services('http')
      .dispatch({ method: 'POST', path: '/hooks/later', body: '{}', headers })
    t.equal(accepted.status, 202)
    const { job_id } = accepted.body as { job_id: string }
    const jobs = whole.services('jobs')
    while ((await jobs.get(job_id))?.endedAtMs === null) await new Promise((resolve) => setImmediate(resolve))
    t.match(await jobs.get(job_id), { status: 'succeeded', principal: 'webhook:/hooks/later' })

    const { lines } = await start('nobody')
    t.match(
      lines.find(({ message }) => message === told),
      { level: 'error', error: { code: 'INVALID_WEBHOOK', message: /the tool 'nobody'/ } }
    )
  }
)
