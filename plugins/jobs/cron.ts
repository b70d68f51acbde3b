/** The times a schedule names. */
export interface Cron {
  /** @returns the first one after that time; `undefined` when there is none. Unix milliseconds, whole seconds of UTC */
  next(afterMs: number): number | undefined
}

interface Field {
  readonly name: string
  readonly low: number
  readonly high: number
  /** Stand for `low`, `low + 1`, … */
  readonly words?: readonly string[]
  /** Numbers are not taken. */
  readonly isWordsOnly?: boolean
}

const lastYear = 2199
const daySeconds = 86_400

const fields: readonly Field[] = [
  { name: 'second', low: 0, high: 59 },
  { name: 'minute', low: 0, high: 59 },
  { name: 'hour', low: 0, high: 23 },
  { name: 'day of the month', low: 1, high: 31 },
  {
    name: 'month',
    low: 1,
    high: 12,
    words: ['JAN', 'FEB', 'MAR', 'APR', 'MAY', 'JUN', 'JUL', 'AUG', 'SEP', 'OCT', 'NOV', 'DEC']
  },
  // As numbers they mean other days in other programs.
  {
    name: 'day of the week',
    low: 0,
    high: 6,
    words: ['SUN', 'MON', 'TUE', 'WED', 'THU', 'FRI', 'SAT'],
    isWordsOnly: true
  },
  { name: 'year', low: 1970, high: lastYear }
]

/**
 * Seven fields, of which the last may be left out: second, minute, hour, day of the month, month, day of the week, year.
 * Each is `*`, a value, a range `a-b`, any of these with a step `/n`, or a list of such with commas. A day has to fit
 * both of its fields.
 * @throws TypeError that says what is wrong with the text
 */
export function parseCron(text: string): Cron {
  const parts = text.trim().split(/\s+/)
  if (parts.length !== 6 && parts.length !== 7) {
    throw new TypeError(
      `'${text}' has ${parts.length} fields; it takes second, minute, hour, day of the month, month, day of the week and, if wanted, year`
    )
  }
  const values = (at: number): Values => parseField(parts[at] ?? '*', fields[at] as Field)
  const [seconds, minutes, hours] = [values(0), values(1), values(2)]
  const [days, months, weekdays, years] = [values(3), values(4), values(5), values(6)]
  const secondsOfDay = (from: number): number | undefined => {
    for (const hour of hours) {
      if ((hour + 1) * 3_600 <= from) continue
      for (const minute of minutes) {
        const begin = hour * 3_600 + minute * 60
        if (begin + 60 <= from) continue
        for (const second of seconds) if (begin + second >= from) return begin + second
      }
    }
    return undefined
  }
  return {
    next(afterMs) {
      const first = Math.floor(afterMs / 1_000) + 1
      let from = first % daySeconds
      // Days of UTC are all of one length.
      for (let day = first - from; ; day += daySeconds, from = 0) {
        const date = new Date(day * 1_000)
        const year = date.getUTCFullYear()
        if (year > lastYear || Number.isNaN(year)) return undefined
        if (!years.has(year) || !months.has(date.getUTCMonth() + 1)) continue
        if (!days.has(date.getUTCDate()) || !weekdays.has(date.getUTCDay())) continue
        const found = secondsOfDay(from)
        if (found !== undefined) return (day + found) * 1_000
      }
    }
  }
}

/** In order. */
type Values = ReadonlySet<number>

function parseField(text: string, field: Field): Values {
  const found: number[] = []
  for (const part of text.split(',')) {
    const [range = '', step, more] = part.split('/')
    const by = step === undefined ? 1 : toNumber(step)
    if (more !== undefined || by === undefined || by < 1) throw wrong(part, field)
    const [from, to, rest] =
      range === '*' ? [field.low, field.high] : range.split('-').map((value) => toValue(value, field))
    // A start with a step goes on to the end.
    const end = to ?? (step === undefined ? from : field.high)
    if (from === undefined || end === undefined || rest !== undefined || end < from) throw wrong(part, field)
    for (let value = from; value <= end; value += by) found.push(value)
  }
  return new Set(found.sort((a, b) => a - b))
}

function toValue(text: string, field: Field): number {
  const { low, high, words = [], isWordsOnly } = field
  const word = words.indexOf(text.toUpperCase())
  const value = word >= 0 ? low + word : isWordsOnly ? undefined : toNumber(text)
  if (value === undefined || value < low || value > high) throw wrong(text, field)
  return value
}

function toNumber(text: string): number | undefined {
  return /^\d{1,4}$/.test(text) ? Number(text) : undefined
}

function wrong(text: string, { name, low, high, words, isWordsOnly }: Field): TypeError {
  const values = isWordsOnly ? `${words?.[0]} to ${words?.at(-1)}` : `${low} to ${high}`
  return new TypeError(
    `'${text}' is no ${name}: it takes ${values}, '*', ranges 'a-b', steps '/n' and lists with commas`
  )
}
