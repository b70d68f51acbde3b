import { CodedError, type Lease, type Logger } from '../../kernel/index.ts'
import type { ExecutionResponse, Tools } from '../tools/types.ts'
import { outcomeOf, type RetryRules } from './outcome.ts'
import type { Due, Queue, QueueState, StoredJob } from './queue.ts'
import type { JobWorker } from './types.ts'

/** Time as the worker knows it; tests hold their own. */
export interface Clock {
  /** Unix time in milliseconds. */
  now(): number
  /** @returns calls it off */
  after(delayMs: number, callback: () => void): () => void
}

export const systemClock: Clock = {
  now: Date.now,
  after(delayMs, callback) {
    const timer = setTimeout(callback, delayMs)
    return () => clearTimeout(timer)
  }
}

/** What all generations of the worker share, so that none runs what another one runs, nor too much together. */
export interface WorkerState extends QueueState {
  /** Who takes jobs now. */
  worker: JobWorker | undefined
  /** Tools of the jobs that are running here, by the id of the job. */
  readonly running: Map<string, string>
}

export interface WorkerOptions extends RetryRules {
  readonly queue: Queue
  readonly tools: Tools
  readonly state: WorkerState
  readonly concurrency: number
  readonly leaseMs: number
  readonly clock: Clock
  readonly log: Logger
  /** Holds the generation of the worker. */
  readonly hold: () => Lease
  /** Whether the tools are there that will be: not while the server starts. */
  readonly isReady: () => boolean
}

const forgotten: Pick<ExecutionResponse, 'error' | 'data'> = {
  error: {
    code: 'EXECUTION_UNCERTAIN',
    message: 'a worker began this attempt so long ago that its answer may be gone',
    category: 'conflict',
    recoverable: false,
    retryable: false
  }
}

export interface Worker extends JobWorker {
  /** Takes nothing any more; what runs goes on, and keeps its lease. */
  stop(): void
  /** No timer is left. */
  end(): void
  /** @throws CodedError `WORKER_DOWN` when it could not look for work the last time it tried */
  check(): void
}

/** So far it looks for a job behind those that wait for a tool that takes one call at a time. */
const maxLook = 1_000
/**
 * Answers are replayed for a day unless the program says otherwise. What a worker left behind longer ago may have ended
 * without anybody still knowing it.
 */
const maxAbsenceMs = 12 * 3_600_000
/** After the store has failed. */
const pauseMs = 1_000
/** Longest delay a timer takes. */
const maxDelayMs = 2_147_483_647

/**
 * Runs jobs as they become due: one timer, set to the first of them. A job is held by a lease that is renewed while it
 * runs; who finds one whose lease has ended asks the pipeline with the same request id what became of the attempt.
 */
export function createWorker(options: WorkerOptions): Worker {
  const { queue, tools, state, concurrency, leaseMs, clock, log, hold, isReady } = options
  /** Those that this generation runs. */
  const own = new Set<string>()
  let isStopped = false
  let isLooking = false
  let lookAgain = false
  let fault: unknown
  let cancelTimer = (): void => {}
  let cancelRenewal: (() => void) | undefined

  const isActive = (): boolean => !isStopped && state.worker === worker && isReady()

  function wake(): void {
    lookAgain = true
    if (isLooking) return
    isLooking = true
    // Not within the commit or the transaction that has woken it.
    queueMicrotask(() => void look())
  }

  async function look(): Promise<void> {
    while (lookAgain) {
      lookAgain = false
      cancelTimer()
      if (!isActive()) continue
      const lease = hold()
      try {
        await take()
        fault = undefined
      } catch (error) {
        if (fault === undefined) log.error('the queue of jobs could not be read; it is tried again', { error })
        fault = error
        setTimer(pauseMs)
      } finally {
        lease.release()
      }
    }
    isLooking = false
  }

  function setTimer(delayMs: number): void {
    cancelTimer()
    cancelTimer = clock.after(Math.min(delayMs, maxDelayMs), wake)
  }

  async function take(): Promise<void> {
    const nowMs = clock.now()
    const found: Due[] = []
    const busy = new Set(state.running.values())
    for await (const next of queue.due(maxLook)) {
      if (state.running.has(next.id)) continue
      if (next.dueAtMs > nowMs) {
        setTimer(next.dueAtMs - nowMs)
        break
      }
      // The end of any run wakes.
      if (state.running.size + found.length >= concurrency) break
      // A call that waits for its turn would spend its deadline there.
      if (tools.get(next.tool)?.parallel_safe === false) {
        if (busy.has(next.tool)) continue
        busy.add(next.tool)
      }
      found.push(next)
    }
    const wanted = found.filter(({ id }) => !state.running.has(id)).slice(0, concurrency - state.running.size)
    if (wanted.length === 0 || !isActive()) return
    for (const { id, tool } of wanted) state.running.set(id, tool)
    let claimed: readonly StoredJob[] = []
    try {
      claimed = await queue.claim(wanted, clock.now() + leaseMs)
    } finally {
      for (const { id } of wanted) if (!claimed.some((job) => job.id === id)) state.running.delete(id)
    }
    if (claimed.length < wanted.length) lookAgain = true
    for (const job of claimed) void run(job, hold())
  }

  async function run(job: StoredJob, lease: Lease): Promise<void> {
    const { id, tool, attempts } = job
    own.add(id)
    renewSoon()
    const controller = new AbortController()
    // Nobody will hear the answer: what has begun stays uncertain, and what has not begun never was.
    const abandon = (): void =>
      controller.abort(new CodedError('CLIENT_GONE', 'the worker of this job had to end before it'))
    if (lease.signal.aborted) abandon()
    else lease.signal.addEventListener('abort', abandon)
    try {
      const description = tools.get(tool)
      const response = isForgotten(job) ? forgotten : await execute(job, controller.signal)
      if (controller.signal.aborted && response.error?.code === 'CANCELLED') {
        await queue.abandon(job)
      } else {
        const outcome = outcomeOf(response, description, { attempts, maxAttempts: job.max_attempts }, options)
        await queue.settle(job, outcome)
        if (outcome.status !== 'succeeded') {
          const fields = { job: id, tool, attempt: attempts, status: outcome.status, error_code: response.error?.code }
          log.warn('an attempt of a job did not succeed', fields)
        }
      }
    } catch (error) {
      log.error('the end of a job could not be kept; it is taken up again when its lease ends', { job: id, error })
    } finally {
      lease.signal.removeEventListener('abort', abandon)
      own.delete(id)
      if (own.size === 0) stopRenewal()
      state.running.delete(id)
      lease.release()
      state.worker?.wake()
    }
  }

  async function execute(job: StoredJob, signal: AbortSignal): Promise<Pick<ExecutionResponse, 'error' | 'data'>> {
    const { response } = await tools.execute({
      tool: job.tool,
      arguments: job.arguments,
      requestId: `${job.id}#${job.attempts}`,
      caller: {
        principal: job.principal ?? undefined,
        ...(job.session === null ? {} : { session: job.session }),
        permissions: new Set(job.permissions)
      },
      signal
    })
    return response
  }

  const isForgotten = ({ begun_at_ms }: StoredJob): boolean =>
    begun_at_ms !== null && clock.now() - begun_at_ms > maxAbsenceMs

  function renewSoon(): void {
    if (own.size === 0) return
    cancelRenewal ??= clock.after(Math.ceil(leaseMs / 3), () => {
      cancelRenewal = undefined
      queue
        .renew([...own], clock.now() + leaseMs)
        .catch((error: unknown) => log.warn('the leases of jobs could not be renewed', { error }))
        .finally(renewSoon)
    })
  }

  function stopRenewal(): void {
    cancelRenewal?.()
    cancelRenewal = undefined
  }

  function stop(): void {
    isStopped = true
    cancelTimer()
  }

  const worker: Worker = {
    wake,
    stop,
    end() {
      stop()
      // What was given up does not keep its job.
      own.clear()
      stopRenewal()
    },
    check() {
      if (fault === undefined) return
      throw new CodedError('WORKER_DOWN', 'the queue of jobs could not be read', { cause: fault })
    }
  }
  return worker
}
