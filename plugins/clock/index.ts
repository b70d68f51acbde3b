import { definePlugin, schemaOf } from '../../kernel/index.ts'
import type {} from '../tools/types.ts'
import { clock } from './tool.ts'

const config = schemaOf<{ anonymous: boolean }>({
  type: 'object',
  additionalProperties: false,
  properties: {
    anonymous: { type: 'boolean', default: false, description: 'Open to callers without a credential' }
  }
})

export default definePlugin({
  name: 'clock',
  inject: ['tools'],
  config,
  apply(ctx, { anonymous }) {
    ctx.contribute('tools', clock(Date.now, anonymous))
  }
})
