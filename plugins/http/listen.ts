import { createServer } from 'node:net'
import { CodedError, type Logger, messageOf } from '../../kernel/index.ts'
import { listenNode } from './node.ts'
import type { Server } from './transport.ts'
import { listenUws, loadUws } from './uws.ts'

export type TransportChoice = 'auto' | 'uws' | 'node'

/**
 * Opens the socket, on the transport that is asked for or that is there.
 * @throws CodedError `HTTP_PORT_IN_USE`, `HTTP_LISTEN_FAILED`, `HTTP_TRANSPORT_MISSING`
 */
export async function openServer(host: string, port: number, choice: TransportChoice, log: Logger): Promise<Server> {
  if (choice !== 'node') {
    try {
      const uws = await loadUws()
      const server = listenUws(uws.module, host, port)
      if (server === undefined) throw await reasonNotToListen(host, port)
      if (uws.isOlderBuild) {
        log.info(
          'this is the older build of uWebSockets.js (the one for Node 20): a URL longer than one network segment and malformed or more than 98 header lines end the connection without an answer; Node 22 or newer, or transport = "node", has no such limits'
        )
      }
      return server
    } catch (error) {
      if (error instanceof CodedError && error.code !== 'HTTP_TRANSPORT_MISSING') throw error
      if (choice === 'uws') throw error
      log.warn('uWebSockets.js does not load here; serving with node:http', { reason: messageOf(error) })
    }
  }
  try {
    return await listenNode(host, port)
  } catch (error) {
    throw toListenError(host, port, error)
  }
}

/** uWebSockets.js does not say why it cannot listen; node does. */
async function reasonNotToListen(host: string, port: number): Promise<CodedError> {
  const error = await new Promise<unknown>((resolve) => {
    const probe = createServer()
    probe.once('error', resolve)
    probe.listen({ host, port, exclusive: true }, () => {
      probe.close(() => resolve(new Error('uWebSockets.js could not listen, though node could')))
    })
  })
  return toListenError(host, port, error)
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
