import { setImmediate } from 'node:timers/promises'
import { CodedError } from '../../kernel/index.ts'
import type { Audit } from '../audit/types.ts'
import type { Store, Transaction } from '../store/types.ts'
import type { Alert, Alerts } from './types.ts'

export interface Config {
  readonly max_rows: number
}

export interface AlertsService extends Alerts {
  /** Removes the oldest beyond what is kept. */
  prune(): Promise<void>
}

/** An alert as stored under its id. */
interface StoredAlert extends Omit<Alert, 'id'> {
  readonly subject: string
}

const rows = 'alerts.rows'
/** Ids of those nobody has resolved, by source and subject. */
const open = 'alerts.open'

/** Rows of one step, between which others get their turn. */
const step = 500
const maxIdChars = 64
const maxNameChars = 256
const maxMessageChars = 2_000

/** @param environment.now Unix time in milliseconds */
export function createAlerts(
  store: Store,
  audit: Audit | undefined,
  config: Config,
  environment: { readonly now: () => number; readonly randomUUID: () => string }
): AlertsService {
  const { now, randomUUID } = environment

  let lastIdMs = 0

  /** UUID version 7 (RFC 9562 §5.7) that never goes back: later ones are greater, so the newest are found at the end. */
  function newId(): string {
    lastIdMs = Math.max(now(), lastIdMs + 1)
    const time = lastIdMs.toString(16).padStart(12, '0')
    return `${time.slice(0, 8)}-${time.slice(8)}-7${randomUUID().slice(15)}`
  }

  function close(tx: Transaction, { source, subject }: StoredAlert): void {
    tx.remove(open, [source, subject])
  }

  return {
    raise(alert) {
      const createdAtMs = now()
      const id = newId()
      const source = alert.source.slice(0, maxNameChars)
      const subject = (alert.subject ?? id).slice(0, maxNameChars)
      const stored: StoredAlert = {
        severity: alert.severity,
        source,
        subject,
        title: alert.title.slice(0, maxNameChars),
        message: alert.message.slice(0, maxMessageChars),
        createdAtMs,
        resolvedAtMs: null,
        resolvedBy: null
      }
      return store.atomically(
        async (tx) => {
          const openId = (await tx.get<string>(open, [source, subject]))?.value
          const present = openId === undefined ? undefined : await tx.get<StoredAlert>(rows, [openId])
          if (openId !== undefined && present !== undefined) return toAlert(openId, present.value)
          tx.put(rows, [id], stored)
          tx.put(open, [source, subject], id)
          return toAlert(id, stored)
        },
        { durable: true }
      )
    },

    async list({ limit, severity, resolved }) {
      const found: Alert[] = []
      let looked = 0
      for await (const [[id], { value }] of store.range<StoredAlert>(rows, [], { reverse: true })) {
        const isMeant =
          (severity === undefined || value.severity === severity) &&
          (resolved === undefined || (value.resolvedAtMs !== null) === resolved)
        if (isMeant) found.push(toAlert(String(id), value))
        if (found.length === limit) break
        looked += 1
        if (looked % step === 0) await setImmediate()
      }
      return found
    },

    resolve(id, actor, by = actor.actor) {
      return store.atomically(
        async (tx) => {
          const stored = id.length > maxIdChars ? undefined : (await tx.get<StoredAlert>(rows, [id]))?.value
          if (stored === undefined) throw new CodedError('ALERTS_UNKNOWN', 'Alert not found')
          if (stored.resolvedAtMs !== null) return toAlert(id, stored)
          const resolved = { ...stored, resolvedAtMs: now(), resolvedBy: by.slice(0, maxNameChars) }
          tx.put(rows, [id], resolved)
          close(tx, stored)
          audit?.record(tx, {
            ...actor,
            action: 'resolve_alert',
            resource: { type: 'alert', id },
            after: { resolved_by: resolved.resolvedBy }
          })
          return toAlert(id, resolved)
        },
        { durable: true }
      )
    },

    async count() {
      let count = 0
      for await (const _ of store.range(open, [])) {
        count += 1
        if (count % step === 0) await setImmediate()
      }
      return count
    },

    async prune() {
      let kept = 0
      let last: string | undefined
      for await (const [[id]] of store.range(rows, [], { reverse: true, limit: config.max_rows + 1 })) {
        kept += 1
        last = String(id)
        if (kept % step === 0) await setImmediate()
      }
      if (kept <= config.max_rows || last === undefined) return
      const oldestKept = last
      const pruneSome = (): Promise<number> =>
        store.atomically(async (tx) => {
          let removed = 0
          for await (const [[id], { value }] of tx.range<StoredAlert>(rows, [], { limit: step })) {
            if (String(id) > oldestKept) break
            tx.remove(rows, [String(id)])
            if (value.resolvedAtMs === null) close(tx, value)
            removed += 1
          }
          return removed
        })
      while ((await pruneSome()) === step) await setImmediate()
    }
  }
}

function toAlert(id: string, stored: StoredAlert): Alert {
  const { severity, source, title, message, createdAtMs, resolvedAtMs, resolvedBy } = stored
  return { id, severity, source, title, message, createdAtMs, resolvedAtMs, resolvedBy }
}
