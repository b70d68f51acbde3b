import type { Awaitable } from '../../kernel/index.ts'

export type StatName = 'total_tenants' | 'total_agents' | 'total_runs_today' | 'total_tokens_today' | 'active_alerts'

/** A part of one number of `GET /api/admin/stats`, contributed to `stats`. Days are those of UTC. */
export interface Stat {
  readonly name: StatName
  /** Asked whenever somebody looks: a whole number. */
  value(): Awaitable<number>
}

declare module '../../kernel/index.ts' {
  interface Contributions {
    stats: Stat
  }
}
