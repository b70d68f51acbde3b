import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { startWorker } from './process.ts'
import type { Reloaded } from './reload-side.ts'
import { defineBench, type Side } from './runner.ts'

const reloadsPerRound = 300
/** Fewer, since they do not last: a process that has ended is not begun anew. */
const esmReloadsPerRound = 60
const heapMb = 96

/** The running Node, and those that the environment names. */
const nodes: readonly { readonly name: string; readonly variable?: string }[] = [
  { name: `Node ${process.versions.node}` },
  { name: 'Node 22', variable: 'NODE22' },
  { name: 'Node 24', variable: 'NODE24' }
]

function sideOf(way: 'heartwood' | 'esm', node: (typeof nodes)[number]): Side {
  const execPath = node.variable === undefined ? process.execPath : process.env[node.variable]
  return {
    name: `${way === 'esm' ? 'ESM ?v=N' : 'heartwood'}, ${node.name}`,
    missing: () => (execPath === undefined ? `no path of it in ${node.variable}` : undefined),
    async setup() {
      const folder = await mkdtemp(join(tmpdir(), 'heartwood-bench-'))
      const worker = await startWorker(new URL('./reload-side.js', import.meta.url), {
        args: [way, folder],
        nodeArgs: ['--expose-gc', `--max-old-space-size=${heapMb}`, '--no-warnings'],
        execPath: execPath ?? process.execPath,
        cores: 'all'
      })
      let isAlive = true
      let start = 0
      let reloads = 0
      let keptKb = 0
      let cpuMs = 0
      const step = async (count: number) => {
        const reloaded = await worker.ask<Reloaded>(count)
        reloads += count
        cpuMs = reloaded.cpuMs
        keptKb = (reloaded.heapBytes - start) / 1e3 / reloads
        return reloaded.heapBytes
      }
      return {
        async run(round) {
          if (round < 0) {
            start = await step(20)
            reloads = 0
            return {}
          }
          const wanted = way === 'esm' ? esmReloadsPerRound : reloadsPerRound
          try {
            for (let done = 0; done < wanted && isAlive; done += 20) await step(20)
          } catch {
            isAlive = false
          }
          return { reloads, alive: isAlive ? 1 : 0, keptKb, cpuMs }
        },
        async teardown() {
          await worker.stop()
          await rm(folder, { recursive: true })
        }
      }
    }
  }
}

const running = `heartwood, ${nodes[0]!.name}`

export default defineBench({
  name: 'reload',
  question: 'What does a reload of code leave in the heap?',
  method: `0.8 MB of source in 50 modules, one of them changed each time, bundled by esbuild; ${5 * reloadsPerRound} reloads through the loader and the kernel in a heap of ${heapMb} MB, and an ES module imported again and again until the heap is full`,
  figures: {
    reloads: 'reloads so far',
    alive: 'alive',
    keptKb: 'heap kept a reload, KB',
    cpuMs: 'CPU a reload without esbuild, ms'
  },
  sides: nodes.flatMap((node) => [sideOf('heartwood', node), sideOf('esm', node)]),
  claims: [
    { name: 'K6 heap kept a reload, KB', of: (read) => read(running, 'keptKb'), atMost: 1 },
    { name: 'K6 alive', of: (read) => read(running, 'alive'), atLeast: 1, holds: 'always' },
    ...nodes
      .filter(({ variable }) => variable !== undefined && process.env[variable] !== undefined)
      .flatMap(({ name }) => [
        {
          name: `K6 heap kept a reload on ${name}, KB`,
          of: (read: (side: string, figure: string) => number) => read(`heartwood, ${name}`, 'keptKb'),
          atMost: 1
        },
        {
          name: `K6 alive on ${name}`,
          of: (read: (side: string, figure: string) => number) => read(`heartwood, ${name}`, 'alive'),
          atLeast: 1,
          holds: 'always' as const
        }
      ])
  ]
})
