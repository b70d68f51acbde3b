/** Clients of every kind that notice what a swap must not do to them. None of them ever sends a request twice. */
import { randomUUID } from 'node:crypto'
import { type Client, type HttpReply, openClient } from './load.ts'
import { execute, type Subject, type ToolName, type Version } from './swap-subject.ts'

export interface TrafficOptions {
  readonly keepAlive: number
  readonly fresh: number
  /** Open event streams, with an event every 50 ms. */
  readonly streams: number
  /** So many of them go on for longer than the drain time. */
  readonly longStreams: number
}

/** What the clients met with. */
export interface Tally {
  /** Of the keep-alive and the fresh-connection clients. */
  readonly latenciesMs: number[]
  readonly streams: number
  readonly brokenKeepAlive: number
  readonly brokenFresh: number
  /** Slow calls, writes and their replays that failed. */
  readonly brokenOthers: number
  /** Streams without their last event. */
  readonly cutStreams: number
  /** Streams in which a number was missing or came twice, and short ones that were ended early. */
  readonly gappedStreams: number
  /** Answers of two generations at once, or of one that had been undone. */
  readonly mixed: number
  /** Answers of a generation whose successor had been acknowledged. */
  readonly stale: number
  readonly slowCalls: number
  readonly writes: number
  /** The first things that were wrong, in words. */
  readonly faults: readonly string[]
}

type Count = { -readonly [K in keyof Tally as Tally[K] extends number ? K : never]: Tally[K] }

/** A generation as an answer shows it. */
interface Shown extends Version {
  readonly alive: boolean
}

interface Frame {
  readonly event: string
  readonly data: {
    readonly progress?: number
    readonly partial?: Shown
    readonly status?: string
    readonly error?: { readonly message?: string }
  }
}

const shortEvents = 30
const maxFaults = 20

/** Starts the clients. They go on until `stop` is called, and then to the end of what they have begun. */
export function startTraffic(
  { server: { port }, bounds, drainTimeoutMs }: Pick<Subject, 'server' | 'bounds' | 'drainTimeoutMs'>,
  options: TrafficOptions
): { readonly requests: () => number; stop(): Promise<Tally> } {
  const longEvents = Math.ceil((1.6 * drainTimeoutMs) / 50)
  let over = false
  const latenciesMs: number[] = []
  const faults: string[] = []
  const count: Count = {
    streams: 0,
    brokenKeepAlive: 0,
    brokenFresh: 0,
    brokenOthers: 0,
    cutStreams: 0,
    gappedStreams: 0,
    mixed: 0,
    stale: 0,
    slowCalls: 0,
    writes: 0
  }
  const fault = (kind: keyof Count, text: string) => {
    count[kind] += 1
    if (faults.length < maxFaults) faults.push(`${kind}: ${text}`)
  }

  /** One generation made all of this, and it was one of those that could have. */
  function judge(tool: ToolName, all: readonly Shown[], oldest: Version, text: string): void {
    const [shown] = all
    if (shown === undefined) return
    const { code, mark } = shown
    const { asked } = bounds[tool]
    if (!all.every((each) => each.alive && each.code === code && each.mark === mark)) {
      fault('mixed', `${tool} answered ${text}`)
    } else if (code < oldest.code || mark < oldest.mark || code > asked.code || mark > asked.mark) {
      fault('stale', `${tool} answered ${text}, at least ${JSON.stringify(oldest)} was acknowledged`)
    }
  }

  async function ask(isFresh: boolean, index: number): Promise<void> {
    const kind = isFresh ? 'brokenFresh' : 'brokenKeepAlive'
    // Every other client has its answer made over some turns of the event loop, so that swaps fall into the middle.
    const request = execute('answer', index % 2 === 0 ? {} : { count: 3 })
    let client: Client | undefined
    let seen = bounds.answer.done
    while (!over) {
      const oldest = newest(bounds.answer.done, seen)
      const startedAt = performance.now()
      let isClosing = false
      try {
        client ??= await openClient(port)
        const reply = await client.send(request)
        isClosing = reply.headers['connection'] === 'close'
        latenciesMs.push(performance.now() - startedAt)
        const made = madeBy(reply)
        if (made === undefined) fault(kind, `answered ${reply.status}: ${reply.body}`)
        else {
          judge('answer', made, oldest, reply.body)
          if (!isFresh) seen = made[0]!
        }
      } catch (error) {
        fault(kind, String(error))
        client?.close()
        client = undefined
      }
      if (isFresh || isClosing) {
        client?.close()
        client = undefined
      }
    }
    client?.close()
  }

  async function stream(events: number): Promise<void> {
    const request = execute('ticks', { count: events }, {}, { Accept: 'text/event-stream' })
    while (!over) {
      const oldest = bounds.ticks.done
      let client: Client | undefined
      try {
        client = await openClient(port)
        const { status, body } = await client.send(request)
        count.streams += 1
        if (status !== 200) fault('cutStreams', `answered ${status}: ${body}`)
        else judgeStream(events, framesOf(body), oldest)
      } catch (error) {
        fault('cutStreams', String(error))
      }
      client?.close()
    }
  }

  function judgeStream(events: number, frames: readonly Frame[], oldest: Version): void {
    const ticks = frames.filter((frame) => frame.event === 'tool.progress')
    const last = frames.at(-1)
    const text = () => JSON.stringify(frames.slice(-2))
    if (last?.event !== 'execution.completed') return fault('cutStreams', `ended with ${text()}`)
    const isWhole = last.data.status === 'completed' && ticks.length === events
    const isEnded = events > shortEvents && last.data.status === 'cancelled'
    if (!(isWhole || isEnded)) return fault('gappedStreams', `${ticks.length} of ${events} events, then ${text()}`)
    if (!ticks.every(({ data }, at) => data.progress === at + 1)) {
      return fault('gappedStreams', ticks.map(({ data }) => data.progress).join(' '))
    }
    judge(
      'ticks',
      ticks.map(({ data }) => data.partial!),
      oldest,
      text()
    )
  }

  /** One call at a time on a connection of its own, and a new one when that breaks. */
  async function each(tool: ToolName, work: (client: Client) => Promise<void>): Promise<void> {
    let client: Client | undefined
    while (!over) {
      try {
        client ??= await openClient(port)
        await work(client)
      } catch (error) {
        fault('brokenOthers', `${tool}: ${String(error)}`)
        client?.close()
        client = undefined
      }
    }
    client?.close()
  }

  async function call(tool: ToolName, client: Client, request: Buffer): Promise<HttpReply> {
    const oldest = bounds[tool].done
    const reply = await client.send(request)
    const made = madeBy(reply)
    if (made === undefined) throw new Error(`answered ${reply.status}: ${reply.body}`)
    judge(tool, made, oldest, reply.body)
    return reply
  }

  const slow = () =>
    each('slow', async (client) => {
      await call('slow', client, execute('slow', {}))
      count.slowCalls += 1
    })

  /** Sends every request a second time on purpose: the answer has to be the same, and the work done once. */
  async function write(): Promise<void> {
    let runs: number | undefined
    await each('write', async (client) => {
      const request = execute('write', {}, { request_id: randomUUID() })
      const { body } = await call('write', client, request)
      count.writes += 1
      const before = runs
      runs = (JSON.parse(body) as { data: { runs: number } }).data.runs
      if (before !== undefined && runs !== before + 1) throw new Error(`ran ${runs - before} times`)
      const replay = await client.send(request)
      if (replay.body !== body) throw new Error(`answered ${body}, then ${replay.body}`)
    })
  }

  const clients = [
    ...Array.from({ length: options.keepAlive }, (_, index) => ask(false, index)),
    ...Array.from({ length: options.fresh }, (_, index) => ask(true, index)),
    ...Array.from({ length: options.streams }, (_, index) =>
      stream(index < options.longStreams ? longEvents : shortEvents)
    ),
    slow(),
    write()
  ]
  return {
    requests: () => latenciesMs.length,
    async stop() {
      over = true
      await Promise.all(clients)
      return { latenciesMs, faults, ...count }
    }
  }
}

/** Both readings of the version in an answer; `undefined` for one that is no success. */
function madeBy({ status, body }: HttpReply): readonly Shown[] | undefined {
  if (status !== 200) return undefined
  const { data } = JSON.parse(body) as { data: { first: Shown; last: Shown } }
  return [data.first, data.last]
}

function newest(a: Version, b: Version): Version {
  return { code: Math.max(a.code, b.code), mark: Math.max(a.mark, b.mark) }
}

function framesOf(body: string): readonly Frame[] {
  return body
    .split('\n\n')
    .filter((block) => block.includes('data: '))
    .map((block) => {
      const event = /^event: (.*)$/m.exec(block)?.[1] ?? ''
      return { event, data: JSON.parse(/^data: (.*)$/m.exec(block)?.[1] ?? '{}') as Frame['data'] }
    })
}
