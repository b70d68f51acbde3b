import { once } from 'node:events'
import { createServer } from 'node:net'
import { CodedError, type Logger, messageOf } from '../../kernel/index.ts'
import { listenNode } from './node.ts'
import type { Server } from './transport.ts'
import { type LoadedUws, listenUws, loadUws } from './uws.ts'

export type TransportChoice = 'auto' | 'uws' | 'node'

/**
 * Opens the socket, on the transport that is asked for or that is there.
 * @throws CodedError `HTTP_PORT_IN_USE`, `HTTP_LISTEN_FAILED`, `HTTP_TRANSPORT_MISSING`
 */
export async function openServer(host: string, port: number, choice: TransportChoice, log: Logger): Promise<Server> {
  const uws = choice === 'node' ? undefined : await findUws(choice, log)
  if (uws === undefined) {
    try {
      return await listenNode(host, port)
    } catch (error) {
      throw toListenError(host, port, error)
    }
  }
  const server = listenUws(uws, host, port)
  if (server === undefined) throw await reasonNotToListen(host, port)
  if (uws.isOlderBuild) log.info(olderBuild)
  return server
}

const olderBuild =
  'this is the older build of uWebSockets.js, the one for Node 20: a request line that arrives in two pieces (a URL longer than about 1,400 bytes), more than 98 header lines and malformed headers end the connection; Node 22 or newer has no such limits, nor has transport = "node"'

async function findUws(choice: 'auto' | 'uws', log: Logger): Promise<LoadedUws | undefined> {
  try {
    return await loadUws()
  } catch (error) {
    if (choice === 'uws') throw error
    log.warn('serving with node:http, since uWebSockets.js does not load', { reason: messageOf(error) })
    return undefined
  }
}

/**
 * Looks whether the address can be had, and gives it back at once.
 * @throws CodedError `HTTP_PORT_IN_USE`, `HTTP_LISTEN_FAILED`
 */
export async function assertFree(host: string, port: number): Promise<void> {
  const probe = createServer()
  try {
    await once(probe.listen({ host, port, exclusive: true }), 'listening')
  } catch (error) {
    throw toListenError(host, port, error)
  }
  await new Promise((resolve) => probe.close(resolve))
}

/** uWebSockets.js does not say why it cannot listen; node does. */
async function reasonNotToListen(host: string, port: number): Promise<CodedError> {
  try {
    await assertFree(host, port)
  } catch (error) {
    return error as CodedError
  }
  return toListenError(host, port, new Error('uWebSockets.js could not listen, though node could'))
}

function toListenError(host: string, port: number, cause: unknown): CodedError {
  const reason = (cause as NodeJS.ErrnoException).code ?? messageOf(cause)
  const detail = { host, port, reason }
  if (reason === 'EADDRINUSE') {
    return new CodedError(
      'HTTP_PORT_IN_USE',
      `port ${port} on ${host} is in use; stop what listens there, or choose another port (PORT=…, or port in the config of http)`,
      { cause, detail }
    )
  }
  const advice: Readonly<Record<string, string>> = {
    EACCES: 'this user may not open that port; choose one from 1024 up',
    EADDRNOTAVAIL: 'this machine has no such address; 127.0.0.1, 0.0.0.0 and :: are always there',
    ENOTFOUND: 'the name of the host cannot be resolved'
  }
  return new CodedError('HTTP_LISTEN_FAILED', `cannot listen on ${host}, port ${port}: ${advice[reason] ?? reason}`, {
    cause,
    detail
  })
}
