import { type Client, httpRequest, openClient } from './load.ts'
import { startServer } from './process.ts'
import { defineBench, summarise } from './runner.ts'

/** Of each kind in a round. */
const tries = 200
const known = 'known@bench.test'

async function timed(client: Client, email: string): Promise<number> {
  const request = httpRequest('POST', '/api/auth/login', { body: { email, password: 'a wrong password' } })
  const startedAt = performance.now()
  const { status, body } = await client.send(request)
  if (status !== 401) throw new Error(`answered ${status}: ${body}`)
  return performance.now() - startedAt
}

export default defineBench({
  name: 'login-time',
  question: 'Does the time of a refused login tell whether there is such an account?',
  method: `one login after the other, in turn with an unknown address and with a wrong password, ${tries} of each a round, throttle off`,
  figures: { unknownMs: 'unknown address, ms', wrongMs: 'wrong password, ms' },
  sides: [
    {
      name: 'heartwood',
      async setup() {
        const server = await startServer(new URL('./servers/login.js', import.meta.url), {
          args: ['unthrottled'],
          cores: 'all'
        })
        const client = await openClient(server.port)
        const account = { email: known, password: 'a password of the bench', name: 'K' }
        const { status } = await client.send(httpRequest('POST', '/api/auth/register', { body: account }))
        if (status !== 200) throw new Error(`register answered ${status}`)
        return {
          async run(round) {
            const unknownMs: number[] = []
            const wrongMs: number[] = []
            for (let at = 0; at < (round < 0 ? 10 : tries); at++) {
              unknownMs.push(await timed(client, `nobody-${round}-${at}@bench.test`))
              wrongMs.push(await timed(client, known))
            }
            return { unknownMs: summarise(unknownMs).median, wrongMs: summarise(wrongMs).median }
          },
          async teardown() {
            client.close()
            await server.stop()
          }
        }
      }
    }
  ],
  claims: [
    {
      name: 'difference of the medians, share',
      of: (read) => Math.abs(read('heartwood', 'unknownMs') / read('heartwood', 'wrongMs') - 1),
      atMost: 0.1
    }
  ]
})
