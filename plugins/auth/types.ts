import type { Awaitable } from '../../kernel/index.ts'

/** Claims of a verified access token. Times are Unix seconds. */
export interface Claims {
  /** User id. */
  readonly sub: string
  readonly email?: string
  readonly exp: number
  readonly iat?: number
  readonly tenant_id?: string
  /** Roles by product, such as `{ ares: [{ role: 'admin' }] }`. */
  readonly roles?: Readonly<Record<string, readonly { readonly role: string }[]>>
}

/**
 * Accounts and tokens. Contributes the guards `user` (a JWT), `admin` (the admin secret, or a JWT with an admin role)
 * and `caller` (a JWT, or nobody: anonymous; a wrong credential is refused) to `http.guards`. Fails to start with
 * `AUTH_SECRET_TOO_SHORT` when it is given a weak secret to sign with.
 */
export interface Auth {
  /**
   * Checks an access token: algorithm, signature, time (60 s of leeway), kind. At hand when the token was seen before.
   * @throws CodedError `AUTH_TOKEN_INVALID`
   */
  verifyAccess(token: string): Awaitable<Claims>
}

declare module '../../kernel/index.ts' {
  interface Services {
    auth: Auth
  }
}
