import { readdir } from 'node:fs/promises'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { open } from 'lmdb'
import type { Kept } from './process.ts'
import { defineBench, type Figures, type RunningSide, summarise } from './runner.ts'
import { swapPeers } from './swap-peers.ts'
import { startSubject, type Subject, type Swap } from './swap-subject.ts'
import { startTraffic, type Tally, type TrafficOptions } from './swap-traffic.ts'

/** Of one round; there are five. */
const swapsPerRound = 12
const requestsPerRound = 60_000
const peerRequestsPerRound = 20_000
const manySwapsPerRound = 200
const manyRequestsPerRound = 200_000
/** At least as long between two swaps, so that no fiber has more than eight generations draining. */
const pauseMs = 120

/** Longer than the kernel waits for what a change has set in motion, and than any connection takes to be closed. */
const settledMs = 1_500

const load: TrafficOptions = { keepAlive: 16, fresh: 16, streams: 64, longStreams: 4 }
const described = `${load.keepAlive} keep-alive and ${load.fresh} fresh-connection clients that never retry, ${load.streams} event streams (${load.longStreams} longer than the drain time), a 2 s tool call, an idempotent writer`

interface Round {
  readonly swaps: readonly Swap[]
  readonly tally: Tally
}

/** Swaps evenly over the time in which the clients get their answers. */
async function swapUnderLoad(subject: Subject, swapCount: number, requests: number, name: string): Promise<Round> {
  const swaps: Swap[] = []
  const traffic = startTraffic(subject, load)
  while (swaps.length < swapCount || traffic.requests() < requests) {
    const startedAt = performance.now()
    swaps.push(await subject.swap())
    const due = (swaps.length / swapCount) * requests
    do await sleep(Math.max(10, pauseMs - (performance.now() - startedAt)))
    while (traffic.requests() < due)
  }
  const tally = await traffic.stop()
  report(name, [...tally.faults, ...swaps.flatMap((swap) => swap.faults)])
  return { swaps, tally }
}

async function rest(subject: Subject, requests: number): Promise<Round> {
  const traffic = startTraffic(subject, load)
  while (traffic.requests() < requests) await sleep(20)
  const tally = await traffic.stop()
  report('quiet', tally.faults)
  return { swaps: [], tally }
}

function report(name: string, faults: readonly string[]): void {
  for (const fault of faults) process.stderr.write(`${name}: ${fault.slice(0, 500)}\n`)
}

function figuresOf({ swaps, tally }: Round): Figures {
  const sorted = Float64Array.from(tally.latenciesMs).sort()
  const at = (share: number) => sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * share))]!
  const good = swaps.filter((swap) => !swap.isBad)
  // New code on disk is not asked for: it is waited for, so that what is saved together is taken in together.
  const asked = good.filter((swap) => swap.kind !== 'code')
  const tookMs = (kind: string) => {
    const times = good.filter((swap) => swap.kind === kind).map((swap) => swap.tookMs)
    return times.length === 0 ? {} : { [`${kind}Ms`]: summarise(times).median }
  }
  return {
    requests: sorted.length,
    swaps: swaps.length,
    brokenKeepAlive: tally.brokenKeepAlive,
    brokenFresh: tally.brokenFresh,
    brokenOthers: tally.brokenOthers,
    streams: tally.streams,
    cut: tally.cutStreams,
    gapped: tally.gappedStreams,
    mixed: tally.mixed,
    stale: tally.stale,
    bad: swaps.length - good.length,
    badFaults: swaps.reduce((sum, swap) => sum + swap.faults.length, 0),
    p50Ms: at(0.5),
    p99Ms: at(0.99),
    maxMs: at(1),
    ...(asked.length === 0 ? {} : { swapMs: summarise(asked.map((swap) => swap.tookMs)).median }),
    ...Object.fromEntries(
      ['patch', 'replace', 'code', 'move', 'retire', 'provide', 'collector'].flatMap((kind) =>
        Object.entries(tookMs(kind))
      )
    )
  }
}

const counts = {
  requests: 'requests',
  swaps: 'swaps',
  brokenKeepAlive: 'broken, keep-alive',
  brokenFresh: 'broken, fresh',
  brokenOthers: 'broken, slow calls and writes',
  streams: 'streams read to the end',
  cut: 'streams cut',
  gapped: 'streams with gaps',
  mixed: 'answers of two generations',
  stale: 'answers of an old one',
  bad: 'bad swaps',
  badFaults: 'of them not refused well'
}

const times = {
  p50Ms: 'p50, ms',
  p99Ms: 'p99, ms',
  maxMs: 'longest, ms',
  swapMs: 'a swap that was asked for, ms',
  patchMs: 'PATCH, ms',
  replaceMs: 'replace, ms',
  codeMs: 'new code, from save to service, ms',
  moveMs: 'move, ms',
  retireMs: 'retire, ms',
  provideMs: 'provide, ms',
  collectorMs: 'replace of a collector, ms'
}

const nothingLost = (side: string) => [
  {
    name: 'S1 broken requests, of all clients',
    of: (read: (side: string, figure: string) => number) =>
      read(side, 'brokenKeepAlive') + read(side, 'brokenFresh') + read(side, 'brokenOthers'),
    atMost: 0,
    holds: 'always' as const
  },
  {
    name: 'S2 streams cut, and streams with numbers missing or doubled',
    of: (read: (side: string, figure: string) => number) => read(side, 'cut') + read(side, 'gapped'),
    atMost: 0,
    holds: 'always' as const
  },
  {
    name: 'S3 answers of two generations, or of one whose successor was acknowledged',
    of: (read: (side: string, figure: string) => number) => read(side, 'mixed') + read(side, 'stale'),
    atMost: 0,
    holds: 'always' as const
  },
  {
    name: 'S6 bad swaps not answered 409 or 422 with a reason, or that left something behind',
    of: (read: (side: string, figure: string) => number) => read(side, 'badFaults'),
    atMost: 0,
    holds: 'always' as const
  }
]

const underLoad = defineBench({
  name: 'swap',
  question: 'What do clients notice while the server is swapped part by part?',
  method: `${described}; meanwhile at least ${swapsPerRound} swaps a round of every kind, every fifth one bad; the peers reload as often under the keep-alive and fresh-connection clients`,
  figures: { ...counts, ...times },
  sides: [
    {
      name: 'heartwood, swapping',
      setup: () => side((subject) => swapUnderLoad(subject, swapsPerRound, requestsPerRound, 'swap'))
    },
    { name: 'heartwood, quiet', setup: () => side((subject) => rest(subject, requestsPerRound)) },
    ...swapPeers({
      reloads: swapsPerRound,
      requests: peerRequestsPerRound,
      keepAlive: load.keepAlive,
      fresh: load.fresh
    })
  ],
  claims: [
    ...nothingLost('heartwood, swapping'),
    { name: 'S4 a swap that was asked for, ms', of: (read) => read('heartwood, swapping', 'swapMs'), atMost: 10 },
    {
      name: 'S4 p99 while swapping, against quiet',
      of: (read) => read('heartwood, swapping', 'p99Ms') / read('heartwood, quiet', 'p99Ms'),
      atMost: 2
    }
  ]
})

async function side(work: (subject: Subject) => Promise<Round>): Promise<RunningSide> {
  const subject = await startSubject()
  return { run: async () => figuresOf(await work(subject)), teardown: () => subject.stop() }
}

const keptFigures = {
  fibers: 'fibers',
  generations: 'generations',
  listeners: 'listeners',
  timers: 'timers',
  handles: 'handles',
  files: 'open files',
  readers: 'LMDB readers',
  undos: 'undos',
  heapMb: 'heap, MB'
}

type KeptNow = { readonly [K in keyof typeof keptFigures]: number }

const manySwaps = defineBench({
  name: 'swap-kept',
  question: 'What does a thousand swaps leave behind?',
  method: `the load and the swaps of the bench swap, ${manySwapsPerRound} a round; after each round the clients leave, every part is replaced once more, and what the process then holds is set against the end of the warm-up`,
  figures: {
    ...counts,
    ...Object.fromEntries(Object.entries(keptFigures).map(([name, label]) => [name, `${label} more`]))
  },
  sides: [
    {
      name: 'heartwood',
      async setup() {
        const subject = await startSubject({ nodeArgs: ['--expose-gc'] })
        let before: KeptNow | undefined
        return {
          async run(round) {
            const scale = round < 0 ? 0.2 : 1
            const result = await swapUnderLoad(
              subject,
              manySwapsPerRound * scale,
              manyRequestsPerRound * scale,
              'swap-kept'
            )
            const now = await keptBy(subject)
            before ??= now
            const start = before
            const more = Object.entries(now).map(([name, value]) => [name, value - start[name as keyof KeptNow]])
            return { ...figuresOf(result), ...(Object.fromEntries(more) as KeptNow) }
          },
          teardown: () => subject.stop()
        }
      }
    }
  ],
  claims: [
    ...nothingLost('heartwood'),
    ...(Object.keys(keptFigures) as (keyof KeptNow)[])
      .filter((name) => name !== 'heapMb')
      .map((name) => ({
        name: `S5 ${keptFigures[name]} more`,
        of: (read: (side: string, figure: string) => number) => read('heartwood', name),
        atMost: 0,
        holds: 'always' as const
      })),
    { name: 'S5 heap more, MB', of: (read) => read('heartwood', 'heapMb'), atMost: 2, holds: 'always' }
  ]
})

/** Once all that drains has ended: a lease that was never given back would keep its generation from it. */
async function keptBy(subject: Subject): Promise<KeptNow> {
  const undos = await subject.replaceAll()
  await sleep(settledMs)
  const { heapBytes, ...kept }: Kept = await subject.server.kept()
  const readers = await readersOf(subject)
  return { ...kept, undos, readers, heapMb: heapBytes / 1e6 }
}

async function readersOf({ folder, server }: Subject): Promise<number> {
  const data = join(folder, 'data')
  if (!(await readdir(data)).includes('data.mdb')) throw new Error('the store keeps its data elsewhere now')
  const db = open({ path: join(data, 'data.mdb'), readOnly: true, noSubdir: true })
  const lines = db.readerList() as unknown as string
  await db.close()
  return lines.split('\n').filter((line) => line.trim().startsWith(`${server.pid} `)).length
}

export default [underLoad, manySwaps]
