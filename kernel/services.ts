import { isDeepStrictEqual } from 'node:util'
import { type AwilixContainer, asValue, createContainer } from 'awilix'
import { CodedError } from './errors.ts'
import type { Fiber } from './fiber.ts'
import type { Generation } from './generation.ts'
import type { Overlay } from './plugin.ts'

type Method = (...args: unknown[]) => unknown
type Members = Record<string, unknown>

/** Where one sees and provides services. */
export interface Placed {
  /** Service → realm; the common one where none is named. */
  readonly realms?: Readonly<Record<string, string>> | undefined
  /** Service → what is laid over its config for whoever is here. */
  readonly overlays?: Readonly<Record<string, Overlay>> | undefined
}

export function isSameScope(a: Placed, b: Placed): boolean {
  return isDeepStrictEqual(a.realms, b.realms) && isDeepStrictEqual(a.overlays, b.overlays)
}

/** Whether some services are seen and provided in the same places, and through the same overlays. */
export function seesTheSame(services: Iterable<string>, a: Placed, b: Placed): boolean {
  for (const name of services) {
    if (a.realms?.[name] !== b.realms?.[name]) return false
    if (!isDeepStrictEqual(a.overlays?.[name], b.overlays?.[name])) return false
  }
  return true
}

/** What a generation offers under one name. */
export interface Offer {
  readonly service: object
  /** Dotted integers, such as `2.3`; `0` when the plugin does not say. */
  readonly version: string
  /** The service as seen through a consumer's overlay; with the same members. */
  readonly withOverlay: ((overlay: Overlay) => object) | undefined
}

/** The place of one service in one realm: who provides it now, who uses it, and the handle that all of them share. */
export class Slot {
  readonly name: string
  readonly realm: string
  /** Fibers whose plugin injects the service, needed or optional: woken when it comes or goes. */
  readonly consumers = new Set<Fiber>()
  /** Generations that were built with the service in hand and have not ended. */
  readonly users = new Set<Generation>()
  provider: Generation | undefined
  /** Grows each time the service comes back after having been away; a swap does not count. */
  epoch = 0
  #offer: Offer | undefined
  readonly #plain: View
  #overlaid: Set<View> | undefined

  constructor(name: string, realm: string) {
    this.name = name
    this.realm = realm
    this.#plain = new View(name, undefined)
  }

  /** Forwards to whatever the slot holds at the moment of the call; the same object for as long as the slot exists. */
  get handle(): object {
    return this.#plain.handle
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
    this.#point()
  }

  /** Empties the slot, unless somebody else has filled it since. */
  empty(provider: Generation): void {
    if (this.provider !== provider) return
    this.provider = undefined
    this.#offer = undefined
    this.#point()
  }

  /** A view for one who sees the service through `overlay`; to be dropped when it is of no use any more. */
  view(overlay: Overlay): View {
    const view = new View(this.name, overlay)
    view.point(this.provider, this.#offer)
    this.#overlaid ??= new Set()
    this.#overlaid.add(view)
    return view
  }

  drop(view: View): void {
    view.point(undefined, undefined)
    this.#overlaid?.delete(view)
  }

  #point(): void {
    this.#plain.point(this.provider, this.#offer)
    for (const view of this.#overlaid ?? []) view.point(this.provider, this.#offer)
  }
}

/** One handle and what it forwards to. */
export class View {
  readonly handle: Members = {}
  readonly #name: string
  readonly #overlay: Overlay | undefined
  #provider: Generation | undefined
  #offer: Offer | undefined
  #value: Members | undefined

  constructor(name: string, overlay: Overlay | undefined) {
    this.#name = name
    this.#overlay = overlay
  }

  point(provider: Generation | undefined, offer: Offer | undefined): void {
    this.#provider = provider
    this.#offer = offer
    this.#value = undefined
    if (offer === undefined) return
    this.#shape(membersOf(offer.service))
    if (this.#overlay === undefined || offer.withOverlay === undefined) this.#value = offer.service as Members
  }

  /** Gives the handle the members of the present value: methods forward, other members are read through. */
  #shape(members: ReadonlyMap<string, boolean>): void {
    const { handle } = this
    for (const key of Object.keys(handle)) if (!members.has(key)) delete handle[key]
    members.forEach((isMethod, key) => {
      const known = Object.getOwnPropertyDescriptor(handle, key)
      if (known !== undefined && isMethod === (known.get === undefined)) return
      const shown = { configurable: true, enumerable: true }
      if (isMethod) Object.defineProperty(handle, key, { value: this.#forward(key), ...shown })
      else Object.defineProperty(handle, key, { get: () => this.#present()[key], ...shown })
    })
  }

  #present(): Members {
    return this.#value ?? this.#look()
  }

  /** What lies under an overlay is made by the first who asks, so that its failure is theirs and not a commit's. */
  #look(): Members {
    if (this.#offer === undefined) {
      throw new CodedError('KERNEL_SERVICE_GONE', `service '${this.#name}' is no longer there: its provider went away`)
    }
    this.#value = (this.#offer.withOverlay?.(this.#overlay ?? {}) ?? this.#offer.service) as Members
    return this.#value
  }

  /**
   * A call in flight keeps the generation it began on: a promise until it settles, an async iterable from its first
   * step to its last.
   */
  #forward(key: string): Method {
    return (...args) => {
      const result = (this.#present()[key] as Method)(...args)
      if (typeof result !== 'object' || result === null) return result
      if (result instanceof Promise) return held(result, this.#provider as Generation)
      if (Symbol.asyncIterator in result) {
        return heldIterable(result as AsyncIterable<unknown>, this.#provider as Generation)
      }
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
    for (const key of Object.getOwnPropertyNames(at)) {
      if (key === 'constructor' || members.has(key)) continue
      members.set(key, typeof Object.getOwnPropertyDescriptor(at, key)?.value === 'function')
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

/**
 * One object without a class of its own, filled and emptied: `{ [name]: … }` would make V8 keep a hidden class for each
 * name.
 */
const registration: Record<string, ReturnType<typeof asValue>> = Object.create(null)

function register(scope: AwilixContainer, name: string, handle: object): void {
  registration[name] = asValue(handle)
  scope.register(registration)
  delete registration[name]
}

/** The realm that is nobody's in particular. */
export const commonRealm = ''

interface Realm {
  readonly scope: AwilixContainer
  readonly slots: Map<string, Slot>
  /** How many fibers see or provide a service in it. */
  fibers: number
}

/**
 * The slots of all realms. awilix is the lookup table: each realm is a scope of one container; lifetimes, order and
 * visibility belong to the kernel, and a realm never falls back to another.
 */
export class ServiceTable {
  readonly #root: AwilixContainer = createContainer()
  readonly #realms = new Map<string, Realm>()

  /** How many realms there are. */
  get size(): number {
    return this.#realms.size
  }

  /** The slot of a name; made when it is first asked for. */
  slot(name: string, realm = commonRealm): Slot {
    const { scope, slots } = this.#realm(realm)
    let slot = slots.get(name)
    if (slot === undefined) {
      slot = new Slot(name, realm)
      slots.set(name, slot)
      register(scope, name, slot.handle)
    }
    return slot
  }

  /** The slot of a name, where anybody has asked for it yet. */
  find(name: string, realm = commonRealm): Slot | undefined {
    return this.#realms.get(realm)?.slots.get(name)
  }

  /** The late-bound handle of a name, whether or not anything is there now. */
  handle(name: string, realm = commonRealm): object {
    this.slot(name, realm)
    return this.#realm(realm).scope.resolve<object>(name)
  }

  /** A fiber is in the realm; the realm is forgotten when the last one has left. */
  enter(realm: string): void {
    this.#realm(realm).fibers += 1
  }

  leave(realm: string): void {
    const left = this.#realm(realm)
    left.fibers -= 1
    // Handles of the common realm are kept by whoever is outside of all fibers.
    if (left.fibers === 0 && realm !== commonRealm) this.#realms.delete(realm)
  }

  #realm(realm: string): Realm {
    let found = this.#realms.get(realm)
    if (found === undefined) {
      const scope = realm === commonRealm ? this.#root : this.#root.createScope()
      found = { scope, slots: new Map(), fibers: 0 }
      this.#realms.set(realm, found)
    }
    return found
  }
}
