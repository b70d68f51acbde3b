import { setImmediate } from 'node:timers/promises'
import { type Awaitable, CodedError, isCoded } from '../../kernel/index.ts'
import type { Key, Reader, Store, Transaction } from '../store/types.ts'
import { refusalOf, refused, tiers } from './limits.ts'
import type { AgentRuns, Limits, Period, Reservation, Tenant, Tier, Usage, Work } from './types.ts'

/** A tenant as stored under its id. */
export interface StoredTenant {
  readonly name: string
  readonly tier: Tier
  /** Limits it has of its own. */
  readonly own: Partial<Limits>
  readonly createdAtMs: number
  /** How often its data was deleted. */
  readonly purges: number
}

export type StoredRuns = Omit<AgentRuns, 'agent'>

/** By tenant. */
export const tenantsCollection = 'tenants.tenants'
/** {@link Usage} by tenant and `YYYY-MM`. */
export const monthsCollection = 'tenants.months'
/** {@link Usage} by tenant and `YYYY-MM-DD`. */
export const daysCollection = 'tenants.days'
/** {@link StoredRuns} by tenant and agent. */
export const runsCollection = 'tenants.runs'
/** Unix time in milliseconds of the last use, by tenant and key. */
export const usesCollection = 'tenants.key_uses'
/** By tenant and key. */
export const keysCollection = 'tenants.keys'

export const nothing: Usage = Object.freeze({ requests: 0, tokens: 0 })

export function toTenant(id: string, { name, tier, own, createdAtMs, purges }: StoredTenant): Tenant {
  return { id, name, tier, limits: { ...tiers[tier], ...own }, createdAtMs, purges }
}

/** The accounting. What resolves is on disk. */
export interface Ledger {
  reserve(tenantId: string, tokens: number, purges?: number): Promise<Reservation>
  settle(reservation: Reservation, work: Work): Promise<void>
  release(reservation: Reservation): Promise<void>
  /** Notes when a key was used, some time soon. Never fails. */
  touch(tenantId: string, keyId: string, atMs: number): void
  /** Resolves when nothing is waiting to be written. */
  idle(): Promise<void>
}

/** Something to be written for a tenant, in one transaction with whatever else is waiting. */
interface Posting {
  readonly tenantId: string
  /** May run again. @returns what to tell once it is on disk */
  post(account: Account): Awaitable<() => void>
  fail(error: unknown): void
}

/** Postings in one transaction: a commit costs the same for one and for many, but others want a turn too. */
const maxBatch = 256
const maxNameChars = 256

/**
 * Every request of every tenant is two postings. Those that wait while a commit is on its way share the next one, so
 * that a busy server pays for a few commits and not for thousands.
 * @param environment.now Unix time in milliseconds
 */
export function createLedger(
  store: Store,
  environment: {
    readonly now: () => number
    readonly period: () => Period
    /** Is told what nobody waits for. */
    readonly onError: (error: unknown) => void
  }
): Ledger {
  const { now, period, onError } = environment
  let waiting: Posting[] = []
  let running: Promise<void> | undefined

  async function commit(batch: readonly Posting[]): Promise<void> {
    let outcomes: (() => void)[] = []
    try {
      await store.atomically(
        async (tx) => {
          outcomes = []
          const accounts = new Map<string, Account>()
          for (const posting of batch) {
            let account = accounts.get(posting.tenantId)
            if (account === undefined) {
              account = new Account(tx, posting.tenantId)
              accounts.set(posting.tenantId, account)
            }
            const outcome = posting.post(account)
            outcomes.push(outcome instanceof Promise ? await outcome : outcome)
          }
          for (const account of accounts.values()) account.close()
        },
        { durable: true }
      )
    } catch (error) {
      for (const posting of batch) posting.fail(error)
      return
    }
    for (const tell of outcomes) tell()
  }

  async function run(): Promise<void> {
    while (waiting.length > 0) {
      // Whoever comes in this turn of the loop, or goes on because of the last commit, comes along.
      await setImmediate()
      const batch = waiting.slice(0, maxBatch)
      waiting = waiting.slice(maxBatch)
      await commit(batch)
    }
    running = undefined
  }

  function add(posting: Posting): void {
    waiting.push(posting)
    running ??= run()
  }

  function post<R>(tenantId: string, what: string, work: (account: Account) => Awaitable<R | CodedError>): Promise<R> {
    return new Promise((resolve, reject) => {
      const toOutcome = (result: R | CodedError) => () => {
        if (result instanceof CodedError) reject(result)
        else resolve(result)
      }
      add({
        tenantId,
        post(account) {
          const result = work(account)
          return result instanceof Promise ? result.then(toOutcome) : toOutcome(result)
        },
        fail: (error) => reject(toFailure(error, 'TENANTS_USAGE_FAILED', what))
      })
    })
  }

  return {
    reserve: (tenantId, tokens, purges) => {
      const at = period()
      return post(tenantId, 'Failed to check usage', async (account) => {
        const tenant = await account.tenant()
        if (tenant === undefined) return unknownTenant()
        if (purges !== undefined && purges !== tenant.purges) return purged()
        const inMonth = await account.usage(monthsCollection, at.month)
        const inDay = await account.usage(daysCollection, at.day)
        const { limits } = toTenant(tenantId, tenant)
        const refusal = refusalOf(limits, inMonth.value, inDay.value, tokens)
        if (refusal !== undefined) return refused(refusal, at, now())
        inMonth.add(1, tokens)
        inDay.add(1, tokens)
        const standing = { ...at, limits, inMonth: inMonth.value, inDay: inDay.value }
        return { tenantId, month: at.month, day: at.day, tokens, purges: tenant.purges, standing }
      })
    },

    settle: (reservation, work) => {
      const lastRunAtMs = now()
      return post(reservation.tenantId, 'Failed to record usage', async (account) => {
        const tenant = await account.tenant()
        if (tenant === undefined) return
        await account.correct(reservation, 0, work.tokens - reservation.tokens)
        // What was deleted stays deleted; only the counts that limits are held against go on.
        if (tenant.purges !== reservation.purges || work.agent === undefined) return
        const runs = await account.runs(work.agent.slice(0, maxNameChars))
        runs.value = {
          runs: runs.value.runs + 1,
          failures: runs.value.failures + (work.ok ? 0 : 1),
          lastRunAtMs: Math.max(runs.value.lastRunAtMs, lastRunAtMs)
        }
      })
    },

    release: (reservation) =>
      post(reservation.tenantId, 'Failed to record usage', async (account) => {
        if ((await account.tenant()) !== undefined) await account.correct(reservation, -1, -reservation.tokens)
      }),

    touch(tenantId, keyId, atMs) {
      add({
        tenantId,
        async post({ tx }) {
          if ((await tx.get(keysCollection, [tenantId, keyId])) !== undefined) {
            tx.put(usesCollection, [tenantId, keyId], atMs)
          }
          return () => {}
        },
        fail: onError
      })
    },

    async idle() {
      while (running !== undefined) await running
    }
  }
}

/** What one transaction reads and writes of a tenant: each row once, however many postings there are. */
class Account {
  readonly tx: Transaction
  readonly #id: string
  readonly #rows = new Map<string, Row<unknown>>()
  #tenant: Awaitable<StoredTenant | undefined> | null = null

  constructor(tx: Transaction, id: string) {
    this.tx = tx
    this.#id = id
  }

  tenant(): Awaitable<StoredTenant | undefined> {
    if (this.#tenant === null) {
      const found = this.tx.get<StoredTenant>(tenantsCollection, [this.#id])
      this.#tenant = found instanceof Promise ? found.then((row) => row?.value) : found?.value
    }
    return this.#tenant
  }

  async usage(collection: string, window: string): Promise<UsageRow> {
    // Months and days are told apart by their form.
    const known = this.#rows.get(window)
    if (known instanceof UsageRow) return known
    const key = [this.#id, window]
    const row = new UsageRow(collection, key, (await this.tx.get<Usage>(collection, key))?.value ?? nothing)
    this.#rows.set(window, row)
    return row
  }

  /** Changes what a reservation counts, where its windows are still there. */
  async correct({ month, day }: Reservation, requests: number, tokens: number): Promise<void> {
    const inMonth = await this.usage(monthsCollection, month)
    const inDay = await this.usage(daysCollection, day)
    for (const row of [inMonth, inDay]) if (row.value.requests > 0) row.add(requests, tokens)
  }

  async runs(agent: string): Promise<Row<StoredRuns>> {
    const name = `agent ${agent}`
    const known = this.#rows.get(name)
    if (known !== undefined) return known as Row<StoredRuns>
    const key = [this.#id, agent]
    const stored = await this.tx.get<StoredRuns>(runsCollection, key)
    const row = new Row<StoredRuns>(runsCollection, key, stored?.value ?? { runs: 0, failures: 0, lastRunAtMs: 0 })
    this.#rows.set(name, row)
    return row
  }

  close(): void {
    for (const row of this.#rows.values()) row.write(this.tx)
  }
}

class Row<T> {
  value: T
  readonly #collection: string
  readonly #key: Key
  readonly #before: T

  constructor(collection: string, key: Key, value: T) {
    this.#collection = collection
    this.#key = key
    this.#before = value
    this.value = value
  }

  write(tx: Transaction): void {
    if (this.value !== this.#before) tx.put(this.#collection, this.#key, this.value)
  }
}

class UsageRow extends Row<Usage> {
  add(requests: number, tokens: number): void {
    const { value } = this
    this.value = { requests: Math.max(0, value.requests + requests), tokens: Math.max(0, value.tokens + tokens) }
  }
}

export async function assertCurrent(tx: Reader, { tenantId, purges }: Reservation): Promise<void> {
  const tenant = (await tx.get<StoredTenant>(tenantsCollection, [tenantId]))?.value
  if (tenant?.purges !== purges) throw purged()
}

function purged(): CodedError {
  return new CodedError('TENANTS_PURGED', 'The data of this tenant was deleted while this was under way')
}

export function unknownTenant(): CodedError {
  return new CodedError('TENANTS_UNKNOWN', 'Tenant not found')
}

/** What a caller is told of a store that fails. A full one, or one that is not there, has an answer of its own. */
export function toFailure(error: unknown, code: string, message: string): unknown {
  const isKnown = isCoded(error) && (error.code === 'STORE_FULL' || !error.code.startsWith('STORE_'))
  return isKnown ? error : new CodedError(code, message, { cause: error })
}
