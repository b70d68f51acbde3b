import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import fc from 'fast-check'
import t, { type Test } from 'tap'
import { CrashLoad, type Victim } from '../../bench/crash-load.ts'
import { call, run, type Server, serve } from './server.ts'

const shipped = readFileSync(new URL('../../../program.toml', import.meta.url), 'utf8')
const adminKey = 'an-admin-key-for-the-tests'
const admin = { 'x-admin-secret': adminKey }
const password = 'a long enough password'

/** The shipped program, with what machine clients need. */
function folder(t: Test): string {
  const missing = ['tenants', 'v1'].filter((plugin) => !shipped.includes(`plugin = "${plugin}"`))
  const more = missing.map((plugin) => `\n[[entry]]\nid = "${plugin}"\nplugin = "${plugin}"\n`)
  return t.testdir({ 'program.toml': shipped + more.join('') })
}

const register = (server: Server, email: string) =>
  call(server, 'POST', '/api/auth/register', { body: { email, password, name: 'N' } })
const refresh = (server: Server, token: string) =>
  call(server, 'POST', '/api/auth/refresh', { body: { refresh_token: token } })

const seed = Number(process.env['HEARTWOOD_TEST_SEED'] ?? Date.now() % 2 ** 31)
/** `bench/crash.ts` is the long form. */
const kills = Number(process.env['HEARTWOOD_TEST_KILLS'] ?? 5)

t.test(`nothing that was acknowledged is lost to ${kills} kills, and nothing is counted twice`, async (t) => {
  t.comment(`HEARTWOOD_TEST_SEED=${seed}`)
  const rounds = fc.sample(fc.integer({ min: 5, max: 60 }), { seed, numRuns: kills })
  const options = { cwd: folder(t), env: { ADMIN_API_KEY: adminKey } }
  const load = new CrashLoad(adminKey, Math.random)
  const start = async (): Promise<Victim> => {
    const server = await serve(t, options)
    const kill = async () => {
      server.child.kill('SIGKILL')
      await server.ended
    }
    return { url: server.url, kill }
  }
  let server = await start()
  const round = async (requests: number) => {
    await load.runAndKill(server, requests)
    server = await start()
    t.strictSame(await load.check(server), [], JSON.stringify(load.acknowledged))
  }
  for (const requests of rounds) await round(requests)
  // Short rounds may end before a password is hashed: something of each kind is to be there.
  const isMissing = () => Object.values(load.acknowledged).includes(0)
  for (let more = 0; more < 10 && isMissing(); more += 1) await round(60)
  t.strictSame(await load.check(server, true), [], 'all of it')
  for (const [what, count] of Object.entries(load.acknowledged)) t.ok(count > 0, `${count} ${what}`)
})

t.test('a backup taken under load and restored is the same server', async (t) => {
  const cwd = folder(t)
  const env = { ADMIN_API_KEY: adminKey }
  const server = await serve(t, { cwd, env })
  const ann = (await register(server, 'ann@example.org')).json
  const authorization = `Bearer ${ann.access_token}`
  const said = await call(server, 'POST', '/api/chat', {
    headers: { authorization },
    body: { message: 'what is 2+3?' }
  })
  const tenant = (
    await call(server, 'POST', '/api/admin/tenants', { headers: admin, body: { name: 't', tier: 'dev' } })
  ).json
  const created = await call(server, 'POST', `/api/admin/tenants/${tenant.id}/api-keys`, {
    headers: admin,
    body: { name: 'k' }
  })
  const key = { authorization: `Bearer ${created.json.raw_key}` }
  for (let at = 0; at < 3; at += 1) {
    const turn = await call(server, 'POST', '/api/v1/chat', {
      headers: key,
      body: { message: 'hi', agent_type: 'writer' }
    })
    t.equal(turn.status, 200)
  }
  const usage = await call(server, 'GET', `/api/admin/tenants/${tenant.id}/usage`, { headers: admin })

  const before: { email: string; token: string }[] = []
  let hasEnded = false
  const load = Array.from({ length: 4 }, async (_, lane) => {
    for (let at = 0; !hasEnded; at += 1) {
      const email = `p${lane}-${at}@example.org`
      const answer = await register(server, email)
      if (answer.status !== 200) throw new Error(`register answered ${answer.status}`)
      before.push({ email, token: answer.json.refresh_token })
    }
  })
  while (before.length < 10) await new Promise((resolve) => setImmediate(resolve))
  const acknowledged = [...before]
  const backup = await run(t, ['backup', '--to', 'backups/one'], { cwd, env })
  hasEnded = true
  await Promise.all(load)
  t.match(backup, { code: 0, stdout: /backed up .*data to backups\/one: \d+ records, .* read back/, stderr: '' })
  server.child.kill('SIGTERM')
  t.equal((await server.ended).code, 0)

  const refused = await run(t, ['restore', '--from', 'backups/one', '--verify'], { cwd, env })
  t.match(refused, { code: 1, stderr: /data\.mdb is there already/ }, 'not over what is there')
  const restored = await run(t, ['restore', '--from', 'backups/one', '--verify', '--data', 'restored'], { cwd, env })
  t.match(restored, { code: 0, stdout: /restored .*every record read back/, stderr: '' })

  const again = await serve(t, { cwd, env, args: ['--data', join(cwd, 'restored')] })
  for (const { email, token } of acknowledged) {
    t.equal((await refresh(again, token)).status, 200, email)
  }
  t.match((await call(again, 'POST', '/api/auth/login', { body: { email: 'ann@example.org', password } })).status, 200)
  const path = `/api/conversations/${said.json.context_id}`
  const conversation = await call(again, 'GET', path, { headers: { authorization } })
  t.match(conversation.json, { message_count: 2, messages: [{ content: 'what is 2+3?' }, { role: 'assistant' }] })
  t.match((await call(again, 'GET', `/api/admin/tenants/${tenant.id}/usage`, { headers: admin })).json, usage.json)
  t.match(usage.json, { monthly_requests: 3 })
  t.equal((await call(again, 'GET', '/api/v1/agents', { headers: key })).status, 200, 'the same keys')
})

t.test('STORAGE-01: texts of any length are kept whole or refused, never an error of ours', async (t) => {
  const server = await serve(t, { cwd: folder(t) })
  const { json } = await register(server, 'ann@example.org')
  const headers = { authorization: `Bearer ${json.access_token}` }
  for (const letter of ['k', 'ü', '語']) {
    for (const length of [200, 500, 1900, 1978, 2100, 4100, 70_000]) {
      const name = `${length} × ${letter}`
      const long = letter.repeat(length)
      const registered = await register(server, `${long}@x.test`)
      const isShort = letter === 'k' && length === 200
      t.equal(registered.status, isShort ? 200 : 400, `register, ${name}`)
      const login = await call(server, 'POST', '/api/auth/login', { body: { email: `${long}@x.test`, password } })
      t.equal(login.status, isShort ? 200 : 401, `login, ${name}`)
      const path = `/api/conversations/${encodeURIComponent(long)}`
      // What does not fit into a head is the transport's to refuse, each in its way.
      const read = await call(server, 'GET', path, { headers }).then(
        ({ status }) => status,
        () => 431
      )
      t.ok([404, 414, 431, 505].includes(read), `read, ${name}: ${read}`)
      const turn = await call(server, 'POST', '/api/chat', {
        headers,
        body: { message: long, agent_type: 'writer', context_id: `${length}-${letter}` }
      })
      t.equal(turn.status, 200, `chat, ${name}`)
      const kept = await call(server, 'GET', `/api/conversations/${encodeURIComponent(`${length}-${letter}`)}`, {
        headers
      })
      t.equal(kept.json.messages[0].content, long, `kept, ${name}`)
    }
  }
  t.equal((await call(server, 'GET', '/health')).text, 'OK')
  t.notMatch(server.log(), /"level":"error"/)
})

t.test('OPS-03: no secret is written to the log, at any level', async (t) => {
  const server = await serve(t, {
    cwd: folder(t),
    args: ['--log-level', 'debug'],
    env: { ADMIN_API_KEY: adminKey, JWT_SECRET: 'a-jwt-secret-of-the-tests-that-is-long' }
  })
  const { json } = await register(server, 'ann@example.org')
  const token = json.access_token as string
  const url = `/api/chat/stream?message=hi&agent_type=writer&token=${token}`
  t.equal((await call(server, 'GET', url)).status, 200)
  await call(server, 'GET', `/api/chat/stream?%74oken=${token}&message=`)
  await call(server, 'GET', `/api/memory?token=${token}x`)
  const wrong = { email: 'ann@example.org', password: 'Sekret-pass-77' }
  t.equal((await call(server, 'POST', '/api/auth/login', { body: wrong })).status, 401)
  const response = await fetch(`${server.url}/api/auth/login`, {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: '{"email":"ann@example.org","password":"Sekret-pass-78"'
  })
  t.equal(response.status, 400)
  t.notMatch(await response.text(), /Sekret/)
  await refresh(server, json.refresh_token)
  await refresh(server, `${json.refresh_token}x`)
  t.equal(
    (await call(server, 'GET', '/api/admin/stats', { headers: { 'x-admin-secret': 'Wrong-adm-79' } })).status,
    401
  )
  t.equal((await call(server, 'GET', '/api/admin/stats', { headers: admin })).status, 200)
  const tenant = await call(server, 'POST', '/api/admin/tenants', { headers: admin, body: { name: 't', tier: 'free' } })
  const path = `/api/admin/tenants/${tenant.json.id}/api-keys`
  const key = (await call(server, 'POST', path, { headers: admin, body: { name: 'k' } })).json.raw_key as string
  await call(server, 'POST', '/api/v1/chat', { headers: { authorization: `Bearer ${key}` }, body: { message: 'hi' } })
  server.child.kill('SIGTERM')
  const { stderr, stdout } = await server.ended
  const secrets = [token.slice(0, 60), json.refresh_token.slice(60, 140), key, adminKey, 'a-jwt-secret-of']
  for (const secret of [...secrets, 'Sekret-pass-7', 'Wrong-adm-79', password]) {
    t.notOk(stderr.includes(secret) || stdout.includes(secret), `${secret.slice(0, 6)}… is nowhere`)
  }
})
