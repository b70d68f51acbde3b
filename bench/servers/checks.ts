import { createHmac, timingSafeEqual } from 'node:crypto'
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { Ajv2020 } from 'ajv/dist/2020.js'
import { jwtVerify } from 'jose'
import { open } from 'lmdb'
import { answers } from './answers.ts'
import { jwtSecret } from './login-secret.ts'

type Body = Record<string, unknown>

export const executeBody = {
  type: 'object',
  required: ['tool'],
  additionalProperties: false,
  properties: { tool: { type: 'string' }, arguments: { type: 'object' }, request_id: { type: 'string' } }
}
export const toolInput = { type: 'object', additionalProperties: false, properties: {} }
export const noteBody = {
  type: 'object',
  required: ['id'],
  additionalProperties: false,
  properties: { id: { type: 'string', minLength: 1 } }
}

const execute = answers['/agent/execute']!
const note = answers['/bench/note']!

/**
 * What a server written by hand does for the two requests of `http-floor`, shared by the peers so that they differ in
 * the framework alone: schemas compiled once, the token checked at each request, one LMDB read.
 * @param verifier `hmac`: the least that will do, with node:crypto; `jose`: the library that Heartwood uses
 */
export function createChecks(verifier: 'hmac' | 'jose') {
  const ajv = new Ajv2020()
  const isExecuteBody = ajv.compile(executeBody)
  const isToolInput = ajv.compile(toolInput)
  const isNoteBody = ajv.compile(noteBody)
  const folder = mkdtempSync(join(tmpdir(), 'heartwood-bench-'))
  process.once('exit', () => rmSync(folder, { recursive: true }))
  const notes = open({ path: folder }).openDB<Body, string[]>({ name: 'notes' })
  const stored = notes.put(['n1'], note({ id: 'n1' }) as Body)
  const secret = Buffer.from(jwtSecret)

  const hasSignature = (token: string): boolean => {
    const [head, claims, signature] = token.split('.') as [string, string, string]
    const wanted = createHmac('sha256', secret).update(`${head}.${claims}`).digest()
    const given = Buffer.from(signature, 'base64url')
    if (given.length !== wanted.length || !timingSafeEqual(given, wanted)) return false
    const { exp } = JSON.parse(Buffer.from(claims, 'base64url').toString()) as { exp: number }
    return exp > Date.now() / 1000
  }
  const verify = {
    hmac: async (token: string) => hasSignature(token),
    jose: async (token: string) => (await jwtVerify(token, secret, { algorithms: ['HS256'] })).payload.exp !== undefined
  }[verifier]
  return {
    ready: stored,
    isExecuteBody: isExecuteBody as (body: unknown) => body is Body,
    isNoteBody: isNoteBody as (body: unknown) => body is Body,
    isUser: async (authorization: string | undefined): Promise<boolean> =>
      authorization !== undefined && authorization.startsWith('Bearer ') && verify(authorization.slice(7)),
    /** The answer of the tool that does nothing; `undefined` when its arguments are not valid. */
    execute: async (body: Body): Promise<unknown> => (isToolInput(body['arguments'] ?? {}) ? execute(body) : undefined),
    readNote: (body: Body): unknown => notes.get([body['id'] as string])
  }
}
