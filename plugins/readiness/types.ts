import type { Awaitable } from '../../kernel/index.ts'

/** Something without which this server should get no requests, contributed to `readiness.checks`. */
export interface ReadinessCheck {
  /** Stands in the answer of `GET /ready`, which anybody may read. Two of one name are one check. */
  readonly name: string
  /**
   * Rejects when it is not ready; of a CodedError the code is shown, of anything else nothing.
   * @param signal fires when the time is over
   */
  check(signal: AbortSignal): Awaitable<void>
}

declare module '../../kernel/index.ts' {
  interface Contributions {
    'readiness.checks': ReadinessCheck
  }
}
