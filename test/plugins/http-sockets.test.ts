import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { type AddressInfo, createServer } from 'node:net'
import { text } from 'node:stream/consumers'
import { createParser } from 'eventsource-parser'
import t from 'tap'
import { type CodedError, definePlugin, type Plugin, schemaOf, silentLogger } from '../../kernel/index.ts'
import http from '../../plugins/http/index.ts'
import { Head } from '../../plugins/http/heads.ts'
import { openServer } from '../../plugins/http/listen.ts'
import type { Exchange } from '../../plugins/http/transport.ts'
import type { Request, Route, StreamEvent } from '../../plugins/http/types.ts'
import { loadUws } from '../../plugins/http/uws.ts'
import { askRaw, RawClient, readChunks } from '../fixtures/raw-client.ts'
import { type House, type HouseOptions, startHouse } from '../harness.ts'
import { cleanEnv } from '../process.ts'

type Test = Parameters<typeof startHouse>[0]

const anything = schemaOf({})
const json = 'content-type: application/json\r\n'
/** What the server holds the limit of a body to. */
const limit = 1_048_576

/** The build of uWebSockets.js that is here, if one is. */
const build = await loadUws().then(
  ({ isOlderBuild }) => (isOlderBuild ? 'older' : 'newer'),
  () => undefined
)
const transports = build === undefined ? (['node'] as const) : (['uws', 'node'] as const)
if (build === undefined) t.comment('uWebSockets.js does not load here: node:http alone is tested')

function route(method: Route['method'], path: string, handle: Route['handle'], more: Partial<Route> = {}): Route {
  return { method, path, operationId: `${method} ${path}`, summary: path, replies: {}, handle, ...more }
}

function plugin(name: string, routes: readonly Route[]): Plugin {
  return definePlugin({
    name,
    inject: ['http'],
    config: schemaOf({ type: 'object' }),
    apply: (ctx) => ctx.contribute('http.routes', ...routes)
  })
}

function deferred<T = void>(): { readonly promise: Promise<T>; readonly resolve: (value: T) => void } {
  let resolve: (value: T) => void = () => {}
  const promise = new Promise<T>((settle) => {
    resolve = settle
  })
  return { promise, resolve }
}

interface Served extends House {
  readonly port: number
  readonly url: string
  readonly ask: (bytes: string | Uint8Array, count?: number) => ReturnType<typeof askRaw>
}

interface Serving extends HouseOptions {
  readonly config?: Record<string, unknown>
}

const echo = route('POST', '/echo', ({ body }) => ({ body }), { body: anything })

async function serve(
  t: Test,
  transport: string,
  routes: readonly Route[] = [],
  { config = {}, ...options }: Serving = {}
): Promise<Served> {
  const house = await startHouse(
    t,
    [{ plugin: http, config: { port: 0, transport, ...config } }, { plugin: plugin('rig', [echo, ...routes]) }],
    { store: false, ...options }
  )
  const port = house.services('http').address?.port as number
  return { ...house, port, url: `http://127.0.0.1:${port}`, ask: (bytes, count) => askRaw(port, bytes, count) }
}

function post(path: string, body: string, headers = ''): string {
  return `POST ${path} HTTP/1.1\r\nHost: x\r\n${json}Content-Length: ${Buffer.byteLength(body, 'latin1')}\r\n${headers}\r\n${body}`
}

const get = (path: string, headers = '') => `GET ${path} HTTP/1.1\r\nHost: x\r\n${headers}\r\n`
const chunk = (text: string) => `${text.length.toString(16)}\r\n${text}\r\n`
const turn = () => new Promise<void>((resolve) => setImmediate(resolve))

for (const transport of transports) {
  t.test(`on ${transport}`, async (t) => {
    t.test('one connection carries many requests, whole and in order', async (t) => {
      const { port } = await serve(t, transport, [route('GET', '/none', () => ({ status: 204 }))])
      const client = await RawClient.connect(port)
      client.write(`HEAD /health HTTP/1.1\r\nHost: x\r\n\r\n`)
      await client.answers(1, [true])
      client.write(get('/none'))
      await client.answers(2, [true])
      client.write(get('/nope'))
      await client.answers(3, [true])
      client.write(post('/echo', Buffer.from('{"a":[1,"é"]}').toString('latin1')))
      await client.answers(4, [true])
      client.write(get('/health', 'Connection: close\r\n'))
      await client.closed()

      const [head, none, missing, echoed, last] = await client.answers(5, [true])
      t.match(head, { status: 200, headers: { 'content-length': '2', 'content-type': 'text/plain' }, body: '' })
      t.match(none, { status: 204, body: '' })
      t.equal(none?.headers['content-length'], undefined)
      t.match(missing, { status: 404, headers: { 'content-type': 'application/json' } })
      t.match(echoed, { status: 200, body: '{"a":[1,"é"]}' })
      t.match(last, { status: 200, body: 'OK' })
      t.equal(client.statusLines, 5)
    })

    t.test('requests sent in one go are answered in order, if their answers are at hand', async (t) => {
      const { ask } = await serve(t, transport)
      const answers = await ask(get('/health') + post('/echo', '1') + post('/echo', '2') + get('/nope'), 4)
      t.strictSame(
        answers.map(({ status, body }) => (status === 404 ? status : body)),
        ['OK', '1', '2', 404]
      )
    })

    t.test('a request behind a slow one is answered after it or not at all', async (t) => {
      const release = deferred()
      const { port } = await serve(t, transport, [
        route('GET', '/slow', async () => {
          await release.promise
          return { body: 'slow' }
        })
      ])
      const client = await RawClient.connect(port)
      client.write(get('/slow') + get('/health'))
      if (transport === 'uws') await client.closed()
      release.resolve()
      if (transport === 'node') {
        t.match(await client.answers(2), [{ body: '"slow"' }, { body: 'OK' }])
      } else {
        t.equal(client.statusLines, 0, 'uWebSockets.js closes such a connection')
      }
      client.socket.destroy()
    })

    t.test('a body may come in chunks and pieces', async (t) => {
      const { port } = await serve(t, transport)
      const client = await RawClient.connect(port)
      client.write(`POST /echo HTTP/1.1\r\nHost: x\r\n${json}Transfer-Encoding: chunked\r\n\r\n`)
      for (const piece of [chunk('{"tool":'), chunk('"ec'), '3\r\nho', '"\r\n', '1', '\r\n}\r\n', '0\r\n', '\r\n']) {
        client.write(piece)
        await turn()
      }
      t.match(await client.answers(1), [{ status: 200, body: '{"tool":"echo"}' }])

      client.write(post('/echo', '{"a":"b"}').slice(0, -3))
      await turn()
      client.write('b"}')
      t.match(await client.answers(2), [{}, { body: '{"a":"b"}' }])
      client.socket.destroy()
    })

    t.test('what is written in Latin letters is UTF-8 all the same', async (t) => {
      const { ask } = await serve(t, transport, [
        route('GET', '/text', () => ({ text: 'é' })),
        route('GET', '/json', () => ({ body: { a: 'ÿ' } })),
        route('GET', '/long', () => ({ text: 'é'.repeat(20_000) })),
        route('GET', '/events', () => ({
          events: (async function* (): AsyncGenerator<StreamEvent> {
            yield { data: 'é' }
            await turn()
            await turn()
            yield { data: 'à' }
          })()
        }))
      ])
      t.match(await ask(get('/text')), [{ headers: { 'content-length': '2' }, body: 'é' }])
      t.match(await ask(get('/json')), [{ body: '{"a":"ÿ"}' }])
      t.match(await ask(get('/long')), [{ headers: { 'content-length': '40000' }, body: 'é'.repeat(20_000) }])
      t.match(await ask(get('/events')), [{ body: 'data: "é"\n\ndata: "à"\n\n' }])
    })

    t.test('large bodies arrive complete, and large answers leave so', async (t) => {
      const { url } = await serve(t, transport)
      const body = JSON.stringify({ t: Array.from({ length: 150_000 }, (_, at) => `${at}-`).join('') })
      for (let at = 0; at < 10; at++) {
        const answer = await fetch(`${url}/echo`, {
          method: 'POST',
          body,
          headers: { 'content-type': 'application/json' }
        })
        t.ok((await answer.text()) === body)
      }
    })

    t.test('an answer larger than the socket reaches a slow reader whole', async (t) => {
      const bytes = Buffer.from(
        Array.from({ length: 2_000_000 }, (_, at) => String(at % 10))
          .join('')
          .repeat(4)
      )
      const { port } = await serve(t, transport, [route('GET', '/large', () => ({ bytes }))])
      const client = await RawClient.connect(port)
      client.socket.pause()
      client.write(get('/large'))
      for (let at = 0; at < 20; at++) await turn()
      client.socket.resume()
      const [answer] = await client.answers(1)
      t.equal(answer?.headers['content-length'], String(bytes.length))
      t.ok(answer?.body === bytes.toString())
      client.socket.destroy()
    })

    t.test('a large answer that nobody reads is cut off', async (t) => {
      const bytes = Buffer.alloc(32 * 1024 * 1024, 'x')
      const asked = deferred()
      const large = route('GET', '/large', () => {
        asked.resolve()
        return { bytes }
      })
      const { port, kernel } = await serve(t, transport, [large], { config: { stall_timeout_ms: 50 } })
      const client = await RawClient.connect(port)
      client.socket.pause()
      client.write(get('/large'))
      await asked.promise
      await kernel.update('rig', { next: true })
      await drained(kernel)
      client.socket.resume()
      await client.closed()
      t.ok(client.text.length < bytes.length, `${client.text.length} bytes came`)
    })

    t.test('a body over the limit gets its 413 and leaves the connection in order', async (t) => {
      const { port, url } = await serve(t, transport)
      const sized = (bytes: number) => `"${'x'.repeat(bytes - 2)}"`
      const client = await RawClient.connect(port)
      client.write(post('/echo', sized(limit)))
      t.match(await client.answers(1), [{ status: 200 }])
      client.write(post('/echo', sized(limit + 1)))
      t.match(await client.answers(2), [{}, { status: 413, body: /"code":"PAYLOAD_TOO_LARGE"/ }])
      client.write(`POST /echo HTTP/1.1\r\nHost: x\r\n${json}Transfer-Encoding: chunked\r\n\r\n`)
      client.write(chunk('"'.padEnd(600_000, 'x')))
      client.write(chunk('x'.repeat(600_000)))
      client.write(`${chunk('x"')}0\r\n\r\n`)
      t.match(await client.answers(3), [{}, {}, { status: 413 }])
      client.write(post('/echo', '"after"'))
      t.match(await client.answers(4), [{}, {}, {}, { status: 200, body: '"after"' }])
      t.equal(client.statusLines, 4)
      client.socket.destroy()

      const large = Buffer.alloc(20_000_000, ' ')
      const plain = await fetch(`${url}/echo`, {
        method: 'POST',
        body: large,
        headers: { 'content-type': 'application/json' }
      })
      t.match(await plain.json(), { code: 'PAYLOAD_TOO_LARGE' }, '20 MB with a length')
      const stream = new Blob([large]).stream()
      const chunked = await fetch(`${url}/echo`, {
        method: 'POST',
        body: stream,
        duplex: 'half',
        headers: { 'content-type': 'application/json' }
      } as RequestInit)
      t.match(await chunked.json(), { code: 'PAYLOAD_TOO_LARGE' }, '20 MB in chunks')
    })

    t.test('a body nobody asked for does no harm', async (t) => {
      const { port } = await serve(t, transport, [
        route('GET', '/later', async () => {
          await turn()
          return { body: 'later' }
        })
      ])
      for (const path of ['/health', '/later']) {
        const client = await RawClient.connect(port)
        client.write(get(path, 'Content-Length: 200000\r\n') + 'x'.repeat(100_000))
        await client.answers(1)
        client.write('x'.repeat(100_000) + get('/health', 'Connection: close\r\n'))
        await client.closed()
        t.match(await client.answers(2), [{ status: 200 }, { status: 200, body: 'OK' }])
      }
    })

    t.test('a request that two readers could frame differently never gets two answers', async (t) => {
      let smuggled = 0
      const { port, ask } = await serve(t, transport, [
        route('GET', '/smuggled', () => {
          smuggled += 1
          return { body: 'smuggled' }
        })
      ])
      for (const [name, bytes, outcome] of ambiguous(get('/smuggled'))) {
        const client = await RawClient.connect(port)
        client.write(bytes)
        const mayBeSilent =
          transport === 'uws' && (outcome === 'silent' || (outcome === 'silent when older' && build === 'older'))
        if (mayBeSilent) {
          // uWebSockets.js ends such a connection some 12 s later: time enough for it to answer others, and to answer twice.
          for (let at = 0; at < 3; at++) t.match(await ask(get('/health')), [{ body: 'OK' }])
        } else {
          await client.until(() => outcome !== 'refused' && client.statusLines > 0)
        }
        const [answer] = await client.answers(mayBeSilent ? 0 : 1)
        t.ok(client.statusLines <= 1, `${name}: ${client.statusLines} answers`)
        if (answer !== undefined && outcome === 'refused') t.ok(answer.status >= 400, `${name}: ${answer.status}`)
        t.equal(smuggled, 0, name)
        client.socket.destroy()
      }
      t.match(await ask(get('/health')), [{ status: 200 }])
    })

    t.test('what uWebSockets.js misreads by itself is one more request of the same client, no more', async (t) => {
      const closed = definePlugin({
        name: 'closed',
        apply: (ctx) =>
          ctx.contribute('http.guards', {
            name: 'closed',
            scheme: {},
            errors: {},
            check: () => {
              throw new Error('nobody gets in')
            }
          })
      })
      const { port, kernel, ask } = await serve(t, transport, [
        route('GET', '/guarded', () => ({ body: 'secret' }), { guard: 'closed' })
      ])
      await kernel.begin({ id: 'closed', plugin: closed })
      for (const [name, bytes] of misread(get('/guarded'))) {
        const client = await RawClient.connect(port)
        client.write(bytes)
        if (transport === 'node') {
          await client.closed()
          t.equal(client.statusLines, 1, name)
          t.match(await client.answers(1), [{ status: 400 }], name)
        } else {
          const [, second] = await client.answers(2)
          t.match(second, { status: 500 }, `${name}: the guard stands before it as before any other`)
        }
        client.socket.destroy()
      }
      t.match(await ask(get('/health')), [{ status: 200 }])
    })

    t.test('many headers, a long head and a request line in pieces', async (t) => {
      const { port, ask } = await serve(t, transport, [
        route('GET', '/count', (request) => ({ body: request.header('x-99')?.length ?? null }))
      ])
      const many = (count: number, value: string) =>
        Array.from({ length: count }, (_, at) => `x-${at}: ${value}\r\n`).join('')
      t.match(await ask(get('/count', many(90, '1'))), [{ status: 200 }])
      if (transport === 'node') {
        t.match(await ask(get('/count', many(130, '1'))), [{ status: 200, body: '1' }])
      } else if (build === 'newer') {
        t.match(await ask(get('/count', many(130, '1'))), [{ status: 431 }])
      } else {
        t.match(await ask(get('/count', many(130, '1'.repeat(200)))), [{ status: 431 }])
        const silent = await RawClient.connect(port)
        silent.write(get('/count', many(130, '1')))
        t.match(await ask(get('/health')), [{ status: 200 }], 'others are served while it waits for its end')
        t.equal(silent.text, '')
        silent.socket.destroy()
      }

      const long = await RawClient.connect(port)
      const [head, tail] = cut(get('/count', many(10, 'y'.repeat(1_000))), 5_000)
      long.write(head)
      await turn()
      long.write(tail)
      t.match(await long.answers(1), [{ status: 200 }], 'ten thousand bytes of headers, in two pieces')
      long.socket.destroy()

      const pieces = await RawClient.connect(port)
      const [line, rest] = cut(get('/health'), 8)
      pieces.write(line)
      t.match(await ask(get('/health')), [{ status: 200 }])
      pieces.write(rest)
      const expected = transport === 'uws' && build === 'older' ? 505 : 200
      t.match(await pieces.answers(1), [{ status: expected }], 'the older build takes a request line only in one piece')
      pieces.socket.destroy()
    })

    t.test('a refusal of the framing has the form of any other', async (t) => {
      const { ask } = await serve(t, transport)
      const [answer] = await ask(`POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip, chunked\r\n\r\n`)
      t.match(answer, { status: 400, headers: { 'x-request-id': String, connection: 'close' } })
      t.match(JSON.parse(answer?.body ?? ''), { error: String, code: 'INVALID_INPUT' })
    })

    t.test('a client that leaves in the middle of its body leaves nothing behind', async (t) => {
      let handled = 0
      const { port, kernel, ask, lines } = await serve(t, transport, [
        route(
          'POST',
          '/login',
          async ({ body }) => {
            handled += 1
            await turn()
            return { body }
          },
          { body: anything }
        )
      ])
      const whole = post('/login', '{"email":"a@x.test","password":"wrong-pass-1"}')
      for (let at = 0; at < 500; at++) {
        const client = await RawClient.connect(port)
        client.write(whole.slice(0, whole.length - (at % 46)))
        if (at % 3 === 0) await turn()
        client.reset()
      }
      t.match(await ask(get('/health')), [{ body: 'OK' }])
      t.ok(handled <= 11)
      await kernel.update('rig', { next: true })
      await drained(kernel)
      t.strictSame(
        lines.filter(({ level }) => level === 'error'),
        []
      )
    })

    t.test('a handler hears at once that its client has left', async (t) => {
      const begun = deferred()
      const heard = deferred<unknown>()
      const lateBegun = deferred()
      const late = deferred<boolean>()
      const { port, kernel } = await serve(t, transport, [
        route(
          'POST',
          '/slow',
          async ({ signal }) => {
            begun.resolve()
            if (!signal.aborted) await once(signal, 'abort')
            heard.resolve(signal.reason)
            return { body: 'nobody hears this' }
          },
          { body: anything }
        ),
        route('GET', '/late', async (request) => {
          lateBegun.resolve()
          await gone.promise
          await until(() => request.signal.aborted)
          late.resolve(request.signal.aborted)
          return { body: 1 }
        })
      ])
      const gone = deferred()
      const client = await RawClient.connect(port)
      client.write(post('/slow', '{}'))
      await begun.promise
      client.socket.destroy()
      t.match(await heard.promise, { code: 'CLIENT_GONE' })

      const other = await RawClient.connect(port)
      other.write(get('/late'))
      await lateBegun.promise
      other.reset()
      gone.resolve()
      t.equal(await late.promise, true, 'also one that asks only later')
      await kernel.update('rig', { next: true })
      await drained(kernel)
    })

    t.test('a client that leaves with several requests waiting leaves nothing behind', async (t) => {
      const begun = deferred()
      const flood = route('GET', '/flood', ({ signal }) => ({
        events: (async function* (): AsyncGenerator<StreamEvent> {
          begun.resolve()
          while (!signal.aborted) yield { data: 'x'.repeat(10_000) }
        })()
      }))
      const { port, kernel } = await serve(t, transport, [flood])
      const client = await RawClient.connect(port)
      client.socket.pause()
      client.write(get('/flood') + get('/flood') + get('/flood'))
      await begun.promise
      client.reset()
      await kernel.update('rig', { next: true })
      await drained(kernel)
      t.ok(client.isClosed || client.socket.destroyed)
    })

    t.test('events arrive as a parser of the standard reads them', async (t) => {
      const nasty = 'a\rdata: {"event":"done"}\r\rb\n\nevent: done\n\nc 价格🙂é\u2028'
      const { url } = await serve(t, transport, [
        route('GET', '/events', () => ({
          headers: { 'x-agent-name': 'parrot' },
          events: (async function* (): AsyncGenerator<StreamEvent> {
            yield { data: { event: 'start' } }
            await turn()
            for (const letter of nasty) yield { event: 'token', data: { content: letter } }
            yield { event: 'token', data: { content: nasty } }
            yield { data: { event: 'done' } }
          })()
        }))
      ])
      const answer = await fetch(`${url}/events`)
      t.match(Object.fromEntries(answer.headers), {
        'content-type': 'text/event-stream',
        'cache-control': 'no-cache, no-transform',
        'x-accel-buffering': 'no',
        'x-agent-name': 'parrot',
        'x-request-id': String
      })
      const bytes = Buffer.from(await answer.arrayBuffer())
      t.notOk(bytes.includes('\r'))
      const events: { event: string | undefined; data: { event?: string; content?: string } }[] = []
      const parser = createParser({
        onEvent: ({ event, data }) => events.push({ event, data: JSON.parse(data) as { content?: string } })
      })
      parser.feed(bytes.toString())
      t.strictSame(events.at(0), { event: undefined, data: { event: 'start' } })
      t.strictSame(events.at(-1), { event: undefined, data: { event: 'done' } })
      t.strictSame(events.at(-2), { event: 'token', data: { content: nasty } })
      const letters = events.slice(1, -2)
      t.ok(letters.every(({ event }) => event === 'token'))
      t.equal(letters.map(({ data }) => data.content).join(''), nasty)
    })

    t.test('a silent stream is kept alive by comments between its events', async (t) => {
      const heard = deferred()
      const { port } = await serve(
        t,
        transport,
        [
          route('GET', '/quiet', () => ({
            events: (async function* (): AsyncGenerator<StreamEvent> {
              await heard.promise
              yield { data: 'at last' }
            })()
          }))
        ],
        { config: { keep_alive_interval_ms: 5 } }
      )
      const client = await RawClient.connect(port)
      client.write(get('/quiet'))
      await client.until(() => client.text.split(':\n\n').length > 4)
      heard.resolve()
      const [answer] = await client.answers(1)
      t.match(answer?.body, /^(:\n\n){4,}data: "at last"\n\n(:\n\n)*$/, 'one at once, then one after each silence')
      client.socket.destroy()
    })

    t.test('a slow reader gets every event once and in order, and the producer waits for it', async (t) => {
      const count = 20_000
      let pulled = 0
      const { port } = await serve(t, transport, [
        route('GET', '/numbers', () => ({
          events: (async function* (): AsyncGenerator<StreamEvent> {
            for (; pulled < count; pulled++) yield { data: `${pulled} ${'x'.repeat(1_000)}` }
          })()
        }))
      ])
      const client = await RawClient.connect(port)
      client.socket.pause()
      client.write(get('/numbers'))
      let before = -1
      while (pulled !== before || pulled === 0) {
        before = pulled
        for (let at = 0; at < 200; at++) await turn()
      }
      t.ok(pulled < count, `it stopped after ${pulled} while nobody read`)
      for (let at = 0; !client.isClosed && pulled < count; at++) {
        client.socket.resume()
        for (let turns = 0; turns < 1 + (at % 5); turns++) await turn()
        client.socket.pause()
        await turn()
      }
      client.socket.resume()
      const [answer] = await client.answers(1)
      const numbers = (answer?.body ?? '')
        .split('\n\n')
        .slice(0, -1)
        .map((frame) => Number.parseInt(frame.slice(7), 10))
      t.equal(numbers.length, count)
      t.ok(numbers.every((number, at) => number === at))
      client.socket.destroy()
    })

    t.test('a reader that has stopped is cut off, and the producer is told', async (t) => {
      const ended = deferred<unknown>()
      const { port, kernel } = await serve(
        t,
        transport,
        [
          route('GET', '/flood', ({ signal }) => ({
            events: (async function* (): AsyncGenerator<StreamEvent> {
              try {
                for (;;) yield { data: 'x'.repeat(10_000) }
              } finally {
                ended.resolve(signal.reason)
              }
            })()
          }))
        ],
        { config: { stall_timeout_ms: 50 } }
      )
      const client = await RawClient.connect(port)
      client.socket.pause()
      client.write(get('/flood'))
      t.match(await ended.promise, { code: 'CLIENT_GONE' })
      client.socket.resume()
      await client.closed()
      t.equal(
        readChunks(client.text.slice(client.text.indexOf('\r\n\r\n') + 4)),
        undefined,
        'it cannot take it for whole'
      )
      await kernel.update('rig', { next: true })
      await drained(kernel)
    })

    t.test('a client that leaves its stream ends the producer', async (t) => {
      const ended = deferred<unknown>()
      const first = deferred()
      const { port, kernel } = await serve(t, transport, [
        route(
          'POST',
          '/stream',
          ({ signal }) => ({
            events: (async function* (): AsyncGenerator<StreamEvent> {
              try {
                yield { data: 'first' }
                first.resolve()
                await new Promise((_resolve, reject) => {
                  signal.addEventListener('abort', () => reject(signal.reason as CodedError))
                })
              } finally {
                ended.resolve(signal.reason)
              }
            })()
          }),
          { body: anything }
        )
      ])
      const client = await RawClient.connect(port)
      client.write(post('/stream', '{}'))
      await first.promise
      client.socket.destroy()
      t.match(await ended.promise, { code: 'CLIENT_GONE' })
      await kernel.update('rig', { next: true })
      await drained(kernel)
    })

    t.test('a Response streams as it is made, and is cut when its source fails', async (t) => {
      const pieces = ['one ', 'two ', 'three'].map((text) => new TextEncoder().encode(text))
      const source = (fails: boolean) => {
        let at = 0
        return new ReadableStream<Uint8Array>({
          async pull(controller) {
            await turn()
            const piece = pieces[at++]
            if (piece !== undefined) controller.enqueue(piece)
            else if (fails) controller.error(new Error('source gone'))
            else controller.close()
          }
        })
      }
      const { ask, port, lines } = await serve(t, transport, [
        route('GET', '/whole', () => new Response(source(false), { headers: { 'content-type': 'text/x' } })),
        route('GET', '/broken', () => new Response(source(true)))
      ])
      t.match(await ask(get('/whole')), [{ status: 200, headers: { 'content-type': 'text/x' }, body: 'one two three' }])
      t.match(await askRaw(port, `HEAD${get('/whole').slice(3)}`, 1, [true]), [{ status: 200, body: '' }])
      const client = await RawClient.connect(port)
      client.write(get('/broken'))
      await client.closed()
      t.strictSame(await client.answers(1), [], 'there is no whole answer')
      t.match(lines.at(-1), { level: 'error', error: { message: 'source gone' } })
    })

    t.test('a stop lets in nobody new, and everybody inside finish', async (t) => {
      const begun = deferred()
      const streaming = deferred()
      const release = deferred()
      const { port, kernel } = await serve(t, transport, [
        route('GET', '/slow', async () => {
          begun.resolve()
          await release.promise
          return { body: 'done' }
        }),
        route('GET', '/stream', ({ signal }) => ({
          events: (async function* (): AsyncGenerator<StreamEvent> {
            yield { data: 'first' }
            streaming.resolve()
            if (!signal.aborted) await once(signal, 'abort')
            yield { event: 'error', data: (signal.reason as CodedError).code }
          })()
        }))
      ])
      const [idle, slow, stream] = [
        await RawClient.connect(port),
        await RawClient.connect(port),
        await RawClient.connect(port)
      ]
      idle.write(get('/health'))
      await idle.answers(1)
      slow.write(get('/slow'))
      stream.write(get('/stream'))
      await Promise.all([begun.promise, streaming.promise])

      const stopped = kernel.stop(200)
      idle.write(get('/health'))
      const [, turnedAway] = await idle.answers(2)
      if (transport === 'uws' || turnedAway !== undefined) {
        t.match(turnedAway, { status: 503, headers: { connection: 'close' }, body: /Service unavailable/ })
      }
      await idle.closed()
      await t.rejects(RawClient.connect(port), { code: 'ECONNREFUSED' })
      release.resolve()
      t.match(await slow.answers(1), [{ status: 200, headers: { connection: 'close' }, body: '"done"' }])
      await slow.closed()
      t.match(await stream.answers(1), [{ body: 'data: "first"\n\nevent: error\ndata: "SHUTTING_DOWN"\n\n' }])
      await stopped
      await stream.closed()
    })

    t.test('closing cuts off what has no answer yet, and lets out what has', async (t) => {
      const server = await openServer('127.0.0.1', 0, transport, silentLogger)
      const pending = deferred<Exchange>()
      const handle = (exchange: Exchange) => {
        if (exchange.path === '/never') pending.resolve(exchange)
        else
          void Promise.resolve().then(() => {
            exchange.send(200, 'id', new Head([]), 'x'.repeat(10_000))
            return server.close()
          })
      }
      server.use({ handle, refuse: handle }, { maxConnections: 10, stallTimeoutMs: 1_000 })
      const [never, last] = [await RawClient.connect(server.port), await RawClient.connect(server.port)]
      never.write(get('/never'))
      const exchange = await pending.promise
      last.write(get('/last'))
      t.match(await last.answers(1), [{ status: 200, body: 'x'.repeat(10_000) }], 'handed over just before')
      await never.closed()
      t.equal(never.text, '')
      t.match(exchange, { isOver: true, isGone: true })
      await server.close()
    })

    t.test('a port that is taken is refused by name, and nothing is left half-open', async (t) => {
      for (const other of transports) {
        const { port } = await serve(t, other)
        await t.rejects(startHouse(t, [{ plugin: http, config: { port, transport } }], { store: false }), {
          code: 'HTTP_PORT_IN_USE',
          message: new RegExp(`port ${port} on 127\\.0\\.0\\.1 is in use.*choose another port`),
          detail: { host: '127.0.0.1', port }
        })
        t.match(await askRaw(port, get('/health')), [{ status: 200 }], 'who was there is there')
      }
      const config = { host: '192.0.2.1', port: 0, transport }
      await t.rejects(startHouse(t, [{ plugin: http, config }], { store: false }), {
        code: 'HTTP_LISTEN_FAILED',
        message: /192\.0\.2\.1/
      })
    })

    t.test('a swap of http drops no request and shows at the next one', async (t) => {
      const { port, kernel } = await serve(t, transport, [
        route('GET', '/slow', async () => {
          await turn()
          await turn()
          return { body: 'slow' }
        })
      ])
      const config = { port: 0, transport }
      let isDone = false
      let answered = 0
      const load = async (path: string, body: string) => {
        const client = await RawClient.connect(port)
        for (let at = 1; !isDone; at++) {
          client.text = ''
          client.write(get(path))
          const [answer] = await client.answers(1)
          if (answer?.status !== 200 || answer.body !== body)
            throw new Error(`request ${at}: ${JSON.stringify(answer)}`)
          answered += 1
        }
        client.socket.destroy()
      }
      const clients = Promise.all([
        load('/health', 'OK'),
        load('/slow', '"slow"'),
        load('/slow', '"slow"'),
        load('/health', 'OK')
      ])
      const page = await RawClient.connect(port)
      for (let at = 0; at < 30; at++) {
        const origin = `https://app-${at}.test`
        await kernel.update('http', { ...config, cors_origins: [origin] })
        page.text = ''
        page.write(get('/health', `Origin: ${origin}\r\n`))
        t.match(await page.answers(1), [{ headers: { 'access-control-allow-origin': origin } }])
        await kernel.update('rig', { at })
      }
      isDone = true
      await clients
      t.ok(answered > 100, `${answered} requests`)
      page.socket.destroy()
      await drained(kernel)
    })

    t.test('a change of the port opens the new one before the old one closes', async (t) => {
      const begun = deferred()
      const release = deferred()
      const { port, kernel, services } = await serve(t, transport, [
        route('GET', '/slow', async () => {
          begun.resolve()
          await release.promise
          return { body: 'slow' }
        })
      ])
      const [slow, idle] = [await RawClient.connect(port), await RawClient.connect(port)]
      idle.write(get('/health'))
      await idle.answers(1)
      slow.write(get('/slow'))
      await begun.promise
      const free = await freePort()
      await kernel.update('http', { port: free, transport })

      t.equal(services('http').address?.port, free)
      t.match(await askRaw(free, get('/health')), [{ status: 200 }])
      if (transport === 'uws') {
        idle.write(get('/health'))
        t.match(
          await idle.answers(2),
          [{}, { status: 200, headers: { connection: 'close' } }],
          'served, then sent away'
        )
      }
      release.resolve()
      t.match(await slow.answers(1), [{ status: 200, body: '"slow"' }])
      await drained(kernel)
      await t.rejects(RawClient.connect(port), { code: 'ECONNREFUSED' })
      await t.rejects(kernel.update('http', { port: await takenPort(t), transport }), { code: 'HTTP_PORT_IN_USE' })
      t.match(await askRaw(free, get('/health')), [{ status: 200 }], 'a port that is taken changes nothing')
    })

    t.test('retiring http ends it after those who are inside', async (t) => {
      const begun = deferred()
      const release = deferred()
      const { port, kernel } = await serve(t, transport, [
        route('GET', '/slow', async () => {
          begun.resolve()
          await release.promise
          return { body: 'slow' }
        })
      ])
      const slow = await RawClient.connect(port)
      slow.write(get('/slow'))
      await begun.promise
      const retired = kernel.retire('http')
      await t.rejects(RawClient.connect(port), { code: 'ECONNREFUSED' })
      release.resolve()
      t.match(await slow.answers(1), [{ status: 200 }])
      await retired
      t.equal(kernel.resources.size, 0)
    })

    t.test('one connection too many is closed, and finds room when another has left', async (t) => {
      const { port } = await serve(t, transport, [], { config: { max_connections: 2 } })
      const [first, second] = [await RawClient.connect(port), await RawClient.connect(port)]
      for (const client of [first, second]) client.write(get('/health'))
      t.match(await first.answers(1), [{ status: 200 }])
      t.match(await second.answers(1), [{ status: 200 }])
      const third = await RawClient.connect(port)
      await third.closed()
      t.equal(third.text, '')
      first.socket.destroy()
      let answers: readonly unknown[] = []
      while (answers.length === 0) answers = await askRaw(port, get('/health'))
      t.match(answers, [{ status: 200 }])
      second.socket.destroy()
    })

    t.test('the address of the peer is plain text', async (t) => {
      const { ask } = await serve(t, transport, [route('GET', '/me', ({ address }: Request) => ({ body: address }))])
      t.match(await ask(get('/me')), [{ body: '"127.0.0.1"' }])
      const dual = await serve(t, transport, [route('GET', '/me', ({ address }: Request) => ({ body: address }))], {
        config: { host: '::' }
      }).catch(() => undefined)
      if (dual !== undefined) t.match(await dual.ask(get('/me')), [{ body: '"127.0.0.1"' }], 'mapped into IPv6')
    })

    t.end()
  })
}

t.test('where uWebSockets.js does not load, auto serves with node:http and says so once', async (t) => {
  const hooks = `export async function resolve(name, context, next) {
    if (name === 'uWebSockets.js') throw new Error('no build for this system')
    return next(name, context)
  }`
  const register = `import { register } from 'node:module'; register('data:text/javascript,' + ${JSON.stringify(encodeURIComponent(hooks))})`
  const script = `
    import { Kernel } from ${JSON.stringify(new URL('../../kernel/kernel.js', import.meta.url).href)}
    import { createJsonLogger } from ${JSON.stringify(new URL('../../kernel/index.js', import.meta.url).href)}
    import http from ${JSON.stringify(new URL('../../plugins/http/index.js', import.meta.url).href)}
    const kernel = new Kernel({ log: createJsonLogger({ write: (line) => process.stderr.write(line) }) })
    await kernel.begin({ id: 'http', plugin: http, config: { port: 0 } })
    const { port, transport } = kernel.service('http').address
    const answer = await fetch('http://127.0.0.1:' + port + '/health')
    await kernel.update('http', { port: 0, cors_origins: ['https://a.test'] })
    const refused = await kernel.update('http', { port: 0, transport: 'uws' }).catch((error) => error.code)
    console.log(JSON.stringify({ transport, text: await answer.text(), refused }))
    await kernel.stop()`
  const hook = `data:text/javascript,${encodeURIComponent(register)}`
  const [command, ...args] = [...cleanEnv(), process.execPath, '--import', hook, '--input-type=module', '-e', script]
  const child = spawn(command!, args, { stdio: ['ignore', 'pipe', 'pipe'] })
  const [out, err] = await Promise.all([text(child.stdout), text(child.stderr)])
  t.strictSame(JSON.parse(out), { transport: 'node', text: 'OK', refused: 'HTTP_TRANSPORT_MISSING' }, err)
  const warnings = err.split('\n').filter((line) => line.includes('"level":"warn"'))
  t.equal(warnings.length, 1)
  t.match(warnings[0], /serving with node:http/)
})

function cut(text: string, at: number): readonly [string, string] {
  return [text.slice(0, at), text.slice(at)]
}

async function until(isTrue: () => boolean): Promise<void> {
  while (!isTrue()) await turn()
}

/** Every generation that was replaced has ended: nothing holds a lease on it. */
async function drained(kernel: House['kernel']): Promise<void> {
  await until(() => kernel.fibers().every(({ draining }) => draining === 0))
}

async function freePort(): Promise<number> {
  const server = createServer().listen(0, '127.0.0.1')
  await once(server, 'listening')
  const { port } = server.address() as AddressInfo
  server.close()
  await once(server, 'close')
  return port
}

async function takenPort(t: Test): Promise<number> {
  const server = createServer().listen(0, '127.0.0.1')
  await once(server, 'listening')
  t.teardown(() => server.close())
  return (server.address() as AddressInfo).port
}

type Outcome = 'refused' | 'legal' | 'silent' | 'silent when older'

/** RFC 9112 probes: name, bytes, and what may come of it. Each ends in `next`, which must not be taken for a request. */
function ambiguous(next: string): readonly (readonly [name: string, bytes: string, outcome: Outcome])[] {
  const head = `POST /echo HTTP/1.1\r\nHost: x\r\n${json}`
  const framed = (lines: string, body = '{}') => `${head}${lines}\r\n${body}${next}`
  const length = `Content-Length: ${next.length + 2}\r\n`
  const chunked = 'Transfer-Encoding: chunked\r\n'
  const ended = `${chunk('{}')}0\r\n\r\n`
  return [
    ['the same length twice', framed('Content-Length: 2\r\nContent-Length: 2\r\n'), 'refused'],
    ['two lengths', framed(`Content-Length: 2\r\n${length}`), 'refused'],
    ['two lengths, the first 0', framed(`Content-Length: 0\r\n${length}`), 'refused'],
    ['a list of lengths', framed('Content-Length: 2, 2\r\n'), 'refused'],
    ['length, then coding', framed(length + chunked, ended), 'refused'],
    ['coding, then length', framed(chunked + length, ended), 'refused'],
    ['a coding nobody knows', framed('Transfer-Encoding: xchunked\r\n', ended), 'refused'],
    ['no coding, by name', framed('Transfer-Encoding: identity\r\n', ended), 'refused'],
    ['chunked, not last', framed('Transfer-Encoding: chunked, identity\r\n', ended), 'refused'],
    ['two codings in two lines', framed(`Transfer-Encoding: identity\r\n${chunked}`, ended), 'refused'],
    ['compressed and chunked', framed('Transfer-Encoding: gzip, chunked\r\n', ended), 'refused'],
    ['a space before the colon of a coding', framed('Transfer-Encoding : chunked\r\n', ended), 'silent when older'],
    ['a tab before the colon of a length', framed('Content-Length\t: 2\r\n'), 'silent when older'],
    ['a folded line', framed(`X-A: b\r\n ${length}`), 'silent when older'],
    ['bare LF between headers', `${head}X-A: b\nContent-Length: 2\r\n\r\n{}${next}`, 'silent when older'],
    ['bare LF everywhere', framed('Content-Length: 2\r\n').replaceAll('\r\n', '\n'), 'refused'],
    ['bare CR in a value', framed(`X-A: b\r${length}`), 'silent'],
    ['NUL in a value', framed('X-A: b\0\r\nContent-Length: 2\r\n'), 'silent when older'],
    ['two hosts', framed('Host: y\r\nContent-Length: 2\r\n'), 'refused'],
    ['no host', `GET /health HTTP/1.1\r\nAccept: */*\r\n\r\n${next}`, 'refused'],
    ['no header at all', `GET /health HTTP/1.1\r\n\r\n${next}`, 'silent when older'],
    ['an empty host', `GET /health HTTP/1.1\r\nHost:\r\n\r\n${next}`, 'refused'],
    ['an absolute target', `GET http://x/smuggled HTTP/1.1\r\nHost: x\r\n\r\n${next}`, 'refused'],
    ['a star for a target', `OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n${next}`, 'refused'],
    ['HTTP/1.0', `GET /health HTTP/1.0\r\nHost: x\r\n\r\n${next}`, 'refused'],
    ['HTTP/2.0', `GET /health HTTP/2.0\r\nHost: x\r\n\r\n${next}`, 'refused'],
    ['a chunk beyond 64 bits', framed(chunked, '10000000000000002\r\n{}\r\n0\r\n\r\n'), 'refused'],
    ['a chunk of g', framed(chunked, 'g\r\n{}\r\n0\r\n\r\n'), 'silent'],
    ['long junk after a chunk', framed(chunked, '2\r\n{}junk\r\n0\r\n\r\n'), 'refused'],
    ['a chunk extension', `${head}${chunked}\r\n2;a=b\r\n{}\r\n0\r\n\r\n`, 'silent'],
    ['a trailer', `${head}${chunked}\r\n${chunk('{}')}0\r\nX-A: b\r\n\r\n`, 'legal'],
    ['a negative length', framed('Content-Length: -2\r\n'), 'refused'],
    ['a length with a sign', framed('Content-Length: +2\r\n'), 'refused'],
    ['two numbers for a length', framed('Content-Length: 2 2\r\n'), 'refused'],
    ['a length in hex', framed('Content-Length: 0x2\r\n'), 'refused'],
    ['a length beyond 64 bits', framed('Content-Length: 18446744073709551618\r\n'), 'refused'],
    ['an empty length', framed('Content-Length:\r\n'), 'refused'],
    ['brackets in the name of a header', framed('[X]: a\r\nContent-Length: 2\r\n'), 'silent when older'],
    ['a header without a name before the length', framed(`: a\r\n${length}`), 'refused'],
    ['a method in lower case', `get /health HTTP/1.1\r\nHost: x\r\n\r\n${next}`, 'refused'],
    ['a method with a sign', `G@T /health HTTP/1.1\r\nHost: x\r\n\r\n${next}`, 'refused'],
    ['a method nobody knows', `FOO /health HTTP/1.1\r\nHost: x\r\n\r\n${next}`, 'refused'],
    ['a method that exists elsewhere', `PROPFIND /health HTTP/1.1\r\nHost: x\r\n\r\n${next}`, 'refused'],
    ['high bytes in the target', `GET /he\xffalth HTTP/1.1\r\nHost: x\r\n\r\n${next}`, 'refused']
  ]
}

/** What both builds of uWebSockets.js frame wrongly before any code of ours is asked (docs/transports.md). */
function misread(next: string): readonly (readonly [name: string, bytes: string])[] {
  const head = `POST /echo HTTP/1.1\r\nHost: x\r\n${json}`
  return [
    ['two junk bytes after a chunk', `${head}Transfer-Encoding: chunked\r\n\r\n2\r\n{}zz0\r\n\r\n${next}`],
    ['a high byte before the coding', `${head}Transfer-Encoding: \xffchunked\r\n\r\n${chunk('{}')}0\r\n\r\n${next}`],
    [
      'a header without a name on a GET',
      `GET /health HTTP/1.1\r\nHost: x\r\n: a\r\nContent-Length: ${next.length}\r\n\r\n${next}`
    ]
  ]
}
