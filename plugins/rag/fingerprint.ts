import { createHash } from 'node:crypto'

/** The same for two texts that differ in nothing but blanks. */
export function fingerprintOf(text: string): string {
  return hashOf(text.replaceAll(/\s+/g, ' ').trim())
}

export function hashOf(text: string): string {
  return createHash('sha256').update(text).digest('base64url')
}
