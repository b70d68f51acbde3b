import { CodedError, messageOf } from './errors.ts'
import { Generation, realmOf, type Target, within } from './generation.ts'
import type { Kernel } from './kernel.ts'
import type { FiberState } from './plugin.ts'
import { meets, type Slot } from './services.ts'

/** At most this many replaced generations of one fiber drain at once; one more and the oldest is aborted. */
const maxDraining = 8

/**
 * One running entry. A wish (`update`, `retire`) only moves the target; one transition at a time pursues the newest
 * target, so wishes that arrive meanwhile are never lost and those in between are skipped.
 */
export class Fiber {
  id: number
  entry: string
  readonly kernel: Kernel
  state: FiberState = 'Inactive'
  error: unknown
  /** A config its plugin refused to take, until another one is taken. */
  vetoedConfig: unknown
  disposed = false
  /** Counts the generations that went live. */
  generation = 0
  current: Generation | undefined
  readonly draining = new Set<Generation>()
  #target: Target | undefined
  #failed: Target | undefined
  #pumping = false
  /** The world changed while a transition ran. */
  #kicked = false
  #wasActive = false
  #optional = ''
  #waiters: ((error?: unknown) => void)[] = []
  /** Generations that are on their way out. */
  readonly #ending = new Set<Promise<void>>()
  /** Ends a wait for {@link #ending} early, since there may be something to do beside it. */
  #poke: (() => void) | undefined
  #needs: readonly Slot[] = []
  #likes: readonly Slot[] = []

  constructor(kernel: Kernel, id: number, entry: string, target: Target) {
    this.kernel = kernel
    this.id = id
    this.entry = entry
    this.#aim(target)
  }

  get target(): Target | undefined {
    return this.#target
  }

  /** Resolves once it rests for the first time. @throws what its build failed with */
  begin(): Promise<void> {
    return this.#wish()
  }

  /** Those that have not ended: the oldest that drains first, the current one last. */
  *generations(): Iterable<Generation> {
    yield* this.draining
    if (this.current !== undefined) yield this.current
  }

  /** Names of needed services that are not there, or not in a version that will do. */
  get waitingFor(): readonly string[] {
    return this.#needs.flatMap((slot) => (this.#isMet(slot) ? [] : slot.name))
  }

  /** Whether a service of the target's manifest is there in a version that will do. */
  meets(name: string): boolean {
    return [...this.#needs, ...this.#likes].some((slot) => slot.name === name && this.#isMet(slot))
  }

  #isMet(slot: Slot): boolean {
    return slot.open && meets(slot.version, this.#target?.plugin.requires[slot.name])
  }

  /**
   * Resolves once the fiber rests with this target or a later one: active, or waiting for a service. Rejects with what
   * its build failed with; a fiber that was active then serves on as before.
   */
  update(target: Target): Promise<void> {
    if (this.#target === undefined) {
      return Promise.reject(new CodedError('KERNEL_DISPOSED', `entry '${this.entry}' has been retired`))
    }
    this.#aim(target)
    this.#failed = undefined
    return this.#wish()
  }

  /** Tries a start that failed once more, though nothing of the target has changed. */
  refresh(): Promise<void> {
    this.#failed = undefined
    return this.#wish()
  }

  /** Out of sight at once, with all that depend on it; resolves when undone. Harmless when called again. */
  retire(): Promise<void> {
    if (this.disposed) return Promise.resolve()
    this.#target = undefined
    if (this.current !== undefined) this.kernel.withdraw(this.current)
    return this.#wish()
  }

  /** Looks at the world again: a service it uses came or went, or its target moved. */
  kick(): void {
    if (this.disposed) return
    if (this.#pumping) {
      this.#kicked = true
      this.#poke?.()
      return
    }
    this.#pumping = true
    this.kernel.enterTransition()
    queueMicrotask(() => {
      void this.#pump()
    })
  }

  #wish(): Promise<void> {
    const wish = new Promise<void>((resolve, reject) => {
      this.#waiters.push((error) => {
        if (error === undefined) resolve()
        else reject(error as Error)
      })
    })
    this.kick()
    return wish
  }

  #aim(target: Target): void {
    for (const slot of [...this.#needs, ...this.#likes]) slot.consumers.delete(this)
    const { services } = this.kernel
    const slotOf = (name: string) => services.slot(name, realmOf(target, name))
    this.#needs = target.plugin.inject.map(slotOf)
    this.#likes = target.plugin.optional.map(slotOf)
    for (const slot of this.#needs) slot.consumers.add(this)
    for (const slot of this.#likes) slot.consumers.add(this)
    this.#target = target
  }

  /** Never rejects: what fails ends in a state, a log line and the waiters. */
  async #pump(): Promise<void> {
    try {
      do this.#kicked = false
      while ((await this.#step()) || this.#kicked)
    } catch (error) {
      this.error = error
      this.#rest('Failed')
      this.kernel.log.error('a transition failed', { entry: this.entry, error })
    }
    this.#pumping = false
    this.kernel.leaveTransition()
  }

  /** @returns whether there may be more to do */
  async #step(): Promise<boolean> {
    const target = this.#target
    if (target === undefined) {
      this.#takeDown()
      if (this.#ending.size > 0) {
        await this.#untilEnded()
        return true
      }
      this.#dispose()
      return false
    }
    const missing = this.waitingFor.length > 0
    if (this.current?.phase === 'parked' && !missing && this.current.target === target)
      return this.#leaveParking(this.current)
    if (this.current !== undefined) {
      if (missing || this.current.phase !== 'live') {
        this.#takeDown()
        return true
      }
      if (!this.current.ready) {
        this.kernel.park(this.current)
        return true
      }
      if (this.current.target === target && this.#optional === this.#optionalNow()) {
        this.#settle()
        return false
      }
      await this.#swap(target, this.current)
      return true
    }
    if (missing) {
      this.#settle()
      if (this.#ending.size > 0) {
        await this.#untilEnded()
        return true
      }
      // A version that will not do is nothing that comes back by itself.
      const refused = this.#needs.some((slot) => slot.open && !this.#isMet(slot))
      this.#rest(this.#wasActive && !refused ? 'Pending' : 'Inactive')
      return false
    }
    if (this.#failed === target) {
      this.#settle(this.error)
      return false
    }
    await this.#start(target)
    return true
  }

  /** Built and out of sight: shown as soon as every gate is open. */
  #leaveParking(parked: Generation): boolean {
    if (parked.ready) {
      parked.commit(undefined)
      this.#activated(parked)
      return true
    }
    this.#rest('Pending')
    this.#settle()
    return false
  }

  #activated(generation: Generation): void {
    this.current = generation
    this.error = undefined
    this.#failed = undefined
    this.#wasActive = true
    this.#rest('Active')
  }

  async #start(target: Target): Promise<void> {
    this.#rest('Loading')
    try {
      while (target.plugin.exclusive && this.#ending.size > 0) await this.#untilEnded()
      await this.#buildAndCommit(target, undefined)
    } catch (error) {
      if (this.#target !== target) return
      this.error = error
      this.#failed = target
      this.#wasActive = false
      this.#rest('Failed')
      // Whoever starts the kernel is about to be told why it cannot.
      if (target.plugin.essential && !this.kernel.started) return
      this.kernel.log.error(`entry '${this.entry}' failed to start: ${messageOf(error)}`, { entry: this.entry, error })
    }
  }

  async #swap(target: Target, old: Generation): Promise<void> {
    if (await this.#tookInPlace(target, old)) return
    this.#rest('Reloading')
    if (target.plugin.exclusive || old.target.plugin.exclusive) {
      this.#takeDown()
      while (this.#ending.size > 0) await this.#untilEnded()
      if (this.#target !== target || this.waitingFor.length > 0) return
      await this.#start(target)
      // What could not overlap is gone already: the old target is built anew.
      if (this.#failed === target && this.#target === target) {
        this.#settle(this.error)
        this.#aim(old.target)
        await this.#start(old.target)
      }
      return
    }
    try {
      await this.#buildAndCommit(target, old)
    } catch (error) {
      this.kernel.log.error(`entry '${this.entry}' keeps its old generation: ${messageOf(error)}`, {
        entry: this.entry,
        error
      })
      if (this.#target !== target) return
      this.#aim(old.target)
      this.#optional = this.#optionalNow()
      this.#settle(error)
      if (old.phase === 'live') this.#rest('Active')
    }
  }

  /** Asks the plugin first; most have nothing to say. */
  async #tookInPlace(target: Target, old: Generation): Promise<boolean> {
    const { plugin, realms, overlays } = old.target
    if (target.plugin !== plugin || target.realms !== realms || target.overlays !== overlays) return false
    try {
      const verdict = await old.askUpdate(target.config)
      if (verdict !== 'handled' && verdict !== 'veto') return false
      if (verdict === 'handled') old.target = target
      this.vetoedConfig = verdict === 'veto' ? target.config : undefined
      if (this.#target === target) this.#target = old.target
      return true
    } catch (error) {
      if (this.#target === target) this.#target = old.target
      this.#settle(error)
      return true
    }
  }

  /** The next generation beside the old one, or no trace of it. */
  async #buildAndCommit(target: Target, old: Generation | undefined): Promise<void> {
    const { settings } = this.kernel
    const next = new Generation(this, target)
    const epochs = this.#needs.map((slot) => slot.epoch).join()
    const optional = this.#optionalNow()
    try {
      const late = () =>
        new CodedError(
          'KERNEL_APPLY_TIMEOUT',
          `apply of plugin '${target.plugin.name}' (entry '${this.entry}') did not end within ${settings.apply_timeout_ms} ms`
        )
      const built = next.build()
      if (built instanceof Promise) await within(settings.apply_timeout_ms, built, late)
      // What it was built for has changed while it was built: the next step begins anew.
      const stale =
        this.#target !== target || this.waitingFor.length > 0 || epochs !== this.#needs.map((slot) => slot.epoch).join()
      if (stale || (old !== undefined && old.phase !== 'live')) {
        await next.undo(settings.undo_timeout_ms)
        return
      }
      if (!next.ready && old !== undefined) await within(settings.apply_timeout_ms, next.whenReady(), late)
      if (!next.ready) {
        next.withdraw('parked')
        this.current = next
        this.#optional = optional
        this.generation += 1
        return
      }
      next.commit(old)
    } catch (error) {
      next.abort(new CodedError('KERNEL_START_GIVEN_UP', `the start of entry '${this.entry}' was given up`))
      await next.undo(settings.undo_timeout_ms)
      throw error
    }
    this.#optional = optional
    this.generation += 1
    this.vetoedConfig = undefined
    this.#activated(next)
    if (old !== undefined) this.#end(old)
  }

  /** Takes the current generation out of sight, with those that need it, and lets it end in the background. */
  #takeDown(): void {
    const { current } = this
    if (current === undefined) return
    this.#rest('Reloading')
    this.kernel.withdraw(current)
    this.current = undefined
    this.#end(current)
  }

  /** Until what was taken down has ended, or the world has changed. Does not count as a transition: it may take long. */
  async #untilEnded(): Promise<void> {
    this.#rest('Unloading')
    const poked = new Promise<void>((resolve) => {
      this.#poke = resolve
    })
    this.kernel.leaveTransition()
    await Promise.race([Promise.all(this.#ending), poked])
    this.kernel.enterTransition()
    this.#poke = undefined
  }

  /** Ends a generation that is out of sight: those that need it first, then what it serves, then its effects. */
  #end(old: Generation): void {
    const { kernel } = this
    this.draining.add(old)
    if (this.draining.size > maxDraining) {
      const oldest = this.draining.values().next().value
      oldest?.abort(
        new CodedError('DRAIN_TIMEOUT', `entry '${this.entry}' has been replaced ${maxDraining} times since`)
      )
    }
    const ending = old.end(kernel.drainTimeMs, kernel.settings.undo_timeout_ms).finally(() => {
      this.draining.delete(old)
      this.#ending.delete(ending)
    })
    this.#ending.add(ending)
  }

  #dispose(): void {
    for (const slot of [...this.#needs, ...this.#likes]) slot.consumers.delete(this)
    this.disposed = true
    this.error = undefined
    this.#rest('Inactive')
    this.kernel.forget(this)
    this.#settle()
  }

  #optionalNow(): string {
    return this.#likes.map((slot) => (slot.open ? slot.epoch : '-')).join()
  }

  #rest(state: FiberState): void {
    const was = this.state
    if (was === state) return
    this.state = state
    this.kernel.events.emit('kernel/fiber-changed', { entry: this.entry, state, was })
  }

  /** Tells all who wished so far: their wish, or a later one, has been dealt with. */
  #settle(error?: unknown): void {
    const waiters = this.#waiters
    this.#waiters = []
    for (const settle of waiters) settle(error)
  }
}
