/** A calculation that somebody asked for. */
export interface Calculation {
  /** In digits, `+ - * / ^`, points and parentheses. */
  readonly expression: string
  /** As it is shown beside its result. */
  readonly shown: string
}

const number = String.raw`-?\d+(?:\.\d+)?`

/** Phrases whose order of numbers is not that of the signs, or that name the operation first. */
const phrases: readonly (readonly [RegExp, (a: string, b: string) => Calculation])[] = [
  [phrase(`(A) ?(?:%|percent) of (B)`), (a, b) => ({ expression: `${a} / 100 * ${b}`, shown: `${a}% of ${b}` })],
  [phrase(`(?:add|sum of) (A) (?:and|to|with) (B)`), (a, b) => plain(a, '+', b)],
  [phrase(`subtract (A) from (B)`), (a, b) => plain(b, '-', a)],
  [phrase(`difference (?:between|of) (A) and (B)`), (a, b) => plain(a, '-', b)],
  [phrase(`(?:multiply|product of) (A) (?:and|by|with) (B)`), (a, b) => plain(a, '*', b)],
  [phrase(`divide (A) by (B)`), (a, b) => plain(a, '/', b)]
]

const words: readonly (readonly [RegExp, string])[] = [
  [/\*\*/g, '^'],
  [/\bto the power of\b/g, '^'],
  [/\bmultiplied by\b|\btimes\b/g, '*'],
  [/\bdivided by\b|\bover\b/g, '/'],
  [/\bplus\b/g, '+'],
  [/\bminus\b/g, '-'],
  [/(?<=[\d)]\s*)x(?=\s*[\d(])/g, '*']
]

/** Numbers joined by signs, parentheses around any of it. */
const chain = /[-(\s]*\d[\d.]*[\s)]*(?:[-+*/^][-(\s]*\d[\d.]*[\s)]*)+/g

const date = /^\d{4}-\d{1,2}-\d{1,2}$/

/** Words that may stand beside a calculation without being about something else. */
const asking = new Set(
  `a an and answer be calculate can compute could d do does equal equals evaluate exactly find for give hello hey hi how
  i is it know like ll m me much of out please quick result s solve tell thank thanks that the this to us value want
  what whats will work would you`.split(/\s+/)
)

/** Words right before a calculation that ask for it, whatever was said before them. */
const cue =
  /(?:what(?:['’]?s| is| does| are)|how much (?:is|does|are)|calculate|compute|evaluate|solve|work out|(?:result|value) of)\s*$/

/** The calculation that `text` asks for; `undefined` when it asks for none, or for one among other things. */
export function findCalculation(text: string): Calculation | undefined {
  const plainText = simplify(text)
  for (const [pattern, build] of phrases) {
    const found = pattern.exec(plainText)
    if (found !== null && isAsked(plainText, found[0])) return build(found[1] as string, found[2] as string)
  }
  let symbols = plainText
  for (const [pattern, sign] of words) symbols = symbols.replace(pattern, sign)
  const chains = symbols.match(chain) ?? []
  if (chains.length !== 1) return undefined
  const expression = (chains[0] as string).trim()
  if (date.test(expression)) return undefined
  return isAsked(symbols, expression) ? { expression, shown: expression } : undefined
}

/** Lower case, one form of each sign, no separators within numbers. */
function simplify(text: string): string {
  return text
    .normalize('NFKC')
    .toLowerCase()
    .replace(/[×✕✖·∙⋅]/g, '*')
    .replace(/[÷∕]/g, '/')
    .replace(/[−–—]/g, '-')
    .replace(/\d{1,3}(?:,\d{3})+(?![\d,])/g, (digits) => digits.replaceAll(',', ''))
}

/** Only words that ask stand beside it; or after it, where the words right before it ask. */
function isAsked(text: string, calculation: string): boolean {
  const at = text.indexOf(calculation)
  const before = text.slice(0, at)
  const after = text.slice(at + calculation.length)
  return (
    (cue.test(before) ? after : `${before} ${after}`).match(/[\p{L}\p{N}]+/gu)?.every((word) => asking.has(word)) ??
    true
  )
}

function phrase(source: string): RegExp {
  return new RegExp(`(?<![\\w.])${source.replace('A', number).replace('B', number)}(?![\\w])`)
}

function plain(a: string, sign: string, b: string): Calculation {
  const expression = `${a} ${sign} ${b.startsWith('-') ? `(${b})` : b}`
  return { expression, shown: expression }
}
