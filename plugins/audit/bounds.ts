import { CodedError, isCoded, messageOf } from '../../kernel/index.ts'
import type { AuditChange, AuditDetails, AuditRow } from './types.ts'

const ellipsis = '…'
/** Of a value, in UTF-16 units of about its JSON. */
const maxValueUnits = 2_000
const maxTextUnits = 500
const maxNameUnits = 128
const maxFields = 50

/** The text in at most `most` UTF-16 units; one that was cut ends in an ellipsis. */
export function cutText(text: string, most: number): string {
  if (text.length <= most) return text
  const end = text.slice(0, most - 1)
  // Not in the middle of a surrogate pair.
  return (/[\uD800-\uDBFF]$/.test(end) ? end.slice(0, -1) : end) + ellipsis
}

/** Plain JSON that says what the value says as far as there is room for it. */
export function cutValue(value: unknown): unknown {
  let left = maxValueUnits
  const spend = <T>(units: number, result: T): T => {
    left -= units
    return result
  }
  const cut = (value: unknown): unknown => {
    if (left <= 0) return ellipsis
    if (typeof value === 'string') {
      const text = cutText(value, Math.min(maxTextUnits, left))
      return spend(text.length + 3, text)
    }
    if (typeof value === 'bigint') return cut(String(value))
    if (typeof value === 'number') return spend(8, Number.isFinite(value) ? value : null)
    if (typeof value !== 'object' || value === null) return spend(5, typeof value === 'boolean' ? value : null)
    // Each level costs something, so a ring ends too.
    left -= 2
    if ('toJSON' in value && typeof value.toJSON === 'function') return cut(value.toJSON())
    if (Array.isArray(value)) {
      const items: unknown[] = []
      for (const item of value) {
        items.push(cut(item))
        if (left <= 0) break
      }
      return items
    }
    const members: [string, unknown][] = []
    for (const [key, member] of Object.entries(value)) {
      if (member === undefined || typeof member === 'function') continue
      const name = cutText(key, maxNameUnits)
      members.push([left > 0 ? spend(name.length + 4, name) : ellipsis, cut(member)])
      if (left <= 0) break
    }
    return Object.fromEntries(members)
  }
  return cut(value)
}

/** What is kept of a change before it is known how it ends. */
export function describe(change: AuditChange): Omit<AuditRow, 'id' | 'atMs' | 'settledAtMs' | 'status'> {
  const { fields, before, after } = change
  return {
    actor: cutText(change.actor, 2 * maxNameUnits),
    address: cutText(change.address, maxNameUnits),
    requestId: change.requestId === undefined ? null : cutText(change.requestId, maxNameUnits),
    action: cutText(change.action, maxNameUnits),
    resource: { type: cutText(change.resource.type, maxNameUnits), id: cutText(change.resource.id, maxTextUnits) },
    details: detailsOf({
      ...(fields === undefined ? {} : { fields: cutFields(fields) }),
      ...(before === undefined ? {} : { before: cutValue(before) }),
      ...(after === undefined ? {} : { after: cutValue(after) })
    })
  }
}

function cutFields(fields: readonly string[]): string[] {
  const kept = fields.slice(0, maxFields).map((name) => cutText(name, maxNameUnits))
  return fields.length > maxFields ? [...kept, ellipsis] : kept
}

function detailsOf(details: AuditDetails): AuditDetails | null {
  return Object.keys(details).length === 0 ? null : details
}

/**
 * What is kept of an error. A CodedError holds no secret of its own, but its message may quote what it was made from,
 * and an error that nobody coded may quote anything.
 */
export function describeError(error: unknown): { readonly code: string; readonly message: string } {
  if (!isCoded(error)) return { code: 'INTERNAL_ERROR', message: 'an unexpected error; the log of the server has it' }
  let { message } = error
  for (let cause = error.cause; cause !== undefined; cause = cause instanceof Error ? cause.cause : undefined) {
    const quoted = messageOf(cause)
    if (!(cause instanceof CodedError) && quoted !== '') message = message.replaceAll(quoted, ellipsis)
  }
  return { code: cutText(error.code, maxNameUnits), message: cutText(message, maxTextUnits) }
}
