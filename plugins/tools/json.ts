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

/**
 * The value as JSON text, or `undefined` when the text would say something else than the value: `undefined`, NaN, an
 * infinity, a bigint, a function, a symbol, an instance of a class (a Date, a Map), a cycle, more than 1,000 levels.
 */
export function toExactJson(value: unknown): string | undefined {
  let text: string | undefined
  try {
    text = JSON.stringify(value)
  } catch {
    // A cycle, a bigint, too deep, or a getter that throws: in any case no JSON.
    return undefined
  }
  // Only after the text is there: a cycle would not end here.
  return text !== undefined && isPlain(value, 0) ? text : undefined
}

function isPlain(value: unknown, depth: number): boolean {
  switch (typeof value) {
    case 'string':
    case 'boolean':
      return true
    case 'number':
      return Number.isFinite(value)
    case 'object':
      if (value === null) return true
      if (depth === maxDepth) return false
      return Array.isArray(value) ? isPlainArray(value, depth + 1) : isPlainObject(value, depth + 1)
    default:
      return false
  }
}

function isPlainArray(value: readonly unknown[], depth: number): boolean {
  // By index: `every` leaves out the holes of an array, which JSON writes as null.
  for (let index = 0; index < value.length; index += 1) if (!isPlain(value[index], depth)) return false
  return true
}

function isPlainObject(value: object, depth: number): boolean {
  const prototype: unknown = Object.getPrototypeOf(value)
  // `Object.prototype` of any realm: scripts and workers have their own.
  if (prototype !== null && Object.getPrototypeOf(prototype) !== null) return false
  for (const member of Object.values(value)) if (!isPlain(member, depth)) return false
  return true
}

/** Lower-case hex. The short way is there from Node 20.12 on, and takes a third of the time. */
export const sha256: (text: string) => string =
  typeof crypto.hash === 'function'
    ? (text) => crypto.hash('sha256', text)
    : (text) => crypto.createHash('sha256').update(text).digest('hex')
