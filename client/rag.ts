import { statSync } from 'node:fs'
import { dirname, join, resolve } from 'node:path'
import { type FoundDocument, findFiles, readDocuments } from './documents.ts'
import { Journal } from './journal.ts'
import { Progress, type Screen } from './progress.ts'
import type { Server } from './server.ts'

export interface IngestOptions {
  readonly server: Server
  /** A folder or a file. */
  readonly from: string
  readonly collection: string
  /** Says what would be done. */
  readonly dryRun: boolean
  /** Default: `.heartwood-ingest.jsonl` in the folder. */
  readonly journal?: string | undefined
  readonly tags?: readonly string[]
  readonly screen: Screen
  readonly nowMs: () => number
  /** Stops after the documents under way. */
  readonly signal?: AbortSignal
}

export interface SearchOptions {
  readonly server: Server
  readonly query: string
  readonly collection: string
  readonly strategy?: string | undefined
  readonly limit?: number | undefined
  readonly json: boolean
}

/** Documents that are on their way at once. */
const lanes = 4
const shownFailures = 100

/**
 * Takes the documents of a folder into a collection. One that was taken in before and has not changed is left out; one
 * that fails is told, and the rest goes on.
 * @returns what was done, for people
 * @throws TypeError when nothing could be done, or some documents failed
 */
export async function runIngest(options: IngestOptions): Promise<string> {
  const { server, from, collection, dryRun, screen, nowMs } = options
  const files = await findFiles(from)
  if (files.length === 0) throw new TypeError(`${from} holds no file that can be read: md, txt, json, jsonl, html`)
  const collections = (await server.ask('GET', '/api/rag/collections')) as { readonly name: string }[]
  const isFresh = !collections.some(({ name }) => name === collection)
  const place = `${await server.place()} ${collection}`
  const journal = await Journal.open(options.journal ?? journalOf(from), place, isFresh, dryRun)

  const progress = new Progress(
    screen,
    files.reduce((sum, { bytes }) => sum + bytes, 0),
    nowMs
  )
  const failures: string[] = []
  const fail = ({ message }: Error) => failures.push(message)
  const counts = { taken: 0, chunks: 0, unchanged: 0, empty: 0 }
  const say = (line: string) => {
    progress.clear()
    screen.write(`${line}\n`)
  }

  const take = async (document: FoundDocument): Promise<void> => {
    if (document.content.trim() === '') counts.empty += 1
    else if (journal.has(document)) counts.unchanged += 1
    else if (dryRun) {
      counts.taken += 1
      say(`would take in ${document.source}: ${document.title}, ${document.content.length} characters`)
    } else {
      const tags = [...(document.tags ?? []), ...(options.tags ?? [])]
      const body = { ...document, collection, ...(tags.length === 0 ? {} : { tags }) }
      const onRetry = (reason: string, seconds: number) => say(`${document.source}: ${reason}; again in ${seconds} s`)
      const reply = (await server.ask('POST', '/api/rag/ingest', body, onRetry)) as { chunks_created: number }
      await journal.add(document)
      counts.taken += 1
      counts.chunks += reply.chunks_created
    }
    progress.advance(0, 1)
  }
  const attempt = async (document: FoundDocument) => {
    try {
      await take(document)
    } catch (error) {
      failures.push(`${document.source}: ${(error as Error).message}`)
    }
  }

  // A document is read when a lane is free for it: a file may hold more of them than fit into memory.
  const source = readAll()
  async function* readAll(): AsyncGenerator<FoundDocument> {
    for (const file of files) {
      try {
        yield* readDocuments(file, fail)
      } catch (error) {
        fail(error as Error)
      }
      progress.advance(file.bytes, 0)
    }
  }
  const lane = async () => {
    while (options.signal?.aborted !== true) {
      const step = await source.next()
      if (step.done === true) return
      await attempt(step.value)
    }
  }
  await Promise.all(Array.from({ length: lanes }, lane))
  progress.clear()

  const did = dryRun ? 'would take in' : 'took in'
  const parts = [
    `${did} ${counts.taken} documents${dryRun ? '' : ` as ${counts.chunks} chunks`}`,
    ...(counts.unchanged > 0 ? [`${counts.unchanged} unchanged`] : []),
    ...(counts.empty > 0 ? [`${counts.empty} empty`] : []),
    ...(options.signal?.aborted === true ? ['stopped; run it again to go on'] : [])
  ]
  const summary = `${collection}: ${parts.join(', ')}\n`
  if (failures.length === 0) return summary
  const more = failures.length > shownFailures ? [`and ${failures.length - shownFailures} more`] : []
  const shown = [...failures.slice(0, shownFailures), ...more]
  throw new TypeError(`${summary}${failures.length} failed:\n  ${shown.join('\n  ')}`)
}

function journalOf(from: string): string {
  const place = resolve(from)
  return join(statSync(place).isDirectory() ? place : dirname(place), '.heartwood-ingest.jsonl')
}

interface Hit {
  readonly content: string
  readonly score: number
  readonly metadata: { readonly title?: string | null; readonly source?: string | null }
}

/** @returns the hits, for people or as JSON */
export async function runSearch(options: SearchOptions): Promise<string> {
  const { server, query, collection, strategy, limit, json } = options
  const body = {
    query,
    collection,
    ...(strategy === undefined ? {} : { strategy }),
    ...(limit === undefined ? {} : { limit })
  }
  const found = (await server.ask('POST', '/api/rag/search', body)) as {
    readonly results: readonly Hit[]
    readonly total: number
    readonly strategy: string
    readonly duration_ms: number
  }
  if (json) return `${JSON.stringify(found, null, 2)}\n`
  const lines = found.results.map(({ content, score, metadata }, at) => {
    const from = [metadata.title, metadata.source]
      .filter((part) => typeof part === 'string')
      .join(', ')
      .replace(/\p{Cc}+/gu, ' ')
    // What a document holds is text, never orders to the terminal.
    const shown = content.replace(/[\s\p{Cc}]+/gu, ' ').trim()
    const text = shown.length > 240 ? `${shown.slice(0, 240)}…` : shown
    return `${at + 1}. ${score.toFixed(3)}  ${from}\n   ${text}\n`
  })
  return `${lines.join('\n')}${lines.length > 0 ? '\n' : ''}${found.results.length} of ${found.total}, ${found.strategy}, ${found.duration_ms} ms\n`
}
