import t from 'tap'
import { createJsonLogger, gatherLines } from '../../kernel/log.ts'

t.test('lines that are gathered', async (t) => {
  t.test('come together, a little later, in their order', async (t) => {
    const written = new Promise<string>((resolve) => {
      const log = createJsonLogger({ write: gatherLines(resolve) })
      log.info('one')
      log.info('two')
    })
    // The timer of the lines keeps no process alive.
    const alive = setInterval(() => {}, 1_000)
    t.teardown(() => clearInterval(alive))
    t.match((await written).split('\n'), [/"one"/, /"two"/, /^$/])
  })

  t.test('do not wait when one of them is a warning or an error', async (t) => {
    const written: string[] = []
    const log = createJsonLogger({ write: gatherLines((lines) => written.push(lines)) })
    log.info('before')
    log.error('at once')
    t.equal(written.length, 1)
    t.match(written[0]?.split('\n'), [/"before"/, /"at once"/, /^$/])
  })

  t.test('do not wait when they are many', async (t) => {
    const written: string[] = []
    const log = createJsonLogger({ write: gatherLines((lines) => written.push(lines)) })
    log.info('x'.repeat(70_000))
    t.equal(written.length, 1)
  })

  t.test('are written when the process ends', async (t) => {
    const written: string[] = []
    const before = process.listeners('exit')
    const log = createJsonLogger({ write: gatherLines((lines) => written.push(lines)) })
    log.info('the last one')
    const added = process.listeners('exit').filter((listener) => !before.includes(listener))
    for (const listener of added) listener(0)
    t.match(written, [/"the last one"/])
    t.strictSame(process.listeners('exit'), before, 'and nothing stays behind')
  })
})

t.test('a field that is an error or a bigint is written in full, alone or among others', async (t) => {
  const lines: string[] = []
  const log = createJsonLogger({ write: (line) => lines.push(line) }).with({ size: 9_007_199_254_740_993n })
  log.info('it broke', { plain: 1, error: new Error('why') })
  log.info('nothing else')
  t.match(JSON.parse(lines[0]!), { size: '9007199254740993', plain: 1, error: { message: 'why' } })
  t.match(JSON.parse(lines[1]!), { size: '9007199254740993' })
})
