import crypto from 'node:crypto'
import { setImmediate } from 'node:timers/promises'
import { type Awaitable, CodedError, type Contribution, type Logger } from '../../kernel/index.ts'
import type { Audit, AuditChange } from '../audit/types.ts'
import type { Key, RangeOptions, Reader, Store, Transaction } from '../store/types.ts'
import { createCalendar, dayMs, periodOf } from './calendar.ts'
import {
  assertCurrent,
  createLedger,
  createLedgerState,
  daysCollection,
  keptRunsCollection,
  keysCollection,
  maxAgentChars,
  maxIdChars,
  maxKeptRuns,
  type LedgerState,
  monthsCollection,
  runsCollection,
  type StoredRuns,
  type StoredTenant,
  tenantsCollection,
  toFailure,
  toTenant,
  unknownTenant,
  usesCollection
} from './ledger.ts'
import { parseTier } from './limits.ts'
import type {
  AgentRun,
  ApiKey,
  DayUsage,
  KeyHolder,
  Limits,
  Tenant,
  TenantData,
  TenantProvision,
  Tenants,
  Usage
} from './types.ts'

/** Which administrator asks for a change, for the audit log. */
export type Actor = Pick<AuditChange, 'actor' | 'address' | 'requestId'>

export interface TenantsDependencies {
  readonly store: Store
  /** Changes that name an actor are recorded in it, in the transaction that makes them. */
  readonly audit: Audit | undefined
  readonly state: TenantsState
  /** What other plugins keep for tenants. */
  readonly data: () => readonly Contribution<TenantData>[]
  /** What other plugins give to new clients. */
  readonly provisions: () => readonly Contribution<TenantProvision>[]
  readonly log: Logger
  /** How long what was used may wait to be written; 0: nobody is answered before it is. */
  readonly writeIntervalMs: number
  /** Unix time in milliseconds. */
  readonly now: () => number
  readonly randomUUID: () => string
  readonly randomBytes: (size: number) => Buffer
}

/** What is known of a key without asking the store. */
interface KnownKey {
  readonly holder: KeyHolder
  readonly expiresAtMs: number | null
  /** When its use was last noted. */
  notedAtMs: number
}

/** What all generations share. Plain data: the next generation may be other code. */
export interface TenantsState {
  /** By SHA-256 of the key, oldest first. Emptied whenever a tenant or a key changes. */
  readonly known: Map<string, KnownKey>
  /** Grows with each change: what was read before one is not to be remembered after it. */
  changes: number
  /** Tenants whose data is being deleted. */
  readonly sweeping: Set<string>
  /** The last key creation of each tenant that is under way. */
  readonly creating: Map<string, Promise<unknown>>
  readonly ledger: LedgerState
}

export function createState(): TenantsState {
  return { known: new Map(), changes: 0, sweeping: new Set(), creating: new Map(), ledger: createLedgerState() }
}

export interface NewTenant {
  readonly name: string
  readonly tier: string
}

export interface NewKey {
  readonly name: string
  readonly expiresInDays?: number | undefined
}

export interface Quota {
  readonly tier: string
  /** Limits of its own, in place of the tier's. */
  readonly own: Partial<Limits>
}

/** The contract, and what only administrators and the plugin itself may do. */
export interface TenantsService extends Tenants {
  /** In the order in which they were made. */
  list(): Promise<readonly Tenant[]>
  create(tenant: NewTenant, by: Actor): Promise<Tenant>
  setQuota(tenantId: string, quota: Quota, by: Actor): Promise<Tenant>
  createKey(tenantId: string, key: NewKey, by?: Actor): Promise<{ readonly key: ApiKey; readonly secret: string }>
  revokeKey(tenantId: string, keyId: string, by?: Actor): Promise<void>
  /** A tenant, its first key and its agents: all, or nothing. */
  provision(
    client: NewTenant & { readonly productType: string; readonly keyName: string },
    by: Actor
  ): Promise<{
    readonly tenant: Tenant
    readonly key: ApiKey
    readonly secret: string
    /** Names of those it got. */
    readonly agents: readonly string[]
  }>
  /** Deletes a tenant with all that is kept for it. */
  remove(tenantId: string, by: Actor): Promise<void>
  /** Takes up deletions that were cut short, and clears away keys that expired long ago. Never rejects. */
  tend(): Promise<void>
  /** Ends what goes on by itself; resolves when all has been written. */
  close(): Promise<void>
}

/** A key as stored by tenant and key. */
interface StoredKey {
  readonly name: string
  readonly prefix: string
  readonly hash: string
  readonly createdAtMs: number
  readonly expiresAtMs: number | null
}

/** `[tenant, key]` by SHA-256 of the key. */
const hashesCollection = 'tenants.hashes'
/** Deletions that are not done yet, by tenant. */
const purgesCollection = 'tenants.purges'

interface Purge {
  /** The tenant went with its data. */
  readonly whole: boolean
}

const durable = { durable: true } as const
const keyForm = /^ares_[0-9a-f]{64}$/
const keyLength = 69
const prefixLength = 13
const maxNameChars = 128
const maxKeys = 100
const maxExpiryDays = 3_650
const maxKnownKeys = 10_000
/** How exact the time of the last use is. */
const noteEveryMs = 60_000
/** How long an expired key is still listed. */
const keptExpiredMs = 30 * dayMs
/** Rows of one step, between which others get their turn. */
const step = 200

export function createTenants(dependencies: TenantsDependencies): TenantsService {
  const { store, audit, state, data, provisions, log, writeIntervalMs, now, randomUUID, randomBytes } = dependencies
  const period = createCalendar(now)
  const ledger = createLedger(store, state.ledger, {
    now,
    period,
    intervalMs: writeIntervalMs,
    onError: (error) => log.error('what tenants used could not be written; it will be tried again', { error })
  })
  let closing = false
  let tending: Promise<void> | undefined

  function find(tenantId: string): Awaitable<Tenant | undefined> {
    if (tenantId.length > maxIdChars) return undefined
    const toFound = (row: { readonly value: StoredTenant } | undefined): Tenant | undefined =>
      row && toTenant(tenantId, row.value)
    const found = store.get<StoredTenant>(tenantsCollection, [tenantId])
    return found instanceof Promise ? found.then(toFound) : toFound(found)
  }

  async function need(tx: Reader, tenantId: string): Promise<StoredTenant> {
    const tenant = tenantId.length > maxIdChars ? undefined : await tx.get<StoredTenant>(tenantsCollection, [tenantId])
    if (tenant === undefined) throw unknownTenant()
    return tenant.value
  }

  /**
   * Changes a tenant or its keys. Before anybody is told, nothing that is remembered is good any more.
   * @param tenantId left out when it is new
   */
  async function change<R>(tenantId: string | undefined, work: (tx: Transaction) => Promise<R>): Promise<R> {
    try {
      return await store.atomically(work, durable)
    } finally {
      state.changes += 1
      state.known.clear()
      if (tenantId !== undefined) ledger.forget(tenantId)
    }
  }

  // Keys.

  async function lookUp(hash: string): Promise<KeyHolder | undefined> {
    const { changes } = state
    const place = (await store.get<Key>(hashesCollection, [hash]))?.value
    if (place === undefined) return undefined
    const [tenantId, keyId] = place as readonly [string, string]
    const key = (await store.get<StoredKey>(keysCollection, place))?.value
    const tenant = await find(tenantId)
    if (key === undefined || tenant === undefined || isExpired(key)) return undefined
    const known: KnownKey = { holder: { keyId, tenant }, expiresAtMs: key.expiresAtMs, notedAtMs: 0 }
    if (changes === state.changes) {
      const [oldest] = state.known.keys()
      if (oldest !== undefined && state.known.size >= maxKnownKeys) state.known.delete(oldest)
      state.known.set(hash, known)
    }
    return use(known)
  }

  function use(known: KnownKey): KeyHolder {
    const nowMs = now()
    if (Math.abs(nowMs - known.notedAtMs) >= noteEveryMs) {
      known.notedAtMs = nowMs
      ledger.touch(known.holder.tenant.id, known.holder.keyId, nowMs)
    }
    return known.holder
  }

  function isExpired({ expiresAtMs }: Pick<StoredKey, 'expiresAtMs'>): boolean {
    return expiresAtMs !== null && expiresAtMs <= now()
  }

  function toApiKey(id: string, key: StoredKey, lastUsedAtMs: number | null): ApiKey {
    const { name, prefix, createdAtMs, expiresAtMs } = key
    return { id, name, prefix, isActive: !isExpired(key), createdAtMs, expiresAtMs, lastUsedAtMs }
  }

  function removeKey(tx: Transaction, tenantId: string, keyId: string, { hash }: StoredKey): void {
    tx.remove(keysCollection, [tenantId, keyId])
    tx.remove(hashesCollection, [hash])
    tx.remove(usesCollection, [tenantId, keyId])
  }

  function makeKey(key: NewKey) {
    const name = checkName(key.name, 'name')
    const { expiresInDays } = key
    if (expiresInDays !== undefined && !(expiresInDays >= 1 && expiresInDays <= maxExpiryDays)) {
      throw new CodedError('TENANTS_INVALID', `expires_in_days must be between 1 and ${maxExpiryDays}`)
    }
    const id = randomUUID()
    const secret = `ares_${randomBytes(32).toString('hex')}`
    const createdAtMs = now()
    const stored: StoredKey = {
      name,
      prefix: secret.slice(0, prefixLength),
      hash: hashOf(secret),
      createdAtMs,
      expiresAtMs: expiresInDays === undefined ? null : createdAtMs + expiresInDays * dayMs
    }
    const put = (tx: Transaction, tenantId: string): void => {
      tx.put(keysCollection, [tenantId, id], stored, 0)
      tx.put(hashesCollection, [stored.hash], [tenantId, id], 0)
    }
    return { key: toApiKey(id, stored, null), secret, put }
  }

  /** Key creations of a tenant read all its keys: at once they would only make each other start again. */
  async function inTurn<R>(tenantId: string, work: () => Promise<R>): Promise<R> {
    const before = state.creating.get(tenantId)
    const mine = before === undefined ? work() : before.then(work, work)
    state.creating.set(tenantId, mine)
    try {
      return await mine
    } finally {
      if (state.creating.get(tenantId) === mine) state.creating.delete(tenantId)
    }
  }

  /** Makes room for one more: those that have expired go first. */
  async function makeRoom(tx: Transaction, tenantId: string): Promise<void> {
    const present: [string, StoredKey][] = []
    for await (const [[, id], { value }] of tx.range<StoredKey>(keysCollection, [tenantId])) {
      present.push([String(id), value])
    }
    if (present.length < maxKeys) return
    const expired = present.filter(([, key]) => isExpired(key))
    for (const [id, key] of expired) removeKey(tx, tenantId, id, key)
    if (expired.length > 0) return
    throw new CodedError('TENANTS_KEYS_FULL', `A tenant has at most ${maxKeys} API keys: revoke one first`)
  }

  /** What a collection holds under a prefix, in pages between which others get their turn. */
  async function* pages<T>(collection: string, prefix: Key) {
    let options: RangeOptions = { limit: step }
    for (;;) {
      const page: (readonly [Key, T])[] = []
      for await (const [key, { value }] of store.range<T>(collection, prefix, options)) page.push([key, value])
      yield page
      const last = page.at(-1)
      if (page.length < step || last === undefined) return
      options = { limit: step, after: last[0] }
      await setImmediate()
    }
  }

  async function all<T>(collection: string, prefix: Key): Promise<(readonly [Key, T])[]> {
    const rows: (readonly [Key, T])[] = []
    for await (const page of pages<T>(collection, prefix)) rows.push(...page)
    return rows
  }

  // Deleting.

  /** Revokes every key, and remembers that the rest is to go. @returns how many keys there were */
  async function beginPurge(tx: Transaction, tenantId: string, purge: Purge): Promise<number> {
    let keys = 0
    for await (const [[, id], { value }] of tx.range<StoredKey>(keysCollection, [tenantId])) {
      removeKey(tx, tenantId, String(id), value)
      keys += 1
    }
    tx.put(purgesCollection, [tenantId], purge)
    return keys
  }

  async function sweep(tenantId: string, { whole }: Purge): Promise<{ requests: number; runs: number }> {
    state.sweeping.add(tenantId)
    try {
      await ledger.flush(tenantId)
      for (const part of data()) {
        const lease = part.lease()
        try {
          while ((await part.item.remove(tenantId, step)) > 0) {
            if (closing) throw new CodedError('TENANTS_INTERRUPTED', 'the server stops; the next start goes on with it')
            await setImmediate()
          }
        } finally {
          lease.release()
        }
      }
      const { month, day } = period()
      const kept = whole ? [] : [month, day]
      let requests = 0
      let runs = 0
      await sweepRows<Usage>(monthsCollection, tenantId, ([, window]) => !kept.includes(String(window)))
      await sweepRows<Usage>(daysCollection, tenantId, ([, window], usage) => {
        if (kept.includes(String(window))) return false
        requests += usage.requests
        return true
      })
      await sweepRows<AgentRun>(keptRunsCollection, tenantId, () => true)
      await sweepRows<StoredRuns>(runsCollection, tenantId, (_key, found) => {
        runs += found.runs
        return true
      })
      await store.atomically((tx) => tx.remove(purgesCollection, [tenantId]), durable)
      return { requests, runs }
    } finally {
      state.sweeping.delete(tenantId)
    }
  }

  async function sweepRows<T>(collection: string, tenantId: string, goes: (key: Key, value: T) => boolean) {
    for await (const page of pages<T>(collection, [tenantId])) {
      const gone = page.filter(([key, value]) => goes(key, value))
      if (gone.length === 0) continue
      await store.atomically((tx) => {
        for (const [key] of gone) tx.remove(collection, key)
      }, durable)
    }
  }

  async function tendOnce(): Promise<void> {
    ledger.relax()
    for (const [[id], purge] of await all<Purge>(purgesCollection, [])) {
      if (closing) return
      if (!state.sweeping.has(String(id))) await sweep(String(id), purge)
    }
    for await (const page of pages<StoredKey>(keysCollection, [])) {
      if (closing) return
      const dead = page.filter(([, { expiresAtMs }]) => expiresAtMs !== null && expiresAtMs + keptExpiredMs <= now())
      if (dead.length === 0) continue
      await change(undefined, async (tx) => {
        for (const [[tenantId, keyId], key] of dead) removeKey(tx, String(tenantId), String(keyId), key)
      })
    }
  }

  function record(tx: Transaction, by: Actor | undefined, what: Omit<AuditChange, keyof Actor>): void {
    if (by !== undefined) audit?.record(tx, { ...by, ...what })
  }

  const ofTenant = (id: string) => ({ type: 'tenant', id })
  const ofKey = (id: string) => ({ type: 'api_key', id })

  function makeTenant({ name, tier }: NewTenant): { readonly tenant: Tenant; readonly stored: StoredTenant } {
    const stored: StoredTenant = {
      name: checkName(name, 'name'),
      tier: parseTier(tier),
      own: {},
      createdAtMs: now(),
      purges: 0
    }
    return { tenant: toTenant(randomUUID(), stored), stored }
  }

  return {
    find,
    limitsIn: async (tx, tenantId) => toTenant(tenantId, await need(tx, tenantId)).limits,

    verifyKey(key) {
      if (key.length !== keyLength) return undefined
      const hash = hashOf(key)
      const known = state.known.get(hash)
      if (known !== undefined) return isExpired(known) ? undefined : use(known)
      if (!keyForm.test(key)) return undefined
      return lookUp(hash).catch((error: unknown) => {
        throw toFailure(error, 'TENANTS_VERIFY_FAILED', 'Failed to verify API key')
      })
    },

    standing: (tenantId) => ledger.standing(tenantId),
    admit: (tenantId) => ledger.admit(tenantId),
    reserve: (tenantId, tokens, purges) => ledger.reserve(tenantId, tokens, purges),
    settle: (reservation, work) => ledger.settle(reservation, work),
    release: (reservation) => ledger.release(reservation),
    assertCurrent,

    async daily(tenantId, days) {
      await ledger.flush(tenantId)
      const first = periodOf(now() - (days - 1) * dayMs).day
      const found: DayUsage[] = []
      const rows = store.range<Usage>(daysCollection, [tenantId], { reverse: true, limit: days })
      for await (const [[, window], { value }] of rows) {
        const day = String(window)
        if (day < first) break
        const { requests, tokens } = value
        if (requests > 0 || tokens > 0) found.push({ day, requests, tokens })
      }
      return found.reverse()
    },

    async runs(tenantId) {
      await ledger.flush(tenantId)
      const rows = await all<StoredRuns>(runsCollection, [tenantId])
      return rows.map(([[, agent], { runs, failures, lastRunAtMs }]) => {
        return { agent: String(agent), runs, failures, lastRunAtMs }
      })
    },

    async runsOf(tenantId, agent, { offset, limit }) {
      await ledger.flush(tenantId)
      const key = [tenantId, agent.slice(0, maxAgentChars)]
      const last = (await store.get<StoredRuns>(runsCollection, key))?.value.kept ?? 0
      const runs: AgentRun[] = []
      const after = [...key, Math.max(0, last - offset) + 1]
      for await (const [, { value }] of store.range<AgentRun>(keptRunsCollection, key, {
        reverse: true,
        limit,
        after
      })) {
        runs.push(value)
      }
      return { runs, total: Math.min(last, maxKeptRuns) }
    },

    async keys(tenantId) {
      await ledger.flush(tenantId)
      const uses = new Map(await all<number>(usesCollection, [tenantId]).then((rows) => rows.map(toPair)))
      const rows = await all<StoredKey>(keysCollection, [tenantId])
      const keys = rows.map(([[, id], key]) => toApiKey(String(id), key, uses.get(String(id)) ?? null))
      return keys.sort((a, b) => a.createdAtMs - b.createdAtMs)
    },

    async createKey(tenantId, wanted, by) {
      const { key, secret, put } = makeKey(wanted)
      const work = async (tx: Transaction): Promise<void> => {
        await need(tx, tenantId)
        await makeRoom(tx, tenantId)
        put(tx, tenantId)
        const after = { tenant: tenantId, ...shown(key) }
        record(tx, by, { action: 'create_api_key', resource: ofKey(key.id), after })
      }
      await inTurn(tenantId, () => change(tenantId, work))
      return { key, secret }
    },

    revokeKey: (tenantId, keyId, by) =>
      change(tenantId, async (tx) => {
        const isPlausible = tenantId.length <= maxIdChars && keyId.length <= maxIdChars
        const key = isPlausible ? await tx.get<StoredKey>(keysCollection, [tenantId, keyId]) : undefined
        if (key === undefined) {
          throw new CodedError('TENANTS_KEY_UNKNOWN', `API key '${keyId}' not found for tenant '${tenantId}'`)
        }
        removeKey(tx, tenantId, keyId, key.value)
        record(tx, by, { action: 'revoke_api_key', resource: ofKey(keyId), before: { tenant: tenantId } })
      }),

    async purge(tenantId) {
      const purge = { whole: false }
      // What is counted already is to be found where it is kept.
      await ledger.flush(tenantId)
      const keys = await change(tenantId, async (tx) => {
        const tenant = await need(tx, tenantId)
        tx.put(tenantsCollection, [tenantId], { ...tenant, purges: tenant.purges + 1 })
        return beginPurge(tx, tenantId, purge)
      })
      return { ...(await sweep(tenantId, purge)), keys }
    },

    async list() {
      const rows = await all<StoredTenant>(tenantsCollection, [])
      const tenants = rows.map(([[id], stored]) => toTenant(String(id), stored))
      return tenants.sort((a, b) => a.createdAtMs - b.createdAtMs)
    },

    async create(wanted, by) {
      const { tenant, stored } = makeTenant(wanted)
      const { name, tier } = tenant
      await change(undefined, async (tx) => {
        tx.put(tenantsCollection, [tenant.id], stored, 0)
        record(tx, by, { action: 'create_tenant', resource: ofTenant(tenant.id), after: { name, tier } })
      })
      return tenant
    },

    async setQuota(tenantId, quota, by) {
      const tier = parseTier(quota.tier)
      const { own } = quota
      return change(tenantId, async (tx) => {
        const before = await need(tx, tenantId)
        const after = { ...before, tier, own }
        tx.put(tenantsCollection, [tenantId], after)
        record(tx, by, {
          action: 'update_quota',
          resource: ofTenant(tenantId),
          before: { tier: before.tier, ...before.own },
          after: { tier, ...own }
        })
        return toTenant(tenantId, after)
      })
    },

    async provision({ productType, keyName, ...wanted }, by) {
      const { tenant, stored } = makeTenant(wanted)
      const { key, secret, put } = makeKey({ name: keyName })
      const agents = await change(undefined, async (tx) => {
        tx.put(tenantsCollection, [tenant.id], stored, 0)
        put(tx, tenant.id)
        const agents: string[] = []
        for (const part of provisions()) {
          const lease = part.lease()
          try {
            agents.push(...(await part.item.agents(tx, tenant, productType)))
          } finally {
            lease.release()
          }
        }
        const { name, tier } = tenant
        record(tx, by, {
          action: 'provision_client',
          resource: ofTenant(tenant.id),
          after: { name, tier, product_type: productType, api_key: shown(key), agents }
        })
        return agents
      })
      return { tenant, key, secret, agents }
    },

    async remove(tenantId, by) {
      const purge = { whole: true }
      await change(tenantId, async (tx) => {
        const { name, tier } = await need(tx, tenantId)
        tx.remove(tenantsCollection, [tenantId])
        await beginPurge(tx, tenantId, purge)
        record(tx, by, { action: 'delete_tenant', resource: ofTenant(tenantId), before: { name, tier } })
      })
      await sweep(tenantId, purge)
    },

    tend() {
      tending ??= tendOnce()
        .catch((error: unknown) => {
          if (!closing) log.error('tenants could not be put in order; it will be tried again', { error })
        })
        .finally(() => {
          tending = undefined
        })
      return tending
    },

    async close() {
      closing = true
      await tending
      await ledger.close()
    }
  }
}

function toPair([[, id], value]: readonly [Key, number]): [string, number] {
  return [String(id), value]
}

/** What the audit log shows of a key. */
function shown({ id, name, prefix, expiresAtMs }: ApiKey): object {
  return { id, name, prefix, expires_at: expiresAtMs === null ? null : Math.floor(expiresAtMs / 1000) }
}

/** Keys are 256 bits of randomness: a fast hash is as good as a slow one. */
function hashOf(key: string): string {
  // Twice as fast, where Node has it.
  return crypto.hash?.('sha256', key, 'hex') ?? crypto.createHash('sha256').update(key).digest('hex')
}

/** @throws CodedError `TENANTS_INVALID` */
export function checkName(name: string, field: string): string {
  if (!/\S/.test(name)) throw new CodedError('TENANTS_INVALID', `${field} must not be empty`)
  if (name.length > maxNameChars || /[\p{Surrogate}\p{Cc}]/u.test(name)) {
    throw new CodedError('TENANTS_INVALID', `${field} must be at most ${maxNameChars} characters, without controls`)
  }
  return name
}
