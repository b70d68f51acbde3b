import type { AuditChange } from '../audit/types.ts'

/** Which administrator asks for a change. */
export type Actor = Pick<AuditChange, 'actor' | 'address' | 'requestId'>

export type Severity = 'critical' | 'warning' | 'info'

/** Something an operator should know of. Times are Unix milliseconds. */
export interface Alert {
  /** Begins with the time. */
  readonly id: string
  readonly severity: Severity
  readonly source: string
  readonly title: string
  readonly message: string
  readonly createdAtMs: number
  /** `null` while nobody has resolved it. */
  readonly resolvedAtMs: number | null
  readonly resolvedBy: string | null
}

export interface NewAlert {
  readonly severity: Severity
  /** Who raises it: the name of a plugin. */
  readonly source: string
  /** What it is about, such as `month/<tenant>`: while one of this source and subject is open, there is no second. */
  readonly subject?: string
  readonly title: string
  /** Read by every administrator: no secret, and no longer than it must be. */
  readonly message: string
}

/** What operators should know of. Codes: `ALERTS_UNKNOWN`. */
export interface Alerts {
  /** @returns the new alert, or the one that is open already */
  raise(alert: NewAlert): Promise<Alert>
  /** Newest first. */
  list(wanted: {
    readonly limit: number
    readonly severity?: Severity | undefined
    readonly resolved?: boolean | undefined
  }): Promise<readonly Alert[]>
  /**
   * One that is resolved stays as it is. Recorded in the audit log, where there is one.
   * @param by shown as who did; left out: the actor
   * @throws CodedError `ALERTS_UNKNOWN`
   */
  resolve(id: string, actor: Actor, by?: string): Promise<Alert>
  /** How many are open. */
  count(): Promise<number>
}

declare module '../../kernel/index.ts' {
  interface Services {
    alerts: Alerts
  }
}
