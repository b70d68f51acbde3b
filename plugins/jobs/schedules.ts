import { CodedError, type Lease, type Logger } from '../../kernel/index.ts'
import type { Tools } from '../tools/types.ts'
import { type Cron, parseCron } from './cron.ts'
import type { Jobs } from './types.ts'
import type { Clock } from './worker.ts'

/** One schedule, as the program says it. */
export interface Schedule {
  readonly name: string
  readonly cron: string
  readonly tool: string
  readonly arguments: unknown
  readonly permissions: readonly string[]
}

export interface SchedulesOptions {
  readonly schedules: readonly Schedule[]
  readonly jobs: Jobs
  readonly clock: Clock
  readonly log: Logger
  /** Whether this generation is the one that works. */
  readonly isActive: () => boolean
  /** Holds it. */
  readonly hold: () => Lease
}

export interface Schedules {
  /** Looks what is due, and from then on does so by itself. */
  wake(): void
  /** No timer is left. */
  end(): void
}

/** So much of what was missed (a restart, a machine that slept) is made up for. */
export const catchUpMs = 60_000
/** A timer does not see that the clock was set or the machine slept: so often is looked, in time to make up for it. */
const lookMs = catchUpMs / 2

/**
 * Makes a job of each time a schedule names. Nothing is kept of what was done: the job's request id, `<name>@<time>`,
 * makes one job of all attempts to make it, also those of another generation or process.
 */
export function createSchedules(options: SchedulesOptions): Schedules {
  const { jobs, clock, log, isActive, hold } = options
  const all = parse(options.schedules)
  let doneMs = clock.now() - catchUpMs
  let cancelTimer = (): void => {}
  let ended = false

  function wake(): void {
    cancelTimer()
    if (ended || all.length === 0 || !isActive()) return
    const nowMs = clock.now()
    // A clock that was set back comes again by times of which jobs are there already, and are found by their ids.
    const sinceMs = doneMs > nowMs ? nowMs - lookMs : Math.max(doneMs, nowMs - catchUpMs)
    let nextMs = Number.POSITIVE_INFINITY
    for (const { schedule, cron } of all) {
      let atMs = cron.next(sinceMs)
      for (; atMs !== undefined && atMs <= nowMs; atMs = cron.next(atMs)) void begin(schedule, atMs)
      nextMs = Math.min(nextMs, atMs ?? nextMs)
    }
    doneMs = nowMs
    if (nextMs === Number.POSITIVE_INFINITY) return
    cancelTimer = clock.after(Math.min(nextMs - nowMs, lookMs), wake)
  }

  async function begin({ name, tool, arguments: input, permissions }: Schedule, atMs: number): Promise<void> {
    const requestId = `${name}@${new Date(atMs).toISOString()}`
    const caller = { principal: `schedule:${name}`, permissions: new Set(permissions) }
    const lease = hold()
    try {
      await jobs.enqueue({ tool, arguments: input, caller, requestId })
    } catch (error) {
      log.error('a schedule could not make its job', { schedule: name, request_id: requestId, error })
    } finally {
      lease.release()
    }
  }

  return {
    wake,
    end() {
      ended = true
      cancelTimer()
    }
  }
}

/** @throws CodedError `INVALID_SCHEDULE` */
function parse(schedules: readonly Schedule[]): readonly { readonly schedule: Schedule; readonly cron: Cron }[] {
  const names = new Set<string>()
  return schedules.map((schedule) => {
    const { name, cron: text } = schedule
    if (names.has(name)) throw invalid(name, 'another one has that name')
    names.add(name)
    let cron: Cron
    try {
      cron = parseCron(text)
    } catch (error) {
      throw invalid(name, (error as TypeError).message)
    }
    if (cron.next(0) === undefined) throw invalid(name, `'${text}' names no time at all`)
    return { schedule, cron }
  })
}

/** @throws CodedError `INVALID_SCHEDULE` for one whose tool is not there */
export function assertTools(schedules: readonly Schedule[], tools: Tools): void {
  for (const { name, tool } of schedules) {
    if (tools.get(tool) === undefined) throw invalid(name, `no plugin in the program has the tool '${tool}'`)
  }
}

function invalid(name: string, message: string): CodedError {
  return new CodedError('INVALID_SCHEDULE', `schedule '${name}': ${message}`)
}
