import { randomUUID } from 'node:crypto'
import type { Session } from 'node:inspector'
import type { Excess } from './thread.ts'

/** Looks into threads from outside while they are at a task, also where they never come back from it. */
export interface Watch {
  /**
   * @param tell is told what the thread holds that is at this task, when it is more than it may
   * @returns how the thread names the task
   */
  begin(tell: (bytes: number) => void): string
  end(id: string): void
  close(): void
}

interface WorkerEvent {
  readonly params: { readonly sessionId: string; readonly message: string }
}

/** How often threads are asked, while a task runs. */
const periodMs = 50

const question = JSON.stringify({
  id: 1,
  method: 'Runtime.evaluate',
  params: { expression: 'globalThis.heartwoodThread?.excess()', returnByValue: true }
})

/**
 * By the inspector of this process, without a port: nothing else interrupts a thread that is busy. Opened for the first
 * task that runs for longer than a period.
 */
export function createWatch(open: () => Session): Watch {
  const tasks = new Map<string, (bytes: number) => void>()
  /** Threads, and whether they have been asked and have not answered: one that waits is not asked twice. */
  const threads = new Map<string, boolean>()
  let session: Session | undefined
  let asking: NodeJS.Timeout | undefined

  function start(): Session {
    const started = open()
    started.connect()
    started.on('NodeWorker.attachedToWorker', ({ params }: WorkerEvent) => threads.set(params.sessionId, false))
    started.on('NodeWorker.detachedFromWorker', ({ params }: WorkerEvent) => threads.delete(params.sessionId))
    started.on('NodeWorker.receivedMessageFromWorker', ({ params }: WorkerEvent) => {
      if (threads.has(params.sessionId)) threads.set(params.sessionId, false)
      const excess = excessIn(params.message)
      if (excess !== undefined) tasks.get(excess.id)?.(excess.bytes)
    })
    started.post('NodeWorker.enable', { waitForDebuggerOnStart: false })
    return started
  }

  function ask(): void {
    session ??= start()
    for (const [sessionId, isAsked] of threads) {
      if (isAsked) continue
      threads.set(sessionId, true)
      session.post('NodeWorker.sendMessageToWorker', { sessionId, message: question })
    }
  }

  return {
    begin(tell) {
      // Unlike that of any other watch, whose threads are asked as well.
      const id = randomUUID()
      tasks.set(id, tell)
      asking ??= setInterval(ask, periodMs).unref()
      return id
    },
    end(id) {
      tasks.delete(id)
      if (tasks.size > 0) return
      clearInterval(asking)
      asking = undefined
    },
    close() {
      clearInterval(asking)
      session?.disconnect()
      session = undefined
      threads.clear()
    }
  }
}

function excessIn(message: string): Excess | undefined {
  const { result } = JSON.parse(message) as { result?: { result?: { value?: Excess } } }
  return result?.result?.value
}
