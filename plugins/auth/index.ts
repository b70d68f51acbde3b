import { randomBytes, randomUUID } from 'node:crypto'
import { CodedError, type Context, type Contribution, definePlugin, schemaOf } from '../../kernel/index.ts'
import type {} from '../http/types.ts'
import type {} from '../store/types.ts'
import type {} from '../workers/types.ts'
import { guards } from './guards.ts'
import { routes } from './routes.ts'
import { createAuth, type Options } from './service.ts'
import { createThrottleState, LoginThrottle, type ThrottleConfig } from './throttle.ts'
import { createTokens } from './tokens.ts'
import type { Credential, TenantDirectory } from './types.ts'
import { workerTasks } from './worker-tasks.ts'

interface Config extends Options {
  readonly jwt_secret: string
  readonly admin_secret: string
  readonly login_throttle: ThrottleConfig
}

const config = schemaOf<Config>({
  type: 'object',
  additionalProperties: false,
  properties: {
    jwt_secret: {
      type: 'string',
      writeOnly: true,
      default: '',
      description: 'Signs tokens, at least 32 characters; when blank, one is made and kept in the data folder'
    },
    admin_secret: {
      type: 'string',
      writeOnly: true,
      default: '',
      description: 'Opens the admin routes; when blank, one is made and kept in the data folder'
    },
    access_ttl_seconds: { type: 'integer', minimum: 1, maximum: 86_400, default: 900 },
    refresh_ttl_seconds: { type: 'integer', minimum: 1, maximum: 31_536_000, default: 604_800 },
    on_reuse: {
      enum: ['refuse', 'revoke_family'],
      default: 'refuse',
      description: 'A refresh token that comes again is refused; revoke_family ends the session that grew out of it too'
    },
    login_throttle: {
      type: 'object',
      additionalProperties: false,
      default: {},
      description: 'Logins that may fail before the next is answered 429; 0 is no limit',
      properties: {
        max_failures_per_account: { type: 'integer', minimum: 0, default: 10 },
        max_failures_per_address: {
          type: 'integer',
          minimum: 0,
          default: 100,
          description: 'From one IPv4 address, or one IPv6 /64'
        },
        window_seconds: {
          type: 'integer',
          minimum: 1,
          maximum: 86_400,
          default: 900,
          description: 'In which all failures are forgiven, evenly one after the other'
        }
      }
    },
    blocked_passwords: {
      type: 'array',
      items: { type: 'string' },
      default: [],
      description: 'Passwords that nobody may choose, in any case'
    },
    block_common_passwords: {
      type: 'boolean',
      default: false,
      description: 'Refuses the passwords that are most used, too'
    }
  }
})

const minSecretLength = 32
const prunePeriodMs = 3_600_000

export default definePlugin({
  name: 'auth',
  essential: true,
  inject: ['store', 'workers'],
  provides: ['auth'],
  config,
  async apply(ctx, config) {
    const { store, workers } = ctx.services
    const length = Array.from(config.jwt_secret).length
    if (config.jwt_secret.trim() !== '' && length < minSecretLength) {
      throw new CodedError(
        'AUTH_SECRET_TOO_SHORT',
        `jwt_secret (JWT_SECRET) has ${length} characters and needs at least ${minSecretLength}; ` +
          'leave it out, and a strong one is made and kept in the data folder'
      )
    }
    const jwtSecret = await secretOf(ctx, config.jwt_secret, 'JWT_SECRET')
    const adminSecret = await secretOf(ctx, config.admin_secret, 'ADMIN_API_KEY')
    const tokens = await createTokens(jwtSecret, Date.now)
    const auth = createAuth(store, workers, tokens, config, { now: Date.now, randomUUID })

    ctx.provide('auth', { verifyAccess: (token) => auth.verifyAccess(token) })
    let credentials: readonly Contribution<Credential>[] = []
    let tenants: readonly Contribution<TenantDirectory>[] = []
    ctx.collect('auth.credentials', { update: (now) => (credentials = now) })
    ctx.collect('auth.tenants', { update: (now) => (tenants = now) })
    const collected = { credentials: () => credentials, tenants: () => tenants }
    ctx.contribute('http.guards', ...guards(auth, adminSecret, collected))
    // The number stands for the shape of the state: code that keeps another one starts with its own.
    const failures = await ctx.resource('login failures', 1, createThrottleState, () => {})
    const throttle = new LoginThrottle(config.login_throttle, failures, () => performance.now())
    ctx.contribute('http.routes', ...routes(auth, throttle))
    ctx.contribute('workers.tasks', workerTasks.hash, workerTasks.verify)
    ctx.setInterval(() => auth.prune(), prunePeriodMs)
  }
})

/** The configured secret, or the one in the data folder, made on the first start. */
async function secretOf(ctx: Context<readonly ['store']>, configured: string, name: string): Promise<string> {
  if (configured.trim() !== '') return configured
  const { value, path, created } = await ctx.services.store.secret(name, () => randomBytes(32).toString('base64url'))
  if (name === 'ADMIN_API_KEY') ctx.contribute('notices', { label: 'admin secret', text: `kept in ${path}` })
  if (created) ctx.log.info(`made a secret in place of ${name}`, { path })
  return value
}
