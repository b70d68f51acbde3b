/**
 * One measurement of one side of the bench `kernel`, in a process of its own: `kernel-side.js <side> <what> <n>` sends
 * the number to the bench. Starting a program happens once in the life of a process, so nothing is warmed up for it.
 */
import { EventEmitter } from 'node:events'
import { asValue, createContainer } from 'awilix'
import { definePlugin, type Context as HeartwoodContext, type Plugin } from '../kernel/index.ts'
import { Kernel } from '../kernel/kernel.ts'
import { loadPeer } from './peers.ts'

type Measure = (n: number) => Promise<number>

const gc = (globalThis as { gc?: () => void }).gc
const services = ['s0', 's1', 's2', 's3', 's4', 's5', 's6', 's7']
const names = (n: number) => Array.from({ length: n }, (_, at) => `s${at}`)

/** CPU time of this process in milliseconds: what a busy machine distorts least. Nothing here waits for anything else. */
function cpuMs(): number {
  const { user, system } = process.cpuUsage()
  return (user + system) / 1000
}

/** Milliseconds until `load` resolves. */
async function timed(load: () => unknown): Promise<number> {
  const startedAt = cpuMs()
  await load()
  return cpuMs() - startedAt
}

/** Nanoseconds for one of the eight reads, under names that are only known at run time. */
function timedReads(read: (name: string) => unknown): number {
  const kept: unknown[] = [] // what was read is stored, or the loop would be optimised away
  const once = (count: number) => {
    for (let at = 0; at < count; at++) kept[at & 7] = read(services[at & 7]!)
  }
  return perCall(once, 2_000_000)
}

/** Nanoseconds a call of `work(count)` takes for each of its `count`, after a quarter of it as warm-up. */
function perCall(work: (count: number) => void, count: number): number {
  work(count >> 2)
  const startedAt = cpuMs()
  work(count)
  return ((cpuMs() - startedAt) * 1e6) / count
}

/** Bytes of heap that `mount` leaves for each of `n`. */
async function heapOf(n: number, mount: () => unknown): Promise<number> {
  gc?.()
  gc?.()
  const before = process.memoryUsage().heapUsed
  const kept = await mount()
  gc?.()
  gc?.()
  const bytes = (process.memoryUsage().heapUsed - before) / n
  if (kept === undefined) throw new Error('the mounted plugins must be reachable')
  return bytes
}

// biome-ignore lint/suspicious/noExplicitAny: services and events of the bench are in no contract
const untyped = (name: string) => name as any

function heartwood() {
  const chain = (n: number) =>
    names(n).map((name, at) =>
      definePlugin({
        name: `plugin-${name}`,
        inject: at === 0 ? [] : [untyped(`s${at - 1}`)],
        provides: [untyped(name)],
        apply(ctx) {
          const value =
            at === 0 ? 0 : (ctx.services as unknown as Record<string, { value(): number }>)[`s${at - 1}`]!.value() + 1
          ctx.provide(untyped(name), { value: () => value } as never)
        }
      })
    )
  const load = async (plugins: readonly Plugin[], last: string) => {
    const kernel = new Kernel()
    await Promise.all(plugins.map((plugin) => kernel.begin({ id: plugin.name, plugin })))
    await kernel.settled()
    assertEqual((kernel.service(untyped(last)) as { value(): number }).value(), plugins.length - 1)
    return kernel
  }
  const within = async (run: (ctx: HeartwoodContext) => number): Promise<number> => {
    const kernel = new Kernel()
    let result = 0
    for (const name of services) {
      const provider = definePlugin({
        name,
        provides: [untyped(name)],
        apply: (ctx) => ctx.provide(untyped(name), { value: () => 1 } as never)
      })
      await kernel.begin({ id: name, plugin: provider })
    }
    const reader = definePlugin({
      name: 'reader',
      inject: services.map(untyped),
      apply(ctx) {
        ctx.setTimeout(() => {
          result = run(ctx as HeartwoodContext)
        }, 0)
      }
    })
    await kernel.begin({ id: 'reader', plugin: reader })
    while (result === 0) await new Promise((resolve) => setTimeout(resolve, 1))
    await kernel.stop()
    return result
  }
  return {
    chain: async (n: number) => {
      const plugins = chain(n)
      return timed(() => load(plugins, `s${n - 1}`))
    },
    reverse: async (n: number) => {
      const plugins = chain(n).reverse()
      return timed(() => load(plugins, `s${n - 1}`))
    },
    read: () =>
      within((ctx) => {
        const injected = ctx.services as unknown as Record<string, unknown>
        return timedReads((name) => injected[name])
      }),
    call: () =>
      within((ctx) => {
        const injected = ctx.services as unknown as Record<string, { value(): number }>
        return timedReads((name) => injected[name]!.value())
      }),
    emit: () =>
      within((ctx) => {
        let sum = 0
        for (let at = 0; at < 10; at++) ctx.on(untyped('bench/tick'), (n: number) => (sum += n))
        const emit = ctx.events.emit.bind(ctx.events) as (event: string, n: number) => void
        return perCall((count) => {
          for (let at = 0; at < count; at++) emit('bench/tick', at)
        }, 500_000)
      }),
    heap: async (n: number) => {
      const kernel = new Kernel()
      const plugins = names(n).map((name) => definePlugin({ name, apply: () => {} }))
      return heapOf(n, async () => {
        for (const plugin of plugins) await kernel.begin({ id: plugin.name, plugin })
        return kernel
      })
    }
  }
}

async function cordis() {
  const { Context } = await loadPeer('cordis')
  const chain = (n: number) =>
    names(n).map((name, at) => ({
      name: `plugin-${name}`,
      inject: at === 0 ? [] : [`s${at - 1}`],
      // biome-ignore lint/suspicious/noExplicitAny: the peer is untyped here
      apply(ctx: any) {
        const value = at === 0 ? 0 : ctx[`s${at - 1}`].value() + 1
        ctx.provide(name, { value: () => value })
      }
    }))
  const load = async (plugins: readonly unknown[], last: string) => {
    const ctx = new Context()
    await Promise.all(plugins.map((plugin) => ctx.plugin(plugin)))
    while (ctx.get(last) === undefined) await new Promise((resolve) => setImmediate(resolve))
    assertEqual(ctx.get(last).value(), plugins.length - 1)
  }
  // biome-ignore lint/suspicious/noExplicitAny: the peer is untyped here
  const within = async (run: (ctx: any) => number): Promise<number> => {
    const ctx = new Context()
    for (const name of services) ctx.provide(name, { value: () => 1 })
    return new Promise((resolve, reject) => {
      ctx.plugin({
        inject: services,
        // biome-ignore lint/suspicious/noExplicitAny: the peer is untyped here
        apply(inner: any) {
          setTimeout(() => {
            try {
              resolve(run(inner))
            } catch (error) {
              reject(error as Error)
            }
          }, 0)
        }
      })
    })
  }
  return {
    chain: async (n: number) => {
      const plugins = chain(n)
      return timed(() => load(plugins, `s${n - 1}`))
    },
    reverse: async (n: number) => {
      const plugins = chain(n).reverse()
      return timed(() => load(plugins, `s${n - 1}`))
    },
    read: () => within((ctx) => timedReads((name) => ctx[name])),
    call: () => within((ctx) => timedReads((name) => ctx[name].value())),
    emit: () =>
      within((ctx) => {
        let sum = 0
        for (let at = 0; at < 10; at++) ctx.on('bench/tick', (n: number) => (sum += n))
        return perCall((count) => {
          for (let at = 0; at < count; at++) ctx.emit('bench/tick', at)
        }, 50_000)
      }),
    heap: async (n: number) => {
      const ctx = new Context()
      const plugins = names(n).map((name) => ({ name, apply: () => {} }))
      return heapOf(n, async () => {
        for (const plugin of plugins) await ctx.plugin(plugin)
        return ctx
      })
    }
  }
}

async function avvio() {
  const { default: boot } = await loadPeer('avvio')
  return {
    chain: async (n: number) => {
      // biome-ignore lint/suspicious/noExplicitAny: the peer is untyped here
      const plugins = names(n).map((name, at) => async (instance: any) => {
        const value = at === 0 ? 0 : instance[`s${at - 1}`].value() + 1
        instance[name] = { value: () => value }
      })
      return timed(async () => {
        // biome-ignore lint/suspicious/noExplicitAny: the peer is untyped here
        const instance: any = {}
        const app = boot(instance, { autostart: false, timeout: 0 })
        for (const plugin of plugins) instance.use(plugin)
        app.start()
        await instance.ready()
        assertEqual(instance[`s${n - 1}`].value(), n - 1)
      })
    }
  }
}

async function fastify() {
  const { default: create } = await loadPeer('fastify')
  return {
    heap: async (n: number) => {
      const app = create({ pluginTimeout: 0 })
      const plugins = names(n).map(() => async () => {})
      return heapOf(n, async () => {
        for (const plugin of plugins) app.register(plugin)
        await app.ready()
        return app
      })
    }
  }
}

function map() {
  const all = new Map(services.map((name) => [name, { value: () => 1 }]))
  return {
    read: async () => timedReads((name) => all.get(name)),
    call: async () => timedReads((name) => all.get(name)!.value())
  }
}

function awilix() {
  const container = createContainer()
  for (const name of services) container.register(name, asValue({ value: () => 1 }))
  return {
    read: async () => timedReads((name) => container.resolve(name)),
    call: async () => timedReads((name) => container.resolve<{ value(): number }>(name).value())
  }
}

function eventEmitter() {
  return {
    emit: async () => {
      const emitter = new EventEmitter()
      let sum = 0
      for (let at = 0; at < 10; at++) emitter.on('bench/tick', (n: number) => (sum += n))
      return perCall((count) => {
        for (let at = 0; at < count; at++) emitter.emit('bench/tick', at)
      }, 500_000)
    }
  }
}

function assertEqual(found: unknown, wanted: unknown): void {
  if (found !== wanted) throw new Error(`the chain is broken: found ${String(found)}, wanted ${String(wanted)}`)
}

const sides: Readonly<Record<string, () => unknown>> = {
  heartwood,
  'cordis 4': cordis,
  avvio,
  fastify,
  Map: map,
  awilix,
  EventEmitter: eventEmitter
}
const [side, what, n] = process.argv.slice(2)
const measures = (await sides[side!]!()) as Record<string, Measure>
process.send!(await measures[what!]!(Number(n)))
process.exit()
