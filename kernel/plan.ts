import { isDeepStrictEqual } from 'node:util'
import type { StepAction } from './control.ts'
import type { Entry } from './program.ts'

/** One step from the running program to the wanted one. */
export type Step =
  | { readonly action: 'begin'; readonly id: string; readonly to: Entry }
  | { readonly action: 'retire'; readonly id: string; readonly from: Entry }
  | {
      readonly action: 'update-config' | 'rebuild-fiber'
      readonly id: string
      readonly from: Entry
      readonly to: Entry
    }

const groupPlugin = '@group'
const turns: readonly StepAction[] = ['begin', 'rebuild-fiber', 'update-config', 'retire']

/** A group is structure: nothing runs for it. */
export function isGroup(entry: Entry): boolean {
  return entry.plugin === groupPlugin
}

/** Ids of the entries that run: not disabled, in no disabled group, and no group themselves. */
export function enabledIds(entries: readonly Entry[]): ReadonlySet<string> {
  const disabled = new Set(entries.filter((entry) => entry.disabled).map((entry) => entry.id))
  const isOff = (id: string): boolean => {
    for (let at = id; at !== ''; at = parentOf(at)) if (disabled.has(at)) return true
    return false
  }
  return new Set(entries.filter((entry) => !isGroup(entry) && !isOff(entry.id)).map((entry) => entry.id))
}

/** `a:b` of `a:b:c`; empty at the root. */
export function parentOf(id: string): string {
  return id.slice(0, Math.max(0, id.lastIndexOf(':')))
}

/**
 * What has to happen so that `wanted` runs instead of `current`: what begins first, what goes last. An entry that is
 * off before and after costs nothing, whatever else of it changed; order alone changes nothing.
 */
export function planSteps(current: readonly Entry[], wanted: readonly Entry[]): readonly Step[] {
  const before = new Map(current.map((entry) => [entry.id, entry]))
  const after = new Map(wanted.map((entry) => [entry.id, entry]))
  const on = { before: enabledIds(current), after: enabledIds(wanted) }
  const steps: Step[] = []
  for (const [id, to] of after) {
    if (!on.after.has(id)) continue
    const from = on.before.has(id) ? before.get(id) : undefined
    if (from === undefined) steps.push({ action: 'begin', id, to })
    else if (from.plugin !== to.plugin) steps.push({ action: 'rebuild-fiber', id, from, to })
    else if (!sameConfig(from, to)) steps.push({ action: 'update-config', id, from, to })
  }
  for (const [id, from] of before) {
    if (on.before.has(id) && !on.after.has(id)) steps.push({ action: 'retire', id, from })
  }
  return steps.sort((a, b) => turns.indexOf(a.action) - turns.indexOf(b.action))
}

function sameConfig(a: Entry, b: Entry): boolean {
  return isDeepStrictEqual(a.config, b.config)
}
