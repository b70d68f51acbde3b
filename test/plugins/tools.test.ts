import { existsSync, readdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { isDeepStrictEqual } from 'node:util'
import fc from 'fast-check'
import t from 'tap'
import { CodedError, definePlugin, isCoded, type Plugin } from '../../kernel/index.ts'
import calculator from '../../plugins/calculator/index.ts'
import clockPlugin from '../../plugins/clock/index.ts'
import { clock } from '../../plugins/clock/tool.ts'
import tools from '../../plugins/tools/index.ts'
import { canonicalJson, toExactJson, writeExactly } from '../../plugins/tools/json.ts'
import { AbortFan } from '../../plugins/tools/abort-fan.ts'
import { fingerprintOf } from '../../plugins/tools/once.ts'
import { enterTurn, leaveTurn, quitTurn, type Turns } from '../../plugins/tools/turns.ts'
import type { ExecuteRequest, Execution, ExecutionEvent, Tool } from '../../plugins/tools/types.ts'
import workers from '../../plugins/workers/index.ts'
import { FaultyStore } from '../fakes/faulty-store.ts'
import { fixtureTools, toolOf, toolsPlugin, World } from '../fixtures/carmy-tools.ts'
import type { Order } from '../fixtures/worker-task.ts'
import { type HouseEntry, type HouseOptions, type LogLine, startHouse } from '../harness.ts'

type T = Parameters<typeof startHouse>[0]

const vectors = process.env['HEARTWOOD_TEST_DATA']
const ann = { principal: 'user:ann' }

/** A house with the registry and the given tools, and a short way to call one. */
async function startTools(
  t: T,
  given: readonly Tool[] | ((world: World) => readonly Tool[]) = fixtureTools,
  options: HouseOptions & { config?: object; entries?: readonly HouseEntry[] } = {}
) {
  const world = new World()
  const fixture = toolsPlugin(() => (typeof given === 'function' ? given(world) : given))
  const house = await startHouse(
    t,
    [{ plugin: tools, config: options.config ?? {} }, { plugin: fixture }, ...(options.entries ?? [])],
    { http: false, ...options }
  )
  const registry = house.services('tools')
  const run = async (tool: string, input: unknown = {}, more: Partial<ExecuteRequest> = {}) =>
    registry.execute({ tool, arguments: input, caller: ann, ...more })
  return { ...house, world, registry, run }
}

/** The same value with the members of every object in reverse order. */
function reversed(value: unknown): unknown {
  if (Array.isArray(value)) return value.map(reversed)
  if (typeof value !== 'object' || value === null) return value
  const turned: Record<string, unknown> = Object.create(null)
  for (const [key, member] of Object.entries(value).reverse()) turned[key] = reversed(member)
  return turned
}

/** Arrays inside each other. */
function nested(levels: number): unknown {
  let value: unknown[] = []
  for (let level = 1; level < levels; level += 1) value = [value]
  return value
}

const isError = ({ level }: LogLine): boolean => level === 'error'

/** What a process leaves behind that is killed while `serial` runs: the reservation of the id, and nothing after it. */
async function leaveBehind({ run, world, services }: Awaited<ReturnType<typeof startTools>>, requestId: string) {
  const store = services('store')
  const key = ['user:ann', 0, requestId]
  const running = run('serial', { gate: requestId }, { requestId })
  await world.until(`serial ${requestId}`)
  const reservation = (await store.get<{ execution_id: string }>('tools.open', key))?.value
  if (reservation === undefined) throw new Error('nothing was reserved')
  world.open(requestId)
  await running
  await store.atomically((tx) => {
    tx.remove('tools.finished', key)
    tx.remove('tools.endings', [reservation.execution_id])
    tx.put('tools.open', key, reservation)
  })
  return reservation.execution_id
}

/** The code of the error, or the status where there is none. */
function outcome({ response }: Execution): string {
  return response.error?.code ?? response.status
}

t.test('canonical JSON', async (t) => {
  t.test('is what RFC 8785 publishes for its own examples', (t) => {
    const folder = join(vectors ?? '', 'corpora/jcs/testdata')
    if (vectors === undefined || !existsSync(folder)) {
      t.comment('skipped: HEARTWOOD_TEST_DATA does not name the folder of the test data')
      t.end()
      return
    }
    for (const name of readdirSync(join(folder, 'input'))) {
      const input: unknown = JSON.parse(readFileSync(join(folder, 'input', name), 'utf8'))
      t.equal(canonicalJson(input), readFileSync(join(folder, 'output', name), 'utf8').trim(), name)
    }
    t.end()
  })

  t.test('says the same as the value, however its members are ordered', async (t) => {
    const json = fc.jsonValue({ maxDepth: 4 }).map((value): unknown => JSON.parse(JSON.stringify(value)))
    const holds = fc.property(json, (value) => {
      const text = canonicalJson(value)
      return isDeepStrictEqual(JSON.parse(text), value) && canonicalJson(reversed(value)) === text
    })
    t.doesNotThrow(() => fc.assert(holds, { numRuns: 300 }))
  })

  t.test('sorts by UTF-16 code units, digits among them', async (t) => {
    t.equal(
      canonicalJson({ b: 1, 10: 2, 9: 3, '€': 4, '😀': 5, '\ufb33': 6, a: [] }),
      '{"10":2,"9":3,"a":[],"b":1,"€":4,"😀":5,"\ufb33":6}'
    )
    t.equal(canonicalJson(JSON.parse('{"__proto__":{"z":1,"a":-0}}')), '{"__proto__":{"a":0,"z":1}}')
  })

  t.test('refuses what JSON does not hold, and what is nested too deep', async (t) => {
    for (const value of [
      undefined,
      Number.NaN,
      Number.POSITIVE_INFINITY,
      1n,
      () => 1,
      { a: undefined },
      [Symbol('s')]
    ]) {
      t.throws(() => canonicalJson(value), TypeError)
    }
    t.throws(() => canonicalJson(nested(1_001)), { message: /nested deeper/ })
    t.doesNotThrow(() => canonicalJson(nested(1_000)))
  })

  t.test('gives the fingerprints of the reference vectors', async (t) => {
    t.equal(
      fingerprintOf('create_order', { sku: 'KB-01' }),
      'ec32f9d35d80b79bad6bbc9f47b89d7bce4e6a2963a89faf40b4691f4cffdd99'
    )
    t.equal(
      canonicalJson(['create', { b: 1, a: [true] }, { m: 'x' }, {}]),
      '["create",{"a":[true],"b":1},{"m":"x"},{}]'
    )
  })
})

t.test('exact JSON', async (t) => {
  const cyclic: Record<string, unknown> = {}
  cyclic['self'] = { inner: [cyclic] }
  class Point {
    x = 1
  }
  const refused: readonly [string, unknown][] = [
    ['undefined', undefined],
    ['an undefined member', { a: undefined }],
    ['an undefined item', [undefined]],
    ['a hole', [1, , 2]], // oxlint-disable-line no-sparse-arrays
    ['NaN', { deep: [Number.NaN] }],
    ['an infinity', Number.NEGATIVE_INFINITY],
    ['a bigint', { n: 1n }],
    ['a cycle', cyclic],
    ['a function', { f() {} }],
    ['a symbol', [Symbol('s')]],
    ['a Date', { at: new Date(0) }],
    ['a Map', new Map([['a', 1]])],
    ['an instance', new Point()],
    ['a getter that throws', { get a() { throw new Error('no') } }], // biome-ignore format: one line a case
    ['a thousand and one levels', nested(1_001)],
    ['more levels than the stack', nested(100_000)]
  ]
  for (const [what, value] of refused) t.equal(toExactJson(value, 1_000_000), undefined, `${what} is refused`)

  fc.assert(
    fc.property(fc.jsonValue(), (value) => toExactJson(value, 1_000_000) === JSON.stringify(value)),
    { numRuns: 300 }
  )
  t.equal(
    toExactJson(Object.assign(Object.create(null), { a: 1 }), 1_000_000),
    '{"a":1}',
    'an object without a prototype is plain'
  )
})

t.test('JSON that is too long', async (t) => {
  t.test('is refused from its first byte too many on, and never before', (t) => {
    fc.assert(
      fc.property(fc.jsonValue(), (value) => {
        const bytes = Buffer.byteLength(JSON.stringify(value))
        return toExactJson(value, bytes) !== undefined && toExactJson(value, bytes - 1) === undefined
      }),
      { numRuns: 300 }
    )
    t.end()
  })

  t.test('is looked at no further than shows that it is', (t) => {
    let reads = 0
    const members = Array.from({ length: 1_000 }, () => ({
      get text() {
        reads += 1
        return 'x'.repeat(1_000)
      }
    }))
    t.match(writeExactly(members, 10_000).reason, /^it has 1\d{4} bytes as JSON or more, at most 10000 are allowed$/)
    t.ok(reads <= 10, `${reads} were read`)

    const twice: unknown[] = []
    twice.push('a text', twice, twice)
    t.match(writeExactly(twice, 1_000), { reason: /bytes as JSON or more/ }, 'a cycle that grows ends')
    t.match(writeExactly('x'.repeat(2 ** 28), 100), { reason: /^it has 268435458 bytes/ })
    t.match(writeExactly(new Array(2 ** 32 - 1), 100), { reason: /^it has 4294967296 bytes/ })
    t.end()
  })
})

t.test('the registry', async (t) => {
  t.test('lists tools in the byte order of their names, with exactly eight members', async (t) => {
    const { registry } = await startTools(t)

    const names = registry.list().map((tool) => tool.name)
    t.strictSame(names, [...names].sort())
    t.strictSame(Object.keys(registry.get('echo') as object), [
      'name',
      'description',
      'input_schema',
      'output_schema',
      'effect',
      'idempotent',
      'parallel_safe',
      'confirmation'
    ])
    t.match(registry.get('serial'), { parallel_safe: false, idempotent: false, confirmation: 'none' })
    t.equal(registry.get('nope'), undefined)
    t.equal(registry.isAnonymous('echo'), true)
    t.equal(registry.isAnonymous('private'), false)
    t.equal(registry.isAnonymous('nope'), false)
  })

  t.test('case 106: refuses a plugin whose tool is not sound, and serves on as before', async (t) => {
    const { kernel, registry } = await startTools(t)
    const before = registry.catalog()
    const { revision } = registry
    const wrong: readonly [Partial<Tool>, string][] = [
      [{ name: 'a b' }, 'INVALID_TOOL_NAME'],
      [{ name: '' }, 'INVALID_TOOL_NAME'],
      [{ name: 'x'.repeat(129) }, 'INVALID_TOOL_NAME'],
      [{ name: 'line\n' }, 'INVALID_TOOL_NAME'],
      [{ name: 'carmy_job' }, 'INVALID_TOOL_NAME'],
      [{ system: true }, 'INVALID_TOOL_NAME'],
      [{ next: 'go' as unknown as () => [] }, 'INVALID_TOOL'],
      [{ name: 'echo' }, 'DUPLICATE_TOOL'],
      [{ input: { type: 'nonsense' } }, 'INVALID_SCHEMA'],
      [{ output: { type: 'object', properties: { a: { minimum: 'one' } } } }, 'INVALID_SCHEMA'],
      [{ input: { description: undefined } }, 'INVALID_SCHEMA'],
      [{ effect: 'magic' as 'none' }, 'INVALID_TOOL'],
      [{ timeoutMs: 0 }, 'INVALID_TOOL'],
      [{ confirmation: 'maybe' as 'none' }, 'INVALID_TOOL'],
      [{ description: 7 as unknown as string }, 'INVALID_TOOL'],
      [{ run: 'walk' as unknown as Tool['run'] }, 'INVALID_TOOL'],
      [{ input: true as unknown as Tool['input'] }, 'INVALID_TOOL']
    ]
    for (const [index, [tool, code]] of wrong.entries()) {
      const plugin = toolsPlugin(() => [toolOf({ name: 'sound', run: () => 1, ...tool })], 'wrong')
      await t.rejects(kernel.begin({ id: `wrong${index}`, plugin, config: {} }), { code, message: /wrong/ })
    }
    t.equal(registry.catalog(), before, 'the catalog is the same')
    t.equal(registry.revision, revision)
    await t.resolves(
      kernel.begin({
        id: 'longest',
        plugin: toolsPlugin(() => [toolOf({ name: 'x'.repeat(128), run: () => 1 })], 'longest'),
        config: {}
      })
    )
  })

  t.test("a tool of the server's own may be called carmy_…, and says what comes next, in a replay too", async (t) => {
    const own = toolOf<unknown, { left: number }>({
      name: 'carmy_steps',
      system: true,
      run: () => ({ left: 1 }),
      next: ({ left }) => [{ tool: 'carmy_steps', reason: `${left} is left`, after_ms: 5 }]
    })
    const silent = toolOf({
      name: 'silent',
      run: () => 1,
      next() {
        throw new Error('no idea')
      }
    })
    const { run, lines } = await startTools(t, [own, silent])

    const first = await run('carmy_steps', {}, { requestId: 'r' })
    const replay = await run('carmy_steps', {}, { requestId: 'r' })
    t.strictSame(first.response._agent.next_actions, [{ tool: 'carmy_steps', reason: '1 is left', after_ms: 5 }])
    t.equal(replay.replayed, true)
    t.equal(replay.text, first.text)

    t.match((await run('silent')).response, { status: 'completed', data: 1, _agent: { next_actions: [] } })
    t.ok(lines.some(({ message }) => message === 'a tool could not say what comes next'))
  })

  t.test('leaves out a bad tool that was there before it, and says so', async (t) => {
    const early = definePlugin({
      name: 'early',
      apply: (ctx) =>
        ctx.contribute('tools', toolOf({ name: 'twice', run: () => 1 }), toolOf({ name: 'a b', run: () => 1 }))
    })
    const house = await startHouse(t, [{ plugin: early }], { http: false })
    await house.kernel.begin({
      id: 'second',
      plugin: definePlugin({
        name: 'second',
        apply: (ctx) => ctx.contribute('tools', toolOf({ name: 'twice', run: () => 2 }))
      }),
      config: {}
    })

    await house.kernel.begin({ id: 'tools', plugin: tools, config: {} })

    const registry = house.services('tools')
    t.strictSame(
      registry.list().map((tool) => tool.name),
      ['twice']
    )
    t.strictSame(
      house.lines
        .filter((line) => line.message === 'a tool was left out')
        .map((line) => (line['error'] as { code: string }).code),
      ['INVALID_TOOL_NAME', 'DUPLICATE_TOOL']
    )
    await house.kernel.begin({
      id: 'third',
      plugin: toolsPlugin(() => [toolOf({ name: 'third', run: () => 3 })]),
      config: {}
    })
    t.ok(registry.get('third'), 'what was left out keeps nobody else from coming')
    await house.kernel.retire('early')
    t.same(
      (await registry.execute({ tool: 'twice', arguments: {}, caller: ann })).response.data,
      2,
      'the other one comes in'
    )
  })

  t.test('grows its revision with the catalog, and only with it', async (t) => {
    const { kernel, registry } = await startTools(t)
    const { revision } = registry
    const before = registry.catalog()
    const plugin = (description: string): Plugin =>
      toolsPlugin(() => [toolOf({ name: 'extra', description, run: () => 1 })], 'extra')

    await kernel.begin({ id: 'extra', plugin: plugin('one'), config: {} })
    t.equal(registry.revision, revision + 1)
    const first = registry.catalog()
    t.not(first.version, before.version)
    t.equal(registry.catalog(), first, 'rendered once')

    await kernel.update('extra', {})
    t.equal(registry.revision, revision + 1, 'another generation of the same tool is no other catalog')
    t.equal(registry.catalog(), first)

    await kernel.retire('extra')
    t.equal(registry.revision, revision + 2)
    t.strictSame(registry.catalog(), before)
  })

  t.test('keeps tools and revision when it is swapped itself', async (t) => {
    const { kernel, registry, run } = await startTools(t)
    const { revision } = registry
    const { version } = registry.catalog()

    await kernel.update('tools', { timeout_ms: 5_000 })

    t.equal(registry.revision, revision)
    t.equal(registry.catalog().version, version)
    t.equal(outcome(await run('echo', { text: 'a' })), 'completed')
  })

  t.test('carmy_audit lists the last calls for operators, newest first', async (t) => {
    const config = { operators: ['user:ann'] }
    const { kernel, registry, run } = await startTools(t, fixtureTools, { config })
    const listed = async (input: object) => {
      const { data } = (await run('carmy_audit', input)).response
      return (data as { executions: readonly { execution_id: string }[] }).executions
    }
    const calls = [await run('nope', {}, { requestId: 'r', caller: { principal: undefined, session: 's' } })]
    for (let count = 0; count < 21; count += 1) calls.push(await run('echo', { text: 'a secret' }))
    const newest = calls.map(({ response }) => response.execution_id).reverse()

    const first = await listed({})
    t.strictSame(
      first.map(({ execution_id }) => execution_id),
      newest.slice(0, 20)
    )
    t.notMatch(JSON.stringify(first), 'a secret')
    t.match((await listed({ limit: 0 })).length, 1)
    t.match((await listed({ limit: 1_000_000 })).at(-1), {
      request_id: 'r',
      principal: null,
      session: 's',
      tool: 'nope',
      effect: null,
      status: 'failed',
      error_code: 'TOOL_NOT_FOUND',
      replayed: false
    })
    for (const principal of ['user:bob', 'tenant:user:ann']) {
      t.equal(outcome(await run('carmy_audit', {}, { caller: { principal } })), 'FORBIDDEN')
    }
    t.not(outcome(await run('carmy_audit', {}, { caller: { principal: undefined } })), 'completed')
    t.match(registry.get('carmy_audit'), { effect: 'read', idempotent: false, parallel_safe: true })

    const { revision } = registry
    await kernel.update('tools', { ...config, timeout_ms: 5_000 })
    t.equal(registry.revision, revision, 'a swap of the registry leaves its own tool as it is')
    await kernel.update('tools', {})
    t.equal(registry.get('carmy_audit'), undefined, 'only where the program says so')
  })

  t.test('loses the tools of a plugin that is retired, in the same step', async (t) => {
    const { kernel, registry, run } = await startTools(t)

    await kernel.retire('fixture')

    t.strictSame(registry.list(), [])
    t.equal(registry.catalog().text, '{"tools":[]}')
    t.equal(outcome(await run('echo', { text: 'a' })), 'TOOL_NOT_FOUND')
  })
})

t.test('the pipeline', async (t) => {
  t.test('answers a tool that is at hand at once, with a text that is the response', async (t) => {
    const { registry } = await startTools(t)

    const execution = registry.execute({ tool: 'echo', arguments: { text: 'a' }, caller: ann })

    t.notOk(execution instanceof Promise)
    const { response, text, replayed, category } = execution as Execution
    t.match(response.execution_id, /^exec_[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$/)
    t.strictSame(response, {
      execution_id: response.execution_id,
      status: 'completed',
      data: { text: 'a' },
      _agent: { cacheable: true, next_actions: [] }
    })
    t.equal(text, JSON.stringify(response))
    t.equal(replayed, false)
    t.equal(category, undefined)
  })

  t.test('gives every execution an id of its own', async (t) => {
    const { run } = await startTools(t)
    const ids = new Set<string>()
    for (let index = 0; index < 10_000; index += 1) {
      ids.add((await run('echo', { text: 'a' })).response.execution_id)
    }
    t.equal(ids.size, 10_000)
  })

  t.test('asks in a fixed order: tool, confirmation, credential, id, arguments, cancellation', async (t) => {
    const { run, world } = await startTools(t)
    const everythingWrong = {
      caller: { principal: undefined },
      requestId: 'x'.repeat(257),
      signal: AbortSignal.abort()
    }
    const bad = { nonsense: true }
    const granted = { principal: undefined, permissions: new Set(['confirm:wipe']) }

    t.equal(outcome(await run('nope', bad, everythingWrong)), 'TOOL_NOT_FOUND')
    t.equal(outcome(await run('wipe', bad, everythingWrong)), 'CONFIRMATION_REQUIRED')
    t.equal(outcome(await run('private', bad, everythingWrong)), 'FORBIDDEN')
    t.equal(outcome(await run('wipe', bad, { ...everythingWrong, caller: granted })), 'INVALID_ID')
    t.equal(outcome(await run('wipe', bad, { caller: granted, signal: AbortSignal.abort() })), 'INVALID_ARGUMENTS')
    t.equal(outcome(await run('wipe', {}, { caller: granted, signal: AbortSignal.abort() })), 'CANCELLED')
    t.equal(outcome(await run('wipe', {}, { caller: granted })), 'completed')
    t.equal(world.count('wipe'), 1)
  })

  t.test('says which argument is wrong, and takes none for another', async (t) => {
    const { run, world } = await startTools(t, (world) => [
      toolOf({
        name: 'typed',
        input: {
          type: 'object',
          required: ['n', 's', 'o'],
          properties: {
            n: { type: 'integer' },
            s: { type: 'string' },
            o: { type: 'object', additionalProperties: false, properties: { k: { type: 'string' } } }
          }
        },
        run: () => void world.runs.push('typed')
      })
    ])
    const good = { n: 1, s: 'a', o: { k: 'b' } }
    for (const wrong of [{ n: null }, { n: '3' }, { n: false }, { s: null }, { s: 5 }, { n: [1] }]) {
      t.equal(outcome(await run('typed', { ...good, ...wrong })), 'INVALID_ARGUMENTS', JSON.stringify(wrong))
    }
    const { response } = await run('typed', { ...good, o: { k: 'b', extra: 1 } })
    t.match(response.error, { recoverable: false, retryable: false, details: { reason: /o\.extra/ } })
    const { text } = await run('typed', { ...good, o: { k: 'b', ['x'.repeat(100_000)]: 1 } })
    t.ok(text.length < 1_000, 'a name the caller made up is not given back whole')
    t.strictSame(world.runs, [])
  })

  t.test('follows a schema that refers to itself only as far as the stack goes', async (t) => {
    const { run } = await startTools(t, [
      toolOf({ name: 'tree', input: { type: 'array', items: { $ref: '#' } }, run: () => 1 })
    ])

    t.equal(outcome(await run('tree', nested(50))), 'completed')
    t.equal(outcome(await run('tree', nested(100_000))), 'INVALID_ARGUMENTS')
  })

  t.test('withholds an output that is not JSON or breaks its schema, and logs why', async (t) => {
    const outputs: readonly unknown[] = [
      undefined,
      { a: undefined },
      Number.NaN,
      1n,
      { f() {} },
      new Date(0),
      new Map()
    ]
    const { run, lines } = await startTools(t, [
      ...outputs.map((output, index) => toolOf({ name: `odd${index}`, run: () => output })),
      toolOf({ name: 'wrong', output: { type: 'string' }, run: async () => ({ secret: 1 }) })
    ])

    for (const name of [...outputs.keys()].map((index) => `odd${index}`).concat('wrong')) {
      const { response } = await run(name)
      t.match(response, { status: 'failed', error: { code: 'INVALID_OUTPUT', category: 'internal' } }, name)
      t.notOk('data' in response)
    }
    t.match(lines.findLast(isError), { level: 'error', tool: 'wrong', reason: /must be string/ })
  })

  t.test('also when it comes from a worker thread and cannot leave it', async (t) => {
    let order: (order: Order) => Promise<unknown> = async () => undefined
    const tasks = definePlugin({
      name: 'tasks',
      inject: ['workers'],
      apply(ctx) {
        const module = new URL('../fixtures/worker-task.js', import.meta.url).href
        ctx.contribute('workers.tasks', { name: 'work', pool: 'work', module })
        order = (order) => ctx.services.workers.run('work', order)
      }
    })
    const { run, lines } = await startTools(
      t,
      [
        toolOf({ name: 'gives', run: () => order({ do: 'return-function' }) }),
        toolOf({ name: 'floods', run: () => order({ do: 'return-rope' }) }),
        toolOf({ name: 'takes', run: () => order({ do: 'answer', value: () => {} }) })
      ],
      { entries: [{ plugin: workers }, { plugin: tasks }] }
    )

    t.match((await run('gives')).response.error, { code: 'INVALID_OUTPUT', category: 'internal' })
    t.match(lines.filter(isError), [{ tool: 'gives', reason: /could not be cloned/ }])
    t.match((await run('floods')).response.error, { code: 'INVALID_OUTPUT', category: 'internal' })
    t.match(lines.findLast(isError), { tool: 'floods', reason: /takes 300\d{6} bytes or more, at most 16777216/ })
    t.match((await run('takes')).response.error, { code: 'TOOL_PANIC' }, 'what it sends there is its own affair')
  })

  t.test('passes on what a tool reports, and shows nothing of what it throws otherwise', async (t) => {
    const details: readonly unknown[] = [
      undefined,
      {},
      { category: 'nonsense' },
      { category: 'conflict', retryable: 'yes' },
      { category: 'conflict', retry_after: -1 },
      { category: 'conflict', details: { big: 1n } }
    ]
    const { run, lines } = await startTools(t, [
      ...details.map((detail, index) =>
        toolOf({
          name: `odd${index}`,
          run() {
            throw new CodedError('SECRET_CODE', 'secret text', { detail: detail as Record<string, unknown> })
          }
        })
      ),
      toolOf({ name: 'nothing', run: () => Promise.reject() }), // oxlint-disable-line prefer-promise-reject-errors
      ...fixtureTools(new World())
    ])

    const reported = await run('fail', {
      code: 'SOLD_OUT',
      category: 'conflict',
      retryable: true,
      retry_after: 1.2,
      suggested_action: 'peek',
      details: { left: 0 }
    })
    t.equal(
      reported.text.replace(/exec_[^"]+/, 'exec_'),
      '{"execution_id":"exec_","status":"failed","error":{"code":"SOLD_OUT","message":"it was asked to fail",' +
        '"category":"conflict","recoverable":true,"retryable":true,"retry_after":2,"suggested_action":"peek",' +
        '"details":{"left":0}},"_agent":{"cacheable":false,"next_actions":[{"tool":"fail","reason":"The failure may ' +
        'pass: make the same call again, with the same request_id if it had one.","after_ms":2000}]}}'
    )
    for (const name of [...details.keys()].map((index) => `odd${index}`).concat('nothing', 'boom')) {
      const { response, text } = await run(name)
      t.match(
        response,
        { status: 'failed', error: { code: 'TOOL_PANIC', category: 'internal', retryable: false } },
        name
      )
      t.notMatch(text, /secret/i)
    }
    t.match(await run('boom', { later: true }), { response: { error: { code: 'TOOL_PANIC' } } })
    t.match(lines.findLast(isError), { level: 'error', tool: 'boom', error: { message: 'a secret of the inside' } })
  })

  t.test('gives a tool its caller and its ids, and nothing of the arguments as such', async (t) => {
    const seen: unknown[] = []
    const { run } = await startTools(t, [
      toolOf({
        name: 'look',
        run(_input, { executionId, requestId, principal, permissions }) {
          seen.push({ executionId, requestId, principal, permissions: [...permissions] })
          return {}
        }
      })
    ])
    const permissions = new Set(['a:b'])

    const { response } = await run(
      'look',
      { principal: 'user:eve' },
      { requestId: 'r', caller: { ...ann, permissions } }
    )

    t.strictSame(seen, [
      { executionId: response.execution_id, requestId: 'r', principal: 'user:ann', permissions: ['a:b'] }
    ])
  })

  t.test('ends a call at its deadline, tells the tool, and leaves a late result unheard', async (t) => {
    const { run, world, lines } = await startTools(
      t,
      (world) => [
        toolOf({
          name: 'stubborn',
          timeoutMs: 20,
          async run(_input, { signal }) {
            signal.addEventListener('abort', () => world.aborted.push(signal.reason))
            await world.pass('late')
            world.tell('ended')
            throw new Error('too late to matter')
          }
        })
      ],
      { config: { timeout_ms: 60_000 } }
    )

    const { response } = await run('stubborn')

    t.match(response, {
      status: 'timed_out',
      error: { code: 'TIMEOUT', category: 'timeout', recoverable: false, retryable: false },
      _agent: { cacheable: false, next_actions: [] }
    })
    t.ok(isCoded(world.aborted[0], 'TIMEOUT'))
    world.open('late')
    await world.until('ended')
    t.strictSame(
      lines.filter((line) => line.level === 'error'),
      []
    )
  })

  t.test('puts the deadline before a result that comes after it, even where no timer could fire', async (t) => {
    const { run } = await startTools(t, [
      toolOf({
        name: 'busy',
        timeoutMs: 5,
        async run() {
          await Promise.resolve()
          const end = performance.now() + 10
          while (performance.now() < end);
          return 1
        }
      })
    ])

    t.equal(outcome(await run('busy')), 'TIMEOUT')
  })

  t.test('cancels a call whose caller leaves, before and while the tool runs', async (t) => {
    const { run, world } = await startTools(t)
    const controller = new AbortController()
    const reason = new CodedError('SHUTTING_DOWN', 'the server stops')

    const watching = run('watch', {}, { signal: () => controller.signal })
    controller.abort(reason)

    t.match((await watching).response, { status: 'cancelled', error: { code: 'CANCELLED', category: 'cancelled' } })
    t.equal(world.aborted[0], reason)
    t.equal(outcome(await run('watch', {}, { signal: () => controller.signal })), 'CANCELLED')
  })

  t.test('hands a signal that has fired to a tool that asks for it late', async (t) => {
    const { run, world } = await startTools(t, (world) => [
      toolOf({
        name: 'late',
        timeoutMs: 5,
        async run(_input, context) {
          await world.pass('later')
          world.aborted.push(context.signal.aborted && context.signal.reason)
          world.tell('asked')
          return 1
        }
      })
    ])

    t.equal(outcome(await run('late')), 'TIMEOUT')
    world.open('later')
    await world.until('asked')
    t.ok(isCoded(world.aborted[0], 'TIMEOUT'))
  })

  t.test('tells a listener what happens, in order, and keeps reports as they were', async (t) => {
    const { run } = await startTools(t, [
      toolOf({
        name: 'report',
        async run(_input, context) {
          const partial = { rows: [1] }
          context.progress({ progress: 1, total: 2, message: 'half', partial })
          partial.rows.push(2)
          context.progress({ progress: Number.NaN, message: '', partial: { big: 1n } })
          await Promise.resolve()
          queueMicrotask(() => queueMicrotask(() => context.progress({ progress: 9 })))
          return {}
        }
      }),
      ...fixtureTools(new World())
    ])
    const told = async (tool: string, input: unknown = {}, more: Partial<ExecuteRequest> = {}) => {
      const events: ExecutionEvent[] = []
      const { response } = await run(tool, input, { ...more, listener: (event) => events.push(event) })
      for (const { data } of events) t.equal(data.execution_id, response.execution_id)
      return events.map(({ event, data }) => ({ event, ...data }))
    }

    t.match(await told('report'), [
      { event: 'execution.started', tool: 'report' },
      { event: 'tool.started', tool: 'report' },
      { event: 'tool.progress', tool: 'report', progress: 1, total: 2, message: 'half', partial: { rows: [1] } },
      { event: 'tool.progress', tool: 'report', progress: 0 },
      { event: 'tool.completed', tool: 'report', ok: true, duration_ms: Number }
    ])
    t.strictSame(
      (await told('nope')).map(({ event }) => event),
      ['execution.started']
    )
    t.match(await told('fail'), [{}, {}, { event: 'tool.completed', ok: false }])
  })

  t.test(
    'runs calls of a tool that is not parallelSafe one at a time, in their order, beside all others',
    async (t) => {
      const { run, world } = await startTools(t)
      const calls = ['1', '2', '3'].map((gate) => run('serial', { gate }))
      world.open('3')
      world.open('2')
      t.equal(outcome(await run('count', { k: 'a' })), 'completed', 'another tool does not wait')

      world.open('1')
      for (const call of calls) t.equal(outcome(await call), 'completed')

      t.strictSame(
        world.runs.filter((run) => run.startsWith('serial')),
        ['serial 1', 'serial 1 ended', 'serial 2', 'serial 2 ended', 'serial 3', 'serial 3 ended']
      )
    }
  )

  t.test(
    'counts the wait for a turn against the deadline, and keeps the turn until the handler has settled',
    async (t) => {
      const { run, world } = await startTools(t, fixtureTools, { config: { timeout_ms: 25 } })

      const first = run('serial', { gate: 'never' })
      const second = run('serial', { gate: 'open' })
      world.open('open')

      t.strictSame([outcome(await first), outcome(await second)], ['TIMEOUT', 'TIMEOUT'])
      t.strictSame(world.runs, ['serial never'], 'the second one never began')
      world.open('never')
      t.equal(outcome(await run('serial', { gate: 'open' })), 'completed', 'the turn is free again')
      t.strictSame(world.runs, ['serial never', 'serial never ended', 'serial open', 'serial open ended'])
    }
  )

  t.test('runs a long queue of calls that are answered at once', async (t) => {
    const { run, world } = await startTools(t, (world) => [
      toolOf<{ wait?: boolean }, unknown>({
        name: 'either',
        parallelSafe: false,
        run: ({ wait }) => (wait === true ? world.pass('go').then(() => 0) : 1)
      })
    ])
    const calls = [run('either', { wait: true })]
    for (let index = 0; index < 20_000; index += 1) calls.push(run('either'))
    world.open('go')

    const outcomes = await Promise.all(calls)

    t.ok(outcomes.every((execution) => execution.response.status === 'completed'))
  })

  t.test('takes a caller that leaves out of the queue', async (t) => {
    const { run, world } = await startTools(t)
    const controller = new AbortController()
    const first = run('serial', { gate: '1' })
    const second = run('serial', { gate: '2' }, { signal: controller.signal })
    const third = run('serial', { gate: '3' })
    world.open('3')

    controller.abort()
    t.equal(outcome(await second), 'CANCELLED')
    world.open('1')

    t.equal(outcome(await first), 'completed')
    t.equal(outcome(await third), 'completed')
    t.notOk(world.runs.includes('serial 2'))
  })

  t.test('passes the turn on where the next caller leaves in the very moment it comes', async (t) => {
    const { run, world } = await startTools(t)
    const controller = new AbortController()
    const leave = ({ event }: ExecutionEvent): void => {
      if (event === 'tool.completed') controller.abort()
    }
    const first = run('serial', { gate: '1' }, { listener: leave })
    const second = run('serial', { gate: '2' }, { signal: controller.signal })
    world.open('3')
    world.open('1')

    t.equal(outcome(await first), 'completed')
    t.equal(outcome(await second), 'CANCELLED')
    t.equal(outcome(await run('serial', { gate: '3' })), 'completed')
    t.notOk(world.runs.includes('serial 2'))
  })

  t.test('keeps nothing of callers that have stopped waiting', async (t) => {
    const turns: Turns = new Map()
    const waiting = { takeTurn() {} }
    t.equal(enterTurn(turns, 'x', waiting), true)
    t.equal(enterTurn(turns, 'x', waiting), false)
    quitTurn(turns, 'x', waiting)
    t.equal(turns.get('x')?.size, 0)
    leaveTurn(turns, 'x')
    t.equal(turns.size, 0)

    const fan = new AbortFan()
    const controller = new AbortController()
    const told: unknown[] = []
    const listener = { onAbort: (reason: unknown) => told.push(reason) }
    fan.add(controller.signal, listener)
    fan.remove(controller.signal, listener)
    controller.abort('now')
    t.strictSame(told, [])
    fan.add(controller.signal, listener)
    t.strictSame(told, ['now'], 'one that has fired tells at once')
  })

  t.test('serves thousands of calls at once without a warning about listeners', async (t) => {
    const { run, world } = await startTools(t)
    const warnings: Error[] = []
    const note = (warning: Error): void => void warnings.push(warning)
    process.on('warning', note)
    const { signal } = new AbortController()

    const calls = Array.from({ length: 2_000 }, () => run('sleep', { gate: 'all' }, { signal }))
    world.open('all')
    await Promise.all(calls)
    // Warnings are emitted in a tick of their own.
    await new Promise(setImmediate)

    process.off('warning', note)
    t.strictSame(warnings, [])
  })
})

t.test('a swap', async (t) => {
  /** A tool whose answers tell its generation. */
  const versions = (world: World, seen: AbortSignal[] = []): Plugin => {
    let generation = 0
    return toolsPlugin(() => {
      generation += 1
      const mine = generation
      return [
        toolOf<{ gate?: string }, unknown>({
          name: 'which',
          effect: 'write',
          parallelSafe: false,
          async run({ gate }, { signal }) {
            seen.push(signal)
            world.tell(`in ${gate ?? ''}`)
            if (gate !== undefined) await world.pass(gate)
            return mine
          }
        })
      ]
    }, 'versions')
  }

  t.test('lets a running call finish on the generation it began with, and queues the next one behind it', async (t) => {
    const world = new World()
    const { kernel, run } = await startTools(t, [], { entries: [{ plugin: versions(world) }] })
    const old = run('which', { gate: 'old' })
    await world.until('in old')

    await kernel.update('versions', {})
    const next = run('which')
    await kernel.update('tools', { timeout_ms: 10_000 })
    const last = run('which')

    t.equal(kernel.fibers().find((fiber) => fiber.entry === 'versions')?.draining, 1)
    world.open('old')
    t.strictSame([(await old).response.data, (await next).response.data, (await last).response.data], [1, 2, 2])
  })

  t.test('reaches a call that outlasts the drain time, and answers it as cancelled', async (t) => {
    const world = new World()
    const { kernel, run } = await startTools(t, [], {
      entries: [{ plugin: versions(world) }],
      settings: { drain_timeout_ms: 20 }
    })
    const old = run('which', { gate: 'never' })
    await world.until('in never')

    await kernel.update('versions', {})

    t.match((await old).response, { status: 'cancelled', error: { code: 'CANCELLED' } })
    world.open('never')
  })

  t.test('of the registry leaves running ids and turns as they are', async (t) => {
    const { kernel, run, world } = await startTools(t)
    const first = run('serial', { gate: '1' }, { requestId: 'kept' })
    await world.until('serial 1')

    await kernel.update('tools', { timeout_ms: 10_000 })
    const again = await run('serial', { gate: '1' }, { requestId: 'kept' })
    const second = run('serial', { gate: '2' })
    world.open('2')
    world.open('1')

    t.equal(outcome(again), 'EXECUTION_UNCERTAIN')
    t.equal(outcome(await first), 'completed')
    t.equal(outcome(await second), 'completed')
    t.strictSame(world.runs, ['serial 1', 'serial 1 ended', 'serial 2', 'serial 2 ended'])
    t.ok((await run('serial', { gate: '1' }, { requestId: 'kept' })).replayed)
  })
})

t.test('a request id', async (t) => {
  t.test('gets the first answer again, byte for byte, and runs its tool once', async (t) => {
    const { run, world } = await startTools(t)

    const first = await run('count', { k: 'a', more: { x: [1], y: 2 } }, { requestId: 'a' })
    const again = await run('count', { more: { y: 2, x: [1] }, k: 'a' }, { requestId: 'a' })

    t.equal(first.replayed, false)
    t.equal(again.replayed, true)
    t.equal(again.text, first.text)
    t.strictSame(again.response, first.response)
    t.equal(world.count('count'), 1)
    t.notOk((await run('count', { k: 'a' })).replayed)
  })

  t.test(
    'belongs to one call: other arguments or another tool are a conflict, and leave the answer as it is',
    async (t) => {
      const { run, world } = await startTools(t)
      const first = await run('count', { k: 'a' }, { requestId: 'a' })

      t.equal(outcome(await run('count', { k: 'b' }, { requestId: 'a' })), 'IDEMPOTENCY_CONFLICT')
      t.equal(outcome(await run('echo', { text: 'a' }, { requestId: 'a' })), 'IDEMPOTENCY_CONFLICT')
      t.equal((await run('count', { k: 'a' }, { requestId: 'a' })).text, first.text)
      t.strictSame(world.runs, ['count'])
    }
  )

  t.test('belongs to one principal and session, whatever their names', async (t) => {
    const { run, world } = await startTools(t)
    const callers = [
      { principal: undefined },
      { principal: '0' },
      { principal: 'user:ann' },
      { principal: 'user:ann', session: '0' },
      { principal: 'user:ann', session: 'a' },
      { principal: 'user', session: ':ann' },
      { principal: 'user:ann\u0000', session: 'a' }
    ]
    for (const caller of callers) t.equal((await run('count', { k: 'a' }, { requestId: 'a', caller })).replayed, false)
    for (const caller of callers) t.equal((await run('count', { k: 'a' }, { requestId: 'a', caller })).replayed, true)
    t.equal(world.count('count'), callers.length)
  })

  t.test('has 1 to 256 bytes of well-formed text', async (t) => {
    const { run } = await startTools(t)
    const refused = ['', 'x'.repeat(257), 'é'.repeat(129), '\ud800', 'a\udc00b']
    for (const requestId of refused)
      t.equal(outcome(await run('peek', {}, { requestId })), 'INVALID_ID', JSON.stringify(requestId))
    const taken = ['x', 'x'.repeat(256), 'é'.repeat(128), '😀'.repeat(64), 'a\u0000b', '../..', '__proto__', '\n']
    for (const requestId of taken) {
      t.equal((await run('peek', {}, { requestId })).replayed, false, JSON.stringify(requestId))
      t.equal((await run('peek', {}, { requestId })).replayed, true, JSON.stringify(requestId))
    }
  })

  t.test('is not used up by a call that was refused', async (t) => {
    const { run, world } = await startTools(t)
    const caller = { ...ann, permissions: new Set(['confirm:wipe']) }
    const requestId = 'free'

    t.equal(outcome(await run('nope', {}, { requestId })), 'TOOL_NOT_FOUND')
    t.equal(outcome(await run('wipe', {}, { requestId })), 'CONFIRMATION_REQUIRED')
    t.equal(outcome(await run('echo', { text: 1 }, { requestId })), 'INVALID_ARGUMENTS')
    t.equal(outcome(await run('echo', { text: 'a' }, { requestId, signal: AbortSignal.abort() })), 'CANCELLED')
    t.equal(outcome(await run('count', { k: 'a', more: nested(2_000) }, { requestId })), 'INVALID_ARGUMENTS')
    t.equal(outcome(await run('count', { k: 'a', more: Number.POSITIVE_INFINITY }, { requestId })), 'INVALID_ARGUMENTS')
    t.equal(outcome(await run('wipe', {}, { requestId, caller })), 'completed')
    t.equal(outcome(await run('wipe', {}, { requestId })), 'CONFIRMATION_REQUIRED', 'policies come before the replay')
    t.ok((await run('wipe', {}, { requestId, caller })).replayed)
    t.strictSame(world.runs, ['wipe'])
  })

  t.test('keeps every outcome but a retryable one, which frees it', async (t) => {
    const { run, world } = await startTools(t, fixtureTools, { config: { timeout_ms: 20 } })
    const kept: readonly [string, unknown, string][] = [
      ['fail', { category: 'conflict' }, 'FAILED_ON_PURPOSE'],
      ['fail', { category: 'timeout' }, 'FAILED_ON_PURPOSE'],
      ['boom', {}, 'TOOL_PANIC'],
      ['boom', { later: true }, 'TOOL_PANIC'],
      ['badout', {}, 'INVALID_OUTPUT'],
      ['sleep', { gate: 'never' }, 'TIMEOUT']
    ]
    for (const [index, [tool, input, code]] of kept.entries()) {
      const first = await run(tool, input, { requestId: `kept ${index}` })
      const again = await run(tool, input, { requestId: `kept ${index}` })
      t.equal(outcome(first), code)
      t.equal(again.text, first.text)
      t.equal(again.category, first.category)
      t.equal(again.replayed, true)
    }
    world.open('never')
    const runs = world.runs.length
    const retryable = { category: 'capacity', retryable: true }
    for (const _ of [1, 2]) {
      const { replayed, response } = await run('fail', retryable, { requestId: 'freed' })
      t.equal(replayed, false)
      t.strictSame(
        response._agent.next_actions.map((action) => action.tool),
        ['fail']
      )
    }
    t.equal(world.runs.length, runs + 2)
    t.equal(outcome(await run('echo', { text: 'a' }, { requestId: 'freed' })), 'completed', 'for any call')
  })

  t.test('runs once under duplicates at the same moment; they are told at once, and replay later', async (t) => {
    const { run, world } = await startTools(t)
    const input = { gate: 'one' }

    const calls = Array.from({ length: 25 }, () => run('sleep', input, { requestId: 'par' }))
    await world.until('sleep one')
    t.equal(outcome(await run('sleep', { gate: 'other' }, { requestId: 'par' })), 'IDEMPOTENCY_CONFLICT')
    world.open('one')

    const outcomes = (await Promise.all(calls)).map(outcome)
    t.equal(outcomes.filter((code) => code === 'completed').length, 1)
    t.equal(outcomes.filter((code) => code === 'EXECUTION_UNCERTAIN').length, 24)
    t.equal((await run('sleep', input, { requestId: 'par' })).replayed, true)
    t.equal(world.count('sleep'), 1)
  })

  t.test('of a client that left stays uncertain when the tool was running, and is free when it was not', async (t) => {
    const { run, world } = await startTools(t)
    const gone = new CodedError('CLIENT_GONE', 'the client left')
    const leaver = () => {
      const controller = new AbortController()
      return { signal: controller.signal, leave: () => controller.abort(gone) }
    }
    const watching = leaver()
    const watched = run('watch', {}, { requestId: 'begun', signal: watching.signal })
    await world.until('watch began')
    watching.leave()
    t.equal(outcome(await watched), 'CANCELLED')
    t.equal(outcome(await run('watch', {}, { requestId: 'begun' })), 'EXECUTION_UNCERTAIN')

    const first = run('serial', { gate: '1' })
    const queued = leaver()
    const second = run('serial', { gate: '2' }, { requestId: 'queued', signal: queued.signal })
    queued.leave()
    t.equal(outcome(await second), 'CANCELLED')
    world.open('1')
    world.open('2')
    await first
    t.equal(outcome(await run('serial', { gate: '2' }, { requestId: 'queued' })), 'completed')
    t.equal(world.runs.filter((run) => run === 'serial 2').length, 1)
  })

  t.test('keeps the answer of a call that was cancelled by anyone else', async (t) => {
    const { run, world } = await startTools(t)
    const controller = new AbortController()
    const watching = run('watch', {}, { requestId: 'stopped', signal: controller.signal })
    await world.until('watch began')

    controller.abort(new CodedError('SHUTTING_DOWN', 'the server stops'))

    const first = await watching
    t.equal(outcome(first), 'CANCELLED')
    t.equal((await run('watch', {}, { requestId: 'stopped' })).text, first.text)
    t.equal(world.count('watch'), 1)
  })

  t.test('that was settled by somebody else while its tool ran is left as they settled it', async (t) => {
    const { run, world, services } = await startTools(t)
    const key = ['user:ann', 0, 'taken']
    const store = services('store')
    for (const [gate, other] of [
      ['freed', undefined],
      ['taken over', { execution_id: 'another', fingerprint: 'x' }]
    ] as const) {
      const running = run('serial', { gate }, { requestId: 'taken' })
      await world.until(`serial ${gate}`)
      await store.atomically((tx) => {
        if (other === undefined) tx.remove('tools.open', key)
        else tx.put('tools.open', key, other)
      })
      world.open(gate)

      const { response } = await running

      t.match(response.error, { code: 'IDEMPOTENCY_CONFLICT', category: 'conflict' }, gate)
      t.strictSame((await store.get('tools.open', key))?.value, other)
      t.equal(await store.get('tools.finished', key), undefined)
    }
  })

  t.test('is remembered across a restart, and so is one that was caught in the act', async (t) => {
    const dataFolder = t.testdir()
    const before = await startTools(t, fixtureTools, { dataFolder })
    const first = await before.run('count', { k: 'a' }, { requestId: 'kept' })
    await leaveBehind(before, 'caught')

    await before.kernel.stop()
    const { run, world } = await startTools(t, fixtureTools, { dataFolder })
    const again = await run('count', { k: 'a' }, { requestId: 'kept' })

    t.equal(again.text, first.text)
    t.equal(again.replayed, true)
    t.equal(outcome(await run('count', { k: 'b' }, { requestId: 'kept' })), 'IDEMPOTENCY_CONFLICT')
    t.equal(outcome(await run('serial', { gate: 'caught' }, { requestId: 'caught' })), 'EXECUTION_UNCERTAIN')
    t.equal(outcome(await run('serial', { gate: 'x' }, { requestId: 'caught' })), 'IDEMPOTENCY_CONFLICT')
    t.strictSame(world.runs, [])
  })
})

t.test('a store that fails', async (t) => {
  /** The registry over a store that does as the test says. */
  async function startFaulty(t: T) {
    const store = new FaultyStore()
    return { store, ...(await startTools(t, fixtureTools, { store: false, entries: [{ plugin: store.plugin }] })) }
  }

  t.test('while it reserves keeps the tool from running, and the same call succeeds later', async (t) => {
    for (const fault of ['read', 'write']) {
      const { store, run, world } = await startFaulty(t)
      if (fault === 'read') store.failsToRead = true
      else store.commitsLeft = 0

      const { response } = await run('count', { k: 'a' }, { requestId: 'a' })

      t.match(
        response,
        { status: 'failed', error: { code: 'STORE_ERROR', category: 'internal', retryable: true } },
        fault
      )
      t.strictSame(world.runs, [])
      store.failsToRead = false
      store.commitsLeft = 2
      t.equal(outcome(await run('count', { k: 'a' }, { requestId: 'a' })), 'completed')
      t.equal(outcome(await run('echo', { text: 'a' })), 'completed', 'and what needs no store never minds')
    }
  })

  t.test('while it records costs the answer, and the id stays uncertain: the tool is not run again', async (t) => {
    for (const [tool, input] of [
      ['count', { k: 'a' }],
      ['fail', { category: 'capacity', retryable: true }]
    ] as const) {
      const { store, run, world, lines } = await startFaulty(t)
      store.commitsLeft = 1

      const { response } = await run(tool, input, { requestId: 'a' })

      t.match(
        response,
        { status: 'failed', error: { code: 'STORE_ERROR', category: 'internal', retryable: false } },
        tool
      )
      t.strictSame(response._agent.next_actions, [])
      t.match(lines.findLast(isError), { error: { code: 'STORE_FAILED' } })
      store.commitsLeft = 9
      t.equal(outcome(await run(tool, input, { requestId: 'a' })), 'EXECUTION_UNCERTAIN')
      t.equal(world.count(tool), 1)
    }
  })

  t.test('or is slow keeps the generation of a tool from ending before it has run', async (t) => {
    const { store, run, kernel } = await startFaulty(t)
    let sync = (): void => {}
    store.disk = new Promise((resolve) => {
      sync = resolve
    })
    const committed = store.committed()
    const call = run('count', { k: 'a' }, { requestId: 'a' })
    await committed

    await kernel.update('fixture', {})

    t.equal(kernel.fibers().find((fiber) => fiber.entry === 'fixture')?.draining, 1)
    sync()
    t.equal(outcome(await call), 'completed')
  })

  t.test('does not give an answer again before it is on disk', async (t) => {
    const { store, run } = await startFaulty(t)
    let sync = (): void => {}
    const committed = store.committed()
    const first = run('count', { k: 'a' }, { requestId: 'a' })
    await committed
    store.disk = new Promise((resolve) => {
      sync = resolve
    })
    await store.committed()

    t.equal(outcome(await run('count', { k: 'a' }, { requestId: 'a' })), 'EXECUTION_UNCERTAIN', 'visible, but not safe')
    sync()
    const { text } = await first
    t.equal((await run('count', { k: 'a' }, { requestId: 'a' })).text, text)
  })
})

t.test('the calculator', async (t) => {
  const start = (t: T, config: object = {}) =>
    startTools(t, [], { store: false, entries: [{ plugin: new FaultyStore().plugin }, { plugin: calculator, config }] })

  t.test('calculates exactly and rounds once', async (t) => {
    const { run, registry } = await start(t)
    const results: readonly [string, number][] = [
      ['17*23', 391],
      ['0.1 + 0.2', 0.3],
      ['1/3*3', 1],
      ['2/3', 0.666667],
      ['-2/3', -0.666667],
      ['1.0000005', 1.000001],
      ['-2^2', -4],
      ['2^3^2', 512],
      ['2^-1', 0.5],
      ['(2 + 3) * 4', 20],
      ['2 + 3 * 4', 14],
      ['10 - 4 - 3', 3],
      ['24 / 4 / 2', 3],
      ['--+-1', -1],
      ['-7 % 3', -1],
      ['5.5 % 2', 1.5],
      ['.5 + 1.', 1.5],
      ['1e3 + 2E-1', 1000.2],
      ['3 × 4 ÷ 2 − 1', 5],
      ['2^0.5', 1.414214],
      ['1^100000', 1],
      ['(1 + 0.045/365)^3650', 1.568269],
      ['10^308 * 10^300 / 10^300', 1e308],
      ['1e-7', 1e-7],
      ['0.5^1000', 9.3326e-302],
      ['0 * -1', 0]
    ]
    for (const [expression, result] of results) {
      t.strictSame((await run('calculator', { expression })).response.data, { result }, expression)
    }
    t.match(registry.get('calculator'), { effect: 'none', idempotent: true, parallel_safe: true })
    t.equal(registry.isAnonymous('calculator'), false)
  })

  t.test('takes one operation on two numbers', async (t) => {
    const { run } = await start(t)
    const results = [
      ['add', 0.3],
      ['subtract', -0.1],
      ['multiply', 0.02],
      ['divide', 0.5]
    ] as const
    for (const [operation, result] of results) {
      t.strictSame((await run('calculator', { operation, a: 0.1, b: 0.2 })).response.data, { result }, operation)
    }
  })

  t.test('says what is wrong instead of making up a number', async (t) => {
    const { run } = await start(t)
    const wrong: readonly [object, string, object?][] = [
      [{ expression: '1/0' }, 'CALCULATOR_DIVISION_BY_ZERO'],
      [{ expression: '1 % 0' }, 'CALCULATOR_DIVISION_BY_ZERO'],
      [{ expression: '0^-1' }, 'CALCULATOR_DIVISION_BY_ZERO'],
      [{ operation: 'divide', a: 1, b: 0 }, 'CALCULATOR_DIVISION_BY_ZERO'],
      [{ expression: '2 +' }, 'CALCULATOR_SYNTAX', { position: 4 }],
      [{ expression: '2 3' }, 'CALCULATOR_SYNTAX', { position: 3 }],
      [{ expression: '((1)' }, 'CALCULATOR_SYNTAX', { position: 5 }],
      [{ expression: '1 + 😀' }, 'CALCULATOR_SYNTAX', { position: 5 }],
      [{ expression: 'constructor' }, 'CALCULATOR_SYNTAX', { position: 1 }],
      [{ expression: '1..2' }, 'CALCULATOR_SYNTAX', { position: 3 }],
      [{ expression: '('.repeat(500) }, 'CALCULATOR_SYNTAX'],
      [{ expression: '-'.repeat(999) }, 'CALCULATOR_SYNTAX'],
      [{ expression: '1e400' }, 'CALCULATOR_NOT_FINITE'],
      [{ expression: '1e999999999' }, 'CALCULATOR_NOT_FINITE'],
      [{ expression: '9^9^9' }, 'CALCULATOR_NOT_FINITE'],
      [{ expression: '0.5^10000' }, 'CALCULATOR_NOT_FINITE'],
      [{ operation: 'multiply', a: 1e308, b: 10 }, 'CALCULATOR_NOT_FINITE'],
      [{ expression: '(-8)^(1/3)' }, 'CALCULATOR_NOT_REAL'],
      [{ operation: 'add', a: 1 }, 'CALCULATOR_MISSING_OPERAND', { missing: 'b' }],
      [{ a: 1, b: 2 }, 'CALCULATOR_MISSING_OPERAND', { missing: 'operation' }],
      [{}, 'CALCULATOR_MISSING_OPERAND'],
      [{ expression: '1', operation: 'add', a: 1, b: 2 }, 'CALCULATOR_AMBIGUOUS'],
      [{ operation: 'modulo', a: 1, b: 2 }, 'INVALID_ARGUMENTS', { reason: /"add", "subtract", "multiply", "divide"/ }],
      [{ expression: '' }, 'INVALID_ARGUMENTS'],
      [{ expression: '1'.repeat(1_001) }, 'INVALID_ARGUMENTS'],
      [{ expression: '1', precision: 3 }, 'INVALID_ARGUMENTS']
    ]
    for (const [input, code, details] of wrong) {
      const { response } = await run('calculator', input)
      t.match(response.error, { code, category: 'validation', ...(details === undefined ? {} : { details }) })
    }
  })

  t.test('rounds to the precision of its entry, from the next call after a change on', async (t) => {
    const { run, kernel, registry } = await start(t, { precision: 2, anonymous: true })
    const { version } = registry.catalog()
    const third = async () => (await run('calculator', { expression: '1.005' })).response.data

    t.strictSame(await third(), { result: 1.01 })
    await kernel.update('calculator', { precision: 0, anonymous: true })
    t.strictSame(await third(), { result: 1 })
    t.equal(registry.catalog().version, version)
    t.equal(registry.isAnonymous('calculator'), true)
    await t.rejects(kernel.update('calculator', { precision: 16 }))
    t.strictSame(await third(), { result: 1 })
  })
})

t.test('the clock', async (t) => {
  t.test('tells the time in UTC and in a time zone', async (t) => {
    const tool = clock(() => 1_000_000_000_000, false)
    const context = {} as Parameters<Tool['run']>[1]
    t.strictSame(tool.run({}, context), {
      utc: '2001-09-09T01:46:40.000Z',
      timezone: 'UTC',
      local: '2001-09-09T01:46:40.000+00:00',
      weekday: 'Sunday'
    })
    t.match(tool.run({ timezone: 'Asia/Kolkata' }, context), {
      timezone: 'Asia/Kolkata',
      local: '2001-09-09T07:16:40.000+05:30'
    })
    t.match(tool.run({ timezone: 'America/New_York' }, context), {
      local: '2001-09-08T21:46:40.000-04:00',
      weekday: 'Saturday'
    })
    t.equal(tool.effect, 'read')
    t.notOk(tool.idempotent)
  })

  t.test('refuses a time zone that nobody knows', async (t) => {
    const { run } = await startTools(t, [], {
      store: false,
      entries: [{ plugin: new FaultyStore().plugin }, { plugin: clockPlugin }]
    })
    const before = Date.now()
    const { response } = await run('clock', { timezone: 'Europe/Berlin' })
    t.ok(Date.parse((response.data as { local: string }).local) >= before)
    t.match((await run('clock', { timezone: 'Mars/Base' })).response.error, {
      code: 'CLOCK_UNKNOWN_TIMEZONE',
      category: 'validation',
      recoverable: true
    })
  })
})
