import { createHash, createHmac, timingSafeEqual } from 'node:crypto'
import type { Webhook } from './webhook.ts'

type Rules = Pick<
  Webhook,
  'check' | 'signature_header' | 'secret' | 'previous_secret' | 'timestamp_header' | 'tolerance_seconds' | 'unverified'
>

interface Delivery {
  readonly header: (name: string) => string | undefined
  readonly bytes: Uint8Array
}

/** Whether the sender knows the secret. Takes as long for a wrong signature as for a right one. */
export function isGenuine(rules: Rules, { header, bytes }: Delivery, nowMs: number): boolean {
  if (rules.unverified) return true
  const given = header(rules.signature_header.toLowerCase())?.trim()
  if (given === undefined) return false
  let signed: readonly (string | Uint8Array)[] = [bytes]
  if (rules.timestamp_header !== undefined) {
    const timestamp = header(rules.timestamp_header.toLowerCase())?.trim() ?? ''
    if (!/^\d{1,12}$/.test(timestamp)) return false
    if (Math.abs(nowMs - Number(timestamp) * 1_000) > rules.tolerance_seconds * 1_000) return false
    signed = [`${timestamp}.`, bytes]
  }
  let matches = false
  for (const secret of [rules.secret, rules.previous_secret]) {
    if (secret === undefined || secret === '') continue
    const isThis = rules.check === 'shared-secret' ? isSecret(given, secret) : isSignature(given, secret, signed)
    matches ||= isThis
  }
  return matches
}

function isSignature(given: string, secret: string, signed: readonly (string | Uint8Array)[]): boolean {
  const hmac = createHmac('sha256', secret)
  for (const part of signed) hmac.update(part)
  const digits = given.replace(/^sha256=/, '').trim()
  const signature = Buffer.from(/^[0-9a-f]{64}$/i.test(digits) ? digits : '00'.repeat(32), 'hex')
  return timingSafeEqual(signature, hmac.digest())
}

/** Of hashes, which have one length. */
function isSecret(given: string, secret: string): boolean {
  const hash = (text: string): Buffer => createHash('sha256').update(text).digest()
  return timingSafeEqual(hash(given), hash(secret))
}
