import { CodedError, type JsonSchema, schemaOf } from '../../kernel/index.ts'
import type { Tool, ToolErrorDetail } from '../tools/types.ts'
import type { Job, Jobs } from './types.ts'

/** After such a time it is worth asking again what has become of a job. */
const pollAfterMs = 1_000
const maxLimit = 1_000

/** A job as callers see it; never what its tool was called with. */
export interface JobWire {
  readonly job_id: string
  readonly tool: string
  readonly status: Job['status']
  readonly request_id: string | null
  readonly attempts: number
  readonly max_attempts: number
  /** RFC 3339. */
  readonly run_at: string
  readonly last_error: Job['lastError']
  readonly result?: unknown
}

export const jobSchema: JsonSchema = {
  type: 'object',
  required: ['job_id', 'tool', 'status', 'request_id', 'attempts', 'max_attempts', 'run_at', 'last_error'],
  properties: {
    job_id: { type: 'string' },
    tool: { type: 'string' },
    status: { enum: ['queued', 'running', 'succeeded', 'failed', 'dead_lettered', 'cancelled'] },
    request_id: { type: ['string', 'null'] },
    attempts: { type: 'integer' },
    max_attempts: { type: 'integer' },
    run_at: { type: 'string', format: 'date-time' },
    last_error: { type: ['object', 'null'] },
    result: { description: 'Output of the tool, once it has succeeded' }
  }
}

export function toWire(job: Job): JobWire {
  return {
    job_id: job.id,
    tool: job.tool,
    status: job.status,
    request_id: job.requestId,
    attempts: job.attempts,
    max_attempts: job.maxAttempts,
    run_at: new Date(job.runAtMs).toISOString(),
    last_error: job.lastError,
    ...('result' in job ? { result: job.result } : {})
  }
}

const jobInput = schemaOf<{ job_id: string }>({
  type: 'object',
  required: ['job_id'],
  additionalProperties: false,
  properties: { job_id: { type: 'string' } }
})

/** @param anonymous callers without a credential may ask for jobs that are shown by their id alone */
export function jobTool(jobs: Jobs, anonymous: boolean): Tool<{ job_id: string }, JobWire> {
  return {
    name: 'carmy_job',
    system: true,
    description: 'Tells what has become of a job.',
    input: jobInput,
    output: schemaOf<JobWire>(jobSchema),
    effect: 'read',
    idempotent: false,
    parallelSafe: true,
    anonymous,
    async run({ job_id }, { principal }) {
      const job = await jobs.get(job_id)
      // Somebody else's is not there: to say more would tell that it is.
      if (job === undefined || !(job.byIdAlone || job.principal === (principal ?? null))) {
        const detail: ToolErrorDetail = { category: 'not_found', recoverable: true }
        throw new CodedError('JOB_NOT_FOUND', 'there is no such job, or it is not yours', { detail: { ...detail } })
      }
      return toWire(job)
    },
    next: ({ status }) =>
      status === 'queued' || status === 'running'
        ? [{ tool: 'carmy_job', reason: 'The job has not ended yet: ask again.', after_ms: pollAfterMs }]
        : []
  }
}

const limitInput = schemaOf<{ limit?: number }>({
  type: 'object',
  additionalProperties: false,
  properties: { limit: { type: 'integer', description: `Brought into 1 to ${maxLimit}; 20 when left out` } }
})

const jobList = schemaOf<{ jobs: readonly JobWire[] }>({
  type: 'object',
  required: ['jobs'],
  properties: { jobs: { type: 'array', items: jobSchema } }
})

/** @param operators principals that may use it */
export function deadLettersTool(
  jobs: Jobs,
  operators: readonly string[]
): Tool<{ limit?: number }, { jobs: readonly JobWire[] }> {
  return {
    name: 'carmy_dead_letters',
    system: true,
    description: 'Lists the jobs that an operator has to look at, newest first.',
    input: limitInput,
    output: jobList,
    effect: 'read',
    idempotent: false,
    parallelSafe: true,
    async run({ limit = 20 }, { principal }) {
      if (principal === undefined || !operators.includes(principal)) {
        const detail: ToolErrorDetail = { category: 'permission' }
        throw new CodedError('FORBIDDEN', 'this tool is for operators', { detail: { ...detail } })
      }
      const found = await jobs.list({ status: 'dead_lettered', limit: clamp(limit) })
      return { jobs: found.map(toWire) }
    }
  }
}

export function clamp(limit: number): number {
  return Math.min(Math.max(limit, 1), maxLimit)
}
