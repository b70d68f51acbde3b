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

/** A query whose best lexical hit scores as much has its words in the collection. */
const confidentScore = 0.6
const weightOfTrust = 0.6
/** How much more the semantic list counts as the words of a query are missing in the collection. */
const gainOfDoubt = 2
const mostWeight = 0.8
/** In a list of at least so many hits the last one has nothing to do with the query. */
const wholeList = 10

/**
 * Fuses the lists of two strategies by their scores, each from its best hit down to nothing; ranks alone (reciprocal rank
 * fusion) let a weak encoder outvote sure words. The semantic part grows with what the collection has shown
 * ({@link chooseTrust}) and with the share of the query that no word answers. Lists of about 100 hits are enough.
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

/** Hits of one index, in the form that {@link fuse} takes. */
export function toRanked(
  hits: readonly { readonly ordinal: number; readonly raw: number; readonly score: number }[]
): readonly RankedHit<number>[] {
  return hits.map(({ ordinal, raw, score }) => ({ id: ordinal, raw, score }))
}

function rankOf(rank: number | undefined): number {
  return rank ?? Number.POSITIVE_INFINITY
}

/** Before a collection has shown how far its list of meaning is to be believed. */
export const assumedTrust = 0.3
const trusts: readonly number[] = [0, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8, 1]
/** Below it, an answer has not been found. */
const foundDepth = 10
/** How many times the chance in what is lost (the root of its squares) is held against what is gained. */
const timesChance = 2
/** What weighs against leaving {@link assumedTrust}, as much as so many answers: few questions tell little. */
const worthOfAssumption = 4

/** What a question is worth whose answer is known, 1 divided by its rank, for each trust that can be chosen. */
export function gainsOf<K>(
  answer: K,
  lexical: readonly RankedHit<K>[],
  semantic: readonly RankedHit<K>[]
): readonly number[] {
  return trusts.map((trust) => {
    const at = fuse(lexical, semantic, trust, foundDepth).hits.findIndex(({ id }) => id === answer)
    return at < 0 ? 0 : 1 / (at + 1)
  })
}

/**
 * How far the semantic list of a collection is to be believed, from 0 to 1: as far as most answers are found, and no
 * further than is sure.
 * @param gains {@link gainsOf} of each question
 */
export function chooseTrust(gains: readonly (readonly number[])[]): number {
  let chosen = assumedTrust
  let most = Number.NEGATIVE_INFINITY
  for (const [at, trust] of trusts.entries()) {
    const more = gains.map((one) => one[at]! - one[0]!)
    const sum = more.reduce((total, one) => total + one, 0)
    const chance = Math.sqrt(more.reduce((total, one) => total + Math.min(0, one) ** 2, 0))
    const worth = sum - timesChance * chance - worthOfAssumption * (trust - assumedTrust) ** 2
    if (worth <= most + 1e-9) continue
    most = worth
    chosen = trust
  }
  return chosen
}
