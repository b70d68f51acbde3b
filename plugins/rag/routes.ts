import { isCoded, type JsonSchema, type Logger, schemaOf } from '../../kernel/index.ts'
import type { ErrorMap, Headers, Principal, Problem, Reply, Request, Route, StreamEvent } from '../http/types.ts'
import type { Job } from './jobs.ts'
import type { RagService } from './service.ts'
import type {
  CollectionInfo,
  Filter,
  Ingested,
  IngestOptions,
  MetadataValue,
  NewDocument,
  Owner,
  SearchHit,
  SearchOutcome
} from './types.ts'

/** A face of the service: for whom, behind which guard, and what each request costs them. */
export interface Face {
  /** Such as `/api/rag`. */
  readonly path: string
  /** Begins the names of its operations. */
  readonly prefix: string
  readonly guard: string
  readonly kind: Owner['kind']
  /**
   * Runs what is counted.
   * @param units of the text that is worked on
   * @param work is given what must hold when something is stored
   */
  readonly counted: <R>(
    principal: Principal,
    units: number,
    work: (check?: IngestOptions['check']) => Promise<R>
  ) => Promise<R>
  /** Told with every answer. */
  readonly headers: (principal: Principal) => Promise<Headers>
  readonly errors?: ErrorMap
  readonly renderProblem?: (problem: Problem) => Reply
}

interface IngestBody {
  readonly collection?: string | null
  readonly content?: string | null
  readonly title?: string | null
  readonly source?: string | null
  readonly tags?: readonly string[] | null
  readonly metadata?: Readonly<Record<string, MetadataValue>> | null
  readonly chunking_strategy?: string | null
  readonly embedding_model?: string | null
}

interface SearchBody {
  readonly collection?: string | null
  readonly query?: string | null
  readonly limit?: number | null
  readonly strategy?: string | null
  readonly threshold?: number | null
  readonly rerank?: boolean | null
  readonly reranker_model?: string | null
  readonly filter?: {
    readonly tags?: readonly string[] | null
    readonly title?: string | null
    readonly source?: string | null
    readonly metadata?: Readonly<Record<string, MetadataValue>> | null
  } | null
  readonly explain?: boolean | null
}

const text = { type: 'string' } as const
const count = { type: 'integer', minimum: 0 } as const
const score = { type: 'number', minimum: 0, maximum: 1 } as const
const time = { type: 'string', format: 'date-time' } as const
const orNull = { type: ['string', 'null'] } as const
const optional = (type: string, description: string, more: object = {}): JsonSchema => ({
  type: [type, 'null'],
  description,
  ...more
})
const metadata = optional('object', 'Facts of your own, to filter by', {
  additionalProperties: { type: ['string', 'number', 'boolean'] }
})
const texts = { type: ['array', 'null'], items: text }

const ingestBody = schemaOf<IngestBody>({
  $id: 'RagIngestRequest',
  type: 'object',
  properties: {
    collection: optional('string', 'Made when it is not there'),
    content: optional('string', 'The text'),
    title: optional('string', 'Shown with what is found'),
    source: optional(
      'string',
      'Where it comes from; a document of the same source and title takes the place of the one before'
    ),
    tags: texts,
    metadata,
    chunking_strategy: optional('string', '`word`, `semantic` or `character`; left out, what finds most'),
    embedding_model: optional('string', 'Of a new collection; left out, the default one')
  }
})

const ingestReply: JsonSchema = {
  $id: 'RagIngestResponse',
  type: 'object',
  required: ['chunks_created', 'document_ids', 'collection'],
  properties: {
    chunks_created: count,
    document_ids: { type: 'array', items: text, description: 'One for each chunk, in order' },
    collection: text,
    documents_replaced: count
  }
}

const searchBody = schemaOf<SearchBody>({
  $id: 'RagSearchRequest',
  type: 'object',
  properties: {
    collection: optional('string', 'The collection to search'),
    query: optional('string', 'What to look for'),
    limit: optional('integer', 'Hits at most; 10 when left out, and never more than 100', { minimum: 0 }),
    strategy: optional(
      'string',
      '`semantic`, `bm25`, `fuzzy` or `hybrid`; left out, hybrid, or bm25 where there are no vectors'
    ),
    threshold: optional('number', 'Hits that score less are left out'),
    rerank: optional('boolean', 'Order the best hits by how near to each other they have the words of the query'),
    reranker_model: optional('string', '`proximity`'),
    filter: optional('object', 'Only documents that have all of this', {
      properties: { tags: texts, title: orNull, source: orNull, metadata }
    }),
    explain: optional('boolean', 'Show how each part of the search saw each hit')
  }
})

const searchReply: JsonSchema = {
  $id: 'RagSearchResponse',
  type: 'object',
  required: ['results', 'total', 'strategy', 'reranked', 'duration_ms'],
  properties: {
    results: {
      type: 'array',
      items: {
        type: 'object',
        required: ['id', 'content', 'score', 'metadata'],
        properties: { id: text, content: text, score, metadata: { type: 'object' }, explain: { type: 'object' } }
      }
    },
    total: { ...count, description: 'Chunks that answer, before the limit' },
    strategy: { enum: ['semantic', 'bm25', 'fuzzy', 'hybrid'] },
    reranked: { type: 'boolean' },
    duration_ms: count,
    corrections: {
      type: 'array',
      description: 'What was taken for words that no chunk has',
      items: { type: 'object', properties: { word: text, corrections: { type: 'array', items: text } } }
    },
    explain: { type: 'object' }
  }
}

const collectionInfo: JsonSchema = {
  $id: 'CollectionInfo',
  type: 'object',
  required: ['name', 'document_count', 'dimensions'],
  properties: {
    name: text,
    document_count: { ...count, description: 'Chunks' },
    dimensions: { ...count, description: 'Of its vectors; 0 when there are none' },
    source_count: { ...count, description: 'Documents' },
    embedding_model: orNull,
    next_embedding_model: { ...orNull, description: 'That it is being embedded with anew' },
    created_at: time,
    updated_at: time
  }
}

const job: JsonSchema = {
  $id: 'RagJob',
  type: 'object',
  required: ['job_id', 'kind', 'collection', 'status', 'chunks_done', 'chunks_total', 'created_at'],
  properties: {
    job_id: text,
    kind: { enum: ['ingest', 'reembed'] },
    collection: text,
    status: { enum: ['running', 'done', 'failed'] },
    chunks_done: count,
    chunks_total: count,
    result: { type: 'object' },
    error: text,
    code: text,
    created_at: time,
    ended_at: time
  }
}
const accepted: JsonSchema = {
  type: 'object',
  required: ['job_id', 'status', 'collection'],
  properties: { job_id: text, status: { const: 'running' }, collection: text }
}

/** Of the service and all that it asks. */
export const ragErrors: ErrorMap = {
  RAG_INVALID: 400,
  RAG_COLLECTION_UNKNOWN: 404,
  RAG_JOB_UNKNOWN: 404,
  RAG_DISABLED: { status: 400, code: 'INTERNAL_ERROR' },
  RAG_MODEL_DIFFERS: 409,
  RAG_CONFLICT: 409,
  RAG_UNAVAILABLE: 503,
  RAG_BUSY: 503,
  RAG_ABORTED: 503,
  RAG_VECTORS_DIMENSIONS: 409,
  EMBEDDINGS_MODEL_UNKNOWN: 409,
  EMBEDDINGS_UNAVAILABLE: 503,
  EMBEDDINGS_BUSY: 503,
  EMBEDDINGS_DIMENSIONS: 502,
  EMBEDDINGS_INVALID: 502,
  SHUTTING_DOWN: 503,
  DRAIN_TIMEOUT: 503
}

export function routes(rag: RagService, face: Face, maxBodyBytes: number, log: Logger): readonly Route[] {
  const { path, prefix, guard, counted, headers } = face
  const ownerOf = ({ principal }: Pick<Request, 'principal'>): Owner => ({ kind: face.kind, id: principal.id })
  const errors: ErrorMap = { ...ragErrors, ...face.errors }
  const common = {
    guard,
    errors,
    ...(face.renderProblem === undefined ? {} : { renderProblem: face.renderProblem })
  }
  const told = async (request: Pick<Request, 'principal'>, reply: Exclude<Reply, Response>): Promise<Reply> => ({
    ...reply,
    headers: { ...(await headers(request.principal)), ...reply.headers }
  })

  const ingest: Route<object, unknown, IngestBody> = {
    method: 'POST',
    path: `${path}/ingest`,
    operationId: `${prefix}Ingest`,
    summary:
      'Take a document into a collection. `Accept: text/event-stream` tells how far it is, `Prefer: respond-async` ' +
      'answers at once with a job to ask about',
    ...common,
    body: ingestBody,
    longText: 'content',
    maxBodyBytes,
    replies: { 200: ingestReply, 202: accepted },
    async handle(request: Request<object, unknown, IngestBody>) {
      const owner = ownerOf(request)
      const document = toDocument(request.body, request.longText)
      const units = document.content.length
      if (/\brespond-async\b/.test(request.header('prefer') ?? '')) {
        const id = await counted(request.principal, units, (check) => rag.ingestLater(owner, document, { check }))
        return told(request, {
          status: 202,
          headers: { location: `${path}/jobs/${id}`, 'preference-applied': 'respond-async' },
          body: { job_id: id, status: 'running', collection: document.collection }
        })
      }
      const { signal } = request
      const run = (onProgress?: IngestOptions['onProgress']) =>
        counted(request.principal, units, (check) => rag.ingest(owner, document, { signal, check, onProgress }))
      if (/\btext\/event-stream\b/.test(request.header('accept') ?? '')) {
        return told(request, { events: await inEvents(run, errors, request.id, log) })
      }
      return told(request, { body: toIngestBody(await run()) })
    }
  }

  const search: Route<object, unknown, SearchBody> = {
    method: 'POST',
    path: `${path}/search`,
    operationId: `${prefix}Search`,
    summary: 'Find the chunks of a collection that answer a query',
    ...common,
    body: searchBody,
    replies: { 200: searchReply },
    async handle(request: Request<object, unknown, SearchBody>) {
      const { body } = request
      const startedMs = performance.now()
      const query = body.query ?? ''
      const outcome = await counted(request.principal, query.length, () =>
        rag.search(ownerOf(request), {
          collection: body.collection ?? '',
          query,
          limit: body.limit ?? undefined,
          strategy: body.strategy ?? undefined,
          threshold: body.threshold ?? undefined,
          rerank: body.rerank ?? undefined,
          reranker: body.reranker_model ?? undefined,
          filter: toFilter(body.filter),
          signal: request.signal
        })
      )
      return told(request, { body: toSearchBody(outcome, startedMs, body.explain === true) })
    }
  }

  const list: Route = {
    method: 'GET',
    path: `${path}/collections`,
    operationId: `${prefix}Collections`,
    summary: 'List your collections, by name',
    ...common,
    replies: { 200: { type: 'array', items: collectionInfo } },
    handle: async (request) => told(request, { body: (await rag.collections(ownerOf(request))).map(toCollectionBody) })
  }

  const remove: Route<object, unknown, { readonly collection?: string | null }> = {
    method: 'DELETE',
    path: `${path}/collection`,
    operationId: `${prefix}DeleteCollection`,
    summary: 'Delete a collection and all that is in it',
    ...common,
    body: schemaOf({ type: 'object', properties: { collection: optional('string', 'Its name') } }),
    replies: {
      200: {
        type: 'object',
        required: ['success', 'collection', 'documents_deleted'],
        properties: {
          success: { const: true },
          collection: text,
          documents_deleted: { ...count, description: 'Chunks' }
        }
      }
    },
    async handle(request: Request<object, unknown, { readonly collection?: string | null }>) {
      const collection = request.body.collection ?? ''
      const deleted = await rag.remove(ownerOf(request), collection)
      return told(request, { body: { success: true, collection, documents_deleted: deleted } })
    }
  }

  const reembed: Route<object, unknown, { readonly collection?: string | null; readonly embedding_model: string }> = {
    method: 'POST',
    path: `${path}/reembed`,
    operationId: `${prefix}Reembed`,
    summary: 'Embed a collection with another model; until that is done, searches go by the present one',
    ...common,
    body: schemaOf({
      type: 'object',
      required: ['embedding_model'],
      properties: { collection: optional('string', 'Its name'), embedding_model: text }
    }),
    replies: { 202: accepted },
    async handle(
      request: Request<object, unknown, { readonly collection?: string | null; readonly embedding_model: string }>
    ) {
      const collection = request.body.collection ?? ''
      const id = await rag.reembed(ownerOf(request), collection, request.body.embedding_model)
      return told(request, {
        status: 202,
        headers: { location: `${path}/jobs/${id}` },
        body: { job_id: id, status: 'running', collection }
      })
    }
  }

  const findJob: Route<{ readonly id: string }> = {
    method: 'GET',
    path: `${path}/jobs/{id}`,
    operationId: `${prefix}Job`,
    summary: 'How far an ingest or a reembedding is, and how it ended',
    ...common,
    replies: { 200: job },
    handle: async (request: Request<{ readonly id: string }>) =>
      told(request, { body: toJobBody(await rag.jobs.find(ownerOf(request), request.params.id)) })
  }

  return [ingest, search, list, remove, reembed, findJob] as unknown as readonly Route[]
}

/**
 * An ingest as a stream: `progress` with the chunks that are done, then `done` with what an answer would be, or `error`.
 * @throws what is refused before anything was done
 */
async function inEvents(
  run: (onProgress: IngestOptions['onProgress']) => Promise<Ingested>,
  errors: ErrorMap,
  requestId: string,
  log: Logger
): Promise<AsyncIterable<StreamEvent>> {
  const waiting: StreamEvent[] = []
  let wake = (): void => {}
  const push = (event: StreamEvent) => {
    // Only the newest tells something to a reader who is slow.
    if (waiting.at(-1)?.event === 'progress') waiting.pop()
    waiting.push(event)
    wake()
  }
  let isOver = false
  const begun = new Promise<void>((resolve) => (wake = resolve))
  const work = run(({ chunksDone, chunksTotal }) =>
    push({ event: 'progress', data: { chunks_done: chunksDone, chunks_total: chunksTotal } })
  )
  await Promise.race([begun, work])
  const ended = work
    .then((ingested) => push({ event: 'done', data: toIngestBody(ingested) }))
    .catch((error: unknown) => {
      const known = isCoded(error) ? errors[error.code] : undefined
      if (known === undefined) log.error('an ingest failed', { requestId, error })
      const message = isCoded(error) && known !== undefined ? error.message : 'internal error'
      push({ event: 'error', data: { error: message, code: isCoded(error) && known ? error.code : 'INTERNAL_ERROR' } })
    })
    .finally(() => {
      isOver = true
      wake()
    })
  return (async function* () {
    try {
      for (;;) {
        const event = waiting.shift()
        if (event !== undefined) yield event
        else if (isOver) return
        else await new Promise<void>((resolve) => (wake = resolve))
      }
    } finally {
      await ended
    }
  })()
}

function toDocument(body: IngestBody, longText: Uint16Array | undefined): NewDocument {
  return {
    collection: body.collection ?? '',
    content: longText ?? body.content ?? '',
    title: body.title ?? undefined,
    source: body.source ?? undefined,
    tags: body.tags ?? undefined,
    metadata: body.metadata ?? undefined,
    chunking: body.chunking_strategy ?? undefined,
    model: body.embedding_model ?? undefined
  }
}

function toFilter(filter: SearchBody['filter']): Filter | undefined {
  if (filter === undefined || filter === null) return undefined
  return {
    tags: filter.tags ?? undefined,
    title: filter.title ?? undefined,
    source: filter.source ?? undefined,
    metadata: filter.metadata ?? undefined
  }
}

function toIngestBody({ collection, chunkIds, replaced }: Ingested): object {
  return { chunks_created: chunkIds.length, document_ids: chunkIds, collection, documents_replaced: replaced }
}

function toSearchBody(outcome: SearchOutcome, startedMs: number, explain: boolean): object {
  const { hits, total, strategy, reranked, corrections, semanticWeight, model } = outcome
  return {
    results: hits.map((hit) => ({
      id: hit.id,
      content: hit.content,
      score: hit.score,
      metadata: toMetadata(hit),
      ...(explain ? { explain: hit.parts } : {})
    })),
    total,
    strategy,
    reranked,
    duration_ms: Math.round(performance.now() - startedMs),
    ...(corrections.length === 0 ? {} : { corrections }),
    ...(explain ? { explain: { semantic_weight: semanticWeight ?? null, embedding_model: model ?? null } } : {})
  }
}

/** What a hit is told of its document; members of its own metadata never stand in the way of these. */
export function toMetadata(hit: SearchHit): object {
  const { title, source, tags, metadata, createdAtMs, documentId, start, end } = hit
  return {
    ...metadata,
    title,
    source,
    created_at: new Date(createdAtMs).toISOString(),
    tags,
    document_id: documentId,
    start,
    end
  }
}

function toCollectionBody(info: CollectionInfo): object {
  return {
    name: info.name,
    document_count: info.chunks,
    dimensions: info.dimensions,
    source_count: info.documents,
    embedding_model: info.model ?? null,
    next_embedding_model: info.nextModel ?? null,
    created_at: new Date(info.createdAtMs).toISOString(),
    updated_at: new Date(info.updatedAtMs).toISOString()
  }
}

function toJobBody({ id, kind, collection, state, progress, result, error, createdAtMs, endedAtMs }: Job): object {
  return {
    job_id: id,
    kind,
    collection,
    status: state,
    chunks_done: progress.chunksDone,
    chunks_total: progress.chunksTotal,
    ...(result === undefined ? {} : { result: toIngestBody(result) }),
    ...(error === undefined ? {} : { error: error.message, code: error.code }),
    created_at: new Date(createdAtMs).toISOString(),
    ...(endedAtMs === undefined ? {} : { ended_at: new Date(endedAtMs).toISOString() })
  }
}
