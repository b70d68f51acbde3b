import { CodedError } from '../../kernel/index.ts'
import type { Workers } from './types.ts'

/** @throws CodedError `WORKER_DOWN` when tasks are there and no thread that could do them */
export function assertUp(load: ReturnType<Workers['load']>): void {
  for (const [pool, { waiting, running, threads }] of Object.entries(load)) {
    if ((waiting > 0 && running === 0) || (running > 0 && threads === 0)) {
      throw new CodedError('WORKER_DOWN', `pool '${pool}' has ${waiting + running} tasks and nobody who does them`)
    }
  }
}
