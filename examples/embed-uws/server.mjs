// The router of carmy/1 in a server of your own on uWebSockets.js, beside its other routes.
import { createCarmy, defineTool } from 'heartwood/carmy'
import uWS from 'uWebSockets.js'

const greet = defineTool({
  name: 'greet',
  description: 'Greets the caller.',
  input: { type: 'object', additionalProperties: false, properties: {} },
  output: { type: 'object', required: ['text'], properties: { text: { type: 'string' } } },
  effect: 'none',
  run: (_input, { principal }) => ({ text: `hello ${principal}` })
})

const sessions = new Map([['ada-secret', 'user:ada']])

const carmy = await createCarmy({
  name: 'embedded',
  tools: [greet],
  dataFolder: process.env.DATA ?? './data',
  /** Who is calling is yours to find out, and nothing else of a request can change it. */
  caller(request) {
    const principal = sessions.get(request.header('x-session') ?? '')
    return principal === undefined ? {} : { principal }
  }
})

const app = uWS.App()
app.get('/hello', (response) => response.end('a route of my own\n'))
carmy.mount(app)

app.listen('127.0.0.1', Number(process.env.PORT ?? 3000), (socket) => {
  console.log(`http://127.0.0.1:${uWS.us_socket_local_port(socket)}`)
  process.once('SIGTERM', async () => {
    uWS.us_listen_socket_close(socket)
    await carmy.close()
    app.close()
  })
})
