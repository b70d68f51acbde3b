import { CodedError, type Lease } from '../../kernel/index.ts'
import type { CallHost } from './call.ts'
import type { ListedTool } from './registry.ts'
import type { ToolContext, Verdict } from './types.ts'

/** Asking a tool how an earlier call of it ended. */
export interface Verifying {
  /** Never rejects: whatever goes wrong, nobody knows. */
  readonly verdict: Promise<Verdict>
  /** Resolves when the tool has nothing to do with it any more, which may be long after the verdict. */
  readonly over: Promise<void>
}

/**
 * @param context of the earlier call, without a signal
 * @param lease held until it is over
 */
export function startVerifying(
  { tool }: ListedTool,
  input: unknown,
  context: Omit<ToolContext, 'signal'>,
  lease: Lease,
  { aborts, log, timeoutMs }: CallHost
): Verifying {
  const limitMs = tool.timeoutMs ?? timeoutMs
  const controller = new AbortController()
  const fields = { tool: tool.name, execution_id: context.executionId }
  const ended = (async () => tool.verify?.(input, { ...context, signal: controller.signal }) ?? 'unknown')()
  const verdict = new Promise<Verdict>((resolve) => {
    const stop = (reason: unknown): void => {
      controller.abort(reason)
      resolve('unknown')
    }
    const timer = setTimeout(() => {
      const message = `the tool did not say within ${limitMs} ms how an earlier call had ended`
      log.warn(message, fields)
      stop(new CodedError('TIMEOUT', message))
    }, limitMs)
    const listener = { onAbort: stop }
    aborts.add(lease.signal, listener)
    const settled = (): void => {
      clearTimeout(timer)
      aborts.remove(lease.signal, listener)
    }
    ended.then(
      (found) => {
        settled()
        if (!isVerdict(found)) log.error('a tool gave a verdict that is none', fields)
        resolve(isVerdict(found) ? found : 'unknown')
      },
      (error: unknown) => {
        settled()
        log.error('a tool threw when it was asked how an earlier call had ended', { ...fields, error })
        resolve('unknown')
      }
    )
  })
  const release = (): void => lease.release()
  return { verdict, over: ended.then(release, release) }
}

/** Types hold this for TypeScript; a plugin may be JavaScript. */
function isVerdict(value: unknown): value is Verdict {
  if (value === 'unknown') return true
  if (typeof value !== 'object' || value === null) return false
  const { happened } = value as { readonly happened?: unknown }
  return happened === false || (happened === true && 'output' in value)
}
