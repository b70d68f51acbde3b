import { CodedError } from '../../kernel/index.ts'
import type { Principal } from '../http/types.ts'
import type { Caller } from '../tools/types.ts'

/** A tenant is one caller whichever of its keys it uses, a user whichever of their tokens. */
export function callerOf({ kind, id, permissions, session }: Principal): Caller {
  return {
    principal: kind === 'anonymous' ? undefined : kind === 'host' ? id : `${kind}:${id}`,
    permissions,
    session
  }
}

/** @throws CodedError `CARMY_UNAUTHORIZED` */
export function assertKnown(principal: Principal): void {
  if (principal.kind !== 'anonymous') return
  throw new CodedError('CARMY_UNAUTHORIZED', 'this server answers only callers with a credential: a token or a key')
}
