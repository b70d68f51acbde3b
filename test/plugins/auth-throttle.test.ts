import t, { type Test } from 'tap'
import { CodedError } from '../../kernel/index.ts'
import auth from '../../plugins/auth/index.ts'
import { commonPasswords } from '../../plugins/auth/passwords.ts'
import { createThrottleState, LoginThrottle, type ThrottleConfig } from '../../plugins/auth/throttle.ts'
import type { DispatchReply } from '../../plugins/http/types.ts'
import workers from '../../plugins/workers/index.ts'
import { collect, startHouse } from '../harness.ts'

const off: ThrottleConfig = { max_failures_per_account: 0, max_failures_per_address: 0, window_seconds: 100 }
const home = '192.0.2.1'

type Outcome = 'right' | 'wrong' | 'refused' | 'broken'

/** A throttle over a clock that is moved by hand, and logins that end when they are told to. */
function throttled(config: Partial<ThrottleConfig>, state = createThrottleState()) {
  const clock = { ms: 5_000_000 }
  const throttle = new LoginThrottle({ ...off, ...config }, state, () => clock.ms)
  const open: ((outcome: Outcome) => void)[] = []
  const login = (): Promise<string> =>
    new Promise((resolve, reject) =>
      open.push((outcome) => {
        if (outcome === 'right') resolve('pair')
        else if (outcome === 'wrong') reject(new CodedError('AUTH_CREDENTIALS_WRONG', 'Invalid credentials'))
        else reject(new CodedError('WORKERS_BUSY', 'busy'))
      })
    )
  const attempt = async (email = 'ann@x.test', address = home): Promise<Outcome | CodedError> => {
    try {
      await throttle.attempt(email, address, login)
      return 'right'
    } catch (error) {
      const { code } = error as CodedError
      return code === 'AUTH_CREDENTIALS_WRONG' ? 'wrong' : code === 'AUTH_THROTTLED' ? (error as CodedError) : 'broken'
    }
  }
  /** Lets every login that was let in end so, and those that come in thereby too. @returns how many there were */
  const end = async (outcome: Outcome): Promise<number> => {
    let count = 0
    for (await settled(); open.length > 0; await settled()) {
      for (const each of open.splice(0)) {
        count += 1
        each(outcome)
      }
    }
    return count
  }
  /** So many at once, all ending so. */
  const crowd = async (count: number, outcome: Outcome, email?: string, address?: string) => {
    const attempts = Promise.all(Array.from({ length: count }, () => attempt(email, address)))
    const tried = await end(outcome)
    const refused = (await attempts).filter((each) => each instanceof CodedError)
    return { tried, refused: refused.length, retryAfter: refused.at(-1)?.detail?.['retryAfterSeconds'] }
  }
  return { clock, state, attempt, end, crowd, open }
}

/** After everything that needs no timer. */
const settled = () => new Promise<void>((resolve) => setImmediate(resolve))

t.test('exactly as many may fail as is said, however many try at once', async (t) => {
  for (const most of [1, 3, 10]) {
    const { clock, crowd, state } = throttled({ max_failures_per_account: most })
    t.match(await crowd(200, 'wrong'), { tried: most, refused: 200 - most, retryAfter: Math.ceil(100 / most) })
    t.match(await crowd(50, 'wrong'), { tried: 0, refused: 50 })
    t.match(await crowd(50, 'right'), { tried: 0, refused: 50 }, 'nor may who knows the password now')
    clock.ms += 100_000 / most - 1
    t.match(await crowd(5, 'wrong'), { tried: 0 })
    clock.ms += 2
    t.match(await crowd(5, 'wrong'), { tried: 1, refused: 4 }, 'one is forgiven')
    clock.ms += 100_000
    t.match(await crowd(200, 'wrong'), { tried: most }, 'all are forgiven, and no more than all')
    t.equal(state.accounts.crowds.size, 0)
  }
})

t.test('a crowd that knows its password is let through, a few at a time', async (t) => {
  const { crowd, attempt, end, open, state } = throttled({ max_failures_per_account: 3 })
  const attempts = Promise.all(Array.from({ length: 20 }, () => attempt()))
  await settled()
  t.equal(open.length, 3, 'the others wait')
  t.equal(await end('right'), 20)
  t.strictSame(new Set(await attempts), new Set(['right']))
  t.match(await crowd(20, 'broken'), { tried: 20, refused: 0 }, 'what is no guess costs nothing')
  t.match(await crowd(20, 'wrong'), { tried: 3 })
  t.equal(state.accounts.crowds.size, 0)
})

t.test('who waits is refused as soon as nothing can let them in', async (t) => {
  const { attempt, open } = throttled({ max_failures_per_account: 2 })
  const attempts = [attempt(), attempt(), attempt(), attempt()]
  await settled()
  open.shift()?.('wrong')
  await settled()
  t.equal(open.length, 1, 'one place is left, and it is taken')
  open.shift()?.('wrong')
  t.match(await Promise.all(attempts), ['wrong', 'wrong', { code: 'AUTH_THROTTLED' }, { code: 'AUTH_THROTTLED' }])
})

t.test('accounts are apart, addresses are apart, and both count', async (t) => {
  const { crowd } = throttled({ max_failures_per_account: 5, max_failures_per_address: 8 })
  t.match(await crowd(20, 'wrong', 'a@x.test', '192.0.2.1'), { tried: 5 })
  t.match(await crowd(20, 'wrong', ' A@X.TEST', '192.0.2.2'), { tried: 0 }, 'however it is written, from wherever')
  t.match(await crowd(20, 'wrong', 'b@x.test', '192.0.2.1'), { tried: 3 }, 'what was left of the address')
  t.match(await crowd(20, 'wrong', 'c@x.test', '192.0.2.1'), { tried: 0 })
  t.match(await crowd(20, 'wrong', 'c@x.test', '192.0.2.2'), { tried: 5 }, 'refused attempts had cost c nothing')
  t.match(await crowd(20, 'wrong', 'no address', '192.0.2.3'), { tried: 8 })
})

t.test('names are bounded: those that failed longest ago are forgotten', async (t) => {
  const { accounts } = createThrottleState()
  for (let at = 0; at < 120_000; at += 1) accounts.put(`p${at}@x.test`, 900_000, 1, 900_000)
  t.ok(accounts.size <= 100_000, `${accounts.size}`)
  t.equal(accounts.forgivenAt('p70000@x.test'), 900_000)
  t.equal(accounts.forgivenAt('p0@x.test'), 0)
  accounts.put('later@x.test', 3_000_000, 2_000_000, 900_000)
  accounts.put('latest@x.test', 4_000_000, 3_000_000, 900_000)
  t.equal(accounts.size, 2, 'what is forgiven is let go')
})

async function startAuth(t: Test, config: object = {}) {
  const house = await startHouse(t, [{ plugin: workers }, { plugin: auth, config }])
  const post = (path: string, body: unknown, address?: string) =>
    house.services('http').dispatch({
      method: 'POST',
      path: `/api/auth/${path}`,
      body,
      ...(address === undefined ? {} : { headers: { 'x-forwarded-for': address } })
    })
  return {
    ...house,
    register: (email: string, password = 'pass-word-1') => post('register', { email, password, name: 'N' }),
    login: (email: string, password = 'wrong-pass-1', address?: string) => post('login', { email, password }, address)
  }
}

const many = <R>(count: number, work: (at: number) => Promise<R>) =>
  Promise.all(Array.from({ length: count }, (_, at) => work(at)))
const withStatus = (replies: readonly DispatchReply[], status: number) =>
  replies.filter((reply) => reply.status === status)

t.test('parallel guesses at one account: ten are looked at, and it does not show whether it exists', async (t) => {
  const { register, login, kernel } = await startAuth(t)
  t.match(await register('ann@x.test'), { status: 200 })
  const bodies = []
  for (const email of ['ann@x.test', 'nobody@x.test']) {
    const replies = await many(40, () => login(email))
    t.equal(withStatus(replies, 401).length, 10, email)
    const refused = withStatus(replies, 429)
    t.equal(refused.length, 30, email)
    for (const { headers } of refused) t.match(headers['retry-after'], /^(?:8\d|90)$/, 'one in 90 s')
    bodies.push(new Set(replies.map(({ body }) => JSON.stringify(body))))
  }
  t.strictSame(bodies[0], bodies[1])
  t.strictSame((await login('nobody@x.test')).body, {
    error: 'Rate limited: too many logins have failed; try again later',
    code: 'INTERNAL_ERROR'
  })
  t.match(await login('ann@x.test', 'pass-word-1'), { status: 429 }, 'the right password tells nothing either')
  t.match(await login('ann@x.test', 'pass-word-1', '198.51.100.1'), { status: 429 })

  await kernel.update('auth', { login_throttle: { max_failures_per_account: 0 } })
  t.match(await login('ann@x.test', 'pass-word-1'), { status: 200 }, 'a change of the config is heard')
  await kernel.update('auth', {})
  t.match(await login('ann@x.test', 'pass-word-1'), { status: 429 }, 'and forgives nobody')
})

t.test('parallel logins with the right password all get in', async (t) => {
  const { register, login, services } = await startAuth(t)
  await register('ann@x.test')
  const replies = await many(30, () => login('ann@x.test', 'pass-word-1'))
  t.equal(withStatus(replies, 200).length, 30)
  t.equal((await collect(services('store').range('auth.sessions', []))).length, 31)
})

t.test('guesses at many accounts from one address are as many as the address may make', async (t) => {
  const { login } = await startAuth(t, { login_throttle: { max_failures_per_address: 12 } })
  const replies = await many(40, (at) => login(`p${at}@x.test`, 'wrong-pass-1', `2001:db8::${at}`))
  t.equal(withStatus(replies, 401).length, 12, 'an IPv6 network is one address')
  t.match(await login('p40@x.test', 'wrong-pass-1', '2001:db8:0:1::1'), { status: 401 })
})

t.test('with both limits at 0 nobody is held up', async (t) => {
  const login_throttle = { max_failures_per_account: 0, max_failures_per_address: 0 }
  const { login } = await startAuth(t, { login_throttle })
  t.equal(withStatus(await many(20, () => login('nobody@x.test')), 401).length, 20)
})

t.test('passwords that are blocked cannot be chosen, in any case or form, and can still be used', async (t) => {
  const { kernel, register, login } = await startAuth(t, {
    blocked_passwords: ['Correct-Horse', 'S\u00fc\u00dfe-m\u00e4use']
  })
  const refused = { status: 400, body: { error: 'Password is too common, choose another one', code: 'INVALID_INPUT' } }
  for (const password of ['correct-horse', 'CORRECT-HORSE', 'Su\u0308\u00dfe-ma\u0308use']) {
    t.match(await register('ann@x.test', password), refused, password)
  }
  t.match(await register('ann@x.test', 'password123'), { status: 200 }, 'only what the config names')
  await kernel.update('auth', { block_common_passwords: true })
  for (const password of ['password123', 'PassWord123', ...commonPasswords.slice(0, 5)]) {
    t.match(await register('ben@x.test', password), refused, password)
  }
  t.match(await register('ann@x.test', 'short'), { body: { error: /at least 8 characters/ } }, 'shape comes first')
  t.match(await login('ann@x.test', 'password123'), { status: 200 }, 'who has one keeps it')
  t.match(await register('ben@x.test', 'correct-horse'), { status: 200 })
  for (const each of commonPasswords) t.ok(each.length >= 8 && each === each.toLowerCase().normalize('NFKC'), each)
})

t.test('AUTH-07: a password of a megabyte is refused unhashed, one of 128 letters is fine', async (t) => {
  const { register, login } = await startAuth(t)
  const long = 'x'.repeat(900_000)
  // As many again wait for a hash.
  const guesses = many(50, () => login('ann@x.test'))
  const replies = await many(50, () => login('ann@x.test', long))
  t.equal(withStatus(replies, 401).length, 50)
  t.equal(withStatus(await guesses, 401).length, 10)
  t.match(await register('ben@x.test', long), { status: 400 })
  t.match(await register('ben@x.test', 'y'.repeat(128)), { status: 200 })
  t.equal(withStatus(await many(20, () => login('ben@x.test', long)), 401).length, 20)
  t.match(await login('ben@x.test', 'y'.repeat(128)), { status: 200 }, 'and locks nobody out')
})

t.test('AUTH-08: a burst of logins is answered to the last one, and others are answered meanwhile', async (t) => {
  const login_throttle = { max_failures_per_account: 0, max_failures_per_address: 0 }
  const { login, services } = await startAuth(t, { login_throttle })
  let ended = false
  const burst = many(100, () => login('a@x.test')).finally(() => {
    ended = true
  })
  let answered = 0
  let unanswered = 0
  while (!ended) {
    const { body } = await services('http').dispatch({ method: 'GET', path: '/health' })
    if (body === 'OK') answered += 1
    else unanswered += 1
    await settled()
  }
  const replies = await burst
  t.ok(answered > 10)
  t.equal(unanswered, 0)
  t.equal(withStatus(replies, 401).length + withStatus(replies, 503).length, 100)
  t.ok(withStatus(replies, 401).length >= 64)
  for (const { headers } of withStatus(replies, 503)) t.match(headers['retry-after'], /^[1-9]\d*$/)
})
