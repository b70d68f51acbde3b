import type { LanguageModelV3 } from '@ai-sdk/provider'
import type {} from '../../kernel/index.ts'

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
}

/**
 * `providerOptions.heartwood` of the call in which a router is asked who should answer: what its prompt says in words,
 * for models that follow rules.
 */
export type RoutingOptions = {
  readonly candidates: { readonly name: string; readonly description: string }[]
}

export interface Source {
  readonly title: string
  readonly url: string | null
  /** In [0, 1]. */
  readonly relevance_score: number
}

declare module '../../kernel/index.ts' {
  interface Contributions {
    'chat.providers': ModelProvider
    'chat.agents': AgentDefinition
  }
}
