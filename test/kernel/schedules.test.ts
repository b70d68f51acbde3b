/**
 * Random schedules of what may happen, on random graphs of plugins that fail, hang and take their time: B34 of the case
 * list, and the guarantees of rest, confluence and nothing left behind.
 */
import fc from 'fast-check'
import t from 'tap'
import { definePlugin, type Gate, messageOf, type Plugin, schemaOf } from '../../kernel/index.ts'
import { Kernel } from '../../kernel/kernel.ts'
import type { Fiber } from '../../kernel/fiber.ts'
import { isAtRest, type Latch, latch, nextTurn, statesOf } from './support.ts'

const applies = ['sync', 'sync', 'slow', 'long', 'throw', 'reject', 'gated'] as const
const undos = ['sync', 'sync', 'slow', 'throw'] as const

const badLuck = new Error('no luck today')

interface Behaviour {
  /** Tells apart every config of a schedule. */
  readonly number: number
  readonly apply: (typeof applies)[number]
  readonly undo: (typeof undos)[number]
}

/** Node `i` provides service `s<i>`. */
interface Node {
  readonly needs: readonly number[]
  readonly likes: readonly number[]
  readonly exclusive: boolean
  /** What a plugin that it mounts needs; none is mounted without. */
  readonly childNeeds: number | undefined
}

interface Part extends Omit<Node, 'childNeeds'> {
  readonly name: string
  readonly provides: readonly number[]
  readonly child?: Plugin | undefined
}

type Step =
  | { readonly do: 'begin' | 'update'; readonly node: number; readonly apply: number; readonly undo: number }
  | { readonly do: 'retire' | 'open' | 'close' | 'refresh'; readonly node: number }
  | { readonly do: 'turn' }
  | { readonly do: 'rest' }

const nodeCount = 6
const anyNode = fc.nat(nodeCount - 1)
const anyGraph: fc.Arbitrary<readonly Node[]> = fc.array(
  fc.record({
    needs: fc.uniqueArray(anyNode, { maxLength: 2 }),
    likes: fc.uniqueArray(anyNode, { maxLength: 1 }),
    exclusive: fc.nat(4).map((n) => n === 4),
    childNeeds: fc.option(anyNode, { nil: undefined, freq: 4 })
  }),
  { minLength: nodeCount, maxLength: nodeCount }
)
const anyBehaviour = { node: anyNode, apply: fc.nat(applies.length - 1), undo: fc.nat(undos.length - 1) }
const anyStep: fc.Arbitrary<Step> = fc.oneof(
  { weight: 6, arbitrary: fc.record({ do: fc.constant('begin' as const), ...anyBehaviour }) },
  { weight: 4, arbitrary: fc.record({ do: fc.constant('update' as const), ...anyBehaviour }) },
  { weight: 4, arbitrary: fc.record({ do: fc.constantFrom('retire', 'open', 'close', 'refresh'), node: anyNode }) },
  { weight: 3, arbitrary: fc.constantFrom<Step>({ do: 'turn' }, { do: 'turn' }, { do: 'rest' }) }
)

/** One run of an apply: what it made, and what has been undone of it. */
interface Run {
  readonly entry: string
  readonly number: number
  readonly seen: readonly boolean[]
  readonly made: string[]
  readonly undone: string[]
}

/** A kernel under a schedule, and what can be seen of it from outside. */
class World {
  readonly kernel = new Kernel()
  readonly runs: Run[] = []
  readonly gates = new Map<string, Gate>()
  /** What the long applies wait for. */
  readonly pending: Latch[] = []
  readonly faults: string[] = []
  readonly plugins: readonly Plugin[]
  readonly nodes: readonly Node[]
  #count = 0

  constructor(nodes: readonly Node[]) {
    this.nodes = nodes.map(({ likes, ...node }) => ({
      ...node,
      // Two that cannot overlap and like each other never come to rest; see C07.
      likes: node.exclusive ? [] : likes.filter((like) => !node.needs.includes(like))
    }))
    this.plugins = this.nodes.map((node, at) => this.#plugin(node, at))
  }

  async take(step: Step): Promise<void> {
    const { kernel } = this
    if (step.do === 'turn') return nextTurn()
    if (step.do === 'rest') {
      await this.rest()
      return this.check()
    }
    const id = `n${step.node}`
    const ignore = () => {}
    if (step.do === 'begin' || step.do === 'update') {
      this.#count += 1
      const config = { number: this.#count, apply: applies[step.apply], undo: undos[step.undo] }
      if (step.do === 'update') kernel.update(id, config).catch(ignore)
      else kernel.begin({ id, plugin: this.plugins[step.node] as Plugin, config }).catch(ignore)
    } else if (step.do === 'retire') kernel.retire(id).catch(ignore)
    else if (step.do === 'refresh') kernel.refresh(id).catch(ignore)
    else this.gates.get(id)?.[step.do]()
  }

  /** Lets everything end that waits for nothing but time. */
  async rest(): Promise<void> {
    let turns = 0
    do {
      turns += 1
      if (turns > 10_000) throw new Error(`it does not come to rest: ${statesOf(this.kernel).join(', ')}`)
      for (const latch of this.pending.splice(0)) latch.open()
      for (const [entry, gate] of this.gates) if (this.kernel.fiber(entry)?.state === 'Reloading') gate.open()
      await nextTurn()
    } while (this.pending.length > 0 || !isAtRest(this.kernel))
  }

  async stop(): Promise<void> {
    let stopped = false
    const done = this.kernel.stop().then(() => {
      stopped = true
    })
    for (let turns = 0; !stopped; turns++) {
      if (turns > 10_000) throw new Error(`it does not stop: ${statesOf(this.kernel).join(', ')}`)
      await nextTurn()
    }
    await done
  }

  /** At rest, a fiber is active exactly when its needs are met; what it shows is what it was last told. */
  check(): void {
    const isThere = (node: number) => this.kernel.fiber(`n${node}`)?.state === 'Active'
    for (const { entry, state } of this.kernel.fibers()) {
      const fiber = this.kernel.fiber(entry) as Fiber
      const isChild = entry.endsWith('/child')
      const at = Number(/\d+/.exec(entry)?.[0])
      const node = this.nodes[at] as Node
      const needs = isChild ? [node.childNeeds as number] : node.needs.filter((need) => need !== at)
      const met = needs.every(isThere) && (!isChild || isThere(at))
      const behaviour = fiber.target?.config as Partial<Behaviour>
      const live = this.runs.filter((run) => run.entry === entry && run.undone.length === 0)
      if (state === 'Active') {
        if (!met) this.faults.push(`${entry} is active without its needs`)
        if (live.length !== 1) this.faults.push(`${entry} is active with ${live.length} runs`)
        if (live[0]?.number !== (behaviour.number ?? 0))
          this.faults.push(`${entry} shows another config than it was told`)
        const likes = isChild ? [] : node.likes.map((like) => like !== at && isThere(like))
        if (live[0]?.seen.join() !== likes.join()) this.faults.push(`${entry} has not seen what it likes`)
        continue
      }
      const parked = fiber.current !== undefined && fiber.current.closedGates.length > 0
      if (live.length !== (parked ? 1 : 0)) this.faults.push(`${entry} is ${state} with ${live.length} runs`)
      if (state === 'Failed') {
        if (fiber.error !== badLuck) this.faults.push(`${entry} failed without a reason: ${messageOf(fiber.error)}`)
      } else if (met && !parked) this.faults.push(`${entry} is ${state} though its needs are met`)
    }
    this.checkUndos()
  }

  /** Whatever has been undone was undone whole, in reverse. */
  checkUndos(): void {
    for (const { entry, made, undone } of this.runs) {
      if (undone.length === 0) continue
      if (undone.join() !== [...made].reverse().join()) {
        this.faults.push(`${entry} made ${made.join()} and undid ${undone.join()}`)
      }
    }
  }

  #plugin(node: Node, at: number): Plugin {
    const { needs, likes, exclusive, childNeeds } = node
    const child =
      childNeeds === undefined
        ? undefined
        : this.#part({ name: 'child', needs: [childNeeds], likes: [], provides: [], exclusive: false })
    return this.#part({ name: `n${at}`, needs, likes, provides: [at], exclusive, child })
  }

  #part({ name, needs, likes, provides, exclusive, child }: Part): Plugin {
    const services = (numbers: readonly number[]) =>
      numbers.map((number) => `s${number}`) as unknown as readonly ['foo']
    return definePlugin({
      name,
      inject: services(needs),
      optional: services(likes),
      provides: services(provides),
      exclusive,
      config: schemaOf<Partial<Behaviour>>({}),
      apply: async (ctx, behaviour) => {
        const { number = 0, apply, undo } = behaviour
        const injected = ctx.services as unknown as Readonly<Record<string, { get(): number } | undefined>>
        const outside = needs.filter((need) => !provides.includes(need))
        const read = () => outside.forEach((need) => injected[`s${need}`]?.get())
        const seen = likes.map((like) => injected[`s${like}`] !== undefined)
        const run: Run = { entry: ctx.entry, number, seen, made: [], undone: [] }
        this.runs.push(run)
        const make = (what: string) =>
          ctx.effect(() => {
            run.made.push(what)
            return async () => {
              try {
                read()
              } catch {
                this.faults.push(`${ctx.entry} lost what it needs before it was undone`)
              }
              run.undone.push(what)
              if (undo === 'slow') await nextTurn()
              if (undo === 'throw') throw new Error('no undo today')
            }
          })
        read()
        make('first')
        for (const provided of provides) ctx.provide(`s${provided}` as 'foo', { get: () => number })
        ctx.on('case/a', () => {})
        ctx.contribute('words', ctx.entry)
        if (child !== undefined) ctx.mount(child)
        if (apply === 'gated') this.gates.set(ctx.entry, ctx.gate('gate'))
        if (apply === 'throw') throw badLuck
        if (apply === 'slow') await nextTurn()
        if (apply === 'reject') return Promise.reject(badLuck)
        if (apply === 'long') {
          const long = latch()
          this.pending.push(long)
          await long.promise
        }
        await ctx.resource('shared', 1, () => ({}), nextTurn)
        make('last')
      }
    })
  }
}

t.test(
  'B34 whatever happens in whatever order, what is active has what it needs, and all is undone once',
  async (t) => {
    const seed = Number(process.env['HEARTWOOD_TEST_SEED'] ?? Date.now() % 2 ** 31)
    t.comment(`seed ${seed}: HEARTWOOD_TEST_SEED=${seed} repeats this run`)
    let runs = 0
    await fc.assert(
      fc.asyncProperty(
        anyGraph,
        fc.array(anyStep, { minLength: 10, maxLength: 60, size: 'max' }),
        async (nodes, steps) => {
          const world = new World(nodes)
          const { kernel } = world
          for (const step of steps) await world.take(step)
          await world.rest()
          world.check()
          runs += world.runs.length

          await world.stop()
          if (kernel.fibers().length > 0) world.faults.push('fibers are left')
          if (kernel.resources.size > 0) world.faults.push('resources are left')
          if (kernel.collection('words').items.length > 0) world.faults.push('contributions are left')
          for (const [at] of nodes.entries()) {
            const slot = kernel.services.slot(`s${at}`)
            if (slot.consumers.size + slot.users.size > 0 || slot.provider !== undefined) {
              world.faults.push(`slot s${at} is in use`)
            }
          }
          for (const { entry, made, undone } of world.runs) {
            if (undone.length !== made.length) world.faults.push(`${entry} was not undone`)
          }
          world.checkUndos()
          if (world.faults.length > 0) throw new Error([...new Set(world.faults)].join('; '))
        }
      ),
      { seed, numRuns: Number(process.env['HEARTWOOD_TEST_RUNS'] ?? 250) }
    )
    t.comment(`${runs} runs of an apply`)
  }
)
