import { randomUUID } from 'node:crypto'

const prefix = 'exec_'

const maxCount = 65_536
const hexOf = Array.from({ length: 256 }, (_, byte) => byte.toString(16).padStart(2, '0'))

/**
 * @returns a maker of ids: `exec_` and a UUID of version 7 (RFC 9562 §5.7), so that later ones are greater, to the
 * millisecond. Those of one millisecond share their random bits and are told apart by a counter in the last 16 (§6.2):
 * they are no secrets, and random bits for each are the dearest part of a short call.
 * @param now Unix time in milliseconds
 */
export function createExecutionIds(now: () => number): () => string {
  let atMs = Number.NaN
  let count = maxCount
  let head = ''
  return () => {
    const nowMs = now()
    if (nowMs !== atMs || count === maxCount) {
      atMs = nowMs
      count = 0
      const hex = Math.floor(nowMs).toString(16).padStart(12, '0')
      head = `${prefix}${hex.slice(0, 8)}-${hex.slice(8)}-7${randomUUID().slice(15, 32)}`
    }
    const id = head + hexOf[count >> 8]! + hexOf[count & 255]!
    count += 1
    return id
  }
}

/** When an id was made; Unix time in milliseconds. */
export function timeOf(executionId: string): number {
  return Number.parseInt(executionId.slice(prefix.length, prefix.length + 13).replace('-', ''), 16)
}
