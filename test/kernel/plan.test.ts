import t from 'tap'
import { findCycles } from '../../kernel/cycles.ts'
import { planSteps } from '../../kernel/plan.ts'
import type { Entry } from '../../kernel/program.ts'
import { enabledIds, type Move, moveEntry, scopeOf } from '../../kernel/tree.ts'

function entry(id: string, more: Partial<Entry> = {}): Entry {
  return { id, plugin: 'echo', config: {}, disabled: false, ...more }
}

const group = (id: string, more: Partial<Entry> = {}) => entry(id, { plugin: '@group', ...more })

t.test('the plan begins what is new, swaps what changed, retires what is gone, in that order', async (t) => {
  const current = [entry('gone'), entry('same'), entry('config'), entry('code')]
  const wanted = [
    entry('config', { config: { a: 1 } }),
    entry('code', { plugin: 'other' }),
    entry('same'),
    entry('new')
  ]
  t.strictSame(
    planSteps(current, wanted).map(({ action, id }) => `${action} ${id}`),
    ['begin new', 'rebuild-fiber code', 'update-config config', 'retire gone']
  )
})

t.test('order, and what changes while an entry is off, cost nothing', async (t) => {
  t.strictSame(planSteps([entry('a'), entry('b')], [entry('b'), entry('a')]), [])
  const off = { disabled: true }
  t.strictSame(planSteps([entry('a', off)], [entry('a', { ...off, plugin: 'other', config: { x: 1 } })]), [])
  t.strictSame(planSteps([], [entry('a', off)]), [])
})

t.test(
  'an entry that is switched off and changed is only retired; it begins again with all that changed',
  async (t) => {
    const changed = entry('a', { config: { x: 2 } })
    t.match(planSteps([entry('a')], [{ ...changed, disabled: true }]), [{ action: 'retire', id: 'a' }])
    t.match(planSteps([{ ...changed, disabled: true }], [changed]), [{ action: 'begin', to: { config: { x: 2 } } }])
  }
)

t.test(
  'a group runs nothing itself; switched off, it takes all below it along and leaves their own flags',
  async (t) => {
    const tree = [group('g'), entry('g:a'), entry('g:b', { disabled: true }), entry('g:sub:c'), entry('gx')]
    t.strictSame([...enabledIds(tree)], ['g:a', 'g:sub:c', 'gx'])
    const off = [group('g', { disabled: true }), ...tree.slice(1)]
    t.strictSame([...enabledIds(off)], ['gx'])
    t.strictSame(
      planSteps(tree, off).map(({ action, id }) => `${action} ${id}`),
      ['retire g:sub:c', 'retire g:a']
    )
  }
)

t.test('integers that no number holds and dates are compared by what they are', async (t) => {
  const big = (value: bigint) => [entry('a', { config: { value } })]
  t.strictSame(planSteps(big(9223372036854775807n), big(9223372036854775807n)), [])
  t.equal(planSteps(big(9223372036854775807n), big(9223372036854775806n)).length, 1)
})

t.test('cycles are found once each, closed, beginning with their smallest node', async (t) => {
  const cycles = findCycles(
    new Map([
      ['c', ['a']],
      ['a', ['b', 'd']],
      ['b', ['c']],
      ['d', []],
      ['y', ['x']],
      ['x', ['y']]
    ])
  )
  t.strictSame(cycles, [
    ['a', 'b', 'c', 'a'],
    ['x', 'y', 'x']
  ])
  const chain = new Map(Array.from({ length: 50_000 }, (_, i) => [`n${i}`, [`n${i + 1}`]]))
  t.strictSame(findCycles(chain), [], 'a long chain is no cycle, and depth no limit')
})

t.test('the nearest isolate decides, overlays are merged from the outside in', async (t) => {
  const tree = [
    group('alpha', { isolate: { bar: true, qux: 'shared' }, intercept: { db: { a: 1, b: 1, c: 1 } } }),
    group('alpha:inner', { intercept: { db: { b: 2, c: 2 } } }),
    entry('alpha:inner:x', { isolate: { bar: 'beta' }, intercept: { db: { c: 3 } } }),
    entry('alpha:y'),
    entry('z', { isolate: 'label' })
  ]
  const byId = new Map(tree.map((each) => [each.id, each]))
  const scope = (id: string) => scopeOf(byId.get(id) as Entry, byId, ['out'], (owner) => `own:${owner}`)
  t.strictSame(scope('alpha:inner:x'), {
    realms: { bar: 'label:beta', qux: 'label:shared' },
    overlays: { db: { a: 1, b: 2, c: 3 } }
  })
  t.strictSame(scope('alpha:y').realms, { bar: 'own:alpha', qux: 'label:shared' })
  t.strictSame(scope('z'), { realms: { out: 'label:label' }, overlays: {} }, 'a bare label: what the entry provides')
})

t.test('only a scope that comes out otherwise rebuilds a fiber', async (t) => {
  const scoped = (each: Entry, all: readonly Entry[]) =>
    scopeOf(each, new Map(all.map((one) => [one.id, one])), [], (owner) => `own:${owner}`)
  const steps = (isolate: Entry['isolate'], next: Entry['isolate']) =>
    planSteps(
      [entry('a', isolate === undefined ? {} : { isolate })],
      [entry('a', next === undefined ? {} : { isolate: next })],
      { before: scoped, after: scoped, sees: () => ['bar'], renamed: [] }
    ).map(({ action }) => action)
  t.strictSame(steps(undefined, { bar: true }), ['rebuild-fiber'])
  t.strictSame(steps({ bar: true }, { bar: true, qux: true }), ['rescope'], 'the scope is passed on, and nobody told')
  t.strictSame(steps({ bar: 'x' }, { bar: 'y' }), ['rebuild-fiber'])
})

t.test('an entry that moves under another roof begins, ends or changes as the roof has it', async (t) => {
  const tree = [group('off', { disabled: true }), entry('a'), entry('off:b')]
  const moved = [group('off', { disabled: true }), entry('off:a'), entry('b')]
  const steps = planSteps(tree, moved, {
    before: () => ({ realms: {}, overlays: {} }),
    after: () => ({ realms: {}, overlays: {} }),
    sees: () => [],
    renamed: [
      ['a', 'off:a'],
      ['off:b', 'b']
    ]
  })
  t.strictSame(
    steps.map(({ action, id }) => `${action} ${id}`),
    ['begin b', 'retire off:a']
  )
})

function shape(move: Move): object {
  const before = move.entries[move.at + move.ids.length]?.id
  return { order: move.entries.map((each) => each.id), renamed: move.renamed, before }
}

t.test('a move takes the whole subtree along and renames it by one prefix', async (t) => {
  const tree = [group('g'), entry('g:a'), entry('u'), entry('g:a:b'), entry('g:a:b:deep'), group('t'), entry('t:one')]
  t.strictSame(shape(moveEntry(tree, 'g:a', null, undefined)), {
    order: ['g', 'u', 't', 't:one', 'a', 'a:b', 'a:b:deep'],
    renamed: [
      ['g:a', 'a'],
      ['g:a:b', 'a:b'],
      ['g:a:b:deep', 'a:b:deep']
    ],
    before: undefined
  })
  t.match(shape(moveEntry(tree, 'g:a', 't', 0)), {
    order: ['g', 'u', 't', 't:a', 't:a:b', 't:a:b:deep', 't:one'],
    before: 't:one'
  })
  t.match(shape(moveEntry(tree, 'u', 'g', undefined)), {
    order: ['g', 'g:a', 'g:a:b', 'g:a:b:deep', 'g:u', 't', 't:one']
  })
  t.strictSame(shape(moveEntry(tree, 'u', null, 0)), {
    order: ['u', 'g', 'g:a', 'g:a:b', 'g:a:b:deep', 't', 't:one'],
    renamed: [],
    before: 'g'
  })
  t.match(shape(moveEntry(tree, 'u', null, 99)), { order: ['g', 'g:a', 'g:a:b', 'g:a:b:deep', 't', 't:one', 'u'] })
})

t.test('a move that would lose or mix entries is refused in words, and nothing has changed', async (t) => {
  const tree = [
    group('g'),
    group('g:sub'),
    entry('g:sub:leaf'),
    entry('calc', { plugin: 'calculator' }),
    entry('g:calc')
  ]
  const refusal = (id: string, parent: string | null) => {
    try {
      moveEntry(tree, id, parent, undefined)
      return 'moved'
    } catch (error) {
      return (error as Error).message
    }
  }
  t.equal(refusal('', null), 'cannot move the empty id')
  t.equal(refusal('g', 'g'), "cannot move entry 'g' under itself")
  t.equal(refusal('g', 'g:sub:leaf'), "cannot move entry 'g' under its own descendant 'g:sub:leaf'")
  t.equal(refusal('calc', 'nowhere'), "no such entry 'nowhere'")
  t.equal(refusal('g:calc', null), "cannot rename 'g:calc' to 'calc': id already used by plugin 'calculator'")
})

t.test('entries that only point to a parent move with it and keep their ids', async (t) => {
  const tree = [group('g'), entry('p', { position: { parent: 'g', position: 0 } }), group('t'), group('outer')]
  const move = moveEntry(tree, 'g', 't', undefined)
  t.strictSame(move.renamed, [['g', 't:g']])
  t.strictSame(move.pointers, [['p', 't:g']])
  t.match(move.entries, [
    { id: 't' },
    { id: 't:g' },
    { id: 'p', position: { parent: 't:g', position: 0 } },
    { id: 'outer' }
  ])
})

t.test('H43 an id that two other entries have is no fault of a move', async (t) => {
  const tree = [group('g'), entry('twice'), entry('twice'), entry('a')]
  t.strictSame(moveEntry(tree, 'a', 'g', undefined).renamed, [['a', 'g:a']])
})
