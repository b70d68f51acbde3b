import t from 'tap'
import http from '../../plugins/http/index.ts'
import { loadUws } from '../../plugins/http/uws.ts'
import { RawClient } from '../fixtures/raw-client.ts'
import { startHouse } from '../harness.ts'

/**
 * The times are built into uWebSockets.js, and node:http is set to match: these connections wait for them side by side,
 * and what is asked is only whether they end.
 */
const transports = await loadUws().then(
  () => ['uws', 'node'],
  () => ['node']
)
const dripPeriodMs = 500

t.test('row 122: a connection that says too little for too long is closed', async (t) => {
  const cases = transports.flatMap((transport) => [
    [transport, 'a head that drips', 'GET /health HTTP/1.1\r\nHost: x\r\nX-Slow: ', 'a'],
    [transport, 'half a head', 'GET /health HTTP/1.1\r\nHos', ''],
    [transport, 'nothing at all', '', ''],
    [transport, 'idle after a request', 'GET /health HTTP/1.1\r\nHost: x\r\n\r\n', '']
  ])
  const ports = new Map<string, number>()
  for (const transport of transports) {
    const { services } = await startHouse(t, [{ plugin: http, config: { port: 0, transport } }], { store: false })
    ports.set(transport, services('http').address?.port as number)
  }
  await Promise.all(
    cases.map(async ([transport = '', what, begin = '', drop]) => {
      const client = await RawClient.connect(ports.get(transport) as number)
      if (begin !== '') client.write(begin)
      const drip = drop === '' ? undefined : setInterval(() => client.write(drop as string), dripPeriodMs)
      await client.closed()
      clearInterval(drip)
      t.ok(client.isClosed, `${transport}: ${what}`)
      if (what === 'idle after a request') t.match(client.text, /^HTTP\/1\.1 200 OK\r\n/)
      else t.notMatch(client.text, / 200 /)
    })
  )
})
