import { randomUUID } from 'node:crypto'
import {
  accessSync,
  closeSync,
  constants,
  fchmodSync,
  fchownSync,
  fsync,
  openSync,
  readlinkSync,
  realpathSync,
  renameSync,
  rmSync,
  type Stats,
  statSync,
  writeFileSync
} from 'node:fs'
import { dirname, resolve } from 'node:path'
import { promisify } from 'node:util'
import { CodedError, isCoded, messageOf } from './errors.ts'
import { type Entry, type JsonObject, programOf } from './program.ts'
import {
  type Inline,
  isArray,
  isEqual,
  isTable,
  lineBreak,
  maxDepth,
  type Pair,
  type Path,
  parseToml,
  renderPair,
  renderValue,
  type Section,
  scan,
  type Span,
  type Value
} from './toml.ts'

/** One change of a program. `before` is the id of an entry; without it the place is the end. */
export type ProgramEdit =
  /** What is the JSON form of a date or a large integer that stands there keeps it as it is. */
  | { readonly op: 'set-config'; readonly id: string; readonly config: JsonObject }
  | { readonly op: 'set-disabled'; readonly id: string; readonly disabled: boolean }
  /** Another member of the entry; `undefined` takes it away. */
  | {
      readonly op: 'set'
      readonly id: string
      readonly key: 'plugin' | 'isolate' | 'intercept' | 'position'
      readonly value: unknown
    }
  | { readonly op: 'insert'; readonly entry: Entry; readonly before?: string }
  | { readonly op: 'remove'; readonly ids: readonly string[] }
  /** All at once, so that two entries may swap their ids. */
  | { readonly op: 'rename'; readonly ids: readonly (readonly [old: string, next: string])[] }
  /** Gives `position` tables that name a parent another one. */
  | { readonly op: 'repoint'; readonly parents: readonly (readonly [id: string, parent: string])[] }
  /** The entries stand together afterwards, in this order. */
  | { readonly op: 'move'; readonly ids: readonly string[]; readonly before?: string }

type Tree = Readonly<Record<string, unknown>>

/**
 * Changes the text of a program file, and of it only what the edits are about: comments, order, quoting and number
 * formats elsewhere stay as they are. Comment lines right above an entry and right below its last line move and go
 * with it, but for those at the top of the file; a comment behind a value goes with the value.
 *
 * The result is read again and compared with what was wanted, in types and amounts.
 * @throws CodedError `PROGRAM_EDIT_FAILED` when they differ, or when TOML has no form for what is wanted (null);
 *   `PROGRAM_NO_ENTRY` for an id that is not there
 */
export function editProgram(text: string, edits: readonly ProgramEdit[]): string {
  let edited = text
  try {
    let tree: Tree = parseToml(text)
    for (const given of edits) {
      const edit = withTypes(tree, given)
      const wanted = editTree(tree, edit)
      if (!isSame(tree, wanted)) edited = editText(edited, tree, edit)
      tree = wanted
    }
    if (!isSame(parseToml(edited), tree)) throw new TypeError('the result does not read as wanted')
  } catch (error) {
    if (isCoded(error)) throw error
    // A parser's message goes on with a piece of the file, which may hold a secret.
    const [what] = messageOf(error).split('\n')
    throw new CodedError('PROGRAM_EDIT_FAILED', `the program file cannot be changed so: ${what}`)
  }
  return edited
}

/**
 * The entries with the edits made, for a program that has no text.
 * @throws CodedError `PROGRAM_NO_ENTRY`
 */
export function editEntries(entries: readonly Entry[], edits: readonly ProgramEdit[]): readonly Entry[] {
  const tree: Tree = { entry: entries.map((entry) => ({ ...entry })) }
  const wanted = edits.reduce((at, edit) => editTree(at, edit), tree)
  return programOf({ entries: wanted['entry'] as readonly Entry[] }).entries
}

/**
 * Gives the value at `path` of any TOML text another value, by the smallest change; tables are compared key by key.
 * `undefined` takes the key away.
 * @throws TypeError for what TOML cannot hold, TomlError for a text that is not valid
 */
export function setIn(text: string, path: Path, value: unknown, eol = eolOf(text)): string {
  const writable = value === undefined ? undefined : toWritable(value, path.length)
  const wanted = withValue(parseToml(text), path, writable)
  for (let round = 0; ; round++) {
    const changes = diff(parseToml(text), wanted, [])
    // What goes first makes room: a table that turns into a number leaves, then the number comes.
    const step = (['remove', 'replace', 'add'] as const).find((kind) => changes.some((change) => change.kind === kind))
    if (step === undefined) return text
    const now = changes.filter(({ kind }) => kind === step)
    const changed = applyChanges(text, now, eol)
    if (changed === text || round === maxRounds) throw new TypeError(`there is no way to write ${path.join('.')}`)
    text = changed
  }
}

/** Each round settles all changes of one kind; a few kinds of nesting need more than three. */
const maxRounds = 1_000

function withValue(tree: unknown, [key, ...rest]: Path, value: unknown): unknown {
  if (key === undefined) return value
  if (isArray(tree)) return tree.map((item, index) => (index === key ? withValue(item, rest, value) : item))
  const table = isTable(tree) ? tree : {}
  if (value === undefined && rest.length === 0) {
    return Object.fromEntries(Object.entries(table).filter(([name]) => name !== key))
  }
  return { ...table, [key]: withValue(table[key], rest, value) }
}

function eolOf(text: string): string {
  return text.includes('\r\n') ? '\r\n' : '\n'
}

// What is wanted, as data.

/** @throws CodedError `PROGRAM_NO_ENTRY` */
function editTree(tree: Tree, edit: ProgramEdit): Tree {
  const entries = entriesOf(tree)
  for (const id of namedIds(edit)) indexOf(tree, id)
  const wanted = (): readonly Tree[] => {
    switch (edit.op) {
      case 'set-config':
        return entries.map((entry) => (entry['id'] === edit.id ? { ...entry, config: edit.config } : entry))
      case 'set-disabled':
        return entries.map((entry) => (entry['id'] === edit.id ? { ...entry, disabled: edit.disabled } : entry))
      case 'set':
        return entries.map((entry) => {
          if (entry['id'] !== edit.id) return entry
          const { [edit.key]: _gone, ...rest } = entry
          return edit.value === undefined ? rest : { ...rest, [edit.key]: edit.value }
        })
      case 'remove': {
        const gone = new Set<unknown>(edit.ids)
        return entries.filter((entry) => !gone.has(entry['id']))
      }
      case 'rename': {
        const names = new Map<unknown, string>(edit.ids)
        return entries.map((entry) => ({ ...entry, id: names.get(entry['id']) ?? entry['id'] }))
      }
      case 'repoint': {
        const parents = new Map<unknown, string>(edit.parents)
        return entries.map((entry) => {
          const parent = parents.get(entry['id'])
          return parent === undefined ? entry : { ...entry, position: { ...(entry['position'] as Tree), parent } }
        })
      }
      case 'insert':
      case 'move': {
        const moved =
          edit.op === 'insert' ? [toTable(edit.entry)] : edit.ids.map((id) => entries[indexOf(tree, id)] as Tree)
        const rest = entries.filter((entry) => !moved.includes(entry))
        const at = edit.before === undefined ? rest.length : rest.findIndex((entry) => entry['id'] === edit.before)
        return [...rest.slice(0, at), ...moved, ...rest.slice(at)]
      }
    }
  }
  return { ...tree, entry: wanted() }
}

/** JSON has no dates and no exact large integers: a client sends back the text it was shown. */
function withTypes(tree: Tree, edit: ProgramEdit): ProgramEdit {
  if (edit.op !== 'set-config') return edit
  const was = entriesOf(tree)[indexOf(tree, edit.id)]?.['config']
  return { ...edit, config: keepTypes(was, edit.config) as JsonObject }
}

function keepTypes(was: unknown, given: unknown): unknown {
  if (isArray(given)) return given.map((item, index) => keepTypes(isArray(was) ? was[index] : undefined, item))
  if (isTable(given)) {
    const old = (key: string) => (isTable(was) && Object.hasOwn(was, key) ? was[key] : undefined)
    return Object.fromEntries(Object.entries(given).map(([key, item]) => [key, keepTypes(old(key), item)]))
  }
  if (was instanceof Date) return was.toISOString() === given ? was : given
  if (typeof was === 'bigint') return String(was) === given ? was : given
  if (typeof was === 'number' && !Number.isFinite(was)) return given === null ? was : given
  return given
}

/** Ids of the entries that an edit is about. */
export function namedIds(edit: ProgramEdit): readonly string[] {
  const before = 'before' in edit && edit.before !== undefined ? [edit.before] : []
  if (edit.op === 'insert') return before
  if (edit.op === 'move' || edit.op === 'remove') return [...edit.ids, ...before]
  if (edit.op === 'repoint') return edit.parents.map(([id]) => id)
  return edit.op === 'rename' ? edit.ids.map(([old]) => old) : [edit.id]
}

function isSame(a: Tree, b: Tree): boolean {
  const whole = (tree: Tree) => ({
    ...tree,
    // What an entry leaves out has these values.
    entry: entriesOf(tree).map((entry) => ({
      ...entry,
      config: entry['config'] ?? {},
      disabled: entry['disabled'] ?? false
    }))
  })
  return isEqual(whole(a), whole(b))
}

function entriesOf(tree: Tree): readonly Tree[] {
  return isArray(tree['entry']) ? (tree['entry'] as readonly Tree[]) : []
}

function indexOf(tree: Tree, id: string): number {
  const index = entriesOf(tree).findIndex((entry) => entry['id'] === id)
  if (index < 0) throw new CodedError('PROGRAM_NO_ENTRY', `there is no entry '${id}'`, { detail: { id } })
  return index
}

/** An entry as a table without what goes without saying, its config last. */
function toTable({ id, plugin, config, ...rest }: Entry): Tree {
  const members = Object.entries(rest).filter(([, value]) => value !== undefined && value !== false)
  const last = Object.keys(config).length > 0 ? [['config', config] as const] : []
  return toWritable(Object.fromEntries([['id', id], ['plugin', plugin], ...members, ...last]), 2) as Tree
}

/** A copy without undefined members. @throws TypeError for what TOML cannot hold */
function toWritable(value: unknown, depth: number): unknown {
  if (depth > maxDepth) throw new TypeError(`it is nested deeper than ${maxDepth} levels`)
  if (isArray(value)) return value.map((item) => toWritable(item, depth + 1))
  if (isTable(value)) {
    if (Object.hasOwn(value, '__proto__')) throw new TypeError("the key '__proto__' is not allowed")
    const members = Object.entries(value).filter(([, item]) => item !== undefined)
    return Object.fromEntries(members.map(([key, item]) => [key, toWritable(item, depth + 1)]))
  }
  renderValue(value)
  return value
}

// From one value to another, step by step.

type Change =
  | { readonly kind: 'remove'; readonly path: Path }
  | { readonly kind: 'replace'; readonly path: Path; readonly value: unknown }
  /** Members of the table, or elements of the array from index `at` on. */
  | { readonly kind: 'add'; readonly parent: Path; readonly at: number; readonly members: readonly Member[] }

type Member = readonly [key: string, value: unknown]

function diff(was: unknown, value: unknown, path: Path): readonly Change[] {
  if (isEqual(was, value)) return []
  if (isTable(was) && isTable(value)) {
    const gone = Object.keys(was).filter((key) => !Object.hasOwn(value, key))
    const come = Object.entries(value).filter(([key]) => !Object.hasOwn(was, key))
    const both = Object.keys(value).filter((key) => Object.hasOwn(was, key))
    return [
      ...gone.map((key) => remove([...path, key])),
      ...both.flatMap((key) => diff(was[key], value[key], [...path, key])),
      ...(come.length > 0 ? [add(path, 0, come)] : [])
    ]
  }
  if (isArray(was) && isArray(value)) {
    // Equal elements at both ends stay; between them, elements change in place as far as they reach.
    let [head, tail] = [0, 0]
    const shorter = Math.min(was.length, value.length)
    while (head < shorter && isEqual(was[head], value[head])) head++
    while (tail < shorter - head && isEqual(was.at(-1 - tail), value.at(-1 - tail))) tail++
    const common = shorter - tail
    const changes: Change[] = []
    for (let index = head; index < was.length - tail; index++) {
      const here = [...path, index]
      changes.push(...(index < common ? diff(was[index], value[index], here) : [remove(here)]))
    }
    const come = value.slice(common, value.length - tail).map((item): Member => ['', item])
    return come.length > 0 ? [...changes, add(path, common, come)] : changes
  }
  return [{ kind: 'replace', path, value }]
}

function remove(path: Path): Change {
  return { kind: 'remove', path }
}

function add(parent: Path, at: number, members: readonly Member[]): Change {
  return { kind: 'add', parent, at, members }
}

// Where things are, and the pieces of text to change.

interface Splice extends Span {
  readonly text: string
}

type Container = Section | Inline

/** All that defines the value at a path. */
interface Definition {
  /** The one piece of text it is, with its place among the items of `container`. */
  readonly value: Value | undefined
  readonly container: Container | undefined
  readonly index: number
  /** Its own section. */
  readonly section: Section | undefined
  /** Sections below it. */
  readonly children: readonly Section[]
  /** Pairs with dotted keys that go through it. */
  readonly dotted: readonly { readonly container: Container; readonly index: number; readonly names: number }[]
}

function find(sections: readonly Section[], path: Path): Definition {
  const dotted: { container: Container; index: number; names: number }[] = []
  let place: { value: Value; container: Container; index: number } | undefined
  const search = (container: Container, rest: Path): void => {
    for (const [index, item] of container.items.entries()) {
      const names = 'keys' in item ? item.keys.map(({ name }) => name) : [index]
      const value = 'keys' in item ? item.value : item
      if (startsWith(names, rest) && names.length > rest.length) dotted.push({ container, index, names: rest.length })
      else if (startsWith(rest, names)) {
        if (rest.length === names.length) place = { value, container, index }
        else if (value.kind !== 'scalar') search(value, rest.slice(names.length))
      }
    }
  }
  for (const section of sections) {
    if (section.path.length < path.length && startsWith(path, section.path)) {
      search(section, path.slice(section.path.length))
    }
  }
  const inside = sections.filter((section) => startsWith(section.path, path))
  const section = inside.find(({ path: { length } }) => length === path.length)
  return {
    value: place?.value,
    container: place?.container,
    index: place?.index ?? 0,
    section,
    children: inside.filter((child) => child !== section),
    dotted
  }
}

function startsWith(path: Path, start: Path): boolean {
  return start.length <= path.length && start.every((name, index) => name === path[index])
}

function applyChanges(text: string, changes: readonly Change[], eol: string): string {
  const sections = scan(text)
  const splices: Splice[] = []
  const gone = new Map<Container, Set<number>>()
  const goneSections = new Set<Section>()
  const takeAway = ({ value, container, index, section, children, dotted }: Definition) => {
    for (const place of value === undefined || container === undefined ? dotted : [{ container, index }]) {
      const indexes = gone.get(place.container) ?? new Set()
      gone.set(place.container, indexes.add(place.index))
    }
    for (const child of section === undefined ? children : [section, ...children]) goneSections.add(child)
  }
  const grown = new Set<Value>()

  for (const change of changes) {
    if (change.kind === 'remove') takeAway(find(sections, change.path))
    else if (change.kind === 'replace') {
      const found = find(sections, change.path)
      // What is spread over sections or dotted keys leaves; the next round adds what replaces it.
      if (found.value === undefined) takeAway(found)
      else {
        const { start, end } = found.value
        splices.push({ start, end, text: renderValue(change.value, text.slice(start, end)) })
      }
    } else {
      const found = find(sections, change.parent)
      const home = found.value ?? found.dotted.at(-1)?.container
      // Two insertions into one `{ … }` would both deal with its last comma; the second waits for the next round.
      if (home !== undefined && 'kind' in home) {
        if (grown.has(home)) continue
        grown.add(home)
      }
      const added = addMembers(text, sections, found, change, eol)
      if (added === undefined) takeAway(found)
      else splices.push(...added)
    }
  }
  for (const [container, indexes] of gone) splices.push(...removeItems(text, container, indexes))
  splices.push(...removeSections(text, sections, goneSections, eol))
  return splice(text, splices)
}

function splice(text: string, splices: readonly Splice[]): string {
  // What comes in at one place comes in the order of the list, and before what goes there.
  const pieces: string[] = []
  let done = 0
  for (const { start, end, text: piece } of splices.toSorted((a, b) => a.start - b.start || a.end - b.end)) {
    if (start < done) continue // within what goes
    pieces.push(text.slice(done, start), piece)
    done = end
  }
  return pieces.join('') + text.slice(done)
}

/** @returns `undefined` when the array must be written anew to hold them */
function addMembers(
  text: string,
  sections: readonly Section[],
  { value, section, children, dotted }: Definition,
  { parent, at, members }: Change & { kind: 'add' },
  eol: string
): readonly Splice[] | undefined {
  const pairs = members.map(([key, item]) => renderPair(key, item))
  if (value?.kind === 'table') return insertItems(text, value, value.items.length, pairs, eol)
  if (value?.kind === 'array') {
    const items = members.map(([, item]) => renderValue(item))
    return insertItems(text, value, at, items, eol)
  }
  if (section !== undefined) {
    const anchor = section.items.at(-1) ?? section
    if (anchor.end > contentStart(text)) return [insertLines(text, anchor, pairs, eol)]
    return [insertBlocks(text, blocksOf(text, sections)[1]?.start, [pairs.join(eol) + eol], eol)]
  }
  const last = dotted.at(-1)
  if (last !== undefined) {
    const pair = last.container.items[last.index] as Pair
    const prefix = text.slice(pair.start, pair.keys[last.names - 1]?.end)
    const lines = pairs.map((line) => `${prefix}.${line}`)
    return 'kind' in last.container
      ? insertItems(text, last.container, last.index + 1, lines, eol)
      : [insertLines(text, pair, lines, eol)]
  }

  // It is there by the sections below it only; their headers tell its name.
  const child = children[0] as Section
  const names = parent.filter((name) => typeof name === 'string').length
  const name = text.slice(child.keys[0]?.start, child.keys[names - 1]?.end)
  const blocks = blocksOf(text, sections)
  const blockOf = (wanted: Section | undefined) => blocks[sections.indexOf(wanted as Section)]
  if (typeof child.path[parent.length] === 'string') {
    return [insertBlocks(text, blockOf(child)?.start, [[`[${name}]`, ...pairs, ''].join(eol)], eol)]
  }
  if (!members.every(([, item]) => isTable(item))) return undefined
  const indent = text.slice(lineStart(text, child.start), child.start)
  const elements = members.map(([, item]) => toLines(`[[${name}]]`, item as Tree, eol, indent))
  const next = blockOf(children.find(({ path }) => path.length === parent.length + 1 && path[parent.length] === at))
  return [insertBlocks(text, next?.start, elements, eol, blockOf(children.at(-1))?.end)]
}

function toLines(header: string, table: Tree, eol: string, indent = ''): string {
  const lines = [header, ...Object.entries(table).map(([key, item]) => renderPair(key, item))]
  return lines.map((line) => indent + line + eol).join('')
}

// Lines of sections.

function contentStart(text: string): number {
  return text.startsWith('\uFEFF') ? 1 : 0
}

function lineStart(text: string, offset: number): number {
  const before = offset > 0 ? text.lastIndexOf('\n', offset - 1) : -1
  return Math.max(contentStart(text), before + 1)
}

/** Where the next line begins. */
function lineEnd(text: string, offset: number): number {
  const end = text.indexOf('\n', offset)
  return end < 0 ? text.length : end + 1
}

function lineAt(text: string, start: number): string {
  return text.slice(start, lineBreak(text, start)).trim()
}

/** New lines below that of `anchor`, indented alike. */
function insertLines(text: string, anchor: Span, lines: readonly string[], eol: string): Splice {
  const indent = text.slice(lineStart(text, anchor.start), anchor.start)
  const at = lineEnd(text, anchor.end)
  const piece = lines.map((line) => indent + line).join(eol)
  return { start: at, end: at, text: text[at - 1] === '\n' ? piece + eol : eol + piece }
}

/** Each section with its comments and pairs, without the blank lines around; by the index of the section. */
function blocksOf(text: string, sections: readonly Section[]): readonly Span[] {
  const ends = sections
    .map(({ end, items }) => items.at(-1)?.end ?? end)
    .map((end) => (end > contentStart(text) ? lineEnd(text, end) : end))
  const starts = sections.map((section, index) => {
    const header = lineStart(text, section.start)
    const floor = ends[index - 1] ?? header
    let start = header
    while (start > floor && lineAt(text, lineStart(text, start - 1)).startsWith('#')) start = lineStart(text, start - 1)
    // What stands at the top is about the file.
    return start === contentStart(text) ? header : start
  })
  return sections.map((_, index) => {
    let end = ends[index] as number
    const limit = starts[index + 1] ?? text.length
    while (end < limit && lineAt(text, end).startsWith('#')) end = lineEnd(text, end)
    return { start: starts[index] as number, end }
  })
}

/** Blocks before the one at `next`, or behind all that ends at `end`, with blank lines between them. */
function insertBlocks(
  text: string,
  next: number | undefined,
  blocks: readonly string[],
  eol: string,
  end = text.length
): Splice {
  if (next !== undefined) {
    const piece = blocks.map((block) => block + eol).join('')
    // A comment that comes to the top must not look like the head of the file.
    const top = next === contentStart(text) && piece.startsWith('#')
    return { start: next, end: next, text: top ? eol + piece : piece }
  }
  const before = text.slice(contentStart(text), end)
  const gap = before === '' || /\n[ \t\r]*\n$/.test(before) ? '' : before.endsWith('\n') ? eol : eol + eol
  const after = end < text.length && lineAt(text, end) !== '' ? eol : ''
  return { start: end, end, text: gap + blocks.join(eol) + after }
}

/** Takes blocks away, each with the blank lines below it (above it, at the end of the text). */
function cutBlocks(text: string, blocks: readonly Span[], eol: string): readonly Splice[] {
  const skipBlank = (at: number) => {
    while (at < text.length && lineAt(text, at) === '') at = lineEnd(text, at)
    return at
  }
  const merged: { start: number; end: number }[] = []
  for (const { start, end } of [...blocks].sort((a, b) => a.start - b.start)) {
    const last = merged.at(-1)
    if (last?.end === start) last.end = skipBlank(end)
    else merged.push({ start, end: skipBlank(end) })
  }
  return merged.map(({ start, end }) => {
    while (end === text.length && start > contentStart(text) && lineAt(text, lineStart(text, start - 1)) === '') {
      start = lineStart(text, start - 1)
    }
    const top = start === contentStart(text) && text[end] === '#'
    return { start, end, text: top ? eol : '' }
  })
}

function removeSections(
  text: string,
  sections: readonly Section[],
  gone: ReadonlySet<Section>,
  eol: string
): readonly Splice[] {
  if (gone.size === 0) return []
  const runs = runsOf(blocksOf(text, sections), (index) => gone.has(sections[index] as Section))
  return cutBlocks(text, runs.get(true) ?? [], eol)
}

/** Neighbouring blocks of one owner as one, with what is between them; by owner. */
function runsOf<T>(blocks: readonly Span[], ownerOf: (index: number) => T): ReadonlyMap<T, readonly Span[]> {
  const runs = new Map<T, { start: number; end: number }[]>()
  let before: T | undefined
  for (const [index, { start, end }] of blocks.entries()) {
    const owner = ownerOf(index)
    const own = runs.get(owner)
    const last = own?.at(-1)
    if (own === undefined) runs.set(owner, [{ start, end }])
    else if (last !== undefined && owner === before) last.end = end
    else own.push({ start, end })
    before = owner
  }
  return runs
}

// Items of sections, tables and arrays.

/** The first comma between two offsets that is in no comment. */
function findComma(text: string, from: number, to: number): number | undefined {
  for (let at = from; at < to; at++) {
    if (text[at] === ',') return at
    if (text[at] === '#') at = lineBreak(text, at)
  }
  return undefined
}

function skipSpace(text: string, at: number): number {
  while (text[at] === ' ' || text[at] === '\t') at++
  return at
}

function startsLine(text: string, offset: number): boolean {
  return text.slice(lineStart(text, offset), offset).trim() === ''
}

function insertItems(
  text: string,
  into: Inline,
  at: number,
  pieces: readonly string[],
  eol: string
): readonly Splice[] {
  const close = into.end - 1
  const insert = (start: number, piece: string): Splice => ({ start, end: start, text: piece })
  const indentOf = (offset: number) => {
    const start = lineStart(text, offset)
    return text.slice(start, Math.min(offset, skipSpace(text, start)))
  }

  const next = into.items[at]
  if (next !== undefined) {
    const gap = startsLine(text, next.start) ? `,${eol}${indentOf(next.start)}` : ', '
    return [insert(next.start, pieces.map((piece) => piece + gap).join(''))]
  }

  const last = into.items.at(-1)
  if (last === undefined) {
    const inner = text.slice(into.start + 1, close)
    if (!inner.includes('\n')) {
      const pad = into.kind === 'table' ? ' ' : ''
      return [{ start: into.start + 1, end: close, text: pad + pieces.join(', ') + pad }]
    }
    const indent = `${indentOf(close)}  `
    const line = indent + pieces.join(`,${eol}${indent}`)
    // Behind a comment, a new line; the bracket keeps its own.
    return startsLine(text, close) ? [insert(lineStart(text, close), line + eol)] : [insert(close, eol + line + eol)]
  }

  const comma = findComma(text, last.end, close)
  const end = lineBreak(text, comma ?? last.end)
  if (end > close || !startsLine(text, last.start)) {
    return [insert(last.end, pieces.map((piece) => `, ${piece}`).join(''))]
  }
  const gap = eol + indentOf(last.start)
  const lines = pieces.map((piece) => gap + piece).join(',')
  return comma === undefined ? [insert(last.end, ','), insert(end, lines)] : [insert(end, `${lines},`)]
}

function removeItems(text: string, from: Container, indexes: ReadonlySet<number>): readonly Splice[] {
  const cut = (start: number, end: number): Splice => ({ start, end, text: '' })
  if (!('kind' in from)) {
    return [...indexes].map((index) => {
      const { start, end } = from.items[index] as Pair
      return cut(lineStart(text, start), lineEnd(text, end))
    })
  }
  const close = from.end - 1
  const kept = from.items.findLastIndex((_, index) => !indexes.has(index))
  if (
    kept < 0 &&
    !/[\n#]/.test(text.slice(from.start, from.items[0]?.start) + text.slice(from.items.at(-1)?.end, close))
  ) {
    return [cut(from.start + 1, close)]
  }
  const splices: Splice[] = []
  for (const index of indexes) {
    const { start, end } = from.items[index] as Pair | Value
    const comma = findComma(text, end, from.items[index + 1]?.start ?? close)
    const after = comma === undefined ? end : comma + 1
    const rest = lineBreak(text, after)
    const alone = startsLine(text, start) && rest < close && /^\s*(#.*)?$/.test(text.slice(after, rest))
    if (alone) splices.push(cut(lineStart(text, start), lineEnd(text, after)))
    else splices.push(cut(start, comma === undefined ? end : skipSpace(text, after)))
  }
  // The comma behind the last one that stays goes, unless a comma stood at the end before.
  const last = from.items.at(-1)
  const first = from.items[kept + 1]
  if (kept >= 0 && first !== undefined && last !== undefined && findComma(text, last.end, close) === undefined) {
    const comma = findComma(text, from.items[kept]?.end ?? 0, first.start) ?? first.start
    const next = skipSpace(text, comma + 1)
    splices.push(cut(comma, next === first.start ? next : comma + 1))
  }
  return splices
}

// Entries.

function editText(text: string, tree: Tree, edit: ProgramEdit): string {
  switch (edit.op) {
    case 'set-config':
      return setMember(text, indexOf(tree, edit.id), 'config', edit.config)
    case 'set-disabled':
      return setMember(text, indexOf(tree, edit.id), 'disabled', edit.disabled)
    case 'set':
      return setMember(text, indexOf(tree, edit.id), edit.key, edit.value)
    case 'rename':
      return renameEntries(text, tree, edit.ids)
    case 'repoint':
      return setIn(text, ['entry'], editTree(tree, edit)['entry'])
    case 'remove':
      return rearrange(
        text,
        tree,
        edit.ids.map((id) => indexOf(tree, id)),
        [],
        undefined
      )
    case 'insert':
      return rearrange(text, tree, [], [edit.entry], edit.before)
    case 'move':
      return rearrange(
        text,
        tree,
        edit.ids.map((id) => indexOf(tree, id)),
        undefined,
        edit.before
      )
  }
}

/** In one pass: a subtree may be large. */
function renameEntries(text: string, tree: Tree, ids: readonly (readonly [old: string, next: string])[]): string {
  const sections = scan(text)
  const sectionsOf = new Map<unknown, Section[]>()
  for (const section of sections) {
    const [table, index] = section.path
    if (table !== 'entry') continue
    const own = sectionsOf.get(index)
    if (own === undefined) sectionsOf.set(index, [section])
    else own.push(section)
  }
  const indexes = new Map(entriesOf(tree).map((entry, index) => [entry['id'], index]))
  const splices = ids.flatMap(([old, next]): readonly Splice[] => {
    const index = indexes.get(old) as number
    const { value } = find(sectionsOf.get(index) ?? sections, ['entry', index, 'id'])
    if (value === undefined || old === next) return []
    const { start, end } = value
    return [{ start, end, text: renderValue(next, text.slice(start, end)) }]
  })
  return splice(text, splices)
}

/** Works on the text of the entry alone where that is one piece: the rest may be long. */
function setMember(text: string, index: number, key: string, value: unknown): string {
  const sections = scan(text)
  const mine = sections.flatMap(({ path }, at) => (path[0] === 'entry' && path[1] === index ? [at] : []))
  const [first, last] = [sections[mine[0] ?? -1], sections[mine.at(-1) ?? -1]]
  const { length } = mine
  if (first === undefined || last === undefined || (mine.at(-1) ?? 0) - (mine[0] ?? 0) >= length) {
    return setIn(text, ['entry', index, key], value)
  }
  const start = lineStart(text, first.start)
  const end = lineEnd(text, last.items.at(-1)?.end ?? last.end)
  const part = setIn(text.slice(start, end), ['entry', 0, key], value, eolOf(text))
  return text.slice(0, start) + part + text.slice(end)
}

/** Takes entries out, and puts these (or new ones) before the entry named, or at the end. */
function rearrange(
  text: string,
  tree: Tree,
  out: readonly number[],
  fresh: readonly Entry[] | undefined,
  before: string | undefined
): string {
  const eol = eolOf(text)
  const next = before === undefined ? undefined : indexOf(tree, before)
  if (next !== undefined && out.includes(next)) throw new TypeError('entries cannot be moved before one of themselves')
  if (new Set(out).size < out.length) throw new TypeError('an entry cannot be moved twice at once')
  const rest = entriesOf(tree).flatMap((_, index) => (out.includes(index) ? [] : [index]))
  const at = next === undefined ? rest.length : rest.indexOf(next)

  const sections = scan(text)
  const { value: list } = find(sections, ['entry'])
  if (list?.kind === 'array') {
    const moved = out.map((index) => list.items[index] as Span).map(({ start, end }) => text.slice(start, end))
    const pieces = fresh?.map((entry) => renderValue(toTable(entry))) ?? moved
    const left = splice(text, removeItems(text, list, new Set(out)))
    const { value: shorter } = find(scan(left), ['entry'])
    return pieces.length === 0 ? left : splice(left, insertItems(left, shorter as Inline, at, pieces, eol))
  }

  const blocks = blocksOf(text, sections)
  const byEntry = runsOf(blocks, (block) => {
    const [table, index] = sections[block]?.path ?? []
    return table === 'entry' ? index : undefined
  })
  const runs = (index: number) => byEntry.get(index) ?? []
  const cuts = out.flatMap(runs)
  const moved = out.map((index) =>
    runs(index)
      .map(({ start, end }) => toBlock(text.slice(start, end), eol))
      .join(eol)
  )
  const pieces = fresh?.map((entry) => toLines('[[entry]]', toTable(entry), eol)) ?? moved
  if (pieces.length === 0) return splice(text, cutBlocks(text, cuts, eol))
  const end = rest.length > 0 ? runs(rest.at(-1) as number).at(-1)?.end : undefined
  const start = next === undefined ? undefined : runs(next)[0]?.start
  return splice(text, [...cutBlocks(text, cuts, eol), insertBlocks(text, start, pieces, eol, end)])
}

function toBlock(text: string, eol: string): string {
  return text.endsWith('\n') ? text : text + eol
}

// The file.

/**
 * Replaces a file as a whole: whoever reads it finds the old text or the new one. A link stays a link, its target is
 * replaced; the mode of the file stays.
 *
 * Only what waits for the disk is awaited. Each await costs a turn of the event loop, which under load takes many times
 * as long as these calls do.
 * @throws CodedError `PROGRAM_NOT_SAVED`; the file is as it was then, and nothing is left beside it
 */
export async function writeProgramFile(path: string, text: string): Promise<void> {
  const draft = await draftProgramFile(path, text)
  await draft.publish()
}

/** A text that is on disk beside the file whose place it is to take. */
export interface Draft {
  readonly path: string
  readonly text: string
  /** Puts it in that place, durably. @throws CodedError `PROGRAM_NOT_SAVED`; the file is what it was then */
  publish(): Promise<void>
  /** Removes it where it was not published. */
  discard(): void
}

/** @throws CodedError `PROGRAM_NOT_SAVED`; nothing is left behind then */
export async function draftProgramFile(path: string, text: string): Promise<Draft> {
  let temporary: string | undefined
  const discard = () => {
    if (temporary !== undefined) rmSync(temporary, { force: true })
    temporary = undefined
  }
  const notSaved = (error: unknown) => {
    discard()
    const message = `${path} could not be written: ${messageOf(error)}`
    return new CodedError('PROGRAM_NOT_SAVED', message, { cause: error, detail: { path } })
  }
  try {
    const target = resolveLinks(path)
    const old = statOf(target)
    // A rename asks the folder only; a file its owner made read-only is not to be replaced.
    if (old !== undefined) accessSync(target, constants.W_OK)
    const name = `${target}.tmp-${process.pid}-${randomUUID().slice(0, 8)}`
    const file = openSync(name, 'wx', old?.mode ?? 0o666)
    temporary = name
    try {
      writeFileSync(file, text)
      if (old !== undefined) keepOwner(file, old)
      await sync(file)
    } finally {
      closeSync(file)
    }
    const publish = async () => {
      try {
        renameSync(name, target)
        temporary = undefined
        await syncFolder(dirname(target))
      } catch (error) {
        throw notSaved(error)
      }
    }
    return { path, text, publish, discard }
  } catch (error) {
    throw notSaved(error)
  }
}

const sync = promisify(fsync)

/** The file behind a link, also where it is not there yet. */
function resolveLinks(path: string): string {
  try {
    return realpathSync.native(path)
  } catch {
    let target: string
    try {
      target = readlinkSync(path)
    } catch {
      return resolve(path) // no link
    }
    return resolve(dirname(path), target)
  }
}

/** `undefined` for a file that is not there; what else is wrong with the path shows when it is opened. */
function statOf(path: string): Stats | undefined {
  try {
    return statSync(path)
  } catch {
    return undefined
  }
}

function keepOwner(file: number, { uid, gid, mode }: Stats): void {
  try {
    fchownSync(file, uid, gid)
  } catch {
    // Only root may give a file away.
  }
  fchmodSync(file, mode)
}

/** Makes the rename itself durable, where the system can do that for a folder. */
async function syncFolder(path: string): Promise<void> {
  let folder: number
  try {
    folder = openSync(path, 'r')
  } catch {
    return // not on this system
  }
  await sync(folder).catch(() => undefined)
  closeSync(folder)
}
