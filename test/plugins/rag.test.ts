import t from 'tap'
import { type Ingest, madeEncoder, type RagReply, startRag, strategies } from '../fixtures/rag-house.ts'

const words = (count: number, word = 'word') => Array.from({ length: count }, (_, at) => `${word}${at}`).join(' ')
const notFound = (name: string) => ({
  status: 404,
  body: { error: `Collection '${name}' not found`, code: 'NOT_FOUND' }
})
const invalid = (error: string | RegExp) => ({ status: 400, body: { error, code: 'INVALID_INPUT' } })

t.test('rows F.12', async (t) => {
  const house = await startRag(t)
  const user = house.user()
  const ingested = async (collection: string, content: string, more = {}) => {
    const { status, body } = await user.ingest(collection, content, more)
    if (status !== 200) throw new Error(`${status} ${JSON.stringify(body)}`)
    return body as Ingest
  }

  t.test('Q-01: a short text is one chunk', async (t) => {
    const body = await ingested('notes', words(60))
    t.match(body, { chunks_created: 1, collection: 'notes' })
    t.equal(body.document_ids.length, 1)
  })

  t.test('Q-02: words', async (t) => {
    const { chunks_created } = await ingested('q02', words(400), { chunking_strategy: 'word' })
    t.equal(chunks_created, 3)
    const { results } = await user.found('q02', 'word0 word150 word399', 'bm25')
    t.strictSame(
      results.map(({ content }) => content.split(' ')[0]!).sort((a, b) => (a < b ? -1 : 1)),
      ['word0', 'word150', 'word300'],
      'they start at words 0, 150 and 300'
    )
  })

  t.test('Q-03: characters', async (t) => {
    const { document_ids } = await ingested('q03', 'abcdefghi '.repeat(100), { chunking_strategy: 'character' })
    t.equal(document_ids.length, 3)
    const { results } = await user.found('q03', 'abcdefghi', 'bm25')
    const starts = results.map(({ metadata }) => metadata['start'] as number)
    t.strictSame(
      starts.toSorted((a, b) => a - b),
      [0, 400, 800]
    )
  })

  t.test('Q-04: paragraphs', async (t) => {
    const paragraph = (word: string) => `${word} `.repeat(80).trim()
    await ingested('q04', `${paragraph('lime')}\n\n${paragraph('pear')}`, { chunking_strategy: 'semantic' })
    const { results } = await user.found('q04', 'lime pear', 'bm25')
    t.equal(results.length, 2)
    for (const { content } of results) t.ok(content.length <= 500)
  })

  t.test('Q-05, Q-06, Q-07: what is no document', async (t) => {
    t.match(await user.ingest('q05', 'short'), invalid('Content too small to chunk'))
    t.match(await user.ingest('q05', ''), invalid('Content required'))
    t.match(await user.ingest('', words(60)), invalid('Collection name required'))
    t.match(await user.send('POST', '/ingest', {}), invalid('Collection name required'))
    t.match(
      await user.ingest('q05', words(60), { chunking_strategy: 'foo' }),
      invalid('Unknown chunking strategy: foo. Use: word, semantic, character')
    )
    t.match(await user.search('q05', 'x'), notFound('q05'), 'nothing of it made the collection')
  })

  t.test('Q-08: aliases, in any case', async (t) => {
    for (const chunking_strategy of ['sentence', 'paragraph', 'words', 'Chars', 'CHAR']) {
      t.equal((await user.ingest('q08', words(60), { chunking_strategy })).status, 200)
    }
  })

  t.test('Q-09 (R7): the default is hybrid', async (t) => {
    for (let at = 0; at < 15; at++) await ingested('q09', `Note ${at}: budget owners meet in room ${at} on Mondays.`)
    const { results, strategy, reranked, total } = await user.found('q09', 'budget owners')
    t.match({ strategy, reranked }, { strategy: 'hybrid', reranked: false })
    t.equal(results.length, 10)
    t.equal(total, 15)
    const scores = results.map(({ score }) => score)
    t.strictSame(
      scores,
      scores.toSorted((a, b) => b - a)
    )
    t.ok(scores.every((score) => score > 0 && score <= 1))
  })

  t.test('Q-10: the limit', async (t) => {
    const { results, total } = await user.found('q09', 'budget', 'bm25', { limit: 2 })
    t.equal(results.length, 2)
    t.equal(total, 15)
  })

  t.test('Q-11, Q-12, Q-13: strategies and their aliases', async (t) => {
    const rows = { bm25: 'bm25', fuzzy: 'fuzzy', hybrid: 'hybrid', dense: 'semantic', lexical: 'bm25', rrf: 'hybrid' }
    for (const [asked, told] of Object.entries({ ...rows, VECTOR: 'semantic', sparse: 'bm25', approximate: 'fuzzy' })) {
      t.equal((await user.found('q09', 'budget', asked)).strategy, told)
    }
    t.match(
      await user.search('q09', 'budget', 'foo'),
      invalid('Unknown search strategy: foo. Use: semantic, bm25, fuzzy, hybrid')
    )
  })

  t.test('Q-14: a mistyped word', async (t) => {
    const reply = await user.found('q09', 'budgte', 'fuzzy')
    t.ok(reply.results.length > 0)
    t.strictSame(reply.corrections, [{ word: 'budgte', corrections: ['budget'] }])
    t.ok((await user.found('q09', 'budgte', 'hybrid')).results[0]!.content.includes('budget'))
  })

  t.test('Q-15, Q-16: a word that nobody has, and one that one of many has', async (t) => {
    t.strictSame((await user.found('q09', 'zeppelin', 'bm25')).results, [])
    for (let at = 0; at < 60; at++) await ingested('q16', `Entry ${at} is about apples and pears, number ${at}.`)
    await ingested('q16', 'This one alone speaks of a zeppelin over the lake.')
    const { results } = await user.found('q16', 'zeppelin', 'bm25')
    t.equal(results.length, 1)
    t.match(results[0]!.content, /zeppelin/)
  })

  t.test('Q-17 (R7): the formula, under explain', async (t) => {
    await ingested('q17', 'harbour harbour pilots wait outside')
    await ingested('q17', 'pilots wait for morning fog to clear')
    const { results } = await user.found('q17', 'harbour', 'bm25', { explain: true })
    // 2 chunks, 1 has it, twice; 5 words against 5 on average ("for" and "to" count for nothing).
    const idf = Math.log(1 + (2 - 1 + 0.5) / (1 + 0.5))
    const raw = (idf * 2 * 2.2) / (2 + 1.2)
    t.equal(results.length, 1)
    const { bm25 } = results[0]!.explain!
    t.ok(Math.abs(bm25!.raw - raw) < 1e-3, `${bm25!.raw} is ${raw}`)
    t.ok(Math.abs(results[0]!.score - (1 - 4 ** (-raw / idf))) < 1e-3)
    t.equal(bm25!.rank, 1)
  })

  t.test('Q-18 (R7): a hybrid score is one from 0 to 1, and explain shows both parts', async (t) => {
    const { results, explain } = await user.found('q09', 'budget owners', 'hybrid', { explain: true })
    const { score, explain: parts } = results[0]!
    t.ok(score > 0 && score <= 1)
    t.match(parts, { bm25: { rank: Number }, semantic: { rank: Number } })
    t.match(explain, { semantic_weight: Number, embedding_model: 'made' })
  })

  t.test('Q-19: a threshold', async (t) => {
    t.strictSame((await user.found('q09', 'zeppelin', 'semantic', { threshold: 0.99 })).results, [])
  })

  t.test('Q-20, Q-21: no collection, no query', async (t) => {
    t.match(await user.search('x', 'budget'), notFound('x'))
    t.match(await user.search('', 'budget'), invalid('Collection name required'))
    t.match(await user.search('q09', ''), invalid('Query required'))
    t.match(await user.search('q09', ' \u200b\n'), invalid('Query required'))
  })

  t.test('Q-22, Q-23: reranking', async (t) => {
    await ingested(
      'q22',
      'The owners of the house talked at length about this and that, and never of any budget at all.'
    )
    await ingested('q22', 'Budget owners of the house talked at length about this and that, and never of any else.')
    const plain = await user.found('q22', 'budget owners', 'bm25')
    const reply = await user.found('q22', 'budget owners', 'bm25', { rerank: true, explain: true })
    t.equal(reply.reranked, true)
    t.match(reply.results[0]!.content, /^Budget owners/)
    t.match(reply.results[0]!.explain, { rerank: { rank: 1 }, bm25: { rank: Number } })
    const scoreOf = (reply: RagReply) => reply.results.find(({ content }) => content.startsWith('Budget'))!.score
    t.ok(scoreOf(reply) > scoreOf(plain), 'words that stand together count for more')
    t.equal((await user.found('q22', 'zeppelin', 'bm25', { rerank: true })).reranked, false, 'there was nothing')
    t.match(
      await user.search('q22', 'budget', 'bm25', { rerank: true, reranker_model: 'foo' }),
      invalid('Unknown reranker model: foo. Use one of: proximity')
    )
  })

  t.test('Q-24: what a document says of itself', async (t) => {
    const more = {
      title: 'Q3 review',
      source: 'q3.md',
      tags: ['finance', 'q3'],
      metadata: { year: 2027, draft: false }
    }
    await ingested('q24', 'Quarterly review of the northern branch.', more)
    const { metadata } = (await user.found('q24', 'quarterly', 'bm25')).results[0]!
    t.match(metadata, { title: 'Q3 review', source: 'q3.md', tags: ['finance', 'q3'], year: 2027, draft: false })
    t.match(metadata['created_at'], /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$/)
    await ingested('q24', 'Nothing is known of this quarterly text.')
    const other = (await user.found('q24', 'nothing', 'bm25')).results[0]!
    t.match(other.metadata, { title: null, source: null, tags: [] })
  })

  t.test('Q-25: the list', async (t) => {
    const listed = await user.collections()
    const q02 = listed.find(({ name }) => name === 'q02')
    t.match(q02, { name: 'q02', document_count: 3, dimensions: 64, source_count: 1, embedding_model: 'made' })
    t.notMatch(JSON.stringify(listed), user.id)
  })

  t.test('Q-26: another user has none of it', async (t) => {
    const other = house.user('u2')
    t.strictSame(await other.collections(), [])
    t.match(await other.search('notes', 'word1'), notFound('notes'))
    t.match(await other.remove('notes'), notFound('notes'))
  })

  t.test('Q-27, Q-28: deleting', async (t) => {
    t.match(await user.remove('q02'), { status: 200, body: { success: true, collection: 'q02', documents_deleted: 3 } })
    t.match(await user.remove('q02'), notFound('q02'))
    t.match(await user.remove(''), invalid('Collection name required'))
  })

  t.test('Q-29: nobody', async (t) => {
    for (const [method, path] of [
      ['POST', '/ingest'],
      ['POST', '/search'],
      ['GET', '/collections'],
      ['DELETE', '/collection']
    ] as const) {
      const body = method === 'GET' ? {} : { body: {} }
      t.match(await house.send(method, `/api/rag${path}`, body), { status: 401, body: { error: 'Unauthorized' } })
    }
  })
})

t.test('the chapter of the reference answers as printed', async (t) => {
  const user = (await startRag(t)).user()
  const reply = await user.send('POST', '/ingest', {
    collection: 'notes',
    content: 'Quarterly review text. Budget owners meet on Mondays.',
    title: 'Q3 review',
    tags: ['finance']
  })
  t.match(reply, { status: 200, body: { chunks_created: 1, document_ids: [String], collection: 'notes' } })
  const found = await user.send('POST', '/search', {
    collection: 'notes',
    query: 'budget owners',
    limit: 5,
    strategy: 'hybrid'
  })
  t.match(found, {
    status: 200,
    body: {
      results: [{ id: String, content: /Budget owners meet on Mondays\./, score: Number, metadata: Object }],
      total: 1,
      strategy: 'hybrid',
      reranked: false,
      duration_ms: Number
    }
  })
  t.match((await user.collections())[0], { name: 'notes', document_count: 1 })
  t.strictSame((await user.send('DELETE', '/collection', { collection: 'notes' })).body, {
    success: true,
    collection: 'notes',
    documents_deleted: 1
  })
})

t.test('two users with a collection of one name never see the text of each other', async (t) => {
  const house = await startRag(t)
  const [ada, bob] = [house.user('ada'), house.user('bob')]
  await ada.ingest('notes', 'The safe is behind the painting of the harbour.')
  await bob.ingest('notes', 'The painting of the harbour was sold last week.')
  for (const strategy of strategies) {
    for (const [user, own] of [
      [ada, /safe/],
      [bob, /sold/]
    ] as const) {
      const { results, total } = await user.found('notes', 'painting harbour', strategy)
      t.equal(results.length, 1, strategy)
      t.equal(total, 1)
      t.match(results[0]!.content, own)
    }
  }
  await ada.remove('notes')
  for (const strategy of strategies) {
    t.match(await ada.search('notes', 'painting', strategy), notFound('notes'), `${strategy}: gone at once`)
    t.equal((await bob.found('notes', 'painting', strategy)).results.length, 1)
  }
  await ada.ingest('notes', 'A new painting hangs in the hall now.')
  for (const strategy of strategies) {
    const { results } = await ada.found('notes', 'painting', strategy)
    t.strictSame(
      results.map(({ content }) => content),
      ['A new painting hangs in the hall now.'],
      `${strategy}: nothing of the old collection`
    )
  }
})

t.test('a document that comes again takes the place of the one before', async (t) => {
  const user = (await startRag(t)).user()
  const rain = 'Rain barrels fill faster under the north gutter.'
  for (let at = 0; at < 3; at++) await user.ingest('same', rain, { title: 't', source: 's.txt' })
  await user.ingest('same', `  ${rain.replaceAll(' ', '\n')}`, { title: 'another title', source: 's.txt' })
  for (const strategy of strategies) t.equal((await user.found('same', 'rain barrels', strategy)).results.length, 1)

  const reply = await user.ingest('same', 'The gutter leads into a pond now.', {
    title: 'another title',
    source: 's.txt'
  })
  t.match(reply.body, { documents_replaced: 1 })
  for (const strategy of strategies) {
    const { results } = await user.found('same', 'gutter', strategy)
    t.strictSame(
      results.map(({ content }) => content),
      ['The gutter leads into a pond now.'],
      strategy
    )
  }
  await user.ingest('same', rain)
  await user.ingest('same', rain)
  t.match(
    await user.remove('same'),
    { body: { documents_deleted: 2 } },
    'without a source it is another document, once'
  )
})

t.test('filters leave out documents, in every strategy', async (t) => {
  const user = (await startRag(t)).user()
  const about = (at: number) => `Plan ${at} speaks of bridges and of rivers in the north.`
  for (let at = 0; at < 30; at++) {
    const more = { title: `T${at}`, source: `s${at}`, tags: at % 2 === 0 ? ['even', 'all'] : ['all'] }
    await user.ingest('f', about(at), { ...more, metadata: { year: 2000 + at } })
  }
  for (const strategy of strategies) {
    const titles = async (filter: object) =>
      (await user.found('f', 'bridges rivers', strategy, { filter, limit: 100 })).results.map(
        ({ metadata }) => metadata['title']
      )
    t.equal((await titles({ tags: ['even', 'all'] })).length, 15, strategy)
    t.strictSame(await titles({ title: 'T7' }), ['T7'])
    t.strictSame(await titles({ source: 's8', tags: ['even'] }), ['T8'])
    t.strictSame(await titles({ metadata: { year: 2011 } }), ['T11'])
    t.strictSame(await titles({ source: 's8', title: 'T9' }), [])
    t.equal((await titles({})).length, 30)
  }
  await user.ingest('f', about(99), { title: 'T7', source: 'later' })
  const { results } = await user.found('f', 'bridges', 'bm25', { filter: { title: 'T7' } })
  t.equal(results.length, 2, 'also what came after the first search')
})

t.test('meaning finds what shares no word, and hybrid has it as well', async (t) => {
  const user = (await startRag(t, { encoder: madeEncoder({ synonyms: { automobile: 'car', vehicle: 'car' } }) })).user()
  await user.ingest('m', 'vehicle vehicle vehicle vehicle')
  for (let at = 0; at < 12; at++) await user.ingest('m', `A text about gardening, part ${at}.`)
  t.strictSame((await user.found('m', 'automobile', 'bm25')).results, [])
  for (const strategy of ['semantic', 'hybrid']) {
    t.match((await user.found('m', 'automobile', strategy)).results[0]!.content, /vehicle/, strategy)
  }
})
