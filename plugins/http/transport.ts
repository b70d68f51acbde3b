import { Head } from './heads.ts'
import type { Principal } from './types.ts'

/** Told of the end of an exchange that did not come within {@link Exchange.send}. */
export interface ExchangeListener {
  /** The answer is out, or the client has left ({@link Exchange.isGone}). Called once, and only after `isOver` is set. */
  onOver(): void
}

/** What ES2024 adds, which every Node from 20 on has. */
interface GrowableMemory extends SharedArrayBuffer {
  grow(bytes: number): void
}
const GrowableMemory = SharedArrayBuffer as unknown as new (
  bytes: number,
  options: { readonly maxByteLength: number }
) => GrowableMemory

/**
 * A body that is gathered in memory that threads share: nobody has to copy it again. The memory grows with it, since to
 * fill it all with zeros at once takes as long as a copy.
 */
export class SharedBody {
  readonly #memory: GrowableMemory

  constructor(maxBytes: number) {
    this.#memory = new GrowableMemory(0, { maxByteLength: maxBytes })
  }

  append(chunk: Uint8Array): void {
    const used = this.#memory.byteLength
    this.#memory.grow(used + chunk.byteLength)
    new Uint8Array(this.#memory, used).set(chunk)
  }

  get bytes(): Uint8Array {
    return new Uint8Array(this.#memory)
  }
}

export interface BodyReader {
  /** The whole body. The bytes are borrowed: they are gone when the call returns, unless they are in shared memory. */
  onBody(bytes: Uint8Array): void
  /** It is longer than allowed; what is left of it is thrown away as it comes. */
  onTooLarge(): void
}

/**
 * An answer that is sent piece by piece. At most one `write` or `end` in one turn of the event loop: the older build of
 * uWebSockets.js damages the framing of several writes that it corks together while the socket is full.
 */
export interface Sink {
  /** @returns whether more may come now; if not, wait for {@link onWritable}. The piece is taken either way */
  write(piece: string | Uint8Array): boolean
  /** The last piece (may be empty). */
  end(piece: string | Uint8Array): void
  /** Calls `listener` whenever all that was written has been taken. */
  onWritable(listener: () => void): void
}

const methods = new Set(['GET', 'HEAD', 'POST', 'PUT', 'PATCH', 'DELETE', 'OPTIONS'])
const digits = /^\d{1,15}$/
const slash = 0x2f

/** Whether all of it is visible ASCII. */
function isVisible(text: string): boolean {
  for (let at = 0; at < text.length; at++) {
    const code = text.charCodeAt(at)
    if (code < 0x21 || code > 0x7e) return false
  }
  return true
}

/** One request and the one answer to it, as a transport offers them to the dispatcher. */
export abstract class Exchange {
  readonly method: string
  /** As it came: nothing decoded, nothing normalised. */
  readonly path: string
  /** As it came, without the question mark. */
  readonly search: string
  /** Name, value, name, value, … in the order of arrival; names in lower case. */
  readonly headers: readonly string[]
  /** Declared length of the body in bytes: 0 without a body, -1 when it comes in chunks. Set by {@link admit}. */
  bodyLength = 0
  /** Whether a length or a coding was declared at all. Set by {@link admit}. */
  isFramed = false
  /** The answer is out, or the client is not there any more: nothing may be sent. */
  isOver = false
  /** The client left before it had its answer. */
  isGone = false
  /** The connection is to end with this answer. */
  isLast = false
  listener: ExchangeListener | undefined
  /** Who is calling, where a program hands over requests that it has looked at. */
  trusted: Principal | undefined

  constructor(method: string, path: string, search: string, headers: readonly string[]) {
    this.method = method
    this.path = path
    this.search = search
    this.headers = headers
  }

  /** Address of the peer; empty when it has left. */
  abstract get address(): string
  /** Must be called in the turn in which the request came. Exactly one of the reader's methods is called, or none if the client leaves. */
  /** @param shared asks for a body that comes in pieces to be gathered in shared memory */
  abstract readBody(maxBytes: number, reader: BodyReader, shared?: boolean): void
  /**
   * Answers. The transport adds the id and the framing. A body of `undefined` has no length either: for 204, 304, and
   * HEAD on what would be a stream. The exchange is over when it returns, or, while a large body is still on its way,
   * when {@link ExchangeListener.onOver} is called.
   */
  abstract send(status: number, id: string, head: Head, body: string | Uint8Array | undefined): void
  /** Answers piece by piece. Nothing is sent before the first piece. */
  abstract open(status: number, id: string, head: Head): Sink
  /** Ends the connection at once, so that the client cannot take the answer for whole. */
  abstract cut(): void

  header(name: string): string | undefined {
    const { headers } = this
    let found: string | undefined
    for (let index = 0; index < headers.length; index += 2) {
      const candidate = headers[index] as string
      // Most differ in length, which is seen at once.
      if (candidate.length !== name.length || candidate !== name) continue
      const value = headers[index + 1] as string
      found = found === undefined ? value : `${found}, ${value}`
    }
    return found
  }

  /**
   * Refuses what two readers could frame differently: not exactly one Host, more than one length or coding, a length
   * that is not a plain number, a coding other than `chunked`, both at once (RFC 9112 §3.2, §6.3). To be called before
   * anything is done for the request.
   * @returns the status of the refusal, 0 when there is none
   */
  admit(): 0 | 400 | 501 {
    const { headers } = this
    let hosts = 0
    let lengths = 0
    let codings = 0
    for (let index = 0; index < headers.length; index += 2) {
      const name = headers[index] as string
      switch (name.length) {
        case 4:
          if (name !== 'host') break
          hosts += 1
          if (headers[index + 1] === '') return 400
          break
        case 14: {
          if (name !== 'content-length') break
          lengths += 1
          const value = headers[index + 1] as string
          if (!digits.test(value)) return 400
          this.bodyLength = Number(value)
          break
        }
        case 17:
          if (name !== 'transfer-encoding') break
          codings += 1
          if ((headers[index + 1] as string).toLowerCase() !== 'chunked') return 400
          this.bodyLength = -1
          break
      }
    }
    if (hosts !== 1 || lengths + codings > 1) return 400
    if (this.path.charCodeAt(0) !== slash || !isVisible(this.path) || !isVisible(this.search)) return 400
    this.isFramed = lengths + codings > 0
    return methods.has(this.method) ? 0 : 501
  }
}

/** Takes exchanges one by one, each in the turn in which it came. Never throws. */
export interface Handler {
  handle(exchange: Exchange): void
  /** Answers an exchange that must not be looked at any closer, because its framing is in doubt. */
  refuse(exchange: Exchange, status: 400 | 501 | 505): void
}

/** What a server needs to know that may change while it runs. */
export interface ServerLimits {
  /** Further connections are closed as they come. */
  readonly maxConnections: number
  /** How long a client may leave an answer unread. */
  readonly stallTimeoutMs: number
}

/** A listening socket and its connections. */
export interface Server {
  readonly transport: 'uws' | 'node'
  readonly host: string
  /** The real one, also where 0 was asked for. */
  readonly port: number
  /** Points it at another handler; what the present one has begun stays with it. Before the first, it answers 503. */
  use(handler: Handler, limits: ServerLimits): void
  /** Stops accepting; every connection ends with the answer it waits for, or the next one it asks for. */
  drain(): void
  /** Ends everything, but for answers that have been handed over and are on their way: those get a moment. Harmless when called again. */
  close(): Promise<void>
}

/** Stands in until a server has been pointed at a dispatcher. */
export const notReady: Handler = {
  handle: (exchange) => exchange.send(503, '-', new Head(['retry-after', '1']), ''),
  refuse: (exchange, status) => exchange.send(status, '-', new Head([]), '')
}
