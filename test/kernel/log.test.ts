import { execFileSync, spawn } from 'node:child_process'
import { once } from 'node:events'
import { closeSync, constants, openSync, readFileSync, readSync } from 'node:fs'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import t from 'tap'
import { createJsonLogger, createLineWriter } from '../../kernel/log.ts'
import { cleanEnv } from '../process.ts'

/** A log in a file, and what is in that file. */
function fileLog(t: { testdir(): string; teardown(work: () => void): void }) {
  const path = join(t.testdir(), 'log')
  const fd = openSync(path, 'w')
  t.teardown(() => closeSync(fd))
  const lines = createLineWriter(fd)
  return { lines, log: createJsonLogger({ write: lines.write }), text: () => readFileSync(path, 'utf8') }
}

t.test('lines of a log that is a file', async (t) => {
  t.test('come in their order, whatever their level', async (t) => {
    const { log, lines, text } = fileLog(t)
    log.info('one')
    log.error('two')
    log.info('three')
    t.equal(await lines.settled(10_000), true)
    t.match(text().split('\n'), [/"one"/, /"two"/, /"three"/, /^$/])
  })

  t.test('are written a little later by themselves', async (t) => {
    const { log, text } = fileLog(t)
    log.info('one')
    while (text() === '') await new Promise(setImmediate)
    t.match(text(), /"one"/)
  })

  t.test('are written when the process ends', async (t) => {
    const before = process.listeners('exit')
    const { log, lines, text } = fileLog(t)
    log.info('the last one')
    for (const listener of process.listeners('exit').filter((each) => !before.includes(each))) listener(0)
    t.match(text(), /"the last one"/)
    // This process goes on, and what it writes by itself is not to meet the next test.
    await lines.settled(10_000)
  })

  t.test('leave no listener behind', async (t) => {
    const before = process.listeners('exit')
    const { log, lines } = fileLog(t)
    for (let at = 0; at < 20; at++) log.info('one')
    await lines.settled(10_000)
    t.strictSame(process.listeners('exit'), before)
  })

  t.test('that are larger than one write are whole', async (t) => {
    const { log, lines, text } = fileLog(t)
    const long = 'ü'.repeat(1_000_000)
    log.info(long)
    log.info('after')
    await lines.settled(10_000)
    t.match(text().split('\n'), [new RegExp(`"${long.slice(0, 9)}`), /"after"/, /^$/])
    t.equal(JSON.parse(text().split('\n')[0]!).message, long)
  })
})

t.test('a reader that does not read holds nobody up: lines are lost, and one line says how many', async (t) => {
  const writer = fileURLToPath(new URL('../fixtures/log-writer.js', import.meta.url))
  const [command, ...args] = [...cleanEnv(), process.execPath, writer]
  const child = spawn(command!, args, { stdio: ['ignore', 'pipe', 'pipe'] })
  t.teardown(() => child.kill('SIGKILL'))
  const [word] = await once(child.stdout.setEncoding('utf8'), 'data')
  t.equal(word, 'went on\n', 'while the pipe was full')
  let text = ''
  for await (const chunk of child.stderr.setEncoding('utf8')) text += chunk
  const lines = text
    .trimEnd()
    .split('\n')
    .map((line) => JSON.parse(line))
  const numbers = lines.flatMap((line) => (typeof line.number === 'number' ? [line.number as number] : []))
  t.strictSame(
    numbers,
    [...numbers].sort((a, b) => a - b),
    'none is out of its order'
  )
  const told = lines.reduce((sum, line) => sum + (line.lines ?? 0), 0)
  t.ok(told > 0)
  t.equal(numbers.length + told, 100_000, 'each line is there or is told of')
})

t.test('a file that takes no line, as on a full disk, does no harm', async (t) => {
  const fd = openSync('/dev/full', 'w')
  t.teardown(() => closeSync(fd))
  const lines = createLineWriter(fd)
  const log = createJsonLogger({ write: lines.write })
  log.error('one')
  t.equal(await lines.settled(10_000), true)
  log.error('two')
  t.equal(await lines.settled(10_000), true)
})

t.test('lines that nobody read are told of once somebody reads, however often the telling failed too', async (t) => {
  const path = join(t.testdir(), 'pipe')
  execFileSync('mkfifo', [path])
  const first = openSync(path, constants.O_RDONLY | constants.O_NONBLOCK)
  const fd = openSync(path, constants.O_WRONLY)
  t.teardown(() => closeSync(fd))
  const lines = createLineWriter(fd)
  const log = createJsonLogger({ write: lines.write })
  closeSync(first)
  for (const message of ['one', 'two', 'three']) {
    log.error(message)
    t.equal(await lines.settled(10_000), true)
  }
  const reader = openSync(path, constants.O_RDONLY | constants.O_NONBLOCK)
  t.teardown(() => closeSync(reader))
  log.error('four')
  t.equal(await lines.settled(10_000), true)
  const bytes = Buffer.alloc(4_096)
  const told = bytes
    .toString('utf8', 0, readSync(reader, bytes))
    .trimEnd()
    .split('\n')
    .map((line) => JSON.parse(line))
  t.match(told, [{ message: 'four' }, { level: 'warn', lines: 3 }])
})

t.test('a field that is an error or a bigint is written in full, alone or among others', async (t) => {
  const lines: string[] = []
  const log = createJsonLogger({ write: (line) => lines.push(line) }).with({ size: 9_007_199_254_740_993n })
  log.info('it broke', { plain: 1, error: new Error('why') })
  log.info('nothing else')
  t.match(JSON.parse(lines[0]!), { size: '9007199254740993', plain: 1, error: { message: 'why' } })
  t.match(JSON.parse(lines[1]!), { size: '9007199254740993' })
})
