import { resolve } from 'node:path'
import { CodedError, definePlugin, schemaOf } from '../../kernel/index.ts'
import type {} from '../http/types.ts'
import type {} from '../readiness/types.ts'
import { openEngine } from './lmdb.ts'
import { createStore } from './service.ts'
import type {} from './types.ts'

interface Config {
  readonly path: string
}

const config = schemaOf<Config>({
  type: 'object',
  additionalProperties: false,
  properties: {
    path: {
      type: 'string',
      minLength: 1,
      default: './data',
      description: 'The data folder; a relative one starts at the folder the server was started in'
    }
  }
})

const readerCheckPeriodMs = 60_000

export default definePlugin({
  name: 'store',
  essential: true,
  provides: ['store'],
  config,
  async apply(ctx, config) {
    const path = resolve(config.path)
    const engine = await ctx.resource(
      'environment',
      { path },
      () => openEngine(path, { onMigrated: (from, to) => ctx.log.info('migrated the data', { path, from, to }) }),
      (engine) => engine.close()
    )
    const store = createStore(engine)
    ctx.provide('store', store)
    ctx.setInterval(() => engine.freeReaders(), readerCheckPeriodMs)
    ctx.contribute('http.checks', { name: 'database', check: () => store.ping() })
    ctx.contribute('readiness.checks', {
      name: 'database',
      check: () =>
        store.ping().catch((cause: unknown) => {
          throw new CodedError('DATABASE_UNAVAILABLE', 'the store cannot be read or written', { cause })
        })
    })
  }
})
