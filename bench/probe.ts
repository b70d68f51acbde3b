/**
 * Preloaded into every process that is measured (`node --import`): answers, over the channel to the bench, what the
 * process has used so far by its own accounting, and what it keeps. The program under measurement knows nothing of it.
 */
import { existsSync, openSync, readdirSync, readSync } from 'node:fs'
import v8 from 'node:v8'
import type { Kept, Usage, WorstTurn } from './process.ts'

process.on('message', (message) => {
  if (message === 'usage') process.send?.(usage())
  // A failure ends the process, and with it the wait of the bench.
  if (message === 'kept') void kept().then((answer) => process.send?.(answer))
})
process.channel?.unref()
const turns = process.env['HEARTWOOD_BENCH_TURNS'] === '1' ? watchTurns() : undefined

function usage(): Usage {
  ;(globalThis as { gc?: () => void }).gc?.() // only with --expose-gc, which a bench of memory asks for
  const { user, system } = process.cpuUsage()
  const { rss, heapUsed } = process.memoryUsage()
  return { cpuUs: user + system, rssBytes: rss, heapBytes: heapUsed, ...(turns && { turns: turns() }) }
}

/** Between two ticks of a timer of 1 ms lies at least each turn that takes longer. @returns what tells the worst so far */
function watchTurns(): () => WorstTurn {
  const path = `/proc/self/task/${process.pid}/schedstat`
  const file = existsSync(path) ? openSync(path, 'r') : undefined
  const bytes = Buffer.alloc(64)
  // Nanoseconds of this thread on a processor, up to the last time the system looked.
  const usedMs = (): number =>
    file === undefined ? 0 : Number(bytes.toString('latin1', 0, readSync(file, bytes, 0, 64, 0)).split(' ')[0]) / 1e6
  let worst: WorstTurn = { wallMs: 0, cpuMs: 0 }
  let tickedAt = performance.now()
  let usedBefore = usedMs()
  setInterval(() => {
    const now = performance.now()
    const used = usedMs()
    worst = { wallMs: Math.max(worst.wallMs, now - tickedAt), cpuMs: Math.max(worst.cpuMs, used - usedBefore) }
    tickedAt = now
    usedBefore = used
  }, 1).unref()
  return () => {
    const told = worst
    worst = { wallMs: 0, cpuMs: 0 }
    return told
  }
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
