import { type Awaitable, CodedError } from '../../kernel/index.ts'
import type { Audit, AuditChange } from '../audit/types.ts'
import type { OwnAgent, OwnAgents } from '../chat/types.ts'
import type { Store, Transaction } from '../store/types.ts'
import type { Tenants } from '../tenants/types.ts'
import { type AgentConfig, checkConfig, mergeConfig, toDefinition } from './definition.ts'

/** Which administrator asks for a change, for the audit log. */
export type Actor = Pick<AuditChange, 'actor' | 'address' | 'requestId'>

export interface TenantAgent {
  readonly tenantId: string
  readonly name: string
  readonly displayName: string
  readonly description: string | null
  readonly config: AgentConfig
  readonly enabled: boolean
  /** Unix times in milliseconds. */
  readonly createdAtMs: number
  readonly updatedAtMs: number
}

export interface NewAgent {
  readonly name: string
  readonly displayName: string
  readonly description?: string | null | undefined
  readonly config: unknown
}

/** What is left out stays as it is; of the config, each member. */
export interface AgentChanges {
  readonly displayName?: string | undefined
  readonly description?: string | null | undefined
  readonly config?: AgentConfig | undefined
  readonly enabled?: boolean | undefined
}

/**
 * Agents that belong to one tenant, as many as its tier has. Codes: `TENANT_AGENTS_INVALID`, `TENANT_AGENTS_UNKNOWN`,
 * `TENANT_AGENTS_EXIST` (one of that name), `TENANT_AGENTS_FULL` (the tier has no more), and `TENANTS_UNKNOWN`.
 */
export interface TenantAgents extends OwnAgents {
  /** In the order of their names. @throws CodedError `TENANTS_UNKNOWN` */
  all(tenantId: string): Promise<readonly TenantAgent[]>
  create(tenantId: string, agent: NewAgent, by: Actor): Promise<TenantAgent>
  update(tenantId: string, name: string, changes: AgentChanges, by: Actor): Promise<TenantAgent>
  remove(tenantId: string, name: string, by: Actor): Promise<void>
  /** What a tenant that is gone has left, up to `most`. @returns how many; 0 for a tenant that is there */
  clear(tenantId: string, most: number): Promise<number>
}

/** What all generations share: agents by tenant that were read, oldest first, and how often any was changed. */
export interface TenantAgentsState {
  readonly known: Map<string, ReadonlyMap<string, OwnAgent>>
  changes: number
}

export function createState(): TenantAgentsState {
  return { known: new Map(), changes: 0 }
}

export type StoredAgent = Omit<TenantAgent, 'tenantId' | 'name'>

/** By tenant and name. */
export const agentsCollection = 'tenant_agents.agents'
const durable = { durable: true } as const
const maxNameChars = 128
const maxDescriptionChars = 10_000
/** Where the tier sets no limit. */
const maxAgents = 1_000
const maxKnown = 10_000

export function createTenantAgents(
  store: Store,
  tenants: Tenants,
  audit: Audit | undefined,
  state: TenantAgentsState,
  environment: { readonly isTool: (name: string) => boolean; readonly now: () => number }
): TenantAgents {
  const { isTool, now } = environment

  function of(tenantId: string): Awaitable<ReadonlyMap<string, OwnAgent>> {
    return state.known.get(tenantId) ?? read(tenantId)
  }

  async function read(tenantId: string): Promise<ReadonlyMap<string, OwnAgent>> {
    const { changes } = state
    const found = new Map<string, OwnAgent>()
    for await (const [[, name], { value }] of store.range<StoredAgent>(agentsCollection, [tenantId])) {
      found.set(String(name), toOwn(String(name), value))
    }
    if (changes === state.changes) {
      const [oldest] = state.known.keys()
      if (oldest !== undefined && state.known.size >= maxKnown) state.known.delete(oldest)
      state.known.set(tenantId, found)
    }
    return found
  }

  /** What was read before a change is not to be remembered after it. */
  async function change<R>(tenantId: string, work: (tx: Transaction) => Promise<R>): Promise<R> {
    try {
      return await store.atomically(work, durable)
    } finally {
      state.changes += 1
      state.known.delete(tenantId)
    }
  }

  async function need(tx: Transaction, tenantId: string, name: string): Promise<StoredAgent> {
    await tenants.limitsIn(tx, tenantId)
    const found = name.length > maxNameChars ? undefined : await tx.get<StoredAgent>(agentsCollection, [tenantId, name])
    if (found !== undefined) return found.value
    throw new CodedError('TENANT_AGENTS_UNKNOWN', `Agent '${name}' not found for tenant '${tenantId}'`)
  }

  function record(tx: Transaction, by: Actor, action: string, tenantId: string, name: string, fields?: string[]): void {
    const resource = { type: 'agent', id: `${tenantId}/${name}` }
    audit?.record(tx, { ...by, action, resource, ...(fields === undefined ? {} : { fields }) })
  }

  return {
    find(tenantId, name) {
      const own = of(tenantId)
      return own instanceof Promise ? own.then((found) => found.get(name)) : own.get(name)
    },

    list(tenantId) {
      const own = of(tenantId)
      return own instanceof Promise ? own.then((found) => [...found.values()]) : [...own.values()]
    },

    async all(tenantId) {
      if ((await tenants.find(tenantId)) === undefined) throw new CodedError('TENANTS_UNKNOWN', 'Tenant not found')
      const found: TenantAgent[] = []
      for await (const [[, name], { value }] of store.range<StoredAgent>(agentsCollection, [tenantId])) {
        found.push({ tenantId, name: String(name), ...value })
      }
      return found
    },

    async create(tenantId, { name, displayName, description = null, config }, by) {
      checkText('agent_name', name)
      const stored: StoredAgent = {
        displayName: checkText('display_name', displayName),
        description: checkDescription(description),
        config: checkConfig(config, isTool),
        enabled: true,
        createdAtMs: now(),
        updatedAtMs: now()
      }
      await change(tenantId, async (tx) => {
        const most = (await tenants.limitsIn(tx, tenantId)).agents ?? maxAgents
        let present = 0
        for await (const [[, other]] of tx.range(agentsCollection, [tenantId])) {
          present += 1
          if (other === name) {
            throw new CodedError('TENANT_AGENTS_EXIST', `Agent '${name}' already exists for tenant '${tenantId}'`)
          }
        }
        if (present >= most) {
          const text = `Agent quota exceeded: tenant '${tenantId}' may have ${most} of its own and has ${present}`
          throw new CodedError('TENANT_AGENTS_FULL', text)
        }
        tx.put(agentsCollection, [tenantId, name], stored, 0)
        record(tx, by, 'create_agent', tenantId, name)
      })
      return { tenantId, name, ...stored }
    },

    async update(tenantId, name, { displayName, description, config, enabled }, by) {
      if (displayName !== undefined) checkText('display_name', displayName)
      if (description !== undefined) checkDescription(description)
      const fields = Object.entries({ display_name: displayName, description, config, enabled })
      const given = fields.flatMap(([field, value]) => (value === undefined ? [] : field))
      return change(tenantId, async (tx) => {
        const before = await need(tx, tenantId, name)
        const after: StoredAgent = {
          displayName: displayName ?? before.displayName,
          description: description === undefined ? before.description : description,
          config: config === undefined ? before.config : checkConfig(mergeConfig(before.config, config), isTool),
          enabled: enabled ?? before.enabled,
          createdAtMs: before.createdAtMs,
          updatedAtMs: now()
        }
        tx.put(agentsCollection, [tenantId, name], after)
        record(tx, by, 'update_agent', tenantId, name, given)
        return { tenantId, name, ...after }
      })
    },

    remove: (tenantId, name, by) =>
      change(tenantId, async (tx) => {
        await need(tx, tenantId, name)
        tx.remove(agentsCollection, [tenantId, name])
        record(tx, by, 'delete_agent', tenantId, name)
      }),

    clear: async (tenantId, most) => {
      // They are the operator's settings, not what the tenant left behind: they go with the tenant itself.
      if ((await tenants.find(tenantId)) !== undefined) return 0
      return change(tenantId, async (tx) => {
        let gone = 0
        for await (const [key] of tx.range(agentsCollection, [tenantId], { limit: most })) {
          tx.remove(agentsCollection, key)
          gone += 1
        }
        return gone
      })
    }
  }
}

function toOwn(name: string, { description, config, enabled, createdAtMs }: StoredAgent): OwnAgent {
  return { agent: toDefinition(name, description, config), enabled, createdAtMs }
}

export function checkText(field: string, text: string): string {
  if (!/\S/.test(text)) throw invalid(`${field} must not be empty`)
  if (text.length > maxNameChars || /[\p{Surrogate}\p{Cc}]/u.test(text)) {
    throw invalid(`${field} must be at most ${maxNameChars} characters, without controls`)
  }
  return text
}

export function checkDescription(text: string | null): string | null {
  if (text === null || text.length <= maxDescriptionChars) return text
  throw invalid(`description must be at most ${maxDescriptionChars} characters`)
}

function invalid(message: string): CodedError {
  return new CodedError('TENANT_AGENTS_INVALID', message)
}
