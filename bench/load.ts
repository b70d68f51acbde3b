import { connect, type Socket } from 'node:net'
import type { ServerProcess } from './process.ts'

/** A whole HTTP/1.1 request as bytes. An object as body goes out as JSON. */
export function httpRequest(
  method: string,
  path: string,
  options: { readonly headers?: Readonly<Record<string, string>>; readonly body?: unknown } = {}
): Buffer {
  const lines = [`${method} ${path} HTTP/1.1`, 'Host: 127.0.0.1']
  for (const [name, value] of Object.entries(options.headers ?? {})) lines.push(`${name}: ${value}`)
  if (options.body === undefined) {
    if (/^P/.test(method)) lines.push('Content-Length: 0')
    return Buffer.from(`${lines.join('\r\n')}\r\n\r\n`)
  }
  const body = Buffer.from(typeof options.body === 'string' ? options.body : JSON.stringify(options.body))
  if (typeof options.body !== 'string') lines.push('Content-Type: application/json')
  lines.push(`Content-Length: ${body.length}`)
  return Buffer.concat([Buffer.from(`${lines.join('\r\n')}\r\n\r\n`), body])
}

export interface HttpReply {
  readonly status: number
  /** By lower-case name. */
  readonly headers: Readonly<Record<string, string>>
  readonly body: string
}

/** One keep-alive connection, one request at a time; it never retries. */
export interface Client {
  /** @throws Error when the connection breaks before the answer is whole */
  send(request: Uint8Array): Promise<HttpReply>
  close(): void
}

export async function openClient(port: number): Promise<Client> {
  let waiting: { resolve: (reply: HttpReply) => void; reject: (error: Error) => void } | undefined
  let broken: Error | undefined
  let received: Buffer = Buffer.alloc(0)
  const socket = await open(port, (chunk) => {
    received = received.length === 0 ? Buffer.from(chunk) : Buffer.concat([received, chunk])
    const size = replySize(received)
    if (size === undefined) return
    const reply = toReply(received.subarray(0, size))
    received = received.subarray(size)
    waiting?.resolve(reply)
    waiting = undefined
  })
  const fail = (error: Error) => {
    broken ??= error
    waiting?.reject(error)
    waiting = undefined
  }
  socket.on('error', fail).on('close', () => fail(new Error('the connection was closed')))
  return {
    send: (request) =>
      new Promise((resolve, reject) => {
        if (broken) return reject(broken)
        waiting = { resolve, reject }
        socket.write(request)
      }),
    close: () => socket.destroy()
  }
}

/** Sends one request on a connection of its own. */
export async function sendOnce(port: number, request: Uint8Array): Promise<HttpReply> {
  const client = await openClient(port)
  try {
    return await client.send(request)
  } finally {
    client.close()
  }
}

export interface LoadOptions {
  /** The same each time, or what makes the next one. */
  readonly request: Uint8Array | (() => Uint8Array)
  /** Keep-alive connections, each with one request in flight. */
  readonly connections?: number
  readonly seconds?: number
  /** First digit of the status that every answer has; 2 when left out. */
  readonly statusClass?: 2 | 3
}

export interface LoadResult {
  readonly requests: number
  readonly seconds: number
  readonly p50Ms: number
  readonly p99Ms: number
  readonly maxMs: number
}

/** @throws Error at the first answer of another status, and when a connection breaks: a figure over errors says nothing */
export async function drive(port: number, options: LoadOptions): Promise<LoadResult> {
  const load = await openLoad(port, options)
  try {
    return await load.run(options.seconds ?? 1)
  } finally {
    load.close()
  }
}

/** CPU and latency of a server under load from this process. */
export async function measureLoad(
  server: ServerProcess,
  options: LoadOptions
): Promise<{ cpuUs: number; perSecond: number; p50Ms: number; p99Ms: number }> {
  const load = await openLoad(server.port, options)
  try {
    await load.run(0.2)
    const before = await server.usage()
    const result = await load.run(options.seconds ?? 1)
    const after = await server.usage()
    return {
      cpuUs: (after.cpuUs - before.cpuUs) / result.requests,
      perSecond: result.requests / result.seconds,
      p50Ms: result.p50Ms,
      p99Ms: result.p99Ms
    }
  } finally {
    load.close()
  }
}

async function openLoad(port: number, { request, connections = 64, statusClass = 2 }: LoadOptions) {
  let latencies: number[] = []
  let until = 0
  let inFlight = 0
  let failed: Error | undefined
  let finish: () => void = () => {}
  const stop = (error?: Error) => {
    failed ??= error
    finish()
  }

  const start = async (): Promise<{ fire: () => void; close: () => void }> => {
    let sentAt = 0
    let rest: Buffer | undefined
    const fire = () => {
      inFlight++
      sentAt = performance.now()
      socket.write(typeof request === 'function' ? request() : request)
    }
    const socket = await open(port, (chunk) => {
      const bytes = rest === undefined ? chunk : Buffer.concat([rest, chunk])
      const size = replySize(bytes)
      if (size === undefined) {
        rest = Buffer.from(bytes)
        return
      }
      rest = undefined
      if (bytes[9] !== 0x30 + statusClass) stop(new Error(`the server answered:\n${bytes.toString('utf8', 0, 2_000)}`))
      const now = performance.now()
      latencies.push(now - sentAt)
      inFlight--
      if (now < until && failed === undefined) fire()
      else if (inFlight === 0) stop()
    })
    socket.on('error', stop).on('close', () => {
      if (!closing) stop(new Error('the server closed a connection under load'))
    })
    return { fire, close: () => socket.destroy() }
  }

  let closing = false
  const lines = await Promise.all(Array.from({ length: connections }, start))
  return {
    async run(seconds: number): Promise<LoadResult> {
      latencies = []
      const startedAt = performance.now()
      until = startedAt + seconds * 1000
      const done = new Promise<void>((resolve) => (finish = resolve))
      for (const line of lines) line.fire()
      await done
      if (failed) throw failed
      const sorted = Float64Array.from(latencies).sort()
      const at = (share: number) => sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * share))]!
      return {
        requests: sorted.length,
        seconds: (performance.now() - startedAt) / 1000,
        p50Ms: at(0.5),
        p99Ms: at(0.99),
        maxMs: at(1)
      }
    },
    close() {
      closing = true
      for (const line of lines) line.close()
    }
  }
}

/** @param onData gets bytes that are valid only during the call */
function open(port: number, onData: (chunk: Buffer) => void): Promise<Socket> {
  return new Promise((resolve, reject) => {
    const buffer = Buffer.allocUnsafeSlow(1 << 16)
    const socket = connect({
      host: '127.0.0.1',
      port,
      noDelay: true,
      onread: {
        buffer,
        callback(size) {
          onData(buffer.subarray(0, size))
          return true
        }
      }
    })
    socket.once('error', reject)
    socket.once('connect', () => {
      socket.off('error', reject)
      resolve(socket)
    })
  })
}

/** Bytes of the first answer in `bytes`; `undefined` while it is not whole. Knows what servers here send. */
function replySize(bytes: Buffer): number | undefined {
  const headEnd = bytes.indexOf('\r\n\r\n')
  if (headEnd < 0) return undefined
  const head = bytes.toString('latin1', 0, headEnd)
  const length = /\r\ncontent-length: *(\d+)/i.exec(head)
  if (length) {
    const size = headEnd + 4 + Number(length[1])
    return bytes.length >= size ? size : undefined
  }
  if (/\r\ntransfer-encoding: *chunked/i.test(head)) {
    for (let at = headEnd + 4; ; ) {
      const lineEnd = bytes.indexOf('\r\n', at)
      if (lineEnd < 0) return undefined
      const chunk = Number.parseInt(bytes.toString('latin1', at, lineEnd), 16)
      at = lineEnd + 2 + chunk + 2
      if (at > bytes.length) return undefined
      if (chunk === 0) return at
    }
  }
  return headEnd + 4
}

function toReply(bytes: Buffer): HttpReply {
  const headEnd = bytes.indexOf('\r\n\r\n')
  const [status, ...lines] = bytes.toString('latin1', 0, headEnd).split('\r\n')
  const headers: Record<string, string> = {}
  for (const line of lines) {
    const colon = line.indexOf(':')
    headers[line.slice(0, colon).toLowerCase()] = line.slice(colon + 1).trim()
  }
  let body = bytes.subarray(headEnd + 4)
  if (headers['transfer-encoding'] === 'chunked') body = joinChunks(body)
  return { status: Number(status!.slice(9, 12)), headers, body: body.toString() }
}

function joinChunks(bytes: Buffer): Buffer {
  const parts: Buffer[] = []
  for (let at = 0; ; ) {
    const lineEnd = bytes.indexOf('\r\n', at)
    const size = Number.parseInt(bytes.toString('latin1', at, lineEnd), 16)
    if (size === 0) return Buffer.concat(parts)
    parts.push(bytes.subarray(lineEnd + 2, lineEnd + 2 + size))
    at = lineEnd + 2 + size + 2
  }
}
