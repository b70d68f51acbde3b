import { createHash, timingSafeEqual } from 'node:crypto'
import { type Awaitable, CodedError, isCoded } from '../../kernel/index.ts'
import type { Guard, GuardRequest, Principal } from '../http/types.ts'
import type { Auth, Claims } from './types.ts'

const errors = { AUTH_TOKEN_INVALID: 401, AUTH_ADMIN_REFUSED: 401 } as const
const bearer = { type: 'http', scheme: 'bearer', bearerFormat: 'JWT' } as const
const anonymous: Principal = { kind: 'anonymous', id: '' }
const bySecret: Principal = { kind: 'admin', id: 'admin_secret' }

/** Products and roles that make an administrator. */
const adminProducts = ['admin', 'ares', 'eruka']
const adminRoles = ['admin', 'super_admin']

/** `user`, `admin` and `caller`, as `types.ts` describes them. */
export function guards(auth: Auth, adminSecret: string): Guard[] {
  const isAdminSecret = secretMatcher(adminSecret)

  const user = (request: GuardRequest): Awaitable<Principal> => {
    const token = tokenOf(request)
    if (token === undefined) throw unauthorized()
    const claims = auth.verifyAccess(token)
    return claims instanceof Promise ? claims.then(toUser) : toUser(claims)
  }

  const adminByToken = async (request: GuardRequest): Promise<Principal> => {
    const token = tokenOf(request)
    try {
      const claims = token === undefined ? undefined : await auth.verifyAccess(token)
      if (claims !== undefined && isAdmin(claims)) return { kind: 'admin', id: claims.sub }
    } catch (error) {
      if (!isCoded(error, 'AUTH_TOKEN_INVALID')) throw error
    }
    throw new CodedError('AUTH_ADMIN_REFUSED', 'Admin access requires X-Admin-Secret header or JWT with admin role')
  }

  return [
    { name: 'user', scheme: bearer, errors, check: user },
    {
      name: 'admin',
      scheme: { type: 'apiKey', in: 'header', name: 'X-Admin-Secret' },
      errors,
      check: (request) => (isAdminSecret(request.header('x-admin-secret')) ? bySecret : adminByToken(request))
    },
    {
      name: 'caller',
      scheme: bearer,
      errors,
      check: (request) =>
        request.header('authorization') === undefined && request.queryValue('token') === undefined
          ? anonymous
          : user(request)
    }
  ]
}

/** The header wins; the query parameter is for those who cannot set one (EventSource), or set another scheme. */
function tokenOf(request: GuardRequest): string | undefined {
  const header = request.header('authorization')
  return header?.startsWith('Bearer ') ? header.slice(7) : request.queryValue('token')
}

function toUser(claims: Claims): Principal {
  // There are no tenants yet that such a token could belong to.
  if (claims.tenant_id !== undefined) throw unauthorized()
  return claims.email === undefined
    ? { kind: 'user', id: claims.sub }
    : { kind: 'user', id: claims.sub, email: claims.email }
}

function isAdmin({ roles }: Claims): boolean {
  return adminProducts.some((product) => roles?.[product]?.some(({ role }) => adminRoles.includes(role)))
}

/** Takes the same time however much of the secret is right. A blank secret matches nothing. */
function secretMatcher(secret: string): (candidate: string | undefined) => boolean {
  const expected = sha256(secret)
  const isBlank = secret.trim() === ''
  return (candidate) => candidate !== undefined && !isBlank && timingSafeEqual(sha256(candidate), expected)
}

function sha256(text: string): Buffer {
  return createHash('sha256').update(text).digest()
}

function unauthorized(): CodedError {
  return new CodedError('AUTH_TOKEN_INVALID', 'Unauthorized')
}
