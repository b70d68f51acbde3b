import { isDeepStrictEqual } from 'node:util'
import { CodedError, messageOf } from './errors.ts'
import { Generation, likesOf, needsOf, realmOf, type Target, within } from './generation.ts'
import type { Kernel } from './kernel.ts'
import type { Awaitable, FiberState } from './plugin.ts'
import { isSameScope, meets, seesTheSame, type Slot } from './services.ts'

/** At most this many replaced generations of one fiber drain at once; one more and the oldest is aborted. */
const maxDraining = 8

/** So often may a fiber be rebuilt for services it likes within {@link restMs} before it is made to rest as long. */
const maxRestless = 20
const restMs = 1_000

const nothing = () => {}
const more = () => true
const nextTurn = Promise.resolve()
const addEpoch = (sum: number, { epoch }: Slot) => sum + epoch

/** A generation that is being built, and what it is built for. */
interface Build {
  readonly generation: Generation
  readonly old: Generation | undefined
  /** Whether the old one serves; else it waits behind its gates. */
  readonly serves: boolean
  readonly epochs: number
  /** The services it likes, as they were. */
  readonly optional: string
  /** `apply` has begun and not ended. */
  hangs: boolean
  /** `apply` has ended; its gates are waited for. */
  gated: boolean
  /** Ends the wait for it. */
  giveUp: (reason: CodedError) => void
}

/**
 * One running entry. A wish (`update`, `retire`) only moves the target; one transition at a time pursues the newest
 * target, so wishes that arrive meanwhile are never lost and those in between are skipped.
 */
export class Fiber {
  id: number
  entry: string
  readonly kernel: Kernel
  /** The generation that mounted this plugin, for one that is no entry of the program. */
  readonly parent: Generation | undefined
  state: FiberState = 'Inactive'
  error: unknown
  /** A config its plugin refused to take, until another one is taken. */
  vetoedConfig: unknown
  disposed = false
  /** Counts the generations that were built to the end and not thrown away. */
  generation = 0
  current: Generation | undefined
  #target: Target | undefined
  /** The target whose services this fiber is registered for. */
  #aimed: Target | undefined
  #failed: Target | undefined
  /** What a start was given up with that nobody will try again. */
  #stuck: CodedError | undefined
  #building: Build | undefined
  #pumping = false
  /** The world changed while a transition ran. */
  #kicked = false
  #wasActive = false
  #optional = ''
  /** Rebuilds for services it likes, since when; and the rest it was made to take. */
  #restlessCount = 0
  #restlessSinceMs = 0
  #resting: NodeJS.Timeout | undefined
  #waiters: ((error?: unknown) => void)[] = []
  #ending: Map<Generation, Promise<void>> | undefined
  /** Ends a wait for {@link #ending} early, since there may be something to do beside it. */
  #poke: (() => void) | undefined
  #needs: readonly Slot[] = []
  #likes: readonly Slot[] = []

  constructor(kernel: Kernel, id: number, entry: string, target: Target, parent?: Generation) {
    this.kernel = kernel
    this.id = id
    this.entry = entry
    this.parent = parent
    this.#aim(target)
  }

  get target(): Target | undefined {
    return this.#target
  }

  /** Generations that are on their way out: the oldest first. */
  get draining(): Iterable<Generation> {
    return this.#ending?.keys() ?? []
  }

  /** Everything of this fiber that has not ended. */
  get generations(): readonly Generation[] {
    return [this.#building?.generation ?? [], this.current ?? [], ...this.draining].flat()
  }

  get drainingCount(): number {
    return this.#ending?.size ?? 0
  }

  /** Resolves once it rests for the first time. @throws what its build failed with */
  begin(): Promise<void> {
    return this.#wish()
  }

  /** Needed services that are not there, or not in a version that will do. */
  get missing(): readonly Slot[] {
    return this.#needs.filter((slot) => !this.#isMet(slot))
  }

  /** Whether a service of the target's manifest is there in a version that will do. */
  meets(name: string): boolean {
    return [...this.#needs, ...this.#likes].some((slot) => slot.name === name && this.#isMet(slot))
  }

  #isMet(slot: Slot): boolean {
    return slot.open && meets(slot.version, this.#target?.plugin.requires[slot.name])
  }

  /** A plugin that was mounted is there as long as the generation that mounted it is in sight. */
  #canRun(): boolean {
    if (this.parent !== undefined && this.parent.phase !== 'live') return false
    for (const slot of this.#needs) if (!this.#isMet(slot)) return false
    return true
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

  /** As {@link update}; but where only the scope of services changes that its plugin does not name, nobody notices. */
  retarget(target: Target): Promise<void> {
    const present = this.#target
    if (present === undefined || this.#pumping || !this.#isSame(present, target) || isSameScope(present, target)) {
      return this.update(target)
    }
    if (this.#failed === present) this.#failed = target
    this.#aim(target)
    this.current?.adopt(target)
    return Promise.resolve()
  }

  /** Services of which the fiber notices where it sees them, and through what overlay. */
  get seen(): readonly string[] {
    const { current } = this
    const { inject = [], optional = [], provides = [] } = this.#target?.plugin ?? {}
    return current?.seen ?? [...inject, ...optional, ...provides]
  }

  /** Whether its plugin sees no difference. */
  #isSame(a: Target, b: Target): boolean {
    return a.plugin === b.plugin && isDeepStrictEqual(a.config, b.config) && seesTheSame(this.seen, a, b)
  }

  /** Tries a start that failed once more, though nothing of the target has changed. */
  refresh(): Promise<void> {
    this.#failed = undefined
    return this.#wish()
  }

  /**
   * Out of sight at once, with all that depend on it; resolves when undone. Harmless when called again.
   * @throws CodedError `KERNEL_STUCK` when its start did not end in time: what comes of it later is undone as it comes
   */
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
      if (this.#building !== undefined && this.#isStale(this.#building)) this.#hurry(this.#building)
      return
    }
    this.#pumping = true
    this.kernel.enterTransition()
    void this.#pump()
  }

  /** What is of no use any more need not go on: `apply` may look at its signal, gates are not waited for. */
  #hurry({ generation, gated, giveUp }: Build): void {
    const reason = new CodedError('KERNEL_START_GIVEN_UP', `the start of entry '${this.entry}' is of no use any more`)
    generation.abort(reason)
    if (gated) giveUp(reason)
  }

  /** Tells everything that is on its way in or out to end now. */
  abort(reason: CodedError): void {
    this.#building?.generation.abort(reason)
    this.#building?.giveUp(reason)
    this.current?.abort(reason)
    for (const generation of this.draining) generation.abort(reason)
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

  /** Registers where the target sees its services, and lets go of where the one before did. */
  #aim(target: Target | undefined): void {
    const { services } = this.kernel
    const before = this.#aimed
    if (before !== undefined) for (const slot of [...this.#needs, ...this.#likes]) slot.consumers.delete(this)
    if (target === undefined) {
      this.#needs = []
      this.#likes = []
    } else {
      if (target.realms !== undefined) for (const realm of realmsOf(target)) services.enter(realm)
      const slotOf = (name: string) => services.slot(name, realmOf(target, name))
      this.#needs = needsOf(target.plugin).map(slotOf)
      this.#likes = likesOf(target.plugin).map(slotOf)
    }
    if (this.#needs.length > 0) for (const slot of this.#needs) slot.consumers.add(this)
    if (this.#likes.length > 0) for (const slot of this.#likes) slot.consumers.add(this)
    if (before !== undefined) for (const realm of realmsOf(before)) services.leave(realm)
    this.#aimed = target
    this.#target = target
  }

  /** Never rejects: what fails ends in a state, a log line and the waiters. */
  async #pump(): Promise<void> {
    await nextTurn // as `queueMicrotask`, and cheaper
    try {
      let again: boolean
      do {
        this.#kicked = false
        const step = this.#step()
        again = typeof step === 'boolean' ? step : await step
      } while (again || this.#kicked)
    } catch (error) {
      this.#fail(this.#target, error)
      this.#settle(error)
    }
    this.#pumping = false
    this.kernel.leaveTransition()
  }

  /** @returns whether there may be more to do */
  #step(): Awaitable<boolean> {
    const target = this.#target
    const { current } = this
    if (target === undefined) {
      this.#takeDown()
      if (this.drainingCount > 0) return this.#untilEnded().then(more)
      this.#dispose()
      return false
    }
    if (current !== undefined) {
      const upToDate = current.target === target && !this.#wantsRebuild(current)
      const { phase } = current
      if (!this.#canRun() || phase === 'leaving') {
        this.#takeDown()
        return true
      }
      if (!upToDate) return this.#swap(target, current).then(more)
      if (phase === 'parked') return this.#leaveParking(current)
      if (!current.ready) {
        this.kernel.park(current)
        return true
      }
      this.#rest('Active')
      this.#settle()
      return false
    }
    if (this.#failed === target) {
      this.#rest('Failed')
      this.#settle(this.error)
      return false
    }
    if (!this.#canRun()) {
      this.#settle()
      if (this.drainingCount > 0) return this.#untilEnded().then(more)
      // A version that will not do is nothing that comes back by itself.
      const refused = this.missing.some((slot) => slot.open)
      this.#rest(this.#wasActive && !refused ? 'Pending' : 'Inactive')
      return false
    }
    return this.#start(target)?.then(more) ?? true
  }

  /**
   * A service it likes came or went. Two that are rebuilt for each other could go on for ever and let nobody else have
   * a turn: one of them is made to rest.
   */
  #wantsRebuild(current: Generation): boolean {
    if (this.#optional === this.#optionalNow() || this.#resting !== undefined) return false
    const nowMs = performance.now()
    if (nowMs - this.#restlessSinceMs > restMs) {
      this.#restlessCount = 0
      this.#restlessSinceMs = nowMs
    }
    this.#restlessCount += 1
    if (this.#restlessCount <= maxRestless) return true
    const message = `entry '${this.entry}' was rebuilt ${maxRestless} times in a row for services that come and go`
    this.kernel.log.warn(message, { entry: this.entry })
    this.kernel.order.letGo(current)
    this.#resting = setTimeout(() => {
      this.#resting = undefined
      this.kick()
    }, restMs).unref()
    return false
  }

  /** Built and out of sight: shown as soon as every gate is open. @returns whether there may be more to do */
  #leaveParking(parked: Generation): boolean {
    if (!parked.ready) {
      this.#rest('Pending')
      this.#settle()
      return false
    }
    try {
      parked.commit(undefined)
    } catch (error) {
      this.#takeDown()
      this.#fail(parked.target, error)
      return true
    }
    this.#activated(parked)
    return true
  }

  #activated(generation: Generation): void {
    this.current = generation
    this.error = undefined
    this.#failed = undefined
    this.#wasActive = true
    this.#rest('Active')
  }

  /** Recorded, so that nobody tries this target again unasked. */
  #fail(target: Target | undefined, error: unknown): void {
    if (target === undefined || this.#target !== target) return
    this.error = error
    this.#failed = target
    this.#wasActive = false
    this.#rest('Failed')
    // Whoever starts the kernel is about to be told why it cannot.
    if (target.plugin.essential && !this.kernel.started) return
    this.kernel.log.error(`entry '${this.entry}' failed to start: ${messageOf(error)}`, { entry: this.entry, error })
  }

  /** @returns nothing when it has ended already */
  #start(target: Target): Promise<void> | undefined {
    if (target.plugin.exclusive && this.drainingCount > 0) return this.#startInTurn(target)
    this.#rest('Loading')
    try {
      return this.#build(target, undefined)?.catch((error: unknown) => this.#fail(target, error))
    } catch (error) {
      this.#fail(target, error)
      return undefined
    }
  }

  async #startInTurn(target: Target): Promise<void> {
    while (this.drainingCount > 0) {
      await this.#untilEnded()
      if (this.#target !== target || !this.#canRun()) return
    }
    await this.#start(target)
  }

  async #swap(target: Target, old: Generation): Promise<void> {
    if (await this.#tookInPlace(target, old)) return
    this.#rest('Reloading')
    if (target.plugin.exclusive || old.target.plugin.exclusive) {
      await this.#swapInTurn(target, old)
      return
    }
    const optional = this.#optionalNow()
    try {
      await this.#build(target, old)
    } catch (error) {
      this.kernel.log.error(`entry '${this.entry}' keeps its old generation: ${messageOf(error)}`, {
        entry: this.entry,
        error
      })
      if (this.#target !== target) return
      // It was built for a service that it likes: not again before the next one comes or goes.
      if (target === old.target) {
        this.#optional = optional
        this.kernel.order.letGo(old)
      } else this.#aim(old.target)
      this.#settle(error)
    }
  }

  /** What cannot overlap is undone first, and built anew when what should take its place cannot be built. */
  async #swapInTurn(target: Target, old: Generation): Promise<void> {
    this.#takeDown()
    while (this.drainingCount > 0) await this.#untilEnded()
    if (this.#target !== target || !this.#canRun()) return
    await this.#start(target)
    if (this.#failed !== target || this.#target !== target) return
    this.#settle(this.error)
    this.#aim(old.target)
    await this.#start(old.target)
  }

  /** Asks the plugin first, where nothing but its config has changed; most have nothing to say. */
  async #tookInPlace(target: Target, old: Generation): Promise<boolean> {
    const { plugin } = old.target
    if (!old.hasUpdateHooks || target.plugin !== plugin) return false
    if (!seesTheSame(old.seen, target, old.target) || this.#optional !== this.#optionalNow()) return false
    const limitMs = this.kernel.settings.apply_timeout_ms
    try {
      const verdict = await within(limitMs, old.askUpdate(target.config), () => this.#late('update hook', limitMs))
      if (verdict !== 'handled' && verdict !== 'veto') return false
      if (verdict === 'handled') old.adopt(target)
      this.vetoedConfig = verdict === 'veto' ? target.config : undefined
      if (this.#target === target) this.#target = old.target
      return true
    } catch (error) {
      if (this.#target === target) this.#target = old.target
      this.#settle(error)
      return true
    }
  }

  /**
   * Builds the next generation beside the old one and puts it in its place. Nothing has changed when it fails, or when
   * the world it was built for has changed meanwhile: then the next step begins anew.
   * @throws what it failed with
   */
  #build(target: Target, old: Generation | undefined): Promise<void> | undefined {
    const generation = new Generation(this, target)
    const build: Build = {
      generation,
      old,
      serves: old?.phase === 'live',
      epochs: this.#epochs(),
      optional: this.#optionalNow(),
      hangs: false,
      gated: false,
      giveUp: nothing
    }
    this.#building = build
    try {
      const built = generation.build()
      if (built instanceof Promise || this.#isGated(build)) return this.#buildOn(build, built)
      this.#show(build)
    } catch (error) {
      return this.#built(build, error)
    }
    return this.#built(build, undefined)
  }

  async #buildOn(build: Build, built: Awaitable<void>): Promise<void> {
    const { generation } = build
    let failure: unknown
    try {
      if (built instanceof Promise) {
        build.hangs = true
        const ended = built.finally(() => {
          build.hangs = false
        })
        await this.#bounded(build, ended, 'apply')
      }
      if (this.#isGated(build)) {
        build.gated = true
        await this.#bounded(build, generation.whenReady(), `gate '${generation.closedGates.join("', '")}'`)
      }
      this.#show(build)
    } catch (error) {
      failure = error
    }
    await this.#built(build, failure)
  }

  /** Whether it has to wait before it can take the place of one that serves. */
  #isGated(build: Build): boolean {
    return build.serves && !build.generation.ready && !this.#isStale(build)
  }

  #show(build: Build): void {
    const { generation, old, serves } = build
    if (this.#isStale(build)) return
    if (generation.ready) generation.commit(serves ? old : undefined)
    else generation.withdraw('parked')
  }

  /** What follows from how a build has ended. @throws its failure, if it was of any use */
  #built(build: Build, failure: unknown): Promise<void> | undefined {
    const { generation, old, serves, optional } = build
    this.#building = undefined
    if (generation.phase === 'building') return this.#discard(build, failure)
    this.#optional = optional
    this.generation += 1
    this.vetoedConfig = undefined
    if (generation.phase === 'parked') this.current = generation
    else this.#activated(generation)
    if (old === undefined) return undefined
    if (!serves) this.kernel.withdraw(old)
    this.#end(old)
    return undefined
  }

  async #discard(build: Build, failure: unknown): Promise<void> {
    // The failure of what is of no use any more is none.
    const reported = this.#isStale(build) ? undefined : failure
    if (build.hangs && this.#target === undefined) this.#stuck = this.#stuckNow()
    if (build.old === undefined) this.#rest('Unloading')
    const reason = new CodedError('KERNEL_START_GIVEN_UP', `the start of entry '${this.entry}' was given up`)
    await build.generation.discard(reason, this.kernel.undoTimeMs)
    if (reported !== undefined) throw reported
  }

  /** What it was begun for has changed since. */
  #isStale({ generation, old, serves, epochs }: Build): boolean {
    return (
      this.#target !== generation.target ||
      !this.#canRun() ||
      epochs !== this.#epochs() ||
      (old !== undefined && old.phase !== 'live' && (serves || old.phase !== 'parked'))
    )
  }

  #bounded(build: Build, work: Promise<void>, what: string): Promise<void> {
    const givenUp = new Promise<void>((_resolve, reject) => {
      build.giveUp = reject
    })
    const limitMs = this.kernel.settings.apply_timeout_ms
    return within(limitMs, Promise.race([work, givenUp]), () => this.#late(what, limitMs))
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
    await Promise.race([Promise.all([...(this.#ending?.values() ?? [])]), poked])
    this.kernel.enterTransition()
    this.#poke = undefined
  }

  /** Ends a generation that is out of sight: those that need it first, then what it serves, then its effects. */
  #end(old: Generation): void {
    const { kernel } = this
    this.#ending ??= new Map()
    const { size } = this.#ending
    if (size >= maxDraining) {
      const [oldest] = this.#ending.keys()
      oldest?.abort(new CodedError('DRAIN_TIMEOUT', `entry '${this.entry}' has been replaced ${size} times since`))
    }
    const ending = old.end(kernel.drainTimeMs, kernel.undoTimeMs)
    this.#ending.set(
      old,
      ending.finally(() => this.#ending?.delete(old))
    )
  }

  #dispose(): void {
    this.#aim(undefined)
    clearTimeout(this.#resting)
    this.disposed = true
    this.error = undefined
    this.kernel.forget(this)
    this.#announce('Inactive')
    this.#settle(this.#stuck)
  }

  /** Tells apart the times the needed services came back: each of their epochs only grows. */
  #epochs(): number {
    return this.#needs.reduce(addEpoch, 0)
  }

  #optionalNow(): string {
    if (this.#likes.length === 0) return ''
    return this.#likes.map((slot) => (this.#isMet(slot) ? slot.epoch : '-')).join()
  }

  #rest(state: FiberState): void {
    if (this.state !== state) this.#announce(state)
  }

  #announce(state: FiberState): void {
    const was = this.state
    this.state = state
    this.kernel.events.emit('kernel/fiber-changed', { entry: this.entry, state, was, disposed: this.disposed })
  }

  /** Tells all who wished so far: their wish, or a later one, has been dealt with. */
  #settle(error?: unknown): void {
    const waiters = this.#waiters
    this.#waiters = []
    for (const settle of waiters) settle(error)
  }

  #stuckNow(): CodedError {
    const { apply_timeout_ms: limitMs } = this.kernel.settings
    const message = `fiber ${this.id} (entry '${this.entry}') stuck in transition over ${limitMs} ms: its apply does not end`
    this.kernel.log.error(message, { entry: this.entry })
    return new CodedError('KERNEL_STUCK', message)
  }

  #late(what: string, limitMs: number): CodedError {
    const plugin = this.#aimed?.plugin.name
    const message = `${what} of plugin '${plugin}' (entry '${this.entry}') did not end within ${limitMs} ms`
    return new CodedError('KERNEL_APPLY_TIMEOUT', message)
  }
}

function realmsOf({ realms }: Target): readonly string[] {
  return realms === undefined ? [] : Object.values(realms)
}
