import { createHash } from 'node:crypto'
import { isDeepStrictEqual } from 'node:util'
import { compose, readBytes, rebased, type Source, type SourceFile, sourceOf } from './compose.ts'
import type { Renamed } from './control.ts'
import { editEntries, editProgram, namedIds, type ProgramEdit } from './edit.ts'
import { CodedError } from './errors.ts'
import { type Entry, parseProgram } from './program.ts'
import { moveEntry, subtreeOf } from './tree.ts'

/** What a change does to the program. */
export interface Change {
  readonly edits: readonly ProgramEdit[]
  readonly renamed?: Renamed
  /** Ids in the order that was asked for; a file that does not hold all of the program may not be able to give it. */
  readonly order?: readonly string[]
  /** An entry that is rebuilt as a new fiber, whether or not anything of it has changed. */
  readonly rebuild?: string
}

/** The program with the edits made: in the one file they are about, where there is one. */
export function edited(source: Source, { edits, order }: Change): Source {
  const { program, files } = source
  const [main] = files
  if (main === undefined) return sourceOf({ ...program, entries: editEntries(program.entries, edits) })
  const file = fileOf(source, edits) ?? main
  const parsed = editFile(file, main, edits)
  const known = files.map((each) => (each === file ? { ...each, parsed } : each))
  const wanted = parsed === file.parsed ? source : compose(file === main ? parsed : main.parsed, known)
  const reached = wanted.program.entries.map(({ id }) => id)
  if (order === undefined || isDeepStrictEqual(reached, order)) return wanted
  throw elsewhere(`the position asked for is not within ${file.parsed.file}, where the entry stands`)
}

function editFile(file: SourceFile, main: SourceFile, edits: readonly ProgramEdit[]): SourceFile['parsed'] {
  const { text, file: path } = file.parsed
  const own = edits.map((edit) =>
    edit.op === 'set' && edit.key === 'plugin'
      ? { ...edit, value: rebased(edit.value as string, main.parsed.file, path) }
      : edit
  )
  const changed = editProgram(text, own)
  return changed === text ? file.parsed : parseProgram(changed, path, file !== main)
}

/**
 * The file that holds all the entries the edits are about.
 * @throws CodedError `PROGRAM_INCLUDED` when there is none, or nothing may be written to it; `PROGRAM_NO_ENTRY`
 */
function fileOf(source: Source, edits: readonly ProgramEdit[]): SourceFile | undefined {
  let found: SourceFile | undefined
  for (const edit of edits) {
    for (const id of namedIds(edit)) {
      const file = source.fileOf(id)
      if (file === undefined) throw noEntry(id)
      const { parsed } = file
      const within = isInline(file, id) || (edit.op === 'set-config' && hasInline(file, id))
      if (within)
        throw elsewhere(`entry '${id}' is written within the config of a group in ${parsed.file}; edit it there`)
      if (!file.writable) {
        throw elsewhere(
          `entry '${id}' comes from ${parsed.file}; edit it there, or let its include say writable = true`
        )
      }
      if (found !== undefined && found !== file) {
        throw elsewhere(`the entries stand in ${found.parsed.file} and ${parsed.file}; change them one by one`)
      }
      found = file
    }
  }
  return found
}

/** Whether an entry stands in the config of a group, not on its own. */
function isInline({ parsed }: SourceFile, id: string): boolean {
  return (parsed.paths.get(id)?.length ?? 0) > 2
}

/** Whether an entry is a group with others in its config. */
function hasInline({ parsed }: SourceFile, id: string): boolean {
  const index = parsed.paths.get(id)?.[1]
  return [...parsed.paths.values()].some((path) => path.length > 2 && path[1] === index)
}

function elsewhere(message: string): CodedError {
  return new CodedError('PROGRAM_INCLUDED', message)
}

/** Whether every file is still what it was when it was read. */
export function isAsRead({ files }: Source): boolean {
  return files.every(({ parsed }) => readBytes(parsed.file).equals(Buffer.from(parsed.text)))
}

export function changedFiles(source: Source, wanted: Source): readonly SourceFile[] {
  const texts = new Map(source.files.map(({ parsed }) => [parsed.file, parsed.text]))
  return wanted.files.filter(({ parsed: { file, text } }) => texts.has(file) && texts.get(file) !== text)
}

export function entryOf({ program }: Source, id: string): Entry {
  const entry = program.entries.find((each) => each.id === id)
  if (entry === undefined) throw noEntry(id)
  return entry
}

function noEntry(id: string): CodedError {
  return new CodedError('PROGRAM_NO_ENTRY', 'no such entry', { detail: { id } })
}

/** Takes the entry away, and all below it. */
export function removal(source: Source, id: string): Change {
  entryOf(source, id)
  const ids = subtreeOf(source.program.entries, id).map((entry) => entry.id)
  // What is written in the config of a group goes with the group.
  const own = ids.filter((each) => each === id || !isInlineOf(source, each))
  return { edits: [{ op: 'remove', ids: own }] }
}

function isInlineOf(source: Source, id: string): boolean {
  const file = source.fileOf(id)
  return file !== undefined && isInline(file, id)
}

export function moving(
  source: Source,
  id: string,
  parent: string | null,
  position: number | undefined
): Change & { readonly renamed: Renamed } {
  if (id !== '') entryOf(source, id)
  const move = moveEntry(source.program.entries, id, parent, position)
  const { entries, renamed } = move
  const ids = move.ids.filter((each) => each === id || !isInlineOf(source, each))
  // The next entry of the same file: others that stand between come along with their includes.
  const home = source.fileOf(id)
  const below = entries.slice(move.at + move.ids.length).find((each) => {
    const file = source.fileOf(each.id)
    return file === home && (file === undefined || !isInline(file, each.id))
  })
  return {
    renamed,
    ...(position === undefined ? {} : { order: entries.map((each) => each.id) }),
    edits: [
      { op: 'move', ids, ...(below === undefined ? {} : { before: below.id }) },
      ...(move.pointers.length === 0 ? [] : [{ op: 'repoint', parents: move.pointers } as const]),
      ...(renamed.length === 0 ? [] : [{ op: 'rename', ids: renamed } as const])
    ]
  }
}

/** Tells one state of the program from another; quoted as the header has it. */
export function etagOf({ program, files }: Source): string {
  const hash = createHash('sha256')
  for (const { parsed } of files) hash.update(parsed.text)
  if (files.length === 0) {
    hash.update(JSON.stringify(program, (_, value) => (typeof value === 'bigint' ? `${value}n` : value)))
  }
  return `"${hash.digest('hex')}"`
}
