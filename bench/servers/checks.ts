import { createHmac, randomUUID, timingSafeEqual } from 'node:crypto'
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { Ajv2020 } from 'ajv/dist/2020.js'
import * as argon2 from 'argon2'
import { jwtVerify, SignJWT } from 'jose'
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
export const credentialsBody = {
  type: 'object',
  required: ['email', 'password'],
  properties: { email: { type: 'string' }, password: { type: 'string' }, name: { type: 'string' } }
}
export const noteBody = {
  type: 'object',
  required: ['id'],
  additionalProperties: false,
  properties: { id: { type: 'string', minLength: 1 } }
}

const execute = answers['/agent/execute']!
const note = answers['/bench/note']!

/**
 * What a server written by hand does for the requests of `http-floor` and `auth`, shared by the peers so that they differ
 * in the framework alone: schemas compiled once, the token checked at each request, one LMDB read.
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
  const hashes = new Map<string, string>()
  const token = (subject: string, seconds: number) =>
    new SignJWT({ email: subject })
      .setProtectedHeader({ alg: 'HS256' })
      .setSubject(subject)
      .setJti(randomUUID())
      .setIssuedAt()
      .setExpirationTime(Math.floor(Date.now() / 1000) + seconds)
      .sign(secret)
  /** The session is on disk when this resolves. */
  const openSession = async (email: string) => {
    const [accessToken, refreshToken] = [await token(email, 900), await token(email, 604_800)]
    await notes.put(['sessions', refreshToken], { email })
    await notes.flushed
    return { access_token: accessToken, refresh_token: refreshToken, token_type: 'Bearer', expires_in: 900 }
  }
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
    async register({ email, password }: Body): Promise<unknown> {
      const options = { type: argon2.argon2id, memoryCost: 19_456, timeCost: 2, parallelism: 1 } as const
      hashes.set(email as string, await argon2.hash(password as string, options))
      return openSession(email as string)
    },
    /** `undefined` for a wrong password, or an account that is not there. */
    async login({ email, password }: Body): Promise<unknown> {
      const hash = hashes.get(email as string)
      if (hash === undefined || !(await argon2.verify(hash, password as string))) return undefined
      return openSession(email as string)
    },
    readNote: (body: Body): unknown => notes.get([body['id'] as string])
  }
}
