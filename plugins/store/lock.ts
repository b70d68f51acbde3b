import { realpathSync, rmSync, statSync } from 'node:fs'
import { connect, createServer, type Server } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { CodedError } from '../../kernel/index.ts'
import { toStoreError } from './failures.ts'

/** How long a live holder may take to tell its process id, before it is named without it. */
const answerTimeoutMs = 1_000
/** What every system has room for; a longer one would be cut without a word. */
const maxSocketPathBytes = 103

/**
 * Makes this process the only user of a folder, however the folder is spelt. The lock is a listening socket, so it ends
 * with the process that holds it, and whoever comes second can ask it who it is. On Linux the socket has no file: its
 * name is made of the folder's device and inode. (Containers that share a folder but no network do not see each other's
 * sockets.) Elsewhere it is `lock.sock` in the folder, or a file in the system's temporary folder where that path would
 * be too long for a socket; one that nobody listens on is taken over.
 * @returns gives the lock back
 * @throws CodedError `STORE_LOCKED`
 */
export async function lockFolder(
  folder: string,
  abstract = process.platform === 'linux'
): Promise<() => Promise<void>> {
  const path = abstract ? `\0${nameOf(folder)}` : fileFor(folder)
  for (let tries = 0; tries < 3; tries++) {
    const server = await listen(path, folder)
    if (server !== undefined) return () => close(server)
    const answer = await ask(path)
    if (answer !== undefined) throw locked(folder, answer)
    if (!abstract) rmSync(path, { force: true })
  }
  throw locked(folder, '')
}

function nameOf(folder: string): string {
  const { dev, ino } = statSync(folder, { bigint: true })
  return `heartwood-store-${dev}-${ino}`
}

/** The same for every spelling of the folder. */
function fileFor(folder: string): string {
  const path = join(realpathSync(folder), 'lock.sock')
  return Buffer.byteLength(path) <= maxSocketPathBytes ? path : join(tmpdir(), `${nameOf(folder)}.sock`)
}

/** @returns `undefined` when the name is taken */
async function listen(path: string, folder: string): Promise<Server | undefined> {
  const server = createServer((socket) => {
    socket.on('error', () => {}) // who asked has left: nobody to tell
    socket.end(String(process.pid))
  })
  return new Promise((resolve, reject) => {
    server.once('error', (error: NodeJS.ErrnoException) => {
      if (error.code === 'EADDRINUSE') resolve(undefined)
      else reject(toStoreError(error, folder))
    })
    server.listen({ path, exclusive: true }, () => {
      server.unref()
      resolve(server)
    })
  })
}

/** @returns the process id of who holds the lock, empty when it does not say; `undefined` when nobody listens */
async function ask(path: string): Promise<string | undefined> {
  return new Promise((resolve) => {
    let answer = ''
    const socket = connect({ path })
    socket.setTimeout(answerTimeoutMs, () => socket.destroy())
    socket.on('data', (chunk) => {
      answer += chunk.toString('latin1')
    })
    socket.on('error', (error: NodeJS.ErrnoException) => {
      if (error.code === 'ECONNREFUSED' || error.code === 'ENOENT') resolve(undefined)
    })
    socket.on('close', () => resolve(answer))
  })
}

function locked(folder: string, holder: string): CodedError {
  const who = /^\d+$/.test(holder) ? `process ${holder}` : 'another process'
  return new CodedError(
    'STORE_LOCKED',
    `the data folder ${folder} is in use by ${who}: stop it first, or give this one another path`,
    { detail: { folder, ...(/^\d+$/.test(holder) ? { pid: Number(holder) } : {}) } }
  )
}

function close(server: Server): Promise<void> {
  return new Promise((resolve) => {
    server.close(() => resolve())
  })
}
