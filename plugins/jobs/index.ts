import { randomUUID } from 'node:crypto'
import { definePlugin, type Plugin, schemaOf } from '../../kernel/index.ts'
import type {} from '../audit/types.ts'
import type {} from '../http/types.ts'
import type {} from '../readiness/types.ts'
import type {} from '../store/types.ts'
import type { Tool } from '../tools/types.ts'
import { countLive, createQueue } from './queue.ts'
import { routes } from './routes.ts'
import { deadLettersTool, jobTool } from './tools.ts'
import type {} from './types.ts'
import { type Clock, createWorker, systemClock, type WorkerState } from './worker.ts'

interface Config {
  readonly concurrency: number
  readonly max_attempts: number
  readonly backoff_ms: number
  readonly max_backoff_ms: number
  readonly lease_ms: number
  readonly max_jobs: number
  readonly keep_days: number
  readonly anonymous: boolean
  readonly operators: readonly string[]
}

const config = schemaOf<Config>({
  type: 'object',
  additionalProperties: false,
  properties: {
    concurrency: { type: 'integer', minimum: 1, maximum: 256, default: 4, description: 'Jobs that run at once' },
    max_attempts: {
      type: 'integer',
      minimum: 1,
      maximum: 100,
      default: 5,
      description: 'Times a tool is called before its job is dead-lettered'
    },
    backoff_ms: {
      type: 'integer',
      minimum: 0,
      default: 1_000,
      description: 'Wait before the second attempt; it doubles with each one after that'
    },
    max_backoff_ms: {
      type: 'integer',
      minimum: 0,
      default: 300_000,
      description: 'Longest wait, unless a tool asks for more'
    },
    lease_ms: {
      type: 'integer',
      minimum: 1_000,
      default: 15_000,
      description: 'After such a time without a sign of life a running job is taken up again'
    },
    max_jobs: { type: 'integer', minimum: 1, default: 100_000, description: 'Jobs that may be queued or running' },
    keep_days: {
      type: 'integer',
      minimum: 0,
      default: 7,
      description: 'Days that ended jobs are kept, and recognised by their request ids; dead letters stay'
    },
    anonymous: {
      type: 'boolean',
      default: false,
      description: 'Callers without a credential may use carmy_job; they see only jobs of webhooks, by their ids'
    },
    operators: {
      type: 'array',
      items: { type: 'string', minLength: 1 },
      default: [],
      description: 'Principals that may use carmy_dead_letters, such as "user:<id>"; without any there is no such tool'
    }
  }
})

const purgePeriodMs = 600_000
const dayMs = 86_400_000

export default jobsAt(systemClock)

export function jobsAt(clock: Clock): Plugin {
  return definePlugin({
    name: 'jobs',
    inject: ['store', 'tools'],
    optional: ['audit', 'kernel'],
    provides: ['jobs'],
    config,
    async apply(ctx, config) {
      const { store, tools, audit, kernel } = ctx.services
      // The number stands for the shape of the state: code that keeps another one starts with its own.
      const state = await ctx.resource(
        'state',
        1,
        async (): Promise<WorkerState> => ({ live: await countLive(store), worker: undefined, running: new Map() }),
        () => {}
      )
      const queue = createQueue({
        store,
        audit,
        state,
        maxAttempts: config.max_attempts,
        maxJobs: config.max_jobs,
        now: () => clock.now(),
        randomUUID,
        wake: () => state.worker?.wake()
      })
      const worker = createWorker({
        queue,
        tools,
        state,
        concurrency: config.concurrency,
        leaseMs: config.lease_ms,
        backoffMs: config.backoff_ms,
        maxBackoffMs: config.max_backoff_ms,
        clock,
        log: ctx.log,
        hold: () => ctx.lease(),
        isReady: () => kernel?.isReady() ?? true
      })
      ctx.effect(() => () => worker.end(), 'worker')
      // Another generation, or none, works from the very step on in which this one leaves.
      ctx.collect('jobs.workers', {
        update(now) {
          state.worker = now.at(-1)?.item
          state.worker?.wake()
        }
      })
      ctx.contribute('jobs.workers', worker)
      ctx.on('kernel/started', () => worker.wake())
      ctx.on('kernel/stopping', () => worker.stop())

      ctx.provide('jobs', queue)
      ctx.contribute('tools', jobTool(queue, config.anonymous) as Tool)
      if (config.operators.length > 0) ctx.contribute('tools', deadLettersTool(queue, config.operators) as Tool)
      ctx.contribute('http.routes', ...routes(queue))
      ctx.contribute('readiness.checks', { name: 'jobs', check: () => worker.check() })
      const purge = (): Promise<number> => queue.purge(clock.now() - config.keep_days * dayMs)
      ctx.setTimeout(purge, 0)
      ctx.setInterval(purge, purgePeriodMs)
    }
  })
}
