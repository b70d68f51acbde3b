import type { Caller } from '../tools/types.ts'
import type { Face } from './face.ts'
import type { Sdk } from './sdk.ts'
import { canElicit, createServer } from './server.ts'
import type { Listener, SharedState } from './state.ts'
import type { StdioClient } from './types.ts'

/** Serves one client over a pair of streams until either end closes them. */
export async function serveClient(
  state: SharedState,
  sdk: Sdk,
  caller: Caller,
  { input, output, onClosed }: StdioClient,
  onError: (error: Error) => void
): Promise<void> {
  const { serveStdio, StdioServerTransport } = await import('@modelcontextprotocol/server/stdio')
  const face = (): Face => state.face as Face
  const mine = new Set<Listener>()
  const transport = new StdioServerTransport(input, output)
  const close = transport.close.bind(transport)
  let closed: Promise<void> | undefined
  // Whoever ends the connection calls it, and those that hear of the end call it again.
  transport.close = () => {
    closed ??= (async () => {
      for (const pipe of mine) state.pipes.delete(pipe)
      await close()
      onClosed()
    })()
    return closed
  }
  serveStdio(
    () => {
      const server = createServer(sdk, face, () => ({ caller, canElicit: canElicit(server), endsWithClient: true }))
      const pipe: Listener = { server, told: face().revision, isListening: true }
      mine.add(pipe)
      state.pipes.add(pipe)
      return server
    },
    { transport, onerror: onError }
  )
}
