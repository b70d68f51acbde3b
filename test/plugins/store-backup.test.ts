import { once } from 'node:events'
import {
  appendFileSync,
  existsSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  rmSync,
  statSync,
  truncateSync,
  writeFileSync
} from 'node:fs'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import t, { type Test } from 'tap'
import { type Backup, backUp, restore } from '../../plugins/store/backup.ts'
import { runBackup, runRestore } from '../../plugins/store/commands.ts'
import type { Formats, Migration } from '../../plugins/store/formats.ts'
import { openEngine, type OpenOptions } from '../../plugins/store/lmdb.ts'
import { createStore } from '../../plugins/store/service.ts'
import type { Store } from '../../plugins/store/types.ts'
import { collect } from '../harness.ts'
import { startFixture } from '../process.ts'

/** The store of a folder, closed when the test ends. */
async function openStore(t: Test, folder: string, options: OpenOptions = {}) {
  const engine = await openEngine(folder, options)
  t.teardown(() => engine.close())
  return { engine, store: createStore(engine), close: () => engine.close() }
}

const keysOf = async (store: Store, collection: string) =>
  (await collect(store.range(collection, []))).map(([key]) => key[0])

/** What `ls -lR` would tell of a folder, without the table of readers that whoever looks leaves behind. */
function contentOf(folder: string): Record<string, string> {
  return Object.fromEntries(
    readdirSync(folder)
      .filter((name) => name !== 'lock.mdb')
      .sort()
      .map((name) => [name, readFileSync(join(folder, name)).toString('base64')])
  )
}

t.test('a backup is the state of one moment, taken while another process writes', async (t) => {
  const base = t.testdir()
  const folder = join(base, 'data')
  const writer = startFixture(t, 'store-process', ['writeForEver', folder])
  const acknowledged = new Set<number>()
  let heard = 0
  let reach = Number.POSITIVE_INFINITY
  const reached = new EventTarget()
  createInterface({ input: writer.stdout! }).on('line', (line) => {
    acknowledged.add(Number(line))
    heard += 1
    if (heard >= reach) reached.dispatchEvent(new Event('reached'))
  })
  const hear = async (more: number) => {
    reach = heard + more
    await once(reached, 'reached')
  }
  for (let round = 0; round < 3; round += 1) {
    await hear(200)
    const before = new Set(acknowledged)
    const target = join(base, `backup-${round}`)
    const backup = await backUp(folder, target, 0)
    const restored = join(base, `restored-${round}`)
    t.strictSame(await restore(target, restored, { verify: true }), backup)
    const { store, close } = await openStore(t, restored)
    const found = new Set(await keysOf(store, 'acknowledged'))
    t.equal(found.size + 1, backup.records, 'and the mark of the format')
    t.strictSame(
      [...before].filter((id) => !found.has(id)),
      [],
      'what was acknowledged before it began is in it'
    )
    await store.atomically((tx) => tx.put('acknowledged', ['more'], 1), { durable: true })
    await close()
  }
  await hear(1)
  t.pass('and the writer goes on')
})

t.test('a backup holds the data and the secrets beside it, for its owner only', async (t) => {
  const base = t.testdir()
  const folder = join(base, 'data')
  const { store } = await openStore(t, folder)
  await store.atomically((tx) => tx.put('notes', ['a'], { text: 'ü🙂' }))
  await store.secret('JWT_SECRET', () => 'a-secret')
  writeFileSync(join(folder, 'other.txt'), 'not ours')
  mkdirSync(join(base, 'there'))

  for (const target of [join(base, 'new', 'deep'), join(base, 'there')]) {
    const backup = await backUp(folder, target, Date.UTC(2030, 0, 1))
    t.strictSame(readdirSync(target).sort(), ['JWT_SECRET', 'backup.json', 'data.mdb'])
    t.match(backup, { format: 1, made_at: '2030-01-01T00:00:00.000Z', records: 2 })
    t.match(backup.files, [
      { name: 'JWT_SECRET', bytes: 9, sha256: /^[0-9a-f]{64}$/ },
      { name: 'data.mdb', bytes: Number, sha256: /^[0-9a-f]{64}$/ }
    ])
    t.strictSame(JSON.parse(readFileSync(join(target, 'backup.json'), 'utf8')), backup)
    t.equal(statSync(target).mode & 0o777, 0o700)
    for (const name of readdirSync(target)) t.equal(statSync(join(target, name)).mode & 0o777, 0o600, name)
    const before = contentOf(target)
    await t.rejects(backUp(folder, target, 0), { code: 'STORE_BACKUP_EXISTS', message: new RegExp(target) })
    t.strictSame(contentOf(target), before, 'left as it was')
  }
  t.strictSame(readdirSync(base).sort(), ['data', 'new', 'there'], 'no draft is left')

  const restored = join(base, 'restored')
  await restore(join(base, 'there'), restored, { verify: true })
  t.strictSame(readdirSync(restored).sort(), ['JWT_SECRET', 'data.mdb'])
  for (const name of readdirSync(restored)) t.equal(statSync(join(restored, name)).mode & 0o777, 0o600, name)
  const again = await openStore(t, restored)
  t.match(await again.store.get('notes', ['a']), { value: { text: 'ü🙂' }, version: 1 })
  t.match(await again.store.secret('JWT_SECRET', () => 'another'), { value: 'a-secret', created: false })
})

t.test('a backup of what is not there, or is damaged, is refused and leaves nothing', async (t) => {
  const base = t.testdir({ empty: {}, damaged: {} })
  const { store, close } = await openStore(t, join(base, 'damaged'))
  await store.atomically((tx) => {
    for (let at = 0; at < 500; at += 1) tx.put('n', [at], 'x'.repeat(100))
  })
  await close()
  truncateSync(join(base, 'damaged', 'data.mdb'), 20_000)
  const target = join(base, 'target')
  await t.rejects(backUp(join(base, 'nowhere'), target, 0), { code: 'STORE_FAILED', message: /there is no data in/ })
  await t.rejects(backUp(join(base, 'empty'), target, 0), { code: 'STORE_FAILED', message: /there is no data in/ })
  await t.rejects(backUp(join(base, 'damaged'), target, 0), { code: 'STORE_DAMAGED' })
  writeFileSync(join(base, 'file'), '')
  await t.rejects(backUp(join(base, 'damaged'), join(base, 'file', 'x'), 0))
  t.strictSame(readdirSync(base).sort(), ['damaged', 'empty', 'file'])
})

t.test('a restore takes only a sound backup, and only where nothing would be lost', async (t) => {
  const base = t.testdir()
  const source = join(base, 'backup')
  const { store, close } = await openStore(t, join(base, 'data'))
  await store.atomically((tx) => tx.put('notes', ['a'], 'kept'))
  await store.secret('JWT_SECRET', () => 'a-secret')
  await backUp(join(base, 'data'), source, 0)
  await close()
  const sound = contentOf(source)
  const writeBack = () => {
    rmSync(source, { recursive: true })
    mkdirSync(source)
    for (const [name, content] of Object.entries(sound)) writeFileSync(join(source, name), content, 'base64')
  }
  const manifest = (change: (backup: Backup) => unknown) => {
    const backup = JSON.parse(Buffer.from(sound['backup.json'] ?? '', 'base64').toString()) as Backup
    writeFileSync(join(source, 'backup.json'), JSON.stringify(change(backup)))
  }
  const data = join(source, 'data.mdb')
  const files = (change: (file: Backup['files'][number]) => object) => () =>
    manifest((backup) => ({ ...backup, files: backup.files.map(change) }))
  const spoilt: readonly (readonly [what: string, spoil: () => void, code: string])[] = [
    ['no manifest', () => rmSync(join(source, 'backup.json')), 'STORE_BACKUP_INVALID'],
    ['a manifest cut short', () => truncateSync(join(source, 'backup.json'), 40), 'STORE_BACKUP_INVALID'],
    ['a manifest of something else', () => manifest(() => ({ files: [] })), 'STORE_BACKUP_INVALID'],
    ['a manifest that reaches out', files((file) => ({ ...file, name: '../data.mdb' })), 'STORE_BACKUP_INVALID'],
    ['another checksum', files((file) => ({ ...file, sha256: '0'.repeat(64) })), 'STORE_BACKUP_INVALID'],
    ['another count', () => manifest((backup) => ({ ...backup, records: 3 })), 'STORE_BACKUP_INVALID'],
    ['data with a byte more', () => appendFileSync(data, 'x'), 'STORE_BACKUP_INVALID'],
    ['data cut short', () => truncateSync(data, 4_096), 'STORE_BACKUP_INVALID'],
    ['a secret that is missing', () => rmSync(join(source, 'JWT_SECRET')), 'STORE_UNWRITABLE']
  ]
  for (const [what, spoil, code] of spoilt) {
    writeBack()
    spoil()
    const folder = join(base, 'target')
    await t.rejects(restore(source, folder, { verify: true }), { code }, what)
    t.strictSame(existsSync(folder) ? readdirSync(folder) : [], [], `${what}: nothing is left`)
  }
  writeBack()

  const taken = join(base, 'taken')
  const live = await openStore(t, taken)
  await t.rejects(restore(source, taken, { verify: false }), { code: 'STORE_LOCKED', message: /in use by process/ })
  await live.close()
  const before = contentOf(taken)
  await t.rejects(restore(source, taken, { verify: false }), { code: 'STORE_NOT_EMPTY' })
  t.strictSame(contentOf(taken), before)

  const half = join(base, 'half')
  mkdirSync(half)
  writeFileSync(join(half, 'JWT_SECRET'), 'another\n')
  await t.rejects(restore(source, half, { verify: false }), { code: 'STORE_NOT_EMPTY', message: /JWT_SECRET/ })
  writeFileSync(join(half, 'JWT_SECRET'), 'a-secret\n')
  await restore(source, half, { verify: false })
  t.strictSame(contentOf(half)['data.mdb'], sound['data.mdb'], 'a restore that was cut short is made whole')
})

t.test('the verbs say what they did, and what they lack', async (t) => {
  const base = t.testdir()
  const { store } = await openStore(t, join(base, 'data'))
  await store.ping()
  const [data, to, back] = ['data', 'to', 'back'].map((name) => join(base, name)) as [string, string, string]
  await t.rejects(runBackup(data, undefined), TypeError)
  await t.rejects(runRestore(undefined, data, true), TypeError)
  t.match(await runBackup(data, to), /^backed up .* 2 records, 0\.0 MiB, read back\n$/)
  t.match(await runRestore(to, back, true), /^restored .* made 20.*, every record read back\n$/)
  t.match(await runRestore(to, `${back}2`, false), /checksums compared\n$/)
})

t.test('what a killed reader held is let go, so that the file does not grow for ever', async (t) => {
  const folder = join(t.testdir(), 'data')
  const { engine, store } = await openStore(t, folder)
  const churn = async (times: number) => {
    for (let at = 0; at < times; at += 1) await store.atomically((tx) => tx.put('n', [at % 10], 'x'.repeat(20_000)))
    return statSync(join(folder, 'data.mdb')).size
  }
  await churn(50)
  const reader = startFixture(t, 'store-reader', [folder])
  await once(reader.stdout!, 'data')
  reader.kill('SIGKILL')
  await once(reader, 'close')
  const held = await churn(120)
  engine.freeReaders()
  await churn(60)
  const settled = await churn(0)
  const later = await churn(150)
  t.ok(held > 2_000_000, `it grew to ${held} while the pages were held`)
  t.ok(later <= settled * 1.1, `from ${settled} to ${later} once they are free`)
})

const toTwo: Migration = (data) => {
  for (const [key, value] of data.entries('notes')) {
    data.put('notes.v2', key, { text: value })
    data.remove('notes', key)
  }
}
const toThree: Migration = (data) => {
  for (const [key, value] of data.entries('notes.v2')) data.put('notes.v2', key, { ...(value as object), three: true })
}
const formatsOf = (version: number, migrations: readonly (readonly [number, Migration])[]): Formats => ({
  version,
  migrations: new Map(migrations)
})

t.test('data of an older format is migrated when it is opened, step by step', async (t) => {
  const folder = join(t.testdir(), 'data')
  const first = await openStore(t, folder)
  await first.store.atomically((tx) => {
    for (let at = 0; at < 700; at += 1) tx.put('notes', [at], `text ${at}`)
    tx.put('others', ['a'], 'untouched')
  })
  await first.close()

  const steps: string[] = []
  const formats = formatsOf(3, [
    [1, toTwo],
    [2, toThree]
  ])
  const second = await openStore(t, folder, { formats, onMigrated: (from, to) => steps.push(`${from} to ${to}`) })
  t.strictSame(steps, ['1 to 2', '2 to 3'])
  t.strictSame(await keysOf(second.store, 'notes'), [])
  const notes = await collect(second.store.range('notes.v2', []))
  t.equal(notes.length, 700)
  t.strictSame(notes[13], [[13], { value: { text: 'text 13', three: true }, version: 2 }])
  t.match(await second.store.get('others', ['a']), { value: 'untouched', version: 1 })
  await second.close()

  await (await openStore(t, folder, { formats, onMigrated: () => t.fail('only once') })).close()
  await t.rejects(openEngine(folder), { code: 'STORE_FORMAT', message: /format 3.*reads up to 1/ })
})

t.test('a migration that fails, or is missing, changes nothing', async (t) => {
  const folder = join(t.testdir(), 'data')
  const first = await openStore(t, folder)
  await first.store.atomically((tx) => tx.put('notes', ['a'], 'text'))
  await first.close()
  const before = contentOf(folder)

  const missing = formatsOf(3, [[2, toThree]])
  await t.rejects(openEngine(folder, { formats: missing }), {
    code: 'STORE_FORMAT',
    message: /format 1, which this version cannot migrate: start a version once that can/
  })
  t.strictSame(contentOf(folder), before)

  const failing = formatsOf(3, [
    [1, toTwo],
    [
      2,
      (data) => {
        toThree(data)
        throw new Error('the third format is not ready')
      }
    ]
  ])
  await t.rejects(openEngine(folder, { formats: failing }), {
    code: 'STORE_FAILED',
    message: /third format is not ready/
  })
  const halfway = await openStore(t, folder, { formats: formatsOf(2, [[1, () => t.fail('was done before')]]) })
  t.match(await halfway.store.get('notes.v2', ['a']), { value: { text: 'text' } }, 'the step before it stands')
})
