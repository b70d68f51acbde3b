import { setFlagsFromString } from 'node:v8'
import { type Context, createContext, Script } from 'node:vm'

/** A text that long is matched within milliseconds by an engine that does not go back: nobody has to watch it. */
const maxShortChars = 1_000
/** What one check may spend on patterns that could take for ever, in milliseconds. */
const defaultMaxSpentMs = 250

/** What a check throws when its patterns have taken too long. */
export class PatternTimeout extends Error {}

/** Asks for the engine that does not go back, and for no other: refused where that cannot. Of V8, not of the language. */
const linearFlag = 'l'

export interface Pattern {
  /** @throws PatternTimeout */
  test(text: string): boolean
  toString(): string
}

/**
 * Patterns of one schema. Engines that go back take exponential time for some patterns and texts, which would hold up
 * everybody; these end in time whatever they are given. Simple ones cost nothing, short texts next to nothing.
 */
export interface Patterns {
  /** @throws SyntaxError */
  compile(pattern: string): Pattern
  /** A check begins, with all its time before it. */
  begin(): void
}

export function createPatterns(maxSpentMs = defaultMaxSpentMs): Patterns {
  let spentMs = 0
  let box: { readonly context: Context; readonly script: Script } | undefined

  /** Stopped from outside when its time is over, which costs a thread. */
  function testInTime(pattern: RegExp, text: string): boolean {
    const startedMs = performance.now()
    const timeout = Math.floor(maxSpentMs - spentMs)
    if (timeout < 1) throw new PatternTimeout()
    box ??= { context: createContext(Object.create(null) as Context), script: new Script('test()') }
    box.context['test'] = () => pattern.test(text)
    try {
      return box.script.runInContext(box.context, { timeout }) as boolean
    } catch (error) {
      if ((error as { code?: unknown }).code === 'ERR_SCRIPT_EXECUTION_TIMEOUT') throw new PatternTimeout()
      throw error
    } finally {
      spentMs += performance.now() - startedMs
    }
  }

  return {
    compile(pattern) {
      const exact = new RegExp(pattern, 'u')
      if (isSimple(pattern)) return exact
      const linear = toLinear(pattern)
      return {
        test(text) {
          const best = linear !== undefined && !/[\ud800-\udfff]/.test(text) ? linear : exact
          return best !== exact && text.length <= maxShortChars ? best.test(text) : testInTime(best, text)
        },
        toString: () => exact.toString()
      }
    },
    begin() {
      spentMs = 0
    }
  }
}

/**
 * The pattern without the flag `u`, as that makes no difference for texts without surrogates: V8 then takes to its engine
 * that does not go back once it has gone back too often.
 * @returns `undefined` where that engine cannot, or there would be a difference
 */
function toLinear(pattern: string): RegExp | undefined {
  if (/[\ud800-\udfff]|\\[pPk]|\\u\{|\\u[dD][89a-fA-F]/.test(pattern)) return undefined
  try {
    setFlagsFromString('--enable-experimental-regexp-engine')
    void new RegExp(pattern, linearFlag)
  } catch {
    return undefined
  } finally {
    setFlagsFromString('--no-enable-experimental-regexp-engine')
  }
  setFlagsFromString('--enable-experimental-regexp-engine-on-excessive-backtracks')
  return new RegExp(pattern)
}

/**
 * Matched in one pass: it begins at the start of the text, and at most one thing in it, which is no group, may be there
 * any number of times.
 */
function isSimple(pattern: string): boolean {
  if (!pattern.startsWith('^')) return false
  let depth = 0
  let repeated = 0
  let optional = 0
  for (let at = 1; at < pattern.length; at += 1) {
    const rest = pattern.slice(at)
    const sign = pattern[at]!
    const previous = pattern[at - 1]
    if (sign === '\\') {
      // A reference back is a search of its own.
      if (/^\\[1-9k]/.test(rest)) return false
      at += 1
    } else if (sign === '[') {
      at += /^\[(?:\\.|[^\]\\])*/s.exec(rest)![0].length
    } else if (sign === '(') {
      if (/^\(\?[=!<]/.test(rest)) return false
      depth += 1
      if (rest.startsWith('(?')) at += 2
    } else if (sign === ')') depth -= 1
    else if (sign === '|' && depth === 0) return false
    else if (sign === '?') optional += 1
    else if (sign === '*' || sign === '+' || (sign === '{' && !/^\{\d+\}/.test(rest))) {
      if (previous === ')' && pattern[at - 2] !== '\\') return false
      repeated += 1
    } else if (sign === '{' && previous === ')') return false
  }
  return repeated <= 1 && optional <= 4
}
