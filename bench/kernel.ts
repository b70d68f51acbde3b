import { runProcess } from './process.ts'
import { type Bench, defineBench, type Figures, type Side } from './runner.ts'

/** `[what, n]` by figure: what `kernel-side.ts` is asked for. */
type Plan = Readonly<Record<string, readonly [what: string, n: number]>>

function side(name: string, plan: Plan): Side {
  return {
    name,
    setup: () => ({
      async run() {
        const figures: Record<string, number> = {}
        for (const [figure, [what, n]] of Object.entries(plan)) {
          const module = new URL('./kernel-side.js', import.meta.url)
          figures[figure] = await runProcess<number>(module, {
            args: [name, what, String(n)],
            nodeArgs: ['--expose-gc']
          })
        }
        return figures as Figures
      }
    })
  }
}

const method = 'each figure in a fresh process, one at a time; CPU time of the process'
const chain: Plan = {
  chain1000: ['chain', 1_000],
  chain4000: ['chain', 4_000],
  chain10000: ['chain', 10_000],
  reverse1000: ['reverse', 1_000],
  reverse4000: ['reverse', 4_000],
  reverse10000: ['reverse', 10_000]
}
const { chain1000, chain4000, chain10000, reverse1000 } = chain as Record<string, readonly [string, number]>
const read: Plan = { read: ['read', 0], call: ['call', 0] }
const emit: Plan = { emit: ['emit', 0] }
const heap: Plan = { heap: ['heap', 1_000] }

const benches: readonly Bench[] = [
  defineBench({
    name: 'kernel-load',
    question: 'How long does it take to start plugins that each need the one before?',
    method: `${method}, nothing warmed up; each plugin calls the service of the one before and provides its own`,
    figures: {
      chain1000: '1,000, ms',
      chain4000: '4,000, ms',
      chain10000: '10,000, ms',
      reverse1000: '1,000 reverse, ms',
      reverse4000: '4,000 reverse, ms',
      reverse10000: '10,000 reverse, ms'
    },
    sides: [
      side('heartwood', chain),
      side('cordis 4', { chain1000: chain1000!, reverse1000: reverse1000! }),
      side('avvio', { chain1000: chain1000!, chain4000: chain4000!, chain10000: chain10000! })
    ],
    claims: [
      {
        name: 'K1 1,000 in a chain, against cordis 4',
        of: (read) => read('heartwood', 'chain1000') / read('cordis 4', 'chain1000'),
        atMost: 0.05
      },
      {
        name: 'K1 1,000 in a chain, against avvio',
        of: (read) => read('heartwood', 'chain1000') / read('avvio', 'chain1000'),
        atMost: 3
      },
      {
        name: 'K1 4,000 against 1,000',
        of: (read) => read('heartwood', 'chain4000') / read('heartwood', 'chain1000'),
        atMost: 5
      },
      {
        name: '10,000 against 1,000',
        of: (read) => read('heartwood', 'chain10000') / read('heartwood', 'chain1000')
      },
      {
        name: 'K1 4,000 against 1,000, in reverse',
        of: (read) => read('heartwood', 'reverse4000') / read('heartwood', 'reverse1000'),
        atMost: 5
      }
    ]
  }),
  defineBench({
    name: 'kernel-read',
    question: 'What does it cost to read a service, and to call a method of it?',
    method: `${method}; 2,000,000 reads of eight services by a name that is only known at run time, warmed up`,
    figures: { read: 'read, ns', call: 'read and call, ns' },
    sides: ['heartwood', 'Map', 'awilix', 'cordis 4'].map((name) => side(name, read)),
    claims: [
      {
        name: 'K2 read, against Map.get',
        of: (read) => read('heartwood', 'read') / read('Map', 'read'),
        atMost: 10
      },
      {
        name: 'K2 read and call, against Map.get and call',
        of: (read) => read('heartwood', 'call') / read('Map', 'call')
      }
    ]
  }),
  defineBench({
    name: 'kernel-emit',
    question: 'What does it cost to announce an event to ten listeners?',
    method: `${method}; 500,000 dispatches with one argument (cordis: 50,000), warmed up`,
    figures: { emit: 'emit, ns' },
    sides: ['heartwood', 'EventEmitter', 'cordis 4'].map((name) => side(name, emit)),
    claims: [
      {
        name: 'K3 emit to 10 listeners, against EventEmitter',
        of: (read) => read('heartwood', 'emit') / read('EventEmitter', 'emit'),
        atMost: 4
      }
    ]
  }),
  defineBench({
    name: 'kernel-heap',
    question: 'How much heap does a running plugin keep?',
    method: `each figure in a fresh process; heap after collection, before and after 1,000 plugins whose apply does nothing; the plugin objects themselves are made before`,
    figures: { heap: 'heap a fiber, bytes' },
    sides: ['heartwood', 'cordis 4', 'fastify'].map((name) => side(name, heap)),
    claims: [{ name: 'K5 heap a fiber, bytes', of: (read) => read('heartwood', 'heap'), atMost: 4_096 }]
  })
]

export default benches
