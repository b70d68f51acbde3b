import { against, figures, floor, method, ours, servers, sidesOf } from './floor-sides.ts'
import { httpRequest } from './load.ts'
import { defineBench } from './runner.ts'

export default defineBench({
  name: 'http-execute',
  question: 'What does a call of a tool that does nothing cost, beside a server that only parses and answers?',
  method: `POST /agent/execute; ${method}`,
  figures,
  sides: sidesOf(servers, {
    request: httpRequest('POST', '/agent/execute', { body: { tool: 'noop', arguments: {} } }),
    isRight: (body) => body['status'] === 'completed'
  }),
  claims: [
    { name: 'H1 CPU a request, against the floor', of: against(floor), atMost: 1.2 },
    {
      // What carmy publishes of itself on one thread is the share of its bare framework's throughput that is left.
      name: 'share of the floor that is left, by CPU',
      of: (read) => read(floor, 'cpuUs') / read(ours, 'cpuUs'),
      atLeast: 0.82
    },
    { name: 'CPU a request, against fastify', of: against('fastify') }
  ]
})
