import { CodedError } from './errors.ts'
import type { Overlay } from './plugin.ts'
import { type Entry, groupPlugin, includePlugin } from './program.ts'

export function isGroup(entry: Entry): boolean {
  return entry.plugin === groupPlugin
}

/** Groups and includes are structure: nothing runs for them. */
export function isStructure(entry: Entry): boolean {
  return isGroup(entry) || entry.plugin === includePlugin
}

/** The last segment: `c` of `a:b:c`. */
export function leafOf(id: string): string {
  return id.slice(id.lastIndexOf(':') + 1)
}

/** `a:b` of `a:b:c`; empty at the root. A `position` table that names a parent wins over the id. */
export function parentOf(entry: Pick<Entry, 'id' | 'position'>): string {
  return entry.position?.parent ?? entry.id.slice(0, Math.max(0, entry.id.lastIndexOf(':')))
}

/**
 * The entry and what it is in, from the inside out. Ids on the way that no entry has (`tools` of `tools:calc`) are
 * passed over.
 */
export function lineOf(entry: Entry, entries: ReadonlyMap<string, Entry>): readonly Entry[] {
  const line = [entry]
  const seen = new Set([entry.id])
  let at: Pick<Entry, 'id' | 'position'> = entry
  for (let id = parentOf(at); id !== '' && !seen.has(id); id = parentOf(at)) {
    seen.add(id)
    const above = entries.get(id)
    if (above !== undefined) line.push(above)
    at = above ?? { id }
  }
  return line
}

/** Ids of the entries that run: not disabled, in no disabled group, and no structure themselves. */
export function enabledIds(entries: readonly Entry[]): ReadonlySet<string> {
  const byId = new Map(entries.map((entry) => [entry.id, entry]))
  const runs = (entry: Entry) => !isStructure(entry) && lineOf(entry, byId).every((each) => !each.disabled)
  return new Set(entries.filter(runs).map((entry) => entry.id))
}

/** The entry `id` (if there is one) and all below it, in the order of the file. */
export function subtreeOf(entries: readonly Entry[], id: string): readonly Entry[] {
  const byId = new Map(entries.map((entry) => [entry.id, entry]))
  return entries.filter(
    (entry) => entry.id === id || entry.id.startsWith(`${id}:`) || lineOf(entry, byId).some((each) => each.id === id)
  )
}

/** Where a plugin sees its services, and what is laid over their configs. */
export interface Scope {
  /** Service → realm; only what is not in the common one. */
  readonly realms: Readonly<Record<string, string>>
  /** Service → overlay; only what is not empty. */
  readonly overlays: Readonly<Record<string, Overlay>>
}

/**
 * The scope of an entry: for every service that it or what it is in says something about, whether or not its plugin
 * names it; a plugin may look services up, and mount others. The nearest `isolate` decides, from the entry outwards;
 * overlays are merged from the outside in, so that the innermost key wins.
 * @param provides what the plugin provides: a bare label of `isolate` stands for it
 * @param privateRealm a realm of the entry's own, the same for as long as the entry lives
 */
export function scopeOf(
  entry: Entry,
  entries: ReadonlyMap<string, Entry>,
  provides: readonly string[],
  privateRealm: (id: string) => string
): Scope {
  const line = lineOf(entry, entries)
  const realms: Record<string, string> = {}
  const overlays: Record<string, Overlay> = {}
  const isolated = line.flatMap(({ isolate }) => (typeof isolate === 'string' ? provides : Object.keys(isolate ?? {})))
  for (const name of new Set(isolated)) {
    for (const { id, isolate } of line) {
      const here = typeof isolate === 'string' ? (provides.includes(name) ? isolate : undefined) : isolate?.[name]
      if (here === undefined || here === false) continue
      realms[name] = here === true ? privateRealm(id) : `label:${here}`
      break
    }
  }
  for (const name of new Set(line.flatMap(({ intercept }) => Object.keys(intercept ?? {})))) {
    const layers = line.flatMap(({ intercept }) => (intercept?.[name] as Overlay | undefined) ?? []).reverse()
    if (layers.length > 0) overlays[name] = Object.assign({}, ...layers) as Overlay
  }
  return { realms, overlays }
}

/** What a move comes to. */
export interface Move {
  /** All entries, renamed, in their new order. */
  readonly entries: readonly Entry[]
  /** Old and new id of every entry whose id changes: the moved one first, then those below it. */
  readonly renamed: readonly (readonly [old: string, next: string])[]
  /** Ids the moved entries had, in order. */
  readonly ids: readonly string[]
  /** Place of the first of them in the new order. */
  readonly at: number
  /** Entries, by the ids they had, whose `position` table names a new parent. */
  readonly pointers: readonly (readonly [id: string, parent: string])[]
}

/**
 * Moves an entry with all below it under another parent (the root for `null`), as its child number `position` (after
 * the children that are there, without one; a number too large counts as that).
 * @throws CodedError `PROGRAM_MOVE_REFUSED`
 */
export function moveEntry(
  entries: readonly Entry[],
  id: string,
  parent: string | null,
  position: number | undefined
): Move {
  if (id === '') throw refused('cannot move the empty id')
  const target = parent ?? ''
  const subtree = subtreeOf(entries, id)
  const moving = new Set(subtree.map((entry) => entry.id))
  if (target !== '' && subtreeOf(entries, target).length === 0) throw refused(`no such entry '${target}'`)
  if (target === id) throw refused(`cannot move entry '${id}' under itself`)
  if (moving.has(target) || target.startsWith(`${id}:`)) {
    throw refused(`cannot move entry '${id}' under its own descendant '${target}'`)
  }

  const next = target === '' ? leafOf(id) : `${target}:${leafOf(id)}`
  const rename = (old: string) => (old === id || old.startsWith(`${id}:`) ? next + old.slice(id.length) : old)
  assertFree(entries, moving, rename, id)

  const moved = subtree.map((entry) => withPlace(entry, rename, entry.id === id ? target : undefined))
  const rest = entries.filter((entry) => !moving.has(entry.id))
  const before = placeOf(rest, target, position)
  const at = before === undefined ? rest.length : rest.indexOf(before)
  const root = subtree.find((entry) => entry.id === id)
  const order = root === undefined ? subtree : [root, ...subtree.filter((entry) => entry !== root)]
  return {
    entries: [...rest.slice(0, at), ...moved, ...rest.slice(at)],
    renamed: order.map((entry) => [entry.id, rename(entry.id)] as const).filter(([old, now]) => old !== now),
    ids: subtree.map((entry) => entry.id),
    at,
    pointers: moved.flatMap((entry, index) => {
      const { id: old, position: was } = subtree[index] as Entry
      const now = entry.position?.parent
      return now === undefined || now === was?.parent ? [] : [[old, now] as const]
    })
  }
}

/** Two ids may not become one; those that were one before are not the move's fault. */
function assertFree(
  entries: readonly Entry[],
  moving: ReadonlySet<string>,
  rename: (id: string) => string,
  moved: string
): void {
  const taken = new Map(entries.filter((entry) => !moving.has(entry.id)).map((entry) => [entry.id, entry]))
  const coming = new Map<string, string>()
  for (const id of moving) {
    const next = rename(id)
    const owner = taken.get(next)
    if (owner !== undefined) {
      throw refused(`cannot rename '${id}' to '${next}': id already used by plugin '${owner.plugin}'`)
    }
    const other = coming.get(next)
    if (other !== undefined) {
      throw refused(`cannot move entry '${moved}': entries '${other}' and '${id}' would both end up with id '${next}'`)
    }
    coming.set(next, id)
  }
}

function withPlace(entry: Entry, rename: (id: string) => string, target: string | undefined): Entry {
  const id = rename(entry.id)
  if (entry.position?.parent === undefined) return { ...entry, id }
  const parent = target ?? rename(entry.position.parent)
  return { ...entry, id, position: { ...entry.position, parent } }
}

/** The entry before which a child number `position` of `parent` goes; `undefined` for the end of the file. */
function placeOf(entries: readonly Entry[], parent: string, position: number | undefined): Entry | undefined {
  const byId = new Map(entries.map((entry) => [entry.id, entry]))
  const children = entries.filter((entry) => directParent(entry, byId) === parent)
  const sibling = position === undefined ? undefined : children[position]
  if (sibling !== undefined) return sibling
  if (parent === '') return undefined
  const last = subtreeOf(entries, parent).at(-1)
  return last === undefined ? undefined : entries[entries.indexOf(last) + 1]
}

/** The nearest entry above, or the id's own prefix where no entry stands above. */
function directParent(entry: Entry, byId: ReadonlyMap<string, Entry>): string {
  return lineOf(entry, byId)[1]?.id ?? parentOf(entry)
}

function refused(message: string): CodedError {
  return new CodedError('PROGRAM_MOVE_REFUSED', message)
}
