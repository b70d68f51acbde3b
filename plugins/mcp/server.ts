import type { Server, ServerContext } from '@modelcontextprotocol/server'
import { compileSchema, type JsonSchema, renderIssues } from '../../kernel/index.ts'
import type { Face, Origin } from './face.ts'
import type { Sdk } from './sdk.ts'

/** @param originOf who calls, and how a call ends; asked for each call */
export function createServer(sdk: Sdk, face: () => Face, originOf: (context: ServerContext) => Origin): Server {
  const server = new sdk.Server(face().server, {
    capabilities: { tools: { listChanged: true } },
    cacheHints: { 'tools/list': { ttlMs: 60_000, cacheScope: 'private' } },
    // Each server would otherwise bring a validator of its own, for the answers to forms.
    jsonSchemaValidator: { getValidator }
  })
  server.setRequestHandler('tools/list', () => face().list())
  server.setRequestHandler('tools/call', async ({ params }, context) => {
    const origin = originOf(context)
    try {
      return await face().call(params, context, origin)
    } finally {
      origin.done?.()
    }
  })
  return server
}

/** Whether the client at the other end can show a form to a person. */
export function canElicit(server: Server): boolean {
  const elicitation = server.getClientCapabilities()?.elicitation
  // Nothing said is a form: that was the only mode once.
  return elicitation !== undefined && (elicitation.form !== undefined || elicitation.url === undefined)
}

function getValidator<T>(schema: object) {
  const check = compileSchema(schema as JsonSchema)
  return (input: unknown) => {
    const issues = check(input)
    return issues.length === 0
      ? { valid: true as const, data: input as T, errorMessage: undefined }
      : { valid: false as const, data: undefined, errorMessage: renderIssues(issues) }
  }
}
