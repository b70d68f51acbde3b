import { CodedError, type Lease, type Logger } from '../../kernel/index.ts'
import type { Key, Reader, Store } from '../store/types.ts'
import { kept } from './records.ts'
import { readSpooled, removeSpooled, type SpooledDocument, spool } from './spool.ts'
import type { CheckedDocument } from './ingest.ts'
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
  /** Of an ingest that goes on: what is to be taken in. */
  readonly document?: SpooledDocument
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
  /**
   * Keeps a document until it has been taken in, also beyond the end of this process.
   * @returns the id, once both are on disk
   * @throws CodedError `RAG_BUSY` when too many jobs run
   */
  startIngest(owner: Owner, document: CheckedDocument, work: Ingesting): Promise<string>
  /** Goes on with ingests that a process or a generation before this one was at; a reembedding goes on by itself. */
  recover(work: Ingesting): Promise<void>
  /** Deletes those of an owner. */
  clear(owner: Owner): Promise<void>
}

/** @param check what must hold when the document is made known: whoever deletes the job deletes the document */
export type Ingesting = (
  owner: Owner,
  document: CheckedDocument,
  onProgress: (progress: Progress) => void,
  check: (tx: Reader) => Promise<void>
) => Promise<Ingested>

/** That run at once: each keeps its document. */
const mostJobs = 64
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
  readonly signal: AbortSignal
}): Jobs {
  const { store, state, now, newId, log, keep, lease, signal } = parts
  const nothing: Progress = { chunksDone: 0, chunksTotal: 0 }
  const keyOf = (owner: Owner, id: string) => [owner.kind, owner.id, id] as const

  const end = async (owner: Owner, id: string, how: Partial<Job>): Promise<void> => {
    await store.atomically(
      async (tx) => {
        const stored = await tx.get<Job>(kept.jobs, keyOf(owner, id))
        if (stored === undefined) return
        const { document, ...job } = stored.value
        if (document !== undefined) removeSpooled(tx, id, document)
        tx.put<Job>(kept.jobs, keyOf(owner, id), { ...job, ...how, endedAtMs: now() })
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

  type Work = (onProgress: (progress: Progress) => void) => Promise<Ingested | undefined>

  /** Runs what is on disk as running. */
  const run = async (owner: Owner, { id, document }: Job, work: Work): Promise<void> => {
    const held = lease()
    let isLeft = false
    try {
      const result = await work((progress) => state.jobs.set(id, progress))
      const progress = state.jobs.get(id) ?? nothing
      await end(owner, id, { state: 'done', progress, ...(result === undefined ? {} : { result }) })
    } catch (error) {
      if (document !== undefined && signal.aborted) {
        isLeft = true
        return
      }
      const coded = error instanceof CodedError ? error : undefined
      if (coded === undefined) log.error('a job failed', { job: id, error })
      const { code, message } = coded ?? { code: 'INTERNAL_ERROR', message: 'internal error' }
      await end(owner, id, { state: 'failed', progress: state.jobs.get(id) ?? nothing, error: { code, message } })
    } finally {
      state.jobs.delete(id)
      held.release()
      // The next process goes on with what was kept, if the generation that is live does not.
      if (isLeft) state.resume?.()
    }
    await prune(owner)
  }

  /** Runs what was found as running, unless it has ended since. */
  const goOn = async (owner: Owner, job: Job, document: SpooledDocument, work: Ingesting): Promise<void> => {
    const { id } = job
    if ((await store.get<Job>(kept.jobs, keyOf(owner, id)))?.value.state !== 'running') {
      state.jobs.delete(id)
      return
    }
    await run(owner, job, async (onProgress) =>
      work(owner, await readSpooled(store, id, document), onProgress, checkOf(owner, id))
    )
  }

  const checkOf = (owner: Owner, id: string) => async (tx: Reader) => {
    if ((await tx.get(kept.jobs, keyOf(owner, id))) === undefined) throw unknownJob(id)
  }

  const begin = async (owner: Owner, job: Job, work: Work): Promise<string> => {
    await store.atomically((tx) => tx.put<Job>(kept.jobs, keyOf(owner, job.id), job), { durable: true })
    keep(run(owner, job, work))
    return job.id
  }

  return {
    async start(owner, { id = newId(), kind, collection }, work) {
      state.jobs.set(id, nothing)
      try {
        return await begin(
          owner,
          { id, kind, collection, state: 'running', progress: nothing, createdAtMs: now() },
          work
        )
      } catch (error) {
        state.jobs.delete(id)
        throw error
      }
    },

    async startIngest(owner, checked, work) {
      if (state.jobs.size >= mostJobs) {
        throw new CodedError('RAG_BUSY', `${state.jobs.size} jobs are running already; try again later`, {
          detail: { retryAfterSeconds: 1 }
        })
      }
      const id = newId()
      const { collection } = checked
      state.jobs.set(id, nothing)
      let pieces = 0
      try {
        const document = await spool(store, id, checked)
        pieces = document.pieces
        return await begin(
          owner,
          { id, kind: 'ingest', collection, state: 'running', progress: nothing, createdAtMs: now(), document },
          (onProgress) => work(owner, checked, onProgress, checkOf(owner, id))
        )
      } catch (error) {
        state.jobs.delete(id)
        await store.atomically((tx) => removeSpooled(tx, id, { pieces }))
        throw error
      }
    },

    async find(owner, id) {
      const job = id.length > maxIdChars ? undefined : (await store.get<Job>(kept.jobs, keyOf(owner, id)))?.value
      if (job === undefined) throw unknownJob(id)
      const progress = state.jobs.get(id)
      return job.state === 'running' && progress !== undefined ? { ...job, progress } : job
    },

    async recover(work) {
      const left: (readonly [Owner, Job])[] = []
      for await (const [key, { value }] of store.range<Job>(kept.jobs, [])) {
        const [kind, id] = key as Key & readonly ['user' | 'tenant', string]
        if (value.state === 'running' && value.kind === 'ingest' && !state.jobs.has(value.id)) {
          left.push([{ kind, id }, value])
        }
      }
      const message = 'the server was stopped while this went on; nothing of it was kept: send it again'
      for (const [owner, job] of left) {
        const { id, document } = job
        if (document === undefined) {
          await end(owner, id, { state: 'failed', error: { code: 'RAG_ABORTED', message } })
        } else if (!state.jobs.has(id)) {
          state.jobs.set(id, nothing)
          keep(goOn(owner, job, document, work))
        }
      }
    },

    async clear(owner) {
      for await (const [key, { value }] of store.range<Job>(kept.jobs, [owner.kind, owner.id])) {
        await store.atomically((tx) => {
          if (value.document !== undefined) removeSpooled(tx, value.id, value.document)
          tx.remove(kept.jobs, key)
        })
      }
    }
  }
}

function unknownJob(id: string): CodedError {
  return new CodedError('RAG_JOB_UNKNOWN', `Job '${id.slice(0, 80)}' not found`)
}
