import { mkdirSync, readdirSync, readFileSync, symlinkSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import { newPlugin } from '../../authoring/new-plugin.ts'
import { CodedError } from '../../kernel/index.ts'
import { install, runNode, typeCheck } from './package.ts'

const taken = ['http', 'store']

t.test('a new plugin type-checks and its test passes where the package is installed', async (t) => {
  const folder = t.testdir({})
  install(folder)
  const said = await newPlugin('rain-gauge', { folder, taken, cwd: folder })

  t.equal(await typeCheck(folder, ['rain-gauge.ts']), '')
  const command = /^ {2}node (--test .*)$/m.exec(said)?.[1]
  t.equal(command, '--test rain-gauge.test.mjs')
  const ended = await runNode(folder, command?.split(' ') ?? [])
  t.match(ended, { code: 0, output: /pass 2/ }, ended.output)
})

t.test('its test fails when the plugin does', async (t) => {
  const folder = t.testdir({})
  install(folder)
  await newPlugin('wet', { folder, taken, cwd: folder })
  const file = join(folder, 'wet.ts')
  writeFileSync(file, readFileSync(file, 'utf8').replace('params.name}', 'params.nane}'))
  t.equal(await typeCheck(folder, ['wet.ts']), '', 'a parameter is any word')
  const ended = await runNode(folder, ['--test', 'wet.test.mjs'])
  t.match(ended, { code: 1, output: /hello undefined/ })
})

t.test('what is said names the files from where the user is, and an entry that runs', async (t) => {
  const cwd = t.testdir({ deploy: {} })
  const said = await newPlugin('rain', { folder: join(cwd, 'deploy'), taken, cwd })
  t.match(said, /^wrote deploy\/rain\.ts and deploy\/rain\.test\.mjs$/m)
  t.match(said, /node --test deploy\/rain\.test\.mjs/)
  t.match(said, /\[\[entry\]\]\n {2}id = "rain"\n {2}plugin = "\.\/rain\.ts"/)
  t.strictSame(readdirSync(join(cwd, 'deploy')).sort(), ['rain.test.mjs', 'rain.ts'])
})

t.test('nothing that is there is written over, whatever it is', async (t) => {
  const cases: readonly [string, (folder: string) => void][] = [
    ['rain.ts', (folder) => writeFileSync(join(folder, 'rain.ts'), 'mine')],
    ['rain.test.mjs', (folder) => writeFileSync(join(folder, 'rain.test.mjs'), 'mine')],
    ['rain.ts', (folder) => mkdirSync(join(folder, 'rain.ts'))],
    ['rain.ts', (folder) => symlinkSync('nowhere', join(folder, 'rain.ts'))]
  ]
  for (const [at, [file, make]] of cases.entries()) {
    const folder = join(t.testdir({}), `${at}`)
    mkdirSync(folder)
    make(folder)
    const error: unknown = await newPlugin('rain', { folder, taken, cwd: folder }).catch((error: unknown) => error)
    t.match(error, { code: 'PLUGIN_EXISTS', message: `${join(folder, file)} is there already` })
    t.strictSame(readdirSync(folder), [file], 'and nothing else is written')
  }
})

t.test('a name that is none is refused in words', async (t) => {
  const folder = t.testdir({})
  const names = [
    '',
    'Rain',
    '../rain',
    'rain.ts',
    'a b',
    '1rain',
    '-rain',
    'rain-',
    'ra--in',
    'regen_',
    'регн',
    'x'.repeat(65)
  ]
  for (const name of names) {
    const error: unknown = await newPlugin(name, { folder, taken, cwd: folder }).catch((error: unknown) => error)
    t.ok(error instanceof CodedError)
    t.match(error, { code: 'PLUGIN_NAME_INVALID', message: /rain-gauge/ }, name)
  }
  await t.rejects(newPlugin('http', { folder, taken, cwd: folder }), { message: /'http' is a built-in plugin/ })
  t.strictSame(readdirSync(folder), [])
})
