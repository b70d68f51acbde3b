import type { Key } from './types.ts'

/** All data, inside the one transaction in which a migration happens. Collections are written whoever owns them. */
export interface Migrating {
  /** Values in key order, as the walk finds them: what is put ahead of it is met too. */
  entries(collection: string): Iterable<readonly [Key, unknown]>
  put(collection: string, key: Key, value: unknown): void
  remove(collection: string, key: Key): void
}

/** Brings data from one format to the next. Synchronous; when it throws, nothing has changed. */
export type Migration = (data: Migrating) => void

/** How data lies in the store: which format this version writes, and how it gets there from older ones. */
export interface Formats {
  readonly version: number
  /** By the format they start from. One that is missing is too old to be read. */
  readonly migrations: ReadonlyMap<number, Migration>
}

/**
 * A change of how keys or values are encoded, or of what a collection holds, adds one to the version and a migration
 * from the one before.
 */
export const formats: Formats = { version: 1, migrations: new Map() }
