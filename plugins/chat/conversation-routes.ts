import { schemaOf } from '../../kernel/index.ts'
import type { ErrorMap, Request, Route } from '../http/types.ts'
import type { Conversations, KeptMessage, NamedConversation, Page } from './conversations.ts'

type Params = { id: string }

const maxPage = 1_000
const maxTitleChars = 256

const page = schemaOf<Page>({
  type: 'object',
  properties: {
    limit: { type: 'integer', default: maxPage, description: `Brought into 1 to ${maxPage}` },
    offset: { type: 'integer', default: 0, description: 'How many to leave out; 0 when negative' }
  }
})

const text = { type: 'string' } as const
const time = { type: 'string', format: 'date-time' } as const
const title = { type: ['string', 'null'], maxLength: maxTitleChars } as const
const members = { id: text, title, message_count: { type: 'integer' }, created_at: time, updated_at: time } as const

const summary = { type: 'object', required: Object.keys(members), properties: members } as const
const detail = {
  type: 'object',
  required: [...Object.keys(members), 'messages'],
  properties: {
    ...members,
    messages: {
      type: 'array',
      items: {
        type: 'object',
        required: ['id', 'role', 'content', 'created_at'],
        properties: { id: text, role: { enum: ['user', 'assistant', 'system'] }, content: text, created_at: time }
      }
    }
  }
} as const

const errors: ErrorMap = { CHAT_CONVERSATION_UNKNOWN: 404 }
const path = '/api/conversations/{id}'

/** Reading, naming and deleting one's own conversations. */
export function conversationRoutes(conversations: Conversations): readonly Route[] {
  const list: Route<object, Page> = {
    method: 'GET',
    path: '/api/conversations',
    operationId: 'listConversations',
    summary: 'List your conversations, the last one that was spoken in first',
    guard: 'user',
    query: page,
    replies: { 200: { type: 'array', items: summary } },
    handle: async ({ principal, query }) => {
      const found = await conversations.list(principal.id, toPage(query))
      return { body: found.map(toSummary) }
    }
  }
  const read: Route<Params, Page> = {
    method: 'GET',
    path,
    operationId: 'getConversation',
    summary: 'Read a conversation, its messages from the oldest on; message_count tells whether there are more',
    guard: 'user',
    query: page,
    replies: { 200: detail },
    errors,
    handle: async ({ principal, params, query }) => {
      const { conversation, messages } = await conversations.read(principal.id, params.id, toPage(query))
      return { body: { ...toSummary(conversation), messages: messages.map(toMessage) } }
    }
  }
  const rename: Route<Params, unknown, { readonly title?: string | null }> = {
    method: 'PUT',
    path,
    operationId: 'renameConversation',
    summary: 'Give a conversation a title, or take it away',
    guard: 'user',
    body: schemaOf({ type: 'object', properties: { title } }),
    replies: { 200: { type: 'object', required: ['success'], properties: { success: { const: true } } } },
    errors,
    handle: async ({ principal, params, body }) => {
      await conversations.rename(principal.id, params.id, body.title ?? null)
      return { body: { success: true } }
    }
  }
  const remove: Route<Params> = {
    method: 'DELETE',
    path,
    operationId: 'deleteConversation',
    summary: 'Delete a conversation with all that was said in it',
    guard: 'user',
    replies: { 204: {} },
    errors,
    handle: async ({ principal, params }: Request<Params>) => {
      await conversations.remove(principal.id, params.id)
      return { status: 204 }
    }
  }
  return [list, read, rename, remove] as unknown as readonly Route[]
}

function toPage({ limit, offset }: Page): Page {
  return { limit: Math.min(Math.max(limit, 1), maxPage), offset: Math.max(offset, 0) }
}

function toSummary({ id, title, messageCount, createdAtMs, updatedAtMs }: NamedConversation): object {
  return {
    id,
    title,
    message_count: messageCount,
    created_at: toRfc3339(createdAtMs),
    updated_at: toRfc3339(updatedAtMs)
  }
}

function toMessage({ id, role, content, atMs }: KeptMessage): object {
  return { id, role, content, created_at: toRfc3339(atMs) }
}

function toRfc3339(ms: number): string {
  return new Date(ms).toISOString()
}
