import type { WorkerTask } from '../workers/types.ts'

const hashing = { pool: 'hash', isUnstoppable: true } as const

/** What is done in threads: a password takes them tens of milliseconds. */
export const workerTasks: readonly WorkerTask[] = [
  {
    ...hashing,
    name: 'auth/hash-password',
    module: new URL('./tasks/hash-password.js', import.meta.url).href
  },
  {
    ...hashing,
    name: 'auth/verify-password',
    module: new URL('./tasks/verify-password.js', import.meta.url).href
  }
]
