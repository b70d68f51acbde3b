import { CodedError } from '../../kernel/index.ts'

/** Decoded parameters by name; a name that came more than once has a list. Without a prototype. */
export type Query = Record<string, string | string[]>

/**
 * Reads a query string as forms write it (`+` is a space).
 * @throws CodedError `HTTP_QUERY_INVALID` for an escape that is no UTF-8
 */
export function parseQuery(search: string): Query {
  const query = Object.create(null) as Query
  if (search === '') return query
  for (const pair of search.split('&')) {
    if (pair === '') continue
    const equals = pair.indexOf('=')
    const name = decode(equals === -1 ? pair : pair.slice(0, equals))
    const value = equals === -1 ? '' : decode(pair.slice(equals + 1))
    const present = query[name]
    if (present === undefined) query[name] = value
    else if (typeof present === 'string') query[name] = [present, value]
    else present.push(value)
  }
  return query
}

function decode(text: string): string {
  try {
    return decodeURIComponent(text.replaceAll('+', ' '))
  } catch {
    // The text itself stays out of the message: it may be a token.
    throw new CodedError('HTTP_QUERY_INVALID', 'the query string holds a percent escape that is not valid UTF-8')
  }
}
