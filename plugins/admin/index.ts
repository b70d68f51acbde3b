import { definePlugin } from '../../kernel/index.ts'
import type {} from '../http/types.ts'
import { routes } from './routes.ts'

export default definePlugin({
  name: 'admin',
  inject: ['kernel'],
  apply(ctx) {
    ctx.contribute('http.routes', ...routes(ctx.services.kernel, ctx.events))
  }
})
