/** The product with accounts and retrieval, for `overload`. */
import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import type { Plugin } from '../../kernel/index.ts'
import { Kernel } from '../../kernel/kernel.ts'
import auth from '../../plugins/auth/index.ts'
import http from '../../plugins/http/index.ts'
import rag from '../../plugins/rag/index.ts'
import store from '../../plugins/store/index.ts'
import workers from '../../plugins/workers/index.ts'
import { jwtSecret } from './login-secret.ts'

const folder = await mkdtemp(join(tmpdir(), 'heartwood-bench-'))
const kernel = new Kernel()
const entries: readonly (readonly [Plugin, object])[] = [
  [store, { path: folder }],
  [workers, {}],
  [http, { port: 0 }],
  [auth, { jwt_secret: jwtSecret }],
  [rag, {}]
]
await Promise.all(entries.map(([plugin, config]) => kernel.begin({ id: plugin.name, plugin, config })))
await kernel.settled()
for (const { entry, state, error } of kernel.fibers()) {
  if (state !== 'Active') throw new Error(`${entry} is ${state}: ${error}`)
}
process.once('SIGTERM', () => {
  void kernel
    .stop()
    .then(() => rm(folder, { recursive: true }))
    .then(() => process.exit(0))
})
console.log(`http://127.0.0.1:${kernel.service('http')?.address?.port}`)
