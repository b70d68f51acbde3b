import { schemaOf } from '../../kernel/index.ts'
import type { Reply, Route } from '../http/types.ts'
import { type Accounts, isTooLong, type TokenPair } from './service.ts'
import type { LoginThrottle } from './throttle.ts'

const text = { type: 'string' } as const

const tokenPair = schemaOf<TokenPair>({
  type: 'object',
  required: ['access_token', 'refresh_token', 'expires_in'],
  properties: { access_token: text, refresh_token: text, expires_in: { type: 'integer' } }
})

const refreshBody = schemaOf<{ refresh_token: string }>({
  type: 'object',
  required: ['refresh_token'],
  properties: { refresh_token: text }
})

const errors = {
  AUTH_INPUT_INVALID: 400,
  AUTH_USER_EXISTS: 400,
  AUTH_CREDENTIALS_WRONG: 401,
  AUTH_TOKEN_INVALID: 401,
  AUTH_SESSION_GONE: 401,
  AUTH_TOKEN_MISMATCH: 401,
  AUTH_THROTTLED: 429,
  WORKERS_BUSY: 503
} as const

/** Tokens belong in no cache (RFC 6749 §5.1). */
const uncached = <T>(body: T): Reply<T> => ({ headers: { 'cache-control': 'no-store' }, body })

export function routes(accounts: Accounts, throttle: LoginThrottle): Route[] {
  const register: Route<object, unknown, { email: string; password: string; name: string }> = {
    method: 'POST',
    path: '/api/auth/register',
    operationId: 'register',
    summary: 'Make an account and its first session',
    body: schemaOf({
      type: 'object',
      required: ['email', 'password', 'name'],
      properties: { email: text, password: text, name: { type: 'string', maxLength: 128 } }
    }),
    replies: { 200: tokenPair },
    errors,
    handle: async ({ body }) => uncached(await accounts.register(body))
  }
  const login: Route<object, unknown, { email: string; password: string }> = {
    method: 'POST',
    path: '/api/auth/login',
    operationId: 'login',
    summary: 'Begin a session',
    body: schemaOf({
      type: 'object',
      required: ['email', 'password'],
      properties: { email: text, password: text }
    }),
    replies: { 200: tokenPair },
    errors,
    async handle({ body, network }) {
      const begin = () => accounts.login(body)
      // What can be nobody's password is no guess, costs no hash, and need not wait for those that do.
      if (isTooLong(body.password)) return uncached(await begin())
      return uncached(await throttle.attempt(body.email, network, begin))
    }
  }
  const refresh: Route<object, unknown, { refresh_token: string }> = {
    method: 'POST',
    path: '/api/auth/refresh',
    operationId: 'refreshTokens',
    summary: 'Take a new pair of tokens for a refresh token, which works once',
    body: refreshBody,
    replies: { 200: tokenPair },
    errors,
    handle: async ({ body }) => uncached(await accounts.refresh(body.refresh_token))
  }
  const logout: Route<object, unknown, { refresh_token: string }> = {
    method: 'POST',
    path: '/api/auth/logout',
    operationId: 'logout',
    summary: 'End a session; access tokens live on until they expire',
    body: refreshBody,
    replies: { 200: { type: 'object', required: ['message'], properties: { message: text } } },
    handle: async ({ body }) => {
      await accounts.logout(body.refresh_token)
      return { body: { message: 'Logged out successfully' } }
    }
  }
  return [register, login, refresh, logout] as Route[]
}
