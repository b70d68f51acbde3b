import { lstat, writeFile } from 'node:fs/promises'
import { join, relative } from 'node:path'
import { CodedError } from '../kernel/index.ts'

export interface NewPluginOptions {
  /** Where it goes: beside the program file. */
  readonly folder: string
  /** Names that are not free: the built-in plugins. */
  readonly taken: readonly string[]
  /** Folder that the printed paths start from. */
  readonly cwd: string
}

const maxChars = 64

/**
 * Writes a plugin that works, and a test that passes.
 * @returns what to do next, for people
 * @throws CodedError `PLUGIN_NAME_INVALID`; `PLUGIN_EXISTS`: nothing was written
 */
export async function newPlugin(name: string, { folder, taken, cwd }: NewPluginOptions): Promise<string> {
  assertName(name, taken)
  const files = [
    [`${name}.ts`, pluginText(name)],
    [`${name}.test.mjs`, testText(name)]
  ] as const
  for (const [file] of files) await assertFree(join(folder, file))
  // 'wx' also refuses what has come since.
  for (const [file, text] of files) await writeFile(join(folder, file), text, { flag: 'wx' })
  const [plugin, test] = files.map(([file]) => relative(cwd, join(folder, file)) || file)
  return nextSteps(name, `${plugin}`, `${test}`)
}

function assertName(name: string, taken: readonly string[]): void {
  const refuse = (why: string) => new CodedError('PLUGIN_NAME_INVALID', why, { detail: { name } })
  if (name.length > maxChars || !/^[a-z][a-z0-9]*(-[a-z0-9]+)*$/.test(name)) {
    throw refuse(
      `'${name}' is no name for a plugin: lower-case letters, digits and single hyphens, such as 'rain-gauge', at most ${maxChars}`
    )
  }
  if (taken.includes(name)) throw refuse(`'${name}' is a built-in plugin; choose another name`)
}

async function assertFree(file: string): Promise<void> {
  try {
    await lstat(file)
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ENOENT') return
    throw error
  }
  throw new CodedError('PLUGIN_EXISTS', `${file} is there already; nothing was written`, { detail: { file } })
}

function pluginText(name: string): string {
  return `import { definePlugin, schemaOf } from 'heartwood'

interface Config {
  readonly greeting: string
}

const config = schemaOf<Config>({
  type: 'object',
  additionalProperties: false,
  properties: {
    greeting: { type: 'string', minLength: 1, default: 'hello', description: 'What stands before the name' }
  }
})

export default definePlugin({
  name: '${name}',
  inject: ['http'],
  config,
  apply(ctx, { greeting }) {
    ctx.contribute('http.routes', {
      method: 'GET',
      path: '/${name}/{name}',
      operationId: '${toCamelCase(name)}',
      summary: 'Greets by name',
      replies: {
        200: { type: 'object', required: ['text'], properties: { text: { type: 'string' } } }
      },
      handle: ({ params }) => ({ body: { text: \`\${greeting} \${params.name}\` } })
    })
  }
})
`
}

function testText(name: string): string {
  return `import assert from 'node:assert/strict'
import { test } from 'node:test'
import { startProgram } from 'heartwood/testing'

const greet = (program) => program.service('http').dispatch({ method: 'GET', path: '/${name}/Ada' })

test('it greets by name', async (t) => {
  const program = await startProgram({ base: import.meta.url, entries: [{ plugin: './${name}.ts' }] })
  t.after(() => program.stop())

  const reply = await greet(program)

  assert.equal(reply.status, 200)
  assert.deepEqual(reply.body, { text: 'hello Ada' })
})

test('another greeting takes over without a restart', async (t) => {
  const program = await startProgram({ base: import.meta.url, entries: [{ plugin: './${name}.ts' }] })
  t.after(() => program.stop())

  await program.service('kernel').patchEntry('${name}', { config: { greeting: 'good morning' } })

  assert.deepEqual((await greet(program)).body, { text: 'good morning Ada' })
})
`
}

function nextSteps(name: string, plugin: string, test: string): string {
  return `wrote ${plugin} and ${test}

Run its test:

  node --test ${test}

Add it to the program:

  [[entry]]
  id = "${name}"
  plugin = "./${name}.ts"
  config = { greeting = "hello" }
`
}

function toCamelCase(name: string): string {
  return name.replace(/-(.)/g, (_, first: string) => first.toUpperCase())
}
