import { join } from 'node:path'
import { CodedError } from '../../kernel/index.ts'
import { prepareFolder } from './folder.ts'
import { type Bounds, behind, boundsOf, decodeKey, encodeKey, keyBufferBytes, upTo } from './keys.ts'
import type { Engine, Snapshot, StoredEntry } from './lmdb.ts'
import { keepSecret } from './secrets.ts'
import type { Key, RangeOptions, Reader, Store, Transaction, Versioned } from './types.ts'

/** Each lost race lets another transaction through, so this many rivals of one key all get their turn. */
const maxTries = 256
/** Written by `ping`; no collection has an empty name. */
const pingKey = '\0ping'

/** What a transaction will do to a key. */
interface Write {
  /** JSON; `undefined` removes. */
  readonly text: string | undefined
  /** Nothing is left of what was stored: the transaction removed it before. */
  readonly fresh: boolean
  /** Puts since then; each adds one to the version. */
  readonly puts: number
}

/** What a transaction saw of a range. */
interface RangeSeen {
  readonly bounds: Bounds
  readonly reverse: boolean
  readonly entries: StoredEntry[]
  /** The last key up to which it knows what is there; `undefined` before the first step. */
  reached: string | undefined
  ended: boolean
}

interface Attempt {
  readonly tx: Transaction
  readonly writes: ReadonlyMap<string, Write>
  /** What was read is what is there now. */
  holds(): boolean
  /** Version a write adds to, once what was read holds; `undefined` for a key that was not read. */
  versionBelow(key: string, write: Write): number | undefined
  /** From now on its `tx` refuses to work. */
  end(): void
}

const scratchName = /^[a-z][a-z0-9-]{0,63}$/

/** The contract over an engine; any number of them may share one. */
export function createStore(engine: Engine): Store {
  const scratch = Buffer.allocUnsafeSlow(keyBufferBytes)
  const secrets = new Map<string, ReturnType<typeof keepSecret>>()

  const reader: Reader = {
    get<T>(collection: string, key: Key): Versioned<T> | undefined {
      const text = engine.find(collection, key)
      return text === undefined ? undefined : { value: JSON.parse(text) as T, version: engine.version() }
    },
    range: (collection, prefix, options = {}) =>
      walkRange(engine, limitedBounds(collection, prefix, options, scratch), options, [], undefined)
  }

  const commit = (attempt: Attempt): Promise<boolean> =>
    engine.write((batch) => {
      if (!attempt.holds()) return false
      for (const [key, write] of attempt.writes) {
        if (write.text === undefined) batch.remove(key)
        else {
          const below = attempt.versionBelow(key, write)
          if (below !== undefined) batch.put(key, write.text, below + write.puts)
          // Most keys that nobody has looked at are new.
          else if (!batch.insert(key, write.text, write.puts)) {
            batch.put(key, write.text, versionOf(engine, key) + write.puts)
          }
        }
      }
      return true
    })

  return {
    ...reader,

    // A commit of the engine is on disk when it resolves, so `durable` asks for nothing more.
    atomically: (work) =>
      engine.during(async () => {
        for (let tries = 0; tries < maxTries; tries++) {
          const attempt = beginAttempt(engine, scratch)
          let result
          try {
            result = await work(attempt.tx)
          } catch (error) {
            // What it threw counts only if what it had read was true.
            if (attempt.holds()) throw error
            continue
          } finally {
            attempt.end()
          }
          if (attempt.writes.size === 0 ? attempt.holds() : await commit(attempt)) return result
        }
        throw new CodedError('STORE_CONFLICT', `a transaction lost ${maxTries} races in a row for what it had read`)
      }),

    reserve: (collection, key, amount, limit) =>
      engine.during(async () => {
        if (!Number.isFinite(amount) || Number.isNaN(limit)) throw new TypeError('amount and limit are numbers')
        const encoded = encodeKey(collection, key, scratch)
        const total = () => counterOf(collection, engine.read(encoded)) + amount
        if (total() > limit) return false
        return engine.write((batch) => {
          const next = total()
          if (next > limit) return false
          batch.put(encoded, JSON.stringify(next), versionOf(engine, encoded) + 1)
          return true
        })
      }),

    flushed: () => engine.during(() => engine.settled()),

    secret: (name, make) =>
      engine.during(() => {
        let kept = secrets.get(name)
        if (kept === undefined) {
          kept = keepSecret(engine.folder, name, make).finally(() => secrets.delete(name))
          secrets.set(name, kept)
        }
        return kept
      }),

    scratch: (name) =>
      engine.during(async () => {
        if (!scratchName.test(name)) throw new TypeError(`not a name for a folder: ${JSON.stringify(name)}`)
        const path = join(engine.folder, 'scratch', name)
        await prepareFolder(path)
        return path
      }),

    ping: () =>
      engine.during(async () => {
        const version = await engine.write((batch) => {
          const next = versionOf(engine, pingKey) + 1
          batch.put(pingKey, 'true', next)
          return next
        })
        if (versionOf(engine, pingKey) < version) throw new CodedError('STORE_FAILED', 'a write cannot be read back')
      })
  }
}

/** 0 when there is nothing. */
function versionOf(engine: Engine, key: string): number {
  return engine.read(key) === undefined ? 0 : engine.version()
}

function counterOf(collection: string, text: string | undefined): number {
  if (text === undefined) return 0
  const value: unknown = JSON.parse(text)
  if (typeof value === 'number') return value
  throw new CodedError('STORE_FAILED', `a value in collection '${collection}' that should be a counter is no number`)
}

function limitedBounds(collection: string, prefix: Key, options: RangeOptions, scratch: Buffer): Bounds {
  const bounds = boundsOf(collection, prefix, scratch)
  if (options.after === undefined) return bounds
  return behind(bounds, encodeKey(collection, options.after, scratch), options.reverse === true)
}

function beginAttempt(engine: Engine, scratch: Buffer): Attempt {
  const reads = new Map<string, StoredEntry | null>()
  const ranges: RangeSeen[] = []
  const writes = new Map<string, Write>()
  const walks: AsyncIterator<unknown>[] = []
  let ended = false
  /** Where nothing is written in between, all that was read holds. */
  const begunAt = engine.isSettled() ? engine.writes() : undefined

  const encode = (collection: string, key: Key): string => {
    if (ended) throw new TypeError('a transaction was used after its work had ended')
    return encodeKey(collection, key, scratch)
  }
  const stored = (key: string): StoredEntry | null => {
    let entry = reads.get(key)
    if (entry === undefined) {
      const text = engine.read(key)
      entry = text === undefined ? null : { key, text, version: engine.version() }
      reads.set(key, entry)
    }
    return entry
  }
  const versionNow = (key: string): number => {
    const write = writes.get(key)
    if (write === undefined) return stored(key)?.version ?? 0
    if (write.text === undefined) return 0
    return (write.fresh ? 0 : (stored(key)?.version ?? 0)) + write.puts
  }

  const tx: Transaction = {
    get<T>(collection: string, key: Key): Versioned<T> | undefined {
      const encoded = encode(collection, key)
      const write = writes.get(encoded)
      const text = write === undefined ? stored(encoded)?.text : write.text
      return text === undefined ? undefined : { value: JSON.parse(text) as T, version: versionNow(encoded) }
    },
    range<T>(collection: string, prefix: Key, options: RangeOptions = {}) {
      if (ended) throw new TypeError('a transaction was used after its work had ended')
      const bounds = limitedBounds(collection, prefix, options, scratch)
      const reverse = options.reverse === true
      const own = [...writes].filter(([key]) => key >= bounds.low && key < bounds.high)
      own.sort(([a], [b]) => (a < b !== reverse ? -1 : 1))
      const seen: RangeSeen = { bounds, reverse, entries: [], reached: undefined, ended: false }
      ranges.push(seen)
      const walk = walkRange<T>(engine, bounds, options, own, seen)
      walks.push(walk)
      return walk
    },
    put(collection, key, value, ifVersion) {
      const encoded = encode(collection, key)
      const text = JSON.stringify(value) as string | undefined
      if (text === undefined) throw new TypeError(`a value of collection '${collection}' is not plain JSON`)
      if (ifVersion !== undefined) {
        const version = versionNow(encoded)
        if (version !== ifVersion) throw conflict(collection, version, ifVersion)
      }
      const before = writes.get(encoded)
      writes.set(encoded, { text, fresh: before?.fresh ?? false, puts: (before?.puts ?? 0) + 1 })
    },
    remove(collection, key) {
      writes.set(encode(collection, key), { text: undefined, fresh: true, puts: 0 })
    }
  }

  return {
    tx,
    writes,
    holds() {
      if (begunAt === engine.writes()) return true
      for (const [key, entry] of reads) {
        if (engine.read(key) !== entry?.text || (entry !== null && engine.version() !== entry.version)) return false
      }
      return ranges.every((seen) => holdsRange(engine, seen))
    },
    versionBelow(key, write) {
      if (write.fresh) return 0
      const entry = reads.get(key)
      return entry === undefined ? undefined : (entry?.version ?? 0)
    },
    end() {
      ended = true
      for (const walk of walks) void walk.return?.()
    }
  }
}

function holdsRange(engine: Engine, seen: RangeSeen): boolean {
  if (seen.reached === undefined && !seen.ended) return true
  let left: Bounds | undefined = seen.ended ? seen.bounds : upTo(seen.bounds, seen.reached!, seen.reverse)
  let at = 0
  while (left !== undefined) {
    const { entries, rest } = engine.entries(left, seen.reverse, Number.POSITIVE_INFINITY)
    for (const entry of entries) {
      const before = seen.entries[at++]
      if (before?.key !== entry.key || before.version !== entry.version || before.text !== entry.text) return false
    }
    left = rest
  }
  return at === seen.entries.length
}

/**
 * Walks what is stored within `bounds` as of now, with a transaction's own writes in their places. Holds a snapshot
 * only while there is more than one read's worth left.
 * @param own in the order of the walk
 */
function walkRange<T>(
  engine: Engine,
  bounds: Bounds,
  options: RangeOptions,
  own: readonly (readonly [key: string, write: Write])[],
  seen: RangeSeen | undefined
): AsyncIterableIterator<readonly [Key, Versioned<T>]> {
  const reverse = options.reverse === true
  const isBefore = (a: string, b: string) => a < b !== reverse
  let left = options.limit ?? Number.POSITIVE_INFINITY
  let ownAt = 0
  let snapshot: Snapshot | undefined
  let { entries, rest } = left > 0 ? engine.entries(bounds, reverse, left + own.length) : nothing
  let at = 0
  if (rest !== undefined) snapshot = engine.hold()

  const finish = () => {
    left = 0
    snapshot?.release()
    snapshot = undefined
  }
  const peek = (): StoredEntry | undefined => {
    if (at === entries.length && rest !== undefined) {
      ;({ entries, rest } = engine.entries(rest, reverse, left + own.length, snapshot))
      at = 0
    }
    return entries[at]
  }
  const found = (key: string, text: string, version: number): IteratorResult<readonly [Key, Versioned<T>]> => {
    left -= 1
    if (left === 0) finish()
    return { done: false, value: [decodeKey(key), { value: JSON.parse(text) as T, version }] }
  }
  const step = (): IteratorResult<readonly [Key, Versioned<T>]> => {
    while (left > 0) {
      const entry = peek()
      const mine = own[ownAt]
      if (entry === undefined && mine === undefined) {
        if (seen !== undefined) seen.ended = true
        finish()
        break
      }
      const key = mine === undefined || (entry !== undefined && isBefore(entry.key, mine[0])) ? entry!.key : mine[0]
      const here = entry?.key === key ? entry : undefined
      if (here !== undefined) at += 1
      if (seen !== undefined) {
        seen.reached = key
        if (here !== undefined) seen.entries.push(here)
      }
      if (mine?.[0] !== key) return found(key, here!.text, here!.version)
      ownAt += 1
      const { text, fresh, puts } = mine[1]
      if (text !== undefined) return found(key, text, (fresh ? 0 : (here?.version ?? 0)) + puts)
    }
    return { done: true, value: undefined }
  }

  return {
    async next() {
      return step()
    },
    async return() {
      finish()
      return { done: true, value: undefined }
    },
    [Symbol.asyncIterator]() {
      return this
    }
  }
}

const nothing: { readonly entries: readonly StoredEntry[]; readonly rest: Bounds | undefined } = {
  entries: [],
  rest: undefined
}

function conflict(collection: string, found: number, wanted: number): CodedError {
  return new CodedError('STORE_CONFLICT', `a value of collection '${collection}' has version ${found}, not ${wanted}`, {
    detail: { collection, found, wanted }
  })
}
