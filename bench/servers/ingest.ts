/**
 * The product with documents and chat, for `ingest`. With the argument `in-process` what its threads do is done in the
 * process itself.
 */
import agent from '../../plugins/agent/index.ts'
import auth from '../../plugins/auth/index.ts'
import chat from '../../plugins/chat/index.ts'
import embeddings from '../../plugins/embeddings/index.ts'
import http from '../../plugins/http/index.ts'
import localModel from '../../plugins/local-model/index.ts'
import rag from '../../plugins/rag/index.ts'
import store from '../../plugins/store/index.ts'
import tools from '../../plugins/tools/index.ts'
import workers from '../../plugins/workers/index.ts'
import { serveHouse } from './house.ts'
import { inProcess } from './in-process.ts'
import { jwtSecret } from './login-secret.ts'

await serveHouse([
  [store, {}],
  [http, { port: 0 }],
  [process.argv.includes('in-process') ? inProcess : workers, {}],
  [auth, { jwt_secret: jwtSecret }],
  [tools, {}],
  [localModel, {}, 'models:local'],
  [chat, {}],
  [agent, { model: 'local', description: 'Writes.', system_prompt: 'You write.' }, 'agents:writer'],
  [embeddings, { threads: 1, cache_entries: 0 }],
  [rag, {}]
])
