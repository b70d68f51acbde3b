import type { Awaitable } from '../../kernel/index.ts'
import type { Principal } from '../http/types.ts'

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
 * Another kind of credential that the guard `caller` understands after `Bearer `, contributed to `auth.credentials` by
 * whoever gives it out. It is looked for in the header alone, never in a URL.
 */
export interface Credential {
  /** What each of them begins with, and no JWT does: `ares_`. */
  readonly prefix: string
  /** At hand where possible. @returns whose it is; `undefined` for one that is not valid */
  check(credential: string): Awaitable<Principal | undefined>
}

/** Knows which tenants there are, contributed to `auth.tenants`. */
export interface TenantDirectory {
  /** At hand where possible. */
  has(tenantId: string): Awaitable<boolean>
}

/**
 * Accounts and tokens. Contributes the guards `user` (a JWT), `admin` (the admin secret, or a JWT with an admin role)
 * and `caller` (a JWT, another credential, or nobody: anonymous; a wrong credential is refused) to `http.guards`. A JWT
 * that names a tenant is good as long as somebody knows that tenant, which its principal then carries. Fails to start
 * with `AUTH_SECRET_TOO_SHORT` when it is given a weak secret to sign with.
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
  interface Contributions {
    'auth.credentials': Credential
    'auth.tenants': TenantDirectory
  }
}
