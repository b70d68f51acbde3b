import { setImmediate } from 'node:timers/promises'
import { isDeepStrictEqual } from 'node:util'
import { type Awaitable, CodedError, isCoded } from '../../kernel/index.ts'
import type { Audit } from '../audit/types.ts'
import type { Key, Store, Transaction, Versioned } from '../store/types.ts'
import type { ToolFailure } from '../tools/types.ts'
import type { Outcome } from './outcome.ts'
import type { Actor, EnqueueRequest, Job, Jobs, JobStatus } from './types.ts'

const jobs = 'jobs.jobs'
/** When a worker has to look, and at which tool: by that time and the id. Of jobs that are queued or running. */
const due = 'jobs.due'
/** Ids of jobs by principal, session and request id. */
const identities = 'jobs.identities'
/** Jobs that may be purged, by the time of their end. */
const ended = 'jobs.ended'
/** Likewise of dead letters, which may not. */
const dead = 'jobs.dead'

/** Longest stretch of looking at jobs, each of which may be a megabyte; between them others get their turn. */
const stretchMs = 5
/** Rows of one transaction of a purge. */
const step = 100
const maxRequestIdBytes = 256
const maxNameChars = 256
const longestYears = 100 * 365 * 86_400_000

/** Stands for "none" in a key: a number, so that no principal or session of any name can be taken for it. */
const none = 0

export interface StoredJob {
  readonly id: string
  readonly tool: string
  readonly arguments: unknown
  readonly request_id: string | null
  readonly principal: string | null
  readonly session: string | null
  readonly permissions: readonly string[]
  readonly by_id_alone: boolean
  readonly status: JobStatus
  readonly attempts: number
  readonly max_attempts: number
  readonly run_at_ms: number
  /** When a worker took the attempt for the first time; `null` before the first one. */
  readonly begun_at_ms: number | null
  /** Its place in `due`: when it may run, or when its lease ends; `null` once it has ended. */
  readonly due_at_ms: number | null
  readonly created_at_ms: number
  readonly ended_at_ms: number | null
  readonly last_error: ToolFailure | null
  readonly result?: unknown
}

/** A place in the queue. */
export interface Due {
  readonly id: string
  readonly tool: string
  readonly dueAtMs: number
}

/** A row of an index: what can be told of a job without reading it. */
interface Row {
  readonly tool: string
  readonly status: JobStatus
  /** Its key in `identities`, where it has ended and has one. */
  readonly identity?: Key | undefined
}

/** What all generations of the queue share. Plain data: the next generation may be other code. */
export interface QueueState {
  /** Jobs that are queued or running; like the other number a little ahead of the store. */
  live: number
  /** Dead letters. */
  dead: number
}

export interface QueueOptions {
  readonly store: Store
  readonly audit: Audit | undefined
  readonly state: QueueState
  readonly maxAttempts: number
  /** Queued and running ones, at most. */
  readonly maxJobs: number
  /** With so many of them no new job is taken. */
  readonly maxDeadLetters: number
  /** Unix time in milliseconds. */
  readonly now: () => number
  readonly randomUUID: () => string
  /** Something may be due. */
  readonly wake: () => void
}

/** The jobs in the store. Every step from one status to another is one transaction. */
export interface Queue extends Jobs {
  /** What is due first comes first. */
  due(limit: number): AsyncIterable<Due>
  /** Takes those that are still due as they were; a queued one begins its next attempt, a lost one has its last again. */
  claim(wanted: readonly Due[], leaseUntilMs: number): Promise<readonly StoredJob[]>
  /** Keeps what is running for longer. */
  renew(ids: readonly string[], leaseUntilMs: number): Promise<void>
  /** Ends the attempt; nothing where somebody else has. */
  settle(job: StoredJob, outcome: Outcome): Promise<void>
  /** Ends the lease now: whoever comes next asks what became of the attempt. */
  abandon(job: StoredJob): Promise<void>
}

/** Counts what a process finds when it starts. */
export async function countJobs(store: Store): Promise<QueueState> {
  const pause = createPauses()
  const count = async (index: string): Promise<number> => {
    let found = 0
    for await (const _ of store.range(index, [])) {
      found += 1
      await pause()
    }
    return found
  }
  return { live: await count(due), dead: await count(dead) }
}

/** @returns lets others have their turn when it has been asked for long enough */
function createPauses(): () => Promise<void> | undefined {
  let sinceMs = performance.now()
  return () =>
    performance.now() - sinceMs < stretchMs
      ? undefined
      : setImmediate().then(() => {
          sinceMs = performance.now()
        })
}

export function createQueue(options: QueueOptions): Queue {
  const { store, audit, state, maxAttempts, maxJobs, maxDeadLetters, now, randomUUID, wake } = options
  let lastIdMs = 0
  /** Writes of new jobs that have a place and may yet give it back. */
  const undecided = new Set<Promise<unknown>>()

  /** After the prefix a UUID of version 7 (RFC 9562 §5.7) that never goes back. */
  function newId(): string {
    lastIdMs = Math.max(now(), lastIdMs + 1)
    const time = lastIdMs.toString(16).padStart(12, '0')
    return `job_${time.slice(0, 8)}-${time.slice(8)}-7${randomUUID().slice(15)}`
  }

  const durably = <R>(work: (tx: Transaction) => Awaitable<R>): Promise<R> => store.atomically(work, { durable: true })

  async function read(tx: Transaction, id: string): Promise<StoredJob | undefined> {
    return isJobId(id) ? (await tx.get<StoredJob>(jobs, [id]))?.value : undefined
  }

  async function need(tx: Transaction, id: string): Promise<StoredJob> {
    const found = await read(tx, id)
    if (found === undefined) throw new CodedError('JOBS_UNKNOWN', 'Job not found')
    return found
  }

  /** Writes a job in its new form, and moves it in the indexes. */
  function write(tx: Transaction, was: StoredJob | undefined, is: StoredJob): void {
    for (const [index, key] of placesOf(was)) tx.remove(index, key)
    for (const [index, key] of placesOf(is)) tx.put(index, key, rowOf(is))
    tx.put(jobs, [is.id], is)
  }

  function record(tx: Transaction, action: string, { id, tool, status }: StoredJob, actor: Actor | undefined): void {
    if (actor === undefined) return
    audit?.record(tx, { ...actor, action, resource: { type: 'job', id }, before: { status }, after: { tool } })
  }

  function find(id: string): Awaitable<Job | undefined> {
    if (!isJobId(id)) return undefined
    const found = store.get<StoredJob>(jobs, [id])
    const show = (stored: Versioned<StoredJob> | undefined): Job | undefined => stored && toJob(stored.value)
    return found instanceof Promise ? found.then(show) : show(found)
  }

  /** @returns the job that has its request id already; else `undefined`, and the job is on disk */
  async function add(job: StoredJob): Promise<StoredJob | undefined> {
    for (;;) {
      const place = { isTaken: false }
      const writing = durably((tx) => addTo(tx, job, place))
      const decided = writing.then(
        (present) => present === undefined,
        () => false
      )
      // Told before anybody who waits for it looks again.
      const settled = decided.then((isAdded) => {
        undecided.delete(settled)
        if (place.isTaken && !isAdded) state.live -= 1
      })
      undecided.add(settled)
      try {
        return await writing
      } catch (error) {
        await settled
        if (!isCoded(error, 'JOBS_CAPACITY') || undecided.size === 0) throw error
        // A place that is taken for what is there already is free again at once.
        await Promise.race(undecided)
      }
    }
  }

  /** @param place is taken once, however often the transaction runs */
  async function addTo(tx: Transaction, job: StoredJob, place: { isTaken: boolean }): Promise<StoredJob | undefined> {
    const identity = identityOf(job)
    const held = identity && (await tx.get<string>(identities, identity))
    const holder = held && (await read(tx, held.value))
    if (holder !== undefined && holder.status !== 'cancelled') return holder
    if (!place.isTaken) {
      if (state.live >= maxJobs) throw full(`${maxJobs} jobs are waiting already`)
      if (state.dead >= maxDeadLetters) throw full(`an operator has to look at ${maxDeadLetters} dead letters first`)
      state.live += 1
      place.isTaken = true
    }
    write(tx, undefined, job)
    if (identity !== undefined) tx.put(identities, identity, job.id)
    return undefined
  }

  async function* newest(limit: number): AsyncIterable<StoredJob> {
    for await (const [, { value }] of store.range<StoredJob>(jobs, [], { reverse: true, limit })) yield value
  }

  /** Those that live, newest first; those that have ended, the one that ended last first. */
  async function* allOf(
    status: JobStatus,
    limit: number,
    pause: () => Promise<void> | undefined
  ): AsyncIterable<StoredJob> {
    const isLive = status === 'queued' || status === 'running'
    const index = isLive ? due : status === 'dead_lettered' ? dead : ended
    const ids: string[] = []
    for await (const [[, id], { value }] of store.range<Row>(index, [], { reverse: true })) {
      if (index === dead || value.status === status) ids.push(String(id))
      if (!isLive && ids.length === limit) break
      await pause()
    }
    // They stand there by the time at which they are due; of ids the greater one is newer.
    if (isLive) ids.sort((a, b) => (a < b ? 1 : -1))
    for (const id of ids.slice(0, limit)) {
      const stored = await store.get<StoredJob>(jobs, [id])
      // What has changed meanwhile is no longer what was asked for.
      if (stored?.value.status === status) yield stored.value
    }
  }

  return {
    get: find,

    async enqueue(request) {
      const job = createJob(request, newId(), now(), maxAttempts)
      const present = await add(job)
      if (present === undefined) {
        wake()
        return toJob(job)
      }
      if (present.tool !== job.tool || !isDeepStrictEqual(present.arguments, job.arguments)) {
        throw new CodedError('JOBS_CONFLICT', 'the request id belongs to another job: another tool, or other arguments')
      }
      return toJob(present)
    },

    async list({ limit, status }) {
      const found: Job[] = []
      const pause = createPauses()
      for await (const job of status === undefined ? newest(limit) : allOf(status, limit, pause)) {
        const { result: _, ...listed } = toJob(job)
        found.push(listed)
        await pause()
      }
      return found
    },

    async cancel(id, actor) {
      const cancelled = await durably(async (tx) => {
        const job = await need(tx, id)
        if (job.status !== 'queued') {
          throw new CodedError('JOBS_STARTED', `the job is ${job.status}; only one that is queued can be cancelled`)
        }
        const next: StoredJob = { ...job, status: 'cancelled', due_at_ms: null, ended_at_ms: now() }
        write(tx, job, next)
        record(tx, 'cancel_job', job, actor)
        return next
      })
      state.live -= 1
      return toJob(cancelled)
    },

    async retry(id, actor) {
      let wasDead = false
      const queued = await durably(async (tx) => {
        const job = await need(tx, id)
        wasDead = job.status === 'dead_lettered'
        if (job.status !== 'dead_lettered' && job.status !== 'failed') {
          throw new CodedError(
            'JOBS_NOT_ENDED',
            `the job is ${job.status}; only a dead letter or a failed job is retried`
          )
        }
        const at = now()
        const next: StoredJob = {
          ...job,
          status: 'queued',
          max_attempts: job.attempts + maxAttempts,
          run_at_ms: at,
          due_at_ms: at,
          ended_at_ms: null
        }
        write(tx, job, next)
        record(tx, 'retry_job', job, actor)
        return next
      })
      if (wasDead) state.dead -= 1
      state.live += 1
      wake()
      return toJob(queued)
    },

    async discard(id, actor) {
      const discarded = await durably(async (tx) => {
        const job = await need(tx, id)
        if (job.status !== 'dead_lettered') {
          throw new CodedError('JOBS_NOT_ENDED', `the job is ${job.status}; only a dead letter is discarded`)
        }
        const next: StoredJob = { ...job, status: 'failed', ended_at_ms: now() }
        write(tx, job, next)
        record(tx, 'discard_job', job, actor)
        return next
      })
      state.dead -= 1
      return toJob(discarded)
    },

    async purge(endedBeforeMs) {
      let purged = 0
      const purgeSome = (): Promise<number> =>
        store.atomically(async (tx) => {
          let removed = 0
          for await (const [key, { value }] of tx.range<Row>(ended, [], { limit: step })) {
            const [endedAtMs, id] = key as [number, string]
            if (endedAtMs >= endedBeforeMs) break
            tx.remove(ended, key)
            tx.remove(jobs, [id])
            const { identity } = value
            if (identity !== undefined && (await tx.get<string>(identities, identity))?.value === id) {
              tx.remove(identities, identity)
            }
            removed += 1
          }
          return removed
        })
      for (;;) {
        const removed = await purgeSome()
        purged += removed
        if (removed < step) return purged
        await setImmediate()
      }
    },

    async *due(limit) {
      for await (const [[dueAtMs, id], { value }] of store.range<Row>(due, [], { limit })) {
        yield { dueAtMs: dueAtMs as number, id: id as string, tool: value.tool }
      }
    },

    claim: (wanted, leaseUntilMs) =>
      durably(async (tx) => {
        const claimed: StoredJob[] = []
        for (const { id, dueAtMs } of wanted) {
          const job = await read(tx, id)
          if (job?.due_at_ms !== dueAtMs) {
            // Somebody was faster, and the place is gone; or it is nobody's, and would be found for ever.
            tx.remove(due, [dueAtMs, id])
            continue
          }
          const begun = job.status === 'queued' ? { attempts: job.attempts + 1, begun_at_ms: now() } : {}
          const next: StoredJob = { ...job, ...begun, status: 'running', due_at_ms: leaseUntilMs }
          write(tx, job, next)
          claimed.push(next)
        }
        return claimed
      }),

    renew: (ids, leaseUntilMs) =>
      durably(async (tx) => {
        for (const id of ids) {
          const job = await read(tx, id)
          if (job?.status === 'running') write(tx, job, { ...job, due_at_ms: leaseUntilMs })
        }
      }),

    async settle(job, outcome) {
      const isDead = outcome.status === 'dead_lettered'
      let isSettled = false
      if (isDead) state.dead += 1
      try {
        isSettled = await durably(async (tx) => {
          const present = await read(tx, job.id)
          if (present?.status !== 'running' || present.attempts !== job.attempts) return false
          write(tx, present, after(present, outcome, now()))
          return true
        })
      } finally {
        if (isDead && !isSettled) state.dead -= 1
      }
      if (isSettled && outcome.status !== 'queued') state.live -= 1
    },

    abandon: (job) =>
      durably(async (tx) => {
        const present = await read(tx, job.id)
        if (present?.status !== 'running' || present.attempts !== job.attempts) return
        write(tx, present, { ...present, due_at_ms: now() })
      })
  }
}

/** @throws CodedError `JOBS_INVALID` */
function createJob(request: EnqueueRequest, id: string, nowMs: number, maxAttempts: number): StoredJob {
  const { tool, caller, requestId, byIdAlone = false } = request
  const runAtMs = request.atMs ?? nowMs + (request.afterMs ?? 0)
  if (!Number.isFinite(runAtMs) || Math.abs(runAtMs - nowMs) > longestYears) throw invalid('the time is none')
  if (requestId !== undefined && !isRequestId(requestId)) {
    throw invalid(`the request id has to be 1 to ${maxRequestIdBytes} bytes of Unicode text`)
  }
  if (typeof tool !== 'string' || tool === '' || tool.length > maxNameChars) throw invalid('the tool has no name')
  return {
    id,
    tool,
    // As the store will give it back, so that it can be compared.
    arguments: JSON.parse(JSON.stringify(request.arguments ?? {})) as unknown,
    request_id: requestId ?? null,
    principal: caller.principal ?? null,
    session: caller.session ?? null,
    permissions: [...(caller.permissions ?? [])],
    by_id_alone: byIdAlone,
    status: 'queued',
    attempts: 0,
    max_attempts: maxAttempts,
    run_at_ms: Math.max(runAtMs, nowMs),
    begun_at_ms: null,
    due_at_ms: Math.max(runAtMs, nowMs),
    created_at_ms: nowMs,
    ended_at_ms: null,
    last_error: null
  }
}

function after(job: StoredJob, outcome: Outcome, nowMs: number): StoredJob {
  switch (outcome.status) {
    case 'succeeded':
      return {
        ...job,
        status: 'succeeded',
        due_at_ms: null,
        ended_at_ms: nowMs,
        last_error: null,
        result: outcome.result
      }
    case 'queued': {
      const runAtMs = nowMs + outcome.delayMs
      return { ...job, status: 'queued', run_at_ms: runAtMs, due_at_ms: runAtMs, last_error: outcome.error }
    }
    default:
      return { ...job, status: outcome.status, due_at_ms: null, ended_at_ms: nowMs, last_error: outcome.error }
  }
}

/** Where a job stands in the indexes. */
function placesOf(job: StoredJob | undefined): readonly (readonly [index: string, key: Key])[] {
  if (job === undefined) return []
  if (job.due_at_ms !== null) return [[due, [job.due_at_ms, job.id]]]
  return [[job.status === 'dead_lettered' ? dead : ended, [job.ended_at_ms ?? 0, job.id]]]
}

function rowOf(job: StoredJob): Row {
  const { tool, status } = job
  const identity = job.due_at_ms === null ? identityOf(job) : undefined
  return identity === undefined ? { tool, status } : { tool, status, identity }
}

function identityOf({ principal, session, request_id }: StoredJob): Key | undefined {
  return request_id === null ? undefined : [principal ?? none, session ?? none, request_id]
}

function toJob(stored: StoredJob): Job {
  return {
    id: stored.id,
    tool: stored.tool,
    status: stored.status,
    requestId: stored.request_id,
    principal: stored.principal,
    byIdAlone: stored.by_id_alone,
    attempts: stored.attempts,
    maxAttempts: stored.max_attempts,
    runAtMs: stored.run_at_ms,
    createdAtMs: stored.created_at_ms,
    endedAtMs: stored.ended_at_ms,
    lastError: stored.last_error,
    ...(stored.status === 'succeeded' ? { result: stored.result } : {})
  }
}

/** Anything else is no key worth looking for. */
function isJobId(id: string): boolean {
  return /^job_[\w-]{1,64}$/.test(id)
}

/** Well-formed, since half a surrogate pair has no bytes of its own to be told apart by. */
function isRequestId(requestId: string): boolean {
  if (requestId.length === 0 || requestId.length > maxRequestIdBytes) return false
  return Buffer.byteLength(requestId) <= maxRequestIdBytes && !/\p{Surrogate}/u.test(requestId)
}

function invalid(message: string): CodedError {
  return new CodedError('JOBS_INVALID', message)
}

function full(why: string): CodedError {
  return new CodedError('JOBS_CAPACITY', `no more jobs are taken now: ${why}`, { detail: { retryAfterSeconds: 10 } })
}
