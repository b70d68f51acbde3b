import type { LanguageModelV3 } from '@ai-sdk/provider'
import type {} from '../../kernel/index.ts'

/** Where language models come from, contributed to `chat.providers`. */
export interface ModelProvider {
  /** The part before the slash of `openai/gpt-4o-mini`; a model named like the provider alone is its default. */
  readonly name: string
  /** Names for `/config/info`. */
  readonly models: readonly string[]
  /** @throws CodedError `CHAT_MODEL_UNKNOWN` when it has no such model */
  languageModel(model: string): LanguageModelV3
}

/** An agent as data, contributed to `chat.agents`; one entry of the program each. */
export interface AgentDefinition {
  /** Last segment of the entry's id: `researcher`. */
  readonly name: string
  readonly description: string
  /** `provider` or `provider/model`. */
  readonly model: string
  readonly systemPrompt: string
  /** Names of tools it may call; none are offered when empty. */
  readonly tools: readonly string[]
  readonly maxToolIterations: number
  readonly parallelTools: boolean
  /** Chooses who answers when a request names nobody; cannot be called itself. */
  readonly router: boolean
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
