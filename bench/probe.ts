/**
 * Preloaded into every process that is measured (`node --import`): answers, over the channel to the bench, what the
 * process has used so far by its own accounting. The program under measurement knows nothing of it.
 */
import type { Usage } from './process.ts'

process.on('message', (message) => {
  if (message !== 'usage') return
  ;(globalThis as { gc?: () => void }).gc?.() // only with --expose-gc, which a bench of memory asks for
  const { user, system } = process.cpuUsage()
  const { rss, heapUsed } = process.memoryUsage()
  const usage: Usage = { cpuUs: user + system, rssBytes: rss, heapBytes: heapUsed }
  process.send?.(usage)
})
process.channel?.unref()
