import type {
  CallToolResult,
  InputRequiredResult,
  ListToolsResult,
  ServerContext,
  Tool
} from '@modelcontextprotocol/server'
import { CodedError, isCoded } from '../../kernel/index.ts'
import type { Caller, Execution, ExecuteRequest, ToolDescription, Tools } from '../tools/types.ts'
import { toMcpTool } from './listing.ts'
import { toCallToolResult } from './results.ts'
import type { Sdk } from './sdk.ts'

export interface FaceOptions {
  /** Tells the execution's id and status of successes, too. */
  readonly withIds: boolean
  /** A client that can ask a person may answer for one: see `elicit_confirmation`. */
  readonly elicitConfirmation: boolean
}

/** Who makes a call, and what tells that it is pointless. */
export interface Origin {
  readonly caller: Caller
  /** The client can show a form to a person. */
  readonly canElicit: boolean
  /** Fires when the request's connection, server or generation ends; made when it is first read. */
  readonly ended?: () => AbortSignal
  /** The protocol has the client's leave cancel the call; otherwise it runs on, and its answer waits for a replay. */
  readonly endsWithClient: boolean
  readonly done?: () => void
}

export interface CallParams {
  readonly name: string
  readonly arguments?: Record<string, unknown> | undefined
}

/** What every connection asks, whichever generation it began with. */
export interface Face {
  readonly server: { readonly name: string; readonly version: string }
  list(): ListToolsResult
  call(params: CallParams, context: ServerContext, origin: Origin): Promise<CallToolResult | InputRequiredResult>
  /** Of the catalog: another number means another list. */
  readonly revision: number
}

export function createFace(
  tools: Tools,
  sdkNow: () => Sdk,
  server: Face['server'],
  { withIds, elicitConfirmation }: FaceOptions
): Face {
  let of: readonly ToolDescription[] | undefined
  let listed: Tool[] = []

  return {
    server,
    list() {
      const descriptions = tools.list()
      if (descriptions !== of) {
        of = descriptions
        listed = descriptions.map(toMcpTool)
      }
      return { tools: listed }
    },
    async call({ name, arguments: input = {} }, context, { caller, canElicit, ended, endsWithClient }) {
      const sdk = sdkNow()
      const { _meta: meta, inputResponses, signal } = context.mcpReq
      const requestId = meta?.['carmy/request_id']
      const mayAsk = elicitConfirmation && needsConfirmation(tools.get(name), caller)
      const isConfirmed =
        mayAsk && sdk.acceptedContent<{ confirm?: unknown }>(inputResponses, 'confirm')?.confirm === true
      const request: ExecuteRequest = {
        tool: name,
        arguments: input,
        requestId: typeof requestId === 'string' ? requestId : undefined,
        caller: isConfirmed ? confirmed(caller, name) : caller,
        signal: () => cancelSignal(signal, ended?.(), endsWithClient),
        listener: progressListener(context)
      }
      const { response }: Execution = await tools.execute(request)
      const { error } = response
      if (error?.code === 'TOOL_NOT_FOUND' && tools.get(name) === undefined) {
        throw new sdk.ProtocolError(sdk.INVALID_PARAMS, error.message, { error })
      }
      if (error?.code === 'CONFIRMATION_REQUIRED' && mayAsk && canElicit && inputResponses?.['confirm'] === undefined) {
        return sdk.inputRequired({ inputRequests: { confirm: sdk.inputRequired.elicit(confirmationForm(name)) } })
      }
      return toCallToolResult(response, withIds)
    },
    get revision() {
      return tools.revision
    }
  }
}

function needsConfirmation(tool: ToolDescription | undefined, { permissions }: Caller): boolean {
  if (tool === undefined) return false
  const asks = tool.effect === 'destructive' || tool.confirmation === 'required'
  return asks && permissions?.has(`confirm:${tool.name}`) !== true
}

/** For this one call. */
function confirmed(caller: Caller, tool: string): Caller {
  return { ...caller, permissions: new Set([...(caller.permissions ?? []), `confirm:${tool}`]) }
}

function confirmationForm(tool: string) {
  return {
    message: `The tool '${tool}' needs your confirmation. Shall it run?`,
    requestedSchema: {
      type: 'object' as const,
      required: ['confirm'],
      properties: { confirm: { type: 'boolean' as const, title: 'Confirm', description: `Let '${tool}' run once` } }
    }
  }
}

/** One signal for the tool, whose reason the pipeline understands: `CLIENT_GONE` when nobody will hear the answer. */
function cancelSignal(request: AbortSignal, ended: AbortSignal | undefined, endsWithClient: boolean): AbortSignal {
  const controller = new AbortController()
  const stop = (): void => {
    if (ended?.aborted === true) controller.abort(ended.reason)
    else controller.abort(request.reason instanceof Error ? connectionClosed(request.reason) : request.reason)
  }
  const end = (): void => {
    if (endsWithClient || !isCoded(ended?.reason, 'CLIENT_GONE')) stop()
  }
  if (request.aborted) stop()
  else request.addEventListener('abort', stop, { once: true })
  if (ended?.aborted === true) end()
  else ended?.addEventListener('abort', end, { once: true })
  return controller.signal
}

/** A cancellation brings the client's text along, or nothing; an Error is the end of the connection. */
function connectionClosed(cause: Error): CodedError {
  return new CodedError('CLIENT_GONE', 'the connection ended before the call did', { cause })
}

/** @returns `undefined` where the client did not ask to be told */
function progressListener({ mcpReq }: ServerContext): ExecuteRequest['listener'] {
  const progressToken = mcpReq._meta?.progressToken
  if (progressToken === undefined) return undefined
  // The protocol wants each to be more than the one before: what only repeats it (a partial result) is not told.
  let last = Number.NEGATIVE_INFINITY
  return (event) => {
    if (event.event !== 'tool.progress' || event.data.progress <= last) return
    const { progress, total, message } = event.data
    last = progress
    const params = {
      progressToken,
      progress,
      ...(total === undefined ? {} : { total }),
      ...(message === undefined ? {} : { message })
    }
    // Rejects when the connection is gone, which the call learns by its signal.
    mcpReq.notify({ method: 'notifications/progress', params }).catch(() => {})
  }
}
