import type { LanguageModelV3Source } from '@ai-sdk/provider'
import type { Source } from './types.ts'

/** More than that tell a reader nothing. */
const maxSources = 20

/**
 * What an answer rests on: the sources its model names; where that names none, those of the passages its tools gave it
 * to read.
 */
export class Sources {
  readonly #named = new Map<string, Source>()
  readonly #given = new Map<string, Source>()

  /** A part of a model's answer. `providerMetadata.heartwood.relevance_score` says how sure it is of it. */
  name(part: LanguageModelV3Source): void {
    const score = part.providerMetadata?.['heartwood']?.['relevance_score']
    const url = part.sourceType === 'url' ? part.url : null
    add(this.#named, part.title ?? url ?? part.id, url, score ?? 1)
  }

  /** What a tool answered: an object with a list `sources` says where it comes from. */
  give(output: unknown): void {
    if (typeof output !== 'object' || output === null) return
    const { sources } = output as { readonly sources?: unknown }
    if (!Array.isArray(sources)) return
    for (const source of sources) {
      if (typeof source !== 'object' || source === null) continue
      const { title, url, relevance_score } = source as Partial<Record<keyof Source, unknown>>
      if (typeof title === 'string') add(this.#given, title, url, relevance_score)
    }
  }

  /** Best first; `null` when there are none. */
  list(): readonly Source[] | null {
    const found = this.#named.size > 0 ? this.#named : this.#given
    if (found.size === 0) return null
    return [...found.values()].sort((a, b) => b.relevance_score - a.relevance_score).slice(0, maxSources)
  }
}

function add(sources: Map<string, Source>, title: string, url: unknown, score: unknown): void {
  const source: Source = {
    title,
    url: typeof url === 'string' ? url : null,
    relevance_score: typeof score === 'number' && score >= 0 ? Math.min(1, score) : 0
  }
  const key = JSON.stringify([source.title, source.url])
  const present = sources.get(key)
  if (present === undefined || present.relevance_score < source.relevance_score) sources.set(key, source)
}
