import { CodedError, type Contribution } from '../../kernel/index.ts'
import type { CompiledRoutes, RouteChecks } from './route-checks.ts'
import type { Route } from './types.ts'

/** A route with all that can be prepared once. */
export interface Endpoint {
  readonly route: Route
  readonly contribution: Contribution<Route>
  readonly checks: RouteChecks
  readonly readsBody: boolean
  /** Lies under `/api`, where an answer is not kept by anybody unless it says so. */
  readonly isApi: boolean
}

/** All that one path template offers. */
export interface Resource {
  readonly template: string
  /** By method; HEAD beside every GET. */
  readonly endpoints: ReadonlyMap<string, Endpoint>
  /** For the `Allow` header. */
  readonly allow: string
}

export interface Match {
  readonly resource: Resource
  readonly params: Readonly<Record<string, string>>
  /** A parameter whose percent escapes are broken, or that holds a NUL. */
  readonly isMalformed: boolean
}

interface Draft {
  readonly template: string
  readonly names: readonly string[]
  readonly first: Contribution<Route>
  readonly endpoints: Map<string, Endpoint>
}

interface Branch {
  readonly literals: Map<string, Branch>
  parameter: Branch | undefined
  leaf: { readonly resource: Resource; readonly names: readonly string[] } | undefined
}

const noParams: Readonly<Record<string, string>> = Object.freeze({})

/**
 * The routes of one moment. A literal segment wins over a parameter, from the left; a path is taken as it came, so
 * `//`, `.` and a slash at the end belong to no route unless a template spells them.
 */
export class RouteTable {
  readonly #literal = new Map<string, Match>()
  readonly #root: Branch = newBranch()

  /**
   * @param compiled keeps the checks of routes that were there before
   * @throws CodedError `HTTP_ROUTE_INVALID` or `HTTP_ROUTE_CONFLICT`, naming the entries
   */
  constructor(routes: readonly Contribution<Route>[], compiled: CompiledRoutes) {
    for (const draft of draftsOf(routes, compiled).values()) {
      const { template, names, endpoints } = draft
      const resource = { template, endpoints, allow: [...endpoints.keys(), 'OPTIONS'].join(', ') }
      if (names.length === 0) this.#literal.set(template, { resource, params: noParams, isMalformed: false })
      else this.#plant(template, { resource, names })
    }
  }

  find(path: string): Match | undefined {
    return this.#literal.get(path) ?? this.#climb(path)
  }

  #plant(template: string, leaf: NonNullable<Branch['leaf']>): void {
    let branch = this.#root
    for (const segment of template.split('/').slice(1)) {
      let next = isParameter(segment) ? branch.parameter : branch.literals.get(segment)
      if (next === undefined) {
        next = newBranch()
        if (isParameter(segment)) branch.parameter = next
        else branch.literals.set(segment, next)
      }
      branch = next
    }
    branch.leaf = leaf
  }

  #climb(path: string): Match | undefined {
    const segments = path.split('/')
    const values: string[] = []
    const leaf = climb(this.#root, segments, 1, values)
    if (leaf === undefined) return undefined
    const params: Record<string, string> = {}
    let isMalformed = false
    for (const [index, name] of leaf.names.entries()) {
      const value = decode(values[index] as string)
      if (value === undefined) isMalformed = true
      else params[name] = value
    }
    return { resource: leaf.resource, params, isMalformed }
  }
}

function climb(branch: Branch, segments: readonly string[], at: number, values: string[]): Branch['leaf'] {
  const segment = segments[at]
  if (segment === undefined) return branch.leaf
  const literal = branch.literals.get(segment)
  const found = literal === undefined ? undefined : climb(literal, segments, at + 1, values)
  if (found !== undefined || branch.parameter === undefined || segment === '') return found
  values.push(segment)
  const leaf = climb(branch.parameter, segments, at + 1, values)
  if (leaf === undefined) values.pop()
  return leaf
}

function newBranch(): Branch {
  return { literals: new Map(), parameter: undefined, leaf: undefined }
}

/** Decoded once; `%2F` stays a slash inside its segment. */
function decode(segment: string): string | undefined {
  if (!segment.includes('%')) return segment
  try {
    const value = decodeURIComponent(segment)
    return value.includes('\0') ? undefined : value
  } catch {
    return undefined
  }
}

/** Routes by the shape of their path, so that templates that differ only in the names of parameters meet. */
function draftsOf(routes: readonly Contribution<Route>[], compiled: CompiledRoutes): ReadonlyMap<string, Draft> {
  const drafts = new Map<string, Draft>()
  for (const contribution of routes) {
    const route = contribution.item
    const names = parameterNames(contribution)
    const shape = names.length === 0 ? route.path : route.path.replace(/\{[^}]*\}/g, '{}')
    let draft = drafts.get(shape)
    if (draft === undefined) {
      draft = { template: route.path, names, first: contribution, endpoints: new Map() }
      drafts.set(shape, draft)
    } else if (draft.template !== route.path) {
      throw new CodedError(
        'HTTP_ROUTE_CONFLICT',
        `${describe(contribution)} and ${describe(draft.first)} differ only in the names of their parameters; name them alike`
      )
    }
    const present = draft.endpoints.get(route.method)
    if (present !== undefined) {
      throw new CodedError(
        'HTTP_ROUTE_CONFLICT',
        `${describe(contribution)} is there already: ${describe(present.contribution)}`
      )
    }
    const endpoint: Endpoint = {
      route,
      contribution,
      checks: checksOf(contribution, compiled),
      readsBody: route.body !== undefined || route.rawBody === true,
      isApi: route.path.startsWith('/api/')
    }
    draft.endpoints.set(route.method, endpoint)
    if (route.method === 'GET') draft.endpoints.set('HEAD', endpoint)
  }
  return drafts
}

function checksOf(contribution: Contribution<Route>, compiled: CompiledRoutes): RouteChecks {
  try {
    return compiled.of(contribution.item)
  } catch (cause) {
    throw new CodedError('HTTP_ROUTE_INVALID', `${describe(contribution)} has a schema that does not compile`, {
      cause
    })
  }
}

function parameterNames(contribution: Contribution<Route>): readonly string[] {
  const { path } = contribution.item
  const names: string[] = []
  for (const segment of path.split('/').slice(1)) {
    if (!isParameter(segment)) {
      if (/[{}]/.test(segment)) throw invalid(contribution, 'has a parameter that is only part of a segment')
      continue
    }
    const name = segment.slice(1, -1)
    if (!/^[A-Za-z_][A-Za-z0-9_]*$/.test(name) || name === '__proto__') {
      throw invalid(contribution, `has a parameter of an impossible name, '${name}'`)
    }
    if (names.includes(name)) throw invalid(contribution, `has the parameter '${name}' twice`)
    names.push(name)
  }
  if (!path.startsWith('/')) throw invalid(contribution, "has a path that does not begin with '/'")
  return names
}

function isParameter(segment: string): boolean {
  return segment.startsWith('{') && segment.endsWith('}')
}

function invalid(contribution: Contribution<Route>, what: string): CodedError {
  return new CodedError('HTTP_ROUTE_INVALID', `${describe(contribution)} ${what}`)
}

function describe({ item, entry }: Contribution<Route>): string {
  return `${item.method} ${item.path} of entry '${entry}'`
}
