import { CodedError, definePlugin, type Plugin } from '../../kernel/index.ts'
import type { Key, Store, Transaction, Versioned } from '../../plugins/store/types.ts'

/** A store in memory that fails and waits when a test says so: what is committed is visible before it is on disk. */
export class FaultyStore {
  /** Transactions that still succeed; the ones after them fail before they commit. */
  commitsLeft = Number.POSITIVE_INFINITY
  failsToRead = false
  /** What a durable transaction waits for after its commit. */
  disk: Promise<void> = Promise.resolve()
  readonly #values = new Map<string, Versioned<unknown>>()
  readonly #onCommit: (() => void)[] = []

  readonly plugin: Plugin = definePlugin({
    name: 'store',
    provides: ['store'],
    apply: (ctx) => ctx.provide('store', this.#store)
  })

  /** Resolves at the next commit. */
  committed(): Promise<void> {
    return new Promise((resolve) => this.#onCommit.push(resolve))
  }

  readonly #read = async <T>(collection: string, key: Key): Promise<Versioned<T> | undefined> => {
    if (this.failsToRead) throw new CodedError('STORE_FAILED', 'the disk does not answer')
    return this.#values.get(JSON.stringify([collection, ...key])) as Versioned<T> | undefined
  }

  readonly #store = {
    get: this.#read,
    atomically: async <R>(work: (tx: Transaction) => R | Promise<R>): Promise<R> => {
      const writes: (() => void)[] = []
      const result = await work({
        get: this.#read,
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
