import { type AwilixContainer, asValue, createContainer } from 'awilix'
import { CodedError } from './errors.ts'
import type { Fiber } from './fiber.ts'
import type { Generation } from './generation.ts'

type Method = (...args: unknown[]) => unknown
type Handle = Record<string, unknown>

/** The place of one service: who provides it now, who uses it, and the handle that all of them share. */
export class Slot {
  readonly name: string
  /** Forwards to whatever the slot holds at the moment of the call; the same object for as long as the slot exists. */
  readonly handle: Handle = {}
  /** Fibers that inject the service, needed or optional. */
  readonly consumers = new Set<Fiber>()
  provider: Generation | undefined
  /** Grows each time the service comes back after having been away; a swap does not count. */
  epoch = 0
  #value: Record<string, unknown> | undefined

  constructor(name: string) {
    this.name = name
  }

  /** The service can be counted on: it is there and its provider is not leaving. */
  get open(): boolean {
    return this.provider !== undefined && this.provider.phase === 'live'
  }

  get value(): object | undefined {
    return this.#value
  }

  /** @param swapped the provider takes the place of one that was there: the service has not been away */
  fill(provider: Generation, value: object, swapped: boolean): void {
    if (!swapped) this.epoch += 1
    this.provider = provider
    this.#value = value as Record<string, unknown>
    this.#shapeHandle()
  }

  /** Empties the slot, unless somebody else has filled it since. */
  empty(provider: Generation): void {
    if (this.provider !== provider) return
    this.provider = undefined
    this.#value = undefined
  }

  /** Gives the handle the members of the present value: methods forward, other members are read through. */
  #shapeHandle(): void {
    const members = membersOf(this.#value as object)
    for (const key of Object.keys(this.handle)) if (!members.has(key)) delete this.handle[key]
    for (const [key, isMethod] of members) {
      const known = Object.getOwnPropertyDescriptor(this.handle, key)
      if (isMethod && known?.get === undefined && known !== undefined) continue
      if (!isMethod && known?.get !== undefined) continue
      if (isMethod) {
        Object.defineProperty(this.handle, key, { value: this.#forward(key), configurable: true, enumerable: true })
      } else {
        Object.defineProperty(this.handle, key, {
          get: () => this.#present()[key],
          configurable: true,
          enumerable: true
        })
      }
    }
  }

  #present(): Record<string, unknown> {
    if (this.#value === undefined) {
      throw new CodedError('KERNEL_SERVICE_GONE', `service '${this.name}' is no longer there: its provider went away`)
    }
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
      if (result instanceof Promise) return held(result, this.provider as Generation)
      if (Symbol.asyncIterator in result)
        return heldIterable(result as AsyncIterable<unknown>, this.provider as Generation)
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

/**
 * The services of one realm. awilix is the lookup table and, once realms nest, the scope chain; lifetimes, order and
 * visibility belong to the kernel.
 */
export class ServiceTable {
  readonly #container: AwilixContainer = createContainer()
  readonly #slots = new Map<string, Slot>()

  /** The slot of a name; made when it is first asked for. */
  slot(name: string): Slot {
    let slot = this.#slots.get(name)
    if (slot === undefined) {
      slot = new Slot(name)
      this.#slots.set(name, slot)
      this.#container.register(name, asValue(slot.handle))
    }
    return slot
  }

  /** The late-bound handle of a name, whether or not anything is there now. */
  handle(name: string): object {
    this.slot(name)
    return this.#container.resolve<object>(name)
  }
}
