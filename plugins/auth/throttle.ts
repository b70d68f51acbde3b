import { CodedError, isCoded } from '../../kernel/index.ts'
import { normaliseEmail } from './service.ts'

export interface ThrottleConfig {
  readonly max_failures_per_account: number
  readonly max_failures_per_address: number
  readonly window_seconds: number
}

/** What all generations of the plugin share: a change of the config forgives nobody. */
export interface ThrottleState {
  readonly accounts: Tally
  readonly addresses: Tally
}

export function createThrottleState(): ThrottleState {
  return { accounts: new Tally(), addresses: new Tally() }
}

/** Those that failed longest ago are forgotten beyond these: about 10 MB for each kind. */
const maxNames = 100_000
/** Far above what sums of fractions are off by. */
const toleranceMs = 0.01
/** Attempts on one account or from one address that may wait for others; each is an open request. */
const maxWaiting = 1_000

/**
 * Lets so many logins fail, for each account and for each address, and then one more each time a failure is forgiven:
 * within the window all of them are, evenly. Whether there is such an account makes no difference.
 *
 * Exact under any crowd: an attempt takes a place before its password is looked at, and gives it back unless it failed.
 * When all places are taken the next one waits until it is known how those ended, so a crowd that knows its passwords is
 * let through.
 */
export class LoginThrottle {
  readonly #gates: readonly [account: Gate | undefined, address: Gate | undefined]

  /** @param now milliseconds of a clock that never jumps */
  constructor(config: ThrottleConfig, state: ThrottleState, now: () => number) {
    const { max_failures_per_account, max_failures_per_address, window_seconds } = config
    const gate = (most: number, tally: Tally) =>
      most === 0 ? undefined : new Gate(most, window_seconds * 1_000, tally, now)
    this.#gates = [gate(max_failures_per_account, state.accounts), gate(max_failures_per_address, state.addresses)]
  }

  /**
   * @param network who counts as one client
   * @param login fails with `AUTH_CREDENTIALS_WRONG` when the attempt was a guess
   * @throws CodedError `AUTH_THROTTLED` with `retryAfterSeconds`: nothing was tried
   */
  async attempt<R>(email: string, network: string, login: () => Promise<R>): Promise<R> {
    // What can be no account's address tells nothing about accounts.
    const names = [normaliseEmail(email), network]
    const leave: ((hasFailed: boolean) => void)[] = []
    let hasFailed = false
    try {
      for (const [at, gate] of this.#gates.entries()) {
        const name = names[at]
        if (gate !== undefined && name !== undefined) leave.push(await gate.enter(name))
      }
      return await login()
    } catch (error) {
      hasFailed = isCoded(error, 'AUTH_CREDENTIALS_WRONG')
      throw error
    } finally {
      for (const each of leave) each(hasFailed)
    }
  }
}

interface Crowd {
  /** Attempts whose end is not known. */
  pending: number
  readonly waiting: { readonly resolve: () => void; readonly reject: (error: CodedError) => void }[]
}

class Tally {
  /** Who is at work, or waits. */
  readonly crowds = new Map<string, Crowd>()
  /**
   * When all failures of a name are forgiven, in milliseconds. Two maps that take turns: the one that is filled becomes
   * the old one, and the old one goes with all that did not fail again in the meantime.
   */
  #young = new Map<string, number>()
  #old = new Map<string, number>()
  #turnedAt = 0

  get size(): number {
    return this.#young.size + this.#old.size
  }

  forgivenAt(name: string): number {
    return this.#young.get(name) ?? this.#old.get(name) ?? 0
  }

  put(name: string, forgivenAt: number, now: number, windowMs: number): void {
    if (this.#young.size >= maxNames / 2 || now - this.#turnedAt > windowMs) {
      this.#old = this.#young
      this.#young = new Map()
      this.#turnedAt = now
    }
    this.#young.set(name, forgivenAt)
  }
}

/** The failures of one kind of name. */
class Gate {
  readonly #most: number
  readonly #windowMs: number
  /** One failure is forgiven in such a time. */
  readonly #intervalMs: number
  readonly #tally: Tally
  readonly #now: () => number

  constructor(most: number, windowMs: number, tally: Tally, now: () => number) {
    this.#most = most
    this.#windowMs = windowMs
    this.#intervalMs = windowMs / most
    this.#tally = tally
    this.#now = now
  }

  /** @returns gives the place back; to be called once */
  async enter(name: string): Promise<(hasFailed: boolean) => void> {
    const { crowds } = this.#tally
    let crowd = crowds.get(name)
    if (crowd === undefined) {
      crowd = { pending: 0, waiting: [] }
      crowds.set(name, crowd)
    }
    const left = this.#left(name)
    if (left > crowd.pending) {
      crowd.pending += 1
    } else {
      const { waiting } = crowd
      if (left <= 0 || waiting.length >= maxWaiting) {
        this.#tidy(name, crowd)
        throw this.#refusal(name)
      }
      await new Promise<void>((resolve, reject) => waiting.push({ resolve, reject }))
    }
    return (hasFailed) => this.#leave(name, crowd, hasFailed)
  }

  #leave(name: string, crowd: Crowd, hasFailed: boolean): void {
    const now = this.#now()
    crowd.pending -= 1
    if (hasFailed) {
      this.#tally.put(name, now + this.#owedMs(name) + this.#intervalMs, now, this.#windowMs)
    }
    const left = this.#left(name)
    while (crowd.waiting.length > 0 && (left > crowd.pending || left <= 0)) {
      const next = crowd.waiting.shift()
      if (left <= 0) {
        next?.reject(this.#refusal(name))
      } else {
        crowd.pending += 1
        next?.resolve()
      }
    }
    this.#tidy(name, crowd)
  }

  #tidy(name: string, crowd: Crowd): void {
    if (crowd.pending === 0 && crowd.waiting.length === 0) this.#tally.crowds.delete(name)
  }

  /** How many more may fail, those at work included. */
  #left(name: string): number {
    return Math.floor(this.#most - (this.#owedMs(name) - toleranceMs) / this.#intervalMs)
  }

  /** Never more than the window, also when that has become shorter. */
  #owedMs(name: string): number {
    return Math.min(this.#windowMs, Math.max(0, this.#tally.forgivenAt(name) - this.#now()))
  }

  #refusal(name: string): CodedError {
    const waitMs = this.#owedMs(name) - (this.#most - 1) * this.#intervalMs
    const retryAfterSeconds = Math.max(1, Math.ceil(waitMs / 1_000))
    return new CodedError('AUTH_THROTTLED', 'too many logins have failed; try again later', {
      detail: { retryAfterSeconds }
    })
  }
}
