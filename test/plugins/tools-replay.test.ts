import t from 'tap'
import { CodedError } from '../../kernel/index.ts'
import { createExecutionIds, timeOf } from '../../plugins/tools/execution-id.ts'
import type { ExecuteRequest, Tool, Verdict } from '../../plugins/tools/types.ts'
import { FaultyStore } from '../fakes/faulty-store.ts'
import { toolOf, type World } from '../fixtures/carmy-tools.ts'
import {
  Clock,
  leaveBehind,
  leaveSerialBehind,
  type Options,
  outcome,
  startTools,
  startWithAdmins
} from '../fixtures/tools-house.ts'

type T = Parameters<typeof startTools>[0]

t.test('execution ids', async (t) => {
  t.test('begin with the time, and are never the same', async (t) => {
    const clock = new Clock()
    const newId = createExecutionIds(clock.now)
    const ids = Array.from({ length: 70_000 }, newId)
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
