import { createCache } from './cache.ts'
import { stemmers } from './stem.ts'
import { type Language, stopWords } from './stop-words.ts'

export type { Language } from './stop-words.ts'

/**
 * What a token is.
 * - `word`: stemmed, dropped when it is a stop word
 * - `whole`: an identifier of several words as one, or a number: as it is
 * - `part`: a word inside another one (of an identifier, of a German compound); adds nothing to the length of a text
 * - `gram`: one or two characters of a script without blanks between words, or one word of Thai and its like
 */
export type TokenKind = 'word' | 'whole' | 'part' | 'gram'

export interface Token {
  readonly kind: TokenKind
  /** As written, folded; never empty, no blank in it. */
  readonly word: string
}

/** A text as an index keeps it. */
export interface Analysis {
  readonly language: Language
  /** What is looked up, in order, repeated as often as it occurs. */
  readonly terms: readonly string[]
  /** The written word of the term at the same place; empty for what nobody mistypes (grams, numbers, parts). */
  readonly words: readonly string[]
  /** Terms that count for the length of the text. */
  readonly length: number
}

/** A word of a query, and the terms under which texts of the asked languages keep it. */
export interface QueryWord {
  readonly word: string
  readonly kind: TokenKind
  /** What it adds, beside a word of its own: 1. A part adds half of that. */
  readonly weight: number
  readonly terms: readonly string[]
}

/** Turns text into terms; keeps stems it has seen, so one of them serves many texts. */
export interface Analyser {
  /** @param fallback for a text too short to tell its language, such as that of the document around it; English if left out */
  analyse(text: string, fallback?: Language): Analysis
  /**
   * Distinct words of a query, in order.
   * @param languages those of the texts that are searched: a short query does not tell its own
   * @param most words that are read; the rest is left out
   */
  analyseQuery(query: string, languages: readonly Language[], most: number): readonly QueryWord[]
  /** Which of the languages written in Latin a text is in, where its stop words tell. */
  detect(text: string): Language | undefined
}

/** Stems that are kept. */
const cachedStems = 40_000
/** Longer runs of letters (base64, keys, noise) are cut: no word of a language is. */
const maxWordUnits = 64
/** Of a text, to tell its language. */
const detectUnits = 800

const other = 1
const letter = 2
const digit = 3
const underscore = 4
/** Han and kana. */
const wide = 5
const hangul = 6
/** Thai, Lao, Khmer, Myanmar: no blanks between words, and a dictionary in Intl.Segmenter. */
const unspaced = 7
/** Tells of itself: emoji. */
const sign = 8

export function createAnalyser(): Analyser {
  const classes = new Uint8Array(0x10000)
  const segmenter = new Intl.Segmenter('und', { granularity: 'word' })
  const stems = createCache<string>(cachedStems)

  const classAt = (text: string, at: number): number => {
    const code = text.charCodeAt(at)
    const known = classes[code]!
    if (known !== 0) return known
    if (code >= 0xd800 && code <= 0xdfff) return classify(String.fromCodePoint(text.codePointAt(at)!))
    return (classes[code] = classify(String.fromCharCode(code)))
  }

  /** Calls back for every token of a text. */
  const tokenise = (text: string, compounds: boolean, take: (kind: TokenKind, word: string) => void): void => {
    // A word may be made of marks alone, which fold to nothing.
    const emit = (kind: TokenKind, word: string) => {
      if (word !== '') take(kind, word)
    }
    const normal = isAscii(text) ? text : text.replace(invisible, '').normalize('NFKC')
    const end = normal.length
    let at = 0
    let joined = ''
    let behindHyphen = false
    while (at < end) {
      const kind = classAt(normal, at)
      const from = at
      at += widthAt(normal, at)
      if (kind === other) continue
      if (isWordClass(kind)) {
        while (at < end) {
          const next = classAt(normal, at)
          if (!isWordClass(next)) {
            if (next !== other || !isInsideNumber(normal, from, at, classAt)) break
          }
          at += widthAt(normal, at)
        }
        const run = normal.slice(from, at)
        readWord(run, compounds, emit)
        // `e-mail` is also found as `email`, `IL-6` as `IL6`.
        joined = behindHyphen ? joined + run : run
        const beforeHyphen = isHyphen(normal.charCodeAt(at)) && at + 1 < end && isWordClass(classAt(normal, at + 1))
        if (behindHyphen && !beforeHyphen && joined.length <= maxWordUnits) emit('word', foldWord(joined))
        behindHyphen = beforeHyphen
        if (behindHyphen) at += 1
      } else {
        while (at < end && classAt(normal, at) === kind) at += widthAt(normal, at)
        const run = normal.slice(from, at)
        if (kind === unspaced) readUnspaced(run, segmenter, emit)
        else readGrams(run, kind === hangul, emit)
      }
    }
  }

  const stem = (word: string, language: Language | undefined): string => {
    if (language === undefined) return word
    const key = language + word
    return stems.get(key) ?? stems.set(key, stemmers[language](word), 1)
  }

  const detect = (text: string, among: readonly Language[] = latinLanguages): Language | undefined => {
    const sample = text.length > detectUnits ? text.slice(0, detectUnits) : text
    const words = new Set<string>()
    tokenise(sample, false, (kind, word) => {
      // Single letters are left over from every language's abbreviations.
      if (kind === 'word' && word.length > 1 && scriptOf(word) === 'latin') words.add(word)
    })
    let best: Language | undefined
    // One may be chance; in a text of a few words it is what there is.
    let most = words.size > 2 && words.size <= 8 ? 0 : 1
    for (const language of among) {
      let found = 0
      for (const word of words) if (stopWords[language].has(word)) found += 1
      if (found > most) {
        best = language
        most = found
      }
    }
    return most >= words.size / 16 ? best : undefined
  }

  return {
    detect: (text) => detect(text),

    analyse(text, fallback) {
      const language = detect(text) ?? fallback ?? 'en'
      const terms: string[] = []
      const words: string[] = []
      let length = 0
      tokenise(text, language === 'de', (kind, word) => {
        if (kind === 'word' || kind === 'part') {
          const own = languageOf(word, language)
          if (kind === 'word' && own !== undefined && stopWords[own].has(word)) return
          terms.push(stem(word, own))
          words.push(kind === 'word' ? word : '')
          if (kind === 'word') length += 1
        } else {
          terms.push(word)
          words.push(kind === 'whole' && !startsWithDigit(word) ? word : '')
          length += 1
        }
      })
      return { language, terms, words, length }
    },

    analyseQuery(query, languages, most) {
      const asked = languages.length === 0 ? (['en'] as const) : languages
      // What is a stop word depends on the language of the query, not on all that the texts are written in.
      const spoken = asked.length === 1 ? asked[0] : detect(query.slice(0, detectUnits), asked)
      const found = new Map<string, QueryWord>()
      tokenise(query.slice(0, most * maxWordUnits), languages.includes('de'), (kind, word) => {
        if (found.size >= most || found.has(word)) return
        const terms = new Set<string>()
        if (kind === 'gram' || kind === 'whole') terms.add(word)
        else {
          for (const language of asked) {
            const own = languageOf(word, language)
            if (
              kind === 'word' &&
              (stopWords[own ?? 'en'].has(word) || (spoken !== undefined && stopWords[spoken].has(word)))
            )
              continue
            terms.add(stem(word, own))
          }
        }
        if (terms.size > 0) found.set(word, { word, kind, weight: kind === 'part' ? 0.5 : 1, terms: [...terms] })
      })
      return [...found.values()]
    }
  }
}

const latinLanguages: readonly Language[] = ['en', 'de', 'fr', 'es', 'it', 'pt', 'nl']

/** Soft hyphens, joiners, marks of direction: they divide nothing. */
const invisible = /[\u00ad\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff]+/g

function isWordClass(kind: number): boolean {
  return kind === letter || kind === digit || kind === underscore
}

function isHyphen(code: number): boolean {
  return code === 0x2d || code === 0x2010 || code === 0x2011
}

function isAscii(text: string): boolean {
  return !/[\u0080-\uffff]/.test(text)
}

function widthAt(text: string, at: number): number {
  const code = text.charCodeAt(at)
  return code >= 0xd800 && code <= 0xdbff && (text.charCodeAt(at + 1) & 0xfc00) === 0xdc00 ? 2 : 1
}

function classify(character: string): number {
  if (character === '_') return underscore
  if (/\p{Script=Han}|\p{Script=Hiragana}|\p{Script=Katakana}|[ー々〆〇]/u.test(character)) return wide
  if (/\p{Script=Hangul}/u.test(character)) return hangul
  if (/\p{Script=Thai}|\p{Script=Lao}|\p{Script=Khmer}|\p{Script=Myanmar}/u.test(character)) {
    return /\p{P}/u.test(character) ? other : unspaced
  }
  if (/\p{N}/u.test(character)) return digit
  // Joiners of scripts that need them stand inside words; so do marks.
  if (/[\p{L}\p{M}\u0640]/u.test(character)) return letter
  if (/\p{Extended_Pictographic}/u.test(character)) return sign
  return other
}

/** `1,000` and `3.14.2` are one number: a point or comma between two digits, in a run that began with one. */
function isInsideNumber(
  text: string,
  from: number,
  at: number,
  classAt: (text: string, at: number) => number
): boolean {
  const character = text.charCodeAt(at)
  return (
    (character === 0x2e || character === 0x2c) &&
    classAt(text, from) === digit &&
    classAt(text, at - 1) === digit &&
    at + 1 < text.length &&
    classAt(text, at + 1) === digit
  )
}

function readWord(run: string, compounds: boolean, emit: (kind: TokenKind, word: string) => void): void {
  if (startsWithDigit(run) && /[.,]/.test(run)) {
    emit('whole', run.replace(/,(?=\d{3}(?!\d))/g, ''))
    return
  }
  const parts = partsOf(run)
  if (parts.length > 1) {
    const whole = foldWord(parts.join('')).slice(0, maxWordUnits)
    emit('whole', whole)
    for (const part of parts) emit('part', foldWord(part).slice(0, maxWordUnits))
    return
  }
  const word = foldWord(parts[0] ?? '')
  for (let at = 0; at < word.length; at += maxWordUnits) emit('word', word.slice(at, at + maxWordUnits))
  if (compounds && word.length >= 9 && word.length <= maxWordUnits) {
    for (const part of compoundParts(word)) emit('part', part)
  }
}

/** `parseHTTPResponse_v2` → `parse HTTP Response v2`; capitals with a plural `s` (`RNAs`) stay together. */
function partsOf(run: string): readonly string[] {
  let cuts = false
  for (let at = 1; at < run.length && !cuts; at++) {
    const code = run.charCodeAt(at)
    cuts = code === 0x5f || (code >= 0x41 && code <= 0x5a)
  }
  if (!cuts) return [run.charCodeAt(0) === 0x5f ? run.slice(1) : run]
  return run
    .replace(/(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z](?!$|[^a-z]))|(?<=[A-Z])(?=[A-Z][a-rt-z])/g, '_')
    .split('_')
    .filter((part) => part !== '')
}

/** Lower case, without the marks that people leave out when they search. */
export function foldWord(word: string): string {
  const lower = word.toLowerCase()
  if (isAscii(lower)) return lower
  const script = scriptOf(lower)
  if (script === 'latin' || script === 'greek') {
    return lower
      .normalize('NFD')
      .replace(/\p{M}+/gu, '')
      .replace(/[ßæœøłđðþıς]/g, (character) => folded[character]!)
  }
  if (script === 'cyrillic') return lower.replaceAll('ё', 'е').replace(/[\u0300-\u036f]+/g, '')
  if (script === 'arabic') {
    return lower
      .replace(/\p{M}+|\u0640/gu, '')
      .replace(/[أإآٱىةؤئکی]/g, (character) => folded[character]!)
      .replace(/[٠-٩۰-۹]/g, (character) => String(character.charCodeAt(0) & 0xf))
  }
  if (script === 'hebrew') return lower.replace(/[\u0591-\u05c7]+/g, '')
  if (script === 'devanagari') return lower.replace(/[\u093c\u200c\u200d]+/g, '').replaceAll('ँ', 'ं')
  return lower
}

const folded: Readonly<Record<string, string>> = {
  ß: 'ss',
  æ: 'ae',
  œ: 'oe',
  ø: 'o',
  ł: 'l',
  đ: 'd',
  ð: 'd',
  þ: 'th',
  ı: 'i',
  ς: 'σ',
  أ: 'ا',
  إ: 'ا',
  آ: 'ا',
  ٱ: 'ا',
  ى: 'ي',
  ة: 'ه',
  ؤ: 'و',
  ئ: 'ي',
  ک: 'ك',
  ی: 'ي'
}

type Script = 'latin' | 'greek' | 'cyrillic' | 'hebrew' | 'arabic' | 'devanagari' | 'other'

function scriptOf(word: string): Script {
  const code = word.charCodeAt(0)
  if (code < 0x370 || (code >= 0x1e00 && code < 0x1f00)) return 'latin'
  if (code < 0x400 || (code >= 0x1f00 && code < 0x2000)) return 'greek'
  if (code < 0x530) return 'cyrillic'
  if (code >= 0x590 && code < 0x600) return 'hebrew'
  if (code >= 0x600 && code < 0x780) return 'arabic'
  if (code >= 0x900 && code < 0x980) return 'devanagari'
  return 'other'
}

/** A script with one language here tells it; Latin has that of the text. */
function languageOf(word: string, language: Language | undefined): Language | undefined {
  const script = scriptOf(word)
  if (script === 'latin') return language === undefined || latinLanguages.includes(language) ? language : undefined
  if (script === 'cyrillic') return 'ru'
  if (script === 'arabic') return 'ar'
  return script === 'devanagari' ? 'hi' : undefined
}

function startsWithDigit(word: string): boolean {
  const code = word.charCodeAt(0)
  return code >= 0x30 && code <= 0x39
}

function readUnspaced(run: string, segmenter: Intl.Segmenter, emit: (kind: TokenKind, word: string) => void): void {
  // The segmenter takes time with the length of the text for every word it finds, so it gets little at a time.
  for (let from = 0; from < run.length; ) {
    let to = Math.min(run.length, from + 120)
    if (to < run.length) {
      const last = segmenter.segment(run.slice(from, to + 20)).containing(to - from)!
      if (last.index > 0) to = from + last.index
    }
    for (const { segment } of segmenter.segment(run.slice(from, to))) emit('gram', segment)
    from = to
  }
}

/** Pairs of characters that overlap; what stands alone is itself a term, and so is each character of a short run. */
function readGrams(run: string, syllables: boolean, emit: (kind: TokenKind, word: string) => void): void {
  const characters = Array.from(run)
  for (let at = 0; at + 1 < characters.length; at++) emit('gram', characters[at]! + characters[at + 1]!)
  // A Korean word of one syllable with its particle behind it is asked for with another particle.
  if (characters.length === 1 || (syllables && characters.length === 2)) emit('gram', characters[0]!)
}

/** Where a syllable of a German word may begin: a vowel, one consonant, or a cluster that opens syllables. */
const germanOnset = /^(?:[bcdfghjklmnpqrstvwxz]|sch[lmnrw]?|str?|sp[rl]?|[bdfgkpt]r|[bfgkp]l|kn|pfl?|zw|qu|ch)?[aeiouy]/
const germanVowel = /[aeiouy]/
const germanLink = /(?:s|n|en|er|es)$/

/**
 * Words that a German compound may be made of, without a dictionary: what stands before and behind each place where a
 * syllable may begin. A wrong part finds nothing, since no other text has it.
 */
function compoundParts(word: string): ReadonlySet<string> {
  const parts = new Set<string>()
  for (let at = 4; at <= word.length - 4; at++) {
    const tail = word.slice(at)
    const head = word.slice(0, at)
    if (!germanOnset.test(tail) || !germanVowel.test(head)) continue
    if (germanVowel.test(tail.slice(2))) parts.add(tail)
    parts.add(head)
    const link = germanLink.exec(head)
    if (link !== null && link.index >= 4) parts.add(head.slice(0, link.index))
  }
  return parts
}
