import { CodedError } from '../../kernel/index.ts'
import type { Key, Store } from '../store/types.ts'
import { type IngestParts, throwIfAborted } from './ingest.ts'
import type { Jobs } from './jobs.ts'
import {
  type ChunkRecord,
  type CollectionRecord,
  type DocumentRecord,
  findCollection,
  invalid,
  keyOf,
  kept,
  unknownCollection
} from './records.ts'
import type { Owner, Progress } from './types.ts'
import type { StagedVectors } from './vectors.ts'

/** Embeds collections anew, beside searches by the vectors that are there, which it replaces in one step at the end. */
export interface Reembedding {
  /** @returns the id of the job */
  begin(owner: Owner, name: string, model: string): Promise<string>
  /** Goes on with what nobody is at: a process before this one was, or it failed. */
  resume(): Promise<void>
}

/** Chunks that are embedded together; a document is never split. */
const batchChunks = 192
const pageDocuments = 256
/** Vectors of a document that are written within the transaction that makes them known. */
const smallDocument = 48

export function createReembedding(
  parts: Pick<IngestParts, 'store' | 'vectors' | 'encoder' | 'state' | 'newId' | 'tend'> & {
    readonly jobs: Jobs
    readonly signal: AbortSignal
  }
): Reembedding {
  const { store, vectors, encoder, state, newId, tend, jobs, signal } = parts

  const run = async (
    owner: Owner,
    name: string,
    index: string,
    onProgress: (progress: Progress) => void
  ): Promise<void> => {
    for (;;) {
      const record = await recordOf(store, owner, name, index)
      const { id, next } = record
      const before = next.done
      for await (const batch of batchesOf(store, id, index)) {
        throwIfAborted(signal)
        await embedBatch(owner, name, index, batch)
        const { chunks, documents, next: reached } = await recordOf(store, owner, name, index)
        const share = documents === 0 ? 1 : reached.done / documents
        onProgress({ chunksDone: Math.round(chunks * share), chunksTotal: chunks })
      }
      if (await finish(owner, name, index)) return
      const after = await recordOf(store, owner, name, index)
      // What came meanwhile is next; a round in which nothing was done would be the same for ever.
      if (after.next.done === before && after.documents === record.documents) {
        throw new CodedError('RAG_CONFLICT', `collection '${name}' has documents that could not be embedded`)
      }
    }
  }

  const embedBatch = async (owner: Owner, name: string, index: string, batch: readonly Waiting[]): Promise<void> => {
    const { id, next } = await recordOf(store, owner, name, index)
    const texts: string[] = []
    const read: Waiting[] = []
    for (const waiting of batch) {
      const own = await textsOf(store, id, waiting.document)
      // It was deleted meanwhile.
      if (own === undefined) continue
      read.push(waiting)
      for (const text of own) texts.push(text)
    }
    const made = await encoder.embed(next.model, texts, 'document', signal)
    const ready: { readonly waiting: Waiting; readonly vectors: readonly Float32Array[] | StagedVectors }[] = []
    let at = 0
    for (const waiting of read) {
      const { first, count } = waiting.document
      const own = made.slice(at, at + count)
      at += count
      ready.push({ waiting, vectors: count <= smallDocument ? own : await vectors.stage(index, first, own) })
    }
    let unused: StagedVectors[] = []
    try {
      await store.atomically(async (tx) => {
        unused = []
        const record = (await findCollection(tx, owner, name))?.value
        if (record?.id !== id || record.next?.index !== index) throw unknownCollection(name)
        let done = record.next.done
        for (const { waiting, vectors: own } of ready) {
          const document = (await tx.get<DocumentRecord>(kept.documents, [id, waiting.id]))?.value
          if (document === undefined || document.spaces.includes(index)) {
            if ('id' in own) unused.push(own)
            continue
          }
          await vectors.add(tx, index, document.first, own)
          const spaces = [...(record.vectors === undefined ? [] : [record.vectors.index]), index]
          tx.put<DocumentRecord>(kept.documents, [id, waiting.id], { ...document, spaces })
          done += 1
        }
        const dimensions = made[0]?.length ?? record.next.dimensions
        tx.put<CollectionRecord>(kept.collections, keyOf(owner, name), {
          ...record,
          next: { ...record.next, dimensions, done }
        })
      })
    } catch (error) {
      unused = ready.flatMap(({ vectors: own }) => ('id' in own ? [own] : []))
      throw error
    } finally {
      for (const staged of unused) await vectors.discard(index, staged)
    }
    tend(id, index)
  }

  /** @returns whether the new vectors are those that are searched now */
  const finish = async (owner: Owner, name: string, index: string): Promise<boolean> => {
    const finished = await store.atomically(
      async (tx) => {
        const record = (await findCollection(tx, owner, name))?.value
        if (record?.next?.index !== index) throw unknownCollection(name)
        const { next, vectors: former, ...rest } = record
        if (next.done < record.documents) return undefined
        const { model, dimensions } = next
        tx.put<CollectionRecord>(kept.collections, keyOf(owner, name), {
          ...rest,
          vectors: { index, model, dimensions }
        })
        // How far another model was to be believed says nothing about this one.
        tx.remove(kept.trusts, [record.id])
        if (former !== undefined) await vectors.drop(tx, former.index)
        return { id: record.id, former: former?.index }
      },
      { durable: true }
    )
    if (finished === undefined) return false
    state.trusts.delete(finished.id)
    tend(finished.id, index, ...(finished.former === undefined ? [] : [finished.former]))
    return true
  }

  const start = (owner: Owner, name: string, index: string, id: string): Promise<string> =>
    jobs.start(owner, { id, kind: 'reembed', collection: name }, async (onProgress) => {
      await run(owner, name, index, onProgress)
      return undefined
    })

  return {
    async begin(owner, name, model) {
      encoder.assertModel(model)
      const index = newId()
      const job = newId()
      await store.atomically(
        async (tx) => {
          const record = (await findCollection(tx, owner, name))?.value
          if (record === undefined) throw unknownCollection(name)
          if (record.vectors?.model === model && !encoder.hasChanged(record.vectors)) {
            throw invalid(`collection '${name}' is embedded with '${model}' already`)
          }
          // Another one under way ends: what it makes is of no use any more.
          if (record.next !== undefined) await vectors.drop(tx, record.next.index)
          tx.put<CollectionRecord>(kept.collections, keyOf(owner, name), {
            ...record,
            next: { index, model, dimensions: 0, done: 0, job }
          })
        },
        { durable: true }
      )
      return start(owner, name, index, job)
    },

    async resume() {
      const left: (readonly [Owner, string, NonNullable<CollectionRecord['next']>])[] = []
      for await (const [key, { value }] of store.range<CollectionRecord>(kept.collections, [])) {
        const [kind, id, name] = key as Key & readonly ['user' | 'tenant', string, string]
        if (value.next !== undefined && !state.jobs.has(value.next.job)) left.push([{ kind, id }, name, value.next])
      }
      for (const [owner, name, { index, job }] of left) {
        const now = (await findCollection(store, owner, name))?.value
        // It may have ended since.
        if (now?.next?.index === index && !state.jobs.has(job)) await start(owner, name, index, job)
      }
    }
  }
}

type Reembedded = CollectionRecord & { readonly next: NonNullable<CollectionRecord['next']> }

/** @throws CodedError `RAG_COLLECTION_UNKNOWN` when it is deleted, or is embedded with something else by now */
async function recordOf(store: Store, owner: Owner, name: string, index: string): Promise<Reembedded> {
  const record = (await findCollection(store, owner, name))?.value
  if (record?.next?.index !== index) throw unknownCollection(name)
  return record as Reembedded
}

interface Waiting {
  readonly id: string
  readonly document: DocumentRecord
}

/** Documents whose vectors are missing in an index. */
async function* batchesOf(store: Store, id: string, index: string): AsyncIterable<readonly Waiting[]> {
  let batch: Waiting[] = []
  let chunks = 0
  let after: Key | undefined
  for (;;) {
    // Page by page: a range that is held while an encoder works would keep the store from using pages again.
    const page: (readonly [Key, DocumentRecord])[] = []
    const options = { limit: pageDocuments, ...(after === undefined ? {} : { after }) }
    for await (const [key, { value }] of store.range<DocumentRecord>(kept.documents, [id], options)) {
      page.push([key, value])
    }
    for (const [key, document] of page) {
      after = key
      if (document.spaces.includes(index)) continue
      batch.push({ id: key[1] as string, document })
      chunks += document.count
      if (chunks < batchChunks) continue
      yield batch
      batch = []
      chunks = 0
    }
    if (page.length < pageDocuments) break
  }
  if (batch.length > 0) yield batch
}

async function textsOf(store: Store, id: string, { first, count }: DocumentRecord): Promise<string[] | undefined> {
  const texts: string[] = []
  for (let at = 0; at < count; at++) {
    const chunk = await store.get<ChunkRecord>(kept.chunks, [id, first + at])
    if (chunk === undefined) return undefined
    texts.push(chunk.value.text)
  }
  return texts
}
