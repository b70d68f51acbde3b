import { statfsSync } from 'node:fs'
import { CodedError, messageOf } from '../../kernel/index.ts'

/**
 * A write that a full disk cuts short reads as EIO, or as the MDB_BAD_TXN of the transaction it was in: with less than
 * this left, room is taken to be the cause.
 */
const scarceBytes = 64 * 1024 * 1024

const full: readonly (string | number | undefined)[] = ['ENOSPC', 'EDQUOT', 'EFBIG', 28, 122, 27, -30_792]
const cutShort: readonly (string | number | undefined)[] = ['EIO', 5, -30_782]
const unwritable: readonly (string | number | undefined)[] = [
  'EACCES',
  'EPERM',
  'EROFS',
  'ENOTDIR',
  'ENOENT',
  'EEXIST',
  'ELOOP',
  1,
  13,
  30
]

/** What the engine or the file system said, as the contract has it: `STORE_FULL`, `STORE_UNWRITABLE`, `STORE_FAILED`. */
export function toStoreError(error: unknown, folder: string): CodedError {
  if (error instanceof CodedError) return error
  const code = (error as { code?: string | number } | undefined)?.code
  const because = typeof code === 'number' ? `${messageOf(error)}, code ${code}` : messageOf(error)
  if (full.includes(code) || (cutShort.includes(code) && freeBytes(folder) < scarceBytes)) {
    return new CodedError('STORE_FULL', `no room on the disk of ${folder}: free some, writes then work again`, {
      cause: error
    })
  }
  if (unwritable.includes(code)) {
    return new CodedError(
      'STORE_UNWRITABLE',
      `the data folder ${folder} cannot be used (${because}): make it a folder this user may write to, or set another path`,
      { cause: error }
    )
  }
  return new CodedError('STORE_FAILED', `the store in ${folder} failed: ${because}`, { cause: error })
}

function freeBytes(folder: string): number {
  try {
    const { bavail, bsize } = statfsSync(folder)
    return bavail * bsize
  } catch {
    // Nothing is known, so nothing is blamed on it.
    return Number.POSITIVE_INFINITY
  }
}
