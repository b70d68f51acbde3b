import { Piscina } from 'piscina'
import { CodedError, type Logger, messageOf } from '../../kernel/index.ts'
import type { Assignment } from './thread.ts'
import type { TaskResult } from './types.ts'

/** How a pool is kept. */
export interface PoolSettings {
  readonly max_threads: number
  /** Tasks that may wait to begin when all threads are at work. */
  readonly max_queue: number
  readonly idle_timeout_ms: number
  readonly max_heap_mb: number
}

export interface PoolLoad {
  readonly waiting: number
  readonly running: number
  readonly threads: number
}

export interface RunHow {
  /** With work that was let in before: it waits in front, and however many wait. */
  readonly goesOn: boolean
  /** Its thread must not be ended. */
  readonly isUnstoppable: boolean
}

/** Threads of one kind, started when there is work and ended when they were idle for a while. */
export interface Pool {
  readonly settings: PoolSettings
  /**
   * @param task its name, for messages
   */
  run(task: string, assignment: Assignment, signal: AbortSignal, how: RunHow): Promise<unknown>
  /** `undefined` before the first task. */
  load(): PoolLoad | undefined
  /** Resolves when all tasks have ended and the threads are gone. No task may come afterwards. */
  close(): Promise<void>
}

const thread = new URL('./thread.js', import.meta.url).href

/** Share of the newest duration in the average, which serves to tell a refused caller when to come back. */
const newest = 0.2

/**
 * Tasks wait here and not in piscina, which gets no more of them than it has threads: its own queue stands still when
 * a thread goes (by abort or crash) and no minimum of threads is asked for.
 *
 * @param now milliseconds, monotonic
 */
export function createPool(name: string, settings: PoolSettings, log: Logger, now: () => number): Pool {
  const begun = new Set<() => void>()
  const fresh = new Set<() => void>()
  const waiting = (): number => begun.size + fresh.size
  let running = 0
  let averageMs = 0
  let threads: Piscina<Assignment, TaskResult<unknown> | undefined> | undefined
  let onIdle: (() => void) | undefined

  function open(): Piscina<Assignment, TaskResult<unknown> | undefined> {
    const opened = new Piscina<Assignment, TaskResult<unknown> | undefined>({
      filename: thread,
      minThreads: 0,
      maxThreads: settings.max_threads,
      idleTimeout: settings.idle_timeout_ms,
      resourceLimits: { maxOldGenerationSizeMb: settings.max_heap_mb },
      // What is preloaded into the main thread (`--import`) would take its time and memory in each thread again.
      execArgv: [],
      recordTiming: false
    })
    // A thread that fails with no task on it: while it starts, or by something a task left behind.
    opened.on('error', (error: unknown) => {
      log.warn('a worker thread failed', { pool: name, error })
      if (opened.threads.length > 0) return
      // Nobody is left to take what was handed over: this ends it with an error, and the next task starts anew.
      threads = undefined
      opened.destroy().catch((error: unknown) => log.error('worker threads did not end', { pool: name, error }))
    })
    return opened
  }

  function start(task: string, assignment: Assignment, signal: AbortSignal, isUnstoppable: boolean): Promise<unknown> {
    if (!isUnstoppable) return work(task, assignment, signal, { signal })
    return new Promise((resolve, reject) => {
      const giveUp = (): void => reject(aborted(task, signal))
      signal.addEventListener('abort', giveUp)
      work(task, assignment, signal, {})
        .then(resolve, reject)
        .finally(() => signal.removeEventListener('abort', giveUp))
    })
  }

  async function work(
    task: string,
    assignment: Assignment,
    signal: AbortSignal,
    options: { readonly signal?: AbortSignal }
  ): Promise<unknown> {
    const startedMs = now()
    running++
    try {
      threads ??= open()
      return valueOf(task, await threads.run(assignment, options))
    } catch (error) {
      throw toCoded(task, error, signal)
    } finally {
      averageMs += (now() - startedMs - averageMs) * (averageMs === 0 ? 1 : newest)
      running--
      startNext()
    }
  }

  function startNext(): void {
    for (const begin of [...begun, ...fresh]) {
      if (running >= settings.max_threads) return
      begin()
    }
    if (running === 0) onIdle?.()
  }

  function toCoded(task: string, error: unknown, signal: AbortSignal): CodedError {
    if (error instanceof CodedError) return error
    if (signal.aborted) return aborted(task, signal)
    if (error instanceof DOMException && error.name === 'DataCloneError') {
      const message = `the input of task '${task}' cannot be copied: ${error.message}`
      return new CodedError('WORKERS_UNCLONABLE', message, { detail: { side: 'input' } })
    }
    log.warn('a worker thread died under its task', { pool: name, task, error })
    return new CodedError('WORKERS_CRASHED', `the thread of task '${task}' died: ${messageOf(error)}`)
  }

  function busy(): CodedError {
    const queueMs = (averageMs * (waiting() + 1)) / settings.max_threads
    return new CodedError('WORKERS_BUSY', `${waiting()} tasks are waiting in pool '${name}', which is all it takes`, {
      detail: { pool: name, retryAfterSeconds: Math.min(60, Math.max(1, Math.ceil(queueMs / 1000))) }
    })
  }

  return {
    settings,
    run(task, assignment, signal, { goesOn, isUnstoppable }) {
      if (signal.aborted) return Promise.reject(aborted(task, signal))
      if (running < settings.max_threads) return start(task, assignment, signal, isUnstoppable)
      if (!goesOn && waiting() >= settings.max_queue) return Promise.reject(busy())
      const queue = goesOn ? begun : fresh
      return new Promise((resolve, reject) => {
        const leave = (): void => {
          queue.delete(begin)
          signal.removeEventListener('abort', giveUp)
        }
        const begin = (): void => {
          leave()
          resolve(start(task, assignment, signal, isUnstoppable))
        }
        const giveUp = (): void => {
          leave()
          reject(aborted(task, signal))
        }
        queue.add(begin)
        signal.addEventListener('abort', giveUp)
      })
    },
    load: () => threads && { waiting: waiting(), running, threads: threads.threads.length },
    async close() {
      if (running > 0) {
        await new Promise<void>((resolve) => {
          onIdle = resolve
        })
      }
      await threads?.destroy()
      threads = undefined
    }
  }
}

function aborted(task: string, signal: AbortSignal): CodedError {
  return new CodedError('WORKERS_ABORTED', `task '${task}' was aborted: ${messageOf(signal.reason)}`, {
    cause: signal.reason
  })
}

function valueOf(task: string, result: TaskResult<unknown> | undefined): unknown {
  if (result?.ok === true) return result.value
  if (result?.ok !== false) throw new CodedError('WORKERS_FAILED', `task '${task}' returned no TaskResult`)
  throw new CodedError(
    result.code,
    result.code === 'WORKERS_FAILED' || result.code === 'WORKERS_UNCLONABLE'
      ? `task '${task}' failed: ${result.message}`
      : result.message,
    result.detail === undefined ? {} : { detail: result.detail }
  )
}
