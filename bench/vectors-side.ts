/** The bench `vectors` in processes of their own: `vectors-side.js build|ask <folder> <count>`. */
import { createJsonLogger } from '../kernel/index.ts'
import extendGraph from '../plugins/rag/tasks/extend-graph.ts'
import { createVectorIndex, createVectorWork, type VectorIndexOptions } from '../plugins/rag/vectors.ts'
import { openEngine } from '../plugins/store/lmdb.ts'
import { createStore } from '../plugins/store/service.ts'
import type { Workers } from '../plugins/workers/types.ts'
import { createRandom } from './collections.ts'
import type { Figures } from './runner.ts'

const [what = '', folder = '', countText = ''] = process.argv.slice(2)
const count = Number(countText)
const dimensions = 384
const limit = 10
const askedApproximately = 200
const askedExactly = 20
/** Vectors of one document. */
const perDocument = 250

const log = createJsonLogger({ level: 'warn', write: (line) => void process.stderr.write(line) })

/** Runs the task on this thread: what it takes is measured apart from what it disturbs. */
const workers = {
  async run(_task: unknown, input: unknown) {
    const result = await extendGraph(input as Parameters<typeof extendGraph>[0])
    if (!result.ok) throw new Error(result.message)
    return result.value
  },
  load: () => ({})
} as Workers

const graphs: NonNullable<VectorIndexOptions['graphs']> = { workers, from: 20_000, log }

/** Points around centres, one centre for each hundred of them, with a standard deviation of 0.9 of that of the centres. */
function createVectors(seed: number): () => Float32Array {
  const random = createRandom(7)
  const centres = Array.from({ length: Math.max(10, Math.round(count / 100)) }, () =>
    Float32Array.from({ length: dimensions }, () => normal(random))
  )
  const own = createRandom(seed)
  return () => {
    const centre = centres[Math.floor(own() * centres.length)]!
    const vector = centre.map((number) => number + 0.9 * normal(own))
    const length = Math.sqrt(vector.reduce((sum, number) => sum + number * number, 0))
    return vector.map((number) => number / length)
  }
}

function normal(random: () => number): number {
  return Math.sqrt(-2 * Math.log(1 - random())) * Math.cos(2 * Math.PI * random())
}

function cpuMs(): number {
  const { user, system } = process.cpuUsage()
  return (user + system) / 1000
}

async function build(): Promise<Figures> {
  const engine = await openEngine(folder)
  const store = createStore(engine)
  const work = createVectorWork()
  const next = createVectors(1)
  const index = createVectorIndex(store, { cacheBytes: 1 << 20, work })
  for (let first = 0; first < count; first += perDocument) {
    const vectors = Array.from({ length: Math.min(perDocument, count - first) }, next)
    await store.atomically((tx) => index.add(tx, 'bench', first, vectors))
    await index.maintain('bench')
  }
  const startedAt = cpuMs()
  await createVectorIndex(store, { cacheBytes: 1 << 20, work, graphs }).maintain('bench')
  await work.turn
  const graphMs = cpuMs() - startedAt
  await engine.close()
  return { graphMs }
}

async function ask(): Promise<Figures> {
  const next = createVectors(2)
  const queries = Array.from({ length: askedApproximately }, next)
  const madeMs = performance.now()
  const engine = await openEngine(folder)
  const store = createStore(engine)
  // What keeps in memory every vector that it looks at, and what the program has.
  const exact = createVectorIndex(store, { cacheBytes: 1 << 30 })
  const index = createVectorIndex(store, { cacheBytes: 64 << 20, graphs })
  await index.search('bench', queries[0]!, limit)
  const firstMs = performance.now() - madeMs

  const found: number[][] = []
  for (const query of queries) await index.search('bench', query, limit)
  let startedAt = cpuMs()
  for (const query of queries) found.push((await index.search('bench', query, limit)).map(({ ordinal }) => ordinal))
  const queryMs = (cpuMs() - startedAt) / queries.length
  const rssMb = process.memoryUsage().rss / 1_048_576

  const wanted: number[][] = []
  for (const query of queries) wanted.push((await exact.search('bench', query, limit)).map(({ ordinal }) => ordinal))
  startedAt = cpuMs()
  for (const query of queries.slice(0, askedExactly)) await exact.search('bench', query, limit)
  const exactMs = (cpuMs() - startedAt) / askedExactly
  const hits = wanted.reduce((sum, best, at) => sum + best.filter((one) => found[at]!.includes(one)).length, 0)
  const { graphed } = await index.size('bench')
  await engine.close()
  return { recall: hits / (limit * queries.length), queryMs, exactMs, firstMs, rssMb, graphed }
}

process.send!(await (what === 'build' ? build() : ask()))
