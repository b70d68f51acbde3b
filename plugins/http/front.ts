import { closedDoor, type Dispatcher } from './dispatcher.ts'
import type { Server, ServerLimits } from './transport.ts'

/** What all generations of the plugin share: the sockets, and who answers on them now. */
export class Front {
  readonly #prefix: string
  readonly #servers = new Set<Server>()
  /** Places in somebody else's server: they stay for as long as that does. */
  readonly #mounts = new Set<Pick<Server, 'use'>>()
  #dispatcher: Dispatcher | undefined
  #requests = 0

  /** @param prefix begins every id; random, so that ids of two processes differ */
  constructor(prefix: string) {
    this.#prefix = prefix
  }

  readonly nextId = (): string => {
    this.#requests += 1
    return this.#prefix + this.#requests
  }

  /** The moment of a commit: all sockets answer through `dispatcher`; those that it did not ask for are drained. */
  point(dispatcher: Dispatcher, server: Server | undefined, limits: ServerLimits): void {
    this.#dispatcher = dispatcher
    if (server !== undefined) this.#servers.add(server)
    for (const mount of this.#mounts) mount.use(dispatcher, limits)
    for (const each of this.#servers) {
      each.use(dispatcher, limits)
      if (each !== server) each.drain()
    }
  }

  /** Nobody new gets in, unless `dispatcher` has been replaced already. */
  stop(dispatcher: Dispatcher, limits: ServerLimits): void {
    if (this.#dispatcher !== dispatcher) return
    for (const mount of this.#mounts) mount.use(closedDoor(dispatcher), limits)
    for (const each of this.#servers) {
      each.use(closedDoor(dispatcher), limits)
      each.drain()
    }
  }

  mount(mount: Pick<Server, 'use'>, limits: ServerLimits): void {
    this.#mounts.add(mount)
    if (this.#dispatcher !== undefined) mount.use(this.#dispatcher, limits)
  }

  async close(server: Server): Promise<void> {
    this.#servers.delete(server)
    await server.close()
  }
}
