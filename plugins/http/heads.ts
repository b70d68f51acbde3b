import type { Cors } from './cors.ts'
import type { Headers } from './types.ts'

const headerName = /^[!#$%&'*+.^_`|~\w-]+$/
const headerValue = /^[\t\x20-\x7e]*$/
/** Ours to say: the transport frames the answer, and the id is the one that is in the log. */
const ownHeaders = new Set(['connection', 'content-length', 'date', 'keep-alive', 'transfer-encoding', 'x-request-id'])

/** What kind of answer it is, which decides the headers it has when it brings none. */
export type AnswerKind = 'json' | 'text' | 'bytes' | 'events' | 'other'

const defaults: Readonly<Record<AnswerKind, readonly string[]>> = {
  json: ['content-type', 'application/json'],
  text: ['content-type', 'text/plain; charset=utf-8'],
  bytes: ['content-type', 'application/octet-stream'],
  events: ['content-type', 'text/event-stream', 'cache-control', 'no-cache, no-transform', 'x-accel-buffering', 'no'],
  other: []
}

/** What keeps a browser from showing an answer as a page, or from guessing what it is. */
export const securityHeaders: readonly string[] = [
  'x-content-type-options',
  'nosniff',
  'x-frame-options',
  'DENY',
  'referrer-policy',
  'no-referrer',
  'content-security-policy',
  "default-src 'none'; frame-ancestors 'none'"
]

const noStore = ['cache-control', 'no-store']
const noHeaders: Headers = Object.freeze({})

/** The headers of an answer, but for its id and its framing. */
export class Head {
  /** Name, value, name, value, …; names in lower case, all of it fit to be sent. */
  readonly lines: readonly string[]
  #text: string | undefined

  constructor(lines: readonly string[]) {
    this.lines = lines
  }

  /** The same as text; every line begins with CR LF. */
  get text(): string {
    if (this.#text === undefined) {
      let text = ''
      for (let at = 0; at < this.lines.length; at += 2) text += `\r\n${this.lines[at]}: ${this.lines[at + 1]}`
      this.#text = text
    }
    return this.#text
  }
}

type Known = WeakMap<Headers, Partial<Record<AnswerKind, Head>>>

/** Makes heads, and keeps those that come again and again: of headers that are frozen, or of none at all. */
export class Heads {
  readonly #cors: Cors
  readonly #always: readonly string[]
  readonly #api: Known = new WeakMap()
  readonly #other: Known = new WeakMap()
  /** Checked names, in lower case; empty for those that are ours to say. */
  readonly #names = new Map<string, string>()

  /** @param always name, value, name, value, …: on every answer that does not say otherwise */
  constructor(cors: Cors, always: readonly string[] = []) {
    this.#cors = cors
    this.#always = always
  }

  /**
   * The head of an answer to a request of our own origin.
   * @param isApi under `/api` nobody keeps an answer that does not say otherwise
   * @throws TypeError for a name or value that would break the head
   */
  get(headers: Headers = noHeaders, kind: AnswerKind, isApi: boolean): Head {
    const known = isApi ? this.#api : this.#other
    const heads = known.get(headers)
    const found = heads?.[kind]
    if (found !== undefined) return found
    const head = new Head(this.make(headers, kind, isApi, []))
    if (heads !== undefined) heads[kind] = head
    else if (Object.isFrozen(headers)) known.set(headers, { [kind]: head })
    return head
  }

  /**
   * The same as lines, which are the caller's.
   * @param more name, value, name, value, …: used where the headers do not say otherwise
   */
  make(
    headers: Headers | ResponseHeaders = noHeaders,
    kind: AnswerKind,
    isApi: boolean,
    more: readonly string[]
  ): string[] {
    const lines: string[] = []
    if (isList(headers)) for (const [name, value] of headers) this.#add(lines, name, value)
    else for (const name in headers) this.#add(lines, name, headers[name] as string)
    addDefaults(lines, defaults[kind])
    addDefaults(lines, more)
    if (isApi) addDefaults(lines, noStore)
    addDefaults(lines, this.#always)
    lines.push(...this.#cors.vary)
    return lines
  }

  #add(lines: string[], name: string, value: string): void {
    const lower = this.#names.get(name) ?? this.#learn(name)
    if (lower === '') return
    if (!headerValue.test(value)) throw new TypeError(`the value of the header '${lower}' holds what it must not`)
    lines.push(lower, value)
  }

  #learn(name: string): string {
    if (!headerName.test(name)) throw new TypeError(`'${name}' is no name of a header`)
    const lower = name.toLowerCase()
    const learned = ownHeaders.has(lower) ? '' : lower
    // Names stand in code; should some be made at run time, they do not fill the memory.
    if (this.#names.size < 1_000) this.#names.set(name, learned)
    return learned
  }
}

/** The headers of a Fetch `Response`. */
type ResponseHeaders = Iterable<readonly [name: string, value: string]>

function isList(headers: Headers | ResponseHeaders): headers is ResponseHeaders {
  return Symbol.iterator in headers
}

function addDefaults(lines: string[], more: readonly string[]): void {
  for (let at = 0; at < more.length; at += 2) {
    const name = more[at] as string
    if (!hasName(lines, name)) lines.push(name, more[at + 1] as string)
  }
}

function hasName(lines: readonly string[], name: string): boolean {
  for (let at = 0; at < lines.length; at += 2) if (lines[at] === name) return true
  return false
}
