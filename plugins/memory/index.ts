import { definePlugin } from '../../kernel/index.ts'
import type {} from '../http/types.ts'
import type {} from '../store/types.ts'
import { routes } from './routes.ts'
import { createMemory } from './service.ts'

export default definePlugin({
  name: 'memory',
  inject: ['store'],
  apply(ctx) {
    ctx.contribute('http.routes', ...routes(createMemory(ctx.services.store)))
  }
})
