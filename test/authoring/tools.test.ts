import t from 'tap'
import { defineTool, type FromSchema } from '../../authoring/define-tool.ts'
import { runTool, startTools } from '../../authoring/testing.ts'
import { CodedError } from '../../kernel/index.ts'

/** Compiles only where both are the same type. */
function sameType<A, B>(
  _is: (<T>() => T extends A ? 1 : 2) extends <T>() => T extends B ? 1 : 2 ? true : false
): void {}

t.test('a schema gives the type of its values', (t) => {
  sameType<FromSchema<{ type: 'string' }>, string>(true)
  sameType<FromSchema<{ type: readonly ['integer', 'null'] }>, number | null>(true)
  sameType<FromSchema<{ const: 7 }>, 7>(true)
  sameType<FromSchema<{ enum: readonly ['a', 'b'] }>, 'a' | 'b'>(true)
  sameType<FromSchema<{ type: 'array'; items: { type: 'boolean' } }>, boolean[]>(true)
  sameType<FromSchema<{ anyOf: readonly [{ type: 'string' }, { type: 'null' }] }>, string | null>(true)
  sameType<FromSchema<{ type: 'object'; additionalProperties: { type: 'number' } }>, Record<string, number>>(true)
  sameType<
    FromSchema<{
      type: 'object'
      required: readonly ['a']
      properties: { a: { type: 'string' }; b: { type: 'object'; properties: { c: { type: 'number' } } } }
    }>,
    { a: string; b?: { c?: number } }
  >(true)
  sameType<FromSchema<{ $ref: '#/$defs/a' }>, unknown>(true)
  // @ts-expect-error: they are not the same
  sameType<FromSchema<{ type: 'string' }>, number>(true)
  t.end()
})

const halve = defineTool({
  name: 'halve',
  description: 'Halves an even number.',
  input: { type: 'object', required: ['of'], properties: { of: { type: 'integer' } } },
  output: { type: 'object', required: ['half'], properties: { half: { type: 'integer' } } },
  effect: 'write',
  confirmation: 'required',
  run({ of }, { progress }) {
    if (of % 2 !== 0) throw new CodedError('NOT_EVEN', `${of} is odd`, { detail: { category: 'validation' } })
    progress({ progress: 1 })
    return { half: of / 2 }
  }
})

defineTool({
  name: 'wrong',
  description: 'Promises a number.',
  input: { type: 'object' },
  output: { type: 'object', required: ['half'], properties: { half: { type: 'integer' } } },
  effect: 'none',
  // @ts-expect-error: the output schema promises an integer
  run: () => ({ half: 'a' })
})

t.test('one tool runs through the whole pipeline', async (t) => {
  const refused = await runTool(halve, { of: 4 }, { principal: 'user:ada' })
  t.equal(refused.response.error?.code, 'CONFIRMATION_REQUIRED')
  const trusted = { principal: 'user:ada', permissions: ['confirm:halve'] }
  const { response, events, replayed } = await runTool(halve, { of: 4 }, trusted)
  t.match(response, { status: 'completed', data: { half: 2 } })
  t.strictSame(
    events.map(({ event }) => event),
    ['execution.started', 'tool.started', 'tool.progress', 'tool.completed']
  )
  t.equal(replayed, false)
  t.equal((await runTool(halve, { of: 3 }, trusted)).response.error?.message, '3 is odd')
  t.equal((await runTool(halve, { of: 'x' }, trusted)).response.error?.code, 'INVALID_ARGUMENTS')
})

t.test('tools that stay together remember what was called', async (t) => {
  const bench = await startTools({ tools: [halve] })
  t.teardown(() => bench.stop())
  const call = { principal: 'user:ada', permissions: ['confirm:halve'], requestId: 'one' }
  const first = await bench.call('halve', { of: 4 }, call)
  const second = await bench.call('halve', { of: 4 }, call)
  t.equal(second.replayed, true)
  t.strictSame(second.response, first.response)
  t.equal((await bench.call('halve', { of: 6 }, call)).response.error?.code, 'IDEMPOTENCY_CONFLICT')
})

t.test('a tool that cannot be taken is the error of the test', async (t) => {
  await t.rejects(startTools({ tools: [{ ...halve, name: 'no name' }] }), { code: 'INVALID_TOOL_NAME' })
})
