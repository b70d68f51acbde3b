import type {
  LanguageModelV3,
  LanguageModelV3CallOptions,
  LanguageModelV3Content,
  LanguageModelV3FinishReason,
  LanguageModelV3StreamPart,
  LanguageModelV3ToolCall,
  LanguageModelV3ToolResultPart,
  LanguageModelV3Usage
} from '@ai-sdk/provider'
import type { RoutingOptions } from '../chat/types.ts'
import { findCalculation } from './arithmetic.ts'
import { findTimeQuestion } from './time.ts'
import { closest, topicWords } from './words.ts'

/** What it answers: words, or one call of a tool. */
type Decision = { readonly text: string } | { readonly tool: string; readonly input: object }

/** It counts no tokens. */
const usage: LanguageModelV3Usage = {
  inputTokens: { total: undefined, noCache: undefined, cacheRead: undefined, cacheWrite: undefined },
  outputTokens: { total: undefined, text: undefined, reasoning: undefined }
}

/**
 * Fixed rules behind the interface of a language model: no network, no weights. Arithmetic goes to the tool
 * `calculator` and the time to `clock`, where they are offered; to anything else it says plainly what it is.
 */
export function createLocalModel(): LanguageModelV3 {
  return {
    specificationVersion: 'v3',
    provider: 'local',
    modelId: 'local',
    supportedUrls: {},
    async doGenerate(options) {
      options.abortSignal?.throwIfAborted()
      const { content, finishReason } = answer(options)
      return { content: [content], finishReason, usage, warnings: [] }
    },
    async doStream(options) {
      options.abortSignal?.throwIfAborted()
      const parts = toParts(answer(options))
      return {
        stream: new ReadableStream<LanguageModelV3StreamPart>({
          pull(controller) {
            const { done, value } = parts.next()
            if (done) controller.close()
            else controller.enqueue(value)
          }
        })
      }
    }
  }
}

interface LocalAnswer {
  readonly content: Extract<LanguageModelV3Content, { type: 'text' } | LanguageModelV3ToolCall>
  readonly finishReason: LanguageModelV3FinishReason
}

function answer(options: LanguageModelV3CallOptions): LocalAnswer {
  const decision = decide(options)
  if ('text' in decision) {
    return { content: { type: 'text', text: decision.text }, finishReason: { unified: 'stop', raw: 'stop' } }
  }
  const { tool, input } = decision
  return {
    content: {
      type: 'tool-call',
      toolCallId: `call_${options.prompt.length}`,
      toolName: tool,
      input: JSON.stringify(input)
    },
    finishReason: { unified: 'tool-calls', raw: 'tool_calls' }
  }
}

/** The answer as it is streamed: word by word. */
function* toParts({ content, finishReason }: LocalAnswer): Generator<LanguageModelV3StreamPart, undefined> {
  yield { type: 'stream-start', warnings: [] }
  if (content.type === 'text') {
    yield { type: 'text-start', id: '0' }
    for (const [delta] of content.text.matchAll(/\S+\s*|\s+/g)) yield { type: 'text-delta', id: '0', delta }
    yield { type: 'text-end', id: '0' }
  } else {
    yield content
  }
  yield { type: 'finish', finishReason, usage }
}

function decide(options: LanguageModelV3CallOptions): Decision {
  const message = lastUserText(options)
  const routing = options.providerOptions?.['heartwood'] as RoutingOptions | undefined
  if (routing !== undefined) return { text: route(message, routing) }
  const last = options.prompt.at(-1)
  if (last?.role === 'tool') {
    const results = last.content.filter((part) => part.type === 'tool-result')
    return { text: results.map((result) => tell(message, result)).join('\n') }
  }
  const offered = new Set(options.tools?.map((tool) => tool.name))
  const calculation = findCalculation(message)
  if (calculation !== undefined && offered.has('calculator')) {
    return { tool: 'calculator', input: { expression: calculation.expression } }
  }
  const time = findTimeQuestion(message)
  if (time !== undefined && offered.has('clock')) {
    return { tool: 'clock', input: time.timezone === undefined ? {} : { timezone: time.timezone } }
  }
  return { text: introduce(offered) }
}

function lastUserText({ prompt }: LanguageModelV3CallOptions): string {
  const message = prompt.findLast((candidate) => candidate.role === 'user')
  return message?.content.map((part) => (part.type === 'text' ? part.text : '')).join(' ') ?? ''
}

/** @returns the name of the candidate whose description shares most words with the message; empty when nobody's does */
function route(message: string, { candidates }: RoutingOptions): string {
  const implied = [
    ...(findCalculation(message) === undefined ? [] : ['arithmetic', 'calculate', 'calculator', 'math']),
    ...(findTimeQuestion(message) === undefined ? [] : ['time', 'date', 'clock'])
  ]
  return closest(new Set([...topicWords(message), ...implied]), candidates)?.name ?? ''
}

/** What a tool answered, in words; nothing that it did not say. */
function tell(message: string, { toolName, output }: LanguageModelV3ToolResultPart): string {
  const value = 'value' in output ? output.value : null
  const fields = (typeof value === 'object' && value !== null ? value : {}) as Readonly<Record<string, unknown>>
  if (typeof fields['error'] === 'string') return `The ${toolName} could not answer: ${fields['error']}`
  const calculation = findCalculation(message)
  if (toolName === 'calculator' && calculation !== undefined && typeof fields['result'] === 'number') {
    return `${calculation.shown} = ${fields['result']}`
  }
  const { local, weekday, timezone } = fields
  if (toolName === 'clock' && typeof local === 'string') {
    const place = findTimeQuestion(message)?.unknownPlace
    const lead = place === undefined ? 'It' : `I know no time zone called “${place}”. It`
    return `${lead} is ${String(weekday)}, ${local.slice(0, 10)}, ${local.slice(11, 16)} in ${String(timezone)}.`
  }
  return `The ${toolName} says: ${JSON.stringify(value)}`
}

function introduce(offered: ReadonlySet<string>): string {
  const abilities = [
    ...(offered.has('calculator') ? ['work out arithmetic with the calculator, such as “what is 17*23?”'] : []),
    ...(offered.has('clock') ? ['tell the time, also in a city such as Tokyo'] : [])
  ]
  const able =
    abilities.length === 0
      ? 'This agent has no tools that I could use.'
      : `What I can do here: ${abilities.join('; ')}.`
  return `I am the built-in responder of this server. I follow fixed rules and am no language model, and I found nothing that answers this. ${able} For free answers, give the agent a language model: its entry in the program file names the provider.`
}
