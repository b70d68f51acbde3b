// The router of carmy/1 in a server of your own that speaks Web requests: here on node:http.
import { createServer } from 'node:http'
import { Readable } from 'node:stream'
import { pipeline } from 'node:stream/promises'
import { createCarmy, defineTool } from 'heartwood/carmy'

const greet = defineTool({
  name: 'greet',
  description: 'Greets the caller.',
  input: { type: 'object', additionalProperties: false, properties: {} },
  output: { type: 'object', required: ['text'], properties: { text: { type: 'string' } } },
  effect: 'none',
  run: (_input, { principal }) => ({ text: `hello ${principal}` })
})

const carmy = await createCarmy({ name: 'embedded', tools: [greet], dataFolder: process.env.DATA ?? './data' })

/** Your own middleware: who is calling is yours to find out, and nothing of a request can change it. */
const sessions = new Map([['ada-secret', 'user:ada']])

async function handle(request) {
  const { pathname } = new URL(request.url)
  if (pathname === '/hello') return new Response('a route of my own\n')
  const principal = sessions.get(request.headers.get('x-session') ?? '')
  return carmy.fetch(request, { caller: principal === undefined ? {} : { principal } })
}

const server = createServer(async (incoming, outgoing) => {
  const left = new AbortController()
  outgoing.on('close', () => left.abort())
  const { method, headers } = incoming
  const body = method === 'GET' || method === 'HEAD' ? undefined : Readable.toWeb(incoming)
  try {
    const request = new Request(`http://${headers.host}${incoming.url}`, {
      method,
      headers: Object.entries(headers).filter(([, value]) => typeof value === 'string'),
      body,
      duplex: 'half',
      signal: left.signal
    })
    const response = await handle(request)
    outgoing.writeHead(response.status, Object.fromEntries(response.headers))
    if (response.body === null) outgoing.end()
    else await pipeline(Readable.fromWeb(response.body), outgoing)
  } catch (error) {
    if (!left.signal.aborted) console.error(error)
    outgoing.destroy()
  }
})

server.listen(Number(process.env.PORT ?? 3000), '127.0.0.1', () => {
  console.log(`http://127.0.0.1:${server.address().port}`)
})
process.once('SIGTERM', async () => {
  server.close()
  await carmy.close()
})
