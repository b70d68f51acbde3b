import { CodedError, type Contribution, isCoded, type Lease, type Logger, schemaOf } from '../../kernel/index.ts'
import type { HealthCheck, InfoPart, Route } from './types.ts'
import { version } from './version.ts'

/** How long one health check may take, in milliseconds. */
const checkLimitMs = 5_000

export interface OwnRoutesOptions {
  readonly checks: () => readonly Contribution<HealthCheck>[]
  readonly parts: () => readonly Contribution<InfoPart>[]
  readonly server: () => { readonly host: string; readonly port: number; readonly log_level: string }
  readonly log: Logger
  /** Unix time in milliseconds. */
  readonly now: () => number
}

interface CheckResult {
  readonly status: 'healthy' | 'unhealthy'
  readonly error?: string
}

const names = { type: 'array', items: { type: 'string' } }

/** What http answers itself where it is a part of another program, which has a health of its own. */
export function embeddedRoutes(): readonly Route[] {
  return [
    {
      method: 'GET',
      path: '/health',
      operationId: 'getHealth',
      summary: 'Tell that the server answers',
      replies: { 200: { type: 'object', properties: { ok: { const: true } } } },
      handle: () => ({ headers: { 'cache-control': 'no-store' }, body: { ok: true } })
    }
  ]
}

/** What http answers itself, outside any guard. */
export function ownRoutes(options: OwnRoutesOptions): readonly Route[] {
  const { checks, log, now, parts, server } = options
  // Asked by anybody, and not for free: all who ask at once share one answer.
  let running: Promise<unknown> | undefined

  const detailed = async () => {
    const startedAtMs = now()
    const found = await Promise.all(checks().map(async (check) => [check.item.name, await run(check, log)] as const))
    const finishedAtMs = now()
    return {
      status: found.every(([, { status }]) => status === 'healthy') ? 'healthy' : 'degraded',
      version,
      checks: Object.fromEntries(found),
      providers: valuesOf(parts(), 'providers'),
      agents: valuesOf(parts(), 'agents'),
      latency_ms: Math.round(finishedAtMs - startedAtMs),
      timestamp: new Date(finishedAtMs).toISOString()
    }
  }

  return [
    {
      method: 'GET',
      path: '/health',
      operationId: 'getHealth',
      summary: 'Tell that the server answers',
      replies: { 200: { type: 'string', const: 'OK' } },
      handle: () => ({ headers: { 'content-type': 'text/plain' }, text: 'OK' })
    },
    {
      method: 'GET',
      path: '/health/detailed',
      operationId: 'getDetailedHealth',
      summary: 'Check every part of the server',
      replies: {
        200: schemaOf({
          type: 'object',
          required: ['status', 'version', 'checks', 'providers', 'agents', 'latency_ms', 'timestamp'],
          properties: {
            status: { enum: ['healthy', 'degraded'] },
            version: { type: 'string' },
            checks: {
              type: 'object',
              additionalProperties: {
                type: 'object',
                required: ['status'],
                properties: { status: { enum: ['healthy', 'unhealthy'] }, error: { type: 'string' } }
              }
            },
            providers: names,
            agents: names,
            latency_ms: { type: 'integer' },
            timestamp: { type: 'string', format: 'date-time' }
          }
        })
      },
      async handle() {
        running ??= detailed().finally(() => {
          running = undefined
        })
        return { headers: { 'cache-control': 'no-store' }, body: await running }
      }
    },
    {
      method: 'GET',
      path: '/config/info',
      operationId: 'getConfigInfo',
      summary: 'Name what is configured',
      replies: {
        200: schemaOf({
          type: 'object',
          required: ['server', 'providers', 'models', 'agents', 'tools', 'workflows', 'ui_enabled'],
          properties: {
            server: {
              type: 'object',
              required: ['host', 'port', 'log_level'],
              properties: { host: { type: 'string' }, port: { type: 'integer' }, log_level: { type: 'string' } }
            },
            providers: names,
            models: names,
            agents: names,
            tools: names,
            workflows: names,
            ui_enabled: { type: 'boolean' }
          }
        })
      },
      handle: () => ({
        headers: { 'cache-control': 'no-store' },
        body: {
          server: server(),
          providers: valuesOf(parts(), 'providers'),
          models: valuesOf(parts(), 'models'),
          agents: valuesOf(parts(), 'agents'),
          tools: valuesOf(parts(), 'tools'),
          workflows: valuesOf(parts(), 'workflows'),
          ui_enabled: false
        }
      })
    }
  ]
}

/** Every name once, in the order in which it was contributed. */
function valuesOf(parts: readonly Contribution<InfoPart>[], name: InfoPart['name']): readonly string[] {
  return [...new Set(parts.flatMap(({ item }) => (item.name === name ? item.values() : [])))]
}

/** Never rejects. What went wrong is logged whole; the answer shows no more than a code. */
async function run(check: Contribution<HealthCheck>, log: Logger): Promise<CheckResult> {
  const lease: Lease = check.lease()
  let timer: NodeJS.Timeout | undefined
  try {
    await Promise.race([
      check.item.check(),
      new Promise((_resolve, reject) => {
        timer = setTimeout(
          () => reject(new CodedError('HTTP_CHECK_TIMEOUT', `the check took longer than ${checkLimitMs} ms`)),
          checkLimitMs
        )
      })
    ])
    return { status: 'healthy' }
  } catch (error) {
    log.error(`the health check '${check.item.name}' failed`, { entry: check.entry, error })
    return { status: 'unhealthy', error: isCoded(error) ? error.code : 'FAILED' }
  } finally {
    clearTimeout(timer)
    lease.release()
  }
}
