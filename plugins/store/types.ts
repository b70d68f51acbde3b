import type { Awaitable } from '../../kernel/index.ts'

/**
 * Key path inside one collection: 1 to 8 parts, compared in order, part by part; numbers (finite ones) before strings,
 * strings by code point. At most 1,900 bytes, each part with one or two more than its UTF-8, a number with 9.
 */
export type Key = readonly (string | number)[]

/** A stored value and the version it was written with: 1 for the first write, +1 for each later one. */
export interface Versioned<T> {
  readonly value: T
  readonly version: number
}

export interface RangeOptions {
  readonly limit?: number
  /** From the last key to the first. */
  readonly reverse?: boolean
  /** Starts behind this key (in the direction of the walk), for pages. */
  readonly after?: Key
}

/** The part of {@link Store} that also works inside {@link Store.atomically}. Reads are at hand or on their way: always `await` them. */
export interface Reader {
  /** @throws CodedError `STORE_KEY_INVALID` for a key of another shape or of more than 1,900 bytes */
  get<T>(collection: string, key: Key): Awaitable<Versioned<T> | undefined>
  /** Values whose key starts with `prefix` (may be empty), in key order; a snapshot of the moment of the call. */
  range<T>(collection: string, prefix: Key, options?: RangeOptions): AsyncIterable<readonly [Key, Versioned<T>]>
}

export interface Transaction extends Reader {
  /**
   * Visible to later reads of this transaction. Values are plain JSON.
   * @throws CodedError `STORE_CONFLICT` when the stored version is not `ifVersion` (0: only if absent; left out: always)
   */
  put<T>(collection: string, key: Key, value: T, ifVersion?: number): void
  remove(collection: string, key: Key): void
}

export interface WriteOptions {
  /** Resolve only once the write is on disk. */
  readonly durable?: boolean
}

/**
 * Everything durable: named collections of plain JSON values under ordered keys.
 *
 * A collection is written only by the service of its plugin; that service may take part in another plugin's
 * transaction (`audit.record(tx, …)`).
 *
 * Codes: `STORE_CONFLICT`, `STORE_KEY_INVALID` (of a key, or the name of a collection: 1 to 64 printable ASCII
 * characters), `STORE_FULL` (no room on disk; writes work again once there is), `STORE_FAILED` (the engine refused, or is
 * closed). Its start can fail with `STORE_UNWRITABLE`, `STORE_LOCKED` (detail `folder`, and `pid` of the holder where it
 * is known), `STORE_DAMAGED`, `STORE_FORMAT` (written by a newer version, one that is too old, or something else). A
 * backup or restore can fail with these, and with `STORE_BACKUP_EXISTS`, `STORE_BACKUP_INVALID` or `STORE_NOT_EMPTY`.
 */
export interface Store extends Reader {
  /**
   * All or nothing: what `work` read is unchanged at commit, or `work` runs again (so it does nothing but read and
   * write through `tx`); when it throws, none of its writes stay. Resolves once committed and visible; with
   * `durable: true` once it is on disk.
   * @throws CodedError `STORE_CONFLICT` from `put`, or when it kept losing races
   */
  atomically<R>(work: (tx: Transaction) => Awaitable<R>, options?: WriteOptions): Promise<R>
  /**
   * Adds `amount` to a counter (a plain number, 0 while absent) unless that would pass `limit`; exact under any
   * concurrency. A negative amount gives back.
   * @returns whether it fitted
   */
  reserve(collection: string, key: Key, amount: number, limit: number): Promise<boolean>
  /** Resolves when all that was committed before the call is on disk. */
  flushed(): Promise<void>
  /**
   * A secret kept as a file of its own in the data folder, readable by its owner only (mode 0600).
   * @param name upper case, as the environment variable it stands in for
   * @param make called once, when there is none yet
   */
  secret(
    name: string,
    make: () => string
  ): Promise<{ readonly value: string; readonly path: string; readonly created: boolean }>
  /**
   * A folder of its own for files that can be made again from what is stored, such as an index that a library keeps in a
   * file. It is in no backup, and may be empty after any start.
   * @param name lower case, as the plugin's
   * @returns its path; the folder is there
   */
  scratch(name: string): Promise<string>
  /** The store answers: one read and one write went through. Rejects when not. */
  ping(): Promise<void>
}

declare module '../../kernel/index.ts' {
  interface Services {
    store: Store
  }
}
