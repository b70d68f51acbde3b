import { httpRequest, measureLoad, sendOnce } from './load.ts'
import { startServer } from './process.ts'
import { defineBench, type Read, type Side } from './runner.ts'
import { adminSecret } from './servers/login-secret.ts'

const path = '/bench/metered'

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

interface Server {
  readonly module: string
  readonly args: readonly string[]
  readonly keyOf: (port: number) => Promise<string>
}

const batched = 'heartwood, records written every 10 ms'
const floor = 'bare uWebSockets.js'
const servers: Readonly<Record<string, Server>> = {
  heartwood: { module: 'metered', args: [], keyOf: makeKey },
  [batched]: { module: 'metered', args: ['10'], keyOf: makeKey },
  [floor]: { module: 'floor', args: [], keyOf: async () => `ares_${'0'.repeat(64)}` }
}

const sides = Object.entries(servers).map(
  ([name, { module, args, keyOf }]): Side => ({
    name,
    async setup() {
      const server = await startServer(new URL(`./servers/${module}.js`, import.meta.url), { args })
      const headers = { Authorization: `Bearer ${await keyOf(server.port)}` }
      const request = httpRequest('POST', path, { headers, body: { message: 'Hello' } })
      await ask(server.port, request)
      return { run: () => measureLoad(server, { request }), teardown: () => server.stop() }
    }
  })
)

const against = (side: string) => (read: Read) => read(side, 'cpuUs') / read(floor, 'cpuUs')

export default defineBench({
  name: 'metered',
  question: 'What does it cost to let in a tenant by its key, to count its request exactly, and to keep what it used?',
  method:
    'POST with a key; places within the limit are reserved on disk ahead, and the record is on disk before the answer, ' +
    'but where said otherwise. 64 keep-alive connections, one request in flight on each, 1 s a round, server and load ' +
    'on a core each',
  figures: { cpuUs: 'CPU a request, µs', perSecond: 'requests a second', p99Ms: 'p99, ms' },
  sides,
  claims: [
    { name: 'H3 CPU a request, against the floor', of: against('heartwood'), atMost: 2 },
    { name: 'H3 with write_interval_ms = 10', of: against(batched), atMost: 2 }
  ]
})
