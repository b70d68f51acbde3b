import t, { type Test } from 'tap'
import { definePlugin } from '../../kernel/index.ts'
import agent from '../../plugins/agent/index.ts'
import calculator from '../../plugins/calculator/index.ts'
import chat from '../../plugins/chat/index.ts'
import clock from '../../plugins/clock/index.ts'
import localModel from '../../plugins/local-model/index.ts'
import { topicWords } from '../../plugins/local-model/words.ts'
import tools from '../../plugins/tools/index.ts'
import { startHouse } from '../harness.ts'

/** Lets everyone in as the user `u1`. */
const guard = definePlugin({
  name: 'test-guard',
  apply(ctx) {
    ctx.contribute('http.guards', {
      name: 'user',
      scheme: { type: 'http', scheme: 'bearer' },
      errors: {},
      check: () => ({ kind: 'user', id: 'u1' })
    })
  }
})

interface Asked {
  readonly status: number
  readonly response: string
  readonly agent: string
  /** Contents of the tokens, when it was streamed. */
  readonly tokens: readonly string[]
}

/** A house whose agents all use `local`: a router, a researcher without tools, and a helper with both. */
async function startLocal(t: Test): Promise<(message: string, options?: object, path?: string) => Promise<Asked>> {
  const { services } = await startHouse(t, [
    { plugin: guard },
    { plugin: tools },
    { plugin: calculator },
    { plugin: clock },
    { plugin: chat },
    { plugin: localModel },
    { plugin: agent, id: 'agents:router', config: { router: true } },
    { plugin: agent, id: 'agents:writer', config: { description: 'Writes letters, poems and stories' } },
    {
      plugin: agent,
      id: 'agents:helper',
      config: { description: 'Calculates, tells the time', tools: ['calculator', 'clock'] }
    }
  ])
  return async (message, options = {}, path = '/api/chat') => {
    const body = { message, ...options }
    const reply = await services('http').dispatch({ method: 'POST', path, body })
    if (typeof reply.body !== 'string') return { status: reply.status, tokens: [], ...(reply.body as object) } as never
    const events = reply.body
      .split('\n\n')
      .filter((line) => line.startsWith('data: '))
      .map((line) => JSON.parse(line.slice('data: '.length)) as Record<string, string>)
    const tokens = events.flatMap(({ event, content }) => (event === 'token' && content !== undefined ? [content] : []))
    return { status: reply.status, response: tokens.join(''), agent: events[0]?.['agent'] ?? '', tokens }
  }
}

t.test('arithmetic goes to the calculator, however it is asked', async (t) => {
  const ask = await startLocal(t)
  for (const [message, response] of [
    ['what is 17*23?', '17*23 = 391'],
    ['What is 17 times 23?', '17 * 23 = 391'],
    ['17 × 23', '17 * 23 = 391'],
    ['Hello, could you please calculate (2 + 3) * 4 - 1 for me?', '(2 + 3) * 4 - 1 = 19'],
    ['how much is 15% of 240?', '15% of 240 = 36'],
    ['12.5 percent of 80', '12.5% of 80 = 10'],
    ['add 2 and 40', '2 + 40 = 42'],
    ['subtract 8 from 50', '50 - 8 = 42'],
    ['What is 10 divided by 4?', '10 / 4 = 2.5'],
    ['what is the product of 6 and -7?', '6 * (-7) = -42'],
    ['2 to the power of 10', '2 ^ 10 = 1024'],
    ['2**10', '2^10 = 1024'],
    ['1,000,000 + 1', '1000000 + 1 = 1000001'],
    ['12 x 12 =', '12 * 12 = 144'],
    ['１７＊２３', '17*23 = 391'],
    ['As a carpenter I wonder: what is 0.1 + 0.2?', '0.1 + 0.2 = 0.3']
  ] as const) {
    t.equal((await ask(message, { agent_type: 'helper' })).response, response, message)
  }
})

t.test('what the calculator refuses is told as it said it', async (t) => {
  const ask = await startLocal(t)
  const { status, response } = await ask('what is 1/0?', { agent_type: 'helper' })
  t.equal(status, 200)
  t.match(response, /^The calculator could not answer: .*zero/)
})

t.test('numbers in other talk are no arithmetic', async (t) => {
  const ask = await startLocal(t)
  for (const message of [
    'invite 3-4 people to the party',
    'what happened on 2026-11-30?',
    'I bought 2+1 tickets and 3*4 drinks',
    'version 1.2.3 of 5',
    'call 555-1234'
  ]) {
    t.match((await ask(message, { agent_type: 'helper' })).response, 'no language model', message)
  }
})

t.test('a long text is no question of this kind, and is not searched for one', async (t) => {
  const ask = await startLocal(t)
  for (const [question, answered] of [
    ['what is 2+3?', '2+3 = 5'],
    ['what time is it?', /^It is /]
  ] as const) {
    t.match((await ask(`  ${question}${' '.repeat(9_000)}`, { agent_type: 'helper' })).response, answered)
    for (const text of ['( '.repeat(3_000), 'hello '.repeat(1_000)]) {
      const message = `${text}${question}`
      t.match((await ask(message, { agent_type: 'helper' })).response, 'no language model', message.slice(0, 6))
      t.match(await ask(message), { status: 200 }, 'nor where a router chooses')
    }
  }
})

t.test('the time goes to the clock, in the zone that was named', async (t) => {
  const ask = await startLocal(t)
  const helper = { agent_type: 'helper' }
  t.match((await ask('what time is it?', helper)).response, /^It is \w+day, \d{4}-\d\d-\d\d, \d\d:\d\d in UTC\.$/)
  t.match((await ask("What's the date in Tokyo?", helper)).response, /^It is .* in Asia\/Tokyo\.$/)
  t.match(
    (await ask('tell me the time in Narnia', helper)).response,
    /^I know no time zone called “Narnia”\. It is .* in UTC\.$/
  )
  t.match((await ask('what is the time complexity of quicksort?', helper)).response, 'no language model')
})

t.test('to anything else it says what it is, that it found nothing, and what it can do', async (t) => {
  const ask = await startLocal(t)
  const { response } = await ask('Who wrote Faust?', { agent_type: 'helper' })
  t.match(response, /no language model/)
  t.match(response, /found nothing/)
  t.match(response, /calculator/)
  t.match(response, /time/)
})

t.test('it offers nothing that the agent may not use', async (t) => {
  const ask = await startLocal(t)
  const { response } = await ask('what is 17*23?', { agent_type: 'writer' })
  t.notMatch(response, /391|calculator/)
  t.match(response, 'no tools')
})

t.test('it streams word by word what it answers at once', async (t) => {
  const ask = await startLocal(t)
  const whole = await ask('hi', { agent_type: 'helper' })
  const streamed = await ask('hi', { agent_type: 'helper' }, '/api/chat/stream')
  t.equal(streamed.response, whole.response)
  t.ok(streamed.tokens.length > 20)
  t.strictSame(streamed.tokens.slice(0, 3), ['I ', 'am ', 'the '])
  t.equal((await ask('what is 17*23?', { agent_type: 'helper' }, '/api/chat/stream')).response, '17*23 = 391')
})

t.test('as a router it goes by the words of the descriptions', async (t) => {
  const ask = await startLocal(t)
  for (const [message, name] of [
    ['please write a letter to my aunt', 'writer (system)'],
    ['tell me some stories', 'writer (system)'],
    ['what is 17*23?', 'helper (system)'],
    ['what time is it?', 'helper (system)'],
    ['zzz', 'writer (system)'],
    [`${'lorem ipsum '.repeat(2_000)} what does it calculate`, 'helper (system)'],
    // Minutes, for a segmenter that gets it whole.
    [`${'価格は高い'.repeat(19_000)} poems`, 'writer (system)']
  ] as const) {
    t.equal((await ask(message)).agent, name, message.slice(-30))
  }
})

t.test('no word of a long text is cut in two', (t) => {
  const words = Array.from({ length: 2_000 }, (_, at) => `word${at}`)
  t.strictSame([...topicWords(words.join(' '))], words)
  t.strictSame([...topicWords('𐐀'.repeat(1_001))].join('').match(/\p{Surrogate}/u), null)
  t.end()
})

t.test('a model of another name is not there', async (t) => {
  const ask = await startLocal(t)
  t.match(await ask('hi', { model: 'local/large' }), { status: 400, error: "Provider 'local' has no model 'large'" })
})
