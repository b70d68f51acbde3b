import { type ChildProcessByStdio, spawn } from 'node:child_process'
import type { Readable, Writable } from 'node:stream'
import { fileURLToPath } from 'node:url'

interface Test {
  teardown(work: () => unknown): void
}

export type Child = ChildProcessByStdio<Writable, Readable, null>

/** @returns a command of `env` that leaves out the secrets of the machine, and what tap puts into every child */
export function cleanEnv(more: Readonly<Record<string, string | undefined>> = {}): readonly string[] {
  const kept = Object.fromEntries(['PATH', 'HOME', 'TMPDIR'].map((name) => [name, process.env[name]]))
  const env = Object.entries({ ...kept, ...more }).flatMap(([name, value]) =>
    value === undefined ? [] : `${name}=${value}`
  )
  return ['env', '-i', ...env]
}

/**
 * Runs a file of `fixtures/` in a process of its own, which is killed when the test ends, if not before. What it writes
 * to stderr is shown.
 * @param through a command that runs the process
 */
export function startFixture(
  t: Test,
  fixture: string,
  args: readonly string[],
  through: readonly string[] = []
): Child {
  const path = fileURLToPath(new URL(`./fixtures/${fixture}.js`, import.meta.url))
  const [command, ...rest] = [...cleanEnv(), ...through, process.execPath, path, ...args]
  const child = spawn(command!, rest, { stdio: ['pipe', 'pipe', 'inherit'] })
  t.teardown(() => child.kill('SIGKILL'))
  return child
}
