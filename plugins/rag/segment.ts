import type { Analysis, Language } from './text.ts'

/**
 * A part of an inverted index: some chunks, and for each term the chunks that have it. Never changed once written;
 * segments are merged into larger ones. Plain data, so one can be built in a worker thread.
 *
 * Chunks are numbered within the segment from 0. Parts, all under keys `[…, kind, number]`:
 *
 *     chunks 0   lengths and ordinals of the chunks; the first term of each block of terms
 *     terms  n   some kilobytes of the sorted terms with their postings
 *     words  n   some of the sorted pairs of a written word and its term, with the number of chunks that have it
 */
export interface Segment {
  readonly chunks: number
  /** Terms of all chunks that count for their length. */
  readonly length: number
  /** Chunks of each language. */
  readonly languages: Readonly<Record<string, number>>
  readonly parts: readonly Part[]
}

export interface Part {
  readonly kind: 'chunks' | 'terms' | 'words'
  readonly number: number
  readonly value: ChunksPart | TermsPart | WordsPart
}

export interface ChunksPart {
  /** Base64 of varints. */
  readonly lengths: string
  /** Base64 of varints: from one ordinal to the next; the first counts from the first ordinal of the segment. */
  readonly ordinals: string
  readonly firstTerms: readonly string[]
  readonly wordBlocks: number
}

export interface TermsPart {
  /** Sorted by UTF-16 units, with blanks between: no term has one. */
  readonly terms: string
  /** Base64 of each term's postings, the bytes it takes before it: see {@link decodePostings}. */
  readonly postings: string
}

export interface WordsPart {
  readonly words: string
  /** The term of each word; empty where it is the word itself. */
  readonly terms: string
  readonly counts: readonly number[]
}

/** Chunks that have a term, in ascending order, and how often. */
export interface Postings {
  readonly chunks: Uint32Array
  readonly counts: Uint32Array
}

/** A block of terms made ready for look-ups. */
export interface TermBlock {
  readonly terms: readonly string[]
  /** Where the postings of each term begin in `bytes`, and where the last ones end. */
  readonly starts: Uint32Array
  readonly bytes: Uint8Array
}

/**
 * A block of words made ready for walks: few bytes a word, since a search for slips walks all of them. Texts of several
 * languages give a word several terms: it comes again then.
 */
export interface WordBlock {
  /** The sorted words, a blank behind each but the last. */
  readonly text: string
  /** Where each word begins; one more, behind the blank that would follow the last. */
  readonly starts: Uint32Array
  /** Their terms, as in {@link WordsPart}, and where each begins. */
  readonly terms: string
  readonly termStarts: Uint32Array
  readonly counts: Uint32Array
  /** Units that a word shares with the one before it. */
  readonly shared: Uint8Array
  /** The places of the words in the order of their last unit, and of their last two: see {@link tailOf}. */
  readonly byTail: readonly [Uint16Array, Uint16Array]
}

/** Bytes of postings, or words, after which a block ends. */
const blockBytes = 6_000
const blockWords = 512

/** Builds a segment of the chunks of one document, or of several, in the order of their ordinals. */
export function buildSegment(analyses: readonly Analysis[]): Segment {
  const postings = new Map<string, number[]>()
  const words = new Map<string, { count: number; chunk: number }>()
  const languages: Partial<Record<Language, number>> = {}
  let length = 0
  analyses.forEach((analysis, chunk) => {
    length += analysis.length
    languages[analysis.language] = (languages[analysis.language] ?? 0) + 1
    for (let at = 0; at < analysis.terms.length; at++) {
      const term = analysis.terms[at]!
      const list = postings.get(term)
      if (list === undefined) postings.set(term, [chunk, 1])
      else if (list[list.length - 2] === chunk) list[list.length - 1]! += 1
      else list.push(chunk, 1)
      const word = analysis.words[at]!
      if (word === '') continue
      const entry = `${word} ${term}`
      const known = words.get(entry)
      if (known === undefined) words.set(entry, { count: 1, chunk })
      else if (known.chunk !== chunk) {
        known.count += 1
        known.chunk = chunk
      }
    }
  })
  const parts: Part[] = []
  const terms = createTermWriter((part) => parts.push(part))
  for (const term of [...postings.keys()].sort()) terms.add(term, postings.get(term)!)
  const list = createWordWriter((part) => parts.push(part))
  for (const entry of [...words.keys()].sort()) list.add(entry, words.get(entry)!.count)
  parts.push(
    chunksPart(
      analyses.map((one) => one.length),
      analyses.map((_, at) => at),
      terms.end(),
      list.end()
    )
  )
  return { chunks: analyses.length, length, languages: languages as Record<string, number>, parts }
}

/** @param ordinals ascending, counted from the first of the segment */
export function chunksPart(
  lengths: readonly number[],
  ordinals: readonly number[],
  firstTerms: readonly string[],
  wordBlocks: number
): Part {
  const value: ChunksPart = {
    lengths: toBase64(lengths),
    ordinals: toBase64(ordinals.map((ordinal, at) => ordinal - (at === 0 ? 0 : ordinals[at - 1]!))),
    firstTerms,
    wordBlocks
  }
  return { kind: 'chunks', number: 0, value }
}

/** Takes terms in their order and gives away blocks of them. */
export interface TermWriter {
  /** @param postings pairs of a chunk and its count, by chunk */
  add(term: string, postings: readonly number[]): void
  /** Gives away the last block. @returns the first term of each */
  end(): string[]
}

export function createTermWriter(give: (part: Part) => void): TermWriter {
  const firstTerms: string[] = []
  let terms: string[] = []
  let bytes: number[] = []
  const flush = () => {
    if (terms.length === 0) return
    const value: TermsPart = { terms: terms.join(' '), postings: Buffer.from(bytes).toString('base64') }
    give({ kind: 'terms', number: firstTerms.length, value })
    firstTerms.push(terms[0]!)
    terms = []
    bytes = []
  }
  return {
    add(term, postings) {
      const own: number[] = []
      encodePostings(postings, own)
      terms.push(term)
      pushVarint(bytes, own.length)
      for (const byte of own) bytes.push(byte)
      if (bytes.length >= blockBytes) flush()
    },
    end() {
      flush()
      return firstTerms
    }
  }
}

export interface WordWriter {
  /** @param entry the word, a blank, its term */
  add(entry: string, count: number): void
  /** @returns the number of blocks */
  end(): number
}

export function createWordWriter(give: (part: Part) => void): WordWriter {
  let blocks = 0
  let words: string[] = []
  let terms: string[] = []
  let counts: number[] = []
  const flush = () => {
    if (words.length === 0) return
    const value: WordsPart = { words: words.join(' '), terms: terms.join(' '), counts }
    give({ kind: 'words', number: blocks, value })
    blocks += 1
    words = []
    terms = []
    counts = []
  }
  return {
    add(entry, count) {
      const [word = '', term = ''] = entry.split(' ')
      words.push(word)
      terms.push(term === word ? '' : term)
      counts.push(count)
      if (words.length >= blockWords) flush()
    },
    end() {
      flush()
      return blocks
    }
  }
}

export function decodeTerms(part: TermsPart): TermBlock {
  const terms = part.terms.split(' ')
  const bytes = Buffer.from(part.postings, 'base64')
  const starts = new Uint32Array(terms.length + 1)
  const cursor = { at: 0 }
  for (let at = 0; at < terms.length; at++) {
    const size = readVarint(bytes, cursor)
    starts[at] = cursor.at
    cursor.at += size
  }
  starts[terms.length] = bytes.length
  return { terms, starts, bytes }
}

/** Each chunk as the distance from the one before it, doubled; one more when its count, which follows then, is not 1. */
export function decodePostings(block: TermBlock, at: number): Postings {
  const cursor = { at: block.starts[at]! }
  const { bytes } = block
  const size = readVarint(bytes, cursor)
  const chunks = new Uint32Array(size)
  const counts = new Uint32Array(size)
  let chunk = 0
  for (let i = 0; i < size; i++) {
    const step = readVarint(bytes, cursor)
    chunk += step >>> 1
    chunks[i] = chunk
    counts[i] = (step & 1) === 0 ? 1 : readVarint(bytes, cursor)
  }
  return { chunks, counts }
}

function encodePostings(postings: readonly number[], target: number[]): void {
  pushVarint(target, postings.length / 2)
  let before = 0
  for (let at = 0; at < postings.length; at += 2) {
    const chunk = postings[at]!
    const count = postings[at + 1]!
    pushVarint(target, (chunk - before) * 2 + (count > 1 ? 1 : 0))
    if (count > 1) pushVarint(target, count)
    before = chunk
  }
}

export function decodeWords(part: WordsPart): WordBlock {
  const text = part.words
  const size = part.counts.length
  const starts = startsOf(text, size)
  const shared = new Uint8Array(size)
  for (let at = 1; at < size; at++) {
    const before = starts[at - 1]!
    const here = starts[at]!
    const most = Math.min(here - before - 1, starts[at + 1]! - here - 1, 255)
    let same = 0
    while (same < most && text.charCodeAt(before + same) === text.charCodeAt(here + same)) same += 1
    shared[at] = same
  }
  const order = (units: number): Uint16Array => {
    const keys = new Float64Array(size)
    for (let at = 0; at < size; at++) {
      keys[at] = tailOf(text, starts[at]!, starts[at + 1]! - 1, units) * blockWords + at
    }
    return Uint16Array.from(keys.sort(), (key) => key % blockWords)
  }
  return {
    text,
    starts,
    terms: part.terms,
    termStarts: startsOf(part.terms, size),
    counts: Uint32Array.from(part.counts),
    shared,
    byTail: [order(1), order(2)]
  }
}

/** Where each of `size` words begins, and where one more would. */
function startsOf(text: string, size: number): Uint32Array {
  const starts = new Uint32Array(size + 1)
  for (let at = 1; at < size; at++) starts[at] = text.indexOf(' ', starts[at - 1]) + 1
  starts[size] = text.length + 1
  return starts
}

export function wordAt(block: WordBlock, place: number): string {
  return block.text.slice(block.starts[place], block.starts[place + 1]! - 1)
}

export function termAt(block: WordBlock, place: number): string {
  const term = block.terms.slice(block.termStarts[place], block.termStarts[place + 1]! - 1)
  return term === '' ? wordAt(block, place) : term
}

/** What orders words by their last `units` (1 or 2), of as many as there are. */
export function tailOf(text: string, start: number, end: number, units: number): number {
  let tail = 0
  for (let at = Math.max(start, end - units); at < end; at++) tail = tail * 0x10000 + text.charCodeAt(at)
  return tail
}

/** @param sums each number is counted from the one before it */
export function fromBase64(text: string, sums: boolean): Float64Array {
  const bytes = Buffer.from(text, 'base64')
  let size = 0
  for (const byte of bytes) if (byte < 0x80) size += 1
  const numbers = new Float64Array(size)
  const cursor = { at: 0 }
  let sum = 0
  for (let at = 0; at < size; at++) {
    const number = readVarint(bytes, cursor)
    sum = sums ? sum + number : number
    numbers[at] = sum
  }
  return numbers
}

function toBase64(numbers: readonly number[]): string {
  const bytes: number[] = []
  for (const number of numbers) pushVarint(bytes, number)
  return Buffer.from(bytes).toString('base64')
}

/** Seven bits a byte, the lowest first. Divisions, since ordinals grow beyond what shifts hold. */
function pushVarint(target: number[], value: number): void {
  let rest = value
  while (rest >= 0x80) {
    target.push((rest % 0x80) | 0x80)
    rest = Math.floor(rest / 0x80)
  }
  target.push(rest)
}

function readVarint(bytes: Uint8Array, cursor: { at: number }): number {
  let byte = bytes[cursor.at++]!
  if (byte < 0x80) return byte
  let value = byte & 0x7f
  let scale = 0x80
  do {
    byte = bytes[cursor.at++]!
    value += (byte & 0x7f) * scale
    scale *= 0x80
  } while (byte >= 0x80)
  return value
}
