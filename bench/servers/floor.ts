/**
 * The floor of the http benches: uWebSockets.js reads the body, `JSON.parse`s it and answers `JSON.stringify` of an
 * object of the same form as the product's. It checks nothing.
 */
import uWS from 'uWebSockets.js'
import { answers } from './answers.ts'

const app = uWS.App()
for (const [path, answer] of Object.entries(answers)) {
  app.post(path, (res) => {
    let gone = false
    res.onAborted(() => {
      gone = true
    })
    res.onData((chunk, isLast) => {
      if (!isLast || gone) return // the bodies of the bench arrive in one piece
      const body = JSON.parse(Buffer.from(chunk).toString()) as Record<string, unknown>
      res.cork(() => {
        res.writeHeader('content-type', 'application/json').end(JSON.stringify(answer(body)))
      })
    })
  })
}
app.listen('127.0.0.1', 0, (socket) => console.log(`http://127.0.0.1:${uWS.us_socket_local_port(socket as never)}`))
