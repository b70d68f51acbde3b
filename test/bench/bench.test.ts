import { createServer, type RequestListener, type Server } from 'node:http'
import { readFile } from 'node:fs/promises'
import { join } from 'node:path'
import t from 'tap'
import { drive, httpRequest, openClient, sendOnce } from '../../bench/load.ts'
import { type Bench, defineBench, formatNumber, renderTable, runBench, writeResult } from '../../bench/runner.ts'

const twoSides = (seen: string[]): Bench => ({
  name: 'example',
  question: 'Is a < b & why?',
  method: 'by hand',
  figures: { ms: 'time, ms', extra: 'extra' },
  sides: ['ours', 'theirs'].map((name, at) => ({
    name,
    setup: () => ({
      run: (round) => {
        seen.push(`${name} ${round}`)
        return { ms: (at + 1) * (round + 1), ...(at === 0 ? { extra: 7 } : {}) }
      },
      teardown: async () => {
        seen.push(`${name} gone`)
      }
    })
  })),
  claims: [
    { name: 'half', of: (read) => read('ours', 'ms') / read('theirs', 'ms'), atMost: 0.5 },
    { name: 'tiny', of: (read) => read('ours', 'ms') / read('theirs', 'ms'), atMost: 0.1 },
    { name: 'shown', of: (read) => read('ours', 'extra') }
  ]
})

t.test('sides are measured in turn after a warm-up that does not count, and torn down', async (t) => {
  const seen: string[] = []
  const result = await runBench(defineBench(twoSides(seen)), () => {})
  t.strictSame(seen.slice(0, 6), ['ours -1', 'theirs -1', 'ours 0', 'theirs 0', 'theirs 1', 'ours 1'])
  t.strictSame(seen.slice(-2), ['theirs gone', 'ours gone'])
  t.strictSame(result.measured, {
    ours: { ms: [1, 2, 3, 4, 5], extra: [7, 7, 7, 7, 7] },
    theirs: { ms: [2, 4, 6, 8, 10] }
  })
  t.match(result.claims, [
    { name: 'half', median: 0.5, min: 0.5, max: 0.5, goal: '≤ 0.5', met: true },
    { name: 'tiny', goal: '≤ 0.1', met: false },
    { name: 'shown', median: 7, goal: undefined, met: undefined }
  ])
})

t.test('a side that fails takes the bench down, not before the others are torn down', async (t) => {
  const seen: string[] = []
  const bench = twoSides(seen)
  const failing = { name: 'failing', setup: () => Promise.reject(new Error('no server')) }
  await t.rejects(
    runBench({ ...bench, sides: [...bench.sides, failing] }, () => {}),
    { message: 'no server' }
  )
  t.strictSame(seen, ['theirs gone', 'ours gone'])
})

t.test('a bench of too few rounds or with two sides of one name is refused', async (t) => {
  const bench = twoSides([])
  t.throws(() => defineBench({ ...bench, rounds: 4 }), TypeError)
  t.throws(() => defineBench({ ...bench, sides: [...bench.sides, ...bench.sides] }), TypeError)
})

t.test('table, JSON and chart say both sides, the spread and the goal', async (t) => {
  const result = await runBench(twoSides([]), () => {})
  const table = renderTable(result)
  t.match(table, /ours +3 \(1 – 5\) +7 \(7 – 7\)\n/)
  t.match(table, /theirs +6 \(2 – 10\) +–\n/)
  t.match(table, /tiny +0\.5 \(0\.5 – 0\.5\) +goal ≤ 0\.1 +MISSED/)
  const folder = t.testdir()
  await writeResult(result, folder)
  t.match(JSON.parse(await readFile(join(folder, 'example.json'), 'utf8')), { measured: result.measured })
  const svg = await readFile(join(folder, 'example.svg'), 'utf8')
  t.match(svg, '<title>Is a &lt; b &amp; why?</title>')
  t.equal(svg.match(/<rect /g)?.length, 3, 'one bar for each side that measured the figure')
})

t.test('numbers have three digits that count', async (t) => {
  t.strictSame([0.012345, 1.2345, 12_345, Number.NaN].map(formatNumber), ['0.0123', '1.23', '12,300', 'NaN'])
})

t.test('the load generator counts whole answers, however they are cut', async (t) => {
  const port = await serve(t, (request, response) => {
    request.resume().on('end', () => {
      response.write('{"part":')
      setImmediate(() => response.end(`"${'x'.repeat(100_000)}"}`))
    })
  })
  const request = httpRequest('POST', '/', { body: { a: 1 } })
  const { requests, maxMs, p50Ms } = await drive(port, { request, connections: 3, seconds: 0.05 })
  t.ok(requests >= 3)
  t.ok(maxMs >= p50Ms)
  const reply = await sendOnce(port, request)
  t.match(reply, { status: 200, headers: { 'transfer-encoding': 'chunked' } })
  t.equal((JSON.parse(reply.body) as { part: string }).part.length, 100_000)
})

t.test('a load over refusals is an error, not a figure', async (t) => {
  const port = await serve(t, (_request, response) => response.writeHead(503).end('busy'))
  await t.rejects(drive(port, { request: httpRequest('GET', '/'), connections: 2, seconds: 0.05 }), /503/)
})

t.test('a connection that breaks before the answer rejects, and stays broken', async (t) => {
  const port = await serve(t, (request) => request.socket.destroy())
  const client = await openClient(port)
  await t.rejects(client.send(httpRequest('GET', '/')))
  await t.rejects(client.send(httpRequest('GET', '/')), 'it never retries')
  client.close()
})

async function serve(t: { teardown(work: () => unknown): void }, listener: RequestListener): Promise<number> {
  const server: Server = createServer(listener)
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  t.teardown(() => server.close())
  return (server.address() as { port: number }).port
}
