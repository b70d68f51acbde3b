import { createServer } from 'node:http'
import { existsSync, readFileSync, writeFileSync } from 'node:fs'
import type { AddressInfo } from 'node:net'
import { join } from 'node:path'
import t, { type Test } from 'tap'
import { runIngest, runSearch } from '../../client/rag.ts'
import { type Credential, Server } from '../../client/server.ts'
import auth from '../../plugins/auth/index.ts'
import http from '../../plugins/http/index.ts'
import rag from '../../plugins/rag/index.ts'
import workers from '../../plugins/workers/index.ts'
import { startHouse } from '../harness.ts'

const account = { email: 'ada@example.org', password: 'correct horse' }

/** A real server with an account on it. */
async function startLibrary(t: Test): Promise<string> {
  const { services } = await startHouse(
    t,
    [
      { plugin: workers },
      { plugin: http, config: { port: 0, transport: 'node' } },
      { plugin: auth, config: { jwt_secret: 'a secret of the tests that is long enough' } },
      { plugin: rag }
    ],
    { dataFolder: t.testdir({}) }
  )
  await services('http').dispatch({ method: 'POST', path: '/api/auth/register', body: { ...account, name: 'Ada' } })
  return `http://127.0.0.1:${services('http').address?.port}`
}

function ingest(url: string, from: string, more: object = {}, credential: Credential = account): Promise<string> {
  const screen = { write: () => {} }
  const server = new Server(url, credential)
  return runIngest({ server, from, collection: 'books', dryRun: false, screen, nowMs: () => 0, ...more })
}

function search(url: string, query: string): Promise<string> {
  return runSearch({ server: new Server(url, account), query, collection: 'books', strategy: 'bm25', json: false })
}

t.test('a folder is taken in once, and what has changed again', async (t) => {
  const url = await startLibrary(t)
  const folder = t.testdir({
    lib: {
      'whale.md': '# Whales\n\nCall me Ishmael, the sailor.',
      'empty.txt': '  ',
      'b.jsonl': '{"text":"Happy families are all alike"}\n'
    }
  })
  const from = join(folder, 'lib')
  t.equal(await ingest(url, from, { dryRun: true }), 'books: would take in 2 documents, 1 empty\n')
  t.notOk(existsSync(join(from, '.heartwood-ingest.jsonl')))
  t.match(await ingest(url, from), /^books: took in 2 documents as 2 chunks, 1 empty\n$/)
  t.equal(await ingest(url, from), 'books: took in 0 documents as 0 chunks, 2 unchanged, 1 empty\n')
  t.match(
    await search(url, 'Ishmael'),
    /^1\. [01]\.\d{3} {2}Whales, whale\.md\n {3}# Whales Call me Ishmael, the sailor\.\n\n1 of 1, bm25/
  )

  writeFileSync(join(from, 'whale.md'), '# Whales\n\nCall me Queequeg, the sailor.')
  t.match(await ingest(url, from), 'took in 1 documents as 1 chunks, 1 unchanged')
  t.match(await search(url, 'Ishmael'), /^0 of 0/)
  t.match(await search(url, 'Queequeg'), /^1\. /)
})

t.test('a journal that is cut off, or of a collection that is gone, leaves nothing out', async (t) => {
  const url = await startLibrary(t)
  const folder = t.testdir({ 'a.txt': 'Call me Ishmael, the sailor.' })
  const journal = join(folder, 'journal')
  await ingest(url, folder, { journal })
  writeFileSync(journal, readFileSync(journal, 'utf8').slice(0, -10))
  t.match(await ingest(url, folder, { journal }), 'took in 1 documents')
  t.match(await ingest(url, folder, { journal }), '1 unchanged')

  await new Server(url, account).ask('DELETE', '/api/rag/collection', { collection: 'books' })
  writeFileSync(journal, `null\n7\n${readFileSync(journal, 'utf8')}`)
  const before = readFileSync(journal, 'utf8')
  t.match(await ingest(url, folder, { journal, dryRun: true }), 'would take in 1 documents')
  t.equal(readFileSync(journal, 'utf8'), before, 'what is only asked for changes nothing')
  t.match(await ingest(url, folder, { journal }), 'took in 1 documents')
})

t.test('a document that fails is told, and the rest is taken in', async (t) => {
  const url = await startLibrary(t)
  const folder = t.testdir({
    'a.txt': 'good enough to be kept',
    'b.jsonl': `{"text":"fine enough to be kept"}\n{broken\n{"text":"kept as well, though one before it is broken"}\n`,
    'c.json': JSON.stringify({ text: 'x'.repeat(30), title: 'y'.repeat(100_000) })
  })
  await t.rejects(ingest(url, folder), {
    message: /^books: took in 3 documents[^]*2 failed:[^]*b\.jsonl:2 is no JSON[^]*400: /
  })
})

t.test('who may not, and a server that is not there, are told in words', async (t) => {
  const url = await startLibrary(t)
  const folder = t.testdir({ 'a.txt': 'good enough to be kept' })
  await t.rejects(ingest(url, folder, {}, { token: 'wrong' }), { message: /^401: / })
  await t.rejects(ingest(url, folder, {}, { ...account, password: 'not the one' }), {
    message: /^logging in as ada@example.org: 401/
  })
  await t.rejects(ingest(url, t.testdir({ 'a.pdf': '' })), { message: /holds no file that can be read/ })
  t.throws(() => new Server('localhost', account), { message: /is no URL/ })
})

/** A server that gives these answers in turn. @returns its URL, and what it was asked for */
async function startScripted(
  t: Test,
  answers: readonly (readonly [status: number, body: object, headers?: Record<string, string>])[]
): Promise<{ readonly url: string; readonly asked: readonly string[] }> {
  const asked: string[] = []
  const server = createServer((request, response) => {
    const [status, body, headers] = answers[asked.length] ?? [500, {}]
    asked.push(`${request.url} ${request.headers.authorization ?? ''}`)
    response.writeHead(status, headers).end(JSON.stringify(body))
  })
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  t.teardown(() => server.close())
  return { url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`, asked }
}

t.test('what a server refuses for now is asked again, and a token that has ended is got anew', async (t) => {
  const { url, asked } = await startScripted(t, [
    [200, { access_token: 'first' }],
    [503, { error: 'busy' }, { 'retry-after': '0' }],
    [401, { error: 'Unauthorized' }],
    [200, { access_token: 'second' }],
    [200, { fine: true }]
  ])
  const retries: string[] = []
  const client = new Server(url, account)
  t.strictSame(await client.ask('GET', '/x', undefined, (reason) => retries.push(reason)), { fine: true })
  t.strictSame(asked, [
    '/api/auth/login ',
    '/x Bearer first',
    '/x Bearer first',
    '/api/auth/login ',
    '/x Bearer second'
  ])
  t.strictSame(retries, ['503: busy'])
})

t.test('a login that fails for now is tried again, and one that failed does not fail those after it', async (t) => {
  const busy = [429, { error: 'busy' }, { 'retry-after': '0' }] as const
  const { url, asked } = await startScripted(t, [
    busy,
    [401, { error: 'Invalid credentials' }],
    [200, { access_token: 'first' }],
    [200, { fine: true }]
  ])
  const client = new Server(url, account)
  await t.rejects(client.ask('GET', '/x'), { message: 'logging in as ada@example.org: 401: Invalid credentials' })
  t.strictSame(await client.ask('GET', '/x'), { fine: true })
  t.equal(asked.length, 4)
})

t.test('several that hear at once that a token has ended get one new one', async (t) => {
  let logins = 0
  let refused = 0
  const server = createServer((request, response) => {
    if (request.url === '/api/auth/login') {
      logins += 1
      response.end(JSON.stringify({ access_token: `t${logins}` }))
    } else if (request.headers.authorization === 'Bearer t1') {
      refused += 1
      response.writeHead(401).end('{}')
    } else response.end('{}')
  })
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  t.teardown(() => server.close())
  const client = new Server(`http://127.0.0.1:${(server.address() as AddressInfo).port}`, account)
  await Promise.all(Array.from({ length: 8 }, () => client.ask('GET', '/x')))
  t.equal(refused, 8)
  t.equal(logins, 2)
})

t.test('what is found gives no orders to the terminal', async (t) => {
  const hit = { content: 'red \u001B[31m', score: 1, metadata: { title: 'a\u001B]0;x\u0007', source: null } }
  const { url } = await startScripted(t, [[200, { results: [hit], total: 1, strategy: 'bm25', duration_ms: 1 }]])
  const server = new Server(url, { token: 'x' })
  const shown = await runSearch({ server, query: 'red', collection: 'books', json: false })
  t.equal(shown.split('\n')[0], '1. 1.000  a ]0;x ')
  t.equal(shown.split('\n')[1], '   red [31m')
})
