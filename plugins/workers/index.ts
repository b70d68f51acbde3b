import { availableParallelism } from 'node:os'
import { definePlugin, schemaOf } from '../../kernel/index.ts'
import type {} from '../readiness/types.ts'
import type { PoolSettings } from './pool.ts'
import { assertUp } from './readiness.ts'
import { type Config, createPools } from './service.ts'
import type { RunOptions, Workers, WorkerTask } from './types.ts'

const config = schemaOf<Config>({
  type: 'object',
  additionalProperties: false,
  properties: {
    pools: {
      type: 'object',
      default: {},
      description: 'Settings by name of the pool; a pool that is not named has the defaults',
      additionalProperties: {
        type: 'object',
        additionalProperties: false,
        properties: {
          max_threads: { type: 'integer', minimum: 1, maximum: 256, description: 'Default: one a core, at most 3' },
          max_queue: { type: 'integer', minimum: 0, description: 'Tasks that may wait for a thread; default 64' },
          idle_timeout_ms: {
            type: 'integer',
            minimum: 0,
            description: 'Life of a thread without work; default 30,000'
          },
          max_heap_mb: { type: 'integer', minimum: 16, description: 'JavaScript heap of one thread; default 512' }
        }
      }
    }
  }
})

/**
 * Native work of a task (argon2) runs on libuv's four threads, which files, DNS and WebCrypto share: by default at
 * least one of them stays free.
 */
const defaults = (): PoolSettings => ({
  max_threads: Math.min(3, availableParallelism()),
  max_queue: 64,
  idle_timeout_ms: 30_000,
  max_heap_mb: 512
})

export default definePlugin({
  name: 'workers',
  provides: ['workers'],
  config,
  async apply(ctx, config) {
    const pools = await ctx.resource(
      'pools',
      null,
      () => createPools(defaults(), ctx.log, () => performance.now()),
      (pools) => pools.close()
    )
    const workers: Workers = {
      run: <T>(task: string | WorkerTask, input: unknown, { signal, goesOn = false }: RunOptions = {}) =>
        pools.run(task, input, signal ? [ctx.signal, signal] : [ctx.signal], goesOn) as Promise<T>,
      load: () => pools.load()
    }
    ctx.provide('workers', workers)
    ctx.collect('workers.tasks', pools)
    ctx.contribute('readiness.checks', { name: 'workers', check: () => assertUp(pools.load()) })
    ctx.onCommit(() => pools.configure(config))
  }
})
