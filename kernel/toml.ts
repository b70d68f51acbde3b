import { parse, TomlDate, TomlError } from 'smol-toml'

/**
 * The language of the program file: its values (smol-toml), and where in the text they stand. smol-toml says what is
 * valid; the scan below only finds the pieces of a text it has accepted.
 */

/** Names of tables and indexes of arrays, from the root down. */
export type Path = readonly (string | number)[]

/** A piece of the text: UTF-16 offsets, the end not included. */
export interface Span {
  readonly start: number
  readonly end: number
}

/** One part of a key; `a."b c"` has two. */
export interface Key extends Span {
  readonly name: string
}

export interface Pair extends Span {
  readonly keys: readonly Key[]
  readonly value: Value
}

/** `{ … }`, with its pairs, or `[ … ]`, with its values. */
export interface Inline extends Span {
  readonly kind: 'table' | 'array'
  readonly items: readonly (Pair | Value)[]
}

export interface Scalar extends Span {
  readonly kind: 'scalar'
}

export type Value = Scalar | Inline

/** A header and the pairs below it; the span is the header's. The first section of a text is its root. */
export interface Section extends Span {
  readonly keys: readonly Key[]
  /** The key with the index of each array of tables it goes through: `['entry', 2, 'config']`. */
  readonly path: Path
  readonly items: readonly Pair[]
}

/** What tables and arrays may hold; deeper is refused. */
export const maxDepth = 64

const mark = '\uFEFF'

/**
 * Reads a text. A byte-order mark is skipped; integers are bigints where a number would bend them.
 * @throws TomlError, also for a date that no calendar has
 */
export function parseToml(text: string): Record<string, unknown> {
  const tree = parse(text, { integersAsBigInt: 'asNeeded', maxDepth })
  // smol-toml turns 30 February into 2 March; text in strings and comments may look like that.
  if ([...text.matchAll(/\d{4}-\d\d-\d\d/g)].some(([date]) => isImpossible(date))) {
    for (const { start, end } of scalars(scan(text))) {
      const date = /^\d{4}-\d\d-\d\d/.exec(text.slice(start, end))?.[0]
      if (date !== undefined && isImpossible(date)) {
        throw new TomlError('no calendar has this date', { toml: text, ptr: start })
      }
    }
  }
  return tree
}

function isImpossible(date: string): boolean {
  return new Date(date).getUTCDate() !== Number(date.slice(8))
}

function* scalars(sections: readonly Section[]): Iterable<Scalar> {
  const waiting: (Section | Pair | Value)[] = [...sections]
  for (let next = waiting.pop(); next !== undefined; next = waiting.pop()) {
    if ('value' in next) waiting.push(next.value)
    else if ('items' in next) waiting.push(...next.items)
    else yield next
  }
}

/** Finds the pieces of a text that {@link parseToml} accepts. */
export function scan(text: string): readonly Section[] {
  let at = text.startsWith(mark) ? 1 : 0

  const skipper = (pattern: RegExp) => () => {
    pattern.lastIndex = at
    pattern.test(text)
    at = pattern.lastIndex
  }
  // Each matches the empty text too, so none of them ever fails.
  const skipSpace = skipper(/[ \t]*/y)
  const skipVoid = skipper(/[ \t\r\n]*(?:#[^\n]*\n?[ \t\r\n]*)*/y)
  const skipBare = skipper(/[\w-]*/y)
  const skipScalar = skipper(/(?:[ \t]*[^ \t,\]}#\r\n]+)*/y)
  const skipString = () => {
    const quote = text[at] ?? ''
    const long = text.startsWith(quote.repeat(3), at)
    const end = long ? quote.repeat(3) : quote
    at += end.length
    for (;;) {
      const close = text.indexOf(end, at)
      const escaped = quote === '"' ? text.slice(at, close).indexOf('\\') : -1
      at = escaped < 0 ? close + end.length : at + escaped + 2
      if (escaped < 0) break
    }
    // Up to two quotes may stand before the closing three.
    if (long) while (text[at] === quote) at++
  }
  const readKeys = (): readonly Key[] => {
    const keys: Key[] = []
    do {
      if (keys.length > 0) at++
      skipSpace()
      const start = at
      if (text[at] === '"' || text[at] === "'") skipString()
      else skipBare()
      const raw = text.slice(start, at)
      const name = /^["']/.test(raw) ? (parse(`k = ${raw}`)['k'] as string) : raw
      keys.push({ start, end: at, name })
      skipSpace()
    } while (text[at] === '.')
    return keys
  }
  const readPair = (): Pair => {
    const keys = readKeys()
    at++ // =
    skipSpace()
    const value = readValue()
    return { start: keys[0]?.start ?? at, end: at, keys, value }
  }
  const readValue = (): Value => {
    const start = at
    const first = text[at]
    if (first === '{' || first === '[') {
      const items: (Pair | Value)[] = []
      const close = first === '{' ? '}' : ']'
      at++
      for (skipVoid(); at < text.length && text[at] !== close; skipVoid()) {
        if (text[at] === ',') at++
        else items.push(first === '{' ? readPair() : readValue())
      }
      at++
      return { kind: first === '{' ? 'table' : 'array', start, end: at, items }
    }
    if (first === '"' || first === "'") skipString()
    else skipScalar()
    return { kind: 'scalar', start, end: at }
  }

  let items: Pair[] = []
  const sections: Section[] = [{ start: at, end: at, keys: [], path: [], items }]
  const lengths = new Map<string, number>()
  for (skipVoid(); at < text.length; skipVoid()) {
    if (text[at] !== '[') {
      items.push(readPair())
      continue
    }
    const start = at
    const array = text[at + 1] === '['
    at += array ? 2 : 1
    const keys = readKeys()
    at += array ? 2 : 1
    const path: (string | number)[] = []
    for (const [index, { name }] of keys.entries()) {
      path.push(name)
      const known = pathKey(path)
      let length = lengths.get(known)
      if (array && index === keys.length - 1) lengths.set(known, (length = (length ?? 0) + 1))
      if (length !== undefined) path.push(length - 1)
    }
    items = []
    sections.push({ start, end: at, keys, path, items })
  }
  return sections
}

/** A path as a key of a Map. */
export function pathKey(path: Path): string {
  return JSON.stringify(path.map(String))
}

/** Where the line of `offset` ends, before its line break. */
export function lineBreak(text: string, offset: number): number {
  const end = text.indexOf('\n', offset)
  if (end < 0) return text.length
  return text[end - 1] === '\r' && end > offset ? end - 1 : end
}

/** 1-based; columns count UTF-16 units, as editors do. */
export interface Position {
  readonly line: number
  readonly column: number
}

export function positionOf(text: string, offset: number): Position {
  const before = text.slice(text.startsWith(mark) ? 1 : 0, offset)
  return { line: before.split('\n').length, column: before.length - before.lastIndexOf('\n') }
}

/** The same value in type and amount. The order of keys does not matter; an integer is one however it is held. */
export function isEqual(a: unknown, b: unknown): boolean {
  if (isArray(a)) return isArray(b) && a.length === b.length && a.every((item, index) => isEqual(item, b[index]))
  if (isTable(a)) {
    if (!isTable(b)) return false
    const keys = Object.keys(a)
    return (
      keys.length === Object.keys(b).length && keys.every((key) => Object.hasOwn(b, key) && isEqual(a[key], b[key]))
    )
  }
  if (a instanceof Date || b instanceof Date) {
    return a instanceof Date && b instanceof Date && renderDate(a) === renderDate(b)
  }
  return Object.is(plainInteger(a), plainInteger(b))
}

function plainInteger(value: unknown): unknown {
  return typeof value === 'bigint' && Number.isSafeInteger(Number(value)) ? Number(value) : value
}

export function isTable(value: unknown): value is Record<string, unknown> {
  return value !== null && typeof value === 'object' && !Array.isArray(value) && !(value instanceof Date)
}

export function isArray(value: unknown): value is readonly unknown[] {
  return Array.isArray(value)
}

/**
 * A value as TOML, on one line.
 * @param was the text it replaces: a literal or multi-line string stays one, a float stays a float, where they can
 * @throws TypeError for what TOML cannot hold: null, undefined, functions, unpaired surrogates
 */
export function renderValue(value: unknown, was = ''): string {
  if (typeof value === 'string') return renderString(value, was)
  if (typeof value === 'boolean' || typeof value === 'bigint') return String(value)
  if (typeof value === 'number') return renderNumber(value, /^[+-]?(\d[\d_]*[.e]|inf|nan)/i.test(was))
  if (value instanceof Date) return renderDate(value)
  if (isArray(value)) return `[${value.map((item) => renderValue(item)).join(', ')}]`
  if (isTable(value)) {
    const pairs = Object.entries(value).filter(([, item]) => item !== undefined)
    return pairs.length === 0 ? '{}' : `{ ${pairs.map(([key, item]) => renderPair(key, item)).join(', ')} }`
  }
  throw new TypeError(`TOML has no form for ${value === null ? 'null' : typeof value}`)
}

export function renderPair(key: string, value: unknown): string {
  return `${renderKey(key)} = ${renderValue(value)}`
}

export function renderKey(key: string): string {
  return /^[\w-]+$/.test(key) ? key : renderString(key, '')
}

function renderString(text: string, was: string): string {
  if (/\p{Cs}/u.test(text)) throw new TypeError('TOML has no form for an unpaired surrogate')
  if (/^("""|''')/.test(was) && text.includes('\n') && !was.includes('\r')) {
    return `"""\n${text.replace(/[\p{Cc}\\\uFEFF]|"(?="|$)/gu, (char) => (char === '\n' ? char : escape(char)))}"""`
  }
  if (was.startsWith("'") && !/[^\P{Cc}\t]|'/u.test(text)) return `'${text}'`
  return `"${text.replace(/[\p{Cc}"\\\uFEFF]/gu, escape)}"`
}

const escapes: Readonly<Record<string, string>> = {
  '\b': '\\b',
  '\t': '\\t',
  '\n': '\\n',
  '\f': '\\f',
  '\r': '\\r',
  '"': '\\"',
  '\\': '\\\\'
}

function escape(char: string): string {
  return escapes[char] ?? `\\u${char.charCodeAt(0).toString(16).padStart(4, '0')}`
}

function renderNumber(value: number, float: boolean): string {
  if (Number.isNaN(value)) return 'nan'
  if (!Number.isFinite(value)) return value > 0 ? 'inf' : '-inf'
  const text = Object.is(value, -0) ? '-0' : String(value)
  const integer = Number.isSafeInteger(value) && !float && !Object.is(value, -0)
  return integer || /[.e]/.test(text) ? text : `${text}.0`
}

function renderDate(value: Date): string {
  return value instanceof TomlDate ? value.toISOString() : new Date(value).toISOString()
}
