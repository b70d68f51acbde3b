import type { Awaitable } from '../../kernel/index.ts'
import type { Transaction } from '../store/types.ts'

/** Who changes what, from where. Texts of any length: long ones are cut. */
export interface AuditChange {
  /** `id` of the principal: `admin_secret`, or the subject of a JWT. */
  readonly actor: string
  /** Peer address of the request. */
  readonly address: string
  /** The `x-request-id` of the answer. */
  readonly requestId?: string
  /** Such as `entry.patch` or `create_tenant`. */
  readonly action: string
  readonly resource: { readonly type: string; readonly id: string }
  /** Names of the fields that change, such as `config.precision`; never their values. */
  readonly fields?: readonly string[]
  /**
   * Values as they were. The log is read by every administrator and kept long, so only what is no secret and can hold
   * none: a quota, never a config.
   */
  readonly before?: unknown
  /** Values as they became, with the same care. */
  readonly after?: unknown
}

/**
 * - `pending`: begun, and not known to have ended
 * - `done`: made
 * - `failed`: tried, and refused or taken back, with the error in the details
 * - `unknown`: the process ended in the middle: made, made in part or not made at all; what it was about tells which
 */
export type AuditStatus = 'pending' | 'done' | 'failed' | 'unknown'

/** What is kept of a change beside its who, what and where. */
export interface AuditDetails {
  readonly fields?: readonly string[]
  readonly before?: unknown
  readonly after?: unknown
  readonly applied?: unknown
  readonly error?: { readonly code: string; readonly message: string }
}

export interface AuditRow {
  /** A UUID that begins with the time: later rows have greater ids, also when the clock goes back. */
  readonly id: string
  /** Unix time in milliseconds. */
  readonly atMs: number
  /** When the status came to be what it is; `null` while `pending`. */
  readonly settledAtMs: number | null
  readonly status: AuditStatus
  readonly actor: string
  readonly address: string
  readonly requestId: string | null
  readonly action: string
  readonly resource: { readonly type: string; readonly id: string }
  readonly details: AuditDetails | null
}

/** Who changed what. Each change is kept as one row. */
export interface Audit {
  /**
   * Adds a row to a transaction that makes the change: both are there, or neither is. Fit for transactions that run
   * again: what an earlier run recorded went with it.
   */
  record(tx: Transaction, change: AuditChange): void
  /**
   * Makes a change whose truth is not in the store: a row `pending` is on disk before `work` begins and settled when it
   * has ended. Answers and fails as `work` does, and when it does: the outcome is written meanwhile. When the row cannot
   * be settled that is logged and made up for later.
   * @param work makes the change; to be recorded as failed it throws. Of a CodedError code and message are kept; of
   * anything else, and of the texts of uncoded causes, nothing: they may hold what should not be kept
   * @param appliedOf what to keep of the result as `applied`: names and flags, with the same care as `after`
   * @throws CodedError `AUDIT_FAILED` when the row could not be written: `work` did not run
   */
  around<R>(change: AuditChange, work: () => Awaitable<R>, appliedOf?: (result: R) => unknown): Promise<R>
  /** Newest first, with the outcomes of all changes that have ended. @param page.offset rows to leave out */
  list(page: { readonly limit: number; readonly offset: number }): Promise<AuditRow[]>
}

declare module '../../kernel/index.ts' {
  interface Services {
    audit: Audit
  }
}
