import { setMaxListeners } from 'node:events'
import { CodedError, type Collector, type Contribution, type Lease, type Logger } from '../../kernel/index.ts'
import { createPool, type Pool, type PoolSettings } from './pool.ts'
import type { Workers, WorkerTask } from './types.ts'
import type { Watch } from './watch.ts'

/** Settings of one pool in the program; what is left out has its default. */
export type Config = { readonly pools: Readonly<Record<string, Partial<PoolSettings>>> }

/** What outlives a generation: the pools and the tasks they know. */
export interface Pools extends Collector<WorkerTask> {
  /** Takes new settings. Pools whose settings change end what they have, and others take their place. */
  configure(config: Config): void
  /**
   * @param signals end the task when one of them fires
   * @param goesOn with work that was let in before
   */
  run(task: string | WorkerTask, input: unknown, signals: readonly AbortSignal[], goesOn: boolean): Promise<unknown>
  load: Workers['load']
  /** Resolves when all tasks have ended and all threads are gone. */
  close(): Promise<void>
}

/**
 * @param defaults of pools the program says nothing about, and of what it leaves out
 * @param watch closed with the pools
 * @param now milliseconds, monotonic
 */
export function createPools(defaults: PoolSettings, watch: Watch | undefined, log: Logger, now: () => number): Pools {
  const pools = new Map<string, Pool>()
  const closing = new Set<Promise<void>>()
  let tasks: ReadonlyMap<string, Contribution<WorkerTask>> = new Map()
  let config: Config = { pools: {} }

  const settingsOf = (name: string, task?: WorkerTask): PoolSettings => {
    const first = [...tasks.values()].find(({ item }) => item.pool === name)?.item ?? task
    const { idleTimeoutMs, maxHeapMb, maxOutputMb } = first?.poolDefaults ?? {}
    return {
      ...defaults,
      ...(idleTimeoutMs === undefined ? {} : { idle_timeout_ms: idleTimeoutMs }),
      ...(maxHeapMb === undefined ? {} : { max_heap_mb: maxHeapMb }),
      ...(maxOutputMb === undefined ? {} : { max_output_mb: maxOutputMb }),
      ...config.pools[name]
    }
  }

  function poolOf(task: WorkerTask): Pool {
    const name = task.pool
    let pool = pools.get(name)
    if (pool === undefined) {
      pool = createPool(name, settingsOf(name, task), watch, log, now)
      pools.set(name, pool)
    }
    return pool
  }

  function find(name: string): { readonly item: WorkerTask; readonly lease: Lease } {
    const contribution = tasks.get(name)
    if (contribution === undefined) {
      throw new CodedError('WORKERS_UNKNOWN_TASK', `no plugin in the program contributes task '${name}'`)
    }
    return { item: contribution.item, lease: contribution.lease() }
  }

  function close(pool: Pool): void {
    const closed = pool
      .close()
      .catch((error: unknown) => log.error('worker threads did not end', { error }))
      .finally(() => closing.delete(closed))
    closing.add(closed)
  }

  return {
    configure(next) {
      config = next
      for (const [name, pool] of pools) {
        if (isSame(pool.settings, settingsOf(name))) continue
        pools.delete(name)
        close(pool)
      }
    },
    check(next) {
      const owners = new Map<string, string>()
      for (const { item, entry } of next) {
        const other = owners.get(item.name)
        if (other !== undefined) {
          throw new CodedError(
            'WORKERS_DUPLICATE_TASK',
            `task '${item.name}' comes from '${other}' and from '${entry}'`
          )
        }
        owners.set(item.name, entry)
      }
    },
    update(next) {
      tasks = new Map(next.map((contribution) => [contribution.item.name, contribution]))
    },
    async run(task, input, signals, goesOn) {
      // Whoever runs a task of its own is held by what it is at.
      const { item, lease } = typeof task === 'string' ? find(task) : { item: task, lease: undefined }
      const first = firstOf(lease === undefined ? signals : [lease.signal, ...signals])
      try {
        const { name, module, isUnstoppable = false } = item
        return await poolOf(item).run(name, { module, input }, first.signal, { goesOn, isUnstoppable })
      } finally {
        first.forget()
        lease?.release()
      }
    },
    load() {
      const load: Record<string, NonNullable<ReturnType<Pool['load']>>> = {}
      for (const [name, pool] of pools) {
        const now = pool.load()
        if (now !== undefined) load[name] = now
      }
      return load
    },
    async close() {
      for (const pool of pools.values()) close(pool)
      pools.clear()
      await Promise.all(closing)
      watch?.close()
    }
  }
}

function isSame(a: PoolSettings, b: PoolSettings): boolean {
  return (Object.keys(a) as (keyof PoolSettings)[]).every((key) => a[key] === b[key])
}

/** `AbortSignal.any` for signals that live long: nothing of a finished task stays with them. */
function firstOf(signals: readonly AbortSignal[]): { readonly signal: AbortSignal; forget(): void } {
  const controller = new AbortController()
  const abort = (event: Event): void => controller.abort((event.target as AbortSignal).reason)
  // A queue full of tasks listens to one signal: that is no leak, which Node would suspect from the 11th on.
  setMaxListeners(0, ...signals)
  for (const signal of signals) {
    if (signal.aborted) controller.abort(signal.reason)
    else signal.addEventListener('abort', abort)
  }
  return {
    signal: controller.signal,
    forget: () => {
      for (const signal of signals) signal.removeEventListener('abort', abort)
    }
  }
}
