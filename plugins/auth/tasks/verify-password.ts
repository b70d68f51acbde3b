import { hash, needsRehash, verify } from 'argon2'
import type { TaskResult } from '../../workers/types.ts'
import { argon2id } from '../parameters.ts'

export interface Attempt {
  readonly password: string
  /** The PHC string to hold it against. */
  readonly phc: string
}

export interface Verdict {
  readonly matches: boolean
  /** A new PHC string where the password matches one that was made with other parameters. */
  readonly phc?: string
}

/** Holds a password against its PHC string. */
export default async function verifyPassword({ password, phc }: Attempt): Promise<TaskResult<Verdict>> {
  const matches = await verify(phc, password)
  if (!matches || !needsRehash(phc, argon2id)) return { ok: true, value: { matches } }
  return { ok: true, value: { matches, phc: await hash(password, argon2id) } }
}
