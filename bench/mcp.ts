import { figures, method, sidesOf } from './floor-sides.ts'
import { httpRequest } from './load.ts'
import { defineBench, type Read } from './runner.ts'

const ours = 'heartwood'
const sdk = 'the SDK on node:http'

/** Our CPU a call in that of the SDK alone. */
const against = (read: Read) => read(ours, 'cpuUs') / read(sdk, 'cpuUs')

const revision = '2026-07-28'
const call = {
  jsonrpc: '2.0',
  id: 1,
  method: 'tools/call',
  params: {
    name: 'noop',
    arguments: {},
    _meta: {
      'io.modelcontextprotocol/protocolVersion': revision,
      'io.modelcontextprotocol/clientInfo': { name: 'bench', version: '1' },
      'io.modelcontextprotocol/clientCapabilities': {}
    }
  }
}

export default defineBench({
  name: 'mcp-call',
  question: 'What does a call of a tool over MCP cost, beside the official SDK alone?',
  method: `POST /mcp, tools/call of revision ${revision}; ${method}`,
  figures,
  sides: sidesOf(
    { [ours]: ['heartwood', 'uws'], 'heartwood on node:http': ['heartwood', 'node'], [sdk]: ['mcp-sdk'] },
    {
      request: httpRequest('POST', '/mcp', {
        headers: {
          Accept: 'application/json, text/event-stream',
          'MCP-Protocol-Version': revision,
          'Mcp-Method': 'tools/call',
          'Mcp-Name': 'noop'
        },
        body: call
      }),
      isRight: (body) => 'structuredContent' in (body['result'] as object)
    }
  ),
  claims: [{ name: 'CPU a call, against the SDK alone', of: against, atMost: 1.2 }]
})
