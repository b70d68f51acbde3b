import type { Principal } from '../http/types.ts'
import type { Caller } from '../tools/types.ts'

/** The same caller as for carmy: what was run there is replayed here, and the other way round. */
export function callerOf({ kind, id, permissions, session }: Principal): Caller {
  return {
    principal: kind === 'anonymous' ? undefined : kind === 'host' ? id : `${kind}:${id}`,
    ...(permissions === undefined ? {} : { permissions }),
    ...(session === undefined ? {} : { session })
  }
}
