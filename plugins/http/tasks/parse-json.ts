import type { TaskResult } from '../../workers/types.ts'
import { readJson } from '../read-json.ts'

export interface ParseInput {
  readonly bytes: Uint8Array
  /** Of the body, that may be a long text. */
  readonly member: string
  readonly maxValues: number
}

export interface ParsedLong {
  readonly value: unknown
  /** The UTF-16 units of the member, in shared memory; it is empty in `value` then. */
  readonly text: Uint16Array | undefined
}

/** Texts of up to this many units are copied at once. */
const shortText = 65_536

/** The value of a long JSON text. */
export default function parseJson({ bytes, member, maxValues }: ParseInput): TaskResult<ParsedLong> {
  const read = readJson(bytes, maxValues)
  if (!read.ok) return { ok: false, code: 'HTTP_BODY_INVALID', message: read.message }
  const { value } = read
  const isObject = typeof value === 'object' && value !== null && Object.hasOwn(value, member)
  const text = isObject ? (value as Record<string, unknown>)[member] : undefined
  if (typeof text !== 'string' || text.length <= shortText) return { ok: true, value: { value, text: undefined } }
  const units = new Uint16Array(new SharedArrayBuffer(text.length * 2))
  for (let at = 0; at < text.length; at++) units[at] = text.charCodeAt(at)
  return { ok: true, value: { value: { ...(value as object), [member]: '' }, text: units } }
}
