import { setTimeout as wait } from 'node:timers/promises'

/** Who asks: an access token, or an account, which gets itself a new one when that has ended. */
export type Credential = { readonly token: string } | { readonly email: string; readonly password: string }

/** Told when an answer is waited for again. */
export type OnRetry = (reason: string, seconds: number) => void

const maxTries = 8
const maxWaitSeconds = 60

/** A running server, asked over HTTP. */
export class Server {
  readonly #url: string
  readonly #credential: Credential
  #token: Promise<string> | undefined

  /** @param url such as `http://127.0.0.1:3000` */
  constructor(url: string, credential: Credential) {
    if (!URL.canParse(url)) throw new TypeError(`'${url}' is no URL; such as http://127.0.0.1:3000`)
    this.#url = url
    this.#credential = credential
  }

  /** Names the server and the account, the same in each run. */
  async place(): Promise<string> {
    const [, payload = ''] = (await this.#currentToken()).split('.')
    let account: unknown
    try {
      account = (JSON.parse(Buffer.from(payload, 'base64url').toString()) as { readonly sub?: unknown }).sub
    } catch {
      // No token of ours; the server will say so.
    }
    return `${new URL(this.#url).origin} ${typeof account === 'string' ? account : ''}`
  }

  /**
   * What the server refuses for now (429, 502, 503, 504, no answer) is asked again, when it says or later and later.
   * @returns the parsed answer
   * @throws TypeError with what the server said
   */
  async ask(method: string, path: string, body?: unknown, onRetry?: OnRetry): Promise<unknown> {
    let isRenewed = false
    for (let tries = 1; ; tries += 1) {
      const token = this.#currentToken(onRetry)
      const answer = await this.#send(method, path, body, await token)
      if ('value' in answer) return answer.value
      if (answer.status === 401 && 'email' in this.#credential && !isRenewed) {
        isRenewed = true
        this.#forget(token)
        continue
      }
      if (!answer.mayPass || tries === maxTries) throw new TypeError(answer.failure)
      await pause(answer, tries, onRetry)
    }
  }

  /** All who ask meanwhile wait for the same one. */
  #currentToken(onRetry?: OnRetry): Promise<string> {
    if (this.#token !== undefined) return this.#token
    const credential = this.#credential
    const token = 'token' in credential ? Promise.resolve(credential.token) : this.#logIn(credential, onRetry)
    this.#token = token
    // Whoever asks next may have more luck.
    token.catch(() => this.#forget(token))
    return token
  }

  /** Unless somebody has got a newer one already. */
  #forget(token: Promise<string>): void {
    if (this.#token === token) this.#token = undefined
  }

  async #logIn(account: { readonly email: string; readonly password: string }, onRetry?: OnRetry): Promise<string> {
    const { email, password } = account
    for (let tries = 1; ; tries += 1) {
      const answer = await this.#send('POST', '/api/auth/login', { email, password })
      if ('value' in answer) return (answer.value as { readonly access_token: string }).access_token
      const failure = `logging in as ${email}: ${answer.failure}`
      if (!answer.mayPass || tries === maxTries) throw new TypeError(failure)
      await pause({ ...answer, failure }, tries, onRetry)
    }
  }

  async #send(method: string, path: string, body: unknown, token?: string): Promise<Answer> {
    try {
      const response = await fetch(new URL(path, this.#url), {
        method,
        headers: {
          ...(token === undefined ? {} : { authorization: `Bearer ${token}` }),
          ...(body === undefined ? {} : { 'content-type': 'application/json' })
        },
        ...(body === undefined ? {} : { body: JSON.stringify(body) })
      })
      const text = await response.text()
      if (response.ok) return { value: text === '' ? undefined : (JSON.parse(text) as unknown) }
      const { status } = response
      const asked = response.headers.get('retry-after')
      return {
        status,
        failure: `${status}: ${reasonOf(text)}`,
        mayPass: [429, 502, 503, 504].includes(status),
        ...(asked !== null && /^\d+$/.test(asked) ? { retryAfterSeconds: Number(asked) } : {})
      }
    } catch (error) {
      return { status: 0, failure: `no answer from ${this.#url}: ${reasonOfFailure(error)}`, mayPass: true }
    }
  }
}

interface Refusal {
  readonly status: number
  readonly failure: string
  readonly mayPass: boolean
  readonly retryAfterSeconds?: number
}

type Answer = { readonly value: unknown } | Refusal

async function pause({ failure, retryAfterSeconds }: Refusal, tries: number, onRetry?: OnRetry): Promise<void> {
  const seconds = Math.min(maxWaitSeconds, retryAfterSeconds ?? 2 ** (tries - 1) / 2)
  onRetry?.(failure, seconds)
  await wait(seconds * 1_000)
}

function reasonOf(text: string): string {
  try {
    const { error } = JSON.parse(text) as { readonly error?: unknown }
    if (typeof error === 'string') return error
  } catch {
    // Not one of ours: shown as it is.
  }
  return text.slice(0, 200)
}

function reasonOfFailure(error: unknown): string {
  const { cause, message } = error as Error
  return cause instanceof Error ? cause.message || String((cause as NodeJS.ErrnoException).code) : message
}
