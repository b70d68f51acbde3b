import { setImmediate } from 'node:timers/promises'
import type { Analyser, Language, QueryWord } from './text.ts'
import type { SearchHit } from './types.ts'

/** How much nearness counts, and how soon more of it counts less: what measured best of twenty settings. */
const weightOfNearness = 1
const saturation = 1.2
/** Words of a query that are looked for: a longer query is a text. */
const maxWords = 32
/** Of one turn of the event loop. */
const sliceMs = 5

/**
 * Orders hits anew by how near to each other they have the words of the query: what BM25 and an encoder both leave out.
 * A hit gains by pairs of words that stand together, and never loses: its score goes from `s` to `1 − (1 − s)^(1 + w·n)`.
 */
export async function rerank(
  analyser: Analyser,
  query: string,
  hits: readonly SearchHit[]
): Promise<readonly SearchHit[]> {
  const raised: { readonly hit: SearchHit; readonly score: number; readonly raw: number }[] = []
  let since = performance.now()
  let words: readonly QueryWord[] = []
  let languages: readonly Language[] = []
  for (const hit of hits) {
    const { terms, language } = analyser.analyse(hit.content)
    if (!languages.includes(language)) {
      languages = [...languages, language]
      words = analyser.analyseQuery(query, languages, maxWords)
    }
    const raw = nearnessOf(words, terms)
    raised.push({ hit, raw, score: raise(hit.score, raw) })
    if (performance.now() - since >= sliceMs) {
      await setImmediate()
      since = performance.now()
    }
  }
  return raised
    .sort((a, b) => b.score - a.score)
    .map(({ hit, score, raw }, at) => ({
      ...hit,
      score,
      parts: { ...hit.parts, rerank: { rank: at + 1, score, raw } }
    }))
}

function raise(score: number, nearness: number): number {
  return 1 - (1 - Math.min(1, score)) ** (1 + weightOfNearness * nearness)
}

/**
 * How near the words of a query stand to each other, from 0 to 1. Each pair of different words one behind the other in
 * the text counts by the square of their distance, as far as it says something new.
 */
function nearnessOf(words: readonly QueryWord[], terms: readonly string[]): number {
  const numbers = new Map<string, number>()
  for (const [number, word] of words.entries()) for (const term of word.terms) numbers.set(term, number)
  if (words.length < 2) return 0
  const gathered = new Float64Array(words.length)
  let last = -1
  let lastAt = 0
  for (const [at, term] of terms.entries()) {
    const number = numbers.get(term)
    if (number === undefined) continue
    if (last >= 0 && last !== number) {
      const distance = at - lastAt
      const share = 1 / (distance * distance)
      gathered[last]! += share
      gathered[number]! += share
    }
    last = number
    lastAt = at
  }
  let sum = 0
  for (const share of gathered) sum += share / (share + saturation)
  return sum / words.length
}
