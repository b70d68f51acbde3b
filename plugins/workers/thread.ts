import { getHeapStatistics, setFlagsFromString } from 'node:v8'
import { runInNewContext } from 'node:vm'
import { copiedBytes } from './size.ts'
import type { TaskResult } from './types.ts'

/** What a pool sends to one of its threads. */
export interface Assignment {
  /** Of the watch; empty where nobody watches. */
  readonly id: string
  /** URL of the task's module. */
  readonly module: string
  readonly input: unknown
  /** What the thread may hold. */
  readonly maxHeldBytes: number
  /** About what the copy of the output may take. */
  readonly maxOutputBytes: number
}

/** What a thread holds, JavaScript heap and buffers, where that is more than it may; and the assignment it is at. */
export interface Excess {
  readonly id: string
  readonly bytes: number
}

/** Longest message of a failure, in UTF-16 units. */
const maxMessageChars = 10_000

/** What is kept of a thread, where the watch finds it. */
interface Thread {
  current: Assignment | undefined
  /** Called in the middle of whatever a task does. */
  excess(): Excess | undefined
}

/** Without an argument everything is looked through, with any only what is young. */
type CollectGarbage = (how?: { readonly type: 'minor' }) => void

/**
 * Runs in the threads: loads the task's module (once a thread) and calls it. Never throws, since what is thrown across
 * threads loses its code, and what cannot be copied takes the whole thread down.
 */
export default async function runTask(assignment: Assignment): Promise<TaskResult<unknown>> {
  const here = globalThis as { heartwoodThread?: Thread }
  const thread = (here.heartwoodThread ??= createThread())
  thread.current = assignment
  try {
    return await resultOf(assignment)
  } finally {
    thread.current = undefined
  }
}

function createThread(): Thread {
  setFlagsFromString('--expose-gc')
  const collectGarbage = runInNewContext('gc') as CollectGarbage
  return {
    current: undefined,
    excess() {
      if (this.current === undefined || heldBytes() <= this.current.maxHeldBytes) return undefined
      // Garbage is no reason to end a thread. Buffers that were let go of are given back beside the first collection,
      // and are gone when the next one begins.
      collectGarbage()
      collectGarbage({ type: 'minor' })
      const bytes = heldBytes()
      return bytes > this.current.maxHeldBytes ? { id: this.current.id, bytes } : undefined
    }
  }
}

function heldBytes(): number {
  const { used_heap_size, external_memory } = getHeapStatistics()
  return used_heap_size + external_memory
}

async function resultOf({ module, input, maxOutputBytes }: Assignment): Promise<TaskResult<unknown>> {
  let result: TaskResult<unknown>
  try {
    const { default: task } = (await import(module)) as { default: (input: unknown) => Promise<TaskResult<unknown>> }
    result = await task(input)
  } catch (error) {
    return failure('WORKERS_FAILED', error)
  }
  try {
    const bytes = copiedBytes(result, maxOutputBytes)
    if (bytes > maxOutputBytes) {
      const message = `its output takes ${bytes} bytes or more, at most ${maxOutputBytes} are allowed (max_output_mb of its pool)`
      return { ok: false, code: 'WORKERS_TOO_LARGE', message, detail: { side: 'output', maxBytes: maxOutputBytes } }
    }
    assertClonable(result)
  } catch (error) {
    return { ...failure('WORKERS_UNCLONABLE', error), detail: { side: 'output' } }
  }
  return result
}

/** Writes it for another thread and lets nobody read it: a copy in this heap, twice the size, may be the end of the process. */
function assertClonable(value: unknown): void {
  const { port1 } = new MessageChannel()
  try {
    port1.postMessage(value)
  } finally {
    port1.close()
  }
}

function failure(code: string, error: unknown): TaskResult<never> & { readonly ok: false } {
  const message: unknown = error instanceof Error ? error.message : typeof error
  if (typeof message !== 'string') return { ok: false, code, message: typeof error }
  // Not a part of it: to take one writes out the whole.
  if (message.length > maxMessageChars) return { ok: false, code, message: `a text of ${message.length} characters` }
  return { ok: false, code, message }
}
