import { topicWords } from './words.ts'

/** A passage as the tool `rag` returns it. */
export interface Passage {
  readonly content: string
  /** In [0, 1]. */
  readonly score: number
  readonly title: string | null
  readonly source: string | null
  readonly collection: string
}

export interface Quote {
  /** Stands in the passage as it is here. */
  readonly text: string
  readonly passage: Passage
}

const maxQuotes = 3
const maxQuoteChars = 500
/** A passage that answers by its meaning alone has to be this sure. */
const sure = 0.6

const sentences = new Intl.Segmenter(undefined, { granularity: 'sentence' })

/**
 * The sentences that share most words with a question, best first: of several, those that share at least half as many
 * as the best. Where no sentence shares any, the beginning of a passage that is sure to answer.
 */
export function findQuotes(question: string, passages: readonly Passage[]): readonly Quote[] {
  const wanted = topicWords(question)
  const candidates: { readonly quote: Quote; readonly shared: number }[] = []
  const seen = new Set<string>()
  for (const passage of passages) {
    for (const { segment } of sentences.segment(passage.content)) {
      const text = shorten(segment.trim())
      if (text === '' || seen.has(text)) continue
      seen.add(text)
      let shared = 0
      for (const word of topicWords(segment)) if (wanted.has(word)) shared += 1
      if (shared > 0) candidates.push({ quote: { text, passage }, shared })
    }
  }
  candidates.sort((a, b) => b.shared - a.shared || b.quote.passage.score - a.quote.passage.score)
  const [best] = candidates
  if (best !== undefined) {
    const good = candidates.filter(({ shared }) => shared * 2 >= best.shared)
    return good.slice(0, maxQuotes).map(({ quote }) => quote)
  }
  const [first] = passages
  if (first === undefined || first.score < sure) return []
  const [sentence] = sentences.segment(first.content.trimStart())
  return sentence === undefined ? [] : [{ text: shorten(sentence.segment.trim()), passage: first }]
}

/** Cut behind a word. */
function shorten(text: string): string {
  if (text.length <= maxQuoteChars) return text
  const cut = text.slice(0, maxQuoteChars + 1)
  const end = cut.search(/\s\S*$/)
  return end > 0 ? cut.slice(0, end) : cut.slice(0, -1).replace(/[\uD800-\uDBFF]$/, '')
}

export function nameOf({ title, source, collection }: Passage): string {
  return title ?? source ?? collection
}

/** @returns the passages in what the tool `rag` returned; none when it is something else */
export function passagesOf(output: unknown): readonly Passage[] {
  const results = (output as { readonly results?: unknown } | null)?.results
  if (!Array.isArray(results)) return []
  return results.filter((result): result is Passage => typeof (result as Partial<Passage> | null)?.content === 'string')
}
