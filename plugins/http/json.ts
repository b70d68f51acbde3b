import { CodedError } from '../../kernel/index.ts'
import { readJson } from './read-json.ts'

/**
 * The JSON value of a body. Stricter than `JSON.parse` where that would change what was sent: invalid UTF-8, integers
 * that a double cannot hold (RFC 8259 §6, RFC 7493 §2.2) and numbers beyond its range are refused.
 * @throws CodedError `HTTP_BODY_INVALID`; the message shows nothing of the body but such a number
 */
export function parseJson(bytes: Uint8Array): unknown {
  const read = readJson(bytes)
  if (!read.ok) throw new CodedError('HTTP_BODY_INVALID', read.message)
  return read.value
}

/** One line of JSON, safe inside a server-sent event and a script: no CR, LF, U+2028 or U+2029 is left raw. */
export function toJsonLine(value: unknown): string {
  const text = JSON.stringify(value) ?? 'null'
  return /[\u2028\u2029]/.test(text) ? text.replaceAll('\u2028', '\\u2028').replaceAll('\u2029', '\\u2029') : text
}
