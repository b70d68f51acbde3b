import { write, writeSync } from 'node:fs'
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

/** Where the lines of a log go. Whoever logs never waits for it. */
export interface LineWriter {
  readonly write: (line: string, level: LogLevel) => void
  /** Whether all lines are written or given up as lost; waits for that, `timeoutMs` at most. */
  readonly settled: (timeoutMs: number) => Promise<boolean>
}

const gatherMs = 20
const gatherUnits = 65_536
const maxWaitingUnits = 4_194_304

/**
 * Writes lines to a file descriptor, in the background: node's own `stderr` writes to a pipe at once, and a server whose
 * log is read slowly would serve slowly. The lines of 20 ms are one write, since a system call for each costs more than
 * the line; warnings and errors do not wait for it. While 4 Mi characters wait to be written, further lines are lost,
 * and so are those that the file refuses (a full disk, a reader that has left): one line then says how many. What waits
 * is written when the process ends, but for one that is killed.
 */
export function createLineWriter(fd: number): LineWriter {
  let waiting = ''
  let writing: Buffer | undefined
  let lost = 0
  /** How many lost lines the write that is under way tells of. */
  let telling = 0
  let timer: NodeJS.Timeout | undefined
  const settling = new Set<() => void>()

  const begin = (): void => {
    clearTimeout(timer)
    timer = undefined
    if (writing !== undefined || waiting === '') return
    process.off('exit', finish)
    writing = Buffer.from(waiting + lossLine(lost))
    waiting = ''
    telling = lost
    lost = 0
    step(writing)
  }
  const step = (bytes: Buffer): void => {
    writing = bytes
    write(fd, bytes, (error, written) => {
      if (error?.code === 'EAGAIN') return void setTimeout(step, gatherMs, bytes)
      if (error === null && written < bytes.length) return step(bytes.subarray(written))
      // The line that tells is one of those counted, and stands for what it tells of.
      if (error !== null) lost += countLines(bytes) + Math.max(telling - 1, 0)
      writing = undefined
      if (waiting !== '') return begin()
      for (const settle of settling) settle()
    })
  }
  const finish = (): void => {
    try {
      writeSync(fd, waiting + lossLine(lost))
    } catch {
      // Nobody is left who could be told.
    }
  }
  return {
    write(line, level) {
      if (waiting.length + line.length > maxWaitingUnits) {
        lost += 1
        return
      }
      if (waiting === '') process.on('exit', finish)
      waiting += line
      if (writing !== undefined) return
      if (level === 'warn' || level === 'error' || waiting.length >= gatherUnits) return begin()
      timer ??= setTimeout(begin, gatherMs).unref()
    },
    settled(timeoutMs) {
      begin()
      if (writing === undefined) return Promise.resolve(true)
      return new Promise((resolve) => {
        const settle = (): void => {
          clearTimeout(limit)
          settling.delete(settle)
          resolve(writing === undefined)
        }
        const limit = setTimeout(settle, timeoutMs)
        settling.add(settle)
      })
    }
  }
}

function lossLine(lost: number): string {
  if (lost === 0) return ''
  const message = 'lines of the log were lost: they could not be written, or not as fast as they came'
  return `${JSON.stringify({ time: new Date().toISOString(), level: 'warn', message, lines: lost })}\n`
}

function countLines(bytes: Buffer): number {
  let count = 0
  for (let at = bytes.indexOf(10); at !== -1; at = bytes.indexOf(10, at + 1)) count += 1
  return count
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
