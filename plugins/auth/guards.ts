import { createHash, timingSafeEqual } from 'node:crypto'
import { type Awaitable, CodedError, type Contribution, isCoded } from '../../kernel/index.ts'
import type { Guard, GuardRequest, Principal } from '../http/types.ts'
import type { Auth, Claims, Credential, TenantDirectory } from './types.ts'

const errors = { AUTH_TOKEN_INVALID: 401, AUTH_ADMIN_REFUSED: 401 } as const
const bearer = { type: 'http', scheme: 'bearer', bearerFormat: 'JWT' } as const
const anonymous: Principal = { kind: 'anonymous', id: '' }
const bySecret: Principal = { kind: 'admin', id: 'admin_secret' }

/** Products and roles that make an administrator. */
const adminProducts = ['admin', 'ares', 'eruka']
const adminRoles = ['admin', 'super_admin']

/** What other plugins know, as it is now. */
export interface Collected {
  readonly credentials: () => readonly Contribution<Credential>[]
  readonly tenants: () => readonly Contribution<TenantDirectory>[]
}

/** `user`, `admin` and `caller`, as `types.ts` describes them. */
export function guards(auth: Auth, adminSecret: string, collected: Collected): Guard[] {
  const isAdminSecret = secretMatcher(adminSecret)

  const toUser = (claims: Claims): Awaitable<Principal> => {
    const { sub: id, email, tenant_id: tenantId } = claims
    if (tenantId === undefined) return email === undefined ? { kind: 'user', id } : { kind: 'user', id, email }
    const [directory] = collected.tenants()
    const principal: Principal = { kind: 'user', id, ...(email === undefined ? {} : { email }), tenantId }
    return ask(
      directory,
      (item) => item.has(tenantId),
      (isThere) => (isThere === true ? principal : undefined)
    )
  }

  const user = (request: GuardRequest): Awaitable<Principal> => {
    const token = tokenOf(request)
    if (token === undefined) throw unauthorized()
    const claims = auth.verifyAccess(token)
    return claims instanceof Promise ? claims.then(toUser) : toUser(claims)
  }

  const caller = (request: GuardRequest): Awaitable<Principal> => {
    const header = request.header('authorization')
    if (header === undefined && request.queryValue('token') === undefined) return anonymous
    const other = header && collected.credentials().find(({ item }) => header.startsWith(`Bearer ${item.prefix}`))
    if (!other) return user(request)
    return ask(
      other,
      (item) => item.check(header.slice('Bearer '.length)),
      (principal) => principal
    )
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
    { name: 'caller', scheme: bearer, errors, check: caller }
  ]
}

/**
 * Asks what another plugin contributed, and holds that plugin until it has answered.
 * @throws CodedError `AUTH_TOKEN_INVALID` when that names nobody
 */
function ask<T, R>(
  asked: Contribution<T> | undefined,
  question: (item: T) => Awaitable<R>,
  toPrincipal: (answer: R) => Principal | undefined
): Awaitable<Principal> {
  const conclude = (answer: R): Principal => {
    const principal = toPrincipal(answer)
    if (principal === undefined) throw unauthorized()
    return principal
  }
  if (asked === undefined) throw unauthorized()
  const answer = question(asked.item)
  if (!(answer instanceof Promise)) return conclude(answer)
  const lease = asked.lease()
  return answer.then(conclude).finally(() => lease.release())
}

/** The header wins; the query parameter is for those who cannot set one (EventSource), or set another scheme. */
function tokenOf(request: GuardRequest): string | undefined {
  const header = request.header('authorization')
  return header?.startsWith('Bearer ') ? header.slice(7) : request.queryValue('token')
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
