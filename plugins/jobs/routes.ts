import { CodedError, schemaOf } from '../../kernel/index.ts'
import type { ErrorMap, Request, Route } from '../http/types.ts'
import { clamp, jobSchema, toWire } from './tools.ts'
import type { Actor, Job, Jobs, JobStatus } from './types.ts'

interface Query {
  readonly limit: number
  readonly status?: JobStatus
}

type Params = { readonly job: string }

const statuses: readonly JobStatus[] = ['queued', 'running', 'succeeded', 'failed', 'dead_lettered', 'cancelled']

const errors: ErrorMap = { JOBS_UNKNOWN: 404, JOBS_STARTED: 409, JOBS_NOT_ENDED: 409 }

/** What operators see and do. */
export function routes(jobs: Jobs): readonly Route[] {
  const list: Route<object, Query> = {
    method: 'GET',
    path: '/api/admin/carmy/jobs',
    operationId: 'listJobs',
    summary: 'List jobs, newest first; dead letters with status=dead_lettered',
    guard: 'admin',
    query: schemaOf<Query>({
      type: 'object',
      properties: {
        limit: { type: 'integer', default: 20, description: 'Brought into 1 to 1000' },
        status: { enum: statuses }
      }
    }),
    replies: {
      200: { type: 'object', required: ['jobs'], properties: { jobs: { type: 'array', items: jobSchema } } }
    },
    handle: async ({ query: { limit, status } }) => {
      const found = await jobs.list({ limit: clamp(limit), status })
      return { body: { jobs: found.map(toAdminWire) } }
    }
  }

  const get: Route<Params> = {
    method: 'GET',
    path: '/api/admin/carmy/jobs/{job}',
    operationId: 'getJob',
    summary: 'Read a job',
    guard: 'admin',
    replies: { 200: jobSchema },
    errors,
    handle: async ({ params }) => {
      const job = await jobs.get(params.job)
      if (job === undefined) throw new CodedError('JOBS_UNKNOWN', 'Job not found')
      return { body: toAdminWire(job) }
    }
  }

  const change = (verb: 'cancel' | 'retry' | 'discard', summary: string): Route<Params> => ({
    method: 'POST',
    path: `/api/admin/carmy/jobs/{job}/${verb}`,
    operationId: `${verb}Job`,
    summary,
    guard: 'admin',
    replies: { 200: jobSchema },
    errors,
    handle: async (request) => ({ body: toAdminWire(await jobs[verb](request.params.job, actorOf(request))) })
  })

  return [
    list,
    get,
    change('cancel', 'Cancel a job that is queued'),
    change('retry', 'Let a job that failed or was dead-lettered run again, as an attempt of its own'),
    change('discard', 'Count a dead letter as failed, so that it makes room and is purged in time')
  ] as unknown as readonly Route[]
}

function toAdminWire(job: Job): object {
  return {
    ...toWire(job),
    principal: job.principal,
    created_at: new Date(job.createdAtMs).toISOString(),
    ended_at: job.endedAtMs === null ? null : new Date(job.endedAtMs).toISOString()
  }
}

function actorOf({ principal, address, id }: Pick<Request, 'principal' | 'address' | 'id'>): Actor {
  return { actor: principal.id, address, requestId: id }
}
