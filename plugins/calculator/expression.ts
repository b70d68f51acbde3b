import {
  add,
  calculatorError,
  divide,
  multiply,
  negate,
  parseDecimal,
  power,
  type Rational,
  remainder,
  subtract
} from './rational.ts'

/** Longest expression, in UTF-16 units. */
export const maxChars = 1_000

/** Deepest nesting of parentheses, signs and powers. */
const maxDepth = 100

const number = /(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?/iy
const spaces = /\s*/y

const sums: Operators = { '+': add, '-': subtract, '−': subtract }
const products: Operators = { '*': multiply, '×': multiply, '·': multiply, '/': divide, '÷': divide, '%': remainder }

type Operators = Readonly<Record<string, (a: Rational, b: Rational) => Rational>>

/**
 * Reckons out `+ - * / % ^`, parentheses, signs and decimals, exactly. `^` binds most tightly and to the right, so that
 * `-2^2` is -4 and `2^3^2` is 512; `%` is the remainder, with the sign of what is divided.
 * @throws CodedError `CALCULATOR_SYNTAX` (detail `position`, from 1), and what the operators throw
 */
export function evaluate(text: string): Rational {
  let at = 0
  let depth = 0

  function sum(): Rational {
    return chain(sums, product)
  }

  function product(): Rational {
    return chain(products, signed)
  }

  function chain(operators: Operators, operand: () => Rational): Rational {
    let value = operand()
    for (let operator = operators[peek()]; operator !== undefined; operator = operators[peek()]) {
      at += 1
      value = operator(value, operand())
    }
    return value
  }

  function signed(): Rational {
    if (depth === maxDepth) throw syntaxError(`nested deeper than ${maxDepth} levels`)
    depth += 1
    const sign = peek()
    let value: Rational
    if (sign === '-' || sign === '−' || sign === '+') {
      at += 1
      value = sign === '+' ? signed() : negate(signed())
    } else {
      value = atom()
      if (peek() === '^') {
        at += 1
        value = power(value, signed())
      }
    }
    depth -= 1
    return value
  }

  function atom(): Rational {
    if (peek() === '(') {
      at += 1
      const value = sum()
      if (peek() !== ')') throw unexpected("')'")
      at += 1
      return value
    }
    number.lastIndex = at
    const digits = number.exec(text)?.[0]
    if (digits === undefined) throw unexpected('a number')
    at += digits.length
    return parseDecimal(digits)
  }

  /** The next character that is not a space; empty at the end. */
  function peek(): string {
    spaces.lastIndex = at
    at += spaces.exec(text)?.[0].length ?? 0
    return text[at] ?? ''
  }

  function unexpected(wanted: string): Error {
    const found = at === text.length ? 'the end' : `'${String.fromCodePoint(text.codePointAt(at) ?? 0)}'`
    return syntaxError(`expected ${wanted}, found ${found}`)
  }

  function syntaxError(what: string): Error {
    return calculatorError('CALCULATOR_SYNTAX', `${what} at position ${at + 1}`, { position: at + 1 })
  }

  const value = sum()
  if (peek() !== '') throw unexpected('an operator')
  return value
}
