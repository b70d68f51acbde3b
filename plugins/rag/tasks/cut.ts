import type { TaskResult } from '../../workers/types.ts'
import { type Chunk, type ChunkOptions, chunkText } from '../chunk.ts'
import { fingerprintOf } from '../fingerprint.ts'
import { isBlank, putText, textOf, toWellFormed } from '../units.ts'

export interface CutInput {
  readonly text: string | Uint16Array
  readonly options: ChunkOptions
}

export interface Cut {
  /** Where the chunks begin and end, in turn: what they say need not be copied back. */
  readonly places: Uint32Array
  readonly fingerprint: string
  /** Nothing of the text can be seen. */
  readonly isBlank: boolean
}

/** Cuts a text into chunks. Of units, what is no text becomes replacement characters in place. */
export default function cut({ text, options }: CutInput): TaskResult<Cut> {
  if (typeof text === 'string') return { ok: true, value: cutText(text, options) }
  const given = textOf(text)
  const wellFormed = toWellFormed(given)
  if (wellFormed !== given) putText(text, wellFormed)
  return { ok: true, value: cutText(wellFormed, options) }
}

export function cutText(text: string, options: ChunkOptions): Cut {
  if (isBlank(text)) return { places: new Uint32Array(0), fingerprint: '', isBlank: true }
  const chunks: readonly Chunk[] = chunkText(text, options)
  const places = new Uint32Array(chunks.length * 2)
  for (const [at, { start, end }] of chunks.entries()) {
    places[at * 2] = start
    places[at * 2 + 1] = end
  }
  return { places, fingerprint: fingerprintOf(text), isBlank: false }
}
