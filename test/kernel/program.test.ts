import t from 'tap'
import { isCoded } from '../../kernel/errors.ts'
import { nearest } from '../../kernel/nearest.ts'
import {
  checkPlugins,
  issueFaults,
  type JsonObject,
  parseProgram,
  type ProgramFault,
  programOf,
  resolveConfig
} from '../../kernel/program.ts'
import { compileSchema } from '../../kernel/schema.ts'

const mark = '\uFEFF'

function faultsOf(run: () => unknown): readonly ProgramFault[] {
  try {
    run()
  } catch (error) {
    if (isCoded(error, 'PROGRAM_INVALID')) return error.detail?.['faults'] as readonly ProgramFault[]
    throw error
  }
  return []
}

/** `line:column message` of every fault of a text. */
function refusal(text: string | Uint8Array): readonly string[] {
  return faultsOf(() => parseProgram(text, 'p.toml')).map(({ line, column, message }) => `${line}:${column} ${message}`)
}

const calc = '[[entry]]\nid = "calc"\nplugin = "calculator"\n'

t.test('an entry is read with its defaults, and the settings with theirs', async (t) => {
  const { program } = parseProgram(`${calc}\n[kernel]\ndrain_timeout_ms = 5_000\n`, 'p.toml')

  t.same(program, {
    settings: {
      apply_timeout_ms: 10_000,
      drain_timeout_ms: 5_000,
      undo_timeout_ms: 10_000,
      shutdown_timeout_ms: 8_000
    },
    entries: [{ id: 'calc', plugin: 'calculator', config: {}, disabled: false }]
  })
})

t.test('an empty file, and one with nothing but comments, is an empty program', async (t) => {
  for (const text of ['', '\n', '# nothing yet\r\n', mark, `${mark}# x`]) {
    t.same(parseProgram(text, 'p.toml').program.entries, [], JSON.stringify(text))
  }
})

t.test('every way to write entries gives the same program', async (t) => {
  const wanted = [{ id: 'a', plugin: 'x', config: { n: { k: 1 }, list: [{ z: true }] }, disabled: true }]
  const texts = [
    '[[entry]]\nid="a"\nplugin="x"\ndisabled=true\nconfig={ n={ k=1 }, list=[{ z=true }] }',
    '[[entry]]\nid="a"\nplugin="x"\ndisabled=true\n[entry.config.n]\nk=1\n[[entry.config.list]]\nz=true',
    '[[entry]]\nid="a"\nplugin="x"\ndisabled=true\nconfig.n.k=1\nconfig.list=[{ z=true }]',
    'entry = [{ id="a", plugin="x", disabled=true, config.n.k=1, config.list=[{ z=true }] }]',
    `${mark}[[entry]]\r\nid="a"\r\nplugin="x"\r\ndisabled=true\r\n[entry.config]\r\nn.k=1\r\nlist=[{ z=true }]\r\n`
  ]
  for (const text of texts) t.same(parseProgram(text, 'p.toml').program.entries, wanted, text)
})

t.test('numbers keep their amount, and the text is kept with its byte-order mark', async (t) => {
  const text = `${mark}${calc}config = { big = 9223372036854775807, edge = 9007199254740993, n = -0.0, i = inf, h = 0xDEADBEEF }\n`
  const parsed = parseProgram(text, 'p.toml')

  t.same(parsed.program.entries[0]?.config, {
    big: 9223372036854775807n,
    edge: 9007199254740993n,
    n: -0,
    i: Infinity,
    h: 0xdeadbeef
  })
  t.ok(Object.is(parsed.program.entries[0]?.config['n'], -0))
  t.equal(parsed.text, text)
  t.equal(parseProgram(Buffer.from(text), 'p.toml').text, text)
})

t.test('what is wrong is said with line, column and the nearest valid name, all at once', async (t) => {
  const text = [
    'kernal = 1',
    '[[entry]]',
    'id = "calc"',
    'pluging = "calculator"',
    'config = 3',
    'disabled = "yes"',
    '',
    '[[entry]]',
    '  plugin = "clock"',
    '',
    '[[entry]]',
    'id = "calc"',
    'plugin = " "',
    '[kernel]',
    'drain_timeout = 3',
    'apply_timeout_ms = 1.5'
  ].join('\r\n')

  t.same(refusal(text), [
    "1:1 unknown key 'kernal'; did you mean 'kernel'?",
    "15:1 unknown key 'drain_timeout' in kernel; did you mean 'drain_timeout_ms'?",
    '16:1 kernel.apply_timeout_ms must be an integer from 1 to 2147483647',
    "4:1 unknown key 'pluging' in entry 'calc'; did you mean 'plugin'?",
    "5:1 config of entry 'calc' must be a table, found number",
    "6:1 disabled of entry 'calc' must be a boolean, found string",
    "2:1 missing plugin in entry 'calc'",
    '8:1 missing id in the entry at line 8',
    "13:1 plugin of entry 'calc' is blank",
    "12:1 id 'calc' is already that of the entry at line 2"
  ])
})

t.test('a file of the wrong shape is refused where it is wrong', async (t) => {
  const cases: [string, string][] = [
    ['[entry]\nid = "a"', '1:1 entry must be an array of tables ([[entry]]), found table'],
    ['x = 1\nentry = 5', "1:1 unknown key 'x'"],
    ['entry = [1]', '1:10 an entry must be a table, found number'],
    ['kernel = "x"', '1:1 kernel must be a table, found string'],
    ['[[entries]]\nid = "a"', "1:1 unknown key 'entries'; did you mean 'entry'?"],
    [
      '[[entry]]\nid = "a\\u0007"\nplugin = "x"',
      "2:1 id of entry 'a\uFFFD' has control characters or more than 256 characters"
    ],
    [
      '[[entry]]\nid = "a"\nplugin = "x"\nconfig = { a = [{ "__proto__" = 1 }] }',
      "4:19 the key '__proto__' is not allowed in entry 'a'"
    ],
    [
      '[[entry]]\nid = "a"\nplugin = "x"\n[entry.config]\na.__proto__.b = 1',
      "5:1 the key '__proto__' is not allowed in entry 'a'"
    ]
  ]
  for (const [text, first] of cases) t.equal(refusal(text)[0], first)
})

t.test('a syntax error is said with line, column and key, and never quotes the file', async (t) => {
  const cases: [string, string][] = [
    [`${calc}config = { a = `, '4:16 invalid value (key config)'],
    [`${mark}id = [`, '1:6 unfinished array (key id)'],
    ['a = 1\r\n"b c".d = 2027-02-28T23:59:60Z', '2:11 invalid date (key "b c".d)'],
    ['day = 2027-02-30', '1:7 no calendar has this date (key day)'],
    ['x = [1,\n 2025-02-29T00:00:00Z]', '2:2 no calendar has this date'],
    ['a = 1\na = 2', '2:1 trying to redefine an already defined table or value (key a)']
  ]
  for (const [text, first] of cases) t.same(refusal(text), [first])
  t.notMatch(refusal('password = "hunter2" oops').join(), /hunter2/)
})

t.test('text that only looks like an impossible date is text', async (t) => {
  const text = `${calc}config = { note = "due 2027-02-30", day = 2028-02-29 }`
  t.equal(parseProgram(text, 'p.toml').program.entries[0]?.config['note'], 'due 2027-02-30')
})

t.test('bytes that are not UTF-8 are refused by name', async (t) => {
  t.match(refusal(Buffer.from(`\uFEFF${calc}`, 'utf16le')), [/^1:1 the file is UTF-16/])
  t.match(refusal(Buffer.from(calc, 'utf16le')), [/^1:1 the file looks like UTF-16/])
  t.match(refusal(Buffer.from(calc, 'utf16le').swap16()), [/^1:1 the file looks like UTF-16/])
  t.same(refusal(Buffer.concat([Buffer.from('# é\n# '), Buffer.from([0xc3, 0x28]), Buffer.from('\n')])), [
    '2:3 the file is not valid UTF-8 here'
  ])
  t.same(refusal(Buffer.from([0x23, 0xe2, 0x82])), ['1:2 the file is not valid UTF-8 here'])
})

t.test('depth and the number of faults are bounded', async (t) => {
  t.match(refusal(`${calc}config = { a = ${'['.repeat(1000)}${']'.repeat(1000)} }`), [/nested/])
  t.match(refusal(`${calc}config.${'a.'.repeat(5000)}b = 1`), [/nested deeper than 64/])
  const faults = refusal(Array.from({ length: 50 }, (_, index) => `k${index} = 1`).join('\n'))
  t.equal(faults.length, 21)
  t.equal(faults.at(-1), '0:0 and 30 more')
})

t.test('the message of the error has one line for each fault', async (t) => {
  t.throws(() => parseProgram('a = 1\nb = 2', 'dir/p.toml'), {
    code: 'PROGRAM_INVALID',
    message: "dir/p.toml:1:1: unknown key 'a'\ndir/p.toml:2:1: unknown key 'b'"
  })
})

t.test('keys of a config are found in every shape', async (t) => {
  const text = [
    '[[entry]]', // 1
    'id = "a"',
    'plugin = "x"',
    'config = { one = 1, two = { three = [ 1,', // 4
    '   { four = 4 } ] } }',
    '[[entry]]', // 6
    'id = "b"',
    'plugin = "x"',
    'config.one = 1',
    '[[entry.config.rows]]', // 10
    '  k = 1',
    '[[entry.config.rows]]',
    '  k = 2', // 13
    '[entry.config.rows.sub]',
    'z = 1'
  ].join('\n')
  const parsed = parseProgram(mark + text, 'p.toml')
  const cases: [string, string[], string][] = [
    ['a', [], '1:1'],
    ['a', ['one'], '4:12'],
    ['a', ['two', 'three', '1', 'four'], '5:6'],
    ['a', ['missing'], '4:1'],
    ['b', [], '6:1'],
    ['b', ['one'], '9:1'],
    ['b', ['rows', '1', 'k'], '13:3'],
    ['b', ['rows', '1', 'sub', 'z'], '15:1'],
    ['b', ['rows', '1', 'sub', 'absent'], '14:1']
  ]
  for (const [id, path, place] of cases) {
    const { line, column } = parsed.locate(id, path)
    t.equal(`${line}:${column}`, place, `${id} ${path.join('.')}`)
  }
})

t.test('a misspelt built-in plugin is named with its nearest; paths, packages and groups are left alone', async (t) => {
  const entry = (id: string, plugin: string) => `[[entry]]\nid = "${id}"\nplugin = "${plugin}"\n`
  const text = [
    entry('a', 'calculater'),
    entry('b', './mine.ts'),
    entry('c', '@acme/weather'),
    entry('d', '@group'),
    entry('e', 'heartwood-weather'),
    entry('f', 'clock'),
    entry('g', '@grup')
  ].join('')
  const faults = checkPlugins(parseProgram(text, 'p.toml'), ['calculator', 'clock'])

  t.same(faults, [
    { line: 1, column: 1, message: "unknown plugin 'calculater' in entry 'a'; did you mean 'calculator'?" },
    { line: 19, column: 1, message: "unknown plugin '@grup' in entry 'g'; did you mean '@group'?" }
  ])
})

t.test('issues of a config become faults of the file', async (t) => {
  const schema = {
    type: 'object',
    additionalProperties: false,
    required: ['url'],
    properties: {
      url: { type: 'string' },
      limits: { $ref: '#/$defs/limits' }
    },
    $defs: {
      limits: { type: 'object', additionalProperties: false, properties: { max_chars: { type: 'integer' } } }
    }
  }
  const parsed = parseProgram(`${calc}[entry.config]\nlimits = { max_char = 3 }\n`, 'p.toml')
  const issues = compileSchema(schema, 'config')(structuredClone(parsed.program.entries[0]?.config))

  t.same(issueFaults(parsed, 'calc', schema, issues), [
    { line: 4, column: 1, message: "missing url in entry 'calc'" },
    {
      line: 5,
      column: 12,
      message: "unknown key max_char at config.limits in entry 'calc'; did you mean 'max_chars'?"
    }
  ])
})

t.test('variables are put in, typed by the schema where they stand alone', async (t) => {
  const schema = {
    type: 'object',
    properties: {
      port: { type: 'integer' },
      ratio: { type: ['number', 'null'] },
      on: { type: 'boolean' },
      name: { type: ['integer', 'string'] },
      deep: { type: 'object', additionalProperties: { type: 'array', items: { type: 'integer' } } }
    }
  }
  const env = { PORT: '3000', RATIO: '0.5', ON: 'false', NAME: '12', EMPTY: '', NEST: '${PORT}', toString: undefined }
  const resolved = resolveConfig(
    {
      port: '${PORT}',
      ratio: '${RATIO}',
      on: '${ON}',
      name: '${NAME}',
      deep: { x: ['${PORT}', '${ABSENT:-7}'] },
      text: 'http://h:${PORT}/${EMPTY:-x}${EMPTY}',
      empty: '${EMPTY:-}',
      nest: '${NEST}',
      literal: '$${PORT} $5 ${not a name} ${}',
      other: '${PORT}'
    },
    env,
    schema
  )

  t.strictSame(resolved, {
    port: 3000,
    ratio: 0.5,
    on: false,
    name: '12',
    deep: { x: [3000, 7] },
    text: 'http://h:3000/x',
    empty: '',
    nest: '${PORT}',
    literal: '${PORT} $5 ${not a name} ${}',
    other: '3000'
  })
  t.strictSame(resolveConfig({ port: '${NAME:-x}' }, {}, schema), { port: 'x' }, 'the schema then says what is wrong')
})

t.test('a variable that is not set is named with its place, all of them at once', async (t) => {
  const config = { key: '${API_KEY}', list: [{ url: 'x${HOST}y' }], proto: '${toString}' }
  t.throws(() => resolveConfig(config, {}), {
    code: 'PROGRAM_VARIABLE_MISSING',
    message: /API_KEY \(at config\.key\), HOST \(at config\.list\.0\.url\), toString \(at config\.proto\)/,
    detail: {
      missing: [
        { variable: 'API_KEY', path: ['key'] },
        { variable: 'HOST', path: ['list', '0', 'url'] },
        { variable: 'toString', path: ['proto'] }
      ]
    }
  })
})

t.test('a resolved config is plain JSON in new objects', async (t) => {
  const { program } = parseProgram(
    `${calc}config = { big = 9223372036854775807, n = 5, day = 2027-02-28, at = 2027-02-28T10:00:00+02:00, a = [{ b = 1 }] }`,
    'p.toml'
  )
  const config = program.entries[0]?.config as JsonObject
  const resolved = resolveConfig(config, {})

  t.strictSame(resolved, {
    big: '9223372036854775807',
    n: 5,
    day: '2027-02-28',
    at: '2027-02-28T10:00:00.000+02:00',
    a: [{ b: 1 }]
  })
  t.not(resolved['a'], config['a'])
})

t.test('a program given as data is checked as a file is', async (t) => {
  t.same(programOf({ entries: [{ id: 'a', plugin: 'x' }], settings: { drain_timeout_ms: 1 } }), {
    settings: { apply_timeout_ms: 10_000, drain_timeout_ms: 1, undo_timeout_ms: 10_000, shutdown_timeout_ms: 8_000 },
    entries: [{ id: 'a', plugin: 'x', config: {}, disabled: false }]
  })
  const bad = [{ id: 'a', plugin: 'x' }, { id: 'a', plugin: 'x', confg: {} }, { plugin: 'y' }]
  // biome-ignore lint/suspicious/noExplicitAny: what a caller without types may pass
  t.same(
    faultsOf(() => programOf({ entries: bad as any })),
    [
      { line: 0, column: 0, message: "unknown key 'confg' in entry 'a'; did you mean 'config'?" },
      { line: 0, column: 0, message: "id 'a' is already that of entry 1" },
      { line: 0, column: 0, message: 'missing id in entry 3' }
    ]
  )
})

t.test('the nearest name is a near one or none', async (t) => {
  const known = ['calculator', 'clock', 'chat', 'http']
  t.equal(nearest('calcualtor', known), 'calculator')
  t.equal(nearest('Clock', known), 'clock')
  t.equal(nearest('htpp', known), 'http')
  t.equal(nearest('weather', known), undefined)
  t.equal(nearest('', known), undefined)
})
