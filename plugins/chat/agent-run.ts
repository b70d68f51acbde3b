import type {
  JSONValue,
  LanguageModelV3,
  LanguageModelV3CallOptions,
  LanguageModelV3FunctionTool,
  LanguageModelV3Prompt,
  LanguageModelV3ToolCall,
  LanguageModelV3ToolResultPart,
  LanguageModelV3Usage
} from '@ai-sdk/provider'
import { CodedError } from '../../kernel/index.ts'
import type { Tools } from '../tools/types.ts'
import type { Message } from './conversations.ts'
import { Sources } from './sources.ts'
import { type LinkedSignal, untilAborted, withAbortSignal } from './signals.ts'
import { TextPieces, toWellFormed } from './text.ts'
import type { AgentDefinition, Source } from './types.ts'

export interface AgentRun {
  readonly agent: AgentDefinition
  readonly model: LanguageModelV3
  readonly tools: Tools
  /** Whose permissions the tools run with: `user:<id>`, `tenant:<id>`. */
  readonly principal: string
  readonly history: readonly Message[]
  readonly message: string
  /** Show the text while it is made; otherwise it is only in the result. */
  readonly streaming: boolean
  /** Read the model's text while it is made, also where it is not shown: so it is known how far a cut one had come. */
  readonly isFollowed: boolean
  readonly ending: LinkedSignal
  /** Is told what the run takes, while it goes on. */
  readonly spent: Spending
}

/** A piece of the answer, in the form of the wire. */
export interface Token {
  readonly event: 'token'
  readonly content: string
}

export interface Answer {
  /** All that was said, the words before a tool call included: the tokens' contents, joined. */
  readonly text: string
  readonly sources: readonly Source[] | null
}

/** Tokens of a run as far as it has come: what was reported, and a quarter of the characters of what was not. */
export class Spending {
  #promptChars: number | undefined
  #textChars = 0
  #cutChars: number | undefined
  #input: number | undefined
  #output: number | undefined

  /** A model has been asked. */
  get hasBegun(): boolean {
    return this.#promptChars !== undefined
  }

  /** A model is asked, with so much to read that is counted. */
  begin(promptChars: number): void {
    this.#promptChars = promptChars
  }

  /** An answer of the model is whole. */
  add(text: string, usage: LanguageModelV3Usage | undefined): void {
    this.#textChars += text.length
    this.#input = add(this.#input, usage?.inputTokens.total)
    this.#output = add(this.#output, usage?.outputTokens.total)
  }

  /** An answer of the model ended before it was whole, so nothing is reported of it. */
  cut(text: string): void {
    this.#cutChars = (this.#cutChars ?? 0) + text.length
  }

  get inputTokens(): number {
    const isEstimated = this.#input === undefined || this.#cutChars !== undefined
    return (this.#input ?? 0) + (isEstimated ? estimateTokens(this.#promptChars ?? 0) : 0)
  }

  get outputTokens(): number {
    const estimated = (this.#output === undefined ? this.#textChars : 0) + (this.#cutChars ?? 0)
    return (this.#output ?? 0) + estimateTokens(estimated)
  }
}

/** One answer of the model while it is read. */
interface Step {
  text: string
  readonly sources: Sources
  readonly calls: LanguageModelV3ToolCall[]
  usage: LanguageModelV3Usage | undefined
}

/** UTF-16 units of one answer of a model: far above what models produce, and a bound for one that does not end. */
const maxAnswerChars = 1_000_000

const paragraph = '\n\n'

const noFinalAnswer = 'Agent completed tool calls but could not generate a final response.'

/**
 * Asks the model, runs the tools it wants, and asks again, until it has answered or its rounds are used up; then it is
 * asked once more, without tools. A tool that fails, is not allowed or not there answers with an error that the model
 * reads.
 * @returns the answer, and when streaming its pieces as they come
 * @throws the reason of the ending once that has fired, or what the model failed with
 */
export async function* runAgent(run: AgentRun): AsyncGenerator<Token, Answer> {
  const prompt = toPrompt(run)
  const offered = offerTools(run)
  const sources = new Sources()
  let text = ''
  run.spent.begin(run.history.reduce(countChars, run.message.length))
  for (let round = 1; ; round += 1) {
    const last = round > run.agent.maxToolIterations
    const call = { ...run.agent.settings, prompt }
    const options = withAbortSignal(offered.length > 0 && !last ? { ...call, tools: offered } : call, run.ending)
    const step: Step = { text: '', sources, calls: [], usage: undefined }
    const before = text === '' ? '' : paragraph
    let isWhole = false
    try {
      if (run.streaming) yield* askStreaming(run, options, step, before)
      else if (run.isFollowed) await follow(askStreaming(run, options, step, before))
      else await ask(run, options, step)
      isWhole = true
    } catch (error) {
      if (!last || round === 1 || step.text !== '' || run.ending.signal.aborted) throw error
    } finally {
      // Also where the reader of a stream left in the middle.
      if (isWhole) run.spent.add(step.text, step.usage)
      else run.spent.cut(step.text)
    }
    if (step.text === '' && last && round > 1) {
      step.text = noFinalAnswer
      if (run.streaming) yield { event: 'token', content: before + noFinalAnswer }
    }
    if (step.text !== '') text += before + step.text
    if (step.calls.length === 0 || last) return { text, sources: sources.list() }
    const results = await runTools(run, step.calls)
    for (const { output } of results) if (output.type === 'json') sources.give(output.value)
    prompt.push(toAssistantMessage(step), { role: 'tool', content: results })
  }
}

async function ask(run: AgentRun, options: LanguageModelV3CallOptions, step: Step): Promise<void> {
  const { content, finishReason, usage } = await untilAborted(run.model.doGenerate(options), run.ending)
  for (const part of content) {
    if (part.type === 'text') step.text += toWellFormed(part.text)
    else if (part.type === 'tool-call') step.calls.push(part)
    else if (part.type === 'source') step.sources.name(part)
  }
  assertFinished(finishReason.unified)
  assertBounded(step)
  step.usage = usage
}

async function follow(pieces: AsyncGenerator<Token, void>): Promise<void> {
  for await (const _ of pieces) continue
}

async function* askStreaming(
  run: AgentRun,
  options: LanguageModelV3CallOptions,
  step: Step,
  before: string
): AsyncGenerator<Token, void> {
  const { signal } = run.ending
  const opening = run.model.doStream(options)
  const { stream } = await untilAborted(opening, run.ending).catch((error: unknown) => {
    // Should it open after all, it ends at once; what goes wrong with that concerns nobody any more.
    opening.then((late) => late.stream.cancel(error)).then(undefined, () => {})
    throw error
  })
  const reader = stream.getReader()
  // Ends a read that is waiting, also where the model pays no heed to its signal.
  const cancel = (): void => void reader.cancel(signal.reason).catch(() => {})
  signal.addEventListener('abort', cancel)
  const pieces = new TextPieces()
  let finished = false
  try {
    while (!finished) {
      const { done, value: part } = await reader.read()
      if (signal.aborted) throw signal.reason
      if (done) throw new CodedError('CHAT_PROVIDER_CLOSED', 'the model ended its stream without finishing its answer')
      let piece = ''
      switch (part.type) {
        case 'text-delta':
          piece = pieces.push(part.delta)
          break
        case 'tool-call':
          step.calls.push(part)
          break
        case 'source':
          step.sources.name(part)
          break
        case 'error':
          throw part.error
        case 'finish':
          assertFinished(part.finishReason.unified)
          step.usage = part.usage
          piece = pieces.end()
          finished = true
      }
      if (piece === '') continue
      const first = step.text === ''
      step.text += piece
      assertBounded(step)
      yield { event: 'token', content: first ? before + piece : piece }
    }
  } finally {
    signal.removeEventListener('abort', cancel)
    if (!finished) cancel()
  }
}

function assertFinished(reason: string): void {
  if (reason === 'error') throw new CodedError('CHAT_PROVIDER_FAILED', 'the model finished with an error')
}

function assertBounded(step: Step): void {
  if (step.text.length <= maxAnswerChars) return
  throw new CodedError('CHAT_PROVIDER_FAILED', `the model's answer is longer than ${maxAnswerChars} characters`)
}

function toPrompt({ agent, history, message }: AgentRun): LanguageModelV3Prompt {
  const prompt: LanguageModelV3Prompt = [{ role: 'system', content: agent.systemPrompt }]
  for (const { role, content } of history) prompt.push({ role, content: [{ type: 'text', text: content }] })
  prompt.push({ role: 'user', content: [{ type: 'text', text: message }] })
  return prompt
}

function toAssistantMessage({ text, calls }: Step): LanguageModelV3Prompt[number] {
  return {
    role: 'assistant',
    content: [
      ...(text === '' ? [] : [{ type: 'text' as const, text }]),
      ...calls.map(({ toolCallId, toolName, input }) => ({
        type: 'tool-call' as const,
        toolCallId,
        toolName,
        input: parseArguments(input) ?? {}
      }))
    ]
  }
}

/** The agent's tools that are there now. */
function offerTools({ agent, tools }: AgentRun): LanguageModelV3FunctionTool[] {
  const offered: LanguageModelV3FunctionTool[] = []
  for (const name of agent.tools) {
    const tool = tools.get(name)
    if (tool === undefined) continue
    offered.push({ type: 'function', name, description: tool.description, inputSchema: tool.input_schema })
  }
  return offered
}

/** @returns the results in the order of the calls */
async function runTools(
  run: AgentRun,
  calls: readonly LanguageModelV3ToolCall[]
): Promise<LanguageModelV3ToolResultPart[]> {
  if (run.agent.parallelTools) return Promise.all(calls.map((call) => runTool(run, call)))
  const results: LanguageModelV3ToolResultPart[] = []
  for (const call of calls) results.push(await runTool(run, call))
  return results
}

async function runTool(run: AgentRun, call: LanguageModelV3ToolCall): Promise<LanguageModelV3ToolResultPart> {
  const { signal } = run.ending
  signal.throwIfAborted()
  const { toolCallId, toolName } = call
  const fail = (error: string): LanguageModelV3ToolResultPart => ({
    type: 'tool-result',
    toolCallId,
    toolName,
    output: { type: 'error-json', value: { error } }
  })
  if (!run.agent.tools.includes(toolName)) return fail(`Tool '${toolName}' is not allowed for this agent`)
  const input = parseArguments(call.input)
  if (input === undefined) return fail('the arguments are not valid JSON')
  const { response } = await run.tools.execute({
    tool: toolName,
    arguments: input,
    caller: { principal: run.principal },
    signal
  })
  signal.throwIfAborted()
  if (response.status !== 'completed') return fail(response.error?.message ?? `the tool ended as ${response.status}`)
  const value = (response.data ?? null) as JSONValue
  return { type: 'tool-result', toolCallId, toolName, output: { type: 'json', value } }
}

/** @returns `undefined` when it is not JSON */
function parseArguments(text: string): unknown {
  if (text.trim() === '') return {}
  try {
    return JSON.parse(text)
  } catch {
    return undefined
  }
}

const countChars = (count: number, message: Message): number => count + message.content.length

export const estimateTokens = (chars: number): number => Math.ceil(chars / 4)

/** The sum of what was reported; `undefined` as long as nothing was. */
function add(sum: number | undefined, reported: number | undefined): number | undefined {
  return reported === undefined ? sum : (sum ?? 0) + reported
}
