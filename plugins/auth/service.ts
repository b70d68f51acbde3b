import { createHash } from 'node:crypto'
import { CodedError } from '../../kernel/index.ts'
import type { Key, Store, Transaction } from '../store/types.ts'
import type { Workers } from '../workers/types.ts'
import { nobody } from './parameters.ts'
import { createBlocklist } from './passwords.ts'
import type { Attempt, Verdict } from './tasks/verify-password.ts'
import { type AnyClaims, leewaySeconds, type Tokens } from './tokens.ts'
import type { Auth, Claims } from './types.ts'
import { workerTasks } from './worker-tasks.ts'

export interface Options {
  readonly access_ttl_seconds: number
  readonly refresh_ttl_seconds: number
  /** What happens when a refresh token comes a second time: nothing, or the session that grew out of it ends. */
  readonly on_reuse: 'refuse' | 'revoke_family'
  /** Passwords that nobody may choose, in any case. */
  readonly blocked_passwords: readonly string[]
  /** Nor those that everybody chooses. */
  readonly block_common_passwords: boolean
}

/** What registration, login and refresh answer. */
export interface TokenPair {
  readonly access_token: string
  readonly refresh_token: string
  /** Seconds the access token lives. */
  readonly expires_in: number
}

/**
 * Accounts and sessions. Codes: `AUTH_INPUT_INVALID`, `AUTH_USER_EXISTS`, `AUTH_CREDENTIALS_WRONG`,
 * `AUTH_TOKEN_INVALID`, `AUTH_SESSION_GONE`, `AUTH_TOKEN_MISMATCH`; from the workers `WORKERS_BUSY`. What resolves is
 * on disk.
 */
export interface Accounts extends Auth {
  register(account: { readonly email: string; readonly password: string; readonly name: string }): Promise<TokenPair>
  login(credentials: { readonly email: string; readonly password: string }): Promise<TokenPair>
  /** Each refresh token works once, however many try at the same time. */
  refresh(token: string): Promise<TokenPair>
  /** Ends the session, if there is one. */
  logout(token: string): Promise<void>
  /** Removes what has expired. */
  prune(): Promise<void>
}

interface User {
  readonly id: string
  readonly email: string
  readonly name: string
  /** PHC string of the password. */
  readonly phc: string
  /** Unix seconds. */
  readonly created_at: number
}

interface Session {
  readonly user_id: string
  readonly created_at: number
}

/** By user id. */
const users = 'auth.users'
/** Normalised address → user id. */
const emails = 'auth.emails'
/** By {@link sessionKey}, so that what expires first comes first. */
const sessions = 'auth.sessions'
/** {@link sessionKey} of a used refresh token → key of the one that was given for it. Only with `revoke_family`. */
const successors = 'auth.successors'

const durable = { durable: true } as const
const maxCachedTokens = 10_000
const pruneBatch = 500

/** A session's place: when its refresh token expires (Unix seconds), and the SHA-256 of that token. */
function sessionKey(exp: number, token: string): Key {
  return [exp, createHash('sha256').update(token).digest('hex')]
}

/**
 * @param environment.now Unix time in milliseconds
 */
export function createAuth(
  store: Store,
  workers: Workers,
  tokens: Tokens,
  options: Options,
  environment: { readonly now: () => number; readonly randomUUID: () => string }
): Accounts {
  /** Access tokens whose signature was right, oldest first. */
  const seen = new Map<string, Claims>()
  const isBlocked = createBlocklist(options)
  const nowSeconds = (): number => Math.floor(environment.now() / 1000)

  async function verifyUnseen(token: string): Promise<Claims> {
    const claims = await tokens.verify(token)
    if (claims === undefined || claims.jti !== undefined) throw unauthorized()
    if (seen.size >= maxCachedTokens) {
      const [oldest] = seen.keys()
      if (oldest !== undefined) seen.delete(oldest)
    }
    seen.set(token, claims)
    return claims
  }

  /** A fresh pair, and how to keep its session. */
  async function issue(
    user: User
  ): Promise<{ readonly pair: TokenPair; readonly key: Key; readonly keep: (tx: Transaction) => void }> {
    const iat = nowSeconds()
    const exp = iat + options.refresh_ttl_seconds
    const base = { sub: user.id, email: user.email }
    const [access, refresh] = await Promise.all([
      tokens.sign({ ...base, exp: iat + options.access_ttl_seconds, iat }),
      tokens.sign({ ...base, exp, iat, jti: environment.randomUUID() })
    ])
    const key = sessionKey(exp, refresh)
    const session: Session = { user_id: user.id, created_at: iat }
    return {
      pair: { access_token: access, refresh_token: refresh, expires_in: options.access_ttl_seconds },
      key,
      keep: (tx) => tx.put(sessions, key, session, 0)
    }
  }

  async function findUser(email: string | undefined): Promise<User | undefined> {
    if (email === undefined) return undefined
    const id = (await store.get<string>(emails, [email]))?.value
    return id === undefined ? undefined : (await store.get<User>(users, [id]))?.value
  }

  async function verifyRefresh(token: string): Promise<AnyClaims | undefined> {
    const claims = await tokens.verify(token)
    return claims?.jti === undefined ? undefined : claims
  }

  /** Ends the session at the end of the line of refreshes that began with a token that was used before. */
  async function revokeFamily(used: Key): Promise<void> {
    await store.atomically(async (tx) => {
      let last = used
      for (let next = await tx.get<Key>(successors, last); next; next = await tx.get<Key>(successors, last)) {
        last = next.value
      }
      tx.remove(sessions, last)
    }, durable)
  }

  return {
    verifyAccess(token) {
      const claims = seen.get(token)
      if (claims === undefined) return verifyUnseen(token)
      if (environment.now() / 1000 < claims.exp + leewaySeconds) return claims
      seen.delete(token)
      throw unauthorized()
    },

    async register({ email: given, password: typed, name }) {
      if (given.trim() === '' || isShort(typed)) {
        throw new CodedError('AUTH_INPUT_INVALID', 'Email required and password must be at least 8 characters')
      }
      const email = normaliseEmail(given)
      if (email === undefined) throw new CodedError('AUTH_INPUT_INVALID', 'Email address is not valid')
      const password = normalisePassword(typed)
      if (password === undefined) {
        throw new CodedError('AUTH_INPUT_INVALID', `Password must be at most ${maxPasswordBytes} bytes`)
      }
      if (isBlocked(password)) throw new CodedError('AUTH_INPUT_INVALID', 'Password is too common, choose another one')
      if ((await store.get(emails, [email])) !== undefined) throw userExists()
      const phc = await workers.run<string>(workerTasks.hash, password)
      const user: User = { id: environment.randomUUID(), email, name, phc, created_at: nowSeconds() }
      const { pair, keep } = await issue(user)
      await store.atomically(async (tx) => {
        if ((await tx.get(emails, [email])) !== undefined) throw userExists()
        tx.put(emails, [email], user.id, 0)
        tx.put(users, [user.id], user, 0)
        keep(tx)
      }, durable)
      return pair
    },

    async login({ email, password: typed }) {
      if (email.trim() === '' || typed === '') {
        throw new CodedError('AUTH_INPUT_INVALID', 'Email and password are required')
      }
      const password = normalisePassword(typed)
      if (password === undefined) throw wrongCredentials()
      const user = await findUser(normaliseEmail(email))
      // Who is not known costs the same hash, so that the time does not tell.
      const attempt: Attempt = { password, phc: user?.phc ?? nobody }
      const verdict = await workers.run<Verdict>(workerTasks.verify, attempt)
      if (user === undefined || !verdict.matches) throw wrongCredentials()
      const { pair, keep } = await issue(user)
      await store.atomically(async (tx) => {
        const stored = await tx.get<User>(users, [user.id])
        // Gone, or another password since: what was verified is not the account's any more.
        if (stored?.value.phc !== user.phc) throw wrongCredentials()
        if (verdict.phc !== undefined) tx.put(users, [user.id], { ...stored.value, phc: verdict.phc })
        keep(tx)
      }, durable)
      return pair
    },

    async refresh(token) {
      const claims = await verifyRefresh(token)
      if (claims === undefined) throw new CodedError('AUTH_TOKEN_INVALID', 'Invalid token')
      const used = sessionKey(claims.exp, token)
      const session = (await store.get<Session>(sessions, used))?.value
      const user = session && (await store.get<User>(users, [session.user_id]))?.value
      if (session !== undefined && session.user_id !== claims.sub) {
        throw new CodedError('AUTH_TOKEN_MISMATCH', 'Token mismatch')
      }
      if (user !== undefined) {
        const { pair, key, keep } = await issue(user)
        const won = await store.atomically(async (tx) => {
          if ((await tx.get(sessions, used)) === undefined) return false
          tx.remove(sessions, used)
          if (options.on_reuse === 'revoke_family') tx.put(successors, used, key)
          keep(tx)
          return true
        }, durable)
        if (won) return pair
      }
      if (options.on_reuse === 'revoke_family') await revokeFamily(used)
      throw new CodedError('AUTH_SESSION_GONE', 'Refresh token has been revoked or expired')
    },

    async logout(token) {
      const claims = await verifyRefresh(token)
      if (claims === undefined) return
      await store.atomically((tx) => tx.remove(sessions, sessionKey(claims.exp, token)), durable)
    },

    async prune() {
      const expired = nowSeconds() - leewaySeconds
      const pruneSome = (collection: string): Promise<number> =>
        store.atomically(async (tx) => {
          let removed = 0
          for await (const [key] of tx.range(collection, [], { limit: pruneBatch })) {
            if ((key[0] as number) > expired) break
            tx.remove(collection, key)
            removed++
          }
          return removed
        })
      for (const collection of [sessions, successors]) {
        while ((await pruneSome(collection)) === pruneBatch);
      }
    }
  }
}

function unauthorized(): CodedError {
  return new CodedError('AUTH_TOKEN_INVALID', 'Unauthorized')
}

function userExists(): CodedError {
  return new CodedError('AUTH_USER_EXISTS', 'User already exists')
}

function wrongCredentials(): CodedError {
  return new CodedError('AUTH_CREDENTIALS_WRONG', 'Invalid credentials')
}

/** RFC 5321 §4.5.3.1.3 as corrected by erratum 1690. */
const maxEmailBytes = 254
/** One `@`; before it nothing that would need quotes; after it labels of letters, digits and hyphens between dots. */
const address = /^[^\s\p{C}@<>()[\],;:\\"]+@[\p{L}\p{M}\p{N}-]+(?:\.[\p{L}\p{M}\p{N}-]+)*$/u

/** @returns the one form in which an address is known, or `undefined` when it is none */
export function normaliseEmail(email: string): string | undefined {
  if (email.length > 2 * maxEmailBytes) return undefined
  const normal = email.trim().normalize('NFKC').toLowerCase()
  return Buffer.byteLength(normal) <= maxEmailBytes && address.test(normal) ? normal : undefined
}

const minPasswordLength = 8
const maxPasswordBytes = 1_024

/** Counts code points of the normal form: what a person would call characters, near enough. */
function isShort(password: string): boolean {
  return password.length <= maxPasswordBytes && Array.from(password.normalize('NFKC')).length < minPasswordLength
}

/** Whether it is refused unhashed: nobody can have chosen it. */
export function isTooLong(password: string): boolean {
  return Buffer.byteLength(password) > maxPasswordBytes
}

/** @returns the form that is hashed: the same however the device composes accents. `undefined` when it is too long */
function normalisePassword(password: string): string | undefined {
  return isTooLong(password) ? undefined : password.normalize('NFKC')
}
