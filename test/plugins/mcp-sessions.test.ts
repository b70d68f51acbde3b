import { once } from 'node:events'
import { request as httpRequest } from 'node:http'
import { PassThrough } from 'node:stream'
import { type CallToolResult, Client, StreamableHTTPClientTransport } from '@modelcontextprotocol/client'
import t from 'tap'
import { isCoded } from '../../kernel/index.ts'
import type { Face } from '../../plugins/mcp/face.ts'
import { loadSdk } from '../../plugins/mcp/sdk.ts'
import { createServer } from '../../plugins/mcp/server.ts'
import { createSharedState, modernOf } from '../../plugins/mcp/state.ts'
import { watch } from '../../plugins/mcp/watch.ts'
import { eras, startMcp } from '../fixtures/mcp-house.ts'
import { toolOf, toolsPlugin } from '../fixtures/carmy-tools.ts'

type House = Awaited<ReturnType<typeof startMcp>>

const initialize = {
  jsonrpc: '2.0',
  id: 1,
  method: 'initialize',
  params: { protocolVersion: '2025-11-25', capabilities: {}, clientInfo: { name: 'raw', version: '1' } }
}
const ping = { jsonrpc: '2.0', id: 2, method: 'ping' }

/** Begins a session by hand. @returns the headers of its requests */
async function begin({ post }: House, headers: Record<string, string> = {}): Promise<Record<string, string>> {
  const response = await post(initialize, headers)
  await response.text()
  return {
    ...headers,
    'mcp-session-id': response.headers.get('mcp-session-id') ?? '',
    'mcp-protocol-version': '2025-11-25'
  }
}

async function statusOf(answer: Promise<Response>): Promise<number> {
  const response = await answer
  await response.text()
  return response.status
}

/** Sends an initialize with a Host that `fetch` would not let through. */
async function statusWithHost(base: string, host: string): Promise<number | undefined> {
  const headers = { host, 'content-type': 'application/json', accept: 'application/json, text/event-stream' }
  const request = httpRequest(`${base}/mcp`, { method: 'POST', headers })
  request.end(JSON.stringify(initialize))
  const [response] = (await once(request, 'response')) as [import('node:http').IncomingMessage]
  response.resume()
  return response.statusCode
}

for (const transport of ['node', 'uws'] as const) {
  t.test(`case 117, over ${transport}: a foreign Host or Origin is answered 403`, async (t) => {
    const house = await startMcp(t, { transport })
    const { base, post, kernel } = house
    t.equal(await statusWithHost(base, 'evil.example'), 403)
    t.equal(await statusWithHost(base, 'evil.example:80'), 403)
    t.equal(await statusWithHost(base, 'localhost.evil.example'), 403)
    for (const host of ['localhost', 'LOCALHOST:3000', '127.0.0.1:9', '[::1]:3000']) {
      t.equal(await statusWithHost(base, host), 200, host)
    }
    for (const origin of [
      'https://evil.example',
      'null',
      'http://localhost.evil.example',
      'http://evil.example/localhost'
    ]) {
      const refused = await post(initialize, { origin })
      t.equal(refused.status, 403, origin)
      t.match(await refused.json(), { jsonrpc: '2.0', id: null, error: { code: -32000, message: /allowed_origins/ } })
    }
    t.equal(await statusOf(post(initialize, { origin: 'http://localhost:6274' })), 200)
    t.equal(
      await statusOf(fetch(`${base}/mcp`, { headers: { origin: 'https://evil.example' } })),
      403,
      'also the stream'
    )

    await kernel.update('mcp', { allowed_hosts: ['agents.example'], allowed_origins: ['*'] })
    t.equal(await statusWithHost(base, 'agents.example'), 200)
    t.equal(await statusWithHost(base, 'localhost'), 403)
  })

  t.test(`case 116, over ${transport}: discovery tells of it while it is there`, async (t) => {
    const { kernel, base, post } = await startMcp(t, { transport, config: { path: '/agent/mcp' } })
    const discover = async () => {
      const response = await fetch(`${base}/.well-known/agent`)
      return (await response.json()) as { capabilities: string[]; mcp_url?: string }
    }
    t.match(await discover(), { capabilities: ['tools', 'streaming', 'idempotency', 'mcp'], mcp_url: '/agent/mcp' })
    t.equal(await statusOf(post(initialize)), 404)
    await kernel.update('mcp', {})
    t.match(await discover(), { mcp_url: '/mcp' })
    t.equal(await statusOf(post(initialize)), 200)
    await kernel.retire('mcp')
    t.strictSame((await discover()).capabilities, ['tools', 'streaming', 'idempotency'])
    t.notOk('mcp_url' in (await discover()))
    t.equal(await statusOf(fetch(`${base}/mcp`)), 404)
  })
}

t.test('callers are those of carmy', async (t) => {
  const house = await startMcp(t)
  const { connect, post, kernel } = house
  for (const era of eras) {
    const client = await connect({ era, headers: { 'x-as': 'ada', 'x-grant': 'confirm:wipe' } })
    t.strictSame((await client.callTool({ name: 'whoami' })).structuredContent, {
      principal: 'user:ada',
      permissions: ['confirm:wipe']
    })
    t.strictSame((await client.callTool({ name: 'private' })).structuredContent, { ok: true })
    t.strictSame((await client.callTool({ name: 'wipe' })).structuredContent, { ok: true })
  }
  t.equal(await statusOf(post(initialize, { 'x-as': 'nobody-we-know' })), 401)

  await kernel.update('mcp', { require_auth: true })
  const refused = await post(initialize)
  t.equal(refused.status, 401)
  t.equal(refused.headers.get('www-authenticate'), 'Bearer')
  t.match(await refused.json(), { error: { code: -32000, message: /credential/ } })
  t.equal(await statusOf(post(initialize, { 'x-as': 'ada' })), 200)
})

t.test('a session is its owner’s alone, and ends when it is deleted', async (t) => {
  const house = await startMcp(t)
  const { post, base } = house
  const mine = await begin(house, { 'x-as': 'ada' })
  t.equal(await statusOf(post(ping, mine)), 200)
  t.equal(await statusOf(post(ping, { ...mine, 'x-as': 'bob' })), 404)
  t.equal(await statusOf(post(ping, { ...mine, 'x-as': '' })), 404)
  t.equal(await statusOf(fetch(`${base}/mcp`, { method: 'DELETE', headers: { ...mine, 'x-as': 'bob' } })), 404)
  t.equal(await statusOf(post(ping, { ...mine, 'mcp-session-id': 'made-up' })), 404)
  t.equal(await statusOf(post(ping)), 400, 'none at all')
  t.equal(await statusOf(fetch(`${base}/mcp`, { headers: { accept: 'text/event-stream' } })), 400)
  t.equal(await statusOf(fetch(`${base}/mcp`, { method: 'DELETE', headers: mine })), 200)
  t.equal(await statusOf(post(ping, mine)), 404)
})

t.test('what is no message of the protocol is refused in its form', async (t) => {
  const house = await startMcp(t)
  const { post } = house
  const refusal = async (body: unknown, headers?: Record<string, string>) => {
    const response = await post(body, headers)
    return { status: response.status, body: await response.json() }
  }
  t.match(await refusal('{'), { status: 400, body: { id: null, error: { code: -32700 } } })
  t.match(await refusal('7'), { status: 400, body: { error: { code: Number } } })
  t.match(await refusal(initialize, { 'content-type': 'text/plain' }), {
    status: 415,
    body: { error: { code: -32000 } }
  })
  t.match(await refusal(initialize, { accept: 'application/json' }), { status: 406, body: { error: { code: -32000 } } })
  t.match(await refusal(' '.repeat(1_048_577)), { status: 413, body: { error: { code: -32000 } } })
  const mine = await begin(house)
  const call =
    '{"jsonrpc":"2.0","id":3,"method":"tools/call","params":{"name":"count","arguments":{"k":"a","more":9007199254740993}}}'
  t.match(await refusal(call, mine), { status: 400, body: { error: { code: -32700 } } }, 'no number is rounded')
  t.equal(house.world.count('count'), 0)
})

t.test('sessions are bounded: the one idle for longest makes room, an anonymous one first', async (t) => {
  const house = await startMcp(t, { config: { max_sessions: 2 } })
  const { post, world, base } = house
  const ada = await begin(house, { 'x-as': 'ada' })
  const guest = await begin(house)
  t.equal(await statusOf(post(ping, ada)), 200)
  t.equal(await statusOf(post(ping, guest)), 200)
  const bob = await begin(house, { 'x-as': 'bob' })
  t.equal(await statusOf(post(ping, guest)), 404, 'it was used last, but anybody could have it')
  t.equal(await statusOf(post(ping, bob)), 200)
  t.equal(await statusOf(post(ping, ada)), 200)

  // One is at work and one listens: neither makes room.
  const call = { jsonrpc: '2.0', id: 5, method: 'tools/call', params: { name: 'sleep', arguments: { gate: 'room' } } }
  const working = post(call, ada)
  await world.until('sleep room')
  const stream = await fetch(`${base}/mcp`, { headers: { ...bob, accept: 'text/event-stream' } })
  const full = await post(initialize)
  t.equal(full.status, 503)
  t.ok(Number(full.headers.get('retry-after')) > 0)
  await full.text()
  world.open('room')
  t.match(await (await working).text(), /room/)
  await stream.body?.cancel()
  t.equal(await statusOf(post(initialize)), 200)
})

t.test('many that begin in one moment are no more than may be there', async (t) => {
  const house = await startMcp(t, { config: { max_sessions: 2 } })
  const http = house.services('http')
  const ask = (body: object, headers: Record<string, string> = {}) =>
    http.fetch(
      new Request('http://localhost/mcp', {
        method: 'POST',
        headers: { 'content-type': 'application/json', accept: 'application/json, text/event-stream', ...headers },
        body: JSON.stringify(body)
      })
    )
  const begun = await Promise.all(Array.from({ length: 10 }, () => ask(initialize)))
  const ids = begun.map((response) => response.headers.get('mcp-session-id') ?? '')
  const pings = ids.map((id) => ask(ping, { 'mcp-session-id': id, 'mcp-protocol-version': '2025-11-25' }))
  const statuses = (await Promise.all(pings)).map(({ status }) => status)
  t.equal(statuses.filter((status) => status === 200).length, 2, statuses.join())
  t.equal(await statusOf(house.post(ping, await begin(house))), 200)
})

t.test('a session that nobody uses ends', async (t) => {
  const house = await startMcp(t, { config: { session_idle_timeout_ms: 1 } })
  const mine = await begin(house)
  const before = performance.now()
  while (performance.now() < before + 2) await Promise.resolve()
  await begin(house, { 'x-as': 'somebody whose coming sweeps' })
  t.equal(await statusOf(house.post(ping, mine)), 404)
})

t.test('sessions, calls and streams outlive a swap of the plugin', async (t) => {
  const { connect, world, kernel } = await startMcp(t)
  for (const era of eras) {
    let hear = () => {}
    const heard = new Promise<void>((resolve) => (hear = resolve))
    const listChanged = { tools: { autoRefresh: false, debounceMs: 0, onChanged: () => hear() } }
    const client = await connect({ era, options: { listChanged } })
    const running = client.callTool({ name: 'sleep', arguments: { gate: era } })
    await world.until(`sleep ${era}`)
    await kernel.update('mcp', { execution_meta: true, server: `server for ${era}` })
    const after = await client.callTool({ name: 'echo', arguments: { text: 'a' } })
    t.match(after._meta, { 'carmy/execution_id': /^exec_/, 'carmy/status': 'completed' }, 'by the new configuration')
    world.open(era)
    t.strictSame((await running).structuredContent, { gate: era })
    const plugin = toolsPlugin(() => [toolOf({ name: era, run: () => 1 })], `extra-${era}`)
    await kernel.begin({ id: `extra-${era}`, plugin, config: {} })
    await heard
    t.pass(`a stream of ${era} begun before the swap tells what changed after it`)
  }
})

t.test('a stream that outlives the drain of its generation ends, and its session goes on', async (t) => {
  const house = await startMcp(t, { settings: { drain_timeout_ms: 1 } })
  const mine = await begin(house)
  const listen = () => fetch(`${house.base}/mcp`, { headers: { ...mine, accept: 'text/event-stream' } })
  const stream = await listen()
  await house.kernel.update('mcp', { execution_meta: true })
  t.equal(await stream.text(), ':\n\n', 'it ends whole')
  const again = await listen()
  t.equal(again.status, 200)
  await again.body?.cancel()
  t.equal(await statusOf(house.post(ping, mine)), 200)
})

t.test('pages of an origin that may call can speak it', async (t) => {
  const { base, post } = await startMcp(t)
  const origin = 'http://localhost:3000'
  const asked = await fetch(`${base}/mcp`, { method: 'OPTIONS', headers: { origin } })
  const allowed = (asked.headers.get('access-control-allow-headers') ?? '').toLowerCase().split(', ')
  for (const name of ['mcp-session-id', 'mcp-protocol-version', 'mcp-method', 'mcp-name', 'last-event-id']) {
    t.ok(allowed.includes(name), name)
  }
  const begun = await post(initialize, { origin })
  t.match(begun.headers.get('access-control-expose-headers'), /\bmcp-session-id\b/)
  await begun.text()
})

t.test('a retired plugin ends what its clients had begun', async (t) => {
  const { connect, world, kernel } = await startMcp(t, { settings: { drain_timeout_ms: 1 } })
  for (const era of eras) {
    await (await connect({ era })).ping().catch(() => {})
  }
  const client = await connect()
  const running = client.callTool({ name: 'watch' })
  await world.until('watch began')
  await kernel.retire('mcp')
  await world.until('watch aborted')
  t.equal(world.aborted.length, 1)
  // Either it was told so, or its connection had ended before.
  await running.then(
    (result) => t.match(result, { isError: true, _meta: { 'carmy/error': { code: 'CANCELLED' } } }),
    () => t.pass('cut off')
  )
})

t.test('a change that a session slept through is told when it listens again', async (t) => {
  const house = await startMcp(t)
  const mine = await begin(house)
  const plugin = toolsPlugin(() => [toolOf({ name: 'extra', run: () => 1 })], 'extra')
  await house.kernel.begin({ id: 'extra', plugin, config: {} })
  const listen = () => fetch(`${house.base}/mcp`, { headers: { ...mine, accept: 'text/event-stream' } })
  const stream = await listen()
  t.equal((await listen()).status, 409, 'one stream for a session')
  const reader = stream.body?.getReader()
  let text = ''
  while (!text.includes('list_changed')) text += new TextDecoder().decode((await reader?.read())?.value)
  t.match(text, /^:\n\nevent: message\ndata: .*"notifications\/tools\/list_changed"/)
  await reader?.cancel()
})

t.test('a client that leaves', async (t) => {
  const house = await startMcp(t)
  const { base, world, connect } = house
  const call = (tool: string, requestId: string, input: object) => ({
    jsonrpc: '2.0',
    id: 9,
    method: 'tools/call',
    params: { name: tool, arguments: input, _meta: { 'carmy/request_id': requestId } }
  })

  t.test('a session: its call runs on, and the answer waits', async (t) => {
    const mine = await begin(house)
    const controller = new AbortController()
    const leaving = fetch(`${base}/mcp`, {
      method: 'POST',
      headers: { 'content-type': 'application/json', accept: 'application/json, text/event-stream', ...mine },
      body: JSON.stringify(call('sleep', 'left', { gate: 'left' })),
      signal: controller.signal
    })
    await world.until('sleep left')
    controller.abort()
    await t.rejects(leaving)
    world.open('left')
    const client = await connect()
    let again: CallToolResult
    do {
      again = (await client.callTool({
        name: 'sleep',
        arguments: { gate: 'left' },
        _meta: { 'carmy/request_id': 'left' }
      })) as CallToolResult
    } while (codeOf(again) === 'EXECUTION_UNCERTAIN')
    t.strictSame(again.structuredContent, { gate: 'left' })
    t.equal(world.count('sleep'), 1)
  })

  t.test('a request that stands for itself: it is cancelled, and what came of it is not known', async (t) => {
    const controller = new AbortController()
    const client = await connect({ era: 'auto' })
    const leaving = client.callTool(
      { name: 'watch', arguments: {}, _meta: { 'carmy/request_id': 'cut' } },
      { signal: controller.signal }
    )
    await world.until('watch began')
    controller.abort()
    await t.rejects(leaving)
    await world.until('watch aborted')
    t.ok(isCoded(world.aborted.at(-1), 'CLIENT_GONE'))
    const again = await client.callTool({ name: 'watch', arguments: {}, _meta: { 'carmy/request_id': 'cut' } })
    t.equal(codeOf(again as CallToolResult), 'EXECUTION_UNCERTAIN')
  })
})

function codeOf({ _meta }: CallToolResult): unknown {
  return (_meta?.['carmy/error'] as { code?: string } | undefined)?.code
}

t.test('a confirmation is asked of the client only where that is switched on', async (t) => {
  const { base, world, kernel } = await startMcp(t)
  const ask = async (era: (typeof eras)[number], answer: object | undefined) => {
    const asked: unknown[] = []
    const capabilities = answer === undefined ? {} : { elicitation: { form: {} } }
    const client = new Client({ name: 'asking', version: '1' }, { capabilities, versionNegotiation: { mode: era } })
    if (answer !== undefined) {
      client.setRequestHandler('elicitation/create', (request) => {
        asked.push(request.params)
        return answer as never
      })
    }
    await client.connect(new StreamableHTTPClientTransport(new URL(`${base}/mcp`)))
    const result = (await client.callTool({ name: 'wipe' })) as CallToolResult
    await client.close()
    return { asked, code: codeOf(result), content: result.structuredContent }
  }
  const yes = { action: 'accept', content: { confirm: true } }
  for (const era of eras) {
    t.match(await ask(era, yes), { asked: [], code: 'CONFIRMATION_REQUIRED' }, `${era}, switched off`)
  }
  await kernel.update('mcp', { elicit_confirmation: true })
  t.equal(world.count('wipe'), 0)
  for (const era of eras) {
    const runs = world.count('wipe')
    const form = {
      message: /wipe/,
      requestedSchema: { required: ['confirm'], properties: { confirm: { type: 'boolean' } } }
    }
    t.match(await ask(era, yes), { asked: [form], code: undefined, content: { ok: true } }, era)
    t.equal(world.count('wipe'), runs + 1)
    for (const no of [{ action: 'decline' }, { action: 'cancel' }, { action: 'accept', content: { confirm: false } }]) {
      const { asked, code } = await ask(era, no)
      t.equal(asked.length, 1, 'asked once')
      t.equal(code, 'CONFIRMATION_REQUIRED', `${era} ${JSON.stringify(no)}`)
    }
    t.match(await ask(era, undefined), { code: 'CONFIRMATION_REQUIRED' }, `${era}, a client that cannot ask`)
    t.equal(world.count('wipe'), runs + 1)
  }
})

t.test('a client on a pair of streams is told to have left once, whoever ends the connection', async (t) => {
  const { kernel, services } = await startMcp(t)
  const serve = async () => {
    const [input, output] = [new PassThrough(), new PassThrough()]
    let closed = 0
    await services('mcp').serveStdio({ input, output, onClosed: () => (closed += 1) })
    input.write(`${JSON.stringify(initialize)}\n`)
    const [line] = (await once(output, 'data')) as [Buffer]
    t.match(JSON.parse(line.toString()), { id: 1, result: { protocolVersion: '2025-11-25' } })
    return { input, output, closed: () => closed }
  }
  const leaving = await serve()
  const staying = await serve()

  leaving.input.end()
  while (leaving.closed() === 0) await new Promise(setImmediate)
  t.equal(staying.closed(), 0)
  await kernel.retire('mcp')
  while (staying.closed() === 0) await new Promise(setImmediate)
  staying.input.destroy()
  await once(staying.input, 'close')

  t.equal(leaving.closed(), 1)
  t.equal(staying.closed(), 1)
})

t.test('the end of a stream is told once, however it comes', async (t) => {
  const begin = () => {
    let source: ReadableStreamDefaultController<Uint8Array> | undefined
    const stream = new ReadableStream<Uint8Array>({ start: (controller) => void (source = controller) })
    let ends = 0
    const reader = watch(stream, () => (ends += 1)).getReader()
    return { source: source as ReadableStreamDefaultController<Uint8Array>, reader, ends: () => ends }
  }
  const comment = Buffer.from(':\n\n')

  const whole = begin()
  t.same(Buffer.from((await whole.reader.read()).value ?? []), comment)
  whole.source.enqueue(Uint8Array.of(1))
  t.strictSame([...((await whole.reader.read()).value ?? [])], [1])
  t.equal(whole.ends(), 0)
  whole.source.close()
  t.equal((await whole.reader.read()).done, true)
  t.equal(whole.ends(), 1)

  const broken = begin()
  await broken.reader.read()
  broken.source.error(new Error('it broke off'))
  await t.rejects(broken.reader.read(), { message: 'it broke off' })
  t.equal(broken.ends(), 1)

  const left = begin()
  await left.reader.read()
  await left.reader.cancel()
  t.equal(left.ends(), 1)
})

t.test('requests that stand for themselves are answered by the newest generation alone', async (t) => {
  const sdk = await loadSdk()
  const state = createSharedState()
  const serveAs = (name: string): void => {
    const face = { server: { name, version: '1' }, list: () => ({ tools: [] }) } as unknown as Face
    state.newServer = () =>
      createServer(
        sdk,
        () => face,
        () => ({ caller: { principal: undefined }, canElicit: false, endsWithClient: true })
      )
  }
  const meta = {
    'io.modelcontextprotocol/protocolVersion': '2026-07-28',
    'io.modelcontextprotocol/clientInfo': { name: 'tests', version: '1' },
    'io.modelcontextprotocol/clientCapabilities': {}
  }
  const discover = async (): Promise<string> => {
    const body = { jsonrpc: '2.0', id: 1, method: 'server/discover', params: { _meta: meta } }
    const headers = {
      'content-type': 'application/json',
      accept: 'application/json, text/event-stream',
      'mcp-protocol-version': '2026-07-28',
      'mcp-method': 'server/discover'
    }
    const request = new Request('http://localhost/mcp', { method: 'POST', headers, body: JSON.stringify(body) })
    return (await modernOf(state, sdk).fetch(request)).text()
  }

  serveAs('the first')
  t.match(await discover(), '"name":"the first"')
  const handler = state.modern
  serveAs('the second')
  t.match(await discover(), '"name":"the second"')
  t.equal(state.modern, handler, 'the handler stays, and with it the streams that it holds')
})
