import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { CrashLoad } from './crash-load.ts'
import { httpRequest, sendOnce } from './load.ts'
import { projectFolder } from './peers.ts'
import { type ServerProcess, startServer } from './process.ts'
import { defineBench, type Side, summarise } from './runner.ts'

/** Of one round; there are five. */
const killsPerRound = 40
const coldStartsPerRound = 10
/** Acknowledged before a kill, at random up to so many. */
const mostRequests = 60
const kinds = ['accounts', 'refreshes', 'keys', 'turns'] as const
const adminSecret = 'the admin secret of the bench'

/** @returns the server, and the time from its start until it is ready */
async function start(folder: string): Promise<readonly [ServerProcess, number]> {
  const startedAt = performance.now()
  const program = join(projectFolder, 'program.toml')
  const server = await startServer(new URL('../main.js', import.meta.url), {
    args: ['serve', '--program', program, '--data', folder, '--port', '0'],
    env: { ADMIN_API_KEY: adminSecret },
    cores: 'all',
    cwd: projectFolder
  })
  // It listens, and answers /health, before all of its plugins run.
  for (let status = 0; status !== 200; ) {
    ;({ status } = await sendOnce(server.port, httpRequest('GET', '/ready')))
    if (status !== 200 && status !== 404 && status !== 503) throw new Error(`/ready answered ${status}`)
  }
  return [server, performance.now() - startedAt]
}

const killed: Side = {
  name: 'after kill -9',
  async setup() {
    const folder = await mkdtemp(join(tmpdir(), 'heartwood-bench-'))
    const load = new CrashLoad(adminSecret, Math.random)
    let [server] = await start(folder)
    const victim = () => ({ url: `http://127.0.0.1:${server.port}`, kill: () => server.kill() })
    return {
      async run(round) {
        const startsMs: number[] = []
        const lost: string[] = []
        const kills = round < 0 ? 2 : killsPerRound
        for (let kill = 0; kill < kills; kill++) {
          await load.runAndKill(victim(), 1 + Math.floor(Math.random() * mostRequests))
          const [next, startMs] = await start(folder)
          server = next
          startsMs.push(startMs)
          lost.push(...(await load.check(victim())))
        }
        lost.push(...(await load.check(victim(), true)))
        for (const what of lost) process.stderr.write(`lost: ${what}\n`)
        const { median: startMs, max: longestMs } = summarise(startsMs)
        return { startMs, longestMs, kills, lost: lost.length, ...load.acknowledged }
      },
      async teardown() {
        await server.stop()
        await rm(folder, { recursive: true })
      }
    }
  }
}

const cold: Side = {
  name: 'cold start',
  setup: () => ({
    async run(round) {
      const startsMs: number[] = []
      for (let at = 0; at < (round < 0 ? 1 : coldStartsPerRound); at++) {
        const folder = await mkdtemp(join(tmpdir(), 'heartwood-bench-'))
        const [server, startMs] = await start(folder)
        startsMs.push(startMs)
        await server.stop()
        await rm(folder, { recursive: true })
      }
      const { median: startMs, max: longestMs } = summarise(startsMs)
      return { startMs, longestMs }
    }
  })
}

export default defineBench({
  name: 'crash',
  question: 'Is anything lost that was acknowledged when the server is killed, and how long until it serves again?',
  method:
    `the shipped program under registrations, refreshes, key creations and metered turns of clients that never retry, killed with SIGKILL ` +
    `after 1 to ${mostRequests} acknowledgements or, three times of four, after the first account too, ${killsPerRound} times a round on the same data; beside it starts on an empty folder`,
  figures: {
    startMs: 'start until ready, ms',
    longestMs: 'longest of them, ms',
    kills: 'kills',
    lost: 'acknowledged and missing',
    accounts: 'accounts acknowledged so far',
    refreshes: 'refreshes acknowledged so far',
    keys: 'keys acknowledged so far',
    turns: 'metered turns acknowledged so far'
  },
  sides: [killed, cold],
  claims: [
    { name: 'acknowledged and missing', of: (read) => read('after kill -9', 'lost'), atMost: 0, holds: 'always' },
    {
      name: 'start after a kill, against a cold start',
      of: (read) => read('after kill -9', 'startMs') / read('cold start', 'startMs'),
      atMost: 1.5
    },
    {
      name: 'of each kind something was acknowledged',
      of: (read) => Math.min(...kinds.map((kind) => read('after kill -9', kind))),
      atLeast: 1,
      holds: 'always'
    }
  ]
})
