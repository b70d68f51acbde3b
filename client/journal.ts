import { createHash } from 'node:crypto'
import { appendFile, readFile, writeFile } from 'node:fs/promises'
import type { FoundDocument } from './documents.ts'

interface Line {
  /** Server, account and collection. */
  readonly place: string
  readonly source: string
  readonly title: string
  readonly hash: string
}

/** What has been taken in, so that a run that was cut short goes on where it was. A file of JSON lines. */
export class Journal {
  readonly #file: string
  readonly #place: string
  readonly #done: Map<string, string>

  private constructor(file: string, place: string, done: Map<string, string>) {
    this.#file = file
    this.#place = place
    this.#done = done
  }

  /**
   * @param isFresh the collection is not there: nothing of it has been taken in, whatever the file says
   * @param isReadOnly leaves the file as it is
   */
  static async open(file: string, place: string, isFresh: boolean, isReadOnly: boolean): Promise<Journal> {
    let text = ''
    try {
      text = await readFile(file, 'utf8')
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code !== 'ENOENT') throw error
    }
    // The last line of a run that was killed may be cut off.
    const lines = text.split('\n').flatMap((line): Line[] => {
      try {
        const value = JSON.parse(line) as Line | null
        return typeof value === 'object' && value !== null ? [value] : []
      } catch {
        return []
      }
    })
    const own = lines.filter((line) => line.place === place)
    if (isReadOnly) {
      // Nothing will be added either.
    } else if (isFresh && own.length > 0) {
      const kept = lines.filter((line) => line.place !== place)
      await writeFile(file, kept.map((line) => `${JSON.stringify(line)}\n`).join(''))
    } else if (text !== '' && !text.endsWith('\n')) await appendFile(file, '\n')
    return new Journal(file, place, new Map(isFresh ? [] : own.map((line) => [keyOf(line), line.hash])))
  }

  has(document: FoundDocument): boolean {
    return this.#done.get(keyOf(document)) === hashOf(document)
  }

  async add(document: FoundDocument): Promise<void> {
    const { source, title } = document
    const hash = hashOf(document)
    await appendFile(this.#file, `${JSON.stringify({ place: this.#place, source, title, hash } satisfies Line)}\n`)
    this.#done.set(keyOf(document), hash)
  }
}

function keyOf({ source, title }: Pick<Line, 'source' | 'title'>): string {
  return JSON.stringify([source, title])
}

function hashOf({ content, tags, metadata }: FoundDocument): string {
  return createHash('sha256')
    .update(JSON.stringify([content, tags, metadata]))
    .digest('hex')
}
