import { createHash } from 'node:crypto'
import { createReadStream } from 'node:fs'
import { chmod, copyFile, mkdir, mkdtemp, open, readdir, readFile, rename, rm, stat, writeFile } from 'node:fs/promises'
import { basename, dirname, join } from 'node:path'
import { CodedError } from '../../kernel/index.ts'
import { toStoreError } from './failures.ts'
import { prepareFolder, syncFolder } from './folder.ts'
import { dataFile, openReader, readFormat } from './lmdb.ts'
import { lockFolder } from './lock.ts'
import { secretName } from './secrets.ts'

/** What a backup holds: its `backup.json`. */
export interface Backup {
  /** Of the data; an older one is migrated when it is used. */
  readonly format: number
  /** RFC 3339. */
  readonly made_at: string
  /** Keys in the data file. */
  readonly records: number
  readonly files: readonly BackupFile[]
}

interface BackupFile {
  readonly name: string
  readonly bytes: number
  /** In hex. */
  readonly sha256: string
}

const manifestFile = 'backup.json'

/**
 * Copies the data of a folder, and the secrets kept beside it, into a folder that is not there yet or empty. The copy is
 * the state of one moment, also while a server is at work on the data. It is read back before it gets its name.
 * @param now Unix time in milliseconds
 * @throws CodedError `STORE_BACKUP_EXISTS`, `STORE_FULL`, `STORE_UNWRITABLE`, and what {@link openReader} throws
 */
export async function backUp(folder: string, target: string, now: number): Promise<Backup> {
  try {
    const reader = openReader(folder)
    try {
      if (!(await isFree(target))) throw exists(target)
      return await drafted(target, async (draft) => {
        await reader.copyTo(draft)
        for (const name of await readdir(folder)) {
          if (secretName.test(name)) await copyFile(join(folder, name), join(draft, name))
        }
        const files = await Promise.all((await readdir(draft)).sort().map((name) => describe(draft, name)))
        const records = await countRecords(draft)
        const format = readFormat(join(draft, dataFile))
        const backup: Backup = { format, made_at: new Date(now).toISOString(), records, files }
        await writeFile(join(draft, manifestFile), `${JSON.stringify(backup, null, 2)}\n`)
        for (const name of await readdir(draft)) await settle(join(draft, name))
        await syncFolder(draft)
        await rename(draft, target).catch((cause: NodeJS.ErrnoException) => {
          throw cause.code === 'ENOTEMPTY' || cause.code === 'EEXIST' ? exists(target) : cause
        })
        await syncFolder(dirname(target))
        return backup
      })
    } finally {
      await reader.close()
    }
  } catch (error) {
    throw toStoreError(error, folder)
  }
}

/**
 * Puts a backup into a data folder that holds no data. Every file is held against its checksum; nothing has changed
 * before all of them are there.
 * @param options.verify reads every record of what was restored as well
 * @throws CodedError `STORE_BACKUP_INVALID`, `STORE_NOT_EMPTY`, `STORE_LOCKED`, `STORE_DAMAGED`, `STORE_FORMAT`,
 * `STORE_FULL`, `STORE_UNWRITABLE`
 */
export async function restore(source: string, folder: string, options: { readonly verify: boolean }): Promise<Backup> {
  const backup = await readManifest(source)
  await prepareFolder(folder)
  const unlock = await lockFolder(folder)
  try {
    for (const { name, sha256 } of backup.files) {
      const path = join(folder, name)
      const present = await stat(path).then(
        () => true,
        () => false
      )
      // A secret that is the same was put there by a restore that was cut short.
      if (present && (name === dataFile || (await hashOf(path)) !== sha256)) {
        throw new CodedError(
          'STORE_NOT_EMPTY',
          `${path} is there already: move it away, or restore into another folder`
        )
      }
    }
    await drafted(join(folder, 'restore'), async (draft) => {
      for (const file of backup.files) {
        const path = join(draft, file.name)
        await copyFile(join(source, file.name), path)
        const { bytes, sha256 } = await describe(draft, file.name)
        if (bytes !== file.bytes || sha256 !== file.sha256) {
          throw invalid(source, `${file.name} is not the file that was backed up`)
        }
        await settle(path)
      }
      readFormat(join(draft, dataFile))
      if (options.verify) {
        const records = await countRecords(draft)
        if (records !== backup.records) {
          throw invalid(source, `it should hold ${backup.records} records and holds ${records}`)
        }
      }
      // The data comes last: a folder that has it has everything.
      const last = (name: string) => Number(name === dataFile)
      for (const { name } of [...backup.files].sort((a, b) => last(a.name) - last(b.name))) {
        await rename(join(draft, name), join(folder, name))
      }
      await syncFolder(folder)
    })
    return backup
  } catch (error) {
    throw toStoreError(error, folder)
  } finally {
    await unlock()
  }
}

/** Runs `work` with a new folder beside `target`, for its owner only, that does not outlive it under its own name. */
async function drafted<R>(target: string, work: (draft: string) => Promise<R>): Promise<R> {
  await mkdir(dirname(target), { recursive: true })
  const draft = await mkdtemp(join(dirname(target), `.${basename(target)}-`))
  try {
    return await work(draft)
  } finally {
    await rm(draft, { recursive: true, force: true })
  }
}

async function isFree(target: string): Promise<boolean> {
  try {
    return (await readdir(target)).length === 0
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ENOENT') return true
    throw error
  }
}

async function countRecords(folder: string): Promise<number> {
  const reader = openReader(folder)
  try {
    return reader.readAll()
  } finally {
    await reader.close()
    await rm(join(folder, 'lock.mdb'), { force: true })
  }
}

async function describe(folder: string, name: string): Promise<BackupFile> {
  const path = join(folder, name)
  return { name, bytes: (await stat(path)).size, sha256: await hashOf(path) }
}

async function hashOf(path: string): Promise<string> {
  const hash = createHash('sha256')
  for await (const chunk of createReadStream(path)) hash.update(chunk as Buffer)
  return hash.digest('hex')
}

/** For its owner only, and on disk. */
async function settle(path: string): Promise<void> {
  await chmod(path, 0o600)
  const file = await open(path, 'r+')
  try {
    await file.sync()
  } finally {
    await file.close()
  }
}

async function readManifest(source: string): Promise<Backup> {
  let text: string
  try {
    text = await readFile(join(source, manifestFile), 'utf8')
  } catch (cause) {
    throw invalid(source, `it has no ${manifestFile}`, cause)
  }
  try {
    const backup = JSON.parse(text) as Backup
    const names = backup.files.map(({ name }) => name)
    const isKnown = names.every((name) => name === dataFile || secretName.test(name))
    if (names.includes(dataFile) && isKnown && Number.isInteger(backup.records)) return backup
  } catch (cause) {
    throw invalid(source, `its ${manifestFile} cannot be read`, cause)
  }
  throw invalid(source, `its ${manifestFile} was not written by Heartwood`)
}

function exists(target: string): CodedError {
  return new CodedError('STORE_BACKUP_EXISTS', `${target} is not empty: name a folder that is not there yet`)
}

function invalid(source: string, why: string, cause?: unknown): CodedError {
  return new CodedError('STORE_BACKUP_INVALID', `${source} is no sound backup: ${why}`, { cause })
}
