import { type CryptoKey, compactVerify, errors, type JWTPayload, SignJWT } from 'jose'
import type { Claims } from './types.ts'

/** Seconds by which clocks may differ. */
export const leewaySeconds = 60

/** Claims of either kind: only refresh tokens carry `jti`. */
export type AnyClaims = Claims & { readonly jti?: string }

/** Signs and checks compact JWS with HS256 and one secret. */
export interface Tokens {
  sign(claims: JWTPayload): Promise<string>
  /** @returns `undefined` for anything but a sound, timely token of ours */
  verify(token: string): Promise<AnyClaims | undefined>
}

const maxLength = 4_096
const maxSubjectLength = 256

/** Base64url without padding whose last character holds no stray bits: each value has one spelling (RFC 4648 §3.5). */
const base64url = '(?:[\\w-]{4})*(?:[\\w-][AQgw]|[\\w-]{2}[AEIMQUYcgkosw048])?'
const compact = new RegExp(`^(?!\\.)${base64url}\\.(?!\\.)${base64url}\\.${base64url}$`)

const headerMembers = new Set(['alg', 'typ', 'kid'])

/** 9999-12-31T23:59:59Z, the last second RFC 3339 can write. */
const lastSecond = 253_402_300_799

/** @param now Unix time in milliseconds */
export async function createTokens(secret: string, now: () => number): Promise<Tokens> {
  const key = await importSecret(new TextEncoder().encode(secret))
  return {
    sign: (claims) => new SignJWT(claims).setProtectedHeader({ alg: 'HS256', typ: 'JWT' }).sign(key),
    async verify(token) {
      const payload = await openJws(token, key)
      return payload && toClaims(payload, now() / 1000)
    }
  }
}

export function importSecret(secret: Uint8Array<ArrayBuffer>): Promise<CryptoKey> {
  return crypto.subtle.importKey('raw', secret, { name: 'HMAC', hash: 'SHA-256' }, false, ['sign', 'verify'])
}

/** @returns the payload of a compact JWS whose HS256 signature is right; `undefined` for anything else */
export async function openJws(token: string, key: CryptoKey): Promise<Uint8Array | undefined> {
  if (token.length > maxLength || !compact.test(token)) return undefined
  try {
    const { payload, protectedHeader } = await compactVerify(token, key, { algorithms: ['HS256'] })
    if (repeatsMember(Buffer.from(token.slice(0, token.indexOf('.')), 'base64url').toString())) return undefined
    // Nothing that could name another key or another reading of the payload: crit, b64, jwk, jku, x5u, …
    if (!Object.keys(protectedHeader).every((member) => headerMembers.has(member))) return undefined
    return protectedHeader.typ === undefined || protectedHeader.typ === 'JWT' ? payload : undefined
  } catch (error) {
    if (error instanceof errors.JOSEError) return undefined
    throw error
  }
}

function toClaims(payload: Uint8Array, nowSeconds: number): AnyClaims | undefined {
  const claims = parse(payload)
  if (claims === undefined) return undefined
  const { sub, email, exp, iat, nbf, jti, tenant_id, roles } = claims
  if (typeof sub !== 'string' || sub === '' || sub.length > maxSubjectLength) return undefined
  if (!isTime(exp) || exp + leewaySeconds <= nowSeconds) return undefined
  if (iat !== undefined && !(isTime(iat) && iat - leewaySeconds <= nowSeconds)) return undefined
  if (nbf !== undefined && !(isTime(nbf) && nbf - leewaySeconds <= nowSeconds)) return undefined
  if (!isOptionalText(email) || !isOptionalText(jti) || !isOptionalText(tenant_id)) return undefined
  return Object.freeze({
    sub,
    exp,
    ...(email === undefined ? {} : { email }),
    ...(iat === undefined ? {} : { iat }),
    ...(jti === undefined ? {} : { jti }),
    ...(tenant_id === undefined ? {} : { tenant_id }),
    ...(roles === undefined ? {} : { roles: toRoles(roles) })
  })
}

function parse(payload: Uint8Array): Record<string, unknown> | undefined {
  try {
    const text = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true }).decode(payload)
    const claims: unknown = JSON.parse(text)
    if (claims === null || typeof claims !== 'object' || Array.isArray(claims) || repeatsMember(text)) return undefined
    return claims as Record<string, unknown>
  } catch {
    // Not UTF-8 or not JSON: signed with our key, but no token.
    return undefined
  }
}

/**
 * Whether an object of a sound JSON text has a member twice. Which of them holds depends on who reads it, so such a token
 * is none (RFC 7515 §4, RFC 7519 §4).
 */
function repeatsMember(json: string): boolean {
  const open: Set<string>[] = []
  for (const [token, name] of json.matchAll(/("(?:[^"\\]|\\.)*")\s*:|"(?:[^"\\]|\\.)*"|[{}]/g)) {
    if (token === '{') open.push(new Set())
    else if (token === '}') open.pop()
    else if (name !== undefined) {
      const members = open.at(-1)
      const member = JSON.parse(name) as string
      if (members?.has(member)) return true
      members?.add(member)
    }
  }
  return false
}

function isTime(value: unknown): value is number {
  return typeof value === 'number' && value >= 0 && value <= lastSecond
}

function isOptionalText(value: unknown): value is string | undefined {
  return value === undefined || typeof value === 'string'
}

/** Keeps what has the promised shape; anything else is no role. */
function toRoles(value: unknown): NonNullable<Claims['roles']> {
  const roles: Record<string, readonly { readonly role: string }[]> = Object.create(null)
  if (value === null || typeof value !== 'object') return roles
  for (const [product, held] of Object.entries(value)) {
    if (Array.isArray(held)) roles[product] = held.filter((item) => typeof item?.role === 'string')
  }
  return roles
}
