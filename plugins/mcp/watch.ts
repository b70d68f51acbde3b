/** A comment of server-sent events. */
const comment = new TextEncoder().encode(':\n\n')

/**
 * The same stream, whose end is told once: that it was read to, that it broke off, or that its reader left. It begins
 * with a comment, since nothing goes out before its first byte, and clients wait for the head of the answer.
 */
export function watch(stream: ReadableStream<Uint8Array>, onEnd: () => void): ReadableStream<Uint8Array> {
  const reader = stream.getReader()
  void reader.closed.then(onEnd, onEnd)
  return new ReadableStream({
    start: (controller) => controller.enqueue(comment),
    async pull(controller) {
      const step = await reader.read()
      if (step.done) controller.close()
      else controller.enqueue(step.value)
    },
    cancel: (reason) => reader.cancel(reason)
  })
}
