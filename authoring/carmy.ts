import { type Awaitable, definePlugin, type Logger } from '../kernel/index.ts'
import type { GuardRequest, MountTarget, Principal } from '../plugins/http/types.ts'
import type { Tool, Tools } from '../plugins/tools/types.ts'
import { type EntryData, startKernel } from './start.ts'

export type { GuardRequest, MountTarget, Tool, Tools }
export { CodedError } from '../kernel/index.ts'
export { defineTool } from './define-tool.ts'

/** Who is calling, as the host program found out. Nothing of it is ever read from a request by the router itself. */
export interface TrustedCaller {
  /** Any stable name: `user:42`. Absent: anonymous. Request ids of one are unknown to all others. */
  readonly principal?: string
  /** A conversation or connection with request ids of its own. */
  readonly session?: string
  /** Such as `confirm:<tool>`. */
  readonly permissions?: Iterable<string>
}

export interface CarmyOptions {
  /** Name of the server in the discovery document. Default: `carmy`. */
  readonly name?: string
  readonly tools: readonly Tool[]
  /** Folder for what makes retries safe: request ids and their results. One process at a time. */
  readonly dataFolder: string
  /**
   * Says who is calling, for every request whose caller was not handed over with it. Default: everybody is anonymous,
   * and may use the tools that are `anonymous`. What it throws is a 500; a CodedError `UNAUTHORIZED` is a 401.
   */
  readonly caller?: (request: GuardRequest) => Awaitable<TrustedCaller>
  /** Nothing without a principal, the two documents included. Default: false. */
  readonly requireAuth?: boolean
  /** Deadline of tools that set none of their own. Default: 30,000. */
  readonly timeoutMs?: number
  /** Longest request body. Default: 1 MiB. */
  readonly maxBodyBytes?: number
  /** More plugins beside the router, such as `{ plugin: 'mcp' }`. */
  readonly entries?: readonly EntryData[]
  readonly log?: Logger
}

export interface Carmy {
  /** Answers a Web `Request`; 404 for a path that is not the router's. The host's own middleware goes around it. */
  fetch(request: Request, context?: { readonly caller?: TrustedCaller; readonly address?: string }): Promise<Response>
  /**
   * Mounts the router on an app of uWebSockets.js, beside the host's own routes.
   * @param patterns default: `/.well-known/agent` and `/agent/*`
   */
  mount(app: MountTarget, patterns?: readonly string[]): void
  /** The registry: call a tool in process, read the catalog. */
  readonly tools: Tools
  /** Ends what is under way and closes the data folder. Harmless when called again. */
  close(): Promise<void>
}

const defaultPatterns = ['/.well-known/agent', '/agent/*'] as const

/**
 * The router of carmy/1, for a program that has a server of its own.
 * @throws what is wrong with the options or a tool; CodedError `STORE_LOCKED` when another process has the folder
 */
export async function createCarmy(options: CarmyOptions): Promise<Carmy> {
  const { name = 'carmy', tools, dataFolder, caller, requireAuth = false, timeoutMs, maxBodyBytes, log } = options
  const host = definePlugin({
    name: 'carmy-host',
    inject: ['http', 'tools'],
    apply(ctx) {
      ctx.contribute('tools', ...tools)
      ctx.contribute('http.guards', {
        name: 'caller',
        scheme: {},
        check(request) {
          if (request.trusted !== undefined || caller === undefined) return request.trusted ?? toPrincipal({})
          const found = caller(request)
          return found instanceof Promise ? found.then(toPrincipal) : toPrincipal(found)
        },
        errors: { UNAUTHORIZED: 401 }
      })
    }
  })
  const given = <K extends string>(key: K, value: number | undefined) => (value === undefined ? {} : { [key]: value })
  const program = await startKernel({
    program: {
      entries: [
        { plugin: 'store', config: { path: dataFolder } },
        { plugin: 'http', config: { listen: false, embedded: true, ...given('max_body_bytes', maxBodyBytes) } },
        { plugin: 'tools', config: { ...given('timeout_ms', timeoutMs) } },
        { plugin: 'carmy', config: { server: name, require_auth: requireAuth } },
        { plugin: host },
        ...(options.entries ?? [])
      ]
    },
    ...(log === undefined ? {} : { log })
  })
  const idle = program.fibers().find((fiber) => fiber.state !== 'Active' && fiber.state !== 'Inactive')
  if (idle !== undefined) {
    const failure = program.failureOf(idle.entry)
    await program.stop()
    throw failure ?? new Error(`'${idle.entry}' is ${idle.state}: ${idle.error}`)
  }
  const http = program.service('http')
  return {
    fetch: async (request, { caller, address } = {}) =>
      http.fetch(request, {
        ...(caller === undefined ? {} : { principal: toPrincipal(caller) }),
        ...(address === undefined ? {} : { address })
      }),
    mount: (app, patterns = defaultPatterns) => http.mount(app, patterns),
    tools: program.service('tools'),
    close: () => program.stop()
  }
}

/** @throws TypeError for a caller that is none */
function toPrincipal({ principal, session, permissions }: TrustedCaller): Principal {
  // Another type, or a name that is missing, would make one caller of several, and somebody of nobody.
  if (principal !== undefined && (typeof principal !== 'string' || principal === '')) {
    throw new TypeError('the principal of a caller is a text that is not empty, or left out for one who is anonymous')
  }
  return {
    kind: principal === undefined ? 'anonymous' : 'host',
    id: principal ?? '',
    ...(session === undefined ? {} : { session }),
    ...(permissions === undefined ? {} : { permissions: new Set(permissions) })
  }
}
