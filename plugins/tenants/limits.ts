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

/**
 * What keeps one more request, of so many tokens, from being let in. The month comes first: waiting for tomorrow would
 * not help.
 */
export function refusalOf(limits: Limits, inMonth: Usage, inDay: Usage, tokens: number): Refusal | undefined {
  if (limits.requestsPerMonth !== null && inMonth.requests >= limits.requestsPerMonth) return refusals.month
  if (limits.tokensPerMonth !== null && inMonth.tokens + tokens > limits.tokensPerMonth) return refusals.tokens
  if (limits.requestsPerDay !== null && inDay.requests >= limits.requestsPerDay) return refusals.day
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
