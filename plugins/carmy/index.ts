import { definePlugin, schemaOf } from '../../kernel/index.ts'
import type {} from '../http/types.ts'
import type {} from '../tools/types.ts'
import { ownNames } from './documents.ts'
import { createFaces } from './faces.ts'
import { type Config, routes } from './routes.ts'
import type {} from './types.ts'

const config = schemaOf<Config>({
  type: 'object',
  additionalProperties: false,
  properties: {
    server: { type: 'string', minLength: 1, default: 'heartwood', description: 'Name in the discovery document' },
    require_auth: {
      type: 'boolean',
      default: false,
      description: 'Nothing without a credential, the two documents included'
    }
  }
})

export default definePlugin({
  name: 'carmy',
  inject: ['http', 'tools'],
  config,
  apply(ctx, config) {
    const { collector, shown } = createFaces(ownNames)
    ctx.collect('carmy.faces', collector)
    ctx.contribute('http.routes', ...routes(ctx.services.tools, config, shown))
  }
})
