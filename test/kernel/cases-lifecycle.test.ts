/** The life of a fiber: table B of the case list. */
import t from 'tap'
import type { Child, Context, Plugin, Undo } from '../../kernel/index.ts'
import { Listener } from '../../kernel/events.ts'
import { Kernel } from '../../kernel/kernel.ts'
import { startHouse } from '../harness.ts'
import {
  bare,
  consumerOf,
  latch,
  type Name,
  nextTurn,
  plugin,
  providerOf,
  reached,
  rested,
  stateOf,
  statesOf,
  statusOf,
  watch
} from './support.ts'

type AnyContext = Context<readonly Name[], readonly [], readonly Name[], { value: unknown }>

const house = (
  t: Parameters<typeof startHouse>[0],
  entries: Parameters<typeof startHouse>[1] = [],
  settings: NonNullable<Parameters<typeof startHouse>[2]>['settings'] = {}
) => startHouse(t, entries, { ...bare, settings })

/** An undo that takes a turn and says when it begins and ends. */
function slowUndo(log: string[], name: string): Undo {
  return async () => {
    log.push(`${name} begins`)
    await nextTurn()
    log.push(`${name} ends`)
  }
}

// B: the life of a fiber

t.test('B01 undos run last in first out, each after the one before has ended', async (t) => {
  const log: string[] = []
  const three = plugin({
    apply(ctx) {
      for (const name of ['a', 'b', 'c']) ctx.effect(() => slowUndo(log, name), name)
    }
  })
  const { kernel } = await house(t, [{ plugin: three, id: 'x' }])
  t.strictSame(statusOf(kernel, 'x')?.pendingUndoLabels, ['a', 'b', 'c'])
  await kernel.retire('x')
  t.strictSame(log, ['c begins', 'c ends', 'b begins', 'b ends', 'a begins', 'a ends'])
})

t.test('B02 a mounted plugin is undone in its turn among the effects', async (t) => {
  const log: string[] = []
  const child = plugin({ name: 'child', apply: (ctx) => ctx.effect(() => slowUndo(log, 'child')) })
  const parent = plugin({
    apply(ctx) {
      ctx.effect(() => slowUndo(log, 'a'))
      ctx.mount(child)
      ctx.effect(() => slowUndo(log, 'b'))
    }
  })
  const order = ['b begins', 'b ends', 'child begins', 'child ends', 'a begins', 'a ends']
  const { kernel } = await house(t, [{ plugin: parent, id: 'x' }])
  t.strictSame(statesOf(kernel), ['x/child: Active', 'x: Active'])
  await kernel.update('x', { value: 2 })
  await rested(kernel)
  t.strictSame(log.splice(0), order, 'in a swap')
  t.strictSame(statesOf(kernel), ['x/child: Active', 'x: Active'])
  await kernel.stop()
  t.strictSame(log, order, 'when all is stopped')
})

t.test('B02 a plugin waits with its own end for what the plugins it mounted still serve', async (t) => {
  const log: string[] = []
  const serving = latch()
  const child = plugin({
    name: 'child',
    apply(ctx) {
      const lease = ctx.lease()
      void serving.promise.then(() => {
        log.push('served')
        lease.release()
      })
    }
  })
  const parent = plugin({
    apply(ctx) {
      ctx.mount(child)
      ctx.effect(() => () => log.push('parent undone'))
    }
  })
  const { kernel } = await house(t, [{ plugin: parent, id: 'x' }])
  const retired = kernel.retire('x')
  await nextTurn()
  t.strictSame(log, [])
  serving.open()
  await retired
  t.strictSame(log, ['served', 'parent undone'])
})

t.test('B02 what mounted plugins serve is told to end when too many generations are on their way out', async (t) => {
  const reasons: unknown[] = []
  const child = plugin({
    name: 'child',
    apply(ctx) {
      const lease = ctx.lease()
      lease.signal.addEventListener('abort', () => {
        reasons.push(lease.signal.reason)
        lease.release()
      })
    }
  })
  const { kernel } = await house(t, [{ plugin: plugin({ apply: (ctx) => void ctx.mount(child) }), id: 'x' }])
  for (let value = 2; value <= 10; value++) {
    await kernel.update('x', { value })
    await kernel.settled()
  }
  t.match(reasons, [{ code: 'DRAIN_TIMEOUT', message: "entry 'x' has been replaced 8 times since" }])
  await kernel.stop(20)
})

t.test('B03 an undo that throws does not keep the others from it, and is logged once', async (t) => {
  const log: string[] = []
  const three = plugin({
    apply(ctx) {
      ctx.effect(() => () => log.push('a'))
      ctx.effect(() => () => Promise.reject(new Error('no undo today')), 'bad')
      ctx.effect(() => () => log.push('c'))
    }
  })
  const { kernel, lines } = await house(t, [{ plugin: three, id: 'x' }])
  const fiber = kernel.fiber('x')
  await kernel.retire('x')
  t.strictSame(log, ['c', 'a'])
  t.match(
    lines.filter((line) => line.level === 'error'),
    [{ message: 'an undo failed', label: 'bad', entry: 'x' }]
  )
  t.match(fiber, { state: 'Inactive', disposed: true })
})

t.test('B04 every undo of one effect is attempted', async (t) => {
  const log: string[] = []
  const composite = plugin({
    apply(ctx) {
      ctx.effect(function* () {
        yield () => log.push('1')
        yield () => {
          throw new Error('no undo today')
        }
        yield () => log.push('3')
      }, 'composite')
    }
  })
  const { kernel } = await house(t, [{ plugin: composite, id: 'x' }])
  t.strictSame(statusOf(kernel, 'x')?.pendingUndoLabels, ['composite', 'composite', 'composite'])
  await kernel.retire('x')
  t.strictSame(log, ['3', '1'])
})

t.test('B05 two that dispose at once both wait for the one undo', async (t) => {
  let ctx: AnyContext | undefined
  const log: string[] = []
  const slow = latch()
  const one = plugin({
    apply(own) {
      ctx = own
      own.effect(() => () => slow.promise.then(() => log.push('undone')))
    }
  })
  const { kernel } = await house(t, [{ plugin: one, id: 'x' }])
  const disposed = [kernel.retire('x'), kernel.retire('x'), ctx?.dispose()].map((promise, at) =>
    promise?.then(() => log.push(`disposed ${at}`))
  )
  await nextTurn()
  t.strictSame(log, [])
  slow.open()
  for (const each of disposed) await each
  t.strictSame([log[0], log.slice(1).sort()], ['undone', ['disposed 0', 'disposed 1', 'disposed 2']])
})

t.test('B06 disposing what is gone does nothing', async (t) => {
  let ctx: AnyContext | undefined
  let undone = 0
  const one = plugin({
    apply(own) {
      ctx = own
      own.effect(() => () => (undone += 1))
    }
  })
  const { kernel } = await house(t, [{ plugin: one, id: 'x' }])
  const fiber = kernel.fiber('x')
  await kernel.retire('x')
  await Promise.all([kernel.retire('x'), kernel.retire('never was'), fiber?.retire(), ctx?.dispose()])
  t.equal(undone, 1)
})

t.test('B07 a context that has ended makes nothing any more', async (t) => {
  let ctx: AnyContext | undefined
  const { kernel } = await house(t, [{ plugin: plugin({ apply: (own) => void (ctx = own) }), id: 'x' }])
  await kernel.retire('x')
  const refused = { code: 'KERNEL_INACTIVE', message: /^cannot create effect on inactive context/ }
  const never = () => void t.fail('it was run')
  t.throws(() => ctx?.effect(never), refused)
  t.throws(() => ctx?.on('case/a', never), refused)
  t.throws(() => ctx?.mount(plugin({ apply: never })), refused)
  t.throws(() => ctx?.provide('foo', { get: never }), refused)
  t.throws(() => ctx?.contribute('words', 'late'), refused)
  t.throws(() => ctx?.setTimeout(never, 0), refused)
  t.throws(() => ctx?.setInterval(never, 0), refused)
  t.throws(() => ctx?.onUpdate(never), refused)
  await t.rejects(async () => ctx?.resource('r', 1, never, never), refused)
  await nextTurn()
  kernel.events.emit('case/a')
})

t.test('B08 an undo that makes a new effect is refused', async (t) => {
  const bad = consumerOf(['foo'], [], {
    apply(ctx) {
      ctx.effect(() => () => ctx.effect(() => void t.fail('it was run')), 'bad')
    }
  })
  const { kernel, lines } = await house(t, [
    { plugin: providerOf('foo'), id: 'p' },
    { plugin: bad, id: 'c' }
  ])
  await kernel.retire('p')
  await rested(kernel)
  t.match(statusOf(kernel, 'c'), { state: 'Pending', pendingUndoCount: 0 })
  t.match(
    lines.filter((line) => line.message === 'an undo failed'),
    [{ label: 'bad', error: { code: 'KERNEL_INACTIVE' } }]
  )
})

t.test('B09 what an effect made too late is undone at once; a failure of that is logged', async (t) => {
  const log: string[] = []
  const making = latch()
  const late = plugin({
    apply(ctx) {
      for (const end of [() => void log.push('undone'), () => Promise.reject(new Error('no undo today'))]) {
        void ctx.effect(() => making.promise.then(() => end), 'late')
      }
    }
  })
  const { kernel, lines } = await house(t, [{ plugin: late, id: 'x' }])
  await kernel.retire('x')
  t.strictSame(log, [])
  making.open()
  await nextTurn()
  t.strictSame(log, ['undone'])
  t.match(
    lines.filter((line) => line.level === 'error'),
    [{ message: 'an undo failed', label: 'late' }]
  )
})

for (const [id, fail] of [
  [
    'B10',
    () => {
      throw new Error('no luck')
    }
  ],
  ['B11', () => Promise.reject(new Error('no luck'))]
] as const) {
  t.test(`${id} an apply that ${id === 'B10' ? 'throws' : 'rejects'} leaves nothing but its error`, async (t) => {
    let heard = 0
    const { kernel } = await house(t)
    const failing = plugin({
      apply(ctx) {
        ctx.on('case/a', () => (heard += 1))
        return fail()
      }
    })
    const states = watch(kernel, 'x')
    await t.rejects(kernel.begin({ id: 'x', plugin: failing }), { message: 'no luck' })
    kernel.events.emit('case/a')
    t.equal(heard, 0)
    t.match(statusOf(kernel, 'x'), { state: 'Failed', error: 'no luck', pendingUndoCount: 0 })
    t.strictSame(states, ['Loading', 'Unloading', 'Failed'])
  })
}

t.test('B12 what has failed is not tried again because a service goes and comes', async (t) => {
  let runs = 0
  const failing = consumerOf(['foo'], [], {
    apply() {
      runs += 1
      throw new Error('no luck')
    }
  })
  const { kernel } = await house(t, [{ plugin: providerOf('foo'), id: 'p' }])
  await t.rejects(kernel.begin({ id: 'x', plugin: failing }))
  const states = watch(kernel, 'x')
  await kernel.retire('p')
  await rested(kernel)
  t.match(statusOf(kernel, 'x'), { state: 'Failed', error: 'no luck' })
  await kernel.begin({ id: 'p', plugin: providerOf('foo') })
  await rested(kernel)
  t.match(statusOf(kernel, 'x'), { state: 'Failed', error: 'no luck' })
  t.strictSame([runs, states], [1, []])
})

t.test('B12 a start that fails because its service went away meanwhile has not failed', async (t) => {
  const using = latch()
  let runs = 0
  const user = consumerOf(['foo'], [], {
    async apply(ctx) {
      runs += 1
      if (runs > 1) return
      await using.promise
      throw new Error(`used ${String(ctx.services.foo.get())}`)
    }
  })
  const { kernel } = await house(t, [{ plugin: providerOf('foo'), id: 'p' }])
  const begun = kernel.begin({ id: 'x', plugin: user })
  await nextTurn()
  const retired = kernel.retire('p')
  using.open()
  await Promise.all([begun, retired])
  t.equal(stateOf(kernel, 'x'), 'Inactive')
  await kernel.begin({ id: 'p', plugin: providerOf('foo') })
  await rested(kernel)
  t.equal(stateOf(kernel, 'x'), 'Active')
})

/** Fails with the value `bad`. */
const fussy = (applied: unknown[] = []) =>
  plugin({
    apply(_ctx, value) {
      applied.push(value)
      if (value === 'bad') throw new Error('bad value')
    }
  })

t.test('B13 a good config brings back what has failed', async (t) => {
  const { kernel } = await house(t)
  await t.rejects(kernel.begin({ id: 'x', plugin: fussy(), config: { value: 'bad' } }))
  await kernel.update('x', { value: 'good' })
  t.match(statusOf(kernel, 'x'), { state: 'Active', error: null })
})

/** A consumer of foo whose apply and undo last as long as a test wants. */
function lasting() {
  const applying: ReturnType<typeof latch>[] = []
  const undoing: ReturnType<typeof latch>[] = []
  const log: string[] = []
  const consumer = consumerOf(['foo'], log, {
    apply(ctx) {
      const [begun, ended] = [latch(), latch()]
      applying.push(begun)
      undoing.push(ended)
      ctx.effect(() => () => ended.promise)
      return begun.promise
    }
  })
  return { applying, undoing, log, consumer }
}

t.test('B14 one that loses its service while it loads ends loading, then unloads, then waits', async (t) => {
  const { applying, undoing, log, consumer } = lasting()
  const { kernel } = await house(t, [{ plugin: providerOf('foo'), id: 'p' }])
  const begun = kernel.begin({ id: 'c', plugin: consumer })
  await nextTurn()
  const states = watch(kernel, 'c')
  const retired = kernel.retire('p')
  await nextTurn()
  t.equal(stateOf(kernel, 'c'), 'Loading')
  applying[0]?.open()
  await reached(kernel, 'c', 'Unloading')
  undoing[0]?.open()
  await Promise.all([begun, retired])
  t.strictSame(states, ['Unloading', 'Inactive'], 'as ruled: Pending is for what was active once')
  t.strictSame(log, ['up foo=1', 'down foo=1'])
})

t.test('B15 and loads anew when the service returns meanwhile', async (t) => {
  const { applying, undoing, log, consumer } = lasting()
  const { kernel } = await house(t, [{ plugin: providerOf('foo'), id: 'p' }])
  const begun = kernel.begin({ id: 'c', plugin: consumer })
  await nextTurn()
  void kernel.retire('p')
  applying[0]?.open()
  await reached(kernel, 'c', 'Unloading')
  await kernel.begin({ id: 'p2', plugin: providerOf('foo'), config: { value: 2 } })
  t.equal(stateOf(kernel, 'c'), 'Unloading')
  undoing[0]?.open()
  await reached(kernel, 'c', 'Loading')
  applying[1]?.open()
  await begun
  t.equal(stateOf(kernel, 'c'), 'Active')
  t.equal(log.at(-1), 'up foo=2')
  undoing[1]?.open()
})

t.test('B15 one that cannot overlap waits for its own end, and then for nothing that is old', async (t) => {
  const undoing = latch()
  const applied: unknown[] = []
  const exclusive = consumerOf(['foo'], [], {
    exclusive: true,
    apply(ctx, value) {
      applied.push(value)
      if (value === 1) ctx.effect(() => () => undoing.promise)
    }
  })
  const { kernel } = await house(t, [
    { plugin: providerOf('foo'), id: 'p' },
    { plugin: exclusive, id: 'c' }
  ])
  const retired = kernel.retire('p')
  await kernel.begin({ id: 'p2', plugin: providerOf('foo') })
  await nextTurn()
  t.equal(stateOf(kernel, 'c'), 'Unloading')
  const updated = kernel.update('c', { value: 2 })
  undoing.open()
  await Promise.all([retired, updated])
  t.strictSame(applied, [1, 2])
})

t.test('B15 nor does it overlap with one of its id that was retired before; only one takes its place', async (t) => {
  const undoing = latch()
  let applied = 0
  const exclusive = plugin({
    exclusive: true,
    apply(ctx) {
      applied += 1
      if (applied === 1) ctx.effect(() => () => undoing.promise)
    }
  })
  const { kernel } = await house(t, [{ plugin: exclusive, id: 'x' }])
  const retired = kernel.retire('x')
  const begun = [1, 2].map(() => kernel.begin({ id: 'x', plugin: exclusive }))
  await nextTurn()
  t.equal(applied, 1)
  undoing.open()
  const outcomes = await Promise.allSettled(begun)
  await retired
  t.match(outcomes, [{ status: 'fulfilled' }, { status: 'rejected', reason: { code: 'KERNEL_DUPLICATE_ENTRY' } }])
  t.strictSame([applied, statesOf(kernel)], [2, ['x: Active']])
})

t.test('B16 a service that went and came back while one loads is another one: it loads anew', async (t) => {
  const { applying, undoing, log, consumer } = lasting()
  const { kernel } = await house(t, [{ plugin: providerOf('foo'), id: 'p' }])
  const begun = kernel.begin({ id: 'c', plugin: consumer })
  await nextTurn()
  void kernel.retire('p')
  await kernel.begin({ id: 'p2', plugin: providerOf('foo'), config: { value: 2 } })
  undoing[0]?.open()
  applying[0]?.open()
  await reached(kernel, 'c', 'Unloading')
  await reached(kernel, 'c', 'Loading')
  applying[1]?.open()
  await begun
  t.strictSame(log, ['up foo=1', 'down foo=2', 'up foo=2'])
  undoing[1]?.open()
})

t.test('B17 disposing one that loads waits for its apply, which is told, and undoes what it made', async (t) => {
  const applying = latch()
  const log: string[] = []
  let signal: AbortSignal | undefined
  const loading = plugin({
    async apply(ctx) {
      signal = ctx.signal
      ctx.effect(() => () => log.push('early'))
      await applying.promise
      await ctx.effect(() => Promise.resolve(() => log.push('returned')))
    }
  })
  const { kernel } = await house(t)
  const begun = kernel.begin({ id: 'x', plugin: loading })
  await nextTurn()
  const fiber = kernel.fiber('x')
  const retired = kernel.retire('x').then(() => log.push('retired'))
  t.match(signal?.reason, { code: 'KERNEL_START_GIVEN_UP' })
  t.equal(stateOf(kernel, 'x'), 'Loading')
  await nextTurn()
  t.strictSame(log, [])
  applying.open()
  await Promise.all([begun, retired])
  t.strictSame(log, ['returned', 'early', 'retired'], 'as ruled: what it makes until it ends is taken, and undone')
  t.match(fiber, { state: 'Inactive', disposed: true })
})

t.test('B18 disposing one whose apply hangs is refused within its time, by name; the rest goes on', async (t) => {
  const hanging = latch()
  const log: string[] = []
  const stuck = plugin({
    async apply(ctx) {
      ctx.effect(() => () => log.push('undone'))
      await hanging.promise
      await ctx.effect(() => Promise.resolve(() => log.push('undone late')))
    }
  })
  const { kernel, lines } = await house(t, [], { apply_timeout_ms: 20 })
  const begun = kernel.begin({ id: 'x', plugin: stuck })
  await nextTurn()
  const expected = { code: 'KERNEL_STUCK', message: /^fiber 1 \(entry 'x'\) stuck in transition over 20 ms/ }
  await Promise.all([t.rejects(kernel.retire('x'), expected), t.rejects(begun, expected)])
  t.match(
    lines.filter((line) => line.level === 'error'),
    [{ message: expected.message }]
  )
  t.strictSame(kernel.fibers(), [])
  await kernel.begin({ id: 'x', plugin: plugin({}) })
  t.equal(stateOf(kernel, 'x'), 'Active')
  t.strictSame(log, ['undone'])
  hanging.open()
  await nextTurn()
  t.strictSame(log, ['undone'], 'what it goes on to do is refused')
})

t.test('B18 stopping does not wait for an apply or an undo that hangs', async (t) => {
  const never = 2_147_483_647
  const { kernel } = await house(t, [], { undo_timeout_ms: never, apply_timeout_ms: never })
  void kernel.begin({ id: 'x', plugin: plugin({ apply: () => new Promise(() => {}) }) }).catch(() => {})
  await kernel.begin({ id: 'y', plugin: plugin({ apply: (ctx) => ctx.effect(() => () => new Promise(() => {})) }) })
  await kernel.stop(40)
  t.strictSame(kernel.fibers(), [])
})

t.test('B18 a provider that goes does not wait for ever for a consumer that hangs', async (t) => {
  const { kernel } = await house(t, [{ plugin: providerOf('foo'), id: 'p' }], { apply_timeout_ms: 20 })
  void kernel.begin({ id: 'c', plugin: consumerOf(['foo'], [], { apply: () => new Promise(() => {}) }) })
  await nextTurn()
  await kernel.retire('p')
  t.strictSame(statesOf(kernel), ['c: Inactive'])
})

t.test('B19 a plugin that disposes itself within apply or an undo is refused at once', async (t) => {
  const refusals: unknown[] = []
  const dispose = (ctx: AnyContext) => ctx.dispose().catch((error: unknown) => void refusals.push(error))
  const reentrant = plugin({
    apply(ctx) {
      ctx.effect(() => () => dispose(ctx))
      return dispose(ctx)
    }
  })
  const { kernel } = await house(t, [{ plugin: reentrant, id: 'x' }])
  t.equal(stateOf(kernel, 'x'), 'Active')
  await kernel.retire('x')
  const refusal = { code: 'KERNEL_REENTRANT', message: /^reentrant transition on fiber 1/ }
  t.match(refusals, [refusal, refusal])
})

t.test('B19 an old generation that disposes itself does not end the one that has replaced it', async (t) => {
  const contexts: AnyContext[] = []
  const { kernel } = await house(t, [{ plugin: plugin({ apply: (ctx) => void contexts.push(ctx) }), id: 'x' }])
  const lease = contexts[0]?.lease()
  await kernel.update('x', { value: 2 })
  await contexts[0]?.dispose()
  lease?.release()
  await rested(kernel)
  await contexts[0]?.dispose()
  t.equal(stateOf(kernel, 'x'), 'Active')
  const told: string[] = []
  kernel.onSelfDisposed((id) => told.push(id))
  await contexts[1]?.dispose()
  t.strictSame([kernel.fibers(), told], [[], ['x']])
})

t.test('B20 a new config is applied; the fiber keeps its id (as ruled: R18, beside the old one)', async (t) => {
  const applied: unknown[] = []
  const { kernel } = await house(t, [{ plugin: fussy(applied), id: 'x' }])
  const before = statusOf(kernel, 'x')
  const states = watch(kernel, 'x')
  await kernel.update('x', { value: 2 })
  t.strictSame(applied, [1, 2])
  t.match(statusOf(kernel, 'x'), { fiberId: before?.fiberId, generation: 2, state: 'Active' })
  t.strictSame(states, ['Reloading', 'Active'])
})

t.test('B21 B22 of the updates that come while it loads only the last is applied, and it is', async (t) => {
  const applied: unknown[] = []
  const first = latch()
  const slow = plugin({
    async apply(_ctx, value) {
      applied.push(value)
      if (value === 1) await first.promise
    }
  })
  const { kernel } = await house(t)
  const begun = kernel.begin({ id: 'x', plugin: slow })
  await nextTurn()
  const updates = [2, 3, 4, 5, 6].map((value) => kernel.update('x', { value }))
  first.open()
  await Promise.all([begun, ...updates])
  t.strictSame(applied, [1, 6])
  t.match(kernel.fiber('x')?.target?.config, { value: 6 })
})

t.test('B22 each update is answered with what became of it, or of a later one', async (t) => {
  const { kernel } = await house(t, [{ plugin: fussy(), id: 'x' }])
  const outcomes = await Promise.allSettled(['good', 'bad'].map((value) => kernel.update('x', { value })))
  t.strictSame(
    outcomes.map((outcome) => outcome.status),
    ['rejected', 'rejected']
  )
  t.match(kernel.fiber('x')?.target?.config, { value: 1 })
  const again = await Promise.allSettled(['bad', 'good'].map((value) => kernel.update('x', { value })))
  t.strictSame(
    again.map((outcome) => outcome.status),
    ['fulfilled', 'fulfilled']
  )
  t.match(kernel.fiber('x')?.target?.config, { value: 'good' })
})

t.test('B22 what failed does not count any more when another config came while it was undone', async (t) => {
  const undoing = latch()
  const failing = plugin({
    apply(ctx, value) {
      if (value !== 'bad') return
      ctx.effect(() => () => undoing.promise)
      throw new Error('bad value')
    }
  })
  const { kernel } = await house(t)
  const states = watch(kernel, 'x')
  const begun = kernel.begin({ id: 'x', plugin: failing, config: { value: 'bad' } })
  await nextTurn()
  const updated = kernel.update('x', { value: 'good' })
  undoing.open()
  await Promise.all([begun, updated])
  t.strictSame(states, ['Loading', 'Unloading', 'Loading', 'Active'])
})

/** Takes what `decide` says of a new config; hears what it was asked. */
function deciding(decide: (value: unknown) => 'handled' | 'veto' | undefined) {
  const applied: unknown[] = []
  const asked: unknown[] = []
  const decider = plugin({
    optional: ['foo'],
    apply(ctx, value) {
      applied.push(value)
      ctx.onUpdate((config) => {
        asked.push(config.value)
        return decide(config.value)
      })
    }
  })
  return { applied, asked, decider }
}

t.test('B23 a plugin may take a new config in place: nothing is built, and it never leaves Active', async (t) => {
  const { applied, asked, decider } = deciding(() => 'handled')
  const { kernel } = await house(t, [{ plugin: decider, id: 'x' }])
  const states = watch(kernel, 'x')
  await kernel.update('x', { value: 2 })
  t.strictSame([applied, asked, states], [[1], [2], []])
  t.match(kernel.fiber('x')?.target?.config, { value: 2 })
  t.match(statusOf(kernel, 'x'), { state: 'Active', generation: 1 })

  await kernel.begin({ id: 'p', plugin: providerOf('foo') })
  await rested(kernel)
  t.strictSame([applied, asked], [[1, 2], [2]], 'for a service that comes it is built with the newest, unasked')
})

t.test('B24 a hook is asked once for each update, however many generations there were', async (t) => {
  const { asked, decider } = deciding(() => undefined)
  const { kernel } = await house(t, [{ plugin: decider, id: 'x' }])
  for (const value of [2, 3, 4]) await kernel.update('x', { value })
  t.strictSame(asked, [2, 3, 4])
})

t.test('B25 an invalid config is refused with what is wrong; the old one serves', async (t) => {
  const applied: unknown[] = []
  const { kernel } = await house(t, [{ plugin: fussy(applied), id: 'x' }])
  await t.rejects(kernel.update('x', { wert: 2 }), {
    code: 'PLUGIN_CONFIG_INVALID',
    detail: { issues: [{ path: ['wert'], message: 'unknown key wert' }] }
  })
  t.strictSame(applied, [1])
  t.equal(stateOf(kernel, 'x'), 'Active')
})

t.test('B26 an invalid config never starts anything (as ruled: it is refused before a fiber is made)', async (t) => {
  const applied: unknown[] = []
  const { kernel } = await house(t)
  await t.rejects(kernel.begin({ id: 'x', plugin: fussy(applied), config: { wert: 2 } }), {
    code: 'PLUGIN_CONFIG_INVALID',
    detail: { issues: [{ path: ['wert'] }] }
  })
  let refusal: unknown
  const parent = plugin({
    apply(ctx) {
      try {
        ctx.mount(fussy(applied), { wert: 2 })
      } catch (error) {
        refusal = error
      }
    }
  })
  await kernel.begin({ id: 'parent', plugin: parent })
  t.match(refusal, { code: 'PLUGIN_CONFIG_INVALID' })
  t.strictSame([applied, statesOf(kernel)], [[], ['parent: Active']])
})

t.test('B27 a plugin may refuse a config: it is kept to be seen, and nothing else happens', async (t) => {
  const { applied, decider } = deciding((value) => (value === 2 ? 'veto' : undefined))
  const { kernel } = await house(t, [{ plugin: decider, id: 'x' }])
  await kernel.update('x', { value: 2 })
  t.strictSame(applied, [1])
  t.match(kernel.fiber('x'), { state: 'Active', vetoedConfig: { value: 2 }, target: { config: { value: 1 } } })
  await kernel.update('x', { value: 3 })
  t.match(kernel.fiber('x'), { vetoedConfig: undefined, target: { config: { value: 3 } } })
})

t.test('B28 a hook that fails, or never answers, fails the update; the old config serves', async (t) => {
  const hooked = plugin({
    apply(ctx) {
      ctx.onUpdate((config) => {
        if (config.value === 2) throw new Error('no idea')
        return new Promise(() => {})
      })
    }
  })
  const { kernel } = await house(t, [{ plugin: hooked, id: 'x' }], { apply_timeout_ms: 20 })
  await t.rejects(kernel.update('x', { value: 2 }), { message: 'no idea' })
  await t.rejects(kernel.update('x', { value: 3 }), { code: 'KERNEL_APPLY_TIMEOUT', message: /update hook of plugin/ })
  t.match(kernel.fiber('x'), { state: 'Active', target: { config: { value: 1 } } })
})

t.test('B29 an observer that fails is nobody else`s failure', async (t) => {
  const heard: string[] = []
  const { kernel } = await house(t)
  const observers = [
    () => {
      throw new Error('no luck')
    },
    () => Promise.reject(new Error('no luck')),
    (status: { state: string }) => void heard.push(status.state)
  ]
  for (const observe of observers) kernel.events.add('kernel/fiber-changed', new Listener(observe, undefined))
  await kernel.begin({ id: 'x', plugin: plugin({}) })
  t.equal(stateOf(kernel, 'x'), 'Active')
  t.strictSame(heard, ['Loading', 'Active'])
})

t.test('B30 a fiber that loses its service and gets it back goes through every state in order', async (t) => {
  const { kernel } = await house(t, [
    { plugin: providerOf('foo'), id: 'p' },
    { plugin: consumerOf(['foo']), id: 'c' }
  ])
  const states = watch(kernel, 'c')
  await kernel.retire('p')
  await kernel.begin({ id: 'p', plugin: providerOf('foo') })
  await rested(kernel)
  t.strictSame(states, ['Reloading', 'Unloading', 'Pending', 'Loading', 'Active'])
})

t.test('B31 whatever state it was in, a disposed fiber is Inactive and says so once', async (t) => {
  const foo = providerOf('foo')
  const { kernel } = await house(t, [
    { plugin: foo, id: 'p' },
    { plugin: consumerOf(['foo']), id: 'Pending' },
    { plugin: consumerOf(['bar']), id: 'Inactive' },
    { plugin: fussy(), id: 'Active' }
  ])
  await t.rejects(kernel.begin({ id: 'Failed', plugin: fussy(), config: { value: 'bad' } }))
  await kernel.retire('p')
  await rested(kernel)
  const last: string[] = []
  const onChange = (status: { entry: string; state: string; disposed: boolean }) => {
    if (status.disposed) last.push(`${status.entry}: ${status.state}`)
  }
  kernel.events.add('kernel/fiber-changed', new Listener(onChange, undefined))
  for (const id of ['Pending', 'Inactive', 'Active', 'Failed']) {
    const fiber = kernel.fiber(id)
    t.equal(fiber?.state, id)
    await kernel.retire(id)
    t.match(fiber, { state: 'Inactive', disposed: true, error: undefined })
    t.strictSame(last.splice(0), [`${id}: Inactive`])
  }
})

t.test('B32 a thousand fibers that come and go leave no trace', async (t) => {
  const { kernel } = await house(t, [{ plugin: providerOf('bar') }])
  let heard = 0
  const busy = providerOf('foo', {
    inject: ['bar'],
    optional: ['qux'],
    async apply(ctx) {
      ctx.on('case/a', () => (heard += 1))
      ctx.contribute('words', 'word')
      ctx.setInterval(() => {}, 1_000_000)
      ctx.mount(plugin({ name: 'child' }))
      ctx.effect(() => () => {})
      await ctx.resource(
        'r',
        1,
        () => 1,
        () => {}
      )
    }
  })
  const slots = (['foo', 'bar', 'qux'] as const).map((name) => kernel.services.slot(name))
  const world = () => ({
    fibers: statesOf(kernel),
    users: slots.map((slot) => [slot.consumers.size, slot.users.size, slot.provider !== undefined]),
    words: kernel.collection('words').items.length,
    resources: kernel.resources.size,
    realms: kernel.services.size,
    timers: process.getActiveResourcesInfo().filter((name) => name === 'Timeout').length
  })
  const before = world()
  for (let i = 0; i < 1_000; i++) {
    const overlays = { bar: { i } }
    await kernel.begin({ id: 'x', plugin: busy, realms: { foo: `private:${i}` }, overlays })
    if (i === 0) kernel.events.emit('case/a')
    await kernel.retire('x')
  }
  t.strictSame(world(), before)
  kernel.events.emit('case/a')
  t.equal(heard, 1, 'and nobody listens any more')
})

t.test('B33 plugins mounted by plugins mounted by plugins all go with the first', async (t) => {
  let heard = 0
  const nested = (depth: number): Plugin =>
    plugin({
      name: `depth-${depth}`,
      apply(ctx) {
        ctx.on('case/a', () => (heard += 1))
        if (depth < 3) ctx.mount(nested(depth + 1))
      }
    })
  const { kernel } = await house(t, [{ plugin: nested(0), id: 'x' }])
  t.equal(kernel.fibers().length, 4)
  kernel.events.emit('case/a')
  t.equal(heard, 4)
  const retired = kernel.retire('x')
  kernel.events.emit('case/a')
  t.equal(heard, 4, 'out of sight at once')
  await retired
  t.strictSame(kernel.fibers(), [])
})

t.test('B33 a mounted plugin has a life of its own within that of its parent', async (t) => {
  const log: string[] = []
  let child: Child | undefined
  let gate: { open(): void; close(): void } | undefined
  let failing: Child | undefined
  const parent = plugin({
    apply(ctx) {
      gate = ctx.gate('ready')
      child = ctx.mount(
        consumerOf(['foo'], log, { name: 'child', apply: (_ctx, value) => void log.push(`v${String(value)}`) })
      )
      failing = ctx.mount(fussy(), { value: 'bad' })
    }
  })
  const { kernel } = await house(t, [
    { plugin: parent, id: 'x' },
    { plugin: providerOf('foo'), id: 'p' }
  ])
  t.strictSame(statesOf(kernel), ['p: Active', 'x: Pending'], 'it starts with the commit of its parent')
  gate?.open()
  await rested(kernel)
  t.strictSame(statesOf(kernel), ['p: Active', 'x/child: Active', 'x/plugin: Failed', 'x: Active'])
  await failing?.dispose()
  await child?.update({ value: 2 })
  await rested(kernel)
  t.strictSame(log.splice(0), ['up foo=1', 'v1', 'up foo=1', 'v2', 'down foo=1'])

  gate?.close()
  await rested(kernel)
  t.strictSame(statesOf(kernel), ['p: Active', 'x/child: Pending', 'x: Pending'])
  await kernel.update('p', { value: 3 })
  await rested(kernel)
  t.equal(stateOf(kernel, 'x/child'), 'Pending', 'it does not come back without its parent')
  gate?.open()
  await rested(kernel)
  t.strictSame(log.splice(0), ['down foo=1', 'up foo=3', 'v2'])

  const before = statusOf(kernel, 'x')?.pendingUndoCount
  await child?.dispose()
  t.equal(statusOf(kernel, 'x')?.pendingUndoCount, (before ?? 0) - 1)
  t.strictSame(statesOf(kernel), ['p: Active', 'x: Active'])
})

t.test('B33 a mounted plugin that disposes itself does not end its parent, and the program is not told', async (t) => {
  const told: string[] = []
  let own: AnyContext | undefined
  const parent = plugin({ apply: (ctx) => void ctx.mount(plugin({ apply: (inner) => void (own = inner) })) })
  const { kernel } = await house(t, [{ plugin: parent, id: 'x' }])
  kernel.onSelfDisposed((id) => told.push(id))
  await own?.dispose()
  t.strictSame([statesOf(kernel), told], [['x: Active'], []])
})

t.test('B35 independent plugins end up the same in whatever order they come', async (t) => {
  const plugins: Record<string, Plugin> = {
    foo: providerOf('foo'),
    bar: providerOf('bar', { inject: ['foo'] }),
    user: consumerOf(['foo', 'bar']),
    maybe: plugin({ optional: ['bar'] }),
    waiting: consumerOf(['qux'])
  }
  const ends = new Set<string>()
  const orders = permutations(Object.keys(plugins))
  for (const order of orders) {
    const kernel = new Kernel()
    for (const id of order) void kernel.begin({ id, plugin: plugins[id] as Plugin })
    await rested(kernel)
    ends.add(statesOf(kernel).join())
    await kernel.stop()
  }
  t.equal(orders.length, 120)
  t.strictSame([...ends], ['bar: Active,foo: Active,maybe: Active,user: Active,waiting: Inactive'])
})

t.test(
  'B36 a kernel that is stopped has nothing left (as ruled: it starts nothing again; another one does)',
  async (t) => {
    const { kernel } = await house(t, [{ plugin: providerOf('foo'), id: 'p' }, { plugin: consumerOf(['foo']) }])
    await kernel.stop()
    t.strictSame([kernel.fibers(), kernel.service('foo')], [[], undefined])
    await t.rejects(kernel.begin({ id: 'p', plugin: providerOf('foo') }), { code: 'KERNEL_STOPPING' })
    const another = new Kernel()
    await another.begin({ id: 'p', plugin: providerOf('foo') })
    t.equal(another.service('foo')?.get(), 1)
    await another.stop()
  }
)

function permutations<T>(items: readonly T[]): T[][] {
  if (items.length === 0) return [[]]
  return items.flatMap((item, at) => permutations(items.toSpliced(at, 1)).map((rest) => [item, ...rest]))
}
