import type { Store } from '../store/types.ts'

/** A conversation as stored under `[userId, contextId]`. Times are Unix milliseconds. */
export interface Conversation {
  /** `null` until its owner names it. */
  readonly title: string | null
  readonly createdAtMs: number
  readonly updatedAtMs: number
  readonly messageCount: number
}

/**
 * What was said and answered, as stored under `[userId, contextId, n]`, where `n` counts the messages before it. The two
 * messages have no ids of their own; what is made of the turn's id stays what it is.
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

/** The conversations of all users. A user's id is part of every key, so nobody's can be reached by another's id. */
export interface Conversations {
  /** The last `limit` messages, oldest first; empty for a conversation that is not there. */
  history(userId: string, contextId: string, limit: number): Promise<readonly Message[]>
  /**
   * Adds both messages of a turn, or neither; begins the conversation when it is not there.
   * @param isNew the id was made for this turn, so nothing can be there
   */
  append(userId: string, contextId: string, turn: Turn, isNew: boolean): Promise<void>
}

export const conversationsCollection = 'chat.conversations'
export const turnsCollection = 'chat.turns'

export function createConversations(store: Store): Conversations {
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
    append(userId, contextId, turn, isNew) {
      const key = [userId, contextId]
      return store.atomically(async (tx) => {
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
    }
  }
}
