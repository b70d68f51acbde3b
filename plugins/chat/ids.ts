import { randomUUID } from 'node:crypto'

/**
 * A UUID that begins with the time (version 7, RFC 9562 §5.7): what is written one after the other lies side by side in
 * the store, so that a batch of writes touches few of its pages.
 * @param nowMs Unix time in milliseconds
 */
export function createId(nowMs: number): string {
  const time = nowMs.toString(16).padStart(12, '0')
  return `${time.slice(0, 8)}-${time.slice(8)}-7${randomUUID().slice(15)}`
}
