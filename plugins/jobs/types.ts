import type { Awaitable } from '../../kernel/index.ts'
import type { AuditChange } from '../audit/types.ts'
import type { Caller, ToolFailure } from '../tools/types.ts'

/** Which administrator asks for a change. */
export type Actor = Pick<AuditChange, 'actor' | 'address' | 'requestId'>

/**
 * - `queued`: waits for its time, or for a worker
 * - `running`: a worker has it, until its lease ends
 * - `succeeded`; `failed`: the tool said no, and would say it again
 * - `dead_lettered`: nobody knows what an attempt did, or every attempt failed; an operator has to look
 * - `cancelled`: taken back while it was queued
 */
export type JobStatus = 'queued' | 'running' | 'succeeded' | 'failed' | 'dead_lettered' | 'cancelled'

/** A call of a tool that is made later, and made again where that is safe. Times are Unix milliseconds. */
export interface Job {
  /** `job_` and opaque text that cannot be guessed; later ones are greater. */
  readonly id: string
  readonly tool: string
  readonly status: JobStatus
  /** What it is recognised by when it is asked for again. */
  readonly requestId: string | null
  readonly principal: string | null
  /** Whoever knows its id may see it; else only its principal. */
  readonly byIdAlone: boolean
  /** Begun so far. Attempt `n` calls the tool with the request id `<id>#<n>`. */
  readonly attempts: number
  readonly maxAttempts: number
  /** When its last attempt was due, or its next one is. */
  readonly runAtMs: number
  readonly createdAtMs: number
  readonly endedAtMs: number | null
  readonly lastError: ToolFailure | null
  /** Output of the tool, once it has succeeded; not in lists. */
  readonly result?: unknown
}

export interface EnqueueRequest {
  readonly tool: string
  /** Plain JSON; `{}` when left out. */
  readonly arguments?: unknown
  /** As whom the tool is called. What it is permitted is kept as it is now. */
  readonly caller: Caller
  /**
   * 1 to 256 bytes. A job keeps it for its caller until it is purged or cancelled: who asks for the same again gets that
   * job.
   */
  readonly requestId?: string | undefined
  /** Unix time in milliseconds; at once when left out. */
  readonly atMs?: number | undefined
  /** Instead of `atMs`, counted from now. */
  readonly afterMs?: number | undefined
  readonly byIdAlone?: boolean | undefined
}

/**
 * Calls of tools that survive the process: each goes through the pipeline of `tools`, and is made again only where that
 * cannot do twice what should be done once.
 *
 * Codes: `JOBS_INVALID`, `JOBS_CONFLICT` (the request id belongs to another call), `JOBS_CAPACITY` (detail
 * `retryAfterSeconds`), `JOBS_UNKNOWN`, `JOBS_STARTED` (too late to cancel), `JOBS_NOT_ENDED` (nothing to retry or discard).
 */
export interface Jobs {
  /** Resolves once it is on disk. @returns the new job, or the one that has the request id already */
  enqueue(request: EnqueueRequest): Promise<Job>
  get(id: string): Awaitable<Job | undefined>
  /** Newest first; of one status that is an end, the one that ended last first. */
  list(wanted: { readonly limit: number; readonly status?: JobStatus | undefined }): Promise<readonly Job[]>
  /** Only while it is queued. Recorded in the audit log, where there is one, when an administrator asks. */
  cancel(id: string, actor?: Actor): Promise<Job>
  /** Lets one that failed or was dead-lettered run again: an attempt with a request id of its own. Recorded likewise. */
  retry(id: string, actor?: Actor): Promise<Job>
  /** Makes a dead letter that somebody has looked at a failed job, which is purged in time. Recorded likewise. */
  discard(id: string, actor?: Actor): Promise<Job>
  /** Removes what ended before that time; dead letters stay. @returns how many went */
  purge(endedBeforeMs: number): Promise<number>
}

/** Who takes jobs out of the queue. It is here so long as its generation is. */
export interface JobWorker {
  /** Something may be due. */
  wake(): void
}

declare module '../../kernel/index.ts' {
  interface Services {
    jobs: Jobs
  }
  interface Contributions {
    /** Contributed and collected by `jobs` alone: which of its generations works. */
    'jobs.workers': JobWorker
  }
}
