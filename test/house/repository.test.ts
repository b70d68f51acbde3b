import { spawnSync } from 'node:child_process'
import { readFileSync, statSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import { root } from './source.ts'

const listed = spawnSync('git', ['ls-files', '-z'], { cwd: root, encoding: 'utf8' })
const noGit = listed.status !== 0 && 'not a git checkout'
const tracked = noGit
  ? []
  : listed.stdout
      .split('\0')
      .filter((path) => path !== '' && statSync(join(root, path), { throwIfNoEntry: false })?.isFile())

t.test('no tracked file is larger than 1 MB', { skip: noGit }, (t) => {
  t.strictSame(
    tracked.filter((path) => statSync(join(root, path)).size > 1_000_000),
    []
  )
  t.end()
})

/** Words that are true on one machine only. `.ci/run` may look beside the checkout for test data. */
const local: readonly RegExp[] = [
  /(?<![\w.\-:/])\/(?:root|work|(?:home|Users)\/[\w.-]+)\/[\w.-]+/,
  /\.\.\/shared\b/,
  /\bregistry\.[\w-]+\.\w+/,
  /\bfarm-\w+/,
  /"resolved": "https?:/
]

t.test('no tracked file knows the machine it was written on', { skip: noGit }, (t) => {
  const found = tracked
    .filter((path) => path !== '.ci/run')
    .flatMap((path) =>
      readFileSync(join(root, path), 'utf8')
        .split('\n')
        .flatMap((line, at) => (isLocal(line) ? [`${path}:${at + 1}: ${line.trim()}`] : []))
    )
  t.strictSame(found, [])
  t.end()
})

t.test('a word of a machine is found where it stands', (t) => {
  const path = (...parts: readonly string[]) => parts.join('/') // spelt in parts, or this file would be found too
  const words = [
    path('cd ', 'home', 'ann', 'x'),
    path("'", 'root', '.npm'),
    path('see ', 'work', 'main'),
    path('..', 'shared', 'data'),
    path('https:', '', ['registry', 'example', 'org'].join('.')),
    ['farm', '1'].join('-'),
    ['"resolved"', '"https://x'].join(': ')
  ]
  for (const word of words) t.ok(isLocal(word), word)
  for (const word of ['/api/work/items', 'https://x.org/home/page', './shared/a', 'work/main', 'the registry. It']) {
    t.notOk(isLocal(word), word)
  }
  t.end()
})

function isLocal(line: string): boolean {
  return local.some((word) => word.test(line))
}
