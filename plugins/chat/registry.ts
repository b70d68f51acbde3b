import type { LanguageModelV3 } from '@ai-sdk/provider'
import { CodedError, type Collector, type Contribution } from '../../kernel/index.ts'
import type { AgentDefinition, ModelProvider, OwnAgents } from './types.ts'

export interface FoundModel {
  readonly provider: Contribution<ModelProvider>
  readonly model: LanguageModelV3
}

/** The agents and models that are there now, in the order of the program. Every method is synchronous. */
export interface Registry {
  readonly agentCollector: Collector<AgentDefinition>
  readonly providerCollector: Collector<ModelProvider>
  readonly ownCollector: Collector<OwnAgents>
  agents(): readonly Contribution<AgentDefinition>[]
  /** Where the agents of tenants are, if they have any. */
  own(): Contribution<OwnAgents> | undefined
  /** By exact name; only when there is none, by a name that differs in case. */
  findAgent(name: string): Contribution<AgentDefinition> | undefined
  /** @throws CodedError `CHAT_MODEL_UNKNOWN` */
  findModel(name: string): FoundModel
  providerNames(): readonly string[]
  modelNames(): readonly string[]
}

export function createRegistry(): Registry {
  let agents: readonly Contribution<AgentDefinition>[] = []
  let agentsByName = new Map<string, Contribution<AgentDefinition>>()
  let providers = new Map<string, Contribution<ModelProvider>>()
  let own: Contribution<OwnAgents> | undefined

  return {
    agentCollector: {
      check: (next) => assertDistinct(next, 'agent', 'CHAT_DUPLICATE_AGENT'),
      update(now) {
        agents = now
        agentsByName = byName(now)
      }
    },
    providerCollector: {
      check: (next) => assertDistinct(next, 'model provider', 'CHAT_DUPLICATE_PROVIDER'),
      update(now) {
        providers = byName(now)
      }
    },
    ownCollector: {
      check([first, second]) {
        if (first === undefined || second === undefined) return
        const text = `agents of tenants come from entry '${first.entry}' and from entry '${second.entry}'`
        throw new CodedError('CHAT_DUPLICATE_AGENT', text)
      },
      update: (now) => ([own] = now)
    },
    agents: () => agents,
    own: () => own,
    findAgent(name) {
      const exact = agentsByName.get(name)
      if (exact !== undefined) return exact
      const folded = name.toLowerCase()
      return agents.find((agent) => agent.item.name.toLowerCase() === folded)
    },
    findModel(name) {
      const slash = name.indexOf('/')
      const prefix = slash === -1 ? name : name.slice(0, slash)
      const named = providers.get(prefix)
      // A model may itself have a slash in its name, so a listed one is looked for under every provider.
      const listed = named ?? [...providers.values()].find((provider) => provider.item.models.includes(name))
      if (listed === undefined) {
        throw new CodedError('CHAT_MODEL_UNKNOWN', `Model '${name}' is not offered by any provider`)
      }
      const rest = named !== undefined && slash !== -1 ? name.slice(slash + 1) : name
      return { provider: listed, model: listed.item.languageModel(rest) }
    },
    providerNames: () => [...providers.keys()],
    modelNames: () =>
      [...providers.values()].flatMap(({ item }) =>
        item.models.map((model) => (model === item.name ? model : `${item.name}/${model}`))
      )
  }
}

function byName<T extends { readonly name: string }>(now: readonly Contribution<T>[]): Map<string, Contribution<T>> {
  return new Map(now.map((contribution) => [contribution.item.name, contribution]))
}

function assertDistinct(next: readonly Contribution<{ readonly name: string }>[], what: string, code: string): void {
  const seen = new Map<string, string>()
  for (const { item, entry } of next) {
    const first = seen.get(item.name)
    if (first !== undefined) {
      throw new CodedError(code, `${what} '${item.name}' comes from entry '${first}' and from entry '${entry}'`)
    }
    seen.set(item.name, entry)
  }
}
