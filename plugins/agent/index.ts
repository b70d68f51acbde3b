import { definePlugin, schemaOf } from '../../kernel/index.ts'
import type {} from '../chat/types.ts'

interface Config {
  readonly model: string
  readonly description: string
  readonly system_prompt?: string
  readonly tools: readonly string[]
  readonly max_tool_iterations: number
  readonly parallel_tools: boolean
  readonly router: boolean
}

const config = schemaOf<Config>({
  type: 'object',
  additionalProperties: false,
  properties: {
    model: {
      type: 'string',
      minLength: 1,
      default: 'local',
      description: 'A provider, `provider/model`, or a model that a provider lists'
    },
    description: { type: 'string', default: '', description: 'What it is good at; a router chooses by it' },
    system_prompt: { type: 'string', description: 'Left out: one line that names the agent' },
    tools: {
      type: 'array',
      items: { type: 'string', minLength: 1 },
      uniqueItems: true,
      default: [],
      description: 'Names of the tools it may call'
    },
    max_tool_iterations: {
      type: 'integer',
      minimum: 1,
      maximum: 100,
      default: 10,
      description: 'Calls to the model with tools at hand, in one turn'
    },
    parallel_tools: { type: 'boolean', default: false, description: 'Run the tool calls of one round at once' },
    router: { type: 'boolean', default: false, description: 'Chooses who answers when a request names nobody' }
  }
})

/** One agent; its name is the last segment of the entry's id. */
export default definePlugin({
  name: 'agent',
  config,
  apply(ctx, config) {
    const name = ctx.entry.slice(ctx.entry.lastIndexOf(':') + 1)
    ctx.contribute('chat.agents', {
      name,
      description: config.description,
      model: config.model,
      systemPrompt:
        config.system_prompt ??
        (config.router ? 'You choose the agent that should take a message.' : `You are a ${name} agent.`),
      tools: config.tools,
      maxToolIterations: config.max_tool_iterations,
      parallelTools: config.parallel_tools,
      router: config.router
    })
  }
})
