/** Servers that do the same thing in their own way, each in a process, under the same load. */
import { measureLoad, sendOnce } from './load.ts'
import { startServer } from './process.ts'
import type { Read, Side } from './runner.ts'

/** By name: a module of `servers/` with its arguments. */
export type Servers = Readonly<Record<string, readonly [module: string, ...args: string[]]>>

export const ours = 'heartwood'
export const floor = 'bare uWebSockets.js'
export const servers: Servers = {
  [ours]: ['heartwood', 'uws'],
  [floor]: ['floor'],
  'node:http': ['peer', 'node'],
  fastify: ['peer', 'fastify'],
  hono: ['peer', 'hono'],
  'heartwood on node:http': ['heartwood', 'node']
}

export const figures = { cpuUs: 'CPU a request, µs', perSecond: 'requests a second', p99Ms: 'p99, ms' }

export const method =
  '64 keep-alive connections, one request in flight on each, 1 s a round, server and load on a core each'

export interface SideOptions {
  readonly request: Buffer
  /** Of the answer, whose status is 200. */
  readonly isRight: (body: Record<string, unknown>) => boolean
  /** 64 when left out. */
  readonly connections?: number
  /** For servers whose threads are the point. */
  readonly cores?: 'server' | 'all'
  /** Once, when the server has started. */
  readonly prepare?: (port: number) => Promise<unknown>
}

export function sidesOf(servers: Servers, options: SideOptions): Side[] {
  const { request, isRight, connections = 64, cores = 'server', prepare } = options
  return Object.entries(servers).map(([name, [module, ...args]]) => ({
    name,
    async setup() {
      const server = await startServer(new URL(`./servers/${module}.js`, import.meta.url), { args, cores })
      try {
        await prepare?.(server.port)
        const { status, body } = await sendOnce(server.port, request)
        if (status !== 200 || !isRight(JSON.parse(body) as Record<string, unknown>)) {
          throw new Error(`${name} answered ${status}: ${body}`)
        }
      } catch (error) {
        await server.stop()
        throw error
      }
      return { run: () => measureLoad(server, { request, connections }), teardown: () => server.stop() }
    }
  }))
}

/** Our CPU a request in those of `side`. */
export const against = (side: string) => (read: Read) => read(ours, 'cpuUs') / read(side, 'cpuUs')
