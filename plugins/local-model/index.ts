import { CodedError, definePlugin } from '../../kernel/index.ts'
import type {} from '../chat/types.ts'
import { createLocalModel } from './model.ts'

/** The provider `local`: answers without a network, a key or weights. */
export default definePlugin({
  name: 'local-model',
  apply(ctx) {
    const model = createLocalModel()
    ctx.contribute('chat.providers', {
      name: 'local',
      models: ['local'],
      languageModel(name) {
        if (name === 'local') return model
        throw new CodedError('CHAT_MODEL_UNKNOWN', `Provider 'local' has no model '${name}'`)
      }
    })
  }
})
