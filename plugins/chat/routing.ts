import type { LanguageModelV3CallOptions } from '@ai-sdk/provider'
import type { AgentDefinition, RoutingOptions } from './types.ts'

/** The call that asks a router who should answer: its own words, the candidates, and the message; no history. */
export function routingCall(
  router: AgentDefinition,
  candidates: readonly AgentDefinition[],
  message: string
): LanguageModelV3CallOptions {
  const list = candidates.map(({ name, description }) =>
    description === '' ? `- ${name}` : `- ${name}: ${description}`
  )
  const routing: RoutingOptions = { candidates: candidates.map(({ name, description }) => ({ name, description })) }
  return {
    prompt: [
      {
        role: 'system',
        content: `${router.systemPrompt}\n\nAgents:\n${list.join('\n')}\n\nAnswer with the name of the one agent that should take the message, and with nothing else.`
      },
      { role: 'user', content: [{ type: 'text', text: message }] }
    ],
    providerOptions: { heartwood: routing }
  }
}

/**
 * The name that an answer of a router means: the answer itself, else its first word that is a name, else the first
 * name that occurs in it.
 */
export function parseChoice(answer: string, names: readonly string[]): string | undefined {
  const text = answer.trim().toLowerCase()
  const byFolded = new Map(names.map((name) => [name.toLowerCase(), name]))
  const exact = byFolded.get(text)
  if (exact !== undefined) return exact
  for (const word of text.split(/[\s:,."'`*]+/)) {
    const named = byFolded.get(word)
    if (named !== undefined) return named
  }
  return names.find((name) => text.includes(name.toLowerCase()))
}
