import type { StreamEvent } from '../http/types.ts'
import type { Awaitable } from '../../kernel/index.ts'
import type { Execution, ExecutionEvent } from '../tools/types.ts'

/** As many reports wait for a slow reader; of more, only the newest. */
const maxWaiting = 1_000

/**
 * Starts an execution and yields what it tells: its events, and as the last one its answer.
 * @param start calls the listener for each event, in order
 */
export function streamExecution(
  start: (listener: (event: ExecutionEvent) => void) => Awaitable<Execution>
): AsyncIterable<StreamEvent> {
  const waiting: StreamEvent[] = []
  let wake = (): void => {}
  const execution = start((event) => {
    if (event.event === 'tool.progress' && waiting.length >= maxWaiting) waiting.pop()
    waiting.push(event)
    wake()
  })
  return yieldAll()

  async function* yieldAll(): AsyncGenerator<StreamEvent, void> {
    let answer: Execution | undefined
    const answered = Promise.resolve(execution).then((value) => {
      answer = value
    })
    while (true) {
      const next = waiting.shift()
      if (next !== undefined) yield next
      else if (answer !== undefined) break
      else {
        const told = new Promise<void>((resolve) => {
          wake = resolve
        })
        await Promise.race([told, answered])
      }
    }
    yield { event: 'execution.completed', data: { ...answer.response, replayed: answer.replayed } }
  }
}
