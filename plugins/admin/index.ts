import { definePlugin } from '../../kernel/index.ts'
import type {} from '../audit/types.ts'
import type {} from '../http/types.ts'
import { entryRoutes } from './entry-routes.ts'
import { createRecorder } from './recording.ts'
import { serviceRoutes } from './service-routes.ts'

export default definePlugin({
  name: 'admin',
  inject: ['kernel'],
  optional: ['events_service', 'audit'],
  apply(ctx) {
    const { kernel, events_service: events, audit } = ctx.services
    const record = createRecorder(audit)
    ctx.contribute('http.routes', ...serviceRoutes(kernel, events, record), ...entryRoutes(kernel, record))
  }
})
