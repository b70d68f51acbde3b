/** Isolation in a whole program: what an entry sees of the world, by whatever way it looks. */
import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import t, { type Test } from 'tap'
import type { Changed, FiberStatus, KernelControl } from '../../kernel/control.ts'
import { startKernel } from '../../kernel/host.ts'
import { type Context, definePlugin, type Overlay, type Plugin, silentLogger } from '../../kernel/index.ts'
import { assertNothingLeft, loaderOf } from '../harness.ts'
import { consumerOf, type Name, plugin, providerOf, rested, type Value } from './support.ts'

interface Running {
  readonly control: KernelControl
  /** Writes the file anew and takes it in. @returns the steps, each as `action id` */
  become(text: string): Promise<readonly string[]>
  fiber(id: string): FiberStatus | undefined
  /** What the looker of that id finds under a name now. */
  finds(id: string, name: Name): unknown
  /** How often the looker of that id was built. */
  builds(id: string): number
  /** What plugins mounted by a mounter have written. */
  readonly log: string[]
}

/** Starts a program of providers, lookers (which only `ctx.get`), mounters (which mount others) and users. */
async function start(t: Test, text: string, plugins: Readonly<Record<string, Plugin>> = {}): Promise<Running> {
  const contexts = new Map<string, Context>()
  const builds = new Map<string, number>()
  const log: string[] = []
  const looker = plugin({
    name: 'looker',
    apply(ctx) {
      contexts.set(ctx.entry, ctx as never)
      builds.set(ctx.entry, (builds.get(ctx.entry) ?? 0) + 1)
    }
  })
  const all = {
    foo: providerOf('foo'),
    bar: providerOf('bar'),
    looker,
    user: consumerOf(['foo']),
    mounter: plugin({ name: 'mounter', apply: (ctx) => void ctx.mount(consumerOf(['foo'], log)) }),
    giver: plugin({ name: 'giver', apply: (ctx) => void ctx.mount(providerOf('foo'), { value: 'given' }) }),
    nested: plugin({
      name: 'nested',
      apply: (ctx) =>
        void ctx.mount(plugin({ name: 'inner', apply: (inner) => void inner.mount(consumerOf(['foo'], log)) }))
    }),
    ...plugins
  }
  const folder = t.testdir({ 'program.toml': text })
  const file = join(folder, 'program.toml')
  const host = await startKernel({ program: file, loader: loaderOf(all, folder), env: {}, log: silentLogger })
  t.teardown(async () => {
    await host.stop()
    assertNothingLeft(host.kernel)
  })
  const control = host.kernel.service('kernel') as KernelControl
  await rested(host.kernel)
  return {
    control,
    log,
    async become(next) {
      writeFileSync(file, next)
      const { applied }: Changed = await control.reload()
      await rested(host.kernel)
      return applied.map(({ action, id }) => `${action} ${id}`)
    },
    fiber: (id) => control.fibers().find(({ entry }) => entry === id),
    finds: (id, name) => (contexts.get(id)?.get(name) as Value | undefined)?.get(),
    builds: (id) => builds.get(id) ?? 0
  }
}

const entry = (id: string, plugin: string, more = '') => `[[entry]]\nid = "${id}"\nplugin = "${plugin}"\n${more}\n`
const group = (id: string, more = '') => entry(id, '@group', more)
const value = (what: string) => `config = { value = "${what}" }`

t.test('what a plugin looks up without naming it is looked up in the realm of its group', async (t) => {
  const house = await start(
    t,
    entry('foo', 'foo', value('common')) +
      group('tenant', 'isolate = { foo = true }') +
      entry('tenant:looker', 'looker') +
      entry('looker', 'looker')
  )
  t.equal(house.finds('looker', 'foo'), 'common')
  t.equal(house.finds('tenant:looker', 'foo'), undefined, 'a realm never falls back to the common one')
})

t.test('it finds what its group provides, shared labels and nested groups included', async (t) => {
  const house = await start(
    t,
    entry('foo', 'foo', value('common')) +
      group('outer', 'isolate = { foo = "blue", bar = true }') +
      entry('outer:foo', 'foo', value('blue')) +
      entry('outer:looker', 'looker') +
      group('outer:inner', 'isolate = { foo = true }') +
      entry('outer:inner:foo', 'foo', value('inner')) +
      entry('outer:inner:bar', 'bar', value('bar of outer')) +
      entry('outer:inner:looker', 'looker') +
      entry('elsewhere', 'looker', 'isolate = { foo = "blue" }') +
      entry('out', 'looker', 'isolate = { foo = false }')
  )
  const found = ['outer:looker', 'outer:inner:looker', 'elsewhere', 'out'].map((id) => [
    house.finds(id, 'foo'),
    house.finds(id, 'bar')
  ])
  t.strictSame(found, [
    ['blue', 'bar of outer'],
    ['inner', 'bar of outer'],
    ['blue', undefined],
    ['common', undefined]
  ])
})

t.test('a plugin that an isolated plugin mounts is isolated with it, however deep', async (t) => {
  for (const mounter of ['mounter', 'nested']) {
    await t.test(mounter, async (t) => {
      const common = entry('foo', 'foo', value('common'))
      const tenant = group('tenant', 'isolate = { foo = true }') + entry('tenant:m', mounter)
      const house = await start(t, common + tenant)
      t.strictSame(house.log, [])
      await house.become(common + tenant + entry('tenant:foo', 'foo', value('own')))
      t.strictSame(house.log, ['up foo=own'])
    })
  }
})

t.test('what an isolated plugin lets another provide is provided in its realm', async (t) => {
  const house = await start(
    t,
    group('tenant', 'isolate = { foo = true }') +
      entry('tenant:giver', 'giver') +
      entry('tenant:looker', 'looker') +
      entry('looker', 'looker')
  )
  t.equal(house.finds('tenant:looker', 'foo'), 'given')
  t.equal(house.finds('looker', 'foo'), undefined)
})

t.test('a group that is isolated while it runs takes along who looks, and who was mounted', async (t) => {
  const common = entry('foo', 'foo', value('common'))
  const tenant = (isolate: string) =>
    group('tenant', isolate) +
    entry('tenant:looker', 'looker') +
    entry('tenant:m', 'mounter') +
    entry('tenant:u', 'user')
  const house = await start(t, common + tenant(''))
  t.equal(house.finds('tenant:looker', 'foo'), 'common')
  t.strictSame(house.log.splice(0), ['up foo=common'])

  const applied = await house.become(common + tenant('isolate = { foo = true }'))
  t.equal(house.finds('tenant:looker', 'foo'), undefined)
  t.strictSame(house.log.splice(0), ['down foo=common'])
  t.equal(house.fiber('tenant:u')?.state, 'Pending')
  t.same(applied, ['rebuild-fiber tenant:looker', 'rebuild-fiber tenant:u'], 'the looker has looked at it')
  t.equal(house.fiber('tenant:m')?.generation, 1, 'who only mounted is not restarted')

  await house.become(common + tenant(''))
  t.equal(house.finds('tenant:looker', 'foo'), 'common')
  t.strictSame(house.log, ['up foo=common'])
})

t.test('who can see nothing of a change is not restarted, and has the new scope all the same', async (t) => {
  const common = entry('foo', 'foo', value('common')) + entry('bar', 'bar', value('common'))
  const tenant = (isolate: string) =>
    group('tenant', isolate) +
    entry('tenant:u', 'user') +
    entry('tenant:m', 'mounter') +
    entry('tenant:looker', 'looker')
  const house = await start(t, common + tenant(''))
  t.equal(house.finds('tenant:looker', 'foo'), 'common')
  const fibers = house.control.fibers()
  t.strictSame(await house.become(common + tenant('isolate = { bar = true }')), [])
  t.strictSame(house.control.fibers(), fibers)
  t.strictSame([house.builds('tenant:looker'), house.log], [1, ['up foo=common']])
  t.equal(house.finds('tenant:looker', 'bar'), undefined, 'asked for the first time after it was isolated')
  t.strictSame(await house.become(common + tenant('')), ['rebuild-fiber tenant:looker'])
  t.strictSame(house.log, ['up foo=common'])
})

t.test(
  'a plan tells of no step for who sees nothing of it, and a move into an isolated group holds for all ways',
  async (t) => {
    const rest = entry('foo', 'foo', value('common')) + group('tenant', 'isolate = { foo = true }')
    const house = await start(t, rest + entry('looker', 'looker') + entry('m', 'mounter'))
    t.strictSame((await house.control.moveEntry('m', 'tenant', undefined, { dryRun: true })).planned, [])
    t.strictSame((await house.control.moveEntry('m', 'tenant', undefined)).applied, [])
    await house.control.moveEntry('looker', 'tenant', undefined)
    await t.resolves(house.control.reload())
    t.equal(house.finds('tenant:looker', 'foo'), undefined)
    t.strictSame(house.log, ['up foo=common', 'down foo=common'])
  }
)

t.test('a refused change leaves everybody in the realm they were in', async (t) => {
  const common = entry('foo', 'foo', value('common'))
  const tenant = (isolate: string) =>
    group('tenant', isolate) + entry('tenant:m', 'mounter') + entry('tenant:l', 'looker')
  const bad = definePlugin({
    name: 'bad',
    apply() {
      throw new Error('no luck')
    }
  })
  const house = await start(t, common + tenant(''), { bad })
  await t.rejects(house.become(common + tenant('isolate = { foo = true }') + entry('bad', 'bad')), {
    code: 'PROGRAM_APPLY_FAILED'
  })
  await house.become(common + tenant(''))
  t.equal(house.finds('tenant:l', 'foo'), 'common')
  t.equal(house.log.at(-1), 'up foo=common')
})

interface Layered {
  read(): Overlay
}

declare module '../../kernel/index.ts' {
  interface Services {
    layered: Layered
  }
}

t.test('what is laid over a service holds for who looks it up, and changes with the group', async (t) => {
  const layered = definePlugin({
    name: 'layered',
    provides: ['layered'],
    apply: (ctx) =>
      ctx.provide('layered', { read: () => ({}) }, { withOverlay: (overlay) => ({ read: () => overlay }) })
  })
  let context: Context | undefined
  const reader = plugin({ name: 'reader', apply: (ctx) => void (context = ctx as never) })
  const program = (more: string) => entry('layered', 'layered') + group('g', more) + entry('g:reader', 'reader')
  const house = await start(t, program('intercept = { layered = { a = 1 } }'), { layered, reader })
  t.same(context?.get('layered')?.read(), { a: 1 })
  t.same(context?.overlay('layered'), { a: 1 })
  t.strictSame(await house.become(program('intercept = { layered = { a = 2 } }')), ['rebuild-fiber g:reader'])
  t.same(context?.get('layered')?.read(), { a: 2 })
})
