import { type ErrorEvent, EventSource } from 'eventsource'
import { createParser } from 'eventsource-parser'
import t, { type Test } from 'tap'
import { definePlugin } from '../../kernel/index.ts'
import agent from '../../plugins/agent/index.ts'
import carmy from '../../plugins/carmy/index.ts'
import chat from '../../plugins/chat/index.ts'
import http from '../../plugins/http/index.ts'
import mcp from '../../plugins/mcp/index.ts'
import openaiCompatible from '../../plugins/openai-compatible/index.ts'
import rag from '../../plugins/rag/index.ts'
import tools from '../../plugins/tools/index.ts'
import workers from '../../plugins/workers/index.ts'
import { delta, end, startModelServer } from '../fakes/model-server.ts'
import { toolOf, toolsPlugin, trustingGuard } from '../fixtures/carmy-tools.ts'
import { type ReadEvent, StrictReader } from '../fixtures/event-stream.ts'
import { madeEncoder } from '../fixtures/rag-house.ts'
import { startHouse } from '../harness.ts'

type Json = Record<string, unknown>

/** What would end a line, an event or a character early if it came onto the wire as it is. */
const texts = [
  'a\rb',
  'a\nb',
  'a\r\nb',
  '\r\n\r\nevent: forged\r\ndata: {}\r\n\r\n',
  '\n\nevent: forged\ndata: {}\n\n',
  '\r\rdata: {"event":"done"}\r\r',
  'a\0b',
  '\u2028 and \u2029',
  'a\u0085b\u000bc\u000cd',
  'a \ud83d b',
  '\udc00 first',
  '🙂 👩‍👩‍👧 é 价格',
  '\ufeff: no comment',
  ' one space, and one after '
]
/** In one text, which a model or a collection can be given in a single piece. */
const everything = texts.join('|')

const wellFormed = (text: string): string => text.replaceAll(/\p{Surrogate}/gu, '\ufffd')

/** What eventsource-parser, on which many clients stand, makes of pieces, each fed when it comes. */
function readByParser(pieces: readonly Uint8Array[]): ReadEvent[] {
  const events: ReadEvent[] = []
  const decoder = new TextDecoder()
  const parser = createParser({
    onEvent: ({ event = 'message', data, id = '' }) => events.push({ event, data, id }),
    onError: (error) => {
      throw error
    }
  })
  for (const piece of pieces) parser.feed(decoder.decode(piece, { stream: true }))
  parser.feed(decoder.decode())
  return events
}

function readByTheBook(pieces: readonly Uint8Array[]): ReadEvent[] {
  const reader = new StrictReader()
  for (const piece of pieces) reader.feed(piece)
  reader.end()
  return reader.events
}

/** The client that browsers have, in Node: it gets an answer whose body comes in the pieces, each in a read of its own. */
class RecordingEventSource extends EventSource {
  /** All that were dispatched, also those of names for which nobody would listen. */
  readonly events: ReadEvent[] = []
  /** Resolves when the body has ended, which to this client is an error. */
  readonly ended: Promise<ErrorEvent>
  #end: (error: ErrorEvent) => void = () => {}

  constructor(pieces: readonly Uint8Array[]) {
    super('http://127.0.0.1/stream', {
      fetch: async () => {
        let at = 0
        const body = new ReadableStream<Uint8Array>({
          pull(controller) {
            while (pieces[at]?.length === 0) at += 1
            const piece = pieces[at]
            at += 1
            if (piece === undefined) controller.close()
            else controller.enqueue(piece)
          }
        })
        return new Response(body, { headers: { 'content-type': 'text/event-stream' } })
      }
    })
    this.ended = new Promise((resolve) => {
      this.#end = resolve
    })
  }

  override dispatchEvent(event: Event): boolean {
    if (event instanceof MessageEvent) {
      this.events.push({ event: event.type, data: event.data as string, id: event.lastEventId })
    } else if (event.type === 'error') {
      // It comes back later of its own accord, with a timer that it sets once it has told of the end.
      queueMicrotask(() => {
        this.close()
        this.#end(event as ErrorEvent)
      })
    }
    return super.dispatchEvent(event)
  }
}

/** What eventsource makes of them. */
async function readByEventSource(pieces: readonly Uint8Array[]): Promise<ReadEvent[]> {
  const source = new RecordingEventSource(pieces)
  const { message } = await source.ended
  if (message !== undefined) throw new Error(message)
  return source.events
}

const readers = {
  'eventsource-parser': { read: readByParser, isCheap: true },
  'the strict one': { read: readByTheBook, isCheap: true },
  eventsource: { read: readByEventSource, isCheap: false }
}

const isWhole = process.env['HEARTWOOD_TEST_WHOLE'] !== undefined

/**
 * Every place at which the bytes can be cut. To a reader that is dear, unless the whole is asked for, only those around
 * the end of a line and within a character, where a reader could go wrong, and one in seven of the others.
 */
function* placesIn(bytes: Uint8Array, isCheap: boolean): Generator<number> {
  const isTold = (byte: number | undefined) => byte === undefined || byte <= 0x0d || byte >= 0x80
  for (let at = 0; at <= bytes.length; at += 1) {
    if (isCheap || isWhole || at % 7 === 0 || isTold(bytes[at - 1]) || isTold(bytes[at])) yield at
  }
}

const isSame = (some: readonly ReadEvent[], others: readonly ReadEvent[]): boolean =>
  some.length === others.length &&
  some.every(({ event, data, id }, at) => {
    const other = others[at]
    return event === other?.event && data === other.data && id === other.id
  })

/** @returns every place at which one of the readers, given the bytes in two pieces, reads something else than `events` */
async function differences(bytes: Uint8Array, events: readonly ReadEvent[]): Promise<string[]> {
  const found: string[] = []
  for (const [name, { read, isCheap }] of Object.entries(readers)) {
    for (const at of placesIn(bytes, isCheap)) {
      if (!isSame(await read([bytes.subarray(0, at), bytes.subarray(at)]), events)) found.push(`${name} at ${at}`)
    }
    const single = Array.from(bytes, (_byte, at) => bytes.subarray(at, at + 1))
    if (!isSame(await read(single), events)) found.push(`${name}, byte by byte`)
  }
  return found
}

t.test('the readers read the examples of the standard', async (t) => {
  const event = (data: string, id = '', name = 'message'): ReadEvent => ({ event: name, data, id })
  const examples: readonly (readonly [text: string, events: readonly ReadEvent[]])[] = [
    ['data: YHOO\ndata: +2\ndata: 10\n\n', [event('YHOO\n+2\n10')]],
    [
      ': test stream\n\ndata: first event\nid: 1\n\ndata:second event\nid\n\ndata:  third event\n\n',
      [event('first event', '1'), event('second event'), event(' third event')]
    ],
    ['data\n\ndata\ndata\n\n', [event(''), event('\n')]],
    ['data:test\n\ndata: test\n\n', [event('test'), event('test')]],
    [
      'event: add\ndata: 73857293\n\nevent: none\nid: a\0b\ndata: 1\n\n',
      [event('73857293', '', 'add'), event('1', '', 'none')]
    ]
  ]
  for (const [text, events] of examples) {
    for (const lineEnd of ['\n', '\r\n']) {
      const bytes = Buffer.from(text.replaceAll('\n', lineEnd))
      t.strictSame(await differences(bytes, events), [], JSON.stringify(text))
    }
    t.strictSame(readByTheBook([Buffer.from(text.replaceAll('\n', '\r'))]), events)
  }
  t.strictSame(readByTheBook([Buffer.from('\ufeffdata: a\n\n')]), [event('a')])
})

t.test('the strict reader takes nothing that is not right', async (t) => {
  for (const bad of ['data: 1\n', 'event: a\n\ndata: 1', 'date: 1\n\n', 'a line\n\n', '{"a":1}\n\n']) {
    t.throws(() => readByTheBook([Buffer.from(bad)]), bad)
  }
  t.throws(() => readByTheBook([Buffer.from('data: \xc3\n\n', 'latin1')]), 'bytes that are no UTF-8')
})

/** Stands in for auth on the routes of users. */
const userGuard = definePlugin({
  name: 'user-guard',
  apply(ctx) {
    ctx.contribute('http.guards', {
      name: 'user',
      scheme: { type: 'apiKey', in: 'header', name: 'x-as' },
      errors: {},
      check: (request) => ({ kind: 'user', id: request.header('x-as') ?? 'ann' })
    })
  }
})

/** Everything that streams, behind a real socket. */
async function startStreams(t: Test, transport: string) {
  const model = await startModelServer()
  t.teardown(() => model.close())
  const said = () => ({ texts, ...Object.fromEntries(texts.map((text, at) => [text, at])) })
  const fixture = toolsPlugin(() => [
    toolOf({
      name: 'say',
      run(_input, { progress }) {
        texts.forEach((message, at) =>
          progress({ progress: at, total: texts.length, message, partial: { [message]: message } })
        )
        return said()
      }
    }),
    toolOf<unknown, never>({
      name: 'fail',
      run() {
        throw Object.assign(new Error(everything), { code: 'FAILED' })
      }
    })
  ])
  const embedding = { fails: false }
  const encoder = madeEncoder({
    before() {
      if (embedding.fails) throw new Error(everything)
    }
  })
  const provider = { base_url: model.baseUrl, api_key: 'k', models: ['main'], max_retries: 0 }
  const house = await startHouse(t, [
    { plugin: http, config: { port: 0, transport } },
    { plugin: workers },
    { plugin: tools },
    { plugin: trustingGuard },
    { plugin: userGuard },
    { plugin: fixture },
    { plugin: carmy },
    { plugin: mcp },
    { plugin: encoder },
    { plugin: rag },
    { plugin: chat },
    { plugin: openaiCompatible, id: 'providers:stub', config: provider },
    { plugin: agent, id: 'agents:product', config: { model: 'stub/main' } }
  ])
  const base = `http://127.0.0.1:${house.services('http').address?.port}`
  const post = (path: string, body: object, headers: Record<string, string> = {}) =>
    fetch(base + path, {
      method: 'POST',
      headers: { 'content-type': 'application/json', accept: 'text/event-stream', ...headers },
      body: JSON.stringify(body)
    })
  return { ...house, model, base, post, said, embedding }
}

/** All bytes of a stream. @throws for an answer that is none */
async function bytesOf(answer: Promise<Response>): Promise<Uint8Array> {
  const response = await answer
  const type = response.headers.get('content-type') ?? ''
  if (response.status !== 200 || !type.startsWith('text/event-stream')) {
    throw new Error(`${response.status} ${type}: ${await response.text()}`)
  }
  return new Uint8Array(await response.arrayBuffer())
}

const dataOf = (events: readonly ReadEvent[]): Json[] => events.map(({ data }) => JSON.parse(data) as Json)
const namesOf = (events: readonly ReadEvent[]): string[] => events.map(({ event }) => event)

for (const transport of ['node', 'uws']) {
  t.test(`over ${transport}, a stream is read the same wherever it is cut`, async (t) => {
    const house = await startStreams(t, transport)
    const { post, base, model, said, embedding, kernel } = house

    /** Holds the bytes against all readers. @returns what they read */
    async function read(t: Test, bytes: Uint8Array): Promise<ReadEvent[]> {
      const events = readByTheBook([bytes])
      t.strictSame(await differences(bytes, events), [], `${bytes.length} bytes`)
      t.ok(
        [0x0d, 0x00].every((byte) => !bytes.includes(byte)),
        'neither CR nor NUL is on the wire'
      )
      return events
    }

    t.test('of carmy: progress, output, a replay, and failures', async (t) => {
      const call = { tool: 'say', request_id: wellFormed(texts.slice(0, 8).join('')) }
      const events = await read(t, await bytesOf(post('/agent/execute', call)))
      const progress = texts.map(() => 'tool.progress')
      const frame = ['execution.started', 'tool.started', ...progress, 'tool.completed', 'execution.completed']
      t.strictSame(namesOf(events), frame)
      const data = dataOf(events)
      t.strictSame(
        data.slice(2, -2).map(({ message, partial }) => [message, partial]),
        texts.map((text) => [text, { [text]: text }])
      )
      t.strictSame(data.at(-1)?.['data'], said())
      const replay = await read(t, await bytesOf(post('/agent/execute', call)))
      t.strictSame(dataOf(replay).at(-1), { ...data.at(-1), replayed: true })
      for (const tool of ['fail', everything]) {
        const failed = await read(t, await bytesOf(post('/agent/execute', { tool })))
        t.equal(dataOf(failed)[0]?.['tool'], tool)
        t.match(dataOf(failed).at(-1), { status: 'failed' })
      }
    })

    t.test('of chat: tokens, and an error', async (t) => {
      const turn = { message: everything, agent_type: 'product', context_id: 'c' }
      const steps = texts.map((text) => ({ write: delta(text) }))
      model.enqueue({ steps: [...steps, end] }, { steps: [...steps, { cut: true }] })
      const events = dataOf(await read(t, await bytesOf(post('/api/chat/stream', turn))))
      const text = events.map(({ event, content }) => (event === 'token' ? content : '')).join('')
      t.equal(text, wellFormed(texts.join('')))
      t.match(events.at(-1), { event: 'done' })
      t.match(dataOf(await read(t, await bytesOf(post('/api/chat/stream', turn)))).at(-1), { event: 'error' })
    })

    t.test('of documents: how far one is, and an error', async (t) => {
      const collection = '\u2028 and \u2029 🙂 价格 event: done'
      // What was embedded once is not embedded again.
      const ingest = (word: string) => {
        const content = Array.from({ length: 60 }, (_, at) => `${word} ${at} ${everything}`).join('\n\n')
        return post('/api/rag/ingest', { collection, content, title: everything, tags: texts })
      }
      const events = await read(t, await bytesOf(ingest('first')))
      // Of the reports that nobody has read yet only the newest is sent.
      t.strictSame(
        [...new Set(namesOf(events))].filter((name) => name !== 'progress'),
        ['done']
      )
      t.equal(dataOf(events).at(-1)?.['collection'], collection)
      embedding.fails = true
      const failed = await read(t, await bytesOf(ingest('second')))
      t.equal(namesOf(failed).at(-1), 'error')
    })

    t.test('of MCP: progress and a result, in a session and without one, and what a session is told', async (t) => {
      const accept = { accept: 'application/json, text/event-stream' }
      const call = (meta: Json) => ({
        jsonrpc: '2.0',
        id: everything,
        method: 'tools/call',
        params: { name: 'say', arguments: {}, _meta: { progressToken: everything, ...meta } }
      })
      const isRight = (t: Test, messages: readonly Json[]) => {
        t.strictSame(
          messages.slice(0, -1).map(({ params }) => (params as Json)['message']),
          texts
        )
        t.match(messages.at(-1), { id: everything, result: { structuredContent: said() } })
      }
      const revision = '2026-07-28'
      const modern = {
        ...accept,
        'mcp-protocol-version': revision,
        'mcp-method': 'tools/call',
        'mcp-name': 'say'
      }
      const meta = {
        'io.modelcontextprotocol/protocolVersion': revision,
        'io.modelcontextprotocol/clientInfo': { name: 'tests', version: '1' },
        'io.modelcontextprotocol/clientCapabilities': {}
      }
      isRight(t, dataOf(await read(t, await bytesOf(post('/mcp', call(meta), modern)))))

      const params = { protocolVersion: '2025-11-25', capabilities: {}, clientInfo: { name: 'tests', version: '1' } }
      const begun = await post('/mcp', { jsonrpc: '2.0', id: 1, method: 'initialize', params }, accept)
      await read(t, await bytesOf(Promise.resolve(begun)))
      const session = {
        'mcp-session-id': begun.headers.get('mcp-session-id') ?? '',
        'mcp-protocol-version': '2025-11-25'
      }
      isRight(t, dataOf(await read(t, await bytesOf(post('/mcp', call({}), { ...accept, ...session })))))

      const listening = await fetch(`${base}/mcp`, { headers: { accept: 'text/event-stream', ...session } })
      const told = bytesOf(Promise.resolve(listening))
      const more = toolsPlugin(() => [toolOf({ name: 'more', description: everything, run: () => 1 })], 'more')
      await kernel.begin({ id: 'more', plugin: more, config: {} })
      await fetch(`${base}/mcp`, { method: 'DELETE', headers: session })
      const changes = dataOf(await read(t, await told))
      t.match(changes, [{ method: 'notifications/tools/list_changed' }])
    })
  })
}
