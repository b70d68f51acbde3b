import { against, figures, floor, method, servers, sidesOf } from './floor-sides.ts'
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
    { name: 'CPU a request, against fastify', of: against('fastify') }
  ]
})
