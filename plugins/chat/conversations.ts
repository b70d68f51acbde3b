import { setImmediate } from 'node:timers/promises'
import { CodedError } from '../../kernel/index.ts'
import type { Key, Reader, Store } from '../store/types.ts'
import { isPlainId, maxIdBytes, toWellFormed } from './text.ts'

/** A conversation as stored under `[userId, contextId]`. Times are Unix milliseconds. */
export interface Conversation {
  /** `null` until its owner names it. */
  readonly title: string | null
  readonly createdAtMs: number
  readonly updatedAtMs: number
  readonly messageCount: number
}

/**
 * What was said and answered, as stored under `[userId, contextId, n]`, where `n` counts the messages before it: 0, 2, …
 * without a gap. The two messages have no ids of their own; what is made of the turn's id stays what it is.
 */
export interface Turn {
  readonly id: string
  readonly atMs: number
  readonly user: string
  readonly assistant: string
  /** Name of the agent that answered. */
  readonly agent: string
}

export interface Message {
  readonly role: 'user' | 'assistant'
  readonly content: string
}

/** A conversation as its owner sees it. */
export interface NamedConversation extends Conversation {
  readonly id: string
}

/** A message as its owner sees it; its id never changes. */
export interface KeptMessage extends Message {
  readonly id: string
  readonly atMs: number
}

export interface Page {
  readonly limit: number
  /** How many to leave out. */
  readonly offset: number
}

/**
 * The conversations of all users. A user's id is part of every key, so nobody's can be reached by another's id: it is
 * `CHAT_CONVERSATION_UNKNOWN`, as one that never was.
 */
export interface Conversations {
  /** The last `limit` messages, oldest first; empty for a conversation that is not there. */
  history(userId: string, contextId: string, limit: number): Promise<readonly Message[]>
  /**
   * Adds both messages of a turn, or neither; begins the conversation when it is not there.
   * @param isNew the id was made for this turn, so nothing can be there
   * @param condition part of the transaction: when it rejects, nothing is added
   */
  append(
    userId: string,
    contextId: string,
    turn: Turn,
    isNew: boolean,
    condition?: (tx: Reader) => Promise<void>
  ): Promise<void>
  /** The last one that was spoken in first. */
  list(userId: string, page: Page): Promise<readonly NamedConversation[]>
  /**
   * A conversation and its messages, oldest first; fewer than the page asks for where they are very long.
   * @throws CodedError `CHAT_CONVERSATION_UNKNOWN`
   */
  read(
    userId: string,
    contextId: string,
    page: Page
  ): Promise<{ readonly conversation: NamedConversation; readonly messages: readonly KeptMessage[] }>
  /**
   * @param title blank counts as `null`
   * @throws CodedError `CHAT_CONVERSATION_UNKNOWN`
   */
  rename(userId: string, contextId: string, title: string | null): Promise<void>
  /**
   * Removes it with all that was said in it.
   * @throws CodedError `CHAT_CONVERSATION_UNKNOWN`
   */
  remove(userId: string, contextId: string): Promise<void>
  /** Removes up to `most` of what is kept for somebody. @returns how much; 0 when nothing is left */
  clear(userId: string, most: number): Promise<number>
}

/** Users and tenants are counted apart, so an id of one is never that of the other. */
const collections = {
  user: ['chat.conversations', 'chat.turns'],
  tenant: ['chat.tenant_conversations', 'chat.tenant_turns']
} as const

/** Conversations that are looked at before others get their turn. */
const scanBatch = 500
/** UTF-16 units of text in one page of messages, give or take a turn: about what is written out in 10 ms. */
const maxPageUnits = 4_000_000

const durable = { durable: true } as const

/** @param owners whose conversations; what is said of users here goes for tenants then */
export function createConversations(store: Store, owners: keyof typeof collections = 'user'): Conversations {
  const [conversationsCollection, turnsCollection] = collections[owners]

  /** What cannot be a key is not there. */
  function keyOf(userId: string, contextId: string): readonly [string, string] {
    if (!isPlainId(contextId, maxIdBytes)) throw unknown()
    return [userId, contextId]
  }

  return {
    async history(userId, contextId, limit) {
      if (limit === 0) return []
      const messages: Message[] = []
      const turns = store.range<Turn>(turnsCollection, [userId, contextId], {
        reverse: true,
        limit: Math.ceil(limit / 2)
      })
      for await (const [, { value }] of turns) {
        messages.push({ role: 'assistant', content: value.assistant })
        messages.push({ role: 'user', content: value.user })
      }
      messages.length = Math.min(messages.length, limit)
      return messages.reverse()
    },
    append(userId, contextId, turn, isNew, condition) {
      const key = [userId, contextId]
      return store.atomically(async (tx) => {
        if (condition !== undefined) await condition(tx)
        const before = isNew ? undefined : (await tx.get<Conversation>(conversationsCollection, key))?.value
        const count = before?.messageCount ?? 0
        tx.put<Conversation>(conversationsCollection, key, {
          title: before?.title ?? null,
          createdAtMs: before?.createdAtMs ?? turn.atMs,
          updatedAtMs: turn.atMs,
          messageCount: count + 2
        })
        tx.put<Turn>(turnsCollection, [userId, contextId, count], turn)
      })
    },

    async list(userId, { limit, offset }) {
      const all: NamedConversation[] = []
      for await (const [key, { value }] of store.range<Conversation>(conversationsCollection, [userId])) {
        all.push({ ...value, id: key[1] as string })
        if (all.length % scanBatch === 0) await setImmediate()
      }
      all.sort((a, b) => b.updatedAtMs - a.updatedAtMs || b.createdAtMs - a.createdAtMs || (a.id < b.id ? 1 : -1))
      return all.slice(offset, offset + limit)
    },

    async read(userId, contextId, { limit, offset }) {
      const key = keyOf(userId, contextId)
      const stored = (await store.get<Conversation>(conversationsCollection, key))?.value
      if (stored === undefined) throw unknown()
      // What is said from now on is left to the next read: the count and the messages belong together.
      const end = Math.min(stored.messageCount, offset + limit)
      const messages: KeptMessage[] = []
      const first = offset - (offset % 2)
      const turns = store.range<Turn>(turnsCollection, key, {
        limit: Math.max(0, Math.ceil((end - first) / 2)),
        ...(first === 0 ? {} : { after: [...key, first - 1] })
      })
      let units = 0
      for await (const [, { value }] of turns) {
        messages.push(...toMessages(value))
        units += value.user.length + value.assistant.length
        if (units > maxPageUnits) break
      }
      return { conversation: { ...stored, id: contextId }, messages: messages.slice(offset - first, end - first) }
    },

    async rename(userId, contextId, title) {
      const key = keyOf(userId, contextId)
      const name = title === null || title.trim() === '' ? null : toWellFormed(title)
      await store.atomically(async (tx) => {
        const stored = (await tx.get<Conversation>(conversationsCollection, key))?.value
        if (stored === undefined) throw unknown()
        tx.put<Conversation>(conversationsCollection, key, { ...stored, title: name })
      }, durable)
    },

    async remove(userId, contextId) {
      const key = keyOf(userId, contextId)
      await store.atomically(async (tx) => {
        const stored = (await tx.get<Conversation>(conversationsCollection, key))?.value
        if (stored === undefined) throw unknown()
        tx.remove(conversationsCollection, key)
        for (let n = 0; n < stored.messageCount; n += 2) tx.remove(turnsCollection, [...key, n])
      }, durable)
    },

    async clear(userId, most) {
      const found: [collection: string, key: Key][] = []
      for (const collection of [turnsCollection, conversationsCollection]) {
        if (found.length === most) break
        const limit = most - found.length
        for await (const [key] of store.range(collection, [userId], { limit })) found.push([collection, key])
      }
      if (found.length === 0) return 0
      await store.atomically((tx) => {
        for (const [collection, key] of found) tx.remove(collection, key)
      }, durable)
      return found.length
    }
  }
}

function toMessages({ id, atMs, user, assistant }: Turn): readonly KeptMessage[] {
  return [
    { id: `${id}-0`, role: 'user', content: user, atMs },
    { id: `${id}-1`, role: 'assistant', content: assistant, atMs }
  ]
}

function unknown(): CodedError {
  return new CodedError('CHAT_CONVERSATION_UNKNOWN', 'Conversation not found')
}
