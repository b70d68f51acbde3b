import { randomUUID } from 'node:crypto'
import { CodedError, definePlugin, schemaOf } from '../../kernel/index.ts'
import type {} from '../embeddings/types.ts'
import type {} from '../http/types.ts'
import type {} from '../store/types.ts'
import type {} from '../tenants/types.ts'
import type { Tool } from '../tools/types.ts'
import type {} from '../workers/types.ts'
import { createTextIndex } from './bm25.ts'
import { bestChunks, type ChunkOptions } from './chunk.ts'
import { createEncoder } from './encoder.ts'
import { analyseTask, cutTask } from './ingest.ts'
import { type Face, routes } from './routes.ts'
import { createRag } from './service.ts'
import { createState } from './state.ts'
import { createTending } from './tending.ts'
import { semanticRoute, tenantFace } from './tenant-routes.ts'
import { createAnalyser } from './text.ts'
import { searchTool } from './tool.ts'
import { createVectorIndex } from './vectors.ts'
import { graphTask } from './vectors-graph.ts'

interface Config {
  readonly max_body_bytes: number
  readonly cache_mb: number
  readonly embedding_model: string
  readonly max_exact_vectors: number
  readonly max_ingests: number
  readonly chunking: ChunkOptions
}

const config = schemaOf<Config>({
  type: 'object',
  additionalProperties: false,
  properties: {
    max_body_bytes: {
      type: 'integer',
      minimum: 1_024,
      maximum: 67_108_864,
      default: 16_777_216,
      description: 'Longest body of an ingest'
    },
    cache_mb: {
      type: 'integer',
      minimum: 1,
      maximum: 65_536,
      default: 64,
      description: 'Memory for parts of the indexes: half of it for words, half of it for vectors'
    },
    embedding_model: {
      type: 'string',
      default: '',
      description: 'Model of new collections; when blank, the default one of the encoder'
    },
    max_exact_vectors: {
      type: 'integer',
      minimum: 1,
      default: 20_000,
      description: 'Vectors of a collection up to which a search looks at each; beyond, an approximate index is made'
    },
    max_ingests: {
      type: 'integer',
      minimum: 1,
      default: 16,
      description: 'Documents that are taken in at once while somebody waits for each; further ones are answered 503'
    },
    chunking: {
      type: 'object',
      additionalProperties: false,
      default: {},
      description: 'How a text is cut when a request does not say',
      properties: {
        strategy: { enum: ['word', 'semantic', 'character'], default: bestChunks.strategy },
        size: { type: 'integer', minimum: 20, maximum: 100_000, default: bestChunks.size },
        overlap: { type: 'integer', minimum: 0, maximum: 50_000, default: bestChunks.overlap }
      }
    }
  }
})

const mebibyte = 1_048_576
const resumePeriodMs = 60_000

export default definePlugin({
  name: 'rag',
  inject: ['store', 'workers'],
  optional: ['embeddings', 'tenants'],
  provides: ['rag'],
  config,
  async apply(ctx, config) {
    const { store, workers, embeddings, tenants } = ctx.services
    // The number stands for the shape of the state: code that keeps another one starts with its own.
    const state = await ctx.resource('state', 5, createState, () => {})
    const analyser = createAnalyser()
    const cacheBytes = (config.cache_mb * mebibyte) / 2
    const text = createTextIndex(store, { analyser, cacheBytes, work: state.index })
    const vectors = createVectorIndex(store, {
      cacheBytes,
      graphs: { workers, from: config.max_exact_vectors, log: ctx.log },
      work: state.vectors
    })
    ctx.effect(() => () => vectors.stop(), 'approximate indexes')
    // A thread that makes one would hold this generation until it is done.
    ctx.onCommit(() => {
      state.stopGraphs?.()
      state.stopGraphs = () => void vectors.stop()
    })
    ctx.on('kernel/stopping', () => vectors.stop())
    // A job goes on in the next process: the end of this one need not wait for it.
    const stopping = new AbortController()
    ctx.on('kernel/stopping', () => stopping.abort(new CodedError('SHUTTING_DOWN', 'the server is shutting down')))
    const signal = AbortSignal.any([ctx.signal, stopping.signal])
    const tending = createTending({ store, text, vectors, state, log: ctx.log })
    const { overlap, size, strategy } = config.chunking
    const rag = createRag({
      store,
      workers,
      text,
      vectors,
      analyser,
      encoder: createEncoder(embeddings, config.embedding_model === '' ? undefined : config.embedding_model),
      state,
      turns: new Map(),
      // Windows that did not move on would never end.
      chunks: { strategy, size, overlap: Math.min(overlap, size - 1) },
      now: Date.now,
      newId: randomUUID,
      tend: (id, ...spaces) => tending.tend(id, ...spaces),
      tending,
      maxIngests: config.max_ingests,
      log: ctx.log,
      signal,
      lease: () => ctx.lease()
    })
    ctx.effect(() => () => rag.settled(), 'work of rag')
    ctx.onCommit(() => {
      state.resume = () => {
        if (!signal.aborted) rag.resume().catch((error: unknown) => ctx.log.error('jobs of rag failed', { error }))
      }
    })
    ctx.contribute('workers.tasks', cutTask, analyseTask, graphTask)
    ctx.provide('rag', rag)
    ctx.contribute('http.routes', ...routes(rag, users, config.max_body_bytes, ctx.log))
    if (tenants !== undefined) {
      const face = tenantFace(tenants)
      ctx.contribute('http.routes', ...routes(rag, face, config.max_body_bytes, ctx.log), semanticRoute(rag, face))
    }
    ctx.contribute('tenants.data', {
      name: 'collections',
      remove: (id, most) => rag.clear({ kind: 'tenant', id }, most)
    })
    ctx.contribute('tools', searchTool(rag) as Tool)
    ctx.setTimeout(() => rag.recover(), 0)
    ctx.setInterval(() => rag.resume(), resumePeriodMs)
  }
})

const users: Face = {
  path: '/api/rag',
  prefix: 'rag',
  guard: 'user',
  kind: 'user',
  counted: (_principal, _units, work) => work(),
  headers: () => Promise.resolve({})
}
