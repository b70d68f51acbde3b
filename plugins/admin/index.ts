import { definePlugin } from '../../kernel/index.ts'
import type {} from '../http/types.ts'
import { entryRoutes } from './entry-routes.ts'
import { serviceRoutes } from './service-routes.ts'

export default definePlugin({
  name: 'admin',
  inject: ['kernel'],
  optional: ['events_service'],
  apply(ctx) {
    const { kernel, events_service: events } = ctx.services
    ctx.contribute('http.routes', ...serviceRoutes(kernel, events), ...entryRoutes(kernel))
  }
})
