import { CodedError } from '../../kernel/index.ts'
import type { ToolErrorDetail } from '../tools/types.ts'

/** An exact number: a fraction in lowest terms, its denominator positive. */
export interface Rational {
  readonly over: bigint
  readonly under: bigint
}

/** Longest numerator or denominator, in bits: beyond what a result can be, and quick to reckon with. */
const maxBits = 2_048

const limit = 1n << BigInt(maxBits)

export function calculatorError(code: string, message: string, details?: unknown): CodedError {
  const detail: ToolErrorDetail = {
    category: 'validation',
    recoverable: true,
    ...(details === undefined ? {} : { details })
  }
  return new CodedError(code, message, { detail: { ...detail } })
}

export function add(a: Rational, b: Rational): Rational {
  return reduce(a.over * b.under + b.over * a.under, a.under * b.under)
}

export function negate(a: Rational): Rational {
  return { over: -a.over, under: a.under }
}

export function subtract(a: Rational, b: Rational): Rational {
  return add(a, negate(b))
}

export function multiply(a: Rational, b: Rational): Rational {
  return reduce(a.over * b.over, a.under * b.under)
}

/** @throws CodedError `CALCULATOR_DIVISION_BY_ZERO` */
export function divide(a: Rational, b: Rational): Rational {
  if (b.over === 0n) throw calculatorError('CALCULATOR_DIVISION_BY_ZERO', 'division by zero has no result')
  return reduce(a.over * b.under, a.under * b.over)
}

/** What is left of `a` after as many whole `b` as fit: the sign is that of `a`. */
export function remainder(a: Rational, b: Rational): Rational {
  const quotient = divide(a, b)
  return subtract(a, multiply({ over: quotient.over / quotient.under, under: 1n }, b))
}

/** Exact where the exponent is whole and the digits are not too many; else as exact as a double. */
export function power(base: Rational, exponent: Rational): Rational {
  const times = exponent.over < 0n ? -exponent.over : exponent.over
  if (exponent.under !== 1n || times * BigInt(bitsOf(base)) > BigInt(maxBits)) {
    const result = toNumber(base) ** toNumber(exponent)
    if (result === 0 && base.over !== 0n) throw outOfRange()
    return fromNumber(result)
  }
  const result = { over: base.over ** times, under: base.under ** times }
  return exponent.over < 0n ? divide({ over: 1n, under: 1n }, result) : result
}

/** @param text digits, with a fraction and an exponent if need be: `12`, `0.5`, `.5`, `1e-3` */
export function parseDecimal(text: string): Rational {
  const [mantissa = '', exponent = '0'] = text.toLowerCase().split('e')
  const [whole = '', fraction = ''] = mantissa.split('.')
  const shift = Number(exponent) - fraction.length
  if (Math.abs(shift) > maxBits / 4) throw outOfRange()
  const digits = BigInt(whole + fraction)
  return shift < 0 ? reduce(digits, 10n ** BigInt(-shift)) : reduce(digits * 10n ** BigInt(shift), 1n)
}

/** The decimal that stands for a double: 0.1 is a tenth. */
export function fromNumber(value: number): Rational {
  if (Number.isNaN(value)) throw calculatorError('CALCULATOR_NOT_REAL', 'the result is not a real number')
  if (!Number.isFinite(value)) throw outOfRange()
  const size = parseDecimal(String(Math.abs(value)))
  return value < 0 ? negate(size) : size
}

/**
 * Rounds half away from zero to `precision` decimals. A number that is too small for them keeps as many digits of its
 * own instead: no result but nothing is shown as nothing.
 */
export function round(value: Rational, precision: number): number {
  let decimals = precision
  const size = value.over < 0n ? -value.over : value.over
  let rounded = roundedAt(size, value.under, decimals)
  while (rounded === 0n && size !== 0n) {
    decimals += Math.max(precision, 1)
    rounded = roundedAt(size, value.under, decimals)
  }
  const result = Number(`${rounded}e-${decimals}`)
  if (!Number.isFinite(result)) throw outOfRange()
  return value.over < 0n ? -result : result
}

function roundedAt(over: bigint, under: bigint, decimals: number): bigint {
  return (2n * over * 10n ** BigInt(decimals) + under) / (2n * under)
}

function toNumber({ over, under }: Rational): number {
  return round({ over, under }, 400)
}

function reduce(over: bigint, under: bigint): Rational {
  let [a, b] = [over < 0n ? -over : over, under < 0n ? -under : under]
  while (b !== 0n) [a, b] = [b, a % b]
  const divisor = under < 0n ? -a : a
  const result = { over: over / divisor, under: under / divisor }
  if (result.over >= limit || result.over <= -limit || result.under >= limit) throw outOfRange()
  return result
}

function bitsOf({ over, under }: Rational): number {
  return Math.max((over < 0n ? -over : over).toString(2).length, under.toString(2).length)
}

function outOfRange(): CodedError {
  return calculatorError('CALCULATOR_NOT_FINITE', 'the calculation leaves the range of numbers')
}
