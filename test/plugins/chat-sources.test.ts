import t, { type Test } from 'tap'
import { definePlugin } from '../../kernel/index.ts'
import agent from '../../plugins/agent/index.ts'
import chat from '../../plugins/chat/index.ts'
import type { Source } from '../../plugins/chat/types.ts'
import localModel from '../../plugins/local-model/index.ts'
import openai from '../../plugins/openai-compatible/index.ts'
import rag from '../../plugins/rag/index.ts'
import tools from '../../plugins/tools/index.ts'
import workers from '../../plugins/workers/index.ts'
import { say, startModelServer } from '../fakes/model-server.ts'
import { startHouse } from '../harness.ts'

/** Lets everyone in as the user that the header names. */
const guard = definePlugin({
  name: 'test-guard',
  apply(ctx) {
    ctx.contribute('http.guards', {
      name: 'user',
      scheme: {},
      errors: {},
      check: (request) => ({ kind: 'user', id: request.header('x-user') ?? 'ada' })
    })
  }
})

const guide = `The night train leaves Vienna at 22:10. It arrives in Venice at 08:24 the next morning.

Bicycles travel free of charge. A reservation for a bicycle costs nothing, but there are only six places.`

interface Turn {
  readonly response: string
  readonly sources: readonly Source[] | null
}

async function startLibrary(t: Test, more: Parameters<typeof startHouse>[1] = []) {
  const { services } = await startHouse(t, [
    { plugin: guard },
    { plugin: workers },
    { plugin: tools },
    { plugin: rag },
    { plugin: chat },
    { plugin: localModel },
    { plugin: agent, id: 'agents:librarian', config: { tools: ['rag'] } },
    ...more
  ])
  await services('rag').ingest(
    { kind: 'user', id: 'ada' },
    { collection: 'travel', content: guide, title: 'Night trains', source: 'https://trains.example/night' }
  )
  return {
    ask: async (message: string, user = 'ada', agent = 'librarian'): Promise<Turn> => {
      const body = { message, agent_type: agent }
      const headers = { 'x-user': user }
      const reply = await services('http').dispatch({ method: 'POST', path: '/api/chat', headers, body })
      t.equal(reply.status, 200, JSON.stringify(reply.body))
      return reply.body as Turn
    },
    stream: async (message: string): Promise<readonly Record<string, unknown>[]> => {
      const body = { message, agent_type: 'librarian' }
      const reply = await services('http').dispatch({ method: 'POST', path: '/api/chat/stream', body })
      return (reply.body as string)
        .split('\n\n')
        .filter((line) => line.startsWith('data: '))
        .map((line) => JSON.parse(line.slice('data: '.length)) as Record<string, unknown>)
    }
  }
}

t.test('the local model quotes what fits, word for word, and says where it stands', async (t) => {
  const { ask } = await startLibrary(t)
  const { response, sources } = await ask('When does the night train leave Vienna?')
  const quotes = [...response.matchAll(/“([^”]*)”/g)].map(([, quote = '']) => quote)
  t.match(quotes[0], 'The night train leaves Vienna at 22:10.')
  for (const quote of quotes) t.ok(guide.includes(quote), quote)
  t.match(sources, [{ title: 'Night trains', url: 'https://trains.example/night' }])
  const [source] = sources ?? []
  t.ok(source !== undefined && source.relevance_score > 0 && source.relevance_score <= 1)
})

t.test("nobody is quoted from another user's documents, and nothing is made up", async (t) => {
  const { ask } = await startLibrary(t)
  const { response, sources } = await ask('When does the night train leave Vienna?', 'eve')
  t.notMatch(response, /Vienna|22:10/)
  t.match(response, /found nothing/)
  t.equal(sources, null)
})

t.test('a stream names its sources when it is done', async (t) => {
  const { stream } = await startLibrary(t)
  const events = await stream('Do bicycles travel free?')
  const text = events.flatMap(({ event, content }) => (event === 'token' ? [content as string] : [])).join('')
  t.match(text, /“Bicycles travel free of charge\.”/)
  t.match(events.at(-1), { event: 'done', sources: [{ title: 'Night trains' }] })
})

t.test('any other model answers with the sources of what its tools gave it', async (t) => {
  const server = await startModelServer()
  t.teardown(() => server.close())
  const { ask } = await startLibrary(t, [
    { plugin: openai, id: 'models:fake', config: { base_url: server.baseUrl, models: ['m'], api_key: 'k' } },
    { plugin: agent, id: 'agents:clerk', config: { model: 'fake/m', tools: ['rag'] } }
  ])
  server.enqueue(
    say(false, { calls: [{ name: 'rag', arguments: { query: 'bicycle reservation' } }] }),
    say(false, { text: 'It costs nothing.' })
  )
  const answered = await ask('What does a bicycle cost?', 'ada', 'clerk')
  t.equal(answered.response, 'It costs nothing.')
  t.match(answered.sources, [{ title: 'Night trains', url: 'https://trains.example/night' }])

  server.enqueue(say(false, { text: 'I know that by heart.' }))
  t.equal((await ask('What does a bicycle cost?', 'ada', 'clerk')).sources, null, 'it has not looked')
})
