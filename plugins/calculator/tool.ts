import { schemaOf } from '../../kernel/index.ts'
import type { Tool } from '../tools/types.ts'
import { evaluate, maxChars } from './expression.ts'
import { add, calculatorError, divide, fromNumber, multiply, round, subtract } from './rational.ts'

export interface Config {
  /** Decimals of a result. */
  readonly precision: number
  readonly anonymous: boolean
}

interface Input {
  readonly expression?: string
  readonly operation?: keyof typeof operations
  readonly a?: number
  readonly b?: number
}

const operations = { add, subtract, multiply, divide }

const input = schemaOf<Input>({
  type: 'object',
  description: 'Either expression, or operation with both a and b',
  additionalProperties: false,
  properties: {
    expression: {
      type: 'string',
      minLength: 1,
      maxLength: maxChars,
      description: 'Numbers, + - * / % (remainder) ^ (power) and parentheses, such as (2 + 3) * 4^2'
    },
    operation: { type: 'string', enum: Object.keys(operations) },
    a: { type: 'number' },
    b: { type: 'number' }
  }
})

const output = schemaOf<{ result: number }>({
  type: 'object',
  required: ['result'],
  additionalProperties: false,
  properties: { result: { type: 'number' } }
})

/**
 * Reckons with fractions and rounds once, at the end: 0.1 + 0.2 is 0.3, and 1 / 3 * 3 is 1.
 *
 * Codes: `CALCULATOR_SYNTAX`, `CALCULATOR_DIVISION_BY_ZERO`, `CALCULATOR_NOT_FINITE`, `CALCULATOR_NOT_REAL`,
 * `CALCULATOR_MISSING_OPERAND`, `CALCULATOR_AMBIGUOUS`; an operation it does not know is refused by its schema.
 */
export function calculator({ precision, anonymous }: Config): Tool {
  const tool: Tool<Input, { result: number }> = {
    name: 'calculator',
    description: 'Calculates exactly: an expression, or one operation on two numbers.',
    input,
    output,
    effect: 'none',
    idempotent: true,
    parallelSafe: true,
    anonymous,
    run: (input) => ({ result: round(calculate(input), precision) })
  }
  return tool as Tool
}

function calculate({ expression, operation, a, b }: Input) {
  if (expression !== undefined) {
    if (operation === undefined && a === undefined && b === undefined) return evaluate(expression)
    throw calculatorError('CALCULATOR_AMBIGUOUS', 'give either an expression, or operation, a and b')
  }
  if (operation === undefined) throw missing('operation')
  if (a === undefined) throw missing('a')
  if (b === undefined) throw missing('b')
  return operations[operation](fromNumber(a), fromNumber(b))
}

function missing(operand: string) {
  const message = `${operand} is missing: give an expression, or operation, a and b`
  return calculatorError('CALCULATOR_MISSING_OPERAND', message, { missing: operand })
}
