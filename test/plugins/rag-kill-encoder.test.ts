import { readFileSync } from 'node:fs'
import t, { type Test } from 'tap'
import { strategies } from '../fixtures/rag-house.ts'
import { call, type Server, serve } from '../program/server.ts'

const shipped = readFileSync(new URL('../../../program.toml', import.meta.url), 'utf8')
const kills = Number(process.env['HEARTWOOD_TEST_KILLS'] ?? 2)
const isLong = kills >= 40
/** Of a book: in a long run every sixth has a megabyte. */
const linesOf = (round: number) => (!isLong ? 200 : round % 6 === 0 ? 9_000 : 1_500) + round * 7
const modes = ['job', 'sync', 'stream'] as const

const tides = 'The harbour master keeps the tide tables in the drawer of the northern office.'
const account = { email: 'a@example.org', password: 'a long password', name: 'A' }

/** Every line, and so every chunk, says which book it is of. */
const bookOf = (round: number) =>
  Array.from(
    { length: linesOf(round) },
    (_, at) =>
      `Line ${at} of edition${round} tells how the people of town ${at % 977} melted copper and sold ${at} bars.`
  ).join('\n')

interface Job {
  readonly status: string
  readonly chunks_done: number
  readonly chunks_total: number
}

interface Found {
  readonly total: number
  readonly results: readonly {
    readonly content: string
    readonly score: number
    readonly metadata: { readonly document_id: string }
  }[]
}

/** The program as it ships, over one folder from process to process. */
class Shelf {
  server!: Server
  #headers: Readonly<Record<string, string>> = {}
  #isKilled = false
  #queries = 0
  /** What each strategy counted in an edition: always the same, since an edition is there whole or not at all. */
  readonly totals = new Map<string, number>()
  readonly faults: string[] = []
  searches = 0

  readonly #t: Test
  readonly #cwd: string

  constructor(t: Test, cwd: string) {
    this.#t = t
    this.#cwd = cwd
  }

  async start(): Promise<void> {
    this.#isKilled = false
    const server = await serve(this.#t, { cwd: this.#cwd })
    this.server = server
    void server.ended.then(({ code, signal, stderr }) => {
      if (!this.#isKilled) this.faults.push(`the server ended with ${code ?? signal}: ${stderr.slice(-2_000)}`)
      else if (/uncaught|unhandled|FATAL|Assertion/i.test(stderr)) this.faults.push(stderr.slice(-2_000))
    })
    while ((await call(server, 'GET', '/ready')).status !== 200) if (server.child.exitCode !== null) return
    const signed = await call(server, 'POST', '/api/auth/login', { body: account })
    const { access_token } =
      signed.status === 200 ? signed.json : (await call(server, 'POST', '/api/auth/register', { body: account })).json
    this.#headers = { authorization: `Bearer ${access_token as string}` }
  }

  async kill(): Promise<void> {
    this.#isKilled = true
    this.server.child.kill('SIGKILL')
    await this.server.ended
  }

  /** A request that fails because the server was killed under it is `undefined`; every other failure is a fault. */
  async ask(method: string, path: string, body?: object, headers = {}) {
    try {
      return await call(this.server, method, `/api/rag${path}`, {
        ...(body === undefined ? {} : { body }),
        headers: { ...this.#headers, ...headers }
      })
    } catch (error) {
      if (!this.#isKilled)
        this.faults.push(`${method} ${path} failed while the server was not killed: ${String(error)}`)
      return undefined
    }
  }

  ingest(content: string, source: string, headers = {}) {
    return this.ask('POST', '/ingest', { collection: 'shelf', content, source }, headers)
  }

  async search(query: string, strategy: string, source: string): Promise<Found | undefined> {
    const body = { collection: 'shelf', query, strategy, limit: 100, filter: { source } }
    const reply = await this.ask('POST', '/search', body)
    if (reply === undefined) return undefined
    this.searches += 1
    if (reply.status !== 200) this.faults.push(`a search by ${strategy} was answered ${reply.status}: ${reply.text}`)
    return reply.status === 200 ? (reply.json as Found) : undefined
  }

  /** Looks for the book by every strategy. @returns the edition that all of them saw, 0 when there is none */
  async edition(): Promise<number | undefined> {
    let seen: number | undefined
    for (const strategy of strategies) {
      // A query that was asked before would not be embedded again.
      const found = await this.search(`copper bars ${this.#queries++}`, strategy, 'book')
      if (found === undefined) return undefined
      const editions = new Set(found.results.flatMap(({ content }) => content.match(/edition\d+/g) ?? []))
      const documents = new Set(found.results.map(({ metadata }) => metadata.document_id))
      if (editions.size > 1 || documents.size > 1) this.faults.push(`${strategy} found ${[...editions].join(' and ')}`)
      const [edition = 'edition0'] = editions
      const key = `${edition} ${strategy}`
      const known = this.totals.get(key) ?? found.total
      if (known !== found.total) this.faults.push(`${strategy} found ${found.total} and then ${known} of ${edition}`)
      this.totals.set(key, found.total)
      seen = Number(edition.slice('edition'.length))
    }
    return seen
  }

  /** That what was there before is found by its meaning. */
  async assertMeaning(): Promise<void> {
    const found = await this.search('Who has the times of high water?', 'semantic', 'tides')
    if (found?.results[0]?.content !== tides) this.faults.push(`by meaning was found ${JSON.stringify(found)}`)
  }
}

const job = async (shelf: Shelf, path: string) => {
  const reply = await shelf.ask('GET', path)
  return reply === undefined ? undefined : (reply.json as Job)
}

/** Kills the server once an ingest is about so far. @returns the path of its job, if it is one */
async function killWithin(shelf: Shelf, mode: (typeof modes)[number], round: number): Promise<string | undefined> {
  const part = Math.random()
  // A search of the four strategies takes about as long as two batches of the encoder, so that this is within the ingest.
  const most = Math.floor(part * (linesOf(round) / 60))
  const content = bookOf(round)
  if (mode === 'job') {
    const reply = await shelf.ingest(content, 'book', { prefer: 'respond-async' })
    const path = reply?.headers.get('location')?.replace('/api/rag', '')
    if (path === undefined) throw new Error(`an ingest as a job was answered ${reply?.status}: ${reply?.text}`)
    await follow(shelf, path, part, most)
    await shelf.kill()
    return path
  }
  let isOver = false
  const accept = mode === 'stream' ? { accept: 'text/event-stream' } : undefined
  const work = shelf.ingest(content, 'book', accept).then((reply) => {
    isOver = true
    if (reply !== undefined && reply.status !== 200) shelf.faults.push(`an ingest was answered ${reply.status}`)
  })
  for (let at = 0; at <= most && !isOver; at++) await shelf.edition()
  await shelf.kill()
  await work
  return undefined
}

/** Searches until a job has done a part of its chunks, or has ended, but no more than `most` times. */
async function follow(
  shelf: Shelf,
  path: string,
  part: number,
  most = Number.POSITIVE_INFINITY
): Promise<Job | undefined> {
  for (let at = 0; ; at++) {
    const now = await job(shelf, path)
    if (now?.status !== 'running') return now
    if (at > most || (now.chunks_done > 0 && now.chunks_done >= part * now.chunks_total)) return now
    if ((await shelf.edition()) === undefined) return undefined
  }
}

t.test('kill -9 while the encoder is at work: no book is there in part, and jobs go on', async (t) => {
  const shelf = new Shelf(t, t.testdir({ 'program.toml': shipped }))
  await shelf.start()
  await shelf.ingest(tides, 'tides')
  await shelf.assertMeaning()
  let killed = 0
  let resumed = 0
  let cut = 0
  let edition = 0
  for (let round = 1; killed < kills && shelf.faults.length === 0; round++) {
    const mode = modes[(round - 1) % modes.length]!
    const path = await killWithin(shelf, mode, round)
    killed += 1
    await shelf.start()
    if (path !== undefined && (await job(shelf, path))?.status === 'running') cut += 1
    await shelf.assertMeaning()
    if (path !== undefined && Math.random() < 0.5) {
      // Within the resume as well.
      const again = Math.random()
      await follow(shelf, path, again, Math.floor(again * (linesOf(round) / 60)))
      await shelf.kill()
      killed += 1
      await shelf.start()
      await shelf.assertMeaning()
    }
    if (path !== undefined) {
      const ended = await follow(shelf, path, 2)
      if (ended?.status !== 'done') shelf.faults.push(`job of round ${round} ended as ${JSON.stringify(ended)}`)
      else resumed += 1
    }
    const seen = await shelf.edition()
    const expected = path === undefined ? [edition, round] : [round]
    if (seen === undefined || !expected.includes(seen)) {
      shelf.faults.push(`after ${mode} ${round} edition ${seen} was there, not ${expected.join(' or ')}`)
    }
    edition = seen ?? 0
    if (kills >= 40)
      t.comment(
        `${killed} kills, ${cut} of ${resumed} jobs were cut short, ${shelf.searches} searches, ${mode}, edition ${seen}`
      )
  }
  t.strictSame(shelf.faults, [])
  t.ok(resumed > 0)
  await shelf.kill()
})
