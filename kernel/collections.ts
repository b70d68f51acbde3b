import { CodedError } from './errors.ts'
import type { Generation } from './generation.ts'
import type { Collector, Contribution, Lease } from './plugin.ts'

/** One contributed item, tied to the generation that handed it in. */
export class Item implements Contribution<unknown> {
  readonly item: unknown
  readonly owner: Generation

  constructor(item: unknown, owner: Generation) {
    this.item = item
    this.owner = owner
  }

  get entry(): string {
    return this.owner.fiber.entry
  }

  lease(): Lease {
    return this.owner.lease()
  }
}

/**
 * What plugins hand to one collecting plugin. The items live here and belong to their contributors, so they outlive a
 * swap of the collector, and the collector needs not be there when they come.
 */
export class Collection {
  readonly name: string
  items: readonly Item[] = []
  #collector: { readonly owner: Generation; readonly collector: Collector<unknown> } | undefined

  constructor(name: string) {
    this.name = name
  }

  /** What would be there after `gone` has left and `come` has arrived; arrivals take the place of what they replace. */
  after(gone: Generation | undefined, come: readonly Item[]): readonly Item[] {
    const at = gone === undefined ? -1 : this.items.findIndex((item) => item.owner === gone)
    if (at === -1) return [...this.items, ...come]
    const rest = this.items.filter((item) => item.owner !== gone)
    return [...rest.slice(0, at), ...come, ...rest.slice(at)]
  }

  /** @throws CodedError when `collector`, or else the collector that is there, refuses `next` */
  check(next: readonly Item[], collector: Collector<unknown> | undefined): void {
    ;(collector ?? this.#collector?.collector)?.check?.(next)
  }

  /** @throws CodedError when another fiber collects it already */
  assertFree(owner: Generation): void {
    const present = this.#collector?.owner
    if (present === undefined || present.phase !== 'live' || present.fiber === owner.fiber) return
    throw new CodedError(
      'KERNEL_DUPLICATE_COLLECTOR',
      `'${this.name}' is collected by entry '${present.fiber.entry}'; entry '${owner.fiber.entry}' cannot collect it too`
    )
  }

  /** Puts a collector in the place of the present one. Its first update comes with the commit it is part of. */
  seat(owner: Generation, collector: Collector<unknown>): void {
    this.#collector = { owner, collector }
  }

  unseat(owner: Generation): void {
    if (this.#collector?.owner === owner) this.#collector = undefined
  }

  show(next: readonly Item[]): void {
    this.items = next
  }

  tell(): void {
    this.#collector?.collector.update(this.items)
  }
}
