import { randomUUID } from 'node:crypto'
import type { LanguageModelV3 } from '@ai-sdk/provider'
import t, { type Test } from 'tap'
import { CodedError, definePlugin, type Plugin } from '../../kernel/index.ts'
import agent from '../../plugins/agent/index.ts'
import alertsPlugin from '../../plugins/alerts/index.ts'
import { createAlerts } from '../../plugins/alerts/service.ts'
import type { Alert, NewAlert } from '../../plugins/alerts/types.ts'
import audit from '../../plugins/audit/index.ts'
import auth from '../../plugins/auth/index.ts'
import chat from '../../plugins/chat/index.ts'
import { createTally } from '../../plugins/chat/tally.ts'
import type { DispatchReply, Principal } from '../../plugins/http/types.ts'
import localModel from '../../plugins/local-model/index.ts'
import runtimeTools from '../../plugins/runtime-tools/index.ts'
import type { RuntimeToolType } from '../../plugins/runtime-tools/types.ts'
import stats from '../../plugins/stats/index.ts'
import tenants from '../../plugins/tenants/index.ts'
import tools from '../../plugins/tools/index.ts'
import workers from '../../plugins/workers/index.ts'
import { collect, type House, type HouseEntry, startHouse } from '../harness.ts'

const adminSecret = 'adm'
const refused = {
  status: 401,
  body: { error: 'Admin access requires X-Admin-Secret header or JWT with admin role' }
}

interface Operations extends House {
  readonly admin: (method: string, path: string, body?: unknown) => Promise<DispatchReply>
  readonly anybody: (method: string, path: string) => Promise<DispatchReply>
}

async function startOperations(t: Test, more: readonly HouseEntry[]): Promise<Operations> {
  const entries = [{ plugin: workers }, { plugin: auth, config: { admin_secret: adminSecret } }, ...more]
  const house = await startHouse(t, entries)
  const ask = (method: string, path: string, headers: Record<string, string>, body?: unknown) =>
    house.services('http').dispatch({ method, path: `/api${path}`, headers, ...(body === undefined ? {} : { body }) })
  return {
    ...house,
    admin: (method, path, body) => ask(method, path, { 'x-admin-secret': adminSecret }, body),
    anybody: (method, path) => ask(method, path, {})
  }
}

const quota: NewAlert = {
  severity: 'warning',
  source: 'tenants',
  subject: 'month/t1',
  title: 'Quota nearly used',
  message: 'Tenant t1 has used 80 % of its requests of this month'
}

t.test('alerts for operators (F.15)', async (t) => {
  const { admin, anybody, services } = await startOperations(t, [{ plugin: audit }, { plugin: alertsPlugin }])
  const alerts = services('alerts')
  const first = await alerts.raise(quota)
  for (let at = 0; at < 250; at += 1) {
    await alerts.raise({ severity: 'info', source: 'test', title: `t${at}`, message: 'm' })
  }
  const last = await alerts.raise({ severity: 'critical', source: 'test', title: 'last', message: 'm' })
  const listed = async (query = '') => (await admin('GET', `/admin/alerts${query}`)).body as Record<string, unknown>[]

  t.test('D-33: the newest come first, at most 200, and can be chosen by severity and state', async (t) => {
    t.equal((await listed()).length, 50)
    t.strictSame((await listed())[0], {
      id: last.id,
      severity: 'critical',
      source: 'test',
      title: 'last',
      message: 'm',
      resolved: false,
      created_at: Math.floor(last.createdAtMs / 1000),
      resolved_at: null,
      resolved_by: null
    })
    for (const [limit, count] of [
      [999, 200],
      [200, 200],
      [1, 1],
      [0, 1],
      [-5, 1]
    ]) {
      t.equal((await listed(`?limit=${limit}`)).length, count, `limit ${limit}`)
    }
    t.match(await listed('?severity=warning'), [{ id: first.id, title: quota.title }])
    t.strictSame(await listed('?resolved=true'), [])
    t.equal((await listed('?resolved=false&limit=200&severity=info')).length, 200)
    for (const wrong of ['?severity=bad', '?resolved=maybe', '?limit=many']) {
      t.match(await admin('GET', `/admin/alerts${wrong}`), { status: 400, body: { code: 'INVALID_INPUT' } }, wrong)
    }
  })

  t.test('D-34: one that is resolved says by whom, once, and is in the audit log', async (t) => {
    const resolve = (id: string, body?: unknown) => admin('POST', `/admin/alerts/${id}/resolve`, body)
    const reply = await resolve(last.id, { resolved_by: 'Ada' })
    t.match(reply, { status: 200, body: { id: last.id, resolved: true, resolved_by: 'Ada', resolved_at: Number } })
    t.strictSame((await resolve(last.id, { resolved_by: 'Ben' })).body, reply.body, 'stays as it is')
    t.match(await listed('?resolved=true'), [{ id: last.id, resolved: true }])
    t.match(
      await resolve(first.id),
      { status: 200, body: { resolved_by: 'admin_secret' } },
      'who asked, if nobody is named'
    )
    for (const id of ['nope', '7', 'x'.repeat(3_000)]) {
      t.match(await resolve(id), { status: 404, body: { error: 'Alert not found', code: 'NOT_FOUND' } })
    }
    t.match(await resolve(last.id, { resolved_by: 3 }), { status: 400 })
    const rows = ((await admin('GET', '/admin/audit-log')).body as Record<string, unknown>[]).filter(
      ({ action }) => action === 'resolve_alert'
    )
    t.match(rows, [
      { resource_type: 'alert', resource_id: first.id, actor: 'admin_secret', status: 'done' },
      { resource_id: last.id, details: { after: { resolved_by: 'Ada' } }, admin_ip: '127.0.0.1' }
    ])
  })

  t.test('nobody else sees or resolves them', async (t) => {
    t.match(await anybody('GET', '/admin/alerts'), refused)
    t.match(await anybody('POST', `/admin/alerts/${first.id}/resolve`), refused)
  })

  t.test('what is open is not raised twice, also by many at once; what was resolved may be', async (t) => {
    const about = { ...quota, subject: 'day/t2' }
    const raised = await Promise.all(Array.from({ length: 20 }, () => alerts.raise(about)))
    t.equal(new Set(raised.map(({ id }) => id)).size, 1)
    const other = await alerts.raise({ ...about, source: 'another' })
    t.not(other.id, raised[0]?.id)
    await alerts.resolve(raised[0]?.id ?? '', { actor: 'a', address: '' })
    t.not((await alerts.raise(about)).id, raised[0]?.id)
  })
})

t.test('alerts are kept up to a number, the newest', async (t) => {
  const { services } = await startOperations(t, [])
  let nowMs = Date.UTC(2030, 0, 1)
  const alerts = createAlerts(services('store'), undefined, { max_rows: 700 }, { now: () => nowMs, randomUUID })
  const ids: string[] = []
  for (let round = 0; round < 15; round += 1) {
    const batch: Promise<Alert>[] = []
    for (let at = 0; at < 100; at += 1) {
      nowMs += 1
      batch.push(alerts.raise({ severity: 'info', source: 's', title: 't', message: 'm' }))
    }
    ids.push(...(await Promise.all(batch)).map(({ id }) => id))
  }
  await alerts.prune()
  const left = (await alerts.list({ limit: 2_000 })).map(({ id }) => id)
  t.strictSame(left, ids.slice(-700).reverse())
  t.equal(await alerts.count(), 700)
  t.equal((await collect(services('store').range('alerts.open', []))).length, 700)
  await alerts.prune()
  t.equal(await alerts.count(), 700)
})

t.test('what the server does today in five numbers', async (t) => {
  const house = await startOperations(t, [
    { plugin: stats },
    { plugin: alertsPlugin },
    { plugin: tenants },
    { plugin: tools },
    { plugin: localModel, id: 'models:local' },
    { plugin: chat },
    { plugin: agent, id: 'agents:a', config: { model: 'local' } },
    { plugin: agent, id: 'agents:b', config: { model: 'local' } }
  ])
  const { admin, anybody, kernel, services } = house
  const shown = async () => (await admin('GET', '/admin/stats')).body as Record<string, number>

  t.test('D-79, G-01 to G-03: five whole numbers, for administrators', async (t) => {
    t.match(await anybody('GET', '/admin/stats'), refused)
    const wrong = { method: 'GET', path: '/api/admin/stats', headers: { 'x-admin-secret': 'nope' } }
    t.match(await services('http').dispatch(wrong), refused)
    t.strictSame(await shown(), {
      total_tenants: 0,
      total_agents: 2,
      total_runs_today: 0,
      total_tokens_today: 0,
      active_alerts: 0
    })
  })

  t.test('they count what happens', async (t) => {
    await services('alerts').raise(quota)
    await admin('POST', '/admin/tenants', { name: 't1', tier: 'free' })
    const account = { email: 'ann@x.test', password: 'pass-word-1', name: 'A' }
    const { body } = await services('http').dispatch({ method: 'POST', path: '/api/auth/register', body: account })
    const authorization = `Bearer ${(body as { access_token: string }).access_token}`
    let tokens = 0
    for (const message of ['one', 'two']) {
      const { headers } = await services('http').dispatch({
        method: 'POST',
        path: '/api/chat',
        headers: { authorization },
        body: { message, agent_type: 'a' }
      })
      tokens += Number(headers['x-input-tokens']) + Number(headers['x-output-tokens'])
    }
    const expected = {
      total_tenants: 1,
      total_agents: 2,
      total_runs_today: 2,
      total_tokens_today: tokens,
      active_alerts: 1
    }
    t.ok(tokens > 0)
    t.strictSame(await shown(), expected)
    await kernel.update('chat', { history_messages: 3 })
    await t.resolves(
      (async () => {
        while ((await shown())['total_runs_today'] !== 2) await new Promise((resolve) => setImmediate(resolve))
      })(),
      'a swap of chat loses no turn'
    )
    await kernel.retire('agents:b')
    t.strictSame(await shown(), { ...expected, total_agents: 1 })
    await kernel.retire('alerts')
    t.strictSame(await shown(), { ...expected, total_agents: 1, active_alerts: 0 })
  })
})

t.test('operators are told when a quota is nearly and wholly used, once each, and when models fail', async (t) => {
  const broken = definePlugin({
    name: 'broken-model',
    apply(ctx) {
      const fail = () => Promise.reject(new CodedError('CHAT_PROVIDER_UNREACHABLE', 'no connection to 10.0.0.7'))
      const model = { specificationVersion: 'v3', provider: 'broken', modelId: 'm', supportedUrls: {} }
      const languageModel = () => ({ ...model, doGenerate: fail, doStream: fail }) as unknown as LanguageModelV3
      ctx.contribute('chat.providers', { name: 'broken', models: ['m'], languageModel })
    }
  })
  const { admin, services, lines } = await startOperations(t, [
    { plugin: alertsPlugin },
    { plugin: tenants },
    { plugin: tools },
    { plugin: chat },
    { plugin: broken },
    { plugin: agent, id: 'agents:a', config: { model: 'broken' } }
  ])
  const tenant = (await admin('POST', '/admin/tenants', { name: 't1', tier: 'pro' })).body as { id: string }
  await admin('PUT', `/admin/tenants/${tenant.id}/quota`, { tier: 'pro', requests_per_month: 11, requests_per_day: 10 })
  const turn = (principal: Principal) =>
    services('chat').answer({
      principal,
      message: 'hi',
      agent: 'a',
      caller: { signal: new AbortController().signal },
      requestId: 'r'
    })
  const ends = await Promise.allSettled(Array.from({ length: 15 }, () => turn({ kind: 'tenant', id: tenant.id })))
  const codes = ends.map((end) => (end.status === 'rejected' ? (end.reason as CodedError).code : 'answered'))
  t.equal(codes.filter((code) => code === 'CHAT_MODEL_FAILED').length, 10)
  t.equal(codes.filter((code) => code === 'TENANTS_DAY_EXHAUSTED').length, 5)
  const told = async () =>
    ((await admin('GET', '/admin/alerts')).body as { severity: string; title: string; message: string }[]).map(
      ({ severity, title, message }) => [severity, title, message.replace(tenant.id, 'T').replace(/\d+-\d+.*/, '…')]
    )
  while ((await told()).length < 4) await new Promise((resolve) => setImmediate(resolve))
  await turn({ kind: 'user', id: 'u' }).catch(() => {})
  t.strictSame(
    new Set(await told()),
    new Set([
      ['warning', 'Quota of the day is nearly used up', 'Tenant T has used 8 of 10 requests of …'],
      ['warning', 'Quota of the month is nearly used up', 'Tenant T has used 9 of 11 requests of …'],
      ['critical', 'Quota of the day is used up', 'Tenant T has used 10 of 10 requests of …'],
      ['warning', "Language models of 'broken' fail", 'The language model failed: provider cannot be reached']
    ])
  )
  t.equal((await told()).length, 4, 'once each, however often')
  t.strictSame(
    lines.filter(({ message }) => message === 'an alert could not be raised'),
    []
  )
})

t.test('turns are counted for the day they end on, and none is lost to a store that fails', async (t) => {
  const { services } = await startOperations(t, [])
  let nowMs = Date.UTC(2030, 0, 31, 23, 59, 59)
  let fails = true
  const store = services('store')
  const flaky = {
    ...store,
    get: store.get.bind(store),
    atomically: (async (work, options) => {
      if (fails) throw new Error('the disk is gone')
      return store.atomically(work, options)
    }) as typeof store.atomically
  }
  const tally = createTally(flaky, () => nowMs)
  const other = createTally(store, () => nowMs)
  tally.add(10)
  other.add(5)
  await t.rejects(tally.flush(), { message: 'the disk is gone' })
  tally.add(1)
  t.strictSame(await tally.today(), { runs: 2, tokens: 11 })
  await other.flush()
  fails = false
  await tally.flush()
  await tally.flush()
  t.strictSame(await other.today(), { runs: 3, tokens: 16 })
  nowMs += 1_000
  t.strictSame(await tally.today(), { runs: 0, tokens: 0 })
  tally.add(2)
  t.strictSame(await tally.today(), { runs: 1, tokens: 2 })
})

function executor(...names: RuntimeToolType['name'][]): Plugin {
  return definePlugin({
    name: `executes-${names.join('-')}`,
    apply: (ctx) => ctx.contribute('runtime-tools.types', ...names.map((name) => ({ name })))
  })
}

t.test('G-11, G-12: what kinds of runtime tools can be executed is what plugins are there for', async (t) => {
  const { admin, anybody, kernel } = await startOperations(t, [{ plugin: runtimeTools }])
  for (const path of ['/mcp/runtime_tool_capabilities', '/admin/runtime-tools/capabilities']) {
    t.match(await anybody('GET', path), refused)
    t.strictSame((await admin('GET', path)).body, { tool_types: [] })
  }
  const plugin = executor('sql', 'http', 'script', 'mcp')
  await kernel.begin({ id: 'executor', plugin, config: {} })
  t.strictSame((await admin('GET', '/mcp/runtime_tool_capabilities')).body, {
    tool_types: ['http', 'mcp', 'script', 'sql']
  })
  await kernel.retire('executor')
  t.strictSame((await admin('GET', '/mcp/runtime_tool_capabilities')).body, { tool_types: [] })
})
