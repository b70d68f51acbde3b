import { readFileSync } from 'node:fs'
import t from 'tap'
import { type Answer, call, type Server, serve } from './server.ts'

const shipped = readFileSync(new URL('../../../program.toml', import.meta.url), 'utf8')
const adminKey = 'an-admin-key-for-the-tests'
const admin = { 'x-admin-secret': adminKey }
const env = { ADMIN_API_KEY: adminKey }

/** A tenant that may make so many calls a day. @returns its id, and the header with its key */
async function makeClient(server: Server, requestsPerDay: number) {
  const client = { name: 'n', tier: 'enterprise', product_type: 'p', api_key_name: 'k' }
  const made = await call(server, 'POST', '/api/admin/provision-client', { headers: admin, body: client })
  const { tenant_id: id, raw_api_key: key } = made.json
  const quota = { tier: 'enterprise', requests_per_day: requestsPerDay }
  const set = await call(server, 'PUT', `/api/admin/tenants/${id}/quota`, { headers: admin, body: quota })
  if (set.status !== 200) throw new Error(`the quota was refused: ${set.text}`)
  return { id, headers: { authorization: `Bearer ${key}` } }
}

/** Asks from 64 sides until `count` were asked, and tells each status. A connection that breaks has none. */
async function ask(server: Server, headers: Record<string, string>, count: number, onStatus: (status: number) => void) {
  let left = count
  const side = async (): Promise<void> => {
    while (left-- > 0) {
      let answer: Answer
      try {
        answer = await call(server, 'POST', '/api/v1/chat', { headers, body: { message: 'what is 17*23?' } })
      } catch {
        return
      }
      onStatus(answer.status)
    }
  }
  await Promise.all(Array.from({ length: 64 }, side))
}

t.test('the shipped program serves machine clients, and their limit is exact', async (t) => {
  const cwd = t.testdir({ 'program.toml': shipped })
  const server = await serve(t, { cwd, env })
  const { id, headers } = await makeClient(server, 200)
  const first = await call(server, 'POST', '/api/v1/chat', { headers, body: { message: 'hi', agent_type: 'writer' } })
  t.match(first.json, { agent: 'writer', provider: 'local', usage: { input_tokens: Number } })
  t.match((await call(server, 'GET', '/api/v1/agents', { headers })).json, { total: 2, page: 1, per_page: 20 })

  const counts: Record<number, number> = {}
  await ask(server, headers, 800, (status) => (counts[status] = (counts[status] ?? 0) + 1))
  t.strictSame(counts, { 200: 199, 429: 601 })
  t.match((await call(server, 'GET', `/api/admin/tenants/${id}/usage`, { headers: admin })).json, {
    daily_requests: 200,
    monthly_requests: 200
  })
  server.child.kill('SIGTERM')
  t.equal((await server.ended).code, 0)
})

t.test('kill -9 among metered calls: none that was answered is missing, none above the limit is let in', async (t) => {
  const cwd = t.testdir({ 'program.toml': shipped })
  const limit = 400
  let server = await serve(t, { cwd, env })
  const { id, headers } = await makeClient(server, limit)
  let answered = 0
  for (const killAt of [100, 200]) {
    await ask(server, headers, 10_000, (status) => {
      if (status === 200 && ++answered === killAt) server.child.kill('SIGKILL')
    })
    await server.ended
    server = await serve(t, { cwd, env })
    const { json } = await call(server, 'GET', `/api/admin/tenants/${id}/usage`, { headers: admin })
    t.ok(json.daily_requests >= answered, `${json.daily_requests} are on record, ${answered} were answered`)
  }
  let refused = 0
  await ask(server, headers, limit, (status) => {
    if (status === 200) answered += 1
    if (status === 429) refused += 1
  })
  t.ok(answered <= limit, `${answered} of ${limit} were let in`)
  t.ok(answered >= limit - 2 * (64 + limit / 16), 'only what was under way or at hand went with a process')
  t.ok(refused > 0, 'the end was reached')
})
