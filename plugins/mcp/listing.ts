import type { Tool } from '@modelcontextprotocol/server'
import type { JsonSchema } from '../../kernel/index.ts'
import type { ToolDescription } from '../tools/types.ts'

/** A tool of the catalog as MCP lists it. Its schemas go out as they are, where MCP can hold them. */
export function toMcpTool(tool: ToolDescription): Tool {
  const { name, description, input_schema, output_schema, effect, idempotent, parallel_safe, confirmation } = tool
  return {
    name,
    description,
    inputSchema: toObjectSchema(input_schema),
    ...(output_schema['type'] === 'object' ? { outputSchema: output_schema as Tool['outputSchema'] & object } : {}),
    annotations: {
      readOnlyHint: effect === 'none' || effect === 'read',
      destructiveHint: effect === 'destructive',
      idempotentHint: idempotent,
      openWorldHint: effect === 'external_write'
    },
    _meta: {
      'carmy/effect': effect,
      'carmy/confirmation': confirmation,
      'carmy/parallel_safe': parallel_safe
    }
  }
}

/** The arguments of MCP are always an object: a schema for something else lists as that of any. */
function toObjectSchema(schema: JsonSchema): Tool['inputSchema'] {
  const { type } = schema
  if (type === 'object') return schema as Tool['inputSchema']
  const takesObjects = type === undefined || (Array.isArray(type) && type.includes('object'))
  return (takesObjects ? { ...schema, type: 'object' } : { type: 'object' }) as Tool['inputSchema']
}
