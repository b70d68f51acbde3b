import { randomUUID } from 'node:crypto'
import { definePlugin, type Plugin, schemaOf } from '../../kernel/index.ts'
import type {} from '../audit/types.ts'
import type {} from '../http/types.ts'
import type {} from '../readiness/types.ts'
import type {} from '../store/types.ts'
import type { Tool } from '../tools/types.ts'
import { countJobs, createQueue } from './queue.ts'
import { routes } from './routes.ts'
import { assertTools, catchUpMs, createSchedules, type Schedule } from './schedules.ts'
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
  readonly max_dead_letters: number
  readonly keep_days: number
  readonly anonymous: boolean
  readonly operators: readonly string[]
  readonly schedules: readonly Schedule[]
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
    max_dead_letters: {
      type: 'integer',
      minimum: 1,
      default: 10_000,
      description: 'With so many no new job is taken until an operator has retried or discarded some'
    },
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
    },
    schedules: {
      type: 'array',
      default: [],
      description: 'Jobs that are made again and again, at times of UTC',
      items: {
        type: 'object',
        required: ['name', 'cron', 'tool'],
        additionalProperties: false,
        properties: {
          name: {
            type: 'string',
            pattern: '^[\\w.-]{1,64}$',
            description: 'The tool is called as schedule:<name>; the request id of a job is <name>@<time>'
          },
          cron: {
            type: 'string',
            description:
              'Second, minute, hour, day of the month, month, day of the week (as MON) and, if wanted, year: "0 30 6 * * MON-FRI *"'
          },
          tool: { type: 'string', minLength: 1 },
          arguments: { default: {}, description: 'What the tool is called with' },
          permissions: {
            type: 'array',
            items: { type: 'string', minLength: 1 },
            default: [],
            description: 'Such as "confirm:<tool>"'
          }
        }
      }
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
      const isReady = (): boolean => kernel?.isReady() ?? true
      // The number stands for the shape of the state: code that keeps another one starts with its own.
      const state = await ctx.resource(
        'state',
        2,
        async (): Promise<WorkerState> => ({ ...(await countJobs(store)), worker: undefined, running: new Map() }),
        () => {}
      )
      const queue = createQueue({
        store,
        audit,
        state,
        maxAttempts: config.max_attempts,
        maxJobs: config.max_jobs,
        maxDeadLetters: config.max_dead_letters,
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
        isReady
      })
      const schedules = createSchedules({
        schedules: config.schedules,
        jobs: queue,
        clock,
        log: ctx.log,
        isActive: () => state.worker === worker && isReady(),
        hold: () => ctx.lease()
      })
      if (isReady()) assertTools(config.schedules, tools)
      ctx.effect(() => () => worker.end(), 'worker')
      ctx.effect(() => () => schedules.end(), 'schedules')
      // Another generation, or none, works from the very step on in which this one leaves.
      ctx.collect('jobs.workers', {
        update(now) {
          state.worker = now.at(-1)?.item
          state.worker?.wake()
          schedules.wake()
        }
      })
      ctx.contribute('jobs.workers', worker)
      ctx.on('kernel/started', () => {
        worker.wake()
        schedules.wake()
        try {
          assertTools(config.schedules, tools)
        } catch (error) {
          ctx.log.error('a schedule cannot do its work', { error })
        }
      })
      ctx.on('kernel/stopping', () => {
        worker.stop()
        schedules.end()
      })

      ctx.provide('jobs', queue)
      ctx.contribute('tools', jobTool(queue, config.anonymous) as Tool)
      if (config.operators.length > 0) ctx.contribute('tools', deadLettersTool(queue, config.operators) as Tool)
      ctx.contribute('http.routes', ...routes(queue))
      ctx.contribute('readiness.checks', { name: 'jobs', check: () => worker.check() })
      // What a schedule makes up for has to be recognised.
      const keepMs = Math.max(config.keep_days * dayMs, 2 * catchUpMs)
      const purge = (): Promise<number> => queue.purge(clock.now() - keepMs)
      ctx.setTimeout(purge, 0)
      ctx.setInterval(purge, purgePeriodMs)
    }
  })
}
