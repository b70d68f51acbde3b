import { spawnSync } from 'node:child_process'
import { existsSync, readdirSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import {
  isArrayLiteralExpression,
  isExportDeclaration,
  isIdentifier,
  isImportDeclaration,
  isInterfaceDeclaration,
  isModuleDeclaration,
  isNewExpression,
  isObjectLiteralExpression,
  isTypeAliasDeclaration,
  isVariableStatement,
  NodeFlags,
  type SourceFile,
  SyntaxKind
} from 'typescript/unstable/ast'
import { cleanEnv } from '../process.ts'
import { importsOf, parse, readSources, root, type Source } from './source.ts'

const containers = ['Map', 'Set', 'WeakMap', 'WeakSet', 'Array', 'EventEmitter', 'AbortController']

/**
 * Statements with which importing a module would do something, or keep something that changes. A task may keep what is
 * dear to load: its thread belongs to one pool of one kernel.
 */
function offences([path, text]: Source, file: SourceFile): string[] {
  const found: string[] = []
  const isTask = /^plugins\/[^/]+\/tasks\//.test(path)
  for (const statement of file.statements) {
    const says = (what: string) =>
      found.push(`${path}: ${what}: ${text.slice(statement.pos, statement.end).trim().split('\n')[0]}`)
    if (isVariableStatement(statement)) {
      const list = statement.declarationList
      if ((list.flags & NodeFlags.Const) === 0 && !isTask) says('a variable at the top of a module')
      for (const { initializer, type } of list.declarations) {
        const readOnly = type !== undefined && /^\s*readonly/i.test(text.slice(type.pos, type.end))
        if (initializer === undefined || readOnly) continue
        const empty =
          (isArrayLiteralExpression(initializer) && initializer.elements.length === 0) ||
          (isObjectLiteralExpression(initializer) && initializer.properties.length === 0) ||
          (isNewExpression(initializer) &&
            isIdentifier(initializer.expression) &&
            containers.includes(initializer.expression.text) &&
            (initializer.arguments?.length ?? 0) === 0)
        if (empty) says('an empty container at the top of a module is there to be filled')
      }
    } else if (workKinds.has(statement.kind)) says('work at import')
  }
  return found
}

const workKinds: ReadonlySet<SyntaxKind> = new Set([
  SyntaxKind.ExpressionStatement,
  SyntaxKind.IfStatement,
  SyntaxKind.ForStatement,
  SyntaxKind.ForOfStatement,
  SyntaxKind.ForInStatement,
  SyntaxKind.WhileStatement,
  SyntaxKind.DoStatement,
  SyntaxKind.TryStatement,
  SyntaxKind.SwitchStatement,
  SyntaxKind.ThrowStatement,
  SyntaxKind.Block
])

t.test('no module keeps state that changes, or works when it is imported', (t) => {
  const sources = readSources('kernel', 'plugins')
  const files = parse(sources)
  t.strictSame(
    sources.flatMap((source, at) => offences(source, files[at]!)),
    []
  )
  t.end()
})

t.test('each kind of state and work is found', (t) => {
  const wrong = [
    'let count = 0',
    'export let count = 0',
    'var count = 0',
    'const seen = new Map()',
    'const seen = new Map<string, number>()',
    'export const list: string[] = []',
    'const byName = {}',
    'setInterval(() => {}, 1000)',
    'await start()',
    'if (process.env.X) start()',
    'for (const a of b) start(a)',
    'try { start() } catch {}'
  ]
  const right = [
    'const methods = new Set(["GET"])',
    'const nobody: ReadonlySet<string> = new Set()',
    'const none: readonly string[] = []',
    'const none = Object.freeze([])',
    'const modes = { a: 1 }',
    'export default definePlugin({ name: "x", apply() { let count = 0; count++ } })',
    'function f() { let n = 0; return ++n }'
  ]
  const sources = [...wrong, ...right].map((text): Source => ['a.ts', text])
  const files = parse(sources)
  for (const [at, source] of sources.entries()) {
    t.equal(offences(source, files[at]!).length, at < wrong.length ? 1 : 0, source[1])
  }
  t.end()
})

t.test('a contract is types alone', (t) => {
  const sources = readSources('plugins').filter(([path]) => path.endsWith('/types.ts'))
  const other = parse(sources).flatMap((file, at) =>
    file.statements
      .filter(
        (statement) =>
          !isImportDeclaration(statement) &&
          !isExportDeclaration(statement) &&
          !isInterfaceDeclaration(statement) &&
          !isTypeAliasDeclaration(statement) &&
          !isModuleDeclaration(statement)
      )
      .map((statement) => `${sources[at]![0]}: ${SyntaxKind[statement.kind]}`)
  )
  t.strictSame(other, [])
  t.end()
})

t.test('a worker task reaches no code of the kernel, also through the files it imports', (t) => {
  const sources = readSources('kernel', 'plugins')
  const reached = new Map(
    parse(sources).map((file, at) => {
      const path = sources[at]![0]
      return [
        path,
        importsOf(path, file)
          .filter((one) => !one.typeOnly)
          .map((one) => one.target)
      ]
    })
  )
  const chain = (path: string, seen: readonly string[]): string[] =>
    path.startsWith('kernel/')
      ? [[...seen, path].join(' → ')]
      : seen.includes(path)
        ? []
        : (reached.get(path) ?? []).flatMap((next) => chain(next, [...seen, path]))
  const tasks = [...reached.keys()].filter((path) => /^plugins\/[^/]+\/tasks\//.test(path))
  t.ok(tasks.length > 0, 'there are tasks')
  t.strictSame(
    tasks.flatMap((path) => chain(path, [])),
    []
  )
  t.end()
})

/** Prints, as JSON, what each module left in the process beyond what its packages do when they are loaded. */
const importer = `
  const snapshot = () => JSON.stringify({
    // A file that is being read ends by itself, and what is looked at may be read meanwhile.
    resources: process.getActiveResourcesInfo().filter((name) => !name.startsWith('FSReq')).sort(),
    listeners: process.eventNames().map((name) => [String(name), process.listenerCount(name)]),
    globals: Object.getOwnPropertyNames(globalThis).sort()
  })
  for (const name of JSON.parse(process.env.PACKAGES)) await import(name).catch(() => {}) // optional ones may be absent
  // What the loader itself has still to do is over in the next turns.
  const turns = async () => {
    for (let turn = 0; turn < 10; turn++) await new Promise(setImmediate)
  }
  const left = []
  for (const module of JSON.parse(process.env.MODULES)) {
    await turns()
    const before = snapshot()
    await import(module)
    await turns()
    if (snapshot() !== before) left.push([module, before, snapshot()])
  }
  console.log(JSON.stringify(left))`

t.test('importing a plugin leaves no handle, listener or global behind, and the process can end', (t) => {
  const sources = readSources('kernel', 'plugins')
  const imports = parse(sources).flatMap((file, at) => importsOf(sources[at]![0], file))
  const packages = imports.filter((one) => !one.typeOnly && !/^(node:|kernel\/|plugins\/|<)/.test(one.target))
  const modules = readdirSync(join(root, 'plugins'))
    .map((name) => new URL(`../../plugins/${name}/index.js`, import.meta.url))
    .filter((url) => existsSync(url))
  t.ok(modules.length > 5, 'the compiled plugins were found')
  const variables = {
    PACKAGES: JSON.stringify([...new Set(packages.map((one) => one.target))]),
    MODULES: JSON.stringify(modules)
  }
  const [command, ...args] = [...cleanEnv(variables), process.execPath, '--input-type=module', '--eval', importer]
  const child = spawnSync(command!, args, {
    cwd: root,
    encoding: 'utf8',
    timeout: 60_000
  })
  t.match(child, { status: 0, stderr: '' })
  t.strictSame(JSON.parse(child.stdout), [])
  t.end()
})
