import { CodedError } from './errors.ts'

export type LogLevel = 'debug' | 'info' | 'warn' | 'error' | 'silent'
export type LogFields = Readonly<Record<string, unknown>>

/** Where the house writes what happened. Fields never hold a secret. */
export interface Logger {
  /** Lines below it are not written. */
  readonly level: LogLevel
  debug(message: string, fields?: LogFields): void
  info(message: string, fields?: LogFields): void
  warn(message: string, fields?: LogFields): void
  error(message: string, fields?: LogFields): void
  /** A logger whose lines carry `fields` too. */
  with(fields: LogFields): Logger
}

const ranks: Readonly<Record<LogLevel, number>> = { debug: 0, info: 1, warn: 2, error: 3, silent: 4 }

/**
 * One JSON object a line: `time` (ISO 8601), `level`, `message`, then the fields. An `Error` in a field is written
 * with its message, code, stack and causes.
 */
export function createJsonLogger(options: {
  readonly level?: LogLevel
  readonly write: (line: string, level: LogLevel) => void
  readonly now?: () => number
  /** Makes a stack readable, such as one of bundled code. */
  readonly readable?: (stack: string) => string
}): Logger {
  const level = options.level ?? 'info'
  const threshold = ranks[level]
  const now = options.now ?? Date.now
  const readable = options.readable ?? ((stack: string) => stack)
  const toPlain = (_key: string, value: unknown) => plainOf(value, readable)
  let atMs = Number.NaN
  let time = ''
  const build = (bound: LogFields): Logger => {
    const line = (at: LogLevel) => (message: string, fields?: LogFields) => {
      if (ranks[at] < threshold) return
      const nowMs = now()
      if (nowMs !== atMs) {
        atMs = nowMs
        time = new Date(nowMs).toISOString()
      }
      const record: LogFields = { time, level: at, message, ...bound, ...fields }
      // A replacer costs more than all the rest of a line.
      const isFlat = !hasParts(fields) && !hasParts(bound)
      options.write(`${isFlat ? JSON.stringify(record) : JSON.stringify(record, toPlain)}\n`, at)
    }
    return {
      level,
      debug: line('debug'),
      info: line('info'),
      warn: line('warn'),
      error: line('error'),
      with: (fields) => build({ ...bound, ...fields })
    }
  }
  return build({})
}

const gatherMs = 20
const gatherUnits = 65_536

/**
 * Makes one write of the lines of 20 ms, since a system call for each costs more than the line. Warnings and errors do
 * not wait, and nothing does when the process ends, but for one that is killed.
 */
export function gatherLines(write: (lines: string) => void): (line: string, level: LogLevel) => void {
  let gathered = ''
  let timer: NodeJS.Timeout | undefined
  const flush = (): void => {
    clearTimeout(timer)
    timer = undefined
    process.off('exit', flush)
    const lines = gathered
    gathered = ''
    if (lines !== '') write(lines)
  }
  return (line, level) => {
    gathered += line
    if (level === 'warn' || level === 'error' || gathered.length >= gatherUnits) return flush()
    if (timer !== undefined) return
    process.on('exit', flush)
    timer = setTimeout(flush, gatherMs)
    timer.unref()
  }
}

/** A logger that writes nothing. */
export const silentLogger: Logger = createJsonLogger({ level: 'silent', write: () => {} })

function hasParts(fields: LogFields | undefined): boolean {
  for (const name in fields) {
    const value = fields[name]
    if (typeof value === 'object' || typeof value === 'bigint') return true
  }
  return false
}

function plainOf(value: unknown, readable: (stack: string) => string): unknown {
  if (typeof value === 'bigint') return value.toString()
  if (!(value instanceof Error)) return value
  return {
    message: value.message,
    ...(value instanceof CodedError ? { code: value.code, detail: value.detail } : {}),
    stack: readable(value.stack ?? ''),
    ...(value.cause === undefined ? {} : { cause: value.cause }),
    ...(value instanceof AggregateError ? { errors: value.errors } : {})
  }
}
