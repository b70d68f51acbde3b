import crypto from 'node:crypto'

/** Deeper values are not taken: what walks them must not run out of stack. */
const maxDepth = 1_000

/**
 * Canonical JSON (RFC 8785): members sorted by UTF-16 code units at every level, no white space, numbers as ECMAScript
 * prints them. Beyond the RFC, a lone surrogate is written as its escape.
 * @throws TypeError for what JSON cannot hold as it is, and for more than 1,000 levels
 */
export function canonicalJson(value: unknown, depth = 0): string {
  switch (typeof value) {
    case 'string':
    case 'boolean':
      return JSON.stringify(value)
    case 'number':
      if (Number.isFinite(value)) return JSON.stringify(value)
      break
    case 'object':
      if (value === null) return 'null'
      if (depth === maxDepth) throw new TypeError(`nested deeper than ${maxDepth} levels`)
      if (Array.isArray(value)) return canonicalArray(value, depth + 1)
      return canonicalObject(value as Readonly<Record<string, unknown>>, depth + 1)
  }
  throw new TypeError(
    `JSON cannot hold ${typeof value === 'number' ? String(value) : `a value of type ${typeof value}`}`
  )
}

function canonicalArray(value: readonly unknown[], depth: number): string {
  let text = ''
  for (const item of value) text += `${text === '' ? '' : ','}${canonicalJson(item, depth)}`
  return `[${text}]`
}

function canonicalObject(value: Readonly<Record<string, unknown>>, depth: number): string {
  let text = ''
  for (const key of Object.keys(value).sort()) {
    text += `${text === '' ? '' : ','}${JSON.stringify(key)}:${canonicalJson(value[key], depth)}`
  }
  return `{${text}}`
}

/** JSON text, or why there is none. */
export type Written =
  | { readonly text: string; readonly reason?: undefined }
  | { readonly text?: undefined; readonly reason: string }

const notPlain: Written = { reason: 'it is not plain JSON' }

/**
 * The value as JSON text, unless the text would say something else than the value: `undefined`, NaN, an infinity, a
 * bigint, a function, a symbol, an instance of a class (a Date, a Map), a cycle, more than 1,000 levels. What is longer
 * than `maxBytes` is not written, and no more of it looked at than shows that it is.
 */
export function writeExactly(value: unknown, maxBytes: number): Written {
  let text: string | undefined
  try {
    const left = spend(value, maxBytes, 0)
    if (Number.isNaN(left)) return notPlain
    if (left < 0) return { reason: `it has ${maxBytes - left} bytes as JSON or more, at most ${maxBytes} are allowed` }
    text = JSON.stringify(value)
  } catch {
    // A getter that throws.
    return notPlain
  }
  if (text === undefined) return notPlain
  // A UTF-16 unit is three bytes at most.
  if (text.length * 3 <= maxBytes) return { text }
  const bytes = Buffer.byteLength(text)
  return bytes <= maxBytes ? { text } : { reason: `it has ${bytes} bytes as JSON, at most ${maxBytes} are allowed` }
}

/** The text of {@link writeExactly}. */
export function toExactJson(value: unknown, maxBytes: number): string | undefined {
  return writeExactly(value, maxBytes).text
}

/**
 * What is left of `left` bytes after the fewest that JSON of the value can have; where nothing is left, the rest of the
 * value is not looked at: a cycle would not end. NaN for what is not plain.
 */
function spend(value: unknown, left: number, depth: number): number {
  switch (typeof value) {
    case 'string':
      // By its length: a text that was put together of many others is not written out for that.
      return left - value.length - 2
    case 'boolean':
      return left - 4
    case 'number':
      return Number.isFinite(value) ? left - 1 : Number.NaN
    case 'object':
      if (value === null) return left - 4
      if (depth === maxDepth) return Number.NaN
      return Array.isArray(value) ? spendOnArray(value, left, depth + 1) : spendOnObject(value, left, depth + 1)
    default:
      return Number.NaN
  }
}

function spendOnArray(value: readonly unknown[], left: number, depth: number): number {
  // Brackets and commas.
  left -= 1 + Math.max(1, value.length)
  // By index: `for … of` would take its iterator from whoever made it.
  for (let index = 0; index < value.length && left >= 0; index += 1) left = spend(value[index], left, depth)
  return left
}

function spendOnObject(value: object, left: number, depth: number): number {
  const prototype: unknown = Object.getPrototypeOf(value)
  // `Object.prototype` of any realm: scripts and workers have their own.
  if (prototype !== null && Object.getPrototypeOf(prototype) !== null) return Number.NaN
  left -= 1
  for (const key of Object.keys(value)) {
    // Quotes, a colon, and a comma or the last brace.
    left = spend((value as Readonly<Record<string, unknown>>)[key], left - key.length - 4, depth)
    if (!(left >= 0)) break
  }
  return left
}

/** Lower-case hex. The short way is there from Node 20.12 on, and takes a third of the time. */
export const sha256: (text: string) => string =
  typeof crypto.hash === 'function'
    ? (text) => crypto.hash('sha256', text)
    : (text) => crypto.createHash('sha256').update(text).digest('hex')
