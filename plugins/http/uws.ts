import { CodedError, messageOf } from '../../kernel/index.ts'
import type { Head } from './heads.ts'
import { statusText } from './problems.ts'
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
import type { MountTarget } from './types.ts'

/** The part of uWebSockets.js used here, so that the project compiles where the package is missing. */
interface UwsRequest {
  getUrl(): string
  getQuery(): string | undefined
  getCaseSensitiveMethod(): string
  forEach(visit: (name: string, value: string) => void): void
}

interface UwsResponse {
  writeStatus(status: string): UwsResponse
  write(chunk: string | Uint8Array): boolean
  end(body: string | Uint8Array, closeConnection: boolean): UwsResponse
  endWithoutBody(): UwsResponse
  tryEnd(body: Uint8Array, totalSize: number): [isTaken: boolean, isDone: boolean]
  close(): UwsResponse
  cork(write: () => void): UwsResponse
  onAborted(handler: () => void): UwsResponse
  onData(handler: (chunk: ArrayBuffer, isLast: boolean) => void): UwsResponse
  onWritable(handler: (offset: number) => boolean): UwsResponse
  getRemoteAddress(): ArrayBuffer
}

interface UwsApp {
  any(pattern: string, handler: (response: UwsResponse, request: UwsRequest) => void): UwsApp
  filter(handler: (response: UwsResponse, change: number) => void): UwsApp
  listen(host: string, port: number, options: number, done: (token: object | false) => void): UwsApp
  close(): UwsApp
}

interface Uws {
  App(): UwsApp
  us_socket_local_port(token: object): number
  us_listen_socket_close(token: object): void
}

export interface LoadedUws {
  readonly module: Uws
  /** The package holds two servers; the one for Node 20 is several years older than the others. */
  readonly isOlderBuild: boolean
}

/** Without it two processes share a port, and each gets a part of the requests. */
const exclusivePort = 1
/** What the library gathers into one write by itself; for a larger answer it must be asked when it is out. */
const corkBytes = 16_384
/**
 * Loads the package.
 * @throws CodedError `HTTP_TRANSPORT_MISSING` when it is not installed, or has no build for this system
 */
export async function loadUws(): Promise<LoadedUws> {
  // Room for heads as large as node:http allows; 4 KiB is the default. Read once, when the package is loaded.
  process.env['UWS_HTTP_MAX_HEADERS_SIZE'] ??= '16384'
  let module: Uws
  try {
    // @ts-ignore: not there in every installation, and typed above
    module = ((await import('uWebSockets.js')) as { readonly default: Uws }).default
  } catch (cause) {
    throw new CodedError('HTTP_TRANSPORT_MISSING', `uWebSockets.js does not load here: ${messageOf(cause)}`, { cause })
  }
  return { module, isOlderBuild: !('getDescriptor' in module.App()) }
}

/** @returns undefined when it cannot listen there; the library does not say why */
export function listenUws({ module: uws, isOlderBuild }: LoadedUws, host: string, port: number): Server | undefined {
  const state = initialState(isOlderBuild)
  let connections = 0
  let token: object | false = false
  const app = uws
    .App()
    .any('/*', (response, request) => receive(state, response, request))
    .filter((response, change) => {
      connections += change
      if (change > 0 && connections > state.limits.maxConnections) response.close()
    })
    .listen(host, port, exclusivePort, (given) => {
      token = given
    })
  if (token === false) return undefined
  const listening: object = token
  const drain = () => {
    if (state.isDraining) return
    state.isDraining = true
    uws.us_listen_socket_close(listening)
  }
  return {
    transport: 'uws',
    host,
    port: uws.us_socket_local_port(listening),
    use(handler, limits) {
      state.handler = handler
      state.limits = limits
    },
    drain,
    async close() {
      drain()
      // Not from within one of its own callbacks, whose answer would not be out yet.
      await new Promise((resolve) => setImmediate(resolve))
      app.close()
    }
  }
}

/** Answers on paths of an app that is somebody else's. */
export function mountUws(app: MountTarget, patterns: readonly string[]): Pick<Server, 'use'> {
  const state = initialState(!('getDescriptor' in app))
  for (const pattern of patterns) {
    app.any(pattern, (response: UwsResponse, request: UwsRequest) => receive(state, response, request))
  }
  return {
    use(handler, limits) {
      state.handler = handler
      state.limits = limits
    }
  }
}

function initialState(isOlderBuild: boolean): State {
  return {
    toPiece: isOlderBuild ? (body) => body : toUtf8,
    handler: notReady,
    limits: { maxConnections: Number.POSITIVE_INFINITY, stallTimeoutMs: 0 },
    isDraining: false,
    corked: undefined
  }
}

function receive(state: State, response: UwsResponse, request: UwsRequest): void {
  let exchange: UwsExchange | undefined
  // First of all: an exchange that ends without this handler takes the whole process with it.
  response.onAborted(() => exchange?.leave())
  try {
    exchange = new UwsExchange(state, response, request)
    take(state, exchange)
  } catch (error) {
    // Handlers do not throw. Should one, its client would wait for ever.
    if (exchange?.isOver !== true) response.close()
    throw error
  } finally {
    state.corked = undefined
  }
}

function take(state: State, exchange: UwsExchange): void {
  const refusal = exchange.admit()
  if (refusal !== 0) {
    // An answer that is given at once does not keep a second request in the same segment from being answered too.
    exchange.isLast = true
    setImmediate(() => {
      if (!exchange.isOver) state.handler.refuse(exchange, refusal)
    })
  } else if (!exchange.isFramed && /^P(?:OST|UT|ATCH)$/.test(exchange.method)) {
    // A header without a name hides those behind it from the parser, lengths among them. What follows may then be a
    // body: nothing is done for this request if something does follow, and the connection ends with its answer.
    exchange.isLast = true
    setImmediate(() => {
      if (!exchange.isOver) state.handler.handle(exchange)
    })
  } else {
    state.corked = exchange
    state.handler.handle(exchange)
  }
}

interface State {
  handler: Handler
  limits: ServerLimits
  isDraining: boolean
  /** What the library can be given as a part of a body. */
  readonly toPiece: (body: string | Uint8Array) => string | Uint8Array
  /** The exchange in whose callback we are: the library gathers what is written to it by itself. */
  corked: UwsExchange | undefined
}

class UwsExchange extends Exchange {
  readonly #state: State
  readonly #response: UwsResponse
  #stall: NodeJS.Timeout | undefined

  constructor(state: State, response: UwsResponse, request: UwsRequest) {
    const headers: string[] = []
    request.forEach((name, value) => {
      headers.push(name, value)
    })
    super(request.getCaseSensitiveMethod(), request.getUrl(), request.getQuery() ?? '', headers)
    this.#state = state
    this.#response = response
  }

  get address(): string {
    return this.isOver ? '' : toAddress(new Uint8Array(this.#response.getRemoteAddress()))
  }

  readBody(maxBytes: number, reader: BodyReader, shared = false): void {
    const declared = this.bodyLength
    if (declared > maxBytes) return reader.onTooLarge()
    let buffer: Uint8Array | undefined
    let gathered = shared ? new SharedBody(declared >= 0 ? declared : maxBytes) : undefined
    let used = 0
    this.#response.onData((chunk, isLast) => {
      if (this.isOver || used > maxBytes) return
      const size = used + chunk.byteLength
      this.#state.corked = this
      if (size > maxBytes) {
        used = size
        buffer = undefined
        gathered = undefined
        reader.onTooLarge()
      } else if (isLast && used === 0) {
        reader.onBody(new Uint8Array(chunk))
      } else if (gathered !== undefined) {
        gathered.append(new Uint8Array(chunk))
        used = size
        if (isLast) reader.onBody(gathered.bytes)
      } else {
        buffer = grown(buffer, used, size, declared, maxBytes)
        buffer.set(new Uint8Array(chunk), used)
        used = size
        if (isLast) reader.onBody(buffer.subarray(0, used))
      }
      this.#state.corked = undefined
    })
  }

  send(status: number, id: string, head: Head, body: string | Uint8Array | undefined): void {
    if (this.isOver) return
    const text = toHead(status, id, head)
    if (this.#state.corked === this) this.#write(text, body)
    else this.#response.cork(() => this.#write(text, body))
  }

  #write(head: string, body: string | Uint8Array | undefined): void {
    const response = this.#response
    const isLast = this.isLast || this.#state.isDraining
    if (body === undefined) {
      // With arguments this call invents a length; without, it cannot close: the client is asked to.
      response.writeStatus(isLast ? head + connectionClose : head).endWithoutBody()
    } else if (this.method === 'HEAD') {
      const size = typeof body === 'string' ? Buffer.byteLength(body) : body.length
      if (isLast) response.writeStatus(head).end('', true)
      else response.writeStatus(`${head}\r\ncontent-length: ${size}`).endWithoutBody()
    } else if (body.length > corkBytes) {
      response.writeStatus(isLast ? head + connectionClose : head)
      this.#sendLarge(typeof body === 'string' ? Buffer.from(body) : body)
      return
    } else {
      response.writeStatus(head).end(this.#state.toPiece(body), isLast)
    }
    this.isOver = true
  }

  /** As much as the socket takes, and the rest when it takes more. */
  #sendLarge(bytes: Uint8Array): void {
    const response = this.#response
    const send = (offset: number) => {
      clearTimeout(this.#stall)
      const [isTaken, isDone] = response.tryEnd(bytes.subarray(offset), bytes.length)
      if (isDone) this.isOver = true
      else this.#stall = setTimeout(() => this.cut(), this.#state.limits.stallTimeoutMs)
      return isTaken
    }
    response.onWritable((offset) => {
      const isTaken = send(offset)
      if (this.isOver) this.listener?.onOver()
      return isTaken
    })
    send(0)
  }

  open(status: number, id: string, head: Head): Sink {
    const response = this.#response
    let hasBegun = false
    const begin = () => {
      if (!hasBegun) response.writeStatus(toHead(status, id, head))
      hasBegun = true
    }
    const { toPiece } = this.#state
    return {
      write: (piece) => {
        let isWelcome = true
        response.cork(() => {
          begin()
          isWelcome = response.write(toPiece(piece))
        })
        return isWelcome
      },
      end: (piece) => {
        response.cork(() => {
          begin()
          // To close with it would write a header into the middle of the body.
          response.end(toPiece(piece), false)
        })
        this.isOver = true
        this.listener?.onOver()
      },
      onWritable(listener) {
        response.onWritable(() => {
          listener()
          return true
        })
      }
    }
  }

  cut(): void {
    if (!this.isOver) this.#response.close()
  }

  /** The client is gone, or was cut off. */
  leave(): void {
    if (this.isOver) return
    clearTimeout(this.#stall)
    this.isGone = true
    this.isOver = true
    this.listener?.onOver()
  }
}

const connectionClose = '\r\nconnection: close'

/**
 * Status line and headers in one text: each call into the library costs a quarter of a microsecond, as much as all of
 * routing. Names and values were checked where they came in; none holds CR or LF.
 */
function toHead(status: number, id: string, head: Head): string {
  return `${statusText(status)}\r\nx-request-id: ${id}${head.text}`
}

/** The newer build sends a string that fits into one byte a character as just that, Latin-1. */
function toUtf8(body: string | Uint8Array): string | Uint8Array {
  return typeof body === 'string' && Buffer.byteLength(body) !== body.length ? Buffer.from(body) : body
}

/** Room for `size` bytes; the first `used` are kept. */
function grown(
  buffer: Uint8Array | undefined,
  used: number,
  size: number,
  declared: number,
  maxBytes: number
): Uint8Array {
  if (buffer === undefined) return Buffer.allocUnsafeSlow(declared >= 0 ? declared : Math.max(corkBytes, 2 * size))
  if (size <= buffer.length) return buffer
  const larger = Buffer.allocUnsafeSlow(Math.min(maxBytes, Math.max(2 * buffer.length, size)))
  larger.set(buffer.subarray(0, used))
  return larger
}

/** As node:http would show it. */
function toAddress(bytes: Uint8Array): string {
  if (bytes.length === 4) return bytes.join('.')
  const isMapped = bytes.subarray(0, 10).every((byte) => byte === 0) && bytes[10] === 255 && bytes[11] === 255
  if (isMapped) return bytes.subarray(12).join('.')
  const groups = Array.from({ length: 8 }, (_, at) =>
    (((bytes[2 * at] ?? 0) << 8) | (bytes[2 * at + 1] ?? 0)).toString(16)
  )
  // The shortest form, by the parser of URLs.
  return new URL(`http://[${groups.join(':')}]`).hostname.slice(1, -1)
}
