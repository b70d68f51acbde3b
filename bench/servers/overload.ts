/** The product with accounts and retrieval, for `overload`. */
import auth from '../../plugins/auth/index.ts'
import http from '../../plugins/http/index.ts'
import rag from '../../plugins/rag/index.ts'
import store from '../../plugins/store/index.ts'
import workers from '../../plugins/workers/index.ts'
import { serveHouse } from './house.ts'
import { jwtSecret } from './login-secret.ts'

await serveHouse([
  [store, {}],
  [workers, {}],
  [http, { port: 0 }],
  [auth, { jwt_secret: jwtSecret }],
  [rag, {}]
])
