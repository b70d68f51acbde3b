import t from 'tap'
import { parseCron } from '../../plugins/jobs/cron.ts'
import { jobsAt } from '../../plugins/jobs/index.ts'
import type { Job } from '../../plugins/jobs/types.ts'
import tools from '../../plugins/tools/index.ts'
import { ManualClock } from '../fakes/manual-clock.ts'
import { fixtureTools, toolsPlugin, World } from '../fixtures/carmy-tools.ts'
import { startHouse, startProgram } from '../harness.ts'

type T = Parameters<typeof startHouse>[0]

const noon = Date.parse('2027-01-15T12:00:00Z')
const iso = (ms: number | undefined) => (ms === undefined ? undefined : new Date(ms).toISOString())

t.test('a schedule names times of UTC', (t) => {
  const rows: readonly [cron: string, after: string, next: string | undefined][] = [
    ['* * * * * *', '2027-01-15T12:00:00.000Z', '2027-01-15T12:00:01.000Z'],
    ['* * * * * * *', '2027-01-15T12:00:00.999Z', '2027-01-15T12:00:01.000Z'],
    ['0 * * * * *', '2027-01-15T12:00:00.000Z', '2027-01-15T12:01:00.000Z'],
    ['0 * * * * *', '2027-01-15T11:59:59.999Z', '2027-01-15T12:00:00.000Z'],
    ['*/20 * * * * *', '2027-01-15T12:00:20.000Z', '2027-01-15T12:00:40.000Z'],
    ['5/20 * * * * *', '2027-01-15T12:00:45.000Z', '2027-01-15T12:01:05.000Z'],
    ['0 10-30/10 * * * *', '2027-01-15T12:30:00.000Z', '2027-01-15T13:10:00.000Z'],
    ['0 0 6,18 * * *', '2027-01-15T12:00:00.000Z', '2027-01-15T18:00:00.000Z'],
    ['0 0 18,6 * * *', '2027-01-15T18:00:00.000Z', '2027-01-16T06:00:00.000Z'],
    ['0 30 6 * * MON-FRI', '2027-01-15T12:00:00.000Z', '2027-01-18T06:30:00.000Z'],
    ['0 0 0 * * sun', '2027-01-15T12:00:00.000Z', '2027-01-17T00:00:00.000Z'],
    ['0 0 9 1-7 * MON', '2027-01-15T12:00:00.000Z', '2027-02-01T09:00:00.000Z'],
    ['0 0 0 31 * *', '2027-01-31T00:00:00.000Z', '2027-03-31T00:00:00.000Z'],
    ['0 0 0 29 FEB *', '2027-01-15T12:00:00.000Z', '2028-02-29T00:00:00.000Z'],
    ['0 0 0 1 jan,JUL *', '2027-01-15T12:00:00.000Z', '2027-07-01T00:00:00.000Z'],
    ['59 59 23 31 12 * 2027', '2027-01-15T12:00:00.000Z', '2027-12-31T23:59:59.000Z'],
    ['59 59 23 31 12 * 2027', '2027-12-31T23:59:59.000Z', undefined],
    ['0 0 0 1 1 * 2030/5', '2031-01-15T12:00:00.000Z', '2035-01-01T00:00:00.000Z'],
    ['0 0 0 30 FEB *', '2027-01-15T12:00:00.000Z', undefined]
  ]
  for (const [cron, after, next] of rows) t.equal(iso(parseCron(cron).next(Date.parse(after))), next, cron)
  t.end()
})

t.test('what is no schedule is refused with what would be right', (t) => {
  const rows: readonly [cron: string, message: RegExp][] = [
    ['', /fields/],
    ['* * * * *', /has 5 fields; it takes second, minute/],
    ['* * * * * * * *', /8 fields/],
    ['60 * * * * *', /'60' is no second: it takes 0 to 59/],
    ['* * 24 * * *', /no hour/],
    ['* * * 0 * *', /no day of the month: it takes 1 to 31/],
    ['* * * * 13 *', /no month/],
    ['* * * * * 1', /'1' is no day of the week: it takes SUN to SAT/],
    ['* * * * * MOON', /no day of the week/],
    ['* * * * * * 1969', /no year/],
    ['5-1 * * * * *', /no second/],
    ['1-2-3 * * * * *', /no second/],
    ['*/0 * * * * *', /no second/],
    ['*/1/2 * * * * *', /no second/],
    ['1,,2 * * * * *', /no second/],
    ['-1 * * * * *', /no second/],
    ['1.5 * * * * *', /no second/]
  ]
  for (const [cron, message] of rows) t.throws(() => parseCron(cron), { message }, cron)
  t.end()
})

interface Options {
  readonly clock?: ManualClock
  readonly dataFolder?: string
  readonly schedules: readonly object[]
  readonly config?: object
}

async function startSchedules(t: T, { clock = new ManualClock(noon), schedules, config, dataFolder }: Options) {
  const world = new World()
  const house = await startHouse(
    t,
    [
      { plugin: tools },
      { plugin: toolsPlugin(() => fixtureTools(world)) },
      { plugin: jobsAt(clock), config: { schedules, ...config } }
    ],
    dataFolder === undefined ? {} : { dataFolder }
  )
  const jobs = house.services('jobs')
  /** All that have succeeded, oldest first, once there are so many. */
  const succeeded = async (count: number): Promise<readonly Job[]> => {
    for (;;) {
      const found = await jobs.list({ limit: 1_000 })
      if (found.filter(({ status }) => status === 'succeeded').length >= count) return [...found].reverse()
      await new Promise(setImmediate)
    }
  }
  return { ...house, world, jobs, clock, succeeded }
}

const everyMinute = { name: 'tick', cron: '0 * * * * *', tool: 'count', arguments: { k: 'a' } }
const ids = (jobs: readonly Job[]) => jobs.map(({ requestId }) => requestId)

t.test('a schedule makes one job of each of its times, as itself', async (t) => {
  const whoami = { name: 'who', cron: '30 * * * * *', tool: 'whoami', permissions: ['confirm:wipe'] }
  const { succeeded, clock, world, jobs } = await startSchedules(t, { schedules: [everyMinute, whoami] })
  // What the minute before the start has missed is made up for, and no more.
  t.strictSame(
    new Set(ids(await succeeded(2))),
    new Set(['tick@2027-01-15T12:00:00.000Z', 'who@2027-01-15T11:59:30.000Z'])
  )
  clock.advance(29_999)
  clock.advance(1)
  const [last] = (await succeeded(3)).slice(-1)
  t.match(last, { requestId: 'who@2027-01-15T12:00:30.000Z', principal: 'schedule:who', tool: 'whoami' })
  t.match(await jobs.get(last?.id ?? ''), {
    result: { principal: 'schedule:who', permissions: ['confirm:wipe'] }
  })
  clock.advance(30_000)
  await succeeded(4)
  t.equal(world.count('count'), 2)
})

t.test('no time is used twice: not by another generation, and not by another process', async (t) => {
  const dataFolder = t.testdir()
  const clock = new ManualClock(noon)
  const first = await startSchedules(t, { schedules: [everyMinute], dataFolder, clock })
  await first.succeeded(1)
  for (let swap = 0; swap < 3; swap += 1) {
    await first.kernel.update('jobs', { schedules: [everyMinute], concurrency: swap + 1 })
  }
  clock.advance(60_000)
  await first.succeeded(2)
  await first.kernel.stop()

  const next = await startSchedules(t, { schedules: [everyMinute], dataFolder, clock, config: { keep_days: 0 } })
  clock.advance(60_000)
  const all = ids(await next.succeeded(3))

  t.strictSame(
    all,
    [0, 1, 2].map((minute) => `tick@2027-01-15T12:0${minute}:00.000Z`)
  )
  t.equal(first.world.count('count') + next.world.count('count'), 3)
})

t.test('a clock that jumps', async (t) => {
  t.test('forth, as after a sleep of the machine, passes no time of a schedule', async (t) => {
    const evening = { ...everyMinute, cron: '0 0 18 * * *' }
    const { succeeded, clock } = await startSchedules(t, { schedules: [evening] })
    clock.jump(6 * 3_600_000 - 10_000)
    clock.advance(30_000)
    t.strictSame(ids(await succeeded(1)), ['tick@2027-01-15T18:00:00.000Z'])
  })

  t.test('back keeps no schedule from going on', async (t) => {
    const { succeeded, clock } = await startSchedules(t, { schedules: [everyMinute] })
    await succeeded(1)
    clock.jump(-3_600_000)
    for (const _ of [1, 2, 3, 4]) clock.advance(30_000)
    t.strictSame(ids(await succeeded(3)).slice(1), ['tick@2027-01-15T11:01:00.000Z', 'tick@2027-01-15T11:02:00.000Z'])
  })
})

t.test('who comes late makes up for one minute at most', async (t) => {
  const { succeeded, clock } = await startSchedules(t, { schedules: [{ ...everyMinute, cron: '*/20 * * * * *' }] })
  await succeeded(3)
  clock.advance(3_600_000 + 5_000)
  t.strictSame(ids(await succeeded(6)).slice(3), [
    'tick@2027-01-15T12:59:20.000Z',
    'tick@2027-01-15T12:59:40.000Z',
    'tick@2027-01-15T13:00:00.000Z'
  ])
})

t.test('a schedule that cannot work is refused, and one that has gone makes nothing', async (t) => {
  const { succeeded, kernel, clock, jobs } = await startSchedules(t, { schedules: [everyMinute] })
  await succeeded(1)
  const refuse = (schedules: readonly object[], message: RegExp) =>
    t.rejects(kernel.update('jobs', { schedules }), { code: 'INVALID_SCHEDULE', message })
  await refuse([{ ...everyMinute, cron: '* * *' }], /schedule 'tick': .*3 fields/)
  await refuse([{ ...everyMinute, cron: '0 0 0 30 FEB *' }], /names no time/)
  await refuse([everyMinute, everyMinute], /another one has that name/)
  await refuse([{ ...everyMinute, tool: 'nope' }], /has the tool 'nope'/)
  await t.rejects(kernel.update('jobs', { schedules: [{ ...everyMinute, name: 'a b' }] }))
  clock.advance(60_000)
  await succeeded(2)

  await kernel.update('jobs', {})
  clock.advance(60_000)
  for (let turn = 0; turn < 30; turn += 1) await new Promise(setImmediate)
  t.equal((await jobs.list({ limit: 9 })).length, 2)
  await kernel.retire('jobs')
  t.equal(clock.pending, 0)
})

t.test('a program whose schedule has no tool starts all the same, and says so in the log', async (t) => {
  const program = await startProgram(
    t,
    `
[[entry]]
id = "tools"
plugin = "tools"

[[entry]]
id = "jobs"
plugin = "jobs"
config = { schedules = [{ name = "never", cron = "0 0 0 1 1 * 2199", tool = "nope" }] }
`
  )
  t.match(
    program.lines.filter(({ level }) => level === 'error'),
    [{ entry: 'jobs', error: { code: 'INVALID_SCHEDULE', message: /'never'.*'nope'/ } }]
  )
  const config = { schedules: [{ name: 'never', cron: 'now', tool: 'nope' }] }
  t.match(await program.admin('PATCH', '/entries/jobs', { config }), { status: 422, body: { error: /has 1 fields/ } })
})
