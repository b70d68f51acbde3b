import { CodedError, isCoded } from '../../kernel/index.ts'
import type { Key, Store, Versioned } from '../store/types.ts'
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

/** Ids by principal, session and request id: the space of one caller never meets that of another. */
export function keyOf(caller: Caller, requestId: string): Key {
  return [caller.principal ?? none, caller.session ?? none, requestId]
}

/** What the store says of an id that is taken. */
export type Taken = Finished | 'conflict' | 'uncertain'

/** Remembers, in the store, which request ids are taken and what they were answered. */
export interface Replay {
  /**
   * At hand when the id is taken already, and the store has it at hand.
   * @returns `undefined` when the id is now taken by `mine`, on disk, and has to be {@link settle}d
   * @throws what the store failed with
   */
  reserve(key: Key, mine: Reservation): Taken | Promise<Taken | undefined>
  /**
   * Resolves once the fate is on disk.
   * @throws CodedError `IDEMPOTENCY_CONFLICT` when the reservation is no longer there; or what the store failed with
   */
  settle(key: Key, mine: Reservation, fate: Fate, category: ErrorCategory | undefined, text: string): Promise<void>
}

type Stored = Versioned<Reservation | Finished> | undefined

/** @param running execution ids of what this process is at work on, shared by all generations of the registry */
export function createReplay(store: Store, running: Set<string>): Replay {
  function judge({ value }: Versioned<Reservation | Finished>, mine: Reservation): Taken {
    if (value.fingerprint !== mine.fingerprint) return 'conflict'
    // An answer that is visible but not yet on disk is not given again: it could still be lost.
    return value.state === 'reserved' || running.has(value.execution_id) ? 'uncertain' : value
  }

  async function take(key: Key, mine: Reservation): Promise<Taken | undefined> {
    while (true) {
      try {
        await store.atomically((tx) => tx.put(collection, key, mine, 0), { durable: true })
        running.add(mine.execution_id)
        return undefined
      } catch (error) {
        if (!isCoded(error, 'STORE_CONFLICT')) throw error
      }
      // Somebody else was faster; unless it is free again already, the id is theirs.
      const present = await store.get<Reservation | Finished>(collection, key)
      if (present !== undefined) return judge(present, mine)
    }
  }

  return {
    reserve(key, mine) {
      const decide = (present: Stored): Taken | Promise<Taken | undefined> =>
        present === undefined ? take(key, mine) : judge(present, mine)
      const present = store.get<Reservation | Finished>(collection, key)
      return present instanceof Promise ? present.then(decide) : decide(present)
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
        running.delete(mine.execution_id)
      }
    }
  }
}
