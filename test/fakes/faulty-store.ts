import { CodedError, definePlugin, type Plugin } from '../../kernel/index.ts'
import type { Key, RangeOptions, Store, Transaction, Versioned } from '../../plugins/store/types.ts'

/** A store in memory that fails and waits when a test says so: what is committed is visible before it is on disk. */
export class FaultyStore {
  /** Transactions that still succeed; the ones after them fail before they commit. */
  commitsLeft = Number.POSITIVE_INFINITY
  failsToRead = false
  /** Reads of single values that still succeed; the ones after them fail. */
  readsLeft = Number.POSITIVE_INFINITY
  /** What a durable transaction waits for after its commit. */
  disk: Promise<void> = Promise.resolve()
  readonly #values = new Map<string, Versioned<unknown>>()
  readonly #onCommit: (() => void)[] = []

  readonly plugin: Plugin = definePlugin({
    name: 'store',
    provides: ['store'],
    apply: (ctx) => ctx.provide('store', this.store)
  })

  /** Resolves at the next commit. */
  committed(): Promise<void> {
    return new Promise((resolve) => this.#onCommit.push(resolve))
  }

  readonly #read = async <T>(collection: string, key: Key): Promise<Versioned<T> | undefined> => {
    if (this.failsToRead || this.readsLeft <= 0) throw new CodedError('STORE_FAILED', 'the disk does not answer')
    this.readsLeft -= 1
    return this.#values.get(JSON.stringify([collection, ...key])) as Versioned<T> | undefined
  }

  readonly #range = async function* <T>(
    this: FaultyStore,
    collection: string,
    prefix: Key,
    { limit, reverse, after }: RangeOptions = {}
  ): AsyncGenerator<readonly [Key, Versioned<T>]> {
    if (this.failsToRead) throw new CodedError('STORE_FAILED', 'the disk does not answer')
    const isBehind = (key: Key) => after === undefined || (reverse === true ? key < after : key > after)
    const found = [...this.#values]
      .map(([name, value]) => [JSON.parse(name) as [string, ...Key], value] as const)
      .filter(
        ([[name, ...key]]) => name === collection && prefix.every((part, at) => key[at] === part) && isBehind(key)
      )
      .map(([[, ...key], value]) => [key as Key, value as Versioned<T>] as const)
      .sort(([a], [b]) => (a < b !== (reverse === true) ? -1 : 1))
    yield* found.slice(0, limit)
  }.bind(this)

  readonly store = {
    get: this.#read,
    range: this.#range,
    atomically: async <R>(work: (tx: Transaction) => R | Promise<R>): Promise<R> => {
      const writes: (() => void)[] = []
      const result = await work({
        get: this.#read,
        range: this.#range,
        put: (collection: string, key: Key, value: unknown, ifVersion?: number) => {
          const name = JSON.stringify([collection, ...key])
          const version = this.#values.get(name)?.version ?? 0
          if (ifVersion !== undefined && ifVersion !== version)
            throw new CodedError('STORE_CONFLICT', 'another version')
          writes.push(() => this.#values.set(name, { value: structuredClone(value), version: version + 1 }))
        },
        remove: (collection: string, key: Key) => {
          writes.push(() => this.#values.delete(JSON.stringify([collection, ...key])))
        }
      } as unknown as Transaction)
      if (this.commitsLeft <= 0) throw new CodedError('STORE_FAILED', 'the disk is broken')
      this.commitsLeft -= 1
      for (const write of writes) write()
      for (const tell of this.#onCommit.splice(0)) tell()
      await this.disk
      return result
    }
  } as unknown as Store
}
