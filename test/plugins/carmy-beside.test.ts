import t from 'tap'
import { CodedError, definePlugin } from '../../kernel/index.ts'
import carmy from '../../plugins/carmy/index.ts'
import http from '../../plugins/http/index.ts'
import readiness from '../../plugins/readiness/index.ts'
import tools from '../../plugins/tools/index.ts'
import type { Tool } from '../../plugins/tools/types.ts'
import { fixtureTools, toolOf, toolsPlugin, trustingGuard, World } from '../fixtures/carmy-tools.ts'
import { startHouse } from '../harness.ts'

type T = Parameters<typeof startHouse>[0]

async function startCarmy(t: T, config: object, more: Parameters<typeof startHouse>[1] = []) {
  const house = await startHouse(t, [
    { plugin: http, config: { port: 0, ...config } },
    { plugin: tools },
    { plugin: trustingGuard },
    { plugin: toolsPlugin(() => fixtureTools(new World())) },
    { plugin: carmy, config: { server: 'fix' } },
    ...more
  ])
  const base = `http://127.0.0.1:${house.services('http').address?.port}`
  const ask = async (path: string, init: RequestInit = {}) => {
    const response = await fetch(base + path, init)
    return { status: response.status, headers: response.headers, text: await response.text() }
  }
  return { ...house, ask }
}

for (const transport of ['node', 'uws']) {
  t.test(`over ${transport}`, async (t) => {
    t.test('case 106: a tool that is not sound is refused, and the catalog stays as it is', async (t) => {
      const { kernel, ask } = await startCarmy(t, { transport })
      const before = await ask('/agent/tools')
      const rows: readonly [Partial<Tool>, string][] = [
        [{ name: 'a b' }, 'INVALID_TOOL_NAME'],
        [{ name: '' }, 'INVALID_TOOL_NAME'],
        [{ name: 'x'.repeat(129) }, 'INVALID_TOOL_NAME'],
        [{ name: 'echo' }, 'DUPLICATE_TOOL'],
        [{ input: { type: 'nonsense' } }, 'INVALID_SCHEMA'],
        [{ output: { type: 'nonsense' } }, 'INVALID_SCHEMA']
      ]
      for (const [at, [tool, code]] of rows.entries()) {
        const plugin = toolsPlugin(() => [toolOf({ name: 'sound', run: () => 1, ...tool })], 'wrong')
        await t.rejects(kernel.begin({ id: `wrong${at}`, plugin, config: {} }), { code })
        t.equal((await ask('/agent/tools')).text, before.text)
      }
    })

    t.test(
      'case 107, as ruled in R9: /health is OK, and JSON where the router is part of another program',
      async (t) => {
        const plain = await (await startCarmy(t, { transport })).ask('/health')
        t.match(plain, { status: 200, text: /^OK$/ })
        t.equal(plain.headers.get('content-type'), 'text/plain')
        const json = await (await startCarmy(t, { transport, embedded: true })).ask('/health')
        t.match(json, { status: 200, text: /^\{"ok":true\}$/ })
        t.equal(json.headers.get('cache-control'), 'no-store')
        t.equal(json.headers.get('content-type'), 'application/json')
      }
    )

    t.test('case 108: one check that fails makes /ready 503', async (t) => {
      let isWell = true
      const checks = definePlugin({
        name: 'checks',
        apply(ctx) {
          const check = () => {
            if (!isWell) throw new CodedError('DATABASE_UNAVAILABLE', 'cannot write /secret/path')
          }
          ctx.contribute('readiness.checks', { name: 'disk', check }, { name: 'fine', check() {} })
        }
      })
      const { ask } = await startCarmy(t, { transport }, [{ plugin: readiness }, { plugin: checks }])
      const good = await ask('/ready')
      t.equal(good.status, 200)
      t.match(JSON.parse(good.text), { ready: true, checks: { disk: { ok: true }, fine: { ok: true } } })
      isWell = false
      const bad = await ask('/ready')
      t.equal(bad.status, 503)
      const disk = { ok: false, error: 'DATABASE_UNAVAILABLE' }
      t.match(JSON.parse(bad.text), { ready: false, checks: { disk, fine: { ok: true } } })
      t.notMatch(bad.text, /secret/)
      for (const { headers } of [good, bad]) t.equal(headers.get('cache-control'), 'no-store')
    })

    t.test('case 121: four headers for browsers, or none of them', async (t) => {
      const four = {
        'x-content-type-options': 'nosniff',
        'x-frame-options': 'DENY',
        'referrer-policy': 'no-referrer',
        'content-security-policy': "default-src 'none'; frame-ancestors 'none'"
      }
      for (const security_headers of [true, false]) {
        const { ask } = await startCarmy(t, { transport, security_headers })
        const execute = (body: string, accept: string) =>
          ask('/agent/execute', { method: 'POST', headers: { 'content-type': 'application/json', accept }, body })
        for (const { headers } of [
          await ask('/agent/tools'),
          await ask('/agent/tools', { headers: { 'if-none-match': '*' } }),
          await ask('/agent/nothing'),
          await ask('/agent/execute'),
          await execute('{"tool":"peek"}', '*/*'),
          await execute('{"tool":"peek"}', 'text/event-stream'),
          await execute('{', '*/*')
        ]) {
          for (const [name, value] of Object.entries(four)) t.equal(headers.get(name), security_headers ? value : null)
        }
      }
    })
  })
}
