/** Requests that come whether or not those before them were answered: more than a server can do. */
import { setTimeout as sleep } from 'node:timers/promises'
import { type Client, type HttpReply, openClient } from './load.ts'

export interface FloodOptions {
  /** Makes the n-th request. */
  readonly request: (n: number) => Uint8Array
  /** Evenly over the time, and the product of both in all. */
  readonly perSecond: number
  readonly seconds: number
}

export interface FloodTally {
  /** Done before the flood was over. */
  readonly good: number
  /** Done afterwards: what had been let in. */
  readonly goodAfter: number
  /** 503 or 429 with a time to come back. From the moment each was sent, in milliseconds. */
  readonly refusedMs: readonly number[]
  /** Everything else, the first of them in words. */
  readonly broken: number
  readonly faults: readonly string[]
}

const maxFaults = 5
/** A server may close a connection that has been idle for longer. */
const maxIdleMs = 2_000
const tickMs = 2

/** Whether an answer is one that an overloaded server may give. */
export function isRefusal({ status, headers }: HttpReply): boolean {
  return (status === 503 || status === 429) && Number(headers['retry-after']) >= 1
}

/** Resolves when every request has its answer. Connections are kept; one that is at work gets no second request. */
export async function flood(port: number, { request, perSecond, seconds }: FloodOptions): Promise<FloodTally> {
  const idle: { readonly client: Client; readonly sinceMs: number }[] = []
  const all: Client[] = []
  const refusedMs: number[] = []
  const faults: string[] = []
  const count = { good: 0, goodAfter: 0, broken: 0 }
  let isOver = false

  async function ask(n: number): Promise<void> {
    let client: Client | undefined
    try {
      const last = idle.pop()
      if (last !== undefined && performance.now() - last.sinceMs < maxIdleMs) client = last.client
      if (client === undefined) all.push((client = await openClient(port)))
      const sentAt = performance.now()
      const reply = await client.send(request(n))
      if (isRefusal(reply)) refusedMs.push(performance.now() - sentAt)
      else if (reply.status !== 200) throw new Error(`answered ${reply.status}: ${reply.body}`)
      else if (isOver) count.goodAfter += 1
      else count.good += 1
      if (reply.headers['connection'] !== 'close') idle.push({ client, sinceMs: performance.now() })
    } catch (error) {
      count.broken += 1
      client?.close()
      if (faults.length < maxFaults) faults.push(String(error))
    }
  }

  const asked: Promise<void>[] = []
  const startedAt = performance.now()
  for (;;) {
    const elapsed = (performance.now() - startedAt) / 1000
    if (elapsed >= seconds) break
    while (asked.length < elapsed * perSecond) asked.push(ask(asked.length))
    await sleep(tickMs)
  }
  // Of a generator that was kept waiting itself: the number does not depend on that.
  while (asked.length < perSecond * seconds) asked.push(ask(asked.length))
  isOver = true
  await Promise.all(asked)
  for (const client of all) client.close()
  return { ...count, refusedMs, faults }
}

/** What `connections` clients get done that ask again when they have their answer. @throws Error at one that is not 200 */
export async function goodput(
  port: number,
  { request, connections, seconds }: Pick<FloodOptions, 'request' | 'seconds'> & { readonly connections: number }
): Promise<number> {
  let asked = 0
  const startedAt = performance.now()
  const clients = await Promise.all(Array.from({ length: connections }, () => openClient(port)))
  await Promise.all(
    clients.map(async (client) => {
      while (performance.now() - startedAt < seconds * 1000) {
        const { status, body } = await client.send(request(asked++))
        if (status !== 200) throw new Error(`answered ${status}: ${body}`)
      }
      client.close()
    })
  )
  return asked / ((performance.now() - startedAt) / 1000)
}

/**
 * Asks again and again, one at a time, until an answer is good and takes no longer than `withinMs`.
 * @returns how long that took, in milliseconds
 */
export async function recovery(port: number, request: Uint8Array, withinMs: number): Promise<number> {
  const startedAt = performance.now()
  const client = await openClient(port)
  try {
    for (;;) {
      const sentAt = performance.now()
      const { status } = await client.send(request)
      const now = performance.now()
      if (status === 200 && now - sentAt <= withinMs) return now - startedAt
      if (now - startedAt > 30_000) return Number.POSITIVE_INFINITY
      await sleep(5)
    }
  } finally {
    client.close()
  }
}
