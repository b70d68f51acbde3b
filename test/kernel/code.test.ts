import { execFile } from 'node:child_process'
import { mkdirSync, symlinkSync, writeFileSync } from 'node:fs'
import { dirname, join, relative } from 'node:path'
import { fileURLToPath } from 'node:url'
import { promisify } from 'node:util'
import t, { type Test } from 'tap'
import { createCodeLoader } from '../../kernel/code.ts'
import { CodedError, definePlugin, isCoded } from '../../kernel/index.ts'
import type { Plugin } from '../../kernel/plugin.ts'
import { stampOf } from '../../kernel/watch.ts'

type Files = Readonly<Record<string, string>>

function write(folder: string, files: Files): void {
  for (const [name, text] of Object.entries(files)) {
    mkdirSync(dirname(join(folder, name)), { recursive: true })
    writeFileSync(join(folder, name), text)
  }
}

/** A loader over a folder with these files; `builtins/` holds the built-in plugins, `plugins/` what is compiled. */
function setUp(t: Test, files: Files) {
  const base = t.testdir()
  write(base, { 'builtins/.keep': '', ...files })
  const loader = createCodeLoader({ builtins: join(base, 'builtins'), sources: join(base, 'sources'), base })
  return { base, loader, write: (more: Files) => write(base, more) }
}

/** What the `apply` of a plugin returns: the test plugins answer with what they saw. */
async function run(plugin: Plugin): Promise<unknown> {
  return (plugin.apply as (...args: unknown[]) => unknown)()
}

const plain = (name: string, answer = '1') =>
  `import { definePlugin } from 'heartwood'\nexport default definePlugin({ name: '${name}', apply: () => ${answer} })\n`

t.test('a path to TypeScript or JavaScript, with or without its ending, or to a folder, is a plugin', async (t) => {
  const { loader, base } = setUp(t, {
    'p/a.ts': plain('a', '(1 as number)'),
    'p/b.js': plain('b'),
    'p/c.mjs': plain('c'),
    'p/d.cjs':
      "const { definePlugin } = require('heartwood')\nmodule.exports = definePlugin({ name: 'd', apply: () => 1 })",
    'p/e/index.ts': plain('e'),
    'p/f/index.mjs': plain('f')
  })
  const cases: [string, string, string][] = [
    ['./p/a.ts', 'a', 'p/a.ts'],
    ['./p/a', 'a', 'p/a.ts'],
    ['./p/b.js', 'b', 'p/b.js'],
    ['./p/c', 'c', 'p/c.mjs'],
    ['./p/d.cjs', 'd', 'p/d.cjs'],
    ['./p/e', 'e', 'p/e/index.ts'],
    [join(base, 'p/f'), 'f', 'p/f/index.mjs']
  ]
  for (const [path, name, file] of cases) {
    const loaded = await loader.load(path)
    t.equal(loaded.plugin.name, name)
    t.same(loaded.files, [join(base, file)])
    t.equal(await run(loaded.plugin), 1)
  }
})

t.test('a plugin shares the kernel and its packages with the program, and bundles its own files', async (t) => {
  const { loader, base } = setUp(t, {
    'node_modules/modern/package.json': '{ "type": "module", "exports": { "import": "./main.js" } }',
    'node_modules/modern/main.js': 'export default 5\nexport const state = { count: 0 }\nexport { state as "a-b" }',
    'node_modules/old/package.json': '{ "main": "main.js" }',
    'node_modules/old/main.js': 'exports.state = { count: 0 }',
    'p/a.ts': `
      import { CodedError, definePlugin } from 'heartwood'
      import five, { state } from 'modern'
      import old, { state as oldState } from 'old'
      import { sep } from 'node:path'
      import path from 'path'
      import { helper } from './helper.js'
      interface Unused { readonly x: string }
      export default definePlugin({
        name: 'a',
        async apply() {
          state.count++
          oldState.count++
          const later = await import('modern')
          return {
            five, count: state.count, old: old.state.count, later: later.state.count, helper: helper(), path: path.sep === sep,
            error: new CodedError('A_B', 'x'), url: import.meta.url, dir: import.meta.dirname, file: import.meta.filename
          }
        }
      })`,
    'p/helper.ts': "export const helper = (): string => 'help'"
  })
  const first = await loader.load('./p/a.ts')
  const saw = (await run(first.plugin)) as Record<string, unknown>
  const again = (await run((await loader.load('./p/a.ts')).plugin)) as Record<string, unknown>

  t.match(saw, { five: 5, count: 1, old: 1, later: 1, helper: 'help', path: true })
  t.match(again, { count: 2, old: 2, later: 2 }, 'the packages are there once')
  t.ok(saw['error'] instanceof CodedError)
  t.same([...first.files].sort(), [join(base, 'p/a.ts'), join(base, 'p/helper.ts')])
  t.equal(saw['url'], `file://${join(base, 'p/a.ts')}`)
  t.equal(saw['dir'], join(base, 'p'))
  t.equal(saw['file'], join(base, 'p/a.ts'))
})

t.test('a package name is a plugin, found from the folder of the program file', async (t) => {
  const { loader, base } = setUp(t, {
    'node_modules/heartwood-rain/package.json': '{ "type": "module", "exports": "./main.js" }',
    'node_modules/heartwood-rain/main.js': plain('rain'),
    'node_modules/@acme/sun/package.json': '{ "main": "lib/main.js" }',
    'node_modules/@acme/sun/lib/main.js':
      "exports.__esModule = true\nexports.default = require('heartwood').definePlugin({ name: 'sun', apply: () => 1 })"
  })
  const rain = await loader.load('heartwood-rain')

  t.equal(rain.plugin.name, 'rain')
  t.same(rain.files, [join(base, 'node_modules/heartwood-rain/main.js')])
  t.equal((await loader.load('@acme/sun')).plugin.name, 'sun')
})

t.test('every load of a path takes what is on disk now', async (t) => {
  const { loader, write } = setUp(t, {
    'p/a.ts':
      "import { definePlugin } from 'heartwood'\nimport { n } from './n.ts'\nexport default definePlugin({ name: 'a', apply: () => n })",
    'p/n.ts': 'export const n = 1'
  })
  const one = await loader.load('./p/a.ts')
  write({ 'p/n.ts': 'export const n = 2' })
  const two = await loader.load('./p/a.ts')

  t.same([await run(one.plugin), await run(two.plugin)], [1, 2])
})

t.test('a built-in label is the compiled module; a fresh one is bundled from its source', async (t) => {
  const kernel = new URL('../../kernel/index.js', import.meta.url).href
  const compiled = `import { definePlugin } from '${kernel}'\nexport default definePlugin({ name: 'clock', apply: () => 'compiled' })\n`
  const { loader, base, write } = setUp(t, { 'builtins/clock/index.js': compiled, 'builtins/types-only/types.js': '' })

  const first = await loader.load('clock')
  t.same(loader.labels(), ['clock'])
  t.equal((await loader.load('clock')).plugin, first.plugin, 'the module is there once')
  t.equal(await run(first.plugin), 'compiled')

  write({
    'builtins/clock/index.js': compiled
      .replace(kernel, '../../kernel/index.js')
      .replace("'compiled'", "'compiled anew'")
  })
  const second = await loader.load('clock', { fresh: true })
  t.equal(await run(second.plugin), 'compiled anew')
  t.same(second.files, [join(base, 'builtins/clock/index.js')])

  write({
    'sources/clock/index.ts': `import { definePlugin } from '../../kernel/index.ts'\nimport { word } from './word.ts'\nexport default definePlugin({ name: 'clock', apply: () => word })`,
    'sources/clock/word.ts': "export const word: string = 'source'"
  })
  t.equal(await run((await loader.load('clock', { fresh: true })).plugin), 'source')
})

t.test('the built-in plugins of this program can all be bundled', async (t) => {
  const builtins = fileURLToPath(new URL('../../plugins', import.meta.url))
  const loader = createCodeLoader({ builtins, base: t.testdir() })
  for (const label of loader.labels()) t.equal((await loader.load(label, { fresh: true })).plugin.name, label)
})

t.test('what cannot be loaded is refused with a code, the file and the place', async (t) => {
  const { loader, base } = setUp(t, {
    'builtins/clock/index.js': 'export default 1',
    'builtins/broken/index.js': "throw new Error('no clock here')",
    'p/syntax.ts': "import { x } from 'heartwood'\nexport default {{{\n",
    'p/throws.ts':
      "interface A { b: string }\n\nconst x = () => { throw new RangeError('too far') }\nx()\nexport default 1",
    'p/number.ts': 'export default 5',
    'p/nothing.ts': 'export const plugin = 5',
    'p/key.js': "export default { name: 'k', apply() {}, injects: [] }",
    'p/package.ts': "import x from 'not-installed'\nexport default x",
    'p/file.ts': "\nimport x from './gone.js'\nexport default x",
    'p/kernel.ts': "import { nope } from 'heartwood'\nexport default nope",
    'p/await.ts': 'await 1\nexport default 1'
  })
  const cases: [string, string, RegExp][] = [
    ['./p/syntax.ts', 'PLUGIN_BUILD_FAILED', /p\/syntax\.ts:2:17: Expected identifier/],
    ['./p/throws.ts', 'PLUGIN_LOAD_FAILED', /p\/throws\.ts:3:25: plugin '.\/p\/throws\.ts' threw .*: too far/],
    ['./p/number.ts', 'PLUGIN_INVALID', /p\/number\.ts: .* found number/],
    ['./p/nothing.ts', 'PLUGIN_BUILD_FAILED', /p\/nothing\.ts:1:1: there is no default export/],
    ['./p/key.js', 'PLUGIN_INVALID', /p\/key\.js: .*unknown key 'injects'/],
    ['./p/package.ts', 'PLUGIN_BUILD_FAILED', /p\/package\.ts:1:15: Cannot find package 'not-installed'/],
    ['./p/file.ts', 'PLUGIN_BUILD_FAILED', /p\/file\.ts:2:15: Could not resolve "\.\/gone\.js"/],
    ['./p/kernel.ts', 'PLUGIN_BUILD_FAILED', /p\/kernel\.ts:1:10: No matching export in 'heartwood'/],
    ['./p/await.ts', 'PLUGIN_BUILD_FAILED', /p\/await\.ts:1:1: Top-level await/],
    ['./p/gone.ts', 'PLUGIN_NOT_FOUND', /'\.\/p\/gone\.ts' was not found from/],
    ['@acme/gone', 'PLUGIN_NOT_FOUND', /'@acme\/gone' was not found from/],
    ['clok', 'PLUGIN_NOT_FOUND', /'clok'; did you mean 'clock'\?/],
    ['clock', 'PLUGIN_INVALID', /builtins\/clock\/index\.js: .* found number/],
    ['broken', 'PLUGIN_LOAD_FAILED', /builtins\/broken\/index\.js: .*no clock here/]
  ]
  for (const [plugin, code, message] of cases) {
    const error: unknown = await loader.load(plugin).catch((error: unknown) => error)
    if (!isCoded(error)) throw error
    t.equal(error.code, code, plugin)
    t.match(error.message, message)
    t.equal(error.detail?.['plugin'], plugin)
  }
  const failed = await loader.load('./p/syntax.ts').catch((error: unknown) => error)
  t.match(failed, { detail: { faults: [{ file: join(base, 'p/syntax.ts'), line: 2, column: 17 }] } })
})

t.test('it is known what a load has read, and where an import looked in vain', async (t) => {
  const { loader, base, write } = setUp(t, {
    'p/a.ts': "import { n } from './n.js'\nexport default n",
    'p/deep/m.json': '{}'
  })
  const files = (plugin: string) => [...loader.filesOf(plugin)].map(([file, stamp]) => [relative(base, file), stamp])
  t.same(files('./p/a.ts'), [], 'nothing was loaded yet')

  await t.rejects(loader.load('./p/a.ts'), { code: 'PLUGIN_BUILD_FAILED' })
  const failed = new Map(files('./p/a.ts') as [string, string][])
  t.equal(failed.get('p/a.ts'), stampOf("import { n } from './n.js'\nexport default n"))
  for (const name of ['p/n.js', 'p/n.ts', 'p/n.js/index.ts']) t.match(failed.get(name), /^none /, name)

  const helper =
    "import m from './deep/m.json'\nimport { definePlugin } from 'heartwood'\n" +
    "export const n = definePlugin({ name: 'a', apply: () => m })"
  write({ 'p/n.ts': helper })
  await loader.load('./p/a.ts')
  const read = new Map(files('./p/a.ts') as [string, string][])
  t.same([...read.keys()].sort(), ['p/a.ts', 'p/deep/m.json', 'p/n.ts'])
  t.equal(read.get('p/n.ts'), stampOf(helper))
  t.equal(read.get('p/deep/m.json'), stampOf('{}'))

  await t.rejects(loader.load('./p/gone'), { code: 'PLUGIN_NOT_FOUND' })
  const gone = new Map(files('./p/gone') as [string, string][])
  for (const name of ['p/gone', 'p/gone.ts', 'p/gone/index.js']) t.match(gone.get(name), /^none /, name)
  t.same(files('clock'), [])
})

t.test('a bare manifest becomes a whole plugin', async (t) => {
  const { loader } = setUp(t, { 'p/a.js': "export default { name: 'a', apply: () => 1 }" })
  const { plugin } = await loader.load('./p/a.js')
  const { apply, ...rest } = definePlugin({ name: 'a', apply: () => undefined })
  t.match(plugin, rest)
  t.type(plugin.apply, typeof apply)
})

t.test('a stack from a bundle is read in the lines of its files', async (t) => {
  const { loader, base } = setUp(t, {
    'p/a.ts':
      "import { definePlugin } from 'heartwood'\nimport { fail } from './fail.ts'\nexport default definePlugin({ name: 'a', apply: () => fail() })",
    'p/fail.ts': "interface A {\n  b: string\n}\n\nexport function fail(): void {\n  throw new Error('here')\n}"
  })
  const { plugin } = await loader.load('./p/a.ts')
  const error = (await run(plugin).catch((error: unknown) => error)) as Error
  const lines = loader.readable(error.stack ?? '').split('\n')

  t.match(lines[1], `${join(base, 'p/fail.ts')}:6:9`)
  t.match(lines[2], `${join(base, 'p/a.ts')}:3:`)
  t.equal(loader.readable('at /elsewhere/x.js:1:1'), 'at /elsewhere/x.js:1:1')
})

t.test('the folder of the program may be reached through a link', async (t) => {
  const { base, loader: _, write } = setUp(t, {})
  write({ 'real/p/a.ts': plain('a') })
  symlinkSync(join(base, 'real'), join(base, 'link'))
  const loader = createCodeLoader({ builtins: join(base, 'builtins'), base: join(base, 'link') })
  const { plugin, files } = await loader.load('./p/a.ts')
  t.equal(plugin.name, 'a')
  t.same(files, [join(base, 'real/p/a.ts')])
})

t.test('code that was replaced does not stay in memory', async (t) => {
  const script = fileURLToPath(new URL('../fixtures/reload-leak.js', import.meta.url))
  // `env -i` takes out what tap puts into every child to measure coverage, which keeps every script alive.
  const { stdout } = await promisify(execFile)('env', ['-i', process.execPath, script, t.testdir()])
  const { keptKiB, alive, sourceKiB } = JSON.parse(stdout) as { keptKiB: number; alive: number; sourceKiB: number }
  t.comment(`${keptKiB.toFixed(1)} KiB kept per reload of ${sourceKiB.toFixed(0)} KiB of source`)
  t.ok(keptKiB < sourceKiB / 3, 'far less than the source')
  t.ok(alive <= 1, 'the old plugins are gone')
})
