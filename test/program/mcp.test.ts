import { readFileSync } from 'node:fs'
import { fileURLToPath } from 'node:url'
import { Client } from '@modelcontextprotocol/client'
import { StdioClientTransport } from '@modelcontextprotocol/client/stdio'
import t from 'tap'
import { run, serve } from './server.ts'

const main = fileURLToPath(new URL('../../main.js', import.meta.url))
const shipped = readFileSync('program.toml', 'utf8')

/** A plugin that prints where a client listens, and has a tool that only some may use. */
const chatty = `
import { definePlugin } from 'heartwood'
export default definePlugin({
  name: 'chatty',
  inject: ['tools'],
  apply(ctx) {
    console.log('this would be no JSON-RPC')
    ctx.contribute('tools', {
      name: 'wipe', description: 'Wipes.', effect: 'destructive', input: { type: 'object' },
      output: { type: 'object' }, run: (_input, { principal }) => ({ principal })
    })
  }
})
`

const entries = `
[[entry]]
id = "chatty"
plugin = "./chatty.ts"
`

t.test('`heartwood mcp` serves the same catalog over stdio, as the trusted local caller', async (t) => {
  const cwd = t.testdir({
    'program.toml':
      shipped.replace(
        'id = "mcp"\nplugin = "mcp"\n',
        'id = "mcp"\nplugin = "mcp"\nconfig = { stdio_permissions = ["confirm:wipe"] }\n'
      ) + entries,
    'chatty.ts': chatty
  })
  for (const mode of ['legacy', 'auto'] as const) {
    const transport = new StdioClientTransport({ command: process.execPath, args: [main, 'mcp'], cwd, stderr: 'pipe' })
    let log = ''
    transport.stderr?.on('data', (chunk: Buffer) => (log += chunk.toString()))
    const client = new Client({ name: 'tests', version: '1' }, { versionNegotiation: { mode } })
    const wrong: Error[] = []
    client.onerror = (error) => wrong.push(error)
    await client.connect(transport)
    const { tools } = await client.listTools()
    t.strictSame(tools.map(({ name }) => name).sort(), ['calculator', 'carmy_job', 'clock', 'rag', 'wipe'])
    const sum = await client.callTool({ name: 'calculator', arguments: { expression: '6 * 7' } })
    t.match(sum.structuredContent, { result: 42 })
    t.match((await client.callTool({ name: 'wipe' })).structuredContent, { principal: 'local:stdio' })
    await client.close()
    t.strictSame(wrong, [], 'nothing but the protocol is on stdout')
    t.match(log, /this would be no JSON-RPC/)
  }
})

t.test('beside a server on the same data, it says where to go instead', async (t) => {
  const cwd = t.testdir({ 'program.toml': shipped })
  const { url } = await serve(t, { cwd })
  const ended = await run(t, ['mcp'], { cwd })
  t.equal(ended.code, 1)
  t.equal(ended.stdout, '')
  t.match(ended.stderr, /is in use by.*\/mcp behind it/s)
  t.equal((await fetch(`${url}/mcp`)).status, 400, 'and there it is')
})

t.test('a program without the plugin says so', async (t) => {
  const cwd = t.testdir({ 'program.toml': shipped.replace('id = "mcp"', 'id = "mcp"\ndisabled = true') })
  const ended = await run(t, ['mcp'], { cwd })
  t.match(ended, { code: 1, stdout: '', stderr: /runs no plugin 'mcp'/ })
})
