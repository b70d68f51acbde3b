import { toJsonLine } from './json.ts'
import type { Sink } from './transport.ts'
import type { StreamEvent } from './types.ts'

/** Text that may wait for the socket before the producer is asked for more. */
const highWater = 65_536

export interface OutletOptions {
  /** How long the client may leave what was sent unread before it is cut off. */
  readonly stallTimeoutMs: number
  /** Ends the connection of such a client. */
  readonly cut: () => void
  /** For server-sent events: a comment goes out at once if nothing else does, and after each such time of silence. */
  readonly keepAliveIntervalMs: number | undefined
}

const comment = ':\n\n'

/**
 * The sending end of a stream. It gathers what comes within one turn of the event loop into one write, and tells the
 * producer to wait while the socket is full, so what is held is bounded by one batch.
 */
export class Outlet {
  readonly #sink: Sink
  readonly #options: OutletOptions
  #pending: string | Uint8Array = ''
  #isOpen = true
  #isBlocked = false
  #isEnding = false
  #isScheduled = false
  #hasOpened = false
  #keepAlive: NodeJS.Timeout | undefined
  #stall: NodeJS.Timeout | undefined
  #wake: (() => void) | undefined
  #room: Promise<void> | undefined

  constructor(sink: Sink, options: OutletOptions) {
    this.#sink = sink
    this.#options = options
    sink.onWritable(() => {
      this.#isBlocked = false
      clearTimeout(this.#stall)
      this.#flush()
    })
    if (options.keepAliveIntervalMs !== undefined) {
      this.#keepAlive = setInterval(() => this.#comment(), options.keepAliveIntervalMs)
      this.#schedule()
    }
  }

  get isOpen(): boolean {
    return this.#isOpen
  }

  /** Undefined when more is welcome; otherwise resolves when it is, or when the outlet has closed. */
  get room(): Promise<void> | undefined {
    const isFull = typeof this.#pending === 'string' ? this.#pending.length >= highWater : true
    if (!this.#isOpen || !(this.#isBlocked || isFull)) return undefined
    this.#room ??= new Promise((resolve) => {
      this.#wake = resolve
    })
    return this.#room
  }

  /** Adds text; not to be mixed with {@link put}. */
  add(text: string): void {
    if (!this.#isOpen) return
    this.#pending = (this.#pending as string) + text
    this.#schedule()
  }

  /** Adds bytes, which are kept until they are sent; wait for {@link room} after each. */
  put(bytes: Uint8Array): void {
    if (!this.#isOpen || bytes.length === 0) return
    this.#pending = bytes
    this.#schedule()
  }

  /** Takes everything from a feed, then sends the end. Returns early when the outlet closes. */
  async drawFrom(feed: Feed): Promise<void> {
    await feed.pump(this)
    this.#isEnding = true
    this.#schedule()
  }

  /** The connection is gone, or will be: nothing more is sent. */
  close(): void {
    if (!this.#isOpen) return
    this.#isOpen = false
    clearInterval(this.#keepAlive)
    clearTimeout(this.#stall)
    this.#release()
  }

  #schedule(): void {
    if (this.#isScheduled) return
    this.#isScheduled = true
    // Not a microtask: those run inside the transport's own cork, where a second write would be one too many.
    setImmediate(() => {
      this.#isScheduled = false
      this.#flush()
    })
  }

  #flush(): void {
    if (!this.#isOpen || this.#isBlocked) return
    let piece = this.#pending
    this.#pending = ''
    if (this.#isEnding) {
      this.close()
      this.#sink.end(piece)
      return
    }
    if (piece.length === 0 && this.#options.keepAliveIntervalMs !== undefined && !this.#hasOpened) piece = comment
    this.#hasOpened = true
    if (piece.length > 0) {
      this.#keepAlive?.refresh()
      if (!this.#sink.write(piece)) {
        this.#isBlocked = true
        this.#stall = setTimeout(this.#options.cut, this.#options.stallTimeoutMs)
        return
      }
    }
    this.#release()
  }

  #comment(): void {
    if (!this.#isBlocked && this.#pending.length === 0) this.add(comment)
  }

  #release(): void {
    this.#wake?.()
    this.#wake = undefined
    this.#room = undefined
  }
}

/** Where the pieces of a stream come from. */
export interface Feed {
  /** Moves everything into the outlet, as fast as that takes it; resolves at the end, or when the outlet has closed. */
  pump(outlet: Outlet): Promise<void>
  /** Tells the producer that nobody listens any more; resolves when it has ended. Harmless when called again. */
  cancel(): Promise<void>
}

/** Server-sent events (WHATWG HTML, "Server-sent events"). */
export class EventFeed implements Feed {
  readonly #iterator: AsyncIterator<StreamEvent>
  #cancelled: Promise<void> | undefined

  constructor(events: AsyncIterable<StreamEvent>) {
    this.#iterator = events[Symbol.asyncIterator]()
  }

  async pump(outlet: Outlet): Promise<void> {
    while (outlet.isOpen) {
      const step = await this.#iterator.next()
      if (step.done === true) return
      outlet.add(toFrame(step.value))
      const { room } = outlet
      if (room !== undefined) await room
    }
  }

  cancel(): Promise<void> {
    this.#cancelled ??= (async () => {
      await this.#iterator.return?.()
    })()
    return this.#cancelled
  }
}

/** The body of a Fetch `Response`. */
export class BytesFeed implements Feed {
  readonly #reader: ReadableStreamDefaultReader<Uint8Array>
  #cancelled: Promise<void> | undefined

  constructor(body: ReadableStream<Uint8Array>) {
    this.#reader = body.getReader()
  }

  async pump(outlet: Outlet): Promise<void> {
    while (outlet.isOpen) {
      const step = await this.#reader.read()
      if (step.done) return
      outlet.put(step.value)
      const { room } = outlet
      if (room !== undefined) await room
    }
  }

  cancel(): Promise<void> {
    this.#cancelled ??= this.#reader.cancel()
    return this.#cancelled
  }
}

/** @throws TypeError for an event name that would break the frame */
function toFrame({ event, data }: StreamEvent): string {
  const line = `data: ${toJsonLine(data)}\n\n`
  if (event === undefined) return line
  if (/[\r\n\0]/.test(event)) throw new TypeError('the name of an event holds a line break or NUL')
  return `event: ${event}\n${line}`
}
