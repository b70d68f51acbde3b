import { setTimeout } from 'node:timers/promises'
import durable, { fresh, requestOf } from './durable.ts'
import { against, figures, floor, method, ours, type Servers } from './floor-sides.ts'
import execute from './http-floor.ts'
import { type HttpReply, httpRequest, measureLoad, sendOnce } from './load.ts'
import mcp from './mcp.ts'
import { type ServerProcess, startServer } from './process.ts'
import { defineBench, type Figures, type Read, type Side } from './runner.ts'
import { cutStream, measureStreams } from './streams.ts'

type Server = Servers[string]

const onNode = 'heartwood on node:http'
const bareNode = 'bare node:http'

/** A side with a server of its own. */
function sideOf(
  name: string,
  [module, ...args]: Server,
  open: (server: ServerProcess) => Promise<() => Promise<Figures>>
): Side {
  return {
    name,
    async setup() {
      const server = await startServer(new URL(`./servers/${module}.js`, import.meta.url), { args })
      try {
        return { run: await open(server), teardown: () => server.stop() }
      } catch (error) {
        await server.stop()
        throw error
      }
    }
  }
}

/** @throws Error when it has not this status */
async function expect(status: number, port: number, request: Uint8Array): Promise<HttpReply> {
  const reply = await sendOnce(port, request)
  if (reply.status !== status) throw new Error(`${reply.status} instead of ${status}: ${reply.body.slice(0, 2_000)}`)
  return reply
}

const serial = ', one after another'
const again = ', again'
const byHand = 'by hand'

const sidesByHand = [ours, byHand].flatMap((name): Side[] => {
  const server: Server = name === ours ? ['durable'] : ['by-hand']
  const load = (request: () => Uint8Array, connections: number) => async (process: ServerProcess) => {
    await expect(200, process.port, request())
    return () => measureLoad(process, { request, connections })
  }
  return [
    sideOf(name, server, load(fresh('write'), 64)),
    sideOf(name + serial, server, load(fresh('write'), 1)),
    sideOf(
      name + again,
      server,
      load(() => requestOf('write', 'again'), 64)
    )
  ]
})

const gain = (name: string) => (read: Read) => read(name, 'perSecond') / read(name + serial, 'perSecond')

const requestIds = defineBench({
  name: 'carmy-by-hand',
  question:
    'What does a request id cost beside two awaited writes to LMDB by hand, and what is gained by many at once?',
  method: `POST /agent/execute, every id new but where it says again; one connection where it says one after another; ${method}`,
  figures: { ...figures, p50Ms: 'p50, ms' },
  sides: sidesByHand,
  claims: [
    { name: 'CPU of a first call, against by hand', of: (read) => read(ours, 'cpuUs') / read(byHand, 'cpuUs') },
    {
      name: 'CPU of a first call, against by hand, one after another',
      of: (read) => read(ours + serial, 'cpuUs') / read(byHand + serial, 'cpuUs')
    },
    {
      name: 'time of a first call, against by hand, one after another',
      of: (read) => read(ours + serial, 'p50Ms') / read(byHand + serial, 'p50Ms')
    },
    {
      name: 'CPU of a replay, against by hand',
      of: (read) => read(ours + again, 'cpuUs') / read(byHand + again, 'cpuUs')
    },
    { name: 'first calls a second, 64 in flight against one', of: gain(ours) },
    { name: 'by hand, 64 in flight against one', of: gain(byHand) }
  ]
})

const streamServers: Servers = {
  [ours]: ['carmy', 'uws'],
  [floor]: ['carmy-bare', 'uws'],
  [onNode]: ['carmy', 'node'],
  [bareNode]: ['carmy-bare', 'node']
}
const reports = 2_000

const stream = defineBench({
  name: 'carmy-stream',
  question: 'What does an event of a stream cost, beside a server that only writes them?',
  method: `POST /agent/execute; 16 connections, each with one stream of ${reports} reports after another, 50 a turn of the event loop; 1 s a round`,
  figures: {
    cpuUs: 'CPU an event, µs',
    perSecond: 'events a second',
    lostShare: 'share that a reader was too slow for'
  },
  sides: Object.entries(streamServers).map(([name, server]) =>
    sideOf(name, server, async (process) => {
      const headers = { accept: 'text/event-stream' }
      const request = httpRequest('POST', '/agent/execute', {
        headers,
        body: { tool: 'report', arguments: { reports } }
      })
      const { body } = await expect(200, process.port, request)
      if (!body.includes(`"progress":${reports}`)) throw new Error(`${name} did not tell the last report`)
      return () => measureStreams(process, { request, reports })
    })
  ),
  claims: [
    { name: 'CPU an event, against the floor', of: against(floor) },
    {
      name: 'CPU an event on node:http, against bare node:http',
      of: (read) => read(onNode, 'cpuUs') / read(bareNode, 'cpuUs')
    }
  ]
})

const known = ', to those who have it'
const catalogServers: Servers = {
  [ours]: ['carmy', 'uws', '1000'],
  [floor]: ['carmy-bare', 'uws'],
  [onNode]: ['carmy', 'node', '1000']
}

const catalog = defineBench({
  name: 'carmy-catalog',
  question: 'What does it cost to serve a catalog of 1,000 tools, beside fixed bytes?',
  method: `GET /agent/tools, whole and by If-None-Match; ${method}`,
  figures,
  sides: Object.entries(catalogServers).flatMap(([name, server]) => [
    sideOf(name, server, async (process) => {
      const request = httpRequest('GET', '/agent/tools')
      const { body } = await expect(200, process.port, request)
      if (!body.includes('"tool_00999"')) throw new Error(`${name} does not list the last tool`)
      return () => measureLoad(process, { request })
    }),
    sideOf(name + known, server, async (process) => {
      const { headers } = await expect(200, process.port, httpRequest('GET', '/agent/tools'))
      const request = httpRequest('GET', '/agent/tools', { headers: { 'if-none-match': headers['etag']! } })
      await expect(304, process.port, request)
      return () => measureLoad(process, { request, statusClass: 3 })
    })
  ]),
  claims: [
    { name: 'CPU a catalog, against the floor', of: against(floor) },
    {
      name: 'CPU a 304, against the floor',
      of: (read) => read(ours + known, 'cpuUs') / read(floor + known, 'cpuUs')
    }
  ]
})

const clients = 1_000
/** They come within such a time, and go within another after that. */
const comeWithinMs = 5_000
const goWithinMs = 1_000

/**
 * Cuts clients at random moments, and asks when their calls were told.
 * @param cutAtMs of all rounds: a call may begin when its round is over
 */
async function cutAll(server: ServerProcess, cutAtMs: Map<number, number>): Promise<Figures> {
  const before = await server.kept()
  const first = cutAtMs.size
  const come = async (at: number) => {
    await setTimeout(Math.random() * comeWithinMs)
    const headers = { accept: 'text/event-stream' }
    const body = { tool: 'watch', arguments: { id: first + at } }
    const request = httpRequest('POST', '/agent/execute', { headers, body })
    cutAtMs.set(first + at, await cutStream(server.port, request, Math.random() * goWithinMs))
  }
  await Promise.all(Array.from({ length: clients }, (_, at) => come(at)))
  const ask = httpRequest('POST', '/agent/execute', { body: { tool: 'seen' } })
  let told: readonly (readonly [id: number, atMs: number])[]
  let began: number
  do {
    const { data } = JSON.parse((await expect(200, server.port, ask)).body) as {
      data: { began: number; told: typeof told }
    }
    ;({ told, began } = data)
  } while (told.length < began)
  const waits = told.map(([id, atMs]) => atMs - cutAtMs.get(id)!).sort((a, b) => a - b)
  let after = await server.kept()
  // The connection of the last question may be on its way out.
  for (let look = 0; look < 10 && after.handles > before.handles; look += 1) after = await server.kept()
  return {
    ran: waits.length,
    p50Ms: waits[waits.length >> 1] ?? 0,
    maxMs: waits.at(-1) ?? 0,
    handles: after.handles - before.handles,
    generations: after.generations - before.generations,
    timers: after.timers - before.timers,
    heapKb: (after.heapBytes - before.heapBytes) / 1_024
  }
}

const cuts = defineBench({
  name: 'carmy-cuts',
  question: 'How soon does a tool hear that its client has gone, and what is left of it?',
  method: `${clients} clients of a stream, who come within ${comeWithinMs} ms and are reset within ${goWithinMs} ms of their request`,
  figures: {
    ran: 'calls that had begun',
    p50Ms: 'p50 until told, ms',
    maxMs: 'slowest, ms',
    handles: 'handles kept',
    generations: 'generations kept',
    timers: 'timers kept',
    heapKb: 'heap kept, KiB'
  },
  sides: Object.entries(streamServers).map(([name, server]) =>
    sideOf(name, server, async (process) => {
      const cutAtMs = new Map<number, number>()
      return () => cutAll(process, cutAtMs)
    })
  ),
  claims: [[ours, floor] as const, [onNode, bareNode] as const].flatMap(([name, bare]) => [
    { name: `slowest, ms, ${name}`, of: (read: Read) => read(name, 'maxMs'), atMost: 100 },
    { name: `median, ${name} against bare`, of: (read: Read) => read(name, 'p50Ms') / read(bare, 'p50Ms') },
    { name: `handles kept, ${name}`, of: (read: Read) => read(name, 'handles'), atMost: 0 }
  ])
})

export default [execute, durable, requestIds, stream, catalog, mcp, cuts]
