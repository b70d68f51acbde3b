import { isDeepStrictEqual } from 'node:util'
import type { StepAction } from './control.ts'
import type { Entry } from './program.ts'
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

/** The scope of an entry among others; the plan compares what comes out, so that only what matters counts. */
export type ScopeOf = (entry: Entry, entries: readonly Entry[]) => Scope

const turns: readonly StepAction[] = ['begin', 'rebuild-fiber', 'update-config', 'retire']

/**
 * What has to happen so that `wanted` runs instead of `current`: what begins first, what goes last. An entry that is
 * off before and after costs nothing, whatever else of it changed; order alone changes nothing.
 */
export function planSteps(
  current: readonly Entry[],
  wanted: readonly Entry[],
  scopeOf: ScopeOf = common
): readonly Step[] {
  const before = new Map(current.map((entry) => [entry.id, entry]))
  const after = new Map(wanted.map((entry) => [entry.id, entry]))
  const on = { before: enabledIds(current), after: enabledIds(wanted) }
  const sameScope = (from: Entry, to: Entry) => isDeepStrictEqual(scopeOf(from, current), scopeOf(to, wanted))
  const steps: Step[] = []
  for (const [id, to] of after) {
    if (!on.after.has(id)) continue
    const from = on.before.has(id) ? before.get(id) : undefined
    if (from === undefined) steps.push({ action: 'begin', id, to })
    else if (from.plugin !== to.plugin || !sameScope(from, to)) steps.push({ action: 'rebuild-fiber', id, from, to })
    else if (!isDeepStrictEqual(from.config, to.config)) steps.push({ action: 'update-config', id, from, to })
  }
  for (const [id, from] of before) {
    if (on.before.has(id) && !on.after.has(id)) steps.push({ action: 'retire', id, from })
  }
  return steps.sort((a, b) => turns.indexOf(a.action) - turns.indexOf(b.action))
}

const common: ScopeOf = () => ({ realms: {}, overlays: {} })
