import { setImmediate } from 'node:timers/promises'
import { CodedError, type Logger } from '../../kernel/index.ts'
import type { Key, RangeOptions, Store, Transaction } from '../store/types.ts'
import { cutValue, describe, describeError } from './bounds.ts'
import type { Audit, AuditRow } from './types.ts'

export interface Options {
  /** The oldest rows above this number go, a hundredth of it at a time. */
  readonly max_rows: number
  /** Rows that are older go; left out, only their number counts. */
  readonly max_age_days?: number
}

export interface AuditDependencies {
  readonly store: Store
  readonly state: AuditState
  readonly log: Logger
  /** Unix time in milliseconds. */
  readonly now: () => number
  readonly randomUUID: () => string
}

/** The log, and what keeps it in order. */
export interface AuditService extends Audit {
  /** Marks what a process before this one left without an outcome. @throws what the store failed with */
  reconcile(): Promise<void>
  /** Reconciles if that is still to be done, writes outcomes that could not be written, and prunes. Never rejects. */
  tend(): Promise<void>
  /** The log says all that is known. @throws CodedError `AUDIT_BEHIND` while it waits for the store to take something */
  check(): Promise<void>
  /** Ends what {@link tend} does, and has outcomes written a last time. Never rejects. */
  close(): Promise<void>
}

type StoredRow = Omit<AuditRow, 'id'>

/** What all generations share. Plain data: the next generation may be other code. */
export interface AuditState {
  /** Time and sequence of the last id. */
  lastMs: number
  sequence: number
  /** Ids of changes that this process is at work on. */
  readonly running: Set<string>
  /** Rows whose outcome could not be written yet, oldest first. */
  readonly unsettled: Map<string, StoredRow>
  /** Outcomes that are being written; none of them rejects. */
  readonly settling: Set<Promise<void>>
}

export function createState(): AuditState {
  return { lastMs: 0, sequence: 0, running: new Set(), unsettled: new Map(), settling: new Set() }
}

/** By id. */
const rows = 'audit.rows'
/** Ids of rows that are `pending`, so that a start finds them without reading the log. */
const pending = 'audit.pending'

const durable = { durable: true } as const
const dayMs = 86_400_000
const maxSequence = 0xfff
const maxUnsettled = 1_000
/** Rows that are read, or removed, before others get their turn. */
const batch = 100

export function createAudit(options: Options, { store, state, log, now, randomUUID }: AuditDependencies): AuditService {
  const most = options.max_rows
  const slack = Math.ceil(most / 100)
  const maxAgeMs = (options.max_age_days ?? Number.POSITIVE_INFINITY) * dayMs
  /** Rows written by this generation; some of them may have gone with their transaction. */
  let written = 0
  /** How many rows there were when `written` was what it says; at most, since rows may have aged out. */
  let counted: { readonly rows: number; readonly written: number } | undefined
  let reconciled = false
  let closing = false
  let tending: Promise<void> | undefined

  /** UUID version 7 (RFC 9562 §5.7, §6.2 method 1): a greater one each time. */
  function nextId(): string {
    const time = Math.floor(now())
    if (time > state.lastMs) {
      state.lastMs = time
      state.sequence = 0
    } else if (state.sequence < maxSequence) {
      state.sequence += 1
    } else {
      state.lastMs += 1
      state.sequence = 0
    }
    const hex = state.lastMs.toString(16).padStart(12, '0')
    const sequence = state.sequence.toString(16).padStart(3, '0')
    return `${hex.slice(0, 8)}-${hex.slice(8)}-7${sequence}-${randomUUID().slice(19)}`
  }

  function write(...entries: readonly (readonly [id: string, row: StoredRow])[]): Promise<void> {
    return store.atomically((tx) => {
      for (const [id, row] of entries) {
        tx.put(rows, [id], row)
        if (row.status === 'pending') tx.put(pending, [id], true)
        else tx.remove(pending, [id])
      }
    }, durable)
  }

  /** Keeps an outcome for {@link mend}. The row says `pending` meanwhile; if the process ends, the next marks it. */
  function keepForLater(id: string, row: StoredRow): void {
    state.unsettled.set(id, row)
    const [oldest] = state.unsettled.keys()
    if (state.unsettled.size > maxUnsettled && oldest !== undefined) state.unsettled.delete(oldest)
  }

  /** Writes an outcome while whoever made the change goes on: that it is made does not depend on the log any more. */
  function settle(id: string, row: StoredRow): void {
    const settling = writeOutcome(id, row).finally(() => {
      state.settling.delete(settling)
      state.running.delete(id)
    })
    state.settling.add(settling)
  }

  async function writeOutcome(id: string, row: StoredRow): Promise<void> {
    try {
      await write([id, row])
    } catch (error) {
      const { action, requestId, status } = row
      log.error('the outcome of a change could not be written to the audit log; it will be tried again', {
        audit_id: id,
        action,
        request_id: requestId,
        status,
        error
      })
      keepForLater(id, row)
    }
  }

  function keptOf<R>(result: R, appliedOf: ((result: R) => unknown) | undefined): object {
    try {
      const applied = appliedOf?.(result)
      return applied === undefined ? {} : { applied: cutValue(applied) }
    } catch (error) {
      // The change has been made: whoever made it is told so.
      log.error('what a change applied could not be described for the audit log', { error })
      return {}
    }
  }

  async function mend(): Promise<void> {
    const waiting = [...state.unsettled]
    if (waiting.length === 0) return
    await write(...waiting)
    for (const [id] of waiting) state.unsettled.delete(id)
  }

  async function reconcile(): Promise<void> {
    for await (const [[newest]] of store.range(rows, [], { reverse: true, limit: 1 })) {
      const newestMs = Number.parseInt(String(newest).slice(0, 13).replace('-', ''), 16)
      if (newestMs >= state.lastMs) Object.assign(state, { lastMs: newestMs, sequence: maxSequence })
    }
    const isOurs = (id: string) => state.running.has(id) || state.unsettled.has(id)
    for await (const page of pages(pending)) {
      for (const [[key]] of page) {
        const id = String(key)
        if (isOurs(id)) continue
        const marked = await store.atomically(async (tx) => {
          const row = (await tx.get<StoredRow>(rows, [id]))?.value
          if (isOurs(id) || (await tx.get(pending, [id])) === undefined) return false
          tx.remove(pending, [id])
          if (row === undefined) return false // so old that it was pruned
          tx.put(rows, [id], { ...row, status: 'unknown', settledAtMs: now() })
          return true
        }, durable)
        if (marked) log.warn('nobody knows how a change ended: the process stopped in the middle', { audit_id: id })
      }
    }
    reconciled = true
  }

  /** What a collection holds, in order, in pages between which others get their turn. */
  async function* pages<T>(collection: string, reverse = false, limit = Number.POSITIVE_INFINITY) {
    let options: RangeOptions = { reverse }
    for (let left = limit; left > 0; left -= batch) {
      if (options.after !== undefined) await setImmediate()
      const page: (readonly [Key, { readonly value: T }])[] = []
      const size = Math.min(batch, left)
      for await (const entry of store.range<T>(collection, [], { ...options, limit: size })) page.push(entry)
      yield page
      const last = page.at(-1)
      if (page.length < size || last === undefined) return
      options = { reverse, after: last[0] }
    }
  }

  /** Removes rows from the oldest on, as long as they are `old`. */
  async function removeOldest(isOld: (id: string, row: StoredRow) => boolean): Promise<void> {
    while (!closing) {
      const keys: Key[] = []
      for await (const [key, { value }] of store.range<StoredRow>(rows, [], { limit: batch })) {
        if (!isOld(String(key[0]), value)) break
        keys.push(key)
      }
      if (keys.length === 0) return
      await store.atomically((tx) => {
        for (const key of keys) tx.remove(rows, key)
      })
      await setImmediate()
    }
  }

  /** Goes by the oldest row to keep, not by how many to remove: another generation may be at it too. */
  async function prune(): Promise<void> {
    const oldestMs = now() - maxAgeMs
    if (Number.isFinite(oldestMs)) await removeOldest((_id, { atMs }) => atMs < oldestMs)
    if (counted !== undefined && counted.rows + written - counted.written <= most + slack) return
    const writtenBefore = written
    let kept = 0
    let oldest = ''
    for await (const page of pages(rows, true, most)) {
      if (closing) return
      kept += page.length
      oldest = String(page.at(-1)?.[0][0] ?? '')
    }
    if (kept === most) await removeOldest((id) => id < oldest)
    counted = { rows: kept, written: writtenBefore }
  }

  async function tendOnce(): Promise<void> {
    try {
      if (!reconciled) await reconcile()
      await mend()
      await prune()
    } catch (error) {
      log.error('the audit log could not be put in order; it will be tried again', { error })
    }
  }

  return {
    record(tx: Transaction, change) {
      written += 1
      const atMs = now()
      const row: StoredRow = { ...describe(change), atMs, settledAtMs: atMs, status: 'done' }
      tx.put(rows, [nextId()], row)
    },

    async around(change, work, appliedOf) {
      const intent: StoredRow = { ...describe(change), atMs: now(), settledAtMs: null, status: 'pending' }
      const ended = (status: 'done' | 'failed', more: object): StoredRow => {
        const details = { ...intent.details, ...more }
        return { ...intent, status, settledAtMs: now(), details: Object.keys(details).length === 0 ? null : details }
      }
      const id = nextId()
      written += 1
      state.running.add(id)
      try {
        await write([id, intent])
      } catch (error) {
        const refusal = refused(error)
        log.error(refusal.message, { audit_id: id, action: intent.action, request_id: intent.requestId, error })
        // A write that failed may still have got through: then there is a row that waits for its outcome.
        keepForLater(id, ended('failed', { error: describeError(refusal) }))
        state.running.delete(id)
        throw refusal
      }
      let result
      try {
        result = await work()
      } catch (error) {
        settle(id, ended('failed', { error: describeError(error) }))
        throw error
      }
      settle(id, ended('done', keptOf(result, appliedOf)))
      return result
    },

    async list({ limit, offset }) {
      // Whoever was told of a change finds its outcome.
      await Promise.all(state.settling)
      const found: AuditRow[] = []
      let skip = offset
      for await (const page of pages<StoredRow>(rows, true, offset + limit)) {
        for (const [[id], { value }] of page.slice(skip)) found.push({ id: String(id), ...value })
        skip = Math.max(0, skip - page.length)
      }
      return found
    },

    reconcile,

    tend() {
      tending ??= tendOnce().finally(() => {
        tending = undefined
      })
      return tending
    },

    async check() {
      if (reconciled && state.unsettled.size === 0) return
      const what = reconciled ? `${state.unsettled.size} outcomes` : 'what was left by the last run'
      throw new CodedError('AUDIT_BEHIND', `the audit log waits for the store to take ${what}`)
    },

    async close() {
      closing = true
      await tending
      await Promise.all(state.settling)
      await mend().catch((error: unknown) => {
        log.error('outcomes are missing from the audit log: the next start marks them as unknown', { error })
      })
    }
  }
}

function refused(cause: unknown): CodedError {
  const message = 'the change was not made, since it could not be written to the audit log first'
  return new CodedError('AUDIT_FAILED', message, { cause })
}
