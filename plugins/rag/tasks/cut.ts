import type { TaskResult } from '../../workers/types.ts'
import { type Chunk, type ChunkOptions, chunkText } from '../chunk.ts'

export interface CutInput {
  readonly text: string
  readonly options: ChunkOptions
}

/** Where the chunks of a text begin and end, in turn: what the texts of the chunks are need not be copied back. */
export default function cut({ text, options }: CutInput): TaskResult<Uint32Array> {
  const chunks: readonly Chunk[] = chunkText(text, options)
  const places = new Uint32Array(chunks.length * 2)
  for (const [at, { start, end }] of chunks.entries()) {
    places[at * 2] = start
    places[at * 2 + 1] = end
  }
  return { ok: true, value: places }
}
