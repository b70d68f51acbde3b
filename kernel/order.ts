import type { Generation } from './generation.ts'

interface Place {
  /** Who has to end first, and whether it needs this one or only likes it. */
  readonly before: Map<Generation, boolean>
  readonly after: Set<Generation>
  onFree: (() => void) | undefined
}

/**
 * Which generations that are on their way out end before which: a user before its provider. Needs never form a ring;
 * a link that is no need gives way where one would close.
 */
export class EndOrder {
  readonly #places = new Map<Generation, Place>()
  /** Links that are no needs: the providers of each user. */
  readonly #likes = new Map<Generation, Set<Generation>>()
  #checking = false

  link(provider: Generation, user: Generation, needed: boolean): void {
    this.#place(provider).before.set(user, needed)
    this.#place(user).after.add(provider)
    if (!needed) {
      const providers = this.#likes.get(user)
      if (providers === undefined) this.#likes.set(user, new Set([provider]))
      else providers.add(provider)
    }
    if (this.#likes.size > 0) this.#checkSoon()
  }

  /** Resolves when nobody is left who has to end before; nothing where nobody is. */
  free(provider: Generation): Promise<void> | undefined {
    const place = this.#places.get(provider)
    if (place === undefined || place.before.size === 0) return undefined
    return new Promise((resolve) => {
      place.onFree = resolve
    })
  }

  /** It has ended. */
  done(user: Generation): void {
    const place = this.#places.get(user)
    if (place === undefined) return
    for (const provider of place.after) this.#unlink(provider, user)
    for (const other of place.before.keys()) {
      this.#places.get(other)?.after.delete(user)
      this.#forget(user, other)
    }
    this.#likes.delete(user)
    this.#places.delete(user)
  }

  /** It goes on without what it likes: nobody whom it does not need waits for it. */
  letGo(user: Generation): void {
    for (const provider of this.#likes.get(user) ?? []) this.#cut(provider, user)
  }

  #place(generation: Generation): Place {
    let place = this.#places.get(generation)
    if (place === undefined) {
      place = { before: new Map(), after: new Set(), onFree: undefined }
      this.#places.set(generation, place)
    }
    return place
  }

  #unlink(provider: Generation, user: Generation): void {
    const place = this.#places.get(provider)
    place?.before.delete(user)
    if (place?.before.size === 0) place.onFree?.()
  }

  #forget(provider: Generation, user: Generation): void {
    const providers = this.#likes.get(user)
    providers?.delete(provider)
    if (providers?.size === 0) this.#likes.delete(user)
  }

  #cut(provider: Generation, user: Generation): void {
    this.#forget(provider, user)
    this.#places.get(user)?.after.delete(provider)
    this.#unlink(provider, user)
  }

  /** Once for all the links of one step. */
  #checkSoon(): void {
    if (this.#checking) return
    this.#checking = true
    queueMicrotask(() => {
      this.#checking = false
      for (const [user, providers] of this.#likes) {
        for (const provider of providers) {
          if (this.#places.get(provider)?.before.get(user) !== false) this.#forget(provider, user)
          else if (this.#waits(user, provider)) this.#cut(provider, user)
        }
      }
    })
  }

  /** Whether `from` ends after `to`, directly or not. */
  #waits(from: Generation, to: Generation): boolean {
    const seen = new Set<Generation>()
    const queue = [from]
    for (let at = queue.pop(); at !== undefined; at = queue.pop()) {
      if (at === to) return true
      if (seen.has(at)) continue
      seen.add(at)
      queue.push(...(this.#places.get(at)?.before.keys() ?? []))
    }
    return false
  }
}
