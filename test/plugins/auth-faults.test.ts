import { randomUUID } from 'node:crypto'
import t, { type Test } from 'tap'
import { CodedError, definePlugin } from '../../kernel/index.ts'
import auth from '../../plugins/auth/index.ts'
import { nobody } from '../../plugins/auth/parameters.ts'
import { createAuth, type Options, type TokenPair } from '../../plugins/auth/service.ts'
import { createTokens } from '../../plugins/auth/tokens.ts'
import { workerTasks } from '../../plugins/auth/worker-tasks.ts'
import type { DispatchReply } from '../../plugins/http/types.ts'
import type { Workers, WorkerTask } from '../../plugins/workers/types.ts'
import { FaultyStore } from '../fakes/faulty-store.ts'
import { collect, startHouse } from '../harness.ts'

const password = 'pass-word-1'
const secret = 'a secret of the tests, long enough to sign'
const forever = Number.POSITIVE_INFINITY

/** Workers that hash at once, and die when a test says so. */
class FaultyWorkers {
  /** Tasks that still succeed; the ones after them fail. */
  tasksLeft = forever

  readonly service: Workers = {
    run: async <T>(task: string | WorkerTask, input: unknown): Promise<T> => {
      if (this.tasksLeft <= 0) throw new CodedError('WORKERS_CRASHED', 'a thread died at /home/secret')
      this.tasksLeft -= 1
      if ((typeof task === 'string' ? task : task.name) === workerTasks.hash.name)
        return `hash of ${String(input)}` as T
      const { password, phc } = input as { password: string; phc: string }
      return { matches: phc !== nobody && phc === `hash of ${password}` } as T
    },
    load: () => ({})
  }

  readonly plugin = definePlugin({
    name: 'workers',
    provides: ['workers'],
    apply: (ctx) => {
      ctx.provide('workers', this.service)
      ctx.collect('workers.tasks', { update: () => {} })
    }
  })
}

async function startFaulty(t: Test) {
  const faulty = new FaultyStore()
  const workers = new FaultyWorkers()
  const config = { jwt_secret: secret, admin_secret: 'adm' }
  const entries = [{ plugin: faulty.plugin }, { plugin: workers.plugin }, { plugin: auth, config }]
  const house = await startHouse(t, entries, { store: false })
  const post = (path: string, body: unknown) =>
    house.services('http').dispatch({ method: 'POST', path: `/api/auth/${path}`, body })
  return {
    ...house,
    faulty,
    workers,
    register: (email: string) => post('register', { email, password, name: 'N' }),
    login: (email: string) => post('login', { email, password }),
    refresh: (token: string) => post('refresh', { refresh_token: token }),
    logout: (token: string) => post('logout', { refresh_token: token }),
    sessions: async () => (await collect(faulty.store.range('auth.sessions', []))).length,
    /** Everything works again. */
    heal() {
      faulty.readsLeft = forever
      faulty.commitsLeft = forever
      faulty.disk = Promise.resolve()
      workers.tasksLeft = forever
    }
  }
}

type Faulty = Awaited<ReturnType<typeof startFaulty>>

const faults: Readonly<Record<string, (house: Faulty, n: number) => void>> = {
  'store read': ({ faulty }, n) => {
    faulty.readsLeft = n
  },
  'store write': ({ faulty }, n) => {
    faulty.commitsLeft = n
  },
  'worker message': ({ workers }, n) => {
    workers.tasksLeft = n
  }
}

const tokenOf = (reply: DispatchReply): string => (reply.body as TokenPair).refresh_token

/** What each operation is, what it needs, and what must be so when it was answered, and when it failed. */
const operations: Readonly<
  Record<
    string,
    (
      house: Faulty,
      email: string
    ) => Promise<{
      readonly run: () => Promise<DispatchReply>
      readonly isKept: (reply: DispatchReply) => Promise<boolean>
      readonly isUndone: () => Promise<boolean>
    }>
  >
> = {
  register: async ({ register, login, refresh }, email) => ({
    run: () => register(email),
    isKept: async (reply) => (await login(email)).status === 200 && (await refresh(tokenOf(reply))).status === 200,
    isUndone: async () => (await register(email)).status === 200
  }),
  login: async ({ register, login, refresh, sessions }, email) => {
    await register(email)
    const before = await sessions()
    return {
      run: () => login(email),
      isKept: async (reply) => (await sessions()) === before + 1 && (await refresh(tokenOf(reply))).status === 200,
      isUndone: async () => (await sessions()) === before
    }
  },
  refresh: async ({ register, refresh, sessions }, email) => {
    const old = tokenOf(await register(email))
    const before = await sessions()
    return {
      run: () => refresh(old),
      isKept: async (reply) =>
        (await refresh(old)).status === 401 &&
        (await refresh(tokenOf(reply))).status === 200 &&
        (await sessions()) === before,
      isUndone: async () => (await refresh(old)).status === 200
    }
  },
  logout: async ({ register, refresh, logout }, email) => {
    const token = tokenOf(await register(email))
    return {
      run: () => logout(token),
      isKept: async () => (await refresh(token)).status === 401,
      isUndone: async () => (await refresh(token)).status === 200
    }
  }
}

t.test('when the n-th step fails, nothing is acknowledged that is not kept, and the next request works', async (t) => {
  const house = await startFaulty(t)
  for (const [operation, prepare] of Object.entries(operations)) {
    for (const [fault, inject] of Object.entries(faults)) {
      let failures = 0
      for (let n = 0; ; n += 1) {
        const name = `${operation}, ${fault} ${n + 1}`
        const { run, isKept, isUndone } = await prepare(house, `${operation}-${fault.replace(' ', '-')}-${n}@x.test`)
        inject(house, n)
        const reply = await run()
        house.heal()
        if (reply.status === 200) {
          t.ok(await isKept(reply), `${name}: answered and kept`)
          break
        }
        failures += 1
        t.equal(reply.status, 500, name)
        t.match(reply.body, { code: fault.startsWith('store') ? 'DATABASE_ERROR' : 'INTERNAL_ERROR' }, name)
        t.notMatch(JSON.stringify(reply.body), /disk|secret|thread/, `${name}: nothing internal shows`)
        const id = reply.headers['x-request-id']
        t.match(
          house.lines.filter(({ requestId }) => requestId === id),
          [{ level: 'error', error: { code: String } }],
          `${name}: one line in the log, under the id of the answer`
        )
        t.ok(await isUndone(), `${name}: as if it had not been asked`)
      }
      const isHashed = operation === 'register' || operation === 'login'
      const expected = fault === 'worker message' && !isHashed ? 0 : 1
      t.ok(
        failures >= (operation === 'logout' && fault === 'store read' ? 0 : expected),
        `${operation}, ${fault}: it did fail`
      )
    }
  }
})

t.test('what is not on disk is not acknowledged', async (t) => {
  const house = await startFaulty(t)
  for (const [operation, prepare] of Object.entries(operations)) {
    const { run } = await prepare(house, `${operation}@x.test`)
    let fail: (error: Error) => void = () => {}
    house.faulty.disk = new Promise((_resolve, reject) => {
      fail = reject
    })
    const committed = house.faulty.committed()
    let answered = false
    const reply = run().finally(() => {
      answered = true
    })
    await committed
    await new Promise((resolve) => setImmediate(resolve))
    t.notOk(answered, `${operation} waits for the disk`)
    fail(new CodedError('STORE_FAILED', 'the disk is gone'))
    t.match(await reply, { status: 500, body: { code: 'DATABASE_ERROR' } }, operation)
    house.heal()
    t.match(await house.login('register@x.test'), { status: 200 }, 'the next request works')
  }
})

/** How many tokens are raced for; more by HEARTWOOD_TEST_TOKENS, for a long run. */
const count = Number(process.env['HEARTWOOD_TEST_TOKENS'] ?? 200)

t.test(`of twenty refreshes of one token at once one wins, for ${count} tokens at once`, async (t) => {
  const { services } = await startHouse(t, [], { http: false })
  const options: Options = {
    access_ttl_seconds: 900,
    refresh_ttl_seconds: 604_800,
    on_reuse: 'refuse',
    blocked_passwords: [],
    block_common_passwords: false
  }
  const environment = { now: Date.now, randomUUID }
  const tokens = await createTokens(secret, Date.now)
  const accounts = createAuth(services('store'), new FaultyWorkers().service, tokens, options, environment)
  await accounts.register({ email: 'ann@x.test', password, name: 'N' })
  const pairs = await Promise.all(
    Array.from({ length: count }, () => accounts.login({ email: 'ann@x.test', password }))
  )
  const races = await Promise.all(
    pairs.map(({ refresh_token }) =>
      Promise.allSettled(Array.from({ length: 20 }, () => accounts.refresh(refresh_token)))
    )
  )
  const winners = races.map((race) => race.filter(({ status }) => status === 'fulfilled'))
  t.ok(winners.every((race) => race.length === 1))
  const losers = races.flat().filter((outcome) => outcome.status === 'rejected')
  t.equal(losers.length, count * 19)
  t.strictSame(
    new Set(losers.map(({ reason }) => `${(reason as CodedError).code} ${(reason as CodedError).message}`)),
    new Set(['AUTH_SESSION_GONE Refresh token has been revoked or expired'])
  )
  t.equal((await collect(services('store').range('auth.sessions', []))).length, count + 1, 'as many sessions as before')
})
