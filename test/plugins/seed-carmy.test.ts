import { createHash } from 'node:crypto'
import t from 'tap'
import { CodedError } from '../../kernel/index.ts'
import carmy from '../../plugins/carmy/index.ts'
import http from '../../plugins/http/index.ts'
import tools from '../../plugins/tools/index.ts'
import type { ErrorCategory } from '../../plugins/tools/types.ts'
import { toolOf, toolsPlugin, trustingGuard, World } from '../fixtures/carmy-tools.ts'
import { askRaw, RawClient } from '../fixtures/raw-client.ts'
import { startHouse } from '../harness.ts'

type T = Parameters<typeof startHouse>[0]

/** The page of carmy's HTTP adapter, word for word; an ellipsis is text of any kind. */
const page = {
  discovery: `{
  "protocol": "carmy/1",
  "server": "shop",
  "capabilities": ["tools", "streaming", "idempotency"],
  "tools_url": "/agent/tools",
  "tools_version": "3762507c…",
  "execute_url": "/agent/execute"
}`,
  tools: `{
  "tools": [
    {
      "name": "create_order",
      "description": "Place an order",
      "input_schema": { "type": "object", "properties": { "sku": { "type": "string" } }, "required": ["sku"] },
      "output_schema": { "type": "object", "properties": { "order_id": { "type": "integer" } } },
      "effect": "write",
      "idempotent": false,
      "parallel_safe": true,
      "confirmation": "none"
    }
  ]
}`,
  request: `{ "tool": "create_order", "arguments": { "sku": "KB-01" }, "request_id": "order-7f3" }`,
  answer: `{
  "execution_id": "exec_…",
  "status": "completed",
  "data": { "order_id": 1 },
  "_agent": { "cacheable": false, "next_actions": [] }
}`,
  statuses: [
    ['validation', 400],
    ['conflict', 409],
    ['permission', 403],
    ['internal', 500],
    ['not_found', 404],
    ['capacity', 503],
    ['cancelled', 408],
    ['timeout', 504]
  ] as const
}

/** The shop of the page, on a real socket. @param more tools beside its one */
async function startShop(t: T, transport: string, more: Parameters<typeof toolsPlugin>[0] = () => []) {
  let orders = 0
  const createOrder = toolOf<{ sku: string }, { order_id: number }>({
    name: 'create_order',
    description: 'Place an order',
    input: { type: 'object', properties: { sku: { type: 'string' } }, required: ['sku'] },
    output: { type: 'object', properties: { order_id: { type: 'integer' } } },
    effect: 'write',
    run() {
      orders += 1
      return { order_id: orders }
    }
  })
  const house = await startHouse(t, [
    { plugin: http, config: { port: 0, transport } },
    { plugin: tools },
    { plugin: trustingGuard },
    { plugin: toolsPlugin(() => [createOrder, ...more()]) },
    { plugin: carmy, config: { server: 'shop' } }
  ])
  const port = house.services('http').address?.port ?? 0
  const ask = async (method: string, path: string, headers: readonly string[] = [], body = '') => {
    const lines = [`${method} ${path} HTTP/1.1`, 'Host: localhost', ...headers]
    if (body !== '') lines.push('Content-Type: application/json', `Content-Length: ${Buffer.byteLength(body)}`)
    const bytes = Buffer.from(`${lines.join('\r\n')}\r\n\r\n${body}`, 'latin1')
    const [answer] = await askRaw(port, bytes, 1, [method === 'HEAD'])
    if (answer === undefined) throw new Error(`no answer to ${method} ${path}`)
    return answer
  }
  const execute = (body: string, headers: readonly string[] = []) => ask('POST', '/agent/execute', headers, body)
  return { ...house, port, ask, execute, orders: () => orders }
}

const sha256 = (text: string): string => createHash('sha256').update(text).digest('hex')

for (const transport of ['node', 'uws']) {
  t.test(`over ${transport}, the page of the HTTP adapter answers as it is printed`, async (t) => {
    const { ask, execute, orders } = await startShop(t, transport)

    t.test('GET /.well-known/agent and GET /agent/tools', async (t) => {
      const discovery = await ask('GET', '/.well-known/agent')
      const catalog = await ask('GET', '/agent/tools')
      for (const { status, headers, body } of [discovery, catalog]) {
        t.equal(status, 200)
        t.match(headers, {
          'content-type': 'application/json',
          'cache-control': 'private, max-age=60',
          etag: `"${sha256(body)}"`
        })
      }
      t.strictSame(JSON.parse(catalog.body), JSON.parse(page.tools))
      const printed = JSON.parse(page.discovery) as { tools_version: string }
      t.strictSame(JSON.parse(discovery.body), { ...printed, tools_version: sha256(catalog.body) })
      t.match(printed.tools_version, /^[0-9a-f]{8}…$/, 'which is printed as the beginning of a hash')
    })

    t.test('POST /agent/execute, and again with the same request_id', async (t) => {
      const first = await execute(page.request)
      t.equal(first.status, 200)
      t.match(first.headers, { 'content-type': 'application/json', 'cache-control': 'no-store' })
      const answer = JSON.parse(first.body) as { execution_id: string }
      t.match(answer.execution_id, /^exec_./)
      const printed = JSON.parse(page.answer) as object
      t.strictSame(answer, { ...printed, execution_id: answer.execution_id })
      t.strictSame(Object.keys(answer), Object.keys(printed), 'in this order')

      const again = await execute(page.request)
      t.equal(again.body, first.body)
      t.equal(orders(), 1)
    })

    t.test('what the page says of requests', async (t) => {
      const bare = await execute('{"tool":"create_order"}')
      t.equal(bare.status, 400, 'arguments are {}, which has no sku')
      t.match(JSON.parse(bare.body), { status: 'failed', error: { code: 'INVALID_ARGUMENTS' } })
      for (const name of ['context', 'permissions']) {
        const { status, headers, body } = await execute(page.request.replace('"tool"', `"${name}": [], "tool"`))
        t.equal(status, 400, name)
        t.match(JSON.parse(body), { error: { code: 'INVALID_REQUEST', details: { reason: new RegExp(name) } } })
        t.equal(headers['cache-control'], 'no-store')
      }
      const malformed = await execute(page.request.slice(1))
      t.equal(malformed.status, 400)
      t.match(JSON.parse(malformed.body), { error: { code: 'INVALID_REQUEST', details: { reason: /./ } } })
      const large = await execute(page.request.replace('KB-01', 'x'.repeat(1_048_576)))
      t.equal(large.status, 413)
      t.match(JSON.parse(large.body), { error: { code: 'PAYLOAD_TOO_LARGE' } })
      t.equal(orders(), 1)
    })

    t.test('If-None-Match, in all its forms', async (t) => {
      for (const path of ['/.well-known/agent', '/agent/tools']) {
        const full = await ask('GET', path)
        const tag = full.headers['etag'] ?? ''
        const known: readonly (readonly string[])[] = [
          [tag],
          [`W/${tag}`],
          ['*'],
          [` ${tag}\t`],
          [`"x", ${tag}`],
          [`"x",W/"y" ,\t${tag},"z"`],
          [`, ,${tag},`],
          [`"a,b", ${tag}`],
          ['"x"', tag],
          [`W/"x", "y"`, '"z"', `W/${tag}`]
        ]
        const unknown: readonly (readonly string[])[] = [
          [],
          [''],
          ['"stale"'],
          ['W/"stale"', '"another"'],
          [tag.slice(1, -1)],
          [tag.slice(0, -1)],
          [`w/${tag}`],
          [`W/ ${tag}`],
          [tag.toUpperCase()],
          [`"${tag}"`],
          ['W/'],
          ['**'],
          [`"\xe9", ${tag}`],
          [`"x" ${tag}`]
        ]
        for (const [lines, status] of [
          ...known.map((lines) => [lines, 304] as const),
          ...unknown.map((lines) => [lines, 200] as const)
        ]) {
          for (const method of ['GET', 'HEAD']) {
            const what = `${method} ${path}: ${lines.join(' | ')}`
            const headers = lines.map((value) => `If-None-Match: ${value}`)
            const answer = await ask(method, path, headers)
            t.equal(answer.status, status, what)
            t.equal(answer.body, status === 200 && method === 'GET' ? full.body : '')
            t.match(answer.headers, {
              etag: tag,
              'cache-control': 'private, max-age=60',
              'content-type': 'application/json'
            })
            if (status === 200) t.equal(answer.headers['content-length'], full.headers['content-length'])
          }
        }
      }
    })

    t.test('a connection carries on behind an answer without a body', async (t) => {
      const { port } = await startShop(t, transport)
      const requests = ['GET', 'HEAD', 'GET'].map(
        (method, at) => `${method} /agent/tools HTTP/1.1\r\nHost: x\r\n${at < 2 ? 'If-None-Match: *\r\n' : ''}\r\n`
      )
      const answers = await askRaw(port, requests.join(''), 3, [false, true, false])
      t.strictSame(
        answers.map(({ status, body }) => [status, body.slice(0, 9)]),
        [
          [304, ''],
          [304, ''],
          [200, '{"tools":']
        ]
      )
    })
  })

  t.test(`over ${transport}, the statuses and the stream of the page`, async (t) => {
    const world = new World()
    const { execute, port } = await startShop(t, transport, () => [
      toolOf<{ category: ErrorCategory }, never>({
        name: 'fail',
        run({ category }) {
          throw new CodedError('ON_PURPOSE', 'as asked', { detail: { category } })
        }
      }),
      toolOf({
        name: 'wait',
        run: (_input, { signal }) =>
          new Promise((resolve) => {
            world.tell('it waits')
            signal.addEventListener('abort', () => {
              world.tell('it is cancelled')
              resolve({})
            })
          })
      })
    ])

    for (const [category, status] of page.statuses) {
      const answer = await execute(`{"tool":"fail","arguments":{"category":"${category}"}}`)
      t.equal(answer.status, status, category)
      const { error, ...rest } = JSON.parse(answer.body) as { error: object }
      t.match(error, { code: 'ON_PURPOSE', category })
      t.notOk('data' in rest, 'failures carry error instead of data')
      t.match(rest, { status: /^(?:failed|cancelled|timed_out)$/, _agent: { cacheable: false } })
      t.equal(answer.headers['cache-control'], 'no-store')
    }

    const streamed = await execute(page.request, ['Accept: text/event-stream', 'Connection: close'])
    t.match(streamed.headers, { 'content-type': 'text/event-stream' })
    t.match(streamed.body, /event: execution\.completed\ndata: .*"data":\{"order_id":1\}/)

    const client = await RawClient.connect(port)
    const body = '{"tool":"wait"}'
    client.write(
      `POST /agent/execute HTTP/1.1\r\nHost: x\r\nAccept: text/event-stream\r\nContent-Type: application/json\r\nContent-Length: ${body.length}\r\n\r\n${body}`
    )
    await world.until('it waits')
    client.reset()
    await world.until('it is cancelled')
  })
}
