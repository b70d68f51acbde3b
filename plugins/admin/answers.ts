import { type CodedError, isCoded, type JsonSchema } from '../../kernel/index.ts'
import type { Headers, Reply } from '../http/types.ts'

export const base = '/api/admin/cordis'
export const anyObject: JsonSchema = { type: 'object' }

/** JSON with the integers of a program that no number holds as decimal text. */
export function json(status: number, body: object, headers: Headers = {}): Reply {
  const text = JSON.stringify(body, (_key, value: unknown) => (typeof value === 'bigint' ? String(value) : value))
  return { status, headers: { 'content-type': 'application/json', ...headers }, text }
}

/** What a route answers when a change is refused: the members its document promises for each kind of refusal. */
export interface Refusal {
  /** For an entry that is not there, and for a change that its place or its file does not allow. */
  readonly missing: object
  /** For a program or a change that is not valid. */
  readonly refused: object
  /** Says which entry it was: for changes that may be about many. */
  readonly named?: boolean
}

/** The answer of `work`, or the refusal that fits. Errors of another kind are http's to answer. */
export async function answered(refusal: Refusal, work: () => Promise<Reply>): Promise<Reply> {
  try {
    return await work()
  } catch (error) {
    if (!isCoded(error)) throw error
    const kind = kinds[error.code]
    if (kind === undefined) throw error
    const [status, code] = kind
    const issues = error.detail?.['issues']
    const body = status === 404 || status === 409 ? refusal.missing : status === 412 ? {} : refusal.refused
    return json(status, {
      ...body,
      error: textOf(error, refusal.named === true),
      ...(code === undefined ? {} : { code }),
      ...(issues === undefined ? {} : { issues })
    })
  }
}

const kinds: Readonly<Record<string, readonly [status: number, code?: string]>> = {
  KERNEL_NOT_STARTED: [503],
  AUDIT_FAILED: [503],
  PROGRAM_NO_ENTRY: [404, 'NOT_FOUND'],
  PROGRAM_MOVE_REFUSED: [409, 'CONFLICT'],
  PROGRAM_INCLUDED: [409, 'CONFLICT'],
  PROGRAM_CHANGED: [412, 'PRECONDITION_FAILED'],
  PROGRAM_INVALID: [422],
  PROGRAM_EDIT_FAILED: [422],
  PROGRAM_PREFLIGHT_FAILED: [422],
  PROGRAM_APPLY_FAILED: [422],
  PROGRAM_NOT_SAVED: [500]
}

function textOf(error: CodedError, named: boolean): string {
  const { id, action } = error.detail ?? {}
  return named && typeof id === 'string' ? `${id} (${String(action)}): ${error.message}` : error.message
}
