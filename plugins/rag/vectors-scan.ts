/** The matches of a search so far. */
export interface Matches {
  /** What a match must at least be to count. */
  least(): number
  add(ordinal: number, raw: number): void
  /** Best first; equal ones by ordinal. */
  list(): readonly { readonly ordinal: number; readonly raw: number }[]
}

/** Keeps the `limit` best. */
export function createBest(limit: number): Matches {
  // A heap whose root is the worst that is kept.
  const ordinals: number[] = []
  const raws: number[] = []
  const isWorse = (a: number, b: number): boolean =>
    raws[a]! < raws[b]! || (raws[a] === raws[b] && ordinals[a]! > ordinals[b]!)
  const swap = (a: number, b: number): void => {
    const [ordinal, raw] = [ordinals[a]!, raws[a]!]
    ordinals[a] = ordinals[b]!
    raws[a] = raws[b]!
    ordinals[b] = ordinal
    raws[b] = raw
  }
  return {
    least: () => (ordinals.length < limit ? Number.NEGATIVE_INFINITY : raws[0]!),
    add(ordinal, raw) {
      if (limit <= 0) return
      if (ordinals.length < limit) {
        let at = ordinals.push(ordinal) - 1
        raws.push(raw)
        for (let above = (at - 1) >> 1; at > 0 && isWorse(at, above); at = above, above = (at - 1) >> 1) swap(at, above)
        return
      }
      if (raw < raws[0]! || (raw === raws[0] && ordinal > ordinals[0]!)) return
      ordinals[0] = ordinal
      raws[0] = raw
      for (let at = 0; ; ) {
        let child = at * 2 + 1
        if (child >= limit) return
        if (child + 1 < limit && isWorse(child + 1, child)) child += 1
        if (!isWorse(child, at)) return
        swap(at, child)
        at = child
      }
    },
    list: () =>
      ordinals
        .map((ordinal, at) => ({ ordinal, raw: raws[at]! }))
        .sort((a, b) => b.raw - a.raw || a.ordinal - b.ordinal)
  }
}

/** Tells the product of `query` with each of the vectors that lie one behind the other in `rows`. */
export function scan(rows: Float32Array, query: Float32Array, tell: (row: number, product: number) => void): void {
  const dimensions = query.length
  const whole = dimensions - (dimensions % 4)
  for (let row = 0, base = 0; base < rows.length; row++, base += dimensions) {
    // Four sums do not wait for each other.
    let a = 0
    let b = 0
    let c = 0
    let d = 0
    for (let at = 0; at < whole; at += 4) {
      a += rows[base + at]! * query[at]!
      b += rows[base + at + 1]! * query[at + 1]!
      c += rows[base + at + 2]! * query[at + 2]!
      d += rows[base + at + 3]! * query[at + 3]!
    }
    for (let at = whole; at < dimensions; at++) a += rows[base + at]! * query[at]!
    tell(row, a + b + c + d)
  }
}

/** 16 bits a number (IEEE 754 binary16), of which 11 are exact: the cosine of two vectors changes by less than 0.001. */
export function toHalves(numbers: Float32Array): Buffer {
  const bits = new Uint32Array(numbers.buffer, numbers.byteOffset, numbers.length)
  const bytes = Buffer.allocUnsafe(numbers.length * 2)
  for (let at = 0; at < bits.length; at++) bytes.writeUInt16LE(toHalf(bits[at]!), at * 2)
  return bytes
}

/** Of the bits of a binary32, to the nearest. */
function toHalf(bits: number): number {
  const sign = (bits >>> 16) & 0x8000
  const magnitude = bits & 0x7fffffff
  if (magnitude >= 0x47800000) return sign | (magnitude > 0x7f800000 ? 0x7e00 : 0x7c00)
  if (magnitude < 0x33000000) return sign
  if (magnitude < 0x38800000) {
    const shift = 126 - (magnitude >>> 23)
    const whole = (magnitude & 0x7fffff) | 0x800000
    return sign | ((whole + (1 << (shift - 1)) - 1 + ((whole >>> shift) & 1)) >>> shift)
  }
  return sign | ((magnitude - 0x38000000 + 0xfff + ((magnitude >>> 13) & 1)) >>> 13)
}

export function fromHalves(bytes: Uint8Array): Float32Array {
  const numbers = new Float32Array(bytes.length / 2)
  const bits = new Uint32Array(numbers.buffer)
  for (let at = 0; at < numbers.length; at++) {
    const half = bytes[at * 2]! | (bytes[at * 2 + 1]! << 8)
    // The exponent counts from another number: a factor sets that right, for the smallest ones too.
    bits[at] = ((half & 0x8000) << 16) | ((half & 0x7fff) << 13)
    numbers[at]! *= 2 ** 112
  }
  return numbers
}
