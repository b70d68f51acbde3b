import { CodedError, type Contribution, isCoded, type Logger } from '../../kernel/index.ts'
import type { ReadinessCheck } from './types.ts'

export interface Readiness {
  readonly ready: boolean
  readonly checks: Readonly<Record<string, CheckResult>>
}

interface CheckResult {
  readonly ok: boolean
  /** A code; the log has the rest. */
  readonly error?: string
}

/** Calls back when the time of a check is over. @returns calls it off */
export type Limit = (onOver: () => void) => () => void

export interface ReadinessOptions {
  readonly checks: () => readonly Contribution<ReadinessCheck>[]
  /** A code for why the server as a whole is not ready; `undefined` when it is. */
  readonly serverState: () => string | undefined
  readonly log: Logger
  readonly limit: Limit
}

/** @returns asks all checks at once. Anybody may ask, and not for free: all who ask meanwhile share one answer */
export function createReadiness({ checks, serverState, log, limit }: ReadinessOptions): () => Promise<Readiness> {
  let running: Promise<Readiness> | undefined

  async function run(contribution: Contribution<ReadinessCheck>): Promise<CheckResult> {
    const { item, entry } = contribution
    const lease = contribution.lease()
    const controller = new AbortController()
    let callOff = (): void => {}
    try {
      const over = new Promise<never>((_resolve, reject) => {
        callOff = limit(() => {
          const late = new CodedError('READY_TIMEOUT', `the check '${item.name}' took too long`)
          reject(late)
          controller.abort(late)
        })
      })
      await Promise.race([item.check(controller.signal), over])
      return { ok: true }
    } catch (error) {
      log.warn(`the readiness check '${item.name}' failed`, { entry, error })
      return { ok: false, error: isCoded(error) ? error.code : 'FAILED' }
    } finally {
      callOff()
      lease.release()
    }
  }

  async function look(): Promise<Readiness> {
    const found = new Map<string, CheckResult>()
    for (const [name, result] of await Promise.all(
      checks().map(async (check) => [check.item.name, await run(check)] as const)
    )) {
      if (found.get(name)?.ok !== false) found.set(name, result)
    }
    // Asked last: the stop may have begun meanwhile.
    const error = serverState()
    found.set('server', error === undefined ? { ok: true } : { ok: false, error })
    return { ready: [...found.values()].every(({ ok }) => ok), checks: Object.fromEntries(found) }
  }

  return () => {
    running ??= look().finally(() => {
      running = undefined
    })
    return running
  }
}
