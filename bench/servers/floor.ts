/**
 * The floor of the http benches: uWebSockets.js reads the body, `JSON.parse`s it and answers `JSON.stringify` of an
 * object of the same form as the product's. It checks nothing.
 */
import { loadPeer } from '../peers.ts'
import { answers } from './answers.ts'

/** The little of uWebSockets.js that is used here; the package may be absent where this is compiled. */
interface App {
  post(path: string, handler: (response: Response) => void): void
  listen(host: string, port: number, exclusive: 1, done: (socket: unknown) => void): void
}
interface Response {
  onAborted(handler: () => void): void
  onData(handler: (chunk: ArrayBuffer, isLast: boolean) => void): void
  writeHeader(name: string, value: string): Response
  end(body: string): void
}

const { default: uWS } = (await loadPeer('uWebSockets.js')) as {
  default: { App(): App; us_socket_local_port(socket: unknown): number }
}
const app = uWS.App()
for (const [path, answer] of Object.entries(answers)) {
  app.post(path, (response) => {
    response.onAborted(() => {})
    response.onData((chunk, isLast) => {
      if (!isLast) throw new Error('the bodies of a bench arrive in one piece')
      const body = JSON.parse(Buffer.from(chunk).toString()) as Record<string, unknown>
      response.writeHeader('content-type', 'application/json').end(JSON.stringify(answer(body)))
    })
  })
}
app.listen('127.0.0.1', 0, 1, (socket) => console.log(`http://127.0.0.1:${uWS.us_socket_local_port(socket)}`))
process.once('SIGTERM', () => process.exit())
