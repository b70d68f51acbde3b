import { readdirSync, rmSync, truncateSync } from 'node:fs'
import { join } from 'node:path'
import { setImmediate as turn } from 'node:timers/promises'
import fc from 'fast-check'
import t from 'tap'
import { definePlugin, type LogFields } from '../../kernel/index.ts'
import {
  createVectorIndex,
  createVectorWork,
  type VectorIndex,
  type VectorIndexOptions
} from '../../plugins/rag/vectors.ts'
import { graphTask } from '../../plugins/rag/vectors-graph.ts'
import { createBest, fromHalves, toHalves } from '../../plugins/rag/vectors-scan.ts'
import type { Store } from '../../plugins/store/types.ts'
import workers from '../../plugins/workers/index.ts'
import type { Workers } from '../../plugins/workers/types.ts'
import { startHouse } from '../harness.ts'

type T = Parameters<typeof startHouse>[0]

const seed = 20261201

const graphMaker = definePlugin({
  name: 'graph-maker',
  apply(ctx) {
    ctx.contribute('workers.tasks', graphTask)
  }
})

interface Setup {
  readonly store: Store
  readonly vectors: VectorIndex
  readonly folder: string
  readonly warnings: string[]
  readonly load: () => ReturnType<Workers['load']>[string] | undefined
  /** Another index over the same store, as another generation of the plugin has it. */
  readonly open: (options?: Partial<VectorIndexOptions>) => VectorIndex
}

/** @param from vectors from which on there is a graph; none when left out */
async function start(t: T, from?: number, dataFolder = t.testdir()): Promise<Setup> {
  const house = await startHouse(t, [{ plugin: workers }, { plugin: graphMaker }], { dataFolder, http: false })
  const store = house.services('store')
  const warnings: string[] = []
  const log = {
    debug: () => {},
    info: () => {},
    warn: (message: string, fields?: LogFields) => void warnings.push(`${message} ${String(fields?.['error'])}`),
    error: () => {}
  } as unknown as NonNullable<VectorIndexOptions['graphs']>['log']
  const graphs = from === undefined ? {} : { graphs: { workers: house.services('workers'), from, log } }
  const open = (options: Partial<VectorIndexOptions> = {}) => {
    const vectors = createVectorIndex(store, { cacheBytes: 1 << 20, ...graphs, ...options })
    t.teardown(() => vectors.stop())
    return vectors
  }
  const load = () => house.services('workers').load()[graphTask.pool]
  return { store, vectors: open(), folder: join(dataFolder, 'scratch', 'rag'), warnings, load, open }
}

/** Numbers that are the same each time. */
function randomNumbers(start = seed): () => number {
  let state = start
  return () => {
    state = (Math.imul(state, 1_664_525) + 1_013_904_223) >>> 0
    return state / 2 ** 32
  }
}

/** Vectors of unit length, some of them near each other. */
function someVectors(count: number, dimensions = 16, random = randomNumbers()): Float32Array[] {
  const centres = Array.from({ length: Math.max(1, count >> 4) }, () =>
    Float32Array.from({ length: dimensions }, () => random() - 0.5)
  )
  return Array.from({ length: count }, () => {
    const centre = centres[Math.floor(random() * centres.length)]!
    return unit(centre.map((number) => number + 0.6 * (random() - 0.5)))
  })
}

function unit(vector: Float32Array): Float32Array {
  const length = Math.hypot(...vector)
  return vector.map((number) => number / length)
}

function cosine(a: Float32Array, b: Float32Array): number {
  return a.reduce((sum, number, at) => sum + number * b[at]!, 0)
}

/** What a search should find among vectors by ordinal. */
function nearest(all: ReadonlyMap<number, Float32Array>, query: Float32Array, limit: number): number[] {
  return [...all]
    .map(([ordinal, vector]) => [ordinal, cosine(vector, query)] as const)
    .sort(([a, x], [b, y]) => y - x || a - b)
    .slice(0, limit)
    .map(([ordinal]) => ordinal)
}

const add = (store: Store, index: VectorIndex, name: string, first: number, vectors: readonly Float32Array[]) =>
  store.atomically((tx) => index.add(tx, name, first, vectors))

const ordinalsOf = (hits: readonly { readonly ordinal: number }[]) => hits.map(({ ordinal }) => ordinal)

/** Until nothing is being made: growth begins within `maintain`. */
async function grown(index: VectorIndex, work: { readonly turn: Promise<void> }, name: string): Promise<void> {
  await index.maintain(name)
  await work.turn
}

// ---- numbers

t.test('a number keeps its eleven bits', (t) => {
  const all = Buffer.alloc(0x10000 * 2)
  for (let half = 0; half < 0x10000; half++) all.writeUInt16LE(half, half * 2)
  const back = toHalves(fromHalves(all))
  for (let half = 0; half < 0x10000; half++) {
    const isFinite = (half & 0x7c00) !== 0x7c00
    if (isFinite && back.readUInt16LE(half * 2) !== half) t.fail(`half ${half} is another one afterwards`)
  }
  fc.assert(
    fc.property(fc.float({ min: -1, max: 1, noNaN: true }), (number) => {
      const [kept] = fromHalves(toHalves(Float32Array.of(number)))
      return Math.abs(kept! - number) <= Math.max(Math.abs(number) * 2 ** -11, 2 ** -25)
    }),
    { seed }
  )
  t.end()
})

t.test('the best are those that sorting would give', (t) => {
  fc.assert(
    fc.property(fc.array(fc.integer({ min: 0, max: 9 })), fc.integer({ min: 0, max: 12 }), (raws, limit) => {
      const best = createBest(limit)
      for (const [ordinal, raw] of raws.entries()) best.add(ordinal, raw)
      const sorted = raws
        .map((raw, ordinal) => ({ ordinal, raw }))
        .sort((a, b) => b.raw - a.raw || a.ordinal - b.ordinal)
      t.strictSame(best.list(), sorted.slice(0, limit))
    }),
    { seed }
  )
  t.end()
})

// ---- exact search

t.test('the nearest are found in order, with their cosine, and their score from 0 to 1', async (t) => {
  const { store, vectors } = await start(t)
  const query = unit(Float32Array.of(1, 1, 0, 0))
  await add(store, vectors, 'a', 10, [
    unit(Float32Array.of(-1, -1, 0, 0)),
    unit(Float32Array.of(1, 0, 0, 0)),
    unit(Float32Array.of(1, 1, 0, 0)),
    unit(Float32Array.of(0, 0, 1, 0))
  ])
  const hits = await vectors.search('a', query, 10)
  t.strictSame(ordinalsOf(hits), [12, 11, 13, 10])
  t.strictSame(
    hits.map(({ raw }) => Math.round(raw * 100) / 100),
    [1, 0.71, 0, -1]
  )
  t.strictSame(
    hits.map(({ score }) => Math.round(score * 100) / 100),
    [1, 0.71, 0, 0]
  )
  t.ok(hits.every(({ raw, score }) => raw >= -1.001 && score >= 0 && score <= 1))
  t.strictSame(await vectors.search('a', query, 0), [])
  t.equal((await vectors.search('a', query, 2)).length, 2)
  t.strictSame(await vectors.search('nowhere', query, 10), [])
})

t.test('only what is accepted is found', async (t) => {
  const { store, vectors } = await start(t)
  const some = someVectors(50)
  await add(store, vectors, 'a', 0, some)
  const hits = await vectors.search('a', some[7]!, 5, { accept: (ordinal) => ordinal % 2 === 0 })
  t.strictSame(
    ordinalsOf(hits),
    nearest(new Map(some.map((one, at) => [at, one] as const).filter(([at]) => at % 2 === 0)), some[7]!, 5)
  )
})

t.test('vectors and queries of other dimensions are refused, and leave nothing', async (t) => {
  const { store, vectors } = await start(t)
  await add(store, vectors, 'a', 0, someVectors(2, 8))
  const wrong = { code: 'RAG_VECTORS_DIMENSIONS', detail: { expected: 8, found: 4 } }
  await t.rejects(add(store, vectors, 'a', 2, someVectors(2, 4)), wrong)
  await t.rejects(add(store, vectors, 'a', 2, [...someVectors(1, 8), ...someVectors(1, 4)]), wrong)
  await t.rejects(vectors.search('a', someVectors(1, 4)[0]!, 1), wrong)
  t.match(await vectors.size('a'), { vectors: 2, dimensions: 8 })
})

t.test('what is staged is not found before it is added, and is gone when it is discarded or swept', async (t) => {
  const { store, vectors, open } = await start(t)
  const some = someVectors(400, 64)
  const staged = await vectors.stage('a', 0, some)
  const other = await vectors.stage('a', 400, some)
  t.strictSame(await vectors.search('a', some[0]!, 1), [])
  await store.atomically((tx) => vectors.add(tx, 'a', 0, staged))
  t.equal((await vectors.search('a', some[300]!, 1))[0]!.ordinal, 300)
  await vectors.discard('a', other)
  await vectors.stage('a', 800, some)
  // A process after this one.
  await open().sweep()
  t.match(await vectors.size('a'), { vectors: 400 })
  await store.atomically((tx) => vectors.drop(tx, 'a'))
  t.strictSame(await vectors.search('a', some[0]!, 1), [])
  await vectors.maintain('a')
  for (const collection of ['rag-vectors', 'rag-vectors-heads', 'rag-vectors-loose']) {
    for await (const [key] of store.range(collection, [])) t.fail(`${collection} still has ${key.join(' ')}`)
  }
})

t.test('a transaction that fails changes nothing', async (t) => {
  const { store, vectors } = await start(t)
  const some = someVectors(20)
  await add(store, vectors, 'a', 0, some)
  await t.rejects(
    store.atomically(async (tx) => {
      await vectors.remove(tx, 'a', 0, 10)
      await vectors.add(tx, 'a', 20, some)
      throw new Error('no')
    }),
    { message: 'no' }
  )
  t.match(await vectors.size('a'), { vectors: 20 })
  t.equal((await vectors.search('a', some[0]!, 1))[0]!.ordinal, 0)
})

t.test('whatever is added, removed, merged or opened anew, the answer is the exact one', async (t) => {
  const { store, open } = await start(t)
  const random = randomNumbers()
  const step = fc.oneof(
    fc.record({ do: fc.constant('add' as const), count: fc.integer({ min: 1, max: 90 }), stage: fc.boolean() }),
    fc.record({ do: fc.constant('remove' as const), at: fc.nat(300), count: fc.integer({ min: 1, max: 80 }) }),
    fc.record({ do: fc.constant('maintain' as const) }),
    fc.record({ do: fc.constant('open' as const) })
  )
  let runs = 0
  await fc.assert(
    fc.asyncProperty(fc.array(step, { minLength: 8, maxLength: 24 }), async (steps) => {
      const name = `index ${runs++}`
      const there = new Map<number, Float32Array>()
      let vectors = open()
      let next = 0
      for (const one of steps) {
        if (one.do === 'add') {
          const some = someVectors(one.count, 12, random).map((vector) => fromHalves(toHalves(vector)))
          const first = next
          next += one.count
          const added = one.stage ? await vectors.stage(name, first, some) : some
          await store.atomically((tx) => vectors.add(tx, name, first, added))
          some.forEach((vector, at) => there.set(first + at, vector))
        } else if (one.do === 'remove') {
          let removed = 0
          for (let at = one.at; at < one.at + one.count; at++) if (there.delete(at)) removed += 1
          t.equal(await store.atomically((tx) => vectors.remove(tx, name, one.at, one.count)), removed)
        } else if (one.do === 'maintain') await vectors.maintain(name)
        else vectors = open({ cacheBytes: 4_096 })
        const query = someVectors(1, 12, random)[0]!
        t.strictSame(ordinalsOf(await vectors.search(name, query, 7)), nearest(there, query, 7))
        t.match(await vectors.size(name), { vectors: there.size })
      }
    }),
    { seed, numRuns: 6 }
  )
})

t.test('small segments are merged, also beside searches and removals', async (t) => {
  const { store, vectors } = await start(t)
  const some = someVectors(300)
  for (let first = 0; first < 300; first += 3) await add(store, vectors, 'a', first, some.slice(first, first + 3))
  t.equal((await vectors.size('a')).segments, 100)
  const merging = vectors.maintain('a')
  await store.atomically((tx) => vectors.remove(tx, 'a', 30, 30))
  const there = new Map(some.map((one, at) => [at, one] as const).filter(([at]) => at < 30 || at >= 60))
  const [during] = await Promise.all([vectors.search('a', some[40]!, 5), merging])
  t.strictSame(ordinalsOf(during), nearest(there, some[40]!, 5))
  t.ok((await vectors.size('a')).segments < 10)
  t.strictSame(ordinalsOf(await vectors.search('a', some[40]!, 5)), nearest(there, some[40]!, 5))
})

t.test('a search lets others through', async (t) => {
  const { store, open } = await start(t)
  let now = 0
  const vectors = open({ cacheBytes: 0, clock: () => (now += 6) })
  const some = someVectors(200, 4_096)
  await add(store, vectors, 'a', 0, some)
  let turns = 0
  let searching = true
  const count = () => {
    if (!searching) return
    turns += 1
    setImmediate(count)
  }
  setImmediate(count)
  await vectors.search('a', some[0]!, 1)
  searching = false
  t.ok(turns >= 10, `${turns} turns of the event loop went by`)
  const aborted = AbortSignal.abort(new Error('gone'))
  await t.rejects(vectors.search('a', some[0]!, 1, { signal: aborted }), { message: 'gone' })
})

// ---- graphs

t.test('an index of many vectors gets a graph, which finds nearly all', async (t) => {
  const { store, open, folder, warnings } = await start(t, 1_000)
  const work = createVectorWork()
  const vectors = open({ work })
  const some = someVectors(2_000)
  const all = new Map(some.entries())
  await store.atomically(async (tx) => vectors.add(tx, 'a', 0, some))
  await grown(vectors, work, 'a')
  t.match(await vectors.size('a'), { vectors: 2_000, graphed: 2_000 })
  t.equal(readdirSync(folder).length, 1)

  const recallOf = async (index: VectorIndex) => {
    let found = 0
    for (const query of someVectors(50, 16, randomNumbers(7))) {
      const wanted = new Set(nearest(all, query, 10))
      const hits = await index.search('a', query, 10)
      t.equal(hits.length, 10)
      t.ok(hits.every((hit) => Math.abs(hit.raw - cosine(all.get(hit.ordinal)!, query)) < 0.002))
      found += hits.filter(({ ordinal }) => wanted.has(ordinal)).length
    }
    return found / 500
  }
  t.ok((await recallOf(vectors)) >= 0.97)
  t.ok((await recallOf(open())) >= 0.97, 'opened anew')
  t.strictSame(warnings, [])

  await t.test('what is new is found at once', async (t) => {
    const fresh = someVectors(1, 16, randomNumbers(99))
    await add(store, vectors, 'a', 2_000, fresh)
    t.equal((await vectors.search('a', fresh[0]!, 1))[0]!.ordinal, 2_000)
    t.match(await vectors.size('a'), { vectors: 2_001, graphed: 2_000 })
  })

  await t.test('what was removed is not found', async (t) => {
    for (let first = 0; first < 600; first += 100) {
      await store.atomically((tx) => vectors.remove(tx, 'a', first, 100))
      const hits = await vectors.search('a', some[first]!, 20)
      t.equal(hits.length, 20)
      t.notOk(hits.some(({ ordinal }) => ordinal < first + 100))
    }
  })

  await t.test('only what is accepted is found, however little that is', async (t) => {
    for (const accept of [(ordinal: number) => ordinal % 3 === 0, (ordinal: number) => ordinal === 1_777]) {
      const hits = await vectors.search('a', some[700]!, 10, { accept })
      t.equal(hits.length, accept(0) ? 10 : 1)
      t.ok(hits.every(({ ordinal }) => accept(ordinal)))
    }
  })

  await t.test('a graph of which a third was removed is made anew', async (t) => {
    await store.atomically((tx) => vectors.remove(tx, 'a', 600, 200))
    await grown(vectors, work, 'a')
    t.match(await vectors.size('a'), { vectors: 1_201, graphed: 1_201 })
    t.equal(readdirSync(folder).length, 1)
    t.equal((await vectors.search('a', some[900]!, 1))[0]!.ordinal, 900)
  })

  await t.test('a graph is extended when much is new', async (t) => {
    await add(store, vectors, 'a', 3_000, someVectors(400, 16, randomNumbers(5)))
    await grown(vectors, work, 'a')
    t.match(await vectors.size('a'), { vectors: 1_601, graphed: 1_601 })
    t.equal(readdirSync(folder).length, 1)
  })

  await t.test('with the index goes its graph', async (t) => {
    await store.atomically((tx) => vectors.drop(tx, 'a'))
    t.strictSame(await vectors.search('a', some[900]!, 1), [])
    await vectors.maintain('a')
    t.strictSame(readdirSync(folder), [])
  })
  t.strictSame(warnings, [])
})

for (const [how, harm] of [
  ['is gone', (path: string) => rmSync(path)],
  ['was cut short', (path: string) => truncateSync(path, 1_000)]
] as const) {
  t.test(`a graph whose file ${how} is made again, and searches are exact meanwhile`, async (t) => {
    const { store, vectors, open, folder, warnings } = await start(t, 500)
    const some = someVectors(600)
    const first = createVectorWork()
    await add(store, vectors, 'a', 0, some)
    await grown(open({ work: first }), first, 'a')
    const [file] = readdirSync(folder)
    harm(join(folder, file!))

    const work = createVectorWork()
    const next = open({ work })
    t.strictSame(ordinalsOf(await next.search('a', some[5]!, 3)), nearest(new Map(some.entries()), some[5]!, 3))
    t.match(warnings, [/graph of an index of vectors is lost/])
    await grown(next, work, 'a')
    t.match(await next.size('a'), { graphed: 600 })
    t.equal(readdirSync(folder).length, 1)
    t.not(readdirSync(folder)[0], file)
    t.equal((await next.search('a', some[5]!, 1))[0]!.ordinal, 5)
    t.equal(warnings.length, 1)
  })
}

t.test('stopping ends the making of a graph, and the next start takes away what it left', async (t) => {
  const { store, open, folder, load } = await start(t, 1_000)
  const work = createVectorWork()
  const vectors = open({ work })
  await add(store, vectors, 'first', 0, someVectors(1_000))
  await grown(vectors, work, 'first')
  await store.atomically((tx) => vectors.drop(tx, 'first'))
  await vectors.maintain('first')
  await add(store, vectors, 'a', 0, someVectors(4_000, 64))
  await vectors.maintain('a')
  while (load()?.running !== 1) await turn()
  await vectors.stop()
  // Ended within a call of the library, its thread would take the process down.
  t.match(load(), { running: 0, threads: 1 }, 'its thread has given up by itself')
  t.match(await vectors.size('a'), { vectors: 4_000, graphed: 0 })
  const next = open()
  await next.sweep()
  t.strictSame(readdirSync(folder), [])
})

t.test('what is merged, removed and added while a graph is made is there afterwards', async (t) => {
  const { store, open } = await start(t, 500)
  const work = createVectorWork()
  const vectors = open({ work })
  const some = someVectors(1_500)
  for (let first = 0; first < 900; first += 30) await add(store, vectors, 'a', first, some.slice(first, first + 30))
  // Begins a graph of what is not merged yet.
  await vectors.search('a', some[0]!, 1)
  await Promise.all([
    vectors.maintain('a'),
    add(store, vectors, 'a', 900, some.slice(900)),
    store.atomically((tx) => vectors.remove(tx, 'a', 100, 50))
  ])
  await grown(vectors, work, 'a')
  await grown(vectors, work, 'a')
  t.match(await vectors.size('a'), { vectors: 1_450 })
  for (let at = 0; at < 1_500; at += 31) {
    const [hit] = await vectors.search('a', some[at]!, 1)
    if (at < 100 || at >= 150) t.equal(hit!.ordinal, at)
    else t.ok(hit!.ordinal < 100 || hit!.ordinal >= 150)
  }
})
