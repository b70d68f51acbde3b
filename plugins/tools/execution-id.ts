import { randomUUID } from 'node:crypto'

const prefix = 'exec_'

/**
 * @returns a maker of ids: `exec_` and a UUID of version 7 (RFC 9562 §5.7), so that later ones are greater, to the
 * millisecond
 * @param now Unix time in milliseconds
 */
export function createExecutionIds(now: () => number): () => string {
  let atMs = Number.NaN
  let head = ''
  return () => {
    const nowMs = now()
    if (nowMs !== atMs) {
      atMs = nowMs
      const hex = Math.floor(nowMs).toString(16).padStart(12, '0')
      head = `${prefix}${hex.slice(0, 8)}-${hex.slice(8)}-7`
    }
    return head + randomUUID().slice(15)
  }
}

/** When an id was made; Unix time in milliseconds. */
export function timeOf(executionId: string): number {
  return Number.parseInt(executionId.slice(prefix.length, prefix.length + 13).replace('-', ''), 16)
}
