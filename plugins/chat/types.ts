import type { LanguageModelV3, LanguageModelV3CallOptions } from '@ai-sdk/provider'
import type { Awaitable } from '../../kernel/index.ts'
import type { Principal } from '../http/types.ts'
import type { Tenant } from '../tenants/types.ts'

/**
 * Where language models come from, contributed to `chat.providers`.
 *
 * A model may fail with one of these codes so that people are told more than that it failed; anything else reads as
 * `CHAT_PROVIDER_FAILED`. What it threw is logged, never sent.
 * - `CHAT_PROVIDER_UNREACHABLE`: there is no connection to it
 * - `CHAT_PROVIDER_CLOSED`: the connection ended before the answer did
 * - `CHAT_PROVIDER_TIMEOUT`: it was silent for too long
 * - `CHAT_PROVIDER_FAILED`: it refused, or answered something that cannot be read
 */
export interface ModelProvider {
  /** The part before the slash of `openai/gpt-4o-mini`; a model named like the provider alone is its default. */
  readonly name: string
  /** Its models by the part after the slash, the default first; also found by this name alone. */
  readonly models: readonly string[]
  /**
   * Its streams tell at their end how many tokens they took. Turns that are counted for a tenant are then asked as
   * streams, also where the caller gets the answer whole: of one that is cut off it is known what had been made.
   */
  readonly streamsUsage?: boolean
  /** @throws CodedError `CHAT_MODEL_UNKNOWN` when it has no such model */
  languageModel(model: string): LanguageModelV3
}

/** An agent as data, contributed to `chat.agents`; one entry of the program each. */
export interface AgentDefinition {
  /** Last segment of the entry's id: `researcher`. */
  readonly name: string
  readonly description: string
  /** `provider`, `provider/model`, or a model that a provider lists. */
  readonly model: string
  readonly systemPrompt: string
  /** Names of tools it may call; none are offered when empty. */
  readonly tools: readonly string[]
  /** Calls to the model with tools at hand; one more, without them, asks for the answer. */
  readonly maxToolIterations: number
  readonly parallelTools: boolean
  /** Chooses who answers when a request names nobody; cannot be called itself. */
  readonly router: boolean
  /** Left out: as the model does by itself. */
  readonly settings?: ModelSettings
}

/** How a model is to answer. */
export type ModelSettings = Pick<
  LanguageModelV3CallOptions,
  'temperature' | 'topP' | 'frequencyPenalty' | 'presencePenalty' | 'maxOutputTokens' | 'stopSequences'
>

/** An agent that only one tenant has. */
export interface OwnAgent {
  readonly agent: AgentDefinition
  /** It is listed, but cannot be called. */
  readonly enabled: boolean
  /** Unix time in milliseconds. */
  readonly createdAtMs: number
}

/**
 * Agents of tenants, contributed to `chat.own-agents`. For a tenant, and for users whose token names it, they come before
 * those of the program; a disabled one hides the program's of that name.
 */
export interface OwnAgents {
  /** By exact name. At hand for a tenant whose agents were seen before. */
  find(tenantId: string, name: string): Awaitable<OwnAgent | undefined>
  /** In the order of their names. */
  list(tenantId: string): Awaitable<readonly OwnAgent[]>
}

/**
 * `providerOptions.heartwood` of the call in which a router is asked who should answer: what its prompt says in words,
 * for models that follow rules.
 */
export type RoutingOptions = {
  readonly candidates: { readonly name: string; readonly description: string }[]
}

/**
 * What an answer rests on. A tool whose output has a list of these as `sources` gives them to the answers of the agents
 * that call it; a model that names sources itself decides which.
 */
export interface Source {
  readonly title: string
  readonly url: string | null
  /** In [0, 1]. */
  readonly relevance_score: number
}

/** One message to an agent. */
export interface TurnRequest {
  /** A user or a tenant: whose conversation it is, and who runs the agent's tools. Nobody else can ask. */
  readonly principal: Principal
  /** The tenant as it was when its key was checked. */
  readonly tenant?: Tenant
  readonly message: string
  /** Who should answer; absent or empty: the router chooses. */
  readonly agent?: string | null | undefined
  /** No router: where nobody is named, the agent `orchestrator` answers, or else the first. */
  readonly unrouted?: boolean
  /** The conversation to go on with, or to begin; absent or empty: a new one. */
  readonly contextId?: string | null | undefined
  readonly workspaceId?: string | null | undefined
  /** Instead of the agent's own. */
  readonly model?: string | null | undefined
  /** Whose leaving ends the turn; nothing of it is stored then. The signal is read when it is needed, or never. */
  readonly caller: { readonly signal: AbortSignal }
  /** Under which a failure is found in the log. */
  readonly requestId: string
}

export interface TurnReply {
  readonly response: string
  readonly agent: string
  readonly context_id: string
  /** Best first. */
  readonly sources: readonly Source[] | null
}

export interface ChatOutcome {
  readonly reply: TurnReply
  /** Plain name of the agent that answered. */
  readonly agent: string
  /** Whose it is: the program's, or the tenant's own. */
  readonly source: 'system' | 'tenant'
  readonly provider: string
  readonly model: string
  /** As reported by the model, or a quarter of the characters where nothing was. The router's own are left out. */
  readonly usage: { readonly inputTokens: number; readonly outputTokens: number }
}

/**
 * Turns with agents. Those of a tenant, and of a user whose token names a tenant, are counted: reserved once the request
 * is sound and before any model is asked, settled however the turn ends; given back when it turns out that nothing could
 * be begun.
 *
 * Codes: `CHAT_INVALID` (the request), `CHAT_AGENT_UNKNOWN`, `CHAT_AGENT_NOT_CALLABLE` (a router),
 * `CHAT_MODEL_UNKNOWN` (the model asked for), `CHAT_NOT_CONFIGURED` (no agent, or an agent whose model is not there),
 * `CHAT_MODEL_FAILED`, `CHAT_STORE_FAILED`, `CHAT_INTERRUPTED` (the server stops, or what answers was replaced), and
 * those of `tenants`. Their messages are fit for callers; what went wrong is in their causes. `CLIENT_GONE` when the
 * caller has left.
 */
export interface Chat {
  /** Resolves once the turn is stored, and settled where it is counted. */
  answer(request: TurnRequest): Promise<ChatOutcome>
  /** Those of the program that can be called, in its order. */
  agents(): readonly AgentDefinition[]
  /** Those that only this tenant has, in the order of their names. */
  ownAgents(tenantId: string): Awaitable<readonly OwnAgent[]>
}

declare module '../../kernel/index.ts' {
  interface Services {
    chat: Chat
  }
  interface Contributions {
    'chat.providers': ModelProvider
    'chat.agents': AgentDefinition
    'chat.own-agents': OwnAgents
  }
}
