/** Plugins that plugins mount: their ids, and what a change of the one that mounted them is to them. */
import t from 'tap'
import type { Child, Context } from '../../kernel/index.ts'
import { startHouse } from '../harness.ts'
import { bare, latch, plugin, providerOf, rested, stateOf, statesOf, statusOf } from './support.ts'

const leaf = plugin({ name: 'leaf' })
const branch = plugin({ name: 'branch', apply: (ctx) => void ctx.mount(leaf) })
/** Mounts a leaf, and a branch which mounts another. */
const tree = plugin({
  name: 'tree',
  apply(ctx) {
    ctx.mount(leaf)
    ctx.mount(branch)
  }
})

t.test('a mounted plugin is named after its entry, also after that has been renamed', async (t) => {
  const { kernel } = await startHouse(t, [{ plugin: tree, id: 'a' }], bare)
  await rested(kernel)
  const ids = kernel.fibers().map(({ fiberId }) => fiberId)
  kernel.rename([['a', 'g:b']])
  t.strictSame(
    kernel.fibers().map(({ entry }) => entry),
    ['g:b', 'g:b/leaf', 'g:b/branch', 'g:b/branch/leaf']
  )
  t.strictSame(
    kernel.fibers().map(({ fiberId }) => fiberId),
    ids
  )
  t.equal(stateOf(kernel, 'g:b/branch/leaf'), 'Active')
  await kernel.update('g:b', { value: 2 })
  await rested(kernel)
  t.strictSame(statesOf(kernel), ['g:b/branch/leaf: Active', 'g:b/branch: Active', 'g:b/leaf: Active', 'g:b: Active'])
})

t.test('two that swap their names take their mounted plugins along, with what those hold and hear', async (t) => {
  const opened: string[] = []
  const heard: string[] = []
  const holder = plugin({
    name: 'holder',
    async apply(ctx, value) {
      await ctx.resource(
        'port',
        {},
        () => opened.push(String(value)),
        () => {}
      )
      ctx.on('case/a', () => heard.push(`${ctx.entry} ${String(value)}`))
    }
  })
  const children: Child[] = []
  const owner = plugin({ name: 'owner', apply: (ctx, value) => void children.push(ctx.mount(holder, { value })) })
  const { kernel } = await startHouse(t, [], bare)
  for (const id of ['a', 'b']) await kernel.begin({ id, plugin: owner, config: { value: id } })
  await rested(kernel)
  kernel.rename([
    ['a', 'b'],
    ['b', 'a']
  ])
  t.strictSame(
    children.map(({ entry }) => entry),
    ['b/holder', 'a/holder']
  )
  kernel.events.only((entry) => entry === 'b/holder').emit('case/a')
  t.strictSame(heard, ['b/holder a'])
  await children[0]?.update({ value: 'again' })
  t.strictSame(opened, ['a', 'b'], 'the resource went along: it is not opened again')
})

t.test('one that is renamed while it is built mounts under its new name', async (t) => {
  const building = latch()
  const { kernel } = await startHouse(t, [], bare)
  const slow = plugin({
    name: 'slow',
    async apply(ctx) {
      ctx.mount(leaf)
      await building.promise
    }
  })
  const begun = kernel.begin({ id: 'a', plugin: slow })
  await new Promise(setImmediate)
  kernel.rename([['a', 'b']])
  building.open()
  await begun
  await rested(kernel)
  t.strictSame(statesOf(kernel), ['b/leaf: Active', 'b: Active'])
})

t.test('an entry may have the id that a mounted plugin would have: that one gives way', async (t) => {
  const { kernel } = await startHouse(t, [{ plugin: branch, id: 'a' }], bare)
  await rested(kernel)
  await kernel.begin({ id: 'a/leaf', plugin: providerOf('foo') })
  t.equal(statusOf(kernel, 'a/leaf')?.plugin, 'foo-provider')
  t.equal(statusOf(kernel, 'a/leaf#2')?.plugin, 'leaf')
  await kernel.begin({ id: 'c', plugin: branch })
  kernel.rename([['a/leaf', 'c/leaf']])
  t.equal(statusOf(kernel, 'c/leaf')?.plugin, 'foo-provider')
  t.strictSame(statesOf(kernel), ['a/leaf#2: Active', 'a: Active', 'c/leaf#2: Active', 'c/leaf: Active', 'c: Active'])
})

t.test('a config that is taken in place does not restart what was mounted', async (t) => {
  let builds = 0
  const counted = plugin({ name: 'counted', apply: () => void (builds += 1) })
  let context: Context | undefined
  const owner = plugin({
    name: 'owner',
    apply(ctx) {
      context = ctx as never
      ctx.onUpdate(() => 'handled')
      ctx.mount(counted)
    }
  })
  const { kernel } = await startHouse(t, [{ plugin: owner, id: 'a' }], bare)
  await rested(kernel)
  await kernel.update('a', { value: 2 })
  await rested(kernel)
  t.strictSame([builds, statusOf(kernel, 'a')?.generation, context?.entry], [1, 1, 'a'])
})
