import { Agent, type IncomingMessage, request } from 'node:http'
import { connect } from 'node:net'
import { setFlagsFromString } from 'node:v8'
import { runInNewContext } from 'node:vm'
import t from 'tap'
import { definePlugin } from '../../kernel/index.ts'
import carmy from '../../plugins/carmy/index.ts'
import http from '../../plugins/http/index.ts'
import tools from '../../plugins/tools/index.ts'
import { fixtureTools, toolOf, toolsPlugin, trustingGuard, World } from '../fixtures/carmy-tools.ts'
import { startHouse } from '../harness.ts'

/** More of them, for those who have the time. */
const times = Number(process.env['HEARTWOOD_TEST_TIMES'] ?? 1)

type T = Parameters<typeof startHouse>[0]

setFlagsFromString('--expose-gc')
const collectGarbage = runInNewContext('gc') as () => void

function openSockets(): number {
  return process.getActiveResourcesInfo().filter((name) => name === 'TCPSocketWrap').length
}

async function startCarmy(t: T, transport: string) {
  const world = new World()
  const ran = new Map<string, number>()
  const leases = {
    began: 0,
    aborted: [] as { code?: string }[],
    /** Of the streams that were cut. */
    signals: [] as WeakRef<AbortSignal>[],
    /** When the client of each left, by the number it gave; of the same clock as the delays. */
    leftMs: new Map<number, number>(),
    delaysMs: [] as number[]
  }
  const fixture = toolsPlugin(() => [
    toolOf<{ id: string }, { id: string }>({
      name: 'tally',
      effect: 'external_write',
      async run({ id }) {
        ran.set(id, (ran.get(id) ?? 0) + 1)
        await new Promise((resolve) => setImmediate(resolve))
        return { id }
      }
    }),
    toolOf<{ id: number }, unknown>({
      name: 'watch',
      run({ id }, { signal, progress }) {
        leases.began += 1
        leases.signals.push(new WeakRef(signal))
        progress({ progress: 0, message: 'a\r\nb\u0000' })
        return new Promise((resolve) => {
          signal.addEventListener('abort', () => {
            leases.delaysMs.push(performance.now() - (leases.leftMs.get(id) ?? Number.NaN))
            leases.aborted.push(signal.reason as { code?: string })
            resolve(0)
          })
        })
      }
    })
  ])
  const house = await startHouse(t, [
    { plugin: http, config: { port: 0, transport } },
    { plugin: tools, config: { log_executions: false } },
    { plugin: trustingGuard },
    { plugin: fixture },
    { plugin: carmy }
  ])
  const port = house.services('http').address?.port ?? 0
  const agent = new Agent({ keepAlive: true, maxSockets: 64 })
  t.teardown(() => agent.destroy())
  const post = (body: object) =>
    new Promise<{ status: number | undefined; text: string }>((resolve, reject) => {
      const headers = { 'content-type': 'application/json' }
      const sent = request({ port, host: '127.0.0.1', path: '/agent/execute', method: 'POST', headers, agent })
      sent.on('error', reject)
      sent.on('response', (response: IncomingMessage) => {
        let text = ''
        response.setEncoding('utf8')
        response.on('data', (piece: string) => (text += piece))
        response.on('end', () => resolve({ status: response.statusCode, text }))
      })
      sent.end(JSON.stringify(body))
    })
  return { ...house, world, ran, leases, port, post }
}

t.test('a client that leaves while its id is being reserved has not called', async (t) => {
  let leave = (): void => {}
  const guard = definePlugin({
    name: 'leaving-guard',
    apply(ctx) {
      ctx.contribute('http.guards', {
        name: 'caller',
        scheme: {},
        errors: {},
        check: () => ({
          kind: 'user',
          id: 'ann',
          // Read where the call is made: what is done in a microtask of its own comes before any write.
          get permissions() {
            queueMicrotask(leave)
            return new Set<string>()
          }
        })
      })
    }
  })
  const world = new World()
  const house = await startHouse(t, [
    { plugin: http, config: { listen: false } },
    { plugin: tools },
    { plugin: guard },
    { plugin: toolsPlugin(() => fixtureTools(world)) },
    { plugin: carmy }
  ])
  const controller = new AbortController()
  leave = () => controller.abort(new Error('changed my mind'))
  const request = new Request('http://host.test/agent/execute', {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: '{"tool":"count","arguments":{"k":"a"},"request_id":"1"}',
    signal: controller.signal
  })
  await t.rejects(house.services('http').fetch(request), { message: 'changed my mind' })

  const again = () =>
    house.services('tools').execute({
      tool: 'count',
      arguments: { k: 'a' },
      requestId: '1',
      caller: { principal: 'user:ann' }
    })
  // Until the reservation has been taken back, another call with the id is told that there is one.
  let second = await again()
  for (; second.category === 'conflict'; second = await again()) await new Promise((resolve) => setImmediate(resolve))

  t.match(second, { category: undefined, replayed: false })
  t.equal(world.count('count'), 1)
})

for (const transport of ['node', 'uws']) {
  t.test(
    `over ${transport}: many ids, each sent five times at once, run once, and are answered the same`,
    async (t) => {
      const { post, ran } = await startCarmy(t, transport)
      const ids = Array.from({ length: 60 * times }, (_, index) => `id ${index}`)
      const call = (id: string) => post({ tool: 'tally', arguments: { id }, request_id: id })
      const jobs = ids.flatMap((id) => [id, id, id, id, id])
      const answers = new Map(ids.map((id) => [id, new Set<string>()]))
      const others = new Set<string>()
      const work = async (): Promise<void> => {
        for (let id = jobs.shift(); id !== undefined; id = jobs.shift()) {
          const { status, text } = await call(id)
          if (status === 200) answers.get(id)?.add(text)
          else others.add((JSON.parse(text) as { error: { code: string } }).error.code)
        }
      }

      await Promise.all(Array.from({ length: 64 }, work))

      for (const id of ids) answers.get(id)?.add((await call(id)).text)
      t.ok([...answers.values()].every((texts) => texts.size === 1))
      t.strictSame(
        [...ran.values()],
        ids.map(() => 1)
      )
      t.ok([...others].every((code) => code === 'EXECUTION_UNCERTAIN'))
    }
  )

  t.test(`over ${transport}: many streams cut at any moment are told, and nothing is kept of them`, async (t) => {
    const { port, leases, kernel, post } = await startCarmy(t, transport)
    const requestOf = (id: number): string => {
      const body = `{"tool":"watch","arguments":{"id":${id}}}`
      return `${head}content-length: ${body.length}\r\n\r\n${body}`
    }
    const head = `POST /agent/execute HTTP/1.1\r\nhost: x\r\naccept: text/event-stream\r\ncontent-type: application/json\r\n`
    const socketsBefore = openSockets()
    /** Sends some of the request, reads some of the answer, and goes away without a word. */
    const cutAt = (index: number): Promise<void> =>
      new Promise((resolve) => {
        const socket = connect(port, '127.0.0.1')
        const bytes = requestOf(index)
        const toSend = index % 5 === 0 ? bytes.length - (index % 7) : bytes.length
        let toRead = (index * 37) % 600
        const leave = (isReset: boolean): void => {
          leases.leftMs.set(index, performance.now())
          if (isReset) socket.resetAndDestroy()
          else socket.destroy()
        }
        socket.on('error', () => {})
        socket.on('close', () => resolve())
        socket.on('connect', () => {
          socket.write(bytes.slice(0, toSend), () => {
            if (toSend < bytes.length || toRead === 0) leave(true)
          })
        })
        socket.on('data', (piece: Buffer) => {
          toRead -= piece.length
          if (toRead <= 0) leave(true)
          // The stream says no more than this before its tool ends.
          else if (piece.includes('tool.progress')) leave(false)
        })
      })

    await Promise.all(Array.from({ length: 60 * times }, (_, index) => cutAt(index)))
    // An answer means that all that came before it was read by the server.
    await post({ tool: 'tally', arguments: { id: 'last' } })
    while (leases.aborted.length < leases.began) await new Promise((resolve) => setImmediate(resolve))

    t.ok(leases.began > 0)
    t.ok(leases.aborted.every(({ code }) => code === 'CLIENT_GONE'))
    await kernel.update('fixture', {})
    while (kernel.fibers().some((fiber) => fiber.draining > 0)) await new Promise((resolve) => setImmediate(resolve))
    t.equal((await post({ tool: 'tally', arguments: { id: 'next' } })).status, 200)

    const delays = [...leases.delaysMs].sort((a, b) => a - b)
    t.comment(`${delays.length} streams were cancelled after ${delays.at(-1)?.toFixed(1)} ms at most`)
    // Of the connections one stays, that of the last request; of what was cut, nothing that could be reached.
    while (openSockets() > socketsBefore + (transport === 'node' ? 2 : 1)) {
      await new Promise((resolve) => setImmediate(resolve))
    }
    while (leases.signals.some((signal) => signal.deref() !== undefined)) {
      await new Promise((resolve) => setImmediate(resolve))
      collectGarbage()
    }
  })
}
