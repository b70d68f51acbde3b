import type { Readable, Writable } from 'node:stream'
import type {} from '../../kernel/index.ts'

/** One client at the other end of a pair of streams: lines of JSON-RPC, nothing else. */
export interface StdioClient {
  readonly input: Readable
  readonly output: Writable
  /** The client has closed its end, or this server has ended the connection. Called once. */
  readonly onClosed: () => void
}

/** The tools, as the Model Context Protocol shows them. The same over HTTP, on a route of its own. */
export interface Mcp {
  /** Resolves when the client is listened to. Its calls are those of the trusted caller `local:stdio`. */
  serveStdio(client: StdioClient): Promise<void>
}

declare module '../../kernel/index.ts' {
  interface Services {
    mcp: Mcp
  }
}
