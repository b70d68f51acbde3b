/** A peer of `http-floor` and `auth`: `peer.js node|fastify|hono [jose]`. The work is in `checks.ts`; here is only the framework. */
import { createServer } from 'node:http'
import { loadPeer } from '../peers.ts'
import { createChecks, credentialsBody, executeBody, noteBody } from './checks.ts'

const checks = createChecks(process.argv[3] === 'jose' ? 'jose' : 'hmac')
await checks.ready
const announce = (port: number) => console.log(`http://127.0.0.1:${port}`)
const refusals = { 400: { error: 'invalid body' }, 401: { error: 'unauthorized' } } as const

const servers: Readonly<Record<string, () => unknown>> = {
  node() {
    const server = createServer((request, response) => {
      const answer = (status: number, body: unknown) => {
        const text = JSON.stringify(body)
        response.writeHead(status, {
          'content-type': 'application/json',
          'content-length': Buffer.byteLength(text),
          'cache-control': 'no-store'
        })
        response.end(text)
      }
      const parts: Buffer[] = []
      request.on('data', (part: Buffer) => parts.push(part))
      request.on('end', () => void handle(JSON.parse(Buffer.concat(parts).toString())))
      const handle = async (body: unknown) => {
        if (request.url === '/agent/execute') {
          if (!checks.isExecuteBody(body)) return answer(400, refusals[400])
          const result = await checks.execute(body)
          answer(result === undefined ? 400 : 200, result ?? refusals[400])
        } else {
          if (!(await checks.isUser(request.headers.authorization))) return answer(401, refusals[401])
          if (!checks.isNoteBody(body)) return answer(400, refusals[400])
          answer(200, checks.readNote(body))
        }
      }
    })
    server.listen(0, '127.0.0.1', () => announce((server.address() as { port: number }).port))
  },

  async fastify() {
    const { default: fastify } = await loadPeer('fastify')
    const app = fastify()
    // biome-ignore lint/suspicious/noExplicitAny: the peer is untyped here
    app.post('/agent/execute', { schema: { body: executeBody } }, async (request: any, reply: any) => {
      const result = await checks.execute(request.body)
      reply.header('cache-control', 'no-store')
      return result ?? reply.code(400).send(refusals[400])
    })
    app.post(
      '/bench/note',
      {
        schema: { body: noteBody },
        // biome-ignore lint/suspicious/noExplicitAny: the peer is untyped here
        onRequest: async (request: any, reply: any) => {
          if (!(await checks.isUser(request.headers.authorization))) return reply.code(401).send(refusals[401])
        }
      },
      // biome-ignore lint/suspicious/noExplicitAny: the peer is untyped here
      async (request: any) => checks.readNote(request.body)
    )
    // biome-ignore lint/suspicious/noExplicitAny: the peer is untyped here
    app.post('/api/auth/register', { schema: { body: credentialsBody } }, async (request: any) =>
      checks.register(request.body)
    )
    // biome-ignore lint/suspicious/noExplicitAny: the peer is untyped here
    app.post('/api/auth/login', { schema: { body: credentialsBody } }, async (request: any, reply: any) => {
      const session = await checks.login(request.body)
      return session ?? reply.code(401).send(refusals[401])
    })
    await app.listen({ host: '127.0.0.1', port: 0 })
    announce(app.server.address().port)
  },

  async hono() {
    const { Hono } = await loadPeer('hono')
    const { serve } = await loadPeer('@hono/node-server')
    const app = new Hono()
    // biome-ignore lint/suspicious/noExplicitAny: the peer is untyped here
    app.post('/agent/execute', async (c: any) => {
      const body: unknown = await c.req.json()
      if (!checks.isExecuteBody(body)) return c.json(refusals[400], 400)
      const result = await checks.execute(body)
      return result === undefined ? c.json(refusals[400], 400) : c.json(result, 200, { 'cache-control': 'no-store' })
    })
    // biome-ignore lint/suspicious/noExplicitAny: the peer is untyped here
    app.post('/bench/note', async (c: any) => {
      if (!(await checks.isUser(c.req.header('authorization')))) return c.json(refusals[401], 401)
      const body: unknown = await c.req.json()
      return checks.isNoteBody(body) ? c.json(checks.readNote(body)) : c.json(refusals[400], 400)
    })
    serve({ fetch: app.fetch, hostname: '127.0.0.1', port: 0 }, (info: { port: number }) => announce(info.port))
  }
}

await servers[process.argv[2]!]!()
process.once('SIGTERM', () => process.exit())
