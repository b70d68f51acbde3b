import fc from 'fast-check'
import t from 'tap'
import { compileSchema } from '../../kernel/index.ts'
import { createPatterns, PatternTimeout } from '../../kernel/pattern.ts'

/** Patterns with which an engine that goes back would not end in a lifetime, or not in a minute. */
const hostile: readonly [pattern: string, text: string][] = [
  ['^(a+)+$', 'a'],
  ['^(a|a)*$', 'a'],
  ['^([a-z]|[a-y])*$', 'a'],
  ['(a+)+$', 'a'],
  ['a+$', 'a'],
  ['^(?=(a+)+$)b', 'a'],
  ['^(a+)+\\1$', 'a'],
  ['^(a{1,60}){1,60}$', 'a'],
  ['^(.*a){20}$', 'a'],
  ['^(\\p{L}+)+$', 'é'],
  ['^(😀+)+$', '😀']
]

t.test('a pattern that goes back for ever ends in time, on short texts and long ones', async (t) => {
  for (const [pattern, char] of hostile) {
    for (const length of [34, 999, 100_000]) {
      const check = compileSchema({ type: 'string', pattern })
      const text = `${char.repeat(length)}!`
      t.equal(check(text).length, 1, `${pattern} on ${length}`)
    }
  }
})

t.test('a long text is told, not given up, where the engine that does not go back can', async (t) => {
  const patterns = createPatterns(5_000)
  for (const pattern of ['^(a+)+$', '^(a|a)*$', '(a+)+$']) {
    patterns.begin()
    t.notOk(patterns.compile(pattern).test(`${'a'.repeat(4_000)}!`), pattern)
    t.ok(patterns.compile(pattern).test('a'.repeat(4_000)), pattern)
  }
})

t.test('many texts of one value share the time there is', async (t) => {
  const check = compileSchema({ type: 'array', items: { type: 'string', pattern: '^(?=(a+)+$)b' } })
  const texts = Array.from({ length: 1_000 }, () => `${'a'.repeat(25)}!`)
  const within = compileSchema({ not: { pattern: '^(?=(a+)+$)b' } })
  t.equal(check(texts).length, 1)
  t.equal(within(`${'a'.repeat(40)}!`).length, 1, 'and what cannot be told is not taken for a no')
})

t.test('the next check has all its time again', async (t) => {
  const patterns = createPatterns()
  const pattern = patterns.compile('^(?=(a+)+$)a')
  try {
    t.fail(`answered ${pattern.test(`${'a'.repeat(40)}!`)}`)
  } catch (error) {
    t.ok(error instanceof PatternTimeout)
  }
  patterns.begin()
  t.ok(pattern.test('aaa'))
})

t.test('says the same as the engine of the language', async () => {
  const patterns = createPatterns(600_000)
  const atom = fc.constantFrom(
    'a',
    'b',
    '.',
    '[ab]',
    '[^a]',
    '\\d',
    '\\w',
    '😀',
    '\\u0061',
    '\\u{62}',
    '\\p{L}',
    '-',
    '\\b'
  )
  const piece = fc
    .tuple(atom, fc.constantFrom('', '*', '+', '?', '{2}', '{1,3}', '{2,}', '+?'))
    .map(([atom, quantifier]) => (atom === '\\b' ? atom : atom + quantifier))
  const sequence = fc.array(piece, { maxLength: 4 }).map((pieces) => pieces.join(''))
  const group = fc
    .tuple(sequence, sequence, fc.constantFrom('', '*', '?', '{2}'))
    .map(([left, right, quantifier]) => `(?:${left}|${right})${quantifier}`)
  const pattern = fc
    .tuple(fc.constantFrom('^', ''), sequence, fc.oneof(group, sequence), sequence, fc.constantFrom('$', ''))
    .map((parts) => parts.join(''))
  const text = fc.array(fc.constantFrom('a', 'b', 'c', '1', '-', '😀', '\ud83d', 'é', '\n'), { maxLength: 8 })
  fc.assert(
    fc.property(pattern, text, (source, chars) => {
      patterns.begin()
      const expected = new RegExp(source, 'u').test(chars.join(''))
      return patterns.compile(source).test(chars.join('')) === expected
    }),
    { numRuns: 3_000 }
  )
})

t.test('a pattern that is none is refused', async (t) => {
  for (const pattern of ['(', '[', '\\', 'a{2,1}', '\\-'])
    t.throws(() => compileSchema({ type: 'string', pattern }), pattern)
})
