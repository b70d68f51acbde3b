import { constants } from 'node:fs'
import { access, mkdir, open } from 'node:fs/promises'
import { toStoreError } from './failures.ts'

/** Makes the data folder, for its owner only, if it is not there. @throws CodedError `STORE_UNWRITABLE` */
export async function prepareFolder(folder: string): Promise<void> {
  try {
    await mkdir(folder, { recursive: true, mode: 0o700 })
    await access(folder, constants.R_OK | constants.W_OK | constants.X_OK)
  } catch (error) {
    throw toStoreError(error, folder)
  }
}

/** Resolves when the names in the folder are on disk, not only what the files hold. */
export async function syncFolder(folder: string): Promise<void> {
  const handle = await open(folder, 'r')
  try {
    await handle.sync()
  } finally {
    await handle.close()
  }
}
