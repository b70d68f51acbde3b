import { type Contribution, definePlugin, type Plugin } from '../../kernel/index.ts'
import type {} from '../http/types.ts'
import { createReadiness, type Limit } from './service.ts'
import type { ReadinessCheck } from './types.ts'

const limitMs = 5_000

export default readinessWithin((onOver) => {
  const timer = setTimeout(onOver, limitMs)
  return () => clearTimeout(timer)
})

/** @param limit starts the time a check has */
export function readinessWithin(limit: Limit): Plugin {
  return definePlugin({
    name: 'readiness',
    inject: ['http'],
    optional: ['kernel'],
    apply(ctx) {
      const { kernel } = ctx.services
      let checks: readonly Contribution<ReadinessCheck>[] = []
      let isStopping = false
      const look = createReadiness({
        checks: () => checks,
        serverState: () => (isStopping ? 'SHUTTING_DOWN' : (kernel?.isReady() ?? true) ? undefined : 'STARTING'),
        log: ctx.log,
        limit
      })
      ctx.collect('readiness.checks', { update: (now) => (checks = now) })
      ctx.on('kernel/stopping', () => (isStopping = true))
      ctx.contribute('http.routes', {
        method: 'GET',
        path: '/ready',
        operationId: 'getReadiness',
        summary: 'Tell whether this server should get requests',
        replies: { 200: readiness, 503: readiness },
        async handle() {
          const body = await look()
          return { status: body.ready ? 200 : 503, headers: { 'cache-control': 'no-store' }, body }
        }
      })
    }
  })
}

const readiness = {
  type: 'object',
  required: ['ready', 'checks'],
  properties: {
    ready: { type: 'boolean' },
    checks: {
      type: 'object',
      additionalProperties: {
        type: 'object',
        required: ['ok'],
        properties: { ok: { type: 'boolean' }, error: { type: 'string', description: 'A code' } }
      }
    }
  }
}
