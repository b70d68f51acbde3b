import type { Headers } from '../http/types.ts'
import type { Standing } from '../tenants/types.ts'

/** What a tenant has left, as headers. Where there is no limit there are none. */
export function quotaHeaders({ limits, inMonth, inDay, monthEndsAtMs, dayEndsAtMs }: Standing): Headers {
  const headers: Record<string, string> = {}
  const tell = (name: string, limit: number | null, used: number, endsAtMs: number): void => {
    if (limit === null) return
    headers[`${name}-limit`] = String(limit)
    headers[`${name}-remaining`] = String(Math.max(0, limit - used))
    headers[`${name}-reset`] = String(endsAtMs / 1000)
  }
  tell('x-quota-requests', limits.requestsPerMonth, inMonth.requests, monthEndsAtMs)
  tell('x-quota-tokens', limits.tokensPerMonth, inMonth.tokens, monthEndsAtMs)
  tell('x-ratelimit', limits.requestsPerDay, inDay.requests, dayEndsAtMs)
  return headers
}

/** A name as the value of a header; letters of other scripts as percent escapes of their UTF-8. */
export function headerText(text: string): string {
  return encodeURI(text.replaceAll(/\p{Surrogate}/gu, '\uFFFD'))
}
