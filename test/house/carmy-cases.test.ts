import { readdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'

const folder = 'test/plugins'
/** The cases of carmy/1. */
const count = 123

/** The numbers in `case 7`, `cases 4 to 6`, `rows 113 and 114`, `cases 85, 86 and 88` of a test's name. */
function numbersIn(name: string): number[] {
  return [...name.matchAll(/\b(?:case|row)s? (\d+(?:(?: to |, | and )\d+)*)/g)].flatMap(([, numbers = '']) =>
    [...numbers.matchAll(/(\d+)(?: to (\d+))?/g)].flatMap(([, first, last = first]) =>
      Array.from({ length: Number(last) - Number(first) + 1 }, (_, at) => Number(first) + at)
    )
  )
}

t.test('every case of carmy/1 is in the name of a test', (t) => {
  t.strictSame(numbersIn('rows 1, 3 and 5 to 7: a'), [1, 3, 5, 6, 7])
  const named = new Set(
    readdirSync(folder)
      .filter((file) => /^(?:carmy|tools|mcp|webhooks|jobs|readiness|http)/.test(file))
      .flatMap((file) => readFileSync(join(folder, file), 'utf8').match(/t\.test\(\s*(['`])[^\n]*?\1/g) ?? [])
      .flatMap(numbersIn)
  )
  const all = Array.from({ length: count }, (_, at) => at + 1)
  t.strictSame(
    all.filter((number) => !named.has(number)),
    []
  )
  t.end()
})
