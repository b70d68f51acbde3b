import t from 'tap'
import { createCarmy, type TrustedCaller } from '../../authoring/carmy.ts'
import { createJsonLogger } from '../../kernel/index.ts'

t.test('a host whose caller has no proper name gets nobody let in by mistake', async (t) => {
  let found: unknown
  const carmy = await createCarmy({
    tools: [],
    dataFolder: t.testdir({}),
    requireAuth: true,
    caller: () => found as TrustedCaller,
    log: createJsonLogger({ level: 'error', write: () => {} })
  })
  t.teardown(() => carmy.close())
  const ask = (caller?: unknown) =>
    carmy.fetch(new Request('http://host.test/agent/tools'), caller === undefined ? {} : { caller: caller as never })

  found = { principal: 'user:ada' }
  t.equal((await ask()).status, 200)
  t.equal((await ask({ principal: 'user:bob' })).status, 200)
  found = {}
  t.equal((await ask()).status, 401)
  for (const principal of ['', 42, null, {}]) {
    found = { principal }
    t.equal((await ask()).status, 500, JSON.stringify(principal))
    await t.rejects(ask({ principal }), TypeError)
  }
})
