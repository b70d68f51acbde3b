/** Keeps what was asked for lately, up to a size. */
export interface Cache<T> {
  get(key: string): T | undefined
  /** @returns `value` @param size in the unit of the cache's limit */
  set(key: string, value: T, size: number): T
}

/** Two generations, each half of `limit`: what was not asked for during one of them is gone after the next. */
export function createCache<T>(limit: number): Cache<T> {
  let young = new Map<string, { readonly value: T; readonly size: number }>()
  let old = young
  let filled = 0

  const keep = (key: string, entry: { readonly value: T; readonly size: number }): T => {
    if (filled + entry.size > limit / 2) {
      old = young
      young = new Map()
      filled = 0
    }
    young.set(key, entry)
    filled += entry.size
    return entry.value
  }
  return {
    set: (key, value, size) => keep(key, { value, size }),
    get(key) {
      const entry = young.get(key)
      if (entry !== undefined) return entry.value
      const kept = old.get(key)
      return kept === undefined ? undefined : keep(key, kept)
    }
  }
}
