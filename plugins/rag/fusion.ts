/** A hit of one strategy, best first in its list. */
export interface RankedHit<K> {
  readonly id: K
  /** What the strategy itself computes: a BM25 sum, a cosine. */
  readonly raw: number
  /** The same from 0 to 1. */
  readonly score: number
}

export interface FusedHit<K> {
  readonly id: K
  /** From 0 to 1, in the order of the list. */
  readonly score: number
  /** From 1; `undefined` where the strategy did not find it. */
  readonly lexicalRank: number | undefined
  readonly semanticRank: number | undefined
}

export interface Fusion<K> {
  readonly hits: readonly FusedHit<K>[]
  /** The part of the semantic list, from 0 to 1. */
  readonly semanticWeight: number
}

/**
 * How often the two strategies agreed about queries of a collection. Where they seldom do, the encoder does not
 * understand the collection (or only guesses), and its list must not push down what the words have found.
 */
export interface Agreement {
  readonly asked: number
  readonly agreed: number
}

/** Of queries whose words a collection has: the rest tell nothing about the encoder. */
const confidentScore = 0.6
/** Lexical hits among which the best semantic one is sought: at most so many, and so small a part that it is no chance. */
const agreementDepth = 10
const agreementPart = 0.1
/** What is assumed before there are queries, and for how many of them it counts. */
const assumedTrust = 0.3
const assumedQueries = 10
/** After so many queries the older half counts half. */
const rememberedQueries = 1_000
const weightOfTrust = 0.6
/** How much more the semantic list counts as the words of a query are missing in the collection. */
const gainOfDoubt = 2
const mostWeight = 0.8
/** In a list of at least so many hits the last one has nothing to do with the query. */
const wholeList = 10

/**
 * Fuses the lists of two strategies by their scores, each from its best hit down to nothing; ranks alone (reciprocal rank
 * fusion) let a weak encoder outvote sure words. The semantic part grows with what the collection has shown
 * ({@link trustOf}) and with the share of the query that no word answers. Lists of about 100 hits are enough.
 * @param trust from 0 to 1
 */
export function fuse<K>(
  lexical: readonly RankedHit<K>[],
  semantic: readonly RankedHit<K>[],
  trust: number,
  limit: number
): Fusion<K> {
  const weight = semanticWeight(lexical, semantic, trust)
  const lexicalBest = lexical[0]?.raw ?? 0
  const semanticBest = semantic[0]?.raw ?? 0
  const last = semantic.at(-1)?.raw ?? 0
  const floor = semantic.length < wholeList ? Math.min(0, last) : last
  const span = semanticBest - floor
  const fused = new Map<K, { shares: number; lexicalRank: number | undefined; semanticRank: number | undefined }>()
  for (const [at, { id, raw }] of lexical.entries()) {
    const shares = lexicalBest > 0 ? ((1 - weight) * raw) / lexicalBest : 0
    fused.set(id, { shares, lexicalRank: at + 1, semanticRank: undefined })
  }
  for (const [at, { id, raw }] of semantic.entries()) {
    const shares = span > 0 ? (weight * (raw - floor)) / span : weight
    const both = fused.get(id)
    if (both === undefined) fused.set(id, { shares, lexicalRank: undefined, semanticRank: at + 1 })
    else {
      both.shares += shares
      both.semanticRank = at + 1
    }
  }
  // The scale: what the best hits of both are worth by themselves.
  const worth = (1 - weight) * (lexical[0]?.score ?? 0) + weight * (semantic[0]?.score ?? 0)
  const hits = [...fused]
    .map(
      ([id, { shares, lexicalRank, semanticRank }]): FusedHit<K> => ({
        id,
        score: Math.min(1, Math.max(0, shares * worth)),
        lexicalRank,
        semanticRank
      })
    )
    .sort((a, b) => b.score - a.score || rankOf(a.lexicalRank) - rankOf(b.lexicalRank))
    .slice(0, Math.max(0, limit))
  return { hits, semanticWeight: weight }
}

function semanticWeight(
  lexical: readonly RankedHit<unknown>[],
  semantic: readonly RankedHit<unknown>[],
  trust: number
): number {
  if (semantic.length === 0) return 0
  if (lexical.length === 0) return 1
  const doubt = 1 - Math.min(1, lexical[0]!.score / confidentScore)
  return Math.min(mostWeight, weightOfTrust * trust * (1 + gainOfDoubt * doubt))
}

function rankOf(rank: number | undefined): number {
  return rank ?? Number.POSITIVE_INFINITY
}

/** What one more query has shown: whether the best semantic hit is among the best lexical ones. */
export function observe<K>(
  seen: Agreement,
  lexical: readonly RankedHit<K>[],
  semantic: readonly RankedHit<K>[]
): Agreement {
  const first = semantic[0]
  if (first === undefined || (lexical[0]?.score ?? 0) < confidentScore) return seen
  const depth = Math.min(agreementDepth, Math.ceil(lexical.length * agreementPart))
  const agrees = lexical.slice(0, depth).some(({ id }) => id === first.id)
  const kept = seen.asked >= rememberedQueries ? 0.5 : 1
  return { asked: seen.asked * kept + 1, agreed: seen.agreed * kept + (agrees ? 1 : 0) }
}

/** How far the semantic list of a collection is to be believed, from 0 to 1. */
export function trustOf({ asked, agreed }: Agreement): number {
  return (agreed + assumedTrust * assumedQueries) / (asked + assumedQueries)
}
