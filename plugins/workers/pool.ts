import { Piscina } from 'piscina'
import { CodedError, type Logger, messageOf } from '../../kernel/index.ts'
import type { Assignment } from './thread.ts'
import type { TaskResult } from './types.ts'
import type { Watch } from './watch.ts'

/** How a pool is kept. */
export interface PoolSettings {
  readonly max_threads: number
  /** Tasks that may wait to begin when all threads are at work. */
  readonly max_queue: number
  readonly idle_timeout_ms: number
  /** What one thread may hold: JavaScript heap and buffers. */
  readonly max_heap_mb: number
  /** About what the copy of an output may take. */
  readonly max_output_mb: number
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
  run(task: string, work: Work, signal: AbortSignal, how: RunHow): Promise<unknown>
  /** `undefined` before the first task. */
  load(): PoolLoad | undefined
  /** Resolves when all tasks have ended and the threads are gone. No task may come afterwards. */
  close(): Promise<void>
}

/** Why a thread is ended from here. */
class HeldTooMuch extends Error {}

/** What a task is to do. */
export type Work = Pick<Assignment, 'module' | 'input'>

const thread = new URL('./thread.js', import.meta.url).href

/** Share of the newest duration in the average, which serves to tell a refused caller when to come back. */
const newest = 0.2

/**
 * Where V8 itself ends a thread, above what is watched. There a single thing that does not fit, such as a list that
 * grows, ends the whole process; the largest that V8 makes are a gigabyte.
 */
const spareMb = 1_536

const mebibyte = 1_048_576

/**
 * Tasks wait here and not in piscina, which gets no more of them than it has threads: its own queue stands still when
 * a thread goes (by abort or crash) and no minimum of threads is asked for.
 *
 * @param watch where it is left out, V8 alone ends a thread that holds too much
 * @param now milliseconds, monotonic
 */
export function createPool(
  name: string,
  settings: PoolSettings,
  watch: Watch | undefined,
  log: Logger,
  now: () => number
): Pool {
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
      resourceLimits: { maxOldGenerationSizeMb: settings.max_heap_mb + (watch === undefined ? 0 : spareMb) },
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

  function start(task: string, assignment: Work, signal: AbortSignal, isUnstoppable: boolean): Promise<unknown> {
    if (!isUnstoppable) return workStoppably(task, assignment, signal)
    return new Promise((resolve, reject) => {
      const giveUp = (): void => reject(aborted(task, signal))
      signal.addEventListener('abort', giveUp)
      work(task, assignment, '', signal, {})
        .then(resolve, reject)
        .finally(() => signal.removeEventListener('abort', giveUp))
    })
  }

  /** Until the signal fires, or its thread is found to hold too much. */
  async function workStoppably(task: string, assignment: Work, signal: AbortSignal): Promise<unknown> {
    const controller = new AbortController()
    const stop = (): void => controller.abort(signal.reason)
    signal.addEventListener('abort', stop)
    const id = watch?.begin((bytes) => controller.abort(tooMuch(bytes))) ?? ''
    try {
      return await work(task, assignment, id, controller.signal, { signal: controller.signal })
    } finally {
      signal.removeEventListener('abort', stop)
      watch?.end(id)
    }
  }

  async function work(
    task: string,
    assignment: Work,
    id: string,
    signal: AbortSignal,
    options: { readonly signal?: AbortSignal }
  ): Promise<unknown> {
    const startedMs = now()
    running++
    try {
      threads ??= open()
      const maxHeldBytes = settings.max_heap_mb * mebibyte
      const whole = { ...assignment, id, maxHeldBytes, maxOutputBytes: settings.max_output_mb * mebibyte }
      return valueOf(task, await threads.run(whole, options))
    } catch (error) {
      throw toCoded(task, error, signal)
    } finally {
      averageMs += (now() - startedMs - averageMs) * (averageMs === 0 ? 1 : newest)
      running--
      startNext()
    }
  }

  function tooMuch(bytes: number): HeldTooMuch {
    const allowed = `at most ${settings.max_heap_mb} are allowed (max_heap_mb of pool '${name}')`
    return new HeldTooMuch(`it held ${Math.ceil(bytes / mebibyte)} MB, ${allowed}`)
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
    if (signal.reason instanceof HeldTooMuch) return died(task, signal.reason)
    if (signal.aborted) return aborted(task, signal)
    if (error instanceof DOMException && error.name === 'DataCloneError') {
      const message = `the input of task '${task}' cannot be copied: ${error.message}`
      return new CodedError('WORKERS_UNCLONABLE', message, { detail: { side: 'input' } })
    }
    return died(task, error)
  }

  function died(task: string, error: unknown): CodedError {
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
    /^WORKERS_(FAILED|UNCLONABLE|TOO_LARGE)$/.test(result.code)
      ? `task '${task}' failed: ${result.message}`
      : result.message,
    result.detail === undefined ? {} : { detail: result.detail }
  )
}
