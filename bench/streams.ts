/** Clients that read streams of server-sent events, or leave in the middle of one. */
import { connect } from 'node:net'
import { nowMs } from './carmy-shapes.ts'
import type { ServerProcess } from './process.ts'

const mark = Buffer.from('\nevent: tool.progress\n')
const end = Buffer.from('0\r\n\r\n')

/**
 * Reads one stream after another on each connection for about a second.
 * @param reports events in each stream; what did not come of them is `lostShare`
 */
export async function measureStreams(
  server: ServerProcess,
  { request, reports, connections = 16 }: { request: Buffer; reports: number; connections?: number }
): Promise<{ cpuUs: number; perSecond: number; lostShare: number }> {
  const before = await server.usage()
  const startedAtMs = performance.now()
  const counts = await Promise.all(
    Array.from({ length: connections }, () => readStreams(server.port, request, startedAtMs + 1_000))
  )
  const seconds = (performance.now() - startedAtMs) / 1_000
  const after = await server.usage()
  const events = counts.reduce((sum, count) => sum + count.events, 0)
  const streams = counts.reduce((sum, count) => sum + count.streams, 0)
  return {
    cpuUs: (after.cpuUs - before.cpuUs) / events,
    perSecond: events / seconds,
    lostShare: 1 - events / (streams * reports)
  }
}

function readStreams(port: number, request: Buffer, untilMs: number): Promise<{ events: number; streams: number }> {
  return new Promise((resolve, reject) => {
    let events = 0
    let streams = 0
    let rest = Buffer.alloc(0)
    const socket = connect({ port, host: '127.0.0.1', noDelay: true }, () => socket.write(request))
    socket.on('error', reject).on('close', () => reject(new Error('the server closed a stream')))
    socket.on('data', (piece) => {
      const bytes = Buffer.concat([rest, piece])
      let at = 0
      for (let found = bytes.indexOf(mark); found >= 0; found = bytes.indexOf(mark, at)) {
        events += 1
        at = found + mark.length
      }
      // Not so much that a mark could be in it twice.
      rest = bytes.subarray(Math.max(at, bytes.length - mark.length + 1))
      if (!bytes.subarray(-end.length).equals(end)) return
      streams += 1
      rest = Buffer.alloc(0)
      if (performance.now() < untilMs) return void socket.write(request)
      socket.removeAllListeners('close').destroy()
      resolve({ events, streams })
    })
  })
}

/**
 * Sends a request and goes away without a word after so many milliseconds, wherever the stream is by then.
 * @returns when it went, by {@link nowMs}
 */
export function cutStream(port: number, request: Buffer, afterMs: number): Promise<number> {
  return new Promise((resolve, reject) => {
    const socket = connect({ port, host: '127.0.0.1', noDelay: true }, () => {
      socket.write(request)
      setTimeout(() => {
        const atMs = nowMs()
        socket.resetAndDestroy()
        resolve(atMs)
      }, afterMs)
    })
    socket.on('error', reject)
    socket.resume()
  })
}
