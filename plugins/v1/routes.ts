import { CodedError, schemaOf, type JsonSchema } from '../../kernel/index.ts'
import type { AgentDefinition, Chat, ChatOutcome, OwnAgent } from '../chat/types.ts'
import type { ErrorMap, Headers, Problem, Reply, Request, Route } from '../http/types.ts'
import type { AgentRun, AgentRuns, ApiKey, Tenants } from '../tenants/types.ts'
import type { TenantPrincipal } from './guard.ts'
import { headerText, quotaHeaders } from './headers.ts'
import { type Paginated, type PageQuery, pageQuery, paginate, paginatedOf, sliceOf, toPage } from './pages.ts'

const guard = 'tenant-key'
const text = { type: 'string' } as const
const count = { type: 'integer', minimum: 0 } as const
const quota = { type: ['integer', 'null'], description: '`null` is no limit' } as const
const time = { type: 'string', format: 'date-time' } as const
const maybeTime = { type: ['string', 'null'], format: 'date-time' } as const
const dayMs = 86_400_000

type NameParams = { readonly name: string }

/** One of the program has neither state nor age. */
type ShownAgent = { readonly agent: AgentDefinition } & Partial<OwnAgent>

interface ChatBody {
  readonly message: string
  readonly agent_type?: string | null
  readonly context_id?: string | null
  readonly workspace_id?: string | null
  readonly model?: string | null
}

const optional = (description: string): JsonSchema => ({ type: ['string', 'null'], description })

const chatBody = schemaOf<ChatBody>({
  type: 'object',
  required: ['message'],
  properties: {
    message: text,
    agent_type: optional('Name of the agent; left out, the one named orchestrator, else the first'),
    context_id: optional('Conversation of the tenant to go on with or to begin; left out, a new one'),
    workspace_id: optional('Knowledge workspace'),
    model: optional("Instead of the agent's own model")
  }
})

const chatReply: JsonSchema = {
  type: 'object',
  required: ['response', 'agent', 'context_id', 'sources', 'source', 'model', 'provider', 'usage'],
  properties: {
    response: text,
    agent: text,
    context_id: text,
    sources: { type: ['array', 'null'] },
    source: { enum: ['system', 'tenant'], description: "Whose the agent is: the program's, or the tenant's own" },
    model: text,
    provider: text,
    usage: {
      type: 'object',
      required: ['input_tokens', 'output_tokens'],
      properties: { input_tokens: count, output_tokens: count }
    }
  }
}

const agent: JsonSchema = {
  $id: 'V1Agent',
  type: 'object',
  required: ['id', 'name', 'agent_type', 'status', 'config', 'created_at', 'last_run', 'total_runs', 'success_rate'],
  properties: {
    id: text,
    name: text,
    description: text,
    agent_type: { const: 'custom' },
    status: { enum: ['active', 'idle', 'error', 'disabled'] },
    config: { type: 'object' },
    created_at: { ...maybeTime, description: '`null` for an agent of the program' },
    last_run: maybeTime,
    total_runs: count,
    success_rate: { type: 'number', minimum: 0, maximum: 1 }
  }
}

const tokenCount = { type: 'object', required: ['tokens'], properties: { tokens: count } } as const
const runMembers = {
  id: text,
  agent_id: { ...text, description: 'Name of the agent' },
  status: { enum: ['completed', 'failed'] },
  input: tokenCount,
  output: { ...tokenCount, type: ['object', 'null'] },
  error: { type: ['string', 'null'] },
  started_at: time,
  finished_at: time,
  duration_ms: count,
  tokens_used: count
} as const
const agentRun: JsonSchema = {
  $id: 'V1AgentRun',
  type: 'object',
  required: Object.keys(runMembers),
  properties: runMembers
}

const logMembers = {
  id: text,
  agent_id: { ...text, description: 'Name of the agent' },
  run_id: text,
  level: { enum: ['info', 'error'] },
  message: text,
  metadata: { type: 'object' },
  timestamp: time
} as const
const agentLog: JsonSchema = {
  $id: 'V1AgentLog',
  type: 'object',
  required: Object.keys(logMembers),
  properties: logMembers
}

const apiKey: JsonSchema = {
  type: 'object',
  required: ['id', 'name', 'prefix', 'created_at', 'last_used', 'expires_at'],
  properties: {
    id: text,
    name: text,
    prefix: text,
    created_at: time,
    last_used: { ...maybeTime, description: 'To the minute' },
    expires_at: maybeTime
  }
}

const errors: ErrorMap = {
  CHAT_INVALID: 400,
  CHAT_AGENT_UNKNOWN: 404,
  CHAT_AGENT_NOT_CALLABLE: 400,
  CHAT_MODEL_UNKNOWN: 400,
  CHAT_NOT_CONFIGURED: { status: 500, code: 'CONFIGURATION_ERROR' },
  CHAT_MODEL_FAILED: { status: 500, code: 'LLM_ERROR' },
  CHAT_STORE_FAILED: { status: 500, code: 'DATABASE_ERROR' },
  CHAT_INTERRUPTED: 503,
  TENANTS_UNKNOWN: 401,
  TENANTS_PURGED: 409,
  TENANTS_INVALID: 400,
  TENANTS_KEY_UNKNOWN: 404,
  TENANTS_KEYS_FULL: 409,
  V1_AGENT_UNKNOWN: 404
}

export function routes(chat: Chat, tenants: Tenants): readonly Route[] {
  const of = ({ principal }: Pick<Request, 'principal'>) => principal as TenantPrincipal

  const converse: Route<object, unknown, ChatBody> = {
    method: 'POST',
    path: '/api/v1/chat',
    operationId: 'v1Chat',
    summary: 'Run one turn with an agent; counted',
    guard,
    body: chatBody,
    replies: { 200: chatReply },
    errors,
    renderProblem,
    async handle(request: Request<object, unknown, ChatBody>) {
      const { message, agent_type, context_id, workspace_id, model } = request.body
      const outcome = await chat.answer({
        principal: request.principal,
        tenant: of(request).tenant,
        message,
        agent: agent_type,
        contextId: context_id,
        workspaceId: workspace_id,
        model,
        unrouted: true,
        caller: request,
        requestId: request.id
      })
      const quota = await quotaOf(request)
      return { headers: { ...chatHeaders(outcome), ...quota }, body: toChatBody(outcome) }
    }
  }

  /** An answer that counts nothing and says what is left. */
  const told = async (request: Pick<Request, 'principal'>, body: unknown): Promise<Reply> => ({
    headers: await quotaOf(request),
    body
  })

  async function quotaOf({ principal }: Pick<Request, 'principal'>): Promise<Headers> {
    const standing = await tenants.standing(principal.id)
    return standing === undefined ? {} : quotaHeaders(standing)
  }

  /** The tenant's own come first, and stand in place of those of the program that have the same name. */
  async function agentsOf(tenantId: string): Promise<readonly ShownAgent[]> {
    const own = await chat.ownAgents(tenantId)
    const names = new Set(own.map(({ agent }) => agent.name))
    return [...own, ...chat.agents().flatMap((agent) => (names.has(agent.name) ? [] : { agent }))]
  }

  const listAgents: Route<object, PageQuery> = {
    method: 'GET',
    path: '/api/v1/agents',
    operationId: 'v1ListAgents',
    summary: 'List the agents that can be called',
    guard,
    query: pageQuery(20),
    replies: { 200: paginatedOf(agent) },
    errors,
    renderProblem,
    async handle(request: Request<object, PageQuery>) {
      const runs = new Map((await tenants.runs(request.principal.id)).map((each) => [each.agent, each]))
      const agents = (await agentsOf(request.principal.id)).map((each) => toAgentBody(each, runs.get(each.agent.name)))
      return told(request, paginate(agents, request.query))
    }
  }

  const getAgent: Route<NameParams> = {
    method: 'GET',
    path: '/api/v1/agents/{name}',
    operationId: 'v1GetAgent',
    summary: 'Read one agent',
    guard,
    replies: { 200: agent },
    errors,
    renderProblem,
    async handle(request: Request<NameParams>) {
      const found = await agentOf(request)
      const runs = (await tenants.runs(request.principal.id)).find(({ agent }) => agent === found.agent.name)
      return told(request, toAgentBody(found, runs))
    }
  }

  /** @throws CodedError `V1_AGENT_UNKNOWN` */
  async function agentOf({
    params,
    principal
  }: Pick<Request<NameParams>, 'params' | 'principal'>): Promise<ShownAgent> {
    const found = (await agentsOf(principal.id)).find(({ agent }) => agent.name === params.name)
    if (found !== undefined) return found
    throw new CodedError('V1_AGENT_UNKNOWN', `Agent '${params.name}' not found for tenant '${principal.id}'`)
  }

  async function pageOfRuns(
    request: Request<NameParams, PageQuery>,
    toBody: (run: AgentRun, agent: string) => object
  ): Promise<Paginated<object>> {
    const { name } = (await agentOf(request)).agent
    const { runs, total } = await tenants.runsOf(request.principal.id, name, sliceOf(request.query))
    const bodies = runs.map((run) => toBody(run, name))
    return toPage(bodies, total, request.query)
  }

  const listRuns: Route<NameParams, PageQuery> = {
    method: 'GET',
    path: '/api/v1/agents/{name}/runs',
    operationId: 'v1ListRuns',
    summary: 'List the last 1,000 turns of an agent for the tenant, the newest first',
    guard,
    query: pageQuery(25),
    replies: { 200: paginatedOf(agentRun) },
    errors,
    renderProblem,
    handle: async (request: Request<NameParams, PageQuery>) => told(request, await pageOfRuns(request, toRunBody))
  }

  const listLogs: Route<NameParams, PageQuery> = {
    method: 'GET',
    path: '/api/v1/agents/{name}/logs',
    operationId: 'v1ListLogs',
    summary: 'How each of the last 1,000 turns of an agent for the tenant ended, the newest first',
    guard,
    query: pageQuery(50),
    replies: { 200: paginatedOf(agentLog) },
    errors,
    renderProblem,
    handle: async (request: Request<NameParams, PageQuery>) => told(request, await pageOfRuns(request, toLogBody))
  }

  const usage: Route = {
    method: 'GET',
    path: '/api/v1/usage',
    operationId: 'v1Usage',
    summary: 'What was used in this month (UTC), and on each of its days',
    guard,
    replies: {
      200: {
        type: 'object',
        required: [
          'period_start',
          'period_end',
          'total_runs',
          'total_tokens',
          'total_api_calls',
          'quota_runs',
          'quota_tokens',
          'daily_usage'
        ],
        properties: {
          period_start: time,
          period_end: { ...time, description: 'The last second of the month' },
          total_runs: count,
          total_tokens: count,
          total_api_calls: count,
          quota_runs: quota,
          quota_tokens: quota,
          quota_runs_per_day: quota,
          daily_usage: {
            type: 'array',
            items: {
              type: 'object',
              required: ['date', 'runs', 'tokens', 'api_calls'],
              properties: { date: { type: 'string', format: 'date' }, runs: count, tokens: count, api_calls: count }
            }
          }
        }
      }
    },
    errors,
    renderProblem,
    async handle(request) {
      const standing = await tenants.standing(request.principal.id)
      if (standing === undefined) throw new CodedError('TENANTS_UNKNOWN', 'Tenant not found')
      const { limits, inMonth, monthStartsAtMs, monthEndsAtMs, dayEndsAtMs } = standing
      const days = await tenants.daily(request.principal.id, Math.round((dayEndsAtMs - monthStartsAtMs) / dayMs))
      return told(request, {
        period_start: toRfc3339(monthStartsAtMs),
        period_end: toRfc3339(monthEndsAtMs - 1_000),
        total_runs: inMonth.requests,
        total_tokens: inMonth.tokens,
        total_api_calls: inMonth.requests,
        quota_runs: limits.requestsPerMonth,
        quota_tokens: limits.tokensPerMonth,
        quota_runs_per_day: limits.requestsPerDay,
        daily_usage: days.map(({ day, requests, tokens }) => ({
          date: day,
          runs: requests,
          tokens,
          api_calls: requests
        }))
      })
    }
  }

  const listKeys: Route = {
    method: 'GET',
    path: '/api/v1/api-keys',
    operationId: 'v1ListKeys',
    summary: 'List the active API keys, oldest first',
    guard,
    replies: { 200: { type: 'array', items: apiKey } },
    errors,
    renderProblem,
    async handle(request) {
      const keys = await tenants.keys(request.principal.id)
      return told(request, keys.filter((key) => key.isActive).map(toKeyBody))
    }
  }

  const createKey: Route<object, unknown, { readonly name: string; readonly expires_in_days?: number | null }> = {
    method: 'POST',
    path: '/api/v1/api-keys',
    operationId: 'v1CreateKey',
    summary: 'Make an API key; the answer is the only place where it is shown',
    guard,
    body: schemaOf({
      type: 'object',
      required: ['name'],
      properties: { name: text, expires_in_days: { type: ['integer', 'null'] } }
    }),
    replies: { 200: { type: 'object', required: ['key', 'secret'], properties: { key: apiKey, secret: text } } },
    errors,
    renderProblem,
    async handle(request) {
      const { name, expires_in_days } = request.body
      const wanted = { name, expiresInDays: expires_in_days ?? undefined }
      const { key, secret } = await tenants.createKey(request.principal.id, wanted)
      return told(request, { key: toKeyBody(key), secret })
    }
  }

  const revokeKey: Route<{ readonly id: string }> = {
    method: 'DELETE',
    path: '/api/v1/api-keys/{id}',
    operationId: 'v1RevokeKey',
    summary: 'Revoke an API key, at once; it may be the one that asks',
    guard,
    replies: { 204: {} },
    errors,
    renderProblem,
    async handle({ params, principal }: Request<{ readonly id: string }>) {
      await tenants.revokeKey(principal.id, params.id)
      return { status: 204 }
    }
  }

  const purge: Route = {
    method: 'DELETE',
    path: '/api/v1/tenant/data',
    operationId: 'v1PurgeData',
    summary: 'Delete all that is kept for the tenant, every API key first',
    guard,
    replies: {
      200: {
        type: 'object',
        required: ['status', 'tenant_id', 'usage_events_deleted', 'agent_runs_deleted', 'api_keys_revoked', 'note'],
        properties: {
          status: { const: 'purged' },
          tenant_id: text,
          usage_events_deleted: count,
          agent_runs_deleted: count,
          api_keys_revoked: count,
          note: text
        }
      }
    },
    errors,
    renderProblem,
    async handle({ principal }) {
      const { requests, runs, keys } = await tenants.purge(principal.id)
      return {
        body: {
          status: 'purged',
          tenant_id: principal.id,
          usage_events_deleted: requests,
          agent_runs_deleted: runs,
          api_keys_revoked: keys,
          note: 'Deleted as GDPR Art. 17 asks for. The tenant stays, with two numbers: what was used this month and today.'
        }
      }
    }
  }

  return [
    converse,
    listAgents,
    getAgent,
    listRuns,
    listLogs,
    usage,
    listKeys,
    createKey,
    revokeKey,
    purge
  ] as unknown as readonly Route[]
}

/** As http renders it, but that the texts of the quotas stand whole in the contract. */
function renderProblem({ status, code, message }: Problem): Reply {
  return { status, body: { error: status === 503 ? `Service unavailable: ${message}` : message, code } }
}

function chatHeaders({ agent, model, provider, usage }: ChatOutcome): Headers {
  return {
    'x-input-tokens': String(usage.inputTokens),
    'x-output-tokens': String(usage.outputTokens),
    'x-model-name': headerText(model),
    'x-provider-name': headerText(provider),
    'x-agent-name': headerText(agent)
  }
}

function toChatBody({ reply, source, model, provider, usage }: ChatOutcome): object {
  return {
    ...reply,
    source,
    model,
    provider,
    usage: { input_tokens: usage.inputTokens, output_tokens: usage.outputTokens }
  }
}

/** What an agent can do, without the words that it is told: those are the operator's. */
function toAgentBody({ agent, enabled, createdAtMs }: ShownAgent, runs: AgentRuns | undefined): object {
  const total = runs?.runs ?? 0
  return {
    id: agent.name,
    name: agent.name,
    description: agent.description,
    agent_type: 'custom',
    status: enabled === false ? 'disabled' : 'active',
    config: {
      model: agent.model,
      tools: agent.tools,
      max_tool_iterations: agent.maxToolIterations,
      parallel_tools: agent.parallelTools
    },
    created_at: createdAtMs === undefined ? null : toRfc3339(createdAtMs),
    last_run: runs === undefined ? null : toRfc3339(runs.lastRunAtMs),
    total_runs: total,
    success_rate: runs === undefined || total === 0 ? 0 : (total - runs.failures) / total
  }
}

/** In numbers: what was said is in the conversation. */
function toRunBody(run: AgentRun, agent: string): object {
  const { id, inputTokens, outputTokens, startedAtMs, finishedAtMs, error } = run
  return {
    id,
    agent_id: agent,
    status: error === null ? 'completed' : 'failed',
    input: { tokens: inputTokens },
    output: error === null ? { tokens: outputTokens } : null,
    error,
    started_at: toRfc3339(startedAtMs),
    finished_at: toRfc3339(finishedAtMs),
    duration_ms: durationOf(run),
    tokens_used: inputTokens + outputTokens
  }
}

function toLogBody(run: AgentRun, agent: string): object {
  const { id, inputTokens, outputTokens, finishedAtMs, error } = run
  return {
    id,
    agent_id: agent,
    run_id: id,
    level: error === null ? 'info' : 'error',
    message: error ?? 'completed',
    metadata: { duration_ms: durationOf(run), input_tokens: inputTokens, output_tokens: outputTokens },
    timestamp: toRfc3339(finishedAtMs)
  }
}

/** A clock may go back. */
function durationOf({ startedAtMs, finishedAtMs }: AgentRun): number {
  return Math.max(0, finishedAtMs - startedAtMs)
}

function toKeyBody({ id, name, prefix, createdAtMs, lastUsedAtMs, expiresAtMs }: ApiKey): object {
  const orNull = (ms: number | null) => (ms === null ? null : toRfc3339(ms))
  return {
    id,
    name,
    prefix,
    created_at: toRfc3339(createdAtMs),
    last_used: orNull(lastUsedAtMs),
    expires_at: orNull(expiresAtMs)
  }
}

function toRfc3339(ms: number): string {
  return new Date(ms).toISOString()
}
