import { randomUUID } from 'node:crypto'
import { definePlugin, schemaOf } from '../../kernel/index.ts'
import type {} from '../http/types.ts'
import type {} from '../store/types.ts'
import { maxTimeoutMs } from './registry.ts'
import { createSharedState, createTools } from './service.ts'
import type {} from './types.ts'

const config = schemaOf<{ timeout_ms: number }>({
  type: 'object',
  additionalProperties: false,
  properties: {
    timeout_ms: {
      type: 'integer',
      minimum: 1,
      maximum: maxTimeoutMs,
      default: 30_000,
      description: 'How long a tool may take, in milliseconds, unless it sets a time of its own'
    }
  }
})

export default definePlugin({
  name: 'tools',
  inject: ['store'],
  provides: ['tools'],
  config,
  async apply(ctx, { timeout_ms }) {
    // The number stands for the shape of the state: code that keeps another one starts with its own.
    const state = await ctx.resource('state', 1, createSharedState, () => {})
    const { tools, collector } = createTools({
      store: ctx.services.store,
      state,
      log: ctx.log,
      timeoutMs: timeout_ms,
      now: Date.now,
      monotonicMs: () => performance.now(),
      newExecutionId: () => `exec_${randomUUID()}`
    })
    ctx.provide('tools', tools)
    ctx.collect('tools', {
      ...collector,
      update(now) {
        const { revision } = tools
        collector.update(now)
        // Within the commit not everything is in its place yet.
        if (tools.revision !== revision) queueMicrotask(() => ctx.events.emit('tools/changed'))
      }
    })
    ctx.contribute('http.info', { name: 'tools', values: () => tools.list().map((tool) => tool.name) })
  }
})
