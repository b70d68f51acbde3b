import type { LanguageModelV3, LanguageModelV3CallOptions } from '@ai-sdk/provider'
import t from 'tap'
import { definePlugin } from '../../kernel/index.ts'
import agent from '../../plugins/agent/index.ts'
import chat from '../../plugins/chat/index.ts'
import type { DispatchReply } from '../../plugins/http/types.ts'
import tenantAgents from '../../plugins/tenant-agents/index.ts'
import tools from '../../plugins/tools/index.ts'
import v1 from '../../plugins/v1/index.ts'
import {
  bearer,
  type Client,
  echoModel,
  forge,
  startTenants,
  type T,
  type TenantHouse,
  type TenantHouseOptions
} from '../fixtures/tenant-house.ts'
import { collect, type HouseEntry, pluginNamed } from '../harness.ts'

interface AgentsHouse extends TenantHouse {
  /** Below the agents of one tenant. */
  readonly agents: (client: Client, method: string, path?: string, body?: unknown) => Promise<DispatchReply>
  readonly add: (client: Client, name: string, more?: object) => Promise<DispatchReply>
  readonly say: (client: Client, agent?: string) => Promise<DispatchReply>
  /** What models were asked. */
  readonly asked: readonly LanguageModelV3CallOptions[]
}

const config = { model: 'listener', system_prompt: 'You are the help of Acme.' }

/** `HEARD`, whatever is said. */
function listener(asked: LanguageModelV3CallOptions[]) {
  const languageModel = (modelId: string): LanguageModelV3 => ({
    specificationVersion: 'v3',
    provider: 'listener',
    modelId,
    supportedUrls: {},
    async doGenerate(options) {
      asked.push(options)
      const tokens = { inputTokens: { total: 1 }, outputTokens: { total: 1 } }
      return {
        content: [{ type: 'text', text: 'HEARD' }],
        finishReason: { unified: 'stop', raw: 'stop' },
        usage: tokens as Awaited<ReturnType<LanguageModelV3['doGenerate']>>['usage'],
        warnings: []
      }
    },
    doStream: () => Promise.reject(new Error('nobody asks for a stream'))
  })
  return definePlugin({
    name: 'listener',
    apply: (ctx) => ctx.contribute('chat.providers', { name: 'listener', models: ['m'], languageModel })
  })
}

async function startAgents(
  t: T,
  extra: readonly HouseEntry[] = [],
  options: TenantHouseOptions = {}
): Promise<AgentsHouse> {
  const asked: LanguageModelV3CallOptions[] = []
  const house = await startTenants(
    t,
    [
      { plugin: tools },
      { plugin: await pluginNamed('calculator') },
      { plugin: chat },
      { plugin: echoModel() },
      { plugin: listener(asked) },
      { plugin: agent, id: 'agents:helper', config: { model: 'echo' } },
      { plugin: agent, id: 'agents:orchestrator', config: { model: 'echo' } },
      { plugin: v1 },
      { plugin: tenantAgents },
      ...extra
    ],
    options
  )
  const agents: AgentsHouse['agents'] = ({ id }, method, path = '', body) =>
    house.admin(method, `/tenants/${encodeURIComponent(id)}/agents${path}`, body)
  return {
    ...house,
    asked,
    agents,
    add: (client, agent_name, more = {}) =>
      agents(client, 'POST', '', { agent_name, display_name: agent_name, config, ...more }),
    say: ({ key }, agent_type) =>
      house.v1(key, 'POST', '/chat', { message: 'hi', ...(agent_type === undefined ? {} : { agent_type }) })
  }
}

const times = <R>(count: number, work: (index: number) => R): R[] => Array.from({ length: count }, (_, at) => work(at))
const namesOf = (reply: DispatchReply): unknown[] =>
  (reply.body as unknown as Record<string, unknown>[]).map((each) => each['agent_name'])
const statuses = (replies: readonly DispatchReply[]): number[] =>
  replies.map(({ status }) => status).sort((a, b) => a - b)

t.test('what administrators do with agents of tenants (F.15)', async (t) => {
  const house = await startAgents(t)
  const { agents, add, admin } = house
  const client = await house.client('dev')

  t.test('D-12: made, listed, changed, deleted', async (t) => {
    const made = await add(client, 'help', { description: 'Helps', config: { ...config, colour: 'red' } })
    t.equal(made.status, 200)
    t.match(made.body, {
      id: `tenant:${client.id}:help`,
      tenant_id: client.id,
      agent_name: 'help',
      display_name: 'help',
      description: 'Helps',
      config: { ...config, colour: 'red' },
      enabled: true
    })
    const { created_at, updated_at } = made.body as unknown as Record<string, number>
    t.ok(Number.isInteger(created_at) && created_at === updated_at)
    await add(client, 'a/b:c é')
    t.strictSame(namesOf(await agents(client, 'GET')), ['a/b:c é', 'help'])
    const path = `/${encodeURIComponent('a/b:c é')}`
    t.match(await agents(client, 'PUT', path, { display_name: 'ABC', enabled: false }), {
      status: 200,
      body: { agent_name: 'a/b:c é', display_name: 'ABC', enabled: false, config }
    })
    t.match(await agents(client, 'DELETE', path), { status: 204 })
    const gone = { status: 404, body: { error: `Agent 'a/b:c é' not found for tenant '${client.id}'` } }
    t.match(await agents(client, 'DELETE', path), gone)
    t.match(await agents(client, 'PUT', path, {}), gone)
    t.strictSame(namesOf(await agents(client, 'GET')), ['help'])
    const rows = (await admin('GET', '/audit-log')).body as unknown as Record<string, string>[]
    t.strictSame(
      rows.filter(({ resource_type }) => resource_type === 'agent').map(({ action }) => action),
      ['delete_agent', 'update_agent', 'create_agent', 'create_agent'],
      'on record'
    )
    t.notOk(JSON.stringify(rows).includes('Acme'), 'without what they are told')
  })

  t.test('D-13 to D-15: a config that cannot work is refused, with what is wrong in it', async (t) => {
    for (const [bad, error] of [
      [{}, "Tenant agent config is missing a valid non-empty 'model'"],
      [{ model: ' ' }, "Tenant agent config is missing a valid non-empty 'model'"],
      [[], 'Tenant agent config must be a JSON object'],
      ['x', 'Tenant agent config must be a JSON object'],
      [{ ...config, system_prompt: 3 }, "Tenant agent config field 'system_prompt' must be a string"],
      [{ ...config, temperature: 3 }, "Tenant agent config field 'temperature' must be between 0 and 2"],
      [{ ...config, top_p: -1 }, "Tenant agent config field 'top_p' must be between 0 and 1"],
      [{ ...config, presence_penalty: '1' }, "Tenant agent config field 'presence_penalty' must be between -2 and 2"],
      [{ ...config, max_tokens: 0 }, "Tenant agent config field 'max_tokens' must be a positive integer"],
      [{ ...config, stop: [1] }, "Tenant agent config field 'stop' must be a string or an array of strings"],
      [{ ...config, tools: 'calculator' }, "Tenant agent config field 'tools' must be an array"],
      [{ ...config, tools: [1] }, "Tenant agent config field 'tools' must be an array of strings"],
      [
        { ...config, tools: ['calculator', 'no_such_tool'] },
        'Invalid tool name(s): no_such_tool. Available tools are listed by GET /agent/tools'
      ],
      [
        { ...config, max_tool_iterations: 1.5 },
        "Tenant agent config field 'max_tool_iterations' must be an integer between 0 and 100"
      ],
      [{ ...config, parallel_tools: 'yes' }, "Tenant agent config field 'parallel_tools' must be a boolean"],
      [{ ...config, note: 'x'.repeat(100_000) }, 'Tenant agent config must not be longer than 100000 characters']
    ] as const) {
      t.match(await add(client, 'bad', { config: bad }), { status: 400, body: { error, code: 'INVALID_INPUT' } }, error)
    }
    for (const bad of [{ agent_name: ' ' }, { agent_name: 'x'.repeat(129) }, { display_name: '' }]) {
      t.match(await add(client, 'bad', bad), { status: 400 }, JSON.stringify(bad).slice(0, 40))
    }
    t.strictSame(namesOf(await agents(client, 'GET')), ['help'], 'nothing was made')
  })

  t.test('D-16: members of a config are replaced, removed by null, and stay otherwise', async (t) => {
    const put = async (config: object) => (await agents(client, 'PUT', '/help', { config })).body
    t.match(await put({ temperature: 0.1, tools: ['calculator'] }), {
      config: { ...config, colour: 'red', temperature: 0.1, tools: ['calculator'] }
    })
    t.strictSame(((await put({ temperature: null, tools: [] })) as unknown as { config: object }).config, {
      ...config,
      colour: 'red',
      tools: []
    })
    t.match(await agents(client, 'PUT', '/help', { config: { model: null } }), { status: 400 }, 'the result is checked')
  })

  t.test('D-17: a name is given once for a tenant, and again for another', async (t) => {
    t.match(await add(client, 'help'), { status: 409, body: { code: 'CONFLICT' } })
    const other = await house.client('dev')
    t.strictSame(statuses(await Promise.all(times(5, () => add(other, 'help')))), [200, 409, 409, 409, 409])
  })

  t.test('a tenant that is not there has none', async (t) => {
    const nobody = { id: 'nobody', key: '' }
    for (const reply of [await agents(nobody, 'GET'), await add(nobody, 'x'), await agents(nobody, 'DELETE', '/x')]) {
      t.match(reply, { status: 404, body: { error: 'Tenant not found' } })
    }
  })
})

t.test('a tenant has as many agents of its own as its tier, never one more', async (t) => {
  const house = await startAgents(t)
  const { agents, add, admin } = house
  const full = (id: string, most: number) => ({
    status: 409,
    body: {
      error: `Agent quota exceeded: tenant '${id}' may have ${most} of its own and has ${most}`,
      code: 'CONFLICT'
    }
  })
  const free = await house.client('free')
  const dev = await house.client('dev')
  const pro = await house.client('pro')
  t.equal((await add(free, 'first')).status, 200)
  t.match(await add(free, 'second'), full(free.id, 1))
  t.strictSame(
    statuses(await Promise.all(times(40, (at) => add(dev, `a${at}`)))),
    [...times(10, () => 200), ...times(30, () => 409)],
    'at once'
  )
  t.equal(((await agents(dev, 'GET')).body as unknown as object[]).length, 10)
  t.strictSame(
    statuses(await Promise.all(times(12, (at) => add(pro, `a${at}`)))),
    times(12, () => 200)
  )

  t.equal((await agents(free, 'DELETE', '/first')).status, 204)
  t.equal((await add(free, 'second')).status, 200, 'its place is free again')
  await admin('PUT', `/tenants/${free.id}/quota`, { tier: 'starter' })
  t.equal((await add(free, 'third')).status, 200, 'a higher tier has more')
  await admin('PUT', `/tenants/${free.id}/quota`, { tier: 'free' })
  t.match(await add(free, 'fourth'), { status: 409 })
  t.match(await house.say(free, 'third'), { status: 200 }, 'a lower one takes none away')

  const racer = await house.client('free')
  const [quota, ...made] = await Promise.all([
    admin('PUT', `/tenants/${racer.id}/quota`, { tier: 'dev' }),
    ...times(30, (at) => add(racer, `a${at}`))
  ])
  t.equal(quota.status, 200)
  const got = made.filter(({ status }) => status === 200).length
  t.ok(got >= 1 && got <= 10, `${got} while the tier changed`)
  t.equal(((await agents(racer, 'GET')).body as unknown as object[]).length, got)
})

t.test('agents of its own answer a tenant, and nobody else', async (t) => {
  const house = await startAgents(t)
  const { agents, add, say, send, v1, asked } = house
  const acme = await house.client('dev', 'Acme')
  const other = await house.client('dev', 'Other')
  const unknown = (name: string) => ({ status: 404, body: { error: `Agent '${name}' not found` } })

  t.match(await say(acme, 'desk'), unknown('desk'), 'what is not there is not remembered')
  await add(acme, 'desk', { config: { ...config, temperature: 0.5, max_tokens: 99, stop: '#', tools: ['calculator'] } })
  t.match(await say(acme, 'desk'), {
    status: 200,
    headers: { 'x-agent-name': 'desk', 'x-provider-name': 'listener' },
    body: { response: 'HEARD', agent: 'desk', source: 'tenant' }
  })
  t.match(asked.at(-1), {
    prompt: [{ role: 'system', content: 'You are the help of Acme.' }],
    temperature: 0.5,
    maxOutputTokens: 99,
    stopSequences: ['#'],
    tools: [{ name: 'calculator' }]
  })
  t.match(await say(other, 'desk'), unknown('desk'))
  t.match(await v1(other.key, 'GET', '/agents/desk'), { status: 404 }, 'X-21')
  t.match(await house.services('tenants').runs(acme.id), [{ agent: 'desk', runs: 1 }], 'counted')

  const shown = { name: 'desk', status: 'active', total_runs: 1, success_rate: 1, config: { tools: ['calculator'] } }
  t.match(await v1(acme.key, 'GET', '/agents/desk'), { body: shown }, 'X-19')
  t.match(await v1(acme.key, 'GET', '/agents'), { body: { total: 3, items: [shown, {}, {}] } })
  t.match(await v1(other.key, 'GET', '/agents'), { body: { total: 2 } })
  t.match(await v1(acme.key, 'GET', '/agents/desk/runs'), { body: { total: 1 } })
  const { body } = await v1(acme.key, 'GET', '/agents/desk')
  t.match((body as { created_at?: string }).created_at, /^\d{4}-.*Z$/)
  t.notOk(JSON.stringify(body).includes('You are'))

  t.test('they come before those of the program', async (t) => {
    t.match(await say(acme, 'helper'), { body: { response: 'ECHO: hi', source: 'system' } })
    await add(acme, 'helper')
    await add(acme, 'orchestrator')
    t.match(await say(acme, 'helper'), { body: { response: 'HEARD', agent: 'helper', source: 'tenant' } })
    t.match(await say(acme), { body: { response: 'HEARD', agent: 'orchestrator (tenant)' } }, 'nobody named')
    t.match(await say(other, 'helper'), { body: { response: 'ECHO: hi' } })
    t.match(await say(other), { body: { response: 'ECHO: hi', agent: 'orchestrator (system)' } })
    t.match(await v1(acme.key, 'GET', '/agents'), { body: { total: 3 } }, 'once each')
  })

  t.test('users whose token names the tenant have them too', async (t) => {
    const turn = { message: 'hi', agent_type: 'desk' }
    const headers = bearer(forge({ sub: 'u1', tenant_id: acme.id }))
    t.match(await send('POST', '/api/chat', { headers, body: turn }), { body: { response: 'HEARD', agent: 'desk' } })
    const alone = bearer(forge({ sub: 'u1' }))
    t.match(await send('POST', '/api/chat', { headers: alone, body: turn }), unknown('desk'))
    const foreign = bearer(forge({ sub: 'u1', tenant_id: other.id }))
    t.match(await send('POST', '/api/chat', { headers: foreign, body: turn }), unknown('desk'))
  })

  t.test('X-09: one that is disabled is listed and cannot be called, nor the program’s of that name', async (t) => {
    await agents(acme, 'PUT', '/helper', { enabled: false })
    const before = await house.services('tenants').standing(acme.id)
    t.match(await say(acme, 'helper'), {
      status: 404,
      body: { error: `Agent 'helper' is disabled for tenant '${acme.id}'` }
    })
    t.equal(
      (await house.services('tenants').standing(acme.id))?.inMonth.requests,
      before?.inMonth.requests,
      'uncounted'
    )
    t.match(await v1(acme.key, 'GET', '/agents/helper'), { body: { status: 'disabled' } })
    await agents(acme, 'PUT', '/helper', { enabled: true })
    t.match(await say(acme, 'helper'), { status: 200 })
    await agents(acme, 'DELETE', '/helper')
    t.match(await say(acme, 'helper'), { body: { response: 'ECHO: hi' } })
  })

  t.test('a model that is not there is the operator’s fault', async (t) => {
    await add(acme, 'lost', { config: { model: 'gone/x' } })
    t.match(await say(acme, 'lost'), { status: 500, body: { code: 'CONFIGURATION_ERROR' } })
  })

  t.test('without the plugin tenants have those of the program, and theirs again with it', async (t) => {
    const { kernel } = house
    await kernel.update('chat', { history_messages: 3 })
    t.match(await say(acme, 'desk'), { body: { response: 'HEARD' } })
    await kernel.retire('tenant-agents')
    t.match(await say(acme, 'desk'), unknown('desk'))
    t.match(await v1(acme.key, 'GET', '/agents'), { body: { total: 2 } })
    await kernel.begin({ id: 'tenant-agents', plugin: tenantAgents, config: {} })
    await agents(acme, 'PUT', '/desk', { config: { temperature: 1 } })
    t.match(await say(acme, 'desk'), { body: { response: 'HEARD' } })
    t.equal(asked.at(-1)?.temperature, 1)
  })

  t.test('data that is deleted leaves them, a tenant that is deleted does not', async (t) => {
    const keep = await house.client('dev')
    await add(keep, 'mine')
    t.match(await v1(keep.key, 'DELETE', '/tenant/data'), { status: 200 })
    t.strictSame(namesOf(await agents(keep, 'GET')), ['mine'])
    t.match(await house.admin('DELETE', `/tenants/${keep.id}`), { status: 204 })
    t.match(await agents(keep, 'GET'), { status: 404 })
    const left = await collect(house.services('store').range('tenant_agents.agents', []))
    t.notOk(left.some(([[tenantId]]) => tenantId === keep.id))
    t.ok(left.some(([[tenantId]]) => tenantId === acme.id))
  })
})

t.test('templates give new clients their agents (F.15)', async (t) => {
  const house = await startAgents(t)
  const { admin, agents, say } = house
  const template = { product_type: 'Desk', agent_name: 'first', display_name: 'First', config }
  const post = (more: object) => admin('POST', '/agent-templates', { ...template, ...more })
  const provision = async (tier: string, product_type: string) => {
    const client = { name: 'n', tier, product_type, api_key_name: 'k' }
    return admin('POST', '/provision-client', client)
  }
  const idOf = (reply: DispatchReply) => (reply.body as { id: string }).id

  t.test('D-31: made, listed by product type, deleted once', async (t) => {
    const made = await post({ description: 'the first' })
    t.match(made, { status: 200, body: { ...template, product_type: 'desk', description: 'the first' } })
    await post({ agent_name: 'second' })
    const other = await post({ product_type: 'shop' })
    t.match(await post({ product_type: 'DESK' }), { status: 409, body: { code: 'CONFLICT' } })
    t.match(await post({ config: {} }), { status: 400 })
    t.match(await post({ product_type: ' ' }), { status: 400 })
    t.strictSame(namesOf(await admin('GET', '/agent-templates?product_type=Desk')), ['first', 'second'])
    t.strictSame(namesOf(await admin('GET', '/agent-templates')), ['first', 'second', 'first'])
    t.strictSame((await admin('GET', '/agent-templates?product_type=des')).body, [])
    t.match(await admin('DELETE', `/agent-templates/${idOf(other)}`), { status: 204 })
    t.match(await admin('DELETE', `/agent-templates/${idOf(other)}`), {
      status: 404,
      body: { error: `Template '${idOf(other)}' not found` }
    })
    const rows = (await admin('GET', '/audit-log')).body as unknown as Record<string, string>[]
    t.strictSame(rows.map(({ action }) => action).slice(0, 2), ['delete_agent_template', 'create_agent_template'])
  })

  t.test('D-10: a client is provisioned with an agent for each of them, which answers it', async (t) => {
    const made = await provision('dev', 'desk')
    t.match(made, { status: 200, body: { product_type: 'desk', agents_created: ['first', 'second'] } })
    const { tenant_id: id, raw_api_key: key } = made.body as { tenant_id: string; raw_api_key: string }
    t.match(await say({ id, key }, 'second'), { body: { response: 'HEARD', source: 'tenant' } })
    t.strictSame(namesOf(await agents({ id, key }, 'GET')), ['first', 'second'])
    t.match(await provision('free', 'nothing'), { status: 200, body: { agents_created: [] } })
  })

  t.test('D-11: a tier that has fewer gets none, and no tenant', async (t) => {
    const before = await admin('GET', '/tenants')
    t.match(await provision('free', 'desk'), {
      status: 409,
      body: { error: "Agent quota exceeded: 'desk' comes with 2 agents, tier 'free' has 1" }
    })
    t.strictSame((await admin('GET', '/tenants')).body, before.body)
    const rows = (await admin('GET', '/audit-log')).body as unknown as Record<string, string>[]
    t.equal(rows.filter(({ action }) => action === 'provision_client').length, 2, 'nor a row of it')
  })
})

t.test('agents of tenants are there after a restart', async (t) => {
  const dataFolder = t.testdir()
  let client: Client | undefined
  for (const round of ['made', 'found again']) {
    await t.test(round, async (t) => {
      const house = await startAgents(t as unknown as T, [], { dataFolder })
      client ??= await house.client('dev')
      if (round === 'made') t.equal((await house.add(client, 'desk')).status, 200)
      t.match(await house.say(client, 'desk'), { body: { response: 'HEARD' } })
    })
  }
})
