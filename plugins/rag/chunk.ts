/**
 * - `word`: windows of a number of words, blanks or no blanks between them
 * - `semantic`: pieces of a number of characters at most, cut where the text itself makes the largest break
 * - `character`: windows of a number of characters (code points)
 */
export type ChunkStrategy = 'word' | 'semantic' | 'character'

/** A piece of a text: `text` is what stands there from `start` up to `end`, in UTF-16 units. */
export interface Chunk {
  readonly text: string
  readonly start: number
  readonly end: number
}

export interface ChunkOptions {
  readonly strategy: ChunkStrategy
  /** Words or characters of a chunk, at most. */
  readonly size: number
  /** How many of them it shares with the one before it, less than `size`. */
  readonly overlap: number
}

/** What each strategy does unless it is told otherwise. */
export const chunkDefaults: Readonly<Record<ChunkStrategy, ChunkOptions>> = {
  word: { strategy: 'word', size: 200, overlap: 50 },
  semantic: { strategy: 'semantic', size: 500, overlap: 0 },
  character: { strategy: 'character', size: 500, overlap: 100 }
}

/** For a text that comes without a strategy: what finds most (`bench/retrieval.ts`). */
export const bestChunks: ChunkOptions = { strategy: 'semantic', size: 1_200, overlap: 300 }

/** UTF-8 bytes that a text must have to be kept at all. */
export const minChunkBytes = 20

const aliases: Readonly<Record<string, ChunkStrategy>> = {
  word: 'word',
  words: 'word',
  semantic: 'semantic',
  sentence: 'semantic',
  paragraph: 'semantic',
  character: 'character',
  char: 'character',
  chars: 'character'
}

/** The strategy of a name or alias, in any case; `undefined` for an unknown one. */
export function findChunkStrategy(name: string): ChunkStrategy | undefined {
  const lower = name.toLowerCase()
  return Object.hasOwn(aliases, lower) ? aliases[lower] : undefined
}

/**
 * Cuts a text into chunks, in order. Together they hold all of it but blanks; none begins or ends inside a grapheme
 * (unless one is longer than a chunk), none but the last of `semantic` is cut short without need. Code between fences
 * stays whole where it fits, a heading stays with what follows it.
 * @returns none when there are less than {@link minChunkBytes} that can be seen
 */
export function chunkText(text: string, options: ChunkOptions): Chunk[] {
  if (Buffer.byteLength(text.replace(/[\s\p{Cf}]+/gu, ' ').trim()) < minChunkBytes) return []
  if (options.strategy === 'word') return chunkWords(text, options)
  return options.strategy === 'semantic' ? chunkSemantic(text, options) : chunkCharacters(text, options)
}

function chunkCharacters(text: string, { size, overlap }: ChunkOptions): Chunk[] {
  const wide = /[\ud800-\udfff]/.test(text)
  const ahead = (from: number, count: number): number => {
    if (!wide) return Math.min(text.length, from + count)
    let at = from
    for (let left = count; left > 0 && at < text.length; left--) at += isPair(text, at) ? 2 : 1
    return at
  }
  const border = createBorders(text, size * 2)
  const step = Math.max(1, size - overlap)
  const chunks: Chunk[] = []
  let from = 0
  for (let window = 0; ; ) {
    const to = border(ahead(window, size), from)
    if (text.slice(from, to).trim() !== '') chunks.push({ text: text.slice(from, to), start: from, end: to })
    if (to >= text.length) return chunks
    window = ahead(window, step)
    // Never behind the end of the chunk before: nothing may fall between two.
    from = Math.min(to, border(window, from))
    if (window < from) window = from
  }
}

function chunkWords(text: string, { size, overlap }: ChunkOptions): Chunk[] {
  const { starts, ends } = wordsOf(text)
  const step = Math.max(1, size - overlap)
  const chunks: Chunk[] = []
  for (let first = 0; first < starts.length; first += step) {
    const last = Math.min(starts.length, first + size) - 1
    const end = ends[last]!
    let from = first
    while (from > 0 && Buffer.byteLength(text.slice(starts[from]!, end)) < minChunkBytes) from -= 1
    chunks.push({ text: text.slice(starts[from]!, end), start: starts[from]!, end })
    if (last === starts.length - 1) break
  }
  return chunks
}

/** Longest run without a break that counts as one word. */
const maxWordUnits = 64
/** Scripts that put no blanks between words. */
const unspaced =
  /[\p{Script=Han}\p{Script=Hiragana}\p{Script=Katakana}\p{Script=Thai}\p{Script=Lao}\p{Script=Khmer}\p{Script=Myanmar}]/u

function wordsOf(text: string): { readonly starts: readonly number[]; readonly ends: readonly number[] } {
  const starts: number[] = []
  const ends: number[] = []
  const add = (start: number, end: number) => {
    starts.push(start)
    ends.push(end)
  }
  const segmenter = new Intl.Segmenter('und', { granularity: 'word' })
  const border = createBorders(text, maxWordUnits)
  for (const { 0: run, index } of text.matchAll(/\S+/g)) {
    const end = index + run.length
    // A mark may sit on the blank before it.
    const start = border(index, index - 2)
    if (run.length <= maxWordUnits && !unspaced.test(run)) {
      add(start, end)
      continue
    }
    for (let from = start; from < end; ) {
      const to = Math.min(end, border(Math.min(end, from + maxWordUnits), from))
      // Short pieces: the segmenter takes time with the length of what it is given, for each word.
      if (unspaced.test(text.slice(from, to))) {
        let at = from
        for (const { segment, isWordLike } of segmenter.segment(text.slice(from, to))) {
          const next = at + segment.length
          // Punctuation goes with the word before it.
          if (isWordLike === true || starts.length === 0 || ends[ends.length - 1] !== at) add(at, next)
          else ends[ends.length - 1] = next
          at = next
        }
      } else add(from, to)
      from = to
    }
  }
  return { starts, ends }
}

/** How large a break is. Words and graphemes are for where there is none of these. */
const breakOfSentence = 2
const breakOfLine = 3
const breakOfParagraph = 4
const breakOfSection = 5
/** A large break is taken although a smaller one would fill the chunk more, by this much of its size for each step. */
const worthOfBreak = 0.1
/** Of a chunk that ends at a break smaller than a sentence. */
const leastFilled = 0.25

function chunkSemantic(text: string, { size, overlap }: ChunkOptions): Chunk[] {
  const border = createBorders(text, size)
  const fences = fencesOf(text, size)
  const sentences = new Intl.Segmenter('und', { granularity: 'sentence' })
  const words = new Intl.Segmenter('und', { granularity: 'word' })
  const textEnd = text.trimEnd().length
  const chunks: Chunk[] = []
  // A mark may sit on the blank before it; where there is none, only a border that is known tells where flags begin.
  const skip = (at: number, known: number) => {
    const found = skipBlank(text, at)
    return border(found, found === at ? known : found - 2)
  }
  let from = skip(0, 0)
  while (from < textEnd) {
    let to = textEnd
    if (textEnd - from > size) {
      // What is left is not so short that it would be no chunk.
      const limit = Math.min(from + size, Math.max(from + 1, textEnd - minChunkBytes))
      const near = fencesBetween(fences, from, limit + 1)
      to = bestBreak(text, from, limit, size, near, sentences) ?? wordBreak(text, from, limit, words, border)
    }
    const end = from + text.slice(from, to).trimEnd().length
    chunks.push({ text: text.slice(from, end), start: from, end })
    const next = skip(to, from)
    const shared =
      to >= textEnd || overlap === 0 ? next : skip(overlapStart(text, from, next, overlap, fences, sentences), from)
    from = shared > from ? shared : next
  }
  return chunks
}

/** The last of the largest breaks in `(from, limit]` that is worth what it leaves empty. */
function bestBreak(
  text: string,
  from: number,
  limit: number,
  size: number,
  fences: readonly Fence[],
  sentences: Intl.Segmenter
): number | undefined {
  let best: number | undefined
  let most = Number.NEGATIVE_INFINITY
  const offer = (at: number, level: number) => {
    if (at <= from || at > limit || insideFence(fences, at)) return
    const worth = (at - from) / size + level * worthOfBreak
    if (worth >= most) {
      most = worth
      best = at
    }
  }
  const window = text.slice(from, Math.min(text.length, limit + 1))
  for (const { index } of window.matchAll(/\n[^\S\n]*/g)) {
    const at = from + index + 1
    const level = levelOfLine(text, at)
    if (level !== undefined) offer(at, level)
  }
  for (const { index } of sentences.segment(window)) {
    // A line ends a sentence too, and has been offered.
    if (index > 0 && window[index - 1] !== '\n') offer(from + index, breakOfSentence)
  }
  for (const { start, end } of fences) {
    if (levelOfLine(text, start) !== undefined) offer(start, breakOfSection)
    offer(end, breakOfParagraph)
  }
  const before = fences.some(({ start, end }) => start > from && start <= limit && end > limit)
  return best !== undefined && best - from < size * leastFilled && !before ? undefined : best
}

/** What the start of a line breaks; `undefined` right behind a heading. */
function levelOfLine(text: string, at: number): number | undefined {
  const before = lineBefore(text, at)
  if (isHeading(before)) return undefined
  const here = text.slice(at, at + 80)
  if (isHeading(/^[^\n]*/.exec(here)![0])) return breakOfSection
  if (before.trim() === '') return isHeading(lineBefore(text, at - before.length - 1)) ? undefined : breakOfParagraph
  return breakOfLine
}

function lineBefore(text: string, at: number): string {
  if (at <= 0) return '\n'
  const start = text.lastIndexOf('\n', at - 2) + 1
  return text.slice(Math.max(start, at - 200), at - 1)
}

/** ATX headings of Markdown, and those of wikis. */
function isHeading(line: string): boolean {
  return /^ {0,3}#{1,6}\s+\S/.test(line) || /^\s*=[= ]*\s\S.*=\s*$/.test(line)
}

function wordBreak(
  text: string,
  from: number,
  limit: number,
  words: Intl.Segmenter,
  border: (at: number, low: number) => number
): number {
  const window = text.slice(from, limit + 1)
  const blank = window.search(/\s\S*$/)
  if (blank > window.length / 2) return from + blank + 1
  // The words of a script without blanks: of the last stretch, as the segmenter is slow with much text.
  const low = border(Math.max(from, limit - 60), from)
  const last = words.segment(text.slice(low, Math.min(text.length, limit + 30))).containing(limit - low)
  return border(last === undefined || last.index === 0 ? limit : low + last.index, from)
}

/** The first break of a sentence, a line or a word that leaves at most `overlap` characters before `end`. */
function overlapStart(
  text: string,
  from: number,
  end: number,
  overlap: number,
  fences: readonly Fence[],
  sentences: Intl.Segmenter
): number {
  const low = Math.max(from + 1, end - overlap)
  if (fencesBetween(fences, low, low + 1).some(({ start }) => start < low)) return end
  const window = text.slice(low, end)
  for (const { index } of window.matchAll(/\n\s*(?=\S)/g)) return low + index
  // From a little before, so that the segmenter sees whether a sentence begins there.
  const context = Math.max(from, low - 1)
  for (const { index } of sentences.segment(text.slice(context, end))) {
    if (index > 0 && context + index >= low) return context + index
  }
  const blank = window.search(/\s\S/)
  return blank < 0 ? end : low + blank + 1
}

interface Fence {
  readonly start: number
  readonly end: number
}

/** Blocks of code that fit into a chunk, in order. */
function fencesOf(text: string, size: number): readonly Fence[] {
  const fences: Fence[] = []
  let open: { readonly start: number; readonly marks: string } | undefined
  for (const { 0: line, 1: marks = '', 2: rest = '', index } of text.matchAll(/^ {0,3}(`{3,}|~{3,})([^\n]*)$/gm)) {
    if (open === undefined) open = { start: index, marks }
    else if (marks.startsWith(open.marks) && rest.trim() === '') {
      const end = index + line.length
      if (end - open.start <= size) fences.push({ start: open.start, end })
      open = undefined
    }
  }
  return fences
}

/** Those that reach into `(from, to)`. */
function fencesBetween(fences: readonly Fence[], from: number, to: number): readonly Fence[] {
  let low = 0
  let high = fences.length
  while (low < high) {
    const middle = (low + high) >> 1
    if (fences[middle]!.end <= from) low = middle + 1
    else high = middle
  }
  let end = low
  while (end < fences.length && fences[end]!.start < to) end += 1
  return fences.slice(low, end)
}

function insideFence(fences: readonly Fence[], at: number): boolean {
  return fences.some(({ start, end }) => start < at && at < end)
}

function skipBlank(text: string, at: number): number {
  const blank = /\S/g
  blank.lastIndex = at
  return blank.exec(text)?.index ?? text.length
}

function isPair(text: string, at: number): boolean {
  return (text.charCodeAt(at) & 0xfc00) === 0xd800 && (text.charCodeAt(at + 1) & 0xfc00) === 0xdc00
}

/** Units before a place that are looked at to find the grapheme it is in. */
const graphemeContext = 256

/**
 * Tells the border of graphemes at a place or, where it is inside one, the nearest before it; the next one behind when
 * that would be no more than `low`, itself a border.
 * @param most longest grapheme that is kept whole
 */
function createBorders(text: string, most: number): (at: number, low: number) => number {
  const segmenter = new Intl.Segmenter('und', { granularity: 'grapheme' })
  return (at, low) => {
    if (at <= 0 || at >= text.length || isPlainBorder(text, at)) return Math.min(text.length, Math.max(0, at))
    let start = Math.max(0, low, at - graphemeContext)
    const first = start
    for (let back = at - 1; back > start; back--) {
      if (isPlainBorder(text, back)) {
        start = back
        break
      }
    }
    if (isPair(text, start - 1)) start += 1
    if (isFlag(text, start)) start -= flagUnitsBefore(text, start, low) % 4
    const found = segmenter.segment(text.slice(start, at + graphemeContext)).containing(at - start)!
    const before = start + found.index
    const behind = before + found.segment.length
    if (before === at) return at
    const whole = start > Math.max(0, low) && start === first && found.index === 0 ? false : behind - before <= most
    if (whole && before > low) return before
    if (whole) return behind
    return isPair(text, at - 1) ? at + 1 : at
  }
}

/** Between two characters that join nothing: Latin, or Han and Hangul syllables. */
function isPlainBorder(text: string, at: number): boolean {
  const before = text.charCodeAt(at - 1)
  const behind = text.charCodeAt(at)
  return isPlain(before) && isPlain(behind) && !(before === 0x0d && behind === 0x0a)
}

function isPlain(code: number): boolean {
  return code < 0x300 ? code !== 0xad : (code >= 0x3400 && code < 0xa000) || (code >= 0x3041 && code < 0x3097)
}

function isFlag(text: string, at: number): boolean {
  const point = text.codePointAt(at)
  return point !== undefined && point >= 0x1f1e6 && point <= 0x1f1ff
}

/** Flags are pairs of signs, counted from the first of the row, or from a border that is known. */
function flagUnitsBefore(text: string, at: number, border: number): number {
  let start = at
  while (start >= 2 && start > border && isFlag(text, start - 2)) start -= 2
  return at - start
}
