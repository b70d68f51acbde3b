import { existsSync, readdirSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import { startProgram } from '../../authoring/testing.ts'
import { install, runNode, typeCheck } from './package.ts'

const guide = readFileSync(new URL('../../../docs/plugins.md', import.meta.url), 'utf8')
const readme = readFileSync(new URL('../../../README.md', import.meta.url), 'utf8')

/** The samples of a page that say in their first line which file they are. */
function samplesOf(page: string): ReadonlyMap<string, string> {
  const blocks = page.matchAll(/^```(?:ts|js)\n\/\/ (\S+)\n([\s\S]*?)^```$/gm)
  return new Map([...blocks].map(([, name = '', text = '']) => [name, text]))
}

function write(folder: string, samples: ReadonlyMap<string, string>): void {
  for (const [name, text] of samples) writeFileSync(join(folder, name), text)
}

t.test('every sample of the guide names its file, and all of them type-check', async (t) => {
  const folder = t.testdir({})
  install(folder)
  const samples = samplesOf(guide)
  write(folder, samples)
  t.equal(samples.size, [...guide.matchAll(/^```(?:ts|js)$/gm)].length)
  const typed = [...samples.keys()].filter((name) => name.endsWith('.ts'))
  t.ok(typed.length >= 5)
  t.equal(await typeCheck(folder, typed), '')
})

t.test('authors reach the contract of every built-in plugin by its name', (t) => {
  const plugins = new URL('../../../plugins/', import.meta.url)
  const contracts = readdirSync(plugins).filter((name) => existsSync(new URL(`${name}/types.ts`, plugins)))
  const index = readFileSync(new URL('../../../authoring/index.ts', import.meta.url), 'utf8')
  t.strictSame(
    [...index.matchAll(/^export type \* as (\w+) from/gm)].map(([, name]) => name),
    contracts.map((name) => name.replaceAll(/-(\w)/g, (_, letter: string) => letter.toUpperCase())),
    'authoring/index.ts names each folder of plugins/ that has types.ts'
  )
  t.end()
})

t.test('the type check finds what is wrong with a sample', async (t) => {
  const folder = t.testdir({})
  install(folder)
  const broken = new Map(samplesOf(guide)).set(
    'a.ts',
    "import { http } from 'heartwood'\nconst a: http.Route = { method: 'FETCH' }\nexport default a\n"
  )
  write(folder, broken)
  t.match(await typeCheck(folder, ['visits.ts', 'a.ts']), /a\.ts\(2,\d+\): error TS/)
})

t.test('the tests of the guide pass', async (t) => {
  const folder = t.testdir({})
  install(folder)
  write(folder, samplesOf(guide))
  const ended = await runNode(folder, ['--test', 'visits.test.mjs', 'dice.test.mjs'])
  t.match(ended, { code: 0, output: /pass 3/ }, ended.output)
})

t.test('the samples do what the guide says of them', async (t) => {
  const base = t.testdir({})
  write(base, samplesOf(guide))
  const path = join(base, 'beats')
  const listeners = process.listenerCount('warning')
  const program = await startProgram({
    base,
    entries: [
      { plugin: './visits.ts' },
      { plugin: './visits-api.ts' },
      { plugin: 'tools' },
      { plugin: './dice.ts' },
      { plugin: './guestbook.ts' },
      { plugin: './heartbeat.ts', config: { path, period_ms: 1 } }
    ]
  })
  let stopped = false
  t.teardown(() => (stopped ? undefined : program.stop()))
  const http = program.service('http')

  const stream = await http.dispatch({ method: 'GET', path: '/visits/stream' })
  t.match(stream.body, /data: {"count":1}\n\ndata: {"count":2}\n\ndata: {"count":3}/)
  const unknown = await http.dispatch({ method: 'GET', path: '/guests/Ada' })
  t.equal(unknown.status, 404)
  t.match(guide, JSON.stringify(unknown.body))

  const call = (sides: number) =>
    program.service('tools').execute({ tool: 'roll_dice', arguments: { sides }, caller: { principal: undefined } })
  t.match(await call(2), { response: { status: 'completed', data: { rolled: Number } } })
  t.match(await call(5_000), {
    response: { status: 'failed', error: { code: 'DICE_TOO_ROUND', category: 'validation' } }
  })

  while (!readFileSync(path, 'utf8').includes('beat')) await new Promise((resolve) => setImmediate(resolve))
  stopped = true
  await program.stop()
  t.match(readFileSync(path, 'utf8'), /^(beat\n|end\n)+$/)
  t.match(readFileSync(path, 'utf8'), 'end\n')
  t.equal(process.listenerCount('warning'), listeners)
})

t.test('the plugin of the README type-checks and answers as it is printed there', async (t) => {
  const folder = t.testdir({})
  install(folder)
  const plugin = /^```ts\n([\s\S]*?)^```$/m.exec(readme)?.[1] ?? ''
  writeFileSync(join(folder, 'hello.ts'), plugin)
  t.equal(await typeCheck(folder, ['hello.ts']), '')
  const program = await startProgram({ base: folder, entries: [{ plugin: './hello.ts' }] })
  t.teardown(() => program.stop())
  const reply = await program.service('http').dispatch({ method: 'GET', path: '/hello/Ada' })
  t.match(readme, JSON.stringify(reply.body))
})
