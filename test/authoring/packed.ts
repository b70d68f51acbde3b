import { execFile } from 'node:child_process'
import { chmodSync, mkdirSync, renameSync, symlinkSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { promisify } from 'node:util'

const run = promisify(execFile)
const root = fileURLToPath(new URL('../../../', import.meta.url))

/**
 * Packs the project as it would be published and puts the package into `node_modules` of a folder, with its command.
 * What it depends on is found where the project has it, so the folder must be inside the project.
 * @returns paths of the files in the package
 */
export async function installPacked(folder: string): Promise<readonly string[]> {
  const modules = join(folder, 'node_modules')
  mkdirSync(join(modules, '.bin'), { recursive: true })
  mkdirSync(join(modules, '@types'))
  const { stdout } = await run('npm', ['pack', '--ignore-scripts', '--json', '--pack-destination', folder], {
    cwd: root,
    maxBuffer: 64 * 1024 * 1024
  })
  const [packed] = JSON.parse(stdout) as [{ filename: string; files: readonly { path: string }[] }]
  await run('tar', ['-xzf', join(folder, packed.filename), '-C', modules])
  renameSync(join(modules, 'package'), join(modules, 'heartwood'))
  const command = join(modules, 'heartwood/dist/main.js')
  chmodSync(command, 0o755)
  symlinkSync(command, join(modules, '.bin/heartwood'))
  // A tool that an author's own project has.
  symlinkSync(join(root, 'node_modules/@types/node'), join(modules, '@types/node'))
  writeFileSync(join(folder, 'package.json'), '{ "private": true, "type": "module" }')
  return packed.files.map(({ path }) => path)
}
