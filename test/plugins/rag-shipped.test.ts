import t from 'tap'
import { setImmediate as turn } from 'node:timers/promises'
import { type RagReply, type RagUser, startRag } from '../fixtures/rag-house.ts'
import { pluginNamed } from '../harness.ts'

const startShipped = async (t: Parameters<typeof startRag>[0]) =>
  startRag(t, { encoder: await pluginNamed('embeddings') })

const notes = [
  'The ferry to the island leaves every morning from the northern pier.',
  'A physician examined the sick child and prescribed medicine.',
  'Invoice KX-4471 was paid by the bakery in the old town.',
  'Our cat sleeps on the warm roof of the garage all day.',
  'The committee postponed its vote on the new railway bridge.'
]

async function ended(user: RagUser, path: string): Promise<Readonly<Record<string, unknown>>> {
  for (;;) {
    const body = (await user.send('GET', path)).body as Readonly<Record<string, unknown>>
    if (body['status'] !== 'running') return body
    await turn()
  }
}

t.test(
  'hybrid with the encoder that ships finds by meaning what shares no word, and by words what means nothing',
  async (t) => {
    const user = (await startShipped(t)).user()
    for (const note of notes) t.equal((await user.ingest('notes', note)).status, 200)
    t.match(await user.collections(), [{ dimensions: 512, embedding_model: 'use-lite' }])
    const first = async (query: string, strategy?: string) => {
      const reply = await user.found('notes', query, strategy, { explain: true })
      for (const { score } of reply.results) t.ok(score >= 0 && score <= 1)
      return reply as RagReply & { readonly results: readonly [RagReply['results'][number]] }
    }
    for (const strategy of ['semantic', 'hybrid', undefined]) {
      const { results, strategy: done, explain } = await first('doctor treating an ill kid', strategy)
      t.equal(results[0].content, notes[1], `${strategy}`)
      t.equal(done, strategy ?? 'hybrid')
      t.match(results[0].explain, { semantic: { rank: 1, raw: Number } })
      t.equal(explain?.embedding_model, 'use-lite')
    }
    for (const strategy of ['bm25', 'fuzzy', 'hybrid'])
      t.equal((await first('KX-4471', strategy)).results[0].content, notes[2])
    const both = (await first('When does the ferry leave?', 'hybrid')).results[0]
    t.equal(both.content, notes[0])
    t.match(both.explain, { bm25: { rank: 1 }, semantic: { rank: 1 } })
  }
)

t.test('what was let in ends, however little room its threads have', async (t) => {
  const house = await startShipped(t)
  await house.kernel.update('workers', {
    pools: { embed: { max_threads: 1, max_queue: 0 }, rag: { max_threads: 1, max_queue: 0 } }
  })
  await house.kernel.update('embeddings', { threads: 4 })
  const user = house.user()
  const short = (at: number) => `${notes.map((note) => `${at}: ${note}`).join('\n\n')} `.repeat(3)
  const long = (at: number) => short(at).repeat(4)
  const replies = await Promise.all(Array.from({ length: 4 }, (_, at) => user.ingest('short', short(at))))
  t.strictSame(
    replies.map(({ status }) => status),
    replies.map(() => 200)
  )
  const jobs = await Promise.all(
    Array.from({ length: 3 }, (_, at) =>
      user.send('POST', '/ingest', { collection: 'long', content: long(at) }, { prefer: 'respond-async' })
    )
  )
  for (const { status, headers } of jobs) {
    t.equal(status, 202)
    t.match(await ended(user, headers['location']!.replace('/api/rag', '')), { status: 'done' })
  }
  t.match(await user.collections(), [
    { name: 'long', source_count: 3 },
    { name: 'short', source_count: 4 }
  ])
})
