import t, { type Test } from 'tap'
import agent from '../../plugins/agent/index.ts'
import auth from '../../plugins/auth/index.ts'
import chat from '../../plugins/chat/index.ts'
import { createConversations } from '../../plugins/chat/conversations.ts'
import type { DispatchReply } from '../../plugins/http/types.ts'
import localModel from '../../plugins/local-model/index.ts'
import memory from '../../plugins/memory/index.ts'
import tools from '../../plugins/tools/index.ts'
import workers from '../../plugins/workers/index.ts'
import { collect, type House, startHouse } from '../harness.ts'

interface Person {
  readonly id: string
  readonly ask: (method: string, path: string, body?: unknown) => Promise<DispatchReply>
  /** One turn. @returns the id of the conversation */
  readonly say: (message: string, contextId?: string) => Promise<string>
}

async function startPeople(t: Test): Promise<House & { readonly person: (name: string) => Promise<Person> }> {
  const house = await startHouse(t, [
    { plugin: workers },
    { plugin: auth },
    { plugin: tools },
    { plugin: localModel, id: 'models:local' },
    { plugin: chat },
    { plugin: agent, id: 'agents:product', config: { model: 'local' } },
    { plugin: memory }
  ])
  const http = house.services('http')
  return {
    ...house,
    async person(name) {
      const account = { email: `${name}@x.test`, password: 'pass-word-1', name }
      const { body } = await http.dispatch({ method: 'POST', path: '/api/auth/register', body: account })
      const token = (body as { access_token: string }).access_token
      const claims = JSON.parse(Buffer.from(token.split('.')[1] ?? '', 'base64url').toString()) as { sub: string }
      const ask: Person['ask'] = (method, path, body) =>
        http.dispatch({
          method,
          path,
          headers: { authorization: `Bearer ${token}` },
          ...(body === undefined ? {} : { body })
        })
      return {
        id: claims.sub,
        ask,
        async say(message, contextId) {
          const reply = await ask('POST', '/api/chat', {
            message,
            agent_type: 'product',
            context_id: contextId ?? null
          })
          if (reply.status !== 200) throw new Error(`chat answered ${reply.status} ${JSON.stringify(reply.body)}`)
          return (reply.body as { context_id: string }).context_id
        }
      }
    }
  }
}

interface Shown {
  readonly id: string
  readonly title: string | null
  readonly message_count: number
  readonly created_at: string
  readonly updated_at: string
}

interface ShownWhole extends Shown {
  readonly messages: readonly {
    readonly id: string
    readonly role: string
    readonly content: string
    readonly created_at: string
  }[]
}

const missing = { status: 404, body: { error: 'Conversation not found', code: 'NOT_FOUND' } }
const rfc3339 = /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$/

t.test('conversations of people (F.10)', async (t) => {
  const { person, services } = await startPeople(t)
  const [u1, u2] = [await person('u1'), await person('u2')]
  const listed = async (who = u1): Promise<Shown[]> => (await who.ask('GET', '/api/conversations')).body as Shown[]
  const read = async (id: string, who = u1): Promise<ShownWhole> =>
    (await who.ask('GET', `/api/conversations/${id}`)).body as ShownWhole

  t.test('V-01: who has said nothing has no conversations', async (t) => {
    t.match(await u1.ask('GET', '/api/conversations'), { status: 200, body: [] })
    t.strictSame(await listed(), [])
  })

  t.test('V-02, V-08: the last one that was spoken in comes first, with its count and times', async (t) => {
    const who = await person('v02')
    const first = await who.say('one')
    const second = await who.say('two')
    const before = await listed(who)
    t.strictSame(
      before.map(({ id, title, message_count }) => ({ id, title, message_count })),
      [
        { id: second, title: null, message_count: 2 },
        { id: first, title: null, message_count: 2 }
      ]
    )
    t.strictSame(Object.keys(before[0] ?? {}), ['id', 'title', 'message_count', 'created_at', 'updated_at'])
    for (const { created_at, updated_at } of before) {
      t.match(created_at, rfc3339)
      t.match(updated_at, rfc3339)
    }
    await who.say('three', first)
    t.match(await listed(who), [
      { id: first, message_count: 4 },
      { id: second, message_count: 2 }
    ])
  })

  t.test('a conversation is read with its messages, oldest first, whose ids never change', async (t) => {
    const id = await u1.say('what is 2+2?')
    await u1.say('what is 3+3?', id)
    const whole = await read(id)
    t.strictSame(Object.keys(whole), ['id', 'title', 'message_count', 'created_at', 'updated_at', 'messages'])
    t.match(whole, { id, title: null, message_count: 4, created_at: rfc3339, updated_at: rfc3339 })
    t.match(whole.messages, [
      { role: 'user', content: 'what is 2+2?', created_at: rfc3339 },
      { role: 'assistant', content: /built-in responder/, created_at: rfc3339 },
      { role: 'user', content: 'what is 3+3?' },
      { role: 'assistant', content: String }
    ])
    t.equal(new Set(whole.messages.map((message) => message.id)).size, 4)
    t.strictSame(await read(id), whole)
    await u1.say('and then?', id)
    t.strictSame((await read(id)).messages.slice(0, 4), whole.messages)
  })

  t.test('V-03, V-04: a title is given and taken away, and moves nothing', async (t) => {
    const id = await u1.say('name me')
    const put = (body: unknown) => u1.ask('PUT', `/api/conversations/${id}`, body)
    const { updated_at } = await read(id)
    for (const title of ['Numbers', 'Zahlen – 数 🙂', 'a'.repeat(256)]) {
      t.strictSame((await put({ title })).body, { success: true })
      t.equal((await read(id)).title, title)
      t.equal((await listed()).find((each) => each.id === id)?.title, title)
    }
    for (const body of [{ title: null }, {}, { title: '' }, { title: ' \t' }]) {
      await put({ title: 'some' })
      t.match(await put(body), { status: 200, body: { success: true } })
      t.equal((await read(id)).title, null)
    }
    t.equal((await read(id)).updated_at, updated_at)
    await put({ title: 'kept' })
    await u1.say('more', id)
    t.match(await read(id), { title: 'kept', message_count: 4 })
    for (const body of [{ title: 1 }, { title: 'a'.repeat(257) }, ['title'], 'x']) {
      t.match(await put(body), { status: typeof body === 'string' ? 415 : 400, body: { error: String } })
    }
    t.match(await put({ title: 'half \ud800' }), { status: 200 })
    t.equal((await read(id)).title, 'half \ufffd')
  })

  t.test('V-05: what is deleted is gone with all that was said in it, and nothing else is', async (t) => {
    const who = await person('v05')
    const kept = await who.say('stays', 'a')
    const id = await who.say('goes', 'a:b')
    for (let turn = 0; turn < 3; turn += 1) await who.say('goes too', id)
    const path = `/api/conversations/${encodeURIComponent(id)}`
    const reply = await who.ask('DELETE', path)
    t.strictSame([reply.status, reply.body], [204, undefined])
    t.match(await who.ask('GET', path), missing)
    t.match(await who.ask('DELETE', path), missing)
    t.strictSame(
      (await listed(who)).map((each) => each.id),
      [kept]
    )
    t.strictSame(await collect(services('store').range('chat.turns', [who.id, id])), [])
    t.equal((await collect(services('store').range('chat.turns', [who.id, kept]))).length, 1)
    await who.say('anew', id)
    t.equal((await read(encodeURIComponent(id), who)).messages.length, 2, 'nothing of the old one is there')
  })

  t.test('V-06: an unknown id is 404, whatever it looks like', async (t) => {
    const ids = [
      'nope',
      '7',
      'x'.repeat(500),
      'k'.repeat(70_000),
      '\u0935'.repeat(700),
      'a\u0001b',
      ' ',
      '__proto__',
      '..%2f'
    ]
    for (const id of ids.map(encodeURIComponent)) {
      t.match(await u1.ask('GET', `/api/conversations/${id}`), missing)
      t.match(await u1.ask('PUT', `/api/conversations/${id}`, { title: 'x' }), missing)
      t.match(await u1.ask('DELETE', `/api/conversations/${id}`), missing)
    }
  })

  t.test("V-07, TENANCY-01 (R13): another user's conversation is as unknown as one that never was", async (t) => {
    const id = await u1.say('my secret', 'shared')
    const before = await read(id)
    for (const [method, body] of [['GET'], ['PUT', { title: 'x' }], ['DELETE']] as const) {
      t.match(await u2.ask(method, `/api/conversations/${id}`, body), missing)
    }
    await u2.say('hello', id)
    t.equal((await read(id, u2)).messages.length, 2, 'one of their own')
    t.match(await u2.ask('DELETE', `/api/conversations/${id}`), { status: 204 })
    t.strictSame(await read(id), before)
    t.strictSame(await listed(u2), [])
  })

  t.test('V-09: nobody gets in without a token', async (t) => {
    const http = services('http')
    for (const [method, path] of [
      ['GET', '/api/conversations'],
      ['GET', '/api/conversations/x'],
      ['PUT', '/api/conversations/x'],
      ['DELETE', '/api/conversations/x'],
      ['GET', '/api/memory']
    ] as const) {
      t.match(await http.dispatch({ method, path }), { status: 401, body: { error: 'Unauthorized' } })
    }
  })

  t.test('long lists come in pages, and a page may be cut where texts are very long', async (t) => {
    const conversations = createConversations(services('store'))
    for (let at = 0; at < 12; at += 1) {
      const turn = { id: `t${at}`, atMs: 1_000 + at, user: `u${at}`, assistant: `a${at}`, agent: 'x' }
      await conversations.append('pages', `c${at}`, turn, true)
      await conversations.append('pages', 'long', turn, false)
    }
    const ids = async (limit: number, offset: number) =>
      (await conversations.list('pages', { limit, offset })).map(({ id }) => id)
    t.strictSame(await ids(3, 0), ['c11', 'long', 'c10'])
    t.strictSame(await ids(3, 3), ['c9', 'c8', 'c7'])
    t.strictSame(await ids(3, 100), [])
    const texts = async (limit: number, offset: number) =>
      (await conversations.read('pages', 'long', { limit, offset })).messages.map(({ content }) => content)
    const all = Array.from({ length: 12 }, (_, at) => [`u${at}`, `a${at}`]).flat()
    for (const offset of [0, 1, 2, 7, 23, 24, 99]) {
      for (const limit of [1, 2, 3, 24, 1_000]) {
        t.strictSame(await texts(limit, offset), all.slice(offset, offset + limit), `${limit} from ${offset}`)
      }
    }
    const huge = 'x'.repeat(1_500_000)
    for (let at = 0; at < 3; at += 1) {
      await conversations.append(
        'pages',
        'huge',
        { id: `h${at}`, atMs: at, user: huge, assistant: huge, agent: 'x' },
        false
      )
    }
    const cut = await conversations.read('pages', 'huge', { limit: 1_000, offset: 0 })
    t.strictSame([cut.messages.length, cut.conversation.messageCount], [4, 6])

    t.match(await u1.ask('GET', '/api/conversations?limit=0&offset=-1'), { status: 200, body: { length: 1 } })
    t.match(await u1.ask('GET', '/api/conversations?limit=many'), { status: 400, body: { code: 'INVALID_INPUT' } })
  })

  t.test('a rename, a turn and a deletion at once leave a whole conversation or none', async (t) => {
    const conversations = createConversations(services('store'))
    for (let round = 0; round < 20; round += 1) {
      const id = `race-${round}`
      const turn = { id: 't', atMs: 1, user: 'u', assistant: 'a', agent: 'x' }
      await conversations.append('race', id, turn, false)
      await Promise.allSettled([
        conversations.rename('race', id, 'named'),
        conversations.append('race', id, turn, false),
        conversations.remove('race', id),
        conversations.append('race', id, turn, false)
      ])
      const turns = await collect(services('store').range('chat.turns', ['race', id]))
      const stored = (await services('store').get<{ messageCount: number }>('chat.conversations', ['race', id]))?.value
      t.equal(turns.length * 2, stored?.messageCount ?? 0)
    }
  })
})

t.test('what is remembered of people (F.8)', async (t) => {
  const { person, services } = await startPeople(t)
  const [u1, u2] = [await person('u1'), await person('u2')]

  t.test('M-01 (R2): nothing is remembered of a newcomer, and the answer has no body', async (t) => {
    const reply = await u1.ask('GET', '/api/memory')
    t.strictSame([reply.status, reply.body], [204, undefined])
  })

  t.test('M-02, M-03: what is stored is shown in its form, to the one it is about', async (t) => {
    await services('store').atomically((tx) => {
      tx.put('memory.preferences', [u1.id, 'communication', 'style'], { value: 'concise', confidence: 0.9 })
      tx.put('memory.facts', [u1.id, 'work', 'timezone'], {
        id: 'f-1',
        value: 'UTC+1',
        confidence: 0.95,
        createdAtMs: 0,
        updatedAtMs: 1_000
      })
    })
    t.strictSame((await u1.ask('GET', '/api/memory')).body, {
      user_id: u1.id,
      preferences: [{ category: 'communication', key: 'style', value: 'concise', confidence: 0.9 }],
      facts: [
        {
          id: 'f-1',
          user_id: u1.id,
          category: 'work',
          fact_key: 'timezone',
          fact_value: 'UTC+1',
          confidence: 0.95,
          created_at: '1970-01-01T00:00:00.000Z',
          updated_at: '1970-01-01T00:00:01.000Z'
        }
      ]
    })
    t.equal((await u2.ask('GET', '/api/memory')).status, 204)
  })
})
