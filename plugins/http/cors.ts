import type { Exchange } from './transport.ts'

const allowedMethods = 'GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS'
const allowedHeaders =
  'Authorization, Content-Type, Accept, Origin, X-Admin-Secret, X-Request-Id, If-None-Match, If-Match, Last-Event-ID'
/** Beside the x-* headers of the answer, what a script may want to read. */
const exposedHeaders = 'etag, location, retry-after'

/** Which pages of other origins may call, and read what is answered (WHATWG Fetch, "CORS protocol"). */
export class Cors {
  readonly #isAny: boolean
  readonly #origins: ReadonlySet<string>

  /** @param origins `['*']` lets any origin in, without credentials */
  constructor(origins: readonly string[]) {
    this.#isAny = origins.includes('*')
    this.#origins = new Set(origins)
  }

  /** Adds to the head of an answer what its origin may know. */
  decorate(exchange: Exchange, head: string[]): void {
    if (!this.#isAny) head.push('vary', 'origin')
    const origin = exchange.header('origin')
    if (origin === undefined || !this.#allow(origin, head)) return
    let exposed = exposedHeaders
    for (let index = 0; index < head.length; index += 2) {
      const name = head[index] as string
      if (name.startsWith('x-')) exposed += `, ${name}`
    }
    head.push('access-control-expose-headers', exposed)
  }

  /** The same for the question that browsers ask before they send anything unusual. */
  preflight(exchange: Exchange, head: string[]): void {
    if (!this.#isAny) head.push('vary', 'origin')
    const origin = exchange.header('origin')
    if (origin === undefined || !this.#allow(origin, head)) return
    head.push('access-control-allow-methods', allowedMethods)
    head.push('access-control-allow-headers', allowedHeaders)
    head.push('access-control-max-age', '600')
  }

  #allow(origin: string, head: string[]): boolean {
    if (this.#isAny) {
      head.push('access-control-allow-origin', '*')
      return true
    }
    if (!this.#origins.has(origin)) return false
    head.push('access-control-allow-origin', origin, 'access-control-allow-credentials', 'true')
    return true
  }
}
