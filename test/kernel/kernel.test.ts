import t from 'tap'
import { CodedError, type Context, definePlugin, schemaOf } from '../../kernel/index.ts'
import { Listener } from '../../kernel/events.ts'
import { Kernel } from '../../kernel/kernel.ts'
import { startHouse } from '../harness.ts'

interface Greeter {
  greet(): string
  slowly(): Promise<string>
  count(): AsyncIterable<string>
}

declare module '../../kernel/index.ts' {
  interface Services {
    greeter: Greeter
    other: { name(): string }
  }
  interface Contributions {
    words: string
  }
  interface Events {
    'test/ping': [value: number]
  }
}

/** A promise and the way to settle it. */
function gate<T = void>(): { readonly promise: Promise<T>; open(value: T): void; fail(error: unknown): void } {
  let open: (value: T) => void = () => {}
  let fail: (error: unknown) => void = () => {}
  const promise = new Promise<T>((resolve, reject) => {
    open = resolve
    fail = reject
  })
  return { promise, open, fail }
}

const bare = { store: false, http: false } as const

const word = schemaOf<{ word: string }>({
  type: 'object',
  additionalProperties: false,
  properties: { word: { type: 'string', default: 'hello' } }
})

/** Provides `greeter`; the word comes from its config, `slow` holds its slow calls. */
function greeterPlugin(slow = gate()) {
  return definePlugin({
    name: 'greeter',
    provides: ['greeter'],
    config: word,
    apply(ctx, config) {
      ctx.provide('greeter', {
        greet: () => config.word,
        slowly: () => slow.promise.then(() => config.word),
        async *count() {
          yield config.word
          await slow.promise
          yield config.word
        }
      })
    }
  })
}

function stateOf(kernel: Kernel, entry: string): string | undefined {
  return kernel.fibers().find((fiber) => fiber.entry === entry)?.state
}

t.test('a consumer starts once its provider is active, whatever the order', async (t) => {
  const seen: string[] = []
  const consumer = definePlugin({
    name: 'consumer',
    inject: ['greeter'],
    apply(ctx) {
      seen.push(ctx.services.greeter.greet())
    }
  })
  const { kernel } = await startHouse(t, [{ plugin: consumer }], bare)
  t.equal(stateOf(kernel, 'consumer'), 'Inactive')
  const [waiting] = kernel.fibers()
  t.strictSame(waiting?.waitingFor, ['greeter'])
  t.match(
    waiting?.error,
    "missing or inactive dependency: needs service 'greeter', which no plugin in the program provides"
  )

  await kernel.begin({ id: 'greeter', plugin: greeterPlugin() })
  await kernel.settled()
  t.equal(stateOf(kernel, 'consumer'), 'Active')
  t.strictSame(seen, ['hello'])
})

t.test('a plugin sees what it injected and nothing else', async (t) => {
  let refusal: unknown
  const nosy = definePlugin({
    name: 'nosy',
    apply(ctx) {
      try {
        void (ctx.services as { greeter?: Greeter }).greeter
      } catch (error) {
        refusal = error
      }
    }
  })
  await startHouse(t, [{ plugin: greeterPlugin() }, { plugin: nosy }], bare)
  t.match(refusal, { code: 'KERNEL_NOT_INJECTED', message: 'cannot get property "greeter" without inject' })
})

t.test('a service that is not declared in provides is refused', async (t) => {
  const liar = definePlugin({
    name: 'liar',
    apply(ctx) {
      ;(ctx as unknown as Context<[], [], ['other']>).provide('other', { name: () => 'x' })
    }
  })
  await t.rejects(startHouse(t, [{ plugin: liar }], bare), { message: /without declaring it/ })
})

t.test('a config change swaps the provider under its consumers without restarting them', async (t) => {
  const handles: Greeter[] = []
  let runs = 0
  const consumer = definePlugin({
    name: 'consumer',
    inject: ['greeter'],
    apply(ctx) {
      runs += 1
      handles.push(ctx.services.greeter)
    }
  })
  const { kernel } = await startHouse(t, [{ plugin: greeterPlugin() }, { plugin: consumer }], bare)
  const before = kernel.fibers().find((fiber) => fiber.entry === 'greeter')

  await kernel.update('greeter', { word: 'hi' })

  t.equal(handles[0]?.greet(), 'hi', 'the old handle reads the new provider')
  t.equal(runs, 1)
  const after = kernel.fibers().find((fiber) => fiber.entry === 'greeter')
  t.equal(after?.fiberId, before?.fiberId)
  t.equal(after?.generation, 2)
  t.equal(after?.pendingUndoCount, before?.pendingUndoCount)
})

t.test('calls in flight finish on the generation they began on, and its effects are undone after them', async (t) => {
  const undone: string[] = []
  const slow = gate()
  const plugin = definePlugin({
    name: 'greeter',
    provides: ['greeter'],
    config: word,
    apply(ctx, config) {
      ctx.effect(() => () => undone.push(config.word), 'mark')
      ctx.provide('greeter', {
        greet: () => config.word,
        slowly: () => slow.promise.then(() => config.word),
        async *count() {
          yield config.word
          await slow.promise
          yield config.word
        }
      })
    }
  })
  const { kernel, services } = await startHouse(t, [{ plugin }], bare)
  const inFlight = services('greeter').slowly()
  const stream = services('greeter').count()[Symbol.asyncIterator]()
  t.equal((await stream.next()).value, 'hello')

  await kernel.update('greeter', { word: 'hi' })

  t.equal(services('greeter').greet(), 'hi')
  t.equal(kernel.fibers()[0]?.draining, 1)
  t.strictSame(undone, [])
  slow.open()
  t.equal(await inFlight, 'hello')
  t.equal((await stream.next()).value, 'hello')
  await stream.next()
  await kernel.retire('greeter')
  t.strictSame(undone.sort(), ['hello', 'hi'])
})

t.test('a lease that outlives the drain time is told to end by its signal', async (t) => {
  const plugin = definePlugin({
    name: 'holder',
    config: word,
    apply(ctx, config) {
      ctx.contribute('words', config.word)
    }
  })
  const held: { item: string; signal: AbortSignal; release: () => void }[] = []
  const collector = definePlugin({
    name: 'collector',
    apply(ctx) {
      ctx.collect('words', {
        update(now) {
          for (const word of now) {
            const lease = word.lease()
            held.push({ item: word.item, signal: lease.signal, release: () => lease.release() })
          }
        }
      })
    }
  })
  const { kernel } = await startHouse(t, [{ plugin: collector }, { plugin, id: 'holder' }], {
    ...bare,
    settings: { drain_timeout_ms: 5 }
  })
  const [first] = held
  const ended = new Promise<void>((resolve) => first?.signal.addEventListener('abort', () => resolve()))
  await kernel.update('holder', { word: 'next' })
  await ended
  t.match(first?.signal.reason, { code: 'DRAIN_TIMEOUT' })
  for (const lease of held) lease.release()
})

t.test('what a generation contributes shows and goes in the commit, in the place of what it replaces', async (t) => {
  const shown: string[][] = []
  const collector = definePlugin({
    name: 'collector',
    apply(ctx) {
      ctx.collect('words', { update: (now) => shown.push(now.map((word) => word.item)) })
    }
  })
  const holder = definePlugin({
    name: 'holder',
    config: word,
    apply(ctx, config) {
      ctx.contribute('words', config.word)
    }
  })
  const { kernel } = await startHouse(
    t,
    [{ plugin: holder, id: 'a' }, { plugin: holder, id: 'b', config: { word: 'b' } }, { plugin: collector }],
    bare
  )
  t.strictSame(shown.at(-1), ['hello', 'b'], 'what was there before the collector came is not lost')
  await kernel.update('a', { word: 'a2' })
  t.strictSame(shown.at(-1), ['a2', 'b'])
  await kernel.update('collector', {})
  t.strictSame(shown.at(-1), ['a2', 'b'], 'a swap of the collector loses nothing')
  void kernel.retire('b')
  t.strictSame(shown.at(-1), ['a2'], 'gone when retire returns')
})

t.test('a collector that refuses what would come leaves everything as it was', async (t) => {
  const shown: string[][] = []
  const collector = definePlugin({
    name: 'collector',
    apply(ctx) {
      ctx.collect('words', {
        check(next) {
          if (next.some((word) => word.item === 'bad')) throw new CodedError('WORD_BAD', 'bad is no word')
        },
        update: (now) => shown.push(now.map((word) => word.item))
      })
    }
  })
  const holder = definePlugin({
    name: 'holder',
    config: word,
    apply(ctx, config) {
      ctx.contribute('words', config.word)
    }
  })
  const { kernel } = await startHouse(t, [{ plugin: collector }, { plugin: holder }], bare)
  await t.rejects(kernel.update('holder', { word: 'bad' }), { code: 'WORD_BAD' })
  t.strictSame(shown.at(-1), ['hello'])
  t.equal(stateOf(kernel, 'holder'), 'Active')
  t.equal(kernel.fibers().find((fiber) => fiber.entry === 'holder')?.generation, 1)
})

t.test('an apply that throws leaves the rest serving and itself Failed, with nothing of it left', async (t) => {
  const undone: string[] = []
  const broken = definePlugin({
    name: 'broken',
    config: word,
    apply(ctx, config) {
      ctx.effect(() => () => undone.push('first'), 'first')
      ctx.effect(() => () => undone.push('second'), 'second')
      if (config.word !== 'good') throw new Error('no luck today')
    }
  })
  const { kernel, services } = await startHouse(t, [{ plugin: greeterPlugin() }], bare)
  await t.rejects(kernel.begin({ id: 'broken', plugin: broken }), { message: 'no luck today' })
  const status = kernel.fibers().find((fiber) => fiber.entry === 'broken')
  t.match(status, { state: 'Failed', error: 'no luck today', pendingUndoCount: 0 })
  t.strictSame(undone, ['second', 'first'])
  t.equal(services('greeter').greet(), 'hello')

  await kernel.update('broken', { word: 'good' })
  t.equal(stateOf(kernel, 'broken'), 'Active', 'a good config brings it back')
})

t.test('a swap whose apply throws or whose config is invalid leaves the old generation serving', async (t) => {
  const fussy = definePlugin({
    name: 'fussy',
    provides: ['greeter'],
    config: word,
    async apply(ctx, config) {
      await Promise.resolve()
      if (config.word === 'bad') throw new Error('not this one')
      ctx.provide('greeter', {
        greet: () => config.word,
        slowly: async () => config.word,
        async *count() {}
      })
    }
  })
  const { kernel, services } = await startHouse(t, [{ plugin: fussy }], bare)
  await t.rejects(kernel.update('fussy', { word: 'bad' }), { message: 'not this one' })
  await t.rejects(kernel.update('fussy', { word: 5 }), {
    code: 'PLUGIN_CONFIG_INVALID',
    detail: { issues: [{ path: ['word'], message: 'word must be string' }] }
  })
  const refusal = await kernel.update('fussy', { wort: 'x' }).catch((error: unknown) => error)
  t.match(refusal, { detail: { issues: [{ path: ['wort'], message: 'unknown key wort' }] } })
  t.equal(services('greeter').greet(), 'hello')
  t.match(kernel.fibers()[0], { state: 'Active', generation: 1, error: null })
})

t.test('an apply that hangs is given up after its time, and what it does later is refused', async (t) => {
  const release = gate()
  let late: unknown
  let lateUndone = false
  const finished = gate()
  const hanging = definePlugin({
    name: 'hanging',
    config: word,
    async apply(ctx, config) {
      if (config.word !== 'hang') return
      const effect = ctx.effect(async () => {
        await release.promise
        return () => {
          lateUndone = true
        }
      }, 'late')
      await effect
      try {
        ctx.contribute('words', 'late')
      } catch (error) {
        late = error
      }
      finished.open()
    }
  })
  const { kernel } = await startHouse(t, [{ plugin: hanging }], { ...bare, settings: { apply_timeout_ms: 5 } })
  await t.rejects(kernel.update('hanging', { word: 'hang' }), {
    code: 'KERNEL_APPLY_TIMEOUT',
    message: /hanging.*5 ms/
  })
  t.equal(stateOf(kernel, 'hanging'), 'Active')
  release.open()
  await finished.promise
  t.match(late, { code: 'KERNEL_INACTIVE' })
  t.ok(lateUndone, 'the disposer that came too late was run at once')
})

t.test(
  'undos run last in first out, each awaited; one that fails or hangs does not keep the others from it',
  async (t) => {
    const log: string[] = []
    const plugin = definePlugin({
      name: 'undoer',
      apply(ctx) {
        ctx.effect(() => () => log.push('a'), 'a')
        ctx.effect(() => () => Promise.reject(new Error('c failed')), 'c')
        ctx.effect(() => () => new Promise(() => {}), 'hang')
        ctx.effect(
          () => async () => {
            log.push('b begins')
            await new Promise((resolve) => setImmediate(resolve))
            log.push('b ends')
          },
          'b'
        )
      }
    })
    const { kernel, lines } = await startHouse(t, [{ plugin }], { ...bare, settings: { undo_timeout_ms: 5 } })
    t.strictSame(kernel.fibers()[0]?.pendingUndoLabels, ['a', 'c', 'hang', 'b'])
    await Promise.all([kernel.retire('undoer'), kernel.retire('undoer')])
    t.strictSame(log, ['b begins', 'b ends', 'a'])
    const failures = lines.filter((line) => line.message === 'an undo failed').map((line) => line['label'])
    t.strictSame(failures, ['hang', 'c'])
    t.strictSame(kernel.fibers(), [])
  }
)

t.test('when a provider goes, its consumers go first and can still use it; they come back with it', async (t) => {
  const log: string[] = []
  const provider = definePlugin({
    name: 'provider',
    provides: ['other'],
    apply(ctx) {
      ctx.effect(() => () => log.push('early effect of the provider'))
      ctx.provide('other', { name: () => 'still here' })
      log.push('provider up')
    }
  })
  const middle = definePlugin({
    name: 'middle',
    inject: ['other'],
    provides: ['greeter'],
    apply(ctx) {
      const { other } = ctx.services
      ctx.effect(() => () => log.push(`middle down, ${other.name()}`))
      ctx.provide('greeter', { greet: () => 'm', slowly: async () => 'm', async *count() {} })
      log.push('middle up')
    }
  })
  const last = definePlugin({
    name: 'last',
    inject: ['greeter', 'other'],
    apply(ctx) {
      const { greeter } = ctx.services
      ctx.effect(() => async () => {
        await new Promise((resolve) => setImmediate(resolve))
        log.push(`last down, ${greeter.greet()}`)
      })
      log.push('last up')
    }
  })
  const states: string[] = []
  const { kernel } = await startHouse(t, [{ plugin: last }, { plugin: middle }, { plugin: provider }], bare)
  kernel.events.add(
    'kernel/fiber-changed',
    listener((status) => status.entry === 'middle' && states.push(status.state))
  )
  t.strictSame(log.splice(0), ['provider up', 'middle up', 'last up'])

  await kernel.retire('provider')
  await kernel.settled()
  t.strictSame(log.splice(0), ['last down, m', 'middle down, still here', 'early effect of the provider'])
  t.equal(stateOf(kernel, 'middle'), 'Pending')

  await kernel.begin({ id: 'provider', plugin: provider })
  await kernel.settled()
  t.strictSame(log, ['provider up', 'middle up', 'last up'])
  t.strictSame(states, ['Reloading', 'Unloading', 'Pending', 'Loading', 'Active'])
})

t.test('an optional service that comes or goes rebuilds its user, who never finds a handle to nothing', async (t) => {
  const seen: (string | undefined)[] = []
  const user = definePlugin({
    name: 'user',
    optional: ['greeter'],
    apply(ctx) {
      seen.push(ctx.services.greeter?.greet())
    }
  })
  const { kernel } = await startHouse(t, [{ plugin: user }], bare)
  await kernel.begin({ id: 'greeter', plugin: greeterPlugin() })
  await kernel.settled()
  await kernel.retire('greeter')
  await kernel.settled()
  t.strictSame(seen, [undefined, 'hello', undefined])
  t.equal(stateOf(kernel, 'user'), 'Active')
})

t.test('a swap of an optional service rebuilds nobody', async (t) => {
  let runs = 0
  const user = definePlugin({
    name: 'user',
    optional: ['greeter', 'other'],
    apply() {
      runs += 1
    }
  })
  const other = definePlugin({
    name: 'other',
    provides: ['other'],
    apply(ctx) {
      ctx.provide('other', { name: () => 'o' })
    }
  })
  const { kernel } = await startHouse(t, [{ plugin: greeterPlugin() }, { plugin: user }], bare)
  const before = runs
  await kernel.update('greeter', { word: 'hi' })
  await kernel.begin({ id: 'other', plugin: other })
  await kernel.settled()
  t.equal(runs, before + 1, 'only the service that came counts')
})

t.test('an old generation that drains can still use a provider that goes, and ends before it', async (t) => {
  const log: string[] = []
  const hold = gate()
  const provider = definePlugin({
    name: 'provider',
    provides: ['other'],
    apply(ctx) {
      ctx.provide('other', { name: () => 'still here' })
      ctx.effect(() => () => log.push('provider down'))
    }
  })
  const user = definePlugin({
    name: 'user',
    inject: ['other'],
    config: word,
    apply(ctx, config) {
      const lease = ctx.lease()
      void hold.promise.then(() => lease.release())
      ctx.effect(() => () => log.push(`${config.word} down, ${ctx.services.other.name()}`))
    }
  })
  const { kernel } = await startHouse(t, [{ plugin: provider }, { plugin: user }], bare)
  await kernel.update('user', { word: 'second' })
  const retired = kernel.retire('provider')
  await new Promise((resolve) => setImmediate(resolve))
  t.strictSame(log, [])
  hold.open()
  await retired
  t.strictSame([...log].sort(), ['hello down, still here', 'provider down', 'second down, still here'])
  t.equal(log.at(-1), 'provider down')
})

t.test('two that like each other do not wait for each other when all is stopped', async (t) => {
  const make = (name: 'greeter' | 'other', likes: 'greeter' | 'other') =>
    definePlugin({
      name,
      provides: [name],
      optional: [likes],
      apply(ctx) {
        ctx.provide(name, { name: () => name, greet: () => name } as never)
      }
    })
  const { kernel } = await startHouse(
    t,
    [{ plugin: make('greeter', 'other') }, { plugin: make('other', 'greeter') }],
    bare
  )
  t.ok(kernel.fibers().every((fiber) => fiber.state === 'Active'))
  await kernel.stop()
  t.strictSame(kernel.fibers(), [])
})

t.test('a service that the next generation no longer offers goes away with the old one', async (t) => {
  const log: string[] = []
  const provider = definePlugin({
    name: 'provider',
    provides: ['other'],
    config: word,
    apply(ctx, config) {
      ctx.effect(() => () => log.push(`${config.word} down`))
      if (config.word === 'hello') ctx.provide('other', { name: () => 'o' })
    }
  })
  const user = definePlugin({
    name: 'user',
    inject: ['other'],
    apply(ctx) {
      ctx.effect(() => () => log.push(`user down, ${ctx.services.other.name()}`))
    }
  })
  const { kernel } = await startHouse(t, [{ plugin: provider }, { plugin: user }], bare)
  await kernel.update('provider', { word: 'bye' })
  await reached(kernel, 'user', 'Pending')
  await reached(kernel, 'provider', 'Active')
  await kernel.stop()
  t.strictSame(log, ['user down, o', 'hello down', 'bye down'])
})

t.test('a second provider of a service is refused by name, and the first serves on', async (t) => {
  const { kernel, services } = await startHouse(t, [{ plugin: greeterPlugin(), id: 'first' }], bare)
  await t.rejects(kernel.begin({ id: 'second', plugin: greeterPlugin(), config: { word: 'mine' } }), {
    code: 'KERNEL_DUPLICATE_PROVIDER',
    message: "service 'greeter' is provided by entry 'first'; entry 'second' cannot provide it too"
  })
  t.equal(services('greeter').greet(), 'hello')
  t.equal(stateOf(kernel, 'second'), 'Failed')
})

t.test('a config that comes while the first is loading is never lost, and those in between are skipped', async (t) => {
  const applied: string[] = []
  const first = gate()
  const loading = gate()
  const plugin = definePlugin({
    name: 'slow',
    config: word,
    async apply(_ctx, config) {
      applied.push(config.word)
      if (config.word !== '1') return
      loading.open()
      await first.promise
    }
  })
  const { kernel } = await startHouse(t, [], bare)
  const begun = kernel.begin({ id: 'slow', plugin, config: { word: '1' } })
  await loading.promise
  const updates = ['2', '3', '4', '5'].map((word) => kernel.update('slow', { word }))
  first.open()
  await Promise.all([begun, ...updates])
  t.strictSame(applied, ['1', '5'])
  t.equal(stateOf(kernel, 'slow'), 'Active')
})

t.test('retiring an entry while it loads waits for its start and leaves nothing', async (t) => {
  const start = gate()
  const loading = gate()
  const undone: string[] = []
  const plugin = definePlugin({
    name: 'slow',
    async apply(ctx) {
      ctx.effect(() => () => undone.push('early'), 'early')
      loading.open()
      await start.promise
      ctx.effect(() => () => undone.push('late'), 'late')
    }
  })
  const { kernel } = await startHouse(t, [], bare)
  const begun = kernel.begin({ id: 'slow', plugin })
  await loading.promise
  const retired = kernel.retire('slow')
  start.open()
  await Promise.all([begun, retired])
  t.strictSame(undone, ['late', 'early'])
  t.strictSame(kernel.fibers(), [])
})

t.test('a resource is shared by the generations that ask for the same one, and closed after the last', async (t) => {
  const log: string[] = []
  const plugin = definePlugin({
    name: 'owner',
    config: schemaOf<{ port: number; note: string }>({
      type: 'object',
      properties: { port: { type: 'integer', default: 1 }, note: { type: 'string', default: '' } }
    }),
    async apply(ctx, config) {
      const port = await ctx.resource(
        'socket',
        { port: config.port },
        () => {
          log.push(`open ${config.port}`)
          return { port: config.port }
        },
        (socket) => {
          log.push(`close ${socket.port}`)
        }
      )
      ctx.onCommit(() => log.push(`commit ${port.port} ${config.note}`))
    }
  })
  const { kernel } = await startHouse(t, [{ plugin }], bare)
  await kernel.update('owner', { port: 1, note: 'same' })
  await kernel.update('owner', { port: 2, note: 'other' })
  await kernel.retire('owner')
  t.strictSame(log, ['open 1', 'commit 1 ', 'commit 1 same', 'open 2', 'commit 2 other', 'close 1', 'close 2'])
})

t.test('a resource that could not be closed well is opened again by who needs it next', async (t) => {
  const closing = gate()
  let opened = 0
  const plugin = definePlugin({
    name: 'owner',
    async apply(ctx) {
      await ctx.resource(
        'socket',
        1,
        () => (opened += 1),
        () => closing.promise
      )
    }
  })
  const { kernel, lines } = await startHouse(t, [{ plugin }], bare)
  const retired = kernel.retire('owner')
  const begun = kernel.begin({ id: 'owner', plugin })
  closing.fail(new Error('not closed'))
  await Promise.all([retired, begun])
  t.equal(opened, 2)
  t.equal(stateOf(kernel, 'owner'), 'Active')
  t.ok(lines.some((line) => line.message === 'an undo failed' && line['label'] === 'resource:socket'))
})

t.test('an exclusive plugin is undone before its next generation is built, and put back when that fails', async (t) => {
  const log: string[] = []
  const plugin = definePlugin({
    name: 'exclusive',
    exclusive: true,
    config: word,
    apply(ctx, config) {
      log.push(`up ${config.word}`)
      ctx.effect(() => () => log.push(`down ${config.word}`))
      if (config.word === 'bad') throw new Error('bad word')
    }
  })
  const { kernel } = await startHouse(t, [{ plugin }], bare)
  await kernel.update('exclusive', { word: 'next' })
  await t.rejects(kernel.update('exclusive', { word: 'bad' }), { message: 'bad word' })
  await kernel.settled()
  t.strictSame(log, ['up hello', 'down hello', 'up next', 'down next', 'up bad', 'down bad', 'up next'])
  t.equal(stateOf(kernel, 'exclusive'), 'Active')
})

t.test('listeners come with the commit, go with the generation, and fail alone', async (t) => {
  const heard: string[] = []
  const plugin = definePlugin({
    name: 'listener',
    config: word,
    apply(ctx, config) {
      ctx.on('test/ping', (value) => {
        if (value === 13) throw new Error('unlucky')
        heard.push(`${config.word} ${value}`)
      })
      ctx.on('test/ping', (value) => heard.push(`once ${value}`), { once: true, prepend: true })
    }
  })
  const { kernel, lines } = await startHouse(t, [{ plugin }], bare)
  kernel.events.emit('test/ping', 1)
  kernel.events.emit('test/ping', 2)
  t.strictSame(heard.splice(0), ['once 1', 'hello 1', 'hello 2'])
  for (let i = 0; i < 20; i++) await kernel.update('listener', { word: `w${i}` })
  kernel.events.emit('test/ping', 3)
  t.strictSame(heard.splice(0), ['once 3', 'w19 3'], 'one call an event, from the newest generation')
  kernel.events.emit('test/ping', 13)
  t.ok(lines.some((line) => line.level === 'error' && line['entry'] === 'listener'))
  await kernel.retire('listener')
  kernel.events.emit('test/ping', 4)
  t.strictSame(heard, ['once 13'].slice(1))
  t.match(kernel.events.counts().byEvent, { 'test/ping': 5 })
})

t.test('a chain of 10,000 plugins in reverse order starts and stops', async (t) => {
  const kernel = new Kernel()
  const begun: Promise<void>[] = []
  for (let i = 9_999; i >= 0; i--) {
    const plugin = definePlugin({
      name: `p${i}`,
      inject: (i === 0 ? [] : [`s${i - 1}`]) as unknown as ['other'],
      provides: [`s${i}`] as unknown as ['other'],
      apply(ctx) {
        ctx.provide(`s${i}` as 'other', { name: () => String(i) })
      }
    })
    begun.push(kernel.begin({ id: `p${i}`, plugin }))
  }
  await Promise.all(begun)
  await kernel.settled()
  t.ok(kernel.fibers().every((fiber) => fiber.state === 'Active'))
  await kernel.stop()
  t.strictSame(kernel.fibers(), [])
})

t.test(
  'stopping tells leases to end once their part of the time has passed, and resolves when all is undone',
  async (t) => {
    let undone = false
    const plugin = definePlugin({
      name: 'streamer',
      apply(ctx) {
        const lease = ctx.lease()
        lease.signal.addEventListener('abort', () => lease.release())
        ctx.effect(() => () => {
          undone = true
        })
      }
    })
    const { kernel } = await startHouse(t, [{ plugin }], bare)
    await kernel.stop(20)
    t.ok(undone)
  }
)

/** Resolves once the entry is in `state`. */
function reached(kernel: Kernel, entry: string, state: string): Promise<void> {
  if (stateOf(kernel, entry) === state) return Promise.resolve()
  return new Promise((resolve) => {
    const heard = listener((status) => {
      if (status.entry !== entry || status.state !== state) return
      kernel.events.remove('kernel/fiber-changed', heard)
      resolve()
    })
    kernel.events.add('kernel/fiber-changed', heard)
  })
}

function listener(call: (status: { entry: string; state: string }) => unknown) {
  return new Listener(call as (...args: never[]) => unknown, undefined)
}
