import { cp, rm } from 'node:fs/promises'
import { setImmediate as turn } from 'node:timers/promises'
import t from 'tap'
import { CodedError } from '../../kernel/index.ts'
import { kept } from '../../plugins/rag/records.ts'
import type { DispatchReply } from '../../plugins/http/types.ts'
import type { Tools } from '../../plugins/tools/types.ts'
import { type Ingest, madeEncoder, type RagHouse, type RagUser, startRag, strategies } from '../fixtures/rag-house.ts'
import type { Client } from '../fixtures/tenant-house.ts'
import { collect, startHouse } from '../harness.ts'

const lines = (count: number, word: string) =>
  Array.from({ length: count }, (_, at) => `Line ${at} tells of ${word} and of the ${word}works in town ${at}.`).join(
    '\n'
  )

/** Everything the plugin keeps. */
async function leftovers(house: RagHouse): Promise<string[]> {
  const store = house.services('store')
  const names = [...Object.values(kept), 'rag-index', 'rag-loose', 'rag-vectors', 'rag-vectors-loose']
  const left: string[] = []
  for (const name of names) {
    for (const [key] of await collect(store.range(name, []))) left.push(`${name} ${key.join(' ')}`)
  }
  return left
}

// ---- progress and jobs

function eventsOf(stream: DispatchReply): { readonly event: string; readonly data: Ingest }[] {
  return String(stream.body)
    .split('\n\n')
    .filter((event) => event.startsWith('event: '))
    .map((event) => ({
      event: /event: (.*)/.exec(event)![1]!,
      data: JSON.parse(/data: (.*)/.exec(event)![1]!) as Ingest
    }))
}

t.test('an ingest tells how far it is where it is asked for a stream', async (t) => {
  const user = (await startRag(t)).user()
  const accept = { accept: 'text/event-stream' }
  const stream = await user.send('POST', '/ingest', { collection: 's', content: lines(3_000, 'lead') }, accept)
  t.equal(stream.headers['content-type']?.split(';')[0], 'text/event-stream')
  const events = eventsOf(stream)
  t.ok(events.filter(({ event }) => event === 'progress').length >= 1)
  const last = events.at(-1)!
  t.equal(last.event, 'done')
  t.match(last.data, { collection: 's', chunks_created: last.data.document_ids.length })
  t.equal((await user.found('s', 'lead', 'bm25')).total, last.data.chunks_created)
  t.match(await user.send('POST', '/ingest', { collection: 's', content: 'short' }, accept), {
    status: 400,
    body: { error: 'Content too small to chunk' }
  })
})

t.test('an ingest that nobody waits for is a job to ask about', async (t) => {
  let release = () => {}
  const gate = new Promise<void>((resolve) => (release = resolve))
  const house = await startRag(t, { encoder: madeEncoder({ before: (texts) => texts.length > 10 && gate }) })
  const user = house.user()
  const reply = await user.send(
    'POST',
    '/ingest',
    { collection: 'later', content: lines(1_500, 'lead') },
    { prefer: 'respond-async' }
  )
  t.match(reply, { status: 202, body: { job_id: String, status: 'running', collection: 'later' } })
  t.equal(reply.headers['preference-applied'], 'respond-async')
  const path = reply.headers['location']!.replace('/api/rag', '')
  t.match(await user.send('GET', path), { status: 200, body: { status: 'running', kind: 'ingest' } })
  t.match(await house.user('u2').send('GET', path), { status: 404 }, 'nobody else knows of it')
  t.equal((await user.search('later', 'lead')).status, 404)
  release()
  let body: Record<string, unknown>
  do {
    await turn()
    body = (await user.send('GET', path)).body as Record<string, unknown>
  } while (body['status'] === 'running')
  t.match(body, { status: 'done', result: { collection: 'later' } })
  t.equal(body['chunks_done'], body['chunks_total'])
  t.equal((await user.found('later', 'lead', 'bm25')).total, body['chunks_total'])
  t.match(
    await user.send('POST', '/ingest', { collection: 'later', content: '' }, { prefer: 'respond-async' }),
    { status: 400 },
    'what is wrong is told at once'
  )
})

t.test('an ingest that was answered 202 goes on in the next process', async (t) => {
  const dataFolder = t.testdir()
  const content = `${lines(3_000, 'lead')} \u{1f600}`
  const copy = `${dataFolder}-copy`
  let path = ''
  await t.test('a process that ends in the middle', async (t) => {
    const ended = new Promise<void>((resolve) => t.teardown(resolve))
    // As after kill -9: what is on disk when the answer is there is all that is left.
    const house = await startRag(t, { dataFolder, encoder: madeEncoder({ before: () => ended }) })
    const reply = await house
      .user()
      .send('POST', '/ingest', { collection: 'later', content, title: 'T' }, { prefer: 'respond-async' })
    t.equal(reply.status, 202)
    path = reply.headers['location']!.replace('/api/rag', '')
    await cp(dataFolder, copy, { recursive: true })
  })
  t.teardown(() => rm(copy, { recursive: true }))
  const house = await startRag(t, { dataFolder: copy })
  const user = house.user()
  let body: Record<string, unknown>
  do {
    await turn()
    body = (await user.send('GET', path)).body as Record<string, unknown>
  } while (body['status'] === 'running')
  t.match(body, { status: 'done', result: { collection: 'later' } })
  const { results, total } = await user.found('later', 'leadworks 2999', 'bm25')
  t.equal(total, body['chunks_total'])
  t.match(results[0], { content: /town 2999/, metadata: { title: 'T' } })
  t.strictSame(await collect(house.services('store').range(kept.spool, [])), [], 'and is kept no longer')
})

/** Asks for a job until it has ended. */
async function ended(user: RagUser, path: string): Promise<Readonly<Record<string, unknown>>> {
  for (;;) {
    const { status, body } = await user.send('GET', path)
    if (status !== 200 || (body as { status: string }).status !== 'running') return body as Record<string, unknown>
    await turn()
  }
}

/** Begins an ingest that nobody waits for. @returns the path of its job */
async function later(user: RagUser, collection: string, content: string): Promise<string> {
  const reply = await user.send('POST', '/ingest', { collection, content }, { prefer: 'respond-async' })
  if (reply.status !== 202) throw new Error(`it was answered ${reply.status}: ${JSON.stringify(reply.body)}`)
  return reply.headers['location']!.replace('/api/rag', '')
}

t.test('a job beyond the 64 that may run is refused with the time to come back', async (t) => {
  let release = () => {}
  const gate = new Promise<void>((resolve) => (release = resolve))
  const user = (await startRag(t, { encoder: madeEncoder({ before: () => gate }) })).user()
  const paths: string[] = []
  for (let at = 0; at < 64; at++) paths.push(await later(user, 'many', `Note ${at} is about iron and steel.`))
  const ask = () =>
    user.send('POST', '/ingest', { collection: 'many', content: 'One too many of them.' }, { prefer: 'respond-async' })
  const refused = await ask()
  t.match(refused, { status: 503, body: { error: /64 jobs are running already/ }, headers: { 'retry-after': '1' } })
  release()
  for (const path of paths) t.equal((await ended(user, path))['status'], 'done')
  t.equal((await ask()).status, 202)
  t.match(await user.collections(), [{ name: 'many', source_count: 64 }])
})

t.test('jobs that were accepted end, also where their threads have no room', async (t) => {
  const house = await startRag(t, { encoder: undefined })
  await house.kernel.update('workers', { pools: { rag: { max_threads: 1, max_queue: 0 } } })
  const user = house.user()
  const contents = Array.from({ length: 4 }, (_, at) => `${lines(2_000, 'lead')} ${at}`)
  const paths = await Promise.all(contents.map((content) => later(user, 'crowd', content)))
  for (const path of paths) t.match(await ended(user, path), { status: 'done' })
})

t.test('a job that a swap cuts short goes on in the next generation', async (t) => {
  let isStuck = true
  let reached = () => {}
  const begun = new Promise<void>((resolve) => (reached = resolve))
  const encoder = madeEncoder({
    before(_texts, _model, _kind, signal) {
      if (!isStuck) return undefined
      reached()
      return new Promise((_resolve, reject) => signal?.addEventListener('abort', () => reject(signal.reason as Error)))
    }
  })
  const house = await startRag(t, { encoder, settings: { drain_timeout_ms: 50 } })
  const user = house.user()
  const path = await later(user, 'swapped', lines(1_500, 'lead'))
  await begun
  isStuck = false
  await house.kernel.update('rag', { cache_mb: 32 })
  t.match(await ended(user, path), { status: 'done', result: { collection: 'swapped' } })
  t.match(await user.collections(), [{ name: 'swapped', source_count: 1 }])
  t.strictSame(await collect(house.services('store').range(kept.spool, [])), [], 'and is kept no longer')
})

t.test('what is under way when the server stops ends, and a job is left for the next process', async (t) => {
  const dataFolder = t.testdir()
  let path = ''
  await t.test('the one that stops', async (t) => {
    let letGo = () => {}
    const held = new Promise<void>((resolve) => (letGo = resolve))
    let arrived = 0
    let reached = () => {}
    const begun = new Promise<void>((resolve) => (reached = resolve))
    const encoder = madeEncoder({
      async before() {
        arrived += 1
        if (arrived === 3) reached()
        await held
      }
    })
    const house = await startRag(t, { dataFolder, encoder, settings: { shutdown_timeout_ms: 60_000 } })
    const user = house.user()
    path = await later(user, 'later', lines(6_000, 'lead'))
    const waited = user.ingest('waited', lines(6_000, 'iron'))
    const streamed = user.send(
      'POST',
      '/ingest',
      { collection: 'streamed', content: lines(6_000, 'tin') },
      {
        accept: 'text/event-stream'
      }
    )
    await begun
    const stopped = house.kernel.stop()
    letGo()
    t.match(await waited, { status: 200, body: { collection: 'waited' } })
    t.match(eventsOf(await streamed).at(-1), { event: 'done', data: { collection: 'streamed' } })
    await stopped
  })
  const user = (await startRag(t, { dataFolder })).user()
  t.match(await ended(user, path), { status: 'done', result: { collection: 'later' } })
  for (const [collection, word] of [
    ['later', 'lead'],
    ['waited', 'iron'],
    ['streamed', 'tin']
  ] as const) {
    t.match((await user.found(collection, `${word}works 5999`, 'bm25')).results[0]!.content, /town 5999/)
  }
})

t.test('an ingest that is given up leaves nothing', async (t) => {
  let embedded = 0
  const reached = new AbortController()
  const encoder = madeEncoder({
    before() {
      embedded += 1
      if (embedded === 3) reached.abort(new CodedError('CLIENT_GONE', 'the client left'))
    }
  })
  const house = await startRag(t, { encoder })
  const work = house
    .services('rag')
    .ingest(
      { kind: 'user', id: 'u1' },
      { collection: 'gone', content: lines(12_000, 'nickel') },
      { signal: reached.signal }
    )
  await t.rejects(work, { code: 'CLIENT_GONE' })
  t.strictSame(await house.user().collections(), [])
  await house.kernel.retire('rag')
  t.strictSame(await leftovers(house), [], 'nor anything that only looks deleted')
})

t.test('deleting takes all of it away in the end', async (t) => {
  const house = await startRag(t)
  const user = house.user()
  await user.ingest('d', lines(3_000, 'lead'), { source: 'a' })
  await user.ingest('d', 'A short text beside the long one.', { source: 'b' })
  await user.ingest('d', lines(2_000, 'lead'), { source: 'a' })
  await user.found('d', 'lead works')
  await user.remove('d')
  await house.kernel.retire('rag')
  t.strictSame(await leftovers(house), [])
})

t.test('what a process that ended left behind is taken away at the next start', async (t) => {
  const dataFolder = t.testdir()
  await t.test('a process that ends in the middle', async (t) => {
    const house = await startHouse(t, [], { http: false, dataFolder })
    const store = house.services('store')
    await store.atomically((tx) => {
      tx.put(kept.loose, ['c1', 0], { count: 300, unborn: true })
      for (let at = 0; at < 200; at++) tx.put(kept.chunks, ['c1', at], { document: 'd', number: at, text: 'x' })
      tx.put('rag-index', ['c1', 'head'], { next: 300, segments: [] })
      tx.put(kept.jobs, ['user', 'u1', 'j1'], {
        id: 'j1',
        kind: 'ingest',
        collection: 'x',
        state: 'running',
        progress: { chunksDone: 0, chunksTotal: 0 },
        createdAtMs: 0
      })
    })
  })
  const house = await startRag(t, { dataFolder })
  const user = house.user()
  let body: Record<string, unknown>
  do {
    await turn()
    body = (await user.send('GET', '/jobs/j1')).body as Record<string, unknown>
  } while (body['status'] === 'running')
  t.match(body, { status: 'failed', error: /send it again/ })
  const left = (await leftovers(house)).filter((key) => !key.startsWith(kept.jobs))
  t.strictSame(left, [])
})

t.test('a document that its thread dies under is refused, and nothing of it is kept', async (t) => {
  const house = await startRag(t, { encoder: undefined })
  const user = house.user()
  await house.kernel.update('workers', { pools: { rag: { max_heap_mb: 16 } } })
  const reply = await user.ingest('heavy', lines(100_000, 'osmium'))
  t.match(reply, { status: 503, body: { error: /^Service unavailable: .*nothing was kept/ } })
  t.strictSame(await user.collections(), [])
  await house.kernel.update('workers', {})
  t.equal((await user.ingest('heavy', lines(200, 'osmium'))).status, 200)
})

// ---- models

t.test('without an encoder words are found, and what needs one is refused', async (t) => {
  const dataFolder = t.testdir()
  await t.test('none', async (t) => {
    const user = (await startRag(t, { encoder: undefined, dataFolder })).user()
    await user.ingest('w', 'The harbour master keeps the tide tables.')
    t.match(await user.found('w', 'harbour'), { strategy: 'bm25', results: [{ content: /harbour/ }] })
    t.equal((await user.found('w', 'habrour', 'fuzzy')).results.length, 1)
    for (const strategy of ['semantic', 'hybrid']) {
      t.match(await user.search('w', 'harbour', strategy), {
        status: 400,
        body: { error: /^Feature disabled: collection 'w' has no vectors/, code: 'INTERNAL_ERROR' }
      })
    }
    t.match((await user.collections())[0], { dimensions: 0, embedding_model: null })
    t.equal((await user.ingest('v', 'Some text that is long enough.', { embedding_model: 'made' })).status, 400)
  })
  await t.test('one that came later', async (t) => {
    const user = (await startRag(t, { dataFolder })).user()
    t.match(await user.search('w', 'harbour', 'semantic'), { status: 400, body: { error: /POST \/api\/rag\/reembed/ } })
    t.match(await user.found('w', 'harbour'), { strategy: 'bm25' })
  })
})

t.test('a collection keeps its model, and is embedded anew beside searches', async (t) => {
  const dataFolder = t.testdir()
  await t.test('first', async (t) => {
    const seen: string[] = []
    const encoder = madeEncoder({ models: ['one', 'two'], before: (_, model, kind) => seen.push(`${model} ${kind}`) })
    const user = (await startRag(t, { encoder, dataFolder })).user()
    await user.ingest('m', lines(200, 'iron'))
    for (let at = 0; at < 5; at++) await user.ingest('m', `Note ${at} is about iron and steel.`)
    t.match(await user.ingest('m', 'Another text about iron.', { embedding_model: 'two' }), {
      status: 409,
      body: { error: /is embedded with 'one', not with 'two'.*reembed/, code: 'CONFLICT' }
    })
    t.match(await user.ingest('n', 'Another text about iron.', { embedding_model: 'three' }), {
      status: 400,
      body: { error: 'Unknown embedding model: three. Use one of: one, two' }
    })
    t.match(await user.send('POST', '/reembed', { collection: 'm', embedding_model: 'one' }), { status: 400 })
    t.match(await user.send('POST', '/reembed', { collection: 'none', embedding_model: 'two' }), { status: 404 })
    const reply = await user.send('POST', '/reembed', { collection: 'm', embedding_model: 'two' })
    t.match(reply, { status: 202, body: { job_id: String } })
    const late = await user.ingest('m', 'This came while it was embedded anew, about zirconium.')
    t.equal(late.status, 200)
    let job: Record<string, unknown>
    do {
      await turn()
      t.ok((await user.found('m', 'iron', 'semantic')).results.length > 0, 'searches go on')
      job = (await user.send('GET', `/jobs/${(reply.body as { job_id: string }).job_id}`)).body as typeof job
    } while (job['status'] === 'running')
    t.equal(job['status'], 'done')
    t.match((await user.collections())[0], { embedding_model: 'two', next_embedding_model: null })
    seen.length = 0
    t.match((await user.found('m', 'zirconium', 'semantic')).results[0]!.content, /zirconium/)
    t.strictSame(seen, ['two query'])
  })
  await t.test('when no entry has the model any more', async (t) => {
    const user = (await startRag(t, { encoder: madeEncoder({ models: ['one'] }), dataFolder })).user()
    for (const reply of [
      await user.search('m', 'iron', 'semantic'),
      await user.ingest('m', 'More about iron and ore.')
    ]) {
      t.match(reply, { status: 409, body: { error: /was embedded with 'two' \(64 dimensions\).*reembed/ } })
    }
    t.match(await user.found('m', 'iron'), { strategy: 'bm25' }, 'the default takes what can be had')
  })
  await t.test('a process that ended in the middle goes on', async (t) => {
    let isStuck = true
    const stuck = madeEncoder({
      models: ['one', 'two'],
      before(_, model, kind, signal) {
        if (model !== 'one' || kind !== 'document' || !isStuck) return undefined
        return new Promise((_resolve, reject) =>
          signal?.addEventListener('abort', () => reject(signal.reason as Error))
        )
      }
    })
    await t.test('in the middle', async (t) => {
      const house = await startRag(t, {
        encoder: stuck,
        dataFolder,
        settings: { drain_timeout_ms: 1, shutdown_timeout_ms: 2_000 }
      })
      const reply = await house.user().send('POST', '/reembed', { collection: 'm', embedding_model: 'one' })
      t.equal(reply.status, 202)
    })
    isStuck = false
    const user = (await startRag(t, { encoder: stuck, dataFolder })).user()
    let model: unknown
    do {
      await turn()
      model = (await user.collections())[0]!['embedding_model']
    } while (model !== 'one')
    t.match((await user.found('m', 'zirconium', 'semantic')).results[0]!.content, /zirconium/)
  })
})

t.test('a model of other dimensions than before is told with the way out, which is open', async (t) => {
  const dataFolder = t.testdir()
  await t.test('before', async (t) => {
    const user = (await startRag(t, { encoder: madeEncoder({ dimensions: 24 }), dataFolder })).user()
    await user.ingest('a', 'The harbour master keeps the tide tables.')
    await user.ingest('a', lines(200, 'iron'))
  })
  await t.test('after', async (t) => {
    const user = (await startRag(t, { encoder: madeEncoder({ dimensions: 40 }), dataFolder })).user()
    for (const reply of [
      await user.ingest('a', 'The ferry leaves from the northern pier.'),
      await user.ingest('a', lines(200, 'tin')),
      await user.search('a', 'harbour', 'semantic'),
      await user.search('a', 'harbour', 'hybrid')
    ]) {
      t.match(reply, { status: 409, body: { error: /vectors of 24 dimensions.*'made'.* 40.*reembed/ } })
    }
    t.match(await user.found('a', 'harbour'), { strategy: 'bm25', results: [{}] }, 'the default takes what can be had')
    const { body } = await user.send('POST', '/reembed', { collection: 'a', embedding_model: 'made' })
    let status: unknown
    do {
      await turn()
      const job = await user.send('GET', `/jobs/${(body as { job_id: string }).job_id}`)
      status = (job.body as { status: string }).status
    } while (status === 'running')
    t.equal(status, 'done')
    t.match((await user.collections())[0], { embedding_model: 'made', dimensions: 40 })
    t.match((await user.found('a', 'harbour', 'semantic')).results[0]!.content, /harbour/)
    t.equal((await user.ingest('a', 'The ferry leaves from the northern pier.')).status, 200)
    t.match(await user.send('POST', '/reembed', { collection: 'a', embedding_model: 'made' }), { status: 400 })
  })
})

t.test('an encoder that fails fails what needs it, and nothing is half there', async (t) => {
  let fault: Error | undefined
  const encoder = madeEncoder({
    before() {
      if (fault !== undefined) throw fault
    }
  })
  const user = (await startRag(t, { encoder })).user()
  await user.ingest('a', 'The harbour master keeps the tide tables.')
  fault = new CodedError('EMBEDDINGS_UNAVAILABLE', 'the model does not answer', { detail: { reason: 'secret host' } })
  t.match(await user.ingest('a', 'The ferry leaves from the northern pier.'), {
    status: 503,
    body: { error: 'Service unavailable: the model does not answer' }
  })
  t.match(await user.search('a', 'harbour', 'semantic'), { status: 503 })
  t.match(await user.search('a', 'harbour', 'hybrid'), { status: 503 })
  t.match(await user.found('a', 'harbour'), { strategy: 'bm25' }, 'the default takes what can be had')
  fault = new CodedError('EMBEDDINGS_BUSY', 'wait', { detail: { retryAfterSeconds: 7 } })
  t.equal((await user.search('a', 'harbour', 'semantic')).headers['retry-after'], '7')
  fault = undefined
  for (const strategy of strategies)
    t.equal((await user.found('a', 'ferry pier', strategy, { threshold: 0.2 })).results.length, 0)
  t.equal((await user.ingest('a', 'The ferry leaves from the northern pier.')).status, 200)
})

// ---- tenants, tools, swaps

t.test('the search of tenants, in collections of their own', async (t) => {
  const { default: v1 } = await import('../../plugins/v1/index.ts')
  const { default: chat } = await import('../../plugins/chat/index.ts')
  const house = await startRag(t, {}, [{ plugin: chat }, { plugin: v1 }])
  const client = await house.client('dev')
  const other = await house.client('dev')
  const { v1: ask } = house

  t.match(
    await ask(client.key, 'POST', '/rag/ingest', { collection: 'notes', content: 'The lock is oiled in March.' }),
    {
      status: 200,
      body: { chunks_created: 1 }
    }
  )
  t.test('X-31: by meaning', async (t) => {
    const reply = await ask(client.key, 'POST', '/search/semantic', { collection: 'notes', query: 'lock oiled' })
    t.match(reply, {
      status: 200,
      body: {
        results: [{ id: String, content: 'The lock is oiled in March.', similarity: Number, metadata: { tags: [] } }],
        total: 1,
        duration_ms: Number
      }
    })
    t.match(reply.headers, { 'x-quota-requests-limit': '50000' })
  })
  t.match(await ask(other.key, 'POST', '/search/semantic', { collection: 'notes', query: 'lock' }), { status: 404 })
  t.match(
    await house.user(client.id).search('notes', 'lock'),
    { status: 404 },
    'a user of the same id is another owner'
  )
  t.match(await ask('ares_wrong', 'POST', '/search/semantic', { collection: 'notes', query: 'lock' }), { status: 401 })
  t.match(await ask(client.key, 'POST', '/search/semantic', { collection: 'notes', query: '' }), { status: 400 })

  const used = async () =>
    ((await house.admin('GET', `/tenants/${client.id}/usage`)).body as { monthly_requests: number }).monthly_requests
  t.equal(await used(), 2, 'what was refused is not counted')
  t.match(await ask(client.key, 'GET', '/rag/collections'), { status: 200, body: [{ name: 'notes' }] })
  t.match(await ask(client.key, 'POST', '/rag/search', { collection: 'notes', query: 'lock' }), { status: 200 })
  t.equal(await used(), 3)

  const few = await house.client('free', 'few', { requests_per_day: 1 })
  const search = () => ask(few.key, 'POST', '/search/semantic', { collection: 'none', query: 'lock' })
  t.equal((await search()).status, 404)
  t.equal(
    (await ask(few.key, 'POST', '/rag/ingest', { collection: 'a', content: 'A text that counts once.' })).status,
    200
  )
  t.match(await search(), { status: 429 })

  t.match(await ask(client.key, 'DELETE', '/tenant/data'), { status: 200 })
  t.strictSame(await house.services('rag').collections({ kind: 'tenant', id: client.id }), [], 'a purge takes it away')
})

t.test('what a tenant was putting in while its data was deleted is not kept', async (t) => {
  const { default: v1 } = await import('../../plugins/v1/index.ts')
  const { default: chat } = await import('../../plugins/chat/index.ts')
  let reached = () => {}
  const begun = new Promise<void>((resolve) => (reached = resolve))
  let release = () => {}
  const gate = new Promise<void>((resolve) => (release = resolve))
  const before = () => {
    reached()
    return gate
  }
  const house = await startRag(t, { encoder: madeEncoder({ before }) }, [{ plugin: chat }, { plugin: v1 }])
  const client = await house.client('dev')
  const body = { collection: 'notes', content: 'The lock is oiled in March.' }
  const ingest = house.v1(client.key, 'POST', '/rag/ingest', body)
  await begun
  t.match(await house.v1(client.key, 'DELETE', '/tenant/data'), { status: 200 })
  release()
  t.match(await ingest, { status: 409 })
  t.strictSame(await house.services('rag').collections({ kind: 'tenant', id: client.id }), [])
})

t.test('with the data of a tenant go its jobs, and what they were taking in', async (t) => {
  const { default: v1 } = await import('../../plugins/v1/index.ts')
  const { default: chat } = await import('../../plugins/chat/index.ts')
  const dataFolder = t.testdir()
  const copy = `${dataFolder}-copy`
  t.teardown(() => rm(copy, { recursive: true }))
  let client: Client | undefined
  let job = ''
  for (const [process, folder] of [
    ['that answered 202', dataFolder],
    ['after one that was killed', copy]
  ] as const) {
    await t.test(`in the process ${process}`, async (t) => {
      let release = () => {}
      const gate = new Promise<void>((resolve) => (release = resolve))
      let reached = () => {}
      const begun = new Promise<void>((resolve) => (reached = resolve))
      const before = () => {
        reached()
        return gate
      }
      const options = { encoder: madeEncoder({ before }), dataFolder: folder }
      const house = await startRag(t, options, [{ plugin: chat }, { plugin: v1 }])
      if (client === undefined) {
        client = await house.client('dev')
        const { headers } = await house.send('POST', '/api/v1/rag/ingest', {
          headers: { authorization: `Bearer ${client.key}`, prefer: 'respond-async' },
          body: { collection: 'notes', content: lines(1_500, 'lead') }
        })
        job = headers['location']!.replace('/api/v1', '')
        await cp(dataFolder, copy, { recursive: true })
      }
      await begun
      t.match(await house.v1(client.key, 'GET', job), { status: 200, body: { status: 'running' } })
      t.match(await house.v1(client.key, 'DELETE', '/tenant/data'), { status: 200 })
      t.strictSame(await collect(house.services('store').range(kept.jobs, [])), [])
      release()
      await house.kernel.retire('rag')
      t.strictSame(await leftovers(house), [])
    })
  }
})

t.test('the tool finds what belongs to whoever runs it', async (t) => {
  const house = await startRag(t)
  await house.user('ada').ingest('notes', 'The safe is behind the painting.', { title: 'House', source: 'house.md' })
  const tools = house.services('tools') as Tools
  const run = async (principal: string | undefined, args: object) =>
    (await tools.execute({ tool: 'rag', arguments: args, caller: { principal } })).response
  t.match(await run('user:ada', { query: 'safe' }), {
    status: 'completed',
    data: {
      results: [{ content: 'The safe is behind the painting.', title: 'House', source: 'house.md' }],
      total: 1,
      sources: [{ title: 'House' }]
    }
  })
  t.match(await run('user:bob', { query: 'safe' }), { status: 'completed', data: { results: [], total: 0 } })
  t.match(await run('user:bob', { query: 'safe', collection: 'notes' }), {
    status: 'failed',
    error: { code: 'RAG_COLLECTION_UNKNOWN', category: 'not_found' }
  })
  t.match(await run(undefined, { query: 'safe' }), { status: 'failed', error: { category: 'permission' } })
})

t.test('an ingest goes on while the entry is swapped, and both generations find it', async (t) => {
  let release = () => {}
  const gate = new Promise<void>((resolve) => (release = resolve))
  let isGated = true
  const house = await startRag(t, { encoder: madeEncoder({ before: (texts) => isGated && texts.length > 10 && gate }) })
  const user = house.user()
  const ingest = user.ingest('s', lines(1_500, 'iron'))
  await turn()
  await house.kernel.update('rag', { cache_mb: 32 })
  isGated = false
  await house.user().ingest('s', 'A short text about iron, by the next one.')
  release()
  t.equal((await ingest).status, 200)
  t.match((await user.collections())[0], { name: 's', source_count: 2 })
  for (const strategy of strategies) t.ok((await user.found('s', 'iron', strategy)).results.length > 1)
})

t.test('retiring the entry takes its routes, its service and its tool away', async (t) => {
  const house = await startRag(t)
  await house.kernel.retire('rag')
  t.equal(house.services('rag'), undefined)
  t.equal((await house.user().search('notes', 'x')).status, 404)
  t.equal((house.services('tools') as Tools).get('rag'), undefined)
})

t.test('documents beyond the limit are refused at once, and have a place again once others are in', async (t) => {
  let letGo = () => {}
  const held = new Promise<void>((resolve) => (letGo = resolve))
  const encoder = madeEncoder({ before: () => held })
  const user = (await startRag(t, { encoder, config: { max_ingests: 2 } })).user()
  const text = 'The harbour opens at six. '.repeat(40)
  const early: DispatchReply[] = []
  const asked = Array.from({ length: 5 }, async (_, at) => {
    const reply = await user.ingest('busy', `${at} ${text}`)
    // Those that found a place wait for the encoder.
    if (early.push(reply) === 3) letGo()
  })
  await Promise.all(asked)
  t.strictSame(
    early.map(({ status }) => status),
    [503, 503, 503, 200, 200]
  )
  t.match(early[0], {
    headers: { 'retry-after': '1' },
    body: { error: /^Service unavailable: 2 documents are being taken in/, code: 'INTERNAL_ERROR' }
  })
  t.equal((await user.ingest('busy', `again ${text}`)).status, 200)
  t.match(await user.collections(), [{ name: 'busy', source_count: 3 }])
})
