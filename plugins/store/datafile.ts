import { closeSync, fstatSync, openSync, readSync } from 'node:fs'
import { CodedError } from '../../kernel/index.ts'
import { toStoreError } from './failures.ts'

/**
 * A look at a data file before LMDB gets it, because LMDB believes what a file says and takes the process down when it
 * is not so. Reads only. Layout as in the liblmdb that lmdb 3.5 carries (data version 2): pages of one size with a
 * header of 24 bytes; pages 0 and 1 hold a description ("meta") each, the newer one counts; a third in the middle of
 * page 0 describes what is known to be on disk and stays valid until the next one is written.
 */

const headerBytes = 24
const magic = 0xbeefc0de
const dataVersion = 2
const branchPage = 0x01
const leafPage = 0x02
const metaPage = 0x08
const onOverflowPages = 0x01
/** In the flags of a meta: written without waiting for the disk. */
const unsynced = 0x1000
/** Flags of our tree: every value begins with its version. */
const versioned = 0x100

interface Meta {
  readonly freeRoot: bigint
  readonly mainFlags: number
  readonly mainRoot: bigint
  readonly lastPage: bigint
  readonly transaction: bigint
  readonly synced: boolean
}

const noPage = 0xffff_ffff_ffff_ffffn

/**
 * @returns the value of the first key, when that is `markKey`; `undefined` when the file holds something else
 * @throws CodedError `STORE_DAMAGED` when the file is not, or no longer, what LMDB wrote
 */
export function readMark(path: string, markKey: string): string | undefined {
  const file = openForReading(path)
  try {
    const size = fstatSync(file).size
    if (size === 0) throw damaged(path, 'it is empty')
    const pageSize = readPageSize(path, file, size)
    const page = (number: bigint): Buffer => {
      if ((number + 1n) * BigInt(pageSize) > BigInt(size)) throw damaged(path, `it ends before page ${number}`)
      const bytes = Buffer.alloc(pageSize)
      readSync(file, bytes, 0, pageSize, Number(number) * pageSize)
      return bytes
    }
    const meta = newestSafe(page(0n), page(1n), pageSize)
    if (meta.mainFlags !== versioned) return undefined
    const tree = (number: bigint): Buffer => {
      const bytes = page(number)
      const kind = bytes.readUInt16LE(18)
      if (bytes.readBigUInt64LE(0) !== number || (kind & (branchPage | leafPage)) === 0) {
        throw damaged(path, `page ${number} is not what it should be`)
      }
      return bytes
    }
    for (const root of [meta.freeRoot, meta.mainRoot]) if (root !== noPage) tree(root)
    // Pages at the end that are free again may never have been written: only what is reached must be there.
    if ((meta.lastPage + 1n) * BigInt(pageSize) > BigInt(size)) {
      for (const root of [meta.freeRoot, meta.mainRoot]) visit(root, tree, page)
    }
    return firstValue(meta.mainRoot, tree, markKey)
  } catch (error) {
    if (error instanceof RangeError) throw damaged(path, 'its pages point out of themselves')
    throw error
  } finally {
    closeSync(file)
  }
}

function openForReading(path: string): number {
  try {
    return openSync(path, 'r')
  } catch (error) {
    throw toStoreError(error, path)
  }
}

function readPageSize(path: string, file: number, size: number): number {
  const head = Buffer.alloc(64)
  readSync(file, head, 0, 64, 0)
  const foreign = () => damaged(path, 'it does not begin as a data file does')
  if (!isMeta(head, 0)) throw foreign()
  const pageSize = head.readUInt32LE(headerBytes + 24)
  const known = pageSize >= 512 && pageSize <= 65_536 && (pageSize & (pageSize - 1)) === 0
  if (!known || size < 2 * pageSize) throw foreign()
  readSync(file, head, 0, 64, pageSize)
  if (!isMeta(head, 0)) throw foreign()
  return pageSize
}

function isMeta(bytes: Buffer, at: number): boolean {
  return (
    (bytes.readUInt16LE(at + 18) & metaPage) !== 0 &&
    bytes.readUInt32LE(at + headerBytes) === magic &&
    (bytes.readUInt32LE(at + headerBytes + 4) & 0xffff) === dataVersion
  )
}

function newestSafe(page0: Buffer, page1: Buffer, pageSize: number): Meta {
  const first = readMeta(page0, headerBytes)
  const second = readMeta(page1, headerBytes)
  const [newer, older] = first.transaction >= second.transaction ? [first, second] : [second, first]
  if (newer.synced) return newer
  const onDisk = readMeta(page0, headerBytes + pageSize / 2)
  return onDisk.transaction > 0n ? onDisk : older
}

function readMeta(bytes: Buffer, at: number): Meta {
  return {
    freeRoot: bytes.readBigUInt64LE(at + 64),
    mainFlags: bytes.readUInt16LE(at + 76),
    mainRoot: bytes.readBigUInt64LE(at + 112),
    lastPage: bytes.readBigUInt64LE(at + 120),
    transaction: bytes.readBigUInt64LE(at + 128),
    synced: (bytes.readUInt16LE(at + 28) & unsynced) === 0
  }
}

/** Reads every page below `root`, so that one that is missing or in the wrong place throws. */
function visit(root: bigint, tree: (number: bigint) => Buffer, page: (number: bigint) => Buffer): void {
  const waiting = root === noPage ? [] : [root]
  for (let number = waiting.pop(); number !== undefined; number = waiting.pop()) {
    const bytes = tree(number)
    const isBranch = (bytes.readUInt16LE(18) & branchPage) !== 0
    for (const at of nodesOf(bytes)) {
      if (isBranch) waiting.push(childOf(bytes, at))
      else if ((bytes.readUInt16LE(at + 4) & onOverflowPages) !== 0) {
        const value = at + 8 + bytes.readUInt16LE(at + 6)
        page(bytes.readBigUInt64LE(value) + bytes.readBigUInt64LE(value + 16) - 1n)
      }
    }
  }
}

function firstValue(root: bigint, tree: (number: bigint) => Buffer, key: string): string | undefined {
  if (root === noPage) return undefined
  let bytes = tree(root)
  for (let depth = 0; (bytes.readUInt16LE(18) & branchPage) !== 0; depth++) {
    if (depth > 32) return undefined
    bytes = tree(childOf(bytes, nodesOf(bytes)[0]!))
  }
  const at = nodesOf(bytes)[0]
  if (at === undefined) return undefined
  const value = at + 8 + bytes.readUInt16LE(at + 6)
  if (bytes.toString('latin1', at + 8, value) !== key) return undefined
  return bytes.toString('utf8', value + 8, value + bytes.readUInt16LE(at))
}

/** Where the nodes of a page begin. */
function nodesOf(bytes: Buffer): number[] {
  const count = bytes.readUInt16LE(20) >> 1
  return Array.from({ length: count }, (_, i) => headerBytes + bytes.readUInt16LE(headerBytes + 2 * i))
}

function childOf(bytes: Buffer, at: number): bigint {
  return BigInt(bytes.readUInt32LE(at)) | (BigInt(bytes.readUInt16LE(at + 4)) << 32n)
}

function damaged(path: string, what: string): CodedError {
  return new CodedError(
    'STORE_DAMAGED',
    `${path} is damaged or not a data file of Heartwood (${what}). It was left as it is: put a backup in its place, or move it away to begin anew`
  )
}
