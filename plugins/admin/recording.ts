import type { AppliedStep, Renamed } from '../../kernel/index.ts'
import type { Audit } from '../audit/types.ts'
import type { Request } from '../http/types.ts'

/** What of a request the log has to know; any request is one. */
type Asked = Pick<Request, 'address' | 'id' | 'principal'>

export interface Subject {
  /** Such as `entry.patch`. */
  readonly action: string
  readonly type: 'entry' | 'program' | 'service'
  readonly id: string
  /** The body whose members change; of its values nothing is recorded. */
  readonly body?: unknown
}

/** What of a result is worth keeping; of a config nothing. */
interface Made {
  readonly applied?: readonly AppliedStep[]
  readonly renamed?: Renamed | undefined
  readonly disabled?: boolean
}

/**
 * Makes a change on record: it is in the log before it is made, and its outcome after.
 * @param work may prepare what it likes and changes nothing before `recorded` resolves; where that rejects, nothing
 */
export type Recorder = <R extends object>(
  request: Asked,
  subject: Subject,
  work: (recorded: Promise<void>) => Promise<R>
) => Promise<R>

/** Without a log, changes are made unrecorded. */
export function createRecorder(audit: Audit | undefined): Recorder {
  if (audit === undefined) return (_request, _subject, work) => work(Promise.resolve())
  return async ({ principal, address, id: requestId }, { action, type, id, body }, work) => {
    const { recorded, isRecorded, isNot } = whenRecorded()
    const made = work(recorded)
    // Whatever becomes of it is told below, once it is on record that it was tried.
    made.catch(nothing)
    try {
      return await audit.around(
        { actor: principal.id, address, requestId, action, resource: { type, id }, fields: fieldsOf(body) },
        () => {
          isRecorded()
          return made
        },
        ({ applied, renamed, disabled }: Made) => ({
          steps: applied?.map((step) => `${step.action} ${step.id}`),
          renamed,
          disabled
        })
      )
    } catch (error) {
      isNot(error)
      await made.catch(nothing)
      throw error
    }
  }
}

const nothing = () => {}

function whenRecorded() {
  let isRecorded: () => void = nothing
  let isNot: (error: unknown) => void = nothing
  const recorded = new Promise<void>((resolve, reject) => {
    isRecorded = resolve
    isNot = reject
  })
  recorded.catch(nothing)
  return { recorded, isRecorded, isNot }
}

/** Names of the members of a body, and of those of its config. */
function fieldsOf(body: unknown): readonly string[] {
  return membersOf(body).flatMap(([name, value]) => {
    const inner = name === 'config' ? membersOf(value).map(([key]) => `config.${key}`) : []
    return inner.length > 0 ? inner : [name]
  })
}

function membersOf(value: unknown): readonly (readonly [string, unknown])[] {
  return value !== null && typeof value === 'object' && !Array.isArray(value) ? Object.entries(value) : []
}
