import t, { type Test } from 'tap'
import { definePlugin, schemaOf } from '../../kernel/index.ts'
import http from '../../plugins/http/index.ts'
import type { Request, Route } from '../../plugins/http/types.ts'
import { pluginNamed, startHouse } from '../harness.ts'

interface Note {
  readonly name?: string
  readonly content?: string
}

const kibibyte = 1_024
const maxBodyBytes = 4 * kibibyte * kibibyte

/** Answers with what it was given: whether as units, the text's length and ends, and the other member. */
const notes = definePlugin({
  name: 'notes',
  apply(ctx) {
    const route: Route<object, unknown, Note> = {
      method: 'POST',
      path: '/notes',
      operationId: 'note',
      summary: 'Note',
      body: schemaOf<Note>({
        type: 'object',
        properties: { name: { type: 'string' }, content: { type: ['string', 'null'] } }
      }),
      longText: 'content',
      maxBodyBytes,
      replies: { 200: {} },
      handle({ body, longText }: Request<object, unknown, Note>) {
        const text = longText === undefined ? body.content : Buffer.from(longText.buffer).toString('utf16le')
        const ends = [text?.slice(0, 3), text?.slice(-3)]
        return {
          body: {
            name: body.name,
            member: longText && body.content,
            units: longText !== undefined,
            size: text?.length,
            ends
          }
        }
      }
    }
    ctx.contribute('http.routes', route as unknown as Route)
  }
})

async function start(
  t: Test,
  transport: string,
  threads = true
): Promise<(body: string | Uint8Array) => Promise<{ status: number; json: unknown }>> {
  const house = await startHouse(
    t,
    [
      ...(threads ? [{ plugin: await pluginNamed('workers') }] : []),
      { plugin: http, config: { port: 0, transport } },
      { plugin: notes }
    ],
    { store: false }
  )
  const url = `http://127.0.0.1:${house.services('http').address!.port}/notes`
  return async (body) => {
    const reply = await fetch(url, {
      method: 'POST',
      headers: { 'content-type': 'application/json' },
      body: body as string
    })
    return { status: reply.status, json: await reply.json() }
  }
}

/** The longest text that `JSON.parse` was given by this thread while `work` went on. */
async function longestParsed(t: Test, work: () => Promise<void>): Promise<number> {
  const { parse } = JSON
  let longest = 0
  t.teardown(() => {
    JSON.parse = parse
  })
  JSON.parse = (text, reviver) => {
    longest = Math.max(longest, String(text).length)
    return parse(text, reviver) as unknown
  }
  await work()
  JSON.parse = parse
  return longest
}

const long = 'é'.repeat(1_000) + 'x'.repeat(700 * kibibyte) + 'end'

for (const transport of ['uws', 'node']) {
  t.test(`a long text is read by a thread, and no long body by this one: ${transport}`, async (t) => {
    const send = await start(t, transport)
    const longest = await longestParsed(t, async () => {
      t.match(await send(JSON.stringify({ name: 'a', content: long, more: [1, 2] })), {
        status: 200,
        json: { name: 'a', member: '', units: true, size: long.length, ends: ['ééé', 'end'] }
      })
    })
    t.ok(longest < 256 * kibibyte, `the longest had ${longest}`)
    t.match(await send(JSON.stringify({ name: 'b', content: 'short' })), {
      status: 200,
      json: { name: 'b', units: false, size: 5 }
    })
    t.match(await send(JSON.stringify({ content: 'short', more: long })), {
      status: 200,
      json: { units: false, size: 5 }
    })
    t.match(await send(JSON.stringify({ content: '\ud800'.padEnd(300 * kibibyte, 'x') })), {
      status: 200,
      json: { units: true, size: 300 * kibibyte }
    })
  })

  t.test(`a long body is refused as a short one is: ${transport}`, async (t) => {
    const send = await start(t, transport)
    const wrong = (long: string): readonly (string | Uint8Array)[] => [
      `{"content": "${long}"`,
      `{"content": "${long}", "n": 12345678901234567890}`,
      `{"content": "${long}", "n": ${'['.repeat(65)}${']'.repeat(65)}}`,
      `{"content": ["${long}"]}`,
      `{"name": 1, "content": "${long}"}`,
      `["${long}"]`,
      `"${long}"`,
      Buffer.concat([Buffer.from(`{"content": "${long}`), Buffer.from([0xff]), Buffer.from('"}')])
    ]
    const short = wrong('x'.repeat(10))
    for (const [at, body] of wrong('x'.repeat(300 * kibibyte)).entries()) {
      const expected = await send(short[at]!)
      t.equal(expected.status, 400)
      const { status, json } = await send(body)
      const plain = JSON.stringify(json).replace(/character \d+/, 'character N')
      t.equal(status, 400)
      t.equal(plain, JSON.stringify(expected.json).replace(/character \d+/, 'character N'))
    }
    const many = JSON.stringify({ content: 'x', tags: Array.from({ length: 200_000 }, () => 'a') })
    t.match(await send(many), { status: 400, json: { error: 'the body holds more than 10000 values' } })
    t.match(await send('x'.repeat(maxBodyBytes + 1)), { status: 413 })
  })
}

t.test('where there are no threads, a long body is read here', async (t) => {
  const send = await start(t, 'node', false)
  t.match(await send(JSON.stringify({ content: long })), { status: 200, json: { units: false, size: long.length } })
})
