import { spawnSync } from 'node:child_process'
import { existsSync, symlinkSync } from 'node:fs'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'

/** The folder of the sources, seen from the compiled file in `<root>/<out>/bench/`. */
export const benchFolder = fileURLToPath(new URL('../../bench/', import.meta.url))

/** The folder of the project. */
export const projectFolder = fileURLToPath(new URL('../../', import.meta.url))

/**
 * Installs what `bench/package.json` names, once, and lets compiled benches find it.
 * @throws Error when npm fails
 */
export function installPeers(): void {
  if (!existsSync(join(benchFolder, 'node_modules', '.package-lock.json'))) {
    console.log('installing the peers of bench/package.json')
    const npm = spawnSync('npm', ['ci', '--no-audit', '--no-fund', '--prefix', benchFolder], { stdio: 'inherit' })
    if (npm.status !== 0) throw new Error('npm could not install the peers: see above')
  }
  const link = fileURLToPath(new URL('./node_modules', import.meta.url))
  if (!existsSync(link)) symlinkSync(join(benchFolder, 'node_modules'), link, 'junction')
}

/** A peer's module. Untyped: the project compiles without the peers. */
// biome-ignore lint/suspicious/noExplicitAny: the types are in packages that are installed only to measure
export function loadPeer(name: string): Promise<any> {
  return import(name)
}
