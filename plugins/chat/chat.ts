import type { LanguageModelV3 } from '@ai-sdk/provider'
import { type Awaitable, CodedError, type Contribution, isCoded, type Logger } from '../../kernel/index.ts'
import type { NewAlert } from '../alerts/types.ts'
import type { Principal } from '../http/types.ts'
import type { Store } from '../store/types.ts'
import type { Tenants } from '../tenants/types.ts'
import type { Tools } from '../tools/types.ts'
import { type Answer, runAgent, Spending, type Token } from './agent-run.ts'
import { type Conversations, createConversations, type Message } from './conversations.ts'
import { beginMeter, type Meter } from './meter.ts'
import { QuotaAlerts } from './quota-alerts.ts'
import type { FoundModel, Registry } from './registry.ts'
import { parseChoice, routingCall } from './routing.ts'
import { LinkedSignal, untilAborted, withAbortSignal } from './signals.ts'
import type { Tally } from './tally.ts'
import { isPlainId, maxIdBytes, toWellFormed } from './text.ts'
import type { AgentDefinition, Chat, ChatOutcome, ModelProvider, OwnAgent, Source, TurnRequest } from './types.ts'

export interface Config {
  /** Messages of the conversation that the model is shown again. */
  readonly history_messages: number
  readonly max_message_chars: number
}

/** One event of a stream, its members in the order of the wire. */
export type ChatEvent =
  | { readonly event: 'start'; readonly agent: string; readonly context_id: string }
  /** `sources` only where there are some. */
  | {
      readonly event: 'done'
      readonly agent: string
      readonly context_id: string
      readonly sources?: readonly Source[]
    }
  | Token
  | { readonly event: 'error'; readonly context_id?: string; readonly error: string }

/** The contract, and turns as streams. */
export interface ChatService extends Chat {
  /**
   * `start`, tokens, `done`; or `error` as the last event: alone when the turn was not let in, with the `context_id`
   * once it had begun. `done` comes after the turn is stored. Never rejects; ends without a last event when the caller
   * has left.
   */
  stream(request: TurnRequest): AsyncGenerator<ChatEvent, void>
}

const maxNameChars = 128
/** Who answers where nobody is named and there is no router to ask. */
const firstChoice = 'orchestrator'

/** What people are told of a failing model, by the code of its error. */
const modelFailures: Readonly<Record<string, string>> = {
  CHAT_PROVIDER_UNREACHABLE: 'provider cannot be reached',
  CHAT_PROVIDER_CLOSED: 'provider closed connection',
  CHAT_PROVIDER_TIMEOUT: 'provider did not answer in time'
}

/** What a stream says to a tenant that has nothing left. */
const quotaTexts: Readonly<Record<string, string>> = {
  TENANTS_MONTH_EXHAUSTED: 'monthly quota exceeded',
  TENANTS_TOKENS_EXHAUSTED: 'monthly token quota exceeded',
  TENANTS_DAY_EXHAUSTED: 'daily quota exceeded'
}

const callerFaults: readonly string[] = [
  'CHAT_INVALID',
  'CHAT_AGENT_UNKNOWN',
  'CHAT_AGENT_NOT_CALLABLE',
  'CHAT_MODEL_UNKNOWN',
  'TENANTS_UNKNOWN',
  'TENANTS_PURGED'
]

/** An agent that can be held. */
interface FoundAgent extends Pick<Contribution<AgentDefinition>, 'item' | 'lease'> {
  /** The tenant's own; left out, the program's. */
  readonly isOwn?: true
}

/** An agent and a model at work: they stay as they are until this is closed. */
interface Hold {
  readonly agent: AgentDefinition
  /** Whose the agent is. */
  readonly source: ChatOutcome['source']
  readonly provider: ModelProvider
  readonly model: LanguageModelV3
  /** Fires when the caller leaves, the server stops, or the drain time of the agent or the provider is over. */
  readonly ending: LinkedSignal
  close(): void
}

/** A turn that was let in. */
interface OpenTurn {
  readonly held: Hold
  /** As shown: the plain name when the request named the agent, `name (system)` when the server chose it. */
  readonly label: string
  readonly contextId: string
  /** The context id was made for this turn. */
  readonly isNew: boolean
  readonly message: string
  readonly history: readonly Message[]
  /** `undefined` for a turn that nobody counts. */
  readonly meter: Meter | undefined
  readonly spent: Spending
}

export function createChat(options: {
  readonly registry: Registry
  readonly store: Store
  readonly tools: Tools
  /** Turns of tenants are counted there; without it there are none. */
  readonly tenants: Tenants | undefined
  readonly tally: Tally
  /** Tells operators what they should know. */
  readonly raise: (alert: NewAlert) => void
  readonly log: Logger
  readonly config: Config
  /** Unix time in milliseconds. */
  readonly now: () => number
  /** Ids that are made one after the other should be close to each other: they are keys. */
  readonly newId: () => string
}): ChatService {
  const { registry, store, tools, tenants, tally, raise, log, config, now, newId } = options
  const quotas = new QuotaAlerts(raise)
  const conversations = { user: createConversations(store), tenant: createConversations(store, 'tenant') }

  async function open(request: TurnRequest): Promise<OpenTurn> {
    checkRequest(request, config.max_message_chars)
    const message = toWellFormed(request.message)
    const spent = new Spending()
    const found = findOwn(request)
    const own = found instanceof Promise ? await found : found
    let held = own
      ? holdAgent(own, request)
      : request.agent
        ? holdAgent(findNamed(request.agent), request)
        : request.unrouted === true
          ? holdAgent(findChosen(undefined), request)
          : undefined
    let meter: Meter | undefined
    try {
      meter = await beginMeter(tenants, quotas, log, request, spent, newId, now)
      held ??= holdAgent(findChosen(await choose(request, message, spent)), request)
      const { contextId } = request
      return {
        held,
        label: request.agent ? held.agent.name : `${held.agent.name} (${held.source})`,
        contextId: contextId || newId(),
        isNew: !contextId,
        message,
        history: contextId ? await readHistory(request.principal, contextId) : [],
        meter,
        spent
      }
    } catch (error) {
      await meter?.end(held?.agent.name)
      held?.close()
      throw error
    }
  }

  function holdAgent(agent: FoundAgent, { model, caller }: TurnRequest): Hold {
    return hold(agent, findModel(agent.item, model), caller)
  }

  /** Of the agents that only the caller's tenant has, the one that is to answer. */
  function findOwn({ principal, agent, unrouted }: TurnRequest): Awaitable<FoundAgent | undefined> {
    const tenantId = principal.kind === 'tenant' ? principal.id : principal.tenantId
    const name = agent || (unrouted === true ? firstChoice : undefined)
    const from = registry.own()
    if (tenantId === undefined || name === undefined || from === undefined) return undefined
    const toFound = (own: OwnAgent | undefined): FoundAgent | undefined => {
      if (own === undefined) return undefined
      if (own.enabled) return { item: own.agent, lease: () => from.lease(), isOwn: true }
      throw new CodedError('CHAT_AGENT_UNKNOWN', `Agent '${name}' is disabled for tenant '${tenantId}'`)
    }
    const own = from.item.find(tenantId, name)
    return own instanceof Promise ? own.catch(notRead).then(toFound) : toFound(own)
  }

  function notRead(cause: unknown): never {
    throw new CodedError('CHAT_STORE_FAILED', 'The agents of the tenant could not be read', { cause })
  }

  function findNamed(name: string): Contribution<AgentDefinition> {
    const agent = registry.findAgent(name)
    if (agent === undefined) throw new CodedError('CHAT_AGENT_UNKNOWN', `Agent '${name}' not found`)
    if (agent.item.router) throw new CodedError('CHAT_AGENT_NOT_CALLABLE', 'Router agent cannot be called directly')
    return agent
  }

  /** The agent that was chosen, if it is still there; else the one that takes what nobody else does. */
  function findChosen(name: string | undefined): Contribution<AgentDefinition> {
    const callable = registry.agents().filter(({ item }) => !item.router)
    const agent =
      callable.find(({ item }) => item.name === name) ??
      callable.find(({ item }) => item.name === firstChoice) ??
      callable[0]
    if (agent === undefined) throw new CodedError('CHAT_NOT_CONFIGURED', 'No agent is configured')
    return agent
  }

  /** @param wanted the model that a request asks for instead of the agent's own */
  function findModel(agent: AgentDefinition, wanted?: string | null): FoundModel {
    if (wanted) return registry.findModel(wanted)
    try {
      return registry.findModel(agent.model)
    } catch (cause) {
      throw new CodedError('CHAT_NOT_CONFIGURED', `The model of agent '${agent.name}' is not configured`, { cause })
    }
  }

  /** Asks the router for a name. @returns `undefined` when there is nothing to choose, or its answer names nobody */
  async function choose(request: TurnRequest, message: string, spent: Spending): Promise<string | undefined> {
    const agents = registry.agents()
    const router = agents.find(({ item }) => item.router)
    const candidates = agents.flatMap(({ item }) => (item.router ? [] : item))
    if (router === undefined || candidates.length < 2) return undefined
    const held = hold(router, findModel(router.item), request.caller)
    spent.begin(0)
    try {
      const call = withAbortSignal(routingCall(router.item, candidates, message), held.ending)
      const { content } = await untilAborted(held.model.doGenerate(call), held.ending)
      const answer = content.map((part) => (part.type === 'text' ? part.text : '')).join('')
      return parseChoice(
        answer,
        candidates.map(({ name }) => name)
      )
    } catch (error) {
      throw toFailure(error, held.ending.signal, 'Router failed')
    } finally {
      held.close()
    }
  }

  async function readHistory(principal: Principal, contextId: string): Promise<readonly Message[]> {
    try {
      return await conversationsOf(principal).history(principal.id, contextId, config.history_messages)
    } catch (cause) {
      throw new CodedError('CHAT_STORE_FAILED', 'The conversation could not be read', { cause })
    }
  }

  function conversationsOf({ kind }: Principal): Conversations {
    if (kind === 'user' || kind === 'tenant') return conversations[kind]
    throw new TypeError(`only users and tenants have conversations, found '${kind}'`)
  }

  function run(turn: OpenTurn, { kind, id }: Principal, streaming: boolean): AsyncGenerator<Token, Answer> {
    const { agent, provider, model, ending } = turn.held
    const { history, message, spent } = turn
    const isFollowed = turn.meter !== undefined && provider.streamsUsage === true
    const principal = `${kind}:${id}`
    return runAgent({ agent, model, tools, principal, history, message, streaming, isFollowed, ending, spent })
  }

  /** Resolves when the turn is stored, and settled if it is counted. */
  async function keep(turn: OpenTurn, principal: Principal, answer: string): Promise<void> {
    // A turn that nobody waits for any more is not kept.
    if (turn.held.ending.hasFired) throw turn.held.ending.signal.reason
    const { contextId, isNew, message, meter } = turn
    const agent = turn.held.agent.name
    const said = { id: newId(), atMs: now(), user: message, assistant: answer, agent }
    const condition = principal.kind === 'tenant' ? meter?.assertCurrent : undefined
    const store = async (): Promise<void> => {
      try {
        await conversationsOf(principal).append(principal.id, contextId, said, isNew, condition)
      } catch (cause) {
        if (isCoded(cause, 'TENANTS_PURGED')) throw cause
        throw new CodedError('CHAT_STORE_FAILED', 'The answer could not be stored', { cause })
      }
    }
    await (meter === undefined ? store() : Promise.all([store(), meter.settle(agent)]))
  }

  function toTurnFailure({ held, meter }: OpenTurn, error: unknown, what?: string): CodedError {
    const failure = toFailure(error, held.ending.signal, what)
    meter?.failed(failure.message)
    if (failure.code === 'CHAT_MODEL_FAILED') {
      const { name } = held.provider
      const subject = `provider ${name}`
      const title = `Language models of '${name}' fail`
      raise({ severity: 'warning', source: 'chat', subject, title, message: failure.message })
    }
    return failure
  }

  async function close({ held, meter, spent }: OpenTurn): Promise<void> {
    if (spent.hasBegun) tally.add(spent.inputTokens + spent.outputTokens)
    await meter?.end(held.agent.name)
    held.close()
  }

  return {
    async answer(request) {
      const turn = await open(request)
      try {
        const steps = run(turn, request.principal, false)
        let step = await steps.next()
        while (!step.done) step = await steps.next()
        const { text, sources } = step.value
        await keep(turn, request.principal, text)
        const { agent, source, provider, model } = turn.held
        const { inputTokens, outputTokens } = turn.spent
        return {
          reply: { response: text, agent: turn.label, context_id: turn.contextId, sources },
          agent: agent.name,
          source,
          provider: provider.name,
          model: model.modelId,
          usage: { inputTokens, outputTokens }
        }
      } catch (error) {
        throw toTurnFailure(turn, error)
      } finally {
        await close(turn)
      }
    },

    agents: () => registry.agents().flatMap(({ item }) => (item.router ? [] : item)),

    ownAgents(tenantId) {
      const own = registry.own()?.item.list(tenantId) ?? []
      return own instanceof Promise ? own.catch(notRead) : own
    },

    async *stream(request) {
      let turn: OpenTurn
      try {
        turn = await open(request)
      } catch (error) {
        if (!isCoded(error, 'CLIENT_GONE')) yield { event: 'error', error: explain(error, request) }
        return
      }
      const { label: agent, contextId: context_id } = turn
      try {
        yield { event: 'start', agent, context_id }
        const { text, sources } = yield* run(turn, request.principal, true)
        await keep(turn, request.principal, text)
        yield { event: 'done', agent, context_id, ...(sources === null ? {} : { sources }) }
      } catch (error) {
        const failure = toTurnFailure(turn, error, 'Stream error')
        if (failure.code === 'CLIENT_GONE') return
        yield { event: 'error', context_id, error: explain(failure, request) }
      } finally {
        await close(turn)
      }
    }
  }

  /** What the last event of a stream says. What is no fault of the caller's is logged, as it is for other replies. */
  function explain(error: unknown, request: TurnRequest): string {
    const code = isCoded(error) && /^(?:CHAT|TENANTS)_/.test(error.code) ? error.code : ''
    const quota = quotaTexts[code]
    if (quota !== undefined) return quota
    if (!callerFaults.includes(code) && code !== 'CHAT_INTERRUPTED') {
      log.error('a chat stream failed', { requestId: request.requestId, error })
    }
    return code === '' ? 'Internal error' : (error as CodedError).message
  }
}

/** @throws CodedError `CHAT_INVALID` */
function checkRequest(request: TurnRequest, maxMessageChars: number): void {
  const { message, agent, contextId, workspaceId, model } = request
  if (!/\S/.test(message)) throw invalid('message must not be empty')
  if (message.length > maxMessageChars) throw invalid(`message must not be longer than ${maxMessageChars} characters`)
  if (agent && agent.length > maxNameChars) {
    throw invalid(`agent_type must not be longer than ${maxNameChars} characters`)
  }
  for (const [name, id] of Object.entries({ context_id: contextId, workspace_id: workspaceId, model })) {
    if (id && !isPlainId(id, maxIdBytes)) {
      throw invalid(`${name} must be at most ${maxIdBytes} bytes of text without control characters`)
    }
  }
}

function invalid(message: string): CodedError {
  return new CodedError('CHAT_INVALID', message)
}

/** Takes hold of an agent and its model in the step in which they were found. */
function hold(agent: FoundAgent, { provider, model }: FoundModel, caller: TurnRequest['caller']): Hold {
  const agentLease = agent.lease()
  const providerLease = provider.lease()
  const ending = new LinkedSignal(() => [caller.signal, agentLease.signal, providerLease.signal])
  return {
    agent: agent.item,
    source: agent.isOwn === true ? 'tenant' : 'system',
    provider: provider.item,
    model,
    ending,
    close() {
      ending.release()
      agentLease.release()
      providerLease.release()
    }
  }
}

/**
 * What a caller may know of what ended a turn.
 * @param what was being done, for the message; left out: as fits the code
 */
function toFailure(error: unknown, signal: AbortSignal, what?: string): CodedError {
  const say = (reason: string, instead: string): string => (what === undefined ? instead : `${what}: ${reason}`)
  if (signal.aborted) {
    const cause = signal.reason as CodedError
    if (cause.code === 'CLIENT_GONE') return cause
    const reason = cause.code === 'SHUTTING_DOWN' ? 'the server is shutting down' : 'the agent was replaced'
    return new CodedError('CHAT_INTERRUPTED', say(reason, reason), { cause })
  }
  if (isCoded(error) && error.code.startsWith('TENANTS_')) return error
  if (isCoded(error, 'CHAT_STORE_FAILED')) {
    return new CodedError(error.code, say(error.message, error.message), { cause: error.cause })
  }
  const reason = (isCoded(error) ? modelFailures[error.code] : undefined) ?? 'provider failed'
  return new CodedError('CHAT_MODEL_FAILED', say(reason, `The language model failed: ${reason}`), { cause: error })
}
