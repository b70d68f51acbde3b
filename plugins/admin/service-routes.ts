import {
  type EventsService,
  type FiberStatus,
  isCoded,
  type JsonObject,
  type KernelControl
} from '../../kernel/index.ts'
import type { Reply, Request, Route } from '../http/types.ts'
import { anyObject, answered, base, json } from './answers.ts'
import type { Recorder, Subject } from './recording.ts'

type NameRequest = Request<{ name: string }>

/** What runs, and what of it can be taken away and given back. */
export function serviceRoutes(
  kernel: KernelControl,
  events: EventsService | undefined,
  record: Recorder
): readonly Route[] {
  const listServices: Route = {
    method: 'GET',
    path: `${base}/services`,
    operationId: 'listFibers',
    summary: 'List every fiber with its state',
    guard: 'admin',
    replies: { 200: anyObject },
    handle: () => ({ body: { fibers: kernel.fibers().map(toFiber), file_error: kernel.fileError() } })
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
    replies: { 200: anyObject, 503: anyObject },
    handle: () => {
      if (events === undefined) {
        const error = 'EventsService is not provided on this context'
        return json(503, { total_dispatched: 0, by_event: {}, error })
      }
      const { total, byEvent } = events.counts()
      return { body: { total_dispatched: total, by_event: byEvent } }
    }
  }

  const retireService: Route = {
    method: 'POST',
    path: `${base}/services/{name}/retire`,
    operationId: 'retireService',
    summary: "Take a service of the kernel's own away, unless active fibers need it",
    guard: 'admin',
    replies: { 200: anyObject, 409: anyObject },
    errors: { AUDIT_FAILED: 503 },
    handle: async (request: NameRequest) => {
      const { name } = request.params
      try {
        const subject = ofService('service.retire', name)
        const { retired, type, woken } = await record(request, subject, async (recorded) => {
          await recorded
          return kernel.retireService(name)
        })
        const removed_type = retired ? type : null
        return { body: { retired, service: name, removed_type, cascaded_notify: woken } }
      } catch (error) {
        return json(409, { retired: false, service: name, ...refusalOf(error, name), cascaded_notify: false })
      }
    }
  }

  const provideService: Route = {
    method: 'POST',
    path: `${base}/services/{name}/provide`,
    operationId: 'provideService',
    summary: "Give a service of the kernel's own back",
    guard: 'admin',
    replies: { 200: anyObject, 400: anyObject },
    errors: { AUDIT_FAILED: 503 },
    handle: async (request: NameRequest) => {
      const { name } = request.params
      try {
        const subject = ofService('service.provide', name)
        const { provided, type } = await record(request, subject, async (recorded) => {
          await recorded
          return kernel.provideService(name)
        })
        const body = provided
          ? { provided, service: name, type }
          : { provided, service: name, reason: 'already present' }
        return { body }
      } catch (error) {
        if (!isCoded(error, 'SERVICE_NOT_DIRECT')) throw error
        const message = `service ${name} cannot be provided dynamically: only direct Cordis services with known constructors are supported today`
        return json(400, { error: message, code: 'INVALID_INPUT' })
      }
    }
  }

  const replaceProvider: Route<Record<string, string>, unknown, unknown> = {
    method: 'POST',
    path: `${base}/services/{name}/replace`,
    operationId: 'replaceProvider',
    summary: 'Swap a provider for one of another config; consumers find no gap',
    guard: 'admin',
    body: {},
    replies: {
      200: anyObject,
      400: anyObject,
      409: anyObject,
      412: anyObject,
      422: anyObject,
      500: anyObject,
      503: anyObject
    },
    handle: (request) => replace(kernel, request, record)
  }

  return [listServices, listUndo, countEvents, retireService, provideService, replaceProvider] as readonly Route[]
}

function ofService(action: string, id: string, body?: unknown): Subject {
  return { action, type: 'service', id, body }
}

async function replace(
  kernel: KernelControl,
  request: Request<Record<string, string>>,
  record: Recorder
): Promise<Reply> {
  const { params, body } = request
  const name = params['name'] as string
  const config = configOf(body)
  if (config === undefined) {
    const found = JSON.stringify(body)?.slice(0, 200) ?? 'nothing'
    const error = `body must be {"config": <value>} carrying the new provider configuration; got ${found}`
    return json(400, { replaced: false, error, code: 'INVALID_INPUT' })
  }
  return answered({ missing: { replaced: false }, refused: { replaced: false } }, async () => {
    try {
      const subject = ofService('service.replace', name, { config })
      const { plugin, fiberId } = await record(request, subject, (recorded) =>
        kernel.replaceProvider(name, config, { after: recorded })
      )
      return json(200, { replaced: true, plugin, fiber_id: fiberId })
    } catch (error) {
      if (!isCoded(error, 'PROVIDER_NOT_REPLACED')) throw error
      const issues = error.detail?.['issues']
      const reason = error.message
      return json(409, { replaced: false, service: name, reason, ...(issues === undefined ? {} : { issues }) })
    }
  })
}

/** `null` is an empty config; anything else that is no table is none. */
function configOf(body: unknown): JsonObject | undefined {
  if (body === null || typeof body !== 'object' || Array.isArray(body) || !Object.hasOwn(body, 'config'))
    return undefined
  const { config } = body as { config: unknown }
  if (config === null) return {}
  return typeof config === 'object' && !Array.isArray(config) ? (config as JsonObject) : undefined
}

/** What keeps a service from being retired, as the API says it. */
function refusalOf(error: unknown, name: string): object {
  if (isCoded(error, 'SERVICE_GUARDED')) return { reason: 'guarded', consumers: error.detail?.['consumers'] }
  if (!isCoded(error, 'SERVICE_NOT_DIRECT')) throw error
  return {
    error: `service ${name} is not retirably supported: only direct Cordis services (concrete-type provides) can be retired; wrapper services are not supported today`
  }
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
    provides: fiber.provides,
    faults: fiber.faults,
    last_fault: fiber.lastFault
  }
}
