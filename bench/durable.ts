import { floor, method } from './floor-sides.ts'
import { httpRequest, measureLoad, sendOnce } from './load.ts'
import { startServer } from './process.ts'
import { defineBench, type Read, type Side } from './runner.ts'

const digits = 12
const first = 'first call of a tool with effects'
const firstRead = 'first call of a tool without effects'
const replay = 'replay'
const without = 'call without a request id'
const logged = 'the same, with a line in the log'

/** Requests whose ids are never the same; in one buffer, which is sent before it is changed again. */
export function fresh(tool: string): () => Uint8Array {
  const request = requestOf(tool, '0'.repeat(digits))
  const at = request.lastIndexOf('0'.repeat(digits))
  let next = 0
  return () => {
    request.write(String(next++).padStart(digits, '0'), at, 'latin1')
    // A socket that is busy keeps what it was given.
    return Buffer.from(request)
  }
}

export function requestOf(tool: string, id?: string): Buffer {
  const call = { tool, arguments: {}, ...(id === undefined ? {} : { request_id: id }) }
  return httpRequest('POST', '/agent/execute', { body: call })
}

const sides: readonly (readonly [name: string, server: string, args: string[], request: () => Uint8Array])[] = [
  [first, 'durable', [], fresh('write')],
  [firstRead, 'durable', [], fresh('read')],
  [replay, 'durable', [], () => requestOf('write', 'again')],
  [without, 'durable', [], () => requestOf('read')],
  [logged, 'durable', ['log'], () => requestOf('read')],
  [floor, 'floor', [], () => requestOf('write', 'again')]
]

const against = (side: string) => (read: Read) => read(side, 'cpuUs') / read(floor, 'cpuUs')

export default defineBench({
  name: 'durable',
  question: 'What does it cost to run a tool once for each request id, with its answer on disk before it is given?',
  method: `POST /agent/execute; ${method}`,
  figures: { cpuUs: 'CPU a request, µs', perSecond: 'requests a second', p99Ms: 'p99, ms' },
  sides: sides.map(
    ([name, module, args, make]): Side => ({
      name,
      async setup() {
        const server = await startServer(new URL(`./servers/${module}.js`, import.meta.url), { args })
        const { status, body } = await sendOnce(server.port, make())
        if (status !== 200) throw new Error(`${name} answered ${status}: ${body}`)
        const same = make()
        const request = name.startsWith('first') ? make : same
        return { run: () => measureLoad(server, { request }), teardown: () => server.stop() }
      }
    })
  ),
  claims: [
    { name: 'H4 first call, CPU against the floor', of: against(first), atMost: 2.5 },
    { name: 'H4 first call without effects, CPU against the floor', of: against(firstRead), atMost: 2.5 },
    { name: 'H4 replay, CPU against the floor', of: against(replay), atMost: 1.5 },
    { name: 'CPU without a request id, against the floor', of: against(without) },
    { name: 'CPU with a line in the log, against the floor', of: against(logged) }
  ]
})
