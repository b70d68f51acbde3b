import { isDeepStrictEqual } from 'node:util'
import type { PendingStep, Renamed } from './control.ts'
import type { Entry } from './program.ts'
import { seesTheSame } from './services.ts'
import { enabledIds, type Scope } from './tree.ts'

/** One step from the running program to the wanted one. */
export type Step =
  | { readonly action: 'begin'; readonly id: string; readonly to: Entry }
  | { readonly action: 'retire'; readonly id: string; readonly from: Entry }
  | {
      readonly action: 'update-config' | 'rebuild-fiber'
      readonly id: string
      readonly from: Entry
      readonly to: Entry
      /** The fiber counts as a new one afterwards. */
      readonly renew?: true
    }
  /** Only its scope is another, and its plugin sees nothing of that: no step to tell of. */
  | { readonly action: 'rescope'; readonly id: string; readonly from: Entry; readonly to: Entry }

/** The scope of an entry among others. */
export type ScopeOf = (entry: Entry, entries: readonly Entry[]) => Scope

export interface PlanOptions {
  readonly before: ScopeOf
  readonly after: ScopeOf
  /** The services of which a running entry notices where it sees them, and through what overlay. */
  readonly sees: (entry: Entry) => Iterable<string>
  /** Old and new ids of entries that have moved: each is one and the same on both sides. */
  readonly renamed: Renamed
}

const turns: readonly Step['action'][] = ['begin', 'rebuild-fiber', 'update-config', 'rescope', 'retire']

/**
 * What has to happen so that `wanted` runs instead of `current`: what begins first, what goes last, the deepest of it
 * first. An entry that is off before and after costs nothing, whatever else of it changed; order alone changes nothing.
 * Steps name entries by their new ids.
 */
export function planSteps(
  current: readonly Entry[],
  wanted: readonly Entry[],
  { before, after, sees, renamed }: PlanOptions = { before: common, after: common, sees: () => [], renamed: [] }
): readonly Step[] {
  const names = new Map(renamed)
  const runs = enabledIds(current)
  const running = new Map(
    current.filter(({ id }) => runs.has(id)).map((entry) => [names.get(entry.id) ?? entry.id, entry])
  )
  const toRun = enabledIds(wanted)
  const steps: Step[] = []
  for (const to of wanted) {
    const { id } = to
    if (!toRun.has(id)) continue
    const from = running.get(id)
    if (from === undefined) {
      steps.push({ action: 'begin', id, to })
      continue
    }
    const [was, is] = [before(from, current), after(to, wanted)]
    if (from.plugin !== to.plugin || !seesTheSame(sees(from), was, is)) {
      steps.push({ action: 'rebuild-fiber', id, from, to })
    } else if (!isDeepStrictEqual(from.config, to.config)) steps.push({ action: 'update-config', id, from, to })
    else if (!isDeepStrictEqual(was, is)) steps.push({ action: 'rescope', id, from, to })
  }
  const gone = [...running].filter(([id]) => !toRun.has(id)).sort(([a], [b]) => depthOf(b) - depthOf(a))
  for (const [id, from] of gone) steps.push({ action: 'retire', id, from })
  return steps.sort((a, b) => turns.indexOf(a.action) - turns.indexOf(b.action))
}

/** The steps that are told of. */
export function shownSteps(steps: readonly Step[]): readonly PendingStep[] {
  return steps.flatMap(({ id, action }) => (action === 'rescope' ? [] : { id, action }))
}

function depthOf(id: string): number {
  return id.split(':').length
}

const common: ScopeOf = () => ({ realms: {}, overlays: {} })
