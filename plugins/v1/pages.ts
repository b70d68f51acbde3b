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
  const page = Math.max(query.page, 1)
  const per_page = Math.min(Math.max(query.per_page, 1), maxPerPage)
  const start = (page - 1) * per_page
  return {
    items: all.slice(start, start + per_page),
    total: all.length,
    page,
    per_page,
    total_pages: Math.ceil(all.length / per_page)
  }
}
