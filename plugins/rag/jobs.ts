import { CodedError, type Lease, type Logger } from '../../kernel/index.ts'
import type { Key, Store } from '../store/types.ts'
import { kept } from './records.ts'
import type { RagState } from './state.ts'
import type { Ingested, Owner, Progress } from './types.ts'

export interface Job {
  readonly id: string
  readonly kind: 'ingest' | 'reembed'
  readonly collection: string
  readonly state: 'running' | 'done' | 'failed'
  readonly progress: Progress
  /** Of an ingest that is done. */
  readonly result?: Ingested
  /** Of one that failed. */
  readonly error?: { readonly code: string; readonly message: string }
  /** Unix times in milliseconds. */
  readonly createdAtMs: number
  readonly endedAtMs?: number
}

/** Work that goes on after it was answered, and can be asked about. */
export interface Jobs {
  /** @returns the id, once it is on disk */
  start(
    owner: Owner,
    job: Pick<Job, 'kind' | 'collection'> & { readonly id?: string },
    work: (onProgress: (progress: Progress) => void) => Promise<Ingested | undefined>
  ): Promise<string>
  /** @throws CodedError `RAG_JOB_UNKNOWN` */
  find(owner: Owner, id: string): Promise<Job>
  /** Says of jobs that a process before this one was at that they have failed; a reembedding goes on. */
  recover(): Promise<void>
}

/** Jobs that have ended, of one owner, which are kept. */
const keptJobs = 100
/** An id of ours has fewer; what is longer may be too long for a key. */
const maxIdChars = 64

export function createJobs(parts: {
  readonly store: Store
  readonly state: RagState
  readonly now: () => number
  readonly newId: () => string
  readonly log: Logger
  readonly keep: (work: Promise<unknown>) => void
  readonly lease: () => Lease
}): Jobs {
  const { store, state, now, newId, log, keep, lease } = parts
  const keyOf = (owner: Owner, id: string) => [owner.kind, owner.id, id] as const

  const end = async (owner: Owner, id: string, how: Partial<Job>): Promise<void> => {
    await store.atomically(
      async (tx) => {
        const stored = await tx.get<Job>(kept.jobs, keyOf(owner, id))
        if (stored !== undefined)
          tx.put<Job>(kept.jobs, keyOf(owner, id), { ...stored.value, ...how, endedAtMs: now() })
      },
      { durable: true }
    )
  }

  /** Of those that have ended, the oldest go. */
  const prune = async (owner: Owner): Promise<void> => {
    const ended: (readonly [key: Key, endedAtMs: number])[] = []
    for await (const [key, { value }] of store.range<Job>(kept.jobs, [owner.kind, owner.id])) {
      if (value.state !== 'running') ended.push([key, value.endedAtMs ?? 0])
    }
    if (ended.length <= keptJobs) return
    ended.sort(([, a], [, b]) => b - a)
    await store.atomically((tx) => {
      for (const [key] of ended.slice(keptJobs)) tx.remove(kept.jobs, key)
    })
  }

  return {
    async start(owner, { id = newId(), kind, collection }, work) {
      const nothing = { chunksDone: 0, chunksTotal: 0 }
      state.jobs.set(id, nothing)
      const job: Job = { id, kind, collection, state: 'running', progress: nothing, createdAtMs: now() }
      try {
        await store.atomically((tx) => tx.put<Job>(kept.jobs, keyOf(owner, id), job), { durable: true })
      } catch (error) {
        state.jobs.delete(id)
        throw error
      }
      const run = async () => {
        const held = lease()
        try {
          const result = await work((progress) => state.jobs.set(id, progress))
          const progress = state.jobs.get(id) ?? nothing
          await end(owner, id, { state: 'done', progress, ...(result === undefined ? {} : { result }) })
        } catch (error) {
          const coded = error instanceof CodedError ? error : undefined
          if (coded === undefined) log.error('a job failed', { job: id, error })
          const { code, message } = coded ?? { code: 'INTERNAL_ERROR', message: 'internal error' }
          await end(owner, id, { state: 'failed', progress: state.jobs.get(id) ?? nothing, error: { code, message } })
        } finally {
          state.jobs.delete(id)
          held.release()
        }
        await prune(owner)
      }
      keep(run())
      return id
    },

    async find(owner, id) {
      const job = id.length > maxIdChars ? undefined : (await store.get<Job>(kept.jobs, keyOf(owner, id)))?.value
      if (job === undefined) throw new CodedError('RAG_JOB_UNKNOWN', `Job '${id.slice(0, 80)}' not found`)
      const progress = state.jobs.get(id)
      return job.state === 'running' && progress !== undefined ? { ...job, progress } : job
    },

    async recover() {
      const left: (readonly [Owner, string])[] = []
      for await (const [key, { value }] of store.range<Job>(kept.jobs, [])) {
        const [kind, id] = key as Key & readonly ['user' | 'tenant', string]
        if (value.state === 'running' && value.kind === 'ingest' && !state.jobs.has(value.id)) {
          left.push([{ kind, id }, value.id])
        }
      }
      const message = 'the server was stopped while this went on; nothing of it was kept: send it again'
      for (const [owner, id] of left) await end(owner, id, { state: 'failed', error: { code: 'RAG_ABORTED', message } })
    }
  }
}
