import { createRequire } from 'node:module'
import { createParser } from 'eventsource-parser'
import type { LanguageModelV3, LanguageModelV3StreamPart } from '@ai-sdk/provider'
import t, { type Test } from 'tap'
import { CodedError, definePlugin, type Plugin, schemaOf } from '../../kernel/index.ts'
import agent from '../../plugins/agent/index.ts'
import chat from '../../plugins/chat/index.ts'
import type { DispatchReply } from '../../plugins/http/types.ts'
import openaiCompatible from '../../plugins/openai-compatible/index.ts'
import tools from '../../plugins/tools/index.ts'
import type { Tool } from '../../plugins/tools/types.ts'
import {
  type ChatMessage,
  delta,
  doneMark,
  end,
  finish,
  json,
  type ModelServer,
  say,
  startModelServer
} from '../fakes/model-server.ts'
import { collect, type House, type HouseEntry, type HouseOptions, pluginNamed, startHouse } from '../harness.ts'

/** Lets in whoever names a user: `Authorization: Bearer u1`, or `?token=u1`. */
const guard = definePlugin({
  name: 'test-guard',
  apply(ctx) {
    ctx.contribute('http.guards', {
      name: 'user',
      scheme: { type: 'http', scheme: 'bearer' },
      errors: { TEST_NOBODY: 401 },
      check(request) {
        const id = request.header('authorization')?.slice('Bearer '.length) ?? request.queryValue('token')
        if (id === undefined) throw new CodedError('TEST_NOBODY', 'Unauthorized')
        return { kind: 'user', id }
      }
    })
  }
})

/** A store that reads nothing and keeps nothing, but for what tools ask it at their start: whether there are grants. */
const brokenStore = definePlugin({
  name: 'broken-store',
  provides: ['store'],
  apply(ctx) {
    const fail = (): Promise<never> =>
      Promise.reject(new CodedError('STORE_FAILED', 'the disk at /secret/path is gone'))
    ctx.provide('store', {
      get: fail,
      range: (collection: string) => ({
        [Symbol.asyncIterator]: () => ({
          next: collection === 'tools.grants' ? () => Promise.resolve({ done: true as const, value: undefined }) : fail
        })
      }),
      atomically: fail,
      reserve: fail,
      flushed: fail,
      secret: fail,
      scratch: fail,
      ping: fail
    })
  }
})

const agents: readonly HouseEntry[] = [
  { plugin: agent, id: 'agents:router', config: { model: 'stub/mock-router', router: true } },
  { plugin: agent, id: 'agents:product', config: { model: 'stub/mock-main', description: 'Products' } },
  { plugin: agent, id: 'agents:sales', config: { model: 'stub/mock-main', description: 'Sales' } },
  { plugin: agent, id: 'agents:orchestrator', config: { model: 'stub' } },
  {
    plugin: agent,
    id: 'agents:calc-agent',
    config: { model: 'mock-main', tools: ['calculator'], max_tool_iterations: 2 }
  }
]

interface ChatHouse extends House {
  readonly model: ModelServer
  readonly providerConfig: object
  readonly post: (body: unknown, user?: string) => Promise<DispatchReply>
  readonly stream: (body: unknown, user?: string) => Promise<StreamReply>
}

interface StreamReply {
  readonly status: number
  readonly events: Event[]
  /** The contents of all tokens, joined. */
  readonly text: string
}

type Event = Record<string, string>

async function startChat(
  t: Test,
  extra: readonly HouseEntry[] = [],
  options: HouseOptions & { readonly provider?: object } = {}
): Promise<ChatHouse> {
  const model = await startModelServer()
  t.teardown(() => model.close())
  const providerConfig = {
    base_url: model.baseUrl,
    api_key: 'sk-very-secret',
    models: ['mock-main', 'mock-router', 'second'],
    max_retries: 0,
    ...options.provider
  }
  const entries = [
    { plugin: guard },
    { plugin: tools },
    { plugin: await pluginNamed('calculator') },
    { plugin: chat },
    { plugin: openaiCompatible, id: 'providers:stub', config: providerConfig },
    ...agents,
    ...extra
  ]
  const house = await startHouse(t, entries, options)
  const send = (path: string, body: unknown, user: string): Promise<DispatchReply> => {
    const headers = { authorization: `Bearer ${user}`, 'content-type': 'application/json' }
    return house.services('http').dispatch({ method: 'POST', path, headers, body })
  }
  return {
    ...house,
    model,
    providerConfig,
    post: (body, user = 'u1') => send('/api/chat', body, user),
    stream: async (body, user = 'u1') => toStream(await send('/api/chat/stream', body, user))
  }
}

function toStream(reply: DispatchReply): StreamReply {
  const events = typeof reply.body === 'string' ? parseEvents(reply.body) : []
  return { status: reply.status, events, text: textOf(events) }
}

function parseEvents(text: string): Event[] {
  const events: Event[] = []
  const parser = createParser({ onEvent: ({ data }) => events.push(JSON.parse(data) as Event) })
  parser.feed(text)
  return events
}

function textOf(events: readonly Event[]): string {
  return events.map((event) => (event['event'] === 'token' ? event['content'] : '')).join('')
}

const kinds = (events: readonly Event[]): (string | undefined)[] => events.map((event) => event['event'])

/** What is stored of a user's turns, oldest first. */
async function turnsOf(house: House, user: string): Promise<unknown[]> {
  const rows = await collect(house.services('store').range('chat.turns', [user]))
  return rows.map(([, { value }]) => value)
}

/** The texts of a prompt with their roles, the system's left out. */
function said(messages: readonly ChatMessage[]): string[] {
  return messages.filter(({ role }) => role !== 'system').map(({ role, content }) => `${role}: ${content}`)
}

t.test('a turn with an agent (F.6)', async (t) => {
  const house = await startChat(t)
  const { post, model } = house
  const last = (): ChatMessage[] => [...(model.requests.at(-1)?.body.messages ?? [])]

  t.test('C-01: the named agent answers in the printed form', async (t) => {
    const reply = await post({ message: 'hi', agent_type: 'product' })
    t.equal(reply.status, 200)
    t.match(reply.body, { response: 'ECHO: hi', agent: 'product', context_id: /^.+$/, sources: null })
    t.strictSame(Object.keys(reply.body as object), ['response', 'agent', 'context_id', 'sources'])
  })

  t.test('C-02: the router chooses where nobody is named, and the agent shows that (R5)', async (t) => {
    t.match(await post({ message: 'route:sales numbers' }), { status: 200, body: { agent: 'sales (system)' } })
    t.match(await post({ message: 'route:product', agent_type: null }), { body: { agent: 'product (system)' } })
    t.match(await post({ message: 'route:product', agent_type: '' }), { body: { agent: 'product (system)' } })
  })

  t.test('C-03: a router that answers rubbish leaves it to the orchestrator', async (t) => {
    t.match(await post({ message: 'route:zzz' }), { status: 200, body: { agent: 'orchestrator (system)' } })
  })

  t.test('C-04: a blank message is refused', async (t) => {
    for (const message of ['', '   ', '\n\t\u00a0\u3000']) {
      t.match(await post({ message, agent_type: 'product' }), {
        status: 400,
        body: { error: 'message must not be empty', code: 'INVALID_INPUT' }
      })
    }
  })

  t.test('C-05: a body without a message, or with one of another type, is refused', async (t) => {
    for (const body of [{}, { message: 1 }, { message: null }, { message: 'x', agent_type: 3 }]) {
      t.match(await post(body), { status: 400, body: { error: String, code: 'INVALID_INPUT' } })
    }
  })

  t.test('C-06: the router cannot be called', async (t) => {
    for (const agent_type of ['router', 'Router']) {
      t.match(await post({ message: 'hi', agent_type }), {
        status: 400,
        body: { error: 'Router agent cannot be called directly' }
      })
    }
  })

  t.test('C-07: an agent that is not there is named', async (t) => {
    t.match(await post({ message: 'hi', agent_type: 'ghost-1' }), {
      status: 404,
      body: { error: "Agent 'ghost-1' not found", code: 'NOT_FOUND' }
    })
  })

  t.test('C-08, C-09: a second turn sees the first, and both are stored in order', async (t) => {
    const first = await post({ message: 'one', agent_type: 'product' }, 'u8')
    const { context_id } = first.body as { context_id: string }
    const second = await post({ message: 'two', agent_type: 'product', context_id }, 'u8')
    t.match(second.body, { context_id, response: 'ECHO: two' })
    t.strictSame(said(last()), ['user: one', 'assistant: ECHO: one', 'user: two'])
    t.match(await turnsOf(house, 'u8'), [
      { user: 'one', assistant: 'ECHO: one', agent: 'product' },
      { user: 'two', assistant: 'ECHO: two', agent: 'product' }
    ])
    t.match(await house.services('store').get('chat.conversations', ['u8', context_id]), {
      value: { title: null, messageCount: 4, createdAtMs: Number, updatedAtMs: Number }
    })
  })

  t.test('the model sees the last ten messages of a conversation', async (t) => {
    for (let turn = 1; turn <= 7; turn += 1) {
      await post({ message: `m${turn}`, agent_type: 'product', context_id: 'long' }, 'u9')
    }
    const seen = said(last())
    t.equal(seen.length, 11)
    t.equal(seen[0], 'user: m2')
    t.equal(seen[9], 'assistant: ECHO: m6')
  })

  t.test('turns of one conversation at once are all kept', async (t) => {
    const messages = Array.from({ length: 12 }, (_, index) => `m${index}`)
    const body = { agent_type: 'product', context_id: 'crowd' }
    const replies = await Promise.all(messages.map((message) => post({ ...body, message }, 'u23')))
    t.ok(replies.every(({ status }) => status === 200))
    const kept = (await turnsOf(house, 'u23')).map((turn) => (turn as { user: string }).user)
    t.strictSame(kept.sort(), messages.sort())
    t.match(await house.services('store').get('chat.conversations', ['u23', 'crowd']), { value: { messageCount: 24 } })
  })

  t.test('C-10: an unknown context_id begins a conversation under that id', async (t) => {
    t.match(await post({ message: 'hi', agent_type: 'product', context_id: 'my-ctx-1' }, 'u10'), {
      status: 200,
      body: { context_id: 'my-ctx-1' }
    })
  })

  t.test("C-11 (R13): another user's context_id is a conversation of the caller's own", async (t) => {
    await post({ message: 'my secret', agent_type: 'product', context_id: 'shared' }, 'u11')
    t.match(await post({ message: 'hi', agent_type: 'product', context_id: 'shared' }, 'u12'), { status: 200 })
    t.strictSame(said(last()), ['user: hi'])
    t.equal((await turnsOf(house, 'u11')).length, 1)
  })

  t.test('C-12: the reported usage is in the headers', async (t) => {
    const { headers } = await post({ message: 'hi', agent_type: 'product' })
    t.match(headers, { 'x-input-tokens': '10', 'x-output-tokens': '5' })
  })

  t.test('usage that is not reported is estimated from the characters', async (t) => {
    model.enqueue(json(200, { choices: [{ message: { role: 'assistant', content: '12345' }, finish_reason: 'stop' }] }))
    const { headers } = await post({ message: '123456789', agent_type: 'product' })
    t.match(headers, { 'x-input-tokens': '3', 'x-output-tokens': '2' })
  })

  t.test('C-13: a failing provider is an LLM_ERROR that shows nothing of it, and nothing is stored', async (t) => {
    const reply = await post({ message: 'FAIL', agent_type: 'product' }, 'u13')
    t.match(reply, { status: 500, body: { error: String, code: 'LLM_ERROR' } })
    t.notMatch(JSON.stringify(reply.body), /127\.0\.0\.1|sk-very|stand-in/)
    t.strictSame(await turnsOf(house, 'u13'), [])
  })

  t.test('C-15: a request may ask for another model', async (t) => {
    for (const name of ['stub/second', 'second']) {
      t.match(await post({ message: 'hi', agent_type: 'product', model: name }), { status: 200 })
      t.equal(model.requests.at(-1)?.body.model, 'second')
    }
    await post({ message: 'hi', agent_type: 'product', model: 'stub' })
    t.equal(model.requests.at(-1)?.body.model, 'mock-main', 'the provider alone means its first model')
  })

  t.test('C-16: a model that nobody offers is refused', async (t) => {
    for (const name of ['no-such', 'stub/no-such', 'nobody/second']) {
      t.match(await post({ message: 'hi', agent_type: 'product', model: name }), {
        status: 400,
        body: { error: /no-such|nobody/ }
      })
    }
  })

  t.test('C-17: the model calls a tool and reads its result', async (t) => {
    const reply = await post({ message: 'CALC', agent_type: 'calc-agent' })
    t.match(reply, { status: 200, body: { response: 'RESULT 5' }, headers: { 'x-input-tokens': '20' } })
    const result = last().at(-1)
    t.equal(result?.role, 'tool')
    t.strictSame(JSON.parse(result?.content ?? ''), { result: 5 })
    t.match(model.requests.at(-1)?.body.tools, [
      { type: 'function', function: { name: 'calculator', parameters: Object } }
    ])
  })

  t.test('C-18: after its rounds are used up the model is asked once more without tools', async (t) => {
    const before = model.requests.length
    const reply = await post({ message: 'LOOPTOOL', agent_type: 'calc-agent' })
    t.match(reply, {
      status: 200,
      body: { response: 'Agent completed tool calls but could not generate a final response.' }
    })
    t.equal(model.requests.length - before, 3)
    t.equal(model.requests.at(-1)?.body.tools, undefined)
  })

  t.test('a last call that fails still ends in an answer', async (t) => {
    const calls = [{ name: 'calculator', arguments: { operation: 'add', a: 2, b: 3 } }]
    const text = 'Agent completed tool calls but could not generate a final response.'
    const before = model.requests.length
    model.enqueue(say(false, { calls }), say(false, { calls }), json(500, {}))
    t.match(await post({ message: 'hi', agent_type: 'calc-agent' }), { status: 200, body: { response: text } })
    model.enqueue(say(true, { calls }), say(true, { calls }), json(500, {}))
    t.match(await house.stream({ message: 'hi', agent_type: 'calc-agent' }), { text })
    t.equal(model.requests.length - before, 6)
  })

  t.test('C-19: an agent without tools offers none, and a call of one is answered with an error', async (t) => {
    t.match(await post({ message: 'CALC', agent_type: 'product' }), { status: 200, body: { response: 'RESULT 5' } })
    const [first, second] = model.requests.slice(-2)
    t.equal(first?.body.tools, undefined)
    t.strictSame(JSON.parse(second?.body.messages.at(-1)?.content ?? ''), {
      error: "Tool 'calculator' is not allowed for this agent"
    })
  })

  t.test('C-20: nobody is let in without a credential', async (t) => {
    for (const path of ['/api/chat', '/api/chat/stream']) {
      const reply = await house.services('http').dispatch({ method: 'POST', path, body: { message: 'hi' } })
      t.match(reply, { status: 401, body: { error: 'Unauthorized' } })
    }
  })

  t.test('C-22: a name in other letters is understood when nothing is called exactly so', async (t) => {
    t.match(await post({ message: 'hi', agent_type: 'PRODUCT' }), { status: 200, body: { agent: 'product' } })
  })

  t.test('ids and messages are bounded', async (t) => {
    const wrong = [
      { context_id: 'x'.repeat(257) },
      { context_id: 'é'.repeat(129) },
      { context_id: 'a\nb' },
      { context_id: 'half \ud83d' },
      { workspace_id: 'x'.repeat(257) },
      { model: 'x'.repeat(257) },
      { agent_type: 'x'.repeat(129) },
      { message: 'x'.repeat(100_001) }
    ]
    for (const part of wrong) {
      t.match(await post({ message: 'hi', agent_type: 'product', ...part }), {
        status: 400,
        body: { code: 'INVALID_INPUT' }
      })
    }
    const context_id = '한'.repeat(85)
    t.match(await post({ message: 'x'.repeat(100_000), agent_type: 'product', context_id }), {
      status: 200,
      body: { context_id }
    })
  })

  t.test('STREAM-09: half an emoji in a message is stored as U+FFFD', async (t) => {
    const reply = await post('{"message":"ok \\ud83d end","agent_type":"product"}', 'u19')
    t.match(reply, { status: 200, body: { response: 'ECHO: ok \ufffd end' } })
    t.match(await turnsOf(house, 'u19'), [{ user: 'ok \ufffd end' }])
  })

  t.test('/config/info names providers, models and agents, and no secret', async (t) => {
    const { body } = await house.services('http').dispatch({ method: 'GET', path: '/config/info' })
    t.match(body, {
      providers: ['stub'],
      models: ['stub/mock-main', 'stub/mock-router', 'stub/second'],
      agents: ['router', 'product', 'sales', 'orchestrator', 'calc-agent']
    })
  })
})

t.test('a streamed turn (F.7)', async (t) => {
  const house = await startChat(t)
  const { stream, model } = house
  const get = async (query: string, headers: Record<string, string> = {}): Promise<DispatchReply> =>
    house.services('http').dispatch({ method: 'GET', path: `/api/chat/stream?${query}`, headers })

  t.test('S-01 to S-04: start, tokens, done; exactly the printed members', async (t) => {
    const reply = await house.services('http').dispatch({
      method: 'POST',
      path: '/api/chat/stream',
      headers: { authorization: 'Bearer u1' },
      body: { message: 'hi', agent_type: 'product' }
    })
    t.equal(reply.status, 200)
    t.match(reply.headers['content-type'], /^text\/event-stream/)
    const id = /"context_id":"([^"]+)"/.exec(reply.body as string)?.[1]
    t.equal(
      reply.body,
      [
        `data: {"event":"start","agent":"product","context_id":"${id}"}\n\n`,
        'data: {"event":"token","content":"ECHO"}\n\n',
        'data: {"event":"token","content":": hi"}\n\n',
        `data: {"event":"done","agent":"product","context_id":"${id}"}\n\n`
      ].join('')
    )
  })

  t.test('S-05: GET takes the fields and the token from the query', async (t) => {
    const { status, events, text } = toStream(await get('message=Sum%20up&agent_type=product&context_id=c5&token=u5'))
    t.equal(status, 200)
    t.strictSame(kinds(events), ['start', 'token', 'token', 'done'])
    t.equal(events[0]?.['context_id'], 'c5')
    t.equal(text, 'ECHO: Sum up')
    t.match(await turnsOf(house, 'u5'), [{ user: 'Sum up' }])
  })

  t.test('S-06: GET without a message is refused before a stream begins', async (t) => {
    t.match(await get('agent_type=product&token=u1'), { status: 400, body: { error: String, code: 'INVALID_INPUT' } })
  })

  t.test('S-07: GET without a credential is refused before a stream begins', async (t) => {
    t.match(await get('message=hi'), { status: 401, body: { error: 'Unauthorized' } })
  })

  t.test('S-08: what is not let in is one error event without a context_id', async (t) => {
    const cases = [
      [{ message: '  ' }, 'message must not be empty'],
      [{ message: 'hi', agent_type: 'ghost-1' }, "Agent 'ghost-1' not found"],
      [{ message: 'hi', agent_type: 'router' }, 'Router agent cannot be called directly'],
      [{ message: 'hi', agent_type: 'product', model: 'no-such' }, "Model 'no-such' is not offered by any provider"]
    ] as const
    for (const [body, error] of cases) {
      const { status, events } = await stream(body)
      t.equal(status, 200)
      t.strictSame(events, [{ event: 'error', error }])
    }
    t.strictSame(toStream(await get('message=%20&token=u1')).events, [
      { event: 'error', error: 'message must not be empty' }
    ])
  })

  t.test('S-10: a failing provider ends the stream with an error, and nothing is stored', async (t) => {
    const { events } = await stream({ message: 'FAIL', agent_type: 'product' }, 'u10')
    t.strictSame(kinds(events), ['start', 'error'])
    t.strictSame(Object.keys(events[1] ?? {}), ['event', 'context_id', 'error'])
    t.equal(events[1]?.['context_id'], events[0]?.['context_id'])
    t.equal(events[1]?.['error'], 'Stream error: provider failed')
    t.strictSame(await turnsOf(house, 'u10'), [])
    const logged = house.lines.find(({ message }) => message === 'a chat stream failed')
    t.match(logged, { level: 'error', requestId: String })
    t.match(JSON.stringify(logged), 'the stand-in fails as told', 'the log tells why')
  })

  t.test('S-13, S-15: the turn is stored, and the next one sees it', async (t) => {
    const context_id = 'c13'
    t.equal((await stream({ message: 'one', agent_type: 'product', context_id }, 'u13')).text, 'ECHO: one')
    t.equal((await stream({ message: 'two', agent_type: 'product', context_id }, 'u13')).text, 'ECHO: two')
    t.strictSame(said(model.requests.at(-1)?.body.messages ?? []), ['user: one', 'assistant: ECHO: one', 'user: two'])
    t.match(await turnsOf(house, 'u13'), [{ assistant: 'ECHO: one' }, { assistant: 'ECHO: two' }])
  })

  t.test(
    'S-14 (R5): the agent is the plain name when it was named, and with its source when it was chosen',
    async (t) => {
      const agentsOf = ({ events }: StreamReply): (string | undefined)[] => [
        events[0]?.['agent'],
        events.at(-1)?.['agent']
      ]
      t.strictSame(agentsOf(await stream({ message: 'hi', agent_type: 'product' })), ['product', 'product'])
      t.strictSame(agentsOf(await stream({ message: 'route:sales' })), ['sales (system)', 'sales (system)'])
    }
  )

  t.test('a router that fails is an admission failure', async (t) => {
    model.enqueue(json(500, {}))
    t.strictSame((await stream({ message: 'hi' })).events, [
      { event: 'error', error: 'Router failed: provider failed' }
    ])
    model.enqueue(json(500, {}))
    t.match(await house.post({ message: 'hi' }), {
      status: 500,
      body: { error: 'Router failed: provider failed', code: 'LLM_ERROR' }
    })
  })

  t.test('tools run between the rounds, and the words before them are kept', async (t) => {
    const calls = [{ name: 'calculator', arguments: { operation: 'add', a: 2, b: 3 } }]
    model.enqueue(say(true, { text: 'I shall reckon.', calls }), say(true, { text: 'It is 5.' }))
    const { text } = await stream({ message: 'go', agent_type: 'calc-agent' }, 'u20')
    t.equal(text, 'I shall reckon.\n\nIt is 5.')
    t.match(await turnsOf(house, 'u20'), [{ assistant: text }], 'stored as it was shown')
    model.enqueue(say(false, { text: 'I shall reckon.', calls }), say(false, { text: 'It is 5.' }))
    t.match(await house.post({ message: 'go', agent_type: 'calc-agent' }), { body: { response: text } })
  })

  t.test('a stream that ends without a finish is an error, never done', async (t) => {
    model.enqueue({ steps: [{ write: delta('half') }] })
    const { events } = await stream({ message: 'x', agent_type: 'product' }, 'u21')
    t.strictSame(kinds(events), ['start', 'token', 'error'])
    t.equal(events[2]?.['error'], 'Stream error: provider closed connection')
    t.strictSame(await turnsOf(house, 'u21'), [])
  })

  t.test('either end mark is enough', async (t) => {
    for (const mark of [finish(), doneMark, 'data: [DONE]', 'data:[DONE]\r\n\r\n']) {
      model.enqueue({ steps: [{ write: delta('all') }, { write: mark }] })
      t.strictSame(kinds((await stream({ message: 'x', agent_type: 'product' })).events), ['start', 'token', 'done'])
    }
    const never = new Promise(() => {})
    model.enqueue({ steps: [{ write: delta('all') }, end, { wait: never }] })
    const { events } = await stream({ message: 'x', agent_type: 'product' })
    t.equal(events.at(-1)?.['event'], 'done', 'also from a server that does not close')
  })

  t.test('an error within a stream, or a frame that is no JSON, is an error', async (t) => {
    for (const bad of ['data: {"error":{"message":"at api.example.com with sk-very-secret"}}\n\n', 'data: {oops\n\n']) {
      model.enqueue({ steps: [{ write: delta('half') }, { write: bad }, end] })
      const { events } = await stream({ message: 'x', agent_type: 'product' })
      t.strictSame(kinds(events), ['start', 'token', 'error'])
      t.equal(events[2]?.['error'], 'Stream error: provider failed')
    }
    t.notMatch(JSON.stringify(house.lines), 'sk-very-secret', 'the key is not in the log either')
  })

  t.test('an emoji cut between two deltas comes whole', async (t) => {
    model.enqueue({
      steps: [{ write: delta('a\ud83d') }, { write: delta('\ude42b') }, { write: delta('c\ud83d') }, end]
    })
    const { events, text } = await stream({ message: 'x', agent_type: 'product' }, 'u22')
    t.equal(text, 'a🙂bc\ufffd')
    t.strictSame(
      events.slice(1, -1).map((event) => event['content']),
      ['a', '🙂b', 'c', '\ufffd']
    )
    t.match(await turnsOf(house, 'u22'), [{ assistant: text }])
  })
})

t.test('tools of an agent', async (t) => {
  const order: string[] = []
  const probe = (name: string, run: Tool['run']): Tool => ({
    name,
    description: name,
    input: schemaOf({ type: 'object' }),
    output: schemaOf({}),
    effect: 'none',
    parallelSafe: true,
    run
  })
  let open = (): void => {}
  const gate = new Promise<void>((resolve) => {
    open = resolve
  })
  const probes = definePlugin({
    name: 'probes',
    apply(ctx) {
      ctx.contribute(
        'tools',
        probe('whoami', (_input, { principal }) => ({ principal })),
        probe('breaks', () => {
          throw new CodedError('PROBE_BROKEN', 'the probe is broken', { detail: { category: 'internal' } })
        }),
        probe('waits', async () => {
          order.push('waits begins')
          await gate
          order.push('waits ends')
          return 'waited'
        }),
        probe('opens', () => {
          order.push('opens')
          open()
          return 'opened'
        })
      )
    }
  })
  const names = ['whoami', 'breaks', 'waits', 'opens', 'gone']
  const house = await startChat(t, [
    { plugin: probes },
    { plugin: agent, id: 'agents:prober', config: { model: 'stub', tools: names } },
    { plugin: agent, id: 'agents:juggler', config: { model: 'stub', tools: names, parallel_tools: true } }
  ])
  const { model, post } = house
  /** The results that the model reads after it has made these calls. */
  const resultsOf = async (agent_type: string, calls: { name: string; arguments: unknown }[]): Promise<unknown[]> => {
    const withIds = calls.map((call, index) => ({ ...call, id: `id-${index}` }))
    model.enqueue(say(false, { calls: withIds }), say(false, { text: 'fine' }))
    t.match(await post({ message: 'go', agent_type }), { status: 200, body: { response: 'fine' } })
    const results = model.requests.at(-1)?.body.messages.filter(({ role }) => role === 'tool') ?? []
    t.strictSame(
      results.map((result) => result.tool_call_id),
      withIds.map(({ id }) => id),
      'in the order of the calls'
    )
    return results.map(({ content }) => JSON.parse(content ?? '') as unknown)
  }

  t.test('run as the user; a failure is what the model reads', async (t) => {
    t.strictSame(
      await resultsOf('prober', [
        { name: 'whoami', arguments: {} },
        { name: 'breaks', arguments: {} },
        { name: 'whoami', arguments: '{"broken' },
        { name: 'whoami', arguments: '' },
        { name: 'calculator', arguments: { expression: '1' } }
      ]),
      [
        { principal: 'user:u1' },
        { error: 'the probe is broken' },
        { error: 'the arguments are not valid JSON' },
        { principal: 'user:u1' },
        { error: "Tool 'calculator' is not allowed for this agent" }
      ]
    )
    t.match(await resultsOf('prober', [{ name: 'gone', arguments: {} }]), [{ error: String }])
  })

  t.test('run at once with parallel_tools, and the results keep their order', async (t) => {
    t.strictSame(
      await resultsOf('juggler', [
        { name: 'waits', arguments: {} },
        { name: 'opens', arguments: {} }
      ]),
      ['waited', 'opened']
    )
    t.strictSame(order, ['waits begins', 'opens', 'waits ends'])
  })

  t.test('only those that are there are offered', async (t) => {
    await resultsOf('prober', [{ name: 'whoami', arguments: {} }])
    t.strictSame(
      model.requests.at(-1)?.body.tools?.map((tool) => tool.function.name),
      names.filter((name) => name !== 'gone')
    )
  })
})

/** A provider named `scripted` whose model does what it is told. */
function scripted(model: Partial<LanguageModelV3>): Plugin {
  return definePlugin({
    name: 'scripted',
    apply(ctx) {
      const languageModel = {
        specificationVersion: 'v3',
        provider: 'scripted',
        modelId: 'scripted',
        supportedUrls: {},
        ...model
      } as LanguageModelV3
      ctx.contribute('chat.providers', { name: 'scripted', models: ['scripted'], languageModel: () => languageModel })
    }
  })
}

/** A stream of parts that ends, or stays open after them. */
function partsOf(parts: readonly LanguageModelV3StreamPart[], stays = false): LanguageModelV3Streamed {
  return {
    stream: new ReadableStream({
      start(controller) {
        for (const part of parts) controller.enqueue(part)
        if (!stays) controller.close()
      }
    })
  }
}

type LanguageModelV3Streamed = Awaited<ReturnType<LanguageModelV3['doStream']>>

t.test('a model that pays no heed to its signal is left at once', async (t) => {
  const never = new Promise<never>(() => {})
  const cases: Record<string, LanguageModelV3['doStream']> = {
    'before its stream': () => never,
    'within its stream': async () => partsOf([{ type: 'text-delta', id: '0', delta: 'half' }], true)
  }
  for (const [when, doStream] of Object.entries(cases)) {
    t.test(when, async (t) => {
      let called = (): void => {}
      const calledOnce = new Promise<void>((resolve) => {
        called = resolve
      })
      const plugin = scripted({
        doStream: (options) => {
          called()
          return doStream(options)
        }
      })
      const model = { plugin: agent, id: 'agents:stubborn', config: { model: 'scripted' } }
      const house = await startChat(t, [{ plugin }, model])
      const client = new AbortController()
      const reply = house.services('http').dispatch({
        method: 'POST',
        path: '/api/chat/stream',
        headers: { authorization: 'Bearer u1' },
        body: { message: 'x', agent_type: 'stubborn' },
        signal: client.signal
      })
      reply.catch(() => {})
      await calledOnce
      client.abort(new CodedError('CLIENT_GONE', 'the client left'))
      await house.kernel.retire('agents:stubborn')
      t.strictSame(await turnsOf(house, 'u1'), [])
    })
  }
})

/** Something that a test lets happen when it wants. */
function createGate(): { readonly opened: Promise<void>; open(): void } {
  let open = (): void => {}
  const opened = new Promise<void>((resolve) => {
    open = resolve
  })
  return { opened, open }
}

t.test('a turn ends with the agent it began with', async (t) => {
  const house = await startChat(t)
  const { model, stream, kernel } = house
  const gate = createGate()
  model.enqueue({ steps: [{ write: delta('a') }, { wait: gate.opened }, { write: delta('b') }, end] })
  const running = stream({ message: 'x', agent_type: 'product' })
  await model.request(0)
  await kernel.update('agents:product', { model: 'stub', system_prompt: 'new words' })
  await kernel.update('chat', { history_messages: 4 })
  await house.post({ message: 'x', agent_type: 'product' })
  t.equal(model.requests[1]?.body.messages[0]?.content, 'new words', 'the next turn has the new one')
  const retired = kernel.retire('providers:stub')
  t.match(await house.post({ message: 'x', agent_type: 'product' }), {
    status: 500,
    body: { code: 'CONFIGURATION_ERROR' }
  })
  gate.open()
  const { events, text } = await running
  t.equal(text, 'ab')
  t.equal(events.at(-1)?.['event'], 'done')
  await retired
})

t.test('a stream that outlasts the drain time of its agent says so in its last event', async (t) => {
  const house = await startChat(t, [], { settings: { drain_timeout_ms: 20 } })
  const { model, stream, post, kernel } = house
  const never = new Promise(() => {})
  for (const [entry, config] of [
    ['agents:product', { model: 'stub', description: 'new' }],
    ['providers:stub', { ...house.providerConfig, timeout_ms: 9_999 }]
  ] as const) {
    const count = model.requests.length
    model.enqueue({ steps: [{ write: delta('half') }, { wait: never }] })
    const running = stream({ message: 'x', agent_type: 'product' })
    const request = await model.request(count)
    await kernel.update(entry, config)
    const { events } = await running
    t.strictSame(kinds(events), ['start', 'token', 'error'])
    t.match(events[2], { context_id: events[0]?.['context_id'], error: 'Stream error: the agent was replaced' })
    t.equal((await request.closed).whole, false, 'the call of the provider was ended')
  }
  const count = model.requests.length
  model.enqueue({ steps: [{ wait: never }] })
  const running = post({ message: 'x', agent_type: 'product' })
  await model.request(count)
  await kernel.update('agents:product', { model: 'stub' })
  t.match(await running, {
    status: 503,
    body: { error: 'Service unavailable: the agent was replaced', code: 'INTERNAL_ERROR' }
  })
  t.strictSame(await turnsOf(house, 'u1'), [])
})

t.test('a stream that is open when the server stops says so in its last event', async (t) => {
  const house = await startChat(t)
  const { model, stream, kernel } = house
  model.enqueue({ steps: [{ write: delta('half') }, { wait: new Promise(() => {}) }] })
  const running = stream({ message: 'x', agent_type: 'product' })
  const request = await model.request(0)
  await kernel.stop(100)
  const { events } = await running
  t.strictSame(kinds(events), ['start', 'token', 'error'])
  t.match(events[2], { context_id: events[0]?.['context_id'], error: 'Stream error: the server is shutting down' })
  t.equal((await request.closed).whole, false)
})

t.test('what cannot be stored is no answer', async (t) => {
  const house = await startChat(t, [{ plugin: brokenStore, id: 'store' }], { store: false })
  const { post, stream, model } = house
  t.match(await post({ message: 'hi', agent_type: 'product' }), {
    status: 500,
    body: { error: 'The answer could not be stored', code: 'DATABASE_ERROR' }
  })
  const { events } = await stream({ message: 'hi', agent_type: 'product' })
  t.strictSame(kinds(events), ['start', 'token', 'token', 'error'])
  t.equal(events.at(-1)?.['error'], 'Stream error: The answer could not be stored')
  const before = model.requests.length
  t.match(await post({ message: 'hi', agent_type: 'product', context_id: 'c' }), {
    status: 500,
    body: { code: 'DATABASE_ERROR' }
  })
  t.strictSame((await stream({ message: 'hi', agent_type: 'product', context_id: 'c' })).events, [
    { event: 'error', error: 'The conversation could not be read' }
  ])
  t.equal(model.requests.length, before, 'the model is not asked without the history')
})

t.test('agents and providers', async (t) => {
  t.test('two of one name are refused, and what is there serves on', async (t) => {
    const house = await startChat(t)
    const again = { id: 'more:product', plugin: agent, config: {} }
    await t.rejects(house.kernel.begin(again), { code: 'CHAT_DUPLICATE_AGENT' })
    const provider = { id: 'more:stub', plugin: openaiCompatible, config: house.providerConfig }
    await t.rejects(house.kernel.begin(provider), { code: 'CHAT_DUPLICATE_PROVIDER' })
    t.match(await house.post({ message: 'hi', agent_type: 'product' }), { status: 200 })
  })

  t.test('come and go with their entries, and outlive a swap of chat', async (t) => {
    const house = await startChat(t)
    await house.kernel.retire('agents:product')
    t.match(await house.post({ message: 'hi', agent_type: 'product' }), { status: 404 })
    await house.kernel.update('chat', { max_message_chars: 5 })
    t.match(await house.post({ message: 'hi', agent_type: 'sales' }), { status: 200 })
    t.match(await house.post({ message: 'too long', agent_type: 'sales' }), { status: 400 })
    await house.kernel.retire('chat')
    t.match(await house.post({ message: 'hi', agent_type: 'sales' }), { status: 404 })
  })

  t.test('an agent whose model is not there, and a house without agents, are not configured', async (t) => {
    const house = await startChat(t, [{ plugin: agent, id: 'agents:lost', config: { model: 'nowhere/x' } }])
    t.match(await house.post({ message: 'hi', agent_type: 'lost' }), {
      status: 500,
      body: { error: "The model of agent 'lost' is not configured", code: 'CONFIGURATION_ERROR' }
    })
    for (const { id } of [...agents, { id: 'agents:lost' }]) await house.kernel.retire(id as string)
    t.match(await house.post({ message: 'hi' }), { status: 500, body: { code: 'CONFIGURATION_ERROR' } })
  })

  t.test('without a router the orchestrator answers, without that the first agent', async (t) => {
    const house = await startChat(t)
    await house.kernel.retire('agents:router')
    t.match(await house.post({ message: 'hi' }), { body: { agent: 'orchestrator (system)' } })
    await house.kernel.retire('agents:orchestrator')
    t.match(await house.post({ message: 'hi' }), { body: { agent: 'product (system)' } })
  })

  t.test('how much of a conversation is shown again is a matter of config', async (t) => {
    const house = await startChat(t)
    for (const [history_messages, seen] of [
      [0, ['user: two']],
      [1, ['assistant: ECHO: one', 'user: two']],
      [2, ['user: one', 'assistant: ECHO: one', 'user: two']]
    ] as const) {
      await house.kernel.update('chat', { history_messages })
      const body = { agent_type: 'product', context_id: `c${history_messages}` }
      await house.post({ ...body, message: 'one' })
      await house.post({ ...body, message: 'two' })
      t.strictSame(said(house.model.requests.at(-1)?.body.messages ?? []), seen)
    }
  })

  t.test('an agent without words of its own is told its name', async (t) => {
    const house = await startChat(t)
    await house.post({ message: 'hi', agent_type: 'product' })
    t.equal(house.model.requests[0]?.body.messages[0]?.content, 'You are a product agent.')
  })

  t.test('a config with an unknown key, or without what it needs, does not start', async (t) => {
    const house = await startChat(t)
    for (const [plugin, config] of [
      [agent, { modle: 'local' }],
      [openaiCompatible, { base_url: 'http://127.0.0.1:1/v1' }],
      [openaiCompatible, { base_url: 'ftp://127.0.0.1/', models: ['x'] }],
      [openaiCompatible, { base_url: 'http://user:secret@127.0.0.1/', models: ['x'] }]
    ] as const) {
      await t.rejects(house.kernel.begin({ id: 'more:one', plugin, config }), { code: 'PLUGIN_CONFIG_INVALID' })
    }
  })
})

t.test('openai-compatible', async (t) => {
  t.test('tries again what failed for a while, not what was refused', async (t) => {
    const { model, post, stream } = await startChat(t, [], { provider: { max_retries: 2, retry_delay_ms: 1 } })
    const busy = json(503, { error: { message: 'busy' } })
    model.enqueue(busy, { ...busy, headers: { 'retry-after': '0.001' } })
    t.match(await post({ message: 'hi', agent_type: 'product' }), { status: 200, body: { response: 'ECHO: hi' } })
    t.equal(model.requests.length, 3)
    model.enqueue(busy, { steps: [{ reset: true }] })
    t.match(await stream({ message: 'hi', agent_type: 'product' }), { text: 'ECHO: hi' })
    model.enqueue(busy, busy, busy)
    t.match(await post({ message: 'hi', agent_type: 'product' }), { status: 500 })
    const before = model.requests.length
    for (const refusal of [
      json(401, { error: { message: 'the key sk-very-secret is wrong' } }),
      json(400, 'no'),
      { ...busy, headers: { 'retry-after': '3600' } },
      { status: 302, headers: { location: 'http://127.0.0.1:1/' }, steps: [] }
    ]) {
      model.enqueue(refusal)
      t.match(await post({ message: 'hi', agent_type: 'product' }), { status: 500, body: { code: 'LLM_ERROR' } })
    }
    t.equal(model.requests.length - before, 4)
  })

  t.test('gives up on a server that is silent', async (t) => {
    const { model, post, stream } = await startChat(t, [], { provider: { timeout_ms: 30 } })
    const never = new Promise(() => {})
    model.enqueue({ steps: [{ wait: never }] }, { steps: [{ write: delta('half') }, { wait: never }] })
    t.match(await post({ message: 'hi', agent_type: 'product' }), {
      status: 500,
      body: { error: 'The language model failed: provider did not answer in time', code: 'LLM_ERROR' }
    })
    const { events } = await stream({ message: 'hi', agent_type: 'product' })
    t.match(events.at(-1), { event: 'error', error: 'Stream error: provider did not answer in time' })
  })

  t.test('a server that is not there is named as such, without its address', async (t) => {
    const house = await startChat(t)
    await house.model.close()
    const reply = await house.post({ message: 'hi', agent_type: 'product' })
    t.match(reply, { status: 500, body: { error: 'The language model failed: provider cannot be reached' } })
  })

  t.test('sends the key as a bearer token, and asks for the usage of a stream where that is wanted', async (t) => {
    const { model, stream } = await startChat(t)
    await stream({ message: 'hi', agent_type: 'product' })
    t.equal(model.requests[0]?.headers.authorization, 'Bearer sk-very-secret')
    t.match(model.requests[0]?.body, { stream: true, stream_options: { include_usage: true } })
    const second = await startChat(t, [], { provider: { stream_usage: false } })
    await second.stream({ message: 'hi', agent_type: 'product' })
    t.notMatch(second.model.requests[0]?.body, { stream_options: {} })
  })
})

/** Streams of a house that listens. */
interface SocketHouse extends ChatHouse {
  /** Begins a stream with `product`; resolves with its head. */
  readonly begin: (message?: string, signal?: AbortSignal) => Promise<Response>
  /** The text of a stream, and what browsers would make of it. */
  readonly read: (
    message?: string
  ) => Promise<{ readonly raw: string; readonly events: Event[]; readonly text: string }>
  readonly port: number
}

async function startOnSocket(t: Test, transport: string, http: object = {}): Promise<SocketHouse> {
  const config = { host: '127.0.0.1', port: 0, transport, ...http }
  const house = await startChat(t, [{ plugin: await pluginNamed('http'), config }])
  const port = house.services('http').address?.port ?? 0
  const begin = (message = 'x', signal?: AbortSignal): Promise<Response> =>
    fetch(`http://127.0.0.1:${port}/api/chat/stream`, {
      method: 'POST',
      headers: { authorization: 'Bearer u1', 'content-type': 'application/json' },
      body: JSON.stringify({ message, agent_type: 'product', context_id: 'c' }),
      signal: signal ?? null
    })
  return {
    ...house,
    port,
    begin,
    async read(message) {
      const raw = await (await begin(message)).text()
      const events = parseEvents(raw)
      return { raw, events, text: textOf(events) }
    }
  }
}

/** Reads until `pattern` has come. @returns what was read */
async function readUntil(reader: ReadableStreamDefaultReader<string>, pattern: RegExp): Promise<string> {
  let text = ''
  while (!pattern.test(text)) {
    const { done, value } = await reader.read()
    if (done) throw new Error(`the stream ended before ${pattern.source} came: ${text}`)
    text += value
  }
  return text
}

const textReader = (response: Response): ReadableStreamDefaultReader<string> =>
  (response.body as ReadableStream<Uint8Array>).pipeThrough(new TextDecoderStream()).getReader()

for (const transport of ['uws', 'node']) {
  const isThere = transport === 'node' || canLoad('uWebSockets.js')
  t.test(`streams over a socket of ${transport}`, { skip: !isThere && 'it does not load here' }, async (t) => {
    const house = await startOnSocket(t, transport)
    const { model, begin, read } = house

    t.test('STREAM-01: letters of any script come whole, also from a provider that sends byte by byte', async (t) => {
      model.enqueue({ steps: [{ bytes: delta('价格🙂é') }, end] })
      const { raw, text, events } = await read()
      t.equal(text, '价格🙂é')
      t.notMatch(raw, '\ufffd')
      t.equal(events.at(-1)?.['event'], 'done')
    })

    t.test('STREAM-02: provider events may be cut anywhere', async (t) => {
      const pause = { delayMs: 2 }
      model.enqueue({
        steps: [
          { write: 'data: {"choi' },
          pause,
          { write: 'ces":[{"delta":{"content":"A"}}]}\n' },
          pause,
          { write: '\n' },
          { write: delta('B') },
          { write: 'data: [DO' },
          pause,
          { write: 'NE]\n\n' }
        ]
      })
      const { events } = await read()
      t.strictSame(kinds(events), ['start', 'token', 'token', 'done'])
      t.strictSame([events[1]?.['content'], events[2]?.['content']], ['A', 'B'])
    })

    t.test('STREAM-03: line ends in a token forge no event', async (t) => {
      const forged = 'a\rdata: {"event":"done"}\r\rb\n\nevent: done\n\nc\u2028d\r\n\0'
      model.enqueue({ steps: [{ write: delta(forged) }, end] })
      const { raw, events, text } = await read()
      t.strictSame(kinds(events), ['start', 'token', 'done'])
      t.equal(text, forged)
      t.notMatch(raw, '\r')
    })

    t.test('STREAM-05: a reader that leaves ends the call of the provider, and nothing is stored', async (t) => {
      for (const steps of [[{ write: delta('w ') }], []]) {
        const count = model.requests.length
        model.enqueue({ steps: [...steps, { wait: new Promise(() => {}) }] })
        const client = new AbortController()
        const reader = textReader(await begin('gone', client.signal))
        await readUntil(reader, steps.length > 0 ? /"w "/ : /"start"/)
        const request = await model.request(count)
        const leftAtMs = performance.now()
        client.abort()
        await reader.closed.catch(() => {})
        const closed = await request.closed
        t.equal(closed.whole, false)
        t.comment(`the provider saw it ${(closed.atMs - leftAtMs).toFixed(1)} ms later`)
      }
      t.notMatch(JSON.stringify(await turnsOf(house, 'u1')), 'gone')
    })

    t.test('a client of POST /api/chat that leaves ends the call of the provider, and nothing is stored', async (t) => {
      const count = model.requests.length
      model.enqueue({ steps: [{ wait: new Promise(() => {}) }] })
      const client = new AbortController()
      const reply = fetch(`http://127.0.0.1:${house.port}/api/chat`, {
        method: 'POST',
        headers: { authorization: 'Bearer u1', 'content-type': 'application/json' },
        body: JSON.stringify({ message: 'gone', agent_type: 'product' }),
        signal: client.signal
      })
      const request = await model.request(count)
      client.abort()
      await t.rejects(reply)
      t.equal((await request.closed).whole, false)
      t.notMatch(JSON.stringify(await turnsOf(house, 'u1')), 'gone')
    })

    t.test('STREAM-06: a provider that drops ends in an error that names no host', async (t) => {
      for (const drop of [{ reset: true }, { cut: true }] as const) {
        const gate = createGate()
        model.enqueue({ steps: [{ write: delta('half an ans') }, { wait: gate.opened }, drop] })
        const reader = textReader(await begin('dropped'))
        let raw = await readUntil(reader, /half an ans/)
        gate.open()
        raw += await readUntil(reader, /"error"[^\n]*\n\n/)
        t.equal((await reader.read()).done, true)
        const events = parseEvents(raw)
        t.strictSame(kinds(events), ['start', 'token', 'error'])
        t.strictSame(events[2], {
          event: 'error',
          context_id: 'c',
          error: 'Stream error: provider closed connection'
        })
      }
      model.enqueue({ steps: [{ write: delta('half') }] })
      t.match((await read('dropped')).events.at(-1), { event: 'error', context_id: 'c' })
      t.notMatch(JSON.stringify(await turnsOf(house, 'u1')), 'dropped')
    })

    t.test('STREAM-07: a slow reader gets every token once, in order', async (t) => {
      const tokens = Array.from({ length: 3_000 }, (_, index) => `${index}${'.'.repeat(300)},`)
      const writes = Array.from({ length: 100 }, (_, at) =>
        tokens
          .slice(at * 40, (at + 1) * 40)
          .map(delta)
          .join('')
      )
      model.enqueue({ steps: [...writes.map((write) => ({ write })), end] })
      const reader = (await begin()).body?.pipeThrough(new TextDecoderStream()).getReader()
      let raw = ''
      for (;;) {
        const step = await reader?.read()
        if (step === undefined || step.done) break
        raw += step.value
        await new Promise((resolve) => setImmediate(resolve))
      }
      t.equal(textOf(parseEvents(raw)), tokens.join(''))
    })

    t.test('STREAM-08: thousands of frames in one write all come', async (t) => {
      const numbers = Array.from({ length: 5_000 }, (_, index) => `${index},`)
      model.enqueue({ steps: [{ write: numbers.map(delta).join('') }, end] })
      t.equal((await read()).text, numbers.join(''))
    })

    t.test('S-05, S-06, S-07 hold for GET', async (t) => {
      const get = async (query: string): Promise<Response> =>
        fetch(`http://127.0.0.1:${house.port}/api/chat/stream?${query}`)
      const found = await get('message=hi&agent_type=product&token=u5')
      t.match(found.headers.get('content-type'), /^text\/event-stream/)
      t.equal(textOf(parseEvents(await found.text())), 'ECHO: hi')
      for (const [query, status] of [
        ['agent_type=product&token=u5', 400],
        ['message=hi', 401]
      ] as const) {
        const refused = await get(query)
        t.equal(refused.status, status)
        t.match(await refused.json(), { error: String })
      }
    })
  })

  t.test(
    `STREAM-04: comments fill the silence of a model, over ${transport}`,
    { skip: !isThere && 'it does not load here' },
    async (t) => {
      const { model, begin } = await startOnSocket(t, transport, { keep_alive_interval_ms: 5 })
      const gate = createGate()
      model.enqueue({ steps: [{ write: delta('a') }, { wait: gate.opened }, { write: delta('b') }, end] })
      const reader = textReader(await begin())
      let raw = await readUntil(reader, /"a"}\n\n(?::.*\n+){2}/)
      gate.open()
      raw += await readUntil(reader, /"done"/)
      t.strictSame(kinds(parseEvents(raw)), ['start', 'token', 'token', 'done'])
      t.equal(textOf(parseEvents(raw)), 'ab')
    }
  )

  t.test(
    `OPS-01: a stream open at the stop gets its last event, over ${transport}`,
    { skip: !isThere && 'it does not load here' },
    async (t) => {
      const { model, begin, kernel } = await startOnSocket(t, transport)
      model.enqueue({ steps: [{ write: delta('half') }, { wait: new Promise(() => {}) }] })
      const reader = textReader(await begin())
      let raw = await readUntil(reader, /"half"/)
      const stopped = kernel.stop(200)
      raw += await readUntil(reader, /"error"[^\n]*\n\n/)
      await stopped
      t.match(parseEvents(raw).at(-1), {
        event: 'error',
        context_id: 'c',
        error: 'Stream error: the server is shutting down'
      })
    }
  )
}

function canLoad(name: string): boolean {
  try {
    createRequire(import.meta.url)(name)
    return true
  } catch {
    return false
  }
}
