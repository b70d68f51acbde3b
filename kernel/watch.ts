import { createHash } from 'node:crypto'
import {
  type FSWatcher,
  lstatSync,
  readFileSync,
  readlinkSync,
  realpathSync,
  type Stats,
  statSync,
  watch
} from 'node:fs'
import { readFile, realpath, stat } from 'node:fs/promises'
import { basename, dirname, join, parse, resolve, sep } from 'node:path'
import type { Logger } from './log.ts'
import type { Awaitable } from './plugin.ts'

/** Tells one content of a file from another, and from there being none. */
export type Stamp = string

/** Calls `work` once after a delay. @returns takes the call back */
export type After = (delayMs: number, work: () => void) => () => void

export interface WatchOptions {
  /** Time from the first event until the files are looked at; what happens meanwhile is told together. */
  readonly settleMs: number
  readonly log: Logger
  /**
   * Told of the files that have another content than before, are gone, or are back. Awaited: what changes meanwhile is
   * told in the next call. It may run once more for a change that its caller knows already, never once too little.
   */
  readonly onChange: (changed: ReadonlySet<string>) => Awaitable<void>
  /** How often files are looked at where the system has no more room for watching them. */
  readonly pollMs?: number
  readonly after?: After
  /** What `fs.watch` is. */
  readonly watchFolder?: (path: string, listener: (event: string, name: string | null) => void) => FSWatcher
}

export interface FileWatcher {
  /**
   * Follows exactly these files (absolute paths) from now on, whether they exist or not. What is not followed yet begins
   * with the content that `known` says, or else with the one it has now.
   */
  follow(files: Iterable<string>, known?: (file: string) => Stamp | undefined): void
  /** The caller has written this content itself: it is nothing to tell. */
  expect(file: string, content: string | Uint8Array): void
  /** Nothing is told from now on. Resolves when a call of `onChange` that is under way has ended. */
  close(): Promise<void>
}

export function stampOf(content: string | Uint8Array): Stamp {
  return createHash('sha256').update(content).digest('base64')
}

/**
 * Watches files by their content. The folders are watched, not the files: an editor that saves by renaming puts another
 * file in the place of the old one. So are the folders of links on the way, and the nearest one that exists where a
 * folder is missing. A folder further up that is renamed is noticed if it is one below the common folder of all files.
 */
export function watchFiles(options: WatchOptions): FileWatcher {
  const { settleMs, log, onChange, pollMs = 1_000, after = afterTimeout, watchFolder = watch } = options
  const stamps = new Map<string, Stamp>()
  const folders = new Map<string, Folder>()
  /** Files something has happened to since they were last read. */
  const touched = new Set<string>()
  let cancelRound: (() => void) | undefined
  let cancelPoll: (() => void) | undefined
  let round: Promise<void> | undefined
  let closed = false

  function touch(files: Iterable<string>): void {
    for (const file of files) touched.add(file)
    if (touched.size === 0 || cancelRound !== undefined || round !== undefined || closed) return
    cancelRound = after(settleMs, () => {
      cancelRound = undefined
      round = look().finally(() => {
        round = undefined
        touch([])
      })
    })
  }

  async function look(): Promise<void> {
    for (const file of watchAll()) touched.add(file)
    const files = [...touched]
    touched.clear()
    const changed = new Set<string>()
    await Promise.all(
      files.map(async (file) => {
        const stamp = await readStamp(file)
        if (closed || !stamps.has(file) || stamps.get(file) === stamp) return
        stamps.set(file, stamp)
        changed.add(file)
      })
    )
    if (changed.size === 0 || closed) return
    try {
      await onChange(changed)
    } catch (error) {
      log.error('changed files could not be taken in', { files: [...changed], error })
    }
  }

  /** Watches every folder that matters now. @returns the files of those that were not watched before */
  function watchAll(): ReadonlySet<string> {
    const fresh = new Set<string>()
    // A folder may come between looking and watching: look again until there is nothing new to watch.
    for (let pass = 0; pass < 10; pass++) {
      const wanted = placesOf(stamps.keys())
      for (const [path, folder] of folders) {
        if (wanted.has(path) && !folder.stale && folder.identity === identityOf(path)) continue
        folder.watcher.close()
        folders.delete(path)
      }
      let news = false
      for (const [path, names] of wanted) {
        const present = folders.get(path)
        if (present !== undefined) {
          present.names = names
          continue
        }
        const opened = open(path, names)
        if (opened === undefined) continue
        folders.set(path, opened)
        news = true
        for (const files of names.values()) for (const file of files) fresh.add(file)
      }
      if (!news) break
    }
    return fresh
  }

  function open(path: string, names: Names): Folder | undefined {
    const identity = identityOf(path)
    if (identity === undefined) return undefined
    const self = basename(path)
    const changed = (name: string | null) => {
      if (name !== null && name !== self) return touch(folder.names.get(name) ?? [])
      // The folder itself was moved or removed, or the system does not say what it was.
      folder.stale = true
      touch([...folder.names.values()].flatMap((files) => [...files]))
    }
    let watcher: FSWatcher
    try {
      watcher = watchFolder(path, (_event, name) => changed(name))
    } catch (error) {
      if (!isMissing(error)) poll(path, error)
      return undefined
    }
    const folder: Folder = { watcher, identity, names, stale: false }
    watcher.on('error', () => changed(null))
    return folder
  }

  function poll(path: string, error: unknown): void {
    if (cancelPoll !== undefined || closed) return
    log.warn(`cannot watch ${path}: looking at the files every ${pollMs} ms instead`, { error })
    const next = () => {
      cancelPoll = after(pollMs, () => {
        touch(stamps.keys())
        next()
      })
    }
    next()
  }

  return {
    follow(files, known) {
      if (closed) return
      const before = new Set(stamps.keys())
      const now = new Set(files)
      if (now.size === before.size && [...now].every((file) => before.has(file))) return
      for (const file of before) if (!now.has(file)) stamps.delete(file)
      for (const file of now) if (!before.has(file)) stamps.set(file, unread)
      const fresh = [...watchAll()].filter((file) => before.has(file))
      for (const [file, stamp] of stamps) {
        if (stamp !== unread) continue
        const given = known?.(file)
        stamps.set(file, given ?? readStampNow(file))
        if (given !== undefined) fresh.push(file)
      }
      touch(fresh)
    },
    expect(file, content) {
      if (!stamps.has(file)) return
      stamps.set(file, stampOf(content))
      // Somebody else may have written since.
      touch([file])
    },
    async close() {
      closed = true
      cancelRound?.()
      cancelPoll?.()
      for (const { watcher } of folders.values()) watcher.close()
      folders.clear()
      await round
    }
  }
}

const unread: Stamp = ''

/** Name of something in a folder → the files whose path leads through it. */
type Names = Map<string, Set<string>>

interface Folder {
  readonly watcher: FSWatcher
  /** Tells a folder from another one that has come in its place. */
  readonly identity: string
  names: Names
  /** The folder has gone, or may have; its watcher would stay silent. */
  stale: boolean
}

function afterTimeout(delayMs: number, work: () => void): () => void {
  const timer = setTimeout(work, delayMs)
  return () => clearTimeout(timer)
}

/** Every folder to be watched, by its path, with what matters in it. */
function placesOf(files: Iterable<string>): Map<string, Names> {
  const all = [...files]
  const places = new Map<string, Names>()
  const seen = new Map<string, Stats | undefined>()
  const statOf = (path: string) => {
    if (!seen.has(path)) seen.set(path, lstat(path))
    return seen.get(path)
  }
  const common = commonFolder(all)
  for (const file of all) {
    for (const [folder, name] of trailOf(file, common, statOf)) {
      let names = places.get(folder)
      if (names === undefined) places.set(folder, (names = new Map()))
      const users = names.get(name)
      if (users === undefined) names.set(name, new Set([file]))
      else users.add(file)
    }
  }
  return places
}

/** The steps of a path that matter: its last, those within `common`, each link, and what is missing. */
function* trailOf(
  file: string,
  common: string,
  statOf: (path: string) => Stats | undefined
): Generator<readonly [folder: string, name: string]> {
  let [folder, ...rest] = partsOf(file)
  let links = 0
  for (let name = rest.shift(); name !== undefined && folder !== undefined; name = rest.shift()) {
    const path = join(folder, name)
    const found = statOf(path)
    const link = found?.isSymbolicLink() === true
    if (rest.length === 0 || found === undefined || link || isWithin(common, folder)) yield [folder, name]
    if (found === undefined) return
    if (link) {
      links += 1
      const target = linkOf(path)
      if (target === undefined || links > 40) return
      ;[folder, ...rest] = [...partsOf(resolve(folder, target)), ...rest]
    } else folder = path
  }
}

/** The root, then the name of each step. */
function partsOf(path: string): string[] {
  const { root } = parse(path)
  return [root, ...path.slice(root.length).split(sep).filter(Boolean)]
}

function isWithin(folder: string, path: string): boolean {
  return path === folder || path.startsWith(folder.endsWith(sep) ? folder : folder + sep)
}

function commonFolder(files: readonly string[]): string {
  const [first = sep, ...others] = files.map((file) => dirname(file))
  let common = first
  for (const folder of others) while (!isWithin(common, folder)) common = dirname(common)
  return common
}

function lstat(path: string): Stats | undefined {
  try {
    return lstatSync(path)
  } catch {
    return undefined // Not there, or not to be seen: the folder above is what can be watched.
  }
}

function linkOf(path: string): string | undefined {
  try {
    return readlinkSync(path)
  } catch {
    return undefined // It has gone since it was seen; the next look will find out.
  }
}

function identityOf(path: string): string | undefined {
  try {
    const { dev, ino, birthtimeMs } = statSync(path)
    return `${dev}:${ino}:${birthtimeMs}` // numbers of inodes are used again
  } catch {
    return undefined
  }
}

function isMissing(error: unknown): boolean {
  const { code } = error as NodeJS.ErrnoException
  return code === 'ENOENT' || code === 'ENOTDIR'
}

/** Above it a file is told by its size and time. */
const maxHashedBytes = 16 * 1024 * 1024

/** What is there now, whatever it is; of a file that cannot be read, why. */
export async function readStamp(file: string): Promise<Stamp> {
  try {
    const found = await stat(file)
    return isHashed(found) ? stampOf(await readFile(file)) : otherStamp(found, await realpath(file))
  } catch (error) {
    return failureStamp(error)
  }
}

function readStampNow(file: string): Stamp {
  try {
    const found = statSync(file)
    return isHashed(found) ? stampOf(readFileSync(file)) : otherStamp(found, realpathSync(file))
  } catch (error) {
    return failureStamp(error)
  }
}

function isHashed(found: Stats): boolean {
  return found.isFile() && found.size <= maxHashedBytes
}

/** Of a folder, which one it is; a pipe or a device is never read. */
function otherStamp(found: Stats, path: string): Stamp {
  return found.isFile() ? `large ${found.size} ${found.mtimeMs}` : `other ${path}`
}

function failureStamp(error: unknown): Stamp {
  return `none ${(error as NodeJS.ErrnoException).code}`
}
