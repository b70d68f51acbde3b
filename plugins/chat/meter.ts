import { CodedError, type Logger } from '../../kernel/index.ts'
import type { Reader } from '../store/types.ts'
import type { Tenants } from '../tenants/types.ts'
import { estimateTokens, type Spending } from './agent-run.ts'
import type { QuotaAlerts } from './quota-alerts.ts'
import type { TurnRequest } from './types.ts'

/** Counts one turn for a tenant. */
export interface Meter {
  /** Part of the transaction that keeps the turn: refuses once the tenant's data was deleted. */
  readonly assertCurrent: (tx: Reader) => Promise<void>
  /** The turn ended as it should. Resolves when that is on disk. */
  settle(agent: string): Promise<void>
  /** What the caller is told of a turn that failed. */
  failed(message: string): void
  /**
   * The turn has ended, however it did: it counts if a model was asked, with the tokens it took until then. Does nothing
   * to one that was settled. Never rejects.
   * @param agent left out when none had been chosen
   */
  end(agent?: string): Promise<void>
}

/**
 * Lets the turn of a tenant begin, or of a user whose token names one.
 * @returns `undefined` when there is nobody to count it for
 * @throws CodedError a refusal of `tenants`
 */
export async function beginMeter(
  tenants: Tenants | undefined,
  quotas: QuotaAlerts,
  log: Logger,
  { principal, tenant, message, requestId }: TurnRequest,
  spent: Spending,
  newId: () => string,
  now: () => number
): Promise<Meter | undefined> {
  const tenantId = principal.kind === 'tenant' ? principal.id : principal.tenantId
  if (tenantId === undefined) return undefined
  if (tenants === undefined) throw new CodedError('CHAT_NOT_CONFIGURED', 'There are no tenants to count this for')
  const reservation = await tenants.reserve(tenantId, Math.max(1, estimateTokens(message.length)), tenant?.purges)
  quotas.onReserved(reservation)
  const startedAtMs = now()
  let error = 'ended by the server'
  let settled: Promise<void> | undefined
  const settle = (agent: string | undefined, ok: boolean): Promise<void> => {
    const { inputTokens, outputTokens } = spent
    settled ??= tenants.settle(reservation, {
      agent,
      ok,
      tokens: inputTokens + outputTokens,
      run: { id: newId(), inputTokens, outputTokens, startedAtMs, finishedAtMs: now(), error: ok ? null : error }
    })
    return settled
  }
  return {
    assertCurrent: (tx) => tenants.assertCurrent(tx, reservation),
    settle: (agent) => settle(agent, true),
    failed: (message) => void (error = message),
    async end(agent) {
      if (settled === undefined && !spent.hasBegun) settled = tenants.release(reservation)
      try {
        await settle(agent, false)
      } catch (error) {
        // It stays counted, with the tokens that were held for it.
        log.error('a turn could not be settled', { requestId, error })
      }
    }
  }
}
