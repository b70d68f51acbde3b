import { findCollections } from './collections.ts'
import { runProcess } from './process.ts'
import { meaning } from './retrieval-meaning.ts'
import { type Bench, defineBench, type Figures, type Side } from './runner.ts'

const figures = {
  ndcg: 'nDCG@10',
  recall: 'recall@100',
  queryMs: 'query, CPU ms',
  typosNdcg: 'nDCG@10, mistyped',
  typosMs: 'mistyped query, CPU ms',
  indexMs: 'indexing, CPU ms'
}

function side(name: string, collection: string): Side {
  return {
    name,
    setup: () => ({
      run: () => runProcess<Figures>(new URL('./retrieval-side.js', import.meta.url), { args: [name, collection] })
    })
  }
}

function bench(collection: string, least: number | undefined): Bench {
  const per = (figure: string) => (read: (side: string, figure: string) => number) =>
    read('heartwood', figure) / read('minisearch', figure)
  return defineBench({
    name: `retrieval-${collection}`,
    question: `What is found by words in ${collection}, and how fast?`,
    method:
      'each side in a fresh process: indexes the collection, asks every query again and again for half a second of CPU to warm up, then likewise for the figures; heartwood reads its index from the store on disk; mistyped: one slip in every word of at least five letters',
    figures,
    sides: ['heartwood', 'minisearch'].map((name) => side(name, collection)),
    claims: [
      {
        name: 'Q1 nDCG@10',
        of: (read) => read('heartwood', 'ndcg'),
        ...(least === undefined ? {} : { atLeast: least })
      },
      { name: 'Q4 query time, against minisearch', of: per('queryMs'), atMost: 0.2 },
      {
        name: 'Q3 share of the clean nDCG@10 kept when mistyped',
        of: (read) => read('heartwood', 'typosNdcg') / read('heartwood', 'ndcg'),
        atLeast: 0.85
      },
      { name: 'Q3 mistyped query time, against minisearch', of: per('typosMs'), atMost: 0.25 }
    ]
  })
}

const strategies = ['default', 'semantic 1200/0', 'character 1200/0', 'character 800/400', 'word 200/50']

const chunks: Bench = defineBench({
  name: 'retrieval-chunks',
  question: 'Which chunks answer?',
  method:
    "Chroma's chunking benchmark (472 questions, 5 texts in one index): share of the answers' characters that the best five chunks hold, found by BM25",
  figures: { recall: 'recall, top 5', longest: 'longest chunk, characters', chunks: 'chunks' },
  sides: strategies.map((name) => side(name, 'chunk-eval')),
  claims: [
    { name: 'Q7 recall of the default', of: (read) => read('default', 'recall'), atLeast: 0.9 },
    { name: 'Q7 longest chunk of the default', of: (read) => read('default', 'longest'), atMost: 1_200 }
  ]
})

/** None where `HEARTWOOD_TEST_DATA` names no folder with the collections. */
const benches: readonly Bench[] =
  findCollections() === undefined
    ? []
    : [bench('scifact', 0.685), bench('xquad-en', undefined), chunks, meaning('scifact'), meaning('xquad-en')]

export default benches
