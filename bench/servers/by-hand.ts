/**
 * A request id by hand, as little as will do: bare uWebSockets.js, and an LMDB environment in which what was begun is on
 * disk before the tool runs, and its answer before it is given. It checks nothing.
 */
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { open } from 'lmdb'
import { loadPeer } from '../peers.ts'
import { answers } from './answers.ts'

const folder = mkdtempSync(join(tmpdir(), 'heartwood-bench-'))
process.once('exit', () => rmSync(folder, { recursive: true }))
const kept = open({ path: folder }).openDB<string, string>({ name: 'kept', encoding: 'string' })
const answer = answers['/agent/execute']!

async function put(id: string, text: string): Promise<void> {
  await kept.put(id, text)
  await kept.flushed
}

async function once(id: string, body: Record<string, unknown>): Promise<string> {
  await put(id, '')
  const text = JSON.stringify(answer(body))
  await put(id, text)
  return text
}

// biome-ignore lint/suspicious/noExplicitAny: the package may be absent where this is compiled
const { default: uWS } = (await loadPeer('uWebSockets.js')) as { default: any }
const app = uWS.App()
// biome-ignore lint/suspicious/noExplicitAny: as above
app.post('/agent/execute', (response: any) => {
  let isGone = false
  response.onAborted(() => {
    isGone = true
  })
  const send = (text: string) => {
    if (!isGone) response.cork(() => response.writeHeader('content-type', 'application/json').end(text))
  }
  response.onData((chunk: ArrayBuffer) => {
    const body = JSON.parse(Buffer.from(chunk).toString()) as Record<string, unknown>
    const id = body['request_id'] as string
    const known = kept.get(id)
    if (known !== undefined && known !== '') send(known)
    else void once(id, body).then(send)
  })
})
app.listen('127.0.0.1', 0, 1, (socket: unknown) => console.log(`http://127.0.0.1:${uWS.us_socket_local_port(socket)}`))
process.once('SIGTERM', () => process.exit())
