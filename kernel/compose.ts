import { readFileSync, realpathSync, statSync } from 'node:fs'
import { dirname, join, relative, resolve, sep } from 'node:path'
import { CodedError, isCoded, messageOf } from './errors.ts'
import {
  type Entry,
  includePlugin,
  invalidProgram,
  type LocatedProgram,
  type ParsedProgram,
  type Program,
  type ProgramFault,
  parseProgram
} from './program.ts'
import { lineOf } from './tree.ts'

/** One of the files a program is made of. */
export interface SourceFile {
  readonly parsed: ParsedProgram
  /** Its path without links: tells whether two paths are the same file. */
  readonly identity: string
  /** The program file itself, or an include says so: changes may be written to it. */
  readonly writable: boolean
}

/** A program with all that it includes, and where each entry of it stands. */
export interface Source extends LocatedProgram {
  /** The program file, then the included ones in the order of their entries; empty for a program given as data. */
  readonly files: readonly SourceFile[]
  fileOf(entryId: string): SourceFile | undefined
}

/** A program given as data. @throws CodedError `PROGRAM_INVALID` when it includes something: from where? */
export function sourceOf(program: Program): Source {
  const includes = program.entries.filter(({ plugin }) => plugin === includePlugin)
  if (includes.length > 0) {
    const message = (id: string) => `entry '${id}' includes a file, which only a program file can`
    throw invalidProgram(
      'program',
      includes.map(({ id }) => ({ line: 0, column: 0, message: message(id) }))
    )
  }
  return { program, files: [], fileOf: () => undefined, locate: () => ({ line: 0, column: 0 }) }
}

/**
 * Reads at once what is small and mostly in memory: each await would cost a turn of the event loop, which under load
 * takes many times as long.
 * @param mayWait takes a pipe too, which keeps the process waiting for whoever writes to it
 * @throws CodedError `PROGRAM_INVALID`, also when the file cannot be read
 */
export function readProgram(file: string, mayWait: boolean): Source {
  if (!mayWait && statSync(file, { throwIfNoEntry: false })?.isFIFO() === true) {
    throw invalidProgram(file, [{ line: 0, column: 0, message: 'it is a pipe now' }])
  }
  return compose(parseProgram(readBytes(file), file))
}

/** @throws CodedError `PROGRAM_INVALID` */
export function readBytes(file: string): Buffer {
  try {
    return readFileSync(file)
  } catch (error) {
    throw new CodedError('PROGRAM_INVALID', `failed to read the program file ${file}: ${reasonOf(error)}`, {
      cause: error
    })
  }
}

/**
 * Puts the entries of included files behind the entries that include them. A file that is included twice comes once; an
 * include that is off, by itself or with its group, is not read. Paths start from the file they stand in.
 * @param known files that need not be read again, as they are to be
 * @throws CodedError `PROGRAM_INVALID` with what is wrong in any file: unreadable, not valid, an id twice, in a circle;
 *   detail `paths` has the paths of all files, those that could not be read among them
 */
export function compose(main: ParsedProgram, known: readonly SourceFile[] = []): Source {
  const faults: ProgramFault[] = []
  const paths = [main.file]
  const files: SourceFile[] = []
  const entries: Entry[] = []
  const homes = new Map<string, SourceFile>()
  const byId = new Map<string, Entry>()

  const splice = (file: SourceFile, around: readonly SourceFile[]): void => {
    files.push(file)
    for (const entry of file.parsed.program.entries) if (!byId.has(entry.id)) byId.set(entry.id, entry)
    for (const entry of file.parsed.program.entries) {
      const { id } = entry
      const home = homes.get(id)
      if (home === undefined) homes.set(id, file)
      else {
        const first = home.parsed.locate(id, [])
        const message = `id '${id}' is already that of the entry at ${home.parsed.file}:${first.line}`
        faults.push({ ...placeIn(file, id, []), message })
      }
      entries.push(around.length === 0 ? entry : included(entry, file.parsed.file, main.file))
      if (entry.plugin !== includePlugin || lineOf(entry, byId).some(({ disabled }) => disabled)) continue
      const next = open(entry, [...around, file])
      if (next !== undefined) splice(next, [...around, file])
    }
  }

  const open = (entry: Entry, around: readonly SourceFile[]): SourceFile | undefined => {
    const from = around.at(-1) as SourceFile
    const shown = pathFrom(from.parsed.file, entry.config['path'] as string)
    paths.push(shown)
    const refuse = (message: string): undefined => {
      faults.push({ ...placeIn(from, entry.id, ['path']), message: `${message} (entry '${entry.id}')` })
    }
    try {
      const identity = realpathSync.native(shown)
      if (around.some((each) => each.identity === identity)) {
        const circle = [...around.map(({ parsed }) => parsed.file), shown].join(' → ')
        return refuse(`include cycle: ${circle}`)
      }
      if (files.some((each) => each.identity === identity)) return undefined
      const old = known.find((each) => each.identity === identity)?.parsed
      if (old === undefined && !statSync(identity).isFile()) return refuse(`${shown} is no file`)
      const parsed = old ?? parseProgram(readFileSync(identity), shown, true)
      return { parsed, identity, writable: entry.config['writable'] === true }
    } catch (error) {
      if (!isCoded(error, 'PROGRAM_INVALID')) return refuse(`${shown} cannot be read: ${reasonOf(error)}`)
      const found = error.detail?.['faults'] as readonly ProgramFault[]
      faults.push(...found.map((fault) => ({ ...fault, file: shown })))
      return undefined
    }
  }

  splice({ parsed: main, identity: identityOf(main.file), writable: true }, [])
  if (faults.length > 0) throw invalidProgram(main.file, faults, paths)
  return {
    program: { settings: main.program.settings, entries },
    files,
    fileOf: (id) => homes.get(id),
    locate: (id, path) => placeIn(homes.get(id) ?? (files[0] as SourceFile), id, path)
  }
}

/** The file may have gone since it was read; what it includes is looked up beside where it was. */
function identityOf(file: string): string {
  try {
    return realpathSync.native(file)
  } catch {
    return resolve(file)
  }
}

function placeIn({ parsed }: SourceFile, id: string, path: readonly string[]): Omit<ProgramFault, 'message'> {
  return { ...parsed.locate(id, path), file: parsed.file }
}

/** The path as it is written in `file`, as seen from where `file` is seen from. */
function pathFrom(file: string, path: string): string {
  return resolve('/', path) === path ? path : join(dirname(file), path)
}

/** An entry as those of the program file see it: the path of its plugin starts from there. */
function included(entry: Entry, source: string, main: string): Entry {
  return { ...entry, plugin: rebased(entry.plugin, source, main), source }
}

/** The path of a plugin that stands in `from`, as it would stand in `to`; anything else stays as it is. */
export function rebased(plugin: string, from: string, to: string): string {
  if (!/^\.\.?\//.test(plugin) || dirname(from) === dirname(to)) return plugin
  const path = relative(dirname(resolve(to)), join(dirname(resolve(from)), plugin))
    .split(sep)
    .join('/')
  return path.startsWith('../') ? path : `./${path}`
}

function reasonOf(error: unknown): string {
  const { code } = error as NodeJS.ErrnoException
  return code === 'ENOENT' ? 'there is no such file' : messageOf(error)
}
