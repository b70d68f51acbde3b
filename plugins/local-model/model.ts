import type {
  LanguageModelV3,
  LanguageModelV3CallOptions,
  LanguageModelV3Content,
  LanguageModelV3FinishReason,
  LanguageModelV3Source,
  LanguageModelV3StreamPart,
  LanguageModelV3ToolCall,
  LanguageModelV3ToolResultPart,
  LanguageModelV3Usage
} from '@ai-sdk/provider'
import type { RoutingOptions } from '../chat/types.ts'
import { findCalculation } from './arithmetic.ts'
import { findQuotes, nameOf, passagesOf, type Quote } from './quote.ts'
import { findTimeQuestion } from './time.ts'
import { closest, topicWords } from './words.ts'

/** What it answers: words, with what they are quoted from, or one call of a tool. */
type Decision =
  | { readonly text: string; readonly quotes?: readonly Quote[] }
  | { readonly tool: string; readonly input: object }

/** It counts no tokens. */
const usage: LanguageModelV3Usage = {
  inputTokens: { total: undefined, noCache: undefined, cacheRead: undefined, cacheWrite: undefined },
  outputTokens: { total: undefined, text: undefined, reasoning: undefined }
}

/**
 * Fixed rules behind the interface of a language model: no network, no weights. Arithmetic goes to the tool
 * `calculator`, the time to `clock` and everything else to `rag`, where they are offered; of what that finds it quotes
 * the sentences that fit, word for word. Where nothing does it says plainly what it is.
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
      return { content, finishReason, usage, warnings: [] }
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

const maxQuestionChars = 1_000

interface LocalAnswer {
  readonly content: Extract<
    LanguageModelV3Content,
    { type: 'text' } | LanguageModelV3ToolCall | LanguageModelV3Source
  >[]
  readonly finishReason: LanguageModelV3FinishReason
}

function answer(options: LanguageModelV3CallOptions): LocalAnswer {
  const decision = decide(options)
  if ('text' in decision) {
    const { text, quotes = [] } = decision
    return {
      content: [{ type: 'text', text }, ...quotes.map(toSource)],
      finishReason: { unified: 'stop', raw: 'stop' }
    }
  }
  const { tool, input } = decision
  const toolCallId = `call_${options.prompt.length}`
  return {
    content: [{ type: 'tool-call', toolCallId, toolName: tool, input: JSON.stringify(input) }],
    finishReason: { unified: 'tool-calls', raw: 'tool_calls' }
  }
}

function toSource({ passage }: Quote, index: number): LanguageModelV3Source {
  const { source, score } = passage
  const common = {
    type: 'source' as const,
    id: String(index),
    title: nameOf(passage),
    providerMetadata: { heartwood: { relevance_score: score } }
  }
  return source !== null && /^https?:\/\//i.test(source)
    ? { ...common, sourceType: 'url', url: source }
    : { ...common, sourceType: 'document', mediaType: 'text/plain' }
}

/** The answer as it is streamed: word by word. */
function* toParts({ content, finishReason }: LocalAnswer): Generator<LanguageModelV3StreamPart, undefined> {
  yield { type: 'stream-start', warnings: [] }
  for (const part of content) {
    if (part.type === 'text') {
      yield { type: 'text-start', id: '0' }
      for (const [delta] of part.text.matchAll(/\S+\s*|\s+/g)) yield { type: 'text-delta', id: '0', delta }
      yield { type: 'text-end', id: '0' }
    } else {
      yield part
    }
  }
  yield { type: 'finish', finishReason, usage }
}

function decide(options: LanguageModelV3CallOptions): Decision {
  const message = lastUserText(options)
  const question = shortQuestion(message)
  const routing = options.providerOptions?.['heartwood'] as RoutingOptions | undefined
  if (routing !== undefined) return { text: route(message, routing) }
  const offered = new Set(options.tools?.map((tool) => tool.name))
  const last = options.prompt.at(-1)
  if (last?.role === 'tool') {
    const results = last.content.filter((part) => part.type === 'tool-result')
    const [result] = results
    if (result?.toolName === 'rag' && result.output.type === 'json') {
      const quotes = findQuotes(message, passagesOf(result.output.value))
      return quotes.length > 0 ? { text: quotes.map(sayQuote).join('\n'), quotes } : { text: introduce(offered) }
    }
    return { text: results.map((each) => tell(message, each)).join('\n') }
  }
  const calculation = findCalculation(question)
  if (calculation !== undefined && offered.has('calculator')) {
    return { tool: 'calculator', input: { expression: calculation.expression } }
  }
  const time = findTimeQuestion(question)
  if (time !== undefined && offered.has('clock')) {
    return { tool: 'clock', input: time.timezone === undefined ? {} : { timezone: time.timezone } }
  }
  if (offered.has('rag') && /\S/.test(message)) return { tool: 'rag', input: { query: message } }
  return { text: introduce(offered) }
}

/**
 * What may ask for a calculation or the time: all of a short text, nothing of a long one. The patterns that look for them
 * take time with the square of its length.
 */
function shortQuestion(message: string): string {
  const text = message.trim()
  return text.length <= maxQuestionChars ? text : ''
}

function sayQuote({ text, passage }: Quote): string {
  return `“${text}” (${nameOf(passage)})`
}

function lastUserText({ prompt }: LanguageModelV3CallOptions): string {
  const message = prompt.findLast((candidate) => candidate.role === 'user')
  return message?.content.map((part) => (part.type === 'text' ? part.text : '')).join(' ') ?? ''
}

/** @returns the name of the candidate whose description shares most words with the message; empty when nobody's does */
function route(message: string, { candidates }: RoutingOptions): string {
  const question = shortQuestion(message)
  const implied = [
    ...(findCalculation(question) === undefined ? [] : ['arithmetic', 'calculate', 'calculator', 'math']),
    ...(findTimeQuestion(question) === undefined ? [] : ['time', 'date', 'clock'])
  ]
  return closest(new Set([...topicWords(message), ...implied]), candidates)?.name ?? ''
}

/** What a tool answered, in words; nothing that it did not say. */
function tell(message: string, { toolName, output }: LanguageModelV3ToolResultPart): string {
  const value = 'value' in output ? output.value : null
  const fields = (typeof value === 'object' && value !== null ? value : {}) as Readonly<Record<string, unknown>>
  if (typeof fields['error'] === 'string') return `The ${toolName} could not answer: ${fields['error']}`
  const question = shortQuestion(message)
  const calculation = findCalculation(question)
  if (toolName === 'calculator' && calculation !== undefined && typeof fields['result'] === 'number') {
    return `${calculation.shown} = ${fields['result']}`
  }
  const { local, weekday, timezone } = fields
  if (toolName === 'clock' && typeof local === 'string') {
    const place = findTimeQuestion(question)?.unknownPlace
    const lead = place === undefined ? 'It' : `I know no time zone called “${place}”. It`
    return `${lead} is ${String(weekday)}, ${local.slice(0, 10)}, ${local.slice(11, 16)} in ${String(timezone)}.`
  }
  return `The ${toolName} says: ${JSON.stringify(value)}`
}

function introduce(offered: ReadonlySet<string>): string {
  const abilities = [
    ...(offered.has('calculator') ? ['work out arithmetic with the calculator, such as “what is 17*23?”'] : []),
    ...(offered.has('clock') ? ['tell the time, also in a city such as Tokyo'] : []),
    ...(offered.has('rag') ? ['quote what fits from the documents you have put in'] : [])
  ]
  const able =
    abilities.length === 0
      ? 'This agent has no tools that I could use.'
      : `What I can do here: ${abilities.join('; ')}.`
  return `I am the built-in responder of this server. I follow fixed rules and am no language model, and I found nothing that answers this. ${able} For free answers, give the agent a language model: its entry in the program file names the provider.`
}
