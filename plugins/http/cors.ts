const allowedMethods = 'GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS'
const allowedHeaders =
  'Authorization, Content-Type, Accept, Origin, X-Admin-Secret, X-Request-Id, If-None-Match, If-Match, Last-Event-ID, ' +
  'Mcp-Session-Id, Mcp-Protocol-Version, Mcp-Method, Mcp-Name'
/** Beside the x-* headers of the answer, what a script may want to read. */
const exposedHeaders = 'x-request-id, etag, location, retry-after, mcp-session-id'

/** Which pages of other origins may call, and read what is answered (WHATWG Fetch, "CORS protocol"). */
export class Cors {
  /** Lines of every head: whether the answer depends on who asks. */
  readonly vary: readonly string[]
  readonly #isAny: boolean
  readonly #origins: ReadonlySet<string>

  /** @param origins `['*']` lets any origin in, without credentials */
  constructor(origins: readonly string[]) {
    this.#isAny = origins.includes('*')
    this.#origins = new Set(origins)
    this.vary = this.#isAny ? [] : ['vary', 'origin']
  }

  /** Adds to the lines of a head what a page of this origin may do with the answer. */
  decorate(origin: string, lines: string[]): void {
    if (!this.#allow(origin, lines)) return
    let exposed = exposedHeaders
    for (let at = 0; at < lines.length; at += 2) {
      const name = lines[at] as string
      if (name.startsWith('x-')) exposed += `, ${name}`
    }
    lines.push('access-control-expose-headers', exposed)
  }

  /** The same for the question that browsers ask before they send anything unusual. */
  preflight(origin: string, lines: string[]): void {
    if (!this.#allow(origin, lines)) return
    lines.push('access-control-allow-methods', allowedMethods)
    lines.push('access-control-allow-headers', allowedHeaders)
    lines.push('access-control-max-age', '600')
  }

  #allow(origin: string, lines: string[]): boolean {
    if (this.#isAny) {
      lines.push('access-control-allow-origin', '*')
      return true
    }
    if (!this.#origins.has(origin)) return false
    lines.push('access-control-allow-origin', origin, 'access-control-allow-credentials', 'true')
    return true
  }
}
