import { type JsonSchema, type Schema, schemaOf } from '../../kernel/index.ts'

export interface PageQuery {
  readonly page: number
  readonly per_page: number
}

export interface Paginated<T> {
  readonly items: readonly T[]
  /** Of all pages. */
  readonly total: number
  readonly page: number
  readonly per_page: number
  readonly total_pages: number
}

const maxPerPage = 100

/** @param perPage when the query names none */
export function pageQuery(perPage: number): Schema<PageQuery> {
  return schemaOf({
    type: 'object',
    properties: {
      page: { type: 'integer', default: 1, description: 'From 1 on' },
      per_page: { type: 'integer', default: perPage, description: `Brought into 1 to ${maxPerPage}` }
    }
  })
}

export function paginatedOf(item: JsonSchema): JsonSchema {
  const integer = { type: 'integer' }
  return {
    type: 'object',
    required: ['items', 'total', 'page', 'per_page', 'total_pages'],
    properties: {
      items: { type: 'array', items: item },
      total: integer,
      page: integer,
      per_page: integer,
      total_pages: integer
    }
  }
}

/** The page asked for; what is out of bounds is brought into them, and a page past the end is empty. */
export function paginate<T>(all: readonly T[], query: PageQuery): Paginated<T> {
  const { offset, limit } = sliceOf(query)
  return toPage(all.slice(offset, offset + limit), all.length, query)
}

/** Which items a page holds: so many, after the first so many. */
export function sliceOf({ page, per_page }: PageQuery): { readonly offset: number; readonly limit: number } {
  const limit = Math.min(Math.max(per_page, 1), maxPerPage)
  return { offset: (Math.max(page, 1) - 1) * limit, limit }
}

/** @param items of this page; `total` counts those of all pages */
export function toPage<T>(items: readonly T[], total: number, query: PageQuery): Paginated<T> {
  const { limit } = sliceOf(query)
  return { items, total, page: Math.max(query.page, 1), per_page: limit, total_pages: Math.ceil(total / limit) }
}
