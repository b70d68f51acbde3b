import { schemaOf } from '../../kernel/index.ts'
import type { ErrorMap, Request, Route, StreamEvent } from '../http/types.ts'
import type { ChatEvent, ChatService } from './chat.ts'
import type { TurnReply, TurnRequest } from './types.ts'

interface ChatBody {
  readonly message: string
  readonly agent_type?: string | null
  readonly context_id?: string | null
  readonly workspace_id?: string | null
  readonly model?: string | null
}

type ChatQuery = Omit<ChatBody, 'model'>

const optional = (description: string): object => ({ type: ['string', 'null'], description })

const message = { type: 'string', description: 'What the user says' }
const agent_type = optional('Name of the agent; left out, the router chooses')
const context_id = optional('Conversation to go on with or to begin; left out, a new one')
const workspace_id = optional('Knowledge workspace')

const chatBody = schemaOf<ChatBody>({
  $id: 'ChatRequest',
  type: 'object',
  required: ['message'],
  properties: { message, agent_type, context_id, workspace_id, model: optional("Instead of the agent's own model") }
})

const chatQuery = schemaOf<ChatQuery>({
  type: 'object',
  required: ['message'],
  properties: { message, agent_type, context_id, workspace_id }
})

const chatReply = schemaOf<TurnReply>({
  $id: 'ChatResponse',
  type: 'object',
  required: ['response', 'agent', 'context_id', 'sources'],
  properties: {
    response: { type: 'string' },
    agent: { type: 'string' },
    context_id: { type: 'string' },
    sources: {
      type: ['array', 'null'],
      items: {
        type: 'object',
        required: ['title', 'url', 'relevance_score'],
        properties: {
          title: { type: 'string' },
          url: { type: ['string', 'null'] },
          relevance_score: { type: 'number', minimum: 0, maximum: 1 }
        }
      }
    }
  }
})

const chatEvent = schemaOf<ChatEvent>({
  $id: 'ChatStreamEvent',
  type: 'object',
  required: ['event'],
  properties: {
    event: { enum: ['start', 'token', 'done', 'error'] },
    content: { type: 'string' },
    agent: { type: 'string' },
    context_id: { type: 'string' },
    error: { type: 'string' }
  }
})

const errors: ErrorMap = {
  CHAT_INVALID: 400,
  CHAT_AGENT_UNKNOWN: 404,
  CHAT_AGENT_NOT_CALLABLE: 400,
  CHAT_MODEL_UNKNOWN: 400,
  CHAT_NOT_CONFIGURED: { status: 500, code: 'CONFIGURATION_ERROR' },
  CHAT_MODEL_FAILED: { status: 500, code: 'LLM_ERROR' },
  CHAT_STORE_FAILED: { status: 500, code: 'DATABASE_ERROR' },
  CHAT_INTERRUPTED: 503,
  TENANTS_UNKNOWN: 401,
  TENANTS_MONTH_EXHAUSTED: 429,
  TENANTS_TOKENS_EXHAUSTED: 429,
  TENANTS_DAY_EXHAUSTED: 429,
  TENANTS_USAGE_FAILED: { status: 500, code: 'DATABASE_ERROR' }
}

export function routes(chat: ChatService): readonly Route[] {
  const answer: Route<Record<string, string>, unknown, ChatBody, TurnReply> = {
    method: 'POST',
    path: '/api/chat',
    operationId: 'chat',
    summary: 'Run one turn with an agent',
    guard: 'user',
    body: chatBody,
    replies: { 200: chatReply },
    errors,
    async handle(request) {
      const { reply, usage } = await chat.answer(toTurn(request, request.body))
      const { inputTokens, outputTokens } = usage
      return {
        headers: { 'x-input-tokens': String(inputTokens), 'x-output-tokens': String(outputTokens) },
        body: reply
      }
    }
  }
  const stream: Route<Record<string, string>, unknown, ChatBody> = {
    method: 'POST',
    path: '/api/chat/stream',
    operationId: 'streamChat',
    summary: 'Run one turn with an agent and stream the answer',
    guard: 'user',
    body: chatBody,
    replies: { 200: chatEvent },
    handle: (request) => ({ events: toEvents(chat.stream(toTurn(request, request.body))) })
  }
  const streamByQuery: Route<Record<string, string>, ChatQuery> = {
    method: 'GET',
    path: '/api/chat/stream',
    operationId: 'streamChatByQuery',
    summary: 'As streamChat, for EventSource clients',
    guard: 'user',
    query: chatQuery,
    replies: { 200: chatEvent },
    handle: (request) => ({ events: toEvents(chat.stream(toTurn(request, request.query))) })
  }
  return [answer, stream, streamByQuery]
}

function toTurn(request: Pick<Request, 'id' | 'principal' | 'signal'>, asked: ChatBody): TurnRequest {
  return {
    principal: request.principal,
    message: asked.message,
    agent: asked.agent_type,
    contextId: asked.context_id,
    workspaceId: asked.workspace_id,
    model: asked.model,
    caller: request,
    requestId: request.id
  }
}

async function* toEvents(events: AsyncIterable<ChatEvent>): AsyncGenerator<StreamEvent, void> {
  for await (const data of events) yield { data }
}
