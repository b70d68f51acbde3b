import { appendFileSync, readdirSync, readFileSync, renameSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import { call, run, type Server, serve } from './server.ts'

const shipped = readFileSync(new URL('../../../program.toml', import.meta.url), 'utf8')
const adminKey = 'an-admin-key-for-the-tests'

const hello = (word: string) => `
import { definePlugin } from 'heartwood'
import { render } from './render.ts'

export default definePlugin({
  name: 'hello',
  apply(ctx) {
    ctx.contribute('http.routes', {
      method: 'GET', path: '/hello/{name}', operationId: 'hello', summary: 'Greets', replies: { 200: {} },
      handle: ({ params }) => ({ body: { text: render('${word}', params.name) } })
    })
  }
})
`

const render = (mark: string) => `export const render = (word: string, name = '') => \`\${word} \${name}${mark}\``

/** As most editors save: another file is put in the place of the old one. */
function save(file: string, text: string): void {
  writeFileSync(`${file}.saving`, text)
  renameSync(`${file}.saving`, file)
}

/** Asks for a greeting again and again until told to stop. */
function load(server: Server): { readonly texts: string[]; stop(): Promise<void> } {
  const texts: string[] = []
  let stopped = false
  const client = async () => {
    while (!stopped) {
      const { status, text } = await call(server, 'GET', '/hello/Ada')
      texts.push(`${status} ${text}`)
    }
  }
  const clients = Promise.all([client(), client(), client(), client()])
  return {
    texts,
    async stop() {
      stopped = true
      await clients
    }
  }
}

t.test(
  'code and program are edited under load: the new answers next, a mistake changes nothing, nobody is failed',
  async (t) => {
    const cwd = t.testdir({
      'program.toml': `${shipped}\n[[entry]]\nid = "hello"\nplugin = "./hello.ts"\n`,
      'hello.ts': hello('hello'),
      'render.ts': render('')
    })
    const server = await serve(t, { cwd, env: { ADMIN_API_KEY: adminKey } })
    const admin = { 'x-admin-secret': adminKey }
    const clients = load(server)
    const until = async (isTrue: () => boolean | Promise<boolean>) => {
      while (!(await isTrue())) await new Promise((resolve) => setImmediate(resolve))
    }
    const greets = (text: string) => until(() => clients.texts.at(-1) === `200 {"text":"${text}"}`)
    const fiber = async () => {
      const { json } = await call(server, 'GET', '/api/admin/cordis/services', { headers: admin })
      return json.fibers.find((each: { entry_id: string }) => each.entry_id === 'hello')
    }
    await greets('hello Ada')
    const { fiber_id: fiberId } = await fiber()

    save(join(cwd, 'hello.ts'), hello('good day'))
    await greets('good day Ada')
    save(join(cwd, 'render.ts'), render('!'))
    await greets('good day Ada!')

    save(join(cwd, 'hello.ts'), `${hello('broken')}}`)
    await until(async () => (await fiber()).error !== null)
    t.match(await fiber(), { fiber_id: fiberId, state: 'Active', error: /hello\.ts:\d+:\d+: Unexpected "}"/ })
    await greets('good day Ada!')
    save(join(cwd, 'hello.ts'), hello('mended'))
    await greets('mended Ada!')
    t.match(await fiber(), { fiber_id: fiberId, state: 'Active', error: null, generation: 4 })

    const calculate = async () => {
      const body = { tool: 'calculator', arguments: { expression: '2/3' } }
      return (await call(server, 'POST', '/agent/execute', { body })).json.data.result
    }
    const program = readFileSync(join(cwd, 'program.toml'), 'utf8')
    save(join(cwd, 'program.toml'), program.replace('precision = 6', 'precision = 2'))
    await until(async () => (await calculate()) === 0.67)
    save(join(cwd, 'program.toml'), 'id = [')
    const services = async () => (await call(server, 'GET', '/api/admin/cordis/services', { headers: admin })).json
    await until(async () => (await services()).file_error !== null)
    t.match((await services()).file_error, /program\.toml:1:\d+/)
    t.equal(await calculate(), 0.67)

    save(join(cwd, 'program.toml'), program)
    await until(async () => (await calculate()) === 0.666667)
    t.equal((await services()).file_error, null)

    t.match(await run(t, ['plugin', 'new', 'rain'], { cwd }), { code: 0, stdout: /wrote rain\.ts and rain\.test\.mjs/ })
    appendFileSync(join(cwd, 'program.toml'), '\n[[entry]]\nid = "rain"\nplugin = "./rain.ts"\n')
    await until(async () => (await call(server, 'GET', '/rain/Ada')).status === 200)
    t.same((await call(server, 'GET', '/rain/Ada')).json, { text: 'hello Ada' })

    await clients.stop()
    const answers = [...new Set(clients.texts)]
    t.strictSame(
      answers,
      ['hello Ada', 'good day Ada', 'good day Ada!', 'mended Ada!'].map((text) => `200 {"text":"${text}"}`)
    )
    const errors = server
      .log()
      .split('\n')
      .filter((line) => line.includes('"level":"error"'))
    t.match(errors, [/new code was refused/, /the program file was refused/])
    t.equal(errors.length, 2)
    server.child.kill('SIGTERM')
    t.equal((await server.ended).code, 0)
  }
)

t.test('a new plugin is refused in one line where something is in its way', async (t) => {
  const cwd = t.testdir({ 'program.toml': shipped, 'rain.ts': 'mine' })
  const cases: readonly [readonly string[], RegExp][] = [
    [['plugin', 'new', 'rain'], /^heartwood: .*rain\.ts is there already; nothing was written\n$/],
    [['plugin', 'new', 'http'], /^heartwood: 'http' is a built-in plugin; choose another name\n$/],
    [['plugin', 'new', 'No'], /^heartwood: 'No' is no name for a plugin: .*\n$/],
    [['plugin', 'new'], /^heartwood: usage: heartwood plugin new NAME\n$/],
    [['plugin', 'new', 'a', 'b'], /^heartwood: usage: heartwood plugin new NAME\n$/],
    [['plugin', 'old', 'a'], /^heartwood: usage: heartwood plugin new NAME\n$/]
  ]
  for (const [command, stderr] of cases) t.match(await run(t, command, { cwd }), { code: 1, stderr }, command.join(' '))
  t.strictSame(readdirSync(cwd).sort(), ['program.toml', 'rain.ts'])
})
