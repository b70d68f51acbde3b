import { httpRequest, measureLoad, sendOnce } from './load.ts'
import { startServer } from './process.ts'
import { defineBench, type Read, type Side } from './runner.ts'
import { adminSecret } from './servers/login-secret.ts'

const path = '/bench/metered'
const body = { message: 'Hello' }

async function ask(port: number, request: Buffer): Promise<Record<string, string>> {
  const { status, body } = await sendOnce(port, request)
  if (status !== 200) throw new Error(`answered ${status}: ${body}`)
  return JSON.parse(body) as Record<string, string>
}

/** A tenant with limits that are looked at and never reached. */
async function makeKey(port: number): Promise<string> {
  const headers = { 'X-Admin-Secret': adminSecret }
  const client = { name: 'bench', tier: 'enterprise', product_type: 'bench', api_key_name: 'bench' }
  const made = await ask(port, httpRequest('POST', '/api/admin/provision-client', { headers, body: client }))
  const limit = 1_000_000_000
  const quota = { tier: 'enterprise', requests_per_month: limit, requests_per_day: limit, tokens_per_month: limit * 15 }
  await ask(port, httpRequest('PUT', `/api/admin/tenants/${made['tenant_id']}/quota`, { headers, body: quota }))
  return made['raw_api_key'] as string
}

const authorized = (key: string): Buffer =>
  httpRequest('POST', path, { headers: { Authorization: `Bearer ${key}` }, body })

const servers: Readonly<Record<string, readonly [module: string, keyOf: (port: number) => Promise<string>]>> = {
  heartwood: ['metered', makeKey],
  'bare uWebSockets.js': ['floor', async () => `ares_${'0'.repeat(64)}`]
}

const sides: Side[] = [64, 256].flatMap((connections) =>
  Object.entries(servers).map(([name, [module, keyOf]]) => ({
    name: `${name}, ${connections} connections`,
    async setup() {
      const running = await startServer(new URL(`./servers/${module}.js`, import.meta.url))
      const request = authorized(await keyOf(running.port))
      await ask(running.port, request)
      return { run: () => measureLoad(running, { request, connections }), teardown: () => running.stop() }
    }
  }))
)

const against = (connections: number) => (read: Read) =>
  read(`heartwood, ${connections} connections`, 'cpuUs') /
  read(`bare uWebSockets.js, ${connections} connections`, 'cpuUs')

export default defineBench({
  name: 'metered',
  question: 'What does it cost to let in a tenant by its key, to count its request exactly, and to keep what it used?',
  method:
    'POST with a key; the limit is reserved on disk ahead, what was used is on disk before the answer: a commit serves ' +
    'all connections. One request in flight on each, 1 s a round, server and load on a core each',
  figures: { cpuUs: 'CPU a request, µs', perSecond: 'requests a second', p99Ms: 'p99, ms' },
  sides,
  claims: [
    { name: 'H3 CPU a request, against the floor', of: against(64), atMost: 2 },
    { name: 'the same with 256 connections', of: against(256) }
  ]
})
