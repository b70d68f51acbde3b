import { type AwilixContainer, asValue, createContainer } from 'awilix'
import { CodedError } from './errors.ts'
import type { Fiber } from './fiber.ts'
import type { Generation } from './generation.ts'
import type { Overlay } from './plugin.ts'

type Method = (...args: unknown[]) => unknown
type Members = Record<string, unknown>

/** What a generation offers under one name. */
export interface Offer {
  readonly service: object
  /** Dotted integers, such as `2.3`; `0` when the plugin does not say. */
  readonly version: string
  /** The service as seen through a consumer's overlay. */
  readonly withOverlay: ((overlay: Overlay) => object) | undefined
}

/** The place of one service in one realm: who provides it now, who uses it, and the handle that all of them share. */
export class Slot {
  readonly name: string
  readonly realm: string
  /** Forwards to whatever the slot holds at the moment of the call; the same object for as long as the slot exists. */
  readonly handle: object
  /** Fibers that inject the service, needed or optional. */
  readonly consumers = new Set<Fiber>()
  provider: Generation | undefined
  /** Grows each time the service comes back after having been away; a swap does not count. */
  epoch = 0
  #offer: Offer | undefined
  readonly #views = new Map<string, View>()

  constructor(name: string, realm: string) {
    this.name = name
    this.realm = realm
    this.handle = this.view({})
  }

  /** The service can be counted on: it is there and its provider is not leaving. */
  get open(): boolean {
    return this.provider !== undefined && this.provider.phase === 'live'
  }

  get version(): string {
    return this.#offer?.version ?? '0'
  }

  /** @param swapped the provider takes the place of one that was there: the service has not been away */
  fill(provider: Generation, offer: Offer, swapped: boolean): void {
    if (!swapped) this.epoch += 1
    this.provider = provider
    this.#offer = offer
    for (const view of this.#views.values()) view.point(offer)
  }

  /** Empties the slot, unless somebody else has filled it since. */
  empty(provider: Generation): void {
    if (this.provider !== provider) return
    this.provider = undefined
    this.#offer = undefined
    for (const view of this.#views.values()) view.point(undefined)
  }

  /** A handle for those who see the service through `overlay`; those with equal overlays share it. */
  view(overlay: Overlay): object {
    const key = JSON.stringify(overlay)
    let view = this.#views.get(key)
    if (view === undefined) {
      view = new View(this, overlay)
      if (this.#offer !== undefined) view.point(this.#offer)
      this.#views.set(key, view)
    }
    return view.handle
  }
}

/** One handle and what it forwards to. */
class View {
  readonly handle: Members = {}
  readonly #slot: Slot
  readonly #overlay: Overlay | undefined
  #value: Members | undefined

  constructor(slot: Slot, overlay: Overlay) {
    this.#slot = slot
    this.#overlay = Object.keys(overlay).length > 0 ? overlay : undefined
  }

  point(offer: Offer | undefined): void {
    if (offer === undefined) {
      this.#value = undefined
      return
    }
    const service = this.#overlay === undefined ? offer.service : (offer.withOverlay?.(this.#overlay) ?? offer.service)
    this.#value = service as Members
    this.#shape(membersOf(service))
  }

  /** Gives the handle the members of the present value: methods forward, other members are read through. */
  #shape(members: ReadonlyMap<string, boolean>): void {
    for (const key of Object.keys(this.handle)) if (!members.has(key)) delete this.handle[key]
    for (const [key, isMethod] of members) {
      const known = Object.getOwnPropertyDescriptor(this.handle, key)
      if (known !== undefined && isMethod === (known.get === undefined)) continue
      const member = isMethod ? { value: this.#forward(key) } : { get: () => this.#present()[key] }
      Object.defineProperty(this.handle, key, { ...member, configurable: true, enumerable: true })
    }
  }

  #present(): Members {
    if (this.#value === undefined) {
      throw new CodedError(
        'KERNEL_SERVICE_GONE',
        `service '${this.#slot.name}' is no longer there: its provider went away`
      )
    }
    return this.#value
  }

  /**
   * A call in flight keeps the generation it began on: a promise until it settles, an async iterable from its first
   * step to its last.
   */
  #forward(key: string): Method {
    const slot = this.#slot
    return (...args) => {
      const result = (this.#present()[key] as Method)(...args)
      if (typeof result !== 'object' || result === null) return result
      if (result instanceof Promise) return held(result, slot.provider as Generation)
      if (Symbol.asyncIterator in result)
        return heldIterable(result as AsyncIterable<unknown>, slot.provider as Generation)
      return result
    }
  }
}

async function held<T>(promise: Promise<T>, provider: Generation): Promise<T> {
  provider.enter()
  try {
    return await promise
  } finally {
    provider.leave()
  }
}

function heldIterable<T>(iterable: AsyncIterable<T>, provider: Generation): AsyncIterable<T> {
  return {
    async *[Symbol.asyncIterator]() {
      provider.enter()
      try {
        yield* iterable
      } finally {
        provider.leave()
      }
    }
  }
}

function membersOf(value: object): Map<string, boolean> {
  const members = new Map<string, boolean>()
  for (
    let at: object | null = value;
    at !== null && at !== Object.prototype;
    at = Object.getPrototypeOf(at) as object | null
  ) {
    for (const [key, member] of Object.entries(Object.getOwnPropertyDescriptors(at))) {
      if (key !== 'constructor' && !members.has(key)) members.set(key, typeof member.value === 'function')
    }
  }
  return members
}

/** Whether a provider's version meets a requirement: the same first number, and not older. `undefined` is always met. */
export function meets(version: string, requirement: string | undefined): boolean {
  if (requirement === undefined) return true
  const [has, needs] = [version, requirement.replace(/^\^/, '')].map((text) => text.split('.').map(Number)) as [
    number[],
    number[]
  ]
  if ((has[0] ?? 0) !== (needs[0] ?? 0)) return false
  for (let i = 1; i < Math.max(has.length, needs.length); i++) {
    const difference = (has[i] ?? 0) - (needs[i] ?? 0)
    if (difference !== 0) return difference > 0
  }
  return true
}

/** The realm that is nobody's in particular. */
export const commonRealm = ''

/**
 * The slots of all realms. awilix is the lookup table: each realm is a scope of one container; lifetimes, order and
 * visibility belong to the kernel, and a realm never falls back to another.
 */
export class ServiceTable {
  readonly #root: AwilixContainer = createContainer()
  readonly #realms = new Map<string, { readonly scope: AwilixContainer; readonly slots: Map<string, Slot> }>()

  /** The slot of a name; made when it is first asked for. */
  slot(name: string, realm = commonRealm): Slot {
    const { scope, slots } = this.#realm(realm)
    let slot = slots.get(name)
    if (slot === undefined) {
      slot = new Slot(name, realm)
      slots.set(name, slot)
      scope.register(name, asValue(slot.handle))
    }
    return slot
  }

  /** The late-bound handle of a name, whether or not anything is there now. */
  handle(name: string, realm = commonRealm, overlay?: Overlay): object {
    const slot = this.slot(name, realm)
    return overlay === undefined ? this.#realm(realm).scope.resolve<object>(name) : slot.view(overlay)
  }

  #realm(realm: string): { readonly scope: AwilixContainer; readonly slots: Map<string, Slot> } {
    let found = this.#realms.get(realm)
    if (found === undefined) {
      found = { scope: realm === commonRealm ? this.#root : this.#root.createScope(), slots: new Map() }
      this.#realms.set(realm, found)
    }
    return found
  }
}
