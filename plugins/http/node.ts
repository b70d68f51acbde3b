import { createServer, type IncomingMessage, type ServerResponse } from 'node:http'
import type { AddressInfo, Socket } from 'node:net'
import type { Head } from './heads.ts'
import {
  type BodyReader,
  Exchange,
  type Handler,
  notReady,
  type Server,
  type ServerLimits,
  type Sink,
  SharedBody
} from './transport.ts'

/** The times are as close as can be to what uWebSockets.js has built in. */
const options = {
  headersTimeout: 10_000,
  requestTimeout: 30_000,
  keepAliveTimeout: 10_000,
  connectionsCheckingInterval: 1_000,
  // Ours to see: node would answer by itself, and then hand over what follows in the same segment.
  requireHostHeader: false
}
/** A larger answer goes out in pieces, so that it is noticed when its reader has stopped. */
const pieceBytes = 65_536
/** How long answers that are on their way may hold up {@link Server.close}. */
const lingerMs = 1_000

/** Rejects with the system's error when it cannot listen. */
export async function listenNode(host: string, port: number): Promise<Server> {
  const state: State = {
    handler: notReady,
    limits: { maxConnections: 0, stallTimeoutMs: 0 },
    isDraining: false,
    exchanges: new WeakMap(),
    leaving: 0,
    onIdle: undefined
  }
  /** Connections that end with a refusal: what the parser still finds on them is no request. */
  const refused = new WeakSet<Socket>()
  const server = createServer(options, (incoming, response) => {
    if (refused.has(incoming.socket)) return
    const exchange = new NodeExchange(state, incoming, response)
    const refusal = incoming.httpVersion === '1.1' ? exchange.admit() : 505
    if (refusal === 0) return state.handler.handle(exchange)
    refused.add(incoming.socket)
    exchange.isLast = true
    state.handler.refuse(exchange, refusal)
  })
  await new Promise<void>((resolve, reject) => {
    server.once('error', reject)
    server.listen({ host, port, exclusive: true }, () => {
      server.off('error', reject)
      resolve()
    })
  })
  const drain = () => {
    state.isDraining = true
    server.close()
    server.closeIdleConnections()
  }
  return {
    transport: 'node',
    host,
    port: (server.address() as AddressInfo).port,
    use(handler, limits) {
      state.handler = handler
      state.limits = limits
      server.maxConnections = limits.maxConnections
    },
    drain,
    async close() {
      drain()
      if (state.leaving > 0) {
        await new Promise<void>((resolve) => {
          const timer = setTimeout(resolve, lingerMs)
          state.onIdle = () => {
            clearTimeout(timer)
            resolve()
          }
        })
      }
      server.closeAllConnections()
    }
  }
}

interface State {
  handler: Handler
  limits: ServerLimits
  isDraining: boolean
  /** Those of a connection. A response that waits behind another one does not hear of the end of its connection. */
  readonly exchanges: WeakMap<Socket, Set<NodeExchange>>
  /** Responses that have been handed over and are not out yet. */
  leaving: number
  onIdle: (() => void) | undefined
}

class NodeExchange extends Exchange {
  readonly #state: State
  readonly #incoming: IncomingMessage
  readonly #response: ServerResponse
  #stall: NodeJS.Timeout | undefined

  constructor(state: State, incoming: IncomingMessage, response: ServerResponse) {
    const { method = '', url = '', rawHeaders } = incoming
    const at = url.indexOf('?')
    const headers = rawHeaders.map((text, index) => (index % 2 === 0 ? text.toLowerCase() : text))
    super(method, at === -1 ? url : url.slice(0, at), at === -1 ? '' : url.slice(at + 1), headers)
    this.#state = state
    this.#incoming = incoming
    this.#response = response
    // Whatever goes wrong on the connection ends in 'close'; these say nothing more.
    incoming.on('error', () => {})
    response.on('error', () => {})
    response.on('close', () => this.#onClose())
    this.#exchangesOf(incoming.socket).add(this)
  }

  #exchangesOf(socket: Socket): Set<NodeExchange> {
    const { exchanges } = this.#state
    let those = exchanges.get(socket)
    if (those === undefined) {
      const all = new Set<NodeExchange>()
      those = all
      exchanges.set(socket, all)
      socket.on('close', () => {
        for (const exchange of all) exchange.#onClose()
      })
    }
    return those
  }

  get address(): string {
    return (this.#incoming.socket.remoteAddress ?? '').replace(/^::ffff:(?=\d+\.)/, '')
  }

  readBody(maxBytes: number, reader: BodyReader, shared = false): void {
    const declared = this.bodyLength
    if (declared > maxBytes) return reader.onTooLarge()
    const chunks: Buffer[] = []
    let gathered = shared ? new SharedBody(declared >= 0 ? declared : maxBytes) : undefined
    let size = 0
    this.#incoming.on('data', (chunk: Buffer) => {
      if (size > maxBytes || this.isOver) return
      size += chunk.length
      if (size <= maxBytes) {
        if (gathered === undefined) chunks.push(chunk)
        else gathered.append(chunk)
        return
      }
      chunks.length = 0
      gathered = undefined
      reader.onTooLarge()
    })
    this.#incoming.on('end', () => {
      if (size > maxBytes || this.isOver) return
      if (gathered !== undefined) reader.onBody(gathered.bytes)
      else reader.onBody(chunks.length === 1 ? chunks[0]! : Buffer.concat(chunks))
    })
  }

  send(status: number, id: string, head: Head, body: string | Uint8Array | undefined): void {
    if (this.isOver) return
    if (body === undefined) {
      this.#writeHead(status, id, head)
    } else {
      const size = typeof body === 'string' ? Buffer.byteLength(body) : body.length
      this.#writeHead(status, id, head, size)
      if (size > pieceBytes && this.method !== 'HEAD') {
        return this.#sendPieces(typeof body === 'string' ? Buffer.from(body) : body, 0)
      }
    }
    this.#end(body)
  }

  #end(last: string | Uint8Array | undefined): void {
    this.isOver = true
    this.#state.leaving += 1
    this.#response.end(last)
  }

  #writeHead(status: number, id: string, head: Head, size?: number): void {
    if (this.isLast || this.#state.isDraining) this.#response.shouldKeepAlive = false
    const lines = ['x-request-id', id, ...head.lines]
    if (size !== undefined) lines.push('content-length', String(size))
    this.#response.writeHead(status, lines)
  }

  #sendPieces(bytes: Uint8Array, from: number): void {
    clearTimeout(this.#stall)
    this.#stall = setTimeout(() => this.cut(), this.#state.limits.stallTimeoutMs)
    const piece = bytes.subarray(from, from + pieceBytes)
    const next = from + piece.length
    if (next === bytes.length) this.#response.end(piece)
    else if (this.#response.write(piece)) this.#sendPieces(bytes, next)
    else this.#response.once('drain', () => this.#sendPieces(bytes, next))
  }

  open(status: number, id: string, head: Head): Sink {
    const response = this.#response
    const begin = () => {
      if (!response.headersSent) this.#writeHead(status, id, head)
    }
    return {
      write: (piece) => {
        begin()
        return response.write(piece)
      },
      end: (piece) => {
        begin()
        this.#end(piece)
        this.listener?.onOver()
      },
      onWritable: (listener) => void response.on('drain', listener)
    }
  }

  cut(): void {
    this.#incoming.socket.destroy()
  }

  #onClose(): void {
    if (!this.#exchangesOf(this.#incoming.socket).delete(this)) return
    clearTimeout(this.#stall)
    if (this.isOver) {
      this.#state.leaving -= 1
      if (this.#state.leaving === 0) this.#state.onIdle?.()
    } else {
      this.isOver = true
      this.isGone = !this.#response.writableFinished
      this.listener?.onOver()
    }
  }
}
