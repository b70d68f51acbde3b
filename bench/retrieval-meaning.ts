import { findCollections, ndcg, readCollection } from './collections.ts'
import { httpRequest, openClient } from './load.ts'
import { startServer } from './process.ts'
import { type Bench, defineBench, type Figures } from './runner.ts'
import { makeToken } from './token.ts'

const strategies = ['bm25', 'fuzzy', 'semantic', 'hybrid'] as const
const clients = 8
const headers = { Authorization: `Bearer ${makeToken('reader')}` }

interface Found {
  readonly results: readonly { readonly metadata: { readonly source: string } }[]
}

/** Asks over HTTP, with several clients at once. @returns the answers, in the order of the bodies */
async function askAll<T>(port: number, path: string, bodies: readonly object[]): Promise<readonly T[]> {
  const answers: T[] = []
  let next = 0
  const side = async (): Promise<void> => {
    const client = await openClient(port)
    for (let at = next++; at < bodies.length; at = next++) {
      const { status, body } = await client.send(httpRequest('POST', path, { headers, body: bodies[at]! }))
      if (status !== 200) throw new Error(`${path} answered ${status}: ${body}`)
      answers[at] = JSON.parse(body) as T
    }
    client.close()
  }
  await Promise.all(Array.from({ length: clients }, side))
  return answers
}

/** The product with the encoder that ships, asked as any client asks it. */
export function meaning(collection: string): Bench {
  return defineBench({
    name: `retrieval-meaning-${collection}`,
    question: `Is hybrid search as good as the best of its parts in ${collection}?`,
    method:
      'documents are taken in over HTTP, with the sentence encoder that ships; every query is asked in every strategy, once to warm up, and then in each round; a document counts where its first chunk stands',
    figures: Object.fromEntries(strategies.map((strategy) => [strategy, `nDCG@10, ${strategy}`])),
    sides: [
      {
        name: 'heartwood',
        async setup() {
          const { documents, queries } = readCollection(findCollections()!, collection)
          const server = await startServer(new URL('./servers/ingest.js', import.meta.url), { cores: 'all' })
          const sent = documents.map(({ id, text }) => ({ collection, content: text, source: id }))
          await askAll(server.port, '/api/rag/ingest', sent)
          return {
            async run(): Promise<Figures> {
              const figures: Record<string, number> = {}
              for (const strategy of strategies) {
                const bodies = queries.map(({ text }) => ({ collection, query: text, strategy, limit: 100 }))
                const found = await askAll<Found>(server.port, '/api/rag/search', bodies)
                const gains = found.map(({ results }, at) => {
                  const ranked = [...new Set(results.map(({ metadata }) => metadata.source))]
                  return ndcg(ranked, queries[at]!.answers)
                })
                figures[strategy] = gains.reduce((sum, gain) => sum + gain, 0) / gains.length
              }
              return figures
            },
            teardown: () => server.stop()
          }
        }
      }
    ],
    claims: [
      {
        name: 'Q2 hybrid, against the best of the others',
        of: (read) => {
          const [hybrid, ...others] = (['hybrid', 'bm25', 'fuzzy', 'semantic'] as const).map((each) =>
            read('heartwood', each)
          )
          return hybrid! / Math.max(...others)
        },
        atLeast: 1
      }
    ]
  })
}
