/**
 * The name a typing mistake most likely meant; `undefined` when nothing is close. Close means: well under half of
 * the letters differ, a swap of two neighbours counting once.
 */
export function nearest(name: string, known: Iterable<string>): string | undefined {
  let best: string | undefined
  let least = Math.max(1, Math.floor(name.length * 0.45)) + 1
  for (const candidate of known) {
    if (Math.abs(candidate.length - name.length) >= least) continue
    const steps = distance(name.toLowerCase(), candidate.toLowerCase())
    if (steps < least) [best, least] = [candidate, steps]
  }
  return best
}

/** `; did you mean 'x'?`, or nothing. */
export function didYouMean(name: string, known: Iterable<string>): string {
  const guess = nearest(name.slice(0, longest), known)
  return guess === undefined ? '' : `; did you mean '${guess}'?`
}

const longest = 100

/** Insertions, deletions, substitutions and swaps of neighbours (optimal string alignment). */
function distance(a: string, b: string): number {
  let before: number[] = []
  let above = Array.from({ length: b.length + 1 }, (_, index) => index)
  for (let i = 1; i <= a.length; i++) {
    const row = [i]
    for (let j = 1; j <= b.length; j++) {
      const cost = a[i - 1] === b[j - 1] ? 0 : 1
      let steps = Math.min((above[j] ?? 0) + 1, (row[j - 1] ?? 0) + 1, (above[j - 1] ?? 0) + cost)
      if (i > 1 && j > 1 && a[i - 1] === b[j - 2] && a[i - 2] === b[j - 1]) {
        steps = Math.min(steps, (before[j - 2] ?? 0) + 1)
      }
      row.push(steps)
    }
    ;[before, above] = [above, row]
  }
  return above[b.length] ?? 0
}
