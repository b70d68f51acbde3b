import type { Head } from './heads.ts'
import { type BodyReader, Exchange, type Sink } from './transport.ts'
import type { DispatchReply, DispatchRequest } from './types.ts'

/** A request made in process: the same way through everything but a socket. */
export class LocalExchange extends Exchange {
  readonly address = '127.0.0.1'
  readonly reply: Promise<DispatchReply>
  readonly #body: Uint8Array
  #settle: (reply: DispatchReply) => void = () => {}
  #fail: (error: unknown) => void = () => {}

  constructor(request: DispatchRequest) {
    const at = request.path.indexOf('?')
    const path = at === -1 ? request.path : request.path.slice(0, at)
    const { body, type } = toBytes(request.body)
    const headers = Object.entries(request.headers ?? {}).flatMap(([name, value]) => [name.toLowerCase(), value])
    if (type !== undefined && !headers.includes('content-type')) headers.push('content-type', type)
    super(request.method, path, at === -1 ? '' : request.path.slice(at + 1), headers)
    this.#body = body
    this.bodyLength = body.length
    this.reply = new Promise((resolve, reject) => {
      this.#settle = resolve
      this.#fail = reject
    })
    const { signal } = request
    if (signal === undefined) return
    const leave = () => {
      if (this.isOver) return
      this.#fail(signal.reason)
      this.cut()
    }
    // The caller may have left before it came; the handler sees that as a client that is gone.
    if (signal.aborted) queueMicrotask(leave)
    else signal.addEventListener('abort', leave, { once: true })
  }

  readBody(maxBytes: number, reader: BodyReader): void {
    if (this.#body.length > maxBytes) reader.onTooLarge()
    else reader.onBody(this.#body)
  }

  send(status: number, id: string, head: Head, body: string | Uint8Array | undefined): void {
    this.isOver = true
    this.#settle(toReply(status, ['x-request-id', id, ...head.lines], this.method === 'HEAD' ? '' : (body ?? '')))
  }

  open(status: number, id: string, head: Head): Sink {
    const pieces: Buffer[] = []
    return {
      write: (piece) => {
        if (!this.isOver) pieces.push(Buffer.from(piece as Uint8Array))
        return true
      },
      end: (piece) => {
        if (this.isOver) return
        pieces.push(Buffer.from(piece as Uint8Array))
        this.send(status, id, head, Buffer.concat(pieces))
        this.listener?.onOver()
      },
      // There is always room.
      onWritable: () => {}
    }
  }

  cut(): void {
    if (this.isOver) return
    this.isOver = true
    this.isGone = true
    this.#fail(new Error('the answer was cut off'))
    this.listener?.onOver()
  }
}

function toBytes(body: unknown): { readonly body: Uint8Array; readonly type: string | undefined } {
  if (body === undefined) return { body: new Uint8Array(0), type: undefined }
  if (body instanceof Uint8Array) return { body, type: undefined }
  if (typeof body === 'string') return { body: Buffer.from(body), type: undefined }
  return { body: Buffer.from(JSON.stringify(body)), type: 'application/json' }
}

function toReply(status: number, head: readonly string[], body: string | Uint8Array): DispatchReply {
  const headers: Record<string, string> = {}
  for (let index = 0; index < head.length; index += 2) {
    const name = head[index] as string
    const value = head[index + 1] as string
    headers[name] = headers[name] === undefined ? value : `${headers[name]}, ${value}`
  }
  const text = typeof body === 'string' ? body : Buffer.from(body).toString()
  const isJson = headers['content-type']?.includes('json') === true
  return { status, headers, body: text === '' ? undefined : isJson ? (JSON.parse(text) as unknown) : text }
}
