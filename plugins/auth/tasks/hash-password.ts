import { hash } from 'argon2'
import type { TaskResult } from '../../workers/types.ts'
import { argon2id } from '../parameters.ts'

/** Password → PHC string. */
export default async function hashPassword(password: string): Promise<TaskResult<string>> {
  return { ok: true, value: await hash(password, argon2id) }
}
