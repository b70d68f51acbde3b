/** One side of the bench `retrieval`, in a process of its own: `retrieval-side.js <side> <collection>`. */
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { createTextIndex } from '../plugins/rag/bm25.ts'
import { bestChunks, type ChunkOptions, chunkText, findChunkStrategy } from '../plugins/rag/chunk.ts'
import { searchFuzzy } from '../plugins/rag/fuzzy.ts'
import { buildSegment } from '../plugins/rag/segment.ts'
import { createAnalyser } from '../plugins/rag/text.ts'
import { openEngine } from '../plugins/store/lmdb.ts'
import { createStore } from '../plugins/store/service.ts'
import {
  type Collection,
  coverage,
  createRandom,
  findCollections,
  mistype,
  ndcg,
  readCollection,
  readSpans,
  recall
} from './collections.ts'
import { loadPeer } from './peers.ts'
import type { Figures } from './runner.ts'

type Ask = (query: string, limit: number) => Promise<readonly string[]>

interface Searched {
  readonly plain: Ask
  readonly fuzzy: Ask
  close(): Promise<void>
}

const [name = '', collection = ''] = process.argv.slice(2)
const depth = 100
/**
 * CPU time to warm up for at least, and again to measure: in less, what compiles is most of it. Every query is asked in
 * both, and as often as any other.
 */
const leastMs = 500
/** Documents that are added in one transaction. */
const batch = 64

function cpuMs(): number {
  const { user, system } = process.cpuUsage()
  return (user + system) / 1000
}

async function openHeartwood(documents: Collection['documents']): Promise<Searched> {
  const folder = mkdtempSync(join(tmpdir(), 'heartwood-bench-'))
  const engine = await openEngine(folder)
  const store = createStore(engine)
  const analyser = createAnalyser()
  const text = createTextIndex(store, { analyser, cacheBytes: 32 << 20 })
  for (let at = 0; at < documents.length; at += batch) {
    const part = documents.slice(at, at + batch)
    const segment = buildSegment(part.map((document) => analyser.analyse(document.text)))
    await store.atomically(async (tx) => {
      await text.add(tx, 'bench', await text.reserve(tx, 'bench', part.length), segment)
    })
    await text.maintain('bench')
  }
  const ids = (hits: readonly { readonly ordinal: number }[]) => hits.map(({ ordinal }) => documents[ordinal]!.id)
  return {
    plain: async (query, limit) => ids((await text.search('bench', query, limit)).hits),
    fuzzy: async (query, limit) => ids((await searchFuzzy(text, analyser, 'bench', query, limit)).hits),
    async close() {
      await engine.close()
      rmSync(folder, { recursive: true })
    }
  }
}

async function openMinisearch(documents: Collection['documents']): Promise<Searched> {
  const { default: MiniSearch } = await loadPeer('minisearch')
  const mini = new MiniSearch({ fields: ['text'] })
  mini.addAll(documents)
  const ids = (hits: readonly { id: string }[], limit: number) => hits.slice(0, limit).map(({ id }) => id)
  return {
    plain: async (query, limit) => ids(mini.search(query), limit),
    fuzzy: async (query, limit) => ids(mini.search(query, { fuzzy: 0.2 }), limit),
    async close() {}
  }
}

async function ask(queries: Collection['queries'], texts: readonly string[], find: Ask) {
  const found: (readonly string[])[] = []
  const askAll = async (): Promise<number> => {
    const startedAt = cpuMs()
    let passes = 0
    do {
      for (const [at, text] of texts.entries()) found[at] = await find(text, depth)
      passes += 1
    } while (cpuMs() - startedAt < leastMs)
    return (cpuMs() - startedAt) / passes / texts.length
  }
  await askAll()
  const ms = await askAll()
  const mean = (measure: (ranked: readonly string[], answers: ReadonlyMap<string, number>) => number) =>
    found.reduce((sum, ranked, at) => sum + measure(ranked, queries[at]!.answers), 0) / found.length
  return { ms, ndcg: mean(ndcg), recall: mean((ranked, answers) => recall(ranked, answers, depth)) }
}

async function measureSearch(folder: string): Promise<Figures> {
  const { documents, queries } = readCollection(folder, collection)
  const startedAt = cpuMs()
  const searched = await (name === 'minisearch' ? openMinisearch(documents) : openHeartwood(documents))
  const indexMs = cpuMs() - startedAt
  const random = createRandom(7)
  const clean = queries.map(({ text }) => text)
  const plain = await ask(queries, clean, searched.plain)
  const fuzzy = await ask(
    queries,
    clean.map((text) => mistype(text, random)),
    searched.fuzzy
  )
  await searched.close()
  return {
    ndcg: plain.ndcg,
    recall: plain.recall,
    queryMs: plain.ms,
    typosNdcg: fuzzy.ndcg,
    typosMs: fuzzy.ms,
    indexMs
  }
}

async function measureChunks(folder: string): Promise<Figures> {
  const [strategy = '', size = '', overlap = ''] = name.split(/[ /]/)
  const options: ChunkOptions =
    name === 'default'
      ? bestChunks
      : { strategy: findChunkStrategy(strategy)!, size: Number(size), overlap: Number(overlap) }
  const { texts, questions } = readSpans(folder)
  const chunks = Object.entries(texts).flatMap(([source, text]) =>
    chunkText(text, options).map((chunk, at) => ({ ...chunk, source, id: `${source} ${at}` }))
  )
  const byId = new Map(chunks.map((chunk) => [chunk.id, chunk]))
  const searched = await openHeartwood(chunks)
  let sum = 0
  for (const { text, source, spans } of questions) {
    const best = (await searched.plain(text, 5)).map((id) => byId.get(id)!)
    sum += coverage(
      best.filter((chunk) => chunk.source === source),
      spans
    )
  }
  await searched.close()
  const longest = Math.max(...chunks.map(({ start, end }) => end - start))
  return { recall: sum / questions.length, longest, chunks: chunks.length }
}

const folder = findCollections()
if (folder === undefined) throw new Error('HEARTWOOD_TEST_DATA names no folder with the collections')
process.send!(await (collection === 'chunk-eval' ? measureChunks(folder) : measureSearch(folder)))
