import { CodedError } from '../../kernel/index.ts'

/** Arrays and objects inside each other, at most. Deeper ones cannot be walked safely by those who come after. */
export const maxDepth = 64

const quote = 0x22
const backslash = 0x5c
const minus = 0x2d
const zero = 0x30
const nine = 0x39

const decoder = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true })

/**
 * The JSON value of a body. Stricter than `JSON.parse` where that would change what was sent: invalid UTF-8, integers
 * that a double cannot hold (RFC 8259 §6, RFC 7493 §2.2) and numbers beyond its range are refused.
 * @throws CodedError `HTTP_BODY_INVALID`; the message shows nothing of the body but such a number
 */
export function parseJson(bytes: Uint8Array): unknown {
  scan(bytes)
  let text: string
  try {
    text = decoder.decode(bytes)
  } catch (cause) {
    throw invalid('the body is not valid UTF-8', cause)
  }
  try {
    return JSON.parse(text)
  } catch (error) {
    // Its message quotes the body, which may hold a password: only the position is taken over, and no cause is kept.
    const position = /at position (\d+)/.exec((error as Error).message)?.[1]
    if (text === '') throw invalid('the body is empty; JSON is expected')
    throw invalid(`the body is not valid JSON${position === undefined ? '' : ` (at character ${position})`}`)
  }
}

/** One pass over the bytes, before they are parsed: how deep it goes, and whether every number keeps its value. */
function scan(bytes: Uint8Array): void {
  const { length } = bytes
  let depth = 0
  for (let index = 0; index < length; index++) {
    const byte = bytes[index] as number
    if (byte === quote) {
      for (index++; index < length; index++) {
        const inside = bytes[index] as number
        if (inside === quote) break
        if (inside === backslash) index++
      }
    } else if (byte === 0x7b || byte === 0x5b) {
      depth += 1
      if (depth > maxDepth) throw invalid(`the body is nested deeper than ${maxDepth} levels`)
    } else if (byte === 0x7d || byte === 0x5d) {
      depth -= 1
    } else if ((byte >= zero && byte <= nine) || byte === minus) {
      index = endOfNumber(bytes, index)
    }
  }
}

/** @returns the index of the last byte of the number that begins at `start` */
function endOfNumber(bytes: Uint8Array, start: number): number {
  const { length } = bytes
  let hasPoint = false
  let hasExponent = false
  let end = start + 1
  for (; end < length; end++) {
    const byte = bytes[end] as number
    if (byte >= zero && byte <= nine) continue
    if (byte === 0x2e) hasPoint = true
    else if ((byte | 0x20) === 0x65) hasExponent = true
    else if (byte !== 0x2b && byte !== minus) break
  }
  const size = end - start
  // 15 digits are always exact; what leaves the range has three digits of exponent, or some three hundred of its own.
  if (hasExponent ? size >= 5 : size >= (hasPoint ? 300 : 16)) checkNumber(decoder.decode(bytes.subarray(start, end)))
  return end - 1
}

function checkNumber(text: string): void {
  const value = Number(text)
  // What is no number at all is for the parser to refuse.
  if (Number.isNaN(value) || Number.isSafeInteger(value)) return
  if (!Number.isFinite(value)) throw invalid(`the number ${shorten(text)} is too large for a double`)
  if (/^-?\d+$/.test(text)) {
    throw invalid(`the integer ${shorten(text)} is beyond 2^53 and would change its value; send it as a string`)
  }
}

function shorten(text: string): string {
  return text.length > 40 ? `${text.slice(0, 40)}…` : text
}

function invalid(message: string, cause?: unknown): CodedError {
  return new CodedError('HTTP_BODY_INVALID', message, { cause })
}

/** One line of JSON, safe inside a server-sent event and a script: no CR, LF, U+2028 or U+2029 is left raw. */
export function toJsonLine(value: unknown): string {
  const text = JSON.stringify(value) ?? 'null'
  return /[\u2028\u2029]/.test(text) ? text.replaceAll('\u2028', '\\u2028').replaceAll('\u2029', '\\u2029') : text
}
