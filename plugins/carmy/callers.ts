import { CodedError } from '../../kernel/index.ts'
import type { Principal } from '../http/types.ts'
import type { Caller } from '../tools/types.ts'

/** What a guard may know beyond who is calling. */
interface TrustedPrincipal extends Principal {
  /** Such as `confirm:<tool>`. */
  readonly permissions?: ReadonlySet<string>
}

const anonymous: Caller = { principal: undefined }

/** A tenant is one caller whichever of its keys it uses, a user whichever of their tokens. */
export function callerOf(principal: TrustedPrincipal): Caller {
  if (principal.kind === 'anonymous') return anonymous
  const { kind, id, permissions } = principal
  return permissions === undefined ? { principal: `${kind}:${id}` } : { principal: `${kind}:${id}`, permissions }
}

/** @throws CodedError `CARMY_UNAUTHORIZED` */
export function assertKnown(principal: Principal): void {
  if (principal.kind !== 'anonymous') return
  throw new CodedError('CARMY_UNAUTHORIZED', 'this server answers only callers with a credential: a token or a key')
}
