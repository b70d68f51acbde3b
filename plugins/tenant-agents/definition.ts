import { CodedError } from '../../kernel/index.ts'
import type { AgentDefinition, ModelSettings } from '../chat/types.ts'

/** An agent as an administrator writes it down: the members below, and any others, which are kept as they are. */
export type AgentConfig = Readonly<Record<string, unknown>>

/** As in the contract: fewer than an agent of the program has. */
const defaultIterations = 5
const maxIterations = 100
const maxConfigChars = 100_000

const ranges = {
  temperature: [0, 2],
  top_p: [0, 1],
  frequency_penalty: [-2, 2],
  presence_penalty: [-2, 2]
} as const

/**
 * @param isTool whether there is a tool of that name
 * @throws CodedError `TENANT_AGENTS_INVALID`
 */
export function checkConfig(config: unknown, isTool: (name: string) => boolean): AgentConfig {
  if (typeof config !== 'object' || config === null || Array.isArray(config)) throw invalid('must be a JSON object')
  const known = config as AgentConfig
  if (JSON.stringify(known).length > maxConfigChars) {
    throw invalid(`must not be longer than ${maxConfigChars} characters`)
  }
  const { model } = known
  if (typeof model !== 'string' || !/\S/.test(model)) throw invalid("is missing a valid non-empty 'model'")
  for (const field of ['system_prompt', 'version']) {
    if (isGiven(known[field]) && typeof known[field] !== 'string') throw invalid(`field '${field}' must be a string`)
  }
  for (const field of ['tools', 'allowed_tools']) checkTools(field, known[field], isTool)
  const { max_tool_iterations, parallel_tools, max_tokens, stop } = known
  if (isGiven(max_tool_iterations) && !isWhole(max_tool_iterations, 0, maxIterations)) {
    throw invalid(`field 'max_tool_iterations' must be an integer between 0 and ${maxIterations}`)
  }
  if (isGiven(parallel_tools) && typeof parallel_tools !== 'boolean') {
    throw invalid("field 'parallel_tools' must be a boolean")
  }
  for (const [field, [least, most]] of Object.entries(ranges)) {
    const value = known[field]
    if (isGiven(value) && !(typeof value === 'number' && value >= least && value <= most)) {
      throw invalid(`field '${field}' must be between ${least} and ${most}`)
    }
  }
  if (isGiven(max_tokens) && !isWhole(max_tokens, 1, Number.MAX_SAFE_INTEGER)) {
    throw invalid("field 'max_tokens' must be a positive integer")
  }
  if (isGiven(stop) && typeof stop !== 'string' && !isTexts(stop)) {
    throw invalid("field 'stop' must be a string or an array of strings")
  }
  return known
}

function checkTools(field: string, names: unknown, isTool: (name: string) => boolean): void {
  if (!isGiven(names)) return
  if (!Array.isArray(names)) throw invalid(`field '${field}' must be an array`)
  if (!isTexts(names)) throw invalid(`field '${field}' must be an array of strings`)
  const unknown = names.filter((name) => !isTool(name))
  if (unknown.length === 0) return
  throw new CodedError(
    'TENANT_AGENTS_INVALID',
    `Invalid tool name(s): ${unknown.join(', ')}. Available tools are listed by GET /agent/tools`
  )
}

/** What was checked, as chat takes it. */
export function toDefinition(name: string, description: string | null, config: AgentConfig): AgentDefinition {
  const { system_prompt, allowed_tools, tools, max_tool_iterations, parallel_tools } = config
  return {
    name,
    description: description ?? '',
    model: config['model'] as string,
    systemPrompt: (system_prompt as string | null | undefined) ?? `You are a ${name} agent.`,
    tools: ((allowed_tools ?? tools) as readonly string[] | null | undefined) ?? [],
    maxToolIterations: (max_tool_iterations as number | null | undefined) ?? defaultIterations,
    parallelTools: parallel_tools === true,
    router: false,
    settings: toSettings(config)
  }
}

function toSettings(config: AgentConfig): ModelSettings {
  const { temperature, top_p, frequency_penalty, presence_penalty, max_tokens, stop } = config
  const given = {
    temperature,
    topP: top_p,
    frequencyPenalty: frequency_penalty,
    presencePenalty: presence_penalty,
    maxOutputTokens: max_tokens,
    stopSequences: typeof stop === 'string' ? [stop] : stop
  }
  return Object.fromEntries(Object.entries(given).filter(([, value]) => isGiven(value))) as ModelSettings
}

/** Members that are given replace, `null` removes, and what is absent stays. */
export function mergeConfig(before: AgentConfig, changes: AgentConfig): AgentConfig {
  const merged = Object.entries({ ...before, ...changes }).filter(([name]) => changes[name] !== null)
  return Object.fromEntries(merged)
}

/** `null` is as if it were absent. */
const isGiven = (value: unknown): boolean => value !== undefined && value !== null

const isTexts = (value: unknown): value is readonly string[] =>
  Array.isArray(value) && value.every((each) => typeof each === 'string')

const isWhole = (value: unknown, least: number, most: number): boolean =>
  Number.isInteger(value) && (value as number) >= least && (value as number) <= most

function invalid(what: string): CodedError {
  return new CodedError('TENANT_AGENTS_INVALID', `Tenant agent config ${what}`)
}
