/** Arrays and objects inside each other, at most. Deeper ones cannot be walked safely by those who come after. */
const maxDepth = 64

const quote = 0x22
const backslash = 0x5c
const minus = 0x2d
const comma = 0x2c
const zero = 0x30
const nine = 0x39

const decoder = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true })

export type JsonRead =
  | { readonly ok: true; readonly value: unknown }
  /** The message shows nothing of the text but a number that cannot be kept. */
  | { readonly ok: false; readonly message: string }

class Refusal extends Error {}

/** The value of a JSON text, as `parseJson` tells; here for threads too, which know no kernel. */
export function readJson(bytes: Uint8Array, maxValues = Number.POSITIVE_INFINITY): JsonRead {
  try {
    scan(bytes, maxValues)
    return { ok: true, value: parse(decode(bytes)) }
  } catch (error) {
    if (error instanceof Refusal) return { ok: false, message: error.message }
    throw error
  }
}

function decode(bytes: Uint8Array): string {
  try {
    // A text is not made of what another thread could change.
    return decoder.decode(bytes.buffer instanceof SharedArrayBuffer ? bytes.slice() : bytes)
  } catch {
    throw new Refusal('the body is not valid UTF-8')
  }
}

function parse(text: string): unknown {
  try {
    return JSON.parse(text)
  } catch (error) {
    // Its message quotes the body, which may hold a password: only the position is taken over, and no cause is kept.
    const position = /at position (\d+)/.exec((error as Error).message)?.[1]
    if (text === '') throw new Refusal('the body is empty; JSON is expected')
    throw new Refusal(`the body is not valid JSON${position === undefined ? '' : ` (at character ${position})`}`)
  }
}

/**
 * One pass over the bytes, before they are parsed: how deep it goes, how much there is, and whether every number keeps its
 * value.
 */
function scan(bytes: Uint8Array, maxValues: number): void {
  const { length } = bytes
  let depth = 0
  let values = 1
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
      if (depth > maxDepth) throw new Refusal(`the body is nested deeper than ${maxDepth} levels`)
    } else if (byte === comma) {
      values += 1
      if (values > maxValues) throw new Refusal(`the body holds more than ${maxValues} values`)
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
  if (!Number.isFinite(value)) throw new Refusal(`the number ${shorten(text)} is too large for a double`)
  if (/^-?\d+$/.test(text)) {
    throw new Refusal(`the integer ${shorten(text)} is beyond 2^53 and would change its value; send it as a string`)
  }
}

function shorten(text: string): string {
  return text.length > 40 ? `${text.slice(0, 40)}…` : text
}
