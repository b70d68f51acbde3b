import { spawn } from 'node:child_process'
import { mkdirSync, readFileSync, symlinkSync, writeFileSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { fileURLToPath } from 'node:url'
import type {} from '../../authoring/index.ts'
import { cleanEnv } from '../process.ts'

const root = fileURLToPath(new URL('../../../', import.meta.url))
const compiled = fileURLToPath(new URL('../../', import.meta.url))

interface Manifest {
  readonly files: readonly string[]
}

/**
 * Puts the package into `node_modules` of a folder as an installation would: its manifest, and of what was compiled
 * only what is published.
 */
export function install(folder: string): void {
  const target = join(folder, 'node_modules', 'heartwood')
  const manifest = JSON.parse(readFileSync(join(root, 'package.json'), 'utf8')) as Manifest
  mkdirSync(join(target, 'dist'), { recursive: true })
  writeFileSync(join(target, 'package.json'), JSON.stringify(manifest))
  writeFileSync(join(folder, 'package.json'), '{ "private": true }')
  for (const file of manifest.files) {
    if (file.startsWith('dist/')) symlinkSync(join(compiled, file.slice('dist/'.length)), join(target, file))
  }
  // The tools that an author's own project has.
  mkdirSync(join(folder, 'node_modules', '@types'))
  symlinkSync(join(root, 'node_modules/@types/node'), join(folder, 'node_modules/@types/node'))
}

export interface Ended {
  readonly code: number | null
  readonly output: string
}

/** Runs Node.js in a folder as a user would. */
export function runNode(folder: string, args: readonly string[]): Promise<Ended> {
  const [command, ...rest] = [...cleanEnv(), process.execPath, ...args]
  const child = spawn(command!, rest, { cwd: folder, stdio: ['ignore', 'pipe', 'pipe'] })
  let output = ''
  for (const stream of [child.stdout, child.stderr]) stream.on('data', (chunk: Buffer) => (output += chunk.toString()))
  return new Promise((resolve) => child.on('close', (code) => resolve({ code, output })))
}

/** Type-checks files of a folder in the strictest way. @returns what is wrong; empty when nothing is */
export async function typeCheck(folder: string, files: readonly string[]): Promise<string> {
  const compilerOptions = {
    target: 'es2022',
    module: 'nodenext',
    strict: true,
    noUncheckedIndexedAccess: true,
    exactOptionalPropertyTypes: true,
    skipLibCheck: true,
    noEmit: true,
    types: ['node']
  }
  writeFileSync(join(folder, 'tsconfig.json'), JSON.stringify({ compilerOptions, files }))
  const compiler = fileURLToPath(import.meta.resolve('typescript/package.json'))
  const { code, output } = await runNode(folder, [join(dirname(compiler), 'bin/tsc'), '--pretty', 'false', '-p', '.'])
  return code === 0 ? '' : output
}
