import { setImmediate } from 'node:timers/promises'
import { type Awaitable, CodedError, isCoded } from '../../kernel/index.ts'
import type { Key, RangeOptions, Store, Transaction } from '../store/types.ts'
import type { Batch } from './batch.ts'
import { timeOf } from './execution-id.ts'
import type { Caller, Effect, ErrorCategory } from './types.ts'

/** {@link Reservation} by principal, session and request id: of calls under way, and of those nobody knows the end of. */
const open = 'tools.open'
/** {@link Finished}, likewise. */
const finished = 'tools.finished'
/** {@link Ended} by execution id, oldest first. */
const endings = 'tools.endings'
/** How many request ids are taken, open or finished, by principal. */
const counts = 'tools.counts'

/** Stands for "none" in a key: a number, so that no principal or session of any name can be taken for it. */
const none = 0

/** What is read or removed at once, after which others get their turn. */
const pageSize = 100

/** An id that is taken: its tool runs, or nobody knows how it ended. */
export interface Reservation {
  readonly tool: string
  readonly effect: Effect
  readonly fingerprint: string
  readonly execution_id: string
  /** Unix time in milliseconds. */
  readonly created_at_ms: number
}

/** What is given again to whoever asks. */
export interface Result {
  /** Of the error in `text`; `null` when it has none. */
  readonly category: ErrorCategory | null
  readonly code: string | null
  /** The answer, byte for byte. */
  readonly text: string
}

/** An id whose answer is known. */
export interface Finished extends Reservation, Result {}

interface Ended {
  readonly key: Key
  /** Unix time in milliseconds. */
  readonly at_ms: number
}

/** What the store knows of an id. */
export type Known = { readonly open: Reservation } | { readonly finished: Finished } | undefined

/** An id that this process is at work on. Plain data, shared by all generations of the registry. */
export interface Claim {
  readonly fingerprint: string
  readonly execution_id: string
  /** The earlier call has ended, and its tool is asked how. */
  isVerifying: boolean
}

/** By the text of the key. */
export type Claims = Map<string, Claim>

/** Ids by principal, session and request id: the space of one caller never meets that of another. */
export function keyOf(caller: Caller, requestId: string): Key {
  return [caller.principal ?? none, caller.session ?? none, requestId]
}

/** A reservation that nothing waits for. */
export interface LooseReservation {
  /** Set it where the answer is there already: what is not written yet will not be. */
  isNeedless: boolean
  readonly made: Promise<unknown>
}

/** What bounds the memory. */
export interface Bounds {
  /** Request ids of one principal, finished or not. */
  readonly maxIds: number
  /** How long an answer is kept at least, in milliseconds. */
  readonly ttlMs: number
}

/**
 * Remembers, in the store, which request ids are taken and what they were answered. Each resolves once it is on disk, and
 * throws what the store failed with.
 */
export interface Replay {
  /** At hand where the store is. */
  find(key: Key): Awaitable<Known>
  /** Whether the principal has no room for another id. */
  isFull(key: Key): Awaitable<boolean>
  /** @returns whether there was room */
  reserve(key: Key, mine: Reservation): Promise<boolean>
  /** Reserves some time soon. What it fails with is told by `made` alone. */
  reserveUnless(key: Key, mine: Reservation): LooseReservation
  /**
   * The id of an earlier call becomes that of this one.
   * @returns whether it was still that of the earlier call
   */
  takeOver(key: Key, earlier: Reservation, mine: Reservation): Promise<boolean>
  /**
   * Keeps the answer.
   * @param isReserved `false`: the reservation may be missing
   * @param also what else is written with it
   * @returns whether there was room; always, where it was reserved
   * @throws CodedError `IDEMPOTENCY_CONFLICT` when the id is no longer that of this call
   */
  record(
    key: Key,
    mine: Reservation,
    result: Result,
    isReserved?: boolean,
    also?: (tx: Transaction) => void
  ): Promise<boolean>
  /** Frees the id. @throws CodedError `IDEMPOTENCY_CONFLICT` likewise */
  release(key: Key, mine: Reservation, isReserved?: boolean, also?: (tx: Transaction) => void): Promise<void>
  /** Removes answers that are older than what is kept. Ends early once `isClosing`. */
  expire(isClosing: () => boolean): Promise<void>
  /** Open ids, some at a time, between which others get their turn. */
  openIds(): AsyncIterable<readonly [Key, Reservation]>
  /** Whether the execution with this id has an answer that is kept. */
  isFinished(executionId: string): Promise<boolean>
}

export function createReplay(store: Store, batch: Batch, { maxIds, ttlMs }: Bounds, now: () => number): Replay {
  const countOf = (reader: Pick<Store, 'get'>, principal: string | number): Awaitable<number> =>
    when(reader.get<number>(counts, [principal]), (found) => found?.value ?? 0)

  function setCount(tx: Transaction, principal: string | number, count: number): void {
    if (count > 0) tx.put(counts, [principal], count)
    else tx.remove(counts, [principal])
  }

  const isOpen = (tx: Transaction, key: Key, { execution_id }: Reservation): Awaitable<boolean> =>
    when(tx.get<Reservation>(open, key), (found) => found?.value.execution_id === execution_id)

  const findOpen = (key: Key): Awaitable<Known> =>
    when(store.get<Reservation>(open, key), (found) => found && { open: found.value })

  const reserve = (tx: Transaction, key: Key, mine: Reservation): Awaitable<boolean> =>
    when(countOf(tx, key[0]!), (count) => {
      if (count >= maxIds) return false
      try {
        // Whoever asks has found no answer, and no one else in this process has the id.
        tx.put(open, key, mine, 0)
      } catch (error) {
        throw isCoded(error, 'STORE_CONFLICT') ? taken() : error
      }
      setCount(tx, key[0]!, count + 1)
      return true
    })

  /** Takes the id for an answer that was faster than its reservation. @returns whether there was room */
  const takeFor = (tx: Transaction, key: Key): Awaitable<boolean> =>
    when(tx.get(open, key), (opened) =>
      when(tx.get(finished, key), (ended) => {
        if (opened !== undefined || ended !== undefined) throw taken()
        return when(countOf(tx, key[0]!), (count) => {
          if (count >= maxIds) return false
          setCount(tx, key[0]!, count + 1)
          return true
        })
      })
    )

  return {
    find: (key) =>
      when(store.get<Finished>(finished, key), (found) =>
        found === undefined ? findOpen(key) : { finished: found.value }
      ),

    isFull: (key) => when(countOf(store, key[0]!), (count) => count >= maxIds),

    reserve: (key, mine) => batch.add((tx) => reserve(tx, key, mine)),

    reserveUnless(key, mine) {
      const made = batch.add((tx) => loose.isNeedless || reserve(tx, key, mine))
      const loose: LooseReservation = { isNeedless: false, made }
      // Who needs it awaits it; for everyone else the answer will tell.
      made.catch(() => {})
      return loose
    },

    takeOver: (key, earlier, mine) =>
      batch.add((tx) =>
        when(isOpen(tx, key, earlier), (isTheirs) => {
          if (isTheirs) tx.put(open, key, mine)
          return isTheirs
        })
      ),

    record(key, mine, result, isReserved = true, also) {
      const keep = (tx: Transaction): true => {
        const { tool, effect, fingerprint, execution_id, created_at_ms } = mine
        const { category, code, text } = result
        const kept: Finished = { tool, effect, fingerprint, execution_id, created_at_ms, category, code, text }
        const ended: Ended = { key, at_ms: now() }
        tx.put(finished, key, kept)
        tx.put(endings, [execution_id], ended)
        also?.(tx)
        return true
      }
      return batch.add((tx) =>
        when(isOpen(tx, key, mine), (isMine) => {
          if (isMine) {
            tx.remove(open, key)
            return keep(tx)
          }
          if (isReserved) throw taken()
          return when(takeFor(tx, key), (hasRoom) => hasRoom && keep(tx))
        })
      )
    },

    release: (key, mine, isReserved = true, also) =>
      batch.add((tx) =>
        when(isOpen(tx, key, mine), (isMine) => {
          if (!isMine) {
            if (isReserved) throw taken()
            return
          }
          return when(countOf(tx, key[0]!), (count) => {
            tx.remove(open, key)
            setCount(tx, key[0]!, count - 1)
            also?.(tx)
          })
        })
      ),

    async expire(isClosing) {
      const latestMs = now() - ttlMs
      for await (const page of pages<Ended>(store, endings)) {
        const due = page.filter(([, { at_ms }]) => at_ms <= latestMs)
        if (isClosing()) return
        if (due.length > 0) {
          await batch.add(async (tx) => {
            const present: (readonly [Key, Ended])[] = []
            const left = new Map<string | number, number>()
            for (const [id, ended] of due) {
              if ((await tx.get(endings, id)) === undefined) continue
              present.push([id, ended])
              const principal = ended.key[0]!
              left.set(principal, (left.get(principal) ?? (await countOf(tx, principal))) - 1)
            }
            for (const [id, { key }] of present) {
              tx.remove(endings, id)
              tx.remove(finished, key)
            }
            for (const [principal, count] of left) setCount(tx, principal, count)
          })
        }
        // Those behind it began later than anything that could have ended by then.
        if (timeOf(String(page.at(-1)?.[0][0])) > latestMs) return
      }
    },

    async *openIds() {
      for await (const page of pages<Reservation>(store, open)) yield* page
    },

    isFinished: async (executionId) => (await store.get(endings, [executionId])) !== undefined
  }
}

/** What a collection holds, in order, in pages between which others get their turn. */
async function* pages<T>(store: Store, collection: string): AsyncGenerator<readonly (readonly [Key, T])[]> {
  let options: RangeOptions = { limit: pageSize }
  while (true) {
    const page: (readonly [Key, T])[] = []
    for await (const [key, { value }] of store.range<T>(collection, [], options)) page.push([key, value])
    const last = page.at(-1)
    if (last === undefined) return
    yield page
    if (page.length < pageSize) return
    options = { limit: pageSize, after: last[0] }
    await setImmediate()
  }
}

/** Where the store has it at hand nothing is awaited, and no promise made. */
function when<T, R>(found: Awaitable<T>, use: (found: T) => Awaitable<R>): Awaitable<R> {
  return found instanceof Promise ? found.then(use) : use(found)
}

function taken(): CodedError {
  return new CodedError('IDEMPOTENCY_CONFLICT', 'the request_id was taken, or settled, by somebody else meanwhile')
}
