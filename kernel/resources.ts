import type { Awaitable } from './plugin.ts'

interface Held {
  name: string
  readonly opening: Promise<unknown>
  users: number
  closing: Promise<void> | undefined
}

/** What exists once for an entry however many of its generations are there: ports, databases, caches worth keeping. */
export class Resources {
  readonly #held = new Map<string, Held>()

  get size(): number {
    return this.#held.size
  }

  /**
   * Shares the resource that the entry holds under `key` with an equal `identity`, or opens it. One that is being
   * closed is waited for, so that a port is free again before it is asked for.
   */
  async take<T>(
    entry: string,
    key: string,
    identity: unknown,
    open: () => Awaitable<T>,
    close: (resource: T) => Awaitable<void>
  ): Promise<{ readonly value: T; release(): Promise<void> }> {
    const name = JSON.stringify([entry, key, identity])
    let held = this.#held.get(name)
    while (held?.closing !== undefined) {
      // Its failure is told to whoever closed it.
      await held.closing.catch(() => {})
      held = this.#held.get(name)
    }
    if (held === undefined) {
      held = { name, opening: Promise.resolve().then(open), users: 0, closing: undefined }
      this.#held.set(name, held)
    }
    const mine = held
    mine.users += 1
    try {
      const value = (await mine.opening) as T
      return { value, release: () => this.#release(mine, value, close) }
    } catch (error) {
      mine.users -= 1
      if (this.#held.get(name) === mine) this.#held.delete(name)
      throw error
    }
  }

  /** The resources of renamed entries go along. */
  rename(ids: readonly (readonly [old: string, next: string])[]): void {
    const next = new Map(ids)
    const moved: [string, Held][] = []
    for (const [name, held] of this.#held) {
      const [entry, key, identity] = JSON.parse(name) as [string, string, unknown]
      const renamed = next.get(entry)
      if (renamed === undefined) continue
      this.#held.delete(name)
      held.name = JSON.stringify([renamed, key, identity])
      moved.push([held.name, held])
    }
    for (const [name, held] of moved) this.#held.set(name, held)
  }

  async #release<T>(held: Held, value: T, close: (resource: T) => Awaitable<void>): Promise<void> {
    held.users -= 1
    if (held.users > 0) return
    held.closing = Promise.resolve()
      .then(() => close(value))
      .finally(() => this.#held.delete(held.name))
    await held.closing
  }
}
