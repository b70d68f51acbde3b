import type { TaskResult } from '../../workers/types.ts'
import { type Chunk, type ChunkOptions, chunkText } from '../chunk.ts'
import { fingerprintOf } from '../fingerprint.ts'

export interface CutInput {
  readonly text: string
  readonly options: ChunkOptions
}

export interface Cut {
  /** Where the chunks begin and end, in turn: what they say need not be copied back. */
  readonly places: Uint32Array
  readonly fingerprint: string
}

/** Cuts a text into chunks. */
export default function cut({ text, options }: CutInput): TaskResult<Cut> {
  return { ok: true, value: cutText(text, options) }
}

export function cutText(text: string, options: ChunkOptions): Cut {
  const chunks: readonly Chunk[] = chunkText(text, options)
  const places = new Uint32Array(chunks.length * 2)
  for (const [at, { start, end }] of chunks.entries()) {
    places[at * 2] = start
    places[at * 2 + 1] = end
  }
  return { places, fingerprint: fingerprintOf(text) }
}
