import {
  chunksPart,
  createTermWriter,
  createWordWriter,
  decodePostings,
  type Part,
  type TermBlock,
  type WordsPart
} from './segment.ts'

/** Of them, one takes up to some tens of microseconds. */
export const entriesAtOnce = 64

/** A segment to be merged. */
export interface MergeSource {
  readonly lengths: Float64Array
  readonly ordinals: Float64Array
  readonly dead: Uint8Array | undefined
  readonly termBlocks: number
  readonly wordBlocks: number
  readonly terms: (number: number) => Promise<TermBlock>
  readonly words: (number: number) => Promise<WordsPart>
}

export interface Merged {
  readonly chunks: number
  /** Of each source, where each of its chunks is now; -1 for those that are gone. */
  readonly places: readonly Int32Array[]
}

/**
 * Writes one segment of several, in the order of their ordinals, without what is dead.
 * @param first the ordinal from which those of the new segment count
 * @param breathe awaited between blocks, and every {@link entriesAtOnce} entries
 */
export async function mergeSegments(
  sources: readonly MergeSource[],
  first: number,
  breathe: () => Promise<void>,
  give: (part: Part) => Promise<void>
): Promise<Merged> {
  const { lengths, ordinals, places } = await placeChunks(sources, first, breathe)
  const parts: Part[] = []
  const flush = async () => {
    for (const part of parts.splice(0)) await give(part)
    await breathe()
  }

  const terms = createTermWriter((part) => parts.push(part))
  const gone = new Set<string>()
  const termCursors = sources.map((source) => cursorOver(source.termBlocks, source.terms, (block) => block.terms))
  await inOrder(termCursors, breathe, (term, from) => {
    const postings: number[] = []
    let sorted = true
    for (const at of from) {
      const { block, place } = termCursors[at]!
      const { chunks, counts } = decodePostings(block!, place)
      for (let i = 0; i < chunks.length; i++) {
        const now = places[at]![chunks[i]!]!
        if (now < 0) continue
        if (postings.length > 0 && postings[postings.length - 2]! > now) sorted = false
        postings.push(now, counts[i]!)
      }
    }
    if (postings.length === 0) gone.add(term)
    else terms.add(term, sorted ? postings : byPlace(postings))
    return parts.length > 0 ? flush() : undefined
  })
  const firstTerms = terms.end()
  await flush()

  const words = createWordWriter((part) => parts.push(part))
  const wordCursors = sources.map((source) => cursorOver(source.wordBlocks, source.words, entriesOf))
  await inOrder(wordCursors, breathe, (entry, from) => {
    if (!gone.has(entry.slice(entry.indexOf(' ') + 1))) {
      words.add(
        entry,
        from.reduce((sum, at) => sum + wordCursors[at]!.block!.counts[wordCursors[at]!.place]!, 0)
      )
    }
    return parts.length > 0 ? flush() : undefined
  })
  const wordBlocks = words.end()
  parts.push(chunksPart(lengths, ordinals, firstTerms, wordBlocks))
  await flush()
  return { chunks: lengths.length, places }
}

/** Numbers the live chunks of all sources by their ordinals. Those of sources that lie one behind the other are in order. */
async function placeChunks(sources: readonly MergeSource[], first: number, breathe: () => Promise<void>) {
  const places = sources.map((source) => new Int32Array(source.lengths.length).fill(-1))
  let sorted = true
  let last = -1
  const live: (readonly [ordinal: number, source: number, chunk: number])[] = []
  for (const [source, { dead, ordinals }] of sources.entries()) {
    for (let chunk = 0; chunk < ordinals.length; chunk++) {
      if (dead !== undefined && (dead[chunk >> 3]! & (1 << (chunk & 7))) !== 0) continue
      const ordinal = ordinals[chunk]!
      if (ordinal < last) sorted = false
      last = ordinal
      live.push([ordinal, source, chunk])
      if ((live.length & 0xfff) === 0) await breathe()
    }
  }
  if (!sorted) live.sort(([a], [b]) => a - b)
  const lengths: number[] = []
  const ordinals: number[] = []
  for (const [place, [ordinal, source, chunk]] of live.entries()) {
    places[source]![chunk] = place
    lengths.push(sources[source]!.lengths[chunk]!)
    ordinals.push(ordinal - first)
    if ((place & 0xfff) === 0) await breathe()
  }
  return { lengths, ordinals, places }
}

function byPlace(postings: readonly number[]): readonly number[] {
  const order = Array.from({ length: postings.length / 2 }, (_, at) => at * 2)
  order.sort((a, b) => postings[a]! - postings[b]!)
  return order.flatMap((at) => [postings[at]!, postings[at + 1]!])
}

/** Words and their terms, as a word writer takes them. */
function entriesOf(block: WordsPart): readonly string[] {
  const words = block.words.split(' ')
  return block.terms.split(' ').map((term, at) => `${words[at]!} ${term === '' ? words[at]! : term}`)
}

/** A place in the sorted entries of a source. */
interface Cursor<B> {
  block: B | undefined
  place: number
  /** The entry at hand; `undefined` behind the last one. */
  entry: string | undefined
  /** A promise only when another block has to be read. */
  advance(): Promise<void> | undefined
}

function cursorOver<B>(
  blocks: number,
  read: (number: number) => Promise<B>,
  entriesOf: (block: B) => readonly string[]
): Cursor<B> {
  let next = 0
  let entries: readonly string[] = []
  const readNext = async () => {
    cursor.block = await read(next++)
    entries = entriesOf(cursor.block)
    cursor.place = 0
    cursor.entry = entries[0]
  }
  const cursor: Cursor<B> = {
    block: undefined,
    place: -1,
    entry: undefined,
    advance() {
      cursor.place += 1
      if (cursor.place >= entries.length && next < blocks) return readNext()
      cursor.entry = entries[cursor.place]
      return undefined
    }
  }
  return cursor
}

/** Calls back for every entry once, in order, with the numbers of the cursors that stand on it. */
async function inOrder<B>(
  cursors: readonly Cursor<B>[],
  breathe: () => Promise<void>,
  take: (entry: string, from: readonly number[]) => Promise<void> | undefined
): Promise<void> {
  for (const cursor of cursors) {
    await cursor.advance()
    await breathe()
  }
  for (let seen = 1; ; seen++) {
    let least: string | undefined
    for (const { entry } of cursors) if (entry !== undefined && (least === undefined || entry < least)) least = entry
    if (least === undefined) return
    const from: number[] = []
    for (const [at, { entry }] of cursors.entries()) if (entry === least) from.push(at)
    const taken = take(least, from)
    if (taken !== undefined) await taken
    for (const at of from) {
      const read = cursors[at]!.advance()
      if (read !== undefined) await read.then(breathe)
    }
    if (seen % entriesAtOnce === 0) await breathe()
  }
}
