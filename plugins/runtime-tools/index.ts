import { type Contribution, definePlugin } from '../../kernel/index.ts'
import type { Route } from '../http/types.ts'
import type { RuntimeToolType } from './types.ts'

/** Tells which kinds of runtime tools the running program can execute: those that a plugin is there for. */
export default definePlugin({
  name: 'runtime-tools',
  apply(ctx) {
    let types: readonly Contribution<RuntimeToolType>[] = []
    ctx.collect('runtime-tools.types', { update: (now) => (types = now) })
    const capabilities = (path: string, operationId: string): Route => ({
      method: 'GET',
      path,
      operationId,
      summary: 'List the kinds of runtime tools that can be executed',
      guard: 'admin',
      replies: {
        200: {
          type: 'object',
          required: ['tool_types'],
          properties: { tool_types: { type: 'array', items: { type: 'string' } } }
        }
      },
      handle: () => ({ body: { tool_types: [...new Set(types.map(({ item }) => item.name))].sort() } })
    })
    ctx.contribute(
      'http.routes',
      capabilities('/api/mcp/runtime_tool_capabilities', 'getRuntimeToolCapabilities'),
      capabilities('/api/admin/runtime-tools/capabilities', 'listRuntimeToolTypes')
    )
  }
})
