import { setImmediate } from 'node:timers/promises'
import { type Awaitable, CodedError, isCoded } from '../../kernel/index.ts'
import type { Key, Reader, Store, Transaction } from '../store/types.ts'
import { isLimited, leftOf, refusalOf, refused, tiers, usedUp } from './limits.ts'
import type { AgentRun, AgentRuns, Limits, Period, Reservation, Standing, Tenant, Tier, Usage, Work } from './types.ts'

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

/** What is counted in a month or a day. */
export interface Count extends Usage {
  /**
   * Places given out, where there is a limit: those that were taken, those at hand, and those that went with a process
   * that was killed.
   */
  readonly reserved: number
}

type RunCounts = Omit<AgentRuns, 'agent'>

export interface StoredRuns extends RunCounts {
  /** How many runs were kept so far, those included that had to make room: the number of the last one. */
  readonly kept?: number
}

/** What is still to be written of an agent. */
interface RunChange extends RunCounts {
  readonly kept: readonly AgentRun[]
}

/** By tenant. */
export const tenantsCollection = 'tenants.tenants'
/** {@link Count} by tenant and `YYYY-MM`. */
export const monthsCollection = 'tenants.months'
/** {@link Count} by tenant and `YYYY-MM-DD`. */
export const daysCollection = 'tenants.days'
/** {@link StoredRuns} by tenant and agent. */
export const runsCollection = 'tenants.runs'
/** {@link AgentRun} by tenant, agent and number. */
export const keptRunsCollection = 'tenants.kept_runs'
/** Unix time in milliseconds of the last use, by tenant and key. */
export const usesCollection = 'tenants.key_uses'
/** By tenant and key. */
export const keysCollection = 'tenants.keys'

export function toTenant(id: string, { name, tier, own, createdAtMs, purges }: StoredTenant): Tenant {
  return { id, name, tier, limits: { ...tiers[tier], ...own }, createdAtMs, purges }
}

/** What is still to be written of one month and day. */
interface Change {
  readonly month: string
  readonly day: string
  /** Of the tenant when it was made: what was deleted since does not come back. */
  readonly purges: number
  requests: number
  tokens: number
  reserved: number
}

/** Somebody who waits for a place. */
interface Waiter {
  readonly tokens: number
  readonly purges: number | undefined
  resolve(reservation: Reservation): void
  reject(error: unknown): void
}

/** The next commit, for all who wait for it. */
interface NextCommit {
  readonly promise: Promise<void>
  resolve(): void
  reject(error: unknown): void
}

/** A tenant at work. */
export interface Account {
  readonly id: string
  tenant: Tenant
  /** Something about the tenant has changed: to be read again before it is used. */
  isStale: boolean
  at: Period
  /** As on disk, with what is still to be written. */
  inMonth: Count
  inDay: Count
  /** Places of this month and day that are reserved on disk, and free. */
  places: number
  /** Tokens held for requests under way. */
  held: number
  /** Requests since the last commit. */
  demand: number
  changes: Change[]
  /** By agent, what is still to be added. */
  runs: Map<string, RunChange>
  asking: Waiter[]
  settling: NextCommit | undefined
  flushing: Promise<void> | undefined
  usedAtMs: number
}

/** What all generations share: they take from the same places, and whoever comes first writes for all. */
export interface LedgerState {
  readonly accounts: Map<string, Account>
  readonly loading: Map<string, Promise<Account | undefined>>
  /** There is something to be written of them. */
  readonly dirty: Set<Account>
  /** Of each ledger: tells it so. */
  readonly wakes: Set<() => void>
}

export function createLedgerState(): LedgerState {
  return { accounts: new Map(), loading: new Map(), dirty: new Set(), wakes: new Set() }
}

export interface Ledger {
  standing(tenantId: string): Awaitable<Standing | undefined>
  /** At hand where the tenant was seen before. @throws CodedError a refusal */
  admit(tenantId: string): Awaitable<void>
  reserve(tenantId: string, tokens: number, purges?: number): Awaitable<Reservation>
  settle(reservation: Reservation, work: Work): Promise<void>
  release(reservation: Reservation): Promise<void>
  /** Notes when a key was used, some time soon. Never fails. */
  touch(tenantId: string, keyId: string, atMs: number): void
  /** A tenant has changed. */
  forget(tenantId: string): void
  /** Resolves when what there is of a tenant has been written, if that can be. Never rejects. */
  flush(tenantId: string): Promise<void>
  /** Gives back places of tenants that have been quiet for a while. */
  relax(): void
  /** Writes a last time; the last ledger gives back every place. Never rejects. */
  close(): Promise<void>
}

/** Accounts in one transaction: a commit costs about the same for one and for many, but others want a turn too. */
const maxBatch = 256
export const maxIdChars = 64
export const maxAgentChars = 256
/** Of an agent of a tenant. */
export const maxKeptRuns = 1_000
/**
 * Places that are kept at hand: twice what was asked for since the last commit, but at most so many, and so large a
 * share of what the tenant has left.
 */
const maxAhead = 1_024
const aheadShare = 1 / 16
const quietMs = 600_000
/** How long a commit waits for as many to come as the last one served. */
const gatherMs = 2
/** From so many on they are worth waiting for, also for others. */
const manyServed = 16

/**
 * The accounting. On disk, a limit is held against the places that were given out; in memory there are a few that nobody
 * has taken yet. Taking one is a matter of this process alone and needs no write; a process that is killed loses those it
 * had, and can never have given out more. What was used is written when a request ends, one commit for all that end
 * meanwhile.
 * @param environment.now Unix time in milliseconds
 * @param environment.intervalMs how long what was used may wait to be written; 0: nobody is answered before it is
 */
export function createLedger(
  store: Store,
  state: LedgerState,
  environment: {
    readonly now: () => number
    readonly period: () => Period
    readonly intervalMs: number
    /** Is told of what nobody waits for. */
    readonly onError: (error: unknown) => void
  }
): Ledger {
  const { now, period, intervalMs, onError } = environment
  let touches: (readonly [tenantId: string, keyId: string, atMs: number])[] = []
  let touching: NextCommit | undefined
  let running: Promise<void> | undefined
  let closing = false
  /** How many came since the last commit, how many shared that, and for how many the next one waits. */
  let arrived = 0
  let served = 0
  let expected = 0
  /** Somebody waits for a place, or for all to be written. */
  let isUrgent = false
  let commitNow: (() => void) | undefined
  const wake = (): void => {
    arrived += 1
    if (isUrgent || (intervalMs === 0 && arrived >= expected)) commitNow?.()
    running ??= run()
  }
  state.wakes.add(wake)

  // Accounts.

  function open(id: string): Awaitable<Account | undefined> {
    const account = state.accounts.get(id)
    if (account !== undefined && !account.isStale && account.at.day === period().day) return account
    let loading = state.loading.get(id)
    if (loading === undefined) {
      loading = load(id).finally(() => state.loading.delete(id))
      state.loading.set(id, loading)
    }
    return loading
  }

  async function load(id: string): Promise<Account | undefined> {
    const known = state.accounts.get(id)
    if (known === undefined) return read(id, known)
    await known.flushing
    known.isStale = false
    try {
      return await read(id, known)
    } catch (error) {
      known.isStale = true
      throw error
    }
  }

  /** Reads a tenant and its counts, into the account that there is of it. */
  async function read(id: string, known: Account | undefined): Promise<Account | undefined> {
    const at = period()
    const stored = id.length > maxIdChars ? undefined : await get<StoredTenant>(tenantsCollection, [id], checkingUsage)
    if (stored === undefined) {
      state.accounts.delete(id)
      return undefined
    }
    const tenant = toTenant(id, stored)
    const inMonth = (await get<Count>(monthsCollection, [id, at.month], checkingUsage)) ?? nothing
    const inDay = (await get<Count>(daysCollection, [id, at.day], checkingRate)) ?? nothing
    if (known === undefined) {
      const account = createAccount(tenant, at, inMonth, inDay, now())
      state.accounts.set(id, account)
      return account
    }
    if (known.tenant.purges !== tenant.purges) known.runs.clear()
    // Places are those of one day.
    if (known.at.day !== at.day) giveBack(known, known.at, known.places)
    // What is still to be written is not in what was read.
    Object.assign(known, { tenant, at })
    known.inMonth = withChanges(inMonth, known, 'month')
    known.inDay = withChanges(inDay, known, 'day')
    return known
  }

  async function get<T>(collection: string, key: Key, what: Doing): Promise<T | undefined> {
    try {
      return (await store.get<T>(collection, key))?.value
    } catch (error) {
      throw toFailure(error, what.code, what.message)
    }
  }

  /** With the next commit. */
  function giveBack(account: Account, at: Period, places: number): void {
    if (places === 0) return
    if (at.day === account.at.day) account.places -= places
    count(account, at, account.tenant.purges, 0, 0, -places)
    write(account)
  }

  // Requests.

  function begin(
    account: Account | undefined,
    tokens: number,
    purges: number | undefined
  ): Reservation | CodedError | undefined {
    if (account === undefined) return unknownTenant()
    if (purges !== undefined && purges !== account.tenant.purges) return purged()
    const refusal = refusalOf(account, tokens)
    if (refusal !== undefined) return refused(refusal, account.at, now())
    const isPlaced = isLimited(account.tenant.limits)
    if (isPlaced) {
      if (account.places === 0) return undefined
      account.places -= 1
    }
    const { id, at, tenant } = account
    const { month, day } = at
    account.demand += 1
    account.held += tokens
    account.usedAtMs = now()
    count(account, at, tenant.purges, 1, 0, 0)
    const { inMonth, inDay } = account
    const { limits } = tenant
    return { tenantId: id, month, day, tokens, purges: tenant.purges, isPlaced, limits, inMonth, inDay }
  }

  function reserve(account: Account | undefined, tokens: number, purges: number | undefined): Awaitable<Reservation> {
    const begun = begin(account, tokens, purges)
    if (begun instanceof CodedError) throw begun
    if (begun !== undefined) return begun
    return new Promise((resolve, reject) => ask(account as Account, { tokens, purges, resolve, reject }))
  }

  function ask(account: Account, waiter: Waiter): void {
    account.asking.push(waiter)
    isUrgent = true
    write(account)
  }

  function settle(account: Account | undefined, reservation: Reservation, work: Work): Promise<void> {
    if (account === undefined) return Promise.resolve()
    const { tokens, purges } = reservation
    account.held = Math.max(0, account.held - tokens)
    count(account, reservation, purges, 0, work.tokens, 0)
    if (work.agent !== undefined && purges === account.tenant.purges) {
      addRuns(account.runs, work.agent.slice(0, maxAgentChars), {
        runs: 1,
        failures: work.ok ? 0 : 1,
        lastRunAtMs: now(),
        kept: work.run === undefined ? [] : [work.run]
      })
    }
    write(account)
    if (intervalMs > 0) return Promise.resolve()
    account.settling ??= createNextCommit()
    return account.settling.promise
  }

  function release(account: Account | undefined, reservation: Reservation): void {
    if (account === undefined) return
    const { tokens, purges, isPlaced } = reservation
    account.held = Math.max(0, account.held - tokens)
    const isCurrent = reservation.month === account.at.month && reservation.day === account.at.day
    count(account, reservation, purges, -1, 0, isPlaced && !isCurrent ? -1 : 0)
    if (isPlaced && isCurrent) account.places += 1
    write(account)
  }

  // Writing.

  function write(account: Account): void {
    state.dirty.add(account)
    for (const wake of state.wakes) wake()
  }

  async function run(): Promise<void> {
    do {
      await gather()
      served = arrived
      arrived = 0
      isUrgent = false
      await commitSome()
    } while (!closing && (state.dirty.size > 0 || touches.length > 0))
    running = undefined
  }

  /** Whoever comes in this turn of the loop comes along; and when the last commit served many, those come back soon. */
  async function gather(): Promise<void> {
    await setImmediate()
    // Those who came while many were served wait for these to come back: in two halves that take turns, each would pay
    // for a commit of its own.
    expected = arrived >= served && served >= manyServed ? arrived + served : served
    const waitMs = intervalMs > 0 ? intervalMs : arrived < expected ? gatherMs : 0
    if (waitMs === 0 || isUrgent || closing) return
    await new Promise<void>((resolve) => {
      const timer = setTimeout(resolve, waitMs)
      commitNow = () => {
        clearTimeout(timer)
        resolve()
      }
    })
    commitNow = undefined
  }

  async function commitSome(): Promise<void> {
    const batch: Account[] = []
    for (const account of state.dirty) {
      if (account.flushing !== undefined) continue
      batch.push(account)
      state.dirty.delete(account)
      if (batch.length === maxBatch) break
    }
    if (batch.length > 0 || touches.length > 0) return commit(batch)
    // All that is left is being written by another generation.
    for (const { flushing } of state.dirty) await flushing
  }

  async function commit(batch: readonly Account[]): Promise<void> {
    const taken = batch.map(take)
    const noted = touches
    const noting = touching
    touches = []
    touching = undefined
    let entries: (Entry | undefined)[] = []
    const work = async (tx: Transaction): Promise<void> => {
      entries = []
      for (const part of taken) entries.push(await post(tx, part))
      for (const [tenantId, keyId, atMs] of noted) {
        const key = await tx.get(keysCollection, [tenantId, keyId])
        if (key !== undefined) tx.put(usesCollection, [tenantId, keyId], atMs)
      }
    }
    const writing = async (): Promise<void> => {
      try {
        await store.atomically(work, { durable: true })
      } catch (error) {
        for (const part of taken) putBack(part, error)
        noting?.reject(error)
        if (taken.every(({ asking, settling }) => asking.length === 0 && settling === undefined)) onError(error)
        return
      }
      noting?.resolve()
      for (const [at, part] of taken.entries()) conclude(part, entries[at])
    }
    const done = writing()
    for (const account of batch) account.flushing = done
    await done
  }

  /** @returns `undefined` of a tenant that is not there any more */
  async function post(tx: Transaction, taken: Taken): Promise<Entry | undefined> {
    const { account, at, purges, changes, runs, asking, demand } = taken
    const { id } = account
    const stored = (await tx.get<StoredTenant>(tenantsCollection, [id]))?.value
    if (stored === undefined) return undefined
    const rows = new Rows(tx, id)
    for (const change of changes) {
      // Only the counts that limits are held against outlive a deletion.
      const isNew = change.purges === stored.purges
      for (const row of [await rows.get(monthsCollection, change.month), await rows.get(daysCollection, change.day)]) {
        if (row.isThere || isNew) row.count = sum(row.count, change)
      }
    }
    const tenant = toTenant(id, stored)
    const inMonth = await rows.get(monthsCollection, at.month)
    const inDay = await rows.get(daysCollection, at.day)
    let granted = 0
    if (isLimited(tenant.limits)) {
      const { requestsPerMonth, requestsPerDay } = tenant.limits
      const left = Math.min(leftOf(requestsPerMonth, inMonth.count, 0), leftOf(requestsPerDay, inDay.count, 0))
      const most = closing ? 0 : maxAhead
      const ahead = Math.min(most, 2 * demand, Math.floor((left - asking.length) * aheadShare))
      granted = Math.max(0, Math.min(asking.length + Math.max(0, ahead) - account.places, left))
      if (granted > 0) {
        for (const row of [inMonth, inDay]) row.count = { ...row.count, reserved: usedUp(row.count) + granted }
      }
    }
    rows.write()
    if (purges === stored.purges) {
      for (const [agent, more] of runs) {
        const before = (await tx.get<StoredRuns>(runsCollection, [id, agent]))?.value
        let kept = before?.kept ?? 0
        for (const run of more.kept) {
          kept += 1
          tx.put(keptRunsCollection, [id, agent, kept], run)
          if (kept > maxKeptRuns) tx.remove(keptRunsCollection, [id, agent, kept - maxKeptRuns])
        }
        tx.put(runsCollection, [id, agent], { ...sumRuns(before, more), kept })
      }
    }
    return { tenant, inMonth: inMonth.count, inDay: inDay.count, granted }
  }

  function conclude({ account, at, asking, settling }: Taken, entry: Entry | undefined): void {
    account.flushing = undefined
    settling?.resolve()
    if (entry === undefined) {
      state.accounts.delete(account.id)
      for (const waiter of asking) waiter.reject(unknownTenant())
      return
    }
    account.tenant = entry.tenant
    if (account.at.day === at.day) {
      account.places += entry.granted
      account.inMonth = withChanges(entry.inMonth, account, 'month')
      account.inDay = withChanges(entry.inDay, account, 'day')
    } else {
      giveBack(account, at, entry.granted)
    }
    for (const waiter of asking) {
      const begun = begin(account, waiter.tokens, waiter.purges)
      if (begun instanceof CodedError) waiter.reject(begun)
      else if (begun !== undefined) waiter.resolve(begun)
      else ask(account, waiter)
    }
  }

  /** Nothing of it was written: it is still to be, with whatever comes next. */
  function putBack({ account, changes, runs, demand, asking, settling }: Taken, error: unknown): void {
    account.flushing = undefined
    account.demand += demand
    account.changes.unshift(...changes)
    for (const [agent, more] of runs) addRuns(account.runs, agent, more)
    const { code } = checkingUsage
    for (const waiter of asking) waiter.reject(toFailure(error, code, checkingUsage.message))
    settling?.reject(toFailure(error, code, 'Failed to record usage'))
  }

  return {
    standing(tenantId) {
      const account = open(tenantId)
      return account instanceof Promise ? account.then(toStanding) : toStanding(account)
    },

    admit(tenantId) {
      const check = (account: Account | undefined): void => {
        if (account === undefined) throw unknownTenant()
        const refusal = refusalOf(account, 1)
        if (refusal !== undefined) throw refused(refusal, account.at, now())
      }
      const account = open(tenantId)
      return account instanceof Promise ? account.then(check) : check(account)
    },

    reserve(tenantId, tokens, purges) {
      const account = open(tenantId)
      if (account instanceof Promise) return account.then((account) => reserve(account, tokens, purges))
      return reserve(account, tokens, purges)
    },

    settle(reservation, work) {
      const account = open(reservation.tenantId)
      if (account instanceof Promise) return account.then((account) => settle(account, reservation, work))
      return settle(account, reservation, work)
    },

    async release(reservation) {
      release(await open(reservation.tenantId), reservation)
    },

    touch(tenantId, keyId, atMs) {
      touches.push([tenantId, keyId, atMs])
      wake()
    },

    forget(tenantId) {
      const account = state.accounts.get(tenantId)
      if (account !== undefined) account.isStale = true
    },

    async flush(tenantId) {
      const account = state.accounts.get(tenantId)
      await account?.flushing
      const waits: Promise<void>[] = []
      isUrgent = true
      if (account !== undefined && hasWork(account)) {
        account.settling ??= createNextCommit()
        waits.push(account.settling.promise)
        write(account)
      }
      if (touches.length > 0) {
        touching ??= createNextCommit()
        waits.push(touching.promise)
        wake()
      }
      await Promise.allSettled(waits)
    },

    relax() {
      for (const [id, account] of state.accounts) {
        if (account.held > 0 || hasWork(account) || now() - account.usedAtMs < quietMs) continue
        if (account.places > 0) giveBack(account, account.at, account.places)
        else state.accounts.delete(id)
      }
    },

    async close() {
      closing = true
      commitNow?.()
      state.wakes.delete(wake)
      await running
      for (const account of state.accounts.values()) {
        if (state.wakes.size === 0) giveBack(account, account.at, account.places)
        if (hasWork(account)) state.dirty.add(account)
      }
      // Others may go on to fill it.
      for (let left = state.dirty.size + touches.length; left > 0; left -= maxBatch) await commitSome()
    }
  }
}

/** What goes into one commit for an account. */
interface Taken {
  readonly account: Account
  readonly at: Period
  readonly purges: number
  readonly changes: readonly Change[]
  readonly runs: ReadonlyMap<string, RunChange>
  readonly demand: number
  readonly asking: readonly Waiter[]
  readonly settling: NextCommit | undefined
}

/** How things stand after it. */
interface Entry {
  readonly tenant: Tenant
  readonly inMonth: Count
  readonly inDay: Count
  /** Places given out for this process to use. */
  readonly granted: number
}

function take(account: Account): Taken {
  const { at, tenant, changes, runs, demand, asking, settling } = account
  Object.assign(account, { changes: [], runs: new Map(), demand: 0, asking: [], settling: undefined })
  return { account, at, purges: tenant.purges, changes, runs, demand, asking, settling }
}

/** The windows of a tenant in a transaction, each read and written once. */
class Rows {
  readonly #tx: Transaction
  readonly #id: string
  readonly #rows = new Map<string, Row>()

  constructor(tx: Transaction, id: string) {
    this.#tx = tx
    this.#id = id
  }

  async get(collection: string, window: string): Promise<Row> {
    // Months and days are told apart by their form.
    let row = this.#rows.get(window)
    if (row === undefined) {
      const key = [this.#id, window]
      const stored = (await this.#tx.get<Count>(collection, key))?.value
      row = { collection, key, isThere: stored !== undefined, before: stored ?? nothing, count: stored ?? nothing }
      this.#rows.set(window, row)
    }
    return row
  }

  write(): void {
    for (const { collection, key, before, count } of this.#rows.values()) {
      if (count !== before) this.#tx.put(collection, key, count)
    }
  }
}

interface Row {
  readonly collection: string
  readonly key: Key
  readonly isThere: boolean
  readonly before: Count
  count: Count
}

const nothing: Count = Object.freeze({ requests: 0, tokens: 0, reserved: 0 })

function createAccount(tenant: Tenant, at: Period, inMonth: Count, inDay: Count, usedAtMs: number): Account {
  return {
    id: tenant.id,
    tenant,
    isStale: false,
    at,
    inMonth,
    inDay,
    places: 0,
    held: 0,
    demand: 0,
    changes: [],
    runs: new Map(),
    asking: [],
    settling: undefined,
    flushing: undefined,
    usedAtMs
  }
}

function hasWork({ changes, runs, asking, settling }: Account): boolean {
  return changes.length > 0 || runs.size > 0 || asking.length > 0 || settling !== undefined
}

function createNextCommit(): NextCommit {
  let settle: Omit<NextCommit, 'promise'> | undefined
  const promise = new Promise<void>((resolve, reject) => {
    settle = { resolve, reject }
  })
  return { promise, ...(settle as unknown as Omit<NextCommit, 'promise'>) }
}

/** Notes a change of a month and a day, to be written with the next commit. */
function count(
  account: Account,
  { month, day }: Pick<Period, 'month' | 'day'>,
  purges: number,
  requests: number,
  tokens: number,
  reserved: number
): void {
  let change = account.changes.find((each) => each.day === day && each.month === month && each.purges === purges)
  if (change === undefined) {
    change = { month, day, purges, requests: 0, tokens: 0, reserved: 0 }
    account.changes.push(change)
  }
  change.requests += requests
  change.tokens += tokens
  change.reserved += reserved
  const more = { requests, tokens, reserved }
  if (month === account.at.month) account.inMonth = sum(account.inMonth, more)
  if (day === account.at.day) account.inDay = sum(account.inDay, more)
}

/** A count as on disk, with what is still to be written of it. */
function withChanges(stored: Count, { at, changes }: Account, of: 'month' | 'day'): Count {
  return changes.reduce((all, change) => (change[of] === at[of] ? sum(all, change) : all), stored)
}

function sum(a: Count, b: Count): Count {
  return { requests: a.requests + b.requests, tokens: a.tokens + b.tokens, reserved: a.reserved + b.reserved }
}

function addRuns(runs: Map<string, RunChange>, agent: string, more: RunChange): void {
  const before = runs.get(agent)
  const kept = before === undefined ? more.kept : [...before.kept, ...more.kept].slice(-maxKeptRuns)
  runs.set(agent, { ...sumRuns(before, more), kept })
}

function sumRuns(a: RunCounts | undefined, b: RunCounts): RunCounts {
  return {
    runs: (a?.runs ?? 0) + b.runs,
    failures: (a?.failures ?? 0) + b.failures,
    lastRunAtMs: Math.max(a?.lastRunAtMs ?? 0, b.lastRunAtMs)
  }
}

function toStanding(account: Account | undefined): Standing | undefined {
  if (account === undefined) return undefined
  const { at, tenant, inMonth, inDay, places, held } = account
  const { limits } = tenant
  const orNull = (left: number): number | null => (left === Number.POSITIVE_INFINITY ? null : Math.max(0, left))
  return {
    ...at,
    limits,
    inMonth: { requests: inMonth.requests, tokens: inMonth.tokens },
    inDay: { requests: inDay.requests, tokens: inDay.tokens },
    left: {
      requestsInMonth: orNull(leftOf(limits.requestsPerMonth, inMonth, places)),
      requestsInDay: orNull(leftOf(limits.requestsPerDay, inDay, places)),
      tokensInMonth: orNull((limits.tokensPerMonth ?? Number.POSITIVE_INFINITY) - inMonth.tokens - held)
    }
  }
}

interface Doing {
  readonly code: string
  readonly message: string
}

const checkingUsage: Doing = { code: 'TENANTS_USAGE_FAILED', message: 'Failed to check usage' }
const checkingRate: Doing = { code: 'TENANTS_RATE_FAILED', message: 'Failed to check rate limit' }

/** Part of the transaction of whoever keeps something for a tenant. */
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
