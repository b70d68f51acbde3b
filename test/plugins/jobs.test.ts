import { join } from 'node:path'
import { createInterface } from 'node:readline'
import t from 'tap'
import { CodedError } from '../../kernel/index.ts'
import audit from '../../plugins/audit/index.ts'
import auth from '../../plugins/auth/index.ts'
import { jobsAt } from '../../plugins/jobs/index.ts'
import { outcomeOf } from '../../plugins/jobs/outcome.ts'
import type { EnqueueRequest, Job, JobStatus } from '../../plugins/jobs/types.ts'
import tools from '../../plugins/tools/index.ts'
import type { Tool, ToolContext, ToolFailure } from '../../plugins/tools/types.ts'
import workers from '../../plugins/workers/index.ts'
import { FaultyStore } from '../fakes/faulty-store.ts'
import { ManualClock } from '../fakes/manual-clock.ts'
import { fixtureTools, toolOf, toolsPlugin, World } from '../fixtures/carmy-tools.ts'
import { countLines, recordingTools } from '../fixtures/recording-tools.ts'
import { collect, type HouseEntry, type HouseOptions, startHouse } from '../harness.ts'
import { startFixture } from '../process.ts'

type T = Parameters<typeof startHouse>[0]

const ann = { principal: 'user:ann' }
const bob = { principal: 'user:bob' }

interface Options extends HouseOptions {
  readonly clock?: ManualClock
  readonly config?: object
  readonly toolsConfig?: object
  readonly more?: (world: World) => readonly Tool[]
  readonly entries?: readonly HouseEntry[]
}

/** A house with jobs on a clock of the test, and short ways to use them. */
async function startJobs(
  t: T,
  { clock = new ManualClock(), config, toolsConfig, more, entries, ...rest }: Options = {}
) {
  const world = new World()
  const house = await startHouse(
    t,
    [
      { plugin: tools, config: toolsConfig ?? {} },
      { plugin: toolsPlugin(() => [...fixtureTools(world), ...(more?.(world) ?? [])]) },
      { plugin: jobsAt(clock), config: config ?? {} },
      ...(entries ?? [])
    ],
    rest
  )
  const jobs = house.services('jobs')
  const enqueue = (tool: string, input: unknown = {}, extra: Partial<EnqueueRequest> = {}) =>
    jobs.enqueue({ tool, arguments: input, caller: ann, ...extra })
  const reach = async (job: Pick<Job, 'id'>, ...wanted: readonly JobStatus[]): Promise<Job> => {
    for (;;) {
      const now = (await jobs.get(job.id)) as Job
      if (wanted.includes(now.status)) return now
      await turn()
    }
  }
  /** Waits until an attempt has ended and the next one has a time, and goes there. */
  const passAttempt = async (job: Pick<Job, 'id'>, attempts: number): Promise<Job> => {
    for (;;) {
      const now = (await jobs.get(job.id)) as Job
      if (now.attempts === attempts && now.status === 'queued') {
        clock.set(now.runAtMs)
        return now
      }
      await turn()
    }
  }
  const call = async (tool: string, input: unknown, caller: { principal: string | undefined } = ann) =>
    (await house.services('tools').execute({ tool, arguments: input, caller })).response
  return { ...house, world, clock, jobs, enqueue, reach, passAttempt, call }
}

function turn(): Promise<void> {
  return new Promise((resolve) => setImmediate(resolve))
}

/** So that what could still happen has happened: work that is at hand ends within a few turns. */
async function settle(): Promise<void> {
  for (let count = 0; count < 30; count += 1) await turn()
}

async function until(isTrue: () => boolean | Promise<boolean>): Promise<void> {
  while (!(await isTrue())) await turn()
}

t.test('a job calls its tool once, as who asked for it, under a request id of the attempt', async (t) => {
  const seen: ToolContext[] = []
  const spy = toolOf<{ a: number }, { b: number }>({
    name: 'spy',
    effect: 'write',
    run({ a }, context) {
      seen.push(context)
      return { b: a + 1 }
    }
  })
  const { enqueue, reach } = await startJobs(t, { more: () => [spy] })

  const job = await enqueue('spy', { a: 1 }, { caller: { ...ann, permissions: new Set(['confirm:x']) } })
  t.match(job, { id: /^job_[\w-]+$/, status: 'queued', attempts: 0, maxAttempts: 5, principal: 'user:ann' })
  const done = await reach(job, 'succeeded')

  t.match(done, { attempts: 1, result: { b: 2 }, lastError: null })
  t.equal(seen.length, 1)
  t.equal(seen[0]?.requestId, `${job.id}#1`)
  t.equal(seen[0]?.principal, 'user:ann')
  t.strictSame([...(seen[0]?.permissions ?? [])], ['confirm:x'])
})

t.test('a job for later begins at its time and not before, with one timer set', async (t) => {
  const { enqueue, reach, clock, world, jobs } = await startJobs(t)
  const late = await enqueue('count', { k: 'late' }, { afterMs: 60_000 })
  const soon = await enqueue('count', { k: 'soon' }, { atMs: clock.now() + 1_000 })
  await until(() => clock.pending === 1)

  clock.advance(999)
  await settle()
  t.equal(world.count('count'), 0)
  clock.advance(1)
  await reach(soon, 'succeeded')
  t.match(await jobs.get(late.id), { status: 'queued', runAtMs: clock.now() + 59_000 })
  await until(() => clock.pending === 1)
  clock.advance(59_000)
  await reach(late, 'succeeded')
  await until(() => clock.pending === 0)
  t.equal(world.count('count'), 2)
})

t.test('the same request id is the same job', async (t) => {
  const { enqueue, reach, jobs, world } = await startJobs(t)
  const same = { requestId: 'evt-1', afterMs: 1_000 }

  t.test('while it is queued, for any number that ask at once', async (t) => {
    const asked = await Promise.all(
      Array.from({ length: 20 }, () => enqueue('count', { k: 'a', more: { x: 1 } }, same))
    )
    t.equal(new Set(asked.map(({ id }) => id)).size, 1)
    t.equal((await jobs.list({ limit: 100 })).length, 1)
  })
  t.test('but not for another caller, nor for other arguments', async (t) => {
    const [mine] = await jobs.list({ limit: 1 })
    t.not((await enqueue('count', { k: 'a' }, { ...same, caller: bob })).id, mine?.id)
    await t.rejects(enqueue('count', { k: 'b' }, same), { code: 'JOBS_CONFLICT' })
    await t.rejects(enqueue('echo', { k: 'a', more: { x: 1 } }, same), { code: 'JOBS_CONFLICT' })
  })
  t.test('while it runs, and after it has ended', async (t) => {
    const job = await enqueue('sleep', { gate: 'g' }, { requestId: 'evt-2' })
    await world.until('sleep g')
    t.match(await enqueue('sleep', { gate: 'g' }, { requestId: 'evt-2' }), { id: job.id, status: 'running' })
    world.open('g')
    await reach(job, 'succeeded')
    t.match(await enqueue('sleep', { gate: 'g' }, { requestId: 'evt-2' }), { id: job.id, status: 'succeeded' })
    t.equal(world.count('sleep'), 1)
  })
  t.test('until it is cancelled', async (t) => {
    const job = await enqueue('count', { k: 'c' }, { requestId: 'evt-3', afterMs: 1_000 })
    await jobs.cancel(job.id)
    t.not((await enqueue('count', { k: 'c' }, { requestId: 'evt-3', afterMs: 1_000 })).id, job.id)
  })
})

t.test('what is no job is refused, and nothing is kept', async (t) => {
  const { enqueue, jobs } = await startJobs(t)
  const wrong: readonly Partial<EnqueueRequest>[] = [
    { requestId: '' },
    { requestId: 'x'.repeat(257) },
    { requestId: 'é'.repeat(129) },
    { requestId: '\ud800' },
    { tool: '' },
    { atMs: Number.NaN },
    { afterMs: 1e300 }
  ]
  for (const extra of wrong) await t.rejects(enqueue('echo', {}, extra), { code: 'JOBS_INVALID' })
  t.strictSame(await jobs.list({ limit: 10 }), [])
  t.match(await enqueue('echo', {}, { requestId: 'x'.repeat(256) }), { status: 'queued' })
  t.equal(await jobs.get('job_nobody'), undefined)
  t.equal(await jobs.get('x'.repeat(3_000)), undefined)
})

t.test('as many run at once as the program says, and those of a serial tool one by one', async (t) => {
  const { enqueue, reach, world } = await startJobs(t, { config: { concurrency: 3 } })
  const serial = await Promise.all(['s1', 's2', 's3'].map((gate) => enqueue('serial', { gate })))
  const others = await Promise.all(['a', 'b', 'c'].map((gate) => enqueue('sleep', { gate })))

  await Promise.all(['serial s1', 'sleep a', 'sleep b'].map((moment) => world.until(moment)))
  await settle()
  t.strictSame([...world.runs].sort(), ['serial s1', 'sleep', 'sleep'], 'the serial ones keep nobody from coming')

  world.open('a')
  await world.until('sleep c')
  world.open('s1')
  await world.until('serial s2')
  t.ok(world.runs.indexOf('serial s1 ended') < world.runs.indexOf('serial s2'))
  for (const gate of ['b', 'c', 's2', 's3']) world.open(gate)
  await Promise.all([...serial, ...others].map((job) => reach(job, 'succeeded')))
})

t.test('a failure that may pass', async (t) => {
  t.test('is tried again, each time after twice the wait, and dead-lettered with its last error', async (t) => {
    const { enqueue, reach, passAttempt, clock, world, jobs } = await startJobs(t)
    const job = await enqueue('fail', { code: 'BUSY', category: 'capacity', retryable: true })
    const waits: number[] = []
    for (let attempt = 1; attempt < 5; attempt += 1) {
      const before = clock.now()
      waits.push((await passAttempt(job, attempt)).runAtMs - before)
    }
    const dead = await reach(job, 'dead_lettered')
    t.strictSame(waits, [1_000, 2_000, 4_000, 8_000])
    t.match(dead, { attempts: 5, lastError: { code: 'BUSY', retryable: true } })
    t.equal(world.count('fail'), 5)
    t.match(await jobs.list({ limit: 5, status: 'dead_lettered' }), [{ id: job.id }])
  })
  t.test('waits as long as the tool asks for', async (t) => {
    const { enqueue, passAttempt, clock } = await startJobs(t)
    const before = clock.now()
    const job = await enqueue('fail', { category: 'capacity', retryable: true, retry_after: 90 })
    t.equal((await passAttempt(job, 1)).runAtMs, before + 90_000)
  })
  t.test('is over when the tool succeeds', async (t) => {
    let runs = 0
    const flaky = toolOf<unknown, number>({
      name: 'flaky',
      effect: 'write',
      run() {
        runs += 1
        if (runs < 3)
          throw new CodedError('CLOSED', 'the shop is closed', { detail: { category: 'capacity', retryable: true } })
        return runs
      }
    })
    const { enqueue, reach, passAttempt } = await startJobs(t, { more: () => [flaky] })
    const job = await enqueue('flaky')
    await passAttempt(job, 1)
    await passAttempt(job, 2)
    t.match(await reach(job, 'succeeded'), { attempts: 3, result: 3, lastError: null })
  })
  t.test('is that of a tool which is not there yet', async (t) => {
    const { enqueue, reach, passAttempt, kernel } = await startJobs(t)
    const job = await enqueue('later')
    t.match(await passAttempt(job, 1), { lastError: { code: 'TOOL_NOT_FOUND' } })
    await passAttempt(job, 2)
    await kernel.begin({
      id: 'late',
      plugin: toolsPlugin(() => [toolOf({ name: 'later', run: () => 'here' })], 'late'),
      config: {}
    })
    const waiting = await Promise.race([reach(job, 'succeeded'), passAttempt(job, 3)])
    t.match(waiting.status === 'succeeded' ? waiting : await reach(job, 'succeeded'), { result: 'here' })
  })
})

t.test('a failure that would come again ends the job as failed, after one run', async (t) => {
  const { enqueue, reach, world } = await startJobs(t)
  const job = await enqueue('fail', { code: 'NO_STOCK', category: 'conflict' })
  t.match(await reach(job, 'failed'), { attempts: 1, lastError: { code: 'NO_STOCK' } })
  t.equal(world.count('fail'), 1)
  t.match(await reach(await enqueue('echo', { text: 5 }), 'failed'), { lastError: { code: 'INVALID_ARGUMENTS' } })
  t.match(await reach(await enqueue('wipe'), 'failed'), { lastError: { code: 'CONFIRMATION_REQUIRED' } })
  const anonymous = await enqueue('private', {}, { caller: { principal: undefined } })
  t.match(await reach(anonymous, 'failed'), { lastError: { code: 'FORBIDDEN' } })
})

t.test('where nobody knows what an attempt did', async (t) => {
  t.test('a tool that is not idempotent is not run again', async (t) => {
    const { enqueue, reach, world } = await startJobs(t)
    const job = await enqueue('boom')
    t.match(await reach(job, 'dead_lettered'), {
      attempts: 1,
      lastError: { code: 'EXECUTION_UNCERTAIN', details: { cause: 'TOOL_PANIC' } }
    })
    t.match(await reach(await enqueue('brief'), 'dead_lettered'), { lastError: { details: { cause: 'TIMEOUT' } } })
    t.equal(world.count('boom'), 1)
  })
  t.test('an idempotent one is', async (t) => {
    let runs = 0
    const shaky = toolOf<unknown, number>({
      name: 'shaky',
      idempotent: true,
      run() {
        runs += 1
        if (runs < 2) throw new Error('inside')
        return runs
      }
    })
    const { enqueue, reach, passAttempt } = await startJobs(t, { more: () => [shaky] })
    const job = await enqueue('shaky')
    t.match(await passAttempt(job, 1), { lastError: { code: 'TOOL_PANIC' } })
    t.match(await reach(job, 'succeeded'), { attempts: 2, result: 2 })
  })
})

t.test('the outcome of an attempt, by its error', (t) => {
  const rules = { backoffMs: 1_000, maxBackoffMs: 60_000 }
  const error = (code: string, more: Partial<ToolFailure> = {}): ToolFailure => ({
    code,
    message: '',
    category: 'internal',
    recoverable: false,
    retryable: false,
    ...more
  })
  const first = { attempts: 1, maxAttempts: 5 }
  const last = { attempts: 5, maxAttempts: 5 }
  for (const code of [
    'TIMEOUT',
    'CANCELLED',
    'TOOL_PANIC',
    'EXECUTION_UNCERTAIN',
    'STORE_ERROR',
    'IDEMPOTENCY_CONFLICT'
  ]) {
    const ended = { error: error(code) }
    t.match(outcomeOf(ended, { idempotent: true }, first, rules), { status: 'queued', delayMs: 1_000 }, code)
    t.match(outcomeOf(ended, { idempotent: true }, last, rules), { status: 'dead_lettered', error: { code } }, code)
    for (const tool of [{ idempotent: false }, undefined]) {
      const outcome = outcomeOf(ended, tool, first, rules)
      t.match(
        outcome,
        { status: 'dead_lettered', error: { code: 'EXECUTION_UNCERTAIN', details: { cause: code } } },
        code
      )
    }
  }
  for (const code of ['INVALID_OUTPUT', 'FORBIDDEN', 'INVALID_ARGUMENTS', 'MY_OWN']) {
    t.match(outcomeOf({ error: error(code) }, { idempotent: true }, first, rules), { status: 'failed' }, code)
  }
  for (const [code, retryable] of [
    ['STORE_ERROR', true],
    ['MY_OWN', true],
    ['TOOL_NOT_FOUND', false],
    ['IDEMPOTENCY_CAPACITY', false]
  ] as const) {
    const ended = { error: error(code, { retryable }) }
    t.match(outcomeOf(ended, undefined, first, rules), { status: 'queued' }, code)
    t.match(outcomeOf(ended, undefined, last, rules), { status: 'dead_lettered', error: { code } }, code)
  }
  t.match(
    outcomeOf(
      { error: error('A', { retryable: true, retry_after: 1 }) },
      undefined,
      { attempts: 4, maxAttempts: 5 },
      rules
    ),
    { delayMs: 8_000 },
    'the longer of the two waits'
  )
  t.match(
    outcomeOf({ error: error('A', { retryable: true }) }, undefined, { attempts: 40, maxAttempts: 50 }, rules),
    { delayMs: 60_000 },
    'it does not grow for ever'
  )
  t.end()
})

t.test('a job that is queued can be cancelled, and nothing else can', async (t) => {
  const { enqueue, reach, jobs, clock, world } = await startJobs(t)
  const job = await enqueue('count', { k: 'x' }, { afterMs: 1_000 })
  t.match(await jobs.cancel(job.id), { status: 'cancelled', endedAtMs: clock.now() })
  clock.advance(2_000)
  await settle()
  t.equal(world.count('count'), 0)
  await t.rejects(jobs.cancel(job.id), { code: 'JOBS_STARTED' })
  const running = await enqueue('sleep', { gate: 'g' })
  await world.until('sleep g')
  await t.rejects(jobs.cancel(running.id), { code: 'JOBS_STARTED', message: /running/ })
  await t.rejects(jobs.cancel('job_nobody'), { code: 'JOBS_UNKNOWN' })
  world.open('g')
  await reach(running, 'succeeded')
})

t.test('what has ended is purged when its time has come, dead letters never', async (t) => {
  const { enqueue, reach, jobs, clock, services } = await startJobs(t)
  const done = await enqueue('echo', { text: 'a' }, { requestId: 'r' })
  const failed = await enqueue('fail', { category: 'conflict' })
  const dead = await enqueue('boom')
  const waiting = await enqueue('echo', { text: 'b' }, { afterMs: 100 * 86_400_000 })
  await reach(done, 'succeeded')
  await reach(failed, 'failed')
  await reach(dead, 'dead_lettered')

  t.equal(await jobs.purge(clock.now()), 0, 'they ended now, not before')
  t.equal(await jobs.purge(clock.now() + 1), 2)
  const left = await jobs.list({ limit: 10 })
  t.strictSame(
    left.map(({ id }) => id),
    [waiting.id, dead.id]
  )
  t.not((await enqueue('echo', { text: 'a' }, { requestId: 'r', afterMs: 9 })).id, done.id, 'its request id is free')
  const store = services('store')
  t.equal((await collect(store.range('jobs.ended', []))).length, 0)
  t.equal((await collect(store.range('jobs.dead', []))).length, 1)
})

t.test('no more than a number of jobs wait, and those that are known are still told', async (t) => {
  const { enqueue, reach, jobs, clock } = await startJobs(t, { config: { max_jobs: 2 } })
  const first = await enqueue('echo', { text: 'a' }, { afterMs: 1_000, requestId: 'r' })
  const second = await enqueue('echo', { text: 'b' }, { afterMs: 1_000 })
  await t.rejects(enqueue('echo', { text: 'c' }), { code: 'JOBS_CAPACITY' })
  t.equal((await enqueue('echo', { text: 'a' }, { requestId: 'r' })).id, first.id)
  t.equal((await jobs.list({ limit: 9 })).length, 2)
  await jobs.cancel(second.id)
  await t.resolves(enqueue('echo', { text: 'c' }, { afterMs: 1_000 }))
  await t.rejects(enqueue('echo', { text: 'd' }), { code: 'JOBS_CAPACITY' })
  clock.advance(1_000)
  await reach(first, 'succeeded')
  // Its place is free as soon as its end is on disk.
  await until(() =>
    enqueue('echo', { text: 'd' }, { afterMs: 1_000 }).then(
      () => true,
      () => false
    )
  )
})

t.test('a place is refused only when all are taken, however many ask at once', async (t) => {
  const { enqueue, jobs } = await startJobs(t, { config: { max_jobs: 4 } })
  const later = { afterMs: 1_000 }
  await enqueue('echo', { text: 'a' }, { ...later, requestId: 'a' })
  const again = () => enqueue('echo', { text: 'a' }, { ...later, requestId: 'a' })
  const same = () => enqueue('echo', { text: 'b' }, { ...later, requestId: 'b' })

  const known = await Promise.all([again(), again(), again(), again(), again(), enqueue('echo', { text: 'c' }, later)])
  t.equal(new Set(known.map(({ id }) => id)).size, 2)
  const one = await Promise.all([same(), same(), same(), same(), same(), enqueue('echo', { text: 'd' }, later)])
  t.equal(new Set(one.map(({ id }) => id)).size, 2, 'those that turn out to be one job take one place')
  t.equal((await jobs.list({ limit: 9 })).length, 4)
  await t.rejects(enqueue('echo', { text: 'e' }, later), { code: 'JOBS_CAPACITY', message: /4 jobs are waiting/ })

  for (const { id } of (await jobs.list({ limit: 9 })).slice(0, 3)) await jobs.cancel(id)
  const many = await Promise.allSettled(Array.from({ length: 9 }, (_, at) => enqueue('echo', { text: `${at}` }, later)))
  t.equal(many.filter(({ status }) => status === 'fulfilled').length, 3)
})

t.test('dead letters have a bound, which an operator makes room below', async (t) => {
  const dataFolder = t.testdir()
  const config = { max_dead_letters: 2 }
  const { enqueue, reach, jobs, kernel, clock } = await startJobs(t, { config, dataFolder })
  const first = await reach(await enqueue('boom', {}, { requestId: 'r' }), 'dead_lettered')
  const second = await reach(await enqueue('boom'), 'dead_lettered')
  const refusal = { code: 'JOBS_CAPACITY', message: /2 dead letters/ }
  await t.rejects(enqueue('echo', { text: 'a' }), refusal)
  t.equal((await enqueue('boom', {}, { requestId: 'r' })).id, first.id, 'what is known is told')

  await t.rejects(jobs.discard('job_nobody'), { code: 'JOBS_UNKNOWN' })
  t.match(await jobs.discard(first.id), { status: 'failed', lastError: { code: 'EXECUTION_UNCERTAIN' } })
  await t.rejects(jobs.discard(first.id), { code: 'JOBS_NOT_ENDED' })
  await reach(await enqueue('echo', { text: 'a' }), 'succeeded')
  await reach(await enqueue('boom'), 'dead_lettered')
  await t.rejects(enqueue('echo', { text: 'a' }), refusal)
  t.strictSame(await jobs.purge(clock.now() + 1), 2, 'discarded and succeeded')
  await kernel.stop()

  const next = await startJobs(t, { config, dataFolder })
  await t.rejects(next.enqueue('echo', { text: 'a' }), refusal, 'they are counted when the server starts')
  await next.jobs.retry(second.id)
  await t.resolves(next.enqueue('echo', { text: 'a' }))
})

t.test('jobs of one status are listed newest end first, without what their tools gave', async (t) => {
  const { enqueue, reach, jobs, clock } = await startJobs(t)
  const waiting = await enqueue('echo', { text: 'later' }, { afterMs: 9_000 })
  const sooner = await enqueue('echo', { text: 'sooner' }, { afterMs: 5_000 })
  const slow = await enqueue('sleep', { gate: 'g' })
  const ends: Job[] = []
  for (const text of ['a', 'b', 'c']) {
    clock.advance(1)
    ends.push(await reach(await enqueue('echo', { text }), 'succeeded'))
  }
  const ids = async (status?: JobStatus, limit = 9) => (await jobs.list({ limit, status })).map(({ id }) => id)

  t.strictSame(await ids('succeeded'), ends.map(({ id }) => id).reverse())
  t.strictSame(await ids('succeeded', 1), [ends[2]?.id])
  t.strictSame(await ids('queued'), [sooner.id, waiting.id])
  await reach(slow, 'running')
  t.strictSame(await ids('running'), [slow.id])
  t.strictSame(await ids('failed'), [])
  t.ok((await jobs.list({ limit: 9 })).every((job) => !('result' in job)))
  t.match(await jobs.get(ends[0]?.id ?? ''), { result: { text: 'a' } })
})

t.test('others get their turn while many large jobs are listed', async (t) => {
  const { enqueue, jobs } = await startJobs(t)
  const text = '\u00e9"'.repeat(200_000)
  await Promise.all(Array.from({ length: 24 }, () => enqueue('echo', { text }, { afterMs: 1_000 })))
  let turns = 0
  let isListing = true
  const count = (): void => {
    turns += 1
    if (isListing) setImmediate(count)
  }
  setImmediate(count)

  t.equal((await jobs.list({ limit: 24 })).length, 24)
  isListing = false

  t.ok(turns > 1, `${turns} turns`)
})

t.test('an operator lets a dead letter run again, under a request id of its own', async (t) => {
  let runs = 0
  const ids: (string | undefined)[] = []
  const mended = toolOf<unknown, number>({
    name: 'mended',
    effect: 'write',
    run(_input, { requestId }) {
      ids.push(requestId)
      runs += 1
      if (runs === 1) throw new Error('inside')
      return runs
    }
  })
  const { enqueue, reach, jobs } = await startJobs(t, { more: () => [mended] })
  const job = await enqueue('mended')
  await t.rejects(jobs.retry('job_nobody'), { code: 'JOBS_UNKNOWN' })
  await reach(job, 'dead_lettered')
  t.match(await jobs.retry(job.id), { status: 'queued', maxAttempts: 6, endedAtMs: null })
  t.match(await reach(job, 'succeeded'), { attempts: 2, result: 2 })
  t.strictSame(ids, [`${job.id}#1`, `${job.id}#2`])
  t.strictSame(await jobs.list({ limit: 5, status: 'dead_lettered' }), [])
  await t.rejects(jobs.retry(job.id), { code: 'JOBS_NOT_ENDED' })
})

t.test('a lease', async (t) => {
  const leaseEnd = async (house: Awaited<ReturnType<typeof startJobs>>): Promise<number> => {
    const [place] = await collect(house.services('store').range('jobs.due', []))
    return Number(place?.[0][0])
  }
  t.test('is renewed while the job runs', async (t) => {
    const house = await startJobs(t)
    const { enqueue, reach, clock, world } = house
    const job = await enqueue('sleep', { gate: 'g' })
    await world.until('sleep g')
    for (let time = 0; time < 10; time += 1) {
      const before = await leaseEnd(house)
      clock.advance(5_000)
      await until(async () => (await leaseEnd(house)) > before && clock.pending === 1)
    }
    t.equal(world.count('sleep'), 1)
    t.equal(await leaseEnd(house), clock.now() + 15_000)
    world.open('g')
    await reach(job, 'succeeded')
    await until(() => clock.pending === 0)
  })
  t.test('that has ended does not make a process run what it is running', async (t) => {
    const house = await startJobs(t)
    const { enqueue, reach, clock, world } = house
    const job = await enqueue('sleep', { gate: 'g' })
    await world.until('sleep g')
    clock.advance(600_000)
    const other = await enqueue('echo', { text: 'wakes it' })
    await reach(other, 'succeeded')
    await settle()
    world.open('g')
    t.match(await reach(job, 'succeeded'), { attempts: 1 })
    t.equal(world.count('sleep'), 1)
  })
})

t.test('a swap', async (t) => {
  t.test('lets what runs end where it began, and goes on with the new config', async (t) => {
    const { enqueue, reach, kernel, world, clock } = await startJobs(t, { config: { concurrency: 2 } })
    const begun = await Promise.all(['a', 'b'].map((gate) => enqueue('sleep', { gate })))
    await Promise.all(['sleep a', 'sleep b'].map((moment) => world.until(moment)))
    const waiting = await Promise.all(['c', 'd'].map((gate) => enqueue('sleep', { gate })))

    await kernel.update('jobs', { concurrency: 3 })
    await world.until('sleep c')
    await settle()
    t.equal(world.count('sleep'), 3, 'three in all, those of the old generation counted')
    world.open('a')
    await world.until('sleep d')
    for (const gate of ['b', 'c', 'd']) world.open(gate)
    for (const job of [...begun, ...waiting]) t.match(await reach(job, 'succeeded'), { attempts: 1 })
    t.equal(world.count('sleep'), 4)
    await until(() => clock.pending === 0)
  })
  t.test('makes nothing run twice, however often and whenever it comes', async (t) => {
    const { enqueue, reach, kernel, world } = await startJobs(t)
    const all: Job[] = []
    for (let round = 0; round < 8; round += 1) {
      for (let count = 0; count < 10; count += 1) all.push(await enqueue('count', { k: `${round}-${count}` }))
      for (let wait = 0; wait < round; wait += 1) await turn()
      await kernel.update('jobs', { concurrency: 1 + (round % 4) })
    }
    for (const job of all) t.match(await reach(job, 'succeeded'), { attempts: 1, result: { n: 1 } })
    t.equal(world.count('count'), 80)
  })
})

t.test('retiring jobs begins nothing new, and waits for what runs', async (t) => {
  const { enqueue, kernel, world, services, clock } = await startJobs(t)
  const running = await enqueue('sleep', { gate: 'g' })
  const waiting = await enqueue('echo', { text: 'a' }, { afterMs: 1_000 })
  await world.until('sleep g')
  // One timer for the lease of the one, one for the other.
  await until(() => clock.pending === 2)

  const retired = kernel.retire('jobs')
  t.equal(services('tools').get('carmy_job'), undefined, 'its tool is gone at once')
  clock.advance(1_000)
  await settle()
  t.equal(world.count('echo'), 0, 'what becomes due meanwhile is left to others')
  world.open('g')
  await retired
  const stored = async (id: string) =>
    (await services('store').get<{ status: string }>('jobs.jobs', [id]))?.value.status
  t.equal(await stored(running.id), 'succeeded')
  t.equal(await stored(waiting.id), 'queued')
  t.equal(world.count('echo'), 0)
})

t.test('a job that does not end in the time of the drain', async (t) => {
  const clock = new ManualClock()
  const house = await startJobs(t, { clock, settings: { drain_timeout_ms: 20 } })
  const { enqueue, kernel, world, services } = house
  const job = await enqueue('watch')
  await world.until('watch began')
  await kernel.retire('jobs')
  t.equal(world.count('watch'), 1)
  t.equal(world.aborted.length, 1, 'its tool was told')

  await kernel.begin({ id: 'jobs', plugin: jobsAt(clock), config: {} })
  const jobs = services('jobs')
  await until(async () => (await jobs.get(job.id))?.status === 'dead_lettered')
  t.match(
    await jobs.get(job.id),
    { attempts: 1, lastError: { code: 'EXECUTION_UNCERTAIN' } },
    'nobody knows what it did'
  )
  t.equal(world.count('watch'), 1, 'and it is not run again')
})

t.test('a tool that can tell how it ended is asked before its job is given up', async (t) => {
  for (const happened of [true, false]) {
    const clock = new ManualClock()
    let runs = 0
    const requestIds: (string | undefined)[] = []
    const place = toolOf<unknown, string>({
      name: 'place',
      effect: 'external_write',
      run(_input, { signal, requestId }) {
        runs += 1
        requestIds.push(requestId)
        if (runs > 1) return 'placed now'
        return new Promise((resolve) => signal.addEventListener('abort', () => resolve('nobody hears this')))
      },
      verify: () => (happened ? { happened, output: 'placed before' } : { happened })
    })
    const house = await startJobs(t, { clock, settings: { drain_timeout_ms: 20 }, more: () => [place] })
    const job = await house.enqueue('place')
    await until(() => runs === 1)
    await house.kernel.retire('jobs')
    await house.kernel.begin({ id: 'jobs', plugin: jobsAt(clock), config: {} })
    const jobs = house.services('jobs')
    await until(async () => (await jobs.get(job.id))?.endedAtMs !== null)
    const result = happened ? 'placed before' : 'placed now'
    t.match(await jobs.get(job.id), { status: 'succeeded', attempts: 1, result })
    t.strictSame(
      requestIds,
      Array.from({ length: happened ? 1 : 2 }, () => `${job.id}#1`)
    )
  }
})

t.test('where the store fails at any of its writes, no tool runs twice and no job is lost', async (t) => {
  for (let good = 0; good <= 6; good += 1) {
    const faulty = new FaultyStore()
    const { jobs, enqueue, clock, world } = await startJobs(t, {
      store: false,
      entries: [{ plugin: faulty.plugin }]
    })
    const before = await enqueue('count', { k: 'x' }, { afterMs: 1_000 })
    await until(() => clock.pending === 1)
    faulty.commitsLeft = good
    clock.advance(1_000)
    await until(() => faulty.commitsLeft === 0 || world.count('count') > 0)
    await settle()
    faulty.commitsLeft = Number.POSITIVE_INFINITY
    // Through pauses, back-off and leases that have to end.
    let after = await jobs.get(before.id)
    while (after?.endedAtMs === null) {
      clock.advance(1_000)
      await turn()
      after = await jobs.get(before.id)
    }
    t.ok(world.count('count') <= 1, `after ${good} good writes it ran ${world.count('count')} times`)
    t.ok(after?.status === 'succeeded' || after?.lastError?.code === 'EXECUTION_UNCERTAIN', `${good}: ${after?.status}`)
    if (after?.status === 'succeeded') t.equal(world.count('count'), 1)
  }
})

t.test('an attempt that was left behind too long ago is not run again: its answer may be gone', async (t) => {
  const faulty = new FaultyStore()
  const { jobs, enqueue, clock, world } = await startJobs(t, { store: false, entries: [{ plugin: faulty.plugin }] })
  const job = await enqueue('sleep', { gate: 'g' })
  await world.until('sleep g')
  // It ends while nothing can be kept of it.
  faulty.commitsLeft = 0
  world.open('g')
  await settle()
  t.match(await jobs.get(job.id), { status: 'running' })
  faulty.commitsLeft = Number.POSITIVE_INFINITY
  clock.advance(12 * 3_600_000 + 1)
  const retried = await until(async () => (await jobs.get(job.id))?.status !== 'running').then(() => jobs.get(job.id))
  t.match(retried, { status: 'queued', attempts: 1, lastError: { code: 'EXECUTION_UNCERTAIN' } }, 'sleep is idempotent')
  t.match(
    outcomeOf(
      { error: retried?.lastError as ToolFailure },
      undefined,
      { attempts: 1, maxAttempts: 5 },
      { backoffMs: 0, maxBackoffMs: 0 }
    ),
    {
      status: 'dead_lettered'
    }
  )
  t.equal(world.count('sleep'), 1)
})

t.test('kill -9 in the middle: no write tool runs twice, and no acknowledged job is lost', async (t) => {
  const folder = t.testdir()
  const ran = join(folder, 'ran.txt')
  const acknowledged: string[] = []
  for (let round = 0; round < 4; round += 1) {
    const child = startFixture(t, 'jobs-process', [folder, String(round)])
    let enqueued = 0
    for await (const line of createInterface({ input: child.stdout })) {
      const [what, id = ''] = line.split(' ')
      if (what !== 'enqueued') continue
      acknowledged.push(id)
      enqueued += 1
      // Another place in the work for each round.
      if (enqueued === 12 + round * 7) child.kill('SIGKILL')
    }
  }

  // A process whose clock is past the leases of all the dead ones takes over.
  const clock = new ManualClock(Date.now() + 3_600_000)
  const { jobs, reach } = await startJobs(t, {
    clock,
    dataFolder: join(folder, 'data'),
    more: () => recordingTools(ran)
  })
  let uncertain = 0
  const times = countLines(ran)
  for (const id of acknowledged) {
    const job = await reach({ id }, 'succeeded', 'dead_lettered', 'failed', 'queued')
    const ended = job.status === 'queued' ? await passUntilEnded(id) : job
    const count = countLines(ran).get(id) ?? 0
    if (ended.status === 'succeeded') {
      if (ended.tool === 'note') t.equal(count, 1, `${id} succeeded and ran once`)
      else t.ok(count >= 1)
    } else {
      uncertain += 1
      t.equal(ended.lastError?.code, 'EXECUTION_UNCERTAIN')
      t.equal(ended.tool, 'note', 'an idempotent one is made again')
      t.ok(count <= 1, `${id} is uncertain and ran ${count} times`)
    }
  }
  t.comment(`${acknowledged.length} acknowledged, ${uncertain} uncertain, ${times.size} ran before the end`)
  t.ok(acknowledged.length >= 80)

  async function passUntilEnded(id: string): Promise<Job> {
    for (;;) {
      const job = (await jobs.get(id)) as Job
      if (job.endedAtMs !== null) return job
      clock.set(job.runAtMs)
      await turn()
    }
  }
})

t.test('rows 113 and 114: carmy_job tells its own what has become of a job', async (t) => {
  const { enqueue, reach, call, services, world } = await startJobs(t, { config: { anonymous: true } })
  const job = await enqueue('sleep', { gate: 'g' }, { requestId: 'r', afterMs: 0 })
  await world.until('sleep g')

  const waiting = await call('carmy_job', { job_id: job.id })
  t.match(waiting, {
    status: 'completed',
    data: {
      job_id: job.id,
      tool: 'sleep',
      status: 'running',
      request_id: 'r',
      attempts: 1,
      max_attempts: 5,
      last_error: null
    },
    _agent: { cacheable: false, next_actions: [{ tool: 'carmy_job', after_ms: 1_000 }] }
  })
  t.match((waiting.data as { run_at: string }).run_at, /^\d{4}-\d\d-\d\dT[\d:.]+Z$/)
  t.notOk('arguments' in (waiting._agent.next_actions[0] ?? {}))
  world.open('g')
  await reach(job, 'succeeded')
  const done = await call('carmy_job', { job_id: job.id })
  t.match(done, {
    data: { status: 'succeeded', result: { gate: 'g' } },
    _agent: { cacheable: false, next_actions: [] }
  })
  t.notOk('arguments' in (done.data as object))

  for (const caller of [bob, { principal: undefined }]) {
    const refused = await call('carmy_job', { job_id: job.id }, caller)
    t.match(refused.error, { code: 'JOB_NOT_FOUND', category: 'not_found', recoverable: true, retryable: false })
  }
  t.match((await call('carmy_job', { job_id: 'job_unknown' })).error, { code: 'JOB_NOT_FOUND' })
  t.match((await call('carmy_job', { job_id: 'x'.repeat(5_000) })).error, { code: 'JOB_NOT_FOUND' })

  const shared = await enqueue('echo', { text: 'a' }, { caller: { principal: 'webhook:/h' }, byIdAlone: true })
  t.match(await call('carmy_job', { job_id: shared.id }, { principal: undefined }), { data: { job_id: shared.id } })
  t.match(services('tools').get('carmy_job'), { effect: 'read', idempotent: false, parallel_safe: true })
  t.equal(services('tools').get('carmy_dead_letters'), undefined, 'only where the program says so')
})

t.test('carmy_dead_letters lists them for operators, newest first', async (t) => {
  const { enqueue, reach, call, clock } = await startJobs(t, { config: { operators: ['user:ann'] } })
  const older = await Promise.all(Array.from({ length: 21 }, (_, count) => enqueue('boom', { count }, { caller: bob })))
  const dead = await Promise.all(older.map((job) => reach(job, 'dead_lettered')))
  dead.sort((a, b) => (a.id < b.id ? -1 : 1))
  clock.advance(1)
  dead.push(await reach(await enqueue('boom', {}, { caller: bob }), 'dead_lettered'))
  const ids = (data: unknown): string[] => (data as { jobs: { job_id: string }[] }).jobs.map(({ job_id }) => job_id)
  const newest = dead.map(({ id }) => id).reverse()
  t.strictSame(ids((await call('carmy_dead_letters', {})).data), newest.slice(0, 20))
  t.strictSame(ids((await call('carmy_dead_letters', { limit: 0 })).data), newest.slice(0, 1))
  t.strictSame(ids((await call('carmy_dead_letters', { limit: 1_000_000 })).data), newest)
  t.match((await call('carmy_dead_letters', {}, bob)).error, { code: 'FORBIDDEN', category: 'permission' })
})

t.test('operators read jobs, cancel and retry them, and that is on record', async (t) => {
  const secret = 'adm'
  const { enqueue, reach, services } = await startJobs(t, {
    entries: [{ plugin: workers }, { plugin: audit }, { plugin: auth, config: { admin_secret: secret } }]
  })
  const ask = (method: string, path: string, headers: Record<string, string> = { 'x-admin-secret': secret }) =>
    services('http').dispatch({ method, path: `/api/admin/carmy/jobs${path}`, headers })
  const dead = await reach(await enqueue('boom'), 'dead_lettered')
  const waiting = await enqueue('echo', { text: 'a' }, { afterMs: 1_000 })

  t.equal((await ask('GET', '', {})).status, 401)
  t.equal((await ask('POST', `/${waiting.id}/cancel`, {})).status, 401)
  t.match(await ask('GET', ''), { status: 200, body: { jobs: [{ job_id: waiting.id }, { job_id: dead.id }] } })
  t.match(await ask('GET', '?status=dead_lettered&limit=0'), {
    body: { jobs: [{ job_id: dead.id, principal: 'user:ann' }] }
  })
  t.equal((await ask('GET', '?status=nonsense')).status, 400)
  t.match(await ask('GET', `/${dead.id}`), { status: 200, body: { status: 'dead_lettered', attempts: 1 } })
  t.equal((await ask('GET', '/job_nobody')).status, 404)

  t.match(await ask('POST', `/${waiting.id}/cancel`), { status: 200, body: { status: 'cancelled' } })
  t.match(await ask('POST', `/${waiting.id}/cancel`), { status: 409, body: { code: 'CONFLICT' } })
  t.match(await ask('POST', `/${dead.id}/retry`), { status: 200, body: { job_id: dead.id, max_attempts: 6 } })
  await reach(dead, 'dead_lettered')
  t.match(await ask('POST', `/${dead.id}/discard`), { status: 200, body: { job_id: dead.id, status: 'failed' } })
  t.match(await ask('POST', `/${dead.id}/discard`), { status: 409, body: { code: 'CONFLICT' } })
  t.match(await services('audit').list({ limit: 9, offset: 0 }), [
    { action: 'discard_job', details: { before: { status: 'dead_lettered' } } },
    { action: 'retry_job', actor: 'admin_secret', resource: { type: 'job', id: dead.id }, status: 'done' },
    { action: 'cancel_job', actor: 'admin_secret', resource: { type: 'job', id: waiting.id } }
  ])
})
