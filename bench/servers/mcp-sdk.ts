/** The official SDK with a tool that does nothing, on node:http with nothing between them. */
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http'
import { createMcpHandler, Server } from '@modelcontextprotocol/server'

const tools = [{ name: 'noop', description: 'Does nothing', inputSchema: { type: 'object' as const } }]

const handler = createMcpHandler(() => {
  const server = new Server({ name: 'bench', version: '1' }, { capabilities: { tools: {} } })
  server.setRequestHandler('tools/list', () => ({ tools }))
  server.setRequestHandler('tools/call', () => ({ content: [{ type: 'text', text: '{}' }], structuredContent: {} }))
  return server
})

async function answer(incoming: IncomingMessage, outgoing: ServerResponse): Promise<void> {
  const chunks: Buffer[] = []
  for await (const chunk of incoming) chunks.push(chunk as Buffer)
  const request = new Request(`http://127.0.0.1${incoming.url}`, {
    method: incoming.method ?? 'GET',
    headers: incoming.headers as Record<string, string>
  })
  const parsedBody: unknown = JSON.parse(Buffer.concat(chunks).toString())
  const response = await handler.fetch(request, { parsedBody })
  const text = await response.text()
  const headers = { 'content-type': 'application/json', 'content-length': Buffer.byteLength(text) }
  outgoing.writeHead(response.status, headers).end(text)
}

const server = createServer((incoming, outgoing) => void answer(incoming, outgoing))
server.listen(0, '127.0.0.1', () => {
  const address = server.address()
  console.log(`http://127.0.0.1:${typeof address === 'object' ? address?.port : ''}`)
})
process.once('SIGTERM', () => process.exit())
