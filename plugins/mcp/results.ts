import type { CallToolResult } from '@modelcontextprotocol/server'
import type { ExecutionResponse } from '../tools/types.ts'

/** @param withIds tells the execution's id and status of a success, too */
export function toCallToolResult(response: ExecutionResponse, withIds: boolean): CallToolResult {
  const { error, data } = response
  const meta = metaOf(response, withIds)
  if (error !== undefined) {
    return { isError: true, content: [{ type: 'text', text: JSON.stringify({ error }) }], _meta: meta ?? {} }
  }
  return {
    content: [{ type: 'text', text: JSON.stringify(data) }],
    ...(isRecord(data) ? { structuredContent: data } : {}),
    ...(meta === undefined ? {} : { _meta: meta })
  }
}

function metaOf(response: ExecutionResponse, withIds: boolean): Record<string, unknown> | undefined {
  const { execution_id, status, error, _agent } = response
  const { next_actions } = _agent
  if (error === undefined && !withIds && next_actions.length === 0) return undefined
  return {
    ...(error === undefined ? {} : { 'carmy/error': error }),
    'carmy/execution_id': execution_id,
    'carmy/status': status,
    ...(next_actions.length === 0 ? {} : { 'carmy/next_actions': next_actions })
  }
}

function isRecord(value: unknown): value is Record<string, unknown> {
  return typeof value === 'object' && value !== null && !Array.isArray(value)
}
