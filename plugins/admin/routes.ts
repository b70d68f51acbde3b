import {
  type CodedError,
  type Entry,
  type EntryPatch,
  type EventBus,
  type FiberStatus,
  isCoded,
  type JsonObject,
  type JsonSchema,
  type KernelControl,
  type StepAction,
  schemaOf
} from '../../kernel/index.ts'
import type { Reply, Request, Route } from '../http/types.ts'

type IdRequest = Request<{ id: string }>

const base = '/api/admin/cordis'
const anyObject: JsonSchema = { type: 'object' }
const known = ['config', 'disabled']

/** The words of `GET entries`; the rows of `applied` use the others. */
const pendingWords: Readonly<Record<StepAction, string>> = {
  begin: 'Begin',
  'update-config': 'UpdateConfig',
  'rebuild-fiber': 'RebuildFiber',
  retire: 'Retire'
}

/** Reads and changes the running program. The bodies are those of the API's document, refusals included. */
export function routes(kernel: KernelControl, events: EventBus): readonly Route[] {
  const listServices: Route = {
    method: 'GET',
    path: `${base}/services`,
    operationId: 'listFibers',
    summary: 'List every fiber with its state',
    guard: 'admin',
    replies: { 200: anyObject },
    handle: () => ({ body: { fibers: kernel.fibers().map(toFiber) } })
  }

  const listUndo: Route = {
    method: 'GET',
    path: `${base}/undo`,
    operationId: 'listPendingUndos',
    summary: 'List the labelled undos still to come, for each fiber in the order of their registration',
    guard: 'admin',
    replies: { 200: anyObject },
    handle: () => ({
      body: {
        fibers: kernel.fibers().map((fiber) => ({
          fiber_id: fiber.fiberId,
          disposed: fiber.disposed,
          pending_undo_labels: fiber.pendingUndoLabels
        }))
      }
    })
  }

  const countEvents: Route = {
    method: 'GET',
    path: `${base}/events`,
    operationId: 'countEvents',
    summary: 'Count the events dispatched so far',
    guard: 'admin',
    replies: { 200: anyObject },
    handle: () => {
      const { total, byEvent } = events.counts()
      return { body: { total_dispatched: total, by_event: byEvent } }
    }
  }

  const listEntries: Route = {
    method: 'GET',
    path: `${base}/entries`,
    operationId: 'listEntries',
    summary: 'List the applied entries, and what the program file asks for beyond them',
    guard: 'admin',
    replies: { 200: anyObject, 422: anyObject },
    handle: () =>
      answered({ listed: false }, async () => {
        const { current, pending, path, dependencyCycles } = await kernel.entries()
        return {
          current: current.map(toEntry),
          pending: pending.map(({ id, action }) => ({ id, action: pendingWords[action] })),
          path: path ?? null,
          dependency_cycles: dependencyCycles
        }
      })
  }

  const patchEntry: Route<{ id: string }, unknown, Record<string, unknown>> = {
    method: 'PATCH',
    path: `${base}/entries/{id}`,
    operationId: 'patchEntry',
    summary: 'Change the present fields of an entry; the running plugin is swapped',
    guard: 'admin',
    body: schemaOf(anyObject),
    bodyOptional: true,
    replies: { 200: anyObject, 400: anyObject, 404: anyObject, 422: anyObject },
    handle: async ({ params, body }) => {
      const wrong = whatIsWrong(body)
      if (wrong !== undefined) return json(400, { patched: false, error: wrong, code: 'INVALID_INPUT' })
      return answered({ applied: [], patched: false, reloaded: false }, async () => {
        const { applied, entry } = await kernel.patchEntry(params.id, toPatch(body))
        return { applied, patched: true, entry: toEntry(entry) }
      })
    }
  }

  const toggleEntry: Route<{ id: string }> = {
    method: 'POST',
    path: `${base}/entries/{id}/toggle`,
    operationId: 'toggleEntry',
    summary: 'Disable an enabled entry, or enable a disabled one',
    guard: 'admin',
    replies: { 200: anyObject, 404: anyObject, 422: anyObject },
    handle: ({ params }: IdRequest) => answered({ applied: [], toggled: false }, () => kernel.toggleEntry(params.id))
  }

  const reload: Route = {
    method: 'POST',
    path: `${base}/entries/reload`,
    operationId: 'reloadProgram',
    summary: 'Take the program file as it is on disk now',
    guard: 'admin',
    replies: { 200: anyObject, 422: anyObject },
    handle: () => answered({ reloaded: false }, () => kernel.reload())
  }

  return [listServices, listUndo, countEvents, listEntries, patchEntry as Route, toggleEntry as Route, reload]
}

function toFiber(fiber: FiberStatus): object {
  return {
    fiber_id: fiber.fiberId,
    state: fiber.state,
    error: fiber.error,
    disposed: fiber.disposed,
    pending_undo_count: fiber.pendingUndoCount,
    entry_id: fiber.entry,
    plugin: fiber.plugin,
    generation: fiber.generation,
    draining: fiber.draining,
    waiting_for: fiber.waitingFor,
    provides: fiber.provides
  }
}

function toEntry(entry: Entry): object {
  const { id, plugin, config, disabled } = entry
  return { id, plugin, config, disabled, isolate: null, intercept: {} }
}

/** What is wrong with the body of a PATCH, in words. */
function whatIsWrong(body: Record<string, unknown>): string | undefined {
  for (const key of Object.keys(body)) {
    if (!known.includes(key)) return `unknown field ${JSON.stringify(key)}; known: ${known.join(', ')}`
  }
  const { config, disabled } = body
  if (config !== undefined && config !== null && (typeof config !== 'object' || Array.isArray(config))) {
    return '"config" must be an object or null'
  }
  if (disabled !== undefined && typeof disabled !== 'boolean') return '"disabled" must be a boolean'
  return undefined
}

/** `null` clears the config. */
function toPatch(body: Record<string, unknown>): EntryPatch {
  return {
    ...(body['config'] === undefined ? {} : { config: (body['config'] ?? {}) as JsonObject }),
    ...(body['disabled'] === undefined ? {} : { disabled: body['disabled'] as boolean })
  }
}

/** The answer of `work`, or the refusal that fits: the members of `refused`, then `error` and `issues`. */
async function answered(refused: Record<string, unknown>, work: () => Promise<object>): Promise<Reply> {
  try {
    return json(200, await work())
  } catch (error) {
    if (!isCoded(error)) throw error
    if (error.code === 'PROGRAM_NO_ENTRY')
      return json(404, { ...without(refused), error: error.message, code: 'NOT_FOUND' })
    const status = statuses[error.code]
    if (status === undefined) throw error
    const issues = error.detail?.['issues']
    return json(status, { ...refused, error: textOf(error, refused), ...(issues === undefined ? {} : { issues }) })
  }
}

const statuses: Readonly<Record<string, number>> = {
  PROGRAM_INVALID: 422,
  PROGRAM_PREFLIGHT_FAILED: 422,
  PROGRAM_APPLY_FAILED: 422,
  PROGRAM_NOT_SAVED: 500
}

/** A reload may be about many entries, so its text says which one. */
function textOf(error: CodedError, refused: Record<string, unknown>): string {
  const { id, action } = error.detail ?? {}
  if (typeof id !== 'string' || 'patched' in refused || 'toggled' in refused) return error.message
  return `${id} (${String(action)}): ${error.message}`
}

/** Nothing was tried, so nothing is said of what was applied. */
function without({ applied: _applied, reloaded: _reloaded, ...rest }: Record<string, unknown>): object {
  return rest
}

/** JSON with the integers of a program that no number holds as decimal text. */
function json(status: number, body: object): Reply {
  const text = JSON.stringify(body, (_key, value: unknown) => (typeof value === 'bigint' ? String(value) : value))
  return { status, headers: { 'content-type': 'application/json' }, text }
}
