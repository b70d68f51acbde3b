import { createHash } from 'node:crypto'
import t from 'tap'
import { definePlugin, type Plugin } from '../../kernel/index.ts'
import carmy from '../../plugins/carmy/index.ts'
import type { Face } from '../../plugins/carmy/types.ts'
import tools from '../../plugins/tools/index.ts'
import { trustingGuard } from '../fixtures/carmy-tools.ts'
import { startHouse } from '../harness.ts'

type T = Parameters<typeof startHouse>[0]

function facePlugin(name: string, ...faces: readonly Face[]): Plugin {
  return definePlugin({
    name,
    config: { type: 'object', properties: { more: {} } } as never,
    apply(ctx, { more }: { more?: Face }) {
      ctx.contribute('carmy.faces', ...faces, ...(more === undefined ? [] : [more]))
    }
  })
}

const webhooks: Face = {
  capability: 'webhooks',
  members: { webhooks: [{ path: '/hooks/a', tool: 'echo', mode: 'inline', event_id: null, verified: true }] }
}
const other: Face = { capability: 'other', members: { other_url: '/other', a_first: { z: 1, a: [2, { y: 1, b: 2 }] } } }

async function startCarmy(t: T, ...plugins: readonly Plugin[]) {
  const house = await startHouse(t, [
    { plugin: tools },
    { plugin: trustingGuard },
    ...plugins.map((plugin) => ({ plugin }))
  ])
  const discover = async () => {
    const { headers, body } = await house.services('http').dispatch({ method: 'GET', path: '/.well-known/agent' })
    return { tag: headers['etag'], body: body as Record<string, unknown>, text: JSON.stringify(body) }
  }
  return { ...house, discover }
}

t.test('case 115: discovery says what a face says, behind what is its own, in canonical order', async (t) => {
  const { discover } = await startCarmy(t, carmy, facePlugin('hooks', webhooks), facePlugin('other', other))
  const { tag, body, text } = await discover()

  t.strictSame(body['capabilities'], ['tools', 'streaming', 'idempotency', 'webhooks', 'other'])
  t.strictSame(body['webhooks'], webhooks.members['webhooks'])
  t.equal(body['other_url'], '/other')
  const names = Object.keys(body)
  t.strictSame(names, [...names].sort(), 'members are sorted')
  t.match(text, '"a_first":{"a":[2,{"b":2,"y":1}],"z":1}', 'at every level')
  t.equal(tag, `"${createHash('sha256').update(text).digest('hex')}"`)
})

t.test('case 116: without a face there is no trace of one, and it comes and goes with its plugin', async (t) => {
  const { kernel, discover } = await startCarmy(t, carmy)
  const before = await discover()
  t.strictSame(before.body['capabilities'], ['tools', 'streaming', 'idempotency'])
  t.notOk('webhooks' in before.body)

  await kernel.begin({ id: 'hooks', plugin: facePlugin('hooks', webhooks), config: {} })
  const during = await discover()
  t.not(during.tag, before.tag)
  t.equal(during.body['tools_version'], before.body['tools_version'], 'the catalog is the same')

  await kernel.update('hooks', { more: other })
  t.strictSame((await discover()).body['capabilities'], ['tools', 'streaming', 'idempotency', 'webhooks', 'other'])

  await kernel.update('hooks', {})
  t.equal((await discover()).text, during.text)
  await kernel.retire('hooks')
  t.strictSame(await discover(), before)
})

t.test('a face that is there before carmy is shown, and outlives a swap of it', async (t) => {
  const { kernel, discover } = await startCarmy(t, facePlugin('hooks', webhooks), carmy)
  t.strictSame((await discover()).body['capabilities'], ['tools', 'streaming', 'idempotency', 'webhooks'])
  await kernel.update('carmy', { server: 'renamed' })
  t.match((await discover()).body, { server: 'renamed', webhooks: webhooks.members['webhooks'] })
})

t.test('a face cannot take a name that is taken, nor say what is no JSON', async (t) => {
  const { kernel, discover } = await startCarmy(t, carmy, facePlugin('hooks', webhooks))
  const before = await discover()
  const refuse = async (code: string, face: Face) => {
    const entry = { id: 'rival', plugin: facePlugin('rival', face), config: {} }
    await t.rejects(kernel.begin(entry), { code }, JSON.stringify(Object.keys(face.members)))
    await kernel.retire('rival')
  }
  await refuse('CARMY_FACE_CONFLICT', { capability: 'webhooks', members: {} })
  await refuse('CARMY_FACE_CONFLICT', { capability: 'tools', members: {} })
  await refuse('CARMY_FACE_CONFLICT', { capability: 'mine', members: { server: 'mine' } })
  await refuse('CARMY_FACE_CONFLICT', { capability: 'mine', members: { tools_version: 'mine' } })
  await refuse('CARMY_FACE_CONFLICT', { capability: 'mine', members: { webhooks: [] } })
  await refuse('CARMY_FACE_INVALID', { capability: 'mine', members: { big: 1n } })
  await refuse('CARMY_FACE_INVALID', { capability: 'mine', members: { none: undefined } })
  t.strictSame(await discover(), before)
})
