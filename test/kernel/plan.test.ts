import t from 'tap'
import { findCycles } from '../../kernel/cycles.ts'
import { enabledIds, planSteps } from '../../kernel/plan.ts'
import type { Entry } from '../../kernel/program.ts'

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
      ['retire g:a', 'retire g:sub:c']
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
