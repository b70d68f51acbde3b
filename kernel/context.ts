import { CodedError } from './errors.ts'
import type { Effect, Generation } from './generation.ts'
import type { Logger } from './log.ts'
import type {
  Awaitable,
  Child,
  CollectionName,
  Collector,
  Contributions,
  EventBus,
  EventName,
  Events,
  Gate,
  Lease,
  ListenOptions,
  Overlay,
  Plugin,
  ProvideOptions,
  ServiceName,
  Undo,
  UpdateVerdict
} from './plugin.ts'

/** Answers every name that was not injected. Own members of a services object are found before it is asked. */
const notInjected = refusal(
  (name) => new CodedError('KERNEL_NOT_INJECTED', `cannot get property "${name}" without inject`)
)

/** The services of a generation that has ended. */
const inactive = refusal(
  (name) => new CodedError('KERNEL_INACTIVE', `cannot get required service "${name}" in inactive context`)
)

function refusal(refuse: (name: string) => CodedError): object {
  return new Proxy(Object.create(null) as object, {
    get(_target, key) {
      if (typeof key === 'symbol') return undefined
      throw refuse(key)
    }
  })
}

/** The context of one generation; its interface, with what each member promises, is `Context` in `plugin.ts`. */
export class PluginContext {
  readonly #generation: Generation
  readonly #services: object
  #log: Logger | undefined
  /** The entry that {@link #log} names: it may be renamed. */
  #logged = ''
  #timers: Set<NodeJS.Timeout> | undefined

  constructor(generation: Generation) {
    this.#generation = generation
    this.#services = Object.create(notInjected) as object
    const { fiber, target } = generation
    for (const name of target.plugin.inject) this.#inject(name, generation.handle(name))
    for (const name of target.plugin.optional)
      this.#inject(name, fiber.meets(name) ? generation.handle(name) : undefined)
  }

  #inject(name: string, value: unknown): void {
    Object.defineProperty(this.#services, name, { value, enumerable: true })
  }

  get services(): object {
    return this.#generation.phase === 'ended' ? inactive : this.#services
  }

  get entry(): string {
    return this.#generation.fiber.entry
  }

  get log(): Logger {
    const { entry } = this
    if (this.#log === undefined || this.#logged !== entry) {
      this.#log = this.#generation.log.with({ entry })
      this.#logged = entry
    }
    return this.#log
  }

  get signal(): AbortSignal {
    return this.#generation.signal
  }

  get events(): EventBus {
    return this.#generation.fiber.kernel.events
  }

  lease(): Lease {
    return this.#generation.lease()
  }

  provide(name: string, service: object, options?: ProvideOptions): void {
    this.#generation.provide(name, service, options)
  }

  set(name: string, service: object): void {
    this.#generation.set(name, service)
  }

  get(name: ServiceName): object | undefined {
    const generation = this.#generation
    return generation.phase === 'ended' ? undefined : generation.lookUp(name)
  }

  overlay(service: ServiceName): Overlay {
    return this.#generation.overlay(service)
  }

  gate(label: string): Gate {
    return this.#generation.gate(label)
  }

  onUpdate(hook: (config: never) => Awaitable<UpdateVerdict>): void {
    this.#generation.hookUpdate(hook)
  }

  mount(plugin: Plugin, config: unknown = {}): Child {
    return this.#generation.mount(plugin, config)
  }

  dispose(): Promise<void> {
    return this.#generation.disposeFiber()
  }

  contribute<K extends CollectionName>(collection: K, ...items: readonly Contributions[K][]): void {
    this.#generation.contribute(collection, items)
  }

  collect(collection: string, collector: Collector<unknown>): void {
    this.#generation.collect(collection, collector)
  }

  effect(
    start: () => Awaitable<Undo | void> | Iterable<Undo> | AsyncIterable<Undo>,
    label?: string
  ): void | Promise<void> {
    const generation = this.#generation
    generation.assertOpen()
    const made = start()
    if (made === undefined) return undefined
    if (made instanceof Promise) {
      return made.then(async (undo) => {
        if (undo !== undefined) await generation.keep(label, undo)
      })
    }
    if (typeof made === 'function') {
      void generation.keep(label, made)
      return undefined
    }
    return Symbol.asyncIterator in made ? this.#collectLater(made, label) : this.#collect(made, label)
  }

  #collect(undos: Iterable<Undo>, label: string | undefined): void {
    const kept: Effect[] = []
    try {
      for (const undo of undos) {
        const effect = this.#generation.keep(label, undo)
        if (effect === undefined || effect instanceof Promise) return
        kept.push(effect)
      }
    } catch (error) {
      void this.#generation.revoke(kept)
      throw error
    }
  }

  async #collectLater(undos: AsyncIterable<Undo>, label: string | undefined): Promise<void> {
    const kept: Effect[] = []
    try {
      for await (const undo of undos) {
        const effect = await this.#generation.keep(label, undo)
        if (effect === undefined) return
        kept.push(effect)
        if (this.#generation.aborted) return
      }
    } catch (error) {
      await this.#generation.revoke(kept)
      throw error
    }
  }

  async resource<T>(
    key: string,
    identity: unknown,
    open: () => Awaitable<T>,
    close: (resource: T) => Awaitable<void>
  ): Promise<T> {
    const generation = this.#generation
    generation.assertOpen()
    const { resources } = generation.fiber.kernel
    const held = await resources.take(generation.fiber.entry, key, identity, open, close)
    if (!generation.isOpen) {
      await held.release()
      generation.assertOpen()
    }
    generation.record(`resource:${key}`, () => held.release())
    return held.value
  }

  onCommit(step: () => void): void {
    this.#generation.atCommit(step)
  }

  on<K extends EventName>(event: K, listener: (...args: Events[K]) => unknown, options?: ListenOptions): () => void {
    return this.#generation.listen(event, listener, options)
  }

  setTimeout(callback: () => unknown, delayMs: number): void {
    const timer = setTimeout(() => {
      this.#timers?.delete(timer)
      this.#run(callback)
    }, delayMs)
    this.#keep(timer)
  }

  setInterval(callback: () => unknown, periodMs: number): void {
    this.#keep(setInterval(() => this.#run(callback), periodMs))
  }

  #keep(timer: NodeJS.Timeout): void {
    try {
      this.#generation.assertOpen()
    } catch (error) {
      clearTimeout(timer)
      throw error
    }
    if (this.#timers === undefined) {
      const timers = new Set<NodeJS.Timeout>()
      this.#timers = timers
      this.#generation.record('timers', () => {
        for (const each of timers) clearTimeout(each)
      })
    }
    this.#timers.add(timer)
  }

  #run(callback: () => unknown): void {
    const report = (error: unknown) => {
      this.#generation.fault(error)
      this.log.error('a timer callback failed', { error })
    }
    try {
      const result = callback()
      if (result instanceof Promise) result.catch(report)
    } catch (error) {
      report(error)
    }
  }
}
