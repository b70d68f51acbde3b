import { CodedError, isCoded, schemaOf } from '../../kernel/index.ts'
import type { Tool, ToolErrorDetail } from '../tools/types.ts'
import type { Owner, Rag } from './types.ts'

interface Input {
  readonly query: string
  readonly collection?: string
  readonly limit?: number
}

interface Output {
  readonly results: readonly {
    readonly content: string
    readonly score: number
    readonly title: string | null
    readonly source: string | null
    readonly collection: string
  }[]
  readonly total: number
  /** The documents of the results, as chat shows them. */
  readonly sources: readonly { readonly title: string; readonly url: string | null; readonly relevance_score: number }[]
}

const orNull = { type: ['string', 'null'] } as const

/** Finds something in the collections of whoever runs it. */
export function searchTool(rag: Rag): Tool<Input, Output> {
  return {
    name: 'rag',
    description: "Searches the caller's own documents and returns the passages that answer best, with their sources.",
    input: schemaOf<Input>({
      type: 'object',
      required: ['query'],
      additionalProperties: false,
      properties: {
        query: { type: 'string', minLength: 1, description: 'What to look for, in words or as a question' },
        collection: { type: 'string', description: 'Name of one collection; left out, all are searched' },
        limit: { type: 'integer', minimum: 1, maximum: 20, description: 'Passages at most; 5 when left out' }
      }
    }),
    output: schemaOf<Output>({
      type: 'object',
      required: ['results', 'total', 'sources'],
      properties: {
        results: {
          type: 'array',
          items: {
            type: 'object',
            required: ['content', 'score', 'title', 'source', 'collection'],
            properties: {
              content: { type: 'string' },
              score: { type: 'number', minimum: 0, maximum: 1 },
              title: orNull,
              source: orNull,
              collection: { type: 'string' }
            }
          }
        },
        total: { type: 'integer', minimum: 0 },
        sources: {
          type: 'array',
          items: {
            type: 'object',
            required: ['title', 'url', 'relevance_score'],
            properties: {
              title: { type: 'string' },
              url: orNull,
              relevance_score: { type: 'number', minimum: 0, maximum: 1 }
            }
          }
        }
      }
    }),
    effect: 'read',
    idempotent: true,
    parallelSafe: true,
    async run({ query, collection, limit = 5 }, { principal, signal }) {
      try {
        const { hits, total } = await rag.search(ownerOf(principal), { query, collection, limit, signal })
        return {
          results: hits.map(({ content, score, title, source, collection }) => ({
            content,
            score,
            title,
            source,
            collection
          })),
          total,
          sources: hits.map(({ title, source, score, collection }) => ({
            title: title ?? source ?? collection,
            url: source !== null && /^https?:\/\//i.test(source) ? source : null,
            relevance_score: score
          }))
        }
      } catch (error) {
        throw isCoded(error, 'RAG_COLLECTION_UNKNOWN') || isCoded(error, 'RAG_INVALID') ? readable(error) : error
      }
    }
  }
}

/** `user:<id>` or `tenant:<id>`. */
function ownerOf(principal: string | undefined): Owner {
  const at = principal?.indexOf(':') ?? -1
  const kind = principal?.slice(0, at)
  if (principal === undefined || (kind !== 'user' && kind !== 'tenant')) {
    const detail: ToolErrorDetail = { category: 'permission' }
    throw new CodedError('RAG_NO_OWNER', 'documents belong to somebody: call this with a credential', {
      detail: { ...detail }
    })
  }
  return { kind, id: principal.slice(at + 1) }
}

function readable(error: CodedError): CodedError {
  const detail: ToolErrorDetail = {
    category: error.code === 'RAG_INVALID' ? 'validation' : 'not_found',
    recoverable: true
  }
  return new CodedError(error.code, error.message, { detail: { ...detail }, cause: error })
}
