import { existsSync } from 'node:fs'
import { access, constants, rename, rm } from 'node:fs/promises'
import { join } from 'node:path'
import { getLastVersion, open, type RangeOptions, type RootDatabase, type RootDatabaseOptionsWithPath } from 'lmdb'
import { CodedError } from '../../kernel/index.ts'
import { readMark } from './datafile.ts'
import { toStoreError } from './failures.ts'
import { prepareFolder, syncFolder } from './folder.ts'
import { type Formats, formats, type Migrating } from './formats.ts'
import { behind, type Bounds, boundsOf, decodeKey, encodeKey, keyBufferBytes, writeKey } from './keys.ts'
import { lockFolder } from './lock.ts'
import type { Key } from './types.ts'

/** A value as it lies in the store. */
export interface StoredEntry {
  /** Encoded. */
  readonly key: string
  /** JSON. */
  readonly text: string
  readonly version: number
}

/** The state of one moment, kept for readers that take their time. */
export interface Snapshot {
  readonly transaction: Transaction
  release(): void
}

type Transaction = NonNullable<RangeOptions['transaction']>

/** What a write may do, inside the one write transaction there is. */
export interface Batch {
  put(key: string, text: string, version: number): void
  /** Puts version `version` where there is nothing. @returns whether there was nothing */
  insert(key: string, text: string, version: number): boolean
  remove(key: string): void
}

/** LMDB, as far as the store needs it. Keys are encoded ({@link writeKey}) except for {@link find}. */
export interface Engine {
  readonly folder: string
  /** The JSON under a key, without making a string of the key: the fast way. */
  find(collection: string, key: Key): string | undefined
  /** Inside {@link write}: what the transaction sees. */
  read(key: string): string | undefined
  /** Version of what was last found or read; ask at once. */
  version(): number
  /** The first entries within `bounds`, and the bounds of what is left; `undefined` when nothing is. */
  entries(
    bounds: Bounds,
    reverse: boolean,
    most: number,
    snapshot?: Snapshot
  ): { readonly entries: readonly StoredEntry[]; readonly rest: Bounds | undefined }
  /** Of the moment that reads of this turn of the event loop see. */
  hold(): Snapshot
  /**
   * Runs `work`, synchronously, alone, in a transaction of its own that it leaves by throwing or returning. Resolves
   * when that is committed and on disk, which lmdb reports together.
   * @throws what `work` threw, or CodedError `STORE_FULL`, `STORE_FAILED`: nothing of it stays, but when the disk itself
   * failed
   */
  write<R>(work: (batch: Batch) => R): Promise<R>
  /** How many writes have run, whatever came of them. */
  writes(): number
  /** Reads outside of a write see all writes that have run. */
  isSettled(): boolean
  /** Resolves when all writes that were begun before are settled. */
  settled(): Promise<void>
  /** Lets go of snapshots that other processes held when they were killed: their pages could never be used again. */
  freeReaders(): void
  /** Keeps the engine open until `work` has ended. @throws CodedError `STORE_FAILED` when it is closing */
  during<R>(work: () => Promise<R>): Promise<R>
  /** Resolves when work under way has ended and the folder is free for others. */
  close(): Promise<void>
}

/** Where the format stands. No collection has an empty name, so this is nobody's key, and the first one of the file. */
const markKey = '\0heartwood'
export const dataFile = 'data.mdb'
/** Of one read of a range: entries, and UTF-16 units of their values. */
const chunkEntries = 256
const chunkUnits = 1_048_576

export interface OpenOptions {
  /** Those of this version when left out. */
  readonly formats?: Formats
  /** Told of each migration that was made. */
  readonly onMigrated?: (from: number, to: number) => void
}

/**
 * Opens the data of a folder, which is made if it is not there, and migrated if it is of an older format.
 * @throws CodedError `STORE_UNWRITABLE`, `STORE_LOCKED`, `STORE_DAMAGED`, `STORE_FORMAT`, `STORE_FULL`
 */
export async function openEngine(folder: string, options: OpenOptions = {}): Promise<Engine> {
  const known = options.formats ?? formats
  await prepareFolder(folder)
  const unlock = await lockFolder(folder)
  try {
    const path = join(folder, dataFile)
    let found = known.version
    if (existsSync(path)) {
      found = readFormat(path, known)
      await access(path, constants.R_OK | constants.W_OK)
    } else {
      await createDataFile(folder, known.version)
    }
    const engine = createEngine(folder, openDatabase(folder), unlock)
    try {
      for (; found < known.version; found += 1) {
        await migrate(engine, found, known)
        options.onMigrated?.(found, found + 1)
      }
    } catch (error) {
      await engine.close()
      throw error
    }
    return engine
  } catch (error) {
    await unlock()
    throw toStoreError(error, folder)
  }
}

/**
 * The format of a data file that this version can read.
 * @throws CodedError `STORE_FORMAT`, `STORE_DAMAGED`
 */
export function readFormat(path: string, { version, migrations }: Formats = formats): number {
  const found = Number(readMark(path, markKey))
  const refuse = (why: string) =>
    new CodedError('STORE_FORMAT', `${path} ${why}`, { detail: { path, supported: version } })
  if (found > version) {
    throw refuse(
      `has data of format ${found}, this version reads up to ${version}: update Heartwood, or restore a backup made with this version`
    )
  }
  if (!Number.isInteger(found) || found < 1) {
    throw refuse('was not written by Heartwood: set another path for the store, or move the file away')
  }
  for (let from = found; from < version; from += 1) {
    if (!migrations.has(from)) {
      throw refuse(
        `has data of format ${found}, which this version cannot migrate: start a version once that can, then this one`
      )
    }
  }
  return found
}

/** The data and its mark change together, or not at all. */
async function migrate(engine: Engine, from: number, { migrations }: Formats): Promise<void> {
  const scratch = Buffer.allocUnsafeSlow(keyBufferBytes)
  await engine.write((batch) => {
    const data: Migrating = {
      *entries(collection) {
        let left: Bounds | undefined = boundsOf(collection, [], scratch)
        while (left !== undefined) {
          const { entries, rest } = engine.entries(left, false, Number.POSITIVE_INFINITY)
          for (const { key, text } of entries) yield [decodeKey(key), JSON.parse(text) as unknown]
          left = rest
        }
      },
      put(collection, key, value) {
        const encoded = encodeKey(collection, key, scratch)
        const version = engine.read(encoded) === undefined ? 0 : engine.version()
        batch.put(encoded, JSON.stringify(value), version + 1)
      },
      remove(collection, key) {
        batch.remove(encodeKey(collection, key, scratch))
      }
    }
    migrations.get(from)?.(data)
    batch.put(markKey, String(from + 1), from + 1)
  })
}

/** The file appears with its mark in it: a start that is cut short leaves none, instead of one nobody vouches for. */
async function createDataFile(folder: string, format: number): Promise<void> {
  const draft = join(folder, `${dataFile}.new`)
  await rm(draft, { recursive: true, force: true })
  const engine = createEngine(draft, openDatabase(draft), async () => {})
  try {
    await engine.write((batch) => batch.put(markKey, String(format), 1))
  } finally {
    await engine.close()
  }
  await rename(join(draft, dataFile), join(folder, dataFile))
  await syncFolder(folder)
  await rm(draft, { recursive: true, force: true })
}

/** The one key that is being looked for, not yet encoded: lmdb hands it to the encoder as it is. */
interface Wanted {
  collection: string
  key: Key
}

type Database = RootDatabase<string, string>

function openDatabase(folder: string, readOnly = false): Database {
  const options: RootDatabaseOptionsWithPath & Record<string, unknown> = {
    path: folder,
    readOnly,
    // A folder whose name has a dot in it is a folder all the same.
    noSubdir: false,
    permissionsMode: 0o600,
    encoding: 'string',
    useVersions: true,
    maxReaders: 1_000,
    // Batching by turns leaves a rejection unhandled when a commit fails. Writes of a turn share a commit without it.
    eventTurnBatching: false,
    keyEncoder: {
      writeKey: (key: string | Wanted, buffer: Buffer, position: number): number =>
        typeof key === 'string'
          ? position + buffer.write(key, position, 'latin1')
          : writeKey(key.collection, key.key, buffer, position),
      readKey: (buffer: Buffer, start: number, end: number): string => buffer.toString('latin1', start, end)
    }
  }
  return open<string, string>(options)
}

function createEngine(folder: string, db: Database, unlock: () => Promise<void>): Engine {
  const wanted: Wanted = { collection: '', key: [] }
  let closing: Promise<void> | undefined
  let closed = false
  let running = 0
  let writes = 0
  let unsettled = 0
  let idle = () => {}

  const toError = (error: unknown): CodedError =>
    closed
      ? new CodedError('STORE_FAILED', `the store in ${folder} is closed`, { cause: error })
      : toStoreError(error, folder)

  const batch: Batch = {
    put(key, text, version) {
      db.putSync(key, text, version)
    },
    // Of a put with a condition it says whether it took place; its types do not know.
    insert: (key, text, version) => (db.putSync(key, text, { version, noOverwrite: true }) as unknown) === true,
    remove(key) {
      db.removeSync(key)
    }
  }

  const engine: Engine = {
    folder,

    find(collection, key) {
      wanted.collection = collection
      wanted.key = key
      try {
        return db.get(wanted as unknown as string)
      } catch (error) {
        throw toError(error)
      }
    },

    read(key) {
      try {
        return db.get(key)
      } catch (error) {
        throw toError(error)
      }
    },

    version: getLastVersion,

    entries(bounds, reverse, most, snapshot) {
      const options: RangeOptions = reverse
        ? { start: bounds.high, exclusiveStart: true, end: bounds.low, inclusiveEnd: true, reverse }
        : { start: bounds.low, end: bounds.high }
      const limit = Math.min(most, chunkEntries)
      options.limit = limit
      const held = snapshot === undefined ? {} : { transaction: snapshot.transaction }
      const found: StoredEntry[] = []
      try {
        if (closed) throw new Error('closed')
        let units = 0
        // Values one by one: a range that brings them maps large ones into buffers that outlive their memory.
        for (const key of db.getKeys({ ...options, ...held }) as Iterable<string>) {
          const text = db.get(key, held)!
          found.push({ key, text, version: getLastVersion() })
          units += text.length
          if (units > chunkUnits) break
        }
        const last = found.at(-1)
        const ended = last === undefined || (found.length < limit && units <= chunkUnits)
        return { entries: found, rest: ended ? undefined : behind(bounds, last.key, reverse) }
      } catch (error) {
        throw toError(error)
      }
    },

    hold() {
      try {
        const transaction = db.useReadTransaction()
        let held = true
        return {
          transaction,
          release() {
            if (held && !closed) transaction.done()
            held = false
          }
        }
      } catch (error) {
        throw toError(error)
      }
    },

    async write(work) {
      let hasRun = false
      try {
        return await db.childTransaction(() => {
          hasRun = true
          unsettled += 1
          try {
            const result = work(batch)
            // A put that fails inside a transaction says nothing, but every read after it does.
            db.get(markKey)
            return result
          } finally {
            writes += 1
          }
        })
      } catch (error) {
        // Of a commit that failed, lmdb tells the cause apart.
        const cause = (error as { commitError?: Promise<unknown> }).commitError
        throw toError(cause === undefined ? error : await cause.catch((cause: unknown) => cause))
      } finally {
        if (hasRun) unsettled -= 1
      }
    },

    writes: () => writes,

    isSettled: () => unsettled === 0,

    async settled() {
      // Commits settle in the order in which they were asked for, so an empty one is behind all that came before it.
      await engine.write(() => {})
    },

    freeReaders() {
      if (!closed) db.readerCheck()
    },

    async during(work) {
      if (closing !== undefined) throw new CodedError('STORE_FAILED', `the store in ${folder} is closed`)
      running += 1
      try {
        return await work()
      } finally {
        running -= 1
        if (running === 0) idle()
      }
    },

    close() {
      closing ??= (async () => {
        if (running > 0) await new Promise<void>((resolve) => (idle = resolve))
        try {
          // After a commit that failed, lmdb waits for a flush that never comes, unless another commit comes after it.
          await engine.settled()
        } finally {
          closed = true
          await db.close()
          await unlock()
        }
      })()
      return closing
    }
  }
  return engine
}

/** The data of a folder as it was at one moment, for whoever only reads; a server may be at work on it. */
export interface DataReader {
  /** Copies it into a folder that is there and empty, as one file without unused pages. */
  copyTo(folder: string): Promise<void>
  /**
   * Reads every key and value.
   * @returns how many there are
   * @throws CodedError `STORE_DAMAGED`
   */
  readAll(): number
  close(): Promise<void>
}

/** @throws CodedError `STORE_DAMAGED`, `STORE_FORMAT`, or `STORE_FAILED` when there is nothing to read */
export function openReader(folder: string): DataReader {
  const path = join(folder, dataFile)
  if (!existsSync(path)) {
    throw new CodedError(
      'STORE_FAILED',
      `there is no data in ${folder}: it is another folder, or nothing was stored yet`
    )
  }
  readFormat(path)
  const db = openDatabase(folder, true)
  return {
    copyTo: (target) => db.backup(target, true),
    readAll() {
      let count = 0
      for (const key of db.getKeys({ start: '\0', end: '\xff' })) {
        try {
          // What the store keeps for itself lies in no collection.
          if (!key.startsWith('\0')) decodeKey(key)
          JSON.parse(db.get(key) ?? '')
        } catch (cause) {
          throw new CodedError('STORE_DAMAGED', `${path} is damaged: record ${count} cannot be read`, { cause })
        }
        count += 1
      }
      return count
    },
    close: () => db.close()
  }
}
