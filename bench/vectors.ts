import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { runProcess } from './process.ts'
import { defineBench, type Figures, type Side } from './runner.ts'

const module = new URL('./vectors-side.js', import.meta.url)

function side(count: number): Side {
  return {
    name: count.toLocaleString('en'),
    async setup() {
      const folder = mkdtempSync(join(tmpdir(), 'heartwood-bench-'))
      const { graphMs } = await runProcess<{ graphMs: number }>(module, { args: ['build', folder, String(count)] })
      return {
        run: async () => ({
          ...(await runProcess<Figures>(module, { args: ['ask', folder, String(count)] })),
          graphMs
        }),
        teardown: () => rmSync(folder, { recursive: true })
      }
    }
  }
}

const many = '100,000'

export default defineBench({
  name: 'vectors',
  question: 'How near is the approximate search to the exact one, and how much faster?',
  method:
    'made vectors of 384 dimensions around centres, in the store, with the approximate index where the program makes one; a round is a fresh process that opens the store, searches once, then asks 200 queries for the nearest ten, and 20 of them exactly, with every vector in memory',
  figures: {
    recall: 'recall@10',
    queryMs: 'query, CPU ms',
    exactMs: 'exact query, CPU ms',
    firstMs: 'opening to first result, ms',
    rssMb: 'RSS after the queries, MB',
    graphed: 'vectors in the approximate index',
    graphMs: 'making it, CPU ms (once)'
  },
  sides: [1_000, 10_000, 100_000].map(side),
  claims: [
    { name: 'Q6 recall@10 at 100,000', of: (read) => read(many, 'recall'), atLeast: 0.99 },
    {
      name: 'Q6 query time at 100,000, against exact',
      of: (read) => read(many, 'queryMs') / read(many, 'exactMs'),
      atMost: 0.02
    },
    { name: 'Q6 opening to first result at 100,000, ms', of: (read) => read(many, 'firstMs'), atMost: 1_000 }
  ]
})
