import { definePlugin, schemaOf } from '../../kernel/index.ts'
import type {} from '../tools/types.ts'
import { type Config, calculator } from './tool.ts'

const config = schemaOf<Config>({
  type: 'object',
  additionalProperties: false,
  properties: {
    precision: {
      type: 'integer',
      minimum: 0,
      maximum: 15,
      default: 6,
      description: 'Decimals of a result. Smaller results keep as many digits of their own'
    },
    anonymous: { type: 'boolean', default: false, description: 'Open to callers without a credential' }
  }
})

export default definePlugin({
  name: 'calculator',
  inject: ['tools'],
  config,
  apply(ctx, config) {
    ctx.contribute('tools', calculator(config))
  }
})
