import { CodedError, type Lease, type Logger } from '../../kernel/index.ts'
import type { Key } from '../store/types.ts'
import { checkDocument, ingest, type IngestParts } from './ingest.ts'
import { createJobs, type Ingesting, type Jobs } from './jobs.ts'
import {
  checkName,
  type CollectionRecord,
  findCollection,
  keyOf,
  kept,
  type LooseRecord,
  unknownCollection
} from './records.ts'
import { createReembedding } from './reembed.ts'
import { createSearcher } from './search.ts'
import type { Tending } from './tending.ts'
import { createTrusting } from './trust.ts'
import type { CollectionInfo, Ingested, IngestOptions, NewDocument, Owner, Rag } from './types.ts'

/** What the plugin itself can do, beside what others may ask for. */
export interface RagService extends Rag {
  readonly jobs: Jobs
  /** Takes a document in while nobody waits. @returns the id of the job */
  ingestLater(owner: Owner, document: NewDocument, options?: Pick<IngestOptions, 'check'>): Promise<string>
  /** Embeds a collection with another model while searches go on with the present one. @returns the id of the job */
  reembed(owner: Owner, collection: string, model: string): Promise<string>
  /** Deletes up to `most` collections of an owner. @returns how many; 0 when none is left */
  clear(owner: Owner, most: number): Promise<number>
  /** Takes up what a process before this one was at, and takes away what it left. */
  recover(): Promise<void>
  /** Goes on embedding what a generation before this one was not allowed to end, or an encoder to begin. */
  resume(): Promise<void>
  /** Resolves when nothing is under way. */
  settled(): Promise<void>
}

export interface RagParts extends IngestParts {
  readonly tending: Tending
  /** Documents that may be on their way at once, while somebody waits for each. */
  readonly maxIngests: number
  readonly log: Logger
  /** Fires when what nobody waits for must end. */
  readonly signal: AbortSignal
  /** Keeps that from coming while such work goes on. */
  readonly lease: () => Lease
}

export function createRag(parts: RagParts): RagService {
  const { store, text, vectors, state, tending, log } = parts
  const running = new Set<Promise<void>>()
  const keep = (work: Promise<unknown>): void => {
    const run: Promise<void> = work
      .then(() => undefined)
      .catch((error: unknown) => log.error('work of rag failed', { error }))
      .finally(() => running.delete(run))
    running.add(run)
  }
  const jobs = createJobs({ ...parts, keep })
  const reembedding = createReembedding({ ...parts, jobs })
  const { search } = createSearcher({ ...parts, trusting: createTrusting({ ...parts, keep }) })

  const remove = async (owner: Owner, name: string): Promise<CollectionRecord> => {
    const removed = await store.atomically(
      async (tx) => {
        const found = await findCollection(tx, owner, name)
        if (found === undefined) throw unknownCollection(name)
        const { id, vectors: space, next } = found.value
        tx.remove(kept.collections, keyOf(owner, name))
        tx.remove(kept.trusts, [id])
        await text.drop(tx, id)
        for (const one of [space, next]) if (one !== undefined) await vectors.drop(tx, one.index)
        // Without the collection nobody finds the rest: it goes when there is time.
        tx.put<LooseRecord>(kept.loose, [id, -1], { count: 0, unborn: false })
        return found.value
      },
      { durable: true }
    )
    state.trusts.delete(removed.id)
    const spaces = [removed.vectors, removed.next].flatMap((space) => (space === undefined ? [] : [space.index]))
    tending.tend(removed.id, ...spaces)
    return removed
  }

  /** Those beyond the limit would only wait, each with its document in memory. */
  const take = async (owner: Owner, document: NewDocument, options: IngestOptions = {}): Promise<Ingested> => {
    const checked = checkDocument(document, parts.chunks)
    if (state.ingesting >= parts.maxIngests) {
      throw new CodedError('RAG_BUSY', `${parts.maxIngests} documents are being taken in; try again later`, {
        detail: { retryAfterSeconds: 1 }
      })
    }
    state.ingesting += 1
    try {
      return await ingest(parts, owner, checked, options)
    } finally {
      state.ingesting -= 1
    }
  }

  const goOn: Ingesting = (owner, document, onProgress, check) =>
    ingest(parts, owner, document, { signal: parts.signal, goesOn: true, check, onProgress })

  const resume = async (): Promise<void> => {
    await jobs.recover(goOn)
    await reembedding.resume()
  }

  return {
    ingest: take,

    search,

    async collections(owner) {
      const all: CollectionInfo[] = []
      for await (const [key, { value }] of store.range<CollectionRecord>(kept.collections, [owner.kind, owner.id])) {
        const [, , name] = key as Key & readonly [string, string, string]
        all.push({
          name,
          chunks: value.chunks,
          documents: value.documents,
          dimensions: value.vectors?.dimensions ?? 0,
          model: value.vectors?.model,
          nextModel: value.next?.model,
          createdAtMs: value.createdAtMs,
          updatedAtMs: value.updatedAtMs
        })
      }
      return all
    },

    remove: async (owner, name) => (await remove(owner, checkName(name))).chunks,

    jobs,

    async ingestLater(owner, document, { check } = {}) {
      const checked = checkDocument(document, parts.chunks)
      const found = (await findCollection(store, owner, checked.collection))?.value
      parts.encoder.modelFor(checked.collection, found, checked.model)
      return jobs.startIngest(owner, checked, (owner, document, onProgress, checkJob) =>
        goOn(owner, document, onProgress, async (tx) => {
          await check?.(tx)
          await checkJob(tx)
        })
      )
    },

    reembed: (owner, collection, model) => reembedding.begin(owner, checkName(collection), model),

    async clear(owner, most) {
      // Otherwise one of them could make a collection after the last one was deleted.
      await jobs.clear(owner)
      let cleared = 0
      for await (const [key] of store.range(kept.collections, [owner.kind, owner.id], { limit: most })) {
        await remove(owner, key[2] as string)
        cleared += 1
      }
      return cleared
    },

    async recover() {
      await tending.sweep()
      await resume()
    },

    resume,

    async settled() {
      while (running.size > 0) await Promise.all(running)
      await tending.settled()
    }
  }
}
