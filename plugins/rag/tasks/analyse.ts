import type { TaskResult } from '../../workers/types.ts'
import { buildSegment, type Segment } from '../segment.ts'
import { type Analyser, createAnalyser, type Language } from '../text.ts'

export interface AnalyseInput {
  readonly texts: readonly string[]
  /** Of the document around them, for those that are too short to tell. */
  readonly language: Language | undefined
}

/** Of this thread: it keeps the stems it has seen. */
let analyser: Analyser | undefined

/** A segment of an inverted index from the texts of chunks. */
export default function analyse({ texts, language }: AnalyseInput): TaskResult<Segment> {
  const known = (analyser ??= createAnalyser())
  return { ok: true, value: buildSegment(texts.map((text) => known.analyse(text, language))) }
}
