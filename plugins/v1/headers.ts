import type { Headers } from '../http/types.ts'
import type { Standing } from '../tenants/types.ts'

/** What a tenant has left, as headers. Where there is no limit there are none. */
export function quotaHeaders({ limits, left, monthEndsAtMs, dayEndsAtMs }: Standing): Headers {
  const headers: Record<string, string> = {}
  const tell = (name: string, limit: number | null, left: number | null, endsAtMs: number): void => {
    if (limit === null || left === null) return
    headers[`${name}-limit`] = String(limit)
    headers[`${name}-remaining`] = String(left)
    headers[`${name}-reset`] = String(endsAtMs / 1000)
  }
  tell('x-quota-requests', limits.requestsPerMonth, left.requestsInMonth, monthEndsAtMs)
  tell('x-quota-tokens', limits.tokensPerMonth, left.tokensInMonth, monthEndsAtMs)
  tell('x-ratelimit', limits.requestsPerDay, left.requestsInDay, dayEndsAtMs)
  return headers
}

/** A name as the value of a header; letters of other scripts as percent escapes of their UTF-8. */
export function headerText(text: string): string {
  return encodeURI(text.replaceAll(/\p{Surrogate}/gu, '\uFFFD'))
}
