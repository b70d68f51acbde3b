import {
  chmodSync,
  existsSync,
  lstatSync,
  readdirSync,
  readFileSync,
  statSync,
  symlinkSync,
  writeFileSync
} from 'node:fs'
import { join, relative } from 'node:path'
import fc, { type GeneratorValue } from 'fast-check'
import { TomlDate } from 'smol-toml'
import t, { type Test } from 'tap'
import { type AST, parseTOML } from 'toml-eslint-parser'
import { editProgram, type ProgramEdit, setIn, writeProgramFile } from '../../kernel/edit.ts'
import { isCoded } from '../../kernel/errors.ts'
import type { JsonObject, JsonValue } from '../../kernel/program.ts'
import { isArray, isTable, type Pair, type Path, parseToml, scan, type Value } from '../../kernel/toml.ts'

const seed = Number(process.env['HEARTWOOD_TEST_SEED'] ?? Date.now() % 2 ** 31)
t.comment(`seed ${seed}: HEARTWOOD_TEST_SEED=${seed} repeats this run`)

function holds(t: Test, runs: number, property: (g: GeneratorValue) => void): void {
  try {
    fc.assert(fc.property(fc.gen(), property), { seed, numRuns: runs, endOnFailure: true })
    t.pass(`${runs} runs`)
  } catch (error) {
    const { cause } = error as Error
    t.fail(cause instanceof Error ? `${cause.message}${isCoded(cause) ? '' : cause.stack}` : String(error))
  }
}

/** A value as text that tells types and amounts apart, key order aside. */
function exact(value: unknown): string {
  if (isArray(value)) return `[${value.map(exact).join()}]`
  if (isTable(value)) {
    const keys = Object.keys(value).sort()
    return `{${keys.map((key) => `${JSON.stringify(key)}:${exact(value[key])}`).join()}}`
  }
  if (value instanceof Date) return `date ${value.toISOString()}`
  if (Object.is(value, -0)) return '-0'
  return typeof value === 'string'
    ? JSON.stringify(value)
    : `${typeof value === 'bigint' ? 'big ' : ''}${String(value)}`
}

function assertEqual(actual: string, expected: string, what: string): void {
  if (actual !== expected) throw new Error(`${what}\nfound    ${actual}\nexpected ${expected}`)
}

// One edit at a time, as an operator reads it.

const sample = `# program.toml: what runs
# (the night shift edits this)

[[entry]]
id = "http"
plugin = "http"
config = { host = "127.0.0.1", port = 3_000 } # the way in

# --- tools ---

# a group
[[entry]]
id = "tools"            # tools:… are its children
plugin = "@group"

# the calculator
[[entry]]
id = "tools:calc"
plugin = "calculator"
config.precision = 0x6   # two places
config.anonymous = true
# config.later = 1

[[entry]]
id = 'writer'
plugin = "agent"
[entry.config]
model = 'local'
# what it is told
system_prompt = """
Be brief.
Be kind."""
  [[entry.config.rows]]
  a = 1.0
  [[entry.config.rows]]
  a = 2 # two
  [entry.config.rows.sub]
  z = 1

[kernel]
drain_timeout_ms = 5_000`

const writer = {
  model: 'local',
  system_prompt: 'Be brief.\nBe kind.',
  rows: [{ a: 1 }, { a: 2, sub: { z: 1 } }]
}

/** The lines that went (`-`) and came (`+`), in order. */
function changes(before: string, after: string): readonly string[] {
  const [a, b] = [before.split('\n'), after.split('\n')]
  const lengths = Array.from({ length: a.length + 1 }, () => new Array<number>(b.length + 1).fill(0))
  const length = (i: number, j: number) => lengths[i]?.[j] ?? 0
  for (let i = a.length - 1; i >= 0; i--) {
    for (let j = b.length - 1; j >= 0; j--) {
      ;(lengths[i] as number[])[j] =
        a[i] === b[j] ? length(i + 1, j + 1) + 1 : Math.max(length(i + 1, j), length(i, j + 1))
    }
  }
  const found: string[] = []
  let [i, j] = [0, 0]
  while (i < a.length || j < b.length) {
    if (i < a.length && j < b.length && a[i] === b[j]) {
      i++
      j++
    } else if (j >= b.length || (i < a.length && length(i + 1, j) >= length(i, j + 1))) found.push(`-${a[i++]}`)
    else found.push(`+${b[j++]}`)
  }
  return found
}

function config(id: string, config: JsonObject): ProgramEdit {
  return { op: 'set-config', id, config }
}

t.test('a changed value takes the place of the old one, in its style', async (t) => {
  const cases: [string, JsonObject, string[]][] = [
    [
      'http',
      { host: '127.0.0.1', port: 4000 },
      [
        '-config = { host = "127.0.0.1", port = 3_000 } # the way in',
        '+config = { host = "127.0.0.1", port = 4000 } # the way in'
      ]
    ],
    ['tools:calc', { precision: 6, anonymous: false }, ['-config.anonymous = true', '+config.anonymous = false']],
    ['writer', { ...writer, model: 'remote' }, ["-model = 'local'", "+model = 'remote'"]],
    ['writer', { ...writer, model: "it's" }, ["-model = 'local'", '+model = "it\'s"']],
    [
      'writer',
      { ...writer, system_prompt: 'Be brief.\n"""Be""" \\ kind"' },
      ['-Be kind."""', '+\\"\\""Be\\"\\"" \\\\ kind\\""""']
    ],
    ['writer', { ...writer, rows: [{ a: 3 }, { a: 2, sub: { z: 1 } }] }, ['-  a = 1.0', '+  a = 3.0']]
  ]
  for (const [id, wanted, lines] of cases) {
    t.same([...changes(sample, editProgram(sample, [config(id, wanted)]))].sort(), [...lines].sort())
  }
})

t.test('a new key comes where the others of its table are', async (t) => {
  const cases: [string, JsonObject, string[]][] = [
    [
      'http',
      { host: '127.0.0.1', port: 3000, tls: { on: true } },
      [
        '-config = { host = "127.0.0.1", port = 3_000 } # the way in',
        '+config = { host = "127.0.0.1", port = 3_000, tls = { on = true } } # the way in'
      ]
    ],
    ['tools:calc', { precision: 6, anonymous: true, 'a b': 'x' }, ['+config."a b" = "x"']],
    ['tools', { depth: 1 }, ['+config = { depth = 1 }']],
    ['writer', { ...writer, top_p: 0.5 }, ['+top_p = 0.5']],
    ['writer', { ...writer, rows: [{ a: 1 }, { a: 2, sub: { z: 1, y: [] } }] }, ['+  y = []']],
    ['writer', { ...writer, rows: [...writer.rows, { b: 1 }] }, ['+', '+  [[entry.config.rows]]', '+  b = 1']]
  ]
  for (const [id, wanted, lines] of cases) {
    t.same([...changes(sample, editProgram(sample, [config(id, wanted)]))].sort(), [...lines].sort())
  }
})

t.test('a key that goes takes nothing with it but its own comment', async (t) => {
  const { system_prompt: _, ...unprompted } = writer
  const cases: [string, JsonObject, string[]][] = [
    [
      'http',
      { port: 3000 },
      ['-config = { host = "127.0.0.1", port = 3_000 } # the way in', '+config = { port = 3_000 } # the way in']
    ],
    ['tools:calc', { anonymous: true }, ['-config.precision = 0x6   # two places']],
    ['writer', unprompted, ['-system_prompt = """', '-Be brief.', '-Be kind."""']],
    ['writer', { ...writer, rows: [{ a: 2, sub: { z: 1 } }] }, ['-  [[entry.config.rows]]', '-  a = 1.0']],
    [
      'writer',
      { ...writer, rows: 5 },
      [
        '+rows = 5',
        '-  [[entry.config.rows]]',
        '-  a = 1.0',
        '-  [[entry.config.rows]]',
        '-  a = 2 # two',
        '-  [entry.config.rows.sub]',
        '-  z = 1'
      ]
    ]
  ]
  for (const [id, wanted, lines] of cases) {
    t.same([...changes(sample, editProgram(sample, [config(id, wanted)]))].sort(), [...lines].sort())
  }
})

t.test('what stays equal changes no byte', async (t) => {
  const edits: ProgramEdit[] = [
    config('http', { port: 3000, host: '127.0.0.1' }),
    config('tools', {}),
    config('writer', writer),
    { op: 'set-disabled', id: 'http', disabled: false },
    { op: 'move', ids: ['tools', 'tools:calc'], before: 'writer' },
    { op: 'rename', ids: [['http', 'http']] }
  ]
  t.equal(editProgram(sample, edits), sample)
  t.equal(editProgram(sample, []), sample)
})

t.test('entries come, go and move with their own comments', async (t) => {
  const block = (id: string) => {
    const lines = sample.split('\n\n').find((part) => part.includes(`"${id}"`) && part.includes('[[entry]]'))
    return (lines ?? '').split('\n')
  }
  const insert = (before?: string): ProgramEdit => ({
    op: 'insert',
    entry: { id: 'x y', plugin: './x.ts', disabled: true, config: { a: 'b' } },
    ...(before === undefined ? {} : { before })
  })
  const added = ['+[[entry]]', '+id = "x y"', '+plugin = "./x.ts"', '+disabled = true', '+config = { a = "b" }', '+']

  const last = editProgram(sample, [insert()])
  t.same([...changes(sample, last)].sort(), [...added].sort())
  t.match(last, /z = 1\n\n\[\[entry\]\]\nid = "x y"/, 'behind the last entry')

  const middle = editProgram(sample, [insert('tools:calc')])
  t.match(middle, /"@group"\n\n\[\[entry\]\]\nid = "x y"[^#]*\n\n# the calculator\n/)
  t.match(
    editProgram(sample, [insert('http')]),
    /edits this\)\n\n\[\[entry\]\]\nid = "x y"/,
    'below the head of the file'
  )
  t.equal(editProgram(middle, [{ op: 'remove', ids: ['x y'] }]), sample, 'and away again')

  const without = editProgram(sample, [{ op: 'remove', ids: ['tools:calc'] }])
  t.same([...changes(sample, without)].sort(), [...block('tools:calc').map((line) => `-${line}`), '-'].sort())

  const moved = editProgram(sample, [{ op: 'move', ids: ['tools', 'tools:calc'], before: 'http' }])
  t.match(
    moved,
    /edits this\)\n\n# a group\n\[\[entry\]\]\nid = "tools" [\s\S]*# config\.later = 1\n\n\[\[entry\]\]\nid = "http"/
  )
  t.match(moved, /# the way in\n\n# --- tools ---\n\n\[\[entry\]\]\nid = 'writer'/, 'a free comment stays')
  const back = editProgram(moved, [{ op: 'move', ids: ['http'], before: 'tools' }])
  t.same(parseToml(back), parseToml(sample))
})

t.test('an entry whose sections stand apart stays whole', async (t) => {
  const text = `[[entry]]
id = "a"
plugin = "p"

[kernel] # here too
drain_timeout_ms = 5

# the config of a
[entry.config]
n = 1

# about b
[[entry]]
id = "b"
plugin = "p"
`
  const kernel = '[kernel] # here too\ndrain_timeout_ms = 5\n\n'
  const a = '[[entry]]\nid = "a"\nplugin = "p"\n\n'
  const more = '# the config of a\n[entry.config]\nn = 1\n'
  const b = '# about b\n[[entry]]\nid = "b"\nplugin = "p"\n'
  t.equal(editProgram(text, [{ op: 'remove', ids: ['a'] }]), kernel + b)
  t.equal(editProgram(text, [{ op: 'move', ids: ['a'] }]), `${kernel}${b}\n${a}${more}`)
  t.equal(editProgram(text, [{ op: 'move', ids: ['b'], before: 'a' }]), `\n${b}\n${a}${kernel}${more}`)
  t.same(changes(text, editProgram(text, [config('a', { n: 2 })])), ['-n = 1', '+n = 2'])
})

t.test('a comment that comes to the top of the file still goes with its entry', async (t) => {
  const text = '[[entry]]\nid = "a"\nplugin = "p"\n\n# about b\n[[entry]]\nid = "b"\nplugin = "p"\n'
  for (const edit of [
    { op: 'move', ids: ['b'], before: 'a' },
    { op: 'remove', ids: ['a'] }
  ] satisfies ProgramEdit[]) {
    const first = editProgram(text, [edit])
    const entry = { id: 'c', plugin: 'p', disabled: false, config: {} }
    t.match(editProgram(first, [{ op: 'insert', entry, before: 'b' }]), /# about b\n\[\[entry\]\]\nid = "b"/)
  }
})

t.test('ids change all at once, so two entries can swap theirs', async (t) => {
  const swapped = editProgram(sample, [
    {
      op: 'rename',
      ids: [
        ['http', 'writer'],
        ['writer', 'http']
      ]
    }
  ])
  t.same(changes(sample, swapped), ['-id = "http"', '+id = "writer"', "-id = 'writer'", "+id = 'http'"])
})

t.test('an empty file, or one with comments only, takes a first entry', async (t) => {
  const insert: ProgramEdit = { op: 'insert', entry: { id: 'a', plugin: 'p', disabled: false, config: {} } }
  const entry = '[[entry]]\nid = "a"\nplugin = "p"\n'
  const cases: [string, string][] = [
    ['', entry],
    ['\uFEFF', `\uFEFF${entry}`],
    ['# head', `# head\n\n${entry}`],
    ['# head\n', `# head\n\n${entry}`],
    ['# head\n\n', `# head\n\n${entry}`],
    [
      '[kernel]\r\ndrain_timeout_ms = 1\r\n',
      `[kernel]\r\ndrain_timeout_ms = 1\r\n\r\n${entry.replaceAll('\n', '\r\n')}`
    ],
    ['entry = []\n', 'entry = [{ id = "a", plugin = "p" }]\n']
  ]
  for (const [text, expected] of cases) {
    t.equal(editProgram(text, [insert]), expected, JSON.stringify(text))
    t.same(parseToml(editProgram(expected, [{ op: 'remove', ids: ['a'] }]))['entry'] ?? [], [])
  }
})

t.test('entries in an inline array are edited in place', async (t) => {
  const text = `entry = [
  # the first
  { id = "a", plugin = "p", config = { n = 1 } }, # one
  { id = "b", plugin = "p" }, # two

  # the last
  { id = "c", plugin = "p", config.n = 3 } # three
]
`
  const cases: [ProgramEdit, string[]][] = [
    [
      config('c', { n: 3, m: 4 }),
      [
        '-  { id = "c", plugin = "p", config.n = 3 } # three',
        '+  { id = "c", plugin = "p", config.n = 3, config.m = 4 } # three'
      ]
    ],
    [
      { op: 'set-disabled', id: 'b', disabled: true },
      ['-  { id = "b", plugin = "p" }, # two', '+  { id = "b", plugin = "p", disabled = true }, # two']
    ],
    [{ op: 'remove', ids: ['b'] }, ['-  { id = "b", plugin = "p" }, # two']],
    [
      { op: 'remove', ids: ['c'] },
      [
        '-  { id = "b", plugin = "p" }, # two',
        '+  { id = "b", plugin = "p" } # two',
        '-  { id = "c", plugin = "p", config.n = 3 } # three'
      ]
    ],
    [
      { op: 'insert', entry: { id: 'd', plugin: 'p', disabled: false, config: {} }, before: 'b' },
      ['+  { id = "d", plugin = "p" },']
    ],
    [
      { op: 'insert', entry: { id: 'd', plugin: 'p', disabled: false, config: {} } },
      [
        '-  { id = "c", plugin = "p", config.n = 3 } # three',
        '+  { id = "c", plugin = "p", config.n = 3 }, # three',
        '+  { id = "d", plugin = "p" }'
      ]
    ]
  ]
  for (const [edit, lines] of cases) t.same(changes(text, editProgram(text, [edit])), lines)
  t.same(
    (parseToml(editProgram(text, [{ op: 'move', ids: ['c'], before: 'a' }]))['entry'] as { id: string }[]).map(
      ({ id }) => id
    ),
    ['c', 'a', 'b']
  )
})

t.test('what cannot be written is refused', async (t) => {
  const deep = () => {
    let value: JsonValue = 1
    for (let level = 0; level < 100; level++) value = [value]
    return { value }
  }
  const cases: [ProgramEdit, string][] = [
    [config('http', { a: null }), 'PROGRAM_EDIT_FAILED'],
    [config('http', { a: '\uD800' }), 'PROGRAM_EDIT_FAILED'],
    [config('http', JSON.parse('{"a":{"__proto__":1}}') as JsonObject), 'PROGRAM_EDIT_FAILED'],
    [config('http', deep()), 'PROGRAM_EDIT_FAILED'],
    [config('absent', {}), 'PROGRAM_NO_ENTRY'],
    [{ op: 'remove', ids: ['absent'] }, 'PROGRAM_NO_ENTRY'],
    [{ op: 'move', ids: ['absent'] }, 'PROGRAM_NO_ENTRY'],
    [{ op: 'move', ids: ['http'], before: 'absent' }, 'PROGRAM_NO_ENTRY'],
    [{ op: 'move', ids: ['http'], before: 'http' }, 'PROGRAM_EDIT_FAILED'],
    [{ op: 'move', ids: ['http', 'http'] }, 'PROGRAM_EDIT_FAILED'],
    [{ op: 'rename', ids: [['absent', 'x']] }, 'PROGRAM_NO_ENTRY']
  ]
  for (const [edit, code] of cases)
    t.throws(() => editProgram(sample, [edit]), { code }, JSON.stringify(edit).slice(0, 60))
})

t.test('the refusal of a text that is not valid quotes nothing of it', async (t) => {
  const broken = `${sample}\npassword = "hunter2" oops\n`
  t.throws(() => editProgram(broken, [{ op: 'remove', ids: ['http'] }]), {
    code: 'PROGRAM_EDIT_FAILED',
    message: /end-of-line$/
  })
})

t.test('values of a file that another edit does not touch keep type and amount', async (t) => {
  const nums = `[[entry]]
id = "nums"
plugin = "./plugins/echo.mjs"
[entry.config]
big = 9223372036854775807
edge = 9007199254740993
f1 = 1.0
f2 = 1e16
neg0 = -0.0
inf = inf
hex = 0xDEADBEEF
day = 2027-02-28
odt = 2027-02-28T23:59:59.5+02:00
t = 07:32:00
"quoted.key" = { "a b" = 1, "" = 2 }
multi = """
line\\tone
line two"""
`
  const text = `${sample}\n${nums}`
  const before = (parseToml(text)['entry'] as { config?: JsonObject }[])[4]?.config as JsonObject
  t.ok(editProgram(text, [config('tools:calc', { precision: 3 })]).endsWith(nums))

  const odd = editProgram(text, [config('nums', { ...before, more: 1e16, again: -0, far: 2n ** 63n - 1n, small: 5n })])
  const after = (parseToml(odd)['entry'] as { config?: JsonObject }[])[4]?.config
  t.equal(exact(after), exact({ ...before, more: 1e16, again: -0, far: 2n ** 63n - 1n, small: 5 }))
  t.equal(changes(text, odd).length, 4)
})

t.test('a config that went through JSON and back changes no byte', async (t) => {
  const text = `[[entry]]
id = "a"
plugin = "p"
config = { big = 9007199254740993, day = 2027-02-28, at = [{ t = 07:32:00.5 }], most = inf, what = nan, n = 1_0 }
`
  const shown = JSON.stringify(modelsOf(text)[0]?.config, (_, value: unknown) =>
    typeof value === 'bigint' ? String(value) : value
  )
  const given = JSON.parse(shown) as JsonObject
  t.equal(editProgram(text, [config('a', given)]), text)
  t.match(editProgram(text, [config('a', { ...given, n: 2, day: '2027-03-01' })]), 'day = "2027-03-01"')
  t.match(editProgram(text, [config('a', { ...given, n: 2 })]), 'day = 2027-02-28, at = [{ t = 07:32:00.5 }]')
})

// Any program, any edit.

const letters = fc.constantFrom(
  'a',
  'b',
  'precision',
  'x y',
  '',
  'ключ',
  'q"',
  "it's",
  'a.b',
  '#',
  '3',
  '[[',
  'constructor'
)
const strings = fc.oneof(
  fc.constantFrom(
    '',
    'plain',
    'two\nlines\n',
    'c:\\dir',
    'say "hi"',
    "'",
    '"""',
    '# no comment',
    '[[entry]]',
    '${PORT}',
    '\u0001',
    '😀',
    '\uFEFF',
    'tab\t',
    'cr\r\n',
    ' } , ]'
  ),
  fc.string({ unit: 'grapheme', maxLength: 12 })
)
const scalars: fc.Arbitrary<JsonValue> = fc.oneof(
  strings,
  fc.boolean(),
  fc.integer(),
  fc.maxSafeInteger(),
  fc.double(),
  fc.bigInt({ min: 2n ** 53n, max: 2n ** 63n - 1n }),
  fc.constantFrom(0, -0, 1e16, 1e21, 0.1, Infinity, NaN),
  fc
    .constantFrom(
      '2027-02-28',
      '07:32:00',
      '2027-02-28T07:32:00',
      '1979-05-27T00:32:00.5-07:00',
      '2000-02-29T00:00:00Z'
    )
    .map((text) => new TomlDate(text))
)
const { tree: anyTable } = fc.letrec<{ tree: JsonObject; value: JsonValue }>((tie) => ({
  tree: fc.dictionary(letters, tie('value'), { maxKeys: 4 }),
  value: fc.oneof(
    { depthSize: 'small', withCrossShrink: true },
    scalars,
    fc.array(tie('value'), { maxLength: 3 }),
    tie('tree'),
    fc.array(tie('tree'), { minLength: 1, maxLength: 3 })
  )
}))

interface Model {
  readonly id: string
  readonly plugin: string
  readonly disabled: boolean
  readonly config: JsonObject
}

/** Writes the same thing in any of the ways TOML has. */
function writerOf(g: GeneratorValue) {
  const eol = g(fc.constantFrom, '\n', '\r\n')
  let comments = 0
  const maybe = (chance: number) => g(fc.integer, { min: 1, max: 100 }) <= chance
  const comment = () => `# c${++comments} [[entry]] = "x`
  const space = () => g(fc.constantFrom, '', ' ', ' ', '  ', '\t')
  const tail = () => (maybe(20) ? `${space()}${comment()}` : '')
  const quote = (text: string) =>
    JSON.stringify(text).replace(/[\x7f\uFEFF]/g, (char) => `\\u${char.charCodeAt(0).toString(16).padStart(4, '0')}`)
  const key = (name: string) =>
    /^[\w-]+$/.test(name) && maybe(80) ? name : /['\p{Cc}]/u.test(name) || maybe(60) ? quote(name) : `'${name}'`
  const scalar = (value: JsonValue): string => {
    if (typeof value === 'string') {
      if (!/[\p{Cc}']/u.test(value) && maybe(30)) return `'${value}'`
      if (value.includes('\n') && eol === '\n' && !value.includes('\r') && maybe(60)) {
        return `"""\n${quote(value).slice(1, -1).replaceAll('\\\\', '\\u005c').replaceAll('\\n', '\n')}"""`
      }
      return quote(value)
    }
    if (typeof value === 'number') {
      if (Number.isNaN(value)) return 'nan'
      if (!Number.isFinite(value)) return value > 0 ? '+inf' : '-inf'
      if (Object.is(value, -0)) return '-0.0'
      if (!Number.isSafeInteger(value)) return /[.e]/.test(String(value)) ? String(value) : `${value}.0`
      if (value >= 0 && maybe(30)) return `0x${value.toString(16)}`
      if (maybe(20)) return `${value}.0`
      return value >= 1000 && maybe(50) ? String(value).replace(/(\d)(?=(\d{3})+$)/g, '$1_') : String(value)
    }
    return value instanceof Date ? value.toISOString() : String(value as boolean | bigint)
  }
  const inline = (value: JsonValue): string => {
    const wrap = (open: string, items: string[], close: string) => {
      if (items.length > 0 && maybe(25)) {
        const lines = items.map(
          (item, index) => `   ${item}${index < items.length - 1 || maybe(30) ? ',' : ''}${tail()}`
        )
        const extra = maybe(20) ? [`   ${comment()}`] : []
        return [`${open}${tail()}`, ...extra, ...lines, close].join(eol)
      }
      const pad = space()
      return `${open}${pad}${items.join(`${space()},${space()}`)}${pad}${close}`
    }
    if (isArray(value))
      return wrap(
        '[',
        value.map((item) => inline(item as JsonValue)),
        ']'
      )
    if (isTable(value)) return wrap('{', pairs(value as JsonObject, ''), '}')
    return scalar(value)
  }
  /** The pairs of a table, some of them dotted. */
  const pairs = (table: JsonObject, prefix: string): string[] =>
    Object.entries(table).flatMap(([name, value]) => {
      const full = prefix + key(name)
      if (isTable(value) && Object.keys(value).length > 0 && maybe(30))
        return pairs(value as JsonObject, `${full}${space()}.${space()}`)
      return [`${full}${space()}=${space()}${inline(value)}`]
    })
  /** A table as a section with sections below it. */
  const section = (name: string, table: JsonObject, array: boolean): string[] => {
    const indent = maybe(20) ? '  ' : ''
    const [here, below]: [JsonObject, [string, JsonValue][]] = [{}, []]
    for (const [member, value] of Object.entries(table)) {
      const tables = isArray(value) && value.length > 0 && value.every(isTable)
      if ((isTable(value) || tables) && maybe(50)) below.push([member, value])
      else Object.assign(here, { [member]: value })
    }
    const header = array ? `[[${name}]]` : `[${name}]`
    const hidden = !array && below.length > 0 && Object.keys(here).length === 0 && maybe(40)
    return [
      ...(hidden ? [] : [`${indent}${header}${tail()}`]),
      ...pairs(here, '').flatMap((pair) => [
        ...(maybe(10) ? [`${indent}${comment()}`] : []),
        ...(maybe(5) ? [''] : []),
        `${indent}${pair}${tail()}`
      ]),
      ...below.flatMap(([member, value]) => {
        const full = `${name}.${key(member)}`
        return isArray(value)
          ? value.flatMap((item) => section(full, item as JsonObject, true))
          : section(full, value as JsonObject, false)
      })
    ]
  }
  return { eol, maybe, comment, inline, section, quote }
}

/** A program as text, with its lines by the entry they belong to. */
interface Written {
  readonly text: string
  readonly entries: readonly { readonly model: Model; readonly lines: readonly string[] }[]
  /** Lines of no entry, by the number of entries above them. */
  readonly loose: readonly (readonly string[])[]
  readonly inline: boolean
}

function writeProgram(g: GeneratorValue, models: readonly Model[]): Written {
  const { eol, maybe, comment, inline, section } = writerOf(g)
  const table = ({ id, plugin, disabled, config }: Model): JsonObject => ({
    id,
    plugin,
    ...(disabled || maybe(10) ? { disabled } : {}),
    ...(Object.keys(config).length > 0 || maybe(20) ? { config } : {})
  })
  const mark = maybe(15) ? '\uFEFF' : ''
  const end = maybe(15) ? '' : eol
  if (maybe(15)) {
    const text = `${mark}${maybe(50) ? comment() + eol : ''}entry = ${inline(models.map(table))}${end}`
    return { text, entries: models.map((model) => ({ model, lines: [] })), loose: [], inline: true }
  }
  const kernel = g(fc.integer, { min: -1, max: models.length })
  const loose: string[][] = []
  const parts: string[][] = []
  const entries = models
    .map((model, index) => ({ model, index }))
    .map(({ model, index }) => {
      loose.push(looseLines(index))
      const lines = [
        ...(maybe(30) && index + parts.length > 0 ? [comment(), comment()] : []),
        ...section('entry', table(model), true)
      ]
      if (maybe(15)) lines.push(comment())
      parts.push(...loose[index]!.map((line) => [line]), lines)
      return { model, lines }
    })
  loose.push(looseLines(models.length))
  parts.push(...loose.at(-1)!.map((line) => [line]))

  function looseLines(index: number): string[] {
    const lines = index === 0 && maybe(50) ? [comment()] : maybe(20) ? [comment()] : []
    // A part of its own, after the last line of the head or the entry above.
    if (kernel === index) lines.push(`[kernel]${eol}drain_timeout_ms = 5_000`)
    return lines
  }
  const text = mark + parts.map((part) => part.join(eol)).join(eol + eol) + (parts.length > 0 ? end : '')
  return { text, entries, loose, inline: false }
}

function anyModels(g: GeneratorValue): Model[] {
  const ids = g(() =>
    fc.uniqueArray(fc.constantFrom('a', 'b', 'a:c', 'a:d', 'x y', '中', 'q"\\', '%00'), { maxLength: 5 })
  )
  return ids.map((id) => ({
    id,
    plugin: g(fc.constantFrom, 'p', './q.ts'),
    disabled: g(fc.boolean),
    config: g(() => anyTable)
  }))
}

/** A config near the given one: a key changed, added or taken away somewhere, or all of it new. */
function anyConfig(g: GeneratorValue, config: JsonObject): JsonObject {
  const change = (value: JsonValue): JsonValue => {
    if (isTable(value) && g(fc.integer, { min: 0, max: 9 }) < 9) {
      const keys = Object.keys(value)
      const name = g(
        fc.constantFrom,
        ...keys,
        g(() => letters)
      )
      const { [name]: old, ...rest } = value as JsonObject
      if (old === undefined) return { ...rest, [name]: g(() => fc.oneof(scalars, anyTable)) }
      return g(fc.boolean) ? rest : { ...(value as JsonObject), [name]: change(old) }
    }
    if (isArray(value) && g(fc.integer, { min: 0, max: 9 }) < 9) {
      const at = g(fc.integer, { min: 0, max: value.length })
      const kind = g(fc.integer, { min: 0, max: 2 })
      const items = [...value] as JsonValue[]
      if (kind === 0)
        items.splice(
          at,
          0,
          g(() => fc.oneof(scalars, anyTable))
        )
      else if (kind === 1) items.splice(at, 2)
      else if (at < items.length) items[at] = change(items[at] as JsonValue)
      return items
    }
    return g(() => fc.oneof(scalars, anyTable))
  }
  const next = change(config)
  return isTable(next) ? (next as JsonObject) : {}
}

function anyEdit(g: GeneratorValue, models: readonly Model[]): ProgramEdit {
  const ids = models.map(({ id }) => id)
  const before = (left: readonly string[]) => {
    const at = g(fc.integer, { min: 0, max: left.length })
    return at === left.length ? {} : { before: left[at] as string }
  }
  const insert = (): ProgramEdit => ({
    op: 'insert',
    entry: { id: 'new', plugin: 'p', disabled: g(fc.boolean), config: g(() => anyTable) },
    ...before(ids)
  })
  const id = ids.length === 0 ? '' : g(fc.constantFrom, ...ids)
  const kind =
    ids.length === 0
      ? 'insert'
      : g(
          fc.constantFrom,
          'set-config',
          'set-config',
          'set-config',
          'set-disabled',
          'insert',
          'remove',
          'rename',
          'move'
        )
  switch (kind) {
    case 'set-config':
      return { op: 'set-config', id, config: anyConfig(g, models.find((model) => model.id === id)?.config ?? {}) }
    case 'set-disabled':
      return { op: 'set-disabled', id, disabled: g(fc.boolean) }
    case 'remove':
      return { op: 'remove', ids: g(fc.shuffledSubarray, ids, { minLength: 1 }) }
    case 'rename': {
      const other = g(fc.constantFrom, ...ids, 'renamed "it"')
      return {
        op: 'rename',
        ids:
          ids.includes(other) && other !== id
            ? [
                [id, other],
                [other, id]
              ]
            : [[id, other]]
      }
    }
    case 'move': {
      const moved = g(fc.shuffledSubarray, ids, { minLength: 1 })
      return { op: 'move', ids: moved, ...before(ids.filter((id) => !moved.includes(id))) }
    }
    default:
      return insert()
  }
}

/** What the edit means, told apart from how the editor does it. */
function expectedModels(models: readonly Model[], edit: ProgramEdit): Model[] {
  const put = (list: readonly Model[], moved: readonly Model[], before: string | undefined) => {
    const at = before === undefined ? list.length : list.findIndex(({ id }) => id === before)
    return [...list.slice(0, at), ...moved, ...list.slice(at)]
  }
  switch (edit.op) {
    case 'set-config':
      return models.map((model) => (model.id === edit.id ? { ...model, config: edit.config } : model))
    case 'set-disabled':
      return models.map((model) => (model.id === edit.id ? { ...model, disabled: edit.disabled } : model))
    case 'set':
      return models.map((model) => (model.id === edit.id ? { ...model, [edit.key]: edit.value } : model))
    case 'insert':
      return put(models, [edit.entry], edit.before)
    case 'remove':
      return models.filter(({ id }) => !edit.ids.includes(id))
    case 'repoint':
      throw new TypeError('not made here')
    case 'rename':
      return models.map((model) => ({ ...model, id: edit.ids.find(([old]) => old === model.id)?.[1] ?? model.id }))
    case 'move': {
      const moved = edit.ids.map((id) => models.find((model) => model.id === id) as Model)
      return put(
        models.filter((model) => !moved.includes(model)),
        moved,
        edit.before
      )
    }
  }
}

function modelsOf(text: string): Model[] {
  const entries = (parseToml(text)['entry'] ?? []) as (Partial<Model> & { id: string; plugin: string })[]
  return entries.map(({ id, plugin, disabled = false, config = {} }) => ({ id, plugin, disabled, config }))
}

const solid = (text: string) =>
  text
    .replace(/^\uFEFF/, '')
    .split(/\r?\n/)
    .filter((line) => line.trim() !== '')

t.test('any program, however it is written, changes as wanted, edit after edit', async (t) => {
  holds(t, 400, (g) => {
    const models = anyModels(g)
    let { text } = writeProgram(g, models)
    assertEqual(exact(modelsOf(text)), exact(models), 'the test writes what it means')
    const rest = exact({ ...parseToml(text), entry: [] })
    for (let round = 0; round < 4; round++) {
      const before = modelsOf(text)
      const edit = anyEdit(g, before)
      if (edit.op === 'insert' && before.some(({ id }) => id === 'new')) continue
      const edited = editProgram(text, [edit])
      assertEqual(
        exact(modelsOf(edited)),
        exact(expectedModels(before, edit)),
        `${exact(edit)} of\n${text}\ngave\n${edited}`
      )
      assertEqual(exact({ ...parseToml(edited), entry: [] }), rest, 'everything else')
      if (edited.startsWith('\uFEFF') !== text.startsWith('\uFEFF')) throw new Error('the byte-order mark changed')
      if (text.includes('\r\n') && /[^\r]\n/.test(edited) && !/[^\r]\n/.test(text))
        throw new Error(`a bare newline came\n${edited}`)
      text = edited
    }
  })
})

t.test('the lines an edit is not about stay as they are', async (t) => {
  holds(t, 400, (g) => {
    const models = anyModels(g)
    const { text, entries, loose, inline } = writeProgram(g, models)
    const edit = anyEdit(g, models)
    const edited = editProgram(text, [edit])
    if (inline) return
    const linesOf = (id: string) => solid((entries.find(({ model }) => model.id === id)?.lines ?? []).join('\n'))
    const what = `${exact(edit)} of\n${text}\ngave\n${edited}`

    if (edit.op === 'set-config' || edit.op === 'set-disabled' || edit.op === 'rename') {
      const touched = edit.op === 'rename' ? edit.ids.map(([id]) => id) : [edit.id]
      const [first, last] = [
        models.findIndex(({ id }) => touched.includes(id)),
        models.findLastIndex(({ id }) => touched.includes(id))
      ]
      const above = models
        .slice(0, first)
        .flatMap(({ id }, index) => [...solid(loose[index]!.join('\n')), ...linesOf(id)])
      const below = models
        .slice(last + 1)
        .flatMap(({ id }, index) => [...solid(loose[last + 1 + index]!.join('\n')), ...linesOf(id)])
      const found = solid(edited)
      assertEqual(found.slice(0, above.length).join('\n'), above.join('\n'), `above ${what}`)
      assertEqual(
        found.slice(found.length - below.length - solid(loose.at(-1)!.join('\n')).length).join('\n'),
        [...below, ...solid(loose.at(-1)!.join('\n'))].join('\n'),
        `below ${what}`
      )
      return
    }
    // Entries stand and move as they were written; what belongs to no entry keeps its place among those that stay.
    const marker = 'id = "new"'
    const wanted = expectedModels(models, edit)
    if (exact(wanted) === exact(models)) return assertEqual(edited, text, what)
    const found = solid(edited)
    if (edit.op === 'insert') {
      const at = found.indexOf(marker) - 1
      const size = solid(editProgram('', [{ op: 'insert', entry: edit.entry }])).length
      found.splice(at, size)
    }
    const moved = edit.op === 'move' || edit.op === 'remove' ? edit.ids : []
    const kept: (string | number)[] = models.flatMap(({ id }, index) => [index, ...(moved.includes(id) ? [] : [id])])
    kept.push(models.length)
    if (edit.op === 'move') {
      const at = edit.before === undefined ? -1 : kept.indexOf(edit.before)
      const end = kept.findLastIndex((part) => typeof part === 'string') + 1
      kept.splice(at < 0 ? end : at, 0, ...edit.ids)
    }
    const expected = kept.flatMap((part) => (typeof part === 'string' ? linesOf(part) : solid(loose[part]!.join('\n'))))
    if (wanted.length > 0 && !(edit.op === 'move' && edit.ids.length === models.length)) {
      assertEqual(found.join('\n'), expected.join('\n'), what)
    } else assertEqual([...found].sort().join('\n'), [...expected].sort().join('\n'), what)
  })
})

t.test('seventeen comments survive five hundred changes', async (t) => {
  const g = { next: 1 }
  const random = (below: number) => {
    g.next = (g.next * 48_271) % 2_147_483_647
    return g.next % below
  }
  const mine = Array.from(
    { length: 17 },
    (_, index) =>
      `# remark ${index}\n[[entry]]\nid = "e${index}"\nplugin = "p"\nconfig = { n = ${index + 1}_000, list = [1, 2] }\n[[entry.config2]]\n`
  ).map((text) =>
    text
      .replace('config = { n', 'config.n')
      .replace(
        /config\.n = (\S+), list = (.*) }\n\[\[.*\n/,
        'config.n = $1\nconfig.list = $2\n[[entry.config.rows]]\na = 1\n[[entry.config.rows.deep]]\nb = 2\n'
      )
  )
  let text = `# the head\n\n${mine.join('\n')}`
  for (let round = 0; round < 500; round++) {
    const models = modelsOf(text)
    const { id, config } = models[random(models.length)] as Model
    const others = models.filter((model) => model.id !== id)
    const before = others[random(others.length)]?.id as string
    const kinds: ProgramEdit[] = [
      { op: 'set-config', id, config: { ...config, n: random(1_000_000) } },
      { op: 'set-config', id, config: { ...config, [`k${random(5)}`]: random(2) === 0 ? { x: [random(9)] } : 'text' } },
      {
        op: 'set-config',
        id,
        config: { ...config, rows: Array.from({ length: 1 + random(3) }, (_, a) => ({ a, deep: [{ b: random(3) }] })) }
      },
      { op: 'set-disabled', id, disabled: random(2) === 0 },
      { op: 'move', ids: [id], before },
      { op: 'move', ids: [id] }
    ]
    text = editProgram(text, [kinds[random(kinds.length)] as ProgramEdit])
  }
  const remarks = [...text.matchAll(/^# remark \d+$/gm)].map(([remark]) => remark)
  t.equal(new Set(remarks).size, 17)
  t.equal(remarks.length, 17)
  t.ok(text.startsWith('# the head\n'))
  for (const { id } of modelsOf(text))
    t.match(text, `# remark ${id.slice(1)}\n[[entry]]\nid = "${id}"\n`, 'above its entry')
})

// The texts of toml-test.

const data = process.env['HEARTWOOD_TEST_DATA']
const suite = data === undefined ? undefined : join(data, 'corpora/toml-test/tests')
const skip =
  suite === undefined || !existsSync(suite) ? 'HEARTWOOD_TEST_DATA names no folder with corpora/toml-test' : false

function suiteTexts(kind: 'valid' | 'invalid'): (readonly [name: string, text: string])[] {
  const root = suite as string
  const files = readdirSync(join(root, kind), { recursive: true, encoding: 'utf8' }).filter((name) =>
    name.endsWith('.toml')
  )
  return files.flatMap((name) => {
    const bytes = readFileSync(join(root, kind, name))
    const text = bytes.toString()
    return Buffer.from(text).equals(bytes) ? [[relative(root, join(root, kind, name)), text] as const] : []
  })
}

function* paths(value: unknown, path: Path = []): Iterable<Path> {
  if (path.length > 0) yield path
  if (isArray(value)) for (const [index, item] of value.entries()) yield* paths(item, [...path, index])
  else if (isTable(value)) for (const [key, item] of Object.entries(value)) yield* paths(item, [...path, key])
}

/** A deep copy with the value at `path` replaced, or taken away where it is `undefined`. */
function withValue(tree: unknown, path: Path, value: unknown): unknown {
  const [key, ...rest] = path
  if (key === undefined) return value
  if (isArray(tree)) {
    const items = [...tree]
    const item = withValue(items[Number(key)], rest, value)
    if (item === undefined) items.splice(Number(key), 1)
    else items[Number(key)] = item
    return items
  }
  const table = Object.fromEntries(Object.entries(isTable(tree) ? tree : {}))
  const item = withValue(table[key], rest, value)
  if (item === undefined) delete table[key]
  else table[key] = item
  return table
}

function at(tree: unknown, path: Path): unknown {
  return path.reduce<unknown>((found, key) => (found as Record<string | number, unknown>)[key], tree)
}

t.test('every valid text of toml-test survives being edited', { skip }, async (t) => {
  let [edits, identical] = [0, 0]
  for (const [name, text] of suiteTexts('valid')) {
    const tree = parseToml(text)
    if (exact(tree).includes('"__proto__"')) continue
    const check = (edited: string, wanted: unknown, what: string) => {
      edits++
      if (exact(parseToml(edited)) !== exact(wanted)) t.fail(`${name}: ${what}\n${text}\n---\n${edited}`)
    }
    try {
      if (setIn(text, [], tree) !== text) t.fail(`${name}: nothing changed, but bytes did`)
      for (const path of [...paths(tree)].slice(0, 40)) {
        const value = at(tree, path)
        const shown = path.join('.')
        const parent = path.slice(0, -1)
        for (const other of ['new "text"', 7, { k: [1] }, [{ a: 1 }, { b: 2 }]]) {
          const changed = setIn(text, path, other)
          check(changed, withValue(tree, path, other), `replace ${shown}`)
          check(setIn(changed, path, value), tree, `replace ${shown} back`)
        }
        const less = withValue(tree, path, undefined)
        const without = setIn(text, parent, at(less, parent))
        check(without, less, `remove ${shown}`)
        check(setIn(without, parent, at(tree, parent)), tree, `put ${shown} back`)
        if (isTable(value)) {
          const grown = setIn(text, [...path, 'added key'], 1)
          check(grown, withValue(tree, [...path, 'added key'], 1), `add to ${shown}`)
          const shrunk = setIn(grown, path, value)
          check(shrunk, tree, `add to ${shown} and remove`)
          if (shrunk === text) identical++
        }
      }
      if (tree['entry'] === undefined) {
        const entry = { id: 'x', plugin: 'y', disabled: true, config: { a: [1] } }
        const grown = editProgram(text, [{ op: 'insert', entry }])
        check(grown, { ...tree, entry: [entry] }, 'insert an entry')
        check(editProgram(grown, [{ op: 'remove', ids: ['x'] }]), tree, 'and remove it')
      }
    } catch (error) {
      t.fail(`${name}: ${(error as Error).stack}`)
    }
  }
  t.comment(`${edits} edits; ${identical} keys added and removed without a trace`)
  t.ok(edits > 5_000)
})

t.test('the pieces of every valid text are where another parser finds them', { skip }, async (t) => {
  for (const [name, text] of suiteTexts('valid')) {
    const skipped = text.startsWith('\uFEFF') ? 1 : 0
    const theirs: unknown[] = []
    const visitValue = (node: AST.TOMLContentNode): void => {
      const kind = node.type === 'TOMLArray' ? 'array' : node.type === 'TOMLInlineTable' ? 'table' : 'scalar'
      theirs.push([kind, ...node.range])
      if (node.type === 'TOMLInlineTable') node.body.forEach(visitPair)
      if (node.type === 'TOMLArray') node.elements.forEach(visitValue)
    }
    const visitPair = ({ key, value, range }: AST.TOMLKeyValue): void => {
      theirs.push(['pair', ...range, ...key.keys.map((part) => (part.type === 'TOMLBare' ? part.name : part.value))])
      visitValue(value)
    }
    for (const node of parseTOML(text.slice(skipped)).body[0].body) {
      if (node.type === 'TOMLKeyValue') visitPair(node)
      else {
        theirs.push(['section', node.range[0], ...node.resolvedKey])
        node.body.forEach(visitPair)
      }
    }
    const ours: unknown[] = []
    const visit = (item: Pair | Value): void => {
      const [start, end] = [item.start - skipped, item.end - skipped]
      if ('value' in item) {
        ours.push(['pair', start, end, ...item.keys.map((key) => key.name)])
        visit(item.value)
      } else {
        ours.push([item.kind, start, end])
        if (item.kind !== 'scalar') item.items.forEach(visit)
      }
    }
    for (const [index, section] of scan(text).entries()) {
      if (index > 0) ours.push(['section', section.start - skipped, ...section.path])
      section.items.forEach(visit)
    }
    if (JSON.stringify(ours) !== JSON.stringify(theirs)) t.same(ours, theirs, name)
  }
  t.pass('all of them')
})

t.test(
  'every invalid text of toml-test is refused with line and column, unless TOML 1.1 allows it',
  { skip },
  async (t) => {
    const allowed = /no-secs|linebreak|trailing-comma|basic-byte-escapes/
    for (const [name, text] of suiteTexts('invalid')) {
      if (allowed.test(name)) continue
      try {
        parseToml(text)
        t.fail(`${name} was accepted`)
      } catch (error) {
        const { line, column } = error as { line?: number; column?: number }
        if (!(Number(line) >= 1 && Number(column) >= 1)) t.fail(`${name}: no place in ${String(error)}`)
      }
    }
    t.pass('all of them')
  }
)

// The file.

t.test('a program file is replaced whole, links and mode stay, nothing is left beside it', async (t) => {
  const folder = t.testdir({ 'p.toml': 'old', inner: {} })
  const file = join(folder, 'p.toml')
  chmodSync(file, 0o640)
  symlinkSync('p.toml', join(folder, 'link.toml'))
  symlinkSync('inner/fresh.toml', join(folder, 'dangling.toml'))

  await writeProgramFile(join(folder, 'link.toml'), '\uFEFFnew')
  t.equal(readFileSync(file, 'utf8'), '\uFEFFnew')
  t.ok(lstatSync(join(folder, 'link.toml')).isSymbolicLink())
  t.equal(statSync(file).mode & 0o777, 0o640)

  await writeProgramFile(join(folder, 'dangling.toml'), 'x')
  t.equal(readFileSync(join(folder, 'inner/fresh.toml'), 'utf8'), 'x')

  await Promise.all(Array.from({ length: 20 }, (_, index) => writeProgramFile(file, `text ${index}\n`.repeat(1_000))))
  t.equal(new Set(readFileSync(file, 'utf8').split('\n')).size, 2, 'one of them, whole')
  t.same(readdirSync(folder).sort(), ['dangling.toml', 'inner', 'link.toml', 'p.toml'])
})

t.test('a program file that cannot be written is reported and stays', async (t) => {
  const folder = t.testdir({ 'p.toml': 'old', folder: { 'x.toml': 'in the way' } })
  await t.rejects(writeProgramFile(join(folder, 'absent/p.toml'), 'x'), { code: 'PROGRAM_NOT_SAVED' })
  await t.rejects(writeProgramFile(join(folder, 'folder'), 'x'), { code: 'PROGRAM_NOT_SAVED' })
  t.same(readdirSync(folder).sort(), ['folder', 'p.toml'], 'the temporary file is gone')
  if (process.getuid?.() === 0) return
  chmodSync(join(folder, 'p.toml'), 0o444)
  await t.rejects(writeProgramFile(join(folder, 'p.toml'), 'x'), { code: 'PROGRAM_NOT_SAVED' })
  t.equal(readFileSync(join(folder, 'p.toml'), 'utf8'), 'old')
  writeFileSync(join(folder, 'q.toml'), '')
})
