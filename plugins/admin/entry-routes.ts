import {
  type Changed,
  type ChangeOptions,
  type Entry,
  type EntryInput,
  type EntryPatch,
  type KernelControl,
  type StepAction,
  schemaOf
} from '../../kernel/index.ts'
import type { Reply, Request, Route } from '../http/types.ts'
import { anyObject, answered, base, json } from './answers.ts'
import type { Recorder, Subject } from './recording.ts'

type Params = { id: string }
type Query = { dry_run: boolean }
type Body = Record<string, unknown>

/** The words of `GET entries`; the rows of `applied` use the others. */
const pendingWords: Readonly<Record<StepAction, string>> = {
  begin: 'Begin',
  'update-config': 'UpdateConfig',
  'rebuild-fiber': 'RebuildFiber',
  retire: 'Retire'
}

const dryRun = schemaOf<Query>({
  type: 'object',
  properties: { dry_run: { type: 'boolean', default: false, description: 'Answer the plan, change nothing' } }
})

const common = { guard: 'admin', query: dryRun } as const
const changeReplies = Object.fromEntries([200, 400, 404, 409, 412, 422, 500, 503].map((status) => [status, anyObject]))

/**
 * Reads and changes the entries of the program. The bodies are those of the API's document, refusals included;
 * `dry_run`, `ETag` and `If-Match` are additions.
 */
export function entryRoutes(kernel: KernelControl, record: Recorder): readonly Route[] {
  /** The change on record; a dry run is none. */
  const make = <R extends Changed>(
    request: AnyRequest,
    subject: Subject,
    work: (options: ChangeOptions) => Promise<R>
  ) => {
    const options = optionsOf(request)
    if (options.dryRun === true) return work(options)
    return record(request, subject, (recorded) => work({ ...options, after: recorded }))
  }
  const ofEntry = (action: string, id: string, body?: unknown): Subject => ({ action, type: 'entry', id, body })

  const listEntries: Route = {
    method: 'GET',
    path: `${base}/entries`,
    operationId: 'listEntries',
    summary: 'List the applied entries, and what the program file asks for beyond them',
    guard: 'admin',
    replies: { 200: anyObject, 422: anyObject, 503: anyObject },
    handle: () =>
      answered({ missing: {}, refused: { listed: false } }, async () => {
        const { current, pending, path, dependencyCycles, etag } = await kernel.entries()
        const body = {
          current: current.map(toEntry),
          pending: pending.map(toPending),
          path: path ?? null,
          dependency_cycles: dependencyCycles
        }
        return json(200, body, { etag })
      })
  }

  const putEntry: Route<Record<string, string>, Query, Body> = {
    ...common,
    method: 'PUT',
    path: `${base}/entries`,
    operationId: 'putEntry',
    summary: 'Put a whole entry in the place of the one of its id, or at the end',
    body: schemaOf(anyObject),
    replies: changeReplies,
    handle: (request) => {
      const wrong = wrongEntry(request.body)
      if (wrong !== undefined) return json(400, { applied: [], error: wrong, code: 'INVALID_INPUT' })
      const input = toInput(request.body)
      return answered({ missing: { applied: [] }, refused: { applied: [] } }, async () => {
        const subject = ofEntry('entry.put', input.id, request.body)
        return changed(request, await make(request, subject, (options) => kernel.putEntry(input, options)), {})
      })
    }
  }

  const patch = (request: ChangeRequest<Body>, id: string) => {
    const wrong = wrongPatch(request.body)
    if (wrong !== undefined) return json(400, { patched: false, error: wrong, code: 'INVALID_INPUT' })
    const refusal = { missing: { patched: false }, refused: { applied: [], patched: false, reloaded: false } }
    return answered(refusal, async () => {
      const subject = ofEntry('entry.patch', id, request.body)
      const result = await make(request, subject, (options) =>
        kernel.patchEntry(id, request.body as EntryPatch, options)
      )
      const { renamed, entry } = result
      if (renamed === undefined) return changed(request, result, { patched: true, entry: toEntry(entry) })
      // What became of the moved entry itself is told by `entry`, as the document prints it.
      const applied = result.applied.filter((step) => step.id !== entry.id || step.action !== 'update-config')
      return changed(request, { ...result, applied }, { patched: true, renamed, entry: toEntry(entry) })
    })
  }

  const patchEntry: Route<Params, Query, Body> = {
    ...common,
    method: 'PATCH',
    path: `${base}/entries/{id}`,
    operationId: 'patchEntry',
    summary: 'Change the present fields of an entry; the running plugin is swapped',
    body: schemaOf(anyObject),
    bodyOptional: true,
    replies: changeReplies,
    handle: (request) => patch(request, request.params.id)
  }

  const remove = (request: ChangeRequest, id: string) =>
    answered({ missing: { deleted: false }, refused: { applied: [], deleted: false } }, async () => {
      const subject = ofEntry('entry.delete', id)
      return changed(request, await make(request, subject, (options) => kernel.deleteEntry(id, options)), {})
    })

  const deleteEntry: Route<Params, Query> = {
    ...common,
    method: 'DELETE',
    path: `${base}/entries/{id}`,
    operationId: 'deleteEntry',
    summary: 'Delete an entry with all below it',
    replies: changeReplies,
    handle: (request) => remove(request, request.params.id)
  }

  const toggleEntry: Route<Params, Query> = {
    ...common,
    method: 'POST',
    path: `${base}/entries/{id}/toggle`,
    operationId: 'toggleEntry',
    summary: 'Disable an enabled entry, or enable a disabled one',
    replies: changeReplies,
    handle: (request) =>
      answered({ missing: { toggled: false }, refused: { applied: [], toggled: false } }, async () => {
        const { id } = request.params
        const result = await make(request, ofEntry('entry.toggle', id), (options) => kernel.toggleEntry(id, options))
        return changed(request, result, { disabled: result.disabled })
      })
  }

  const moveEntry: Route<Params, Query, Body> = {
    ...common,
    method: 'POST',
    path: `${base}/entries/{id}/move`,
    operationId: 'moveEntry',
    summary: 'Move an entry with all below it under another parent; nothing restarts',
    body: schemaOf(anyObject),
    bodyOptional: true,
    replies: changeReplies,
    handle: (request) => {
      const wrong = wrongPlace(request.body)
      if (wrong !== undefined) return json(400, { error: wrong, code: 'INVALID_INPUT' })
      const { parent, position } = request.body as { parent?: string | null; position?: number }
      return answered({ missing: { moved: false }, refused: { moved: false } }, async () => {
        const { id } = request.params
        const result = await make(request, ofEntry('entry.move', id, request.body), (options) =>
          kernel.moveEntry(id, parent ?? null, position, options)
        )
        const { renamed, applied, planned } = result
        const noop = renamed.length === 0 && applied.length === 0 && planned.length === 0
        return changed(request, result, { moved: true, noop, renamed })
      })
    }
  }

  const reload: Route<Record<string, string>, Query> = {
    ...common,
    method: 'POST',
    path: `${base}/entries/reload`,
    operationId: 'reloadProgram',
    summary: 'Take the program file as it is on disk now',
    replies: changeReplies,
    handle: (request) =>
      answered({ missing: { reloaded: false }, refused: { reloaded: false }, named: true }, async () => {
        const subject: Subject = { action: 'program.reload', type: 'program', id: 'program' }
        return changed(request, await make(request, subject, (options) => kernel.reload(options)), {})
      })
  }

  // An entry may be called as the reload is: no entry takes POST itself, and the reload takes nothing else.
  const patchReload: Route<Record<string, string>, Query, Body> = {
    ...patchEntry,
    path: reload.path,
    operationId: 'patchEntryNamedReload',
    summary: "Change the present fields of an entry whose id is 'reload'",
    handle: (request) => patch(request, 'reload')
  }
  const deleteReload: Route<Record<string, string>, Query> = {
    ...deleteEntry,
    path: reload.path,
    operationId: 'deleteEntryNamedReload',
    summary: "Delete an entry whose id is 'reload' with all below it",
    handle: (request) => remove(request, 'reload')
  }

  const routes = [
    listEntries,
    putEntry,
    patchEntry,
    deleteEntry,
    toggleEntry,
    moveEntry,
    reload,
    patchReload,
    deleteReload
  ]
  return routes as unknown as readonly Route[]
}

type ChangeRequest<B = unknown> = Request<unknown, Query, B>
type AnyRequest = Pick<Request<unknown, Query>, 'header' | 'query' | 'address' | 'id' | 'principal'>

function optionsOf(request: AnyRequest): ChangeOptions {
  const ifMatch = request.header('if-match')
  return { dryRun: request.query.dry_run, ...(ifMatch === undefined ? {} : { ifMatch }) }
}

/** What was applied and the members of the route; of a dry run only the plan. */
function changed(request: { readonly query: Query }, { applied, planned }: Changed, members: object): Reply {
  if (request.query.dry_run) return json(200, { applied: [], dry_run: true, planned: planned.map(toPending) })
  return json(200, { applied, ...members })
}

function toPending({ id, action }: { readonly id: string; readonly action: StepAction }): object {
  return { id, action: pendingWords[action] }
}

function toEntry({ id, plugin, config, disabled, isolate, intercept, position, source }: Entry): object {
  const place = { ...(position === undefined ? {} : { position }), ...(source === undefined ? {} : { source }) }
  return { id, plugin, config, disabled, isolate: isolate ?? null, intercept: intercept ?? {}, ...place }
}

/** An entry as a listing shows it: its `source` says where it stands, which no change changes. */
function toInput(body: Body): EntryInput {
  const given = Object.entries(body).filter(([key, value]) => value !== null && value !== undefined && key !== 'source')
  return Object.fromEntries(given) as unknown as EntryInput
}

const kinds: Readonly<Record<string, (value: unknown) => string | undefined>> = {
  id: (value) => (typeof value === 'string' ? undefined : '"id" must be a string'),
  plugin: (value) => (typeof value === 'string' ? undefined : '"plugin" must be a string'),
  config: (value) => (isTable(value) ? undefined : '"config" must be an object or null'),
  disabled: (value) => (typeof value === 'boolean' ? undefined : '"disabled" must be a boolean'),
  isolate: (value) =>
    typeof value === 'string' || isTable(value) ? undefined : '"isolate" must be a label, an object or null',
  intercept: (value) => (isTable(value) ? undefined : '"intercept" must be an object or null'),
  position: (value) => (isIndex(value) ? undefined : '"position" must be a non-negative integer'),
  parent: (value) => (typeof value === 'string' ? undefined : '"parent" must be a string or null')
}

const nullable = ['config', 'isolate', 'intercept', 'parent']

/** The first thing that is wrong with the members of a body, in words. */
function wrongMembers(body: Body, known: readonly string[]): string | undefined {
  for (const [key, value] of Object.entries(body)) {
    if (!known.includes(key)) return `unknown field ${JSON.stringify(key)}; known: ${known.join(', ')}`
    if (value === undefined || (value === null && nullable.includes(key))) continue
    const wrong = kinds[key]?.(value)
    if (wrong !== undefined) return wrong
  }
  return undefined
}

function wrongPatch(body: Body): string | undefined {
  return wrongMembers(body, ['config', 'disabled', 'isolate', 'intercept', 'parent', 'position'])
}

function wrongPlace(body: Body): string | undefined {
  return wrongMembers(body, ['parent', 'position'])
}

function wrongEntry(body: Body): string | undefined {
  const { position, ...rest } = body
  if (position !== undefined && position !== null && !isTable(position)) return '"position" must be an object or null'
  const wrong = wrongMembers(rest, ['id', 'plugin', 'config', 'disabled', 'isolate', 'intercept', 'source'])
  if (wrong !== undefined) return wrong
  const { id, plugin } = rest
  const blank = (value: unknown) => typeof value !== 'string' || value.trim() === ''
  return blank(id) || blank(plugin) ? 'entry id and plugin must be non-empty' : undefined
}

function isIndex(value: unknown): boolean {
  return Number.isInteger(value) && (value as number) >= 0
}

function isTable(value: unknown): boolean {
  return value !== null && typeof value === 'object' && !Array.isArray(value)
}
