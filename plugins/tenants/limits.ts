import { CodedError } from '../../kernel/index.ts'
import type { Limits, Period, Tier, Usage } from './types.ts'

export const tiers: Readonly<Record<Tier, Limits>> = {
  free: { requestsPerMonth: 1_000, requestsPerDay: 50, tokensPerMonth: 100_000, agents: 1 },
  dev: { requestsPerMonth: 50_000, requestsPerDay: 2_000, tokensPerMonth: 5_000_000, agents: 10 },
  pro: { requestsPerMonth: 500_000, requestsPerDay: 20_000, tokensPerMonth: 50_000_000, agents: null },
  enterprise: { requestsPerMonth: null, requestsPerDay: null, tokensPerMonth: null, agents: null }
}

const tierNames: ReadonlyMap<string, Tier> = new Map<string, Tier>([
  ...(Object.keys(tiers) as Tier[]).map((tier) => [tier, tier] as const),
  ['starter', 'dev'],
  ['growth', 'pro']
])

/** In any case, and by the names some plans are sold under. @throws CodedError `TENANTS_INVALID` */
export function parseTier(text: string): Tier {
  const tier = tierNames.get(text.toLowerCase())
  if (tier !== undefined) return tier
  throw new CodedError(
    'TENANTS_INVALID',
    'Invalid tier. Must be one of: free, dev, starter, pro, growth, or enterprise'
  )
}

/** Whether requests need a place. */
export function isLimited({ requestsPerMonth, requestsPerDay }: Limits): boolean {
  return requestsPerMonth !== null || requestsPerDay !== null
}

interface Count extends Usage {
  readonly reserved: number
}

/** What a limit is held against: more were counted than reserved where there was no limit before. */
export function usedUp({ requests, reserved }: Count): number {
  return Math.max(requests, reserved)
}

/** @param places of those that are used up, how many are still free */
export function leftOf(limit: number | null, count: Count, places: number): number {
  return limit === null ? Number.POSITIVE_INFINITY : limit - usedUp(count) + places
}

/** What refusals depend on. */
interface Usable {
  readonly tenant: { readonly limits: Limits }
  readonly inMonth: Count
  readonly inDay: Count
  /** Places at hand. */
  readonly places: number
  /** Tokens held for requests under way. */
  readonly held: number
}

/**
 * What keeps one more request, of so many tokens, from being let in. The month comes first: waiting for tomorrow would
 * not help.
 */
export function refusalOf({ tenant, inMonth, inDay, places, held }: Usable, tokens: number): Refusal | undefined {
  const { requestsPerMonth, requestsPerDay, tokensPerMonth } = tenant.limits
  if (leftOf(requestsPerMonth, inMonth, places) <= 0) return refusals.month
  if (tokensPerMonth !== null && inMonth.tokens + held + tokens > tokensPerMonth) return refusals.tokens
  if (leftOf(requestsPerDay, inDay, places) <= 0) return refusals.day
  return undefined
}

interface Refusal {
  readonly code: string
  readonly message: string
  readonly endsAtMs: (period: Period) => number
}

const ofMonth = (period: Period): number => period.monthEndsAtMs

const refusals = {
  month: { code: 'TENANTS_MONTH_EXHAUSTED', message: 'Monthly request quota exceeded', endsAtMs: ofMonth },
  tokens: { code: 'TENANTS_TOKENS_EXHAUSTED', message: 'Monthly token quota exceeded', endsAtMs: ofMonth },
  day: { code: 'TENANTS_DAY_EXHAUSTED', message: 'Daily rate limit exceeded', endsAtMs: (period) => period.dayEndsAtMs }
} satisfies Record<string, Refusal>

export function refused({ code, message, endsAtMs }: Refusal, period: Period, nowMs: number): CodedError {
  const retryAfterSeconds = Math.max(1, Math.ceil((endsAtMs(period) - nowMs) / 1000))
  return new CodedError(code, message, { detail: { retryAfterSeconds } })
}
