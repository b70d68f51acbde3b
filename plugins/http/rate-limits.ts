import { createHash } from 'node:crypto'
import type { GuardRequest } from './types.ts'

export interface RateLimitConfig {
  readonly global_requests_per_minute: number
  readonly per_client_requests_per_minute: number
  readonly per_key_requests_per_minute: number
  readonly burst: number
}

/**
 * When each one would have used up what it was given so far, in milliseconds; absent: it has used nothing. That one
 * number is all that the generic cell rate algorithm (ITU-T I.371) keeps.
 *
 * Two maps that take turns instead of one that is tidied: the one that is filled becomes the old one, and the old one
 * goes with all that nobody asked for in the meantime.
 */
export class Dues {
  #young = new Map<string, number>()
  #old = new Map<string, number>()
  #turnedAt = 0

  get size(): number {
    return this.#young.size + this.#old.size
  }

  get(whose: string): number | undefined {
    return this.#young.get(whose) ?? this.#old.get(whose)
  }

  /** @param horizonMs after such a time nobody owes anything */
  set(whose: string, due: number, now: number, horizonMs: number): void {
    if (this.#young.size >= maxDues / 2 || now - this.#turnedAt > horizonMs) {
      this.#old = this.#young
      this.#young = new Map()
      this.#turnedAt = now
    }
    this.#young.set(whose, due)
  }
}

/** What all generations of the plugin share: a change of the config forgives nobody. */
export interface RateState {
  readonly all: Dues
  readonly clients: Dues
  readonly keys: Dues
}

export function createRateState(): RateState {
  return { all: new Dues(), clients: new Dues(), keys: new Dues() }
}

/** Beyond these, those that were quiet longest are forgotten: about 10 MB for each kind. */
const maxDues = 100_000
/** A microsecond, far above what sums of fractions are off by. */
const toleranceMs = 0.001

/** How many requests may come: all together, from one client, and with one bearer token. */
export class RateLimits {
  readonly #limits: readonly Limit[]
  readonly #now: () => number

  /** @param now milliseconds of a clock that never jumps @returns undefined when nothing is limited */
  static create(config: RateLimitConfig, state: RateState, now: () => number): RateLimits | undefined {
    const { burst } = config
    const limits = [
      new Limit(config.global_requests_per_minute, burst, state.all, () => ''),
      new Limit(config.per_client_requests_per_minute, burst, state.clients, ({ network }) => network),
      new Limit(config.per_key_requests_per_minute, burst, state.keys, keyOf)
    ].filter((limit) => limit.isOn)
    return limits.length === 0 ? undefined : new RateLimits(limits, now)
  }

  private constructor(limits: readonly Limit[], now: () => number) {
    this.#limits = limits
    this.#now = now
  }

  /**
   * Counts a request against every limit, or against none when one of them is reached: whoever is refused uses up
   * nothing of anybody else's.
   * @returns the seconds after which it would be let in; 0 when it is
   */
  admit(request: GuardRequest): number {
    // Whoever watches the server must not take it for down because it is busy.
    const isProbe = request.path === '/health' || request.path === '/ready'
    if (isProbe && (request.method === 'GET' || request.method === 'HEAD')) return 0
    const now = this.#now()
    let waitMs = 0
    for (const limit of this.#limits) waitMs = Math.max(waitMs, limit.look(request, now))
    if (waitMs > 0) return Math.max(1, Math.ceil(waitMs / 1000))
    for (const limit of this.#limits) limit.take(now)
    return 0
  }
}

class Limit {
  readonly isOn: boolean
  readonly #intervalMs: number
  /** How far ahead of its time one may be. */
  readonly #aheadMs: number
  readonly #dues: Dues
  readonly #whoseOf: (request: GuardRequest) => string | undefined
  /** Of the request that is being looked at. */
  #whose: string | undefined
  #due = 0

  constructor(
    requestsPerMinute: number,
    burst: number,
    dues: Dues,
    whoseOf: (request: GuardRequest) => string | undefined
  ) {
    this.isOn = requestsPerMinute > 0
    this.#intervalMs = 60_000 / requestsPerMinute
    this.#aheadMs = (Math.max(1, burst) - 1) * this.#intervalMs + toleranceMs
    this.#dues = dues
    this.#whoseOf = whoseOf
  }

  /** @returns how long it would have to wait */
  look(request: GuardRequest, now: number): number {
    this.#whose = this.#whoseOf(request)
    if (this.#whose === undefined) return 0
    this.#due = Math.max(now, this.#dues.get(this.#whose) ?? 0)
    return this.#due - now - this.#aheadMs
  }

  /** Counts the request that was looked at. */
  take(now: number): void {
    if (this.#whose === undefined) return
    this.#dues.set(this.#whose, this.#due + this.#intervalMs, now, this.#aheadMs + this.#intervalMs)
  }
}

/** The bearer token as nobody can read it back. */
function keyOf(request: GuardRequest): string | undefined {
  const header = request.header('authorization')
  const key = header?.startsWith('Bearer ') === true ? header.slice(7) : request.queryValue('token')
  return key === undefined ? undefined : createHash('sha256').update(key).digest('base64')
}
