import type { Period } from './types.ts'

export const dayMs = 86_400_000

/**
 * Tells the month and the day of now, in UTC.
 * @param now Unix time in milliseconds
 */
export function createCalendar(now: () => number): () => Period {
  let last: Period | undefined
  return () => {
    const nowMs = now()
    if (last === undefined || nowMs >= last.dayEndsAtMs || nowMs < last.dayEndsAtMs - dayMs) last = periodOf(nowMs)
    return last
  }
}

export function periodOf(nowMs: number): Period {
  const date = new Date(nowMs)
  const text = date.toISOString()
  const [year, month] = [date.getUTCFullYear(), date.getUTCMonth()]
  return {
    month: text.slice(0, 7),
    day: text.slice(0, 10),
    monthStartsAtMs: Date.UTC(year, month),
    monthEndsAtMs: Date.UTC(year, month + 1),
    dayEndsAtMs: (Math.floor(nowMs / dayMs) + 1) * dayMs
  }
}
