import type { Awaitable } from '../../kernel/index.ts'
import type { Reader, Transaction } from '../store/types.ts'

export type Tier = 'free' | 'dev' | 'pro' | 'enterprise'

/** How much a tenant may use; `null` is no limit. Months and days are those of UTC. */
export interface Limits {
  readonly requestsPerMonth: number | null
  readonly requestsPerDay: number | null
  readonly tokensPerMonth: number | null
  /** Agents of its own. */
  readonly agents: number | null
}

export interface Tenant {
  readonly id: string
  readonly name: string
  readonly tier: Tier
  /** The tier's, but for those the tenant was given of its own. */
  readonly limits: Limits
  /** Unix time in milliseconds. */
  readonly createdAtMs: number
  /** How often its data was deleted. */
  readonly purges: number
}

/** What was counted in one month or one day. */
export interface Usage {
  readonly requests: number
  readonly tokens: number
}

/** One day that something was counted on. */
export interface DayUsage extends Usage {
  /** `YYYY-MM-DD`, UTC. */
  readonly day: string
}

/** The month and the day of one moment. Unix times in milliseconds. */
export interface Period {
  /** `YYYY-MM`, UTC. */
  readonly month: string
  /** `YYYY-MM-DD`, UTC. */
  readonly day: string
  readonly monthStartsAtMs: number
  readonly monthEndsAtMs: number
  readonly dayEndsAtMs: number
}

/** Where a tenant stands in a month and a day. */
export interface Standing extends Period {
  readonly limits: Limits
  readonly inMonth: Usage
  readonly inDay: Usage
  /** `null` where there is no limit. */
  readonly left: {
    readonly requestsInMonth: number | null
    readonly requestsInDay: number | null
    readonly tokensInMonth: number | null
  }
}

/** What the runs of one agent for a tenant came to. */
export interface AgentRuns {
  readonly agent: string
  readonly runs: number
  readonly failures: number
  /** Unix time in milliseconds. */
  readonly lastRunAtMs: number
}

/** One turn of an agent for a tenant. */
export interface AgentRun {
  readonly id: string
  readonly inputTokens: number
  readonly outputTokens: number
  /** Unix times in milliseconds. */
  readonly startedAtMs: number
  readonly finishedAtMs: number
  /** What the caller was told; `null` when it ended as it should. */
  readonly error: string | null
}

export interface ApiKey {
  readonly id: string
  readonly name: string
  /** The first 13 characters of the key, to tell it by. */
  readonly prefix: string
  readonly isActive: boolean
  /** Unix times in milliseconds. */
  readonly createdAtMs: number
  /** `null` for a key that does not expire. */
  readonly expiresAtMs: number | null
  /** To the minute; `null` when it never was used. */
  readonly lastUsedAtMs: number | null
}

/** What a key opens. */
export interface KeyHolder {
  readonly keyId: string
  readonly tenant: Tenant
}

/** One request that was counted before its work began. Plain data: any generation can settle it. */
export interface Reservation {
  readonly tenantId: string
  /** The windows it is counted in, also when it is settled in later ones. */
  readonly month: string
  readonly day: string
  /** Tokens that are held for it until it is settled. */
  readonly tokens: number
  /** How often the tenant's data had been deleted. */
  readonly purges: number
  /** It took a place within a limit. */
  readonly isPlaced: boolean
  readonly limits: Limits
  /** With this request in it. */
  readonly inMonth: Usage
  readonly inDay: Usage
}

/** What was done with a reservation. */
export interface Work {
  /** `undefined` when it ended before one was chosen. */
  readonly agent: string | undefined
  /** It ended as it should. */
  readonly ok: boolean
  /** Input and output together. */
  readonly tokens: number
  /** Left out where nobody wants to see it again. */
  readonly run?: AgentRun
}

export interface Purged {
  /** Counted requests whose records are gone; those of the present month and day stay, as numbers. */
  readonly requests: number
  readonly runs: number
  readonly keys: number
}

/**
 * Accounts of machine clients: their keys, their limits, and what they used. One accounting for every way in: a request
 * is reserved before its work begins and settled when that has ended. No crash lets more through than the limit: a
 * process reserves a few places ahead on disk, and loses those it has when it is killed. What was settled is on disk.
 * Contributes to `auth.credentials` (keys open what the guard `caller` keeps) and `auth.tenants`.
 *
 * Codes: `TENANTS_UNKNOWN`, `TENANTS_INVALID` (of an input), `TENANTS_KEY_UNKNOWN`, `TENANTS_KEYS_FULL`; the refusals
 * `TENANTS_MONTH_EXHAUSTED`, `TENANTS_TOKENS_EXHAUSTED` and `TENANTS_DAY_EXHAUSTED`, tested in this order, with
 * `retryAfterSeconds` in the detail; `TENANTS_PURGED`; `TENANTS_VERIFY_FAILED`, `TENANTS_USAGE_FAILED` and
 * `TENANTS_RATE_FAILED` when the store does not answer.
 */
export interface Tenants {
  /** At hand where the store is. */
  find(tenantId: string): Awaitable<Tenant | undefined>
  /**
   * Part of a transaction that adds something to a tenant: it commits only while the tenant is there and these are its
   * limits.
   * @throws CodedError `TENANTS_UNKNOWN`
   */
  limitsIn(tx: Reader, tenantId: string): Promise<Limits>
  /**
   * Whose key it is; at hand for a key that was seen before.
   * @returns `undefined` for one that is unknown, revoked or expired
   * @throws CodedError `TENANTS_VERIFY_FAILED`
   */
  verifyKey(key: string): Awaitable<KeyHolder | undefined>
  /**
   * At hand for a tenant that was seen before.
   * @returns `undefined` for one that is not there
   * @throws CodedError `TENANTS_USAGE_FAILED`, `TENANTS_RATE_FAILED`
   */
  standing(tenantId: string): Awaitable<Standing | undefined>
  /**
   * Lets a tenant in that has something left; counts nothing. At hand for one that was seen before.
   * @throws CodedError a refusal, `TENANTS_UNKNOWN`, or as {@link standing}
   */
  admit(tenantId: string): Awaitable<void>
  /**
   * Counts one request, and holds `tokens` until it is known how many it took; exact under any concurrency. To be
   * settled or released, once. At hand where a place is.
   * @param tokens an estimate, at least 1
   * @param purges of the tenant when it was let in: if its data was deleted since then, so were the grounds for that
   * @throws CodedError a refusal, `TENANTS_UNKNOWN`, `TENANTS_PURGED`, `TENANTS_USAGE_FAILED`, `TENANTS_RATE_FAILED`
   */
  reserve(tenantId: string, tokens: number, purges?: number): Awaitable<Reservation>
  /**
   * Counts the tokens it took. Resolves when that is on disk.
   * @throws CodedError `TENANTS_USAGE_FAILED`; it is tried again with whatever is written next
   */
  settle(reservation: Reservation, work: Work): Promise<void>
  /** Takes the count back: the work was never begun. @throws CodedError `TENANTS_USAGE_FAILED`, `TENANTS_RATE_FAILED` */
  release(reservation: Reservation): Promise<void>
  /**
   * Keeps the data of a deletion from coming back: a transaction that calls this writes nothing once the data of the
   * tenant has been deleted since the reservation.
   * @throws CodedError `TENANTS_PURGED`
   */
  assertCurrent(tx: Reader, reservation: Reservation): Promise<void>
  /** The last days (this one with it) that something was counted on, oldest first. */
  daily(tenantId: string, days: number): Promise<readonly DayUsage[]>
  runs(tenantId: string): Promise<readonly AgentRuns[]>
  /**
   * The runs of an agent, the last one first; the last 1,000 are kept.
   * @returns a page of them, and how many there are in all
   */
  runsOf(
    tenantId: string,
    agent: string,
    page: { readonly offset: number; readonly limit: number }
  ): Promise<{ readonly runs: readonly AgentRun[]; readonly total: number }>
  /** Oldest first; expired ones are among them. */
  keys(tenantId: string): Promise<readonly ApiKey[]>
  /**
   * @returns the key itself too, which nobody can ask for again
   * @throws CodedError `TENANTS_UNKNOWN`, `TENANTS_INVALID`, `TENANTS_KEYS_FULL`
   */
  createKey(
    tenantId: string,
    key: { readonly name: string; readonly expiresInDays?: number | undefined }
  ): Promise<{ readonly key: ApiKey; readonly secret: string }>
  /** @throws CodedError `TENANTS_KEY_UNKNOWN`, of another tenant's key as well */
  revokeKey(tenantId: string, keyId: string): Promise<void>
  /**
   * Deletes what is kept for a tenant, its keys first; the tenant stays, and so do the counts its limits are held
   * against. Should it be cut short, it is taken up again.
   * @throws CodedError `TENANTS_UNKNOWN`
   */
  purge(tenantId: string): Promise<Purged>
}

/** Something that is kept for tenants, contributed to `tenants.data` so that it goes when a tenant's data is deleted. */
export interface TenantData {
  readonly name: string
  /** Removes up to `most` of a tenant's items. @returns how many; 0 when none is left */
  remove(tenantId: string, most: number): Promise<number>
}

/** What a client that is provisioned gets beside its key, contributed to `tenants.provisions`. */
export interface TenantProvision {
  /**
   * Part of the transaction that makes the tenant, which may run again.
   * @returns names of the agents it has of its own
   * @throws CodedError `TENANTS_PROVISION_REFUSED`: then there is no tenant either
   */
  agents(tx: Transaction, tenant: Tenant, productType: string): Promise<readonly string[]>
}

declare module '../../kernel/index.ts' {
  interface Services {
    tenants: Tenants
  }
  interface Contributions {
    'tenants.data': TenantData
    'tenants.provisions': TenantProvision
  }
}
