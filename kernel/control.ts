import type { EventBus, FiberState } from './plugin.ts'
import type { Entry, JsonObject } from './program.ts'

/** One tracked fiber, as an operator sees it. */
export interface FiberStatus {
  readonly fiberId: number
  readonly entry: string
  readonly plugin: string
  readonly state: FiberState
  /** Why it rests where it does; `null` when there is nothing to say. */
  readonly error: string | null
  readonly disposed: boolean
  /** 1 for the first generation that became active, +1 for each swap. 0 before. */
  readonly generation: number
  readonly pendingUndoCount: number
  /** Labels of the undos still to come, in the order in which they were registered; anonymous ones are left out. */
  readonly pendingUndoLabels: readonly string[]
  /** Needed services that are not there, then the labels of gates that are closed. */
  readonly waitingFor: readonly string[]
  readonly provides: readonly string[]
  /** Generations that are still serving what they began. */
  readonly draining: number
  /** How often a timer or a listener of the present generation has thrown, and what it threw last. */
  readonly faults: number
  readonly lastFault: string | null
}

export type StepAction = 'begin' | 'update-config' | 'rebuild-fiber' | 'retire'

/** One step that was taken on the way from the running program to the wanted one. */
export interface AppliedStep {
  readonly id: string
  readonly action: StepAction
  readonly ok: true
  /** The result was built and checked before anything that served was touched. */
  readonly verified: boolean
}

/** A step that is still to be taken. */
export interface PendingStep {
  readonly id: string
  readonly action: StepAction
}

/** The fields of an entry that change; absent ones stay as they are, `null` clears. */
export interface EntryPatch {
  readonly config?: JsonObject | null
  readonly disabled?: boolean
  readonly isolate?: Entry['isolate'] | null
  readonly intercept?: JsonObject | null
  /** Where it goes first: `null` is the root. */
  readonly parent?: string | null
  /** Index among the children of the parent. */
  readonly position?: number
}

/** An entry as it is to be, whole. */
export type EntryInput = Pick<Entry, 'id' | 'plugin'> & Partial<Omit<Entry, 'source'>>

export interface ChangeOptions {
  /** Only if the program is still the one of this {@link KernelControl.entries} etag. */
  readonly ifMatch?: string
  /** Checks everything and answers what would be done; nothing changes. */
  readonly dryRun?: boolean
  /** Nothing changes before it resolves, and nothing at all when it rejects; what can be prepared meanwhile is. */
  readonly after?: Promise<unknown>
}

export interface Changed {
  readonly applied: readonly AppliedStep[]
  /** With `dryRun`: what would have been applied. */
  readonly planned: readonly PendingStep[]
}

/** Old and new id of every entry whose id changed: the moved one first, then those below it. */
export type Renamed = readonly (readonly [old: string, next: string])[]

/**
 * Reads and changes the running program: one change at a time, each checked whole, applied with rollback, and then
 * written to the program file. Each resolves at commit, before old generations have drained.
 *
 * In what is read, values that a plugin's schema calls `writeOnly` are shown as {@link secretMask}, and so is every
 * value where the schema is not known, because the plugin's code does not load; written back, the mask stands for the
 * value that is there.
 *
 * Codes of its errors:
 * - `KERNEL_NOT_STARTED`
 * - `PROGRAM_NO_ENTRY`
 * - `PROGRAM_EDIT_FAILED`: the file has no form for it, such as for `null` in a config
 * - `PROGRAM_INCLUDED`: in words; the entry stands where nothing may be written, or where the change cannot be written
 * - `PROGRAM_INVALID`: the file cannot be read or is not valid; detail `faults`
 * - `PROGRAM_CHANGED`: not the program of `ifMatch`
 * - `PROGRAM_MOVE_REFUSED`: in words; nothing has changed
 * - `PROGRAM_PREFLIGHT_FAILED`: a plugin refuses its config, or its next generation could not be built; nothing has
 *   changed. Detail `{ id, action, issues? }`; the path of an issue begins with the plugin's label
 * - `PROGRAM_APPLY_FAILED`: a later step failed, those before it were rolled back. Detail `{ id, action }`
 * - `PROGRAM_NOT_SAVED`: the file could not be written; the change was rolled back
 * - `SERVICE_GUARDED`: detail `{ consumers }`; `SERVICE_NOT_DIRECT`; `PROVIDER_NOT_REPLACED`
 */
export interface KernelControl {
  fibers(): readonly FiberStatus[]
  /** Why what the program file says is not what runs, since it was last looked at; `null` when it is. */
  fileError(): string | null
  /** Whether everything that can start has started. */
  isReady(): boolean
  /** The applied entries, in the order of the file, and what the file asks for beyond them. */
  entries(): Promise<{
    readonly current: readonly Entry[]
    readonly pending: readonly PendingStep[]
    /** The program file; absent when the program was given as data. */
    readonly path: string | undefined
    /** Closed paths of entries that need each other, such as `['a', 'b', 'a']`. */
    readonly dependencyCycles: readonly (readonly string[])[]
    /** Changes whenever the program does. */
    readonly etag: string
  }>
  /** Puts a whole entry in the place of the one of its id, or at the end. */
  putEntry(entry: EntryInput, options?: ChangeOptions): Promise<Changed>
  patchEntry(
    id: string,
    patch: EntryPatch,
    options?: ChangeOptions
  ): Promise<Changed & { readonly entry: Entry; readonly renamed: Renamed | undefined }>
  /** With all below it, the deepest first. */
  deleteEntry(id: string, options?: ChangeOptions): Promise<Changed>
  toggleEntry(id: string, options?: ChangeOptions): Promise<Changed & { readonly disabled: boolean }>
  /** @param position index among the children of `parent`; after them when left out */
  moveEntry(
    id: string,
    parent: string | null,
    position: number | undefined,
    options?: ChangeOptions
  ): Promise<Changed & { readonly renamed: Renamed }>
  /** Takes the program file as it is on disk now. */
  reload(options?: ChangeOptions): Promise<Changed>
  /**
   * Swaps a provider for one of another config, under the same entry: consumers find no gap, the fiber counts as new.
   * @param name id of an entry, or the label of a plugin that one entry uses
   */
  replaceProvider(
    name: string,
    config: JsonObject,
    options?: Pick<ChangeOptions, 'after'>
  ): Promise<{ readonly plugin: string; readonly fiberId: number }>
  /** Takes a service of the kernel's own away, unless active fibers need it. */
  retireService(name: string): Promise<{ readonly retired: boolean; readonly type: string; readonly woken: boolean }>
  /** Gives a service of the kernel's own back. */
  provideService(name: string): Promise<{ readonly provided: boolean; readonly type: string }>
}

/** Stands for a secret where configs are shown. */
export const secretMask = '********'

/** The count of dispatched events, as a service that can be retired and provided again. */
export interface EventsService {
  counts(): ReturnType<EventBus['counts']>
}

/** Plugins whose code was swapped since their files have changed. */
export interface CodeReloaded {
  readonly plugins: readonly { readonly plugin: string; readonly entries: readonly string[] }[]
  /** Absolute paths of what has changed. */
  readonly files: readonly string[]
}

declare module './plugin.ts' {
  interface Events {
    'kernel/code-reloaded': [reloaded: CodeReloaded]
  }
  interface Services {
    /** Provided by the kernel itself. */
    kernel: KernelControl
    events_service: EventsService
  }
}
