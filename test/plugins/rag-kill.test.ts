import { join } from 'node:path'
import t from 'tap'
import { call, type Server, serve } from '../program/server.ts'

const program = `
[[entry]]
id = "store"
plugin = "store"
config = { path = "./data" }

[[entry]]
id = "workers"
plugin = "workers"

[[entry]]
id = "http"
plugin = "http"
config = { host = "127.0.0.1", port = 3000 }

[[entry]]
id = "auth"
plugin = "auth"

[[entry]]
id = "rag"
plugin = "rag"
`

const kills = 3
const book = Array.from({ length: 16_000 }, (_, at) => `Line ${at} tells of copperworks in town ${at}.`).join('\n')

interface Signed {
  readonly authorization: string
}

t.test('kill -9 among ingests: what was answered is found, and no document is there in part', async (t) => {
  const cwd = t.testdir({ 'program.toml': program })
  const answered: string[] = []
  let signed: Signed | undefined
  const count = async (server: Server, query: string) => {
    const body = { collection: 'k9', query, strategy: 'bm25', limit: 100 }
    const { status, json } = await call(server, 'POST', '/api/rag/search', { body, headers: { ...signed } })
    return status === 404 ? 0 : (json as { total: number }).total
  }
  const start = async () => {
    const server = await serve(t, { cwd, args: ['--program', join(cwd, 'program.toml')] })
    if (signed === undefined) {
      const body = { email: 'a@example.org', password: 'a long password', name: 'A' }
      const { json } = await call(server, 'POST', '/api/auth/register', { body })
      signed = { authorization: `Bearer ${(json as { access_token: string }).access_token}` }
    }
    return server
  }

  for (let round = 0; round < kills; round++) {
    const server = await start()
    const put = (content: string, source: string) =>
      call(server, 'POST', '/api/rag/ingest', { body: { collection: 'k9', content, source }, headers: { ...signed } })
    let isBookThere = false
    const bookIn = put(`${book} round${round}`, `book ${round}`).then(
      ({ status }) => (isBookThere = status === 200),
      () => false
    )
    const before = answered.length
    let isKilled = false
    for (let at = 0; !isKilled; at++) {
      const mark = `m${round}x${at}`
      try {
        const { status } = await put(`Round ${round}, item ${at}, with the marker ${mark}.`, mark)
        if (status === 200) answered.push(mark)
      } catch {
        // The server is gone.
        isKilled = true
      }
      if (answered.length - before === 12 + round * 6) server.child.kill('SIGKILL')
    }
    await bookIn
    await server.ended
    const again = await start()
    for (const mark of answered.slice(before)) {
      if ((await count(again, mark)) !== 1) t.fail(`${mark} was answered and is not there`)
    }
    const found = await count(again, `round${round}`)
    // Of the book, its one line with that word; of the items none.
    t.ok(
      found === 1 ? true : !isBookThere,
      `round ${round}: the book was ${isBookThere ? '' : 'not '}answered, found ${found}`
    )
    const all = await call(again, 'GET', '/api/rag/collections', { headers: { ...signed } })
    const [{ document_count: chunks = 0 } = {}] = all.json as { document_count?: number }[]
    const lines = await count(again, 'copperworks')
    const items = await count(again, 'marker')
    t.equal(lines + items, chunks, 'what is counted is what is found')
    t.ok(items >= answered.length)
    again.child.kill('SIGKILL')
    await again.ended
  }
})
