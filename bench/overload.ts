import { setTimeout as sleep } from 'node:timers/promises'
import { flood, goodput, recovery } from './flood.ts'
import { httpRequest, sendOnce } from './load.ts'
import { type ServerProcess, startServer } from './process.ts'
import { type Bench, defineBench, type Figures, type Side, summarise } from './runner.ts'
import { makeToken } from './token.ts'

const people = 200
const password = 'a password of the bench'
const times = 4
const peakSeconds = 1.5
const floodSeconds = 4
/** Many times what may wait: a slow machine takes longer to be flooded. */
const leastRequests = 600
const peakConnections = 8
const watchMs = 250

interface Work {
  readonly name: string
  readonly goal: string
  readonly request: (n: number) => Uint8Array
  readonly prepare?: (port: number) => Promise<void>
}

const authorization = `Bearer ${makeToken('bench')}`
const words = 'river stone market engine letter garden signal copper winter harbor ledger violin'.split(' ')
let documents = 0

/** Of some 40,000 characters, no two alike: as much as a long article, and work for threads. */
function documentText(n: number): string {
  let state = n + 1
  const next = () => (state = (state * 1_103_515_245 + 12_345) % 2_147_483_648)
  const sentence = () => Array.from({ length: 12 }, () => `${words[next() % words.length]}${next() % 97}`).join(' ')
  return Array.from({ length: 420 }, sentence).join('. ')
}

const works: readonly Work[] = [
  {
    name: 'login',
    goal: 'logins',
    request: (n) => httpRequest('POST', '/api/auth/login', { body: { email: `p${n % people}@bench.test`, password } }),
    async prepare(port) {
      for (let person = 0; person < people; person++) {
        const body = { email: `p${person}@bench.test`, password, name: 'P' }
        const reply = await sendOnce(port, httpRequest('POST', '/api/auth/register', { body }))
        if (reply.status !== 200) throw new Error(`registration was answered ${reply.status}: ${reply.body}`)
      }
    }
  },
  {
    name: 'ingest',
    goal: 'ingests',
    request: () =>
      httpRequest('POST', '/api/rag/ingest', {
        headers: { Authorization: authorization },
        body: { collection: 'bench', content: documentText(documents++) }
      })
  }
]

async function overload(server: ServerProcess, { request }: Work): Promise<Figures> {
  const { port } = server
  const quietMs: number[] = []
  for (let at = 0; at < 5; at++) {
    const sentAt = performance.now()
    await sendOnce(port, request(at))
    quietMs.push(performance.now() - sentAt)
  }
  const peak = await goodput(port, { request, connections: peakConnections, seconds: peakSeconds })
  const before = (await server.usage()).rssBytes
  let most = before
  const watch = setInterval(() => {
    void server.usage().then(({ rssBytes }) => {
      most = Math.max(most, rssBytes)
    })
  }, watchMs)
  const perSecond = peak * times
  const seconds = Math.max(floodSeconds, leastRequests / perSecond)
  const flooding = flood(port, { request, perSecond, seconds })
  await sleep(seconds * 1000)
  const recoveredMs = await recovery(port, request(0), 2 * summarise(quietMs).median + 20)
  const tally = await flooding
  clearInterval(watch)
  for (const fault of tally.faults) process.stderr.write(`overload: ${fault.slice(0, 500)}\n`)
  const refused = tally.refusedMs.toSorted((a, b) => a - b)
  const at = (share: number) => refused[Math.min(refused.length - 1, Math.floor(refused.length * share))] ?? 0
  return {
    peak,
    asked: perSecond,
    goodput: tally.good / seconds,
    refused: refused.length / seconds,
    broken: tally.broken,
    refusedP50Ms: at(0.5),
    refusedP99Ms: at(0.99),
    rssMoreMb: (most - before) / 1e6,
    recoveredMs
  }
}

function sideOf(work: Work): Side {
  return {
    name: work.name,
    async setup() {
      const server = await startServer(new URL('./servers/overload.js', import.meta.url), { cores: 'all' })
      await work.prepare?.(server.port)
      return { run: () => overload(server, work), teardown: () => server.stop() }
    }
  }
}

const bench: Bench = defineBench({
  name: 'overload',
  question: 'What becomes of a server that is asked for four times what it can do?',
  method:
    `One round: what ${peakConnections} clients get done in ${peakSeconds} s is the peak; then ${times} times as much comes ` +
    `for ${floodSeconds} s or ${leastRequests} requests, whether or not it is answered, on as many connections as it takes; then one client asks until it is ` +
    'answered as fast as before. Logins of 200 accounts, and ingests of documents of 40,000 characters, each on a server of ' +
    'its own that may use every core. A refusal is a 503 or 429 with Retry-After; its time counts from the moment it was sent',
  figures: {
    peak: 'peak, a second',
    asked: 'asked, a second',
    goodput: 'done, a second',
    refused: 'refused, a second',
    broken: 'neither done nor refused',
    refusedP50Ms: 'refused within, ms, p50',
    refusedP99Ms: 'p99',
    rssMoreMb: 'memory more than at the peak, MB',
    recoveredMs: 'as fast as before after, ms'
  },
  sides: works.map(sideOf),
  claims: works.flatMap(({ name, goal }) => [
    {
      name: `goodput of ${goal} under four times the load, against the peak`,
      of: (read: (side: string, figure: string) => number) => read(name, 'goodput') / read(name, 'peak'),
      atLeast: 0.8
    },
    {
      name: `${goal} that were neither done nor refused with Retry-After`,
      of: (read: (side: string, figure: string) => number) => read(name, 'broken'),
      atMost: 0,
      holds: 'always' as const
    },
    {
      name: `refusals of ${goal}, p99, ms`,
      of: (read: (side: string, figure: string) => number) => read(name, 'refusedP99Ms'),
      atMost: 10
    },
    {
      name: `memory more under a flood of ${goal}, MB`,
      of: (read: (side: string, figure: string) => number) => read(name, 'rssMoreMb'),
      atMost: 64
    },
    {
      name: `recovered from a flood of ${goal} after, ms`,
      of: (read: (side: string, figure: string) => number) => read(name, 'recoveredMs'),
      atMost: 2_000
    }
  ])
})

export default bench
