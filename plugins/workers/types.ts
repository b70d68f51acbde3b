import type {} from '../../kernel/index.ts'

/**
 * A function that runs in worker threads, contributed to `workers.tasks`. The module default-exports
 * `(input) => Awaitable<TaskResult>`; input and output are plain data that can be copied between threads.
 */
export interface WorkerTask {
  /** Unique, such as `auth/hash-password`. */
  readonly name: string
  /** Name of the pool it runs in. */
  readonly pool: string
  /** File URL of the module, such as `new URL('./tasks/hash-password.js', import.meta.url).href`. */
  readonly module: string
  /**
   * Its native code calls back into its thread, as argon2 does: a thread that is ended meanwhile takes the whole process
   * down. Whoever waits for it is told at once when it is aborted; the thread goes on until it is done.
   */
  readonly isUnstoppable?: boolean
  /** What its pool has where the program says nothing, such as for threads that hold much. The first task of a pool decides. */
  readonly poolDefaults?: {
    readonly idleTimeoutMs?: number
    readonly maxHeapMb?: number
    readonly maxOutputMb?: number
  }
}

/** What a task module returns: failures are data, since an Error loses its code between threads. */
export type TaskResult<T> =
  | { readonly ok: true; readonly value: T }
  | { readonly ok: false; readonly code: string; readonly message: string; readonly detail?: Record<string, unknown> }

export interface RunOptions {
  /** Takes a waiting task out of the queue, or ends the thread of a running one that can be stopped. */
  readonly signal?: AbortSignal
  /**
   * Goes on with work that was let in before: ahead of what waits to begin, and never refused. For every task of a piece
   * of work but its first; what was begun would be lost otherwise just when there is too much to do.
   */
  readonly goesOn?: boolean
}

/**
 * Runs plugins' tasks in threads: pools by name, each started on its first task, with a bounded queue.
 *
 * Codes: what a task returned; `WORKERS_UNKNOWN_TASK`; `WORKERS_BUSY` (the queue is full; detail `retryAfterSeconds`);
 * `WORKERS_CRASHED` (the thread died under the task, or held too much and was ended); `WORKERS_ABORTED`;
 * `WORKERS_UNCLONABLE` (input or output cannot be copied between threads; detail `side`: `input` or `output`);
 * `WORKERS_TOO_LARGE` (the output is more than its pool hands over; detail `side` and `maxBytes`); `WORKERS_FAILED` (the
 * task threw). Two tasks of one name are refused at commit with `WORKERS_DUPLICATE_TASK`.
 */
export interface Workers {
  /**
   * @param task a plugin that is leaving can still run its own, as it contributed it: what it began would fail otherwise.
   * By its name, the task of a plugin that is leaving is unknown.
   */
  readonly run: <T>(task: string | WorkerTask, input: unknown, options?: RunOptions) => Promise<T>
  /** Waiting and running tasks of each pool that has started. */
  load(): Readonly<Record<string, { readonly waiting: number; readonly running: number; readonly threads: number }>>
}

declare module '../../kernel/index.ts' {
  interface Services {
    workers: Workers
  }
  interface Contributions {
    'workers.tasks': WorkerTask
  }
}
