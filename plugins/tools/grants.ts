import type { Audit, AuditChange } from '../audit/types.ts'
import type { Store } from '../store/types.ts'
import type { Caller } from './types.ts'

/** {@link StoredGrants} by principal. */
const collection = 'tools.grants'

/** Stands for every caller, also one without a credential. */
const everyone = '*'

const nobody: ReadonlySet<string> = new Set()
/** Callers whose permissions are kept at hand. */
const maxMerged = 10_000

interface StoredGrants {
  readonly permissions: readonly string[]
}

/** What administrators granted, by principal, as it is on disk. Plain data, shared by all generations. */
export interface GrantsState {
  granted: Map<string, readonly string[]> | undefined
  /** Grows with each change. */
  revision: number
}

export function createGrantsState(): GrantsState {
  return { granted: undefined, revision: 0 }
}

/** Permissions of one principal. */
export interface GrantsOf {
  readonly principal: string
  /** Given by administrators. */
  readonly permissions: readonly string[]
  /** Given by the configuration, to this principal or to everyone. */
  readonly configured: readonly string[]
}

/** Which administrator asks for a change, for the audit log. */
export type Actor = Pick<AuditChange, 'actor' | 'address' | 'requestId'>

/** Who may do more than others: by configuration and by administrators, never by a request. */
export interface Grants {
  /** Reads what administrators granted. */
  load(): Promise<void>
  /** All that a caller may do. */
  of(caller: Caller): ReadonlySet<string>
  get(principal: string): GrantsOf
  /** Those whom administrators granted something, in the order of their names. */
  list(): readonly GrantsOf[]
  /** Replaces what administrators granted to a principal. Resolves once it is on disk, and holds from then on. */
  set(principal: string, permissions: readonly string[], by: Actor): Promise<GrantsOf>
}

export function createGrants(
  store: Store,
  audit: Audit | undefined,
  state: GrantsState,
  configured: Readonly<Record<string, readonly string[]>>
): Grants {
  const hasConfigured = Object.keys(configured).length > 0
  /** By principal, made when it is first asked for. */
  let merged = new Map<string, ReadonlySet<string>>()
  let mergedAt = state.revision

  const grantedTo = (principal: string): readonly string[] => state.granted?.get(principal) ?? []
  const configuredFor = (principal: string): readonly string[] =>
    Object.hasOwn(configured, principal) ? configured[principal]! : []

  function granted(principal: string): ReadonlySet<string> {
    if (mergedAt !== state.revision || merged.size >= maxMerged) {
      merged = new Map()
      mergedAt = state.revision
    }
    let permissions = merged.get(principal)
    if (permissions === undefined) {
      permissions = new Set([everyone, principal].flatMap((name) => [...configuredFor(name), ...grantedTo(name)]))
      merged.set(principal, permissions)
    }
    return permissions
  }

  const describe = (principal: string): GrantsOf => ({
    principal,
    permissions: grantedTo(principal),
    configured: [...new Set([...configuredFor(everyone), ...configuredFor(principal)])].sort()
  })

  return {
    async load() {
      if (state.granted !== undefined) return
      const found = new Map<string, readonly string[]>()
      for await (const [[principal], { value }] of store.range<StoredGrants>(collection, [])) {
        found.set(String(principal), value.permissions)
      }
      state.granted = found
      state.revision += 1
    },

    of({ principal, permissions }) {
      if (!hasConfigured && (state.granted?.size ?? 0) === 0) return permissions ?? nobody
      const more = granted(principal ?? everyone)
      if (permissions === undefined || permissions.size === 0) return more
      return more.size === 0 ? permissions : new Set([...permissions, ...more])
    },

    get: describe,

    list: () => [...(state.granted?.keys() ?? [])].sort().map(describe),

    async set(principal, permissions, by) {
      const next = [...new Set(permissions)].sort()
      await store.atomically(
        async (tx) => {
          const before = (await tx.get<StoredGrants>(collection, [principal]))?.value.permissions ?? []
          if (next.length === 0) tx.remove(collection, [principal])
          else tx.put(collection, [principal], { permissions: next })
          const resource = { type: 'principal', id: principal }
          audit?.record(tx, { ...by, action: 'set_grants', resource, before, after: next })
        },
        { durable: true }
      )
      // What is on disk now, should two have changed it at the same time.
      const now = (await store.get<StoredGrants>(collection, [principal]))?.value.permissions
      state.granted ??= new Map()
      if (now === undefined) state.granted.delete(principal)
      else state.granted.set(principal, now)
      state.revision += 1
      return { ...describe(principal), permissions: next }
    }
  }
}
