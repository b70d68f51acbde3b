/**
 * One side of the bench `reload`, in a process of its own: `reload-side.js heartwood|esm <folder>`. Answers each number it is sent
 * with what so many reloads have come to. Each time the source of one of the modules is another.
 */
import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { pathToFileURL } from 'node:url'
import { build } from 'esbuild'
import { createCodeLoader } from '../kernel/code.ts'
import { Kernel } from '../kernel/kernel.ts'
import type { ServiceName } from '../kernel/index.ts'

export interface Reloaded {
  /** Used heap after garbage collection. */
  readonly heapBytes: number
  readonly cpuMs: number
}

const modules = 50
const functionsPerModule = 20
const [way, folder = ''] = process.argv.slice(2)
const gc = (globalThis as { gc?: () => void }).gc

/** Functions of some 800 characters, as plugins have them. */
function moduleText(index: number): string {
  const step = (at: number) => `  if (values.length > ${at}) sum = (sum * 31 + values[${at}] + weight) % 1000003`
  const body = Array.from({ length: 9 }, (_, at) => step(at)).join('\n')
  const names = Array.from({ length: functionsPerModule }, (_, at) => `work${index}_${at}`)
  const functions = names.map(
    (name, at) => `function ${name}(values, weight) {\n  let sum = ${at}\n${body}\n  return sum\n}`
  )
  return `${functions.join('\n')}\nexport const m${index} = [${names.join(', ')}]\n`
}

const names = Array.from({ length: modules }, (_, index) => `m${index}`)
const imports = names.map((name) => `import { ${name} } from './${name}.js'`).join('\n')
const all = `[${names.join(', ')}]`
for (const [index, name] of names.entries()) writeFileSync(join(folder, `${name}.js`), moduleText(index))

const service = 'version' as ServiceName
let version = 0

const ways = {
  /** By the loader, and through the kernel: the consumer of its service sees the new code. */
  async heartwood() {
    const loader = createCodeLoader({ builtins: folder, base: folder })
    const kernel = new Kernel()
    const load = async () => {
      version += 1
      writeFileSync(
        join(folder, 'plugin.js'),
        `import { definePlugin } from 'heartwood'
${imports}
const version = { now: () => ${version}, all: ${all} }
export default definePlugin({ name: 'plugin', provides: ['version'], apply: (ctx) => ctx.provide('version', version) })`
      )
      return { id: 'plugin', plugin: (await loader.load('./plugin.js', { fresh: true })).plugin, config: {} }
    }
    await kernel.begin(await load())
    return async () => {
      await kernel.retarget(await load())
      const served = (kernel.service(service) as unknown as { now(): number }).now()
      if (served !== version) throw new Error(`version ${served} serves after ${version} was loaded`)
    }
  },

  /** One bundle, imported again under another address: the cheapest that ES modules have. */
  async esm() {
    const file = join(folder, 'bundle.mjs')
    return async () => {
      version += 1
      writeFileSync(
        join(folder, 'plugin.js'),
        `${imports}\nexport const version = ${version}\nexport const all = ${all}`
      )
      await build({ entryPoints: [join(folder, 'plugin.js')], bundle: true, format: 'esm', outfile: file })
      const loaded = (await import(`${pathToFileURL(file).href}?v=${version}`)) as { version: number }
      if (loaded.version !== version) throw new Error(`version ${loaded.version} came after ${version} was written`)
    }
  }
}

const reload = await ways[way as keyof typeof ways]()
process.on('message', (count) => void answer(Number(count)))
process.channel?.ref()
process.send?.('ready')

async function answer(count: number): Promise<void> {
  const before = process.cpuUsage()
  for (let at = 0; at < count; at++) await reload()
  const { user, system } = process.cpuUsage(before)
  for (let round = 0; round < 4; round++) gc?.()
  const reloaded: Reloaded = { heapBytes: process.memoryUsage().heapUsed, cpuMs: (user + system) / 1000 / count }
  process.send?.(reloaded)
}
