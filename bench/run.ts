import { join } from 'node:path'
import { benchFolder, installPeers } from './peers.ts'
import { pinGenerator } from './process.ts'
import { type Bench, renderTable, runBench, writeResult } from './runner.ts'

/** Files of this folder that default-export a bench, or several. */
const files = [
  'kernel',
  'http-floor',
  'durable',
  'mcp',
  'carmy',
  'auth',
  'metered',
  'login-storm',
  'login-time',
  'overload',
  'crash',
  'startup',
  'swap',
  'reload',
  'retrieval',
  'vectors',
  'ingest'
]

const asked = process.argv.slice(2)
const unknown = asked.filter((name) => !files.includes(name))
if (unknown.length > 0) {
  console.error(`no bench named ${unknown.join(', ')}; there are: ${files.join(', ')}`)
  process.exit(1)
}
installPeers()
pinGenerator()
const missed: string[] = []
/** A bench may stand in several files. */
const measured = new Set<Bench>()
for (const file of asked.length > 0 ? asked : files) {
  const module = (await import(`./${file}.js`)) as { default: Bench | readonly Bench[] }
  for (const bench of [module.default].flat() as readonly Bench[]) {
    if (measured.has(bench)) continue
    measured.add(bench)
    const result = await runBench(bench, (line) => process.stderr.write(`${bench.name}: ${line}\n`))
    console.log(`\n${renderTable(result)}`)
    await writeResult(result, join(benchFolder, 'results'))
    for (const claim of result.claims) if (claim.met === false) missed.push(`${bench.name}: ${claim.name}`)
  }
}
console.log(missed.length === 0 ? 'every goal met' : `goals missed:\n${missed.map((name) => `  ${name}`).join('\n')}`)
console.log(`JSON and SVG of each bench are in ${join(benchFolder, 'results')}`)
