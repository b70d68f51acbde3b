import { availableParallelism } from 'node:os'
import { definePlugin, schemaOf } from '../../kernel/index.ts'
import type {} from '../readiness/types.ts'
import type { PoolSettings } from './pool.ts'
import { assertUp } from './readiness.ts'
import { type Config, createPools } from './service.ts'
import type { RunOptions, Workers, WorkerTask } from './types.ts'
import { createWatch, type Watch } from './watch.ts'

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
          max_heap_mb: {
            type: 'integer',
            minimum: 16,
            maximum: 65_536,
            description:
              'What one thread may hold, JavaScript heap and buffers: it is ended with more. Default 128, or what its tasks need'
          },
          max_output_mb: {
            type: 'integer',
            minimum: 1,
            maximum: 1_024,
            description: 'About what the output of a task may take in memory; default 16'
          }
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
  // A task that fills it is out within a second or two, most of which it takes to fill it.
  max_heap_mb: 128,
  // What comes back is copied where requests are answered: 16 MB of text take some ten milliseconds there.
  max_output_mb: 16
})

/** `undefined` where Node was built without its inspector. */
async function openWatch(): Promise<Watch | undefined> {
  const inspector = await import('node:inspector').catch(() => undefined)
  return inspector && createWatch(() => new inspector.Session())
}

export default definePlugin({
  name: 'workers',
  provides: ['workers'],
  config,
  async apply(ctx, config) {
    const pools = await ctx.resource(
      'pools',
      null,
      async () => createPools(defaults(), await openWatch(), ctx.log, () => performance.now()),
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
