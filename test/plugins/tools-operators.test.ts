import t from 'tap'
import { ann, Clock, leaveSerialBehind, outcome, startTools, startWithAdmins } from '../fixtures/tools-house.ts'

t.test('operators', async (t) => {
  t.test('see the last calls, newest first, without what was given to them', async (t) => {
    const { run, admin, clock } = await startWithAdmins(t)
    await run('echo', { text: 'private' }, 'one')
    clock.ms += 5_000
    await run('echo', { text: 'private' }, 'one')
    await run('nope')
    await run('fail', { code: 'ON_PURPOSE', category: 'timeout' }, undefined, {
      caller: { principal: undefined, session: 's' }
    })

    const { status, body } = await admin('GET', 'carmy/executions')

    t.equal(status, 200)
    t.match(body, [
      { tool: 'fail', status: 'timed_out', error_code: 'ON_PURPOSE', principal: null, session: 's', effect: 'write' },
      { tool: 'nope', status: 'failed', error_code: 'TOOL_NOT_FOUND', effect: null, request_id: null },
      { tool: 'echo', replayed: true, started_at: 1_800_000_005 },
      {
        tool: 'echo',
        replayed: false,
        request_id: 'one',
        principal: 'user:ann',
        error_code: null,
        duration_ms: Number,
        started_at: 1_800_000_000
      }
    ])
    t.equal(
      (body as { execution_id: string }[])[2]?.execution_id,
      (body as { execution_id: string }[])[3]?.execution_id
    )
    t.notOk(JSON.stringify(body).includes('private'))
    const page = (await admin('GET', 'carmy/executions?limit=1&offset=1')).body as { tool: string }[]
    t.strictSame(
      page.map(({ tool }) => tool),
      ['nope']
    )
    t.equal(((await admin('GET', 'carmy/executions?limit=-1&offset=-1')).body as unknown[]).length, 1)
  })

  t.test('see a thousand of them at most', async (t) => {
    const { run, admin } = await startWithAdmins(t)
    for (let index = 0; index < 1_010; index += 1)
      await run('echo', { text: 'a' }, undefined, { caller: { principal: `user:${index}` } })
    const last = (await admin('GET', 'carmy/executions?limit=1')).body as { principal: string }[]
    const first = (await admin('GET', 'carmy/executions?offset=999')).body as { principal: string }[]
    t.strictSame(
      last.map(({ principal }) => principal),
      ['user:1009']
    )
    t.strictSame(
      first.map(({ principal }) => principal),
      ['user:10']
    )
    t.strictSame((await admin('GET', 'carmy/executions?offset=1000')).body, [])
  })

  t.test('see what is uncertain, and settle it, on record', async (t) => {
    const started = await startWithAdmins(t)
    const { run, admin, world, clock, idsIn } = started
    const ids: Record<string, string> = {}
    for (const requestId of ['done', 'broken', 'free']) {
      ids[requestId] = await leaveSerialBehind(started, requestId)
      clock.ms += 1_000
    }
    const running = run('serial', { gate: 'runs' }, 'runs')
    await world.until('serial runs')

    const { body } = await admin('GET', 'carmy/executions?state=uncertain')
    t.match(body, [
      {
        execution_id: ids['free'],
        request_id: 'free',
        principal: 'user:ann',
        tool: 'serial',
        effect: 'write',
        status: 'uncertain'
      },
      { execution_id: ids['broken'], started_at: 1_800_000_001 },
      { execution_id: ids['done'], started_at: 1_800_000_000 }
    ])
    t.equal((body as unknown[]).length, 3)
    const page = (await admin('GET', 'carmy/executions?state=uncertain&limit=1&offset=1')).body as {
      request_id: string
    }[]
    t.strictSame(
      page.map(({ request_id }) => request_id),
      ['broken']
    )

    const settle = (id: string | undefined, settlement: object) =>
      admin('POST', `carmy/executions/${id}/settle`, settlement)
    const done = await settle(ids['done'], { outcome: 'completed', data: { gate: 'done' } })
    t.match(done, {
      status: 200,
      body: { execution_id: ids['done'], request_id: 'done', tool: 'serial', outcome: 'completed' }
    })
    const error = { code: 'NOT_SHIPPED', message: 'the order was lost', category: 'conflict' }
    t.match(await settle(ids['broken'], { outcome: 'failed', error }), { status: 200 })
    t.match(await settle(ids['free'], { outcome: 'released' }), { status: 200 })

    const again = await run('serial', { gate: 'done' }, 'done')
    t.match(again, {
      replayed: true,
      response: { execution_id: ids['done'], status: 'completed', data: { gate: 'done' } }
    })
    t.equal((await run('serial', { gate: 'done' }, 'done')).text, again.text)
    t.match((await run('serial', { gate: 'broken' }, 'broken')).response, {
      execution_id: ids['broken'],
      status: 'failed',
      error: { ...error, retryable: false }
    })
    const [open] = (await idsIn('tools.open')).find(([key]) => key[2] === 'runs') ?? []
    t.ok(open)
    world.open('runs')
    const { response } = await running
    t.match(await run('serial', { gate: 'free' }, 'free'), { replayed: false, response: { status: 'completed' } })

    t.match(
      await settle(ids['done'], { outcome: 'released' }),
      { status: 409, body: { code: 'CONFLICT' } },
      'settled already'
    )
    t.match(await settle(response.execution_id, { outcome: 'released' }), { status: 409 }, 'never uncertain')
    const nobody = ['exec_nobody', 'exec_00000000-0000-7000-8000-000000000000', 'x'.repeat(3_000), '%00', '😀']
    for (const id of nobody) {
      t.match(await settle(encodeURIComponent(id), { outcome: 'released' }), {
        status: 404,
        body: { code: 'NOT_FOUND' }
      })
    }
    t.strictSame((await admin('GET', 'carmy/executions?state=uncertain')).body, [])

    const rows = (
      (await admin('GET', 'audit-log')).body as { action: string; resource_id: string; details: unknown }[]
    ).filter(({ action }) => action === 'settle_execution')
    t.strictSame(
      rows.map(({ resource_id }) => resource_id),
      [ids['free'], ids['broken'], ids['done']]
    )
    t.match(rows[2]?.details, { after: { tool: 'serial', outcome: 'completed' } })
  })

  t.test('cannot settle what runs, nor with what the tool could not have answered', async (t) => {
    const started = await startWithAdmins(t)
    const { run, admin, world, idsIn, kernel } = started
    const id = await leaveSerialBehind(started, 'a')
    const settle = (id: string, settlement: unknown) => admin('POST', `carmy/executions/${id}/settle`, settlement)
    for (const bad of [
      {},
      { outcome: 'perhaps' },
      { outcome: 'completed' },
      { outcome: 'failed' },
      { outcome: 'failed', error: { code: 'X' } },
      { outcome: 'failed', error: { code: 'X', message: 'm', category: 'none' } }
    ]) {
      t.match(await settle(id, bad), { status: 400 }, JSON.stringify(bad))
    }
    const running = run('serial', { gate: 'runs' }, 'runs')
    await world.until('serial runs')
    const [, reservation] = (await idsIn('tools.open')).find(([key]) => key[2] === 'runs') ?? []
    t.match(await settle((reservation as { execution_id: string }).execution_id, { outcome: 'released' }), {
      status: 409
    })
    world.open('runs')
    t.equal(outcome(await running), 'completed')

    await kernel.retire('fixture')
    t.match(await settle(id, { outcome: 'completed', data: {} }), { status: 409 }, 'nobody can check it')
    t.match(await settle(id, { outcome: 'released' }), { status: 200 })
  })

  t.test('settle once, however many try', async (t) => {
    const started = await startWithAdmins(t)
    const id = await leaveSerialBehind(started, 'a')
    const answers = await Promise.all(
      Array.from({ length: 8 }, (_, index) =>
        started.admin('POST', `carmy/executions/${id}/settle`, { outcome: 'completed', data: { gate: String(index) } })
      )
    )
    t.strictSame(
      answers.map(({ status }) => status).sort((a, b) => a - b),
      [200, 409, 409, 409, 409, 409, 409, 409]
    )
  })

  t.test('grant permissions, which hold at once and after a restart, and are on record', async (t) => {
    const dataFolder = t.testdir()
    const before = await startWithAdmins(t, { dataFolder, config: { grants: { '*': ['tool:echo'] } } })
    t.equal(outcome(await before.run('wipe')), 'CONFIRMATION_REQUIRED')

    const put = await before.admin('PUT', 'carmy/grants/user:ann', { permissions: ['confirm:wipe', 'confirm:wipe'] })

    const granted = { principal: 'user:ann', permissions: ['confirm:wipe'], configured: ['tool:echo'] }
    t.match(put, { status: 200, body: granted })
    t.equal(outcome(await before.run('wipe')), 'completed')
    t.equal(
      outcome(await before.run('wipe', {}, undefined, { caller: { principal: 'user:bob' } })),
      'CONFIRMATION_REQUIRED'
    )
    t.match((await before.run('whoami')).response.data, {
      principal: 'user:ann',
      permissions: ['tool:echo', 'confirm:wipe']
    })
    const rows = (await before.admin('GET', 'audit-log')).body as object[]
    t.match(rows[0], {
      action: 'set_grants',
      resource_type: 'principal',
      resource_id: 'user:ann',
      details: { before: [], after: ['confirm:wipe'] }
    })
    await before.kernel.stop()

    const { run, admin } = await startWithAdmins(t, { dataFolder })
    t.equal(outcome(await run('wipe')), 'completed')
    t.match((await admin('GET', 'carmy/grants')).body, [{ principal: 'user:ann', permissions: ['confirm:wipe'] }])
    t.match((await admin('GET', 'carmy/grants/user%3Aann')).body, {
      principal: 'user:ann',
      permissions: ['confirm:wipe']
    })
    t.match(await admin('GET', 'carmy/grants/user:nobody'), { status: 200, body: { permissions: [], configured: [] } })
    t.match(await admin('PUT', 'carmy/grants/user:ann', { permissions: [] }), { status: 200 })
    t.equal(outcome(await run('wipe')), 'CONFIRMATION_REQUIRED')
    for (const permissions of [['wipe'], ['confirm:'], ['confirm:a b'], [7], 'confirm:wipe', undefined]) {
      t.match(
        await admin('PUT', 'carmy/grants/user:ann', { permissions }),
        { status: 400 },
        JSON.stringify(permissions)
      )
    }
    t.match(await admin('PUT', 'carmy/grants/*', { permissions: ['confirm:wipe'] }), { status: 200 })
    t.equal(outcome(await run('wipe', {}, undefined, { caller: { principal: undefined } })), 'completed', 'everyone')
  })
})

t.test('policies', async (t) => {
  t.test('grants of the configuration hold for a principal, or for everyone, and never for another', async (t) => {
    const { run } = await startTools(t, { config: { grants: { 'user:ann': ['confirm:wipe'], '*': ['confirm:pay'] } } })
    const bob = { caller: { principal: 'user:bob' } }
    t.equal(outcome(await run('wipe')), 'completed')
    t.equal(outcome(await run('wipe', {}, undefined, bob)), 'CONFIRMATION_REQUIRED')
    t.equal(outcome(await run('pay', {}, undefined, bob)), 'completed')
    for (const principal of ['__proto__', 'constructor', '*', 'user:ANN']) {
      t.equal(outcome(await run('wipe', {}, undefined, { caller: { principal } })), 'CONFIRMATION_REQUIRED', principal)
    }
  })

  t.test('case 75: with require_tool_permission every call needs tool:<name>, after the confirmation', async (t) => {
    const { run, world } = await startTools(t, {
      config: { require_tool_permission: true, grants: { 'user:ann': ['tool:wipe'] } }
    })
    const caller = { principal: 'user:ann', permissions: new Set(['tool:count']) }
    t.match((await run('echo', { text: 'a' })).response.error, {
      code: 'FORBIDDEN',
      category: 'permission',
      retryable: false
    })
    t.equal(outcome(await run('count', { k: 'a' }, undefined, { caller })), 'completed')
    t.equal(outcome(await run('echo', { text: 'a' }, undefined, { caller })), 'FORBIDDEN')
    t.equal(outcome(await run('wipe')), 'CONFIRMATION_REQUIRED')
    t.equal(outcome(await run('echo', { text: 1 })), 'FORBIDDEN', 'before the arguments')
    t.strictSame(world.runs, ['count'])
  })

  t.test('cases 76 and 77: so many calls in a window, for each principal, else session, else all', async (t) => {
    const clock = new Clock()
    const { run, kernel } = await startTools(t, { clock, config: { rate_limit: { max: 2, window_ms: 2_500 } } })
    const callers = [
      ann,
      { principal: 'user:bob' },
      { principal: undefined },
      { principal: undefined, session: 'user:ann' }
    ]
    for (const caller of callers) {
      t.equal(outcome(await run('nope', {}, undefined, { caller })), 'TOOL_NOT_FOUND', 'not counted')
      t.equal(outcome(await run('echo', { text: 'a' }, 'a', { caller })), 'completed')
      t.equal(outcome(await run('echo', { text: 1 }, 'a', { caller })), 'INVALID_ARGUMENTS', 'counted')
      const { response } = await run('echo', { text: 'a' }, 'a', { caller })
      t.match(response, {
        status: 'failed',
        error: { code: 'RATE_LIMITED', category: 'capacity', recoverable: true, retryable: true, retry_after: 3 },
        _agent: { next_actions: [{ tool: 'echo', after_ms: 3_000 }] }
      })
    }
    clock.ms += 2_499
    t.match((await run('echo', { text: 'a' }, 'a')).response.error, { retry_after: 1 })
    await kernel.update('tools', { rate_limit: { max: 2, window_ms: 2_500 }, timeout_ms: 29_999 })
    t.equal(outcome(await run('echo', { text: 'a' }, 'a')), 'RATE_LIMITED', 'a swap forgets nothing')
    clock.ms += 1
    t.equal((await run('echo', { text: 'a' }, 'a')).replayed, true)
  })
})

t.test('case 123: each call is one line in the log, without what was given', async (t) => {
  const { run, lines } = await startTools(t)
  const about = (message: string) => lines.filter((line) => line.message === message)

  const { response } = await run('echo', { text: 'private words' }, 'r1')
  await run('echo', { text: 'private words' }, 'r1')
  await run('fail', { code: 'ON_PURPOSE', category: 'conflict', details: 'private words' })
  await run('nope')

  const id = { execution_id: /^exec_/, duration_ms: Number }
  t.match(about('tool executed'), [
    {
      level: 'info',
      execution_id: response.execution_id,
      request_id: 'r1',
      tool: 'echo',
      effect: 'none',
      status: 'completed',
      replayed: false
    },
    { ...id, level: 'info', request_id: 'r1', tool: 'echo', status: 'completed', replayed: true }
  ])
  t.not(about('tool executed')[1]?.['execution_id'], response.execution_id, 'a replay is a call of its own')
  t.match(about('tool not executed'), [
    { ...id, level: 'warn', tool: 'fail', effect: 'write', status: 'failed', error_code: 'ON_PURPOSE' },
    { ...id, level: 'warn', tool: 'nope', status: 'failed', error_code: 'TOOL_NOT_FOUND' }
  ])
  t.notOk('effect' in (about('tool not executed')[1] ?? {}))
  t.notOk(JSON.stringify(lines).includes('private words'))

  const quiet = await startTools(t, { config: { log_executions: false } })
  await quiet.run('echo', { text: 'a' })
  t.strictSame(
    quiet.lines.filter((line) => line.message === 'tool executed'),
    []
  )
})
