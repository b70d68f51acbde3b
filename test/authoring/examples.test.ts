import { type ChildProcess, spawn } from 'node:child_process'
import { copyFileSync, cpSync, readdirSync } from 'node:fs'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import t, { type Test } from 'tap'
import { runNode, typeCheck } from './package.ts'
import { installPacked } from './packed.ts'
import { cleanEnv } from '../process.ts'

const examples = fileURLToPath(new URL('../../../examples', import.meta.url))

let hasUws = true
try {
  await import('uWebSockets.js' as string)
} catch {
  hasUws = false
}

const folder = t.testdir({})
const files = await installPacked(folder)
for (const name of readdirSync(examples)) cpSync(join(examples, name), join(folder, name), { recursive: true })

interface Started {
  /** Where it said that it listens. */
  readonly url: string
  /** Asks it to end. @returns its exit code */
  readonly stop: () => Promise<number | null>
}

/** Runs a command in a folder as a user would, until it prints where it listens. */
function start(t: Test, cwd: string, command: string, args: readonly string[]): Promise<Started> {
  const [env, ...rest] = [...cleanEnv({ PORT: '0', DATA: join(cwd, 'data') }), command, ...args]
  const child: ChildProcess = spawn(env!, rest, {
    cwd,
    stdio: ['ignore', 'pipe', 'pipe'],
    // A group of its own, as in a terminal: npx does not hand a signal on.
    detached: true
  })
  const signal = (name: NodeJS.Signals) => {
    if (child.pid === undefined) return
    try {
      process.kill(-child.pid, name)
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code !== 'ESRCH') throw error
    }
  }
  const ended = new Promise<number | null>((resolve) => child.on('close', resolve))
  t.teardown(() => signal('SIGKILL'))
  let output = ''
  return new Promise((resolve, reject) => {
    const read = (chunk: Buffer) => {
      output += chunk.toString()
      const url = /http:\/\/127\.0\.0\.1:\d+/.exec(output)?.[0]
      if (url === undefined) return
      resolve({
        url,
        stop() {
          signal('SIGTERM')
          return ended
        }
      })
    }
    child.stdout?.on('data', read)
    child.stderr?.on('data', read)
    void ended.then(() => reject(new Error(`it ended before it listened: ${output}`)))
  })
}

function execute(url: string, body: object, headers: Record<string, string> = {}): Promise<Response> {
  return fetch(`${url}/agent/execute`, {
    method: 'POST',
    headers: { 'content-type': 'application/json', ...headers },
    body: JSON.stringify(body)
  })
}

t.test('the package holds what it needs, and nothing of the tests', (t) => {
  t.ok(files.includes('dist/main.js'))
  t.ok(files.includes('program.toml'))
  t.strictSame(
    files.filter((path) => /^(?:dist\/)?(?:test|bench)\//.test(path)),
    []
  )
  t.end()
})

for (const [name, isThere] of [
  ['embed-fetch', true],
  ['embed-uws', hasUws]
] as const) {
  t.test(
    `${name}: the router answers beside the routes of its host`,
    { skip: !isThere && 'no uWebSockets.js' },
    async (t) => {
      const { url, stop } = await start(t, join(folder, name), process.execPath, ['server.mjs'])
      t.equal(await (await fetch(`${url}/hello`)).text(), 'a route of my own\n')
      const discovery = await fetch(`${url}/.well-known/agent`)
      t.match(await discovery.json(), { protocol: 'carmy/1', server: 'embedded' })
      t.match(discovery.headers.get('etag'), /^"[0-9a-f]{64}"$/)

      const body = { tool: 'greet', request_id: 'one' }
      t.equal((await execute(url, body)).status, 403, 'nobody in particular')
      t.equal((await execute(url, body, { 'x-session': 'wrong' })).status, 403)
      const first = await execute(url, body, { 'x-session': 'ada-secret' })
      const text = await first.text()
      t.match(JSON.parse(text), { status: 'completed', data: { text: 'hello user:ada' } })
      t.equal(await (await execute(url, body, { 'x-session': 'ada-secret' })).text(), text, 'a replay is byte for byte')

      const stream = await execute(url, { tool: 'greet' }, { 'x-session': 'ada-secret', accept: 'text/event-stream' })
      t.equal(stream.headers.get('content-type'), 'text/event-stream')
      const events = [...(await stream.text()).matchAll(/^event: (.*)$/gm)].map(([, event]) => event)
      t.strictSame(events, ['execution.started', 'tool.started', 'tool.completed', 'execution.completed'])
      t.equal(await stop(), 0)
    }
  )
}

t.test('start-from-code: a whole server runs from a program that is data', async (t) => {
  const { url, stop } = await start(t, join(folder, 'start-from-code'), process.execPath, ['server.mjs'])
  t.strictSame(await (await fetch(`${url}/hello/Ada`)).json(), { text: 'hello Ada' })
  const answer = await execute(url, { tool: 'calculator', arguments: { expression: '6*7' } })
  t.match(await answer.json(), { data: { result: 42 } })
  t.equal(await stop(), 0)
})

t.test('shop: its plugin type-checks, its test passes, and npx serves it', async (t) => {
  t.equal(await typeCheck(folder, ['shop/shop.ts']), '')
  const tested = await runNode(join(folder, 'shop'), ['--test', 'shop.test.mjs'])
  t.match(tested, { code: 0, output: /pass 3/ }, tested.output)

  const { url, stop } = await start(t, join(folder, 'shop'), 'npx', [
    '--no-install',
    'heartwood',
    'serve',
    '--log-level',
    'warn'
  ])
  t.match(await (await fetch(`${url}/.well-known/agent`)).json(), { server: 'shop' })
  const found = await execute(url, { tool: 'search_products', arguments: { query: 'mouse' } })
  t.match(await found.json(), { data: { products: [{ sku: 'MS-01' }] } })
  t.equal((await execute(url, { tool: 'create_order', arguments: { sku: 'MS-01' } })).status, 403)

  const registered = await fetch(`${url}/api/auth/register`, {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify({ email: 'ada@example.org', password: 'correct horse', name: 'Ada' })
  })
  const { access_token } = (await registered.json()) as { access_token: string }
  const order = { tool: 'create_order', arguments: { sku: 'MS-01' }, request_id: 'first' }
  const headers = { authorization: `Bearer ${access_token}` }
  const placed = await (await execute(url, order, headers)).text()
  t.match(JSON.parse(placed), { data: { sku: 'MS-01', total_cents: 2500, state: 'placed' } })
  t.equal(await (await execute(url, order, headers)).text(), placed)
  await stop()
})

t.test('what a newcomer starts is in the package: serve runs the shipped program', async (t) => {
  copyFileSync(join(folder, 'node_modules/heartwood/program.toml'), join(folder, 'program.toml'))
  const { url, stop } = await start(t, folder, 'npx', ['--no-install', 'heartwood', 'serve'])
  t.equal(await (await fetch(`${url}/health`)).text(), 'OK')
  await stop()
})
