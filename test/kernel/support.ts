import {
  type Awaitable,
  type Context,
  definePlugin,
  type FiberState,
  type Plugin,
  schemaOf
} from '../../kernel/index.ts'
import type { FiberStatus } from '../../kernel/control.ts'
import { Listener } from '../../kernel/events.ts'
import type { Kernel } from '../../kernel/kernel.ts'

/** The one shape of all services of the cases. */
export interface Value {
  get(): unknown
}

export type Name = 'foo' | 'bar' | 'qux'

declare module '../../kernel/index.ts' {
  interface Services {
    foo: Value
    bar: Value
    qux: Value
  }
  interface Events {
    'case/a': [value?: unknown]
    'case/b': [value?: unknown]
  }
}

export const bare = { store: false, http: false } as const

/** A promise and the way to settle it. */
export interface Latch {
  readonly promise: Promise<void>
  open(): void
  fail(error: Error): void
}

export function latch(): Latch {
  let open: () => void = () => {}
  let fail: (error: Error) => void = () => {}
  const promise = new Promise<void>((resolve, reject) => {
    open = resolve
    fail = reject
  })
  return { promise, open, fail }
}

export const config = schemaOf<{ value: unknown }>({
  type: 'object',
  additionalProperties: false,
  properties: { value: { default: 1 } }
})

/** What a plugin of the cases is made of; all its parts see its real context. */
export interface Parts {
  readonly name?: string
  readonly inject?: readonly Name[]
  readonly optional?: readonly Name[]
  readonly provides?: readonly Name[]
  readonly requires?: Readonly<Partial<Record<Name, string>>>
  readonly versions?: Readonly<Partial<Record<Name, string>>>
  readonly exclusive?: boolean
  readonly apply?: (
    ctx: Context<readonly Name[], readonly [], readonly Name[], { value: unknown }>,
    value: unknown
  ) => Awaitable<void>
}

/** A plugin with the config `{ value }`. */
export function plugin(parts: Parts): Plugin {
  const { apply = () => {}, ...rest } = parts
  return definePlugin<readonly Name[], readonly [], readonly Name[], { value: unknown }>({
    name: 'plugin',
    ...(rest as object),
    config,
    apply: (ctx, { value }) => apply(ctx, value)
  })
}

/** Provides `name`: its value is its config's. */
export function providerOf(name: Name, parts: Parts = {}): Plugin {
  return plugin({
    name: `${name}-provider`,
    provides: [name],
    ...parts,
    apply(ctx, value) {
      ctx.provide(name, { get: () => value })
      return parts.apply?.(ctx, value)
    }
  })
}

/** Injects `names`; writes `up foo=1` and `down foo=1` with what it reads then. */
export function consumerOf(names: readonly Name[], log: string[] = [], parts: Parts = {}): Plugin {
  return plugin({
    name: `${names.join('-')}-consumer`,
    inject: names,
    ...parts,
    apply(ctx, value) {
      const read = () => names.map((name) => `${name}=${String(ctx.services[name].get())}`).join(' ')
      log.push(`up ${read()}`)
      ctx.effect(() => () => log.push(`down ${read()}`))
      return parts.apply?.(ctx, value)
    }
  })
}

export function statusOf(kernel: Kernel, entry: string): FiberStatus | undefined {
  return kernel.fibers().find((fiber) => fiber.entry === entry)
}

export function stateOf(kernel: Kernel, entry: string): FiberState | undefined {
  return statusOf(kernel, entry)?.state
}

/** `entry: state` of every fiber, sorted. */
export function statesOf(kernel: Kernel): readonly string[] {
  return kernel
    .fibers()
    .map((fiber) => `${fiber.entry}: ${fiber.state}`)
    .sort()
}

/** The states an entry goes through from now on. */
export function watch(kernel: Kernel, entry: string): FiberState[] {
  const states: FiberState[] = []
  kernel.events.add(
    'kernel/fiber-changed',
    new Listener((status: { entry: string; state: FiberState }) => {
      if (status.entry === entry) states.push(status.state)
    }, undefined)
  )
  return states
}

const atRest: readonly FiberState[] = ['Inactive', 'Active', 'Pending', 'Failed']

/** No fiber is on its way to another state, and nothing drains. */
export function isAtRest(kernel: Kernel): boolean {
  return kernel.fibers().every((fiber) => atRest.includes(fiber.state) && fiber.draining === 0)
}

/** Resolves once the kernel {@link isAtRest}. */
export async function rested(kernel: Kernel): Promise<void> {
  await kernel.settled()
  while (!isAtRest(kernel)) await nextTurn()
}

/** Everything that can happen without a timer or the outside has happened. */
export function nextTurn(): Promise<void> {
  return new Promise((resolve) => {
    setImmediate(resolve)
  })
}

/** Resolves once the entry is in `state`. */
export function reached(kernel: Kernel, entry: string, state: FiberState): Promise<void> {
  if (stateOf(kernel, entry) === state) return Promise.resolve()
  return new Promise((resolve) => {
    const heard = new Listener((status: { entry: string; state: FiberState }) => {
      if (status.entry !== entry || status.state !== state) return
      kernel.events.remove('kernel/fiber-changed', heard)
      resolve()
    }, undefined)
    kernel.events.add('kernel/fiber-changed', heard)
  })
}
