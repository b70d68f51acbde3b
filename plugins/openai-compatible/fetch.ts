import { CodedError } from '../../kernel/index.ts'

/** How a streamed answer ended, as far as its bytes tell. */
export interface Ending {
  /** The line `data: [DONE]` has arrived. */
  done: boolean
}

/** Far above what a model answers, and a bound for a server that does not end. */
const maxAnswerBytes = 64 * 1024 * 1024

const doneLine = /(?:^|[\r\n])data: ?\[DONE\]/
const doneChars = 'x\ndata: [DONE]'.length

/**
 * `fetch` for one call of a model: it gives up after `silenceMs` without a byte, follows no redirect (a key is meant
 * for one host), and ends the body at `[DONE]`, which some servers send without closing.
 */
export function createModelFetch(silenceMs: number, ending: Ending): typeof fetch {
  return async (input, init) => {
    const controller = new AbortController()
    const caller = init?.signal
    const leave = (): void => controller.abort(caller?.reason)
    const timer = setTimeout(() => {
      controller.abort(new CodedError('CHAT_PROVIDER_TIMEOUT', `the provider was silent for ${silenceMs} ms`))
    }, silenceMs)
    if (caller?.aborted) leave()
    caller?.addEventListener('abort', leave)
    const settle = (): void => {
      clearTimeout(timer)
      caller?.removeEventListener('abort', leave)
    }
    try {
      const response = await fetch(input, { ...init, redirect: 'manual', signal: controller.signal })
      timer.refresh()
      if (response.body === null) {
        settle()
        return response
      }
      const body = watch(response.body, () => timer.refresh(), settle, ending)
      return new Response(body, { status: response.status, statusText: response.statusText, headers: response.headers })
    } catch (error) {
      settle()
      throw controller.signal.aborted ? controller.signal.reason : error
    }
  }
}

function watch(
  body: ReadableStream<Uint8Array>,
  onBytes: () => void,
  onEnd: () => void,
  ending: Ending
): ReadableStream<Uint8Array> {
  const reader = body.getReader()
  let tail = ''
  let received = 0
  return new ReadableStream<Uint8Array>({
    async pull(controller) {
      try {
        const { done, value } = await reader.read()
        onBytes()
        if (done) {
          onEnd()
          controller.close()
          return
        }
        received += value.byteLength
        if (received > maxAnswerBytes) {
          await reader.cancel()
          throw new CodedError('CHAT_PROVIDER_FAILED', `the answer is longer than ${maxAnswerBytes} bytes`)
        }
        controller.enqueue(value)
        tail += Buffer.from(value.buffer, value.byteOffset, value.byteLength).toString('latin1')
        ending.done = doneLine.test(tail)
        tail = tail.slice(-doneChars)
        if (!ending.done) return
        onEnd()
        controller.close()
        // What follows is at most the end of the body, and reading it keeps the connection for the next call.
        const rest = await reader.read()
        if (!rest.done) await reader.cancel()
      } catch (error) {
        onEnd()
        controller.error(error)
      }
    },
    cancel(reason) {
      onEnd()
      return reader.cancel(reason)
    }
  })
}
