import type { Head } from './heads.ts'
import { type BodyReader, Exchange, type Sink } from './transport.ts'
import type { FetchOptions } from './types.ts'

/** Statuses whose answer has no body. */
const bodiless: ReadonlySet<number> = new Set([101, 204, 205, 304])

/** A Web `Request` of the program that this server is a part of, and the Web `Response` to it. */
export class FetchExchange extends Exchange {
  readonly address: string
  readonly response: Promise<Response>
  readonly #request: Request
  #settle: (response: Response) => void = () => {}
  #fail: (error: unknown) => void = () => {}
  /** Of an answer that is on its way. */
  #stream: ReadableStreamDefaultController<Uint8Array> | undefined
  readonly #onAbort = () => this.#leave(this.#request.signal.reason)

  constructor(request: Request, { address, principal }: FetchOptions) {
    const { pathname, search, host } = new URL(request.url)
    const headers = [...request.headers].flat()
    if (!request.headers.has('host')) headers.push('host', host)
    super(request.method, pathname, search.slice(1), headers)
    this.#request = request
    this.address = address ?? ''
    this.trusted = principal
    // A body of a Request may have any length, known only once it has been read.
    this.bodyLength = request.body === null ? 0 : -1
    this.isFramed = request.body !== null
    this.response = new Promise((resolve, reject) => {
      this.#settle = resolve
      this.#fail = reject
    })
    // The caller may have left before it came; the handler sees that as a client that is gone.
    if (request.signal.aborted) queueMicrotask(this.#onAbort)
    else request.signal.addEventListener('abort', this.#onAbort, { once: true })
  }

  readBody(maxBytes: number, reader: BodyReader): void {
    void this.#read(maxBytes).then(
      (bytes) => {
        if (this.isOver) return
        if (bytes === undefined) reader.onTooLarge()
        else reader.onBody(bytes)
      },
      (error: unknown) => this.#leave(error)
    )
  }

  /** @returns `undefined` when it is longer than allowed */
  async #read(maxBytes: number): Promise<Uint8Array | undefined> {
    const pieces: Uint8Array[] = []
    let size = 0
    for await (const piece of this.#request.body as ReadableStream<Uint8Array>) {
      size += piece.length
      if (size > maxBytes) return undefined
      pieces.push(piece)
    }
    return Buffer.concat(pieces)
  }

  send(status: number, id: string, head: Head, body: string | Uint8Array | undefined): void {
    if (this.isOver) return
    const isEmpty = body === undefined || this.method === 'HEAD' || bodiless.has(status)
    this.#end()
    this.#settle(
      new Response(isEmpty ? null : (body as string | Uint8Array<ArrayBuffer>), {
        status,
        headers: toHeaders(id, head)
      })
    )
  }

  open(status: number, id: string, head: Head): Sink {
    let onWritable = (): void => {}
    const body = new ReadableStream<Uint8Array>({
      start: (controller) => {
        this.#stream = controller
      },
      pull: () => onWritable(),
      cancel: (reason) => this.#leave(reason)
    })
    const put = (piece: string | Uint8Array) => {
      if (piece.length > 0) this.#stream?.enqueue(typeof piece === 'string' ? Buffer.from(piece) : piece)
    }
    let hasBegun = false
    const begin = () => {
      if (!hasBegun) this.#settle(new Response(body, { status, headers: toHeaders(id, head) }))
      hasBegun = true
    }
    return {
      write: (piece) => {
        if (this.isOver) return true
        begin()
        put(piece)
        return (this.#stream?.desiredSize ?? 0) > 0
      },
      end: (piece) => {
        if (this.isOver) return
        begin()
        put(piece)
        this.#stream?.close()
        this.#end()
        this.listener?.onOver()
      },
      onWritable: (listener) => {
        onWritable = listener
      }
    }
  }

  cut(): void {
    this.#leave(new Error('the answer was cut off'))
  }

  #leave(reason: unknown): void {
    if (this.isOver) return
    this.isGone = true
    this.#end()
    // One of them is heard: a promise that is settled, and a stream that was cancelled, ignore it.
    this.#fail(reason)
    this.#stream?.error(reason)
    this.listener?.onOver()
  }

  #end(): void {
    this.isOver = true
    this.#request.signal.removeEventListener('abort', this.#onAbort)
  }
}

function toHeaders(id: string, { lines }: Head): Headers {
  const headers = new Headers([['x-request-id', id]])
  for (let at = 0; at < lines.length; at += 2) headers.append(lines[at] as string, lines[at + 1] as string)
  return headers
}
