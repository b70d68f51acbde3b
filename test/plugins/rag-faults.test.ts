import { setImmediate as turn } from 'node:timers/promises'
import t from 'tap'
import { CodedError, definePlugin, schemaOf } from '../../kernel/index.ts'
import type { DispatchReply } from '../../plugins/http/types.ts'
import { openEngine } from '../../plugins/store/lmdb.ts'
import { createStore } from '../../plugins/store/service.ts'
import { type Ingest, type RagReply, startRag, strategies } from '../fixtures/rag-house.ts'

/** What is wrong with the answer to a search, whatever was asked; `undefined` for nothing. */
function faultOf({ status, body }: DispatchReply): string | undefined {
  if (status !== 200) return status >= 400 && status < 500 ? undefined : `${status}: ${JSON.stringify(body)}`
  const { results, total } = body as RagReply
  if (total < results.length) return `${results.length} hits of ${total}`
  for (const { score, content } of results) {
    if (!Number.isFinite(score) || score < 0 || score > 1) return `score ${score}`
    if (typeof content !== 'string' || content === '' || /\p{Surrogate}/u.test(content)) return `content ${content}`
  }
  return undefined
}

const lines = (count: number, word: string) =>
  Array.from({ length: count }, (_, at) => `Line ${at} tells of ${word} and of the ${word}works in town ${at}.`).join(
    '\n'
  )

t.test('RAG-01, RAG-02: empty and blank documents make nothing', async (t) => {
  const user = (await startRag(t)).user()
  for (const content of [
    '',
    ' ',
    '\n\n\t  \n',
    '\u200b\u200b\ufeff\u200b',
    '\u00a0\u2003\u3000',
    '\0\0\0\0'.repeat(20)
  ]) {
    t.match(await user.ingest('e1', content), { status: 400, body: { error: 'Content required' } })
  }
  t.strictSame(await user.collections(), [])
  await user.ingest('e2', '.....!!!!.....????.....-----')
  for (const strategy of strategies) t.equal(faultOf(await user.search('e2', '.', strategy)), undefined, strategy)
})

t.test('RAG-03: long runs without blanks end', async (t) => {
  const user = (await startRag(t)).user()
  for (const chunking_strategy of ['word', 'semantic', 'character']) {
    for (const run of ['a', 'AAAA/BBBB+', '😀', '界']) {
      const content = run.repeat(40_000 / run.length)
      const { status, body } = await user.ingest('g', content, { chunking_strategy })
      t.equal(status, 200, `${chunking_strategy} ${run}`)
      const { chunks_created } = body as Ingest
      t.ok(chunks_created > 1 && chunks_created < 40_000)
    }
  }
})

t.test('RAG-04: no chunk begins or ends inside a character, and none is lost', async (t) => {
  const user = (await startRag(t)).user()
  for (const at of [496, 497, 498, 499, 500, 501]) {
    const content = `${'x'.repeat(at)}${'👩‍👩‍👧'.repeat(200)}${'é'.repeat(50)}`
    await user.ingest('em', content, { chunking_strategy: 'character', source: String(at) })
    const filter = { source: String(at) }
    const { results } = await user.found('em', 'x', 'semantic', { limit: 100, filter })
    const parts = results.map(({ content, metadata }) => ({ content, start: metadata['start'] as number }))
    let joined = ''
    for (const { content, start } of parts.toSorted((a, b) => a.start - b.start)) {
      t.notMatch(content, /\ufffd|\p{Surrogate}/u)
      joined = joined.slice(0, start) + content
    }
    t.equal(joined, content)
  }
})

t.test('RAG-05: Chinese and Japanese are found by their words', async (t) => {
  const user = (await startRag(t)).user()
  await user.ingest('zh', '认证系统使用令牌保护接口，旧令牌在一小时后失效。部署前请先备份数据库。')
  await user.ingest('zh', '図書館は月曜日に休みます。返却ポストは入口の左側にあります。')
  for (const [query, answer] of [
    ['令牌', /令牌/],
    ['数据库', /数据库/],
    ['月曜日', /月曜日/],
    ['返却', /返却/]
  ] as const) {
    for (const strategy of ['bm25', 'fuzzy', 'hybrid']) {
      t.match((await user.found('zh', query, strategy)).results[0]!.content, answer, `${query} ${strategy}`)
    }
  }
})

t.test('RAG-06: queries without a word in them', async (t) => {
  const user = (await startRag(t)).user()
  await user.ingest('sw', 'The committee will meet on Tuesday to review the harbour plan.')
  for (const query of ['the and of to', 'a', '!!!', '   ', '', '\u200b', '\ud800', '\0']) {
    for (const strategy of strategies)
      t.equal(faultOf(await user.search('sw', query, strategy)), undefined, `${query} ${strategy}`)
  }
  t.strictSame((await user.found('sw', 'the and of to', 'bm25')).results, [])
  const long = `${'lorem ipsum '.repeat(8_000)} harbour`
  for (const strategy of strategies)
    t.equal(faultOf(await user.search('sw', long, strategy)), undefined, `long ${strategy}`)
})

t.test('RAG-07: slips of typing', async (t) => {
  const user = (await startRag(t)).user()
  await user.ingest('fz', 'Please receive the parcel before Wednesday and sign the form.')
  const best = async (query: string) => (await user.found('fz', query, 'fuzzy')).results[0]?.score ?? 0
  const exact = await best('receive')
  for (const query of ['recieve', 'Wednesady', 'parecl', 'fomr', 'recieve parecl']) {
    const score = await best(query)
    t.ok(score > 0 && score <= exact, `${query}: ${score}`)
  }
  t.equal(await best('xylophone'), 0)
})

t.test('RAG-08: a threshold keeps exactly those that are shown to score as much', async (t) => {
  const user = (await startRag(t)).user()
  for (let at = 1; at <= 30; at++) await user.ingest('th', `Note ${at}: budget owners meet on Mondays in room ${at}.`)
  for (const strategy of strategies) {
    const all = (await user.found('th', 'budget owners', strategy, { threshold: 0, limit: 50 })).results
    t.equal(all.length, 30)
    const near = all[4]!.score
    for (const threshold of [0.1, 0.3, 0.5, 0.9, -1, 1.1, near]) {
      const { results, total } = await user.found('th', 'budget owners', strategy, { threshold, limit: 50 })
      const expected = all.filter(({ score }) => score >= threshold).map(({ id }) => id)
      t.strictSame(results.map(({ id }) => id).sort(), expected.sort(), `${strategy} ${threshold}`)
      t.equal(total, expected.length)
    }
    const { results } = await user.found('th', 'budget owners', strategy, { threshold: 0.3, rerank: true })
    t.ok(results.every(({ score }) => score >= 0.3))
  }
})

t.test('RAG-09: odd limits', async (t) => {
  const user = (await startRag(t)).user()
  for (let at = 0; at < 3; at++) await user.ingest('sw', `The committee reviews harbour plan ${at} on Tuesday.`)
  const search = (limit: string) =>
    user.send('POST', '/search', `{"collection":"sw","query":"harbour","limit":${limit}}`, {
      'content-type': 'application/json'
    })
  t.match(await search('0'), { status: 200, body: { results: [], total: 3 } })
  for (const limit of ['-1', '1e400', '1.5', '"5"', 'true']) t.equal((await search(limit)).status, 400, limit)
  for (const limit of ['1000000000', 'null', '100']) {
    t.equal(((await search(limit)).body as RagReply).results.length, 3, limit)
  }
  await user.ingest('many', lines(400, 'iron'), { chunking_strategy: 'character' })
  const { results } = await user.found('many', 'iron', 'bm25', { limit: 1_000_000 })
  t.ok(results.length <= 100)
})

t.test('RAG-10, STORAGE-01: any name is a name, or refused', async (t) => {
  const user = (await startRag(t)).user()
  const plain = 'Some plain text that is long enough to keep.'
  const good = ['..', '.', '../../x', 'a/b', 'a\\b', 'v2.0', '名前', 'é', 'e\u0301', 'CON', ' padded ', 'n'.repeat(256)]
  for (const name of good) {
    t.equal((await user.ingest(name, plain)).status, 200, name)
    t.equal((await user.found(name, 'plain text', 'bm25')).results.length, 1)
  }
  const listed = (await user.collections()).map(({ name }) => name as string)
  t.strictSame(listed.sort(), good.toSorted())
  for (const name of good) t.match(await user.remove(name), { body: { success: true, collection: name } }, name)
  t.strictSame(await user.collections(), [])
  for (const size of [257, 500, 1_900, 2_100, 70_000]) {
    t.equal((await user.ingest('k'.repeat(size), plain)).status, 400)
    t.equal((await user.search('k'.repeat(size), 'plain')).status, 400)
  }
  t.equal((await user.ingest('界'.repeat(256), plain)).status, 200, 'the limit of a key is in bytes')
  for (const name of ['', ' ', 'a\0b', 'a\nb', '\ud800', '\u200b']) {
    t.equal((await user.ingest(name, plain)).status, 400, JSON.stringify(name))
    t.equal((await user.remove(name)).status, 400)
  }
})

t.test('RAG-12: what is deleted while it is searched is 200 or 404, and never half of it', async (t) => {
  const user = (await startRag(t)).user()
  const copper = (round: number) =>
    Promise.all(
      Array.from({ length: 12 }, (_, at) => user.ingest('dl', `Line ${at} about copper wire and tin, round ${round}.`))
    )
  let searching = true
  const statuses = new Set<number>()
  const search = async (strategy: string) => {
    while (searching) {
      const reply = await user.search('dl', 'copper', strategy)
      statuses.add(reply.status)
      const fault = faultOf(reply)
      if (fault !== undefined) t.fail(fault)
      if (reply.status === 200) {
        const rounds = new Set(
          (reply.body as RagReply).results.map(({ content }) => /round (\d)/.exec(content)?.[1] ?? 'last')
        )
        if (rounds.size > 1) t.fail(`rounds ${[...rounds].join(' and ')} in one answer`)
      }
      await turn()
    }
  }
  await copper(0)
  const searches = strategies.map(search)
  for (let round = 1; round <= 3; round++) {
    t.match(await user.remove('dl'), { body: { documents_deleted: 12 } })
    await copper(round)
  }
  await user.remove('dl')
  await user.ingest('dl', 'Only line now, about tin.')
  searching = false
  await Promise.all(searches)
  t.ok(
    [...statuses].every((status) => status === 200 || status === 404),
    [...statuses].join()
  )
  for (const strategy of strategies) t.equal((await user.found('dl', 'tin', strategy)).results.length, 1)
})

t.test('a document that is replaced while it is searched is there, in one state', async (t) => {
  const user = (await startRag(t)).user()
  const text = (state: number) => lines(120, 'copper').replaceAll('town', `state${state} town`)
  await user.ingest('r', text(0), { source: 'book' })
  let searching = true
  const search = async (strategy: string) => {
    while (searching) {
      const { results } = await user.found('r', 'copper works', strategy, { limit: 100 })
      const states = new Set(results.flatMap(({ content }) => content.match(/state\d/g) ?? []))
      if (states.size !== 1) t.fail(`${strategy}: ${states.size} states in one answer of ${results.length}`)
      await turn()
    }
  }
  const searches = strategies.map(search)
  for (let state = 1; state <= 4; state++) {
    t.match(await user.ingest('r', text(state), { source: 'book' }), { status: 200, body: { documents_replaced: 1 } })
  }
  searching = false
  await Promise.all(searches)
  t.match((await user.collections())[0], { source_count: 1 })
})

t.test('RAG-13: the last words and short texts are found, or refused', async (t) => {
  const user = (await startRag(t)).user()
  for (const [at, chunking_strategy] of ['word', 'semantic', 'character', null].entries()) {
    await user.ingest('tl', `${'filler '.repeat(200)} PIN 471${at}`, { chunking_strategy })
    t.equal((await user.found('tl', `471${at}`, 'bm25')).results.length, 1, `${chunking_strategy}`)
  }
  t.equal((await user.ingest('tl', 'Door code 9.')).status, 400)
})

t.test('STORAGE-02: long fields come back whole, after a restart too', async (t) => {
  const dataFolder = t.testdir()
  const tags = Array.from({ length: 500 }, (_, at) => `tag${at}-${'x'.repeat(600)}`)
  const more = { title: 'T'.repeat(3_000), source: 'S'.repeat(3_000), tags }
  await t.test('before', async (t) => {
    const user = (await startRag(t, { dataFolder })).user()
    t.equal((await user.ingest('lg', 'Long tags should not lose this sentence about amber.', more)).status, 200)
  })
  await t.test('after', async (t) => {
    const user = (await startRag(t, { dataFolder })).user()
    for (const strategy of strategies) {
      t.match((await user.found('lg', 'amber', strategy)).results[0]!.metadata, more, strategy)
    }
  })
  const user = (await startRag(t)).user()
  t.equal((await user.ingest('x', 'A text that is long enough.', { title: 'T'.repeat(10_001) })).status, 400)
  t.equal((await user.ingest('x', 'A text that is long enough.', { tags: ['x'.repeat(1_001)] })).status, 400)
  t.equal((await user.ingest('x', 'A text that is long enough.', { metadata: { a: [] } })).status, 400)
})

/** The store over its real engine, on a disk that is full after so many writes. */
function smallDisk() {
  const disk = { writesLeft: Number.POSITIVE_INFINITY }
  const plugin = definePlugin({
    name: 'store',
    provides: ['store'],
    config: schemaOf<{ readonly path: string }>({ type: 'object', properties: { path: { type: 'string' } } }),
    async apply(ctx, { path }) {
      const engine = await openEngine(path)
      ctx.effect(() => () => engine.close(), 'engine')
      const store = createStore(engine)
      ctx.provide('store', {
        ...store,
        atomically: (work, options) =>
          store.atomically(async (tx) => {
            const result = await work(tx)
            if (disk.writesLeft <= 0) throw new CodedError('STORE_FULL', `no room on the disk of ${path}`)
            disk.writesLeft -= 1
            return result
          }, options)
      })
    }
  })
  return { disk, plugin }
}

t.test('STORAGE-03: a disk that is full at any write of an ingest keeps nothing of it', async (t) => {
  const { disk, plugin } = smallDisk()
  const house = await startRag(t, {}, [{ plugin, config: { path: t.testdir() } }])
  const user = house.user()
  const kept = 'What was there before tells of copper too.'
  const long = lines(1_200, 'copper')
  await user.ingest('full', kept)
  const only = async (message: string) => {
    t.match(await user.collections(), [{ name: 'full', source_count: 1, document_count: 1 }], message)
    for (const strategy of strategies) {
      const { results, total } = await user.found('full', 'copper', strategy)
      t.strictSame([results.map(({ content }) => content), total], [[kept], 1], `${message}, ${strategy}`)
    }
  }
  for (const [content, prefer] of [
    ['A short text that tells of copper.', undefined],
    [long, undefined],
    [long, 'respond-async']
  ] as const) {
    const headers = prefer === undefined ? {} : { prefer }
    let writes = 0
    for (; ; writes++) {
      disk.writesLeft = writes
      const before = house.lines.length
      const reply = await user.send('POST', '/ingest', { collection: 'full', content, source: 'book' }, headers)
      if (reply.status === 202) break
      if (reply.status === 200) break
      t.match(reply, { status: 507, body: { error: 'there is no room left to store this', code: 'INTERNAL_ERROR' } })
      const logged = house.lines.slice(before).filter(({ path }) => path === '/api/rag/ingest')
      t.match(logged, [{ level: 'error', requestId: String, error: { code: 'STORE_FULL' } }])
      await only(`full at write ${writes}`)
    }
    t.ok(writes >= (content === long ? 3 : 1), `${writes} writes`)
    if (prefer === undefined) {
      disk.writesLeft = Number.POSITIVE_INFINITY
      t.match((await user.collections())[0], { source_count: 2 })
      await user.remove('full')
      await user.ingest('full', kept)
    }
  }
  // Answered 202, and full ever since: not even that it failed can be written.
  while (!house.lines.some(({ message }) => message === 'work of rag failed')) await turn()
  await only('a job on a full disk')
  disk.writesLeft = Number.POSITIVE_INFINITY
  await house.kernel.update('rag', { cache_mb: 32 })
  while ((await user.collections())[0]!['source_count'] !== 2) await turn()
  t.ok((await user.found('full', 'copper', 'bm25')).total > 20, 'with room again it goes on')
})

t.test('junk, halves of surrogate pairs, scripts that mix and run from right to left', async (t) => {
  const user = (await startRag(t)).user()
  const texts = [
    `half \ud83d of a pair \udc00 in the middle of it`,
    Array.from({ length: 3_000 }, (_, at) => String.fromCharCode((at * 7_919) % 0xffff)).join(''),
    'שלום עולם, this is mixed نص عربي مع 中文 and ไทยไม่มีวรรค',
    `${'\u202e'.repeat(30)}visible text at the end of it`,
    'e\u0301'.repeat(4_000)
  ]
  for (const text of texts) {
    const reply = await user.ingest('junk', text)
    t.equal(reply.status, 200)
    for (const strategy of strategies)
      t.equal(faultOf(await user.search('junk', text.slice(0, 60), strategy)), undefined, strategy)
  }
  t.match((await user.found('junk', 'עולם', 'bm25')).results[0]!.content, /עולם/)
  t.match((await user.found('junk', 'pair middle', 'bm25')).results[0]!.content, /half \ufffd of/)
})

t.test('a body up to the limit of the entry is taken, a longer one is 413', async (t) => {
  const user = (await startRag(t, { encoder: undefined, config: { max_body_bytes: 300_000 } })).user()
  t.equal((await user.ingest('big', lines(4_000, 'zinc'))).status, 200)
  t.equal((await user.ingest('big', lines(8_000, 'zinc'))).status, 413)
  t.equal((await user.found('big', 'town 3999', 'bm25', { limit: 1 })).results.length, 1)
})
