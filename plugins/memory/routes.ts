import type { Route } from '../http/types.ts'
import type { Memory, Recollection } from './service.ts'

const text = { type: 'string' } as const
const time = { type: 'string', format: 'date-time' } as const
const confidence = { type: 'number', minimum: 0, maximum: 1 } as const
const preference = { category: text, key: text, value: text, confidence } as const
const fact = {
  id: text,
  user_id: text,
  category: text,
  fact_key: text,
  fact_value: text,
  confidence,
  created_at: time,
  updated_at: time
} as const

const listOf = (properties: Readonly<Record<string, object>>): object => ({
  type: 'array',
  items: { type: 'object', required: Object.keys(properties), properties }
})

export function routes(memory: Memory): readonly Route[] {
  const recall: Route = {
    method: 'GET',
    path: '/api/memory',
    operationId: 'getMemory',
    summary: 'Read what is remembered of you; 204 while that is nothing',
    guard: 'user',
    replies: {
      200: {
        type: 'object',
        required: ['user_id', 'preferences', 'facts'],
        properties: { user_id: text, preferences: listOf(preference), facts: listOf(fact) }
      },
      204: {}
    },
    async handle({ principal }) {
      const recollection = await memory.recall(principal.id)
      const { preferences, facts } = recollection
      if (preferences.length + facts.length === 0) return { status: 204 }
      return { body: toBody(principal.id, recollection) }
    }
  }
  return [recall]
}

function toBody(userId: string, { preferences, facts }: Recollection): object {
  return {
    user_id: userId,
    preferences: preferences.map(({ category, key, item }) => ({
      category,
      key,
      value: item.value,
      confidence: item.confidence
    })),
    facts: facts.map(({ category, key, item }) => ({
      id: item.id,
      user_id: userId,
      category,
      fact_key: key,
      fact_value: item.value,
      confidence: item.confidence,
      created_at: new Date(item.createdAtMs).toISOString(),
      updated_at: new Date(item.updatedAtMs).toISOString()
    }))
  }
}
