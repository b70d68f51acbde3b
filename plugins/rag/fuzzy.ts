import type { Accept, Found, IndexView, QueryGroup, TextIndex } from './bm25.ts'
import { maxQueryWords, mostVariants } from './bm25.ts'
import { tailOf, termAt, type WordBlock, wordAt } from './segment.ts'
import type { Analyser, QueryWord } from './text.ts'

/** Another spelling that was searched for. */
export interface Correction {
  /** As in the query, folded. */
  readonly word: string
  /** Nearest and most frequent first; at most 3. */
  readonly corrections: readonly string[]
}

export interface FuzzyFound extends Found {
  /** Words of the query that no chunk has as they are, and what was taken for them. */
  readonly corrections: readonly Correction[]
}

/** A written word near another one. */
export interface Near {
  readonly word: string
  readonly term: string
  /** Letters changed, left out, put in, or swapped with their neighbour. */
  readonly edits: number
  /** Chunks that have it. */
  readonly count: number
}

/** Words of a query that are corrected: a longer query is a text. */
const maxCorrected = 64
/** Letters of a word that may have two edits. */
const longWord = 6
/** A correction is worth this much of the word itself, for each edit. */
const worthOfEdit = 0.5
/** Where the word itself is in the index, others are guesses. */
const worthOfGuess = 0.2

/** BM25 that also finds what is spelt a little differently. Exact spellings score as in a plain search, others below. */
export async function searchFuzzy(
  text: TextIndex,
  analyser: Analyser,
  index: string,
  query: string,
  limit: number,
  accept?: Accept
): Promise<FuzzyFound> {
  let corrections: Correction[] = []
  const plan = async (view: IndexView): Promise<readonly QueryGroup[]> => {
    const words = analyser.analyseQuery(query, view.languages, maxQueryWords)
    const near = await findNear(view, words.filter(isCorrected).slice(0, maxCorrected))
    corrections = []
    return words.map((word) => {
      const found = near.get(word.word)
      if (found === undefined) return plainGroup(word)
      const known = found.some(({ edits }) => edits === 0)
      const ranked = rank(word, found, known)
      if (!known && ranked.length > 0) {
        corrections.push({ word: word.word, corrections: distinct(ranked.map((one) => one.near.word)).slice(0, 3) })
      }
      return groupOf(word, ranked)
    })
  }
  const found = await text.find(index, plan, limit, accept)
  return { ...found, corrections }
}

/** Grams answer for a slip by themselves: the others of the run still match. */
function isCorrected({ kind, word }: QueryWord): boolean {
  return (kind === 'word' || kind === 'whole') && word.length >= 3 && !/^\d/.test(word)
}

interface Ranked {
  readonly near: Near
  readonly weight: number
}

function rank(word: QueryWord, found: readonly Near[], known: boolean): readonly Ranked[] {
  const least = Math.min(...found.map(({ edits }) => edits))
  return found
    .filter(({ edits }) => edits === 0 || edits === least || (known && edits === 1))
    .map((near): Ranked => {
      const weight =
        near.edits === 0 ? 1 : (known ? worthOfGuess : 1) * worthOfEdit ** near.edits * likeness(word.word, near)
      return { near, weight }
    })
    .sort((a, b) => b.weight - a.weight || b.near.count - a.near.count || (a.near.word < b.near.word ? -1 : 1))
}

function likeness(word: string, near: Near): number {
  // People seldom mistype the first letter, and mostly mean a word that is used.
  return (near.word[0] === word[0] ? 1 : 0.7) * (1 + Math.log2(1 + near.count))
}

function groupOf(word: QueryWord, ranked: readonly Ranked[]): QueryGroup {
  const variants = new Map<string, number>()
  for (const term of word.terms) variants.set(term, 1)
  const best = ranked.find(({ near }) => near.edits > 0)?.weight ?? 1
  for (const { near, weight } of ranked) {
    if (variants.size >= mostVariants) break
    if (!variants.has(near.term)) variants.set(near.term, (weight / best) * worthOfEdit ** (near.edits / 4))
  }
  return { weight: word.weight, variants: [...variants].map(([term, weight]) => ({ term, weight })) }
}

function plainGroup({ weight, terms }: QueryWord): QueryGroup {
  return { weight, variants: terms.map((term) => ({ term, weight: 1 })) }
}

function distinct(words: readonly string[]): readonly string[] {
  return [...new Set(words)]
}

/** The written words near each word of a query: one edit away or, where there is none, two edits. */
export async function findNear(
  view: Pick<IndexView, 'words'>,
  words: readonly QueryWord[]
): Promise<Map<string, readonly Near[]>> {
  const found = new Map(words.map(({ word }) => [word, new Map<string, Near>()]))
  const search = async (sought: readonly string[], most: number) => {
    if (sought.length === 0) return
    const make = most === 1 ? createCloseMatcher : createMatcher
    const matchers = sought.map((word) => [make(word, most), found.get(word)!] as const)
    await view.words((block) => {
      for (const [match, near] of matchers) {
        match(block, (place, edits) => {
          const word = wordAt(block, place)
          const term = termAt(block, place)
          const count = block.counts[place]! + (near.get(`${word} ${term}`)?.count ?? 0)
          near.set(`${word} ${term}`, { word, term, edits, count })
        })
      }
    })
  }
  const sought = words.map(({ word }) => word)
  await search(sought, 1)
  await search(
    sought.filter((word) => word.length >= longWord && found.get(word)!.size === 0),
    2
  )
  return new Map([...found].map(([word, near]) => [word, [...near.values()]]))
}

/** @param most 1 */
export function createCloseMatcher(word: string, most: number): Matcher {
  // One edit, or swap, leaves the start or the end of a word as it is: what lies between them has at least one letter.
  const kept = (word.length - 1) >> 1
  const start = word.slice(0, kept)
  const units = Math.min(kept, 2)
  const tail = tailOf(word, 0, word.length, units)
  const least = word.length - most
  const longest = word.length + most
  const behind = `${start}\uffff`
  const judge = ({ text, starts }: WordBlock, place: number, tell: (place: number, edits: number) => void) => {
    const from = starts[place]!
    const to = starts[place + 1]! - 1
    if (to - from < least || to - from > longest) return
    const edits = editsUpToOne(word, text, from, to)
    if (edits <= most) tell(place, edits)
  }
  return (block, tell) => {
    const { text, starts } = block
    const size = starts.length - 1
    let from = 0
    let to = 0
    if (!isBelow(block, size - 1, start) && isBelow(block, 0, behind)) {
      from = firstPlace(size, (place) => !isBelow(block, place, start))
      to = firstPlace(size, (place) => !isBelow(block, place, behind))
      for (let place = from; place < to; place++) judge(block, place, tell)
    }
    const places = block.byTail[units - 1]
    if (places === undefined) return
    const tailAt = (at: number) => tailOf(text, starts[places[at]!]!, starts[places[at]! + 1]! - 1, units)
    for (let at = firstPlace(size, (at) => tailAt(at) >= tail); at < size && tailAt(at) === tail; at++) {
      const place = places[at]!
      if (place < from || place >= to) judge(block, place, tell)
    }
  }
}

/** The first of `size` places that is reached, where all behind it are. */
function firstPlace(size: number, reached: (place: number) => boolean): number {
  let low = 0
  let high = size
  while (low < high) {
    const middle = (low + high) >> 1
    if (reached(middle)) high = middle
    else low = middle + 1
  }
  return low
}

/** Whether the word at a place sorts before `other`. */
function isBelow({ text, starts }: WordBlock, place: number, other: string): boolean {
  const from = starts[place]!
  const length = starts[place + 1]! - 1 - from
  for (let at = 0; at < other.length; at++) {
    if (at === length) return true
    const unit = text.charCodeAt(from + at)
    if (unit !== other.charCodeAt(at)) return unit < other.charCodeAt(at)
  }
  return false
}

/** 0, 1, or more than that as 2. */
function editsUpToOne(word: string, text: string, start: number, end: number): number {
  const length = end - start
  const least = Math.min(word.length, length)
  let from = 0
  while (from < least && word.charCodeAt(from) === text.charCodeAt(start + from)) from += 1
  if (from === length && from === word.length) return 0
  let behind = 0
  while (behind < least - from && word.charCodeAt(word.length - 1 - behind) === text.charCodeAt(end - 1 - behind)) {
    behind += 1
  }
  const left = word.length - from - behind
  const other = length - from - behind
  if (left <= 1 && other <= 1) return 1
  const swapped =
    left === 2 && other === 2 && word[from] === text[start + from + 1] && word[from + 1] === text[start + from]
  return swapped ? 1 : 2
}

/** Walks a block and tells the places of words within reach. */
export type Matcher = (block: WordBlock, tell: (place: number, edits: number) => void) => void

/**
 * Distance with swaps of neighbours (optimal string alignment), by rows: sorted words share the rows of the letters they
 * share, a start that is already too far away passes over all words that have it, and only the cells near the diagonal
 * are filled.
 */
export function createMatcher(word: string, most: number): Matcher {
  const size = word.length
  const width = size + 1
  const deepest = size + most
  const letters = Uint16Array.from({ length: size }, (_, at) => word.charCodeAt(at))
  const far = most + 1
  const rows = new Uint8Array((deepest + 2) * width).fill(far)
  for (let at = 0; at <= Math.min(size, most); at++) rows[at] = at

  return ({ text, starts, shared }, tell) => {
    /** Rows that hold for the word at hand, and the depth at which its start is too far away. */
    let valid = 0
    let dead = Number.POSITIVE_INFINITY
    for (let place = 0; place < shared.length; place++) {
      const common = place === 0 ? 0 : shared[place]!
      if (common < valid) valid = common
      if (common >= dead) continue
      dead = Number.POSITIVE_INFINITY
      const start = starts[place]!
      const length = starts[place + 1]! - 1 - start
      if (length > deepest || length < size - most) continue
      let depth = valid
      while (depth < length) {
        const letter = text.charCodeAt(start + depth)
        const before = depth === 0 ? -1 : text.charCodeAt(start + depth - 1)
        const row = (depth + 1) * width
        const above = depth * width
        const low = depth + 1 - most
        const high = Math.min(size, depth + 1 + most)
        let least = far
        if (low <= 0) {
          rows[row] = depth + 1
          least = depth + 1
        } else rows[row + low - 1] = far
        for (let at = Math.max(1, low); at <= high; at++) {
          let value = rows[above + at - 1]! + (letters[at - 1] === letter ? 0 : 1)
          const insert = rows[row + at - 1]! + 1
          const leave = at === depth + 1 + most ? far : rows[above + at]! + 1
          if (insert < value) value = insert
          if (leave < value) value = leave
          if (at > 1 && depth > 0 && letters[at - 2] === letter && letters[at - 1] === before) {
            const swap = rows[above - width + at - 2]! + 1
            if (swap < value) value = swap
          }
          if (value > far) value = far
          rows[row + at] = value
          if (value < least) least = value
        }
        depth += 1
        valid = depth
        if (least > most) {
          dead = depth
          break
        }
      }
      if (dead !== Number.POSITIVE_INFINITY) continue
      if (length + most < size) continue
      const edits = rows[length * width + size]!
      if (edits <= most && size <= length + most) tell(place, edits)
    }
  }
}
