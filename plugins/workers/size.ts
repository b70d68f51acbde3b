import { types } from 'node:util'

/** What an object takes beside its members, and a member beside what it is: about what V8 takes for them. */
const objectBytes = 48
const slotBytes = 8

/**
 * About what the copy of a value takes, which another thread would be given; no more of it is looked at than shows that
 * it is more than `maxBytes`. Shared memory is not copied. A text counts a byte for each UTF-16 unit, by its length
 * alone: one that was put together of many others is not written out for that.
 * @throws whatever a getter throws
 */
export function copiedBytes(value: unknown, maxBytes: number): number {
  let bytes = 0
  const seen = new Set<object>()
  const left: object[] = []

  function take(value: unknown): void {
    if (typeof value === 'string') bytes += value.length
    else if (typeof value === 'bigint') bytes += slotBytes
    else if (typeof value === 'object' && value !== null && !seen.has(value)) {
      seen.add(value)
      left.push(value)
    }
  }

  function look(object: object): void {
    bytes += objectBytes
    if (types.isSharedArrayBuffer(object)) return
    if (types.isArrayBuffer(object)) bytes += object.byteLength
    else if (ArrayBuffer.isView(object)) take(object.buffer)
    else if (types.isMap(object)) {
      lookInto(object.size, Map.prototype.keys.call(object))
      lookInto(object.size, Map.prototype.values.call(object))
    } else if (types.isSet(object)) lookInto(object.size, Set.prototype.values.call(object))
    else if (types.isStringObject(object)) bytes += object.length
    else if (types.isNativeError(object)) lookInto(3, [object.message, object.stack, object.cause].values())
    else if (Array.isArray(object)) lookIntoArray(object)
    else lookIntoMembers(object)
  }

  function lookInto(slots: number, items: Iterator<unknown>): void {
    bytes += slots * slotBytes
    for (let item = items.next(); !item.done && bytes <= maxBytes; item = items.next()) take(item.value)
  }

  /** Holes count: as JSON they would be there. */
  function lookIntoArray(array: readonly unknown[]): void {
    bytes += array.length * slotBytes
    for (let index = 0; index < array.length && bytes <= maxBytes; index += 1) take(array[index])
  }

  function lookIntoMembers(object: object): void {
    for (const key of Object.keys(object)) {
      bytes += slotBytes
      if (bytes > maxBytes) return
      take((object as Readonly<Record<string, unknown>>)[key])
    }
  }

  take(value)
  for (let next = left.pop(); next !== undefined && bytes <= maxBytes; next = left.pop()) look(next)
  return bytes
}
