import { isDeepStrictEqual } from 'node:util'
import { resolve } from 'node:path'
import { type Change, changedFiles, edited, entryOf, etagOf, isAsRead, moving, removal } from './change.ts'
import type { CodeLoader } from './code.ts'
import { Codebase } from './codebase.ts'
import { missingService, needsMissing, swapCode } from './code-swap.ts'
import { readProgram, type Source, sourceOf } from './compose.ts'
import type {
  AppliedStep,
  Changed,
  ChangeOptions,
  EntryInput,
  EntryPatch,
  EventsService,
  FiberStatus,
  KernelControl,
  PendingStep,
  Renamed
} from './control.ts'
import { type Draft, draftProgramFile, type ProgramEdit } from './edit.ts'
import { CodedError, isCoded, messageOf } from './errors.ts'
import type { Target } from './generation.ts'
import { Kernel } from './kernel.ts'
import { type Logger, silentLogger } from './log.ts'
import { planSteps, shownSteps, type Step } from './plan.ts'
import { definePlugin, type Plugin, type ServiceName, type Services } from './plugin.ts'
import {
  checkPlugins,
  type Entry,
  invalidProgram,
  isLabel,
  issueFaults,
  type JsonObject,
  type Program,
  type ProgramFault,
  resolveConfig
} from './program.ts'
import { type Issue, renderIssues } from './schema.ts'
import { maskSecrets, unmaskSecrets } from './secrets.ts'
import { isSameScope } from './services.ts'
import { ownerOfStray } from './strays.ts'
import { enabledIds, isStructure, parentOf, type Scope, scopeOf } from './tree.ts'
import { type FileWatcher, stampOf, watchFiles } from './watch.ts'

export interface HostOptions {
  /** Path of the program file, or the program itself as data; then nothing is written anywhere. */
  readonly program: string | Program
  readonly loader: CodeLoader
  readonly env: Readonly<Record<string, string | undefined>>
  /** Config keys that win over the file, by plugin label: what the command line and the environment say. */
  readonly overrides?: Readonly<Record<string, Readonly<Record<string, unknown>>>>
  readonly log: Logger
  /** Follows the program file and the files of plugins; they are looked at `settleMs` after the first event. */
  readonly watch?: { readonly settleMs: number }
}

/** How long an answer waits for what its change set in motion elsewhere, and a listing for a change under way. */
const settleMs = 1_000

/** How often a change is tried while somebody else writes the program file. */
const maxRounds = 10

/** A program that is ready to run: every entry with its plugin and its checked config. */
interface Prepared {
  readonly program: Program
  readonly targets: ReadonlyMap<string, Target>
}

/** Plugins loaded for one change: one that many entries name is loaded once. */
type Pass = Map<string, Promise<Plugin>>

const none: ReadonlyMap<string, Plugin> = new Map()

/** A step that was taken, and what ran before it. */
interface Taken {
  readonly step: Step
  readonly before: Target | undefined
}

/** A service of the kernel's own that an operator may retire and provide. */
interface DirectService {
  /** As the API names it. */
  readonly type: string
  readonly make: () => Services[ServiceName]
}

/**
 * Reads a program and checks it whole: the file, the plugins it names, their configs.
 * @throws CodedError `PROGRAM_INVALID` with every fault, each with line, column and the nearest valid name
 */
export async function checkProgram(options: Omit<HostOptions, 'log'>): Promise<Program> {
  const host = new ProgramHost({ ...options, log: silentLogger })
  return (await host.prepareAll(await host.read())).program
}

/**
 * The steps to a program, from another or from nothing, as a running server would take them: what a plugin looks up
 * without naming it in its manifest is known only there.
 * @throws CodedError `PROGRAM_INVALID`
 */
export async function planProgram(
  options: Omit<HostOptions, 'log'>,
  from?: Program
): Promise<{ readonly program: Program; readonly steps: readonly PendingStep[] }> {
  const host = new ProgramHost({ ...options, log: silentLogger })
  const { program } = await host.prepareAll(await host.read())
  return { program, steps: shownSteps(host.stepsFrom(from?.entries ?? [], program.entries)) }
}

/**
 * Starts a program. Resolves once everything that can start has started; a plugin that fails leaves the rest serving,
 * unless it is essential.
 * @throws CodedError `PROGRAM_INVALID`: nothing was started. What an essential plugin failed with: all was stopped
 */
export async function startKernel(options: HostOptions): Promise<ProgramHost> {
  const host = new ProgramHost(options)
  await host.start()
  return host
}

/** Keeps a kernel and its program file telling the same story. */
export class ProgramHost {
  readonly kernel: Kernel
  readonly #options: HostOptions
  readonly #file: string | undefined
  #files: readonly string[]
  #current: Program | undefined
  #ready = false
  /** One change at a time; the next waits for the end of this, however it ends. */
  #turn: Promise<unknown> = Promise.resolve()
  readonly #code: Codebase
  #watcher: FileWatcher | undefined
  /** The files of the program as they were last read, by their absolute paths. */
  #texts: ReadonlyMap<string, string> = new Map()
  /** The files as they last were whole: neither empty nor cut short. */
  #whole = new Map<string, string>()
  /** Why what the program file says is not what runs. */
  #fileError: unknown
  /** Names of the realms that entries have of their own; they move with the entry. */
  readonly #privateRealms = new Map<string, string>()
  #privateRealmCount = 0
  /** Entries by id, for each list of them. */
  readonly #byId = new WeakMap<readonly Entry[], ReadonlyMap<string, Entry>>()
  readonly #direct: ReadonlyMap<string, DirectService>

  constructor(options: HostOptions) {
    this.#options = options
    this.#file = typeof options.program === 'string' ? options.program : undefined
    this.#files = this.#file === undefined ? [] : [this.#file]
    this.kernel = new Kernel({ log: options.log })
    this.#code = new Codebase({ loader: options.loader, log: options.log, onLoad: () => this.#follow() })
    const events: EventsService = { counts: () => this.kernel.events.counts() }
    this.#direct = new Map([['events_service', { type: 'cordis::events::EventsService', make: () => events }]])
  }

  async start(): Promise<void> {
    const { kernel } = this
    const { program, targets } = await this.prepareAll(await this.read())
    for (const { plugin, config } of targets.values()) await plugin.preflight?.(config as never)
    kernel.settings = program.settings
    kernel.provide('kernel', this.#control())
    for (const [name, { make }] of this.#direct) kernel.provide(name as ServiceName, make())
    for (const [id, target] of targets) {
      // Its failure is a state and a line in the log; what matters of it is looked at below.
      kernel.begin({ id, ...target }).catch(() => {})
    }
    await kernel.settled()
    for (const [id, { plugin }] of targets) {
      const fiber = kernel.fiber(id)
      if (!plugin.essential || fiber?.state !== 'Failed') continue
      const { error } = fiber
      await kernel.stop()
      throw error
    }
    kernel.started = true
    this.#current = program
    this.#ready = true
    kernel.onSelfDisposed((id) => this.#rememberDisposed(id))
    this.#watch()
    kernel.events.emit('kernel/started')
  }

  async stop(timeoutMs?: number): Promise<void> {
    const watcher = this.#watcher
    this.#watcher = undefined
    const closed = watcher?.close()
    await this.kernel.stop(timeoutMs)
    await closed
  }

  /**
   * Counts an error that nobody has caught as a fault of the entries whose code it came from: all entries of a plugin
   * share its code, so that it is told of each.
   * @param error with a stack, or nobody can tell
   */
  stray(
    error: unknown,
    isRejection: boolean
  ): { readonly plugin: string; readonly entries: readonly string[] } | undefined {
    const stack = error instanceof Error ? (error.stack ?? '') : ''
    const plugin = ownerOfStray(stack, isRejection, (file) => this.#options.loader.ownerOf(file))
    if (plugin === undefined) return undefined
    const fibers = this.kernel.fibersOf((target) => this.#code.get(plugin) === target.plugin)
    for (const fiber of fibers) (fiber.current ?? fiber.generations[0])?.fault(error)
    return { plugin, entries: fibers.map(({ entry }) => entry) }
  }

  get program(): Program {
    if (this.#current === undefined) throw new CodedError('KERNEL_NOT_STARTED', 'the kernel has not started yet')
    return this.#current
  }

  /** The files that decide what the program is, as of the last look at them, valid or not; the program file first. */
  get files(): readonly string[] {
    return this.#files
  }

  /** @throws CodedError `PROGRAM_INVALID`, also when a file cannot be read, and when it is empty all at once */
  async read(): Promise<Source> {
    const file = this.#file
    if (file === undefined) return sourceOf(this.#current ?? (this.#options.program as Program))
    try {
      const source = readProgram(file, this.#current === undefined)
      this.#files = source.files.map(({ parsed }) => parsed.file)
      this.#texts = new Map(source.files.map(({ parsed }) => [resolve(parsed.file), parsed.text]))
      this.#follow()
      const cut = source.files.find(({ parsed }) => isCut(parsed.text, this.#whole.get(parsed.file)))
      if (cut !== undefined) throw cutShort(cut.parsed.file, this.#files)
      if (source.program.entries.length > 0 || (this.#current?.entries.length ?? 0) === 0) {
        this.#whole = new Map(source.files.map(({ parsed }) => [parsed.file, parsed.text]))
        return source
      }
    } catch (error) {
      if (isCoded(error)) this.#files = (error.detail?.['paths'] as readonly string[] | undefined) ?? this.#files
      this.#follow()
      throw error
    }
    // Half of a save, most likely; at worst somebody else's mistake.
    const message = 'the file has no entries any more; what runs goes on'
    throw invalidProgram(file, [{ line: 0, column: 0, message }])
  }

  /** Every entry that is to run, loaded and checked; everything that is wrong at once. */
  async prepareAll(source: Source): Promise<Prepared> {
    const { program, files } = source
    const faults: ProgramFault[] = files.length === 0 ? [] : [...checkPlugins(source, this.#options.loader.labels())]
    const targets = new Map<string, Target>()
    const running = enabledIds(program.entries)
    const pass: Pass = new Map()
    for (const entry of program.entries) {
      if (isStructure(entry)) continue
      try {
        const target = await this.#prepare(entry, program.entries, pass)
        if (running.has(entry.id)) targets.set(entry.id, target)
      } catch (error) {
        if (!isCoded(error)) throw error
        faults.push(...faultsOf(error, entry, source))
      }
    }
    if (faults.length > 0) throw invalid(source, faults)
    return { program, targets }
  }

  /** @param renamed what is about to be renamed: the entry is still running under its old id then */
  async #prepare(entry: Entry, entries: readonly Entry[], pass: Pass, renamed: Renamed = []): Promise<Target> {
    const { env, overrides } = this.#options
    const plugin = await this.#load(entry.plugin, pass)
    const config = { ...resolveConfig(entry.config, env, plugin.config), ...overrides?.[entry.plugin] }
    const scope = this.#scope(entry, entries, renamed, plugin)
    const old = renamed.find(([, next]) => next === entry.id)?.[0] ?? entry.id
    const present = this.kernel.fiber(old)?.target
    // Equal scopes stay the same object: that is how a fiber sees that only its config has changed.
    const { realms, overlays } = present !== undefined && isSameScope(present, scope) ? present : scope
    return this.kernel.targetOf({ id: entry.id, plugin, config, realms, overlays })
  }

  #load(label: string, pass: Pass): Promise<Plugin> {
    let loading = pass.get(label)
    if (loading === undefined) pass.set(label, (loading = this.#loadNow(label)))
    return loading
  }

  async #loadNow(label: string): Promise<Plugin> {
    try {
      return await this.#code.load(label)
    } catch (error) {
      if (isCoded(error, 'PLUGIN_NOT_FOUND')) throw error
      // Code that does not load is the entry's own failure: it is shown as Failed, and the rest serves.
      return unloadable(label, error)
    }
  }

  /** What cannot be loaded has no manifest to know of; the change that runs it will say why. */
  async #loadManifests(entries: readonly Entry[], pass: Pass): Promise<void> {
    for (const entry of entries) {
      if (isStructure(entry) || this.#code.has(entry.plugin)) continue
      try {
        await this.#load(entry.plugin, pass)
      } catch (error) {
        if (!isCoded(error)) throw error
      }
    }
  }

  /** @param renamed what is about to be renamed: a private realm goes along with its entry */
  #scope(
    entry: Entry,
    entries: readonly Entry[],
    renamed: Renamed = [],
    plugin: Plugin | undefined = this.#code.get(entry.plugin)
  ): Scope {
    const provides = plugin?.provides ?? []
    let byId = this.#byId.get(entries)
    if (byId === undefined) this.#byId.set(entries, (byId = new Map(entries.map((each) => [each.id, each]))))
    return scopeOf(entry, byId, provides, (id) =>
      this.#privateRealm(renamed.find(([, next]) => next === id)?.[0] ?? id)
    )
  }

  #privateRealm(id: string): string {
    let realm = this.#privateRealms.get(id)
    if (realm === undefined) {
      this.#privateRealmCount += 1
      realm = `private:${this.#privateRealmCount}`
      this.#privateRealms.set(id, realm)
    }
    return realm
  }

  /** @param wanted of a program that was prepared; `current` does not run here */
  stepsFrom(current: readonly Entry[], wanted: readonly Entry[]): readonly Step[] {
    const scope = (entry: Entry, entries: readonly Entry[]) => this.#scope(entry, entries)
    const sees = ({ plugin }: Entry) => {
      const { inject = [], optional = [], provides = [] } = this.#code.get(plugin) ?? {}
      return [...inject, ...optional, ...provides]
    }
    return planSteps(current, wanted, { before: scope, after: scope, sees, renamed: [] })
  }

  #plan(current: readonly Entry[], wanted: readonly Entry[], renamed: Renamed = []): readonly Step[] {
    return planSteps(current, wanted, {
      before: (entry, entries) => this.#scope(entry, entries),
      after: (entry, entries) => this.#scope(entry, entries, renamed),
      sees: ({ id }) => this.kernel.fiber(id)?.seen ?? [],
      renamed
    })
  }

  #control(): KernelControl {
    const { kernel } = this
    return {
      fibers: () => this.#fibers(),
      fileError: () => (this.#fileError === undefined ? null : messageOf(this.#fileError)),
      isReady: () => this.#ready && !kernel.stopping,
      // In its turn, so that nothing half-way is seen; but not behind a change that takes long.
      entries: async () => {
        // A change under way is waited for, but not for ever: a listing is no change.
        await atMost(settleMs, this.#turn)
        return this.#entries()
      },
      putEntry: (entry, options) =>
        this.#exclusively(() => this.#change((source) => this.#put(source, entry), options)),
      patchEntry: (id, patch, options) => this.#exclusively(() => this.#patch(id, patch, options)),
      deleteEntry: (id, options) => this.#exclusively(() => this.#change((source) => removal(source, id), options)),
      toggleEntry: (id, options) => this.#exclusively(() => this.#toggle(id, options)),
      moveEntry: (id, parent, position, options) => this.#exclusively(() => this.#move(id, parent, position, options)),
      reload: (options) => this.#exclusively(() => this.#reload(options)),
      replaceProvider: (name, config, options) => this.#exclusively(() => this.#replace(name, config, options)),
      retireService: (name) => this.#exclusively(async () => this.#retireService(name)),
      provideService: (name) => this.#exclusively(async () => this.#provideService(name))
    }
  }

  #exclusively<T>(work: () => Promise<T>): Promise<T> {
    const mine = this.#turn.then(work)
    this.#turn = mine.catch(() => {})
    return mine
  }

  async #entries(): ReturnType<KernelControl['entries']> {
    const { entries } = this.program
    const source = await this.read()
    await this.#loadManifests(source.program.entries, new Map())
    return {
      current: entries.map((entry) => this.#masked(entry)),
      pending: shownSteps(this.#plan(entries, source.program.entries)),
      path: this.#file,
      dependencyCycles: this.kernel.cycles(),
      etag: etagOf(source)
    }
  }

  #put({ program }: Source, input: EntryInput): Change {
    const present = program.entries.find((entry) => entry.id === input.id)
    const entry: Entry = { config: {}, disabled: false, ...input }
    const config = unmaskSecrets(entry.config, present?.config)
    const intercept = entry.intercept && unmaskSecrets(entry.intercept, present?.intercept)
    if (present === undefined) return { edits: [{ op: 'insert', entry: { ...entry, config } }] }
    const { id } = entry
    return {
      edits: [
        { op: 'set', id, key: 'plugin', value: entry.plugin },
        { op: 'set-config', id, config },
        { op: 'set-disabled', id, disabled: entry.disabled },
        { op: 'set', id, key: 'isolate', value: entry.isolate },
        { op: 'set', id, key: 'intercept', value: intercept },
        { op: 'set', id, key: 'position', value: entry.position }
      ]
    }
  }

  async #patch(
    id: string,
    patch: EntryPatch,
    options: ChangeOptions | undefined
  ): ReturnType<KernelControl['patchEntry']> {
    const moves = patch.parent !== undefined || patch.position !== undefined
    let renamed: Renamed | undefined
    let now = id
    const changed = await this.#change((source) => {
      const entry = entryOf(source, id)
      const parent = patch.parent === undefined ? parentOf(entry) || null : patch.parent
      const move = moves ? moving(source, id, parent, patch.position) : undefined
      renamed = move?.renamed
      now = renamed?.find(([old]) => old === id)?.[1] ?? id
      return { ...move, edits: [...this.#edits(id, entry, patch), ...(move?.edits ?? [])] }
    }, options)
    const entry = options?.dryRun === true ? undefined : this.program.entries.find((each) => each.id === now)
    return { ...changed, entry: this.#masked(entry ?? { id: now, plugin: '', config: {}, disabled: false }), renamed }
  }

  #edits(id: string, entry: Entry, patch: EntryPatch): readonly ProgramEdit[] {
    const { config, disabled, isolate, intercept } = patch
    const edits: ProgramEdit[] = []
    if (config !== undefined) {
      edits.push({ op: 'set-config', id, config: unmaskSecrets(config ?? {}, entry.config) })
    }
    if (disabled !== undefined) edits.push({ op: 'set-disabled', id, disabled })
    if (isolate !== undefined) edits.push({ op: 'set', id, key: 'isolate', value: isolate ?? undefined })
    if (intercept !== undefined) {
      const value = intercept === null ? undefined : unmaskSecrets(intercept, entry.intercept)
      edits.push({ op: 'set', id, key: 'intercept', value })
    }
    return edits
  }

  async #toggle(id: string, options: ChangeOptions | undefined): ReturnType<KernelControl['toggleEntry']> {
    let disabled = false
    const changed = await this.#change((source) => {
      disabled = !entryOf(source, id).disabled
      return { edits: [{ op: 'set-disabled', id, disabled }] }
    }, options)
    return { ...changed, disabled }
  }

  async #move(
    id: string,
    parent: string | null,
    position: number | undefined,
    options: ChangeOptions | undefined
  ): ReturnType<KernelControl['moveEntry']> {
    let renamed: Renamed = []
    const changed = await this.#change((source) => {
      const move = moving(source, id, parent, position)
      renamed = move.renamed
      return move
    }, options)
    return { ...changed, renamed }
  }

  async #reload(options: ChangeOptions | undefined): Promise<Changed> {
    const source = await this.read()
    assertMatch(source, options)
    return this.#apply(source.program, {}, options)
  }

  async #replace(
    name: string,
    config: JsonObject,
    options: ChangeOptions | undefined
  ): ReturnType<KernelControl['replaceProvider']> {
    const { entries } = this.program
    const byLabel = entries.filter((entry) => entry.plugin === name)
    const entry = entries.find((each) => each.id === name) ?? (byLabel.length === 1 ? byLabel[0] : undefined)
    if (entry === undefined) {
      const ids = byLabel.map(({ id }) => `'${id}'`).join(', ')
      throw notReplaced(
        byLabel.length > 1
          ? `replace_provider: plugin '${name}' is used by several entries (${ids}); name one of them`
          : `replace_provider: no journaled entry for plugin '${name}'`
      )
    }
    const { id } = entry
    if (this.kernel.fiber(id)?.target === undefined) {
      throw notReplaced(`replace_provider: entry '${id}' has no tracked fiber`)
    }
    try {
      await this.#change(
        (source) => ({
          edits: [{ op: 'set-config', id, config: unmaskSecrets(config, entryOf(source, id).config) }],
          rebuild: id
        }),
        options
      )
    } catch (error) {
      const codes = ['PROGRAM_PREFLIGHT_FAILED', 'PROGRAM_APPLY_FAILED', 'PROGRAM_EDIT_FAILED', 'PROGRAM_INCLUDED']
      if (!isCoded(error) || !codes.includes(error.code)) throw error
      throw notReplaced(error.message, error)
    }
    return { plugin: name, fiberId: this.kernel.fiber(id)?.id ?? 0 }
  }

  #retireService(name: string): Awaited<ReturnType<KernelControl['retireService']>> {
    const { type } = this.#directService(name)
    const { retired, woken } = this.kernel.unprovide(name as ServiceName)
    return { retired, woken, type }
  }

  #provideService(name: string): Awaited<ReturnType<KernelControl['provideService']>> {
    const { type, make } = this.#directService(name)
    const provided = this.kernel.service(name as ServiceName) === undefined
    if (provided) this.kernel.provide(name as ServiceName, make())
    return { provided, type }
  }

  #directService(name: string): DirectService {
    const service = this.#direct.get(name)
    if (service !== undefined) return service
    throw new CodedError('SERVICE_NOT_DIRECT', `service ${name} is not one of the kernel's own`)
  }

  /**
   * Edits the file as it is on disk now, applies what it then says, and only then puts it in its place. When somebody
   * else has written meanwhile, begins anew from what they wrote.
   */
  async #change(make: (source: Source) => Change, options: ChangeOptions | undefined): Promise<Changed> {
    for (let round = 0; round < maxRounds; round++) {
      const source = await this.read()
      assertMatch(source, options)
      const change = make(source)
      const wanted = edited(source, change)
      const before = this.program
      // The bytes go to disk beside the file while whoever asked gets ready: no swap waits for both in turn.
      const drafts: Draft[] = []
      const prepare = async () => {
        const drafting = changedFiles(source, wanted).map(async ({ parsed: { file, text } }) => {
          drafts.push(await draftProgramFile(file, text))
        })
        await all([options?.after ?? Promise.resolve(), ...drafting])
      }
      try {
        const changed = await this.#apply(wanted.program, change, options, prepare)
        if (options?.dryRun === true || source.files.length === 0) return changed
        try {
          if (isAsRead(source)) {
            for (const draft of drafts) await this.#publish(draft)
            return changed
          }
        } catch (error) {
          await this.#takeBack(before, change)
          throw notSaved(this.#file, error)
        }
        await this.#takeBack(before, change)
      } finally {
        for (const draft of drafts) draft.discard()
      }
    }
    throw new CodedError('PROGRAM_CHANGED', 'somebody else keeps writing the program file; the change was given up')
  }

  async #publish(draft: Draft): Promise<void> {
    const { path, text } = draft
    await draft.publish()
    this.#whole.set(path, text)
    this.#watcher?.expect(resolve(path), text)
  }

  async #takeBack(before: Program, { renamed = [] }: Change): Promise<void> {
    const back = renamed.map(([old, next]) => [next, old] as const)
    await this.#apply(before, { renamed: back }, undefined)
  }

  /**
   * Makes `wanted` run: everything checked first, then step by step; a step that fails takes those before it back.
   * @param prepare what is left to do once everything is checked; nothing changes when it rejects
   */
  async #apply(
    wanted: Program,
    { renamed = [], rebuild }: Omit<Change, 'edits'>,
    options: ChangeOptions | undefined,
    prepare: () => Promise<unknown> = async () => options?.after,
    pass: Pass = new Map()
  ): Promise<Changed> {
    const { entries } = wanted
    await this.#loadManifests(entries, pass)
    const steps = renewing(this.#plan(this.program.entries, entries, renamed), entries, rebuild)
    const targets = new Map<string, Target>()
    for (const step of steps) {
      if (step.action !== 'retire') targets.set(step.id, await this.#verify(step, entries, pass, renamed))
    }
    for (const to of changedWhileOff(this.program.entries, entries, renamed)) {
      await this.#verify({ action: 'update-config', id: to.id, to }, entries, pass, renamed)
    }
    if (options?.dryRun === true) return { applied: [], planned: shownSteps(steps) }
    await prepare()
    this.#rename(renamed)
    try {
      const applied = await this.#takeAll(steps, targets)
      this.#current = wanted
      this.#fileError = undefined
      this.#code.keep(new Set(entries.map((entry) => entry.plugin)))
      this.kernel.settings = wanted.settings
      await this.#untilSettled()
      return { applied, planned: [] }
    } catch (error) {
      this.#rename(renamed.map(([old, next]) => [next, old]))
      throw error
    }
  }

  async #untilSettled(): Promise<void> {
    await atMost(settleMs, this.kernel.settled())
  }

  #rename(renamed: Renamed): void {
    if (renamed.length === 0) return
    this.kernel.rename(renamed)
    const realms = renamed.map(([old, next]) => [next, this.#privateRealms.get(old)] as const)
    for (const [old] of renamed) this.#privateRealms.delete(old)
    for (const [next, realm] of realms) if (realm !== undefined) this.#privateRealms.set(next, realm)
  }

  async #takeAll(steps: readonly Step[], targets: ReadonlyMap<string, Target>): Promise<readonly AppliedStep[]> {
    const taken: Taken[] = []
    for (const step of steps) {
      const now: Taken = { step, before: this.kernel.fiber(step.id)?.target }
      try {
        this.#assertNeeds(step, targets)
        await this.#take(step, targets.get(step.id))
      } catch (error) {
        // A fiber that could not start is there all the same; one that could not be swapped serves on as it was.
        await this.#untake(step.action === 'begin' ? [...taken, now] : taken)
        // A lone change of config that fails has been a trial: nothing was touched.
        if (steps.length === 1 && step.action === 'update-config') throw preflight(step, error)
        throw new CodedError('PROGRAM_APPLY_FAILED', `staged apply failed: ${messageOf(error)}; batch rolled back`, {
          cause: error,
          detail: { id: step.id, action: step.action }
        })
      }
      taken.push(now)
    }
    return shownSteps(steps).map((step) => ({ ...step, ok: true, verified: true }))
  }

  /**
   * Another plugin does not take the place of one that serves, only to wait for a service; unless the same change brings
   * that service too.
   */
  #assertNeeds(step: Step, targets: ReadonlyMap<string, Target>): void {
    const target = targets.get(step.id)
    if (target === undefined || step.action !== 'rebuild-fiber' || step.from.plugin === step.to.plugin) return
    const missing = missingService(this.kernel, step.id, target) as ServiceName | undefined
    if (missing === undefined || [...targets.values()].some(({ plugin }) => plugin.provides.includes(missing))) return
    throw needsMissing(step.to.plugin, missing)
  }

  async #verify(
    step: { readonly action: string; readonly id: string; readonly to: Entry },
    entries: readonly Entry[],
    pass: Pass,
    renamed: Renamed
  ): Promise<Target> {
    try {
      return await this.#prepare(step.to, entries, pass, renamed)
    } catch (error) {
      if (isCoded(error, 'PLUGIN_NOT_FOUND') && isLabel(step.to.plugin)) {
        const message = `no factory registered for plugin '${step.to.plugin}'`
        const detail = { id: step.id, action: step.action }
        throw new CodedError('PROGRAM_APPLY_FAILED', message, { cause: error, detail })
      }
      throw preflight(step, error)
    }
  }

  async #take(step: Step, target: Target | undefined): Promise<void> {
    const { kernel } = this
    const { id } = step
    if (step.action === 'retire') {
      // Gone from sight when this returns; what it serves still drains.
      kernel.retire(id).catch((error: unknown) => {
        this.#options.log.error('an entry could not be retired', { entry: id, error })
      })
      return
    }
    const mount = { id, ...(target as Target) }
    if (step.action === 'begin') {
      await kernel.begin(mount)
      return
    }
    await kernel.retarget(mount)
    if (('renew' in step && step.renew) || step.from.plugin !== step.to.plugin) kernel.renew(id)
  }

  /** Takes steps back, the newest first: what ran before runs again, with the code and the config it had. */
  async #untake(taken: readonly Taken[]): Promise<void> {
    for (const { step, before } of taken.toReversed()) {
      const { id } = step
      try {
        if (step.action === 'begin') await this.#take({ action: 'retire', id, from: step.to }, undefined)
        else if (step.action === 'retire') await this.#take({ action: 'begin', id, to: step.from }, before)
        else await this.#take({ ...step, from: step.to, to: step.from }, before)
      } catch (error) {
        this.#options.log.error('a step could not be taken back', { entry: id, action: step.action, error })
      }
    }
  }

  // What happens on disk.

  #watch(): void {
    const { watch, log } = this.#options
    if (watch === undefined) return
    const onChange = (changed: ReadonlySet<string>) => this.#exclusively(() => this.#takeIn(changed))
    this.#watcher = watchFiles({ ...watch, log, onChange })
    this.#follow()
  }

  /** Absolute paths of the files that are watched. */
  get followed(): readonly string[] {
    if (this.#watcher === undefined) return []
    return [...new Set([...this.#files.map((file) => resolve(file)), ...this.#code.files().keys()])]
  }

  #follow(): void {
    const code = this.#code.files()
    this.#watcher?.follow(this.followed, (file) => {
      const text = this.#texts.get(file)
      return text === undefined ? code.get(file) : stampOf(text)
    })
  }

  /** First the code, so that the program may ask for what is new in it. */
  async #takeIn(changed: ReadonlySet<string>): Promise<void> {
    if (this.kernel.stopping) return
    const misfits = await this.#swapCode(await this.#loadFresh(this.#code.dependents(changed)), changed)
    // What new code has mended counts as well as what was written anew.
    if (this.#fileError === undefined && !this.#files.some((file) => changed.has(resolve(file)))) return
    await this.#takeProgram(misfits)
    await this.#swapCode(misfits, changed)
  }

  /** @param fresh code that the present program cannot use: this one may be written for it, or it may be a mistake */
  async #takeProgram(fresh: ReadonlyMap<string, Plugin>): Promise<void> {
    const { log } = this.#options
    for (const plugins of fresh.size > 0 ? [fresh, none] : [none]) {
      try {
        const { program } = await this.read()
        const pass: Pass = new Map([...plugins].map(([label, plugin]) => [label, Promise.resolve(plugin)]))
        const { applied } = await this.#apply(program, {}, undefined, undefined, pass)
        if (applied.length > 0) log.info('the program file was taken in', { applied })
        return
      } catch (error) {
        this.#fileError = error
      }
    }
    log.error('the program file was refused', { error: this.#fileError })
  }

  async #loadFresh(labels: Iterable<string>): Promise<ReadonlyMap<string, Plugin>> {
    const fresh = new Map<string, Plugin>()
    for (const label of labels) {
      try {
        fresh.set(label, await this.#code.fresh(label))
      } catch (error) {
        this.#code.refuse(label, error)
      }
    }
    return fresh
  }

  #swapCode(fresh: ReadonlyMap<string, Plugin>, files: ReadonlySet<string>): Promise<ReadonlyMap<string, Plugin>> {
    const { entries } = this.program
    const options = {
      kernel: this.kernel,
      code: this.#code,
      log: this.#options.log,
      entries,
      prepare: (entry: Entry, plugin: Plugin) =>
        this.#prepare(entry, entries, new Map([[entry.plugin, Promise.resolve(plugin)]])),
      untilSettled: () => this.#untilSettled()
    }
    return swapCode(options, fresh, files)
  }

  /** The fibers as they are, and why they do not run the newest code of their plugin. */
  #fibers(): readonly FiberStatus[] {
    const fibers = this.kernel.fibers()
    const refusals = new Map(this.#current?.entries.map(({ id, plugin }) => [id, this.#code.refusalOf(plugin)]))
    return fibers.map((fiber) => {
      const refusal = refusals.get(fiber.entry)
      if (refusal === undefined) return fiber
      const error = messageOf(refusal)
      return { ...fiber, error: fiber.error === null || fiber.error === error ? error : `${error}; ${fiber.error}` }
    })
  }

  /** A plugin that ended its own entry stays off at the next start too. */
  #rememberDisposed(id: string): void {
    const off = () => this.#change(() => ({ edits: [{ op: 'set-disabled', id, disabled: true }] }), undefined)
    this.#exclusively(off).catch((error: unknown) => {
      this.#options.log.error('the program could not remember that an entry ended itself', { entry: id, error })
    })
  }

  #masked(entry: Entry): Entry {
    if (isStructure(entry)) return this.#withMaskedOverlays(entry)
    const plugin = this.#code.get(entry.plugin)
    const config = maskSecrets(entry.config, plugin === undefined ? undefined : (plugin.config ?? {}))
    return this.#withMaskedOverlays({ ...entry, config })
  }

  /** What is laid over a service is masked as the config of who provides it is. */
  #withMaskedOverlays(entry: Entry): Entry {
    if (entry.intercept === undefined) return entry
    const plugins = this.program.entries.flatMap(({ plugin }) => this.#code.get(plugin) ?? [])
    const masked = Object.entries(entry.intercept).map(([service, overlay]) => {
      const providers = plugins.filter(({ provides }) => provides.includes(service as ServiceName))
      const schemas = providers.length === 0 ? [undefined] : new Set(providers.map(({ config }) => config ?? {}))
      return [service, [...schemas].reduce(maskSecrets, overlay as JsonObject)]
    })
    return { ...entry, intercept: Object.fromEntries(masked) as JsonObject }
  }
}

/** As `Promise.all`, but not before each has ended. */
async function all(works: readonly Promise<unknown>[]): Promise<void> {
  const outcomes = await Promise.allSettled(works)
  for (const outcome of outcomes) if (outcome.status === 'rejected') throw outcome.reason
}

function notSaved(file: string | undefined, error: unknown): CodedError {
  const message = `the program file ${file} could not be written: ${messageOf(error)}`
  return new CodedError('PROGRAM_NOT_SAVED', message, { cause: error })
}

/** Resolves when `work` does, or after `limitMs`. */
async function atMost(limitMs: number, work: Promise<unknown>): Promise<void> {
  let timer: NodeJS.Timeout | undefined
  const late = new Promise<void>((resolve) => {
    timer = setTimeout(resolve, limitMs).unref()
  })
  await Promise.race([work, late])
  clearTimeout(timer)
}

/** Entries that are new or other than before and run nothing: the next start would check them too. */
function changedWhileOff(current: readonly Entry[], wanted: readonly Entry[], renamed: Renamed): readonly Entry[] {
  const names = new Map(renamed)
  const before = new Map(current.map((entry) => [names.get(entry.id) ?? entry.id, entry]))
  const running = enabledIds(wanted)
  return wanted.filter((to) => {
    if (running.has(to.id) || isStructure(to)) return false
    const from = before.get(to.id)
    return from === undefined || from.plugin !== to.plugin || !isDeepStrictEqual(from.config, to.config)
  })
}

/** The plan with the entry `id` rebuilt as a new fiber in any case. */
function renewing(steps: readonly Step[], entries: readonly Entry[], id: string | undefined): readonly Step[] {
  const to = id === undefined ? undefined : entries.find((entry) => entry.id === id)
  if (id === undefined || to === undefined) return steps
  return [...steps.filter((step) => step.id !== id), { action: 'rebuild-fiber', id, from: to, to, renew: true }]
}

/** Whether a text is the beginning of what it was and ends where no line ends: half of a save, most likely. */
function isCut(text: string, before: string | undefined): boolean {
  return before !== undefined && before.endsWith('\n') && !text.endsWith('\n') && text !== '' && before.startsWith(text)
}

function cutShort(file: string, files: readonly string[]): CodedError {
  const message =
    'the file is the beginning of what it was, and ends without a line end; end it with one if it is meant'
  return invalidProgram(file, [{ line: 0, column: 0, message }], files)
}

function assertMatch(source: Source, options: ChangeOptions | undefined): void {
  if (options?.ifMatch === undefined || options.ifMatch === '*') return
  const etag = etagOf(source)
  if (options.ifMatch.split(',').some((each) => each.trim() === etag)) return
  throw new CodedError('PROGRAM_CHANGED', 'the program has changed since it was read; read it again')
}

function faultsOf(error: CodedError, entry: Entry, source: Source): readonly ProgramFault[] {
  const issues = error.detail?.['issues'] as readonly Issue[] | undefined
  const schema = error.detail?.['schema'] as Plugin['config']
  if (source.files.length > 0 && issues !== undefined && schema !== undefined) {
    return issueFaults(source, entry.id, schema, issues)
  }
  // checkPlugins has said it already, with a suggestion.
  if (isCoded(error, 'PLUGIN_NOT_FOUND') && source.files.length > 0 && isLabel(entry.plugin)) return []
  return [{ ...source.locate(entry.id, []), message: `${error.message} (entry '${entry.id}')` }]
}

/** A stand-in whose start fails with what loading the code failed with. */
function unloadable(label: string, error: unknown): Plugin {
  const cause = error instanceof Error ? error : new Error(messageOf(error))
  return definePlugin({
    name: label,
    config: {},
    apply() {
      throw cause
    }
  })
}

function preflight(
  step: { readonly id: string; readonly action: string; readonly to?: Entry },
  error: unknown
): CodedError {
  const found = isCoded(error) ? (error.detail?.['issues'] as readonly Issue[] | undefined) : undefined
  const issues = found?.map((issue) => ({ message: issue.message, path: [step.to?.plugin ?? step.id, ...issue.path] }))
  const text = issues === undefined ? messageOf(error) : `invalid config: ${renderIssues(issues)}`
  return new CodedError('PROGRAM_PREFLIGHT_FAILED', `config pre-flight failed: ${text}`, {
    cause: error,
    detail: { id: step.id, action: step.action, ...(issues === undefined ? {} : { issues }) }
  })
}

/** The reason of a refused replacement, in the words of whoever refused. */
function notReplaced(reason: string, cause?: CodedError): CodedError {
  const issues = cause?.detail?.['issues']
  const original = isCoded(cause, 'PROGRAM_APPLY_FAILED') ? messageOf(cause.cause) : undefined
  return new CodedError('PROVIDER_NOT_REPLACED', original ?? reason, {
    cause,
    ...(issues === undefined ? {} : { detail: { issues } })
  })
}

function invalid({ files }: Source, faults: readonly ProgramFault[]): CodedError {
  const order = files.map(({ parsed }) => parsed.file)
  const rank = (fault: ProgramFault) => order.indexOf(fault.file ?? '')
  const sorted = faults.toSorted((a, b) => rank(a) - rank(b) || a.line - b.line || a.column - b.column)
  return invalidProgram(order[0] ?? 'program', sorted, order)
}
