import { failureOf } from './failures.ts'
import type { ListedTool } from './registry.ts'
import type { Caller, ToolFailure } from './types.ts'

export interface RateLimit {
  /** Calls in one window. */
  readonly max: number
  readonly window_ms: number
}

export interface PolicyOptions {
  /** Every call needs the permission `tool:<name>`. */
  readonly require_tool_permission: boolean
  readonly rate_limit?: RateLimit | undefined
}

interface Window {
  readonly startedAtMs: number
  count: number
}

/** Windows by caller. Plain data, shared by all generations. */
export type Windows = Map<string, Window>

/** So many windows are kept before those that are over are looked for. */
const maxWindows = 10_000

/**
 * What is asked before a call is looked at more closely, in this order. Trusted context alone decides: nothing of the
 * request but the name of the tool.
 * @param monotonicMs milliseconds of a clock that only goes forward
 * @returns why the caller may not
 */
export function createPolicies(
  { require_tool_permission, rate_limit }: PolicyOptions,
  windows: Windows,
  monotonicMs: () => number
): (listed: ListedTool, caller: Caller, permissions: ReadonlySet<string>) => ToolFailure | undefined {
  let sweepAt = maxWindows

  function countCall({ max, window_ms }: RateLimit, caller: Caller): ToolFailure | undefined {
    const nowMs = monotonicMs()
    const name = nameOf(caller)
    let window = windows.get(name)
    if (window === undefined || nowMs - window.startedAtMs >= window_ms) {
      if (windows.size >= sweepAt) {
        for (const [other, { startedAtMs }] of windows) if (nowMs - startedAtMs >= window_ms) windows.delete(other)
        sweepAt = Math.max(maxWindows, 2 * windows.size)
      }
      window = { startedAtMs: nowMs, count: 0 }
      windows.set(name, window)
    }
    window.count += 1
    if (window.count <= max) return undefined
    const retry_after = Math.max(1, Math.ceil((window.startedAtMs + window_ms - nowMs) / 1_000))
    const message = `this caller may make ${max} calls in ${window_ms} ms`
    return failureOf('RATE_LIMITED', 'capacity', message, { retryable: true, retry_after })
  }

  return ({ tool, confirmation, permission }, caller, permissions) => {
    if (confirmation !== undefined && !permissions.has(confirmation)) {
      const message = `tool '${tool.name}' needs a person's confirmation: the caller has no permission '${confirmation}'`
      return failureOf('CONFIRMATION_REQUIRED', 'permission', message)
    }
    if (caller.principal === undefined && tool.anonymous !== true) {
      return failureOf('FORBIDDEN', 'permission', `tool '${tool.name}' is not open to callers without a credential`)
    }
    if (require_tool_permission && !permissions.has(permission)) {
      const message = `the caller has no permission '${permission}', which every call needs here`
      return failureOf('FORBIDDEN', 'permission', message)
    }
    return rate_limit === undefined ? undefined : countCall(rate_limit, caller)
  }
}

/** One for each principal; without one, for each session; without either, one for all. */
function nameOf({ principal, session }: Caller): string {
  if (principal !== undefined) return `principal ${principal}`
  return session === undefined ? 'anonymous' : `session ${session}`
}
