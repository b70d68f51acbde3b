import { createHook } from 'node:async_hooks'
import { execFileSync } from 'node:child_process'
import { existsSync, mkdirSync, readdirSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs'
import { dirname, join } from 'node:path'
import t, { type Test } from 'tap'
import type { Changed, KernelControl } from '../../kernel/control.ts'
import { type ProgramHost, startKernel } from '../../kernel/host.ts'
import { createJsonLogger, definePlugin, type Plugin, schemaOf } from '../../kernel/index.ts'
import { parseProgram } from '../../kernel/program.ts'
import { assertNothingLeft, type LogLine, loaderOf, startProgram } from '../harness.ts'

// Rows P01 to P34 of the kernel's table of cases, each named by its id; P13 to P16 and P26 are the watcher's. Then what
// else a program file may be, and what may happen to it.

interface Num {
  value(): number
}

declare module '../../kernel/index.ts' {
  interface Services {
    num: Num
    other_num: Num
  }
}

const anything = schemaOf<Record<string, unknown>>({ type: 'object' })

/** Counts how often it began and ended, for each entry. */
function plainPlugin(counts: Record<string, [begun: number, ended: number]> = {}): Plugin {
  return definePlugin({
    name: 'plain',
    config: anything,
    apply(ctx) {
      const count = (counts[ctx.entry] ??= [0, 0])
      count[0] += 1
      ctx.effect(() => () => {
        count[1] += 1
      })
    }
  })
}

/** Provides `num`; is refused at 13, and by its schema where `value` is no number. */
function numPlugin(name = 'num'): Plugin {
  return definePlugin({
    name,
    provides: ['num'],
    config: schemaOf<{ value: number }>({
      type: 'object',
      additionalProperties: false,
      required: ['value'],
      properties: { value: { type: 'number' } }
    }),
    apply(ctx, { value }) {
      if (value === 13) throw new Error('thirteen is refused')
      ctx.provide('num', { value: () => value })
    }
  })
}

const user = definePlugin({ name: 'user', inject: ['num'], apply() {} })

const defaults = { plain: plainPlugin(), num: numPlugin(), user }

interface FileHouse {
  readonly host: ProgramHost
  readonly control: KernelControl
  readonly file: string
  readonly lines: readonly LogLine[]
  read(name?: string): string
  write(text: string, name?: string): void
  ids(): readonly string[]
  fiber(id: string): ReturnType<KernelControl['fibers']>[number] | undefined
  /** The steps of a reload, each as `action id`. */
  reload(): Promise<readonly string[]>
  num(): number | undefined
}

/** Starts a program file without an admin; other files beside it by their names. */
async function startFile(
  t: Test,
  text: string,
  plugins: Readonly<Record<string, Plugin>> = defaults,
  files: Readonly<Record<string, string>> = {},
  name = 'program.toml'
): Promise<FileHouse> {
  const folder = t.testdir({ ...files, [name]: text })
  return startAt(t, join(folder, name), plugins)
}

async function startAt(
  t: Test,
  file: string,
  plugins: Readonly<Record<string, Plugin>> = defaults
): Promise<FileHouse> {
  const lines: LogLine[] = []
  const log = createJsonLogger({ level: 'debug', write: (line) => lines.push(JSON.parse(line) as LogLine) })
  const host = await startKernel({ program: file, loader: loaderOf(plugins, dirname(file)), env: {}, log })
  t.teardown(async () => {
    await host.stop()
    assertNothingLeft(host.kernel)
  })
  const control = host.kernel.service('kernel') as KernelControl
  const beside = (name?: string) => (name === undefined ? file : join(dirname(file), name))
  return {
    host,
    control,
    file,
    lines,
    read: (name) => readFileSync(beside(name), 'utf8'),
    write: (content, name) => writeFileSync(beside(name), content),
    ids: () => host.program.entries.map(({ id }) => id),
    fiber: (id) => control.fibers().find(({ entry }) => entry === id),
    reload: async () => steps(await control.reload()),
    num: () => host.kernel.service('num')?.value()
  }
}

function steps({ applied }: Changed): readonly string[] {
  return applied.map(({ action, id }) => `${action} ${id}`)
}

const entry = (id: string, more = '', plugin = 'plain') =>
  `[[entry]]\nid = ${JSON.stringify(id)}\nplugin = "${plugin}"\n${more}\n`
const group = (id: string, more = '') => entry(id, more, '@group')
const num = (value: unknown, id = 'num') => entry(id, `config = { value = ${JSON.stringify(value)} }`, 'num')
const include = (id: string, path: string, more = '') =>
  entry(id, `config = { path = ${JSON.stringify(path)}${more} }`, '@include')

/** What is wrong, as the error says it, with the folder of the test cut away. */
async function refusal(work: Promise<unknown>): Promise<string> {
  try {
    await work
  } catch (error) {
    const { code, message } = error as { code: string; message: string }
    return `${code} ${message.replaceAll(/\/\S*\//g, '')}`
  }
  return 'done'
}

/** Waits for something that comes about by itself. */
async function until(condition: () => boolean): Promise<void> {
  while (!condition()) await new Promise((resolve) => setImmediate(resolve))
}

/** File, memory and listing tell the same story. */
async function assertAgreed(t: Test, house: FileHouse): Promise<void> {
  const { current, pending } = await house.control.entries()
  t.strictSame(pending, [], 'nothing is pending')
  t.same(current, house.host.program.entries)
  t.same((await house.host.read()).program, house.host.program, 'the file says what runs')
}

t.test('P01 an empty file is an empty program', async (t) => {
  for (const text of ['', '# nothing yet\n', '\uFEFF']) {
    const house = await startFile(t, text)
    t.same((await house.control.entries()).current, [])
    t.strictSame(steps(await house.control.putEntry({ id: 'first', plugin: 'plain' })), ['begin first'])
    await assertAgreed(t, house)
  }
})

t.test('P02 P03 an entry that is put leaves the head of the file and nothing beside it', async (t) => {
  const head = '# what runs\n# (the night shift edits this)\n\n'
  const house = await startFile(t, head + num(1))
  const whole = { id: 'a b', plugin: 'plain', config: { list: [1, [2, 'x']], deep: { on: true } } }
  await house.control.putEntry(whole)
  await house.control.putEntry({ ...whole, config: { list: [] } })
  t.ok(house.read().startsWith(head + num(1)))
  t.match(house.read(), '[[entry]]\nid = "a b"\nplugin = "plain"\nconfig = { list = [] }\n')
  t.strictSame(readdirSync(dirname(house.file)), ['program.toml'])
  await assertAgreed(t, house)
})

t.test('a change that waits for something is prepared meanwhile, and made when that is there', async (t) => {
  const house = await startFile(t, num(1))
  const text = house.read()
  const files = () => readdirSync(dirname(house.file)).length
  const wait = () => {
    let go = () => {}
    let stop = (_error: Error) => {}
    const after = new Promise<void>((resolve, reject) => {
      go = resolve
      stop = reject
    })
    return { after, go, stop }
  }
  const changes = [
    (after: Promise<void>): Promise<object> => house.control.patchEntry('num', { config: { value: 2 } }, { after }),
    (after: Promise<void>): Promise<object> => house.control.replaceProvider('num', { value: 3 }, { after })
  ]
  for (const [at, change] of changes.entries()) {
    const { after, stop } = wait()
    const refused = change(after)
    await until(() => files() === 2)
    stop(new Error('it did not come'))
    await t.rejects(refused, { message: 'it did not come' })
    t.strictSame([house.num(), house.fiber('num')?.generation, files()], [at + 1, at + 1, 1], 'as if never asked')
    const { after: later, go } = wait()
    const changed = change(later)
    await until(() => files() === 2)
    await house.host.kernel.settled()
    t.strictSame([house.num(), house.fiber('num')?.generation], [at + 1, at + 1], 'nothing has changed yet')
    go()
    await changed
    t.strictSame([house.num(), files()], [at + 2, 1])
  }
  t.not(house.read(), text)
  await assertAgreed(t, house)

  writeFileSync(house.file, num(9))
  const { after, stop } = wait()
  const reload = house.control.reload({ after })
  stop(new Error('it did not come'))
  await t.rejects(reload, { message: 'it did not come' })
  t.equal(house.num(), 3)
})

t.test('P04 a file that cannot be written answers 500, and nothing has changed', async (t) => {
  // No room for the name of the file that would be written beside it: so also for root.
  const name = `${'p'.repeat(240)}.toml`
  const house = await startFile(t, num(1), defaults, {}, name)
  const before = house.fiber('num')
  t.match(await refusal(house.control.patchEntry('num', { config: { value: 2 } })), /^PROGRAM_NOT_SAVED /)
  t.match(await refusal(house.control.putEntry({ id: 'x', plugin: 'plain' })), /^PROGRAM_NOT_SAVED /)
  t.match(await refusal(house.control.moveEntry('num', null, 0)), 'done', 'nothing to write')
  t.equal(house.num(), 1)
  t.match(house.fiber('num'), { fiberId: before?.fiberId, state: 'Active' })
  t.equal(house.fiber('x'), undefined)
  t.equal(house.read(), num(1))
  await assertAgreed(t, house)
})

t.test('P05 P06 P07 P12 a reload begins, retires and updates what the file says, in place', async (t) => {
  const house = await startFile(t, num(1) + entry('a'))
  const { fiberId } = house.fiber('num') ?? {}
  house.write(num(1) + entry('a') + entry('b'))
  t.strictSame((await house.control.reload()).applied, [{ id: 'b', action: 'begin', ok: true, verified: true }])
  house.write(num(2) + entry('b'))
  t.strictSame(await house.reload(), ['update-config num', 'retire a'])
  t.match(house.fiber('num'), { fiberId, generation: 2 })
  t.equal(house.num(), 2)
  house.write(entry('b') + num(2))
  t.strictSame(await house.reload(), [], 'the order alone')
  t.strictSame(house.ids(), ['b', 'num'])
  house.write(entry('b'))
  t.strictSame(await house.reload(), ['retire num'])
  t.equal(house.num(), undefined)
  await until(() => house.fiber('num') === undefined)
})

t.test('P08 another plugin takes over without a gap, as a new fiber', async (t) => {
  const house = await startFile(t, num(1), { num: numPlugin(), better: numPlugin('better') })
  const { fiberId } = house.fiber('num') ?? {}
  const seen = new Set<number | undefined>()
  let probing = true
  const probe = (async () => {
    for (; probing; await new Promise((resolve) => setImmediate(resolve))) seen.add(house.num())
  })()
  house.write(num(2).replace('"num"\nconfig', '"better"\nconfig'))
  t.strictSame((await house.control.reload()).applied, [
    { id: 'num', action: 'rebuild-fiber', ok: true, verified: true }
  ])
  probing = false
  await probe
  t.strictSame(
    [...seen].filter((value) => value !== 1 && value !== 2),
    []
  )
  t.equal(house.num(), 2)
  t.not(house.fiber('num')?.fiberId, fiberId)
})

t.test('P09 another isolate or intercept rebuilds only whom it is about', async (t) => {
  const house = await startFile(t, num(1) + entry('u', '', 'user') + entry('p'))
  const write = (more: string) => house.write(num(1) + entry('u', more, 'user') + entry('p', more))
  write('isolate = { other_num = "there" }\nintercept = { other_num = { a = 1 } }')
  t.strictSame(await house.reload(), [])
  write('intercept = { num = { a = 1 } }')
  t.strictSame(await house.reload(), ['rebuild-fiber u'])
  write('isolate = { num = true }')
  t.strictSame(await house.reload(), ['rebuild-fiber u'])
  t.match(house.fiber('u'), { state: 'Pending', waitingFor: ['num'] })
  write('')
  t.strictSame(await house.reload(), ['rebuild-fiber u'])
  t.equal(house.fiber('u')?.state, 'Active')
})

t.test('P10 P11 what changes while an entry goes off, or is off, waits for it to come back', async (t) => {
  const house = await startFile(t, num(1) + entry('x', 'disabled = true'))
  house.write(num(2).replace('config', 'disabled = true\nconfig') + entry('x', 'disabled = true', 'user'))
  t.strictSame(await house.reload(), ['retire num'])
  t.equal(house.num(), undefined)
  t.strictSame(steps(await house.control.toggleEntry('num')), ['begin num'])
  t.equal(house.num(), 2)
  t.strictSame(steps(await house.control.toggleEntry('x')), ['begin x'])
  t.match(house.fiber('x'), { plugin: 'user', state: 'Active' })
})

t.test('P17 P32 a file that is not valid is refused with its place, and what runs goes on', async (t) => {
  const house = await startProgram(t, num(1), defaults)
  const good = house.text()
  const broken: [string, RegExp][] = [
    [`${good}\nid = [`, /program\.toml:\d+:\d+: /],
    [
      good + entry('twice') + entry('twice'),
      /program\.toml:\d+:1: id 'twice' is already that of the entry at line \d+/
    ],
    [good.replace('"store"\nplugin', '"store"\nplugn'), /unknown key 'plugn' in entry 'store'; did you mean 'plugin'/]
  ]
  for (const [text, error] of broken) {
    writeFileSync(house.file, text)
    t.match(await house.admin('POST', '/entries/reload'), { status: 422, body: { reloaded: false, error } })
    t.match(await house.admin('POST', '/entries/num/toggle'), { status: 422, body: { toggled: false, error } })
    t.equal(house.text(), text, 'the half-edited file is left alone')
  }
  t.equal(house.services('num').value(), 1)
  writeFileSync(house.file, good.replace('value = 1', 'value = 2'))
  t.match((await house.admin('POST', '/entries/reload')).body, { applied: [{ id: 'num', action: 'update-config' }] })
  t.equal(house.services('num').value(), 2)
})

t.test('P18 P19 P20 a batch is taken whole or not at all, and its culprit named', async (t) => {
  const house = await startProgram(t, num(1) + entry('old'), { ...defaults, late: numPlugin('late') })
  const { fiberId, generation } = house.kernel.fibers().find((each) => each.entry === 'num') ?? {}
  const base = house.text().replace('value = 1', 'value = 2').replace(entry('old'), '')
  const bad: [string, RegExp][] = [
    [
      entry('a') + entry('b', 'config = { value = 13 }', 'late') + entry('c'),
      /^b \(begin\): staged apply failed: thirteen is refused; batch rolled back$/
    ],
    [entry('a') + entry('b', '', 'nope') + entry('c'), /^b \(begin\): no factory registered for plugin 'nope'$/],
    [
      entry('a') + entry('b', 'config = { value = "x" }', 'late'),
      /^b \(begin\): config pre-flight failed: invalid config: - value must be number \(at late\.value\)$/
    ]
  ]
  for (const [more, error] of bad) {
    writeFileSync(house.file, base + more)
    t.match(await house.admin('POST', '/entries/reload'), { status: 422, body: { reloaded: false, error } })
    t.match(
      house.kernel.fibers().find((each) => each.entry === 'num'),
      { fiberId, generation, state: 'Active' }
    )
    t.equal(house.services('num').value(), 1)
    const there = () => house.kernel.fibers().flatMap(({ entry: id }) => (/^(a|b|c|old)$/.test(id) ? [id] : []))
    await until(() => there().join() === 'old')
  }
})

t.test('a step that fails late takes back all before it, with the code and the config they had', async (t) => {
  const house = await startFile(t, num(1) + entry('x', 'config = { value = 1 }', 'late') + entry('old'), {
    ...defaults,
    late: definePlugin({
      name: 'late',
      config: anything,
      apply(_ctx, { value }) {
        if (value === 13) throw new Error('thirteen is refused')
      }
    })
  })
  house.write(
    group('g', 'isolate = { num = true }') +
      num(2, 'g:num') +
      entry('x', 'config = { value = 13 }', 'late') +
      entry('n')
  )
  t.equal(
    await refusal(house.control.reload()),
    'PROGRAM_APPLY_FAILED staged apply failed: thirteen is refused; batch rolled back'
  )
  t.equal(house.num(), 1)
  await until(() => house.control.fibers().length === 3)
  t.strictSame(
    house.control.fibers().map(({ entry, state }) => `${entry} ${state}`),
    ['num Active', 'x Active', 'old Active']
  )
})

t.test('a file that has been cut short is half of a save; one that ends where a line ends is meant', async (t) => {
  const house = await startFile(t, num(1) + include('i', 'more.toml') + entry('p'), defaults, {
    'more.toml': entry('a') + entry('b')
  })
  const whole = house.read()
  const ids = house.ids()
  const half = num(1).trimEnd()
  const isCut = /^PROGRAM_INVALID program\.toml: the file is the beginning of what it was/
  house.write(half)
  t.match(await refusal(house.reload()), isCut)
  t.match(await refusal(house.control.toggleEntry('p')), isCut)
  t.equal(house.read(), half, 'nothing is written over it')
  house.write('')
  await refusal(house.reload())
  house.write(half)
  t.match(await refusal(house.reload()), isCut, 'also when it was empty in between')
  house.write(whole)
  house.write(entry('a').trimEnd(), 'more.toml')
  t.match(await refusal(house.reload()), /^PROGRAM_INVALID more\.toml: the file is the beginning/)
  house.write(entry('a') + entry('b'), 'more.toml')
  t.strictSame([await house.reload(), house.ids()], [[], ids])

  await house.control.patchEntry('num', { config: { value: 2 } })
  house.write(num(2).trimEnd())
  t.match(await refusal(house.reload()), isCut, 'what the kernel has written is what it was')
  house.write(num(2))
  t.strictSame((await house.reload()).toSorted(), ['retire a', 'retire b', 'retire p'])
})

t.test('P21 of two reloads at once one applies, the other finds nothing to do', async (t) => {
  const house = await startFile(t, num(1))
  house.write(num(2))
  const both = await Promise.all([house.reload(), house.reload()])
  t.strictSame(both, [['update-config num'], []])
})

t.test('P22 two entries that are put at once are both there, in the file and running', async (t) => {
  const house = await startFile(t, num(1))
  await Promise.all(['a', 'b', 'c'].map((id) => house.control.putEntry({ id, plugin: 'plain' })))
  t.strictSame(house.ids(), ['num', 'a', 'b', 'c'])
  for (const id of ['a', 'b', 'c']) t.equal(house.fiber(id)?.state, 'Active')
  await assertAgreed(t, house)
})

t.test('P27 a plugin that ends itself stays off, once and for all', async (t) => {
  let end: (() => Promise<void>) | undefined
  const quitter = definePlugin({
    name: 'quitter',
    apply(ctx) {
      end = () => ctx.dispose()
    }
  })
  const house = await startFile(t, entry('q', '', 'quitter'), { quitter })
  await end?.()
  await house.control.reload() // in its turn, behind what was remembered
  t.equal(house.read(), entry('q', '', 'quitter').replace('\n\n', '\ndisabled = true\n\n'))
  t.equal(house.fiber('q'), undefined)
  t.strictSame(steps(await house.control.toggleEntry('q')), ['begin q'])
  await end?.()
  await house.control.reload()
  t.equal(house.read().match(/disabled/g)?.length, 1)
})

t.test('P28 P29 what ends with its group, with the kernel or within an entry turns no flag', async (t) => {
  let endChild: (() => Promise<void>) | undefined
  const child = definePlugin({
    name: 'child',
    apply(ctx) {
      endChild = () => ctx.dispose()
    }
  })
  const parent = definePlugin({
    name: 'parent',
    apply(ctx) {
      ctx.mount(child)
    }
  })
  const text = group('g') + entry('g:a') + entry('p', '', 'parent')
  const house = await startFile(t, text, { ...defaults, parent })
  await endChild?.()
  await house.control.reload()
  t.equal(house.read(), text, 'the child was not the entry')
  t.equal(house.fiber('p')?.state, 'Active')
  await house.control.toggleEntry('g')
  await house.control.toggleEntry('g')
  t.equal(house.host.program.entries.find(({ id }) => id === 'g:a')?.disabled, false)
  const before = house.read()
  await house.host.stop()
  t.equal(house.read(), before)
})

t.test('P30 groups within groups go off and on as one', async (t) => {
  const counts: Record<string, [number, number]> = {}
  const house = await startFile(t, group('o') + group('o:i') + entry('o:i:a') + entry('o:b'), {
    plain: plainPlugin(counts)
  })
  const told: string[] = []
  for (const id of ['o:i', 'o', 'o:i', 'o']) {
    const applied = steps(await house.control.toggleEntry(id))
    told.push(`${id}: ${applied.join(', ')}`)
  }
  t.strictSame(told, ['o:i: retire o:i:a', 'o: retire o:b', 'o:i: ', 'o: begin o:i:a, begin o:b'])
  t.same(counts, { 'o:i:a': [2, 1], 'o:b': [2, 1] })
})

t.test('P31 an entry that is put while off is listed, and nothing runs for it', async (t) => {
  const house = await startFile(t, num(1))
  t.strictSame(steps(await house.control.putEntry({ id: 'off', plugin: 'plain', disabled: true })), [])
  t.match((await house.control.entries()).current[1], { id: 'off', disabled: true })
  t.equal(house.fiber('off'), undefined)
  t.match((await house.control.patchEntry('off', { config: { a: 1 } })).entry, { id: 'off', config: { a: 1 } })
})

t.test('what is off is checked like what runs, since the next start checks it', async (t) => {
  const off = (value: number, plugin = 'num') => entry('off', `disabled = true\nconfig = { value = ${value} }`, plugin)
  const house = await startFile(t, off(1) + entry('a'))
  const { control } = house
  const text = house.read()
  const refused: [Promise<unknown>, RegExp][] = [
    [control.patchEntry('off', { config: {} }), /^PROGRAM_PREFLIGHT_FAILED .* missing value \(at num\.value\)$/],
    [control.putEntry({ id: 'n', plugin: 'nope', disabled: true }), /^PROGRAM_APPLY_FAILED no factory registered/],
    [control.putEntry({ id: 'n', plugin: 'num', disabled: true }), /missing value/],
    [control.putEntry({ id: 'n', plugin: 'plain', disabled: true, config: { a: '${NOT_THERE}' } }), /NOT_THERE/],
    [control.patchEntry('a', { disabled: true, config: { a: '${NOT_THERE}' } }), /NOT_THERE/]
  ]
  for (const [work, error] of refused) t.match(await refusal(work), error)
  t.equal(house.read(), text)
  house.write(text.replace('value = 1', 'valu = 1'))
  t.match(await refusal(control.reload()), /unknown key valu/)
  house.write(text)
  t.strictSame(steps(await control.patchEntry('off', { config: { value: 2 } })), [])
  t.equal(house.num(), undefined)
})

t.test('P33 what is saved is what comes back', async (t) => {
  const config = {
    list: [1, 2.5, -0.5, [true, ['x']], { k: [] }],
    'key with "quotes" and ключ': { deep: { deeper: { '': 'empty key' } } },
    text: 'two\nlines\t"quoted" \\ 漢字 \u{1F600} \u0001',
    big: 9007199254740991
  }
  const house = await startFile(
    t,
    `${num(1)}${entry('dated', 'config.at = 1979-05-27T07:32:00Z\nconfig.big = 9223372036854775807')}`
  )
  for (const id of ['漢字', 'a/b', 'a b', 'ü:ö', "it's", '"quoted"']) {
    await house.control.putEntry({
      id,
      plugin: 'plain',
      config,
      isolate: { num: 'realm' },
      intercept: { num: { a: [1] } }
    })
  }
  await assertAgreed(t, house)
  t.strictSame(await house.reload(), [])
  const again = parseProgram(house.read(), 'again.toml')
  t.same(again.program, house.host.program)
  t.match(house.read(), 'config.at = 1979-05-27T07:32:00Z\nconfig.big = 9223372036854775807')
  t.same(again.program.entries.at(-1), {
    id: '"quoted"',
    plugin: 'plain',
    config,
    disabled: false,
    isolate: { num: 'realm' },
    intercept: { num: { a: [1] } }
  })
})

t.test('P34 who waits for a service that never comes holds nobody up', async (t) => {
  const house = await startFile(t, entry('u', '', 'user') + entry('a'))
  t.match(house.fiber('u'), { state: 'Inactive', waitingFor: ['num'] })
  t.equal(house.fiber('a')?.state, 'Active')
  t.ok(house.control.isReady())
})

t.test('P23 a program whose parts are missing or wrong does not start, and says where', async (t) => {
  const parts = entry('x', 'disabled = true') + num(3) + include('more', './sub/more.toml')
  const start = (files: Record<string, string>) =>
    refusal(startFile(t, entry('a') + include('inc', 'parts.toml') + entry('z'), defaults, files))
  t.equal(
    await start({ 'parts.toml': parts }),
    "PROGRAM_INVALID parts.toml:12:12: more.toml cannot be read: there is no such file (entry 'more')"
  )
  t.equal(
    await start({ 'parts.toml': entry('y', '', 'plan') }),
    "PROGRAM_INVALID parts.toml:1:1: unknown plugin 'plan' in entry 'y'; did you mean 'plain'?"
  )
  t.equal(
    await start({ 'parts.toml': num('x') }),
    "PROGRAM_INVALID parts.toml:4:12: value must be number in entry 'num'"
  )
})

t.test('what a plugin finds wrong with the world before the start ends it, and nothing was begun', async (t) => {
  const begun: string[] = []
  const plugins = {
    first: definePlugin({ name: 'first', apply: () => void begun.push('first') }),
    second: definePlugin({
      name: 'second',
      config: schemaOf<{ port: number }>({ type: 'object', properties: { port: { type: 'integer', default: 7 } } }),
      preflight({ port }) {
        throw new Error(`port ${port} is taken`)
      },
      apply: () => void begun.push('second')
    })
  }
  t.equal(
    await refusal(startFile(t, entry('a', '', 'first') + entry('b', '', 'second'), plugins)),
    'undefined port 7 is taken'
  )
  t.strictSame(begun, [])
})

t.test('P23 P24 includes may include, from where they stand, and one file may be included twice', async (t) => {
  const files = {
    'b.toml': entry('b') + include('b-common', 'sub/../common.toml'),
    'common.toml': num(3),
    'c.toml':
      include('c-common', './common.toml') +
      entry('c') +
      include('off', 'gone.toml').replace('\nconfig', '\ndisabled = true\nconfig')
  }
  const text = entry('a') + include('inc-b', 'b.toml') + include('inc-c', 'c.toml') + entry('z')
  const house = await startFile(t, text, defaults, files)
  t.strictSame(house.ids(), ['a', 'inc-b', 'b', 'b-common', 'num', 'inc-c', 'c-common', 'c', 'off', 'z'])
  t.equal(house.num(), 3)
  t.equal(house.control.fibers().length, 5, 'nothing runs for an include')
  const { current, pending } = await house.control.entries()
  t.strictSame(pending, [])
  const shown = (id: string) => current.find((each) => each.id === id)?.source?.replace(dirname(house.file), '')
  t.strictSame(['a', 'inc-b', 'b', 'num', 'c'].map(shown), [undefined, undefined, '/b.toml', '/common.toml', '/c.toml'])
  t.strictSame(
    house.host.files.map((file) => file.replace(dirname(house.file), '')),
    ['/program.toml', '/b.toml', '/common.toml', '/c.toml']
  )
  const { etag } = await house.control.entries()
  house.write(num(4), 'common.toml')
  t.match((await house.control.entries()).pending, [{ id: 'num', action: 'update-config' }])
  t.match(await refusal(house.control.toggleEntry('a', { ifMatch: etag })), /^PROGRAM_CHANGED/)
  t.strictSame(await house.reload(), ['update-config num'])
})

t.test('P24 an include that is missing, broken, in a circle or twice the same id keeps what runs', async (t) => {
  const house = await startFile(t, num(1))
  const cases: [string, Record<string, string>, RegExp][] = [
    [
      include('i', 'gone.toml'),
      {},
      /^PROGRAM_INVALID program\.toml:8:12: gone\.toml cannot be read: there is no such file \(entry 'i'\)$/
    ],
    [include('i', '.'), {}, / is no file /],
    [
      include('i', 'bad.toml'),
      { 'bad.toml': '[[entry]]\nid = "x"\nplugn = "plain"\n' },
      / bad\.toml:3:1: unknown key 'plugn' in entry 'x'; did you mean 'plugin'\?/
    ],
    [include('i', 'bad.toml'), { 'bad.toml': 'x = [' }, /bad\.toml:1:/],
    [
      include('i', 'bad.toml'),
      { 'bad.toml': '[kernel]\ndrain_timeout_ms = 1' },
      /bad\.toml:1:1: kernel belongs into the program file/
    ],
    [include('i', 'program.toml'), {}, /program\.toml:8:12: include cycle: program\.toml → program\.toml/],
    [
      include('i', 'one.toml'),
      { 'one.toml': include('j', 'two.toml'), 'two.toml': entry('x') + include('k', 'one.toml') },
      /two\.toml:8:12: include cycle: program\.toml → one\.toml → two\.toml → one\.toml/
    ],
    [
      include('i', 'one.toml'),
      { 'one.toml': entry('y') + entry('num') },
      /one\.toml:5:1: id 'num' is already that of the entry at program\.toml:1/
    ],
    [entry('i', '', '@include'), {}, /missing path in the config of entry 'i'/],
    [
      entry('i', 'config = { path = 5, writable = "yes", pat = 1 }\nisolate = "x"', '@include'),
      {},
      /unknown key 'pat'[\s\S]*path of entry 'i' must be a string, found number[\s\S]*writable of entry 'i' must be a boolean[\s\S]*isolate is not for an include/
    ]
  ]
  for (const [more, files, error] of cases) {
    for (const [name, text] of Object.entries(files)) house.write(text, name)
    house.write(num(2) + more)
    t.match(await refusal(house.control.reload()), error)
    t.match(await refusal(house.control.entries()), error)
    t.match(await refusal(house.control.toggleEntry('num')), error)
    t.equal(house.num(), 1)
  }
  house.write(num(1))
  t.match(
    await refusal(house.control.putEntry({ id: 'i', plugin: '@include', config: { path: 'gone.toml' } })),
    /there is no such file/
  )
  t.equal(house.read(), num(1))
  house.write(entry('x'), 'gone.toml')
  t.strictSame(steps(await house.control.putEntry({ id: 'i', plugin: '@include', config: { path: 'gone.toml' } })), [
    'begin x'
  ])
  t.strictSame(steps(await house.control.toggleEntry('i')), ['retire x'])
  t.strictSame(house.ids(), ['num', 'i'])
  t.strictSame(steps(await house.control.toggleEntry('i')), ['begin x'])
  t.strictSame(steps(await house.control.deleteEntry('i')), ['retire x'])
  t.equal(house.read(), num(1))
})

t.test('included entries are not written to, unless their include says so', async (t) => {
  const files = {
    'fixed.toml': entry('g:a') + entry('b'),
    'free.toml': `# mine\n${num(1)}${entry('c')}${entry('g:d')}`
  }
  const text =
    group('g') + include('fixed', 'fixed.toml') + include('free', 'free.toml', ', writable = true') + entry('z')
  const house = await startFile(t, text, defaults, files)
  const { control } = house
  const all = ['program.toml', 'fixed.toml', 'free.toml']
  const texts = () => all.map((name) => house.read(name)).join('')
  const before = texts()
  const refused: [Promise<unknown>, RegExp][] = [
    [
      control.patchEntry('b', { config: { a: 1 } }),
      /^PROGRAM_INCLUDED entry 'b' comes from fixed\.toml; edit it there, or let its include say writable = true$/
    ],
    [control.putEntry({ id: 'b', plugin: 'num' }), /entry 'b' comes from/],
    [control.toggleEntry('b'), /entry 'b' comes from/],
    [control.deleteEntry('b'), /entry 'b' comes from/],
    [control.deleteEntry('g'), /entry 'g:a' comes from/],
    [control.moveEntry('b', 'g', undefined), /entry 'b' comes from/],
    [control.moveEntry('g', 'z', undefined), /entry 'g:a' comes from/],
    [control.moveEntry('c', 'g', 0), /^PROGRAM_INCLUDED the position asked for is not within free\.toml/],
    [control.moveEntry('z', 'g', 1), /^PROGRAM_INCLUDED the position asked for is not within program\.toml/]
  ]
  for (const [work, error] of refused) t.match(await refusal(work), error)
  t.equal(texts(), before)

  const { fiberId } = house.fiber('num') ?? {}
  t.strictSame(steps(await control.patchEntry('num', { config: { value: 2 } })), ['update-config num'])
  t.equal(house.read('free.toml'), files['free.toml'].replace('value = 1', 'value = 2'))
  t.match((await control.moveEntry('num', 'g', undefined)).renamed, [['num', 'g:num']])
  t.match(house.fiber('g:num'), { fiberId, generation: 2 })
  t.match(await control.moveEntry('c', null, 0).catch((error: Error) => error), { code: 'PROGRAM_INCLUDED' })
  t.match(await control.moveEntry('g:d', 'g', 1), { renamed: [] }, 'within its file')
  t.strictSame(house.ids(), ['g', 'fixed', 'g:a', 'b', 'free', 'c', 'g:d', 'g:num', 'z'])
  t.strictSame(steps(await control.deleteEntry('c')), ['retire c'])
  t.equal(house.read('free.toml'), `# mine\n${entry('g:d')}${num(2, 'g:num')}\n`)
  t.equal(house.read(), text)
  t.equal(house.read('fixed.toml'), files['fixed.toml'])
  t.strictSame(steps(await control.toggleEntry('g')), ['retire g:a', 'retire g:d', 'retire g:num'])
  await assertAgreed(t, house)
})

t.test('a change that cannot be written to an included file is taken back', async (t) => {
  const name = `${'p'.repeat(240)}.toml`
  const house = await startFile(t, include('i', name, ', writable = true'), defaults, { [name]: num(1) })
  t.match(await refusal(house.control.patchEntry('num', { config: { value: 2 } })), /^PROGRAM_NOT_SAVED/)
  t.equal(house.num(), 1)
  await assertAgreed(t, house)
})

t.test('a path of a plugin starts from the file it stands in', async (t) => {
  const code = "export default { name: 'mine', config: { type: 'object' }, apply() {} }"
  const folder = t.testdir({
    sub: { 'mine.mjs': code, 'parts.toml': entry('m', '', './mine.mjs') + entry('n', '', '../other.mjs') },
    'other.mjs': code,
    'program.toml': include('i', 'sub/parts.toml', ', writable = true') + entry('o', '', './sub/mine.mjs')
  })
  const house = await startAt(t, join(folder, 'program.toml'))
  t.strictSame(
    house.host.program.entries.map(({ plugin }) => plugin),
    ['@include', './sub/mine.mjs', './other.mjs', './sub/mine.mjs']
  )
  for (const id of ['m', 'n', 'o']) t.equal(house.fiber(id)?.state, 'Active')
  t.strictSame(steps(await house.control.putEntry({ id: 'm', plugin: './other.mjs' })), ['rebuild-fiber m'])
  t.match(house.read('sub/parts.toml'), 'id = "m"\nplugin = "../other.mjs"\n')
  await assertAgreed(t, house)
})

t.test('P25 a group may hold its entries itself', async (t) => {
  const members = [
    '{ id = "a", plugin = "plain" }',
    '{ id = "g:b", plugin = "plain", disabled = true }',
    '{ id = "in", plugin = "@group", config.entries = [{ id = "deep", plugin = "num", config = { value = 5 } }] }'
  ]
  const text = `${entry('g', `config.entries = [\n  ${members.join(',\n  ')}\n]`, '@group')}${entry('z')}`
  const house = await startFile(t, text)
  const { control } = house
  t.strictSame(house.ids(), ['g', 'g:a', 'g:b', 'g:in', 'g:in:deep', 'z'])
  t.equal(house.num(), 5)
  t.match((await control.entries()).current[0], { id: 'g', config: {} }, 'each is shown on its own')
  const refused: Promise<unknown>[] = [
    control.toggleEntry('g:a'),
    control.patchEntry('g:in:deep', { config: { value: 6 } }),
    control.patchEntry('g', { config: {} }),
    control.putEntry({ id: 'g', plugin: '@group' }),
    control.deleteEntry('g:b'),
    control.moveEntry('g', 'z', undefined),
    control.moveEntry('g:a', null, undefined)
  ]
  for (const work of refused) {
    t.match(
      await refusal(work),
      /^PROGRAM_INCLUDED entry '\S+' is written within the config of a group in program\.toml; edit it there$/
    )
  }
  t.match(await refusal(control.moveEntry('z', 'g', 0)), /^PROGRAM_INCLUDED the position asked for/)
  t.equal(house.read(), text)

  house.write(text.replace('value = 5', 'value = 6'))
  t.strictSame(await house.reload(), ['update-config g:in:deep'])
  t.strictSame(steps(await control.toggleEntry('g')), ['retire g:in:deep', 'retire g:a'])
  t.strictSame(steps(await control.toggleEntry('g')), ['begin g:a', 'begin g:in:deep'])
  t.match(await control.patchEntry('g', { position: 5 }), { renamed: [] })
  t.strictSame(house.ids(), ['z', 'g', 'g:a', 'g:b', 'g:in', 'g:in:deep'])
  t.match(await control.moveEntry('z', 'g', undefined), { renamed: [['z', 'g:z']] })
  t.strictSame(house.ids().slice(-2), ['g:in:deep', 'g:z'])
  await assertAgreed(t, house)
  t.strictSame(steps(await control.deleteEntry('g')), ['retire g:in:deep', 'retire g:a', 'retire g:z'])
  t.equal(house.read().trim(), '')
})

t.test('P25 entries within a group are checked as others are', async (t) => {
  const house = await startFile(t, entry('z'))
  const inGroup = (members: string) => entry('z') + entry('g', `config.entries = ${members}`, '@group')
  const cases: [string, RegExp][] = [
    [
      inGroup('[{ id = "a", plugin = "plain" }, { id = "g:a", plugin = "num" }]'),
      /program\.toml:8:53: id 'g:a' is already that of the entry at line 8/
    ],
    [
      inGroup('[{ plugin = "plain" }, 5]'),
      /8:19: missing id in the entry at line 8\nprogram\.toml:8:41: an entry must be a table, found number/
    ],
    [
      inGroup('[{ id = "a", plugin = "plain", confg = {} }]'),
      /8:49: unknown key 'confg' in entry 'g:a'; did you mean 'config'/
    ],
    [inGroup('5'), /entries must be an array of tables, found number/],
    [
      entry('z') + entry('g', 'config = { entrys = [] }', '@group'),
      /unknown key 'entrys' in the config of entry 'g'; did you mean 'entries'/
    ],
    [
      inGroup('[{ id = "a", plugin = "num", config = { valu = 1 } }]'),
      /unknown key valu in entry 'g:a'; did you mean 'value'/
    ]
  ]
  for (const [text, error] of cases) {
    house.write(text)
    t.match(await refusal(house.host.read().then((source) => house.host.prepareAll(source))), error)
    t.match(await refusal(house.control.reload()), /^PROGRAM_/)
    t.equal(house.fiber('z')?.state, 'Active')
  }
})

t.test('a program file that goes, empties or cannot be read keeps what runs', async (t) => {
  const house = await startFile(t, num(1) + entry('a'))
  const { control, file } = house
  const good = house.read()
  const bad: [string, () => void, RegExp][] = [
    ['deleted', () => {}, /failed to read the program file program\.toml: there is no such file/],
    ['empty', () => house.write(''), /program\.toml: the file has no entries any more; what runs goes on/],
    ['nothing but comments', () => house.write(good.replaceAll(/^/gm, '# ')), /has no entries any more/],
    ['half of it', () => house.write(good.slice(0, 30)), /program\.toml:\d+:\d+: /],
    ['a folder', () => mkdirSync(file), /failed to read the program file program\.toml: /],
    ['a pipe', () => execFileSync('mkfifo', [file]), /program\.toml.*: it is a pipe now/],
    [
      'UTF-16',
      () => writeFileSync(file, Buffer.from(`\uFEFF${good}`, 'utf16le')),
      /the file is UTF-16; save it as UTF-8/
    ]
  ]
  for (const [what, spoil, error] of bad) {
    rmSync(file, { recursive: true, force: true })
    spoil()
    const look = () => (existsSync(file) && statSync(file).isFile() ? readFileSync(file) : readdirSync(dirname(file)))
    const before = look()
    const works = [
      control.reload(),
      control.entries(),
      control.putEntry({ id: 'n', plugin: 'plain' }),
      control.patchEntry('num', { config: { value: 2 } }),
      control.moveEntry('a', null, 0),
      control.deleteEntry('a')
    ]
    for (const work of works) t.match(await refusal(work), error, what)
    t.same(look(), before, 'nothing is written')
    t.equal(house.num(), 1)
    t.equal(house.fiber('a')?.state, 'Active')
  }
  rmSync(file)
  house.write(good)
  t.strictSame(await house.reload(), [])
  t.equal(house.fiber('a')?.generation, 1)

  await control.deleteEntry('a')
  await control.deleteEntry('num')
  t.equal(house.read().trim(), '', 'what is asked for is done')
  t.strictSame(await house.reload(), [])
  t.strictSame(steps(await control.putEntry({ id: 'first', plugin: 'plain' })), ['begin first'])
})

t.test('a change whose file somebody else writes meanwhile begins anew from what they wrote', async (t) => {
  let others: string[] = []
  const busy = definePlugin({
    name: 'busy',
    config: anything,
    apply(_ctx, { value }) {
      const text = value === 2 ? others.shift() : undefined
      if (text !== undefined) writeFileSync(house.file, text)
    }
  })
  const busyEntry = entry('busy', 'config = { value = 1 }', 'busy')
  const house = await startFile(t, busyEntry, { ...defaults, busy })

  others = [`# theirs\n${busyEntry}${entry('a')}`, `# theirs\n${busyEntry}${entry('a')}${entry('b')}`]
  t.strictSame(steps(await house.control.patchEntry('busy', { config: { value: 2 } })), [
    'begin a',
    'begin b',
    'update-config busy'
  ])
  t.equal(house.read(), `# theirs\n${busyEntry}${entry('a')}${entry('b')}`.replace('value = 1', 'value = 2'))
  await assertAgreed(t, house)

  await house.control.patchEntry('busy', { config: { value: 1 } })
  others = Array.from({ length: 99 }, (_, round) => `# round ${round}\n${busyEntry}`)
  t.match(
    await refusal(house.control.patchEntry('busy', { config: { value: 2 } })),
    /^PROGRAM_CHANGED .* keeps writing/
  )
  t.match(house.host.program.entries[0], { config: { value: 1 } })
  t.match(house.read(), /^# round \d+\n/)

  others = ['x = [']
  house.write(busyEntry)
  await house.reload()
  t.match(await refusal(house.control.patchEntry('busy', { config: { value: 2 } })), /^PROGRAM_INVALID/)
  t.match(house.host.program.entries[0], { config: { value: 1 } })
  t.equal(house.read(), 'x = [')
})

t.test('a listing waits for a change under way, but not for one that takes long', async (t) => {
  let open = () => {}
  const slow = definePlugin({
    name: 'slow',
    config: anything,
    apply: (_ctx, { value }) => (value === 2 ? new Promise<void>((resolve) => (open = resolve)) : undefined)
  })
  const house = await startFile(t, entry('s', 'config = { value = 1 }', 'slow'), { ...defaults, slow })
  const change = house.control.patchEntry('s', { config: { value: 2 } })
  const long = await house.control.entries()
  t.match(long, { current: [{ config: { value: 1 } }], pending: [] }, 'as it was before the change')
  const short = house.control.entries()
  open()
  await change
  t.match(await short, { current: [{ config: { value: 2 } }], pending: [] })
})

t.test('changes that cross end in one of their orders', async (t) => {
  const house = await startFile(t, group('a') + group('b') + entry('a:x') + num(1))
  const moves = await Promise.all([
    refusal(house.control.moveEntry('a', 'b', undefined)),
    refusal(house.control.moveEntry('b', 'a', undefined))
  ])
  t.strictSame(moves, ['done', "PROGRAM_MOVE_REFUSED no such entry 'a'"])
  await assertAgreed(t, house)
  const toggles = await Promise.all([house.control.toggleEntry('num'), house.control.toggleEntry('num')])
  t.strictSame(
    toggles.map(({ disabled, applied }) => [disabled, applied[0]?.action]),
    [
      [true, 'retire'],
      [false, 'begin']
    ]
  )
  t.equal(house.num(), 1)
  const swapped = await Promise.all([
    refusal(house.control.moveEntry('num', 'b', 0)),
    refusal(house.control.patchEntry('num', { config: { value: 2 } })),
    refusal(house.control.patchEntry('b:num', { config: { value: 3 } })),
    refusal(house.control.deleteEntry('b'))
  ])
  t.strictSame(swapped, ['done', 'PROGRAM_NO_ENTRY no such entry', 'done', 'done'])
  t.strictSame(house.ids(), [])
})

t.test('a dry run tells the plan, and leaves files, fibers and realms alone', async (t) => {
  const house = await startFile(t, group('g') + num(1) + entry('u', 'isolate = { num = true }', 'user'))
  const before = [house.read(), house.control.fibers()]
  const dryRun = { dryRun: true }
  const planned = async (work: Promise<Changed>) => (await work).planned.map(({ action, id }) => `${action} ${id}`)
  t.strictSame(await planned(house.control.putEntry({ id: 'n', plugin: 'plain' }, dryRun)), ['begin n'])
  t.strictSame(await planned(house.control.moveEntry('u', 'g', undefined, dryRun)), [])
  t.strictSame(await planned(house.control.patchEntry('num', { parent: 'g', config: { value: 2 } }, dryRun)), [
    'update-config g:num'
  ])
  t.strictSame(await planned(house.control.deleteEntry('num', dryRun)), ['retire num'])
  t.match(await refusal(house.control.patchEntry('num', { config: {} }, dryRun)), /^PROGRAM_PREFLIGHT_FAILED/)
  t.strictSame([house.read(), house.control.fibers()], before)
  await assertAgreed(t, house)
})

t.test('changes and listings leave no timer behind', async (t) => {
  const house = await startFile(t, num(1) + entry('u', '', 'user'))
  const timers = new Set<number>()
  const hook = createHook({
    init: (id, type) => void (type === 'Timeout' && timers.add(id)),
    destroy: (id) => void timers.delete(id)
  }).enable()
  t.teardown(() => hook.disable())
  for (let value = 2; value < 12; value++) {
    await house.control.patchEntry('num', { config: { value } })
    await Promise.all([house.control.entries(), house.control.toggleEntry('num')])
    await house.control.toggleEntry('num')
  }
  // Destroy hooks run in a turn of their own.
  await new Promise(setImmediate)
  await new Promise(setImmediate)
  t.equal(timers.size, 0)
})

t.test('a plugin that many entries name by its path is loaded once a change', async (t) => {
  const folder = t.testdir({
    'mine.mjs': "globalThis.loadedMine = (globalThis.loadedMine ?? 0) + 1\nexport default { name: 'mine', apply() {} }",
    'program.toml': ['a', 'b', 'c'].map((id) => entry(id, '', './mine.mjs')).join('')
  })
  const count = () => (globalThis as { loadedMine?: number }).loadedMine ?? 0
  const before = count()
  const house = await startAt(t, join(folder, 'program.toml'))
  t.equal(count(), before + 1)
  for (const id of ['a', 'b', 'c']) t.equal(house.fiber(id)?.state, 'Active')
})

t.test('ten thousand entries are read, planned and changed in a time that grows with their number', async (t) => {
  const list = Array.from({ length: 10 }, (_, g) => [
    group(`g${g}`),
    ...Array.from({ length: 999 }, (_, i) => `# remark ${i}\n${entry(`g${g}:e${i}`, `config = { n = ${i} }\n`)}`)
  ])
  const text = `${list.flat().join('')}${group('h')}`
  const { user: userBefore, system: systemBefore } = process.cpuUsage()
  const house = await startFile(t, text)
  t.equal(house.control.fibers().length, 9990)
  t.strictSame(await house.reload(), [])
  t.strictSame((await house.control.entries()).pending, [])
  t.equal((await house.control.moveEntry('g5', 'h', undefined)).renamed.length, 1000)
  t.equal((await house.control.patchEntry('g7:e7', { config: { n: 0 } })).applied.length, 1)
  const { user, system } = process.cpuUsage()
  const seconds = (user + system - userBefore - systemBefore) / 1e6
  t.ok(seconds < 30, `${seconds.toFixed(1)} s of CPU time`)
  t.equal(house.read().match(/^# remark/gm)?.length, 9990)
})

t.test('ten thousand entries that are all wrong are refused with the first of what is wrong', async (t) => {
  const text = Array.from({ length: 10_000 }, () => '[[entry]]\nplugn = "x"\n\n').join('')
  const error = await refusal(startFile(t, text))
  t.match(
    error,
    /^PROGRAM_INVALID program\.toml:2:1: unknown key 'plugn' in the entry at line 1; did you mean 'plugin'\?\n/
  )
  t.ok(error.endsWith('and 29980 more'))
})
