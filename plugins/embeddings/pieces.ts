/** The pieces of a vocabulary by their letters, each with its number and its weight (the logarithm of how often it occurs). */
interface Node {
  /** By code point. */
  readonly next: Map<number, Node>
  piece: number
  weight: number
}

export type Vocabulary = readonly (readonly [piece: string, weight: number])[]

/**
 * Cuts a text into the numbers of the pieces that are most likely together.
 * @param maxPieces what comes behind them is left out
 */
export type Cut = (text: string, maxPieces: number) => number[]

/** Pieces at the beginning of the vocabulary that stand for no letters. */
const reserved = 6
const unknown = 0
/** No piece that is taken is longer, in UTF-16 units: what lies behind `maxPieces` of them is not looked at. */
const unitsPerPiece = 16

/**
 * The SentencePiece cut (unigram) of the shipped encoder, piece by piece what the package `@energetic-ai/embeddings`
 * makes of a text. That one copies the rest of the text at every character, so its time grows with the square of the
 * length; this one walks once.
 */
export function createCut(vocabulary: Vocabulary): Cut {
  const root = newNode()
  for (let at = reserved; at < vocabulary.length; at++) {
    const [piece, weight] = vocabulary[at]!
    let node = root
    for (const letter of piece) {
      const point = letter.codePointAt(0)!
      let next = node.next.get(point)
      if (next === undefined) {
        next = newNode()
        node.next.set(point, next)
      }
      node = next
    }
    node.piece = at
    node.weight = weight
  }
  const lengths = Uint8Array.from(vocabulary, ([piece]) => Array.from(piece).length)

  return (text, maxPieces) => {
    const normal = text.slice(0, maxPieces * unitsPerPiece).normalize('NFKC')
    if (normal === '') return []
    const points = Array.from(`▁${normal.replaceAll(' ', '▁')}`, (letter) => letter.codePointAt(0)!)
    /** Of the most likely pieces that end at a place: the sum of their weights, and the last of them. */
    const best = new Float64Array(points.length + 1)
    const last = new Int32Array(points.length + 1)
    const offer = (end: number, weight: number, piece: number): void => {
      if (best[end] !== 0 && weight < best[end]!) return
      best[end] = weight
      last[end] = piece
    }
    for (let start = 0; start < points.length; start++) {
      const before = best[start]!
      let found = false
      let node = root.next.get(points[start]!)
      for (let at = start; node !== undefined; node = nodeBehind(node, points, ++at)) {
        if (node.piece < 0) continue
        found = true
        offer(at + 1, before + node.weight, node.piece)
      }
      if (!found) offer(start + 1, before, unknown)
    }
    const pieces: number[] = []
    for (let at = points.length; at > 0; at -= lengths[last[at]!]!) {
      // A run of what is not known is one piece.
      if (last[at] !== unknown || pieces.at(-1) !== unknown) pieces.push(last[at]!)
    }
    return pieces.reverse().slice(0, maxPieces)
  }
}

function nodeBehind(node: Node, points: readonly number[], at: number): Node | undefined {
  return at < points.length ? node.next.get(points[at]!) : undefined
}

function newNode(): Node {
  return { next: new Map(), piece: -1, weight: 0 }
}
