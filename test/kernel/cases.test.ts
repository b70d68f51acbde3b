/** Services, their providers and consumers: tables A and C of the case list. */
import t from 'tap'
import { type Context, definePlugin, type Plugin } from '../../kernel/index.ts'
import { Listener } from '../../kernel/events.ts'
import { startHouse } from '../harness.ts'
import {
  bare,
  consumerOf,
  latch,
  type Name,
  nextTurn,
  type Parts,
  plugin,
  providerOf,
  rested,
  stateOf,
  statesOf,
  statusOf,
  type Value,
  watch
} from './support.ts'

const house = (t: Parameters<typeof startHouse>[0], entries: Parameters<typeof startHouse>[1] = []) =>
  startHouse(t, entries, bare)

// A: contexts, services, injection

t.test(
  'A01 each apply is called once, with exactly its config (as ruled: a plugin is made by definePlugin)',
  async (t) => {
    const seen: unknown[] = []
    const recording = plugin({ apply: (_ctx, value) => void seen.push(value) })
    const given = { deep: [1, { b: null }] }
    await house(t, [
      { plugin: recording, id: 'a', config: { value: given } },
      { plugin: recording, id: 'b', config: { value: 'text' } },
      { plugin: recording, id: 'c' }
    ])
    t.strictSame(seen, [given, 'text', 1])
    t.not(seen[0], given, 'it is a copy of what was given')
  }
)

t.test('A02 what is no plugin is refused by what is wrong with it, and nothing of it is tracked', async (t) => {
  const { kernel } = await house(t)
  for (const [wrong, message] of [
    [undefined, /a plugin is an object made by definePlugin, found undefined/],
    [{}, /a plugin needs a name/],
    [{ name: 'x', apply: {} }, /needs an apply function, found object/],
    [{ name: 'x', apply() {}, inejct: [] }, /unknown key 'inejct'/]
  ] as const) {
    t.throws(() => definePlugin(wrong as never), { name: 'TypeError', message })
    await t.rejects(kernel.begin({ id: 'x', plugin: wrong as never }), { name: 'TypeError', message })
  }
  t.strictSame(kernel.fibers(), [])
})

t.test('A03 a plugin whose service is not there waits and says for what', async (t) => {
  const log: string[] = []
  const { kernel } = await house(t, [{ plugin: consumerOf(['foo'], log), id: 'c' }])
  t.match(statusOf(kernel, 'c'), { state: 'Inactive', waitingFor: ['foo'], error: /needs service 'foo'/ })
  t.strictSame(log, [])
})

t.test('A04 it starts once the service is there', async (t) => {
  const log: string[] = []
  const { kernel } = await house(t, [{ plugin: consumerOf(['foo'], log), id: 'c' }])
  kernel.provide('foo', { get: () => 1 })
  await rested(kernel)
  t.match(statusOf(kernel, 'c'), { state: 'Active', waitingFor: [], error: null })
  t.strictSame(log, ['up foo=1'])
})

t.test('A05 a consumer starts only after its provider is active', async (t) => {
  const building = latch()
  const log: string[] = []
  const { kernel } = await house(t, [{ plugin: consumerOf(['foo'], log), id: 'c' }])
  const begun = kernel.begin({ id: 'p', plugin: providerOf('foo', { apply: () => building.promise }) })
  await nextTurn()
  t.strictSame(statesOf(kernel), ['c: Inactive', 'p: Loading'])
  t.equal(kernel.service('foo'), undefined)
  building.open()
  await begun
  await rested(kernel)
  t.strictSame(log, ['up foo=1'])
})

t.test('A06 a provider reads its own service while it loads', async (t) => {
  let read: unknown
  const { kernel } = await house(t)
  const plugin = providerOf('foo', { apply: (ctx) => void (read = ctx.get('foo')?.get()) })
  await kernel.begin({ id: 'p', plugin, config: { value: 7 } })
  t.equal(read, 7)
})

t.test('A07 a service that was not injected is refused by name', async (t) => {
  let services: Partial<Record<string, unknown>> = {}
  const nosy = plugin({ apply: (ctx) => void (services = ctx.services) })
  await house(t, [{ plugin: providerOf('foo') }, { plugin: nosy }])
  t.throws(() => services['foo'], { code: 'KERNEL_NOT_INJECTED', message: 'cannot get property "foo" without inject' })
})

t.test('A08 get finds what was not injected while it is there', async (t) => {
  let ctx: { get(name: 'foo'): Value | undefined } | undefined
  const nosy = plugin({ apply: (own) => void (ctx = own) })
  const { kernel } = await house(t, [{ plugin: providerOf('foo'), id: 'p' }, { plugin: nosy }])
  t.equal(ctx?.get('foo')?.get(), 1)
  await kernel.retire('p')
  t.equal(ctx?.get('foo'), undefined)
})

t.test('A09 the services of a context that has ended are refused', async (t) => {
  let ctx: Context<readonly Name[]> | undefined
  const plugin = consumerOf(['foo'], [], { apply: (own) => void (ctx = own) })
  const { kernel } = await house(t, [{ plugin: providerOf('foo') }, { plugin, id: 'c' }])
  await kernel.retire('c')
  t.throws(() => ctx?.services.foo, {
    code: 'KERNEL_INACTIVE',
    message: 'cannot get required service "foo" in inactive context'
  })
  t.equal(ctx?.get('foo'), undefined)
})

t.test('A10 a second provider is refused and names the first, which serves on', async (t) => {
  const { kernel, services } = await house(t, [{ plugin: providerOf('foo'), id: 'first' }])
  await t.rejects(kernel.begin({ id: 'second', plugin: providerOf('foo'), config: { value: 2 } }), {
    code: 'KERNEL_DUPLICATE_PROVIDER',
    message: /provided by entry 'first'/
  })
  t.equal(stateOf(kernel, 'second'), 'Failed')
  t.equal(services('foo').get(), 1)
})

t.test('A10 nor does a plugin provide the same twice', async (t) => {
  const twice = providerOf('foo', { apply: (ctx) => ctx.provide('foo', { get: () => 2 }) })
  const { kernel } = await house(t)
  await t.rejects(kernel.begin({ id: 'x', plugin: twice }), { message: /provides 'foo' twice/ })
})

t.test('A11 the second stays Failed when the first goes, until it is told to try again', async (t) => {
  const { kernel, services } = await house(t, [{ plugin: providerOf('foo'), id: 'first' }])
  await t.rejects(kernel.begin({ id: 'second', plugin: providerOf('foo'), config: { value: 2 } }))
  await kernel.retire('first')
  await rested(kernel)
  t.equal(stateOf(kernel, 'second'), 'Failed')
  await kernel.refresh('second')
  t.equal(services('foo').get(), 2)
})

t.test('A12 a provider that sets another value restarts nobody', async (t) => {
  const log: string[] = []
  let set: (value: Value) => void = () => {}
  const provider = providerOf('foo', { apply: (ctx) => void (set = (value) => ctx.set('foo', value)) })
  let read: () => unknown = () => {}
  const consumer = consumerOf(['foo'], log, { apply: (ctx) => void (read = () => ctx.services.foo.get()) })
  const { kernel } = await house(t, [{ plugin: provider }, { plugin: consumer }])
  set({ get: () => 2 })
  await rested(kernel)
  t.equal(read(), 2)
  t.strictSame(log, ['up foo=1'])
})

t.test('A13 nobody else sets it', async (t) => {
  const other = plugin({ provides: ['foo'], apply: (ctx) => ctx.set('foo', { get: () => 2 }) })
  const { kernel, services } = await house(t, [{ plugin: providerOf('foo') }])
  await t.rejects(kernel.begin({ id: 'other', plugin: other }), {
    message: 'cannot set property "foo" in multiple fibers'
  })
  t.equal(services('foo').get(), 1)
})

t.test('A14 what nobody provides is not set', async (t) => {
  const other = plugin({ provides: ['foo'], apply: (ctx) => ctx.set('foo', { get: () => 2 }) })
  const { kernel } = await house(t)
  await t.rejects(kernel.begin({ id: 'other', plugin: other }), {
    message: 'cannot set property "foo" without provide'
  })
})

t.test('A15 plugins that build on each other start exactly once, whatever the order', async (t) => {
  const log: string[] = []
  const noting = (note: string): Parts => ({ apply: () => void log.push(note) })
  const { kernel } = await house(t, [
    { plugin: providerOf('foo', { inject: ['qux'], ...noting('foo') }), id: 'foo' },
    { plugin: providerOf('bar', { inject: ['foo', 'qux'], ...noting('bar') }), id: 'bar' }
  ])
  await kernel.begin({ id: 'qux', plugin: providerOf('qux', noting('qux')) })
  await rested(kernel)
  t.strictSame(log, ['qux', 'foo', 'bar'])
})

t.test('A16 two that need each other wait, and the ring is named; the rest serves', async (t) => {
  const { kernel } = await house(t, [
    { plugin: providerOf('foo', { inject: ['bar'] }), id: 'a' },
    { plugin: providerOf('bar', { inject: ['foo'] }), id: 'b' },
    { plugin: providerOf('qux'), id: 'rest' }
  ])
  t.strictSame(statesOf(kernel), ['a: Inactive', 'b: Inactive', 'rest: Active'])
  t.strictSame(kernel.cycles(), [['a', 'b', 'a']])
  for (const id of ['a', 'b']) t.match(statusOf(kernel, id)?.error, /they wait for each other: a → b → a/)

  const config = { id: 'b', plugin: providerOf('bar') }
  await kernel.retarget(config)
  await rested(kernel)
  t.strictSame(statesOf(kernel), ['a: Active', 'b: Active', 'rest: Active'], 'breaking the ring starts all')
})

t.test('A17 a plugin that injects what it provides does not wait for itself', async (t) => {
  let foo: Value | undefined
  const needing = providerOf('foo', { inject: ['foo'], apply: (ctx) => void (foo = ctx.services.foo) })
  const liking = providerOf('bar', { optional: ['bar'] })
  const { kernel } = await house(t, [
    { plugin: needing, id: 'me' },
    { plugin: liking, id: 'too' }
  ])
  for (const id of ['me', 'too']) t.match(statusOf(kernel, id), { state: 'Active', generation: 1 })
  t.strictSame(kernel.cycles(), [])
  t.equal(foo?.get(), 1)
  await kernel.update('me', { value: 2 })
  t.equal(foo?.get(), 2)
})

t.test('A18 a version is met by one of the same first number that is not older (as ruled: dotted)', async (t) => {
  const requiring = (version?: string) =>
    consumerOf(['foo'], [], version === undefined ? {} : { requires: { foo: version } })
  const { kernel } = await house(t, [
    { plugin: providerOf('foo', { versions: { foo: '2.3' } }), id: 'p' },
    { plugin: requiring('^2.3'), id: 'same' },
    { plugin: requiring('2.2.9'), id: 'older' },
    { plugin: requiring('2.3.1'), id: 'newer' },
    { plugin: requiring('1.9'), id: 'major' },
    { plugin: requiring(), id: 'none' }
  ])
  t.strictSame(statesOf(kernel), [
    'major: Inactive',
    'newer: Inactive',
    'none: Active',
    'older: Active',
    'p: Active',
    'same: Active'
  ])
  t.match(statusOf(kernel, 'newer')?.error, /needs version 2\.3\.1 of service 'foo', which is there in version 2\.3/)
})

t.test('A19 a provider without a version meets no requirement; that is no loss', async (t) => {
  const { kernel } = await house(t, [
    { plugin: providerOf('foo') },
    { plugin: consumerOf(['foo'], [], { requires: { foo: '1' } }), id: 'c' }
  ])
  t.equal(stateOf(kernel, 'c'), 'Inactive')
})

t.test(
  'A20 a provider that is swapped to a version that will do starts its consumers, and back stops them',
  async (t) => {
    const log: string[] = []
    const [old, next] = ['1.0', '2.0'].map((version) => providerOf('foo', { versions: { foo: version } })) as [
      Plugin,
      Plugin
    ]
    const requires = { foo: '2' }
    const { kernel } = await house(t, [
      { plugin: old, id: 'p' },
      {
        plugin: consumerOf(['foo'], log, {
          requires,
          provides: ['bar'],
          apply: (ctx) => ctx.provide('bar', { get: () => 1 })
        }),
        id: 'c'
      },
      {
        plugin: plugin({
          optional: ['foo'],
          requires,
          apply: (ctx) => void log.push(ctx.services.foo === undefined ? 'without' : 'with')
        })
      }
    ])
    t.strictSame(log.splice(0), ['without'])
    await kernel.retarget({ id: 'p', plugin: next })
    await rested(kernel)
    t.equal(stateOf(kernel, 'c'), 'Active')
    t.strictSame(log.splice(0).sort(), ['up foo=1', 'with'])

    const states = watch(kernel, 'c')
    let there: unknown = 'unset'
    const onChange = ({ entry, state }: { entry: string; state: string }) => {
      if (entry === 'p' && state === 'Active') there = kernel.service('bar')
    }
    kernel.events.add('kernel/fiber-changed', new Listener(onChange, undefined))
    await kernel.retarget({ id: 'p', plugin: old })
    t.equal(there, undefined, 'gone with the commit')
    await rested(kernel)
    t.strictSame(states, ['Reloading', 'Unloading', 'Inactive'])
    t.strictSame(log.sort(), ['down foo=1', 'without'])
  }
)

t.test('A21 an optional service may be missing; when it comes its user is rebuilt once', async (t) => {
  const seen: unknown[] = []
  const user = plugin({ optional: ['foo'], apply: (ctx) => void seen.push(ctx.services.foo?.get()) })
  const { kernel } = await house(t, [{ plugin: user, id: 'u' }])
  t.equal(stateOf(kernel, 'u'), 'Active')
  await kernel.begin({ id: 'p', plugin: providerOf('foo') })
  await rested(kernel)
  t.strictSame(seen, [undefined, 1])
})

t.test('A22 an inject of another shape is refused when the plugin is defined', (t) => {
  for (const inject of [{ required: ['foo'] }, 'foo', [1]]) {
    t.throws(() => definePlugin({ name: 'x', inject, apply: () => {} } as never), {
      message: "plugin 'x': inject is a list of service names"
    })
  }
  t.throws(() => plugin({ inject: ['foo'], optional: ['foo'] }), { message: /names the service 'foo' twice/ })
  t.end()
})

t.test('A23 a provider that says its service will not do fails, and its consumers wait', async (t) => {
  const unsure = () => {
    throw new Error('cannot tell')
  }
  for (const check of [() => false, unsure]) {
    const provider = plugin({ provides: ['foo'], apply: (ctx) => ctx.provide('foo', { get: () => 1 }, { check }) })
    const { kernel, lines } = await house(t, [{ plugin: consumerOf(['foo']), id: 'c' }])
    await t.rejects(kernel.begin({ id: 'p', plugin: provider }), {
      code: 'KERNEL_UNAVAILABLE',
      message: "availability predicate rejected service 'foo'"
    })
    t.strictSame(statesOf(kernel), ['c: Inactive', 'p: Failed'])
    const thrown = lines.filter((line) => line.message === "the availability check of service 'foo' threw")
    t.equal(thrown.length, check === unsure ? 1 : 0)
  }
})

t.test('A24 it starts when it is told to try again and the service will do now', async (t) => {
  let good = false
  const check = () => good
  const provider = plugin({ provides: ['foo'], apply: (ctx) => ctx.provide('foo', { get: () => 1 }, { check }) })
  const { kernel } = await house(t, [{ plugin: consumerOf(['foo']), id: 'c' }])
  await t.rejects(kernel.begin({ id: 'p', plugin: provider }))
  good = true
  await kernel.refresh('p')
  await rested(kernel)
  t.strictSame(statesOf(kernel), ['c: Active', 'p: Active'])

  good = false
  await t.rejects(kernel.update('p', { value: 2 }), { code: 'KERNEL_UNAVAILABLE' })
  t.strictSame(statesOf(kernel), ['c: Active', 'p: Active'], 'a swap that will not do leaves the old one serving')
})

/** A provider of foo behind two gates. */
function gated() {
  const applied: unknown[] = []
  const gates: { open(): void; close(): void }[] = []
  const provider = providerOf('foo', {
    apply(ctx, value) {
      applied.push(value)
      gates.splice(0, 2, ctx.gate('first'), ctx.gate('second'))
    }
  })
  return { applied, gates, provider }
}

t.test('A25 what is behind a closed gate is built and not there; opening it does not build again', async (t) => {
  const { applied, gates, provider } = gated()
  const log: string[] = []
  const { kernel } = await house(t, [
    { plugin: provider, id: 'p' },
    { plugin: consumerOf(['foo'], log), id: 'c' }
  ])
  t.match(statusOf(kernel, 'p'), { state: 'Pending', error: null, waitingFor: ['first', 'second'] })
  t.equal(kernel.service('foo'), undefined)
  for (const gate of gates) gate.open()
  await rested(kernel)
  t.strictSame(statesOf(kernel), ['c: Active', 'p: Active'])

  gates[1]?.close()
  await rested(kernel)
  t.strictSame(statesOf(kernel), ['c: Pending', 'p: Pending'])
  gates[1]?.open()
  await rested(kernel)
  t.strictSame(statesOf(kernel), ['c: Active', 'p: Active'])
  t.strictSame(log, ['up foo=1', 'down foo=1', 'up foo=1'])
  t.strictSame(applied, [1])
})

t.test('A26 every gate has to be open', async (t) => {
  const { gates, provider } = gated()
  const { kernel } = await house(t, [{ plugin: provider, id: 'p' }])
  gates[0]?.open()
  await rested(kernel)
  t.match(statusOf(kernel, 'p'), { state: 'Pending', waitingFor: ['second'] })
  gates[1]?.open()
  await rested(kernel)
  t.equal(stateOf(kernel, 'p'), 'Active')
})

t.test('A25 what is behind a closed gate is built anew when its service went and came back', async (t) => {
  const log: string[] = []
  let gate: { open(): void } | undefined
  const consumer = consumerOf(['foo'], log, { apply: (ctx) => void (gate = ctx.gate('gate')) })
  const { kernel } = await house(t, [
    { plugin: providerOf('foo'), id: 'p' },
    { plugin: consumer, id: 'c' }
  ])
  const retired = kernel.retire('p')
  kernel.provide('foo', { get: () => 2 })
  await retired
  await rested(kernel)
  gate?.open()
  await rested(kernel)
  t.strictSame(log, ['up foo=1', 'down foo=2', 'up foo=2'])
})

t.test('A25 a gate that opens after the service has been taken fails by name, and nothing is left', async (t) => {
  const { gates, provider } = gated()
  const { kernel, services } = await house(t, [{ plugin: provider, id: 'p' }])
  await kernel.begin({ id: 'other', plugin: providerOf('foo'), config: { value: 2 } })
  for (const gate of gates) gate.open()
  await rested(kernel)
  t.match(statusOf(kernel, 'p'), { state: 'Failed', error: /provided by entry 'other'/, pendingUndoCount: 0 })
  t.equal(services('foo').get(), 2)
})

t.test('A25 the next generation serves once its gates are open; the old one serves until then', async (t) => {
  const { gates, provider } = gated()
  const { kernel, services } = await startHouse(t, [{ plugin: provider, id: 'p' }], {
    ...bare,
    settings: { apply_timeout_ms: 20 }
  })
  for (const gate of gates) gate.open()
  await rested(kernel)

  await t.rejects(kernel.update('p', { value: 2 }), {
    code: 'KERNEL_APPLY_TIMEOUT',
    message: /gate 'first', 'second' of plugin 'foo-provider' \(entry 'p'\) did not end within 20 ms/
  })
  t.equal(services('foo').get(), 1)

  const updated = kernel.update('p', { value: 3 })
  await nextTurn()
  t.equal(services('foo').get(), 1)
  for (const gate of gates) gate.open()
  await updated
  t.equal(services('foo').get(), 3)

  const given = kernel.update('p', { value: 4 })
  await nextTurn()
  await kernel.retire('p')
  await given
  t.equal(kernel.service('foo'), undefined, 'a retired entry does not come back when its gates are open at last')
})

t.test(
  'A25 what waits behind a gate stays until the next one has been built, and is kept where that fails',
  async (t) => {
    const gates: { open(): void; close(): void }[] = []
    const undone: unknown[] = []
    const provider = providerOf('foo', {
      apply(ctx, value) {
        if (value === 13) throw new Error('thirteen is refused')
        gates.push(ctx.gate('gate'))
        ctx.effect(() => () => undone.push(value))
      }
    })
    const { kernel, services } = await house(t, [
      { plugin: provider, id: 'p' },
      { plugin: consumerOf(['foo']), id: 'c' }
    ])
    gates[0]?.open()
    await rested(kernel)
    gates[0]?.close()
    await rested(kernel)
    t.strictSame(statesOf(kernel), ['c: Pending', 'p: Pending'])

    await t.rejects(kernel.update('p', { value: 13 }), { message: 'thirteen is refused' })
    await rested(kernel)
    t.strictSame([statesOf(kernel), undone], [['c: Pending', 'p: Pending'], []])
    gates[0]?.open()
    await rested(kernel)
    t.strictSame([statesOf(kernel), services('foo').get()], [['c: Active', 'p: Active'], 1])

    gates[0]?.close()
    await rested(kernel)
    await kernel.update('p', { value: 2 })
    await rested(kernel)
    t.strictSame([statesOf(kernel), undone], [['c: Pending', 'p: Pending'], [1]], 'the next waits behind its own gate')
    t.equal(kernel.service('foo'), undefined)
    gates[1]?.open()
    await rested(kernel)
    t.strictSame([statesOf(kernel), services('foo').get()], [['c: Active', 'p: Active'], 2])
  }
)

t.test('A25 what waits behind a gate is replaced by one that need not wait', async (t) => {
  let gate: { open(): void } | undefined
  const log: string[] = []
  const provider = providerOf('foo', {
    apply(ctx, value) {
      if (value === 1) gate = ctx.gate('gate')
      ctx.effect(() => () => log.push(`undone ${String(value)}`))
    }
  })
  const { kernel } = await house(t, [
    { plugin: provider, id: 'p' },
    { plugin: consumerOf(['foo'], log), id: 'c' }
  ])
  t.equal(stateOf(kernel, 'p'), 'Pending')
  await kernel.update('p', { value: 2 })
  await rested(kernel)
  t.strictSame(statesOf(kernel), ['c: Active', 'p: Active'])
  gate?.open()
  await rested(kernel)
  t.strictSame(log.toSorted(), ['undone 1', 'up foo=2'])
  t.equal(statusOf(kernel, 'p')?.generation, 2)
})

t.test(
  'A27 a plugin mounted twice is two fibers, each with its own end (as ruled: there are no runtimes)',
  async (t) => {
    const log: string[] = []
    const twice = plugin({ apply: (ctx) => ctx.effect(() => () => log.push(ctx.entry)) })
    const { kernel } = await house(t, [
      { plugin: twice, id: 'a' },
      { plugin: twice, id: 'b' }
    ])
    t.equal(new Set(kernel.fibers().map((fiber) => fiber.fiberId)).size, 2)
    await kernel.retire('a')
    t.strictSame([log, statesOf(kernel)], [['a'], ['b: Active']])
  }
)

// C: provider and consumer

t.test('C01 a consumer that is undone still has the service; then the slot is empty; then the rest goes', async (t) => {
  const log: string[] = []
  const provider = plugin({
    provides: ['foo'],
    apply(ctx) {
      ctx.effect(() => () => log.push(`early effect, slot ${kernel.services.slot('foo').provider ? 'full' : 'empty'}`))
      ctx.provide('foo', { get: () => 1 })
    }
  })
  const { kernel } = await house(t, [{ plugin: provider, id: 'p' }, { plugin: consumerOf(['foo'], log) }])
  await kernel.retire('p')
  t.strictSame(log, ['up foo=1', 'down foo=1', 'early effect, slot empty'])
})

t.test('C01 one that is still loading when its provider goes can still use it to clean up', async (t) => {
  const loading = latch()
  const log: string[] = []
  const provider = providerOf('foo', { apply: (ctx) => ctx.effect(() => () => log.push('provider down')) })
  const { kernel } = await house(t, [{ plugin: provider, id: 'p' }])
  const begun = kernel.begin({ id: 'c', plugin: consumerOf(['foo'], log, { apply: () => loading.promise }) })
  await nextTurn()
  const retired = kernel.retire('p')
  await nextTurn()
  t.strictSame(log, ['up foo=1'])
  loading.open()
  await Promise.all([begun, retired])
  t.strictSame(log, ['up foo=1', 'down foo=1', 'provider down'])
  t.equal(stateOf(kernel, 'c'), 'Inactive')
})

t.test('C02 a provider ends after the slow undo of its consumer', async (t) => {
  const slow = latch()
  const consumer = consumerOf(['foo'], [], { apply: (ctx) => ctx.effect(() => () => slow.promise) })
  const { kernel } = await house(t, [{ plugin: providerOf('foo'), id: 'p' }, { plugin: consumer }])
  let ended = false
  const retired = kernel.retire('p').then(() => (ended = true))
  await nextTurn()
  t.notOk(ended)
  slow.open()
  await retired
})

t.test(
  'C02 a provider does not wait for one that was built without it, nor for one that cannot do without',
  async (t) => {
    const building = latch()
    const builds: unknown[] = []
    const user = plugin({
      optional: ['foo'],
      async apply(ctx, value) {
        builds.push([value, ctx.services.foo !== undefined])
        if (value === 2) await building.promise
        if (value === 3 && ctx.services.foo === undefined) throw new Error('not without it')
      }
    })
    const { kernel } = await startHouse(t, [{ plugin: user, id: 'u' }], bare)
    const updated = kernel.update('u', { value: 2 })
    await nextTurn()
    await kernel.begin({ id: 'p', plugin: providerOf('foo') })
    const retired = kernel.retire('p')
    building.open()
    await Promise.all([updated, retired])

    await kernel.begin({ id: 'p', plugin: providerOf('foo') })
    await rested(kernel)
    await kernel.update('u', { value: 3 })
    await kernel.retire('p')
    await rested(kernel)
    t.match(statusOf(kernel, 'u'), { state: 'Active', error: null })
    await kernel.begin({ id: 'p', plugin: providerOf('foo') })
    await rested(kernel)
    t.strictSame(builds, [
      [1, false],
      [2, false],
      [2, true],
      [3, true],
      [3, false],
      [3, true]
    ])
  }
)

t.test('C03 a provider after another: up, down, up', async (t) => {
  const log: string[] = []
  const { kernel } = await house(t, [{ plugin: providerOf('foo'), id: 'p1' }, { plugin: consumerOf(['foo'], log) }])
  await kernel.retire('p1')
  await kernel.begin({ id: 'p2', plugin: providerOf('foo'), config: { value: 2 } })
  await rested(kernel)
  t.strictSame(log, ['up foo=1', 'down foo=1', 'up foo=2'])
})

t.test('C04 a chain goes from its far end', async (t) => {
  const log: string[] = []
  const { kernel } = await house(t, [
    { plugin: providerOf('foo', { apply: (ctx) => ctx.effect(() => () => log.push('a')) }), id: 'a' },
    { plugin: providerOf('bar', { inject: ['foo'], apply: (ctx) => ctx.effect(() => () => log.push('b')) }), id: 'b' },
    { plugin: plugin({ inject: ['bar'], apply: (ctx) => ctx.effect(() => () => log.push('c')) }), id: 'c' }
  ])
  await kernel.retire('a')
  t.strictSame(log, ['c', 'b', 'a'])
})

t.test('C05 the far end of a diamond restarts once when its top goes and comes back', async (t) => {
  const log: string[] = []
  const top = providerOf('foo')
  const { kernel } = await house(t, [
    { plugin: top, id: 'top' },
    { plugin: providerOf('bar', { inject: ['foo'] }) },
    { plugin: providerOf('qux', { inject: ['foo'] }) },
    { plugin: consumerOf(['bar', 'qux'], log) }
  ])
  await kernel.retire('top')
  await kernel.begin({ id: 'top', plugin: top })
  await rested(kernel)
  t.strictSame(log, ['up bar=1 qux=1', 'down bar=1 qux=1', 'up bar=1 qux=1'])
})

t.test('C05 a swap of the top restarts nobody (as ruled: R18)', async (t) => {
  const log: string[] = []
  const { kernel } = await house(t, [{ plugin: providerOf('foo'), id: 'top' }, { plugin: consumerOf(['foo'], log) }])
  await kernel.update('top', { value: 2 })
  await rested(kernel)
  t.strictSame(log, ['up foo=1'])
})

t.test('C06 each of a hundred consumers restarts once with its provider, and not at all with a swap', async (t) => {
  const logs = Array.from({ length: 100 }, (): string[] => [])
  const { kernel } = await house(t, [
    { plugin: providerOf('foo'), id: 'p' },
    ...logs.map((log, at) => ({ plugin: consumerOf(['foo'], log), id: `c${at}` }))
  ])
  await kernel.update('p', { value: 2 })
  await kernel.retire('p')
  await kernel.begin({ id: 'p', plugin: providerOf('foo'), config: { value: 3 } })
  await rested(kernel)
  for (const log of logs) t.strictSame(log, ['up foo=1', 'down foo=2', 'up foo=3'])
})

t.test('C07 a storm of updates ends with the last one, and costs the consumers nothing', async (t) => {
  const log: string[] = []
  const applied: unknown[] = []
  const provider = providerOf('foo', { apply: (_ctx, value) => void applied.push(value) })
  const { kernel, services } = await house(t, [{ plugin: provider, id: 'p' }, { plugin: consumerOf(['foo'], log) }])
  await Promise.all([2, 3, 4, 5, 6].map((value) => kernel.update('p', { value })))
  t.equal(services('foo').get(), 6)
  t.strictSame(log, ['up foo=1'])
  t.equal(applied.at(-1), 6)
  t.ok(applied.length <= 6)
})

t.test('C07 two that keep each other from coming to rest let the others have their turn', async (t) => {
  // foo is there only without bar, and bar only with foo.
  const contrary = plugin({
    provides: ['foo'],
    optional: ['bar'],
    apply: (ctx) => (ctx.services.bar === undefined ? ctx.provide('foo', { get: () => 1 }) : undefined)
  })
  const { kernel, lines } = await house(t, [
    { plugin: contrary, id: 'contrary' },
    { plugin: providerOf('bar', { inject: ['foo'] }), id: 'b' },
    { plugin: providerOf('qux'), id: 'rest' }
  ])
  await rested(kernel)
  t.equal(stateOf(kernel, 'contrary'), 'Active')
  t.match(
    lines.filter((line) => line.level === 'warn'),
    [{ message: "entry 'contrary' was rebuilt 20 times in a row for services that come and go" }]
  )
  const runs = statusOf(kernel, 'contrary')?.generation
  kernel.fiber('contrary')?.kick()
  await kernel.update('rest', { value: 2 })
  await rested(kernel)
  t.equal(stateOf(kernel, 'rest'), 'Active')
  t.equal(statusOf(kernel, 'contrary')?.generation, runs)
  t.equal(lines.filter((line) => line.level === 'warn').length, 1)
})

t.test(
  'C08 a fiber that waits for its service to return stays and resumes (as ruled: nothing is pruned)',
  async (t) => {
    const { kernel } = await house(t, [
      { plugin: providerOf('foo'), id: 'p' },
      { plugin: consumerOf(['foo']), id: 'c' }
    ])
    const before = statusOf(kernel, 'c')?.fiberId
    await kernel.retire('p')
    await rested(kernel)
    t.match(statusOf(kernel, 'c'), { state: 'Pending', fiberId: before, error: null, waitingFor: ['foo'] })
    await kernel.begin({ id: 'p', plugin: providerOf('foo') })
    await rested(kernel)
    t.match(statusOf(kernel, 'c'), { state: 'Active', fiberId: before })
  }
)

t.test('C09 one that was never active is Inactive, not Pending', async (t) => {
  const loading = latch()
  const { kernel } = await house(t, [{ plugin: providerOf('foo'), id: 'p' }])
  const begun = kernel.begin({ id: 'c', plugin: consumerOf(['foo'], [], { apply: () => loading.promise }) })
  await nextTurn()
  const retired = kernel.retire('p')
  loading.open()
  await Promise.all([begun, retired])
  t.equal(stateOf(kernel, 'c'), 'Inactive')
})

t.test('C10 what happens in one realm is nothing to another', async (t) => {
  const logs: Record<string, string[]> = { a: [], b: [] }
  const { kernel } = await house(t)
  for (const [realm, log] of Object.entries(logs)) {
    await kernel.begin({ id: `c-${realm}`, plugin: consumerOf(['foo'], log), realms: { foo: realm } })
  }
  await kernel.begin({ id: 'p', plugin: providerOf('foo'), realms: { foo: 'a' } })
  await rested(kernel)
  t.strictSame(logs, { a: ['up foo=1'], b: [] })
  t.match(statusOf(kernel, 'c-b')?.error, /which no plugin in the program provides/)
})
