import { existsSync, readFileSync } from 'node:fs'
import { join } from 'node:path'

/** A public collection with questions and the documents that answer them. */
export interface Collection {
  readonly documents: readonly { readonly id: string; readonly text: string }[]
  readonly queries: readonly {
    readonly text: string
    /** How well each document that answers does so, by its id. */
    readonly answers: ReadonlyMap<string, number>
  }[]
}

/** Texts with questions whose answers are spans of them. */
export interface SpanCollection {
  readonly texts: Readonly<Record<string, string>>
  readonly questions: readonly {
    readonly text: string
    readonly source: string
    readonly spans: readonly { readonly start: number; readonly end: number }[]
  }[]
}

/** The folder `ir` of `HEARTWOOD_TEST_DATA`; `undefined` where there is none. */
export function findCollections(): string | undefined {
  const data = process.env['HEARTWOOD_TEST_DATA']
  if (data === undefined) return undefined
  const folder = join(data, 'ir')
  return existsSync(folder) ? folder : undefined
}

/** A collection in the form of BEIR: `corpus.jsonl`, `queries.jsonl`, `qrels.tsv`. Title and text are one. */
export function readCollection(folder: string, name: string): Collection {
  const linesOf = (file: string) =>
    readFileSync(join(folder, name, file), 'utf8')
      .trim()
      .split('\n')
  const answers = new Map<string, Map<string, number>>()
  for (const line of linesOf('qrels.tsv').slice(1)) {
    const [query = '', document = '', grade = '0'] = line.split('\t')
    if (Number(grade) <= 0) continue
    const own = answers.get(query) ?? new Map<string, number>()
    answers.set(query, own.set(document, Number(grade)))
  }
  const documents = linesOf('corpus.jsonl').map((line) => {
    const { _id, title, text } = JSON.parse(line) as { _id: string; title?: string; text: string }
    return { id: _id, text: `${title ?? ''} ${text}`.trim() }
  })
  const queries = linesOf('queries.jsonl').flatMap((line) => {
    const { _id, text } = JSON.parse(line) as { _id: string; text: string }
    const own = answers.get(_id)
    return own === undefined ? [] : [{ text, answers: own }]
  })
  return { documents, queries }
}

/** Chroma's chunking benchmark. */
export function readSpans(folder: string): SpanCollection {
  const path = join(folder, 'chunk-eval')
  const texts: Record<string, string> = {}
  const questions: SpanCollection['questions'][number][] = []
  for (const [text = '', references = '', source = ''] of parseCsv(
    readFileSync(join(path, 'questions_df.csv'), 'utf8')
  )) {
    if (text === 'question' || source === '') continue
    texts[source] ??= readFileSync(join(path, `${source}.md`), 'utf8')
    const spans = JSON.parse(references) as { start_index: number; end_index: number }[]
    questions.push({ text, source, spans: spans.map((span) => ({ start: span.start_index, end: span.end_index })) })
  }
  return { texts, questions }
}

function parseCsv(text: string): string[][] {
  const rows: string[][] = [[]]
  for (const [, quoted, plain, end] of text.matchAll(/(?:"((?:[^"]|"")*)"|([^",\n]*))(,|\r?\n|$)/g)) {
    rows.at(-1)!.push(quoted?.replaceAll('""', '"') ?? plain ?? '')
    if (end === '') break
    if (end !== ',') rows.push([])
  }
  return rows
}

/** Normalised discounted cumulative gain of the first `depth`, from 0 to 1. */
export function ndcg(ranked: readonly string[], answers: ReadonlyMap<string, number>, depth = 10): number {
  const gain = (grades: readonly number[]) => grades.reduce((sum, grade, at) => sum + grade / Math.log2(at + 2), 0)
  const ideal = [...answers.values()].sort((a, b) => b - a).slice(0, depth)
  return gain(ranked.slice(0, depth).map((id) => answers.get(id) ?? 0)) / gain(ideal)
}

/** Share of the documents that answer among the first `depth`. */
export function recall(ranked: readonly string[], answers: ReadonlyMap<string, number>, depth: number): number {
  return ranked.slice(0, depth).filter((id) => answers.has(id)).length / answers.size
}

/** Share of what the spans hold that the pieces hold. */
export function coverage(
  pieces: readonly { readonly start: number; readonly end: number }[],
  spans: readonly { readonly start: number; readonly end: number }[]
): number {
  let covered = 0
  let total = 0
  for (const span of spans) {
    const inside = new Uint8Array(span.end - span.start)
    for (const { start, end } of pieces) {
      inside.fill(1, Math.max(0, start - span.start), Math.max(0, Math.min(inside.length, end - span.start)))
    }
    covered += inside.reduce((sum, one) => sum + one, 0)
    total += inside.length
  }
  return covered / total
}

/** Numbers from 0 to 1 that are the same for the same seed (mulberry32). */
export function createRandom(seed: number): () => number {
  let state = seed | 0
  return () => {
    state = (state + 0x6d2b79f5) | 0
    let mixed = Math.imul(state ^ (state >>> 15), 1 | state)
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32
  }
}

/** One slip of the finger in every word of at least five letters: a letter left out, put in, changed, or two swapped. */
export function mistype(text: string, random: () => number): string {
  return text.replace(/[A-Za-z]{5,}/g, (word) => {
    const at = Math.floor(random() * (word.length - 1))
    const letter = String.fromCharCode(97 + Math.floor(random() * 26))
    const before = word.slice(0, at)
    const slips = [
      before + word.slice(at + 1),
      before + letter + word.slice(at),
      before + letter + word.slice(at + 1),
      before + word.charAt(at + 1) + word.charAt(at) + word.slice(at + 2)
    ]
    return slips[Math.floor(random() * slips.length)]!
  })
}
