import { once } from 'node:events'
import { chmodSync, mkdirSync, readdirSync, readFileSync, writeFileSync } from 'node:fs'
import { createServer } from 'node:net'
import { join } from 'node:path'
import t from 'tap'
import { call, run, type Server, serve } from './server.ts'

const shipped = readFileSync(new URL('../../../program.toml', import.meta.url), 'utf8')
const adminKey = 'an-admin-key-for-the-tests'
const admin = { 'x-admin-secret': adminKey }

interface Folder {
  testdir(content: Record<string, string>): string
}

/** A folder with the shipped program, or with what `change` makes of it. */
function folder(t: Folder, change: (program: string) => string = (program) => program): string {
  return t.testdir({ 'program.toml': change(shipped) })
}

async function register(
  server: Server,
  email = 'ada@example.org'
): Promise<{ authorization: string; refresh: string }> {
  const answer = await call(server, 'POST', '/api/auth/register', {
    body: { email, password: 'a long enough password', name: 'Ada' }
  })
  if (answer.status !== 200) throw new Error(`register answered ${answer.status}: ${answer.text}`)
  return { authorization: `Bearer ${answer.json.access_token}`, refresh: answer.json.refresh_token }
}

const calculate = { tool: 'calculator', arguments: { operation: 'divide', a: 2, b: 3 } }

t.test('the shipped program serves a newcomer from registration to a changed configuration', async (t) => {
  const cwd = folder(t)
  const server = await serve(t, { cwd, env: { ADMIN_API_KEY: adminKey } })
  t.equal((await call(server, 'GET', '/health')).text, 'OK')
  const { authorization } = await register(server)

  const chat = await call(server, 'POST', '/api/chat', {
    headers: { authorization },
    body: { message: 'what is 17*23?' }
  })
  t.equal(chat.status, 200)
  t.match(chat.json, { response: /391/, agent: 'researcher (system)', context_id: String })

  const stream = await call(server, 'POST', '/api/chat/stream', {
    headers: { authorization },
    body: { message: 'what is 17*23?', agent_type: 'researcher', context_id: 'walk' }
  })
  t.equal(stream.headers.get('content-type'), 'text/event-stream')
  const events = stream.text
    .split('\n\n')
    .flatMap((frame) => (frame.startsWith('data: ') ? [JSON.parse(frame.slice(6))] : []))
  t.strictSame(events.at(0), { event: 'start', agent: 'researcher', context_id: 'walk' })
  t.strictSame(events.at(-1), { event: 'done', agent: 'researcher', context_id: 'walk' })
  t.match(events.map((event) => event.content ?? '').join(''), /391/)

  const catalog = await call(server, 'GET', '/agent/tools')
  t.match(catalog.json, { tools: [{ name: 'calculator' }, { name: 'carmy_job' }, { name: 'clock' }] })
  const first = await call(server, 'POST', '/agent/execute', { body: { ...calculate, request_id: 'walk-1' } })
  const second = await call(server, 'POST', '/agent/execute', { body: { ...calculate, request_id: 'walk-1' } })
  t.match(first.json, { status: 'completed', data: { result: 0.666667 } })
  t.equal(second.text, first.text, 'the same bytes')

  const patched = await call(server, 'PATCH', '/api/admin/cordis/entries/tools:calc', {
    headers: admin,
    body: { config: { precision: 2, anonymous: true } }
  })
  t.equal(patched.status, 200)
  t.match(patched.json, {
    applied: [{ id: 'tools:calc', action: 'update-config', ok: true, verified: true }],
    patched: true,
    entry: { id: 'tools:calc', plugin: 'calculator', config: { precision: 2, anonymous: true }, disabled: false }
  })
  t.match((await call(server, 'POST', '/agent/execute', { body: calculate })).json, { data: { result: 0.67 } })

  server.child.kill('SIGTERM')
  t.equal((await server.ended).code, 0)
  const kept = readFileSync(join(cwd, 'program.toml'), 'utf8')
  t.equal(kept, shipped.replace('precision = 6', 'precision = 2'), 'only the changed value differs, comments stay')

  const again = await serve(t, { cwd, env: { ADMIN_API_KEY: adminKey } })
  t.match((await call(again, 'POST', '/agent/execute', { body: calculate })).json, { data: { result: 0.67 } })
  t.equal(
    (await call(again, 'POST', '/agent/execute', { body: { ...calculate, request_id: 'walk-1' } })).text,
    first.text
  )
})

t.test('what was acknowledged is there after kill -9', async (t) => {
  const cwd = folder(t)
  const server = await serve(t, { cwd })
  const email = 'kept@example.org'
  const { authorization } = await register(server, email)
  const body = { ...calculate, request_id: 'kept-1' }
  const answer = await call(server, 'POST', '/agent/execute', { headers: { authorization }, body })
  server.child.kill('SIGKILL')
  t.equal(answer.status, 200)
  await server.ended

  const again = await serve(t, { cwd })
  const login = await call(again, 'POST', '/api/auth/login', { body: { email, password: 'a long enough password' } })
  t.equal(login.status, 200)
  const replay = await call(again, 'POST', '/agent/execute', {
    headers: { authorization: `Bearer ${login.json.access_token}` },
    body
  })
  t.equal(replay.text, answer.text)
})

t.test(
  'an invalid program is refused with file, line, column and a suggestion, by serve and by validate',
  async (t) => {
    const cwd = folder(t, (program) =>
      program.replace('plugin = "calculator"', 'plugin = "calculater"').replace('port =', 'prot =')
    )
    for (const command of ['serve', 'validate']) {
      const ended = await run(t, [command], { cwd })
      t.equal(ended.code, 1)
      t.match(ended.stderr, /program\.toml:\d+:\d+: unknown key prot.* did you mean 'port'\?/)
      t.match(ended.stderr, /program\.toml:\d+:\d+: unknown plugin 'calculater'.* did you mean 'calculator'\?/)
    }
    t.strictSame(readdirSync(cwd), ['program.toml'], 'nothing was started')
    const fine = await run(t, ['validate'], { cwd: folder(t) })
    t.match(fine, { code: 0, stdout: /program\.toml: valid, \d+ entries/ })
  }
)

t.test('plan prints the steps from one program to another, also where only what is seen has changed', async (t) => {
  const cwd = folder(t)
  const before = readFileSync(join(cwd, 'program.toml'), 'utf8')
  const after = before
    .replace('precision = 6', 'precision = 3')
    .replace('id = "chat"', 'id = "chat"\nisolate = { tools = "own" }')
    .replace(/\[\[entry\]\]\nid = "agents:writer"[^]*$/, '')
  writeFileSync(join(cwd, 'after.toml'), after)
  const { code, stdout } = await run(t, ['plan', '--from', 'program.toml', '--program', 'after.toml'], { cwd })
  t.equal(code, 0)
  t.strictSame(stdout.split('\n').slice(0, 4), [
    'rebuild-fiber  chat (chat)',
    'update-config  tools:calc (calculator)',
    'retire         agents:writer (agent)',
    stdout.split('\n')[3]
  ])
  t.match(stdout, /^3 steps; \d+ entries/m)
})

t.test('what keeps a server from starting is one clear line and exit code 1', async (t) => {
  const taken = createServer().listen(0, '127.0.0.1')
  await new Promise((resolve) => taken.once('listening', resolve))
  t.teardown(() => taken.close())
  const { port } = taken.address() as { port: number }

  const cases: readonly [string, readonly string[], Record<string, string>, RegExp][] = [
    ['a port in use', ['--port', String(port)], {}, new RegExp(`127\\.0\\.0\\.1.*${port}|${port}.*in use`)],
    ['a short secret', ['--port', '0'], { JWT_SECRET: 'too short' }, /JWT_SECRET.*32/],
    ['a missing program', ['--program', 'nowhere.toml'], {}, /nowhere\.toml/],
    ['a port that is none', ['--port', '70000'], {}, /70000/],
    ['an unknown option', ['--prot', '1'], {}, /prot/]
  ]
  for (const [name, args, env, expected] of cases) {
    const cwd = folder(t)
    const ended = await run(t, ['serve', ...args], { cwd, env })
    t.equal(ended.code, 1, name)
    if (name === 'a port in use') t.strictSame(readdirSync(cwd), ['program.toml'], 'nothing was begun')
    const lines = ended.stderr.split('\n').filter((line) => line.startsWith('heartwood: '))
    t.equal(lines.length, 1, `${name}: one line`)
    t.match(lines[0], expected, name)
    t.notMatch(ended.stderr, /too short/, 'a secret is not repeated')
  }
})

t.test(
  'a data folder that cannot be written is refused by name',
  { skip: process.getuid?.() === 0 && 'root may write anywhere' },
  async (t) => {
    const cwd = folder(t)
    mkdirSync(join(cwd, 'locked'))
    chmodSync(join(cwd, 'locked'), 0o500)
    const ended = await run(t, ['serve', '--port', '0', '--data', 'locked/data'], { cwd })
    t.match(ended, { code: 1, stderr: /heartwood: .*locked\/data/ })
  }
)

t.test('a second server on the same data folder is refused and the first is untouched', async (t) => {
  const cwd = folder(t)
  const server = await serve(t, { cwd })
  const second = await run(t, ['serve', '--port', '0'], { cwd })
  t.equal(second.code, 1)
  t.match(second.stderr, /heartwood: .*data/)
  t.equal((await call(server, 'GET', '/health')).text, 'OK')
})

t.test('SIGTERM ends an open stream with a proper last event, and the process with 0 in its time', async (t) => {
  const cwd = folder(t, (program) => `${program}\n[kernel]\nshutdown_timeout_ms = 2000\n\n${endlessAgent}`)
  writeFileSync(join(cwd, 'endless.mjs'), endlessPlugin)
  const server = await serve(t, { cwd })
  const { authorization } = await register(server)
  const stream = await fetch(`${server.url}/api/chat/stream`, {
    method: 'POST',
    headers: { authorization, 'content-type': 'application/json' },
    body: JSON.stringify({ message: 'go on', agent_type: 'endless' })
  })
  const reader = stream.body?.getReader() as ReadableStreamDefaultReader<Uint8Array>
  let text = ''
  while (!text.includes('"token"')) text += Buffer.from((await reader.read()).value ?? []).toString()
  const beganMs = performance.now()
  server.child.kill('SIGTERM')
  for (;;) {
    const { done, value } = await reader.read()
    if (done) break
    text += Buffer.from(value).toString()
  }
  const last = JSON.parse(text.trim().split('\n\n').at(-1)?.replace('data: ', '') ?? '')
  t.match(last, { event: 'error', context_id: String, error: /shutting down/ })
  t.equal((await server.ended).code, 0)
  t.ok(performance.now() - beganMs < 2_000)
})

const hangingEntry = `
[[entry]]
id = "hanging"
plugin = "./hanging.mjs"
`

/** What does not come to an end when it should. */
const hangingPlugin = `
import { definePlugin } from 'heartwood'

export default definePlugin({
  name: 'hanging',
  apply(ctx) {
    ctx.effect(() => () => {
      ctx.log.warn('it hangs')
      return new Promise(() => {})
    }, 'what hangs')
  }
})
`

t.test(
  'a second signal ends at once, and so does a drain that takes too long: as the signal ends any process',
  async (t) => {
    for (const [timeoutMs, reason] of [
      [60_000, 'ended by a second signal'],
      [50, 'the stop took too long']
    ] as const) {
      const cwd = folder(t, (program) => `${program}\n[kernel]\nshutdown_timeout_ms = ${timeoutMs}\n\n${hangingEntry}`)
      writeFileSync(join(cwd, 'hanging.mjs'), hangingPlugin)
      const server = await serve(t, { cwd })
      server.child.kill('SIGTERM')
      while (!server.log().includes('it hangs')) await once(server.child.stderr!, 'data')
      if (timeoutMs > 1_000) server.child.kill('SIGTERM')
      const { code, signal, stderr } = await server.ended
      t.strictSame([code, signal], [null, 'SIGTERM'], 'nothing is taken apart that threads still use')
      t.match(stderr, reason, 'and the log says why')
    }
  }
)

t.test('a log that nobody reads holds up neither the answers nor the end', async (t) => {
  const cwd = folder(t, (program) => `${program}\n${noisyEntry}`)
  writeFileSync(join(cwd, 'noisy.mjs'), noisyPlugin)
  const server = await serve(t, { cwd })
  server.child.stderr!.pause()
  t.equal((await call(server, 'GET', '/noise')).json.lines, 20_000)
  t.equal((await call(server, 'GET', '/health')).text, 'OK')
  const exit = once(server.child, 'exit')
  server.child.kill('SIGTERM')
  t.strictSame(await exit, [null, 'SIGTERM'])
})

const noisyEntry = `
[[entry]]
id = "noisy"
plugin = "./noisy.mjs"
`

/** Writes far more than a pipe holds. */
const noisyPlugin = `
import { definePlugin } from 'heartwood'

export default definePlugin({
  name: 'noisy',
  apply(ctx) {
    ctx.contribute('http.routes', {
      method: 'GET',
      path: '/noise',
      operationId: 'noise',
      summary: 'Logs a lot',
      replies: { 200: { type: 'object' } },
      handle: () => {
        for (let line = 0; line < 20_000; line++) ctx.log.info('noise', { line, filling: 'x'.repeat(100) })
        return { body: { lines: 20_000 } }
      }
    })
  }
})
`

t.test('a plugin given by path answers, is listed, and one that does not load fails alone', async (t) => {
  const cwd = folder(t, (program) => `${program}\n${helloEntry}`)
  writeFileSync(join(cwd, 'hello.ts'), helloPlugin)
  writeFileSync(join(cwd, 'broken.mjs'), 'export default {')
  const server = await serve(t, { cwd, env: { ADMIN_API_KEY: adminKey } })
  t.strictSame((await call(server, 'GET', '/hello/Ada')).json, { text: 'hello Ada' })
  const { fibers } = (await call(server, 'GET', '/api/admin/cordis/services', { headers: admin })).json
  const broken = fibers.find((fiber: { entry_id: string }) => fiber.entry_id === 'broken')
  t.match(broken, { state: 'Failed', error: /broken\.mjs/ })
  t.equal((await call(server, 'GET', '/health')).text, 'OK')
})

const helloPlugin = `
import { definePlugin } from 'heartwood'

export default definePlugin({
  name: 'hello',
  apply(ctx) {
    ctx.contribute('http.routes', {
      method: 'GET',
      path: '/hello/{name}',
      operationId: 'hello',
      summary: 'Greets',
      replies: { 200: { type: 'object' } },
      handle: ({ params }: { params: { name: string } }) => ({ body: { text: \`hello \${params.name}\` } })
    })
  }
})
`

const helloEntry = `
[[entry]]
id = "hello"
plugin = "./hello.ts"

[[entry]]
id = "broken"
plugin = "./broken.mjs"
`

const endlessAgent = `
[[entry]]
id = "models:endless"
plugin = "./endless.mjs"

[[entry]]
id = "agents:endless"
plugin = "agent"
config = { model = "endless" }
`

/** A model that goes on until it is told to stop. */
const endlessPlugin = `
import { definePlugin } from 'heartwood'

const usage = { inputTokens: { total: 1 }, outputTokens: { total: 1 } }

export default definePlugin({
  name: 'endless',
  apply(ctx) {
    ctx.contribute('chat.providers', {
      name: 'endless',
      models: ['endless'],
      languageModel: () => ({
        specificationVersion: 'v3',
        provider: 'endless',
        modelId: 'endless',
        supportedUrls: {},
        doGenerate: async () => { throw new Error('streams only') },
        doStream: async ({ abortSignal }) => ({
          stream: new ReadableStream({
            start(controller) {
              controller.enqueue({ type: 'stream-start', warnings: [] })
              controller.enqueue({ type: 'text-start', id: '1' })
              controller.enqueue({ type: 'text-delta', id: '1', delta: 'word ' })
              abortSignal?.addEventListener('abort', () => controller.error(abortSignal.reason))
            }
          })
        })
      })
    })
  }
})
`
