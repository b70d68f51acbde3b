import { once } from 'node:events'
import { createServer, type IncomingHttpHeaders, type ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'
import { performance } from 'node:perf_hooks'
import { setTimeout as sleep } from 'node:timers/promises'

/**
 * One thing the server does with an answer.
 * - `write`: one TCP write
 * - `bytes`: one TCP write for each byte
 * - `wait`: nothing until the test says so
 * - `delayMs`: nothing for a while, where no signal can do
 * - `reset`: ends the connection with a TCP reset
 * - `cut`: closes the connection in the middle of the body
 */
export type Step =
  | { readonly write: string | Uint8Array }
  | { readonly bytes: string }
  | { readonly wait: Promise<unknown> }
  | { readonly delayMs: number }
  | { readonly reset: true }
  | { readonly cut: true }

/**
 * An answer as data. The head goes out with the first byte of the body, so what comes before is without an answer. After
 * the last step the body ends as HTTP wants it, unless the connection has ended before.
 */
export interface Script {
  /** 200 when left out. */
  readonly status?: number
  /** `text/event-stream` when left out; `application/json` when the status is no success. */
  readonly contentType?: string
  readonly headers?: Readonly<Record<string, string>>
  readonly steps: readonly Step[]
}

interface ToolCall {
  readonly id: string
  readonly type: 'function'
  readonly function: { readonly name: string; readonly arguments: string }
}

export interface ChatMessage {
  readonly role: 'system' | 'user' | 'assistant' | 'tool'
  readonly content: string | null
  readonly tool_calls?: readonly ToolCall[]
  readonly tool_call_id?: string
}

/** A request as it came. */
export interface ModelRequest {
  readonly path: string
  readonly headers: IncomingHttpHeaders
  readonly body: {
    readonly model: string
    readonly messages: readonly ChatMessage[]
    readonly stream?: boolean
    readonly tools?: readonly {
      readonly type: 'function'
      readonly function: { readonly name: string; readonly description?: string; readonly parameters: unknown }
    }[]
  }
  /** Resolves when the answer has been sent whole, or its reader has left before. Milliseconds of `performance.now()`. */
  readonly closed: Promise<{ readonly whole: boolean; readonly atMs: number }>
}

export interface ModelServer {
  /** For `base_url`: `http://127.0.0.1:<port>/v1`. */
  readonly baseUrl: string
  /** All requests so far, oldest first. */
  readonly requests: readonly ModelRequest[]
  /** The next requests get these answers, one each, in this order. */
  enqueue(...scripts: readonly Script[]): void
  /** Resolves with the request of that number, counted from 0, once it has come. */
  request(index: number): Promise<ModelRequest>
  close(): Promise<void>
}

/** One frame with a piece of text. */
export function delta(content: string): string {
  return frame({ choices: [{ index: 0, delta: { content } }] })
}

/** One frame with a piece of a tool call. */
export function toolCallDelta(index: number, piece: { id?: string; name?: string; arguments?: string }): string {
  const { id, ...called } = piece
  const call = { index, ...(id === undefined ? {} : { id, type: 'function' }), function: called }
  return frame({ choices: [{ index: 0, delta: { tool_calls: [call] } }] })
}

/** The frame that says why the answer ends, and the one with the usage when there is one to report. */
export function finish(reason: 'stop' | 'tool_calls' | 'length' = 'stop', usage?: Usage): string {
  const last = frame({ choices: [{ index: 0, delta: {}, finish_reason: reason }] })
  return usage === undefined ? last : last + frame({ choices: [], usage: toWire(usage) })
}

export const doneMark = 'data: [DONE]\n\n'

/** The finish frame and the end mark. */
export const end: Step = { write: finish() + doneMark }

export function frame(chunk: object): string {
  return `data: ${JSON.stringify({ id: 'chatcmpl-1', object: 'chat.completion.chunk', created: 1, model: 'm', ...chunk })}\n\n`
}

export interface Usage {
  readonly input: number
  readonly output: number
}

/** What a model says in one answer. */
export interface Says {
  readonly text?: string
  /** The id is `call_<index>` when left out; a string as arguments is sent as it is. */
  readonly calls?: readonly { readonly id?: string; readonly name: string; readonly arguments: unknown }[]
  readonly usage?: Usage
}

/** An answer as a stream, or as one body. */
export function say(streamed: boolean, says: Says): Script {
  const { text = '', usage } = says
  const calls = (says.calls ?? []).map((call, index) => ({
    id: call.id ?? `call_${index}`,
    name: call.name,
    input: typeof call.arguments === 'string' ? call.arguments : JSON.stringify(call.arguments)
  }))
  const reason = calls.length > 0 ? 'tool_calls' : 'stop'
  if (!streamed) {
    const message = {
      role: 'assistant',
      content: text === '' ? null : text,
      ...(calls.length === 0
        ? {}
        : {
            tool_calls: calls.map(({ id, name, input }) => ({
              id,
              type: 'function',
              function: { name, arguments: input }
            }))
          })
    }
    return json(200, {
      id: 'chatcmpl-1',
      object: 'chat.completion',
      created: 1,
      model: 'm',
      choices: [{ index: 0, message, finish_reason: reason }],
      ...(usage === undefined ? {} : { usage: toWire(usage) })
    })
  }
  const middle = Math.ceil(text.length / 2)
  const texts = text === '' ? [] : [text.slice(0, middle), text.slice(middle)].filter((piece) => piece !== '')
  const pieces = texts.map(delta)
  for (const [index, { id, name, input }] of calls.entries()) {
    const third = Math.ceil(input.length / 3)
    pieces.push(
      toolCallDelta(index, { id, name, arguments: '' }),
      toolCallDelta(index, { arguments: input.slice(0, third) }),
      toolCallDelta(index, { arguments: input.slice(third, 2 * third) }),
      toolCallDelta(index, { arguments: input.slice(2 * third) })
    )
  }
  return { steps: [...pieces.map((write) => ({ write })), { write: finish(reason, usage) + doneMark }] }
}

/** The script, with a step before it. */
export function after(step: Step, script: Script): Script {
  return { ...script, steps: [step, ...script.steps] }
}

/** One JSON body. */
export function json(status: number, body: unknown): Script {
  return { status, contentType: 'application/json', steps: [{ write: JSON.stringify(body) }] }
}

const usage: Usage = { input: 10, output: 5 }

/**
 * The stand-in models. `mock-router` answers with the word after `route:`, else `product`. Every other model answers
 * `ECHO: <last user text>`, but: `FAIL` is status 500, `SLOW` takes 2 s, `CALC` calls the calculator once (2 + 3) and
 * then says `RESULT 5`, `LOOPTOOL` calls it for ever.
 */
export function standIn({ body: { model, messages, stream = false } }: ModelRequest): Script {
  const text = messages.findLast((message) => message.role === 'user')?.content ?? ''
  if (model === 'mock-router') return say(stream, { text: /route:(\S+)/.exec(text)?.[1] ?? 'product', usage })
  const input = { operation: 'add', a: 2, b: 3 }
  const call = { id: `call_${messages.length}`, name: 'calculator', arguments: input }
  switch (text) {
    case 'FAIL':
      return json(500, { error: { message: 'the stand-in fails as told', type: 'server_error' } })
    case 'CALC':
      return say(stream, messages.at(-1)?.role === 'tool' ? { text: 'RESULT 5', usage } : { calls: [call], usage })
    case 'LOOPTOOL':
      return say(stream, { calls: [call], usage })
    case 'SLOW':
      return after({ delayMs: 2_000 }, say(stream, { text: `ECHO: ${text}`, usage }))
    default:
      return say(stream, { text: `ECHO: ${text}`, usage })
  }
}

/**
 * A server of language models on 127.0.0.1 that does exactly what it is told: scripts first, then `answer` for every
 * request that has none.
 */
export async function startModelServer(answer: (request: ModelRequest) => Script = standIn): Promise<ModelServer> {
  const requests: ModelRequest[] = []
  const scripts: Script[] = []
  let onRequest: (() => void)[] = []

  const server = createServer((message, response) => {
    const chunks: Buffer[] = []
    message.on('data', (chunk: Buffer) => chunks.push(chunk))
    message.on('end', () => {
      const request: ModelRequest = {
        path: message.url ?? '',
        headers: message.headers,
        body: JSON.parse(Buffer.concat(chunks).toString()) as ModelRequest['body'],
        closed: once(response, 'close').then(() => ({ whole: response.writableFinished, atMs: performance.now() }))
      }
      requests.push(request)
      for (const resolve of onRequest) resolve()
      onRequest = []
      const script = scripts.shift() ?? answer(request)
      play(script, response).catch((error: unknown) => response.destroy(error as Error))
    })
  })
  server.listen(0, '127.0.0.1')
  await once(server, 'listening')
  const { port } = server.address() as AddressInfo

  return {
    baseUrl: `http://127.0.0.1:${port}/v1`,
    requests,
    enqueue: (...more) => void scripts.push(...more),
    async request(index) {
      while (requests.length <= index) await new Promise<void>((resolve) => onRequest.push(resolve))
      return requests[index] as ModelRequest
    },
    async close() {
      server.closeAllConnections()
      server.close()
      await once(server, 'close')
    }
  }
}

async function play(script: Script, response: ServerResponse): Promise<void> {
  const status = script.status ?? 200
  const contentType = script.contentType ?? (status < 300 ? 'text/event-stream' : 'application/json')
  response.socket?.setNoDelay(true)
  response.writeHead(status, { 'content-type': contentType, ...script.headers })
  for (const step of script.steps) {
    if (response.destroyed) return
    if ('write' in step) await send(response, step.write)
    else if ('bytes' in step) for (const byte of Buffer.from(step.bytes)) await send(response, Uint8Array.of(byte))
    else if ('wait' in step) await step.wait
    else if ('delayMs' in step) await sleep(step.delayMs)
    else if ('reset' in step) response.socket?.resetAndDestroy()
    else response.socket?.destroySoon()
  }
  if (!response.destroyed && response.socket?.writable) response.end()
}

/** Resolves when the bytes have been handed to the socket, so that the next ones are a write of their own. */
function send(response: ServerResponse, bytes: string | Uint8Array): Promise<void> {
  return new Promise((resolve) => {
    response.write(bytes, () => resolve())
  })
}

function toWire({ input, output }: Usage): object {
  return { prompt_tokens: input, completion_tokens: output, total_tokens: input + output }
}
