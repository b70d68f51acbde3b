import t from 'tap'
import audit from '../../plugins/audit/index.ts'
import auth from '../../plugins/auth/index.ts'
import workers from '../../plugins/workers/index.ts'
import { createExecutionIds, timeOf } from '../../plugins/tools/execution-id.ts'
import { toolsAt } from '../../plugins/tools/index.ts'
import type { ExecuteRequest, Execution, Tool, Verdict } from '../../plugins/tools/types.ts'
import { FaultyStore } from '../fakes/faulty-store.ts'
import { fixtureTools, toolOf, toolsPlugin, World } from '../fixtures/carmy-tools.ts'
import { collect, type HouseEntry, type HouseOptions, startHouse } from '../harness.ts'

type T = Parameters<typeof startHouse>[0]

const ann = { principal: 'user:ann' }
const secret = 'the-admin-secret-of-the-tests'

/** A clock that the test holds, in milliseconds. */
class Clock {
  ms = 1_800_000_000_000
  readonly now = (): number => this.ms
}

interface Options extends HouseOptions {
  readonly config?: object
  readonly tools?: (world: World) => readonly Tool[]
  readonly entries?: readonly HouseEntry[]
  readonly clock?: Clock
}

async function startTools(t: T, { config, tools, entries, clock = new Clock(), ...options }: Options = {}) {
  const world = new World()
  const house = await startHouse(
    t,
    [
      { plugin: toolsAt(clock.now, clock.now), config: config ?? {} },
      { plugin: toolsPlugin(() => [...fixtureTools(world), ...(tools?.(world) ?? [])]) },
      ...(entries ?? [])
    ],
    { http: false, ...options }
  )
  const run = async (tool: string, input: unknown = {}, requestId?: string, more: Partial<ExecuteRequest> = {}) =>
    house.services('tools').execute({ tool, arguments: input, caller: ann, requestId, ...more })
  const idsIn = async (collection: string) =>
    (await collect(house.services('store').range(collection, []))).map(([key, { value }]) => [key, value] as const)
  return { ...house, world, clock, run, idsIn }
}

type Started = Awaited<ReturnType<typeof startTools>>

/** The same with administrators, who ask in process. */
async function startWithAdmins(t: T, options: Options = {}) {
  const started = await startTools(t, {
    ...options,
    http: true,
    entries: [
      { plugin: workers },
      { plugin: auth, config: { admin_secret: secret } },
      { plugin: audit },
      ...(options.entries ?? [])
    ]
  })
  const admin = (method: string, path: string, body?: unknown) =>
    started.services('http').dispatch({
      method,
      path: `/api/admin/${path}`,
      headers: { 'x-admin-secret': secret },
      ...(body === undefined ? {} : { body })
    }) as Promise<unknown> as Promise<{ status: number; body: never }>
  return { ...started, admin }
}

/** The code of the error, or the status where there is none. */
function outcome({ response }: Execution): string {
  return response.error?.code ?? response.status
}

/**
 * What a process leaves behind that is killed while a tool runs: the reservation of the id, and nothing after it.
 * @returns the execution id
 */
async function leaveBehind(
  { services, idsIn }: Started,
  first: Promise<Execution>,
  finish: () => void,
  requestId: string
): Promise<string> {
  const found = (await idsIn('tools.open')).find(([key]) => key[2] === requestId)
  if (found === undefined) throw new Error('nothing was reserved')
  const [key, reservation] = found as readonly [readonly string[], { readonly execution_id: string }]
  finish()
  await first
  await services('store').atomically((tx) => {
    tx.remove('tools.finished', key)
    tx.remove('tools.endings', [reservation.execution_id])
    tx.put('tools.open', key, reservation)
  })
  return reservation.execution_id
}

async function leaveSerialBehind(started: Started, requestId: string): Promise<string> {
  const first = started.run('serial', { gate: requestId }, requestId)
  await started.world.until(`serial ${requestId}`)
  return leaveBehind(started, first, () => started.world.open(requestId), requestId)
}

t.test('execution ids', async (t) => {
  t.test('begin with the time, and are never the same', async (t) => {
    const clock = new Clock()
    const newId = createExecutionIds(clock.now)
    const ids = Array.from({ length: 1_000 }, newId)
    clock.ms += 1
    const later = newId()

    t.equal(new Set(ids).size, ids.length)
    t.ok(ids.every((id) => id < later))
    t.ok(ids.every((id) => /^exec_[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$/.test(id)))
    t.equal(timeOf(later), clock.ms)
  })
})

t.test('what is remembered', async (t) => {
  t.test(
    'cases 61 to 63: a principal has room for so many ids, and known ones are answered all the same',
    async (t) => {
      for (const [tool, input] of [
        ['count', { k: 'a' }],
        ['echo', { text: 'a' }]
      ] as const) {
        const { run, world, idsIn } = await startTools(t, { config: { max_request_ids: 2 } })
        const first = await run(tool, input, '1')
        await run(tool, input, '2')

        const third = await run(tool, input, '3')
        t.match(third.response, {
          status: 'failed',
          error: { code: 'IDEMPOTENCY_CAPACITY', category: 'capacity', retryable: false }
        })
        t.equal(world.count(tool), 2, `${tool} did not run`)
        t.equal((await run(tool, input, '1')).text, first.text, 'case 62')
        t.equal(outcome(await run(tool, input)), 'completed', 'case 63')
        t.equal(outcome(await run(tool, input, '3', { caller: { principal: 'user:bob' } })), 'completed')
        t.strictSame(await idsIn('tools.counts'), [
          [['user:ann'], 2],
          [['user:bob'], 1]
        ])
      }
    }
  )

  t.test('the count is exact whatever comes at the same time, and however calls end', async (t) => {
    const { run, world, idsIn } = await startTools(t, { config: { max_request_ids: 40 } })
    const retryable = { category: 'capacity', retryable: true }

    const outcomes = await Promise.all(
      Array.from({ length: 100 }, (_, index) => [
        run('count', { k: 'a' }, `count ${index}`),
        run('fail', retryable, `fail ${index}`),
        run('echo', { text: 'a' }, `echo ${index}`)
      ]).flat()
    )

    const completed = outcomes.map(outcome).filter((code) => code === 'completed').length
    const [, kept] = (await idsIn('tools.counts'))[0] ?? []
    t.equal((await idsIn('tools.finished')).length, kept)
    t.equal(completed, kept)
    t.ok((kept as number) > 0 && (kept as number) <= 40)
    t.equal(world.count('count') <= 40, true)
    t.strictSame(await idsIn('tools.open'), [])
  })

  t.test('answers go once they are old, in the background; what is uncertain stays', async (t) => {
    const clock = new Clock()
    const started = await startTools(t, { clock, config: { request_id_ttl_seconds: 60, max_request_ids: 1_000 } })
    const { run, idsIn, kernel, world } = started
    await leaveSerialBehind(started, 'caught')
    await Promise.all(Array.from({ length: 250 }, (_, index) => run('count', { k: 'a' }, `old ${index}`)))
    clock.ms += 59_000
    await run('count', { k: 'a' }, 'young')
    clock.ms += 1_000

    // The next generation looks at once.
    await kernel.update('tools', { request_id_ttl_seconds: 60, max_request_ids: 1_000, timeout_ms: 29_999 })
    while ((await idsIn('tools.finished')).length > 1) await new Promise((resolve) => setImmediate(resolve))

    t.strictSame(await idsIn('tools.counts'), [[['user:ann'], 2]])
    t.equal((await idsIn('tools.endings')).length, 1)
    t.equal((await run('count', { k: 'a' }, 'young')).replayed, true)
    t.equal((await run('count', { k: 'a' }, 'old 0')).replayed, false)
    t.equal(outcome(await run('serial', { gate: 'caught' }, 'caught')), 'EXECUTION_UNCERTAIN')
    t.equal(world.count('serial caught'), 1)
  })

  t.test('a principal that was refused has room again once its answers are old', async (t) => {
    const clock = new Clock()
    const { run, idsIn } = await startTools(t, { clock, config: { request_id_ttl_seconds: 60, max_request_ids: 1 } })
    await run('count', { k: 'a' }, '1')
    clock.ms += 60_000

    t.equal(outcome(await run('count', { k: 'a' }, '2')), 'IDEMPOTENCY_CAPACITY')
    while ((await idsIn('tools.counts')).length > 0) await new Promise((resolve) => setImmediate(resolve))

    t.equal(outcome(await run('count', { k: 'a' }, '2')), 'completed')
  })

  t.test(
    'a tool without effects runs while its id is being reserved, and its answer is on disk before it is given',
    async (t) => {
      const store = new FaultyStore()
      const { run, world } = await startTools(t, { store: false, entries: [{ plugin: store.plugin }] })
      let sync = (): void => {}
      store.disk = new Promise((resolve) => {
        sync = resolve
      })
      const committed = store.committed()
      let isAnswered = false
      const first = run('echo', { text: 'a' }, 'a').then((execution) => {
        isAnswered = true
        return execution
      })
      await committed

      t.equal(world.count('echo'), 1)
      t.equal(outcome(await run('echo', { text: 'a' }, 'a')), 'EXECUTION_UNCERTAIN')
      t.equal(outcome(await run('echo', { text: 'b' }, 'a')), 'IDEMPOTENCY_CONFLICT')
      t.equal(isAnswered, false)
      sync()
      t.equal((await run('echo', { text: 'a' }, 'b')).replayed, false)
      t.equal((await run('echo', { text: 'a' }, 'a')).text, (await first).text)
    }
  )

  t.test('a tool without effects that is slow has its id reserved on disk meanwhile', async (t) => {
    const { run, world, idsIn } = await startTools(t)
    const first = run('sleep', { gate: 'one' }, 'a')
    await world.until('sleep one')
    while ((await idsIn('tools.open')).length === 0) await new Promise((resolve) => setImmediate(resolve))
    world.open('one')
    await first
    t.strictSame(await idsIn('tools.open'), [])
    t.strictSame(await idsIn('tools.counts'), [[['user:ann'], 1]])
  })
})

/** A tool that asks the world, which is the test. */
function booking(world: World, verdict: () => Verdict | Promise<Verdict>, seen: unknown[] = []): Tool {
  return toolOf<{ gate: string }, { seat: number }>({
    name: 'book',
    effect: 'external_write',
    output: { type: 'object', required: ['seat'], properties: { seat: { type: 'integer' } } },
    timeoutMs: 60_000,
    async run({ gate }, { executionId }) {
      world.runs.push(`book ${executionId}`)
      world.tell(`book ${gate}`)
      await world.pass(gate)
      return { seat: 1 }
    },
    verify(input, { executionId, requestId, principal }) {
      seen.push({ input, executionId, requestId, principal })
      return verdict() as Verdict<{ seat: number }>
    }
  })
}

t.test('a tool that can verify', async (t) => {
  async function startBooking(t: T, verdict: () => Verdict | Promise<Verdict>, options: Options = {}) {
    const seen: unknown[] = []
    const started = await startTools(t, { tools: (world) => [booking(world, verdict, seen)], ...options })
    const book = (requestId: string, more?: Partial<ExecuteRequest>) =>
      started.run('book', { gate: requestId }, requestId, more)
    async function leave(requestId: string): Promise<string> {
      const first = book(requestId)
      await started.world.until(`book ${requestId}`)
      return leaveBehind(started, first, () => started.world.open(requestId), requestId)
    }
    return { ...started, book, leave, seen }
  }

  t.test('and says that it happened: its answer is recorded, of the first call, and given from then on', async (t) => {
    const { book, leave, seen, world, idsIn } = await startBooking(t, () => ({ happened: true, output: { seat: 7 } }))
    const executionId = await leave('a')

    const again = await book('a')

    t.match(again, { replayed: true, category: undefined })
    t.match(again.response, { execution_id: executionId, status: 'completed', data: { seat: 7 } })
    t.equal((await book('a')).text, again.text)
    t.strictSame(seen, [{ input: { gate: 'a' }, executionId, requestId: 'a', principal: 'user:ann' }])
    t.equal(world.runs.length, 1)
    t.strictSame(await idsIn('tools.open'), [])
    t.strictSame(await idsIn('tools.counts'), [[['user:ann'], 1]])
  })

  t.test('and says that it did not: this very call runs, once', async (t) => {
    const { book, leave, seen, world, idsIn } = await startBooking(t, () => ({ happened: false }))
    const executionId = await leave('a')

    const outcomes = await Promise.all(Array.from({ length: 20 }, () => book('a')))

    t.strictSame(outcomes.map(outcome).filter((code) => code === 'completed').length, 1)
    t.strictSame(outcomes.map(outcome).filter((code) => code === 'EXECUTION_UNCERTAIN').length, 19)
    t.equal(seen.length, 1)
    t.equal(world.runs.length, 2)
    const again = await book('a')
    t.match(again, { replayed: true, response: { status: 'completed', data: { seat: 1 } } })
    t.not(again.response.execution_id, executionId)
    t.strictSame(await idsIn('tools.counts'), [[['user:ann'], 1]])
  })

  t.test('and does not know, throws, or makes something up, leaves the id uncertain', async (t) => {
    const verdicts: readonly (() => Verdict | Promise<Verdict>)[] = [
      () => 'unknown',
      () => Promise.reject(new Error('the other side does not answer')),
      () => {
        throw new Error('nor here')
      },
      () => ({ happened: true, output: { seat: 'not a number' } }),
      () => undefined as never,
      () => ({ happened: 'perhaps' }) as never
    ]
    let verdict = verdicts[0]!
    const { book, leave, world } = await startBooking(t, () => verdict())
    await leave('a')
    for (verdict of verdicts) t.equal(outcome(await book('a')), 'EXECUTION_UNCERTAIN')
    t.equal(world.runs.length, 1)
    verdict = () => ({ happened: true, output: { seat: 2 } })
    t.equal(outcome(await book('a')), 'completed')
  })

  t.test('is asked of the same call only, after the policies', async (t) => {
    const { book, leave, seen, run } = await startBooking(t, () => ({ happened: false }))
    await leave('a')
    t.equal(outcome(await run('book', { gate: 'b' }, 'a')), 'IDEMPOTENCY_CONFLICT')
    t.equal(outcome(await run('wipe', {}, 'a')), 'CONFIRMATION_REQUIRED')
    t.equal(outcome(await book('a', { signal: AbortSignal.abort() })), 'CANCELLED')
    t.strictSame(seen, [])
  })

  t.test('is not asked while its call still runs, also when its client has left', async (t) => {
    const { book, seen, world } = await startBooking(t, () => ({ happened: false }))
    const controller = new AbortController()
    const first = book('a', { signal: controller.signal })
    await world.until('book a')
    const { CodedError } = await import('../../kernel/index.ts')
    controller.abort(new CodedError('CLIENT_GONE', 'the client left'))
    t.equal(outcome(await first), 'CANCELLED')

    t.equal(outcome(await book('a')), 'EXECUTION_UNCERTAIN')
    t.strictSame(seen, [])
    world.open('a')
    await new Promise((resolve) => setImmediate(resolve))

    t.equal(outcome(await book('a')), 'completed')
    t.equal(seen.length, 1)
    t.equal(world.runs.length, 2)
  })

  t.test('and never answers is asked once, told to stop at the deadline, and an operator can settle', async (t) => {
    const stopped: unknown[] = []
    const { run, world, admin, idsIn, ...started } = await startWithAdmins(t, {
      tools: (world) => [
        {
          ...booking(world, () => 'unknown'),
          timeoutMs: 30,
          verify: (_input, { signal }) =>
            new Promise(() => {
              world.tell('asked')
              signal.addEventListener('abort', () => stopped.push(signal.reason))
            })
        }
      ]
    })
    const first = run('book', { gate: 'a' }, 'a')
    await world.until('book a')
    const id = await leaveBehind({ run, world, idsIn, ...started }, first, () => world.open('a'), 'a')

    t.equal(outcome(await run('book', { gate: 'a' }, 'a')), 'EXECUTION_UNCERTAIN')
    t.match(stopped, [{ code: 'TIMEOUT' }])
    t.equal(outcome(await run('book', { gate: 'a' }, 'a')), 'EXECUTION_UNCERTAIN')
    t.equal(stopped.length, 1)
    t.match(await admin('POST', `carmy/executions/${id}/settle`, { outcome: 'completed', data: { seat: 3 } }), {
      status: 200
    })
    t.match(await run('book', { gate: 'a' }, 'a'), { replayed: true, response: { data: { seat: 3 } } })
  })
})

t.test('operators', async (t) => {
  t.test('see the last calls, newest first, without what was given to them', async (t) => {
    const { run, admin, clock } = await startWithAdmins(t)
    await run('echo', { text: 'private' }, 'one')
    clock.ms += 5_000
    await run('echo', { text: 'private' }, 'one')
    await run('nope')
    await run('fail', { code: 'ON_PURPOSE', category: 'timeout' }, undefined, {
      caller: { principal: undefined, session: 's' }
    })

    const { status, body } = await admin('GET', 'carmy/executions')

    t.equal(status, 200)
    t.match(body, [
      { tool: 'fail', status: 'timed_out', error_code: 'ON_PURPOSE', principal: null, session: 's', effect: 'write' },
      { tool: 'nope', status: 'failed', error_code: 'TOOL_NOT_FOUND', effect: null, request_id: null },
      { tool: 'echo', replayed: true, started_at: 1_800_000_005 },
      {
        tool: 'echo',
        replayed: false,
        request_id: 'one',
        principal: 'user:ann',
        error_code: null,
        duration_ms: Number,
        started_at: 1_800_000_000
      }
    ])
    t.equal(
      (body as { execution_id: string }[])[2]?.execution_id,
      (body as { execution_id: string }[])[3]?.execution_id
    )
    t.notOk(JSON.stringify(body).includes('private'))
    const page = (await admin('GET', 'carmy/executions?limit=1&offset=1')).body as { tool: string }[]
    t.strictSame(
      page.map(({ tool }) => tool),
      ['nope']
    )
    t.equal(((await admin('GET', 'carmy/executions?limit=-1&offset=-1')).body as unknown[]).length, 1)
  })

  t.test('see a thousand of them at most', async (t) => {
    const { run, admin } = await startWithAdmins(t)
    for (let index = 0; index < 1_100; index += 1)
      await run('echo', { text: 'a' }, undefined, { caller: { principal: `user:${index}` } })
    const last = (await admin('GET', 'carmy/executions?limit=1')).body as { principal: string }[]
    const first = (await admin('GET', 'carmy/executions?offset=999')).body as { principal: string }[]
    t.strictSame(
      last.map(({ principal }) => principal),
      ['user:1099']
    )
    t.strictSame(
      first.map(({ principal }) => principal),
      ['user:100']
    )
    t.strictSame((await admin('GET', 'carmy/executions?offset=1000')).body, [])
  })

  t.test('see what is uncertain, and settle it, on record', async (t) => {
    const started = await startWithAdmins(t)
    const { run, admin, world, clock, idsIn } = started
    const ids: Record<string, string> = {}
    for (const requestId of ['done', 'broken', 'free']) {
      ids[requestId] = await leaveSerialBehind(started, requestId)
      clock.ms += 1_000
    }
    const running = run('serial', { gate: 'runs' }, 'runs')
    await world.until('serial runs')

    const { body } = await admin('GET', 'carmy/executions?state=uncertain')
    t.match(body, [
      {
        execution_id: ids['free'],
        request_id: 'free',
        principal: 'user:ann',
        tool: 'serial',
        effect: 'write',
        status: 'uncertain'
      },
      { execution_id: ids['broken'], started_at: 1_800_000_001 },
      { execution_id: ids['done'], started_at: 1_800_000_000 }
    ])
    t.equal((body as unknown[]).length, 3)
    const page = (await admin('GET', 'carmy/executions?state=uncertain&limit=1&offset=1')).body as {
      request_id: string
    }[]
    t.strictSame(
      page.map(({ request_id }) => request_id),
      ['broken']
    )

    const settle = (id: string | undefined, settlement: object) =>
      admin('POST', `carmy/executions/${id}/settle`, settlement)
    const done = await settle(ids['done'], { outcome: 'completed', data: { gate: 'done' } })
    t.match(done, {
      status: 200,
      body: { execution_id: ids['done'], request_id: 'done', tool: 'serial', outcome: 'completed' }
    })
    const error = { code: 'NOT_SHIPPED', message: 'the order was lost', category: 'conflict' }
    t.match(await settle(ids['broken'], { outcome: 'failed', error }), { status: 200 })
    t.match(await settle(ids['free'], { outcome: 'released' }), { status: 200 })

    const again = await run('serial', { gate: 'done' }, 'done')
    t.match(again, {
      replayed: true,
      response: { execution_id: ids['done'], status: 'completed', data: { gate: 'done' } }
    })
    t.equal((await run('serial', { gate: 'done' }, 'done')).text, again.text)
    t.match((await run('serial', { gate: 'broken' }, 'broken')).response, {
      execution_id: ids['broken'],
      status: 'failed',
      error: { ...error, retryable: false }
    })
    const [open] = (await idsIn('tools.open')).find(([key]) => key[2] === 'runs') ?? []
    t.ok(open)
    world.open('runs')
    const { response } = await running
    t.match(await run('serial', { gate: 'free' }, 'free'), { replayed: false, response: { status: 'completed' } })

    t.match(
      await settle(ids['done'], { outcome: 'released' }),
      { status: 409, body: { code: 'CONFLICT' } },
      'settled already'
    )
    t.match(await settle(response.execution_id, { outcome: 'released' }), { status: 409 }, 'never uncertain')
    t.match(await settle('exec_nobody', { outcome: 'released' }), { status: 404, body: { code: 'NOT_FOUND' } })
    t.strictSame((await admin('GET', 'carmy/executions?state=uncertain')).body, [])

    const rows = (
      (await admin('GET', 'audit-log')).body as { action: string; resource_id: string; details: unknown }[]
    ).filter(({ action }) => action === 'settle_execution')
    t.strictSame(
      rows.map(({ resource_id }) => resource_id),
      [ids['free'], ids['broken'], ids['done']]
    )
    t.match(rows[2]?.details, { after: { tool: 'serial', outcome: 'completed' } })
  })

  t.test('cannot settle what runs, nor with what the tool could not have answered', async (t) => {
    const started = await startWithAdmins(t)
    const { run, admin, world, idsIn, kernel } = started
    const id = await leaveSerialBehind(started, 'a')
    const settle = (id: string, settlement: unknown) => admin('POST', `carmy/executions/${id}/settle`, settlement)
    for (const bad of [
      {},
      { outcome: 'perhaps' },
      { outcome: 'completed' },
      { outcome: 'failed' },
      { outcome: 'failed', error: { code: 'X' } },
      { outcome: 'failed', error: { code: 'X', message: 'm', category: 'none' } }
    ]) {
      t.match(await settle(id, bad), { status: 400 }, JSON.stringify(bad))
    }
    const running = run('serial', { gate: 'runs' }, 'runs')
    await world.until('serial runs')
    const [, reservation] = (await idsIn('tools.open')).find(([key]) => key[2] === 'runs') ?? []
    t.match(await settle((reservation as { execution_id: string }).execution_id, { outcome: 'released' }), {
      status: 409
    })
    world.open('runs')
    t.equal(outcome(await running), 'completed')

    await kernel.retire('fixture')
    t.match(await settle(id, { outcome: 'completed', data: {} }), { status: 409 }, 'nobody can check it')
    t.match(await settle(id, { outcome: 'released' }), { status: 200 })
  })

  t.test('settle once, however many try', async (t) => {
    const started = await startWithAdmins(t)
    const id = await leaveSerialBehind(started, 'a')
    const answers = await Promise.all(
      Array.from({ length: 8 }, (_, index) =>
        started.admin('POST', `carmy/executions/${id}/settle`, { outcome: 'completed', data: { gate: String(index) } })
      )
    )
    t.strictSame(
      answers.map(({ status }) => status).sort((a, b) => a - b),
      [200, 409, 409, 409, 409, 409, 409, 409]
    )
  })

  t.test('grant permissions, which hold at once and after a restart, and are on record', async (t) => {
    const dataFolder = t.testdir()
    const before = await startWithAdmins(t, { dataFolder, config: { grants: { '*': ['tool:echo'] } } })
    t.equal(outcome(await before.run('wipe')), 'CONFIRMATION_REQUIRED')

    const put = await before.admin('PUT', 'carmy/grants/user:ann', { permissions: ['confirm:wipe', 'confirm:wipe'] })

    const granted = { principal: 'user:ann', permissions: ['confirm:wipe'], configured: ['tool:echo'] }
    t.match(put, { status: 200, body: granted })
    t.equal(outcome(await before.run('wipe')), 'completed')
    t.equal(
      outcome(await before.run('wipe', {}, undefined, { caller: { principal: 'user:bob' } })),
      'CONFIRMATION_REQUIRED'
    )
    t.match((await before.run('whoami')).response.data, {
      principal: 'user:ann',
      permissions: ['tool:echo', 'confirm:wipe']
    })
    const rows = (await before.admin('GET', 'audit-log')).body as object[]
    t.match(rows[0], {
      action: 'set_grants',
      resource_type: 'principal',
      resource_id: 'user:ann',
      details: { before: [], after: ['confirm:wipe'] }
    })
    await before.kernel.stop()

    const { run, admin } = await startWithAdmins(t, { dataFolder })
    t.equal(outcome(await run('wipe')), 'completed')
    t.match((await admin('GET', 'carmy/grants')).body, [{ principal: 'user:ann', permissions: ['confirm:wipe'] }])
    t.match((await admin('GET', 'carmy/grants/user%3Aann')).body, {
      principal: 'user:ann',
      permissions: ['confirm:wipe']
    })
    t.match(await admin('GET', 'carmy/grants/user:nobody'), { status: 200, body: { permissions: [], configured: [] } })
    t.match(await admin('PUT', 'carmy/grants/user:ann', { permissions: [] }), { status: 200 })
    t.equal(outcome(await run('wipe')), 'CONFIRMATION_REQUIRED')
    for (const permissions of [['wipe'], ['confirm:'], ['confirm:a b'], [7], 'confirm:wipe', undefined]) {
      t.match(
        await admin('PUT', 'carmy/grants/user:ann', { permissions }),
        { status: 400 },
        JSON.stringify(permissions)
      )
    }
    t.match(await admin('PUT', 'carmy/grants/*', { permissions: ['confirm:wipe'] }), { status: 200 })
    t.equal(outcome(await run('wipe', {}, undefined, { caller: { principal: undefined } })), 'completed', 'everyone')
  })
})

t.test('policies', async (t) => {
  t.test('grants of the configuration hold for a principal, or for everyone, and never for another', async (t) => {
    const { run } = await startTools(t, { config: { grants: { 'user:ann': ['confirm:wipe'], '*': ['confirm:pay'] } } })
    const bob = { caller: { principal: 'user:bob' } }
    t.equal(outcome(await run('wipe')), 'completed')
    t.equal(outcome(await run('wipe', {}, undefined, bob)), 'CONFIRMATION_REQUIRED')
    t.equal(outcome(await run('pay', {}, undefined, bob)), 'completed')
    for (const principal of ['__proto__', 'constructor', '*', 'user:ANN']) {
      t.equal(outcome(await run('wipe', {}, undefined, { caller: { principal } })), 'CONFIRMATION_REQUIRED', principal)
    }
  })

  t.test('case 75: with require_tool_permission every call needs tool:<name>, after the confirmation', async (t) => {
    const { run, world } = await startTools(t, {
      config: { require_tool_permission: true, grants: { 'user:ann': ['tool:wipe'] } }
    })
    const caller = { principal: 'user:ann', permissions: new Set(['tool:count']) }
    t.match((await run('echo', { text: 'a' })).response.error, {
      code: 'FORBIDDEN',
      category: 'permission',
      retryable: false
    })
    t.equal(outcome(await run('count', { k: 'a' }, undefined, { caller })), 'completed')
    t.equal(outcome(await run('echo', { text: 'a' }, undefined, { caller })), 'FORBIDDEN')
    t.equal(outcome(await run('wipe')), 'CONFIRMATION_REQUIRED')
    t.equal(outcome(await run('echo', { text: 1 })), 'FORBIDDEN', 'before the arguments')
    t.strictSame(world.runs, ['count'])
  })

  t.test('cases 76 and 77: so many calls in a window, for each principal, else session, else all', async (t) => {
    const clock = new Clock()
    const { run, kernel } = await startTools(t, { clock, config: { rate_limit: { max: 2, window_ms: 2_500 } } })
    const callers = [
      ann,
      { principal: 'user:bob' },
      { principal: undefined },
      { principal: undefined, session: 'user:ann' }
    ]
    for (const caller of callers) {
      t.equal(outcome(await run('nope', {}, undefined, { caller })), 'TOOL_NOT_FOUND', 'not counted')
      t.equal(outcome(await run('echo', { text: 'a' }, 'a', { caller })), 'completed')
      t.equal(outcome(await run('echo', { text: 1 }, 'a', { caller })), 'INVALID_ARGUMENTS', 'counted')
      const { response } = await run('echo', { text: 'a' }, 'a', { caller })
      t.match(response, {
        status: 'failed',
        error: { code: 'RATE_LIMITED', category: 'capacity', recoverable: true, retryable: true, retry_after: 3 },
        _agent: { next_actions: [{ tool: 'echo', after_ms: 3_000 }] }
      })
    }
    clock.ms += 2_499
    t.match((await run('echo', { text: 'a' }, 'a')).response.error, { retry_after: 1 })
    await kernel.update('tools', { rate_limit: { max: 2, window_ms: 2_500 }, timeout_ms: 29_999 })
    t.equal(outcome(await run('echo', { text: 'a' }, 'a')), 'RATE_LIMITED', 'a swap forgets nothing')
    clock.ms += 1
    t.equal((await run('echo', { text: 'a' }, 'a')).replayed, true)
  })
})

t.test('case 123: each call is one line in the log, without what was given', async (t) => {
  const { run, lines } = await startTools(t)
  const about = (message: string) => lines.filter((line) => line.message === message)

  const { response } = await run('echo', { text: 'private words' }, 'r1')
  await run('echo', { text: 'private words' }, 'r1')
  await run('fail', { code: 'ON_PURPOSE', category: 'conflict', details: 'private words' })
  await run('nope')

  const id = { execution_id: /^exec_/, duration_ms: Number }
  t.match(about('tool executed'), [
    {
      level: 'info',
      execution_id: response.execution_id,
      request_id: 'r1',
      tool: 'echo',
      effect: 'none',
      status: 'completed',
      replayed: false
    },
    { ...id, level: 'info', request_id: 'r1', tool: 'echo', status: 'completed', replayed: true }
  ])
  t.not(about('tool executed')[1]?.['execution_id'], response.execution_id, 'a replay is a call of its own')
  t.match(about('tool not executed'), [
    { ...id, level: 'warn', tool: 'fail', effect: 'write', status: 'failed', error_code: 'ON_PURPOSE' },
    { ...id, level: 'warn', tool: 'nope', status: 'failed', error_code: 'TOOL_NOT_FOUND' }
  ])
  t.notOk('effect' in (about('tool not executed')[1] ?? {}))
  t.notOk(JSON.stringify(lines).includes('private words'))

  const quiet = await startTools(t, { config: { log_executions: false } })
  await quiet.run('echo', { text: 'a' })
  t.strictSame(
    quiet.lines.filter((line) => line.message === 'tool executed'),
    []
  )
})

t.test('an output has its bounds', async (t) => {
  const { run, lines } = await startTools(t, {
    config: { max_output_bytes: 10 },
    tools: () => [toolOf<string, string>({ name: 'say', run: (text) => text })]
  })
  for (const [text, code] of [
    ['12345678', 'completed'],
    ['123456789', 'INVALID_OUTPUT'],
    ['éééé', 'completed'],
    ['ééééé', 'INVALID_OUTPUT'],
    ['x'.repeat(1_000_000), 'INVALID_OUTPUT']
  ] as const) {
    const execution = await run('say', text)
    t.equal(outcome(execution), code, text.slice(0, 9))
    t.ok(execution.text.length < 1_000)
  }
  t.match(lines.findLast(({ level }) => level === 'error')?.['reason'], /1000002 bytes/)
})

t.test('the n-th thing the store is asked for fails, for every n', async (t) => {
  const ways: readonly [string, unknown, string][] = [
    ['count', { k: 'a' }, 'count'],
    ['echo', { text: 'a' }, 'echo'],
    ['fail', { category: 'capacity', retryable: true }, 'fail'],
    ['boom', { later: true }, 'boom']
  ]
  const store = new FaultyStore()
  const { run, world, idsIn } = await startTools(t, { store: false, entries: [{ plugin: store.plugin }] })
  for (const [tool, input, name] of ways) {
    for (const kind of ['commitsLeft', 'readsLeft'] as const) {
      let isWhole = false
      for (let n = 0; !isWhole; n += 1) {
        const what = `${tool}, ${kind} ${n}`
        const before = world.count(name)
        const ran = () => world.count(name) - before

        store[kind] = n
        const first = await run(tool, input, what)
        store[kind] = Number.POSITIVE_INFINITY
        isWhole = outcome(first) !== 'STORE_ERROR'
        const ranFirst = ran()
        const again = await run(tool, input, what)

        if (!isWhole && first.response.error?.retryable === true) {
          t.not(outcome(again), 'EXECUTION_UNCERTAIN', `${what}: the advice to try again is true`)
          if (tool !== 'echo') t.equal(ranFirst, 0, `${what}: nothing had run`)
        } else if (!isWhole) {
          t.equal(outcome(again), 'EXECUTION_UNCERTAIN', what)
          t.equal(ran(), 1, `${what}: not run again`)
        } else if (tool !== 'fail') {
          t.equal(again.text, first.text, what)
          t.equal(ran(), 1, what)
        }
        if (n > 40) throw new Error(`${what}: the store is asked too often`)
      }
    }
  }
  const [[, counted] = []] = await idsIn('tools.counts')
  t.equal(
    counted,
    (await idsIn('tools.open')).length + (await idsIn('tools.finished')).length,
    'and the count is exact'
  )
})
