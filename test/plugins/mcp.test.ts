import { readFileSync } from 'node:fs'
import t from 'tap'
import { version } from '../../plugins/mcp/version.ts'
import { toolOf, toolsPlugin } from '../fixtures/carmy-tools.ts'
import { eras, startMcp } from '../fixtures/mcp-house.ts'

function textOf(result: { content?: readonly { type: string; text?: string }[] }): unknown {
  return JSON.parse(result.content?.[0]?.text ?? 'null')
}

t.test('the version that clients are told is that of the package', async (t) => {
  const { version: packaged } = JSON.parse(readFileSync('package.json', 'utf8')) as { version: string }
  t.equal(version, packaged)
})

t.test('a schema of JSON Schema 2020-12 is listed as it was published', async (t) => {
  const { kernel, connect } = await startMcp(t)
  const input = {
    $schema: 'https://json-schema.org/draft/2020-12/schema',
    type: 'object',
    $defs: { address: { $anchor: 'address', type: 'object', properties: { city: { type: 'string' } } } },
    properties: { name: { type: 'string' }, address: { $ref: '#/$defs/address' }, other: { $ref: '#address' } },
    allOf: [{ anyOf: [{ required: ['name'] }, { required: ['address'] }] }],
    if: { required: ['other'] },
    then: { required: ['name'] },
    else: { required: ['address'] },
    additionalProperties: false
  }
  const plugin = toolsPlugin(() => [toolOf({ name: 'rich', input, run: (value) => value })], 'rich')
  await kernel.begin({ id: 'rich', plugin, config: {} })
  const client = await connect()
  t.strictSame((await client.listTools()).tools.find(({ name }) => name === 'rich')?.inputSchema, input)
  const call = (value: Record<string, unknown>) => client.callTool({ name: 'rich', arguments: value })
  t.strictSame((await call({ address: { city: 'Bern' } })).structuredContent, { address: { city: 'Bern' } })
  t.equal((await call({ name: 'Ada', other: { city: 7 } })).isError, true)
})

for (const transport of ['node', 'uws'] as const) {
  for (const era of eras) {
    t.test(`over ${transport}, a client of the ${era} kind`, async (t) => {
      const { world, connect, kernel } = await startMcp(t, { transport })
      const client = await connect({ era })
      t.strictSame(client.getServerVersion(), { name: 'heartwood', version })
      t.equal(client.getNegotiatedProtocolVersion(), era === 'auto' ? '2026-07-28' : '2025-11-25')

      t.test('lists the tools with their schemas, hints and exact metadata', async (t) => {
        const { tools: listed, nextCursor } = await client.listTools()
        t.equal(nextCursor, undefined)
        const names = listed.map(({ name }) => name)
        t.strictSame(names, [...names].sort())
        const byName = Object.fromEntries(listed.map((tool) => [tool.name, tool]))
        t.match(byName['wipe'], {
          annotations: { readOnlyHint: false, destructiveHint: true, idempotentHint: false, openWorldHint: false },
          _meta: { 'carmy/effect': 'destructive', 'carmy/confirmation': 'none', 'carmy/parallel_safe': true },
          inputSchema: { type: 'object', additionalProperties: false },
          outputSchema: { type: 'object', required: ['ok'] }
        })
        t.match(byName['pay'], {
          annotations: { readOnlyHint: false, destructiveHint: false, openWorldHint: true },
          _meta: { 'carmy/effect': 'external_write', 'carmy/confirmation': 'required' }
        })
        t.match(byName['echo'], { annotations: { readOnlyHint: true, idempotentHint: true } })
        t.match(byName['serial'], { _meta: { 'carmy/parallel_safe': false } })
        t.strictSame(byName['scalar']?.inputSchema, { type: 'object' }, 'what is no object lists as an empty one')
        t.notOk('outputSchema' in (byName['scalar'] ?? {}))
      })

      t.test('calls a tool, and gets an object in both forms', async (t) => {
        const result = await client.callTool({ name: 'echo', arguments: { text: 'a' } })
        t.strictSame(result.structuredContent, { text: 'a' })
        t.strictSame(textOf(result), { text: 'a' })
        t.notOk(result.isError)
        t.strictSame((await client.callTool({ name: 'peek' })).structuredContent, { ok: true }, 'no arguments are {}')
      })

      t.test('case 118: an unknown tool is an error of the protocol', async (t) => {
        await t.rejects(client.callTool({ name: 'nope' }), {
          code: -32602,
          data: { error: { code: 'TOOL_NOT_FOUND', category: 'not_found' } }
        })
      })

      t.test('case 119: a failure is a result that says so, and its metadata what exactly', async (t) => {
        const result = await client.callTool({
          name: 'fail',
          arguments: { code: 'BUSY', category: 'capacity', retryable: true, retry_after: 5 }
        })
        t.equal(result.isError, true)
        t.notOk('structuredContent' in result)
        const error = { code: 'BUSY', category: 'capacity', retryable: true, recoverable: true, retry_after: 5 }
        t.match(textOf(result), { error })
        t.match(result._meta, {
          'carmy/error': error,
          'carmy/execution_id': /^exec_/,
          'carmy/status': 'failed',
          'carmy/next_actions': [{ tool: 'fail', after_ms: 5000 }]
        })
        t.match(await client.callTool({ name: 'echo', arguments: { text: 5 } }), {
          isError: true,
          _meta: { 'carmy/error': { code: 'INVALID_ARGUMENTS' } }
        })
        t.match(await client.callTool({ name: 'private' }), { _meta: { 'carmy/error': { code: 'FORBIDDEN' } } })
        t.match(await client.callTool({ name: 'wipe' }), {
          _meta: { 'carmy/error': { code: 'CONFIRMATION_REQUIRED' }, 'carmy/next_actions': [{ tool: 'wipe' }] }
        })
        t.notMatch(JSON.stringify(await client.callTool({ name: 'boom' })), /secret/)
      })

      t.test('case 120: a call with the same carmy/request_id runs once', async (t) => {
        const call = (k: string) =>
          client.callTool({
            name: 'count',
            arguments: { k },
            _meta: { 'carmy/request_id': `once ${transport} ${era}` }
          })
        const before = world.count('count')
        const first = await call(era)
        t.strictSame(await call(era), first)
        t.equal(world.count('count'), before + 1)
        t.match(await call('another'), { _meta: { 'carmy/error': { code: 'IDEMPOTENCY_CONFLICT' } } })
      })

      t.test('is told of progress when it asks', async (t) => {
        const told: unknown[] = []
        const result = await client.callTool(
          { name: 'steps', arguments: { n: 3 } },
          { onprogress: (update) => told.push(update) }
        )
        t.strictSame(result.structuredContent, { n: 3 })
        t.strictSame(
          told,
          [1, 2, 3].map((step) => ({ progress: step, total: 3, message: `step ${step}` }))
        )
      })

      t.test('cancels one execution, and no other', async (t) => {
        const controller = new AbortController()
        const doomed = client.callTool({ name: 'watch' }, { signal: controller.signal })
        const other = client.callTool({ name: 'sleep', arguments: { gate: `${transport} ${era}` } })
        await Promise.all([world.until('watch began'), world.until(`sleep ${transport} ${era}`)])
        controller.abort('the person has thought better of it')
        await t.rejects(doomed)
        await world.until('watch aborted')
        world.open(`${transport} ${era}`)
        t.strictSame((await other).structuredContent, { gate: `${transport} ${era}` })
      })

      t.test('sees the list change when a plugin is swapped, and only then', async (t) => {
        let told = 0
        let wake = () => {}
        const hear = () => {
          told += 1
          wake()
        }
        const listening = await connect({
          era,
          options: {
            listChanged: { tools: { autoRefresh: false, debounceMs: 0, onChanged: () => hear() } }
          }
        })
        await listening.listTools()
        const changed = async (change: () => Promise<unknown>) => {
          const seen = new Promise<void>((resolve) => (wake = resolve))
          await change()
          await seen
        }
        const plugin = toolsPlugin(() => [toolOf({ name: 'extra', run: () => 1 })], 'extra')
        await changed(() => kernel.begin({ id: 'extra', plugin, config: {} }))
        t.ok((await listening.listTools()).tools.some(({ name }) => name === 'extra'))
        await kernel.retarget({ id: 'extra', plugin, config: {} })
        await changed(() => kernel.retire('extra'))
        t.notOk((await listening.listTools()).tools.some(({ name }) => name === 'extra'))
        t.equal(told, 2, 'a swap that changes nothing of the list is no news')
      })
    })
  }
}
