/** Half a surrogate pair: text that no encoding can carry. */
const loneSurrogate = /\p{Surrogate}/u
const loneSurrogates = /\p{Surrogate}/gu

/** The text with every half of a surrogate pair replaced by U+FFFD. */
export function toWellFormed(text: string): string {
  return loneSurrogate.test(text) ? text.replaceAll(loneSurrogates, '\uFFFD') : text
}

const noPlainText = /[\p{Surrogate}\p{Cc}]/u

/** Longest id of a conversation, in bytes of UTF-8. */
export const maxIdBytes = 256

/** An id from outside that may stand in a key and a log: at most `maxBytes` of UTF-8, no control characters. */
export function isPlainId(id: string, maxBytes: number): boolean {
  return Buffer.byteLength(id) <= maxBytes && !noPlainText.test(id)
}

/** Puts a text that arrives in pieces together again where a piece ends between the halves of a surrogate pair. */
export class TextPieces {
  #half = ''

  /** @returns what can be shown by now; may be empty */
  push(piece: string): string {
    let text = this.#half + piece
    this.#half = ''
    const last = text.charCodeAt(text.length - 1)
    if (last >= 0xd800 && last <= 0xdbff) {
      this.#half = text.slice(-1)
      text = text.slice(0, -1)
    }
    return toWellFormed(text)
  }

  /** @returns what is left at the end */
  end(): string {
    const rest = toWellFormed(this.#half)
    this.#half = ''
    return rest
  }
}
