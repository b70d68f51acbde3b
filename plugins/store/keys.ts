import { CodedError } from '../../kernel/index.ts'
import type { Key } from './types.ts'

/**
 * Keys as bytes whose plain order is the order of the contract, however their parts look:
 *
 *     collection 00 part part …
 *     number     10, then IEEE 754 big-endian: sign flipped when positive, every bit flipped when negative
 *     string     20, then UTF-8 with 00 written as 00 FF, then 00
 *
 * A part ends where it says so, so no part can run into the next one, and all keys below a prefix lie between the
 * prefix and the prefix followed by {@link afterParts}. The codec that comes with lmdb has neither property for long
 * strings: it leaves a NUL in them as it is (`['a…\0b']` and `['a…', 'b']` are one key), and replaces lone surrogates.
 *
 * Encoded keys that are kept are strings of one character a byte: they compare in byte order and work as keys of a Map.
 */

const maxParts = 8
const maxCollectionBytes = 64
/** LMDB takes 1,978 bytes on pages of 4 KiB; the rest is for the name of the collection. */
export const maxKeyBytes = 1_900
/** Room for any key, and for one part that will be refused. */
export const keyBufferBytes = 4_096

const numberTag = 0x10
const stringTag = 0x20
/** Greater than every tag, smaller than what follows a 00 inside a string. */
const afterParts = '\x30'

/**
 * Writes the key of a value.
 * @returns the position behind it
 * @throws CodedError `STORE_KEY_INVALID`
 */
export function writeKey(collection: string, key: Key, target: Buffer, position: number): number {
  if (!Array.isArray(key) || key.length === 0) throw invalid(collection, 'a key is an array of 1 to 8 parts')
  return writePath(collection, key, target, position)
}

/** @param scratch at least {@link keyBufferBytes} long */
export function encodeKey(collection: string, key: Key, scratch: Buffer): string {
  return scratch.toString('latin1', 0, writeKey(collection, key, scratch, 0))
}

/** Encoded keys from `low` on, up to but without `high`. */
export interface Bounds {
  readonly low: string
  readonly high: string
}

/** Where the keys of a collection that start with `prefix` lie. */
export function boundsOf(collection: string, prefix: Key, scratch: Buffer): Bounds {
  if (!Array.isArray(prefix)) throw invalid(collection, 'a prefix is an array of parts')
  const low = scratch.toString('latin1', 0, writePath(collection, prefix, scratch, 0))
  return { low, high: low + afterParts }
}

/** What is left of `bounds` behind `key`, in the direction of the walk. */
export function behind(bounds: Bounds, key: string, reverse: boolean): Bounds {
  const next = `${key}\0`
  if (reverse) return key < bounds.high ? { low: bounds.low, high: key } : bounds
  return next > bounds.low ? { low: next, high: bounds.high } : bounds
}

/** The part of `bounds` that a walk which came as far as `key` has seen. */
export function upTo(bounds: Bounds, key: string, reverse: boolean): Bounds {
  return reverse ? { low: key, high: bounds.high } : { low: bounds.low, high: `${key}\0` }
}

export function decodeKey(encoded: string): Key {
  const parts: (string | number)[] = []
  let at = encoded.indexOf('\0') + 1
  while (at < encoded.length) {
    if (encoded.charCodeAt(at) === numberTag) {
      parts.push(readNumber(encoded, at + 1))
      at += 9
    } else {
      const end = endOfString(encoded, at + 1)
      parts.push(readString(encoded.slice(at + 1, end)))
      at = end + 1
    }
  }
  return parts
}

function writePath(collection: string, path: Key, target: Buffer, start: number): number {
  const length = collection.length
  if (length === 0 || length > maxCollectionBytes) throw invalid(collection, 'its name has 1 to 64 characters')
  let position = start
  for (let i = 0; i < length; i++) {
    const code = collection.charCodeAt(i)
    if (code <= 0x20 || code >= 0x7f) throw invalid(collection, 'its name is printable ASCII without spaces')
    target[position++] = code
  }
  target[position++] = 0
  if (path.length > maxParts) throw invalid(collection, `a key has at most ${maxParts} parts, found ${path.length}`)
  const limit = position + maxKeyBytes
  for (let i = 0; i < path.length; i++) {
    const part = path[i]
    if (typeof part === 'string') position = writeString(part, target, position)
    else if (typeof part === 'number' && Number.isFinite(part)) position = writeNumber(part, target, position)
    else throw invalid(collection, `a part is a string or a finite number, found ${part === null ? part : typeof part}`)
    if (position > limit) throw invalid(collection, `a key has at most ${maxKeyBytes} bytes`)
  }
  return position
}

function writeNumber(value: number, target: Buffer, start: number): number {
  target[start] = numberTag
  // -0 is 0: they are equal, so they are one key.
  target.writeDoubleBE(value === 0 ? 0 : value, start + 1)
  if (value < 0) for (let i = start + 1; i < start + 9; i++) target[i]! ^= 0xff
  else target[start + 1]! |= 0x80
  return start + 9
}

function readNumber(encoded: string, start: number): number {
  const bytes = Buffer.from(encoded.slice(start, start + 8), 'latin1')
  if (bytes[0]! < 0x80) for (let i = 0; i < 8; i++) bytes[i]! ^= 0xff
  else bytes[0]! ^= 0x80
  return bytes.readDoubleBE(0)
}

function writeString(text: string, target: Buffer, start: number): number {
  // Longer than any key: not worth a walk, whatever the size.
  if (text.length > maxKeyBytes) return start + text.length
  let position = start
  target[position++] = stringTag
  for (let i = 0; i < text.length; i++) {
    const code = text.charCodeAt(i)
    if (code < 0x80) {
      target[position++] = code
      if (code === 0) target[position++] = 0xff
    } else if (code < 0x800) {
      target[position++] = 0xc0 | (code >> 6)
      target[position++] = 0x80 | (code & 0x3f)
    } else {
      const point = text.codePointAt(i)!
      if (point > 0xffff) {
        target[position++] = 0xf0 | (point >> 18)
        target[position++] = 0x80 | ((point >> 12) & 0x3f)
        i += 1
      } else {
        // A lone surrogate too: a key is any string, and comes back as it was.
        target[position++] = 0xe0 | (point >> 12)
      }
      target[position++] = 0x80 | ((point >> 6) & 0x3f)
      target[position++] = 0x80 | (point & 0x3f)
    }
  }
  target[position++] = 0
  return position
}

function endOfString(encoded: string, start: number): number {
  let end = encoded.indexOf('\0', start)
  while (encoded.charCodeAt(end + 1) === 0xff) end = encoded.indexOf('\0', end + 2)
  return end
}

function readString(bytes: string): string {
  let text = ''
  let plainFrom = 0
  for (let i = 0; i < bytes.length; i++) {
    const lead = bytes.charCodeAt(i)
    if (lead < 0x80 && lead > 0) continue
    text += bytes.slice(plainFrom, i)
    const more = lead === 0 || lead < 0xe0 ? 1 : lead < 0xf0 ? 2 : 3
    let point = lead === 0 ? 0 : lead & (0x3f >> more)
    if (lead > 0) for (let j = 1; j <= more; j++) point = (point << 6) | (bytes.charCodeAt(i + j) & 0x3f)
    text += String.fromCodePoint(point)
    i += more
    plainFrom = i + 1
  }
  return text + bytes.slice(plainFrom)
}

function invalid(collection: string, rule: string): CodedError {
  const name = collection.length > maxCollectionBytes ? `${collection.slice(0, maxCollectionBytes)}…` : collection
  return new CodedError('STORE_KEY_INVALID', `not a key in collection '${name}': ${rule}`)
}
