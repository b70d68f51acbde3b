import { createRequire } from 'node:module'
import { setImmediate as turn } from 'node:timers/promises'
import t from 'tap'
import { CodedError, definePlugin, isCoded, type Plugin } from '../../kernel/index.ts'
import agent from '../../plugins/agent/index.ts'
import carmy from '../../plugins/carmy/index.ts'
import chat from '../../plugins/chat/index.ts'
import type { AgentDefinition } from '../../plugins/chat/types.ts'
import http from '../../plugins/http/index.ts'
import type { DispatchReply } from '../../plugins/http/types.ts'
import openaiCompatible from '../../plugins/openai-compatible/index.ts'
import { openEngine } from '../../plugins/store/lmdb.ts'
import { createStore } from '../../plugins/store/service.ts'
import type { Store } from '../../plugins/store/types.ts'
import tools from '../../plugins/tools/index.ts'
import v1 from '../../plugins/v1/index.ts'
import { delta, say, startModelServer } from '../fakes/model-server.ts'
import { RawClient } from '../fixtures/raw-client.ts'
import {
  bearer,
  type Body,
  type Client,
  echoModel,
  forge,
  startTenants,
  type T,
  tally,
  type TenantHouse,
  type TenantHouseOptions
} from '../fixtures/tenant-house.ts'
import { collect, type HouseEntry, startHouse } from '../harness.ts'

const missing = { status: 401, body: { error: 'Missing Authorization header', code: 'AUTHENTICATION_FAILED' } }
const wrongHeader = { status: 401, body: { error: 'Invalid Authorization header' } }
const wrongFormat = {
  status: 401,
  body: { error: 'Invalid Authorization format. Expected: Bearer ares_...', code: 'AUTHENTICATION_FAILED' }
}
const noKey = { status: 401, body: { error: 'Invalid API key format. Must start with ares_' } }
const wrongKey = { status: 401, body: { error: 'Invalid API key', code: 'AUTHENTICATION_FAILED' } }
const dayOver = { status: 429, body: { error: 'Daily rate limit exceeded', code: 'INTERNAL_ERROR' } }
const monthOver = { status: 429, body: { error: 'Monthly request quota exceeded', code: 'INTERNAL_ERROR' } }

/** Says who runs it. */
const whoami = definePlugin({
  name: 'whoami',
  apply(ctx) {
    ctx.contribute('tools', {
      name: 'whoami',
      description: 'Says who is calling',
      input: { type: 'object' },
      output: { type: 'object' },
      effect: 'read',
      parallelSafe: true,
      run: (_input, { principal }) => ({ principal: principal ?? null })
    })
  }
})

interface V1House extends TenantHouse {
  /** One turn, and what came of it. */
  readonly say: (key: string, message?: string, more?: object) => Promise<DispatchReply>
  /** Resolves when a model that was told to hang does so. */
  readonly hangs: () => Promise<void>
  /** What the accounts say was used this month. */
  readonly used: (id: string) => Promise<{ readonly requests: number; readonly tokens: number }>
}

async function startV1(t: T, extra: readonly HouseEntry[] = [], options: TenantHouseOptions = {}): Promise<V1House> {
  let onHang = (): void => {}
  const house = await startTenants(
    t,
    [
      { plugin: tools },
      { plugin: whoami },
      { plugin: carmy },
      { plugin: chat },
      { plugin: echoModel(() => onHang()) },
      { plugin: agent, id: 'agents:router', config: { model: 'echo', router: true } },
      { plugin: agent, id: 'agents:helper', config: { model: 'echo', description: 'Helps', tools: ['whoami'] } },
      {
        plugin: agent,
        id: 'agents:orchestrator',
        config: { model: 'echo', system_prompt: 'the words of the operator' }
      },
      { plugin: v1 },
      ...extra
    ],
    options
  )
  return {
    ...house,
    say: (key, message = 'Hello', more = {}) => house.v1(key, 'POST', '/chat', { message, ...more }),
    hangs: () =>
      new Promise((resolve) => {
        onHang = resolve
      }),
    async used(id) {
      const { monthly_requests: requests, monthly_tokens: tokens } = (await house.admin('GET', `/tenants/${id}/usage`))
        .body as { monthly_requests: number; monthly_tokens: number }
      return { requests, tokens }
    }
  }
}

/** The events of a stream, one a line. */
function dataOf({ body }: DispatchReply): string {
  const lines = String(body).split('\n')
  return lines.flatMap((line) => (line.startsWith('data: ') ? line.slice(6) : [])).join('\n')
}

const times = <R>(count: number, work: (index: number) => R): R[] => Array.from({ length: count }, (_, at) => work(at))

t.test('who may come in (F.5)', async (t) => {
  const house = await startV1(t)
  const { send, v1 } = house
  const client = await house.client()
  const agents = (headers: Record<string, string> = {}, query = '') =>
    send('GET', `/api/v1/agents${query}`, { headers })

  t.test('K-01: no header', async (t) => {
    const reply = await agents()
    t.match(reply, missing)
    t.equal(reply.headers['www-authenticate'], 'Bearer')
  })

  t.test('K-02, K-03: another scheme, or another spelling of it', async (t) => {
    for (const authorization of ['Basic x', 'bearer ares_x', '', 'Bearer', `BEARER ${client.key}`, client.key]) {
      t.match(await agents({ authorization }), wrongFormat, authorization)
    }
  })

  t.test('K-04, J-10: a bearer that is no key of a tenant', async (t) => {
    for (const token of ['abc', '', ` ${client.key}`, 'ARES_x', forge({ sub: 'u1' })]) {
      t.match(await agents(bearer(token)), noKey, token)
    }
  })

  t.test('K-05: a key that nobody has', async (t) => {
    const other = client.key.endsWith('0') ? '1' : '0'
    for (const key of [
      'ares_unknown',
      'ares_',
      client.key.slice(0, -1) + other,
      `${client.key} `,
      `${client.key}, Bearer ${client.key}`,
      client.key.toUpperCase().replace('ARES', 'ares'),
      `ares_${'x'.repeat(10_000)}`
    ]) {
      t.match(await agents(bearer(key)), wrongKey, key.slice(0, 80))
    }
  })

  t.test('K-07: the key of a tenant', async (t) => {
    t.match(await agents(bearer(client.key)), { status: 200 })
  })

  t.test('K-08, R15: a key in the URL is none', async (t) => {
    t.match(await agents({}, `?token=${client.key}`), missing)
    t.match(await send('GET', `/agent/tools?token=${client.key}`), { status: 401 })
  })

  t.test('the header is looked at before anything else, on every route', async (t) => {
    for (const [method, path] of [
      ['POST', '/chat'],
      ['GET', '/agents'],
      ['GET', '/agents/helper'],
      ['GET', '/usage'],
      ['GET', '/api-keys'],
      ['POST', '/api-keys'],
      ['DELETE', '/api-keys/x'],
      ['DELETE', '/tenant/data']
    ] as const) {
      t.match(await send(method, `/api/v1${path}`, { body: '{broken' }), missing, `${method} ${path}`)
      t.match(await v1('ares_no', method, path), wrongKey, `${method} ${path}`)
    }
  })

  t.test('J-11: a key opens no route of people or administrators', async (t) => {
    for (const path of ['/api/conversations', '/api/admin/tenants', '/api/chat/stream?message=x']) {
      t.match(await send('GET', path, { headers: bearer(client.key) }), { status: 401 }, path)
    }
  })

  t.test('no header and no body ends in a 5xx, and no key gets into the log', async (t) => {
    const odd = [
      '\t',
      'Bearer ares_\t',
      'Bearer ares_%00',
      'Bearer \u007f',
      'Bearer ares_é',
      'Bearer ares_\u0000',
      '💥'
    ]
    for (const authorization of odd)
      t.equal((await agents({ authorization })).status, 401, JSON.stringify(authorization))
    for (const body of ['', '[]', 'null', '"x"', '{"message":null}', '{"message":{}}', '{"message":"\\ud800"}']) {
      const headers = { ...bearer(client.key), 'content-type': 'application/json' }
      const { status } = await send('POST', '/api/v1/chat', { headers, body })
      t.ok(status < 500, `${body} is answered ${status}`)
    }
    t.notOk(house.lines.some((line) => JSON.stringify(line).includes(client.key.slice(13))))
    t.notOk(house.lines.some(({ level }) => level === 'error'))
  })
})

for (const transport of ['node', 'uws'] as const) {
  const isThere = transport === 'node' || canLoad('uWebSockets.js')
  t.test(`K-01 to K-07 over a socket of ${transport}`, { skip: !isThere && 'it does not load here' }, async (t) => {
    const house = await startV1(t, [{ plugin: http, config: { port: 0, transport } }])
    const { key } = await house.client()
    const port = house.services('http').address?.port ?? 0
    const ask = async (line: string) => {
      const client = await RawClient.connect(port)
      client.write(`GET /api/v1/agents HTTP/1.1\r\nhost: x\r\n${line}connection: close\r\n\r\n`)
      const [answer] = await client.answers(1)
      client.socket.destroy()
      return { status: answer?.status, body: JSON.parse(answer?.body ?? 'null') as Body }
    }
    t.match(await ask(''), missing, 'K-01')
    t.match(await ask('authorization: Basic x\r\n'), wrongFormat, 'K-02')
    t.match(await ask('authorization: bearer ares_x\r\n'), wrongFormat, 'K-03')
    t.match(await ask('authorization: Bearer abc\r\n'), noKey, 'K-04')
    t.match(await ask('authorization: Bearer ares_unknown\r\n'), wrongKey, 'K-05')
    t.match(await ask('authorization: Bearer ares_\xe9\xffx\r\n'), wrongHeader, 'K-06')
    t.match(await ask(`authorization: Bearer ${key}\r\n`), { status: 200, body: { page: 1 } }, 'K-07')
    t.match(await ask(`Authorization:Bearer ${key}\r\nauthorization: Bearer ${key}\r\n`), wrongKey, 'two of them')
  })
}

t.test('what a tenant may use (F.5)', async (t) => {
  const house = await startV1(t)
  const { clock, say, v1, admin } = house

  t.test('K-10 to K-12: fifty a day, and then nothing, reading included', async (t) => {
    const { id, key } = await house.client('free')
    for (let n = 1; n <= 50; n++) {
      const reply = await say(key)
      if (reply.status !== 200) t.fail(`call ${n} was answered ${reply.status}`)
      if (n === 50) t.match(reply.headers, { 'x-ratelimit-remaining': '0', 'x-quota-requests-remaining': '950' })
    }
    const refused = await say(key)
    t.match(refused, dayOver, 'K-11')
    t.equal(refused.headers['retry-after'], String(12 * 3_600))
    t.match(await v1(key, 'GET', '/usage'), dayOver, 'K-12')
    t.match(await say(key, '   '), dayOver, 'before the body is looked at')
    t.strictSame(await house.used(id), { requests: 50, tokens: 750 })
    clock.ms += 12 * 3_600_000
    t.match(await say(key), { status: 200 }, 'the next day')
    clock.ms -= 12 * 3_600_000
  })

  t.test('K-13, K-16: the month is named when both are used up, and when it alone is', async (t) => {
    const { key } = await house.client('free', 'n', { requests_per_month: 2, requests_per_day: 2 })
    await say(key)
    await say(key)
    t.match(await say(key), monthOver, 'K-13')
    t.match(await v1(key, 'GET', '/agents'), monthOver)
    clock.ms += 86_400_000
    const refused = await say(key)
    t.match(refused, monthOver, 'K-16')
    t.equal(refused.headers['retry-after'], String((Date.parse('2027-02-01') - clock.ms) / 1000))
    clock.ms -= 86_400_000
  })

  t.test('K-14: a higher tier holds at once', async (t) => {
    const { id, key } = await house.client('free', 'n', { requests_per_day: 1 })
    await say(key)
    t.match(await say(key), dayOver)
    t.match(await admin('PUT', `/tenants/${id}/quota`, { tier: 'dev' }), { status: 200 })
    t.match(await say(key), { status: 200, headers: { 'x-ratelimit-limit': '2000' } })
    t.match(await admin('PUT', `/tenants/${id}/quota`, { tier: 'dev', requests_per_day: 0 }), { status: 200 })
    t.match(await say(key), dayOver, 'and a lower one')
  })

  t.test('K-15: reading is free', async (t) => {
    const { id, key } = await house.client('free')
    for (let n = 0; n < 60; n++) t.equal((await v1(key, 'GET', '/agents')).status, 200)
    t.strictSame(await house.used(id), { requests: 0, tokens: 0 })
  })

  t.test('what is refused before a model is asked costs nothing', async (t) => {
    const { id, key } = await house.client('free')
    t.match(await say(key, '  '), { status: 400, body: { error: 'message must not be empty', code: 'INVALID_INPUT' } })
    t.match(await say(key, 'x', { agent_type: 'ghost-1' }), { status: 404, body: { code: 'NOT_FOUND' } })
    t.match(await say(key, 'x', { agent_type: 'router' }), { status: 400 })
    t.match(await say(key, 'x', { model: 'no-such' }), { status: 400 })
    t.match(await say(key, 'x', { context_id: 'x'.repeat(300) }), { status: 400 })
    t.match(await v1(key, 'POST', '/chat', {}), { status: 400 })
    t.strictSame(await house.used(id), { requests: 0, tokens: 0 })
    t.strictSame(await house.services('tenants').runs(id), [])
  })

  t.test('tokens are a quota of their own', async (t) => {
    const { key } = await house.client('enterprise', 'n', { tokens_per_month: 20 })
    t.match(await say(key), { status: 200, headers: { 'x-quota-tokens-limit': '20' } })
    t.match(await say(key), { status: 200 })
    t.match(await say(key), { status: 429, body: { error: 'Monthly token quota exceeded' } })
  })
})

t.test('the limit is exact (QUOTA-01)', async (t) => {
  const house = await startV1(t, [], { startAt: '2027-01-31T23:59:50Z' })
  const { clock, say } = house

  t.test('of 2,000 calls at once on a limit of 200 a day exactly 200 pass', async (t) => {
    const { id, key } = await house.client('enterprise', 'n', { requests_per_day: 200 })
    t.strictSame(tally(await Promise.all(times(2_000, () => say(key)))), {
      '200': 200,
      '429 Daily rate limit exceeded': 1_800
    })
    t.strictSame(await house.used(id), { requests: 200, tokens: 3_000 })
    const [runs] = await house.services('tenants').runs(id)
    t.match(runs, { agent: 'orchestrator', runs: 200, failures: 0 })
  })

  t.test('the same over the end of a month, with a month that has less left than its days', async (t) => {
    const { id, key } = await house.client('enterprise', 'n', { requests_per_month: 120, requests_per_day: 80 })
    const before = times(400, () => say(key))
    clock.ms = Date.parse('2027-02-01T00:00:00Z')
    const after = times(400, () => say(key))
    const counts = tally(await Promise.all([...before, ...after]))
    // Which of the first ones were reserved before midnight is a matter of turns; that no window gave more is not.
    const days = await house.services('tenants').daily(id, 2)
    t.ok(days.every(({ requests }) => requests <= 80))
    t.equal(
      counts['200'],
      days.reduce((sum, { requests }) => sum + requests, 0),
      'each that passed is counted once'
    )
    t.match(days.at(-1), { day: '2027-02-01', requests: 80 })
    clock.ms = Date.parse('2027-02-02T00:00:00Z')
    t.strictSame(tally(await Promise.all(times(100, () => say(key)))), {
      '200': 40,
      '429 Monthly request quota exceeded': 60
    })
  })

  t.test('the same while every part is swapped', async (t) => {
    const { id, key } = await house.client('enterprise', 'n', { requests_per_day: 150 })
    const calls = times(600, () => say(key))
    // Tenants are rebuilt when the audit log goes; agents and chat by a new config.
    const swaps = Promise.all([
      house.kernel.retire('audit'),
      house.kernel.update('chat', { history_messages: 3 }),
      house.kernel.update('agents:orchestrator', { model: 'echo/second' })
    ])
    t.strictSame(tally(await Promise.all(calls)), { '200': 150, '429 Daily rate limit exceeded': 450 })
    await swaps
    t.match(await house.used(id), { requests: 150, tokens: 150 * 15 })
  })

  t.test('a store that is closed and opened again in the middle forgets nothing', async (t) => {
    const folder = t.testdir()
    let client: Client | undefined
    const total: Record<string, number> = {}
    for (let round = 0; round < 3; round++) {
      await t.test(`round ${round + 1}`, async (t) => {
        const house = await startV1(t as unknown as T, [], { dataFolder: folder })
        client ??= await house.client('enterprise', 'n', { requests_per_day: 100 })
        const { key } = client
        for (const [name, count] of Object.entries(tally(await Promise.all(times(60, () => house.say(key)))))) {
          total[name] = (total[name] ?? 0) + count
        }
      })
    }
    t.strictSame(total, { '200': 100, '429 Daily rate limit exceeded': 80 })
  })
})

t.test('a metered turn (F.13)', async (t) => {
  const house = await startV1(t)
  const { say, v1, services } = house
  const client = await house.client('pro')

  t.test('X-01, X-02: the answer in the union of its forms, and its headers', async (t) => {
    const reply = await say(client.key)
    t.equal(reply.status, 200)
    t.match(reply.body, {
      response: 'ECHO: Hello',
      agent: 'orchestrator (system)',
      context_id: /^.+$/,
      sources: null,
      source: 'system',
      model: 'main',
      provider: 'echo',
      usage: { input_tokens: 10, output_tokens: 5 }
    })
    t.match(reply.headers, {
      'x-input-tokens': '10',
      'x-output-tokens': '5',
      'x-model-name': 'main',
      'x-provider-name': 'echo',
      'x-agent-name': 'orchestrator',
      'x-quota-requests-limit': '500000',
      'x-quota-requests-remaining': '499999',
      'x-quota-requests-reset': String(Date.parse('2027-02-01') / 1000),
      'x-quota-tokens-limit': '50000000',
      'x-ratelimit-limit': '20000',
      'x-ratelimit-remaining': '19999',
      'x-ratelimit-reset': String(Date.parse('2027-01-16') / 1000)
    })
    const { key } = await house.client('enterprise')
    t.notOk(
      Object.keys((await say(key)).headers).some((name) => /quota|ratelimit/.test(name)),
      'no limit, no header'
    )
  })

  t.test('an agent and a model by name', async (t) => {
    t.match((await say(client.key, 'x', { agent_type: 'HELPER' })).body, { agent: 'helper', response: 'ECHO: x' })
    t.match((await say(client.key, 'x', { model: 'second' })).body, { model: 'second' })
    t.match((await say(client.key, 'x', { agent_type: null, context_id: '', model: '' })).body, { model: 'main' })
  })

  t.test("a conversation goes on under its id, and is the tenant's own", async (t) => {
    await say(client.key, 'first', { context_id: 'c1' })
    await say(client.key, 'second', { context_id: 'c1' })
    const other = await house.client()
    await say(other.key, 'third', { context_id: 'c1' })
    const turns = async (id: string) =>
      (await collect(services('store').range<Body>('chat.tenant_turns', [id, 'c1']))).map(
        ([, { value }]) => value['user']
      )
    t.strictSame(await turns(client.id), ['first', 'second'])
    t.strictSame(await turns(other.id), ['third'], 'TENANCY-01')
    t.strictSame(await collect(services('store').range('chat.turns', [])), [], 'and nobody else')
    const user = forge({ sub: client.id })
    t.match(await house.send('GET', '/api/conversations', { headers: bearer(user) }), { status: 200, body: [] })
    t.match(await house.send('GET', '/api/conversations/c1', { headers: bearer(user) }), { status: 404 })
  })

  t.test('tools run as the tenant', async (t) => {
    const { body } = await say(client.key, 'WHO', { agent_type: 'helper' })
    t.ok((body as Body)['response']?.includes(`tenant:${client.id}`))
  })

  t.test('QUOTA-03: a turn that fails or is left counts, with what it took', async (t) => {
    const { id, key } = await house.client('dev')
    t.match(await say(key, 'FAIL'), { status: 500, body: { code: 'LLM_ERROR' } })
    t.strictSame(await house.used(id), { requests: 1, tokens: 1 }, 'c: the message was read')
    const leave = new AbortController()
    const headers = bearer(key)
    const hangs = house.hangs()
    const left = house.send('POST', '/api/v1/chat', { headers, body: { message: 'HANG' }, signal: leave.signal })
    left.catch(() => {})
    await hangs
    leave.abort(new CodedError('CLIENT_GONE', 'the client left'))
    await t.rejects(left, { code: 'CLIENT_GONE' })
    while (((await services('tenants').runs(id))[0]?.runs ?? 0) < 2) await turn()
    t.strictSame(await house.used(id), { requests: 2, tokens: 2 }, 'd: before the first token')
    t.match(await services('tenants').runs(id), [{ agent: 'orchestrator', runs: 2, failures: 2 }])
    t.match(await v1(key, 'POST', '/chat', '{"message":'), { status: 415 })
    t.match(
      await house.send('POST', '/api/v1/chat', {
        headers: { ...headers, 'content-type': 'application/json' },
        body: '{'
      }),
      { status: 400 }
    )
    t.match(await house.used(id), { requests: 2 }, 'e: a 400 never counts')
    t.match(await say(key), { status: 200 })
    t.strictSame(await house.used(id), { requests: 3, tokens: 17 }, 'a')
  })
})

t.test(
  'QUOTA-03: an answer that is cut off counts what was made of it, also where the caller would get it whole',
  async (t) => {
    const model = await startModelServer()
    t.teardown(() => model.close())
    const config = { base_url: model.baseUrl, models: ['m'], max_retries: 0 }
    const house = await startV1(t, [
      { plugin: openaiCompatible, id: 'providers:far', config },
      { plugin: openaiCompatible, id: 'providers:mute', config: { ...config, stream_usage: false } },
      { plugin: agent, id: 'agents:far', config: { model: 'far' } },
      { plugin: agent, id: 'agents:mute', config: { model: 'mute' } },
      { plugin: agent, id: 'agents:near', config: { model: 'told' } }
    ])
    const { id, key } = await house.client('dev')
    let sum = 0
    const used = async (requests: number, tokens: number, name: string) => {
      sum += tokens
      t.strictSame(await house.used(id), { requests, tokens: sum }, name)
    }

    model.enqueue(say(true, { text: 'so it is', usage: { input: 30, output: 12 } }))
    const whole = await house.say(key, 'Hello', { agent_type: 'far' })
    t.match(whole.body, { response: 'so it is', usage: { input_tokens: 30, output_tokens: 12 } })
    await used(1, 42, 'a: a whole one as it was reported')

    model.enqueue({ steps: [...times(10, () => ({ write: delta('w ') })), { cut: true }] })
    t.match(await house.say(key, 'Hello', { agent_type: 'far' }), { status: 500, body: { code: 'LLM_ERROR' } })
    await used(2, 2 + 5, 'c: the message, and what came before the connection ended')

    const leave = new AbortController()
    const hangs = house.hangs()
    const left = house.send('POST', '/api/v1/chat', {
      headers: bearer(key),
      body: { message: 'HANG', agent_type: 'near' },
      signal: leave.signal
    })
    left.catch(() => {})
    await hangs
    leave.abort(new CodedError('CLIENT_GONE', 'the client left'))
    await t.rejects(left, { code: 'CLIENT_GONE' })
    while (((await house.services('tenants').runs(id)).find(({ agent }) => agent === 'near')?.runs ?? 0) < 1)
      await turn()
    await used(3, 1 + 3, 'b: HANG, and half of it')

    model.enqueue(say(false, { text: 'in one piece', usage: { input: 3, output: 4 } }))
    t.match(await house.say(key, 'Hello', { agent_type: 'mute' }), { body: { response: 'in one piece' } })
    await used(4, 7, 'a provider whose streams tell no numbers is asked for the whole')
  }
)

t.test('what a tenant can read and change (F.13)', async (t) => {
  const many = definePlugin({
    name: 'many',
    apply(ctx) {
      const base = { description: '', model: 'echo', systemPrompt: 's', tools: [], maxToolIterations: 1 }
      const made = times(
        23,
        (at): AgentDefinition => ({ ...base, name: `a${at}`, parallelTools: false, router: false })
      )
      ctx.contribute('chat.agents', ...made)
    }
  })
  const house = await startV1(t, [{ plugin: many }])
  const { say, v1, clock } = house
  const client = await house.client()
  const list = async (query = '') => (await v1(client.key, 'GET', `/agents${query}`)).body as unknown as Page
  interface Page {
    readonly items: Record<string, unknown>[]
    readonly total: number
    readonly page: number
    readonly per_page: number
    readonly total_pages: number
  }

  t.test('X-12 to X-15, X-18: agents in pages with true totals', async (t) => {
    const first = await list()
    t.strictSame(Object.keys(first), ['items', 'total', 'page', 'per_page', 'total_pages'])
    t.match(first, { total: 25, page: 1, per_page: 20, total_pages: 2 }, 'X-12')
    t.equal(first.items.length, 20)
    const second = await list('?page=2')
    t.equal(second.items.length, 5)
    t.equal(new Set([...first.items, ...second.items].map(({ name }) => name)).size, 25)
    t.match(await list('?page=0'), { page: 1 }, 'X-13')
    t.match(await list('?page=-7'), { page: 1 })
    t.match(await list('?per_page=500'), { per_page: 100, total_pages: 1 }, 'X-14')
    t.match(await list('?per_page=0'), { per_page: 1, total_pages: 25 })
    t.strictSame(await list('?page=99'), { items: [], total: 25, page: 99, per_page: 20, total_pages: 2 }, 'X-15')
    t.match(await list('?page=3&per_page=10'), { items: { length: 5 } })
    for (const query of ['?page=abc', '?page=1.5', '?per_page=', '?page=1&page=2']) {
      t.match(await v1(client.key, 'GET', `/agents${query}`), { status: 400, body: { code: 'INVALID_INPUT' } }, query)
    }
    t.notOk(
      first.items.some(({ name }) => name === 'router'),
      'who chooses cannot be called'
    )
  })

  t.test('X-19: an agent tells what it is, what it did here, and not what it was told', async (t) => {
    t.strictSame((await v1(client.key, 'GET', '/agents/orchestrator')).body, {
      id: 'orchestrator',
      name: 'orchestrator',
      description: '',
      agent_type: 'custom',
      status: 'active',
      config: { model: 'echo', tools: [], max_tool_iterations: 10, parallel_tools: false },
      created_at: null,
      last_run: null,
      total_runs: 0,
      success_rate: 0
    })
    for (const message of ['a', 'FAIL', 'b', 'c']) await say(client.key, message)
    t.match((await v1(client.key, 'GET', '/agents/orchestrator')).body, {
      last_run: '2027-01-15T12:00:00.000Z',
      total_runs: 4,
      success_rate: 0.75
    })
    t.match(
      (await list()).items.find(({ name }) => name === 'orchestrator'),
      { total_runs: 4 }
    )
    const other = await house.client()
    t.match((await v1(other.key, 'GET', '/agents/orchestrator')).body, { total_runs: 0 }, 'TENANCY-01')
    t.notOk(JSON.stringify(await list('?per_page=100')).includes('the words of the operator'))
  })

  t.test('X-16 to X-18: the runs of an agent and how they ended, in pages, newest first', async (t) => {
    const { id, key } = await house.client()
    const read = async (what: string, name = 'helper') => {
      const { status, body } = await v1(key, 'GET', `/agents/${name}/${what}`)
      t.equal(status, 200)
      return body as { items: Record<string, unknown>[]; total: number; total_pages: number }
    }
    t.match(await read('runs'), { items: [], total: 0, page: 1, per_page: 25, total_pages: 0 }, 'X-16')
    t.match(await read('logs'), { items: [], total: 0, page: 1, per_page: 50, total_pages: 0 }, 'X-17')
    for (const message of ['a', 'FAIL', 'c']) await say(key, message, { agent_type: 'helper' })
    const first = await read('runs?per_page=2')
    t.match(first, { total: 3, per_page: 2, total_pages: 2 }, 'X-18')
    t.strictSame(
      first.items.map(({ status }) => status),
      ['completed', 'failed'],
      'X-18: newest first'
    )
    t.match(first.items[0], {
      agent_id: 'helper',
      input: { tokens: 10 },
      output: { tokens: 5 },
      error: null,
      started_at: /^\d{4}-.*Z$/,
      duration_ms: Number,
      tokens_used: 15
    })
    t.match(first.items[1], { output: null, error: 'The language model failed: provider failed' })
    const second = await read('runs?per_page=2&page=2')
    t.match(second, { items: [{ status: 'completed' }], total: 3, page: 2 })
    t.notOk([...first.items, ...second.items].map((run) => run['id']).some((id, at, ids) => ids.indexOf(id) !== at))
    t.match(await read('runs?page=99'), { items: [], total: 3, page: 99 })
    t.match((await read('logs')).items, [
      { run_id: first.items[0]?.['id'], level: 'info', message: 'completed' },
      { run_id: first.items[1]?.['id'], level: 'error', message: 'The language model failed: provider failed' },
      { run_id: second.items[0]?.['id'], level: 'info', metadata: { input_tokens: 10, output_tokens: 5 } }
    ])

    for (const what of ['runs', 'logs']) {
      const unknown = await v1(key, 'GET', `/agents/none/${what}`)
      t.match(unknown, { status: 404, body: { error: `Agent 'none' not found for tenant '${id}'` } }, 'X-20')
      const other = await house.client()
      t.match((await v1(other.key, 'GET', `/agents/helper/${what}`)).body, { total: 0 }, 'TENANCY-01')
    }
    await v1(key, 'DELETE', '/tenant/data')
    t.match(await house.services('tenants').runsOf(id, 'helper', { offset: 0, limit: 9 }), { runs: [], total: 0 })
    t.strictSame(await collect(house.services('store').range('tenants.kept_runs', [id])), [])
  })

  t.test('X-20: an agent that is not there', async (t) => {
    for (const name of ['none', 'router', 'x'.repeat(5_000), '%F0%9F%92%A9']) {
      t.match(
        await v1(client.key, 'GET', `/agents/${name}`),
        { status: 404, body: { error: new RegExp(`not found for tenant '${client.id}'$`), code: 'NOT_FOUND' } },
        name.slice(0, 20)
      )
    }
  })

  t.test('X-22 to X-24: usage', async (t) => {
    const { key } = await house.client('free')
    const before = clock.ms
    await say(key)
    clock.ms += 86_400_000
    await say(key)
    await say(key)
    t.strictSame((await v1(key, 'GET', '/usage')).body, {
      period_start: '2027-01-01T00:00:00.000Z',
      period_end: '2027-01-31T23:59:59.000Z',
      total_runs: 3,
      total_tokens: 45,
      total_api_calls: 3,
      quota_runs: 1_000,
      quota_tokens: 100_000,
      quota_runs_per_day: 50,
      daily_usage: [
        { date: '2027-01-15', runs: 1, tokens: 15, api_calls: 1 },
        { date: '2027-01-16', runs: 2, tokens: 30, api_calls: 2 }
      ]
    })
    clock.ms = Date.parse('2027-02-01T00:00:00Z')
    t.match((await v1(key, 'GET', '/usage')).body, { total_runs: 0, daily_usage: { length: 0 } })
    clock.ms = before
    const rich = await house.client()
    await say(rich.key)
    t.match((await v1(rich.key, 'GET', '/usage')).body, { quota_runs: null, quota_tokens: null, total_runs: 1 }, 'X-22')
  })

  t.test('X-25 to X-30: keys of its own', async (t) => {
    const made = await v1(client.key, 'POST', '/api-keys', { name: 'k2', expires_in_days: 10 })
    const { key, secret } = made.body as unknown as { key: Body; secret: string }
    t.equal(made.status, 200)
    t.match(secret, /^ares_[0-9a-f]{64}$/, 'X-25')
    t.match(key, {
      name: 'k2',
      prefix: secret.slice(0, 13),
      created_at: '2027-01-15T12:00:00.000Z',
      last_used: null,
      expires_at: '2027-01-25T12:00:00.000Z'
    })
    t.match(await v1(secret, 'GET', '/agents'), { status: 200 }, 'X-26')
    const listed = (await v1(client.key, 'GET', '/api-keys')).body as unknown as Body[]
    t.match(
      listed.find(({ id }) => id === key['id']),
      { name: 'k2', last_used: '2027-01-15T12:00:00.000Z' },
      'X-27'
    )
    t.strictSame(Object.keys(listed[0] ?? {}), ['id', 'name', 'prefix', 'created_at', 'last_used', 'expires_at'])
    t.notOk(JSON.stringify(listed).includes(secret.slice(13)))

    const other = await house.client()
    const unknown = (id: string, of: Client) => ({
      status: 404,
      body: { error: `API key '${id}' not found for tenant '${of.id}'`, code: 'NOT_FOUND' }
    })
    t.match(await v1(other.key, 'DELETE', `/api-keys/${key['id']}`), unknown(key['id'] ?? '', other), 'X-29')
    t.match(await v1(client.key, 'DELETE', '/api-keys/nope'), unknown('nope', client), 'X-29')
    t.match(await v1(secret, 'GET', '/agents'), { status: 200 })
    t.match(await v1(client.key, 'DELETE', `/api-keys/${key['id']}`), { status: 204, body: undefined }, 'X-28')
    t.match(await v1(secret, 'GET', '/agents'), wrongKey, 'X-28')

    for (const expires_in_days of [0, 3_651, -1, 1.5, '7']) {
      t.match(await v1(client.key, 'POST', '/api-keys', { name: 'x', expires_in_days }), { status: 400 }, 'X-30')
    }
    for (const name of ['', ' ', 'x'.repeat(129), 7, null]) {
      t.match(await v1(client.key, 'POST', '/api-keys', { name }), { status: 400 })
    }
    const own = await v1(client.key, 'POST', '/api-keys', { name: 'own' })
    const { key: last, secret: lastSecret } = own.body as unknown as { key: Body; secret: string }
    t.match(await v1(lastSecret, 'DELETE', `/api-keys/${last['id']}`), { status: 204 }, 'a key may revoke itself')
    t.match(await v1(lastSecret, 'GET', '/agents'), wrongKey)
  })

  t.test('K-09: an expired key opens nothing, and is not listed', async (t) => {
    const { id, key } = await house.client()
    const made = await v1(key, 'POST', '/api-keys', { name: 'short', expires_in_days: 1 })
    const { secret } = made.body as Body
    t.match(await v1(secret ?? '', 'GET', '/agents'), { status: 200 })
    clock.ms += 86_400_000
    t.match(await v1(secret ?? '', 'GET', '/agents'), wrongKey)
    t.match(await v1(key, 'GET', '/api-keys'), { body: { length: 1 } })
    t.equal((await house.services('tenants').keys(id)).length, 2)
    clock.ms -= 86_400_000
  })

  t.test('X-32: a tenant deletes what is kept for it, and stays', async (t) => {
    const { id, key } = await house.client('free')
    const other = await house.client('free')
    await say(key, 'remember this', { context_id: 'c' })
    await say(other.key, 'and this', { context_id: 'c' })
    clock.ms += 86_400_000
    await say(key, 'and that')
    t.match(await v1(key, 'DELETE', '/tenant/data'), {
      status: 200,
      body: {
        status: 'purged',
        tenant_id: id,
        usage_events_deleted: 1,
        agent_runs_deleted: 2,
        api_keys_revoked: 1,
        note: /GDPR Art\. 17/
      }
    })
    t.match(await v1(key, 'DELETE', '/tenant/data'), wrongKey)
    t.match(await house.admin('GET', `/tenants/${id}`), { status: 200 })
    const store = house.services('store')
    for (const collection of ['chat.tenant_turns', 'chat.tenant_conversations']) {
      t.strictSame(await collect(store.range(collection, [id])), [], collection)
      t.equal((await collect(store.range(collection, [other.id]))).length, 1)
    }
    t.match(await house.used(id), { requests: 2 }, 'deleting is no way to get more')
    t.match(await v1(other.key, 'GET', '/agents/orchestrator'), { body: { total_runs: 1 } })
    clock.ms -= 86_400_000
  })
})

t.test('a turn that is under way when the data is deleted leaves nothing behind', async (t) => {
  const house = await startV1(t)
  const store = house.services('store')
  for (let n = 0; n < 20; n++) {
    const { id, key } = await house.client()
    const calls = times(10, (at) => house.say(key, 'x', { context_id: `c${at}` }))
    for (let waits = 0; waits < n; waits++) await turn()
    const purged = await house.v1(key, 'DELETE', '/tenant/data')
    t.equal(purged.status, 200)
    for (const { status, body } of await Promise.all(calls)) {
      const { error } = body as Body
      if (status !== 200) t.match({ status, error }, { status: 409, error: /was deleted while/ })
    }
    t.strictSame(await collect(store.range('chat.tenant_turns', [id])), [], `after ${n} turns of the loop`)
    t.strictSame(await house.services('tenants').runs(id), [])
  }
})

t.test('keys and tokens of tenants elsewhere', async (t) => {
  const house = await startV1(t)
  const { send } = house
  const client = await house.client('free')
  const who = (headers: Record<string, string>) =>
    send('POST', '/agent/execute', { headers, body: { tool: 'whoami', arguments: {} } })

  t.test('R9: a key calls the tools of carmy as its tenant, whichever key it is', async (t) => {
    const second = await house.v1(client.key, 'POST', '/api-keys', { name: 'second' })
    for (const key of [client.key, (second.body as Body)['secret'] ?? '']) {
      t.match(await who(bearer(key)), { status: 200, body: { data: { principal: `tenant:${client.id}` } } })
    }
    t.match(await send('GET', '/agent/tools', { headers: bearer(client.key) }), { status: 200 })
  })

  t.test('R9: a key that is not good is refused, never taken for nobody', async (t) => {
    for (const key of ['ares_', 'ares_unknown', `ares_${'0'.repeat(64)}`, `${client.key}x`]) {
      t.match(await who(bearer(key)), {
        status: 401,
        body: { error: { code: 'UNAUTHORIZED', category: 'permission' } }
      })
    }
    t.match(await who({ authorization: client.key }), { status: 401 })
    await house.admin('PUT', `/tenants/${client.id}/quota`, { tier: 'free', requests_per_day: 0 })
    t.match(await who(bearer(client.key)), { status: 200 }, 'what is not metered has no quota')
    await house.admin('PUT', `/tenants/${client.id}/quota`, { tier: 'free' })
  })

  t.test('J-09: a token that names a tenant is good while that tenant is there', async (t) => {
    const names = (tenant_id: string) => ({ headers: bearer(forge({ sub: 'u1', tenant_id })) })
    for (const id of ['nobody', '', 'x'.repeat(2_500), '\u0000', `${client.id} `]) {
      t.match(await send('GET', '/api/conversations', names(id)), { status: 401, body: { error: 'Unauthorized' } }, id)
    }
    t.match(await send('GET', '/api/conversations', names(client.id)), { status: 200 })
    t.match(await who(names(client.id).headers), { status: 200, body: { data: { principal: 'user:u1' } } })
    const gone = await house.client()
    t.match(await send('GET', '/api/conversations', names(gone.id)), { status: 200 })
    await house.admin('DELETE', `/tenants/${gone.id}`)
    t.match(await send('GET', '/api/conversations', names(gone.id)), { status: 401 })
  })

  t.test('C-21: the turns of such a token are counted for the tenant, in both forms', async (t) => {
    const { id } = await house.client('free', 'n', { requests_per_day: 3 })
    const headers = bearer(forge({ sub: 'u1', tenant_id: id }))
    const chat = (path: string, body: object) => send('POST', path, { headers, body })
    t.match(await chat('/api/chat', { message: 'hi', agent_type: 'helper' }), {
      status: 200,
      body: { agent: 'helper' }
    })
    t.match(await chat('/api/chat/stream', { message: 'hi' }), { status: 200, body: /"event":"done"/ })
    t.match(await chat('/api/chat', { message: ' ' }), { status: 400 })
    t.match(await chat('/api/chat', { message: 'x', agent_type: 'ghost' }), { status: 404 })
    t.strictSame(await house.used(id), { requests: 2, tokens: 30 })
    t.match(await chat('/api/chat', { message: 'hi' }), { status: 200 })
    t.match(await chat('/api/chat', { message: 'hi' }), {
      status: 429,
      body: { error: 'Rate limited: Daily rate limit exceeded', code: 'INTERNAL_ERROR' }
    })
    const stream = await chat('/api/chat/stream', { message: 'hi' })
    t.equal(dataOf(stream), '{"event":"error","error":"daily quota exceeded"}')
    await house.admin('PUT', `/tenants/${id}/quota`, { tier: 'free', requests_per_month: 1 })
    t.equal(
      dataOf(await chat('/api/chat/stream', { message: 'hi' })),
      '{"event":"error","error":"monthly quota exceeded"}',
      'as the contract prints it'
    )
    t.match(await house.services('tenants').runs(id), [
      { agent: 'helper', runs: 1 },
      { agent: 'orchestrator', runs: 2 }
    ])
    t.match(await send('GET', '/api/conversations', { headers }), { body: { length: 3 } }, 'they are the user’s own')
    t.notOk(house.lines.some(({ level }) => level === 'error'))
  })

  t.test('QUOTA-03: a stream that is left counts the tokens that were made', async (t) => {
    const { id } = await house.client('dev')
    const headers = bearer(forge({ sub: 'u2', tenant_id: id }))
    const leave = new AbortController()
    const hangs = house.hangs()
    const left = send('POST', '/api/chat/stream', {
      headers,
      body: { message: 'HANG', agent_type: 'helper' },
      signal: leave.signal
    })
    left.catch(() => {})
    await hangs
    leave.abort(new CodedError('CLIENT_GONE', 'the client left'))
    await t.rejects(left)
    while ((await house.services('tenants').runs(id)).length === 0) await turn()
    t.strictSame(await house.used(id), { requests: 1, tokens: 1 + 3 }, 'HANG, and half of it')
  })

  t.test('a user without a tenant is counted for nobody', async (t) => {
    const headers = bearer(forge({ sub: 'u3' }))
    t.match(await send('POST', '/api/chat', { headers, body: { message: 'hi' } }), { status: 200 })
  })
})

t.test('a store that fails: documented answers, nothing acknowledged that is not kept', async (t) => {
  const faults = { read: 'nothing', commits: Number.POSITIVE_INFINITY }
  /** The real store, but for what a test breaks. */
  const store: Plugin = definePlugin({
    name: 'store',
    provides: ['store'],
    async apply(ctx) {
      const folder = t.testdir()
      const engine = await ctx.resource(
        'environment',
        folder,
        () => openEngine(folder),
        (engine) => engine.close()
      )
      const real = createStore(engine)
      const broken = () => new CodedError('STORE_FAILED', 'the disk at /secret/path is gone')
      const faulty: Store = {
        ...real,
        get(collection, key) {
          if (collection === faults.read) throw broken()
          return real.get(collection, key)
        },
        async atomically(work, options) {
          if (faults.commits <= 0) throw broken()
          faults.commits -= 1
          return real.atomically(work, options)
        }
      }
      ctx.provide('store', faulty)
    }
  })
  const house = await startV1(t, [{ plugin: store }])
  const { say, v1 } = house

  t.test('what cannot be checked is said in the words of the contract', async (t) => {
    const texts = {
      'tenants.hashes': 'Failed to verify API key',
      'tenants.keys': 'Failed to verify API key',
      'tenants.months': 'Failed to check usage',
      'tenants.days': 'Failed to check rate limit'
    }
    for (const [collection, error] of Object.entries(texts)) {
      const { key } = await house.client()
      faults.read = collection
      const reply = await v1(key, 'GET', '/agents')
      faults.read = 'nothing'
      t.match(reply, { status: 500, body: { error, code: 'DATABASE_ERROR' } }, collection)
      t.match(
        house.lines.find(({ requestId }) => requestId === reply.headers['x-request-id']),
        { level: 'error', error: { cause: { code: 'STORE_FAILED' } } },
        'and logged whole, under the id of the request'
      )
      t.match(await v1(key, 'GET', '/agents'), { status: 200 }, 'the next one is served')
    }
  })

  t.test('the n-th write of a metered call', async (t) => {
    for (let n = 0; ; n++) {
      const { id, key } = await house.client('free')
      await v1(key, 'GET', '/agents')
      await house.services('tenants').keys(id)
      faults.commits = n
      const reply = await say(key)
      faults.commits = Number.POSITIVE_INFINITY
      const { requests, tokens } = await house.used(id)
      const [runs] = await house.services('tenants').runs(id)
      if (reply.status === 200) {
        t.strictSame({ requests, tokens, runs: runs?.runs }, { requests: 1, tokens: 15, runs: 1 })
        t.ok(n >= 3, 'reserved, settled and stored')
        break
      }
      t.match(reply, { status: 500, body: { code: 'DATABASE_ERROR' } }, `failing after ${n}`)
      t.notOk(JSON.stringify(reply.body).includes('/secret/path'))
      t.ok(requests <= 1 && requests >= Math.min(n, 1), 'counted once it was let in')
      t.match(await say(key), { status: 200 }, 'the next one works')
    }
  })

  t.test('the n-th write of a key creation', async (t) => {
    for (let n = 0; ; n++) {
      const { id, key } = await house.client()
      await v1(key, 'GET', '/agents')
      await house.services('tenants').keys(id)
      faults.commits = n
      const reply = await v1(key, 'POST', '/api-keys', { name: 'k' })
      faults.commits = Number.POSITIVE_INFINITY
      t.equal((await house.services('tenants').keys(id)).length, reply.status === 200 ? 2 : 1)
      if (reply.status === 200) break
      t.match(reply, { status: 500, body: { code: 'DATABASE_ERROR' } })
    }
  })
})

t.test('without tenants the reason is given', async (t) => {
  const house = await startHouse(t, [{ plugin: tools }, { plugin: chat }, { plugin: v1 }])
  const ask = (headers: Record<string, string>) =>
    house.services('http').dispatch({ method: 'GET', path: '/api/v1/agents', headers })
  t.match(await ask({}), missing)
  t.match(await ask(bearer(`ares_${'0'.repeat(64)}`)), {
    status: 500,
    body: { error: 'Tenant database not configured', code: 'CONFIGURATION_ERROR' }
  })
})

t.test('retiring the entry takes its routes and its guard away, and it comes back', async (t) => {
  const house = await startV1(t)
  const { key } = await house.client()
  await house.kernel.retire('v1')
  t.match(await house.v1(key, 'GET', '/agents'), { status: 404 })
  await house.kernel.begin({ id: 'v1', plugin: v1, config: {} })
  t.match(await house.v1(key, 'GET', '/agents'), { status: 200 })
})

function canLoad(name: string): boolean {
  try {
    createRequire(import.meta.url)(name)
    return true
  } catch (error) {
    if (isCoded(error)) throw error
    return false
  }
}
