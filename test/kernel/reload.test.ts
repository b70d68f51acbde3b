import { execFile } from 'node:child_process'
import {
  lstatSync,
  mkdirSync,
  readFileSync,
  renameSync,
  rmSync,
  symlinkSync,
  unlinkSync,
  utimesSync,
  writeFileSync
} from 'node:fs'
import { dirname, join, relative } from 'node:path'
import { fileURLToPath } from 'node:url'
import { promisify } from 'node:util'
import t, { type Test } from 'tap'
import { createCodeLoader } from '../../kernel/code.ts'
import type { FiberStatus } from '../../kernel/control.ts'
import { Listener } from '../../kernel/events.ts'
import { type ProgramHost, startKernel } from '../../kernel/host.ts'
import { createJsonLogger, type KernelControl } from '../../kernel/index.ts'

type Line = { readonly level: string; readonly message: string } & Readonly<Record<string, unknown>>

interface Live {
  readonly folder: string
  readonly host: ProgramHost
  readonly control: KernelControl
  /** What plugins have noted so far, oldest first. */
  readonly notes: string[]
  readonly lines: readonly Line[]
  /** Resolves with the next line of the log with this message; each line is answered once. */
  readonly logged: (message: string) => Promise<Line>
  /** What the service of this name answers to `version()`. */
  readonly version: (service: string) => unknown
  readonly fiber: (entry: string) => FiberStatus | undefined
  readonly write: (name: string, text: string) => void
  readonly read: (name: string) => string
}

const taken = 'code was reloaded'
const refused = 'new code was refused'
const programTaken = 'the program file was taken in'
const programRefused = 'the program file was refused'

/** A running program in a folder of its own that follows its files. Plugins find `note` among the globals. */
async function live(
  t: Test,
  files: Readonly<Record<string, string>>,
  prepare: (folder: string) => void = () => {}
): Promise<Live> {
  const folder = t.testdir({})
  const write = (name: string, text: string) => {
    mkdirSync(dirname(join(folder, name)), { recursive: true })
    writeFileSync(join(folder, `${name}.saving`), text)
    renameSync(join(folder, `${name}.saving`), join(folder, name))
  }
  for (const [name, text] of Object.entries(files)) write(name, text)
  prepare(folder)

  const notes: string[] = []
  Object.assign(globalThis, { note: (text: string) => notes.push(text) })
  const lines: Line[] = []
  const unread: Line[] = []
  const waiting: { message: string; resolve: (line: Line) => void }[] = []
  const log = createJsonLogger({
    level: 'debug',
    write: (text) => {
      const line = JSON.parse(text) as Line
      lines.push(line)
      const at = waiting.findIndex(({ message }) => message === line.message)
      if (at < 0) unread.push(line)
      else waiting.splice(at, 1)[0]?.resolve(line)
    }
  })
  const builtins = fileURLToPath(new URL('../../plugins', import.meta.url))
  const host = await startKernel({
    program: join(folder, 'program.toml'),
    loader: createCodeLoader({ builtins, base: folder }),
    env: {},
    log,
    watch: { settleMs: 10 }
  })
  t.teardown(() => host.stop())
  return {
    folder,
    host,
    control: host.kernel.service('kernel') as KernelControl,
    notes,
    lines,
    logged: (message) => {
      const at = unread.findIndex((line) => line.message === message)
      if (at >= 0) return Promise.resolve(unread.splice(at, 1)[0] as Line)
      return new Promise((resolve) => waiting.push({ message, resolve }))
    },
    version: (service) => (host.kernel.service(service as never) as { version(): unknown } | undefined)?.version(),
    fiber: (entry) => (host.kernel.service('kernel') as KernelControl).fibers().find((each) => each.entry === entry),
    write,
    read: (name) => readFileSync(join(folder, name), 'utf8')
  }
}

const entry = (id: string, more = '') => `[[entry]]\nid = "${id}"\nplugin = "./${id}.ts"\n${more}\n`

/** A plugin that provides a service of its own name, whose version is an expression. */
const plugin = (name: string, version: string, more: { imports?: string; manifest?: string; body?: string } = {}) => `
import { definePlugin } from 'heartwood'
${more.imports ?? ''}
export default definePlugin({
  name: '${name}',
  provides: ['${name}'],
  ${more.manifest ?? ''}
  async apply(ctx, config) {
    note('apply ${name} ' + ${version})
    ctx.effect(() => () => note('undo ${name} ' + ${version}))
    ctx.provide('${name}', { version: () => ${version} })
    ${more.body ?? ''}
  }
})
`

t.test('I01: an edit puts new code in the place of the old, under the same fiber', async (t) => {
  const { fiber, logged, notes, version, write } = await live(t, {
    'program.toml': entry('a'),
    'a.ts': plugin('a', '1')
  })
  const before = fiber('a')
  write('a.ts', plugin('a', '2'))
  await logged(taken)

  t.equal(version('a'), 2)
  t.match(fiber('a'), { fiberId: before?.fiberId, entry: 'a', state: 'Active', generation: 2, error: null })
  await until(() => notes.length === 3)
  t.strictSame(notes, ['apply a 1', 'apply a 2', 'undo a 1'])
})

t.test('I02, I15: an edit of one plugin is nothing to another', async (t) => {
  const { fiber, logged, notes, write } = await live(t, {
    'program.toml': entry('a') + entry('b'),
    'a.ts': plugin('a', 'leaf', { imports: "import { leaf } from './leaf.ts'" }),
    'leaf.ts': 'export const leaf = 1',
    'b.ts': plugin('b', '1')
  })
  const before = fiber('b')
  write('leaf.ts', 'export const leaf = 2')
  await logged(taken)

  t.same(fiber('b'), before)
  t.strictSame(
    notes.filter((note) => note.includes('b')),
    ['apply b 1']
  )
})

t.test('I03, I04: all that import a file are swapped once each, through deep chains and rings', async (t) => {
  const chain = Object.fromEntries(
    Array.from({ length: 20 }, (_, at) => [`deep/${at}.ts`, `export { leaf } from './${at + 1}.ts'`])
  )
  const { logged, notes, version, write } = await live(t, {
    'program.toml': entry('a') + entry('b') + entry('c'),
    'a.ts': plugin('a', 'leaf', { imports: "import { leaf } from './deep/0.ts'" }),
    'b.ts': plugin('b', 'ring()', { imports: "import { ring } from './ring.ts'" }),
    'c.ts': plugin('c', '1'),
    ...chain,
    'deep/20.ts': 'export const leaf = 1',
    'ring.ts': "import { back } from './gnir.ts'\nexport const ring = () => back()\nexport const one = 1",
    'gnir.ts':
      "import { one } from './ring.ts'\nimport { leaf } from './deep/20.ts'\nexport const back = () => one * leaf"
  })
  write('deep/20.ts', 'export const leaf = 2')
  const first = await logged(taken)
  const second = await logged(taken)

  t.strictSame([first['plugin'], second['plugin']], ['./a.ts', './b.ts'])
  t.strictSame([version('a'), version('b'), version('c')], [2, 2, 1])
  const applied = notes.filter((note) => note.startsWith('apply'))
  t.strictSame(applied, ['apply a 1', 'apply b 1', 'apply c 1', 'apply a 2', 'apply b 2'])
})

t.test(
  'I05, I06, I07: code that does not load leaves the old serving, is told, and mended by the next save',
  async (t) => {
    const { fiber, logged, notes, version, write } = await live(t, {
      'program.toml': entry('a'),
      'a.ts': plugin('a', '1')
    })
    const broken: readonly [string, RegExp][] = [
      ['export default {{', /a\.ts:1:\d+: Expected/],
      ["import { x } from './gone.ts'\nexport default x", /a\.ts:1:\d+: Could not resolve/],
      ["const x: number = 1\nthrow new Error('at the top')\nexport default x", /a\.ts:2:\d+: .*at the top/],
      ['export default 5', /no plugin/],
      [
        "import { definePlugin } from 'heartwood'\nexport default definePlugin({ name: 'a' })",
        /needs an apply function/
      ],
      ['export const other = 1', /a\.ts:1:1: there is no default export/]
    ]
    let good = 1
    for (const [text, message] of broken) {
      write('a.ts', text)
      const line = await logged(refused)
      t.match(line, { level: 'error', plugin: './a.ts', error: { message } })
      t.equal(version('a'), good)
      t.match(fiber('a'), { state: 'Active', error: message, generation: good })

      good += 1
      write('a.ts', plugin('a', `${good}`))
      await logged(taken)
      t.equal(version('a'), good)
      t.match(fiber('a'), { state: 'Active', error: null })
    }
    t.strictSame(notes.filter((note) => note.startsWith('apply')).length, good, 'nothing was applied that was refused')
  }
)

t.test('a file that an import looked for in vain is enough when it comes', async (t) => {
  const { logged, version, write } = await live(t, { 'program.toml': entry('a'), 'a.ts': plugin('a', '1') })
  write('a.ts', plugin('a', 'leaf', { imports: "import { leaf } from './new/leaf.ts'" }))
  await logged(refused)
  write('new/leaf.ts', 'export const leaf = 2')
  await logged(taken)
  t.equal(version('a'), 2)
})

t.test('I08: when apply fails the old code goes on; when it never ran, the next good save starts it', async (t) => {
  const failing = (text: string) => plugin('a', '0', { body: `throw new Error('${text}')` })
  const { fiber, folder, logged, notes, version, write } = await live(t, {
    'program.toml': entry('a') + entry('b'),
    'a.ts': plugin('a', '1'),
    'b.ts': plugin('b', '1', { body: "throw new Error('from the start')" })
  })
  t.match(fiber('b'), { state: 'Failed', error: 'from the start' })
  const { generation } = fiber('a') as FiberStatus

  write('a.ts', failing('new'))
  t.match(await logged(refused), { plugin: './a.ts', error: { message: 'new' } })
  t.match(fiber('a'), { state: 'Active', error: 'new', generation })
  t.equal(version('a'), 1)
  t.notMatch(notes, ['undo a 1'], 'what serves was not touched')
  await until(() => notes.includes('undo a 0'))

  write('a.ts', plugin('a', '2'))
  await logged(taken)
  t.equal(version('a'), 2)
  t.match(fiber('a'), { state: 'Active', error: null })

  write('b.ts', plugin('b', '2', { body: "throw new Error('still')" }))
  await until(() => fiber('b')?.error === 'still')
  write('b.ts', plugin('b', '3'))
  await until(() => fiber('b')?.state === 'Active')
  t.equal(version('b'), 3)
  t.ok(folder)
})

t.test('code that needs what is not there is refused; its config and its manifest are looked at first', async (t) => {
  const { fiber, logged, version, write } = await live(t, {
    'program.toml': entry('a', 'config = { n = 1 }'),
    'a.ts': plugin('a', '1', { manifest: 'config: {},' })
  })
  write('a.ts', plugin('a', '2', { manifest: "config: {}, inject: ['nobody']," }))
  t.match(await logged(refused), { error: { message: /needs service 'nobody'/ } })
  t.match(fiber('a'), { state: 'Active', generation: 1 })
  write('a.ts', plugin('a', '2', { manifest: "config: { type: 'object', properties: { n: { type: 'string' } } }," }))
  t.match(await logged(refused), { error: { message: /n must be string/ } })
  t.equal(version('a'), 1)
  write(
    'a.ts',
    plugin('a', 'config.n', { manifest: "config: { type: 'object', properties: { n: { type: 'integer' } } }," })
  )
  await logged(taken)
  t.equal(version('a'), 1)
  t.match(fiber('a'), { generation: 2 })
})

t.test('a plugin and the service it comes to need may change in one save, in any order', async (t) => {
  const { fiber, logged, version, write } = await live(t, {
    'program.toml': entry('a') + entry('b'),
    'shared.ts': 'export const provides: string[] = []',
    'a.ts': plugin('a', '1'),
    'b.ts': plugin('b', '1')
  })
  write(
    'b.ts',
    `
    import { definePlugin } from 'heartwood'
    export default definePlugin({
      name: 'b', provides: ['b', 'extra'],
      apply(ctx) {
        ctx.provide('b', { version: () => 2 })
        ctx.provide('extra', { version: () => 'more' })
      }
    })`
  )
  write('a.ts', plugin('a', 'ctx.services.extra.version()', { manifest: "inject: ['extra']," }))
  await logged(taken)
  await logged(taken)
  t.equal(version('a'), 'more')
  t.match([fiber('a'), fiber('b')], [{ state: 'Active' }, { state: 'Active' }])
})

t.test('I09, I10: many saves in a row end on the last, in few reloads', async (t) => {
  const { fiber, logged, version, write } = await live(t, { 'program.toml': entry('a'), 'a.ts': plugin('a', '1') })
  for (const n of [2, 3, 4]) write('a.ts', plugin('a', `${n}`))
  await logged(taken)
  t.equal(version('a'), 4)
  t.ok((fiber('a')?.generation ?? 9) <= 3)
  for (const n of [5, 6, 7, 8, 9]) {
    write('a.ts', plugin('a', `${n}`))
    await new Promise((resolve) => setImmediate(resolve))
  }
  await until(() => version('a') === 9)
  t.match(fiber('a'), { state: 'Active', error: null })
})

t.test('I11: a plugin that mounts another is there once, and so is the other', async (t) => {
  const child = (n: number) => plugin('child', `${n}`)
  const parent = (n: number) =>
    plugin('parent', `${n}`, { imports: "import child from './child.ts'", body: 'ctx.mount(child)' })
  const { host, logged, notes, version, write } = await live(t, {
    'program.toml': entry('parent'),
    'parent.ts': parent(1),
    'child.ts': child(1)
  })
  await host.kernel.settled()
  write('parent.ts', parent(2))
  write('child.ts', child(2))
  await logged(taken)
  await until(() => version('child') === 2)
  t.equal(version('parent'), 2)
  await until(() => notes.includes('undo parent 1'))
  t.strictSame(notes.filter((note) => note.startsWith('undo')).sort(), ['undo child 1', 'undo parent 1'])
  t.strictSame(
    host.kernel.fibers().map((fiber) => fiber.entry),
    ['parent', 'parent/child']
  )
})

t.test(
  'I12: a provider whose undo takes long is swapped without a gap; an exclusive one is undone first',
  async (t) => {
    const slow = "ctx.effect(() => async () => { await null; await null; note('closed') })"
    const { logged, notes, version, write } = await live(t, {
      'program.toml': entry('a') + entry('b'),
      'a.ts': plugin('a', '1', { body: slow }),
      'b.ts': plugin('b', '1', { body: slow, manifest: 'exclusive: true,' })
    })
    notes.length = 0
    write('a.ts', plugin('a', '2', { body: slow }))
    await logged(taken)
    t.equal(version('a'), 2)
    await until(() => notes.includes('undo a 1'))
    t.strictSame(notes, ['apply a 2', 'closed', 'undo a 1'])

    notes.length = 0
    write('b.ts', plugin('b', '2', { body: slow, manifest: 'exclusive: true,' }))
    await logged(taken)
    t.strictSame(notes, ['closed', 'undo b 1', 'apply b 2'])
    t.equal(version('b'), 2)
  }
)

t.test('an exclusive plugin whose new code fails gets its old code back, and both errors are told', async (t) => {
  const exclusive = { manifest: 'exclusive: true,' }
  const { fiber, logged, notes, version, write } = await live(t, {
    'program.toml': entry('a'),
    'a.ts': plugin('a', '1', { ...exclusive, body: "if (globalThis.failing) throw new Error('not again')" })
  })
  write('a.ts', plugin('a', '2', { ...exclusive, body: "throw new Error('new')" }))
  await logged(refused)
  t.equal(version('a'), 1)
  t.match(fiber('a'), { state: 'Active', error: 'new' })
  t.strictSame(notes, ['apply a 1', 'undo a 1', 'apply a 2', 'undo a 2', 'apply a 1'])

  Object.assign(globalThis, { failing: true })
  t.teardown(() => Reflect.deleteProperty(globalThis, 'failing'))
  write('a.ts', plugin('a', '3', { ...exclusive, body: "throw new Error('newer')" }))
  await logged(refused)
  t.match(fiber('a'), { state: 'Failed', error: /newer.*not again/ })
  Reflect.deleteProperty(globalThis, 'failing')
  write('a.ts', plugin('a', '4', exclusive))
  await logged(taken)
  t.equal(version('a'), 4)
})

t.test('I13: listeners and routes come and go with the code', async (t) => {
  const listening = (events: readonly string[]) =>
    plugin('a', '1', { body: events.map((event) => `ctx.on('${event}', () => note('heard ${event}'))`).join('\n') })
  const { host, logged, notes, write } = await live(t, { 'program.toml': entry('a'), 'a.ts': listening(['x', 'y']) })
  const heard = () => {
    notes.length = 0
    for (const event of ['x', 'y', 'z']) (host.kernel.events as { emit(event: string): void }).emit(event)
    return notes.filter((note) => note.startsWith('heard'))
  }
  t.strictSame(heard(), ['heard x', 'heard y'])
  for (const events of [['y', 'z'], [], ['x', 'x']]) {
    write('a.ts', listening(events))
    await logged(taken)
    t.strictSame(
      heard(),
      events.map((event) => `heard ${event}`)
    )
  }
})

t.test(
  'I14 (as ruled): the kernel and packages are shared and not reloaded; nothing is asked of built-in plugins',
  async (t) => {
    const { folder, host } = await live(t, {
      'program.toml': `${entry('a')}[[entry]]\nid = "tools"\nplugin = "tools"\n`,
      'node_modules/pack/index.js': 'exports.x = 1',
      'a.ts': plugin('a', 'x', { imports: "import { x } from 'pack'\nimport './b.ts'" }),
      'b.ts': "import { CodedError } from 'heartwood'\nexport { CodedError }"
    })
    t.strictSame(host.followed.map((file) => relative(folder, file)).sort(), ['a.ts', 'b.ts', 'program.toml'])
  }
)

t.test('KERNEL-08: what old code made in a listener ends with it', async (t) => {
  const ticking = (n: number) =>
    plugin('a', `${n}`, {
      body: `ctx.on('go', () => {
        ctx.setInterval(() => note('tick ${n}'), 1)
        ctx.effect(() => () => note('made in a listener of ${n}, and undone'))
      })`
    })
  const { control, host, logged, notes, write } = await live(t, { 'program.toml': entry('a'), 'a.ts': ticking(1) })
  const go = () => (host.kernel.events as { emit(event: string): void }).emit('go')
  go()
  await until(() => notes.includes('tick 1'))
  write('a.ts', ticking(2))
  await logged(taken)
  await until(() => notes.includes('undo a 1'))
  t.ok(notes.includes('made in a listener of 1, and undone'))
  notes.length = 0
  go()
  await until(() => notes.filter((note) => note === 'tick 2').length > 3)
  t.notOk(notes.includes('tick 1'))
  await control.toggleEntry('a')
  await until(() => notes.includes('undo a 2'))
  t.ok(notes.includes('made in a listener of 2, and undone'))
})

t.test('what is saved while the program starts is not missed', async (t) => {
  const second = plugin('a', 'config.n', { manifest: 'config: {},' })
  const { logged, version } = await live(t, {
    'program.toml': entry('a'),
    'second.txt': second,
    'a.ts': plugin('a', '1', {
      imports: "import { copyFileSync, writeFileSync } from 'node:fs'\nimport { join } from 'node:path'",
      body: `
        const folder = import.meta.dirname
        copyFileSync(join(folder, 'second.txt'), join(folder, 'a.ts'))
        writeFileSync(join(folder, 'program.toml'), '[[entry]]\\nid = "a"\\nplugin = "./a.ts"\\nconfig = { n = 2 }\\n')`
    })
  })
  await logged(programTaken)
  t.equal(version('a'), 2)
})

t.test('I18: the event says which plugins were reloaded, and of which files', async (t) => {
  const { folder, host, logged, write } = await live(t, {
    'program.toml': entry('a') + entry('b') + '[[entry]]\nid = "a:2"\nplugin = "./a.ts"\n' + 'isolate = "two"\n',
    'a.ts': plugin('a', 'leaf', { imports: "import { leaf } from './leaf.ts'" }),
    'b.ts': plugin('b', '1'),
    'leaf.ts': 'export const leaf = 1'
  })
  const events: unknown[] = []
  host.kernel.events.add('kernel/code-reloaded', new Listener((event: unknown) => events.push(event), undefined))
  write('leaf.ts', 'export const leaf = 2')
  t.match(await logged(taken), { level: 'info', plugin: './a.ts', entries: ['a', 'a:2'] })
  await until(() => events.length > 0)
  t.strictSame(events, [{ plugins: [{ plugin: './a.ts', entries: ['a', 'a:2'] }], files: [join(folder, 'leaf.ts')] }])
})

t.test('I19: of three plugins one fails: the others run the new code, and it is named', async (t) => {
  const leaf = "import { leaf } from './leaf.ts'"
  const { fiber, logged, version, write } = await live(t, {
    'program.toml': entry('a') + entry('b') + entry('c'),
    'a.ts': plugin('a', 'leaf', { imports: leaf }),
    'b.ts': plugin('b', 'leaf', { imports: leaf, body: "if (leaf === 2) throw new Error('two is too many')" }),
    'c.ts': plugin('c', 'leaf', { imports: leaf }),
    'leaf.ts': 'export const leaf = 1'
  })
  write('leaf.ts', 'export const leaf = 2')
  t.match(await logged(refused), { plugin: './b.ts', error: { message: 'two is too many' } })
  await logged(taken)
  await logged(taken)
  t.strictSame([version('a'), version('b'), version('c')], [2, 1, 2])
  t.match(fiber('b'), { state: 'Active', error: 'two is too many' })
  write('leaf.ts', 'export const leaf = 3')
  for (let time = 0; time < 3; time++) await logged(taken)
  t.strictSame([version('a'), version('b'), version('c')], [3, 3, 3])
  t.match(fiber('b'), { error: null })
})

t.test('all entries of a plugin run the same code: when one cannot, none does', async (t) => {
  const { fiber, logged, write } = await live(t, {
    'program.toml': `${entry('a')}[[entry]]\nid = "a2"\nplugin = "./a.ts"\nisolate = "two"\nconfig = { bad = true }\n`,
    'a.ts': plugin('a', '1', { manifest: 'config: {},' })
  })
  write('a.ts', plugin('a', '2', { manifest: 'config: {},', body: "if (config.bad) throw new Error('bad')" }))
  await logged(refused)
  t.match(
    [fiber('a'), fiber('a2')],
    [
      { state: 'Active', error: 'bad' },
      { state: 'Active', error: 'bad' }
    ]
  )
  t.equal(fiber('a')?.generation, 3, 'there and back')
  write('a.ts', plugin('a', '3', { manifest: 'config: {},' }))
  await logged(taken)
  t.match(
    [fiber('a'), fiber('a2')],
    [
      { error: null, generation: 4 },
      { error: null, generation: 2 }
    ]
  )
})

t.test('I20: a change during a reload is a second pass after the first', async (t) => {
  const held = (n: number) => plugin('a', `${n}`, { body: 'await globalThis.hold?.()' })
  const { fiber, logged, notes, version, write } = await live(t, { 'program.toml': entry('a'), 'a.ts': held(1) })
  let release = () => {}
  Object.assign(globalThis, { hold: () => new Promise<void>((resolve) => (release = resolve)) })
  t.teardown(() => Reflect.deleteProperty(globalThis, 'hold'))
  write('a.ts', held(2))
  await until(() => notes.includes('apply a 2'))
  write('a.ts', held(3))
  for (let turn = 0; turn < 50; turn++) await new Promise((resolve) => setImmediate(resolve))
  t.notOk(notes.includes('apply a 3'), 'not beside the first')
  release()
  await until(() => notes.includes('apply a 3'))
  t.equal(version('a'), 2)
  release()
  await logged(taken)
  await logged(taken)
  t.equal(version('a'), 3)
  t.match(fiber('a'), { generation: 3 })
})

t.test(
  'code that is changed while its entry is off, or before it was ever used, is there when it begins',
  async (t) => {
    const off = `${entry('a', 'disabled = true')}${entry('b')}`
    const { control, host, logged, version, write } = await live(t, {
      'program.toml': off,
      'a.ts': plugin('a', '1'),
      'b.ts': plugin('b', '1')
    })
    write('a.ts', plugin('a', '2'))
    await logged(taken)
    await control.toggleEntry('a')
    t.equal(version('a'), 2)
    await control.deleteEntry('a')
    write('a.ts', plugin('a', '3'))
    write('b.ts', plugin('b', '2'))
    await logged(taken)
    t.strictSame(host.followed.map((file) => relative(dirname(file), file)).sort(), ['b.ts', 'program.toml'])
    await control.putEntry({ id: 'a', plugin: './a.ts' })
    t.equal(version('a'), 3)
  }
)

t.test('I17, CONFIG-01: a save of the program file is taken in once, however it is saved', async (t) => {
  const program = (n: number) => entry('a', `config = { n = ${n} }`) + entry('b')
  const { fiber, folder, logged, lines, version, write } = await live(t, {
    'program.toml': program(0),
    'a.ts': plugin('a', 'config.n', { manifest: 'config: {},' }),
    'b.ts': plugin('b', '1')
  })
  for (const n of [1, 2, 3]) {
    write('program.toml', program(n))
    t.match(await logged(programTaken), { applied: [{ id: 'a', action: 'update-config' }] })
    t.equal(version('a'), n)
  }
  writeFileSync(join(folder, 'program.toml'), program(9))
  await logged(programTaken)
  t.equal(version('a'), 9)
  write('program.toml', `# a comment alone\n${program(9)}`)
  write('program.toml', `${program(9)}${entry('c', 'disabled = true')}`.replace('./c.ts', './b.ts'))
  write('program.toml', program(10))
  await logged(programTaken)
  t.match(fiber('a'), { generation: 6 })
  t.match(fiber('b'), { generation: 1 })
  t.equal(lines.filter((line) => line.message === programTaken).length, 5)
})

t.test(
  'P13, P14, P15, P16: touched is not changed; saves by rename, several at once, and a file that comes back',
  async (t) => {
    const program = (n: number) => entry('a', `config = { n = ${n} }`)
    const { fiber, folder, lines, logged, version, write } = await live(t, {
      'program.toml': program(0),
      'a.ts': plugin('a', 'config.n', { manifest: 'config: {},' })
    })
    const file = join(folder, 'program.toml')
    utimesSync(file, 1, 1)
    write('program.toml', program(0))
    for (const n of [1, 2, 3]) {
      write('program.toml', program(n))
      await logged(programTaken)
      t.equal(version('a'), n)
    }
    for (const n of [4, 5, 6]) writeFileSync(file, program(n))
    await logged(programTaken)
    t.equal(version('a'), 6)
    rmSync(file)
    await logged(programRefused)
    t.match(fiber('a'), { state: 'Active', generation: 5 }, 'nothing is retired')
    write('program.toml', program(7))
    await logged(programTaken)
    t.equal(version('a'), 7)
    t.equal(lines.filter((line) => line.message === programTaken).length, 5)
  }
)

t.test(
  'CONFIG-03, CONFIG-04: a program behind a link, with a byte-order mark or CRLF, is followed and stays one',
  async (t) => {
    const program = (n: number) => entry('a', `config = { n = ${n} }`)
    const { control, folder, lines, logged, read, version, write } = await live(
      t,
      { 'there/program.toml': program(0), 'a.ts': plugin('a', 'config.n', { manifest: 'config: {},' }) },
      (folder) => symlinkSync('there/program.toml', join(folder, 'program.toml'))
    )
    write('there/program.toml', program(1))
    await logged(programTaken)
    t.equal(version('a'), 1)
    await control.patchEntry('a', { config: { n: 2 } })
    t.ok(lstatSync(join(folder, 'program.toml')).isSymbolicLink())
    t.match(read('there/program.toml'), /n = 2/)
    write('there/program.toml', `\uFEFF${program(3)}`)
    await logged(programTaken)
    write('there/program.toml', program(4).replaceAll('\n', '\r\n'))
    await logged(programTaken)
    t.equal(version('a'), 4)
    write('other.toml', program(5))
    unlinkSync(join(folder, 'program.toml'))
    symlinkSync('other.toml', join(folder, 'program.toml'))
    await logged(programTaken)
    t.equal(version('a'), 5)
    t.equal(lines.filter((line) => line.message === programTaken).length, 4, 'the own write was not one of them')
  }
)

t.test('P26: an edit of an included file is about its entries alone; one that comes is followed too', async (t) => {
  const include = '[[entry]]\nid = "more"\nplugin = "@include"\nconfig = { path = "sub/more.toml" }\n'
  const { fiber, logged, version, write } = await live(t, {
    'program.toml': `${entry('a')}${include}`,
    'a.ts': plugin('a', '1'),
    'sub/b.ts': plugin('b', 'config.n', { manifest: 'config: {},' }),
    'sub/more.toml': entry('b', 'config = { n = 1 }')
  })
  t.equal(version('b'), 1)
  write('sub/more.toml', entry('b', 'config = { n = 2 }'))
  t.match(await logged(programTaken), { applied: [{ id: 'b', action: 'update-config' }] })
  t.equal(version('b'), 2)
  write('sub/b.ts', plugin('b', 'config.n * 10', { manifest: 'config: {},' }))
  await logged(taken)
  t.equal(version('b'), 20)
  write('sub/more.toml', 'id = [')
  t.match(await logged(programRefused), { error: { message: /sub\/more\.toml:1:/ } })
  write(
    'sub/more.toml',
    `${entry('b', 'config = { n = 3 }')}${include.replace('"more"', '"deep"').replace('sub/more', 'deep')}`
  )
  t.match(await logged(programRefused), { error: { message: /sub\/deep\.toml/ } }, 'what it includes is missing')
  write(
    'sub/deep.toml',
    entry('c').replace('./c.ts', './b.ts').replace('"c"', '"c"\nisolate = "own"\nconfig = { n = 9 }')
  )
  await logged(programTaken)
  t.equal(version('b'), 30)
  t.match([fiber('a'), fiber('c')], [{ generation: 1 }, { state: 'Active' }])
})

t.test('CONFIG-02, CONFIG-07: a file that is gone, empty, half or wrong changes nothing and is reported', async (t) => {
  const good = entry('a', 'config = { n = 1 }') + entry('b')
  const { control, fiber, folder, host, logged, version, write, read } = await live(t, {
    'program.toml': good,
    'a.ts': plugin('a', 'config.n', {
      manifest: "config: { type: 'object', additionalProperties: false, properties: { n: {} } },"
    }),
    'b.ts': plugin('b', '1')
  })
  const cases: readonly [string, () => void, RegExp][] = [
    ['gone', () => rmSync(join(folder, 'program.toml')), /no such file/],
    ['empty', () => write('program.toml', ''), /no entries/],
    ['half', () => write('program.toml', good.slice(0, 12)), /program\.toml:\d+:\d+/],
    ['a mistyped key', () => write('program.toml', good.replace('n = 1', 'm = 1')), /unknown key m/],
    ['UTF-16', () => write('program.toml', Buffer.from(good, 'utf16le').toString('latin1')), /program\.toml/]
  ]
  for (const [name, spoil, message] of cases) {
    spoil()
    t.match(await logged(programRefused), { level: 'error', error: { message } }, name)
    t.match(
      [fiber('a'), fiber('b')],
      [
        { state: 'Active', generation: 1 },
        { state: 'Active', generation: 1 }
      ],
      name
    )
    t.match(control.fileError(), message, name)
    t.equal(version('a'), 1)
    if (name === 'a mistyped key') {
      t.match((await control.entries()).pending, [{ id: 'a', action: 'update-config' }], 'what the file asks for')
      continue
    }
    await t.rejects(control.entries(), { message }, name)
    if (name === 'gone') continue
    const text = read('program.toml')
    await t.rejects(control.patchEntry('a', { config: { n: 2 } }), { code: 'PROGRAM_INVALID' }, name)
    t.equal(read('program.toml'), text, 'what the user was about to write is untouched')
  }
  write('program.toml', good)
  await until(() => control.fileError() === null)
  t.match([fiber('a'), fiber('b')], [{ generation: 1 }, { generation: 1 }])
  t.strictSame(
    host.kernel.fibers().map((each) => each.entry),
    ['a', 'b']
  )
})

t.test('new code and the config that only it takes may come together', async (t) => {
  const schema = (key: string) =>
    `config: { type: 'object', additionalProperties: false, required: ['${key}'], properties: { ${key}: {} } },`
  const { fiber, logged, version, write } = await live(t, {
    'program.toml': entry('a', 'config = { old = 1 }'),
    'a.ts': plugin('a', 'config.old', { manifest: schema('old') })
  })
  write('a.ts', plugin('a', 'config.young', { manifest: schema('young') }))
  write('program.toml', entry('a', 'config = { young = 2 }'))
  await logged(programTaken)
  await logged(taken)
  t.equal(version('a'), 2)
  t.match(fiber('a'), { state: 'Active', error: null, generation: 2 })
})

t.test('what the server writes itself is not taken in again', async (t) => {
  const { control, fiber, lines, logged, version, write } = await live(t, {
    'program.toml': entry('a', 'config = { n = 0 }'),
    'a.ts': plugin('a', 'config.n', { manifest: 'config: {},' })
  })
  for (const n of [1, 2, 3]) await control.patchEntry('a', { config: { n } })
  write('program.toml', entry('a', 'config = { n = 4 }'))
  await logged(programTaken)
  t.equal(version('a'), 4)
  t.match(fiber('a'), { generation: 5 })
  t.equal(lines.filter((line) => line.message === programTaken).length, 1)
})

t.test('KERNEL-13: a save that races a change of the API never leaves two stories', async (t) => {
  const program = (n: number) => `${entry('a', `config = { n = ${n} }`)}${entry('b', 'config = { n = 7 }')}`
  const { control, fiber, read, version, write } = await live(t, {
    'program.toml': program(0),
    'a.ts': plugin('a', 'config.n', { manifest: 'config: {},' }),
    'b.ts': plugin('b', 'config.n', { manifest: 'config: {},' })
  })
  for (let round = 1; round <= 30; round++) {
    const change = control.patchEntry('a', { config: { n: 100 + round } })
    for (let turn = 0; turn < round % 10; turn++) await new Promise((resolve) => setImmediate(resolve))
    write('program.toml', program(round))
    await change
    await until(async () => {
      const { current, pending } = await control.entries()
      const inFile = Number(/n = (\d+)/.exec(read('program.toml'))?.[1])
      return pending.length === 0 && version('a') === inFile && current[0]?.config['n'] === inFile
    })
    t.equal(version('b'), 7)
  }
  t.match(fiber('b'), { generation: 1 })
})

t.test('a host that was stopped follows nothing any more', async (t) => {
  const { host, notes, write } = await live(t, { 'program.toml': entry('a'), 'a.ts': plugin('a', '1') })
  await host.stop()
  write('a.ts', plugin('a', '2'))
  for (let turn = 0; turn < 50; turn++) await new Promise((resolve) => setImmediate(resolve))
  t.strictSame(notes, ['apply a 1', 'undo a 1'])
  t.strictSame(host.followed, [])
})

t.test('I16: old code is not kept, and what it made is gone', async (t) => {
  const script = fileURLToPath(new URL('../fixtures/live-reloads.js', import.meta.url))
  // `env -i` takes out what measures coverage: it keeps every script alive.
  const { stdout } = await promisify(execFile)('env', ['-i', process.execPath, script, t.testdir({}), '60'])
  const { keptKiB, alive, fibers, answer } = JSON.parse(stdout) as Record<string, number>
  t.comment(`${keptKiB?.toFixed(2)} KiB kept of each reload`)
  t.ok((keptKiB ?? 99) < 8, 'the order of magnitude: one file of it alone has 8 KiB')
  t.ok((alive ?? 99) <= 2, 'the contexts of old generations are collected')
  t.match(fibers, [{ state: 'Active', draining: 0 }])
  t.equal(answer, 60, 'the last save serves')
})

/** Resolves when something is true. */
async function until(isTrue: () => boolean | Promise<boolean>): Promise<void> {
  while (!(await isTrue())) await new Promise((resolve) => setImmediate(resolve))
}
