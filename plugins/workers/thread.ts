import type { TaskResult } from './types.ts'

/** What a pool sends to one of its threads. */
export interface Assignment {
  /** URL of the task's module. */
  readonly module: string
  readonly input: unknown
}

/**
 * Runs in the threads: loads the task's module (once a thread) and calls it. Never throws, since what is thrown across
 * threads loses its code, and what cannot be copied takes the whole thread down.
 */
export default async function runTask({ module, input }: Assignment): Promise<TaskResult<unknown>> {
  let result: TaskResult<unknown>
  try {
    const { default: task } = (await import(module)) as { default: (input: unknown) => Promise<TaskResult<unknown>> }
    result = await task(input)
  } catch (error) {
    return failure('WORKERS_FAILED', error)
  }
  try {
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
  return { ok: false, code, message: error instanceof Error ? error.message : typeof error }
}
