/** Changes `rows`, vectors that lie one behind the other; one of nothing but zeros stays. */
export function toUnitLength(rows: Float32Array, dimensions: number): Float32Array {
  for (let base = 0; base < rows.length; base += dimensions) {
    let squares = 0
    for (let at = base; at < base + dimensions; at++) squares += rows[at]! * rows[at]!
    const length = Math.sqrt(squares)
    if (length > 0) for (let at = base; at < base + dimensions; at++) rows[at]! /= length
  }
  return rows
}
