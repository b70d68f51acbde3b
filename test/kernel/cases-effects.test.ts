/** Effects, timers and events: tables D and E of the case list. */
import t from 'tap'
import type { EventBus, Undo } from '../../kernel/index.ts'
import { startHouse } from '../harness.ts'
import { bare, latch, nextTurn, plugin, providerOf, rested, stateOf, statesOf, statusOf } from './support.ts'

const house = (t: Parameters<typeof startHouse>[0], entries: Parameters<typeof startHouse>[1] = []) =>
  startHouse(t, entries, bare)

/** An undo that takes a turn and says when it begins and ends. */
function slowUndo(log: string[], name: string): Undo {
  return async () => {
    log.push(`${name} begins`)
    await nextTurn()
    log.push(`${name} ends`)
  }
}

// D: effects and timers

t.test('D01 what a generator yields is undone in reverse, with the effects made between', async (t) => {
  const log: string[] = []
  const generating = plugin({
    apply(ctx) {
      ctx.effect(function* () {
        yield () => log.push('1')
        ctx.effect(() => () => log.push('2'))
        yield () => log.push('3')
      })
    }
  })
  const { kernel } = await house(t, [{ plugin: generating, id: 'x' }])
  await kernel.retire('x')
  await kernel.retire('x')
  t.strictSame(log, ['3', '2', '1'])
})

t.test('D02 an effect that is under way when its fiber goes is undone when it is there', async (t) => {
  const making = latch()
  const log: string[] = []
  const one = plugin({
    apply(ctx) {
      void ctx.effect(async () => {
        await making.promise
        log.push('made')
        return () => log.push('undone')
      })
    }
  })
  const { kernel } = await house(t, [{ plugin: one, id: 'x' }])
  await kernel.retire('x')
  making.open()
  await nextTurn()
  t.strictSame(log, ['made', 'undone'])
})

t.test('D02 a plugin that is mounted while its parent goes is refused', async (t) => {
  const making = latch()
  const outcomes: unknown[] = []
  const parent = plugin({
    apply(ctx) {
      const effect = ctx.effect(async () => {
        await making.promise
        ctx.mount(plugin({ name: 'child', apply: () => void t.fail('it was run') }))
      })
      effect.catch((error: unknown) => outcomes.push(error))
    }
  })
  const { kernel } = await house(t, [{ plugin: parent, id: 'x' }])
  await kernel.retire('x')
  making.open()
  await nextTurn()
  t.match(outcomes, [{ code: 'KERNEL_INACTIVE' }])
  t.strictSame(kernel.fibers(), [])
})

t.test('D03 an async generator stops at its next step when its start is given up', async (t) => {
  for (const stopAt of [1, 3]) {
    const log: number[] = []
    const steps: Record<number, ReturnType<typeof latch>> = { 1: latch(), 3: latch() }
    const generating = plugin({
      apply: (ctx) =>
        ctx.effect(async function* () {
          for (const step of [1, 3]) {
            log.push(step)
            await steps[step]?.promise
            yield () => log.push(step + 1)
          }
          t.fail('it was asked for a step too many')
        })
    })
    const { kernel } = await house(t)
    const begun = kernel.begin({ id: 'x', plugin: generating })
    await nextTurn()
    if (stopAt === 3) {
      steps[1]?.open()
      await nextTurn()
    }
    const retired = kernel.retire('x')
    steps[stopAt]?.open()
    await Promise.all([begun, retired])
    t.strictSame(log, stopAt === 1 ? [1, 2] : [1, 3, 4, 2])
  }
})

t.test('D03 after its fiber has gone it is not asked again, and what it was making is undone', async (t) => {
  const log: string[] = []
  const step = latch()
  const generating = plugin({
    apply(ctx) {
      void ctx.effect(async function* () {
        try {
          yield () => log.push('first undone')
          await step.promise
          yield () => log.push('second undone')
          t.fail('it was asked for a step too many')
        } finally {
          log.push('generator ended')
        }
      })
    }
  })
  const { kernel } = await house(t, [{ plugin: generating, id: 'x' }])
  await nextTurn()
  await kernel.retire('x')
  step.open()
  await nextTurn()
  t.strictSame(log, ['first undone', 'second undone', 'generator ended'])
})

t.test('D04 an effect that throws tells its caller, and what it yielded before is undone', async (t) => {
  const log: string[] = []
  const errors: unknown[] = []
  const throwing = plugin({
    async apply(ctx) {
      const attempt = async (work: () => unknown) => {
        try {
          await work()
        } catch (error) {
          errors.push((error as Error).message)
        }
      }
      await attempt(() =>
        ctx.effect(() => {
          throw new Error('sync')
        })
      )
      await attempt(() => ctx.effect(() => Promise.reject(new Error('async'))))
      await attempt(() =>
        ctx.effect(function* () {
          yield () => log.push('1')
          yield () => log.push('2')
          throw new Error('generator')
        })
      )
      await attempt(() =>
        ctx.effect(async function* () {
          yield slowUndo(log, '3')
          yield slowUndo(log, '4')
          throw new Error('async generator')
        })
      )
    }
  })
  const { kernel } = await house(t, [{ plugin: throwing, id: 'x' }])
  t.strictSame(errors, ['sync', 'async', 'generator', 'async generator'])
  t.strictSame(log, ['2', '1', '4 begins', '4 ends', '3 begins', '3 ends'])
  t.match(statusOf(kernel, 'x'), { state: 'Active', pendingUndoCount: 0 })
})

t.test('D05 labels are listed in order (as ruled: a flat list, without the anonymous ones)', async (t) => {
  const labelled = plugin({
    apply(ctx) {
      ctx.effect(() => () => {}, 'outer')
      ctx.effect(() => () => {})
      ctx.on('case/a', () => {})
      ctx.mount(plugin({ name: 'child' }))
    }
  })
  const { kernel } = await house(t, [{ plugin: labelled, id: 'x' }])
  t.match(statusOf(kernel, 'x'), { pendingUndoLabels: ['outer', 'listeners', 'plugin:child'], pendingUndoCount: 4 })
})

t.test('D06 no timer fires after its fiber has gone (as ruled: there is no promise form)', async (t) => {
  let fired = 0
  const first = latch()
  const ticking = plugin({
    apply(ctx) {
      ctx.setInterval(() => {
        fired += 1
        first.open()
      }, 1)
      ctx.setTimeout(() => (fired += 1_000), 2_147_483_647)
    }
  })
  const timers = () => process.getActiveResourcesInfo().filter((name) => name === 'Timeout').length
  const before = timers()
  const { kernel } = await house(t, [{ plugin: ticking, id: 'x' }])
  await first.promise
  await kernel.retire('x')
  const after = fired
  t.equal(timers(), before)
  t.equal(fired, after)
})

t.test('D06 what a timer callback throws is logged and ends nothing', async (t) => {
  const ticks = latch()
  let count = 0
  const failing = plugin({
    apply(ctx) {
      ctx.setInterval(() => {
        count += 1
        if (count === 3) ticks.open()
        if (count === 1) throw new Error('first')
        return Promise.reject(new Error('later'))
      }, 1)
    }
  })
  const { kernel, lines } = await house(t, [{ plugin: failing, id: 'x' }])
  await ticks.promise
  t.equal(stateOf(kernel, 'x'), 'Active')
  t.match(
    lines.filter((line) => line.level === 'error'),
    [
      { entry: 'x', error: { message: 'first' } },
      { entry: 'x', error: { message: 'later' } }
    ]
  )
})

t.test('D07 what a listener makes belongs to the fiber of the listener', async (t) => {
  let undone = 0
  const listening = plugin({
    apply: (ctx) => void ctx.on('case/a', () => ctx.effect(() => () => (undone += 1)))
  })
  const { kernel } = await house(t, [
    { plugin: listening, id: 'x' },
    { plugin: plugin({}), id: 'emitter' }
  ])
  kernel.events.emit('case/a')
  kernel.events.emit('case/a')
  await kernel.retire('emitter')
  t.equal(undone, 0)
  await kernel.retire('x')
  t.equal(undone, 2)
})

t.test('a hundred updates leave as much behind as the first', async (t) => {
  const heard: string[] = []
  const busy = plugin({
    async apply(ctx, value) {
      ctx.on('case/a', () => void heard.push(`event ${String(value)}`))
      ctx.onUpdate(({ value: next }) => void heard.push(`update ${String(value)} to ${String(next)}`))
      ctx.contribute('words', `word ${String(value)}`)
      ctx.setInterval(() => {}, 1_000_000)
      ctx.mount(plugin({ name: 'child' }))
      await ctx.resource(
        'r',
        1,
        () => 1,
        () => {}
      )
    }
  })
  const { kernel } = await house(t, [{ plugin: busy, id: 'x', config: { value: 0 } }])
  const world = () => ({
    undos: statusOf(kernel, 'x')?.pendingUndoCount,
    fibers: statesOf(kernel),
    resources: kernel.resources.size,
    timers: process.getActiveResourcesInfo().filter((name) => name === 'Timeout').length
  })
  const before = world()
  for (let value = 1; value <= 100; value++) await kernel.update('x', { value })
  await rested(kernel)
  t.strictSame(world(), before)
  t.strictSame(
    kernel.collection('words').items.map((item) => item.item),
    ['word 100']
  )
  t.equal(heard.length, 100, 'one hook an update')
  heard.length = 0
  kernel.events.emit('case/a')
  t.strictSame(heard, ['event 100'])
})

t.test('D06 what a timer or a listener threw is told with its fiber, until it is built anew', async (t) => {
  const thrown = latch()
  const faulty = plugin({
    apply(ctx, value) {
      if (value !== 1) return
      ctx.on('case/a', () => {
        throw new Error('heard it')
      })
      ctx.setTimeout(() => {
        thrown.open()
        throw new Error('time is up')
      }, 0)
    }
  })
  const { kernel } = await house(t, [{ plugin: faulty, id: 'x' }])
  t.match(statusOf(kernel, 'x'), { faults: 0, lastFault: null })
  await thrown.promise
  kernel.events.emit('case/a')
  t.match(statusOf(kernel, 'x'), { state: 'Active', error: null, faults: 2, lastFault: 'heard it' })
  await kernel.update('x', { value: 2 })
  t.match(statusOf(kernel, 'x'), { faults: 0, lastFault: null })
})

// E: events

/** A plugin whose listeners are made by `listen`. */
function listening(listen: Parameters<typeof plugin>[0]['apply']) {
  return plugin({ name: 'listening', ...(listen === undefined ? {} : { apply: listen }) })
}

t.test('E01 a listener hears until it is taken away', async (t) => {
  let heard = 0
  let off: () => void = () => {}
  const { kernel } = await house(t, [{ plugin: listening((ctx) => void (off = ctx.on('case/a', () => (heard += 1)))) }])
  kernel.events.emit('case/a')
  kernel.events.emit('case/a')
  off()
  off()
  kernel.events.emit('case/a')
  t.equal(heard, 2)
})

t.test('E02 a once-listener hears once, also when its event is emitted from within, and after a swap', async (t) => {
  let heard = 0
  const { kernel } = await house(t, [
    {
      plugin: listening((ctx) => {
        const again = () => {
          heard += 1
          ctx.events.emit('case/a')
        }
        ctx.on('case/a', again, { once: true })
      }),
      id: 'x'
    }
  ])
  kernel.events.emit('case/a')
  await Promise.all([kernel.events.parallel('case/a'), kernel.events.serial('case/a')])
  t.equal(heard, 1)
  await kernel.update('x', { value: 2 })
  kernel.events.emit('case/a')
  t.equal(heard, 2, 'the next generation listens anew')
})

t.test('E03 a once-listener that was not reached stays', async (t) => {
  let heard = 0
  let unblock: () => void = () => {}
  const { kernel } = await house(t, [
    {
      plugin: listening((ctx) => {
        unblock = ctx.on('case/a', () => 'taken')
        ctx.on('case/a', () => void (heard += 1), { once: true })
      })
    }
  ])
  const { events } = kernel
  t.strictSame([events.bail('case/a'), events.bail('case/a'), heard], ['taken', 'taken', 0])
  unblock()
  t.strictSame([events.bail('case/a'), events.bail('case/a'), heard], [undefined, undefined, 1])
})

t.test(
  'E04 listeners are called in the order they came, the prepended ones first, the last of them first',
  async (t) => {
    const heard: string[] = []
    const { kernel } = await house(t, [
      {
        plugin: listening((ctx) => {
          for (const name of ['1', '2']) ctx.on('case/a', () => heard.push(name))
          for (const name of ['p1', 'p2']) ctx.on('case/a', () => heard.push(name), { prepend: true })
        })
      }
    ])
    kernel.events.emit('case/a')
    t.strictSame(heard, ['p2', 'p1', '1', '2'])
  }
)

t.test('E04 the listeners of one that is swapped keep the place of those they replace', async (t) => {
  const heard: string[] = []
  const names = (name: string) =>
    plugin({
      name,
      apply(ctx, value) {
        if (value === 'late') ctx.on('case/b', () => heard.push(`${name} b`))
        ctx.on('case/a', () => heard.push(`${name} 1`))
        ctx.on('case/a', () => heard.push(`${name} p1`), { prepend: true })
        ctx.on('case/a', () => heard.push(`${name} 2`))
        ctx.on('case/a', () => heard.push(`${name} p2`), { prepend: true })
      }
    })
  const { kernel } = await house(t, [{ plugin: names('x') }, { plugin: names('y') }])
  kernel.events.emit('case/a')
  const order = heard.splice(0)
  t.strictSame(order, ['y p2', 'y p1', 'x p2', 'x p1', 'x 1', 'x 2', 'y 1', 'y 2'])
  for (const id of ['x', 'y', 'x']) {
    await kernel.update(id, { value: 'late' })
    kernel.events.emit('case/a')
    t.strictSame(heard.splice(0), order)
  }
  kernel.events.emit('case/b')
  t.strictSame(heard.splice(0), ['x b', 'y b'], 'what is new comes last, and keeps that place')
  await kernel.update('x', { value: 'early' })
  kernel.events.emit('case/b')
  t.strictSame(heard, ['y b'])
})

t.test('E05 a listener that fails keeps no other from hearing, and its failure is logged with its entry', async (t) => {
  let heard = 0
  const { kernel, lines } = await house(t, [
    {
      plugin: listening((ctx) => {
        ctx.on('case/a', () => {
          throw new Error('at once')
        })
        ctx.on('case/a', () => Promise.reject(new Error('later')))
        ctx.on('case/a', () => (heard += 1))
      }),
      id: 'x'
    }
  ])
  kernel.events.emit('case/a')
  t.equal(heard, 1)
  await nextTurn()
  t.match(
    lines.filter((line) => line.level === 'error'),
    ['at once', 'later'].map((message) => ({
      message: "a listener of 'case/a' failed",
      entry: 'x',
      error: { message }
    }))
  )
})

t.test('E06 parallel waits for all before it fails, once, with all that failed', async (t) => {
  const slow = latch()
  let done = false
  const { kernel } = await house(t, [
    {
      plugin: listening((ctx) => {
        ctx.on('case/a', () => Promise.reject(new Error('one')))
        ctx.on('case/a', () => {
          throw new Error('two')
        })
        ctx.on('case/a', () => slow.promise.then(() => (done = true)))
      })
    }
  ])
  let settled = false
  const outcome = kernel.events.parallel('case/a').catch((error: unknown) => {
    settled = true
    return error
  })
  await nextTurn()
  t.notOk(settled)
  slow.open()
  t.match(await outcome, {
    message: "2 of the listeners of 'case/a' failed: one; two",
    errors: [{ message: 'one' }, { message: 'two' }]
  })
  t.ok(done)
})

t.test('E07 serial awaits one after the other until one answers', async (t) => {
  const heard: string[] = []
  const { kernel } = await house(t, [
    {
      plugin: listening((ctx) => {
        ctx.on('case/a', async () => {
          await nextTurn()
          heard.push('a')
        })
        ctx.on('case/a', () => {
          heard.push('b')
          return 7
        })
        ctx.on('case/a', () => heard.push('c'))
      })
    }
  ])
  t.equal(await kernel.events.serial('case/a'), 7)
  t.strictSame(heard, ['a', 'b'])
})

t.test('E07 serial and bail stop at the first listener that throws', async (t) => {
  const { kernel } = await house(t, [
    {
      plugin: listening((ctx) => {
        ctx.on('case/a', () => {
          throw new Error('no luck')
        })
        ctx.on('case/a', () => void t.fail('it was called'))
      })
    }
  ])
  await t.rejects(kernel.events.serial('case/a'), { message: 'no luck' })
  t.throws(() => kernel.events.bail('case/a'), { message: 'no luck' })
})

t.test('E08 E09 E10 null, undefined and false are no answer; everything else is', async (t) => {
  const { kernel } = await house(t, [{ plugin: listening((ctx) => void ctx.on('case/a', (value) => value)) }])
  const { events } = kernel
  for (const value of [null, undefined, false]) {
    t.equal(events.bail('case/a', value), undefined)
    t.equal(await events.serial('case/a', value), undefined)
  }
  for (const value of [0, '', Number.NaN, true, {}]) {
    t.ok(Object.is(events.bail('case/a', value), value))
    t.ok(Object.is(await events.serial('case/a', value), value))
  }
  t.strictSame([events.bail('case/b'), await events.serial('case/b')], [undefined, undefined], 'nobody listens')
})

/** Adds one to what comes back from further in. */
const adder = (_value: unknown, next: () => number) => next() + 1

t.test('E11 a waterfall wraps its core; who does not call next answers for all behind', async (t) => {
  const called: string[] = []
  const { kernel } = await house(t, [
    { plugin: listening((ctx) => [adder, adder].forEach((add) => ctx.on('case/a', add as never))) }
  ])
  const core = (value: unknown) => {
    called.push('core')
    return (value as number) + 1
  }
  t.equal(kernel.events.waterfall('case/a', [1], core), 4)
  t.strictSame(called.splice(0), ['core'])
  await kernel.begin({
    id: 'third',
    plugin: listening((ctx) => {
      ctx.on('case/a', () => 1)
      ctx.on('case/a', () => called.push('fourth'))
    })
  })
  t.equal(kernel.events.waterfall('case/a', [1], core), 3)
  t.strictSame(called, [])
})

t.test('E12 next may be called once', async (t) => {
  const twice = ((_value: unknown, next: () => number) => next() + next()) as never
  const { kernel } = await house(t, [{ plugin: listening((ctx) => void ctx.on('case/a', twice)) }])
  t.throws(() => kernel.events.waterfall('case/a', [1], () => 1), { message: 'next() called multiple times' })
})

t.test('E13 without listeners a waterfall is its core', async (t) => {
  const { kernel } = await house(t)
  t.equal(
    kernel.events.waterfall('case/a', [1], (value) => value),
    1
  )
})

t.test('E14 a dispatch goes on with the listeners it began with', async (t) => {
  const heard: string[] = []
  const { kernel } = await house(t, [
    {
      plugin: listening((ctx) => {
        let off: () => void = () => {}
        ctx.on(
          'case/a',
          () => {
            off()
            ctx.on('case/a', () => heard.push('added'))
          },
          { once: true }
        )
        off = ctx.on('case/a', () => heard.push('removed'))
      })
    }
  ])
  kernel.events.emit('case/a')
  t.strictSame(heard.splice(0), ['removed'])
  kernel.events.emit('case/a')
  t.strictSame(heard, ['added'])
})

t.test('E14 but not with those whose fiber has gone meanwhile', async (t) => {
  const { kernel } = await house(t, [
    { plugin: listening((ctx) => void ctx.on('case/a', () => void kernel.retire('x'))) },
    { plugin: listening((ctx) => void ctx.on('case/a', () => void t.fail('it was called'))), id: 'x' }
  ])
  kernel.events.emit('case/a')
  await kernel.events.serial('case/a')
  await kernel.events.parallel('case/a')
  t.equal(kernel.events.bail('case/a'), undefined)
})

t.test('E15 a dispatch may be meant for some entries; global listeners hear it too', async (t) => {
  const heard: string[] = []
  const { kernel } = await house(t, [
    ...['a', 'b', 'c'].map((id) => ({
      plugin: listening((ctx) => void ctx.on('case/a', () => void heard.push(id))),
      id
    })),
    { plugin: listening((ctx) => void ctx.on('case/a', () => void heard.push('global'), { global: true })), id: 'g' }
  ])
  const some = kernel.events.only((entry) => entry === 'a' || entry === 'b')
  await some.parallel('case/a')
  t.strictSame(heard.splice(0), ['a', 'b', 'global'])
  some.only((entry) => entry !== 'a').emit('case/a')
  t.strictSame(heard, ['b', 'global'], 'for fewer still')
})

t.test('E16 a service is heard by those who see it in the same realm', async (t) => {
  const heard: string[] = []
  let events: EventBus | undefined
  const { kernel } = await house(t)
  const realms = { a: { foo: 'a' }, b: { foo: 'b' }, common: {} }
  for (const [id, realm] of Object.entries(realms)) {
    const plugin = listening((ctx) => void ctx.on('case/a', () => void heard.push(id)))
    await kernel.begin({ id, plugin, realms: realm })
  }
  const speaker = providerOf('foo', { apply: (ctx) => void (events = ctx.events.within('foo', ctx.entry)) })
  await kernel.begin({ id: 'p', plugin: speaker, realms: { foo: 'a' } })
  events?.emit('case/a')
  t.strictSame(heard.splice(0), ['a'])
  await kernel.retarget({ id: 'p', plugin: speaker })
  events?.emit('case/a')
  t.strictSame(heard, ['common'])
})

t.test('E17 E18 every dispatch is counted once, whether anybody listens; internal ones are not', async (t) => {
  const { kernel } = await house(t, [
    { plugin: listening((ctx) => void ctx.on('internal/dispatch', () => {})), id: 'observer' },
    { plugin: listening((ctx) => void ctx.on('case/a', () => {})) }
  ])
  const { events } = kernel
  const before = events.counts().total
  events.emit('case/a')
  events.emit('case/a')
  events.bail('case/b')
  await events.only(() => false).serial('case/b')
  await events.parallel('case/b')
  events.waterfall('case/b', [], () => 1)
  const { total, byEvent } = events.counts()
  t.equal(total - before, 6)
  t.match(byEvent, { 'case/a': 2, 'case/b': 4 })
  t.notOk(Object.keys(byEvent).some((name) => name.startsWith('internal/')))
  t.strictSame(Object.keys(byEvent), Object.keys(byEvent).sort())
})

t.test('E19 an observer of dispatches changes nothing, fail as it may; what it emits is not observed', async (t) => {
  const observed: string[] = []
  let heard = 0
  const { kernel } = await house(t, [
    {
      plugin: listening((ctx) => {
        ctx.on('internal/dispatch', ({ mode, event, args }) => {
          if (event.startsWith('case/')) observed.push(`${mode} ${event} ${args.join()}`)
          ctx.events.emit('case/b')
          throw new Error('no luck')
        })
        ctx.on('case/a', () => void (heard += 1))
        ctx.on('case/b', () => void (heard += 100))
      })
    }
  ])
  heard = 0
  kernel.events.emit('case/a', 5)
  t.equal(kernel.events.bail('case/a', 6), undefined)
  t.strictSame(observed, ['emit case/a 5', 'bail case/a 6'])
  t.equal(heard, 202)
})

t.test('E20 a listener may be refused: it never hears, and taking it away does nothing', async (t) => {
  let refuse = true
  const off: (() => void)[] = []
  const { kernel } = await house(t, [
    {
      plugin: listening((ctx) => {
        ctx.on('internal/listener', ({ event, entry }) => {
          if (entry === 'throws') throw new Error('not sure')
          return event === 'case/a' && refuse
        })
      })
    }
  ])
  for (const id of ['x', 'throws']) {
    const plugin = listening((ctx) => void off.push(ctx.on('case/a', () => void t.fail('it was called'))))
    await kernel.begin({ id, plugin })
  }
  kernel.events.emit('case/a')
  for (const each of off) each()
  refuse = false
  let heard = 0
  await kernel.begin({ id: 'y', plugin: listening((ctx) => void ctx.on('case/a', () => void (heard += 1))) })
  kernel.events.emit('case/a')
  t.equal(heard, 1)
})
