import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import { type AST, parseTOML } from 'toml-eslint-parser'
import type { KernelControl } from '../../kernel/control.ts'
import { startKernel } from '../../kernel/host.ts'
import { definePlugin, schemaOf, silentLogger } from '../../kernel/index.ts'
import type { JsonObject, JsonValue } from '../../kernel/program.ts'
import { parseToml } from '../../kernel/toml.ts'
import { assertNothingLeft, loaderOf } from '../harness.ts'

// A program file of every shape goes through random changes, one after the other, through the kernel's own door. After
// each the file must read as a model of the change says, and every line the change is not about must be as it was: what
// is told apart by another parser than the kernel's.

const seed = Number(process.env['HEARTWOOD_TEST_SEED'] ?? Date.now() % 2 ** 31)
/** Programs that are edited, 500 times each. */
const runs = Number(process.env['HEARTWOOD_TEST_RUNS'] ?? 1)
const editsPerRun = 500

const program = `# program.toml: what runs, and in which order it is shown
# (the night shift edits this file by hand: keep the remarks)

[kernel]
drain_timeout_ms = 5_000

# --- the front ---

# the way in
[[entry]]
id = "front"
plugin = "plain"
config = { host = "127.0.0.1", port = 3_000, tls = { on = false } } # not to the world

[[entry]]
id = "tools"            # tools:… are its children
plugin = "@group"

# the calculator
[[entry]]
id = "tools:calc"
plugin = 'plain'
config.precision = 0x6   # two places
config.limits.rows = 1_000
config.limits."a key" = [1, 2.50, "three"]
# config.later = 1

# --- who answers ---

[[entry]]
id = "tools:calc:deep"
plugin = "plain"
disabled = true

[[entry]]
id = 'writer'
plugin = "plain"
[entry.config]
model = 'local'
started = 1979-05-27T07:32:00Z
seed = 9223372036854775807
# what it is told
system_prompt = """
Be brief.
Be kind."""
  [[entry.config.routes]]
  path = "/a"   # the first
    # nested twice
    [[entry.config.routes.rules]]
    allow = ["one", 'two']
    [[entry.config.routes.rules]]
    allow = []
    [entry.config.routes.rules.limit]
    per_minute = 1.0
  # the second route
  [[entry.config.routes]]
  path = "/b"
  [entry.intercept.num]
  unit = "m"

# the last one
[[entry]]
id = "last:one"
plugin = "plain"
isolate = { num = true }
config.list = [
  1,
  2, # two
  { three = 3 }
]
# and its end
`

/** An entry as it should be. */
interface Model {
  id: string
  plugin: string
  disabled: boolean
  config: JsonObject
  isolate?: unknown
  intercept?: unknown
}

type Path = readonly (string | number)[]

for (let run = 0; run < runs; run++) {
  t.test(`${editsPerRun} changes of a program with 17 comments, seed ${seed + run}`, async (t) => {
    const dice = diceOf(seed + run)
    const original = dice.pick([program, program.replaceAll('\n', '\r\n'), `\uFEFF${program}`, program.trimEnd()])
    const folder = t.testdir({ 'program.toml': original })
    const file = join(folder, 'program.toml')
    const plain = definePlugin({ name: 'plain', config: schemaOf({ type: 'object' }), apply() {} })
    const options = { program: file, loader: loaderOf({ plain }, folder), env: {}, log: silentLogger }
    const host = await startKernel(options)
    t.teardown(async () => {
      await host.stop()
      assertNothingLeft(host.kernel)
    })
    const control = host.kernel.service('kernel') as KernelControl

    let state: State = { text: original, models: modelsOf(original) }
    for (let round = 0; round < editsPerRun; round++) {
      const change = anyChange(dice, state.models)
      let wrong: string | undefined
      try {
        await change.make(control)
        const next: State = { text: readFileSync(file, 'utf8'), models: change.models }
        wrong = whatIsWrong(state, next, change)
        state = next
      } catch (error) {
        wrong = String(error)
      }
      if (wrong === undefined) continue
      t.fail(`change ${round}, ${change.name}: ${wrong}`)
      return
    }
    t.same((await control.entries()).pending, [], 'the file says what runs')
    t.equal(state.text.startsWith('\uFEFF'), original.startsWith('\uFEFF'))
    if (original.includes('\r')) t.notMatch(state.text, /[^\r]\n/, 'the line ends are as they were')
  })
}

t.equal(program.match(/^.*#/gm)?.length, 17)

// What changes.

interface State {
  readonly text: string
  readonly models: readonly Model[]
}

interface Change {
  readonly name: string
  readonly models: readonly Model[]
  /** Ids before and after, of entries that are one and the same. */
  readonly renamed: ReadonlyMap<string, string>
  make(control: KernelControl): Promise<unknown>
}

interface Dice {
  below(limit: number): number
  pick<T>(list: readonly T[]): T
}

/** Numbers that depend on the seed alone. */
function diceOf(start: number): Dice {
  let state = start >>> 0
  const next = () => {
    state = (state + 0x6d2b79f5) >>> 0
    let mixed = Math.imul(state ^ (state >>> 15), state | 1)
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61)
    return (mixed ^ (mixed >>> 14)) >>> 0
  }
  const below = (limit: number) => next() % limit
  return { below, pick: (list) => list[below(list.length)] as never }
}

function anyChange(dice: Dice, models: readonly Model[]): Change {
  const same = new Map(models.map(({ id }) => [id, id]))
  const kinds = ['patch', 'patch', 'patch', 'patch', 'toggle', 'move', 'put', 'add', 'delete'] as const
  let kind: (typeof kinds)[number] = dice.pick(kinds)
  if (models.length < 4) kind = 'add'
  if (models.length > 14 && kind === 'add') kind = 'delete'
  if (kind === 'add') {
    const model = anyModel(
      dice,
      `${dice.pick(['', '', 'tools:', 'last:'])}${dice.pick(['a b', '漢字', 'x', 'n'])}${dice.below(1000)}`
    )
    if (models.some(({ id }) => id === model.id)) return anyChange(dice, models)
    return {
      name: `put ${JSON.stringify(model)}`,
      models: [...models, model],
      renamed: same,
      make: (control) => control.putEntry(toInput(model))
    }
  }
  const old = dice.pick(models)
  const { id } = old
  const withModel = (model: Model) => models.map((each) => (each === old ? model : each))
  if (kind === 'toggle') {
    const disabled = !old.disabled
    return {
      name: `toggle ${id}`,
      models: withModel({ ...old, disabled }),
      renamed: same,
      make: (control) => control.toggleEntry(id)
    }
  }
  if (kind === 'delete') {
    const kept = models.filter((each) => !isWithin(each.id, id))
    return {
      name: `delete ${id}`,
      models: kept,
      renamed: new Map(kept.map((each) => [each.id, each.id])),
      make: (control) => control.deleteEntry(id)
    }
  }
  if (kind === 'move') return anyMove(dice, models, old) ?? anyChange(dice, models)
  if (old.plugin === '@group') return anyChange(dice, models)
  if (kind === 'put') {
    const model = anyModel(dice, id)
    return {
      name: `put ${JSON.stringify(model)}`,
      models: withModel(model),
      renamed: same,
      make: (control) => control.putEntry(toInput(model))
    }
  }
  const config = anyConfig(dice, old.config)
  const scope = dice.below(4) === 0 ? anyScope(dice) : undefined
  const model: Model = { ...old, config, ...scope }
  return {
    name: `patch ${id} ${JSON.stringify({ config: toJson(config), ...scope })}`,
    models: withModel(clean(model)),
    renamed: same,
    make: (control) =>
      control.patchEntry(id, { config: toJson(config), ...mapValues(scope ?? {}, (value) => value ?? null) })
  }
}

function anyMove(dice: Dice, models: readonly Model[], old: Model): Change | undefined {
  const parents = [null, ...models.map(({ id }) => id).filter((id) => !isWithin(id, old.id))]
  const parent = dice.pick(parents)
  const position = dice.pick([undefined, 0, 1, 2, 99])
  const leaf = old.id.slice(old.id.lastIndexOf(':') + 1)
  const next = parent === null ? leaf : `${parent}:${leaf}`
  const rename = (id: string) => (isWithin(id, old.id) ? next + id.slice(old.id.length) : id)
  const moved = models.filter(({ id }) => isWithin(id, old.id))
  const rest = models.filter(({ id }) => !isWithin(id, old.id))
  if (moved.some(({ id }) => rest.some((each) => each.id === rename(id)))) return undefined

  // The nearest entry above is the parent, or the id's own prefix where nothing is above.
  const parentIn = (id: string) => {
    const above = (each: string): string => each.slice(0, Math.max(0, each.lastIndexOf(':')))
    for (let each = above(id); each !== ''; each = above(each)) if (rest.some((model) => model.id === each)) return each
    return above(id)
  }
  const children = rest.filter(({ id }) => parentIn(id) === (parent ?? ''))
  const sibling = position === undefined ? undefined : children[position]
  const last = parent === null ? rest.length - 1 : rest.findLastIndex(({ id }) => isWithin(id, parent))
  const at = sibling === undefined ? last + 1 : rest.indexOf(sibling)
  return {
    name: `move ${old.id} to ${parent} at ${position}`,
    models: [...rest.slice(0, at), ...moved.map((model) => ({ ...model, id: rename(model.id) })), ...rest.slice(at)],
    renamed: new Map(models.map(({ id }) => [id, rename(id)])),
    make: (control) => control.moveEntry(old.id, parent, position)
  }
}

function isWithin(id: string, root: string): boolean {
  return id === root || id.startsWith(`${root}:`)
}

function anyModel(dice: Dice, id: string): Model {
  return clean({ id, plugin: 'plain', disabled: dice.below(3) === 0, config: anyTable(dice, 2), ...anyScope(dice) })
}

function anyScope(dice: Dice): Partial<Model> {
  return dice.pick<Partial<Model>>([
    { isolate: undefined },
    { isolate: { num: dice.pick([true, 'realm', 'other']) } },
    { intercept: undefined },
    { intercept: { num: anyTable(dice, 1) } }
  ])
}

function clean(model: Model): Model {
  return Object.fromEntries(Object.entries(model).filter(([, value]) => value !== undefined)) as unknown as Model
}

const keys = ['model', 'port', 'precision', 'a key', 'list', 'routes', 'limits', 'ключ', 'tls', '']

function anyTable(dice: Dice, depth: number): JsonObject {
  const count = dice.below(4)
  return Object.fromEntries(Array.from({ length: count }, () => [dice.pick(keys), anyValue(dice, depth)]))
}

function anyValue(dice: Dice, depth: number): JsonValue {
  const list = (make: () => JsonValue) => Array.from({ length: dice.below(4) }, make)
  const simple = () =>
    dice.pick<JsonValue>([
      dice.below(9),
      -1.5,
      1e21,
      3_000_000_000,
      true,
      '',
      'text',
      'two\nlines',
      '"# no remark"',
      "it's \\"
    ])
  if (depth === 0) return simple()
  return dice.pick([
    simple,
    simple,
    () => anyTable(dice, depth - 1),
    () => list(simple),
    () => list(() => anyTable(dice, depth - 1))
  ])()
}

/** Some change somewhere in a config. */
function anyConfig(dice: Dice, config: JsonObject): JsonObject {
  const change = (value: JsonValue, depth: number): JsonValue => {
    if (Array.isArray(value)) {
      const items: readonly JsonValue[] = value
      const at = dice.below(items.length + 1)
      const grown = () => [
        ...items.slice(0, at),
        items.length > 0 ? (items[at] ?? items[0] ?? 0) : anyValue(dice, 1),
        ...items.slice(at)
      ]
      const shrunk = () => items.filter((_, index) => index !== at)
      const inside = () => items.map((item, index) => (index === at ? change(item, depth + 1) : item))
      return dice.pick([grown, shrunk, inside, inside])()
    }
    if (!isPlain(value)) return anyValue(dice, 1)
    const names = Object.keys(value)
    const name = dice.pick(names.length > 0 ? names : ['first'])
    const { [name]: here, ...others } = value
    const added = (): JsonObject => ({ ...value, [dice.pick(keys)]: anyValue(dice, 2) })
    const inside = (): JsonObject => ({ ...value, [name]: here === undefined ? 1 : change(here, depth + 1) })
    return dice.pick([added, () => others, inside, inside, inside])()
  }
  return change(config, 0) as JsonObject
}

function isPlain(value: unknown): value is JsonObject {
  return value !== null && typeof value === 'object' && !Array.isArray(value) && !(value instanceof Date)
}

function mapValues<T>(table: object, map: (value: unknown) => T): Record<string, T> {
  return Object.fromEntries(Object.entries(table).map(([key, value]) => [key, map(value)]))
}

/** As a client sends it: JSON has no dates and no large integers. */
function toJson(value: JsonObject): JsonObject {
  return JSON.parse(
    JSON.stringify(value, (_, each: unknown) => (typeof each === 'bigint' ? String(each) : each))
  ) as JsonObject
}

function toInput(model: Model): Parameters<KernelControl['putEntry']>[0] {
  return { ...model, config: toJson(model.config) } as Parameters<KernelControl['putEntry']>[0]
}

// What must be true afterwards.

function modelsOf(text: string): readonly Model[] {
  const entries = (parseToml(text)['entry'] ?? []) as (Model & { config?: JsonObject; disabled?: boolean })[]
  return entries.map((entry) => ({ ...entry, disabled: entry.disabled ?? false, config: entry.config ?? {} }))
}

function whatIsWrong(before: State, after: State, { renamed }: Change): string | undefined {
  const story = () => `\n--- before\n${before.text}\n--- after\n${after.text}`
  const [found, wanted] = [exact(modelsOf(after.text)), exact(after.models)]
  if (found !== wanted) return `reads as\n${found}, not as\n${wanted}${story()}`
  const rest = (text: string) => exact({ ...parseToml(text), entry: [] })
  if (rest(before.text) !== rest(after.text)) return `more than entries has changed${story()}`

  const [oldLines, newLines] = [linesOf(before.text), linesOf(after.text)]
  const compare = (was: readonly Line[], is: readonly Line[], changed: readonly Difference[], what: string) => {
    const kept = (lines: readonly Line[]) => lines.filter((line) => !changed.some((each) => mayChange(line, each)))
    const lost = notIn(kept(was), is)
    if (lost !== undefined) return `a line of ${what} is lost: ${lost}${story()}`
    const come = notIn(kept(is), was)
    return come === undefined ? undefined : `a line of ${what} has come: ${come}${story()}`
  }
  for (const [index, model] of before.models.entries()) {
    const id = renamed.get(model.id)
    const now = after.models.findIndex((each) => each.id === id)
    if (now < 0) continue
    const changed = differences(model, after.models[now], [])
    const wrong = compare(ofEntry(oldLines, index), ofEntry(newLines, now), changed, model.id)
    if (wrong !== undefined) return wrong
  }
  return compare(ofEntry(oldLines, undefined), ofEntry(newLines, undefined), [], 'no entry')
}

interface Line {
  readonly text: string
  readonly entry: number | undefined
  /** The key it is about, or the table; within its entry. */
  readonly path: Path
  /** Part of a value; the header of a table, or a remark about that; a remark about a key. */
  readonly kind: 'value' | 'header' | 'remark'
}

interface Difference {
  readonly path: Path
  /** The key is not there any more. */
  readonly gone: boolean
}

/** The first of some lines that is not among others, in the same order. */
function notIn(some: readonly Line[], others: readonly Line[]): string | undefined {
  let at = 0
  for (const { text } of some) {
    while (at < others.length && others[at]?.text !== text) at++
    if (at === others.length) return text
    at++
  }
  return undefined
}

function ofEntry(lines: readonly Line[], entry: number | undefined): readonly Line[] {
  return lines.filter((line) => line.entry === entry)
}

/** Every line that is not blank, with what it is about. */
function linesOf(text: string): readonly Line[] {
  const plain = text.replace(/^\uFEFF/, '')
  const lines = plain.split(/\r?\n/)
  const about: (Omit<Line, 'text'> | undefined)[] = lines.map(() => undefined)
  const tables: Path[] = lines.map(() => [])
  const note = ({ loc }: AST.TOMLNode, table: Path, path: Path, kind: Line['kind']) => {
    for (let line = loc.start.line - 1; line < loc.end.line; line++) {
      about[line] ??= lineAbout(path, kind)
      tables[line] = table
    }
  }
  for (const node of parseTOML(plain, { tomlVersion: '1.1' }).body[0].body) {
    const pairs = node.type === 'TOMLKeyValue' ? [node] : node.body
    const table = node.type === 'TOMLKeyValue' ? [] : node.resolvedKey
    if (node.type === 'TOMLTable') note(node.key, table, table, 'header')
    for (const pair of pairs) {
      const names = pair.key.keys.map((key) => (key.type === 'TOMLBare' ? key.name : key.value))
      note(pair, table, [...table, ...names], 'value')
    }
  }

  // Remarks: those at the top are about the file, others about what is right below, or the table right above.
  const remarks = lines.flatMap((line, at) => (about[at] === undefined && line.trim() !== '' ? [at] : []))
  for (let at = 0; remarks[at] === at; at++) about[at] = lineAbout([], 'header')
  for (const at of remarks.toReversed()) {
    const below = about[at + 1]
    if (below !== undefined) about[at] ??= { ...below, kind: below.kind === 'value' ? 'remark' : below.kind }
  }
  for (const at of remarks) {
    if (about[at] !== undefined) continue
    const above = at > 0 && about[at - 1] !== undefined ? (tables[at - 1] as Path) : []
    about[at] = lineAbout(above, 'header')
    tables[at] = above
  }
  return lines.flatMap((line, at) => (line.trim() === '' ? [] : [{ text: line, ...(about[at] as Omit<Line, 'text'>) }]))
}

function lineAbout(path: Path, kind: Line['kind']): Omit<Line, 'text'> {
  const [table, entry, ...rest] = path
  return table === 'entry' ? { entry: Number(entry), path: rest, kind } : { entry: undefined, path, kind }
}

/** Whether a line may change with what is different. */
function mayChange({ path, kind }: Line, { path: changed, gone }: Difference): boolean {
  const isWithin = changed.every((name, index) => index >= path.length || name === path[index])
  if (!isWithin) return false
  if (kind === 'value') return true
  return kind === 'header' || gone ? changed.length <= path.length : changed.length < path.length
}

/** Where two values differ, as near to the leaves as may be; of arrays everything from the first difference on. */
function differences(a: unknown, b: unknown, path: Path): readonly Difference[] {
  if (exact(a) === exact(b)) return []
  if (isPlain(a) && isPlain(b)) {
    const names = new Set([...Object.keys(a), ...Object.keys(b)])
    return [...names].flatMap((name) => differences(a[name], b[name], [...path, name]))
  }
  if (Array.isArray(a) && Array.isArray(b) && a.length > 0 && b.length > 0) {
    if (a.length === b.length) return a.flatMap((item, index) => differences(item, b[index], [...path, index]))
    const from = a.findIndex((item, index) => exact(item) !== exact(b[index]))
    const count = Math.max(a.length, b.length)
    return Array.from({ length: count }, (_, index) => ({ path: [...path, index], gone: true })).slice(from)
  }
  return [{ path, gone: b === undefined }]
}

/** A value as text that tells types and amounts apart, key order aside. */
function exact(value: unknown): string {
  if (Array.isArray(value)) return `[${value.map(exact).join()}]`
  if (isPlain(value)) {
    const names = Object.keys(value).sort()
    return `{${names.map((name) => `${JSON.stringify(name)}:${exact(value[name])}`).join()}}`
  }
  if (value instanceof Date) return `date ${value.toISOString()}`
  return typeof value === 'string' ? JSON.stringify(value) : `${typeof value} ${String(value)}`
}
