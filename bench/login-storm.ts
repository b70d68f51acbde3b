import { randomUUID } from 'node:crypto'
import { setTimeout as sleep } from 'node:timers/promises'
import { type Client, type HttpReply, httpRequest, openClient } from './load.ts'
import { type ServerProcess, startServer } from './process.ts'
import { defineBench, type Figures, type Side } from './runner.ts'
import { makeToken } from './token.ts'

const people = 50
const pauseMs = 5
const password = 'a password of the bench'

/** Who polls while the others log in. */
const polls = {
  healthMs: () => httpRequest('GET', '/health'),
  seenMs: () => noteRequest(seenToken),
  unseenMs: () => noteRequest(makeToken(randomUUID()))
}
type Poll = keyof typeof polls

const seenToken = makeToken(randomUUID())

function noteRequest(token: string): Buffer {
  return httpRequest('GET', '/bench/note', { headers: { Authorization: `Bearer ${token}` } })
}

async function must(client: Client, request: Uint8Array): Promise<HttpReply> {
  const reply = await client.send(request)
  if (reply.status !== 200) throw new Error(`the server answered ${reply.status}: ${reply.body}`)
  return reply
}

/** Polls until `storm` has ended. @returns the longest an answer took, in milliseconds */
async function worst(client: Client, poll: Poll, storm: Promise<unknown>): Promise<number> {
  let ended = false
  let worstMs = 0
  const end = () => {
    ended = true
  }
  storm.then(end, end)
  while (!ended) {
    const request = polls[poll]()
    const sentAt = performance.now()
    await must(client, request)
    worstMs = Math.max(worstMs, performance.now() - sentAt)
    await sleep(pauseMs)
  }
  return worstMs
}

async function storm(clients: readonly Client[], pollers: Record<Poll, Client>): Promise<Figures> {
  const startedAt = performance.now()
  const logins = Promise.all(
    clients.map((client, person) =>
      must(client, httpRequest('POST', '/api/auth/login', { body: { email: `p${person}@bench.test`, password } }))
    )
  )
  const names = Object.keys(polls) as Poll[]
  const latencies = await Promise.all(names.map((name) => worst(pollers[name], name, logins)))
  await logins
  const seconds = (performance.now() - startedAt) / 1000
  return {
    ...Object.fromEntries(names.map((name, at) => [name, latencies[at] as number])),
    worstMs: Math.max(...latencies),
    loginsPerSecond: people / seconds
  }
}

function side(name: string, args: readonly string[]): Side {
  return {
    name,
    async setup() {
      const server: ServerProcess = await startServer(new URL('./servers/login.js', import.meta.url), {
        args,
        cores: 'all'
      })
      const clients = await Promise.all(Array.from({ length: people }, () => openClient(server.port)))
      const pollers: Record<Poll, Client> = {
        healthMs: await openClient(server.port),
        seenMs: await openClient(server.port),
        unseenMs: await openClient(server.port)
      }
      for (const [person, client] of clients.entries()) {
        const account = { email: `p${person}@bench.test`, password, name: 'P' }
        await must(client, httpRequest('POST', '/api/auth/register', { body: account }))
      }
      return {
        run: () => storm(clients, pollers),
        async teardown() {
          for (const client of [...clients, ...Object.values(pollers)]) client.close()
          await server.stop()
        }
      }
    }
  }
}

const pool = 'worker pool'
const libuv = 'libuv'

export default defineBench({
  name: 'login-storm',
  question: 'What do others feel while fifty people log in?',
  method:
    `One round: ${people} logins with the right password at the same moment, each on a connection of its own, while three ` +
    `clients poll every ${pauseMs} ms: /health, a route behind a token with one store read (token seen before), and the same ` +
    'with a token never seen before, whose signature has to be checked. Figures are the longest waits of the round. The ' +
    'other side is the same server with argon2 called in the process itself. The server may use every core.',
  figures: {
    healthMs: 'worst /health, ms',
    seenMs: 'worst with a seen token, ms',
    unseenMs: 'worst with an unseen token, ms',
    worstMs: 'worst of the three, ms',
    loginsPerSecond: 'logins a second'
  },
  sides: [side(pool, []), side(libuv, ['libuv'])],
  claims: [
    {
      name: 'worst wait of others, against libuv (H5)',
      of: (read) => read(pool, 'worstMs') / read(libuv, 'worstMs'),
      atMost: 1 / 8
    },
    {
      name: 'login rate, against libuv (H5)',
      of: (read) => read(pool, 'loginsPerSecond') / read(libuv, 'loginsPerSecond'),
      atLeast: 0.8
    }
  ],
  rounds: 7
})
