import { createHmac } from 'node:crypto'
import { jwtSecret } from './servers/login-secret.ts'

/** An access token of a server whose secret is {@link jwtSecret}, good for an hour. */
export function makeToken(subject: string): string {
  const encode = (value: unknown) => Buffer.from(JSON.stringify(value)).toString('base64url')
  const iat = Math.floor(Date.now() / 1000)
  const claims = { sub: subject, email: 'bench@bench.test', exp: iat + 3_600, iat }
  const signed = `${encode({ alg: 'HS256', typ: 'JWT' })}.${encode(claims)}`
  return `${signed}.${createHmac('sha256', jwtSecret).update(signed).digest('base64url')}`
}
