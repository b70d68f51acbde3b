/** Servers that reload their configuration while clients of the same kinds as those of `swap` use them. */
import { type ChildProcess, spawn, spawnSync } from 'node:child_process'
import { once } from 'node:events'
import { mkdtemp, rm, writeFile } from 'node:fs/promises'
import { createServer } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { type Client, httpRequest, openClient, sendOnce } from './load.ts'
import { onServerCore } from './process.ts'
import type { Figures, Side } from './runner.ts'

export interface PeerLoad {
  readonly reloads: number
  readonly requests: number
  readonly keepAlive: number
  readonly fresh: number
}

interface Peer {
  readonly name: string
  /** A program on the path. */
  readonly command: string
  readonly args: (file: string) => readonly string[]
  /** The file that makes it answer with this mark. */
  readonly config: (mark: number, place: Place) => string
  readonly reload: (child: ChildProcess, config: string, place: Place) => unknown
}

interface Place {
  readonly folder: string
  readonly port: number
  readonly adminPort: number
}

const answerOf = (mark: number) => `{"mark":${mark}}`

const peers: readonly Peer[] = [
  {
    name: 'nginx',
    command: 'nginx',
    args: (file) => ['-c', file, '-g', 'daemon off;'],
    config: (mark, { folder, port }) => `
      pid ${folder}/pid; error_log ${folder}/error.log; worker_processes 1;
      events { worker_connections 4096; }
      http {
        access_log off; client_body_temp_path ${folder}/body; proxy_temp_path ${folder}/proxy;
        fastcgi_temp_path ${folder}/fastcgi; uwsgi_temp_path ${folder}/uwsgi; scgi_temp_path ${folder}/scgi;
        server {
          listen 127.0.0.1:${port};
          location / { default_type application/json; return 200 '${answerOf(mark)}'; }
        }
      }`,
    reload: (child) => child.kill('SIGHUP')
  },
  {
    name: 'HAProxy',
    command: 'haproxy',
    args: (file) => ['-W', '-f', file],
    config: (mark, { port }) => `
global
  nbthread 1
  maxconn 4096
defaults
  mode http
  timeout client 30s
  timeout connect 5s
  timeout server 30s
frontend bench
  bind 127.0.0.1:${port}
  http-request return status 200 content-type application/json string '${answerOf(mark)}'
`,
    reload: (child) => child.kill('SIGUSR2')
  },
  {
    name: 'Caddy',
    command: 'caddy',
    args: (file) => ['run', '--config', file],
    config: (mark, { port, adminPort }) =>
      JSON.stringify({
        admin: { listen: `127.0.0.1:${adminPort}`, origins: ['127.0.0.1'], config: { persist: false } },
        logging: { logs: { default: { level: 'ERROR' } } },
        apps: {
          http: {
            servers: {
              bench: {
                listen: [`127.0.0.1:${port}`],
                automatic_https: { disable: true },
                routes: [{ handle: [{ handler: 'static_response', body: answerOf(mark) }] }]
              }
            }
          }
        }
      }),
    reload: async (_child, config, { adminPort }) => {
      const { status, body } = await sendOnce(adminPort, httpRequest('POST', '/load', { body: JSON.parse(config) }))
      if (status !== 200) throw new Error(`Caddy answered its reload ${status}: ${body}`)
    }
  }
]

export function swapPeers(load: PeerLoad): readonly Side[] {
  return peers.map((peer) => ({
    name: `${peer.name}, reloading`,
    missing: () => (isInstalled(peer.command) ? undefined : 'not installed'),
    async setup() {
      const folder = await mkdtemp(join(tmpdir(), 'heartwood-bench-'))
      const place: Place = { folder, port: await freePort(), adminPort: await freePort() }
      const file = join(folder, 'config')
      let mark = 0
      await writeFile(file, peer.config(mark, place))
      const [command, ...args] = onServerCore([peer.command, ...peer.args(file)])
      const child = spawn(command!, args, { stdio: 'ignore', env: { ...process.env, HOME: folder } })
      const gone = once(child, 'exit')
      await listening(place.port)
      const reload = async () => {
        mark += 1
        const config = peer.config(mark, place)
        await writeFile(file, config)
        await peer.reload(child, config, place)
      }
      return {
        run: () => measure(place.port, load, reload),
        async teardown() {
          child.kill('SIGTERM')
          await gone
          await rm(folder, { recursive: true })
        }
      }
    }
  }))
}

async function measure(port: number, load: PeerLoad, reload: () => Promise<void>): Promise<Figures> {
  const latenciesMs: number[] = []
  const broken = { keepAlive: 0, fresh: 0 }
  let over = false
  const request = httpRequest('GET', '/')
  async function ask(kind: keyof typeof broken): Promise<void> {
    let client: Client | undefined
    while (!over) {
      const startedAt = performance.now()
      let isLast = kind === 'fresh'
      try {
        client ??= await openClient(port)
        const { status, headers } = await client.send(request)
        latenciesMs.push(performance.now() - startedAt)
        if (status !== 200) broken[kind] += 1
        isLast ||= headers['connection']?.toLowerCase() === 'close'
      } catch {
        broken[kind] += 1
        isLast = true
      }
      if (isLast) {
        client?.close()
        client = undefined
      }
    }
    client?.close()
  }
  const clients = (['keepAlive', 'fresh'] as const).flatMap((kind) =>
    Array.from({ length: load[kind] }, () => ask(kind))
  )
  for (let reloads = 0; reloads < load.reloads || latenciesMs.length < load.requests; reloads++) {
    await reload()
    do await sleep(50)
    while (latenciesMs.length < ((reloads + 1) / load.reloads) * load.requests)
  }
  over = true
  await Promise.all(clients)
  const sorted = Float64Array.from(latenciesMs).sort()
  const at = (share: number) => sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * share))]!
  return {
    requests: sorted.length,
    swaps: load.reloads,
    brokenKeepAlive: broken.keepAlive,
    brokenFresh: broken.fresh,
    p50Ms: at(0.5),
    p99Ms: at(0.99),
    maxMs: at(1)
  }
}

function isInstalled(command: string): boolean {
  return spawnSync('which', [command]).status === 0
}

async function freePort(): Promise<number> {
  const server = createServer().listen(0, '127.0.0.1')
  await once(server, 'listening')
  const { port } = server.address() as { port: number }
  server.close()
  await once(server, 'close')
  return port
}

async function listening(port: number): Promise<void> {
  for (let tries = 0; ; tries++) {
    try {
      const client = await openClient(port)
      return client.close()
    } catch (error) {
      if (tries > 100) throw error
      await sleep(50)
    }
  }
}
