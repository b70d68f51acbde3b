import { createIndexWork, type IndexWork } from './bm25.ts'
import type { Progress } from './types.ts'
import { createVectorWork, type VectorWork } from './vectors.ts'

/** What the generations of the plugin have in common: what one of them writes, another must not take away. */
export interface RagState {
  readonly index: IndexWork
  readonly vectors: VectorWork
  /** Ends the making of approximate indexes by the generation that is live. */
  stopGraphs: (() => void) | undefined
  /** Has the generation that is live go on with what another one was not allowed to end. */
  resume: (() => void) | undefined
  /** Chunks that are being written, by collection id and first ordinal. */
  readonly writing: Set<string>
  /** Collections whose index is to be looked after, and whether again once that has ended. */
  readonly tending: Map<string, { again: boolean; readonly spaces: Set<string> }>
  /** What is known of collections that were searched lately. */
  readonly trusts: Map<string, KnownTrust>
  /** Jobs that run in this process, by id, and how far they are. */
  readonly jobs: Map<string, Progress>
  /** Documents that are being taken in while somebody waits for them. */
  ingesting: number
  /** What a process before this one left behind was taken away. */
  swept: boolean
}

/** How far the list of meaning of a collection is to be believed, as it was measured. */
export interface TrustRecord {
  readonly trust: number
  /** The index of vectors and the number of chunks then. */
  readonly index: string
  readonly chunks: number
}

export interface KnownTrust {
  known: TrustRecord | undefined
  isBeingMeasured: boolean
  /** Not measured before, since the last time failed. */
  againAtMs: number
}

export function createState(): RagState {
  return {
    index: createIndexWork(),
    vectors: createVectorWork(),
    stopGraphs: undefined,
    resume: undefined,
    writing: new Set(),
    tending: new Map(),
    trusts: new Map(),
    jobs: new Map(),
    ingesting: 0,
    swept: false
  }
}
