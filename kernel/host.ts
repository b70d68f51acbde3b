import { readFile } from 'node:fs/promises'
import type { CodeLoader } from './code.ts'
import type { AppliedStep, EntryPatch, KernelControl } from './control.ts'
import { editProgram, type ProgramEdit, writeProgramFile } from './edit.ts'
import { CodedError, isCoded, messageOf } from './errors.ts'
import type { Target } from './generation.ts'
import { Kernel } from './kernel.ts'
import { type Logger, silentLogger } from './log.ts'
import { planSteps, type Step } from './plan.ts'
import { definePlugin, type Plugin } from './plugin.ts'
import {
  checkPlugins,
  type Entry,
  issueFaults,
  type ParsedProgram,
  type Program,
  type ProgramFault,
  parseProgram,
  resolveConfig
} from './program.ts'
import { type Issue, renderIssues } from './schema.ts'
import { isGroup } from './tree.ts'

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

  constructor(options: HostOptions) {
    this.#options = options
    this.#file = typeof options.program === 'string' ? options.program : undefined
    this.kernel = new Kernel({ log: options.log })
  }

  async start(): Promise<void> {
    const { kernel } = this
    const { program, targets } = await this.prepareAll(await this.read())
    kernel.settings = program.settings
    kernel.provide('kernel', this.#control())
    for (const [id, { plugin, config }] of targets) {
      // Its failure is a state and a line in the log; what matters of it is looked at below.
      kernel.begin({ id, plugin, config }).catch(() => {})
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
    const { program } = this.#options
    if (typeof program !== 'string') return program
    return parseProgram(await readText(program), program)
  }

  /** Every entry that is to run, loaded and checked; everything that is wrong at once. */
  async prepareAll(source: ParsedProgram | Program): Promise<Prepared> {
    const parsed = 'program' in source ? source : undefined
    const program = 'program' in source ? source.program : source
    const faults: ProgramFault[] = parsed === undefined ? [] : [...checkPlugins(parsed, this.#options.loader.labels())]
    const targets = new Map<string, Target>()
    const steps = planSteps([], program.entries)
    const running = new Set(steps.map((step) => step.id))
    for (const entry of program.entries) {
      if (isGroup(entry)) continue
      try {
        const target = await this.#prepare(entry)
        if (running.has(entry.id)) targets.set(entry.id, target)
      } catch (error) {
        if (!isCoded(error)) throw error
        faults.push(...this.#faultsOf(error, entry, parsed, faults))
      }
    }
    if (faults.length > 0) throw invalid(parsed?.file ?? 'program', faults)
    return { program, targets }
  }

  #faultsOf(
    error: CodedError,
    entry: Entry,
    parsed: ParsedProgram | undefined,
    known: readonly ProgramFault[]
  ): readonly ProgramFault[] {
    const issues = error.detail?.['issues'] as readonly Issue[] | undefined
    const plugin = error.detail?.['schema'] as Plugin['config']
    if (parsed !== undefined && issues !== undefined && plugin !== undefined) {
      return issueFaults(parsed, entry.id, plugin, issues)
    }
    const place = parsed?.locate(entry.id, []) ?? { line: 0, column: 0 }
    // checkPlugins has said it already, with a suggestion.
    if (isCoded(error, 'PLUGIN_UNKNOWN') && known.some((fault) => fault.line === place.line)) return []
    return [{ ...place, message: `${error.message} (entry '${entry.id}')` }]
  }

  async #prepare(entry: Entry): Promise<Target> {
    const { loader, env, overrides } = this.#options
    let plugin: Plugin
    try {
      plugin = (await loader.load(entry.plugin)).plugin
    } catch (error) {
      if (isCoded(error, 'PLUGIN_UNKNOWN') || isCoded(error, 'PLUGIN_NOT_FOUND')) throw error
      // Code that does not load is the entry's own failure: it is shown as Failed, and the rest serves.
      plugin = unloadable(entry.plugin, error)
    }
    const config = { ...resolveConfig(entry.config, env, plugin.config), ...overrides?.[entry.plugin] }
    return this.kernel.toTarget(plugin, config, entry.id)
  }

  #control(): KernelControl {
    return {
      fibers: () => this.kernel.fibers(),
      isReady: () => this.#ready && !this.kernel.stopping,
      entries: () => this.#entries(),
      patchEntry: (id, patch) => this.#exclusively(() => this.#patch(id, patch)),
      toggleEntry: (id) => this.#exclusively(() => this.#toggle(id)),
      reload: () => this.#exclusively(() => this.#reload())
    }
  }

  #exclusively<T>(work: () => Promise<T>): Promise<T> {
    const mine = this.#turn.then(work)
    this.#turn = mine.catch(() => {})
    return mine
  }

  async #entries(): ReturnType<KernelControl['entries']> {
    const current = this.program.entries
    const source = await this.read()
    const wanted = 'program' in source ? source.program : this.program
    return {
      current,
      pending: planSteps(current, wanted.entries).map(({ id, action }) => ({ id, action })),
      path: this.#file,
      dependencyCycles: this.kernel.cycles()
    }
  }

  async #patch(id: string, patch: EntryPatch): ReturnType<KernelControl['patchEntry']> {
    const applied = await this.#change(id, () => [
      ...(patch.config === undefined ? [] : [{ op: 'set-config', id, config: patch.config } as const]),
      ...(patch.disabled === undefined ? [] : [{ op: 'set-disabled', id, disabled: patch.disabled } as const])
    ])
    return { applied, entry: this.#entry(id) }
  }

  async #toggle(id: string): ReturnType<KernelControl['toggleEntry']> {
    const applied = await this.#change(id, (entry) => [{ op: 'set-disabled', id, disabled: !entry.disabled }])
    return { applied, disabled: this.#entry(id).disabled }
  }

  async #reload(): ReturnType<KernelControl['reload']> {
    const source = await this.read()
    const wanted = 'program' in source ? source : undefined
    return { applied: await this.#apply(wanted ?? this.program) }
  }

  #entry(id: string): Entry {
    const entry = this.program.entries.find((each) => each.id === id)
    if (entry === undefined) throw noEntry(id)
    return entry
  }

  /**
   * Edits the file as it is on disk now, applies what it then says, and only then writes it. When somebody else has
   * written meanwhile, begins anew from what they wrote.
   */
  async #change(id: string, edit: (entry: Entry) => readonly ProgramEdit[]): Promise<readonly AppliedStep[]> {
    if (this.#file === undefined) {
      const entry = this.#entry(id)
      return this.#apply(changed(this.program, entry, edit(entry)))
    }
    const file = this.#file
    for (;;) {
      const source = parseProgram(await readText(file), file)
      const entry = source.program.entries.find((each) => each.id === id)
      if (entry === undefined) throw noEntry(id)
      const edits = edit(entry)
      const before = this.program
      let wanted: ParsedProgram
      try {
        wanted = parseProgram(editProgram(source.text, edits), file)
      } catch (error) {
        if (isCoded(error, 'PROGRAM_EDIT_FAILED')) throw preflight({ action: 'update-config', id }, error)
        throw error
      }
      const applied = await this.#apply(wanted)
      try {
        if (Buffer.compare(await readText(file), Buffer.from(source.text)) !== 0) continue
        if (wanted.text !== source.text) await writeProgramFile(file, wanted.text)
      } catch (error) {
        await this.#apply(before)
        throw new CodedError(
          'PROGRAM_NOT_SAVED',
          `the program file ${file} could not be written: ${messageOf(error)}`,
          {
            cause: error
          }
        )
      }
      return applied
    }
  }

  /** Makes `wanted` run: everything checked first, then step by step; a step that fails takes those before it back. */
  async #apply(source: ParsedProgram | Program): Promise<readonly AppliedStep[]> {
    const wanted = 'program' in source ? source.program : source
    const steps = planSteps(this.program.entries, wanted.entries)
    const targets = new Map<string, Target>()
    for (const step of steps) if (step.action !== 'retire') targets.set(step.id, await this.#verify(step))

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
    this.#current = wanted
    this.kernel.settings = wanted.settings
    await this.#untilSettled()
    return applied
  }

  async #verify(step: Exclude<Step, { action: 'retire' }>): Promise<Target> {
    try {
      return await this.#prepare(step.to)
    } catch (error) {
      if (isCoded(error, 'PLUGIN_UNKNOWN')) {
        const message = `no factory registered for plugin '${step.to.plugin}'`
        throw new CodedError('PROGRAM_APPLY_FAILED', message, {
          cause: error,
          detail: { id: step.id, action: step.action }
        })
      }
      throw preflight(step, error)
    }
  }

  async #take(step: Step, target: Target | undefined): Promise<void> {
    const { kernel } = this
    if (step.action === 'retire') {
      // Gone from sight when this returns; what it serves still drains.
      kernel.retire(step.id).catch((error: unknown) => {
        this.#options.log.error('an entry could not be retired', { entry: step.id, error })
      })
      return
    }
    const { plugin, config } = target as Target
    if (step.action === 'begin') await kernel.begin({ id: step.id, plugin, config })
    else if (step.action === 'rebuild-fiber') await kernel.replace(step.id, plugin, config)
    else await kernel.update(step.id, config)
  }

  async #takeBack(steps: readonly Step[]): Promise<void> {
    for (const step of steps) {
      try {
        if (step.action === 'begin') await this.#take({ action: 'retire', id: step.id, from: step.to }, undefined)
        else if (step.action === 'retire') {
          await this.#take({ action: 'begin', id: step.id, to: step.from }, await this.#prepare(step.from))
        } else await this.#take({ ...step, from: step.to, to: step.from }, await this.#prepare(step.from))
      } catch (error) {
        this.#options.log.error('a step could not be taken back', { entry: step.id, action: step.action, error })
      }
    }
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

async function readText(file: string): Promise<Buffer> {
  try {
    return await readFile(file)
  } catch (error) {
    const code = (error as NodeJS.ErrnoException).code
    const reason = code === 'ENOENT' ? 'there is no such file' : messageOf(error)
    throw new CodedError('PROGRAM_INVALID', `failed to read the program file ${file}: ${reason}`, { cause: error })
  }
}

function changed(program: Program, entry: Entry, edits: readonly ProgramEdit[]): Program {
  let next = entry
  for (const edit of edits) {
    if (edit.op === 'set-config') next = { ...next, config: edit.config }
    if (edit.op === 'set-disabled') next = { ...next, disabled: edit.disabled }
  }
  return { ...program, entries: program.entries.map((each) => (each.id === entry.id ? next : each)) }
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

function invalid(file: string, faults: readonly ProgramFault[]): CodedError {
  const sorted = [...faults].sort((a, b) => a.line - b.line || a.column - b.column)
  const lines = sorted.map((fault) => `${file}:${fault.line}:${fault.column}: ${fault.message}`)
  return new CodedError('PROGRAM_INVALID', lines.join('\n'), { detail: { file, faults: sorted } })
}

function noEntry(id: string): CodedError {
  return new CodedError('PROGRAM_NO_ENTRY', 'no such entry', { detail: { id } })
}
