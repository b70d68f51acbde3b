import type { NewAlert } from '../alerts/types.ts'
import type { Reservation } from '../tenants/types.ts'

/** The share of a limit at which operators are told that it will be reached. */
const warnAt = 0.8
const maxTold = 10_000

/** Tells operators of limits that are nearly used up, or are: once each, as long as the server runs. */
export class QuotaAlerts {
  readonly #told = new Set<string>()
  readonly #raise: (alert: NewAlert) => void

  constructor(raise: (alert: NewAlert) => void) {
    this.#raise = raise
  }

  /** A request was counted. */
  onReserved({ tenantId, limits, month, day, inMonth, inDay }: Reservation): void {
    this.#look(tenantId, 'month', month, inMonth.requests, limits.requestsPerMonth)
    this.#look(tenantId, 'day', day, inDay.requests, limits.requestsPerDay)
  }

  #look(tenantId: string, window: 'month' | 'day', name: string, used: number, limit: number | null): void {
    if (limit === null || used < limit * warnAt) return
    const isReached = used >= limit
    const subject = `${isReached ? 'reached' : 'near'} ${name} ${tenantId}`
    if (this.#told.has(subject)) return
    if (this.#told.size >= maxTold) this.#told.clear()
    this.#told.add(subject)
    this.#raise({
      severity: isReached ? 'critical' : 'warning',
      source: 'tenants',
      subject,
      title: `Quota of the ${window} is ${isReached ? 'used up' : 'nearly used up'}`,
      message: `Tenant ${tenantId} has used ${used} of ${limit} requests of ${name}`
    })
  }
}
