import { type Contribution, definePlugin } from '../../kernel/index.ts'
import type { Route } from '../http/types.ts'
import type { Stat, StatName } from './types.ts'

const names: readonly StatName[] = [
  'total_tenants',
  'total_agents',
  'total_runs_today',
  'total_tokens_today',
  'active_alerts'
]

/** What each plugin counts, as one answer. A plugin that is not there counts nothing. */
export default definePlugin({
  name: 'stats',
  apply(ctx) {
    let stats: readonly Contribution<Stat>[] = []
    ctx.collect('stats', { update: (now) => (stats = now) })
    const show: Route = {
      method: 'GET',
      path: '/api/admin/stats',
      operationId: 'getStats',
      summary: 'Count tenants, agents, the runs and tokens of today, and open alerts',
      guard: 'admin',
      replies: {
        200: {
          type: 'object',
          required: names,
          properties: Object.fromEntries(names.map((name) => [name, { type: 'integer' }]))
        }
      },
      async handle() {
        const values = await Promise.all(stats.map(ask))
        const sumOf = (name: StatName): number =>
          values.reduce((sum, [of, value]) => (of === name ? sum + value : sum), 0)
        return { body: Object.fromEntries(names.map((name) => [name, sumOf(name)])) }
      }
    }
    ctx.contribute('http.routes', show)
  }
})

async function ask(stat: Contribution<Stat>): Promise<readonly [StatName, number]> {
  const lease = stat.lease()
  try {
    return [stat.item.name, await stat.item.value()]
  } finally {
    lease.release()
  }
}
