import type { McpHttpHandler, Server, WebStandardStreamableHTTPServerTransport } from '@modelcontextprotocol/server'
import type { Face } from './face.ts'
import type { Sdk } from './sdk.ts'

/** A client that is told when the catalog changes. */
export interface Listener {
  readonly server: Server
  /** The revision of the catalog it knows of. */
  told: number
  /** It can be told now. */
  isListening: boolean
}

/** A connection of the protocol's revisions up to 2025-11-25, over many requests. */
export interface Session extends Listener {
  readonly transport: WebStandardStreamableHTTPServerTransport
  /** Whose it is; nobody else gets to it. */
  readonly principal: string | undefined
  /** Calls that are running. */
  calls: number
  /** Milliseconds of a clock that only goes forward. */
  lastUsedMs: number
}

/** What all generations share: who is connected, and which generation answers them now. */
export interface SharedState {
  sdk: Sdk | undefined
  face: Face | undefined
  /** Makes a server for one request that stands for itself. */
  newServer: ((sdk: Sdk) => Server) | undefined
  /** Told of what went wrong out of band; never decides anything. */
  onError: (error: Error) => void
  /** By id. */
  readonly sessions: Map<string, Session>
  /** Serves revision 2026-07-28, where each request stands for itself. */
  modern: McpHttpHandler | undefined
  readonly pipes: Set<Listener>
  /** The revision of the catalog that was announced last. */
  announced: number
}

export function createSharedState(): SharedState {
  return {
    sdk: undefined,
    face: undefined,
    newServer: undefined,
    onError() {},
    sessions: new Map(),
    modern: undefined,
    pipes: new Set(),
    announced: 0
  }
}

/**
 * The one handler of requests that stand for themselves: it outlives the generation in which it was made, with the
 * streams it holds, and so keeps nothing of it. It stands here by itself, away from whatever else a closure would hold.
 */
export function modernOf(state: SharedState, sdk: Sdk): McpHttpHandler {
  state.modern ??= sdk.createMcpHandler(() => (state.newServer as (sdk: Sdk) => Server)(sdk), {
    legacy: 'reject',
    onerror: (error) => state.onError(error)
  })
  return state.modern
}

/** Ends every connection; what their calls had begun is cancelled. */
export async function closeSharedState({ sessions, modern, pipes }: SharedState): Promise<void> {
  const servers = [...sessions.values(), ...pipes].map(({ server }) => server)
  await Promise.all([...servers.map((server) => server.close()), modern?.close()])
}

/** Tells everybody who listens, once for each change. */
export function announceCatalog(state: SharedState, revision: number): void {
  if (state.announced === revision) return
  state.announced = revision
  for (const listener of [...state.sessions.values(), ...state.pipes]) tellCatalog(listener, revision)
  state.modern?.notify.toolsChanged()
}

/** Tells one client, unless it knows or cannot be told: then it is told when it listens again. */
export function tellCatalog(listener: Listener, revision: number): void {
  if (!listener.isListening || listener.told === revision) return
  listener.told = revision
  // Rejects when the client has gone meanwhile.
  listener.server.sendToolListChanged().catch(() => {})
}
