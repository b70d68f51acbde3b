/** Keeps what was asked for lately, up to a size. */
export interface Cache<T> {
  /** @param family keys of one are apart from those of another: the two made into one text would be hashed at every look-up */
  get(key: string | number, family?: number): T | undefined
  /** @returns `value` @param size in the unit of the cache's limit */
  set(key: string | number, value: T, size: number, family?: number): T
}

interface Entry<T> {
  readonly value: T
  readonly size: number
}

type Families<T> = Map<number, Map<string | number, Entry<T>>>

/** Two generations, each half of `limit`: what was not asked for during one of them is gone after the next. */
export function createCache<T>(limit: number): Cache<T> {
  let young: Families<T> = new Map()
  let old = young
  let filled = 0

  const keep = (key: string | number, family: number, entry: Entry<T>): T => {
    if (filled + entry.size > limit / 2) {
      old = young
      young = new Map()
      filled = 0
    }
    let own = young.get(family)
    if (own === undefined) young.set(family, (own = new Map()))
    own.set(key, entry)
    filled += entry.size
    return entry.value
  }
  return {
    set: (key, value, size, family = 0) => keep(key, family, { value, size }),
    get(key, family = 0) {
      const entry = young.get(family)?.get(key)
      if (entry !== undefined) return entry.value
      const kept = old.get(family)?.get(key)
      return kept === undefined ? undefined : keep(key, family, kept)
    }
  }
}
