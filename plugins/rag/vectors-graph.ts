import { stat } from 'node:fs/promises'
import type { Index, IndexConfig, MetricKind, ScalarKind } from 'usearch'
import type { WorkerTask } from '../workers/types.ts'

/** A graph for approximate search, opened to be read. */
export interface Graph {
  /** The `count` nearest, the nearest first, as far as they are found. */
  search(query: Float32Array, count: number): readonly { readonly ordinal: number; readonly raw: number }[]
}

/**
 * Neighbours of a node, and nodes that are looked at to find those of a new one, or of a query. With these, a search among
 * 100,000 clustered vectors finds more than 0.99 of the nearest ten.
 */
const connectivity = 16
const expansionAdd = 128
const expansionSearch = 64

/** Makes or extends a graph; it is told to stop by its input. */
export const graphTask: WorkerTask = {
  name: 'rag/extend-graph',
  pool: 'graphs',
  poolDefaults: { maxHeapMb: 512 },
  module: new URL('./tasks/extend-graph.js', import.meta.url).href,
  isUnstoppable: true
}

/** Of vectors of unit length, kept in halves as they are in the store. */
export function graphSettings(dimensions: number): IndexConfig {
  return {
    dimensions,
    metric: 'ip' as MetricKind,
    quantization: 'f16' as ScalarKind,
    connectivity,
    expansion_add: expansionAdd,
    expansion_search: expansionSearch,
    multi: false
  }
}

/**
 * Maps a file into memory, of which only what searches touch is read.
 * @throws when the file is not there or not whole, or the library does not run on this machine
 */
export async function openGraph(path: string, dimensions: number, bytes: number): Promise<Graph> {
  const found = (await stat(path)).size
  if (found !== bytes) throw new Error(`${path} has ${found} bytes, not ${bytes}`)
  const { Index } = await import('usearch')
  const graph: Index = new Index(graphSettings(dimensions))
  graph.view(path)
  return {
    search(query, count) {
      // On this thread: it takes less than handing it to another one.
      const { keys, distances } = graph.search(query, count, 1)
      return Array.from(keys, (key, at) => ({ ordinal: Number(key), raw: 1 - distances[at]! }))
    }
  }
}

/** @throws when the library does not run on this machine */
export async function assertGraphs(): Promise<void> {
  await import('usearch')
}
