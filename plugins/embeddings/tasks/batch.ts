import type { TaskResult } from '../../workers/types.ts'

/** What a task that embeds is given. */
export interface EmbedBatch {
  /** At least one. */
  readonly texts: readonly string[]
}

export function unavailable(what: string, error: unknown): TaskResult<never> {
  const reason = error instanceof Error ? error.message : String(error)
  return {
    ok: false,
    code: 'EMBEDDINGS_UNAVAILABLE',
    message: `${what}: ${reason.slice(0, 200)}`,
    detail: { reason: reason.slice(0, 500) }
  }
}
