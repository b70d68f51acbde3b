/** Words too common to tell one text from another. */
const common = new Set(
  `a about all an and any are as at be but by can do for from get give has have help how i if in into is it its like me
  my of on or our please some tell than that the their them then there they this to us was we what when where which who
  why will with would you your`.split(/\s+/)
)

/** Also of scripts that write no spaces. */
const segmenter = new Intl.Segmenter(undefined, { granularity: 'word' })

/** A segmenter takes time with the square of a text, so it gets pieces: up to a blank, where there is one. */
const pieces = /[^]{1,500}(?=\s)|[^]{1,500}/gu

/** The words of a text that say what it is about, in lower case and without the ending of a plural. */
export function topicWords(text: string): Set<string> {
  const words = new Set<string>()
  for (const [piece] of text.normalize('NFKC').toLowerCase().matchAll(pieces)) {
    for (const { segment, isWordLike } of segmenter.segment(piece)) {
      if (isWordLike !== true || common.has(segment)) continue
      words.add(segment.length > 3 && segment.endsWith('s') ? segment.slice(0, -1) : segment)
    }
  }
  return words
}

/** The candidate that shares most words with `topic`; the first of equals; `undefined` when nobody shares any. */
export function closest<T extends { readonly name: string; readonly description: string }>(
  topic: ReadonlySet<string>,
  candidates: readonly T[]
): T | undefined {
  let best: T | undefined
  let bestShared = 0
  for (const candidate of candidates) {
    let shared = 0
    for (const word of topicWords(`${candidate.name} ${candidate.description}`)) if (topic.has(word)) shared += 1
    if (shared <= bestShared) continue
    best = candidate
    bestShared = shared
  }
  return best
}
