import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import type { Logger, Plugin } from '../../kernel/index.ts'
import { Kernel } from '../../kernel/kernel.ts'

/** A plugin and its config; the id where it is not the plugin's name. */
export type HouseEntry = readonly [plugin: Plugin, config: object, id?: string]

/**
 * Runs the product with these entries on a folder of its own, prints where it listens, and ends at SIGTERM. The store
 * gets its folder here.
 */
export async function serveHouse(
  entries: readonly HouseEntry[],
  options: { readonly log?: Logger } = {}
): Promise<void> {
  const folder = await mkdtemp(join(tmpdir(), 'heartwood-bench-'))
  const kernel = new Kernel(options)
  const begun = entries.map(([plugin, config, id = plugin.name]) =>
    kernel.begin({ id, plugin, config: plugin.name === 'store' ? { path: folder, ...config } : config })
  )
  await Promise.all(begun)
  await kernel.settled()
  for (const { entry, state, error } of kernel.fibers()) {
    if (state !== 'Active') throw new Error(`${entry} is ${state}: ${error}`)
  }
  process.once('SIGTERM', () => {
    void kernel
      .stop()
      .then(() => rm(folder, { recursive: true }))
      .then(() => process.exit(0))
  })
  console.log(`http://127.0.0.1:${kernel.service('http')?.address?.port}`)
}
