import { once } from 'node:events'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import t from 'tap'
import { openEngine } from '../../plugins/store/lmdb.ts'
import { createStore } from '../../plugins/store/service.ts'
import { effectsIn, startCrashTools } from '../fixtures/crash-tools.ts'
import { startFixture } from '../process.ts'

/** More of them, for those who have the time. */
const kills = Number(process.env['HEARTWOOD_TEST_KILLS'] ?? 4)

const by = { actor: 'admin_secret', address: '127.0.0.1' }

t.test(
  'a process killed in the middle of writes: nothing that was answered runs again, the rest is settled',
  async (t) => {
    const data = join(t.testdir(), 'data')
    const file = join(t.testdirName, 'effects')
    const begun = new Set<string>()
    const answered = new Map<string, string>()
    for (let round = 0; round < kills; round += 1) {
      const child = startFixture(t, 'crash-process', [data, file, String(round)])
      const gone = once(child, 'exit')
      const most = 20 + Math.floor(Math.random() * 150)
      let seen = 0
      for await (const line of createInterface({ input: child.stdout })) {
        const said = JSON.parse(line) as { begun?: string; answered?: string; text?: string }
        if (said.begun !== undefined) begun.add(said.begun)
        if (said.answered !== undefined) answered.set(said.answered, said.text ?? '')
        if (++seen === most) child.kill('SIGKILL')
      }
      await gone
    }

    const engine = await openEngine(data)
    t.teardown(() => engine.close())
    const { run, executions } = startCrashTools(createStore(engine), file)
    for (const [id, text] of answered) {
      const again = await run(id)
      if (!again.replayed || again.text !== text) t.fail(`${id} was answered ${text}, then ${again.text}`)
    }
    let uncertain = 0
    for (const id of begun) {
      if (answered.has(id)) continue
      const { response } = await run(id)
      // It verified, had not begun, or was recorded without anybody being told.
      if (response.status === 'completed') continue
      t.equal(response.error?.code, 'EXECUTION_UNCERTAIN', id)
      t.ok(id.endsWith('p'), `${id} can verify`)
      uncertain += 1
    }
    const open = await executions.listUncertain({ limit: 1_000_000, offset: 0 })
    t.equal(open.length, uncertain)
    const happened = new Set(effectsIn(file).map(({ executionId }) => executionId))
    for (const { executionId, requestId } of open) {
      const isDone = happened.has(executionId)
      await executions.settle(
        executionId,
        isDone ? { outcome: 'completed', data: { id: requestId } } : { outcome: 'released' },
        by
      )
      const { response, replayed } = await run(requestId)
      t.match(response, { status: 'completed', data: { id: requestId } })
      t.equal(replayed, isDone)
    }
    const effects = effectsIn(file)
    t.equal(new Set(effects.map(({ id }) => id)).size, effects.length, 'nothing was done twice')
    t.strictSame(new Set(effects.map(({ id }) => id)), begun, 'and everything once')
    t.comment(`${kills} kills, ${begun.size} begun, ${answered.size} answered, ${uncertain} settled by an operator`)
  }
)
