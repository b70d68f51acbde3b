import type { WorkerTask } from '../workers/types.ts'

const hashing = { pool: 'hash', isUnstoppable: true } as const

/** What is done in threads: a password takes them tens of milliseconds. */
export const workerTasks = {
  hash: {
    ...hashing,
    name: 'auth/hash-password',
    module: new URL('./tasks/hash-password.js', import.meta.url).href
  },
  verify: {
    ...hashing,
    name: 'auth/verify-password',
    module: new URL('./tasks/verify-password.js', import.meta.url).href
  }
} as const satisfies Readonly<Record<string, WorkerTask>>
