import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { httpRequest, sendOnce } from './load.ts'
import { projectFolder } from './peers.ts'
import { startServer } from './process.ts'
import { defineBench, type Side } from './runner.ts'

/** Long enough for what a start leaves behind to be collected. */
const idleMs = 1_000

function side(name: string, module: URL, args: (folder: string) => readonly string[], request: Buffer): Side {
  return {
    name,
    setup: () => ({
      async run() {
        const folder = await mkdtemp(join(tmpdir(), 'heartwood-bench-'))
        const startedAt = performance.now()
        const server = await startServer(module, { args: args(folder), cores: 'all', cwd: projectFolder })
        try {
          const { status, body } = await sendOnce(server.port, request)
          if (status !== 200) throw new Error(`${name} answered ${status}: ${body}`)
          const answerMs = performance.now() - startedAt
          await sleep(idleMs)
          const { rssBytes, heapBytes, cpuUs } = await server.usage()
          return { answerMs, rssMb: rssBytes / 1e6, heapMb: heapBytes / 1e6, cpuMs: cpuUs / 1000 }
        } finally {
          await server.stop()
          await rm(folder, { recursive: true })
        }
      }
    })
  }
}

const execute = httpRequest('POST', '/agent/execute', { body: { tool: 'noop', arguments: {} } })

export default defineBench({
  name: 'startup',
  question: 'How long from the start of the process to the first answer, and how much memory does it keep when idle?',
  method: 'the shipped program on an empty data folder, every core; memory 1 s after the first answer',
  figures: {
    answerMs: 'start to first answer, ms',
    rssMb: 'idle RSS, MB',
    heapMb: 'idle heap, MB',
    cpuMs: 'CPU until then, ms'
  },
  sides: [
    side(
      'heartwood',
      new URL('../main.js', import.meta.url),
      (folder) => ['serve', '--program', join(projectFolder, 'program.toml'), '--data', folder, '--port', '0'],
      httpRequest('GET', '/health')
    ),
    side('node:http and lmdb', new URL('./servers/peer.js', import.meta.url), () => ['node'], execute),
    side('fastify and lmdb', new URL('./servers/peer.js', import.meta.url), () => ['fastify'], execute)
  ],
  claims: [
    { name: 'H7 start to first answer, ms', of: (read) => read('heartwood', 'answerMs'), atMost: 1_000 },
    { name: 'H7 idle RSS, MB', of: (read) => read('heartwood', 'rssMb'), atMost: 100 },
    {
      name: 'idle RSS, against fastify and lmdb',
      of: (read) => read('heartwood', 'rssMb') / read('fastify and lmdb', 'rssMb')
    }
  ]
})
