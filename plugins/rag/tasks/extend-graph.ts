import { open } from 'node:fs/promises'
import type { TaskResult } from '../../workers/types.ts'
import { graphSettings } from '../vectors-graph.ts'
import { fromHalves } from '../vectors-scan.ts'

export interface ExtendInput {
  readonly dimensions: number
  /** File of the graph that is extended; an empty one when left out. */
  readonly base: string | undefined
  /** File that is written. */
  readonly target: string
  /** What is added: the number and the vector of each, in halves, one behind the other. */
  readonly ordinals: Float64Array
  readonly rows: Uint8Array
  /** Shared: not 0 where it is to be given up. Its thread is not ended, since that takes the process down within a call. */
  readonly stop: Int32Array
}

export interface Extended {
  /** In the graph now. */
  readonly vectors: number
  /** Of the file. */
  readonly bytes: number
}

const rowsAtOnce = 256

/** Adds vectors to a graph for approximate search, as a new file. */
export default async function extendGraph(input: ExtendInput): Promise<TaskResult<Extended>> {
  const { dimensions, base, target, ordinals, rows, stop } = input
  const { Index } = await import('usearch')
  const graph = new Index(graphSettings(dimensions))
  if (base !== undefined) graph.load(base)
  for (let at = 0; at < ordinals.length; at += rowsAtOnce) {
    if (Atomics.load(stop, 0) !== 0) return { ok: false, code: 'RAG_STOPPED', message: 'the graph was given up' }
    const end = Math.min(at + rowsAtOnce, ordinals.length)
    const keys = BigUint64Array.from(ordinals.subarray(at, end), BigInt)
    const vectors = fromHalves(rows.subarray(at * dimensions * 2, end * dimensions * 2))
    // A vector whose segment was merged while a graph took it in comes again.
    const known = graph.contains(keys) as boolean[]
    if (!known.includes(true)) graph.add(keys, vectors, 1)
    else {
      for (const [each, key] of keys.entries()) {
        if (!known[each]) graph.add(key, vectors.subarray(each * dimensions, (each + 1) * dimensions), 1)
      }
    }
  }
  graph.save(target)
  const file = await open(target, 'r+')
  try {
    await file.sync()
    return { ok: true, value: { vectors: graph.size(), bytes: (await file.stat()).size } }
  } finally {
    await file.close()
  }
}
