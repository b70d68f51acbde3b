import { createHash } from 'node:crypto'
import { request as httpRequest } from 'node:http'
import t from 'tap'
import { CodedError, definePlugin } from '../../kernel/index.ts'
import carmy from '../../plugins/carmy/index.ts'
import http from '../../plugins/http/index.ts'
import type { ExecutionResponse, Tool } from '../../plugins/tools/types.ts'
import tools from '../../plugins/tools/index.ts'
import { fixtureTools, toolOf, toolsPlugin, trustingGuard, World } from '../fixtures/carmy-tools.ts'
import { type HouseOptions, startHouse } from '../harness.ts'

type T = Parameters<typeof startHouse>[0]

interface Answer {
  readonly status: number
  readonly headers: Headers
  readonly text: string
  /** The text as JSON, where it is that. */
  readonly body: ExecutionResponse & Record<string, unknown>
}

interface Ask {
  readonly method?: string
  readonly headers?: Record<string, string>
  readonly body?: string
}

interface Options extends HouseOptions {
  readonly transport?: string
  readonly http?: never
  readonly httpConfig?: object
  readonly config?: object
  readonly toolsConfig?: object
  readonly plugins?: Parameters<typeof startHouse>[1]
}

/** A house with carmy behind a real socket, the fixture's tools, and short ways to call it. */
async function startCarmy(
  t: T,
  { transport = 'node', httpConfig, config, toolsConfig, plugins, ...options }: Options = {}
) {
  const world = new World()
  const house = await startHouse(
    t,
    [
      { plugin: http, config: { port: 0, transport, ...httpConfig } },
      { plugin: tools, config: toolsConfig ?? {} },
      { plugin: trustingGuard },
      { plugin: toolsPlugin(() => fixtureTools(world)) },
      { plugin: carmy, config: { server: 'fix', ...config } },
      ...(plugins ?? [])
    ],
    options
  )
  const { address } = house.services('http')
  const base = `http://127.0.0.1:${address?.port}`

  async function ask(path: string, { method = 'GET', headers = {}, body }: Ask = {}): Promise<Answer> {
    const response = await fetch(base + path, { method, headers, ...(body === undefined ? {} : { body }) })
    const text = await response.text()
    const isJson = response.headers.get('content-type')?.includes('json') === true && text !== ''
    return { status: response.status, headers: response.headers, text, body: isJson ? JSON.parse(text) : {} }
  }
  const post = (body: string, headers: Record<string, string> = {}) =>
    ask('/agent/execute', { method: 'POST', headers: { 'content-type': 'application/json', ...headers }, body })
  const run = (tool: string, input?: unknown, requestId?: string | null, headers?: Record<string, string>) =>
    post(JSON.stringify({ tool, arguments: input, request_id: requestId }), headers)
  const stream = async (tool: string, input?: unknown, requestId?: string, headers?: Record<string, string>) => {
    const answer = await run(tool, input, requestId, { ...sse, ...headers })
    return { ...answer, events: parseEvents(answer.text) }
  }
  return { ...house, world, base, ask, post, run, stream }
}

interface Event {
  readonly event: string
  readonly data: Record<string, unknown> & { readonly error?: { readonly code: string } }
}

/** Frames of the one form carmy sends; comments are left out. @throws for any other form */
function parseEvents(text: string): Event[] {
  return text
    .split('\n\n')
    .filter((frame) => frame !== '' && !frame.startsWith(':'))
    .map((frame) => {
      const [, event, data] = /^event: ([a-z.]+)\ndata: ([^\r\n]+)$/.exec(frame) ?? []
      if (event === undefined || data === undefined) throw new Error(`not a frame: ${JSON.stringify(frame)}`)
      return { event, data: JSON.parse(data) as Event['data'] }
    })
}

const names = (events: readonly Event[]): string[] => events.map(({ event }) => event)

function sha256(text: string): string {
  return createHash('sha256').update(text).digest('hex')
}

const sse = { accept: 'text/event-stream' }
const grant = { 'x-grant': 'confirm:wipe' }

for (const transport of ['node', 'uws']) {
  t.test(`over ${transport}`, async (t) => {
    const { ask, post, run, stream, world, base, kernel } = await startCarmy(t, { transport })

    t.test('the two documents', async (t) => {
      const discovery = await ask('/.well-known/agent')
      const catalog = await ask('/agent/tools')
      const etag = catalog.headers.get('etag') ?? ''

      t.test('case 1: discovery says what is spoken and where', async (t) => {
        t.equal(discovery.status, 200)
        t.strictSame(discovery.body, {
          capabilities: ['tools', 'streaming', 'idempotency'],
          execute_url: '/agent/execute',
          protocol: 'carmy/1',
          server: 'fix',
          tools_url: '/agent/tools',
          tools_version: etag.slice(1, -1)
        })
      })
      t.test('case 2: its headers let it be kept for a minute', async (t) => {
        t.match(discovery.headers.get('etag'), /^"[0-9a-f]{64}"$/)
        t.equal(discovery.headers.get('cache-control'), 'private, max-age=60')
        t.equal(discovery.headers.get('content-type'), 'application/json')
      })
      t.test('case 3: the catalog has exactly eight members for each tool', async (t) => {
        t.equal(catalog.status, 200)
        t.equal(catalog.headers.get('cache-control'), 'private, max-age=60')
        const members = 'confirmation,description,effect,idempotent,input_schema,name,output_schema,parallel_safe'
        for (const tool of catalog.body['tools'] as object[]) t.equal(Object.keys(tool).join(), members)
      })
      t.test('cases 4 to 6: the tag is the hash of the bytes, the version is the tag, and both stay', async (t) => {
        t.equal(etag, `"${sha256(catalog.text)}"`)
        t.equal(discovery.headers.get('etag'), `"${sha256(discovery.text)}"`)
        t.equal(discovery.body['tools_version'], etag.slice(1, -1))
        const again = await ask('/agent/tools')
        t.equal(again.text, catalog.text)
        t.equal(again.headers.get('etag'), etag)
      })
      t.test('case 7: tools come in the order of their names', async (t) => {
        const order = (catalog.body['tools'] as { name: string }[]).map(({ name }) => name)
        t.strictSame(order, [...order].sort())
      })

      const unchanged = (tag: string): readonly string[] => [
        tag,
        `W/${tag}`,
        `W/W/${tag}`,
        '*',
        `"x", ${tag}`,
        ` "x" ,W/${tag} `
      ]
      const changed = (tag: string): readonly string[] => [
        tag.slice(1, -1),
        '"stale"',
        tag.toUpperCase(),
        `${tag}x`,
        `"x" ${tag}`,
        'W/',
        ''
      ]
      for (const [path, document] of [
        ['/agent/tools', catalog],
        ['/.well-known/agent', discovery]
      ] as const) {
        t.test(`cases 8 to 14, ${path}: is sent again only to those who do not have it`, async (t) => {
          const tag = document.headers.get('etag') ?? ''
          for (const header of unchanged(tag)) {
            const { status, text, headers } = await ask(path, { headers: { 'if-none-match': header } })
            t.equal(status, 304, header)
            t.equal(text, '')
            t.equal(headers.get('etag'), tag)
            t.equal(headers.get('cache-control'), 'private, max-age=60')
            t.equal(headers.get('content-type'), 'application/json')
          }
          for (const header of changed(tag)) {
            const { status, text } = await ask(path, { headers: { 'if-none-match': header } })
            t.equal(status, 200, header)
            t.equal(text, document.text)
          }
          const head = await ask(path, { method: 'HEAD' })
          t.equal(head.status, 200)
          t.equal(head.text, '')
          t.equal(head.headers.get('etag'), tag)
          t.equal(Number(head.headers.get('content-length')), Buffer.byteLength(document.text))
        })
      }

      t.test('case 15: both change with the tools, in the same step, and come back with them', async (t) => {
        const extra = toolsPlugin(() => [toolOf({ name: 'extra', run: () => 1 })], 'extra')
        await kernel.begin({ id: 'extra', plugin: extra, config: {} })
        const [tools, agent] = [await ask('/agent/tools'), await ask('/.well-known/agent')]
        t.not(tools.headers.get('etag'), etag)
        t.not(agent.headers.get('etag'), discovery.headers.get('etag'))
        t.equal(agent.body['tools_version'], tools.headers.get('etag')?.slice(1, -1))
        t.match(tools.text, /"name":"extra"/)

        await kernel.retire('extra')
        t.equal((await ask('/agent/tools')).text, catalog.text)
        t.equal((await ask('/.well-known/agent')).text, discovery.text)
      })
    })

    t.test('cases 17 to 20: an execution is answered in the wire form', async (t) => {
      const first = await run('echo', { text: 'a' })
      t.equal(first.status, 200)
      t.equal(first.headers.get('cache-control'), 'no-store')
      t.equal(first.headers.get('content-type'), 'application/json')
      const id = first.body.execution_id
      t.match(id, /^exec_[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/)
      t.equal(id.length, 41)
      t.equal(
        first.text,
        `{"execution_id":"${id}","status":"completed","data":{"text":"a"},"_agent":{"cacheable":true,"next_actions":[]}}`
      )
      t.not((await run('echo', { text: 'a' })).body.execution_id, id)
    })

    t.test('cases 21 to 28: arguments are what the schema of the tool says', async (t) => {
      t.match(
        await run('peek'),
        { status: 200, body: { data: { ok: true }, _agent: { cacheable: false } } },
        'cases 21, 22'
      )
      t.match(await run('count', { k: '23' }), { status: 200, body: { _agent: { cacheable: false } } }, 'case 23')
      t.match(await run('scalar', 'x'), { status: 200, body: { data: 1 } }, 'case 24')
      t.match(await run('peek', null), { status: 400, body: { error: { code: 'INVALID_ARGUMENTS' } } }, 'case 25')
      const unknown = await run('nope')
      t.match(
        unknown,
        { status: 404, body: { status: 'failed', error: { code: 'TOOL_NOT_FOUND', category: 'not_found' } } },
        'case 26'
      )
      t.match(unknown.body.execution_id, /^exec_/)
      for (const input of [{ text: 5 }, { text: 'a', z: 1 }, [], 'x', {}]) {
        const { status, headers, body } = await run('echo', input)
        t.match(
          { status, body },
          { status: 400, body: { status: 'failed', error: { code: 'INVALID_ARGUMENTS' } } },
          'cases 27, 28'
        )
        t.notOk('data' in body)
        t.equal(headers.get('cache-control'), 'no-store')
      }
    })

    t.test('cases 29 to 38: what is no request is refused before anything is executed', async (t) => {
      const malformed: readonly [string, string, RegExp][] = [
        ['29', '{"tool":"echo","arguments":{"text":"a"},"context":{"admin":true}}', /context/],
        ['30', '{"tool":"wipe","permissions":["confirm:wipe"]}', /permissions/],
        ['31', '{', /JSON/],
        ['32', '', /empty/],
        ['33', '[]', /object/],
        ['33', 'null', /object/],
        ['33', '["echo",{"text":"a"}]', /object/],
        ['34', '{}', /tool/],
        ['35', '{"tool":7}', /tool/],
        ['36', '{"tool":"peek","request_id":7}', /request_id/],
        ['a number JSON.parse would change', '{"tool":"echo","arguments":{"n":9007199254740993}}', /9007199254740993/],
        ['a number that no double holds', '{"tool":"echo","arguments":{"n":1e400}}', /1e400/],
        ['a body that is not UTF-8', '\ud800', /./],
        [
          'a body nested without end',
          `{"tool":"echo","arguments":${'['.repeat(10_000)}${']'.repeat(10_000)}}`,
          /nested/
        ]
      ]
      for (const [name, body, reason] of malformed) {
        const answer = await post(body)
        t.equal(answer.status, 400, `case ${name}`)
        t.strictSame(Object.keys(answer.body), ['error'])
        t.match(answer.body.error, {
          code: 'INVALID_REQUEST',
          category: 'validation',
          recoverable: true,
          retryable: false,
          details: { reason }
        })
        t.equal(answer.headers.get('cache-control'), 'no-store')
        t.equal(answer.headers.get('content-type'), 'application/json')
      }
      const sound = '{"tool":"peek"}'
      for (const type of ['text/plain', 'application/x-www-form-urlencoded', 'application/jsonx']) {
        t.match(
          await post(sound, { 'content-type': type }),
          { status: 400, body: { error: { code: 'INVALID_REQUEST' } } },
          `case 37: ${type}`
        )
      }
      for (const type of ['application/json; charset=utf-8', 'application/vnd.fix+json']) {
        t.match(await post(sound, { 'content-type': type }), { status: 200 }, `case 37: ${type}`)
      }
      t.match(
        await post('{"tool":"wipe","tool":"peek"}'),
        { status: 200 },
        'of a member given twice the last one counts'
      )
      t.equal(world.count('wipe'), 0)
    })

    t.test('cases 39 and 40: a body has at most 1 MiB', async (t) => {
      const bodyOf = (bytes: number): string => {
        const frame = '{"tool":"echo","arguments":{"text":""}}'
        return frame.replace('""', `"${'a'.repeat(bytes - frame.length)}"`)
      }
      for (const bytes of [2_097_152, 1_048_577]) {
        const { status, body } = await post(bodyOf(bytes))
        t.equal(status, 413)
        t.strictSame(Object.keys(body), ['error'])
        t.match(body.error, {
          code: 'PAYLOAD_TOO_LARGE',
          category: 'capacity',
          recoverable: true,
          retryable: false,
          details: { reason: /1048576/ }
        })
      }
      t.equal((await post(bodyOf(1_048_576))).status, 200)
    })

    t.test('cases 41 to 46: a request id has 1 to 256 bytes, or is none', async (t) => {
      t.match(await run('count', { k: '41' }, null), { body: { data: { n: 1 } } }, 'case 41')
      t.match(await run('count', { k: '41' }, null), { body: { data: { n: 2 } } }, 'case 41')
      t.match(await run('peek', {}, ''), { status: 400, body: { error: { code: 'INVALID_ID' } } }, 'case 42')
      t.match(await run('peek', {}, 'x'.repeat(256)), { status: 200 }, 'case 43')
      t.match(
        await run('peek', {}, 'x'.repeat(257)),
        { status: 400, body: { error: { code: 'INVALID_ID' } } },
        'case 44'
      )
      t.match(
        await run('peek', {}, 'é'.repeat(129)),
        { status: 400, body: { error: { code: 'INVALID_ID' } } },
        'case 45'
      )
      t.match(await run('echo', { text: 5 }, 'x'.repeat(257)), { body: { error: { code: 'INVALID_ID' } } }, 'case 46')
    })

    t.test('cases 47 to 52: a call that comes again is answered again, not run again', async (t) => {
      const first = await run('count', { k: '47', more: 1 }, '47')
      const again = await run('count', { k: '47', more: 1 }, '47')
      t.match(first, { status: 200, body: { data: { n: 1 } } })
      t.equal(again.text, first.text, 'case 47')
      t.equal(again.status, first.status)
      t.equal(
        (await post('{"request_id":"47","arguments":{"more":1,"k":"47"},"tool":"count"}')).text,
        first.text,
        'case 48'
      )
      const conflict = { status: 409, body: { error: { code: 'IDEMPOTENCY_CONFLICT', category: 'conflict' } } }
      t.match(await run('count', { k: 'other', more: 1 }, '47'), conflict, 'case 49')
      t.match(await run('echo', { text: 'a' }, '47'), conflict, 'case 50')
      t.equal((await run('count', { k: '47', more: 1 }, '47')).text, first.text, 'case 51')
      t.match(
        await run('count', { k: '47', more: 1 }, '47', { 'x-as': 'bob' }),
        { status: 200, body: { data: { n: 2 } } },
        'case 52'
      )
    })

    t.test('cases 53 to 55: a call in flight is not run beside itself', async (t) => {
      const first = run('sleep', { gate: '53' }, '53')
      await world.until('sleep 53')
      t.match(
        await run('sleep', { gate: '53' }, '53'),
        { status: 409, body: { error: { code: 'EXECUTION_UNCERTAIN' } } },
        'case 53'
      )
      t.match(
        await run('sleep', { gate: '54' }, '53'),
        { status: 409, body: { error: { code: 'IDEMPOTENCY_CONFLICT' } } },
        'case 54'
      )
      world.open('53')
      const { status, text } = await first
      t.equal(status, 200)
      t.equal((await run('sleep', { gate: '53' }, '53')).text, text, 'case 55')
    })

    t.test('cases 56 to 60: refusals use no id up, failures do', async (t) => {
      t.match(await run('echo', { text: 5 }, 'b'), { status: 400 }, 'case 56')
      t.match(await run('echo', { text: 'a' }, 'b'), { status: 200 }, 'case 56')
      t.match(await run('wipe', {}, 'c'), { status: 403 }, 'case 57')
      t.match(await run('wipe', {}, 'c', grant), { status: 200 }, 'case 57')
      t.match(await run('wipe', {}, 'c'), { status: 403 }, 'case 58')
      for (const [name, tool, input, status] of [
        ['case 59', 'fail', { category: 'conflict' }, 409],
        ['case 60', 'boom', {}, 500]
      ] as const) {
        const runs = world.count(tool)
        const first = await run(tool, input, name)
        const again = await run(tool, input, name)
        t.equal(first.status, status, name)
        t.equal(again.status, status)
        t.equal(again.text, first.text)
        t.equal(world.count(tool), runs + 1)
        if (tool === 'boom') t.match(again.body.error, { code: 'TOOL_PANIC' }, name)
      }
    })

    t.test('ruling R8: a retryable failure leaves the id free for the retry it advises', async (t) => {
      const runs = world.count('fail')
      const failing = { category: 'capacity', retryable: true }
      t.match(await run('fail', failing, 'r8'), { status: 503 })
      t.match(await run('fail', failing, 'r8'), { status: 503 })
      t.equal(world.count('fail'), runs + 2)
      t.match(await run('peek', {}, 'r8'), { status: 200 })
    })

    t.test('cases 64 to 66: a call ends at its deadline, and its tool is told', async (t) => {
      const runs = world.count('brief')
      const first = await run('brief', {}, 'f')
      t.match(first, {
        status: 504,
        body: { status: 'timed_out', error: { code: 'TIMEOUT', category: 'timeout' }, _agent: { cacheable: false } }
      })
      await world.until('brief aborted')
      const again = await run('brief', {}, 'f')
      t.equal(again.status, 504)
      t.equal(again.text, first.text)
      t.equal(world.count('brief'), runs + 1)
    })

    t.test('case 67: a client that leaves ends the work, and its id stays uncertain', async (t) => {
      const request = httpRequest(`${base}/agent/execute`, {
        method: 'POST',
        headers: { 'content-type': 'application/json' }
      })
      request.on('error', () => {}) // it is about to be cut
      request.end('{"tool":"watch","request_id":"g"}')
      await world.until('watch began')
      request.destroy()
      await world.until('watch aborted')
      t.match(world.aborted.at(-1), { code: 'CLIENT_GONE' })
      t.match(await run('watch', {}, 'g'), { status: 409, body: { error: { code: 'EXECUTION_UNCERTAIN' } } })
    })

    t.test('cases 69 to 74: only the trusted context opens what needs a confirmation', async (t) => {
      const refused = await run('wipe')
      t.match(
        refused,
        {
          status: 403,
          body: {
            status: 'failed',
            error: { code: 'CONFIRMATION_REQUIRED', category: 'permission', recoverable: false, retryable: false },
            _agent: { next_actions: [{ tool: 'wipe', reason: String }] }
          }
        },
        'cases 69, 83'
      )
      t.match(await run('wipe', {}, null, grant), { status: 200 }, 'case 70')
      t.match(await run('wipe', {}, null, { 'x-grant': 'confirm:pay' }), { status: 403 }, 'case 71')
      t.match(await run('pay'), { status: 403 }, 'case 72')
      t.match(await run('pay', {}, null, { 'x-grant': 'a,confirm:pay' }), { status: 200 }, 'case 72')
      t.match(await run('wipe', { nonsense: 1 }), { status: 403 }, 'case 73')
      const { body } = await run('whoami', { permissions: ['confirm:wipe'], principal: 'user:eve' }, null, {
        'x-as': 'ann'
      })
      t.strictSame(body.data, { principal: 'user:ann', permissions: [] }, 'case 74')
      t.match(
        await run('private'),
        { status: 403, body: { error: { code: 'FORBIDDEN', category: 'permission' } } },
        'ruling R9'
      )
      t.match(await run('private', {}, null, { 'x-as': 'ann' }), { status: 200 }, 'ruling R9')
    })

    t.test('ruling R9: a wrong credential is refused, not taken for none', async (t) => {
      const { status, headers, body } = await run('peek', {}, null, { 'x-as': 'nobody-we-know' })
      t.equal(status, 401)
      t.strictSame(Object.keys(body), ['error'])
      t.match(body.error, { code: 'UNAUTHORIZED', category: 'permission', recoverable: false, retryable: false })
      t.equal(headers.get('cache-control'), 'no-store')
    })

    t.test('cases 78 to 84: failures are told as they are, and show nothing of the inside', async (t) => {
      for (const input of [{}, { later: true }]) {
        const { status, text, body } = await run('boom', input)
        t.match({ status, body }, { status: 500, body: { status: 'failed', error: { code: 'TOOL_PANIC' } } }, 'case 78')
        t.notMatch(text, /secret/)
      }
      const bad = await run('badout')
      t.match(bad, { status: 500, body: { error: { code: 'INVALID_OUTPUT' } } }, 'case 79')
      t.notOk('data' in bad.body)
      const categories: readonly [string, number, string][] = [
        ['validation', 400, 'failed'],
        ['not_found', 404, 'failed'],
        ['permission', 403, 'failed'],
        ['conflict', 409, 'failed'],
        ['cancelled', 408, 'cancelled'],
        ['timeout', 504, 'timed_out'],
        ['internal', 500, 'failed'],
        ['capacity', 503, 'failed']
      ]
      for (const [category, status, word] of categories) {
        const answer = await run('fail', { category })
        t.match(answer, { status, body: { status: word, error: { category } } }, `case 80: ${category}`)
        t.strictSame(answer.body._agent, { cacheable: false, next_actions: [] }, 'case 82')
        t.strictSame(
          Object.keys(answer.body.error ?? {}),
          ['code', 'message', 'category', 'recoverable', 'retryable'],
          'case 82'
        )
      }
      const { body } = await run('fail', { category: 'capacity', retryable: true, retry_after: 5 })
      t.match(body.error, { recoverable: true, retryable: true, retry_after: 5 }, 'case 81')
      t.match(body._agent.next_actions, [{ tool: 'fail', after_ms: 5_000, reason: String }], 'case 81')
      t.notOk('arguments' in (body._agent.next_actions[0] ?? {}), 'case 81')
      t.match(
        await run('fail', { category: 'conflict', suggested_action: 'peek', details: { x: [1] } }),
        { body: { error: { suggested_action: 'peek', details: { x: [1] } } } },
        'case 84'
      )
    })

    t.test('cases 85, 86 and 88: calls overlap unless the tool forbids it', async (t) => {
      const serial = ['85a', '85b'].map((gate) => run('serial', { gate }))
      await world.until('serial 85a')
      const sleeping = Array.from({ length: 5 }, () => run('sleep', { gate: '86' }))
      t.match(await run('count', { k: '88' }), { status: 200 }, 'case 88')
      world.open('86')
      for (const answer of await Promise.all(sleeping)) t.equal(answer.status, 200, 'case 86')
      world.open('85b')
      world.open('85a')
      for (const answer of await Promise.all(serial)) t.equal(answer.status, 200)
      t.strictSame(
        world.runs.filter((run) => run.startsWith('serial 85')),
        ['serial 85a', 'serial 85a ended', 'serial 85b', 'serial 85b ended'],
        'case 85'
      )
    })

    t.test('case 87: a call that waits for its turn spends its deadline there', async (t) => {
      const { run, world } = await startCarmy(t, { transport, toolsConfig: { timeout_ms: 100 } })
      const first = run('serial', { gate: '87' })
      await world.until('serial 87')
      const waiting = await Promise.all([run('serial', { gate: '87' }), run('serial', { gate: '87' })])
      for (const answer of waiting) {
        t.match(answer, { status: 504, body: { status: 'timed_out', error: { code: 'TIMEOUT' } } })
      }
      t.equal(world.count('serial 87'), 1, 'they never ran')
      world.open('87')
      t.equal((await first).status, 504)
    })

    t.test('cases 89 to 91: a stream tells what happens and ends with the answer', async (t) => {
      const { status, headers, events } = await stream('echo', { text: 'a' })
      t.equal(status, 200)
      t.equal(headers.get('content-type'), 'text/event-stream')
      t.match(headers.get('cache-control'), /no-cache/)
      const id = events[0]?.data['execution_id']
      t.match(events, [
        { event: 'execution.started', data: { execution_id: id, tool: 'echo' } },
        { event: 'tool.started', data: { execution_id: id, tool: 'echo' } },
        { event: 'tool.completed', data: { execution_id: id, tool: 'echo', ok: true, duration_ms: Number } },
        { event: 'execution.completed' }
      ])
      t.equal(events.length, 4)
      const durationMs = events[2]?.data['duration_ms'] as number
      t.ok(Number.isInteger(durationMs) && durationMs >= 0)
      t.strictSame(events[3]?.data, {
        execution_id: id,
        status: 'completed',
        data: { text: 'a' },
        _agent: { cacheable: true, next_actions: [] },
        replayed: false
      })
    })

    t.test('cases 92 and 93: a replay is told in two events', async (t) => {
      const first = await stream('count', { k: '92' }, 'h')
      const again = await stream('count', { k: '92' }, 'h')
      t.strictSame(names(again.events), ['execution.started', 'execution.completed'])
      t.strictSame(again.events[1]?.data, { ...first.events.at(-1)?.data, replayed: true })
      t.not(again.events[0]?.data['execution_id'], again.events[1]?.data['execution_id'])

      const { body } = await run('count', { k: '93' }, 'i')
      const { events } = await stream('count', { k: '93' }, 'i')
      t.strictSame(events.at(-1)?.data, { ...body, replayed: true }, 'case 93')
    })

    t.test('cases 94 to 98 and 103: failures are told in the last event', async (t) => {
      for (const [tool, code] of [
        ['nope', 'TOOL_NOT_FOUND'],
        ['wipe', 'CONFIRMATION_REQUIRED']
      ] as const) {
        const { status, events } = await stream(tool)
        t.equal(status, 200)
        t.strictSame(names(events), ['execution.started', 'execution.completed'], `cases 94, 95: ${tool}`)
        t.match(events[1]?.data, { status: 'failed', error: { code }, replayed: false })
      }
      const failing = await stream('fail', { category: 'conflict' })
      t.equal(failing.events.length, 4, 'case 96')
      t.match(failing.events.slice(2), [{ data: { ok: false } }, { data: { error: { code: 'FAILED_ON_PURPOSE' } } }])

      const malformed = await post('{', sse)
      t.match(malformed, { status: 400, body: { error: { code: 'INVALID_REQUEST' } } }, 'case 97')
      const accept = 'text/html, text/event-stream;q=0.1'
      t.equal(
        (await stream('peek', {}, undefined, { accept })).headers.get('content-type'),
        'text/event-stream',
        'case 98'
      )
      t.equal((await run('peek', {}, null, { accept: 'text/*' })).headers.get('content-type'), 'application/json')

      const late = await stream('brief')
      t.match(
        late.events.slice(2),
        [
          { event: 'tool.completed', data: { ok: false } },
          { event: 'execution.completed', data: { status: 'timed_out', error: { code: 'TIMEOUT' } } }
        ],
        'case 103'
      )
    })

    t.test('cases 99 to 101: progress is streamed, and only streamed', async (t) => {
      const forged = 'x\revent: execution.completed\n\nevent: done\u2028\u0000'
      const { events } = await stream('steps', { n: 3, message: forged })
      t.match(events.slice(2, -2), [
        { event: 'tool.progress', data: { tool: 'steps', progress: 1, total: 3, message: forged } },
        { event: 'tool.progress', data: { progress: 2 } },
        { event: 'tool.progress', data: { progress: 3 } },
        { event: 'tool.progress', data: { progress: 3, partial: { rows: [1, 2] } } }
      ])
      t.equal(events.length, 8)
      t.notOk('partial' in (events[2]?.data ?? {}), 'what was not told is absent')
      const { status, text } = await run('steps', { n: 3 })
      t.equal(status, 200)
      t.notMatch(text, /progress|rows/, 'case 100')
    })

    t.test('case 68: a client that leaves a stream ends the work', async (t) => {
      const aborts = world.aborted.length
      const controller = new AbortController()
      const response = await fetch(`${base}/agent/execute`, {
        method: 'POST',
        headers: { 'content-type': 'application/json', accept: 'text/event-stream' },
        body: '{"tool":"watch"}',
        signal: controller.signal
      })
      const reader = (response.body as ReadableStream<Uint8Array>).getReader()
      let text = ''
      while (!text.includes('tool.started')) text += Buffer.from((await reader.read()).value ?? []).toString()
      controller.abort()
      while (world.aborted.length === aborts) await new Promise(setImmediate)
      t.match(world.aborted.at(-1), { code: 'CLIENT_GONE' })
      await t.rejects(reader.read())
    })

    t.test('cases 104 and 105: other methods and paths are nothing', async (t) => {
      const wrong = await ask('/agent/execute')
      t.equal(wrong.status, 405)
      t.match(wrong.headers.get('allow'), /POST/)
      t.equal((await ask('/agent/tools', { method: 'POST' })).status, 405)
      t.equal((await ask('/agent/nothing')).status, 404)
    })

    t.test('cases 61 to 63: what is remembered has bounds, and what is known is answered all the same', async (t) => {
      const { run, world } = await startCarmy(t, { transport, toolsConfig: { max_request_ids: 2 } })
      const first = await run('count', { k: 'a' }, '1')
      await run('count', { k: 'a' }, '2')
      t.match(await run('count', { k: 'a' }, '3'), {
        status: 503,
        body: { status: 'failed', error: { code: 'IDEMPOTENCY_CAPACITY', category: 'capacity' } }
      })
      t.equal(world.count('count'), 2)
      t.equal((await run('count', { k: 'a' }, '1')).text, first.text)
      t.equal((await run('count', { k: 'a' })).status, 200)
      t.equal((await run('count', { k: 'a' }, '3', { 'x-as': 'bob' })).status, 200)
    })

    t.test('case 75: where the policy asks for it, a call needs the permission of its tool', async (t) => {
      const { run } = await startCarmy(t, { transport, toolsConfig: { require_tool_permission: true } })
      t.match(await run('peek'), { status: 403, body: { error: { code: 'FORBIDDEN', category: 'permission' } } })
      t.equal((await run('peek', {}, null, { 'x-grant': 'tool:peek' })).status, 200)
    })

    t.test('cases 76 and 77: so many calls of one caller in a window', async (t) => {
      const toolsConfig = { rate_limit: { max: 2, window_ms: 60_000 } }
      const { run, stream } = await startCarmy(t, { transport, toolsConfig })
      for (const call of [1, 2]) t.equal((await run('peek')).status, 200, `call ${call}`)
      const third = await run('peek')
      t.match(third, {
        status: 503,
        body: { error: { code: 'RATE_LIMITED', category: 'capacity', retryable: true, recoverable: true } }
      })
      const seconds = third.body.error?.retry_after ?? 0
      t.ok(seconds >= 1 && seconds <= 60)
      t.equal(third.headers.get('retry-after'), String(seconds))
      t.strictSame(names((await stream('peek')).events), ['execution.started', 'execution.completed'])
      t.equal((await run('peek', {}, null, { 'x-as': 'bob' })).status, 200)
    })

    t.test('a full pool of threads says when to come back, also where the tool may have had effects', async (t) => {
      const busy = ({ name, effect }: Pick<Tool, 'name' | 'effect'>) =>
        toolOf({
          name,
          effect,
          run() {
            throw new CodedError('WORKERS_BUSY', 'all threads', { detail: { pool: 'p', retryAfterSeconds: 7 } })
          }
        })
      const both = [busy({ name: 'look', effect: 'read' }), busy({ name: 'act', effect: 'write' })]
      const { run } = await startCarmy(t, { transport, plugins: [{ plugin: toolsPlugin(() => both, 'busy') }] })
      for (const [tool, retryable] of [
        ['look', true],
        ['act', false]
      ] as const) {
        const answer = await run(tool, {}, `busy ${tool}`)
        const error = { code: 'WORKERS_BUSY', category: 'capacity', retryable, retry_after: 7 }
        t.match(answer, { status: 503, body: { error } }, tool)
        t.equal(answer.headers.get('retry-after'), '7', tool)
      }
      const again = await run('act', {}, 'busy act')
      t.match(again, { status: 503, body: { error: { retryable: false } } })
      t.notOk(again.headers.has('retry-after'), 'a recorded answer stays as it is')
    })

    t.test('case 123: a call is one line in the log, without its arguments', async (t) => {
      const { run, lines } = await startCarmy(t, { transport })
      const { body } = await run('echo', { text: 'private words' }, 'logged')
      const [line] = lines.filter(({ message }) => message === 'tool executed')
      t.match(line, {
        level: 'info',
        execution_id: body.execution_id,
        request_id: 'logged',
        tool: 'echo',
        effect: 'none',
        status: 'completed',
        duration_ms: Number,
        replayed: false
      })
      t.notOk(JSON.stringify(lines).includes('private words'))
    })

    t.test('cases 15 and 16: a restart gives the same documents of the same tools, and others of others', async (t) => {
      const documentsOf = async (plugins: Options['plugins'] = []) => {
        const { ask, kernel } = await startCarmy(t, { transport, plugins })
        const [tools, agent] = [await ask('/agent/tools'), await ask('/.well-known/agent')]
        await kernel.stop()
        const tags = [tools, agent].map(({ headers }) => headers.get('etag'))
        return { texts: [tools.text, agent.text], tags, version: agent.body['tools_version'] }
      }
      const before = await documentsOf()
      t.strictSame(await documentsOf(), before)
      const after = await documentsOf([
        { plugin: toolsPlugin(() => [toolOf({ name: 'extra', run: () => 1 })], 'extra') }
      ])
      t.not(after.version, before.version)
      t.not(after.tags[0], before.tags[0])
      t.not(after.tags[1], before.tags[1])
    })

    t.test('case 102: a silent stream is kept alive by comments', async (t) => {
      const { base, world } = await startCarmy(t, { transport, httpConfig: { keep_alive_interval_ms: 10 } })
      const response = await fetch(`${base}/agent/execute`, {
        method: 'POST',
        headers: { 'content-type': 'application/json', accept: 'text/event-stream' },
        body: '{"tool":"sleep","arguments":{"gate":"102"}}'
      })
      let text = ''
      for await (const piece of response.body as ReadableStream<Uint8Array>) {
        text += Buffer.from(piece).toString()
        if (/tool\.started[^]*\n\n:\n\n/.test(text)) world.open('102')
      }
      t.strictSame(names(parseEvents(text)).slice(-2), ['tool.completed', 'execution.completed'])
    })

    t.test('a pattern that goes back for ever holds up neither its call nor the others', async (t) => {
      const { run } = await startCarmy(t, {
        transport,
        plugins: [
          {
            plugin: toolsPlugin(
              () => [
                toolOf({
                  name: 're',
                  input: { type: 'object', properties: { s: { type: 'string', pattern: '^(a+)+$' } } },
                  run: () => 1
                })
              ],
              're'
            )
          }
        ]
      })
      for (const length of [32, 900, 100_000]) {
        const { status, body } = await run('re', { s: `${'a'.repeat(length)}!` })
        t.match({ status, body }, { status: 400, body: { error: { code: 'INVALID_ARGUMENTS' } } }, String(length))
        t.equal((await run('re', { s: 'aaa' })).status, 200)
      }
    })
  })
}

t.test('the documents are those of the reference vectors', async (t) => {
  const createOrder = toolOf({
    name: 'create_order',
    description: 'Place an order',
    input: { type: 'object', properties: { sku: { type: 'string' } }, required: ['sku'] },
    output: { type: 'object', properties: { order_id: { type: 'integer' } } },
    effect: 'write',
    run: () => ({ order_id: 1 })
  })
  const { services } = await startHouse(t, [
    { plugin: tools },
    { plugin: trustingGuard },
    { plugin: carmy, config: { server: 'shop' } },
    { plugin: toolsPlugin(() => [createOrder]) }
  ])
  const get = (path: string) => services('http').dispatch({ method: 'GET', path })

  const version = '8e245a89f52f3c08b86618eac9245e4872fe429eb75a015ed9f5114f99367e88'
  t.equal((await get('/agent/tools')).headers['etag'], `"${version}"`)
  const discovery = await get('/.well-known/agent')
  t.equal(discovery.headers['etag'], '"4c0e766d69c174088aa695d56b8dc43de21ecfd5489683c45ceb1845ac7cf29e"')
  t.match(discovery.body, { tools_version: version })
})

t.test('case 47: a recorded answer is given again after a restart, byte for byte', async (t) => {
  const dataFolder = t.testdir()
  const before = await startCarmy(t, { dataFolder })
  const first = await before.run('count', { k: 'a' }, 'kept')
  await before.kernel.stop()

  const { run, stream, world } = await startCarmy(t, { dataFolder })
  const again = await run('count', { k: 'a' }, 'kept')

  t.equal(again.text, first.text)
  t.equal(again.status, first.status)
  t.strictSame((await stream('count', { k: 'a' }, 'kept')).events.at(-1)?.data, { ...first.body, replayed: true })
  t.strictSame(world.runs, [])
})

t.test('of the reports a reader is too slow for, the newest is kept', async (t) => {
  const hasty = toolOf({
    name: 'hasty',
    async run(_input, { progress }) {
      for (let step = 1; step <= 5_000; step += 1) progress({ progress: step })
      return {}
    }
  })
  const { stream } = await startCarmy(t, { plugins: [{ plugin: toolsPlugin(() => [hasty], 'hasty') }] })

  const { events } = await stream('hasty')

  const reports = events.filter(({ event }) => event === 'tool.progress').map(({ data }) => data['progress'])
  t.ok(reports.length > 900 && reports.length <= 1_000)
  t.equal(reports.at(-1), 5_000)
  t.strictSame(names(events).slice(-2), ['tool.completed', 'execution.completed'])
})

t.test('the tools are named in /config/info', async (t) => {
  const { ask } = await startCarmy(t)
  t.ok(((await ask('/config/info')).body['tools'] as string[]).includes('echo'))
})

t.test('require_auth closes everything, the two documents included', async (t) => {
  const { ask, run, kernel } = await startCarmy(t, { config: { require_auth: true } })
  const known = { headers: { 'x-as': 'ann' } }
  for (const answer of [
    await ask('/.well-known/agent'),
    await ask('/agent/tools'),
    await run('peek'),
    await run('peek', {}, null, sse)
  ]) {
    t.match(answer, { status: 401, body: { error: { code: 'UNAUTHORIZED', category: 'permission' } } })
    t.strictSame(Object.keys(answer.body), ['error'])
    t.equal(answer.headers.get('content-type'), 'application/json')
  }
  t.equal((await ask('/.well-known/agent', known)).status, 200)
  t.equal((await ask('/agent/tools', known)).status, 200)
  t.equal((await run('peek', {}, null, known.headers)).status, 200)

  await kernel.update('carmy', { server: 'renamed' })
  t.match(await ask('/.well-known/agent'), { status: 200, body: { server: 'renamed' } })
})

t.test('a swap under load fails no request, and no answer mixes two configurations', async (t) => {
  /** Its answers and its description both tell its configuration. */
  const versioned = definePlugin({
    name: 'versioned',
    inject: ['tools'],
    config: { type: 'object', properties: { v: { type: 'integer' } } },
    apply(ctx, { v }: { v: number }) {
      const run = async () => {
        await new Promise(setImmediate)
        return { from: v }
      }
      const input = { type: 'object', properties: { v: { const: v } } }
      ctx.contribute('tools', toolOf({ name: 'which', description: `Version ${v}`, input, run }))
    }
  })
  const { ask, run, kernel } = await startCarmy(t, { plugins: [{ plugin: versioned, config: { v: 0 } }] })
  let swapping = true
  let acknowledged = 0
  const client = async (): Promise<void> => {
    while (swapping) {
      const known = acknowledged
      const [answer, catalog, discovery] = [
        await run('which'),
        await ask('/agent/tools'),
        await ask('/.well-known/agent')
      ]
      if (answer.status !== 200) throw new Error(`an answer of ${answer.status}: ${answer.text}`)
      if ((answer.body.data as { from: number }).from < known)
        throw new Error('an answer older than the swap that was acknowledged')
      const shown = /"description":"Version (\d+)"[^}]*\{"properties":\{"v":\{"const":(\d+)\}/.exec(catalog.text)
      if (shown === null || shown[1] !== shown[2]) throw new Error(`a catalog that mixes: ${shown?.[0]}`)
      if (catalog.headers.get('etag') !== `"${sha256(catalog.text)}"`) throw new Error('a tag of another catalog')
      if (discovery.headers.get('etag') !== `"${sha256(discovery.text)}"`) throw new Error('a tag of another discovery')
    }
  }
  const clients = Array.from({ length: 8 }, client)
  for (let v = 1; v <= 40; v += 1) {
    await kernel.update('versioned', { v })
    acknowledged = v
  }
  swapping = false

  await t.resolves(Promise.all(clients))
  t.match(await run('which'), { body: { data: { from: 40 } } })
})

t.test('the server that stops ends a stream with its last event', async (t) => {
  const { kernel, stream, world } = await startCarmy(t, { settings: { shutdown_timeout_ms: 100 } })
  const watching = stream('watch')
  await world.until('watch began')

  await kernel.stop()

  const { events } = await watching
  t.match(events.at(-1), { event: 'execution.completed', data: { status: 'cancelled', error: { code: 'CANCELLED' } } })
})
