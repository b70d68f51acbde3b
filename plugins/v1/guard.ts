import { type Awaitable, CodedError } from '../../kernel/index.ts'
import type { ErrorMap, Guard, Principal } from '../http/types.ts'
import type { KeyHolder, Tenant, Tenants } from '../tenants/types.ts'

/** Whom the guard let in. */
export interface TenantPrincipal extends Principal {
  /** As it was then. */
  readonly tenant: Tenant
}

/** Refusals, and failures of what has to be asked, with the texts of the contract. */
export const guardErrors: ErrorMap = {
  V1_KEY_REFUSED: 401,
  V1_NOT_CONFIGURED: { status: 500, code: 'CONFIGURATION_ERROR' },
  TENANTS_MONTH_EXHAUSTED: 429,
  TENANTS_TOKENS_EXHAUSTED: 429,
  TENANTS_DAY_EXHAUSTED: 429,
  TENANTS_UNKNOWN: 401,
  TENANTS_VERIFY_FAILED: { status: 500, code: 'DATABASE_ERROR' },
  TENANTS_USAGE_FAILED: { status: 500, code: 'DATABASE_ERROR' },
  TENANTS_RATE_FAILED: { status: 500, code: 'DATABASE_ERROR' }
}

const visible = /^[\t\x20-\x7e]*$/

/**
 * `tenant-key`: lets in who brings the key of a tenant that has something left. What is malformed is refused before
 * anything is looked up.
 */
export function tenantKeyGuard(tenants: Tenants | undefined): Guard {
  return {
    name: 'tenant-key',
    scheme: { type: 'http', scheme: 'bearer', bearerFormat: 'ares_ and 64 hex digits' },
    errors: guardErrors,
    check(request) {
      const key = keyOf(request.header('authorization'))
      if (tenants === undefined) throw new CodedError('V1_NOT_CONFIGURED', 'Tenant database not configured')
      const holder = tenants.verifyKey(key)
      return holder instanceof Promise ? holder.then((found) => admit(tenants, found)) : admit(tenants, holder)
    }
  }
}

/** @throws CodedError `V1_KEY_REFUSED` with the first reason that fits */
function keyOf(header: string | undefined): string {
  if (header === undefined) throw refused('Missing Authorization header')
  if (!visible.test(header)) throw refused('Invalid Authorization header')
  if (!header.startsWith('Bearer ')) throw refused('Invalid Authorization format. Expected: Bearer ares_...')
  const key = header.slice('Bearer '.length)
  if (!key.startsWith('ares_')) throw refused('Invalid API key format. Must start with ares_')
  return key
}

function admit(tenants: Tenants, holder: KeyHolder | undefined): Awaitable<TenantPrincipal> {
  if (holder === undefined) throw refused('Invalid API key')
  const { tenant } = holder
  const principal: TenantPrincipal = { kind: 'tenant', id: tenant.id, tenant }
  const admitted = tenants.admit(tenant.id)
  return admitted instanceof Promise ? admitted.then(() => principal) : principal
}

function refused(message: string): CodedError {
  return new CodedError('V1_KEY_REFUSED', message)
}
