import { createHash } from 'node:crypto'
import { readFile } from 'node:fs/promises'
import { isDeepStrictEqual } from 'node:util'
import type { CodeLoader } from './code.ts'
import type {
  AppliedStep,
  Changed,
  ChangeOptions,
  EntryInput,
  EntryPatch,
  EventsService,
  KernelControl,
  Renamed
} from './control.ts'
import { editEntries, editProgram, type ProgramEdit, writeProgramFile } from './edit.ts'
import { CodedError, isCoded, messageOf } from './errors.ts'
import type { Target } from './generation.ts'
import { Kernel } from './kernel.ts'
import { type Logger, silentLogger } from './log.ts'
import { planSteps, type Step } from './plan.ts'
import { definePlugin, type Plugin, type ServiceName, type Services } from './plugin.ts'
import {
  checkPlugins,
  type Entry,
  isLabel,
  issueFaults,
  type JsonObject,
  type ParsedProgram,
  type Program,
  type ProgramFault,
  parseProgram,
  resolveConfig
} from './program.ts'
import { type Issue, renderIssues } from './schema.ts'
import { maskSecrets, unmaskSecrets } from './secrets.ts'
import { isGroup, moveEntry, parentOf, type Scope, scopeOf, subtreeOf } from './tree.ts'

export interface HostOptions {
  /** Path of the program file, or the program itself as data; then nothing is written anywhere. */
  readonly program: string | Program
  readonly loader: CodeLoader
  readonly env: Readonly<Record<string, string | undefined>>
  /** Config keys that win over the file, by plugin label: what the command line and the environment say. */
  readonly overrides?: Readonly<Record<string, Readonly<Record<string, unknown>>>>
  readonly log: Logger
}

/** How long an answer waits for what its change set in motion elsewhere. */
const settleMs = 1_000

/** A program that is ready to run: every entry with its plugin and its checked config. */
interface Prepared {
  readonly program: Program
  readonly targets: ReadonlyMap<string, Target>
}

/** What a change does to the program. */
interface Change {
  readonly edits: readonly ProgramEdit[]
  readonly renamed?: Renamed
  /** An entry that is rebuilt as a new fiber, whether or not anything of it has changed. */
  readonly rebuild?: string
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
  #current: Program | undefined
  #ready = false
  /** One change at a time; the next waits for the end of this, however it ends. */
  #turn: Promise<unknown> = Promise.resolve()
  /** Plugins by label, as last loaded: what the plan has to know of their manifests. */
  readonly #plugins = new Map<string, Plugin>()
  /** Names of the realms that entries have of their own; they move with the entry. */
  readonly #privateRealms = new Map<string, string>()
  #privateRealmCount = 0
  readonly #direct: ReadonlyMap<string, DirectService>

  constructor(options: HostOptions) {
    this.#options = options
    this.#file = typeof options.program === 'string' ? options.program : undefined
    this.kernel = new Kernel({ log: options.log })
    const events: EventsService = { counts: () => this.kernel.events.counts() }
    this.#direct = new Map([['events_service', { type: 'cordis::events::EventsService', make: () => events }]])
  }

  async start(): Promise<void> {
    const { kernel } = this
    const { program, targets } = await this.prepareAll(await this.read())
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
    kernel.events.emit('kernel/started')
  }

  stop(timeoutMs?: number): Promise<void> {
    return this.kernel.stop(timeoutMs)
  }

  get program(): Program {
    if (this.#current === undefined) throw new CodedError('KERNEL_NOT_STARTED', 'the kernel has not started yet')
    return this.#current
  }

  /** @throws CodedError `PROGRAM_INVALID`, also when the file cannot be read */
  async read(): Promise<ParsedProgram | Program> {
    if (this.#file === undefined) return this.#current ?? (this.#options.program as Program)
    return parseProgram(await readBytes(this.#file), this.#file)
  }

  /** Every entry that is to run, loaded and checked; everything that is wrong at once. */
  async prepareAll(source: ParsedProgram | Program): Promise<Prepared> {
    const parsed = 'program' in source ? source : undefined
    const program = 'program' in source ? source.program : source
    const faults: ProgramFault[] = parsed === undefined ? [] : [...checkPlugins(parsed, this.#options.loader.labels())]
    const targets = new Map<string, Target>()
    const running = new Set(planSteps([], program.entries).map((step) => step.id))
    for (const entry of program.entries) {
      if (isGroup(entry)) continue
      try {
        const target = await this.#prepare(entry, program.entries)
        if (running.has(entry.id)) targets.set(entry.id, target)
      } catch (error) {
        if (!isCoded(error)) throw error
        faults.push(...faultsOf(error, entry, parsed, faults))
      }
    }
    if (faults.length > 0) throw invalid(parsed?.file ?? 'program', faults)
    return { program, targets }
  }

  async #prepare(entry: Entry, entries: readonly Entry[]): Promise<Target> {
    const { env, overrides } = this.#options
    const plugin = await this.#load(entry.plugin)
    const config = { ...resolveConfig(entry.config, env, plugin.config), ...overrides?.[entry.plugin] }
    const scope = this.#scope(entry, entries)
    const present = this.kernel.fiber(entry.id)?.target
    // Equal scopes stay the same object: that is how a fiber sees that only its config has changed.
    const same =
      present !== undefined && isDeepStrictEqual({ realms: present.realms, overlays: present.overlays }, scope)
    const { realms, overlays } = same ? present : scope
    return this.kernel.targetOf({ id: entry.id, plugin, config, realms, overlays })
  }

  async #load(label: string): Promise<Plugin> {
    let plugin: Plugin
    try {
      plugin = (await this.#options.loader.load(label)).plugin
    } catch (error) {
      if (isCoded(error, 'PLUGIN_NOT_FOUND')) throw error
      // Code that does not load is the entry's own failure: it is shown as Failed, and the rest serves.
      plugin = unloadable(label, error)
    }
    this.#plugins.set(label, plugin)
    return plugin
  }

  /** @param renamed what is about to be renamed: a private realm goes along with its entry */
  #scope(entry: Entry, entries: readonly Entry[], renamed: Renamed = []): Scope {
    const plugin = this.#plugins.get(entry.plugin)
    const names = {
      injects: [...(plugin?.inject ?? []), ...(plugin?.optional ?? [])],
      provides: plugin?.provides ?? []
    }
    const byId = new Map(entries.map((each) => [each.id, each]))
    const before = new Map(renamed.map(([old, next]) => [next, old]))
    return scopeOf(entry, byId, names, (id) => this.#privateRealm(before.get(id) ?? id))
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

  #plan(wanted: readonly Entry[], renamed: Renamed = []): readonly Step[] {
    return planSteps(this.program.entries, wanted, {
      before: (entry, entries) => this.#scope(entry, entries),
      after: (entry, entries) => this.#scope(entry, entries, renamed),
      renamed
    })
  }

  #control(): KernelControl {
    const { kernel } = this
    return {
      fibers: () => kernel.fibers(),
      isReady: () => this.#ready && !kernel.stopping,
      entries: () => this.#entries(),
      putEntry: (entry, options) => this.#exclusively(() => this.#change(() => this.#put(entry), options)),
      patchEntry: (id, patch, options) => this.#exclusively(() => this.#patch(id, patch, options)),
      deleteEntry: (id, options) => this.#exclusively(() => this.#change((program) => removal(program, id), options)),
      toggleEntry: (id, options) => this.#exclusively(() => this.#toggle(id, options)),
      moveEntry: (id, parent, position, options) => this.#exclusively(() => this.#move(id, parent, position, options)),
      reload: (options) => this.#exclusively(() => this.#reload(options)),
      replaceProvider: (name, config) => this.#exclusively(() => this.#replace(name, config)),
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
    const source = await this.read()
    const wanted = 'program' in source ? source.program : source
    for (const { plugin } of wanted.entries) if (!this.#plugins.has(plugin)) await this.#tryLoad(plugin)
    return {
      current: this.program.entries.map((entry) => this.#masked(entry)),
      pending: this.#plan(wanted.entries).map(({ id, action }) => ({ id, action })),
      path: this.#file,
      dependencyCycles: this.kernel.cycles(),
      etag: etagOf(source)
    }
  }

  /** What cannot be loaded has no manifest to know of; the change that runs it will say why. */
  async #tryLoad(label: string): Promise<void> {
    try {
      await this.#load(label)
    } catch (error) {
      if (!isCoded(error)) throw error
    }
  }

  #put(input: EntryInput): Change {
    const present = this.program.entries.find((entry) => entry.id === input.id)
    const entry: Entry = { config: {}, disabled: false, ...input }
    const config = this.#unmasked(entry.plugin, entry.config, present)
    if (present === undefined) return { edits: [{ op: 'insert', entry: { ...entry, config } }] }
    const { id } = entry
    return {
      edits: [
        { op: 'set', id, key: 'plugin', value: entry.plugin },
        { op: 'set-config', id, config },
        { op: 'set-disabled', id, disabled: entry.disabled },
        { op: 'set', id, key: 'isolate', value: entry.isolate },
        { op: 'set', id, key: 'intercept', value: entry.intercept },
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
    const changed = await this.#change((program) => {
      const entry = entryOf(program, id)
      const parent = patch.parent === undefined ? parentOf(entry) || null : patch.parent
      const move = moves ? moving(program, id, parent, patch.position) : undefined
      renamed = move?.renamed
      now = renamed?.find(([old]) => old === id)?.[1] ?? id
      return { edits: [...(move?.edits ?? []), ...this.#edits(now, entry, patch)], renamed: renamed ?? [] }
    }, options)
    const entry = options?.dryRun === true ? undefined : this.program.entries.find((each) => each.id === now)
    return { ...changed, entry: this.#masked(entry ?? { id: now, plugin: '', config: {}, disabled: false }), renamed }
  }

  #edits(id: string, entry: Entry, patch: EntryPatch): readonly ProgramEdit[] {
    const { config, disabled, isolate, intercept } = patch
    const edits: ProgramEdit[] = []
    if (config !== undefined) {
      edits.push({ op: 'set-config', id, config: this.#unmasked(entry.plugin, config ?? {}, entry) })
    }
    if (disabled !== undefined) edits.push({ op: 'set-disabled', id, disabled })
    if (isolate !== undefined) edits.push({ op: 'set', id, key: 'isolate', value: isolate ?? undefined })
    if (intercept !== undefined) edits.push({ op: 'set', id, key: 'intercept', value: intercept ?? undefined })
    return edits
  }

  async #toggle(id: string, options: ChangeOptions | undefined): ReturnType<KernelControl['toggleEntry']> {
    let disabled = false
    const changed = await this.#change((program) => {
      disabled = !entryOf(program, id).disabled
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
    const changed = await this.#change((program) => {
      const move = moving(program, id, parent, position)
      renamed = move.renamed
      return move
    }, options)
    return { ...changed, renamed }
  }

  async #reload(options: ChangeOptions | undefined): Promise<Changed> {
    const source = await this.read()
    assertMatch(source, options)
    return this.#apply(source, {}, options)
  }

  async #replace(name: string, config: JsonObject): ReturnType<KernelControl['replaceProvider']> {
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
        (program) => ({
          edits: [{ op: 'set-config', id, config: this.#unmasked(entry.plugin, config, entryOf(program, id)) }],
          rebuild: id
        }),
        undefined
      )
    } catch (error) {
      if (!isCoded(error, 'PROGRAM_PREFLIGHT_FAILED') && !isCoded(error, 'PROGRAM_APPLY_FAILED')) throw error
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
   * Edits the file as it is on disk now, applies what it then says, and only then writes it. When somebody else has
   * written meanwhile, begins anew from what they wrote.
   */
  async #change(make: (program: Program) => Change, options: ChangeOptions | undefined): Promise<Changed> {
    for (;;) {
      const source = await this.read()
      assertMatch(source, options)
      const change = make('program' in source ? source.program : source)
      const wanted = edited(source, change)
      const before = this.program
      const changed = await this.#apply(wanted, change, options)
      if (options?.dryRun === true || !('program' in source) || !('program' in wanted)) return changed
      const back = (change.renamed ?? []).map(([old, next]) => [next, old] as const)
      try {
        const file = this.#file as string
        if (Buffer.compare(await readBytes(file), Buffer.from(source.text)) !== 0) {
          await this.#apply(before, { renamed: back }, undefined)
          continue
        }
        if (wanted.text !== source.text) await writeProgramFile(file, wanted.text)
      } catch (error) {
        await this.#apply(before, { renamed: back }, undefined)
        throw new CodedError(
          'PROGRAM_NOT_SAVED',
          `the program file ${this.#file} could not be written: ${messageOf(error)}`,
          {
            cause: error
          }
        )
      }
      return changed
    }
  }

  /** Makes `wanted` run: everything checked first, then step by step; a step that fails takes those before it back. */
  async #apply(
    source: ParsedProgram | Program,
    { renamed = [], rebuild }: Omit<Change, 'edits'>,
    options: ChangeOptions | undefined
  ): Promise<Changed> {
    const wanted = 'program' in source ? source.program : source
    for (const { plugin } of wanted.entries) if (!this.#plugins.has(plugin)) await this.#tryLoad(plugin)
    const steps = renewing(this.#plan(wanted.entries, renamed), wanted.entries, rebuild)
    this.#rename(renamed)
    let kept = false
    try {
      const targets = new Map<string, Target>()
      for (const step of steps) {
        if (step.action !== 'retire') targets.set(step.id, await this.#verify(step, wanted.entries))
      }
      if (options?.dryRun === true) return { applied: [], planned: steps.map(({ id, action }) => ({ id, action })) }
      const applied = await this.#takeAll(steps, targets)
      this.#current = wanted
      this.kernel.settings = wanted.settings
      kept = true
      await this.#untilSettled()
      return { applied, planned: [] }
    } finally {
      if (!kept) this.#rename(renamed.map(([old, next]) => [next, old]))
    }
  }

  #rename(renamed: Renamed): void {
    if (renamed.length === 0) return
    this.kernel.rename(renamed)
    const realms = renamed.map(([old, next]) => [next, this.#privateRealms.get(old)] as const)
    for (const [old] of renamed) this.#privateRealms.delete(old)
    for (const [next, realm] of realms) if (realm !== undefined) this.#privateRealms.set(next, realm)
  }

  async #takeAll(steps: readonly Step[], targets: ReadonlyMap<string, Target>): Promise<readonly AppliedStep[]> {
    const taken: Step[] = []
    const applied: AppliedStep[] = []
    for (const step of steps) {
      try {
        await this.#take(step, targets.get(step.id))
      } catch (error) {
        await this.#takeBack([...(step.action === 'begin' ? [step] : []), ...taken.reverse()])
        // A lone change of config that fails has been a trial: nothing was touched.
        if (steps.length === 1 && step.action === 'update-config') throw preflight(step, error)
        throw new CodedError('PROGRAM_APPLY_FAILED', `staged apply failed: ${messageOf(error)}; batch rolled back`, {
          cause: error,
          detail: { id: step.id, action: step.action }
        })
      }
      taken.push(step)
      applied.push({ id: step.id, action: step.action, ok: true, verified: true })
    }
    return applied
  }

  async #verify(step: Exclude<Step, { action: 'retire' }>, entries: readonly Entry[]): Promise<Target> {
    try {
      return await this.#prepare(step.to, entries)
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
    if (step.renew === true || step.from.plugin !== step.to.plugin) kernel.renew(id)
  }

  async #takeBack(steps: readonly Step[]): Promise<void> {
    for (const step of steps) {
      try {
        if (step.action === 'begin') await this.#take({ action: 'retire', id: step.id, from: step.to }, undefined)
        else {
          const target = await this.#prepare(step.from, this.program.entries)
          if (step.action === 'retire') await this.#take({ action: 'begin', id: step.id, to: step.from }, target)
          else await this.#take({ ...step, from: step.to, to: step.from }, target)
        }
      } catch (error) {
        this.#options.log.error('a step could not be taken back', { entry: step.id, action: step.action, error })
      }
    }
  }

  /** A plugin that ended its own entry stays off at the next start too. */
  #rememberDisposed(id: string): void {
    const off = () => this.#change(() => ({ edits: [{ op: 'set-disabled', id, disabled: true }] }), undefined)
    this.#exclusively(off).catch((error: unknown) => {
      this.#options.log.error('the program could not remember that an entry ended itself', { entry: id, error })
    })
  }

  #masked(entry: Entry): Entry {
    return { ...entry, config: maskSecrets(entry.config, this.#plugins.get(entry.plugin)?.config ?? {}) }
  }

  #unmasked(plugin: string, config: JsonObject, present: Entry | undefined): JsonObject {
    return unmaskSecrets(config, this.#plugins.get(plugin)?.config ?? {}, present?.config ?? {})
  }

  async #untilSettled(): Promise<void> {
    let timer: NodeJS.Timeout | undefined
    const limit = new Promise<void>((resolve) => {
      timer = setTimeout(resolve, settleMs)
    })
    await Promise.race([this.kernel.settled(), limit])
    clearTimeout(timer)
  }
}

async function readBytes(file: string): Promise<Buffer> {
  try {
    return await readFile(file)
  } catch (error) {
    const code = (error as NodeJS.ErrnoException).code
    const reason = code === 'ENOENT' ? 'there is no such file' : messageOf(error)
    throw new CodedError('PROGRAM_INVALID', `failed to read the program file ${file}: ${reason}`, { cause: error })
  }
}

/** The program with the edits made: as a text where there is one. */
function edited(source: ParsedProgram | Program, change: Change): ParsedProgram | Program {
  if ('program' in source) {
    try {
      return parseProgram(editProgram(source.text, change.edits), source.file)
    } catch (error) {
      if (!isCoded(error, 'PROGRAM_EDIT_FAILED')) throw error
      const id = change.edits.find((edit) => 'id' in edit)?.id ?? ''
      throw preflight({ action: 'update-config', id }, error)
    }
  }
  return { ...source, entries: editEntries(source.entries, change.edits) }
}

function entryOf(program: Program, id: string): Entry {
  const entry = program.entries.find((each) => each.id === id)
  if (entry === undefined) throw new CodedError('PROGRAM_NO_ENTRY', 'no such entry', { detail: { id } })
  return entry
}

/** The entry and all below it, the deepest first. */
function removal(program: Program, id: string): Change {
  entryOf(program, id)
  const ids = subtreeOf(program.entries, id).map((entry) => entry.id)
  return { edits: ids.reverse().map((each) => ({ op: 'remove', id: each })) }
}

function moving(
  program: Program,
  id: string,
  parent: string | null,
  position: number | undefined
): Change & { readonly renamed: Renamed } {
  if (id !== '') entryOf(program, id)
  const move = moveEntry(program.entries, id, parent, position)
  const { before, ids, renamed } = move
  return {
    renamed,
    edits: [
      ...(renamed.length === 0 ? [] : [{ op: 'rename', ids: renamed } as const]),
      ...move.pointers.map(([each, to]) => {
        const place = move.entries.find((entry) => entry.id === each)?.position
        return { op: 'set', id: each, key: 'position', value: { ...place, parent: to } } as const
      }),
      { op: 'move', ids, ...(before === undefined ? {} : { before }) }
    ]
  }
}

/** The plan with the entry `id` rebuilt as a new fiber in any case. */
function renewing(steps: readonly Step[], entries: readonly Entry[], id: string | undefined): readonly Step[] {
  const to = id === undefined ? undefined : entries.find((entry) => entry.id === id)
  if (id === undefined || to === undefined) return steps
  return [...steps.filter((step) => step.id !== id), { action: 'rebuild-fiber', id, from: to, to, renew: true }]
}

/** Quoted as the header has it. */
function etagOf(source: ParsedProgram | Program): string {
  const text =
    'program' in source
      ? source.text
      : JSON.stringify(source, (_, value) => (typeof value === 'bigint' ? `${value}n` : value))
  return `"${createHash('sha256').update(text).digest('hex')}"`
}

function assertMatch(source: ParsedProgram | Program, options: ChangeOptions | undefined): void {
  if (options?.ifMatch === undefined || options.ifMatch === '*') return
  const etag = etagOf(source)
  if (options.ifMatch.split(',').some((each) => each.trim() === etag)) return
  throw new CodedError('PROGRAM_CHANGED', 'the program has changed since it was read; read it again')
}

function faultsOf(
  error: CodedError,
  entry: Entry,
  parsed: ParsedProgram | undefined,
  known: readonly ProgramFault[]
): readonly ProgramFault[] {
  const issues = error.detail?.['issues'] as readonly Issue[] | undefined
  const schema = error.detail?.['schema'] as Plugin['config']
  if (parsed !== undefined && issues !== undefined && schema !== undefined) {
    return issueFaults(parsed, entry.id, schema, issues)
  }
  const place = parsed?.locate(entry.id, []) ?? { line: 0, column: 0 }
  // checkPlugins has said it already, with a suggestion.
  if (isCoded(error, 'PLUGIN_NOT_FOUND') && known.some((fault) => fault.line === place.line)) return []
  return [{ ...place, message: `${error.message} (entry '${entry.id}')` }]
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

function invalid(file: string, faults: readonly ProgramFault[]): CodedError {
  const sorted = [...faults].sort((a, b) => a.line - b.line || a.column - b.column)
  const lines = sorted.map((fault) => `${file}:${fault.line}:${fault.column}: ${fault.message}`)
  return new CodedError('PROGRAM_INVALID', lines.join('\n'), { detail: { file, faults: sorted } })
}
