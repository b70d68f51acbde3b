import { against, figures, floor, method, ours, type Servers, servers, sidesOf } from './floor-sides.ts'
import { httpRequest, sendOnce } from './load.ts'
import { type Bench, defineBench } from './runner.ts'
import { makeToken } from './token.ts'

/** A token is verified as Heartwood does it, but each time. */
const withJose = 'fastify with jose'
const guarded: Servers = { ...servers, [withJose]: ['peer', 'fastify', 'jose'] }

const loginServers: Servers = { [ours]: ['login'], [withJose]: ['peer', 'fastify', 'jose'] }
const account = { email: 'bench@bench.test', password: 'a password of the bench', name: 'B' }

async function register(port: number): Promise<void> {
  const { status, body } = await sendOnce(port, httpRequest('POST', '/api/auth/register', { body: account }))
  if (status !== 200) throw new Error(`registration was answered ${status}: ${body}`)
}

const benches: readonly Bench[] = [
  defineBench({
    name: 'auth-guarded',
    question: 'What does a route cost that checks a token and a body and reads the store once?',
    method: `POST with a JWT, the peers check its HMAC (or, with jose, what Heartwood checks) at each request and read LMDB; ${method}`,
    figures,
    sides: sidesOf(guarded, {
      request: httpRequest('POST', '/bench/note', {
        headers: { Authorization: `Bearer ${makeToken('bench')}` },
        body: { id: 'n1' }
      }),
      isRight: (body) => body['id'] === 'n1'
    }),
    claims: [
      { name: 'H2 CPU a request, against the floor', of: against(floor), atMost: 1.5 },
      { name: 'H2 CPU a request, against fastify with jose', of: against(withJose), atMost: 0.3 },
      { name: 'CPU a request, against fastify with the HMAC alone', of: against('fastify') }
    ]
  }),
  defineBench({
    name: 'auth-login',
    question: 'What does a login cost, beside argon2 and two tokens from a server written by hand?',
    method:
      'POST /api/auth/login with the right password, one account, 4 keep-alive connections, one request in flight on ' +
      'each, 1 s a round; the peer verifies the same hash (argon2id, 19 MiB, 2 passes) in its own process, signs two ' +
      'tokens with jose and has the session on disk before it answers. Each server may use every core. Nearly all of ' +
      'it is argon2',
    figures,
    sides: sidesOf(loginServers, {
      request: httpRequest('POST', '/api/auth/login', {
        body: { email: account.email, password: account.password }
      }),
      isRight: (body) => typeof body['access_token'] === 'string',
      connections: 4,
      cores: 'all',
      prepare: register
    }),
    claims: [
      { name: 'CPU a login, against fastify with jose and argon2', of: against(withJose), atMost: 1.1 },
      {
        name: 'logins a second, against the same',
        of: (read) => read(ours, 'perSecond') / read(withJose, 'perSecond'),
        atLeast: 0.8
      }
    ]
  })
]

export default benches
