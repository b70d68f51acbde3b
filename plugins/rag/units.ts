/** Nothing in it can be seen. */
export function isBlank(text: string): boolean {
  return !/[^\s\p{Cf}\p{Cc}]/u.test(text)
}

/** Halves of surrogate pairs, which no other text can hold, as replacement characters. */
export function toWellFormed(text: string): string {
  // Of ES2024; it takes no time for a text that is well-formed.
  return (text as string & { toWellFormed(): string }).toWellFormed()
}

/** A part of a text that is a string, or its UTF-16 units. */
export function textOf(content: string | Uint16Array, start = 0, end = content.length): string {
  if (typeof content === 'string') return content.slice(start, end)
  const { buffer, byteOffset } = content
  const last = Math.min(end, content.length)
  return Buffer.from(buffer, byteOffset + start * 2, Math.max(0, last - start) * 2).toString('utf16le')
}

/** Writes a text of the same length over units. */
export function putText(units: Uint16Array, text: string): void {
  Buffer.from(units.buffer, units.byteOffset, units.byteLength).write(text, 'utf16le')
}
