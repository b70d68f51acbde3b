import { definePlugin, type Plugin, schemaOf } from '../../kernel/index.ts'
import type {} from '../audit/types.ts'
import type {} from '../http/types.ts'
import type {} from '../store/types.ts'
import { auditTool } from './audit-tool.ts'
import { createExecutionIds } from './execution-id.ts'
import { maxTimeoutMs } from './registry.ts'
import { grantsSchema, routes } from './routes.ts'
import { createSharedState, createTools, type Options } from './service.ts'
import type { Tool } from './types.ts'

interface Config extends Options {
  readonly operators: readonly string[]
}

const config = schemaOf<Config>({
  type: 'object',
  additionalProperties: false,
  properties: {
    timeout_ms: {
      type: 'integer',
      minimum: 1,
      maximum: maxTimeoutMs,
      default: 30_000,
      description: 'How long a tool may take, in milliseconds, unless it sets a time of its own'
    },
    max_output_bytes: {
      type: 'integer',
      minimum: 1,
      maximum: 268_435_456,
      default: 4_194_304,
      description: 'Longest output of a tool, as JSON'
    },
    request_id_ttl_seconds: {
      type: 'integer',
      minimum: 1,
      maximum: 31_536_000,
      default: 86_400,
      description: 'How long an answer is kept, and given again to whoever sends its request id. Uncertain ids stay'
    },
    max_request_ids: {
      type: 'integer',
      minimum: 1,
      maximum: 1_000_000_000,
      default: 100_000,
      description:
        'Request ids that are kept for one principal, and for all callers without a credential. A call with one more is refused'
    },
    grants: grantsSchema,
    require_tool_permission: {
      type: 'boolean',
      default: false,
      description: 'Every call needs the permission tool:<name>'
    },
    rate_limit: {
      type: 'object',
      required: ['max', 'window_ms'],
      additionalProperties: false,
      properties: {
        max: { type: 'integer', minimum: 1, maximum: 1_000_000_000 },
        window_ms: { type: 'integer', minimum: 1, maximum: 86_400_000 }
      },
      description: 'Calls of one principal in one window; callers without a credential share one'
    },
    log_executions: { type: 'boolean', default: true, description: 'One line in the log for each call' },
    operators: {
      type: 'array',
      items: { type: 'string', minLength: 1 },
      default: [],
      description: 'Principals that may use carmy_audit, such as "user:<id>"; without any there is no such tool'
    }
  }
})

const tendPeriodMs = 60_000

export default toolsAt(Date.now, () => performance.now())

/**
 * @param now Unix time in milliseconds
 * @param monotonicMs milliseconds of a clock that only goes forward
 */
export function toolsAt(now: () => number, monotonicMs: () => number): Plugin {
  return definePlugin({
    name: 'tools',
    inject: ['store'],
    optional: ['audit'],
    provides: ['tools'],
    config,
    async apply(ctx, config) {
      // The number stands for the shape of the state: code that keeps another one starts with its own.
      const state = await ctx.resource('state', 3, createSharedState, () => {})
      const { store, audit } = ctx.services
      const newExecutionId = createExecutionIds(now)
      const parts = createTools(config, { store, audit, state, log: ctx.log, now, monotonicMs, newExecutionId })
      const { tools, collector, grants, history, executions } = parts
      await grants.load()
      ctx.effect(() => () => parts.close(), 'old answers')
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
      if (config.operators.length > 0) ctx.contribute('tools', auditTool(history, config.operators) as Tool)
      ctx.contribute('http.info', { name: 'tools', values: () => tools.list().map((tool) => tool.name) })
      ctx.contribute('http.routes', ...routes(history, executions, grants))
      ctx.setTimeout(() => parts.tend(), 0)
      ctx.setInterval(() => parts.tend(), tendPeriodMs)
    }
  })
}
