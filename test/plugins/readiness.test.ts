import t from 'tap'
import { CodedError, definePlugin, type Plugin } from '../../kernel/index.ts'
import readiness, { readinessWithin } from '../../plugins/readiness/index.ts'
import type { ReadinessCheck } from '../../plugins/readiness/types.ts'
import { assertUp } from '../../plugins/workers/readiness.ts'
import { startHouse, startProgram } from '../harness.ts'

type T = Parameters<typeof startHouse>[0]

function checksPlugin(name: string, ...checks: readonly ReadinessCheck[]): Plugin {
  return definePlugin({ name, apply: (ctx) => ctx.contribute('readiness.checks', ...checks) })
}

/** A house whose checks have the time that the test gives them. */
async function startReady(t: T, ...checks: readonly ReadinessCheck[]) {
  const running = new Set<() => void>()
  const plugin = readinessWithin((onOver) => {
    running.add(onOver)
    return () => void running.delete(onOver)
  })
  const house = await startHouse(t, [{ plugin }, { plugin: checksPlugin('checks', ...checks) }], { store: false })
  const ready = () => house.services('http').dispatch({ method: 'GET', path: '/ready' })
  return { ...house, ready, running }
}

t.test('row 108: one check that fails makes the server not ready, and shows no more than a code', async (t) => {
  let isWell = true
  const { ready, lines, running } = await startReady(
    t,
    { name: 'fine', check: () => {} },
    {
      name: 'database',
      async check() {
        if (!isWell) throw new CodedError('DATABASE_UNAVAILABLE', 'cannot write /secret/path')
      }
    },
    {
      name: 'odd',
      check() {
        if (!isWell) throw new Error('password=hunter2')
      }
    }
  )
  const ok = { ok: true }
  const good = await ready()
  t.equal(good.status, 200)
  t.equal(good.headers['cache-control'], 'no-store')
  t.strictSame(good.body, { ready: true, checks: { fine: ok, database: ok, odd: ok, server: ok } })

  isWell = false
  const bad = await ready()
  t.equal(bad.status, 503)
  t.equal(bad.headers['cache-control'], 'no-store')
  t.strictSame(bad.body, {
    ready: false,
    checks: {
      fine: ok,
      database: { ok: false, error: 'DATABASE_UNAVAILABLE' },
      odd: { ok: false, error: 'FAILED' },
      server: ok
    }
  })
  t.ok(
    lines.some(({ message }) => message.includes("'odd'")),
    'the log has the rest'
  )
  isWell = true
  t.equal((await ready()).status, 200)
  t.equal(running.size, 0, 'no timer is left')
})

t.test('checks run side by side, and one that takes too long is told to stop', async (t) => {
  const reasons: unknown[] = []
  let begun = 0
  const slow = (name: string): ReadinessCheck => ({
    name,
    check(signal) {
      begun += 1
      return new Promise((_resolve, reject) => {
        signal.addEventListener('abort', () => {
          reasons.push((signal.reason as CodedError).code)
          reject(new Error('it was told'))
        })
      })
    }
  })
  const { ready, running } = await startReady(t, slow('one'), slow('two'), { name: 'fast', check: () => {} })
  const asked = [ready(), ready()]
  while (running.size !== 2) await new Promise((resolve) => setImmediate(resolve))
  t.equal(begun, 2, 'both at once, and once for all who ask meanwhile')
  for (const onOver of [...running]) onOver()
  for (const reply of await Promise.all(asked)) {
    t.match(reply, {
      status: 503,
      body: {
        ready: false,
        checks: { one: { ok: false, error: 'READY_TIMEOUT' }, two: { error: 'READY_TIMEOUT' }, fast: { ok: true } }
      }
    })
  }
  t.strictSame(reasons, ['READY_TIMEOUT', 'READY_TIMEOUT'])
})

t.test('of two checks of one name both have to be well', async (t) => {
  const bad: ReadinessCheck = { name: 'same', check: () => Promise.reject(new CodedError('A', 'a')) }
  const good: ReadinessCheck = { name: 'same', check: () => {} }
  const { ready, kernel } = await startReady(t, bad, good)
  t.match(await ready(), { status: 503, body: { checks: { same: { ok: false, error: 'A' } } } })
  await kernel.retire('checks')
  t.match(await ready(), { status: 200, body: { ready: true } }, 'checks leave with their plugin')
})

t.test('a server that stops is not ready', async (t) => {
  const { ready, kernel } = await startReady(t)
  kernel.events.emit('kernel/stopping')
  t.match(await ready(), { status: 503 })
})

t.test('workers are down when there is work and nobody to do it', (t) => {
  const pool = (waiting: number, running: number, threads: number) => () =>
    assertUp({ fine: { waiting: 9, running: 2, threads: 2 }, pool: { waiting, running, threads } })
  for (const well of [pool(0, 0, 0), pool(0, 0, 3), pool(0, 2, 2), pool(5, 1, 1)]) t.doesNotThrow(well)
  for (const down of [pool(1, 0, 0), pool(1, 0, 2), pool(0, 1, 0)]) t.throws(down, { code: 'WORKER_DOWN' })
  t.end()
})

t.test('the store and the workers of a program are asked', async (t) => {
  const { services, kernel } = await startProgram(t, '[[entry]]\nid = "readiness"\nplugin = "readiness"\n')
  const ready = () => services('http').dispatch({ method: 'GET', path: '/ready' })
  t.match(await ready(), {
    status: 200,
    body: { ready: true, checks: { database: { ok: true }, workers: { ok: true }, server: { ok: true } } }
  })
  await kernel.retire('readiness')
  t.equal((await ready()).status, 404)
  t.equal(readiness.name, 'readiness')
})
