/** Realms and overlays: table F of the case list. */
import t from 'tap'
import { type Context, definePlugin, type Overlay, type Plugin, schemaOf } from '../../kernel/index.ts'
import type { Kernel } from '../../kernel/kernel.ts'
import type { Entry } from '../../kernel/program.ts'
import { scopeOf } from '../../kernel/tree.ts'
import { startHouse } from '../harness.ts'
import {
  bare,
  consumerOf,
  latch,
  type Name,
  nextTurn,
  plugin,
  providerOf,
  rested,
  stateOf,
  statusOf,
  watch
} from './support.ts'

const house = (t: Parameters<typeof startHouse>[0], entries: Parameters<typeof startHouse>[1] = []) =>
  startHouse(t, entries, bare)

// F: realms and overlays. The program works out both from its groups; the kernel is given what comes out.

type Realms = Readonly<Partial<Record<Name, string>>>

/** Begins or moves an entry of the kind `mount` makes. */
function mover(kernel: Kernel, id: string, plugin: Plugin) {
  return async (realms: Realms) => {
    const mount = { id, plugin, realms }
    if (kernel.fiber(id) === undefined) await kernel.begin(mount)
    else await kernel.retarget(mount)
    await rested(kernel)
  }
}

t.test('F01 each realm has its own provider', async (t) => {
  const { kernel } = await house(t)
  const realms: readonly Realms[] = [{}, { foo: 'one' }, { foo: 'two' }]
  const logs = realms.map((): string[] => [])
  for (const [at, realm] of realms.entries()) {
    await kernel.begin({ id: `c${at}`, plugin: consumerOf(['foo'], logs[at]), realms: realm })
  }
  for (const [at, realm] of realms.entries()) {
    await kernel.begin({ id: `p${at}`, plugin: providerOf('foo'), config: { value: at }, realms: realm })
  }
  await rested(kernel)
  t.strictSame(logs, [['up foo=0'], ['up foo=1'], ['up foo=2']])
  t.equal(kernel.services.size, 3)
  await Promise.all(['c1', 'p1', 'c2', 'p2'].map((id) => kernel.retire(id)))
  t.equal(kernel.services.size, 1, 'a realm that nobody is in is forgotten')
})

t.test('F02 those with one label share what one of them provides', async (t) => {
  const log: string[] = []
  const { kernel } = await house(t)
  for (const id of ['c1', 'c2']) {
    await kernel.begin({ id, plugin: consumerOf(['foo'], log), realms: { foo: 'label' } })
  }
  await kernel.begin({ id: 'p', plugin: providerOf('foo'), realms: { foo: 'label' } })
  await rested(kernel)
  t.strictSame(log.splice(0), ['up foo=1', 'up foo=1'])
  t.equal(kernel.service('foo'), undefined)
  await kernel.retire('p')
  t.strictSame(log, ['down foo=1', 'down foo=1'])
})

t.test('F03 a realm never falls back to the common one', async (t) => {
  let found: unknown = 'unset'
  const tenant = plugin({ apply: (ctx) => void (found = ctx.get('foo')) })
  const { kernel } = await house(t, [{ plugin: providerOf('foo') }])
  await kernel.begin({ id: 'tenant', plugin: tenant, realms: { foo: 'tenant' } })
  t.equal(found, undefined)
})

t.test('F03 what a plugin finds, and the plugins it mounts, are where its entry has been moved to', async (t) => {
  const log: string[] = []
  let ctx: Context | undefined
  let builds = 0
  const tenant = plugin({
    apply(own) {
      builds += 1
      ctx = own as never
      own.mount(consumerOf(['foo'], log))
    }
  })
  const { kernel } = await house(t, [{ plugin: providerOf('foo') }, { plugin: tenant, id: 'tenant' }])
  t.ok(ctx?.get('foo'))
  await kernel.retarget({ id: 'tenant', plugin: tenant, realms: { foo: 'tenant' } })
  await rested(kernel)
  t.equal(ctx?.get('foo'), undefined)
  t.strictSame([log, builds], [['up foo=1', 'down foo=1'], 2], 'a handle that it kept is not to lead out of its realm')
})

t.test('F04 to F07 a consumer restarts for a realm of what it injects, and for nothing else', async (t) => {
  const log: string[] = []
  const { kernel } = await house(t, [{ plugin: providerOf('bar') }])
  const move = mover(kernel, 'c', consumerOf(['bar'], log))
  await move({})
  t.strictSame(log.splice(0), ['up bar=1'])
  await t.test('F04 isolating what it injects stops it', async (t) => {
    await move({ bar: 'private' })
    t.strictSame(log.splice(0), ['down bar=1'])
    t.equal(stateOf(kernel, 'c'), 'Pending')
  })
  await t.test('F05 isolating something else does nothing', async (t) => {
    await move({ bar: 'private', qux: 'private' })
    t.strictSame(log, [])
  })
  await t.test('F05 nor does it try again what has failed', async (t) => {
    let runs = 0
    const failing = plugin({
      apply() {
        runs += 1
        throw new Error('no luck')
      }
    })
    await t.rejects(kernel.begin({ id: 'failing', plugin: failing }))
    await kernel.retarget({ id: 'failing', plugin: failing, realms: { qux: 'private' } })
    await kernel.begin({ id: 'nudge', plugin: providerOf('foo') })
    kernel.fiber('failing')?.kick()
    await rested(kernel)
    t.equal(runs, 1)
    t.equal(stateOf(kernel, 'failing'), 'Failed')
    await kernel.retire('failing')
  })
  await t.test('F06 taking it back starts it', async (t) => {
    await move({ qux: 'private' })
    t.strictSame(log.splice(0), ['up bar=1'])
  })
  await t.test('F07 and the something else does nothing again', async (t) => {
    const states = watch(kernel, 'c')
    await move({})
    t.strictSame([log, states], [[], []])
    t.equal(kernel.services.size, 1)
  })
})

t.test('F08 to F11 so does the consumer when it is the provider that moves', async (t) => {
  const log: string[] = []
  const { kernel } = await house(t, [{ plugin: consumerOf(['bar'], log) }])
  const built: unknown[] = []
  const move = mover(kernel, 'p', providerOf('bar', { apply: () => void built.push(1) }))
  await move({})
  t.strictSame(log.splice(0), ['up bar=1'])
  await t.test('F08 isolating the provider stops the consumer', async (t) => {
    await move({ bar: 'private' })
    t.strictSame(log.splice(0), ['down bar=1'])
  })
  await t.test('F09 isolating something else does nothing', async (t) => {
    await move({ bar: 'private', qux: 'private' })
    t.strictSame([log, built.length], [[], 2])
  })
  await t.test('F10 taking it back starts the consumer', async (t) => {
    await move({ qux: 'private' })
    t.strictSame(log.splice(0), ['up bar=1'])
  })
  await t.test('F11 and the something else does nothing again', async (t) => {
    await move({})
    t.strictSame([log, built.length], [[], 3])
  })
})

t.test('F12 each sees its own group, a label, or nothing', async (t) => {
  const logs: Record<string, string[]> = { plain: [], label: [], own: [] }
  const { kernel } = await house(t)
  await kernel.begin({ id: 'alpha', plugin: providerOf('bar'), config: { value: 'alpha' }, realms: { bar: 'alpha' } })
  await kernel.begin({ id: 'beta', plugin: providerOf('bar'), config: { value: 'beta' }, realms: { bar: 'beta' } })
  for (const [id, bar] of Object.entries({ plain: 'alpha', label: 'beta', own: 'own' })) {
    await kernel.begin({ id, plugin: consumerOf(['bar'], logs[id]), realms: { bar } })
  }
  t.strictSame(logs, { plain: ['up bar=alpha'], label: ['up bar=beta'], own: [] })
  t.match(statusOf(kernel, 'own'), { state: 'Inactive', waitingFor: ['bar'] })
})

t.test('F13 an outer group that gains or loses what an inner one says already changes nothing', (t) => {
  const entry = (id: string, isolate?: Readonly<Record<string, string>>): Entry => ({
    id,
    plugin: '@group',
    config: {},
    disabled: false,
    ...(isolate === undefined ? {} : { isolate })
  })
  const consumer = entry('outer:inner:c')
  const scope = (outer: Entry) => {
    const entries = new Map([outer, entry('outer:inner', { bar: 'label' }), consumer].map((each) => [each.id, each]))
    return scopeOf(consumer, entries, [], (id) => id)
  }
  t.strictSame(scope(entry('outer', { bar: 'label' })), scope(entry('outer')))
  t.end()
})

t.test('F14 a consumer whose group changes its label restarts once, with what is there', async (t) => {
  const log: string[] = []
  const { kernel } = await house(t)
  for (const label of ['alpha', 'beta']) {
    const mount = { id: label, plugin: providerOf('bar'), config: { value: label }, realms: { bar: label } }
    await kernel.begin(mount)
  }
  const move = mover(kernel, 'c', consumerOf(['bar'], log))
  await move({ bar: 'alpha' })
  await move({ bar: 'beta' })
  t.strictSame(log, ['up bar=alpha', 'up bar=beta', 'down bar=alpha'], 'the next is up before the old one goes')
})

t.test('F15 a provider whose group changes its label stops one consumer and starts another', async (t) => {
  const logs: { alpha: string[]; beta: string[] } = { alpha: [], beta: [] }
  const { kernel } = await house(t)
  for (const label of ['alpha', 'beta'] as const) {
    await kernel.begin({ id: `c-${label}`, plugin: consumerOf(['bar'], logs[label]), realms: { bar: label } })
  }
  const move = mover(kernel, 'p', providerOf('bar'))
  await move({ bar: 'alpha' })
  await move({ bar: 'beta' })
  t.strictSame(logs, { alpha: ['up bar=1', 'down bar=1'], beta: ['up bar=1'] })
})

t.test('F16 a consumer and then its provider move into a group, and out again: stop, start, stop, start', async (t) => {
  const log: string[] = []
  const { kernel } = await house(t)
  const provider = mover(kernel, 'p', providerOf('bar'))
  const consumer = mover(kernel, 'c', consumerOf(['bar'], log))
  await provider({})
  await consumer({})
  const took: string[][] = [log.splice(0)]
  for (const [move, realms] of [
    [consumer, { bar: 'group' }],
    [provider, { bar: 'group' }],
    [consumer, {}],
    [provider, {}]
  ] as const) {
    await move(realms)
    took.push(log.splice(0))
  }
  t.strictSame(took, [['up bar=1'], ['down bar=1'], ['up bar=1'], ['down bar=1'], ['up bar=1']])
})

t.test('F14 an old generation in the realm it was built in ends before the provider there', async (t) => {
  const log: string[] = []
  const draining = latch()
  const { kernel } = await house(t)
  const provider = providerOf('bar', { apply: (ctx) => ctx.effect(() => () => log.push('provider down')) })
  await kernel.begin({ id: 'p', plugin: provider, realms: { bar: 'alpha' } })
  await kernel.begin({ id: 'q', plugin: providerOf('bar'), config: { value: 2 } })
  const consumer = consumerOf(['bar'], log, {
    apply(ctx) {
      const lease = ctx.lease()
      void draining.promise.then(() => lease.release())
    }
  })
  await kernel.begin({ id: 'c', plugin: consumer, realms: { bar: 'alpha' } })
  await kernel.retarget({ id: 'c', plugin: consumer })
  const retired = kernel.retire('p')
  await nextTurn()
  t.strictSame(log, ['up bar=1', 'up bar=2'])
  draining.open()
  await retired
  t.strictSame(log, ['up bar=1', 'up bar=2', 'down bar=1', 'provider down'])
})

interface Merging {
  read(): Overlay
}

declare module '../../kernel/index.ts' {
  interface Services {
    merging: Merging
  }
}

/** A service that lays what its user's entry says over what it has itself. */
const merging = definePlugin({
  name: 'merging',
  provides: ['merging'],
  config: schemaOf<{ base: Overlay }>({ type: 'object', properties: { base: { type: 'object', default: { a: 0 } } } }),
  apply(ctx, { base }) {
    ctx.provide(
      'merging',
      { read: () => base },
      { withOverlay: (overlay) => ({ read: () => ({ ...base, ...overlay }) }) }
    )
  }
})

function overlaid(read: Record<string, () => Overlay>) {
  return definePlugin({
    name: 'overlaid',
    inject: ['merging'],
    apply(ctx) {
      const { merging } = ctx.services
      read[ctx.entry] = () => merging.read()
      read[`${ctx.entry} raw`] = () => ctx.overlay('merging')
    }
  })
}

t.test('F17 an entry reads what is laid over a service for it (as ruled: the program merges its groups)', async (t) => {
  const read: Record<string, () => Overlay> = {}
  const { kernel } = await house(t, [{ plugin: merging }])
  await kernel.begin({ id: 'c', plugin: overlaid(read), overlays: { merging: { a: 1, b: 2, c: 3 } } })
  await kernel.begin({ id: 'plain', plugin: overlaid(read) })
  t.strictSame([read['c raw']?.(), read['plain raw']?.()], [{ a: 1, b: 2, c: 3 }, {}])
})

t.test('F18 a service lays it over its own, for whoever has one; a swap of either keeps it so', async (t) => {
  const read: Record<string, () => Overlay> = {}
  const { kernel } = await house(t, [{ plugin: merging }])
  const mount = { id: 'c', plugin: overlaid(read) }
  await kernel.begin({ ...mount, overlays: { merging: { b: 2 } } })
  await kernel.begin({ id: 'plain', plugin: overlaid(read) })
  const both = () => [read['c']?.(), read['plain']?.()]
  t.strictSame(both(), [{ a: 0, b: 2 }, { a: 0 }])
  await kernel.update('merging', { base: { a: 9 } })
  t.strictSame(both(), [{ a: 9, b: 2 }, { a: 9 }])
  await kernel.retarget({ ...mount, overlays: { merging: { a: 7 } } })
  t.strictSame(both(), [{ a: 7 }, { a: 9 }])
  await kernel.retarget({ ...mount, overlays: { merging: { a: 7 }, foo: { x: 1 } } })
  t.equal(statusOf(kernel, 'c')?.generation, 2, 'what it does not inject is nothing to it')
  await kernel.retire('c')
  await kernel.update('merging', { base: {} })
  t.throws(read['c'] as () => unknown, { code: 'KERNEL_SERVICE_GONE' }, 'its view goes with it')
})
