/**
 * The floor of the bench `carmy`, `carmy-bare.js uws|node`: on `POST /agent/execute` so many events as are asked for, or a
 * stream whose end is noted, and on `GET /agent/tools` fixed bytes with their tag. It checks nothing.
 */
import { createHash } from 'node:crypto'
import { createServer } from 'node:http'
import { setImmediate } from 'node:timers/promises'
import { catalogOf, reportFrame, reportsAtOnce, Watched } from '../carmy-shapes.ts'
import { loadPeer } from '../peers.ts'

const catalog = Buffer.from(JSON.stringify({ tools: catalogOf(1_000) }))
const etag = `"${createHash('sha256').update(catalog).digest('hex')}"`
const stream = { 'content-type': 'text/event-stream', 'cache-control': 'no-cache' }

interface Call {
  readonly tool: 'report' | 'watch' | 'seen'
  readonly arguments: { readonly reports: number; readonly id: number }
}

interface Answer {
  write(frames: string): void
  end(text: string): void
  /** Told when the client has gone. */
  onGone: () => void
}

const watched = new Watched()

async function execute(body: string, answer: Answer): Promise<void> {
  const { tool, arguments: input } = JSON.parse(body) as Call
  if (tool === 'seen') return answer.end(JSON.stringify({ data: watched.seen() }))
  if (tool === 'report') return report(input.reports, answer)
  watched.begin()
  answer.onGone = () => watched.tell(input.id)
  answer.write(reportFrame(0, 1))
}

/** Passes on frames as a tool reports: some, which go out in one piece, and then a turn for the others. */
async function report(reports: number, answer: Answer): Promise<void> {
  let frames = ''
  for (let at = 1; at <= reports; at += 1) {
    frames += reportFrame(at, reports)
    if (at % reportsAtOnce !== 0 && at < reports) continue
    answer.write(frames)
    frames = ''
    await setImmediate()
  }
  answer.end('event: execution.completed\ndata: {"status":"completed"}\n\n')
}

const announce = (port: number) => console.log(`http://127.0.0.1:${port}`)

const servers: Readonly<Record<string, () => Promise<void>>> = {
  async node() {
    const server = createServer((request, response) => {
      const parts: Buffer[] = []
      request.on('data', (part: Buffer) => parts.push(part))
      request.on('end', () => {
        response.writeHead(200, stream)
        const answer: Answer = {
          write: (frames) => void response.write(frames),
          end: (text) => void response.end(text),
          onGone() {}
        }
        response.on('close', () => answer.onGone())
        void execute(Buffer.concat(parts).toString(), answer)
      })
    })
    server.listen(0, '127.0.0.1', () => announce((server.address() as { port: number }).port))
  },

  async uws() {
    // biome-ignore lint/suspicious/noExplicitAny: the package may be absent where this is compiled
    const { default: uWS } = (await loadPeer('uWebSockets.js')) as { default: any }
    const app = uWS.App()
    // biome-ignore lint/suspicious/noExplicitAny: as above
    app.post('/agent/execute', (response: any) => {
      let isGone = false
      const answer: Answer = {
        write: (frames) => void (isGone || response.cork(() => response.write(frames))),
        end: (text) => void (isGone || response.cork(() => response.end(text))),
        onGone() {}
      }
      response.onAborted(() => {
        isGone = true
        answer.onGone()
      })
      response.onData((chunk: ArrayBuffer) => {
        const body = Buffer.from(chunk).toString()
        for (const [name, value] of Object.entries(stream)) response.writeHeader(name, value)
        void execute(body, answer)
      })
    })
    // biome-ignore lint/suspicious/noExplicitAny: as above
    app.get('/agent/tools', (response: any, request: any) => {
      const isKnown = request.getHeader('if-none-match') === etag
      response.cork(() => {
        response.writeStatus(isKnown ? '304 Not Modified' : '200 OK')
        response.writeHeader('etag', etag).writeHeader('cache-control', 'private, max-age=60')
        if (isKnown) response.endWithoutBody()
        else response.writeHeader('content-type', 'application/json').end(catalog)
      })
    })
    app.listen('127.0.0.1', 0, 1, (socket: unknown) => announce(uWS.us_socket_local_port(socket) as number))
  }
}

await servers[process.argv[2]!]!()
process.once('SIGTERM', () => process.exit())
