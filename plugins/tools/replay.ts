import { CodedError } from '../../kernel/index.ts'
import type { Key, Store } from '../store/types.ts'
import type { Caller, ErrorCategory } from './types.ts'

const collection = 'tool_executions'

/** Stands for "none" in a key: a number, so that no principal or session of any name can be taken for it. */
const none = 0

/** An id that is taken: its tool runs, or nobody knows how it ended. */
export interface Reservation {
  readonly state: 'reserved'
  readonly tool: string
  readonly fingerprint: string
  readonly execution_id: string
  /** Unix time in milliseconds. */
  readonly created_at_ms: number
}

/** An id whose answer is known, and given again to whoever asks. */
export interface Finished extends Omit<Reservation, 'state'> {
  readonly state: 'finished'
  /** Of the error in `text`; `null` when it has none. */
  readonly category: ErrorCategory | null
  /** The answer, byte for byte. */
  readonly text: string
}

/** What became of an execution: its answer is kept, its id is free again, or its id stays taken without an answer. */
export type Fate = 'record' | 'release' | 'leave'

/** An id this process is at work on. */
export interface Running {
  readonly fingerprint: string
  /** The reservation is on disk. */
  acquired: boolean
}

/** Ids by principal, session and request id: the space of one caller never meets that of another. */
export function keyOf(caller: Caller, requestId: string): Key {
  return [caller.principal ?? none, caller.session ?? none, requestId]
}

/**
 * Remembers, in the store, which request ids are taken and what they were answered. All its methods reject with what
 * the store failed with.
 */
export interface Replay {
  /** @returns `undefined` when the id is now taken by `mine`, on disk, and has to be {@link settle}d */
  reserve(key: Key, mine: Reservation): Promise<Finished | 'conflict' | 'uncertain' | undefined>
  /**
   * Resolves once the fate is on disk.
   * @throws CodedError `IDEMPOTENCY_CONFLICT` when the reservation is no longer there
   */
  settle(key: Key, mine: Reservation, fate: Fate, category: ErrorCategory | undefined, text: string): Promise<void>
}

/** @param running what this process is at work on, shared by all generations of the registry */
export function createReplay(store: Store, running: Map<string, Running>): Replay {
  return {
    async reserve(key, mine) {
      const name = JSON.stringify(key)
      const seen = await store.get<Reservation | Finished>(collection, key)
      const other = running.get(name)
      // An answer that is visible but not yet on disk is not given again: it could still be lost.
      if (other !== undefined && (other.acquired || seen === undefined)) {
        return other.fingerprint === mine.fingerprint ? 'uncertain' : 'conflict'
      }
      if (seen !== undefined) return judge(seen.value, mine)
      const own: Running = { fingerprint: mine.fingerprint, acquired: false }
      running.set(name, own)
      try {
        const rival = await store.atomically(
          async (tx) => {
            const present = await tx.get<Reservation | Finished>(collection, key)
            if (present === undefined) tx.put(collection, key, mine, 0)
            return present?.value
          },
          { durable: true }
        )
        if (rival !== undefined) return judge(rival, mine)
        own.acquired = true
        return undefined
      } finally {
        if (!own.acquired) running.delete(name)
      }
    },

    async settle(key, mine, fate, category, text) {
      try {
        if (fate === 'leave') return
        await store.atomically(
          async (tx) => {
            const present = await tx.get<Reservation | Finished>(collection, key)
            if (present?.value.state !== 'reserved' || present.value.execution_id !== mine.execution_id) {
              throw new CodedError('IDEMPOTENCY_CONFLICT', 'the reservation was settled by somebody else meanwhile')
            }
            if (fate === 'release') {
              tx.remove(collection, key)
              return
            }
            const finished: Finished = { ...mine, state: 'finished', category: category ?? null, text }
            tx.put(collection, key, finished, present.version)
          },
          { durable: true }
        )
      } finally {
        running.delete(JSON.stringify(key))
      }
    }
  }
}

function judge(present: Reservation | Finished, mine: Reservation): Finished | 'conflict' | 'uncertain' {
  if (present.fingerprint !== mine.fingerprint) return 'conflict'
  return present.state === 'finished' ? present : 'uncertain'
}
