import type { FiberState } from './plugin.ts'
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
  /** Needed services that are not there. */
  readonly waitingFor: readonly string[]
  readonly provides: readonly string[]
  /** Generations that are still serving what they began. */
  readonly draining: number
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

/** The fields of an entry that change; absent ones stay as they are. */
export interface EntryPatch {
  readonly config?: JsonObject
  readonly disabled?: boolean
}

/**
 * Reads and changes the running program: one change at a time, each checked whole, applied with rollback, and then
 * written to the program file.
 *
 * Codes of its errors:
 * - `PROGRAM_NO_ENTRY`
 * - `PROGRAM_INVALID`: the file cannot be read or is not valid; detail `faults`
 * - `PROGRAM_PREFLIGHT_FAILED`: a plugin refuses its config, or its next generation could not be built; nothing has
 *   changed. Detail `{ id, action, issues? }`; the path of an issue begins with the plugin's label
 * - `PROGRAM_APPLY_FAILED`: a later step failed, those before it were rolled back. Detail `{ id, action }`
 * - `PROGRAM_NOT_SAVED`: the file could not be written; the change was rolled back
 */
export interface KernelControl {
  fibers(): readonly FiberStatus[]
  /** The applied entries, in the order of the file, and what the file asks for beyond them. */
  entries(): Promise<{
    readonly current: readonly Entry[]
    readonly pending: readonly PendingStep[]
    /** The program file; absent when the program was given as data. */
    readonly path: string | undefined
    /** Closed paths of services that need each other, such as `['a', 'b', 'a']` (entry ids). */
    readonly dependencyCycles: readonly (readonly string[])[]
  }>
  /** Resolves at commit, before the old generation has drained. */
  patchEntry(
    id: string,
    patch: EntryPatch
  ): Promise<{ readonly applied: readonly AppliedStep[]; readonly entry: Entry }>
  toggleEntry(id: string): Promise<{ readonly applied: readonly AppliedStep[]; readonly disabled: boolean }>
  /** Takes the program file as it is on disk now. */
  reload(): Promise<{ readonly applied: readonly AppliedStep[] }>
  /** Whether everything that can start has started. */
  isReady(): boolean
}

declare module './plugin.ts' {
  interface Services {
    /** Provided by the kernel itself. */
    kernel: KernelControl
  }
}
