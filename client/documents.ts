import { createReadStream } from 'node:fs'
import { readdir, readFile, stat } from 'node:fs/promises'
import { basename, extname, join, relative, resolve, sep } from 'node:path'
import { createInterface } from 'node:readline'
import { readPage } from './html.ts'

/** A text to be taken in, as `POST /api/rag/ingest` wants it. */
export interface FoundDocument {
  readonly content: string
  readonly title: string
  /** Path from the folder with `/`, and the place in a file that holds several; or what the document itself says. */
  readonly source: string
  readonly tags?: readonly string[]
  readonly metadata?: Readonly<Record<string, string | number | boolean>>
}

/** A file that holds documents. */
export interface FoundFile {
  readonly path: string
  /** From the folder, with `/`. */
  readonly name: string
  readonly bytes: number
}

const kinds: ReadonlySet<string> = new Set([
  '.md',
  '.markdown',
  '.txt',
  '.text',
  '.json',
  '.jsonl',
  '.ndjson',
  '.html',
  '.htm'
])

/**
 * The files of a folder and those below it that can be read, by name; or the one file. Hidden ones and `node_modules`
 * are left out, and links are not followed.
 */
export async function findFiles(place: string): Promise<readonly FoundFile[]> {
  const root = resolve(place)
  if ((await stat(root)).isFile()) return [await toFile(root, basename(root))]
  const found: FoundFile[] = []
  const walk = async (folder: string): Promise<void> => {
    for (const entry of await readdir(folder, { withFileTypes: true })) {
      if (entry.name.startsWith('.') || entry.name === 'node_modules') continue
      const path = join(folder, entry.name)
      if (entry.isDirectory()) await walk(path)
      else if (entry.isFile() && kinds.has(extname(entry.name).toLowerCase())) {
        found.push(await toFile(path, relative(root, path).split(sep).join('/')))
      }
    }
  }
  await walk(root)
  return found.sort((a, b) => (a.name < b.name ? -1 : 1))
}

async function toFile(path: string, name: string): Promise<FoundFile> {
  return { path, name, bytes: (await stat(path)).size }
}

/**
 * The documents of a file, one after the other: a file of lines may hold millions.
 * @param onFailure told of a line that is none, and where; those behind it are read on
 * @throws TypeError that says what is wrong with the file
 */
export async function* readDocuments(
  { path, name }: FoundFile,
  onFailure: (error: Error) => void
): AsyncGenerator<FoundDocument> {
  const kind = extname(path).toLowerCase()
  if (kind === '.jsonl' || kind === '.ndjson') {
    let line = 0
    for await (const text of createInterface({ input: createReadStream(path), crlfDelay: Number.POSITIVE_INFINITY })) {
      line += 1
      if (text.trim() === '') continue
      let value: unknown
      try {
        value = parse(text, `${name}:${line}`)
      } catch (error) {
        onFailure(error as Error)
        continue
      }
      yield toDocument(value, name, `${name}#${line}`)
    }
    return
  }
  const text = (await readFile(path, 'utf8')).replace(/^\uFEFF/, '')
  if (kind === '.json') {
    const value = parse(text, name)
    if (Array.isArray(value)) {
      for (const [at, item] of value.entries()) yield toDocument(item, name, `${name}#${at + 1}`)
    } else yield toDocument(value, name, name)
  } else if (kind === '.html' || kind === '.htm') {
    const page = readPage(text)
    yield { content: page.text, title: page.title ?? basename(name), source: name }
  } else {
    const heading = kind.startsWith('.m') ? headingOf(text) : undefined
    yield { content: text, title: heading ?? basename(name), source: name }
  }
}

/** The first one that says something. */
function headingOf(text: string): string | undefined {
  for (const [, line = ''] of text.matchAll(/^#{1,6}[ \t]+(.*)$/gm)) {
    let end = line.length
    while (end > 0 && ' \t#\r'.includes(line.charAt(end - 1))) end -= 1
    if (end > 0) return line.slice(0, end).trim()
  }
  return undefined
}

function parse(text: string, place: string): unknown {
  try {
    return JSON.parse(text)
  } catch (cause) {
    throw new TypeError(`${place} is no JSON: ${(cause as Error).message}`, { cause })
  }
}

/** A string is a text; an object has one as `content` or `text`, or is taken as it is. */
function toDocument(value: unknown, file: string, place: string): FoundDocument {
  const title = basename(file)
  if (typeof value === 'string') return { content: value, title, source: place }
  const fields = (typeof value === 'object' && value !== null ? value : {}) as Readonly<Record<string, unknown>>
  const content = textOf(fields['content']) ?? textOf(fields['text']) ?? textOf(fields['body'])
  if (content === undefined) return { content: JSON.stringify(value, null, 2), title, source: place }
  const { tags, metadata } = fields
  return {
    content,
    title: textOf(fields['title']) ?? title,
    source: textOf(fields['source']) ?? textOf(fields['url']) ?? place,
    ...(Array.isArray(tags) ? { tags: tags.filter((tag) => typeof tag === 'string') } : {}),
    ...(typeof metadata === 'object' && metadata !== null ? { metadata: plain(metadata) } : {})
  }
}

function textOf(value: unknown): string | undefined {
  return typeof value === 'string' && value.trim() !== '' ? value : undefined
}

function plain(metadata: object): Record<string, string | number | boolean> {
  return Object.fromEntries(
    Object.entries(metadata).filter(([, value]) => ['string', 'number', 'boolean'].includes(typeof value))
  ) as Record<string, string | number | boolean>
}
