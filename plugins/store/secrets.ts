import { chmod, link, open, readFile, rm, stat } from 'node:fs/promises'
import { join } from 'node:path'
import { CodedError } from '../../kernel/index.ts'
import { toStoreError } from './failures.ts'
import { syncFolder } from './folder.ts'

/** Names that secrets have as files of the data folder. */
export const secretName = /^[A-Z][A-Z0-9_]{0,63}$/

/** See `secret` of the contract. One that is there wins over one that is being made. */
export async function keepSecret(
  folder: string,
  name: string,
  make: () => string
): Promise<{ readonly value: string; readonly path: string; readonly created: boolean }> {
  if (!secretName.test(name)) throw new TypeError(`not a name for a secret: ${JSON.stringify(name)}`)
  const path = join(folder, name)
  try {
    const kept = await readSecret(path)
    if (kept !== undefined) return { value: kept, path, created: false }
    const value = make()
    const created = await writeOnce(folder, path, value)
    return { value: created ? value : ((await readSecret(path)) ?? value), path, created }
  } catch (error) {
    throw toStoreError(error, folder)
  }
}

async function readSecret(path: string): Promise<string | undefined> {
  let text: string
  try {
    text = await readFile(path, 'utf8')
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ENOENT') return undefined
    throw error
  }
  const value = text.trim()
  if (value === '') {
    throw new CodedError(
      'STORE_FAILED',
      `the secret in ${path} is empty: write it there, or delete the file to get a new one`
    )
  }
  // A file that was copied or restored may have become readable to others.
  if (((await stat(path)).mode & 0o077) !== 0) await chmod(path, 0o600)
  return value
}

/**
 * The file appears whole or not at all, and is on disk before anything is built on it.
 * @returns false when another one was there first
 */
async function writeOnce(folder: string, path: string, value: string): Promise<boolean> {
  const draft = `${path}.new`
  try {
    const file = await open(draft, 'w', 0o600)
    try {
      await file.chmod(0o600)
      await file.writeFile(`${value}\n`)
      await file.sync()
    } finally {
      await file.close()
    }
    await link(draft, path)
    await syncFolder(folder)
    return true
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'EEXIST') return false
    throw error
  } finally {
    await rm(draft, { force: true })
  }
}
