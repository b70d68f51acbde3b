import { createHmac } from 'node:crypto'
import { httpRequest, measureLoad, sendOnce } from './load.ts'
import { startServer } from './process.ts'
import { type Bench, defineBench, type Read, type Side } from './runner.ts'
import { jwtSecret } from './servers/login-secret.ts'

type Servers = Readonly<Record<string, readonly [module: string, ...args: string[]]>>

const servers: Servers = {
  heartwood: ['heartwood', 'uws'],
  'bare uWebSockets.js': ['floor'],
  'node:http': ['peer', 'node'],
  fastify: ['peer', 'fastify'],
  hono: ['peer', 'hono'],
  'heartwood on node:http': ['heartwood', 'node']
}

/** A token is verified as Heartwood does it, but each time. */
const withJose: Servers = { 'fastify with jose': ['peer', 'fastify', 'jose'] }

const figures = { cpuUs: 'CPU a request, µs', perSecond: 'requests a second', p99Ms: 'p99, ms' }

function sides(servers: Servers, request: Buffer, isRight: (body: Record<string, unknown>) => boolean): Side[] {
  return Object.entries(servers).map(([name, [module, ...args]]) => ({
    name,
    async setup() {
      const server = await startServer(new URL(`./servers/${module}.js`, import.meta.url), { args })
      const { status, body } = await sendOnce(server.port, request)
      if (status !== 200 || !isRight(JSON.parse(body) as Record<string, unknown>)) {
        await server.stop()
        throw new Error(`${name} answered ${status}: ${body}`)
      }
      return { run: () => measureLoad(server, { request }), teardown: () => server.stop() }
    }
  }))
}

const against = (peer: string) => (read: Read) => read('heartwood', 'cpuUs') / read(peer, 'cpuUs')

function accessToken(): string {
  const encode = (value: unknown) => Buffer.from(JSON.stringify(value)).toString('base64url')
  const iat = Math.floor(Date.now() / 1000)
  const claims = { sub: 'bench', email: 'bench@bench.test', exp: iat + 3_600, iat }
  const signed = `${encode({ alg: 'HS256', typ: 'JWT' })}.${encode(claims)}`
  return `${signed}.${createHmac('sha256', jwtSecret).update(signed).digest('base64url')}`
}

const method = '64 keep-alive connections, one request in flight on each, 1 s a round, server and load on a core each'

const benches: readonly Bench[] = [
  defineBench({
    name: 'http-execute',
    question: 'What does a call of a tool that does nothing cost, beside a server that only parses and answers?',
    method: `POST /agent/execute; ${method}`,
    figures,
    sides: sides(
      servers,
      httpRequest('POST', '/agent/execute', { body: { tool: 'noop', arguments: {} } }),
      (body) => body['status'] === 'completed'
    ),
    claims: [
      { name: 'H1 CPU a request, against the floor', of: against('bare uWebSockets.js'), atMost: 1.2 },
      { name: 'CPU a request, against fastify', of: against('fastify') }
    ]
  }),
  defineBench({
    name: 'http-guarded',
    question: 'What does a route cost that checks a token and a body and reads the store once?',
    method: `POST with a JWT, the peers check its HMAC (or, with jose, what Heartwood checks) at each request and read LMDB; ${method}`,
    figures,
    sides: sides(
      { ...servers, ...withJose },
      httpRequest('POST', '/bench/note', {
        headers: { Authorization: `Bearer ${accessToken()}` },
        body: { id: 'n1' }
      }),
      (body) => body['id'] === 'n1'
    ),
    claims: [
      { name: 'H2 CPU a request, against the floor', of: against('bare uWebSockets.js'), atMost: 1.5 },
      { name: 'H2 CPU a request, against fastify with jose', of: against('fastify with jose'), atMost: 0.3 },
      { name: 'CPU a request, against fastify with the HMAC alone', of: against('fastify') }
    ]
  })
]

export default benches
