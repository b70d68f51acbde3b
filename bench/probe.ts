/**
 * Preloaded into every process that is measured (`node --import`): answers, over the channel to the bench, what the
 * process has used so far by its own accounting, and what it keeps. The program under measurement knows nothing of it.
 */
import { readdirSync } from 'node:fs'
import v8 from 'node:v8'
import type { Kept, Usage } from './process.ts'

process.on('message', (message) => {
  if (message === 'usage') process.send?.(usage())
  // A failure ends the process, and with it the wait of the bench.
  if (message === 'kept') void kept().then((answer) => process.send?.(answer))
})
process.channel?.unref()

function usage(): Usage {
  ;(globalThis as { gc?: () => void }).gc?.() // only with --expose-gc, which a bench of memory asks for
  const { user, system } = process.cpuUsage()
  const { rss, heapUsed } = process.memoryUsage()
  return { cpuUs: user + system, rssBytes: rss, heapBytes: heapUsed }
}

async function kept(): Promise<Kept> {
  const { Fiber } = await import('../kernel/fiber.ts')
  const { Generation } = await import('../kernel/generation.ts')
  const { Listener } = await import('../kernel/events.ts')
  const timer = setTimeout(() => {}, 0)
  clearTimeout(timer)
  // Garbage is collected before the count.
  const alive = (constructor: unknown) => v8.queryObjects(constructor as () => void, { format: 'count' })
  return {
    fibers: alive(Fiber),
    generations: alive(Generation),
    listeners: alive(Listener) + process.eventNames().reduce((sum, name) => sum + process.listenerCount(name), 0),
    timers: alive(timer.constructor) - 1,
    handles: process.getActiveResourcesInfo().filter((name) => name !== 'Timeout' && name !== 'Immediate').length,
    files: readdirSync('/dev/fd').length,
    heapBytes: usage().heapBytes
  }
}
