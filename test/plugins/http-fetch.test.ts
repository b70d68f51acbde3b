import t, { type Test } from 'tap'
import { definePlugin } from '../../kernel/index.ts'
import type { Http, Request as HttpRequest, Route } from '../../plugins/http/types.ts'
import { startHouse } from '../harness.ts'

type Handle = (request: HttpRequest<Record<string, string>, unknown, unknown>) => ReturnType<Route['handle']>

/** One route behind a guard that believes what the program around the server says. */
async function serve(t: Test, handle: Handle, extra: Partial<Route> = {}): Promise<Http> {
  const plugin = definePlugin({
    name: 'probe',
    apply(ctx) {
      ctx.contribute('http.guards', {
        name: 'probe',
        scheme: {},
        check: ({ trusted }) => trusted ?? { kind: 'anonymous', id: '' },
        errors: {}
      })
      const route: Route = {
        method: 'POST',
        path: '/probe',
        operationId: 'probe',
        summary: 'For the test',
        guard: 'probe',
        replies: { 200: {} },
        ...extra,
        handle
      }
      ctx.contribute('http.routes', route)
    }
  })
  const { services } = await startHouse(t, [{ plugin }])
  return services('http')
}

function post(body?: BodyOf, init: RequestInit = {}): Request {
  const headers = { 'content-type': 'application/json' }
  return new Request('http://host.test/probe?a=%20b', {
    method: 'POST',
    headers,
    ...(body === undefined ? {} : { body }),
    ...init
  })
}

type BodyOf = string | Uint8Array<ArrayBuffer>

t.test('a Web request goes the same way as one on a socket', async (t) => {
  const http = await serve(
    t,
    (request) => ({
      status: 201,
      headers: { 'x-more': 'yes' },
      body: {
        body: request.body,
        bytes: request.rawBody?.length,
        host: request.header('host'),
        a: request.queryValue('a'),
        path: request.path
      }
    }),
    { body: { type: 'object', required: ['n'] }, rawBody: true }
  )
  const response = await http.fetch(post('{"n":1}'))
  t.equal(response.status, 201)
  t.equal(response.headers.get('content-type'), 'application/json')
  t.equal(response.headers.get('x-more'), 'yes')
  t.ok(response.headers.get('x-request-id'))
  t.strictSame(await response.json(), { body: { n: 1 }, bytes: 7, host: 'host.test', a: ' b', path: '/probe' })
  t.equal((await http.fetch(post('{"m":1}'))).status, 400)
  t.equal((await http.fetch(post())).status, 400, 'no body')
  t.equal((await http.fetch(new Request('http://host.test/nothing'))).status, 404)
  const head = await http.fetch(new Request('http://host.test/health', { method: 'HEAD' }))
  t.match(head, { status: 200, body: null })
})

t.test('a body that is too long is refused, wherever it comes from', async (t) => {
  const http = await serve(t, () => ({ body: {} }), { body: {}, maxBodyBytes: 10 })
  const exact = '"12345678"'
  t.equal((await http.fetch(post(exact))).status, 200)
  t.equal((await http.fetch(post(`${exact} `))).status, 413)
  const endless = new ReadableStream<Uint8Array>({ pull: (controller) => controller.enqueue(new Uint8Array(4)) })
  const request = post(undefined, { body: endless, duplex: 'half' } as RequestInit)
  t.equal((await http.fetch(request)).status, 413)
})

t.test('a guard sees whom the host trusts, and no header says it', async (t) => {
  const http = await serve(t, ({ principal, address }) => ({ body: { id: principal.id, address } }))
  const known = await http.fetch(post(), { principal: { kind: 'host', id: 'user:ada' }, address: '203.0.113.9' })
  t.strictSame(await known.json(), { id: 'user:ada', address: '203.0.113.9' })
  const headers = { trusted: 'user:ada', principal: 'user:ada', 'x-forwarded-for': '203.0.113.9' }
  const unknown = await http.fetch(post(undefined, { headers }))
  t.strictSame(await unknown.json(), { id: '', address: '' })
})

t.test('an answer may be a stream, read at the speed of its reader', async (t) => {
  let made = 0
  const http = await serve(t, () => ({
    events: (async function* () {
      for (; made < 1_000; made += 1) yield { event: 'part', data: { text: 'x'.repeat(10_000), made } }
    })()
  }))
  const response = await http.fetch(post())
  t.equal(response.headers.get('content-type'), 'text/event-stream')
  const reader = (response.body as ReadableStream<Uint8Array>).getReader()
  await reader.read()
  t.ok(made < 1_000, 'the producer waits')
  let size = 0
  for (let step = await reader.read(); !step.done; step = await reader.read()) size += step.value.length
  t.equal(made, 1_000)
  t.ok(size > 10_000_000 - 100_000)
})

t.test('a reader that leaves, and a request that is given up, end the work', async (t) => {
  let reason: unknown
  let ended = 0
  const http = await serve(t, ({ signal }) => {
    signal.addEventListener('abort', () => (reason = signal.reason))
    return {
      events: (async function* () {
        try {
          yield { data: 1 }
          await new Promise((resolve) => signal.addEventListener('abort', resolve))
        } finally {
          ended += 1
        }
      })()
    }
  })
  const response = await http.fetch(post())
  const reader = (response.body as ReadableStream<Uint8Array>).getReader()
  await reader.read()
  await reader.cancel()
  t.match(reason, { code: 'CLIENT_GONE' })

  const left = new AbortController()
  const second = await http.fetch(post(undefined, { signal: left.signal }))
  const text = second.text()
  left.abort(new Error('changed my mind'))
  await t.rejects(text, { message: 'changed my mind' })
  t.equal(ended, 2)

  const gone = AbortSignal.abort(new Error('left before it came'))
  await t.rejects(http.fetch(post(undefined, { signal: gone })), { message: 'left before it came' })
})

t.test('row 107: as a part of another program, health is JSON and nothing tells what is configured', async (t) => {
  const http = (await import('../../plugins/http/index.ts')).default
  const { services } = await startHouse(t, [{ plugin: http, config: { listen: false, embedded: true } }])
  const health = await services('http').dispatch({ method: 'GET', path: '/health' })
  t.match(health, { status: 200, body: { ok: true }, headers: { 'cache-control': 'no-store' } })
  for (const path of ['/config/info', '/health/detailed']) {
    t.equal((await services('http').dispatch({ method: 'GET', path })).status, 404, path)
  }
})
