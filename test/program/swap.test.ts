import { writeFileSync } from 'node:fs'
import { isDeepStrictEqual } from 'node:util'
import { queryObjects } from 'node:v8'
import t from 'tap'
import { startSubject, type Subject, type SubjectOptions } from '../../bench/swap-subject.ts'
import { startTraffic } from '../../bench/swap-traffic.ts'
import { Fiber } from '../../kernel/fiber.ts'
import { Generation } from '../../kernel/generation.ts'
import { definePlugin } from '../../kernel/index.ts'
import type { Tool } from '../../plugins/tools/types.ts'
import { startProgram } from '../harness.ts'

// The short forms of the bench `swap`, with its server, its clients and its swaps.

async function subject(t: { teardown(work: () => unknown): void }, options: SubjectOptions = {}): Promise<Subject> {
  const started = await startSubject({ cores: 'all', drainTimeoutMs: 60_000, ...options })
  t.teardown(() => started.stop())
  return started
}

const nothingLost = {
  faults: [],
  brokenKeepAlive: 0,
  brokenFresh: 0,
  brokenOthers: 0,
  cutStreams: 0,
  gappedStreams: 0,
  mixed: 0,
  stale: 0
}

t.test('clients that never retry do not notice a hundred changes of the config of the tool they call', async (t) => {
  const server = await subject(t, { applyTimeoutMs: 10_000 })
  const traffic = startTraffic(server, { keepAlive: 16, fresh: 16, streams: 0, longStreams: 0 })
  for (let count = 0; count < 100; count++) await server.patch('answer')
  const tally = await traffic.stop()
  t.match(tally, nothingLost)
  t.ok(tally.latenciesMs.length >= 100, 'all the while they had answers')
  t.equal(server.bounds.answer.done.mark, 100)
})

t.test('swaps of every kind lose no request and no event, and bad ones are refused with their reason', async (t) => {
  const server = await subject(t, { applyTimeoutMs: 2_000 })
  const traffic = startTraffic(server, { keepAlive: 4, fresh: 4, streams: 16, longStreams: 0 })
  const swaps = []
  for (let count = 0; count < 25; count++) swaps.push(await server.swap())
  const tally = await traffic.stop()
  t.strictSame(
    swaps.flatMap((swap) => swap.faults),
    []
  )
  t.match(tally, nothingLost)
  t.ok(tally.streams >= 16)
  t.ok(tally.slowCalls > 0)
  t.ok(tally.writes > 0)
  t.strictSame([...new Set(swaps.map((swap) => swap.kind))].sort(), [
    'code',
    'collector',
    'hangs',
    'invalid',
    'lacking',
    'move',
    'patch',
    'provide',
    'replace',
    'retire',
    'syntax',
    'throws'
  ])
})

t.test('a stream that is longer than the drain time ends with its last event', async (t) => {
  const server = await subject(t, { applyTimeoutMs: 10_000, drainTimeoutMs: 1_000 })
  const traffic = startTraffic(server, { keepAlive: 0, fresh: 0, streams: 4, longStreams: 4 })
  const ended = traffic.stop() // each goes on to its end, once it has begun
  await server.patch('ticks')
  t.match(await ended, { ...nothingLost, streams: 4 })
})

t.test('two hundred swaps leave no fiber, generation, undo, resource, timer, handle or listener behind', async (t) => {
  let heard = 0
  const subject = definePlugin({
    name: 'subject',
    inject: ['tools'],
    optional: ['events_service'],
    config: { type: 'object', properties: { mark: { type: 'integer' } } },
    async apply(ctx, config: { mark?: number }) {
      const tool: Tool = {
        name: 'answer',
        description: 'Answers',
        input: { type: 'object' },
        output: { type: 'object' },
        effect: 'none',
        anonymous: true,
        run: () => config
      }
      ctx.contribute('tools', tool)
      ctx.setInterval(() => {}, 1_000)
      ctx.on('kernel/started', () => heard++)
      await ctx.resource(
        'handle',
        config,
        () => setInterval(() => {}, 1_000),
        (timer) => clearInterval(timer)
      )
    }
  })
  const program = ['tools', 'carmy', 'subject'].map((name) => `\n[[entry]]\nid = "${name}"\nplugin = "${name}"\n`)
  const house = await startProgram(t, program.join(''), { subject })
  const { kernel } = house

  const left = async () => {
    while (kernel.fibers().some((fiber) => fiber.draining > 0)) await new Promise((resolve) => setImmediate(resolve))
    const kinds = process.getActiveResourcesInfo().filter((kind) => !/Immediate|Req/.test(kind))
    const before = heard
    kernel.events.emit('kernel/started')
    return {
      fibers: kernel
        .fibers()
        .map(({ fiberId, entry, state, pendingUndoLabels }) => [fiberId, entry, state, pendingUndoLabels]),
      undos: kernel.fibers().map((fiber) => fiber.pendingUndoCount),
      resources: kernel.resources.size,
      // Whoever holds one that has ended would hold them all.
      alive: [Fiber, Generation].map((each) => queryObjects(each, { format: 'count' })),
      timers: kinds.filter((kind) => kind === 'Timeout').length,
      handles: kinds.filter((kind) => kind !== 'Timeout').sort(),
      heard: heard - before
    }
  }

  await house.admin('PATCH', '/entries/subject', { config: { mark: 0 } })
  const before = await left()
  for (let mark = 1; mark <= 200; mark++) {
    const { status } = await house.admin('PATCH', '/entries/subject', { config: { mark } })
    if (status !== 200) throw new Error(`PATCH was answered ${status}`)
    if (mark % 10 !== 0) continue
    for (const verb of ['retire', 'provide']) await house.admin('POST', `/services/events_service/${verb}`)
  }
  t.match(await house.services('http').dispatch({ method: 'POST', path: '/agent/execute', body: { tool: 'answer' } }), {
    body: { data: { mark: 200 } }
  })
  // What was retired last may still be ending.
  const deadlineMs = performance.now() + 10_000
  let after = await left()
  while (!isDeepStrictEqual(after, before) && performance.now() < deadlineMs) {
    await new Promise((resolve) => setImmediate(resolve))
    after = await left()
  }
  t.strictSame(after, before)
})

t.test('a plugin that needs what nobody provides does not take the place of one that serves', async (t) => {
  const tool = (result: string) =>
    ({
      name: 'answer',
      description: 'Answers',
      input: { type: 'object' },
      output: {},
      effect: 'none',
      anonymous: true,
      run: () => result
    }) satisfies Tool
  const contributing = (name: string, inject: readonly string[]) =>
    definePlugin({
      name,
      inject: ['tools', ...(inject as never[])],
      apply: (ctx) => ctx.contribute('tools', tool(name))
    })
  const beacon = 'beacon' as never
  const house = await startProgram(
    t,
    ['tools', 'carmy', 'modest'].map((name) => `\n[[entry]]\nid = "${name}"\nplugin = "${name}"\n`).join(''),
    {
      modest: contributing('modest', []),
      lacking: contributing('lacking', ['beacon']),
      beacon: definePlugin({
        name: 'beacon',
        provides: [beacon],
        apply: (ctx) => ctx.provide(beacon, {} as never)
      })
    }
  )
  const answer = async () =>
    (await house.services('http').dispatch({ method: 'POST', path: '/agent/execute', body: { tool: 'answer' } })).body
  const before = house.text()

  const put = await house.admin('PUT', '/entries', { id: 'modest', plugin: 'lacking' })
  t.match(put, { status: 422, body: { applied: [], error: /plugin 'lacking' needs service 'beacon'/ } })
  t.match(await answer(), { data: 'modest' })
  t.equal(house.text(), before)

  writeFileSync(
    house.file,
    `${before.replace('plugin = "modest"', 'plugin = "lacking"')}\n[[entry]]\nid = "beacon"\nplugin = "beacon"\n`
  )
  t.match(await house.admin('POST', '/entries/reload'), { status: 200 }, 'one that comes with its provider is welcome')
  t.match(await answer(), { data: 'lacking' })
})
