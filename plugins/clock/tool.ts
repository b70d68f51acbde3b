import { CodedError, schemaOf } from '../../kernel/index.ts'
import type { Tool, ToolErrorDetail } from '../tools/types.ts'

interface Time {
  /** ISO 8601 with milliseconds. */
  readonly utc: string
  readonly timezone: string
  /** ISO 8601 with the offset of the time zone. */
  readonly local: string
  readonly weekday: string
}

const input = schemaOf<{ timezone?: string }>({
  type: 'object',
  additionalProperties: false,
  properties: {
    timezone: { type: 'string', maxLength: 64, description: 'IANA name such as Europe/Berlin; UTC when left out' }
  }
})

const output = schemaOf<Time>({
  type: 'object',
  required: ['utc', 'timezone', 'local', 'weekday'],
  additionalProperties: false,
  properties: {
    utc: { type: 'string' },
    timezone: { type: 'string' },
    local: { type: 'string', description: 'In the time zone, with its offset' },
    weekday: { type: 'string', description: 'In the time zone, in English' }
  }
})

/** @param now Unix time in milliseconds; a parameter so that tests hold the clock */
export function clock(now: () => number, anonymous: boolean): Tool {
  const tool: Tool<{ timezone?: string }, Time> = {
    name: 'clock',
    description: 'Tells the current date and time, in UTC and in a time zone.',
    input,
    output,
    effect: 'read',
    parallelSafe: true,
    anonymous,
    run: ({ timezone = 'UTC' }) => timeIn(timezone, now())
  }
  return tool as Tool
}

/** @throws CodedError `CLOCK_UNKNOWN_TIMEZONE` */
function timeIn(timezone: string, atMs: number): Time {
  let format: Intl.DateTimeFormat
  try {
    format = new Intl.DateTimeFormat('en', { timeZone: timezone, timeZoneName: 'longOffset', weekday: 'long' })
  } catch (cause) {
    const detail: ToolErrorDetail = { category: 'validation', recoverable: true, details: { timezone } }
    const message = `there is no time zone '${timezone}'; give an IANA name such as Europe/Berlin`
    throw new CodedError('CLOCK_UNKNOWN_TIMEZONE', message, { cause, detail: { ...detail } })
  }
  const at = new Date(atMs)
  const parts = format.formatToParts(at)
  const part = (type: string): string => parts.find((each) => each.type === type)?.value ?? ''
  // 'GMT+05:30', or 'GMT' alone.
  const offset = part('timeZoneName').slice(3) || '+00:00'
  const [sign, hours, minutes, seconds = 0] = [offset[0] === '-' ? -1 : 1, ...offset.slice(1).split(':').map(Number)]
  const shiftMs = sign * ((hours ?? 0) * 3_600 + (minutes ?? 0) * 60 + seconds) * 1_000
  return {
    utc: at.toISOString(),
    timezone,
    local: new Date(atMs + shiftMs).toISOString().replace('Z', offset),
    weekday: part('weekday')
  }
}
