import { setTimeout } from 'node:timers/promises'
import t from 'tap'
import { definePlugin, isCoded, type Plugin } from '../../kernel/index.ts'
import type { WorkerTask } from '../../plugins/workers/types.ts'
import { workerTasks } from '../../plugins/auth/worker-tasks.ts'
import workers from '../../plugins/workers/index.ts'
import type { Order } from '../fixtures/worker-task.ts'
import { type House, startHouse } from '../harness.ts'

type T = Parameters<typeof startHouse>[0]

const module = new URL('../fixtures/worker-task.js', import.meta.url).href
const bare = { store: false, http: false } as const

function contributor(name: string, ...tasks: readonly WorkerTask[]): Plugin {
  return definePlugin({ name, apply: (ctx) => ctx.contribute('workers.tasks', ...tasks) })
}

/** Above what a thread may hold, V8 has this much more before it ends the whole process. */
const spareMb = 1_536

const work: WorkerTask = { name: 'fixture/work', pool: 'fixture', module }

/** A house with one pool of one thread, and the way to give it orders. */
async function startPool(t: T, settings: object = {}) {
  const config = (more: object = {}) => ({ pools: { fixture: { max_threads: 1, ...settings, ...more } } })
  const house = await startHouse(
    t,
    [{ plugin: workers, config: config() }, { plugin: contributor('tasks', work) }],
    bare
  )
  const order = (order: Order, signal?: AbortSignal) =>
    house.services('workers').run<unknown>('fixture/work', order, signal === undefined ? {} : { signal })
  return { ...house, config, order }
}

/** An order that occupies a thread until it is let go. */
function blockade() {
  const gate = new Int32Array(new SharedArrayBuffer(8))
  return {
    order: { do: 'block', gate } as const,
    /** Resolves once a thread stands in it. */
    entered: async (): Promise<void> => {
      // lib es2023 does not know it; Node has had it since 16.
      const atomics = Atomics as unknown as {
        waitAsync(gate: Int32Array, index: number, value: number): { value: string | Promise<string> }
      }
      await atomics.waitAsync(gate, 0, 0).value
    },
    letGo: (): void => {
      Atomics.store(gate, 1, 1)
      Atomics.notify(gate, 1)
    }
  }
}

/** Of every thread of this process but the first. */
function threadIds(): unknown[] {
  const report = process.report.getReport() as { workers: { header: { threadId: number } }[] }
  return report.workers.map(({ header }) => header.threadId)
}

const codeOf = (error: unknown) => (isCoded(error) ? error.code : error)

const loadOf = (house: House) => house.services('workers').load()['fixture']

t.test('a pool starts with its first task, runs it in a thread, and answers what it returned', async (t) => {
  const house = await startPool(t)
  t.strictSame(house.services('workers').load(), {}, 'nothing runs before there is work')

  const value = { list: [1, 2.5, null], text: 'ü', bytes: new Uint8Array([1, 2]) }
  t.strictSame(await house.order({ do: 'answer', value }), value)
  t.strictSame(loadOf(house), { waiting: 0, running: 0, threads: 1 })
})

t.test('a thread without work ends after its idle time, and the next task starts another', async (t) => {
  const house = await startPool(t, { idle_timeout_ms: 1 })
  await house.order({ do: 'answer', value: 1 })
  while ((loadOf(house)?.threads ?? 0) > 0) await new Promise(setImmediate)
  t.equal(await house.order({ do: 'answer', value: 2 }), 2)
})

t.test('what a task returns as a failure is rebuilt as a CodedError', async (t) => {
  const house = await startPool(t)
  const error = await house.order({ do: 'fail' }).catch((error: unknown) => error)
  t.ok(isCoded(error, 'FIXTURE_REFUSED'))
  t.match(error, { message: 'as ordered', detail: { limit: 3 } })
})

t.test('what a task throws, and what it returns against its contract, has the code WORKERS_FAILED', async (t) => {
  const house = await startPool(t)
  await t.rejects(house.order({ do: 'throw' }), { code: 'WORKERS_FAILED', message: /fixture\/work.*out of range/ })
  await t.rejects(house.order({ do: 'throw-function' }), { code: 'WORKERS_FAILED' })
  await t.rejects(house.order({ do: 'return-nothing' }), { code: 'WORKERS_FAILED' })
  t.equal(loadOf(house)?.threads, 1, 'the thread goes on')
})

t.test('a module that cannot be loaded fails its task alone', async (t) => {
  const missing: WorkerTask = {
    name: 'missing',
    pool: 'fixture',
    module: new URL('./nowhere.js', import.meta.url).href
  }
  const house = await startHouse(t, [{ plugin: workers }, { plugin: contributor('tasks', work, missing) }], bare)
  await t.rejects(house.services('workers').run('missing', {}), { code: 'WORKERS_FAILED' })
  t.equal(await house.services('workers').run('fixture/work', { do: 'answer', value: 1 }), 1)
})

t.test('input and output that cannot be copied are refused with a code, and the pool goes on', async (t) => {
  const house = await startPool(t)
  const of = (side: string) => ({ code: 'WORKERS_UNCLONABLE', detail: { side } })
  await t.rejects(house.order({ do: 'answer', value: () => {} }), of('input'))
  for (let round = 0; round < 5; round++) await t.rejects(house.order({ do: 'return-function' }), of('output'))
  t.equal(await house.order({ do: 'answer', value: 'on' }), 'on')
  t.strictSame(loadOf(house), { waiting: 0, running: 0, threads: 1 })
})

t.test('what a thread may hold is what the program says, or else what its task wishes, or else little', async (t) => {
  for (const [wished, said, expected] of [
    [undefined, undefined, 128],
    [300, undefined, 300],
    [300, 64, 64]
  ] as const) {
    const task = wished === undefined ? work : { ...work, poolDefaults: { maxHeapMb: wished } }
    const config = { pools: { fixture: said === undefined ? {} : { max_heap_mb: said } } }
    const house = await startHouse(t, [{ plugin: workers, config }, { plugin: contributor('tasks', task) }], bare)
    const limits = await house.services('workers').run('fixture/work', { do: 'limits' })
    t.match(limits, { maxOldGenerationSizeMb: expected + spareMb })
  }
})

t.test('an output that is too large is refused in its thread, and the pool goes on', async (t) => {
  const house = await startPool(t, { max_output_mb: 1 })
  const refused = (found: RegExp) => ({
    code: 'WORKERS_TOO_LARGE',
    message: found,
    detail: { side: 'output', maxBytes: 1_048_576 }
  })
  for (const [order, found] of [
    [{ do: 'return-rope' }, /fixture\/work.* takes 3000\d{5} bytes or more, at most 1048576 .*max_output_mb/],
    [{ do: 'return-many' }, /takes 4\d{6} bytes/],
    [{ do: 'return-getters' }, /takes 10\d{5} bytes/],
    [{ do: 'return-hole' }, /takes 80000\d{5} bytes/],
    [{ do: 'answer', value: new Uint8Array(1_048_576) }, /takes 1048\d{3} bytes/],
    [{ do: 'answer', value: 'x'.repeat(1_048_577) }, /takes 1048\d{3} bytes/]
  ] as const) {
    await t.rejects(house.order(order), refused(found), order.do)
  }
  const shared = new Uint8Array(new SharedArrayBuffer(2_000_000))
  t.strictSame(await house.order({ do: 'answer', value: shared }), shared, 'memory that is shared is not copied')
  t.equal(await house.order({ do: 'answer', value: 'x'.repeat(1_048_000) }), 'x'.repeat(1_048_000))
  t.strictSame(loadOf(house), { waiting: 0, running: 0, threads: 1 }, 'in the same thread')
})

t.test('a task may wish for larger outputs', async (t) => {
  const task = { ...work, poolDefaults: { maxOutputMb: 20 } }
  const house = await startHouse(t, [{ plugin: workers }, { plugin: contributor('tasks', task) }], bare)
  const value = 'x'.repeat(17_000_000)
  t.equal(await house.services('workers').run('fixture/work', { do: 'answer', value }), value)
})

t.test('what is thrown with a message without end is told by its length', async (t) => {
  const house = await startPool(t)
  await t.rejects(house.order({ do: 'throw-long' }), { code: 'WORKERS_FAILED', message: /a text of 100000000 char/ })
})

t.test('garbage is not what a thread holds', async (t) => {
  const house = await startPool(t, { max_heap_mb: 32 })
  t.equal(await house.order({ do: 'litter' }), 1_000)
})

for (const how of ['exit', 'exhaust', 'exhaust-list', 'exhaust-buffers'] as const) {
  t.test(`a thread that dies (${how}) fails its own task alone`, async (t) => {
    const house = await startPool(t, { max_threads: 2, max_heap_mb: 32 })
    t.match(await house.order({ do: 'limits' }), { maxOldGenerationSizeMb: 32 + spareMb })
    const { order, entered, letGo } = blockade()
    const neighbour = house.order(order)
    await entered()
    const dying = house.order({ do: how })
    const behind = house.order({ do: 'answer', value: 'next' })

    const why =
      how === 'exit' ? /fixture\/work/ : /fixture\/work.*held \d+ MB, at most 32 .*max_heap_mb of pool 'fixture'/
    await t.rejects(dying, { code: 'WORKERS_CRASHED', message: why })
    t.equal(await behind, 'next', 'what waited behind it runs')
    letGo()
    t.equal(await neighbour, 'let go', 'what ran beside it goes on')
    t.match(
      house.lines.filter(({ level }) => level === 'warn'),
      [{ message: 'a worker thread died under its task', pool: 'fixture', task: 'fixture/work' }]
    )
  })
}

t.test('twenty threads dying at once leave a pool that works', async (t) => {
  const house = await startPool(t, { max_threads: 2 })
  const dying = Array.from({ length: 20 }, () => house.order({ do: 'exit' }))
  for (const outcome of await Promise.allSettled(dying)) {
    t.match(outcome, { status: 'rejected', reason: { code: 'WORKERS_CRASHED' } })
  }
  t.equal(await house.order({ do: 'answer', value: 1 }), 1)
})

t.test('a full queue refuses at once and says when to come back', async (t) => {
  const house = await startPool(t, { max_queue: 2 })
  const { order, entered, letGo } = blockade()
  const running = house.order(order)
  await entered()
  const waiting = [house.order({ do: 'answer', value: 1 }), house.order({ do: 'answer', value: 2 })]
  t.match(loadOf(house), { running: 1, waiting: 2 })

  const refused = await house.order({ do: 'answer', value: 3 }).catch((error: unknown) => error)
  t.ok(isCoded(refused, 'WORKERS_BUSY') && Number.isInteger(refused.detail?.['retryAfterSeconds']))
  t.ok(isCoded(refused) && (refused.detail?.['retryAfterSeconds'] as number) >= 1)

  letGo()
  t.strictSame(await Promise.all([running, ...waiting]), ['let go', 1, 2])
})

t.test('work that was let in goes ahead of what waits to begin, and is not refused', async (t) => {
  const house = await startPool(t, { max_queue: 1 })
  const { order, entered, letGo } = blockade()
  const running = house.order(order)
  await entered()
  const ended: unknown[] = []
  const run = (value: string, goesOn: boolean) =>
    house
      .services('workers')
      .run('fixture/work', { do: 'answer', value }, { goesOn })
      .then((value) => ended.push(value))
  const waiting = [run('new', false), run('begun', true), run('begun too', true)]
  t.match(loadOf(house), { running: 1, waiting: 3 })
  await t.rejects(run('newer', false), { code: 'WORKERS_BUSY' })

  letGo()
  await Promise.all([running, ...waiting])
  t.strictSame(ended, ['begun', 'begun too', 'new'])
})

t.test('aborting a waiting task and then the running one lets those behind them start', async (t) => {
  const house = await startPool(t)
  const [first, second] = [new AbortController(), new AbortController()]
  const { order, entered } = blockade()
  const running = house.order(order, first.signal)
  await entered()
  const waiting = house.order(blockade().order, second.signal)
  const behind = house.order({ do: 'answer', value: 'at last' })

  second.abort(new Error('not needed'))
  await t.rejects(waiting, { code: 'WORKERS_ABORTED', cause: { message: 'not needed' } })
  first.abort()
  await t.rejects(running, { code: 'WORKERS_ABORTED' })
  t.equal(await behind, 'at last')
})

t.test('a task whose signal has fired already never starts', async (t) => {
  const house = await startPool(t)
  await t.rejects(house.order({ do: 'answer', value: 1 }, AbortSignal.abort()), { code: 'WORKERS_ABORTED' })
  t.strictSame(house.services('workers').load(), {})
})

t.test('more waiting tasks than listeners Node expects cause no warning', async (t) => {
  const warnings: Error[] = []
  const note = (warning: Error) => warnings.push(warning)
  process.on('warning', note)
  t.teardown(() => process.off('warning', note))
  const house = await startPool(t)
  const { signal } = new AbortController()
  const answers = await Promise.all(
    Array.from({ length: 50 }, (_, value) => house.order({ do: 'answer', value }, signal))
  )
  t.strictSame(
    answers,
    Array.from({ length: 50 }, (_, value) => value),
    'in the order in which they came'
  )
  t.strictSame(warnings, [])
})

t.test('a task nobody contributes has the code WORKERS_UNKNOWN_TASK, also after its plugin was retired', async (t) => {
  const house = await startPool(t)
  await t.rejects(house.services('workers').run('fixture/other', {}), { code: 'WORKERS_UNKNOWN_TASK' })
  await house.order({ do: 'answer', value: 1 })
  await house.kernel.retire('tasks')
  await t.rejects(house.order({ do: 'answer', value: 1 }), { code: 'WORKERS_UNKNOWN_TASK' })
})

t.test('two plugins cannot contribute a task of one name', async (t) => {
  const house = await startPool(t)
  await t.rejects(house.kernel.begin({ id: 'again', plugin: contributor('again', work) }), {
    code: 'WORKERS_DUPLICATE_TASK',
    message: /'tasks'.*'again'/
  })
  t.equal(await house.order({ do: 'answer', value: 1 }), 1)
})

t.test('a swap with equal settings keeps the threads', async (t) => {
  const house = await startPool(t)
  await house.order({ do: 'answer', value: 1 })
  await house.kernel.update('workers', house.config())
  t.equal(loadOf(house)?.threads, 1)
  await house.kernel.update('workers', { pools: { ...house.config().pools, another: { max_threads: 2 } } })
  t.equal(loadOf(house)?.threads, 1, 'also when another pool changes')
  t.equal(await house.order({ do: 'answer', value: 2 }), 2)
})

t.test('a swap with other settings lets running and waiting tasks end in the old threads', async (t) => {
  const house = await startPool(t)
  const { order, entered, letGo } = blockade()
  const running = house.order(order)
  await entered()
  const waiting = house.order({ do: 'answer', value: 'waited' })

  await house.kernel.update('workers', house.config({ max_threads: 2 }))
  t.equal(await house.order({ do: 'answer', value: 'new' }), 'new', 'new tasks do not wait for them')
  letGo()
  t.strictSame(await Promise.all([running, waiting]), ['let go', 'waited'])
})

t.test('retiring the entry awaits what runs, then takes the service and the threads away', async (t) => {
  const before = threadIds()
  const house = await startPool(t)
  const { order, entered, letGo } = blockade()
  const running = house.order(order)
  await entered()
  const retired = house.kernel.retire('workers')
  letGo()
  t.equal(await running, 'let go')
  await retired
  t.equal(house.services('workers'), undefined)
  t.strictSame(threadIds(), before)
})

t.test('what a plugin began goes on with its own tasks while it is leaving', async (t) => {
  let begin = () => {}
  const begun = new Promise<void>((resolve) => (begin = resolve))
  let outcome: Promise<unknown> | undefined
  const worker = definePlugin({
    name: 'worker',
    inject: ['workers'],
    apply(ctx) {
      const { workers } = ctx.services
      ctx.contribute('workers.tasks', work)
      const lease = ctx.lease()
      outcome = begun.then(() => workers.run(work, { do: 'answer', value: 'late' })).finally(() => lease.release())
    }
  })
  const house = await startHouse(t, [{ plugin: workers }, { plugin: worker }], bare)
  const retired = house.kernel.retire('worker')
  t.equal(await house.services('workers').run('fixture/work', {}).catch(codeOf), 'WORKERS_UNKNOWN_TASK')
  begin()
  t.equal(await outcome, 'late')
  await retired
})

t.test('a contributor is not undone while its task runs', async (t) => {
  const house = await startPool(t)
  const { order, entered, letGo } = blockade()
  const running = house.order(order)
  await entered()
  let undone = false
  const retired = house.kernel.retire('tasks').then(() => {
    undone = true
  })
  t.equal(await house.services('workers').run('fixture/work', {}).catch(codeOf), 'WORKERS_UNKNOWN_TASK')
  await new Promise(setImmediate)
  t.notOk(undone)
  letGo()
  t.equal(await running, 'let go')
  await retired
})

t.test('a task ends when the drain time of its contributor is over', async (t) => {
  const house = await startHouse(t, [{ plugin: workers }, { plugin: contributor('tasks', work) }], {
    ...bare,
    settings: { drain_timeout_ms: 1 }
  })
  const { order, entered } = blockade()
  const running = house.services('workers').run('fixture/work', order).catch(codeOf)
  await entered()
  await house.kernel.retire('tasks')
  t.equal(await running, 'WORKERS_ABORTED')
})

t.test('what runs when the drain time is over is aborted', async (t) => {
  const house = await startHouse(t, [{ plugin: workers }, { plugin: contributor('tasks', work) }], {
    ...bare,
    settings: { drain_timeout_ms: 1 }
  })
  const { order, entered } = blockade()
  const running = house.services('workers').run('fixture/work', order)
  const refused = t.rejects(running, { code: 'WORKERS_ABORTED', cause: { code: 'DRAIN_TIMEOUT' } })
  await entered()
  await house.kernel.retire('workers')
  await refused
})

t.test('a thread that must not be ended goes on when its task is aborted, and its pool waits for it', async (t) => {
  const unstoppable: WorkerTask = { ...work, isUnstoppable: true }
  const config = { pools: { fixture: { max_threads: 1 } } }
  const house = await startHouse(t, [{ plugin: workers, config }, { plugin: contributor('tasks', unstoppable) }], bare)
  const { order, entered, letGo } = blockade()
  const controller = new AbortController()
  const run = (order: Order, signal?: AbortSignal) =>
    house.services('workers').run('fixture/work', order, signal === undefined ? {} : { signal })
  const running = run(order, controller.signal)
  await entered()
  const before = threadIds()
  controller.abort(new Error('enough'))

  await t.rejects(running, { code: 'WORKERS_ABORTED' }, 'who waits is told at once')
  const next = run({ do: 'answer', value: 1 })
  t.match(loadOf(house), { running: 1, waiting: 1 }, 'its place is taken as long as it works')
  const retired = house.kernel.retire('workers')
  letGo()
  t.equal(await next, 1)
  t.ok(before.length > 0)
  await retired
})

t.test('a process outlives what is aborted while it hashes a password', async (t) => {
  const config = { pools: { hash: { max_threads: 2 } } }
  const house = await startHouse(
    t,
    [{ plugin: workers, config }, { plugin: contributor('tasks', workerTasks.hash, workerTasks.verify) }],
    bare
  )
  const run = (password: string, signal = new AbortController().signal) =>
    house.services('workers').run('auth/hash-password', password, { signal })
  await run('warm')
  for (let round = 0; round < 3; round++) {
    const controller = new AbortController()
    const hashing = run('a password', controller.signal)
    // In the middle of it: hashing takes some tens of milliseconds, and the thread is there already.
    await setTimeout(20)
    controller.abort(new Error('enough'))
    await t.rejects(hashing, { code: 'WORKERS_ABORTED' })
  }
  t.match(await run('the last one'), /^\$argon2id\$/)
})

t.test('a program with a wrong pool setting is refused by name', async (t) => {
  await t.rejects(startHouse(t, [{ plugin: workers, config: { pools: { hash: { threads: 2 } } } }], bare), {
    code: 'PLUGIN_CONFIG_INVALID',
    message: /unknown key threads/
  })
})
