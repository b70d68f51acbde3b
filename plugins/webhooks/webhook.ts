import { CodedError } from '../../kernel/index.ts'
import type { Jobs } from '../jobs/types.ts'
import type { Tools } from '../tools/types.ts'

/** One webhook, as the program says it. */
export interface Webhook {
  readonly path: string
  readonly tool: string
  readonly mode: 'inline' | 'enqueue'
  readonly event_id?: string
  readonly check: 'hmac-sha256' | 'shared-secret'
  readonly signature_header: string
  readonly secret?: string
  readonly previous_secret?: string
  readonly timestamp_header?: string
  readonly tolerance_seconds: number
  readonly unverified: boolean
}

/** What webhooks work with, as it is now. */
export interface Parts {
  readonly tools: Tools
  readonly jobs: () => Jobs | undefined
}

const taken: readonly string[] = ['/.well-known/agent', '/agent/tools', '/agent/execute', '/health', '/ready']

/** @throws CodedError `INVALID_WEBHOOK` for one that can never work */
export function assertSound(webhooks: readonly Webhook[]): void {
  const paths = new Set(taken)
  for (const { path, event_id, secret = '', unverified, timestamp_header, check } of webhooks) {
    if (!/^\/[^{}?#\s]+$/.test(path)) throw invalid(path, "the path has to begin with '/', and is taken as it is")
    if (paths.has(path)) throw invalid(path, 'the path is taken already')
    paths.add(path)
    if (secret === '' && !unverified) {
      throw invalid(path, 'it has no secret (or an empty one); say unverified = true if anybody may post there')
    }
    if (secret !== '' && unverified) throw invalid(path, 'it is unverified, and has a secret all the same')
    if (timestamp_header !== undefined && check !== 'hmac-sha256') {
      throw invalid(path, 'a timestamp is worth nothing where it is not signed: check has to be hmac-sha256')
    }
    if (event_id !== undefined && !/^(?:\/(?:[^~/]|~[01])*)*$/.test(event_id)) {
      throw invalid(path, `event_id '${event_id}' is no JSON pointer, such as /id or /data/id`)
    }
  }
}

/** @throws CodedError `INVALID_WEBHOOK` for one whose tool or queue is not there */
export function assertConnected(webhooks: readonly Webhook[], { tools, jobs }: Parts): void {
  for (const { path, tool, mode } of webhooks) {
    if (tools.get(tool) === undefined) throw invalid(path, `no plugin in the program has the tool '${tool}'`)
    if (mode === 'enqueue' && jobs() === undefined) {
      throw invalid(path, "mode = 'enqueue' needs an entry with plugin = 'jobs'")
    }
  }
}

function invalid(path: string, message: string): CodedError {
  return new CodedError('INVALID_WEBHOOK', `webhook '${path}': ${message}`)
}

/**
 * What names the event: a text that is not empty, or a number as text. `undefined` where the payload has none, so that
 * the delivery is not told from others.
 * @param pointer RFC 6901
 */
export function eventIdOf(payload: unknown, pointer: string | undefined): string | undefined {
  if (pointer === undefined) return undefined
  let found = payload
  for (const part of pointer.split('/').slice(1)) {
    const name = part.replaceAll('~1', '/').replaceAll('~0', '~')
    if (typeof found !== 'object' || found === null || !Object.hasOwn(found, name)) return undefined
    if (Array.isArray(found) && !/^\d+$/.test(name)) return undefined
    found = (found as Readonly<Record<string, unknown>>)[name]
  }
  if (typeof found === 'number') return String(found)
  return typeof found === 'string' && found !== '' ? found : undefined
}
