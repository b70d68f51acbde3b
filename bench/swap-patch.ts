import { mkdtemp, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { type Client, type HttpReply, httpRequest, openClient, sendOnce } from './load.ts'
import { type ServerProcess, startServer } from './process.ts'
import { defineBench, type RunningSide, summarise } from './runner.ts'

const swaps = 100
const clients = { keepAlive: 16, fresh: 16 }
const quietMs = 2_000
const adminSecret = 'the admin secret of a bench'

const program = `${['store', 'workers', 'http', 'auth', 'admin', 'tools', 'carmy'].map((name) => `[[entry]]\nid = "${name}"\nplugin = "${name}"\n`).join('\n')}
[[entry]]
id = "tools:calc"
plugin = "calculator"
config = { precision = 1, anonymous = true }
`

/** The precision of the n-th swap: no two within twelve are alike, so an answer tells which one it was made with. */
const precisionOf = (swap: number) => 1 + (swap % 12)
const request = httpRequest('POST', '/agent/execute', {
  body: { tool: 'calculator', arguments: { expression: '1/3' } }
})
const patch = (swap: number) =>
  httpRequest('PATCH', '/api/admin/cordis/entries/tools:calc', {
    headers: { 'X-Admin-Secret': adminSecret },
    body: { config: { precision: precisionOf(swap), anonymous: true } }
  })

/** What all swaps so far have come to. */
interface Swaps {
  /** The last that was asked for. */
  asked: number
  /** The last that was acknowledged. */
  done: number
}

interface Tally {
  readonly latencies: number[]
  broken: number
  stale: number
}

/** Sends until `until` resolves; a broken connection is counted, replaced and never retried. */
async function call(port: number, keepAlive: boolean, swaps: Swaps, tally: Tally, until: Promise<unknown>) {
  let over = false
  const end = () => {
    over = true
  }
  until.then(end, end)
  let client: Client | undefined
  while (!over) {
    const oldest = swaps.done
    const startedAt = performance.now()
    try {
      client ??= await openClient(port)
      const reply = await client.send(request)
      tally.latencies.push(performance.now() - startedAt)
      if (!isOfOneSwap(reply, oldest, swaps.asked)) tally.stale += 1
    } catch {
      tally.broken += 1
      client = undefined
    }
    if (!keepAlive) {
      client?.close()
      client = undefined
    }
  }
  client?.close()
}

/** Whether an answer was made with exactly one of the configurations that could be in force while it was asked for. */
function isOfOneSwap({ status, body }: HttpReply, oldest: number, newest: number): boolean {
  if (status !== 200) return false
  for (let swap = oldest; swap <= newest; swap++) {
    if (body.includes(`.${'3'.repeat(precisionOf(swap))}`) && !body.includes(`.${'3'.repeat(precisionOf(swap) + 1)}`)) {
      return true
    }
  }
  return false
}

async function start(): Promise<{ readonly server: ServerProcess; readonly stop: () => Promise<void> }> {
  const folder = await mkdtemp(join(tmpdir(), 'heartwood-bench-'))
  const file = join(folder, 'program.toml')
  await writeFile(file, program)
  const server = await startServer(new URL('../main.js', import.meta.url), {
    args: ['serve', '--program', file, '--data', join(folder, 'data'), '--port', '0'],
    env: { ADMIN_API_KEY: adminSecret }
  })
  const stop = async () => {
    await server.stop()
    await rm(folder, { recursive: true })
  }
  return { server, stop }
}

async function setup(change: (port: number, swaps: Swaps) => Promise<readonly number[]>): Promise<RunningSide> {
  const { server, stop } = await start()
  const { port } = server
  const state: Swaps = { asked: 0, done: 0 }
  return {
    async run() {
      const tally: Tally = { latencies: [], broken: 0, stale: 0 }
      const work = change(port, state)
      const callers = [
        ...Array.from({ length: clients.keepAlive }, () => call(port, true, state, tally, work)),
        ...Array.from({ length: clients.fresh }, () => call(port, false, state, tally, work))
      ]
      const patchMs = await work
      await Promise.all(callers)
      const sorted = tally.latencies.toSorted((a, b) => a - b)
      return {
        requests: sorted.length,
        broken: tally.broken,
        stale: tally.stale,
        p50Ms: sorted[Math.floor(sorted.length * 0.5)]!,
        p99Ms: sorted[Math.floor(sorted.length * 0.99)]!,
        maxMs: sorted.at(-1)!,
        ...(patchMs.length === 0 ? {} : { patchMs: summarise(patchMs).median })
      }
    },
    teardown: stop
  }
}

async function patchAll(port: number, state: Swaps): Promise<readonly number[]> {
  const took: number[] = []
  for (let count = 0; count < swaps; count++) {
    state.asked += 1
    const startedAt = performance.now()
    const { status, body } = await sendOnce(port, patch(state.asked))
    took.push(performance.now() - startedAt)
    if (status !== 200) throw new Error(`PATCH answered ${status}: ${body}`)
    state.done = state.asked
    await new Promise((resolve) => setTimeout(resolve, quietMs / swaps))
  }
  return took
}

const rest = async () => {
  await new Promise((resolve) => setTimeout(resolve, quietMs))
  return []
}

export default defineBench({
  name: 'swap-patch',
  question: 'What do clients that never retry see while a tool is reconfigured a hundred times?',
  method: `POST /agent/execute of the calculator by ${clients.keepAlive} keep-alive and ${clients.fresh} fresh-connection clients; ${swaps} config PATCHes a round, one after the other, against as many clients and no PATCH`,
  figures: {
    requests: 'requests',
    broken: 'broken',
    stale: 'mixed or stale',
    p50Ms: 'p50, ms',
    p99Ms: 'p99, ms',
    maxMs: 'longest, ms',
    patchMs: 'PATCH, ms'
  },
  sides: [
    { name: 'while swapping', setup: () => setup(patchAll) },
    { name: 'quiet', setup: () => setup(rest) }
  ],
  claims: [
    { name: 'S1 broken requests', of: (read) => read('while swapping', 'broken'), atMost: 0 },
    {
      name: 'S3 answers not of one configuration, or of one that was replaced before the request',
      of: (read) => read('while swapping', 'stale'),
      atMost: 0
    },
    {
      name: 'S4 p99 while swapping, against quiet',
      of: (read) => read('while swapping', 'p99Ms') / read('quiet', 'p99Ms'),
      atMost: 2
    },
    { name: 'S4 PATCH, ms', of: (read) => read('while swapping', 'patchMs'), atMost: 10 }
  ]
})
