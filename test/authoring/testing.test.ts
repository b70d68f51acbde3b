import { readdirSync } from 'node:fs'
import t from 'tap'
import { startProgram } from '../../authoring/testing.ts'
import { CodedError, definePlugin, schemaOf } from '../../kernel/index.ts'

declare module '../../kernel/index.ts' {
  interface Services {
    greetings: { of(name: string): string }
  }
}

const greetings = definePlugin({
  name: 'greetings',
  provides: ['greetings'],
  config: schemaOf<{ word: string }>({ type: 'object', properties: { word: { type: 'string', default: 'hello' } } }),
  apply(ctx, { word }) {
    ctx.provide('greetings', { of: (name) => `${word} ${name}` })
    ctx.log.info('greeting', { word })
  }
})

t.test('a program runs from paths, labels and plugins of the test, with a store and an http of its own', async (t) => {
  const base = t.testdir({
    'visits.mjs': `
      import { definePlugin } from 'heartwood'
      export default definePlugin({
        name: 'visits',
        inject: ['store', 'greetings'],
        apply(ctx) {
          const { store, greetings } = ctx.services
          ctx.contribute('http.routes', {
            method: 'POST', path: '/visits/{name}', operationId: 'visit', summary: 'Visits', replies: { 200: {} },
            handle: async ({ params }) => {
              await store.atomically((tx) => tx.put('visits', [params.name], { at: 1 }))
              return { body: { text: greetings.of(params.name) } }
            }
          })
        }
      })`
  })
  const program = await startProgram({
    base,
    entries: [
      { plugin: './visits.mjs' },
      { plugin: greetings, config: { word: '${WORD}' } },
      { plugin: 'tools' },
      { plugin: 'calculator', id: 'tools:calc' }
    ],
    env: { WORD: 'good day' }
  })

  const reply = await program.service('http').dispatch({ method: 'POST', path: '/visits/Ada' })
  t.match(reply, { status: 200, body: { text: 'good day Ada' } })
  t.match(await program.service('store').get('visits', ['Ada']), { value: { at: 1 } })
  t.strictSame(
    program.fibers().map((fiber) => fiber.entry),
    ['http', 'store', 'visits', 'greetings', 'tools', 'tools:calc']
  )
  t.match(
    program.log.filter((line) => line.message === 'greeting'),
    [{ entry: 'greetings', word: 'good day' }]
  )
  await program.service('kernel').patchEntry('greetings', { config: { word: 'bye' } })
  t.equal(program.service('greetings').of('Ada'), 'bye Ada')
  await program.stop()
  await program.stop()
  t.strictSame(program.fibers(), [])
  t.equal(program.service('greetings'), undefined)
})

t.test('two programs run side by side and share nothing', async (t) => {
  const base = t.testdir({})
  const [a, b] = await Promise.all([1, 2].map(() => startProgram({ base, entries: [] })))
  t.teardown(() => Promise.all([a?.stop(), b?.stop()]))
  await a?.service('store').atomically((tx) => tx.put('x', ['y'], 1))
  t.equal(await b?.service('store').get('x', ['y']), undefined)
})

t.test('an entry that does not start is the error of the test', async (t) => {
  const broken = definePlugin({
    name: 'broken',
    apply() {
      throw new CodedError('BROKEN', 'not today')
    }
  })
  const base = t.testdir({ 'syntax.ts': 'export default {{' })
  await t.rejects(startProgram({ base, entries: [{ plugin: broken }] }), { code: 'BROKEN' })
  await t.rejects(startProgram({ base, entries: [{ plugin: './syntax.ts' }] }), { code: 'PLUGIN_BUILD_FAILED' })
  await t.rejects(startProgram({ base, entries: [{ plugin: './gone.ts' }] }), { code: 'PROGRAM_INVALID' })
  await t.rejects(startProgram({ base, entries: [{ plugin: greetings, config: { word: 1 } }] }), {
    message: /word must be string/
  })
  const needy = definePlugin({ name: 'needy', inject: ['greetings'], apply() {} })
  await t.rejects(startProgram({ base, entries: [{ plugin: needy }] }), {
    code: 'TEST_NOT_STARTED',
    message: /'needy' is Inactive: .*needs service 'greetings', which no plugin in the program provides/
  })
})

t.test('no folder is left behind, whether it started or not', async (t) => {
  const { TMPDIR } = process.env
  t.teardown(() => (TMPDIR === undefined ? delete process.env['TMPDIR'] : (process.env['TMPDIR'] = TMPDIR)))
  const folder = t.testdir({})
  process.env['TMPDIR'] = folder
  const base = folder
  const broken = definePlugin({
    name: 'store',
    essential: true,
    apply() {
      throw new CodedError('BROKEN', 'not today')
    }
  })

  const program = await startProgram({ base, entries: [] })
  t.equal(readdirSync(folder).length, 1)
  await program.stop()
  await t.rejects(startProgram({ base, entries: [{ plugin: './gone.ts' }] }), { code: 'PROGRAM_INVALID' })
  await t.rejects(startProgram({ base, entries: [{ plugin: broken }] }), { code: 'BROKEN' })

  t.strictSame(readdirSync(folder), [])
})

t.test('what fails while it stops is in the log', async (t) => {
  const sticky = definePlugin({
    name: 'sticky',
    apply(ctx) {
      ctx.effect(
        () => () => {
          throw new Error('it does not come off')
        },
        'label'
      )
    }
  })
  const program = await startProgram({ base: t.testdir({}), entries: [{ plugin: sticky }] })
  await program.stop()
  t.match(
    program.log.filter((line) => line.level === 'error'),
    [{ entry: 'sticky', error: { message: 'it does not come off' } }]
  )
})
