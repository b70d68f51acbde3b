import t from 'tap'
import { flood, recovery } from '../../bench/flood.ts'
import { httpRequest, sendOnce } from '../../bench/load.ts'
import auth from '../../plugins/auth/index.ts'
import http from '../../plugins/http/index.ts'
import rag from '../../plugins/rag/index.ts'
import workers from '../../plugins/workers/index.ts'
import { collect, startHouse } from '../harness.ts'

const secret = 'a secret of the tests, long enough to sign'
const account = { email: 'ada@example.test', password: 'a password of the tests' }
const maxQueue = 4

/** A server whose pools have one thread and a short queue, so that little is much. */
async function startSmall(t: Parameters<typeof startHouse>[0]) {
  const small = { max_threads: 1, max_queue: maxQueue }
  const { services } = await startHouse(t, [
    { plugin: http, config: { port: 0 } },
    { plugin: workers, config: { pools: { hash: small, rag: small } } },
    { plugin: auth, config: { jwt_secret: secret } },
    { plugin: rag }
  ])
  const port = services('http').address?.port ?? 0
  const { status, body } = await sendOnce(
    port,
    httpRequest('POST', '/api/auth/register', { body: { ...account, name: 'Ada' } })
  )
  if (status !== 200) throw new Error(`registration was answered ${status}: ${body}`)
  const { access_token: token } = JSON.parse(body) as { access_token: string }
  let mostWaiting = 0
  const watch = setInterval(() => {
    for (const { waiting } of Object.values(services('workers').load())) mostWaiting = Math.max(mostWaiting, waiting)
  }, 1)
  t.teardown(() => clearInterval(watch))
  return { services, port, token, mostWaiting: () => mostWaiting }
}

t.test('of more logins than there is room for, some are let in and the rest refused at once', async (t) => {
  const { services, port, mostWaiting } = await startSmall(t)
  const sessions = async () => (await collect(services('store').range('auth.sessions', []))).length
  const before = await sessions()
  const request = () => httpRequest('POST', '/api/auth/login', { body: account })

  const { good, goodAfter, refusedMs, faults } = await flood(port, { request, perSecond: 2_000, seconds: 0.1 })

  t.strictSame(faults, [], 'each was answered, or told when to come back')
  t.ok(good + goodAfter > maxQueue, `${good + goodAfter} were let in`)
  t.ok(refusedMs.length > 0)
  t.equal(good + goodAfter + refusedMs.length, 200)
  t.ok(mostWaiting() <= maxQueue)
  t.equal((await sessions()) - before, good + goodAfter, 'nothing is left of those that were refused')
  t.ok(Number.isFinite(await recovery(port, request(), 30_000)), 'and the next one is let in')
})

t.test('of more documents than there is room for, those that are let in are taken in whole', async (t) => {
  const { services, port, token, mostWaiting } = await startSmall(t)
  const content = 'The quick brown fox jumps over the lazy dog. '.repeat(1_000)
  const request = (n: number) =>
    httpRequest('POST', '/api/rag/ingest', {
      headers: { Authorization: `Bearer ${token}` },
      body: { collection: 'c', content: `${n}. ${content}` }
    })

  const { good, goodAfter, refusedMs, faults } = await flood(port, { request, perSecond: 2_000, seconds: 0.05 })

  t.strictSame(faults, [])
  t.ok(refusedMs.length > 0)
  t.equal(good + goodAfter + refusedMs.length, 100)
  t.ok(good + goodAfter > maxQueue, `${good + goodAfter} were let in`)
  t.ok(mostWaiting() <= maxQueue + 1, 'one more goes on with what was begun')
  const documents = await collect(services('store').range('rag-documents', []))
  t.equal(documents.length, good + goodAfter)
  t.ok(Number.isFinite(await recovery(port, request(-1), 30_000)), 'and the next one is let in')
})
