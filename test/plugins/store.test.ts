import { type ChildProcess, spawnSync } from 'node:child_process'
import { createHash } from 'node:crypto'
import { once } from 'node:events'
import {
  chmodSync,
  copyFileSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  statSync,
  truncateSync,
  writeFileSync
} from 'node:fs'
import { tmpdir } from 'node:os'
import { join, relative } from 'node:path'
import { createInterface } from 'node:readline'
import fc from 'fast-check'
import { open } from 'lmdb'
import t from 'tap'
import { definePlugin, isCoded } from '../../kernel/index.ts'
import type { HealthCheck } from '../../plugins/http/types.ts'
import storePlugin from '../../plugins/store/index.ts'
import { boundsOf, decodeKey, encodeKey, keyBufferBytes } from '../../plugins/store/keys.ts'
import { openEngine } from '../../plugins/store/lmdb.ts'
import { lockFolder } from '../../plugins/store/lock.ts'
import { createStore } from '../../plugins/store/service.ts'
import type { Key, Reader, Store, Transaction, Versioned } from '../../plugins/store/types.ts'
import { collect, startHouse } from '../harness.ts'
import { startFixture } from '../process.ts'

type T = Parameters<typeof startHouse>[0]

const bare = { http: false } as const
const startStore = async (t: T): Promise<Store> => (await startHouse(t, [], bare)).services('store')

const get = async <V = unknown>(reader: Reader, collection: string, key: Key) => await reader.get<V>(collection, key)
const value = async (reader: Reader, collection: string, key: Key) => (await get(reader, collection, key))?.value
const put = (store: Store, collection: string, key: Key, value: unknown) =>
  store.atomically((tx) => tx.put(collection, key, value))

/** A promise and what settles it. */
function gate() {
  let pass = () => {}
  const passed = new Promise<void>((resolve) => {
    pass = resolve
  })
  return { passed, pass }
}

const seed = Number(process.env['HEARTWOOD_TEST_SEED'] ?? Date.now() % 2 ** 31)
t.comment(`property tests: HEARTWOOD_TEST_SEED=${seed}`)

// ---- values, versions, transactions

t.test('a value is read back as it was written, with version 1, then one more for each write', async (t) => {
  const store = await startStore(t)
  t.equal(await get(store, 'notes', ['a']), undefined)
  await put(store, 'notes', ['a'], { text: 'first' })
  t.strictSame(await get(store, 'notes', ['a']), { value: { text: 'first' }, version: 1 })
  await put(store, 'notes', ['a'], { text: 'second' })
  t.strictSame(await get(store, 'notes', ['a']), { value: { text: 'second' }, version: 2 })
  await store.atomically((tx) => tx.remove('notes', ['a']))
  t.equal(await get(store, 'notes', ['a']), undefined)
  await put(store, 'notes', ['a'], { text: 'anew' })
  t.strictSame(await get(store, 'notes', ['a']), { value: { text: 'anew' }, version: 1 })
})

t.test('every JSON value survives', async (t) => {
  const store = await startStore(t)
  const values = [
    null,
    false,
    0,
    -1.5e-300,
    '',
    'grüße \0 \u2028 日本 👩‍🔬 \ud800',
    [],
    [[[]]],
    JSON.parse('{"__proto__":{"x":1},"constructor":"c"}'),
    'b'.repeat(5_000_000),
    { '': { a: [1, { b: null }] } }
  ]
  for (const [i, value] of values.entries()) await put(store, 'values', [i], value)
  for (const [i, expected] of values.entries()) {
    t.equal(JSON.stringify(await value(store, 'values', [i])), JSON.stringify(expected))
  }
  t.equal((await collect(store.range('values', []))).length, values.length)
  await t.rejects(put(store, 'values', [0], undefined), TypeError)
  await t.rejects(put(store, 'values', [0], 1n), TypeError)
  t.equal(await value(store, 'values', [0]), null)
})

t.test('a transaction sees its own writes, others do not before it is committed', async (t) => {
  const store = await startStore(t)
  await store.atomically((tx) => {
    tx.put('n', ['b'], 'old b')
    tx.put('n', ['c'], 'old c')
  })
  await store.atomically(async (tx) => {
    tx.put('n', ['a'], 'new a')
    tx.put('n', ['b'], 'new b')
    tx.put('n', ['b'], 'newer b')
    tx.remove('n', ['c'])
    tx.put('n', ['d'], 'new d')
    const own = [
      [['a'], { value: 'new a', version: 1 }],
      [['b'], { value: 'newer b', version: 3 }],
      [['d'], { value: 'new d', version: 1 }]
    ]
    t.strictSame(await collect(tx.range('n', [])), own)
    t.strictSame(await collect(tx.range('n', [], { reverse: true })), own.toReversed())
    t.strictSame(await collect(tx.range('n', [], { after: ['a'], limit: 1 })), [own[1]])
    t.equal(await get(tx, 'n', ['c']), undefined)
    t.strictSame(await get(tx, 'n', ['b']), { value: 'newer b', version: 3 })
    t.equal(await value(store, 'n', ['b']), 'old b')
    t.equal(await value(store, 'n', ['c']), 'old c')
  })
  t.strictSame(await get(store, 'n', ['b']), { value: 'newer b', version: 3 })
  t.equal(await get(store, 'n', ['c']), undefined)
})

t.test('a transaction that throws leaves nothing, however late it throws', async (t) => {
  const store = await startStore(t)
  await put(store, 'n', ['a'], 1)
  const failure = new Error('on purpose')
  const attempt = store.atomically(async (tx) => {
    tx.put('n', ['a'], 2)
    tx.put('n', ['b'], 2)
    tx.remove('n', ['c'])
    await tx.get('n', ['d'])
    throw failure
  })
  t.equal(await attempt.catch((error: unknown) => error), failure)
  t.strictSame(await collect(store.range('n', [])), [[['a'], { value: 1, version: 1 }]])
})

t.test('a put with another version than the stored one is a conflict that undoes the whole transaction', async (t) => {
  const store = await startStore(t)
  await put(store, 'n', ['a'], 'first')
  await t.rejects(
    store.atomically((tx) => {
      tx.put('n', ['b'], 'beside')
      tx.put('n', ['a'], 'second', 2)
    }),
    { code: 'STORE_CONFLICT', detail: { collection: 'n', found: 1, wanted: 2 } }
  )
  await t.rejects(
    store.atomically((tx) => tx.put('n', ['a'], 'x', 0)),
    { code: 'STORE_CONFLICT' }
  )
  t.equal(await get(store, 'n', ['b']), undefined)
  await store.atomically((tx) => {
    tx.put('n', ['a'], 'second', 1)
    tx.put('n', ['a'], 'third', 2)
    tx.put('n', ['b'], 'new', 0)
    tx.remove('n', ['b'])
    tx.put('n', ['b'], 'again', 0)
  })
  t.strictSame(await get(store, 'n', ['a']), { value: 'third', version: 3 })
  t.strictSame(await get(store, 'n', ['b']), { value: 'again', version: 1 })
  await store.atomically((tx) => {
    tx.remove('n', ['a'])
    tx.put('n', ['a'], 'anew', 0)
    t.strictSame(tx.get('n', ['a']), { value: 'anew', version: 1 })
  })
  t.strictSame(await get(store, 'n', ['a']), { value: 'anew', version: 1 })
})

/** Runs a transaction that reads, lets `rival` commit, and then writes; answers how often it ran. */
async function raced(
  store: Store,
  read: (tx: Transaction) => unknown,
  rival: (tx: Transaction) => void,
  write: (tx: Transaction) => void = (tx) => tx.put('result', ['x'], 1)
): Promise<number> {
  let runs = 0
  await store.atomically(async (tx) => {
    runs += 1
    await read(tx)
    if (runs === 1) await store.atomically(rival)
    write(tx)
  })
  return runs
}

t.test('a transaction runs again when what it read has changed, and only then', async (t) => {
  const store = await startStore(t)
  const first = async (tx: Transaction, prefix: Key, limit?: number) => {
    await collect(tx.range('n', prefix, limit === undefined ? {} : { limit }))
  }
  await store.atomically((tx) => {
    for (let i = 0; i < 5; i++) tx.put('n', ['list', i], i)
    for (let i = 0; i < 600; i++) tx.put('n', ['long', i], i)
    tx.put('n', ['one'], 1)
  })
  const cases: readonly (readonly [string, number, (tx: Transaction) => unknown, (tx: Transaction) => void])[] = [
    ['a value', 2, (tx) => tx.get('n', ['one']), (tx) => tx.put('n', ['one'], 2)],
    ['a value that was written again as it was', 2, (tx) => tx.get('n', ['one']), (tx) => tx.put('n', ['one'], 2)],
    ['a value that was absent', 2, (tx) => tx.get('n', ['two']), (tx) => tx.put('n', ['two'], 2)],
    ['a value that went', 2, (tx) => tx.get('n', ['two']), (tx) => tx.remove('n', ['two'])],
    ['another value', 1, (tx) => tx.get('n', ['one']), (tx) => tx.put('n', ['three'], 2)],
    ['the same key elsewhere', 1, (tx) => tx.get('n', ['one']), (tx) => tx.put('m', ['one'], 2)],
    ['a new entry of a range', 2, (tx) => first(tx, ['list']), (tx) => tx.put('n', ['list', 9], 9)],
    ['an entry less in a range', 2, (tx) => first(tx, ['list']), (tx) => tx.remove('n', ['list', 9])],
    ['a changed entry of a range', 2, (tx) => first(tx, ['list']), (tx) => tx.put('n', ['list', 4], 'four')],
    ['an entry in a range that was empty', 2, (tx) => first(tx, ['none']), (tx) => tx.put('n', ['none', 1], 1)],
    ['the end of a long range', 2, (tx) => first(tx, ['long']), (tx) => tx.put('n', ['long', 599], 'last')],
    ['an entry beyond what was read', 1, (tx) => first(tx, ['list'], 2), (tx) => tx.put('n', ['list', 2], 'two')],
    ['an entry before what was read', 2, (tx) => first(tx, ['list'], 2), (tx) => tx.put('n', ['list', -1], 'front')],
    ['an entry beside the range', 1, (tx) => first(tx, ['list']), (tx) => tx.put('n', ['lis', 1], 1)],
    ['a range nobody walked', 1, (tx) => tx.range('n', ['list']), (tx) => tx.put('n', ['list', 1], 'uno')]
  ]
  for (const [what, runs, read, rival] of cases) t.equal(await raced(store, read, rival), runs, what)

  const hole = async (tx: Transaction) => {
    tx.put('own', [5], 'own')
    for await (const [key] of tx.range('own', [])) if (key[0] === 5) break
  }
  t.equal(await raced(store, hole, (tx) => tx.put('own', [1], 'before')), 2, 'an entry before an own one')
  t.equal(await raced(store, hole, (tx) => tx.put('own', [6], 'behind')), 1, 'an entry behind an own one')
  t.equal(
    await raced(
      store,
      async (tx) => {
        for await (const _ of tx.range('n', ['list'], { reverse: true })) break
      },
      (tx) => tx.put('n', ['list', 100], 'new last')
    ),
    2,
    'a new last entry, for one who read from the end'
  )
})

t.test(
  'a value that was removed and put back with other content has changed, though its version has not',
  async (t) => {
    const store = await startStore(t)
    await put(store, 'n', ['a'], 'before')
    let rounds = 0
    await store.atomically(async (tx) => {
      const seen = await value(tx, 'n', ['a'])
      if (++rounds === 1) {
        await store.atomically((tx) => tx.remove('n', ['a']))
        await put(store, 'n', ['a'], 'after')
      }
      tx.put('n', ['copy'], seen)
    })
    t.equal(rounds, 2)
    t.equal(await value(store, 'n', ['copy']), 'after')
  }
)

t.test('what a transaction answers or throws without writing counts only if what it read still holds', async (t) => {
  const store = await startStore(t)
  await put(store, 'n', ['a'], 1)
  const look = (throws: boolean) => {
    let rounds = 0
    return store.atomically(async (tx) => {
      const seen = await value(tx, 'n', ['a'])
      if (++rounds === 1) await put(store, 'n', ['a'], Number(seen) + 1)
      if (throws) throw new RangeError(`saw ${String(seen)}`)
      return seen
    })
  }
  t.equal(await look(false), 2)
  await t.rejects(look(true), { message: 'saw 3' })
})

t.test('writers that do not read never conflict', async (t) => {
  const store = await startStore(t)
  let runs = 0
  await Promise.all(
    Array.from({ length: 50 }, (_, i) =>
      store.atomically((tx) => {
        runs += 1
        tx.put('n', ['same'], i)
      })
    )
  )
  t.equal(runs, 50)
  t.strictSame(await get(store, 'n', ['same']), { value: 49, version: 50 })
})

t.test('two hundred rivals of one key all get their turn; one that always loses is told so', async (t) => {
  const store = await startStore(t)
  await Promise.all(
    Array.from({ length: 200 }, () =>
      store.atomically(async (tx) => {
        const before = await get<number>(tx, 'n', ['total'])
        tx.put('n', ['total'], (before?.value ?? 0) + 1)
      })
    )
  )
  t.strictSame(await get(store, 'n', ['total']), { value: 200, version: 200 })

  let runs = 0
  const loser = store.atomically(async (tx) => {
    runs += 1
    await tx.get('n', ['total'])
    await put(store, 'n', ['total'], runs)
    tx.put('n', ['never'], true)
  })
  await t.rejects(loser, { code: 'STORE_CONFLICT' })
  t.equal(runs, 256)
  t.equal(await get(store, 'n', ['never']), undefined)
})

t.test('a transaction that begins while another is on its way to the disk does not undo it', async (t) => {
  const store = await startStore(t)
  const count = 60
  const all: Promise<void>[] = []
  while (all.length < count) {
    all.push(
      store.atomically(async (tx) => {
        const before = await get<number>(tx, 'n', ['total'])
        tx.put('n', ['total'], (before?.value ?? 0) + 1)
      })
    )
    // Each begins at another moment of those before it.
    await new Promise((resolve) => setImmediate(resolve))
  }
  await Promise.all(all)
  t.strictSame(await get(store, 'n', ['total']), { value: count, version: count })
})

t.test('a transaction that is used after its work has ended refuses', async (t) => {
  const store = await startStore(t)
  let kept: Transaction | undefined
  await store.atomically((tx) => {
    kept = tx
  })
  t.throws(() => kept?.put('n', ['a'], 1), TypeError)
  t.throws(() => kept?.get('n', ['a']), TypeError)
  t.throws(() => kept?.range('n', []), TypeError)
  t.equal(await get(store, 'n', ['a']), undefined)
})

// ---- ranges

t.test('a range is a snapshot of the moment of the call, also when it is long', async (t) => {
  const store = await startStore(t)
  await store.atomically((tx) => {
    for (let i = 0; i < 1_000; i++) tx.put('n', [i], i)
  })
  const range = store.range<number>('n', [])
  await store.atomically((tx) => {
    for (let i = 0; i < 1_000; i++) tx.put('n', [i], -1)
    tx.put('n', [1_000], -1)
    tx.remove('n', [999])
  })
  const seen: number[] = []
  for await (const [, entry] of range) {
    seen.push(entry.value)
    if (entry.value === 500) await put(store, 'n', [501], 'changed meanwhile')
  }
  t.strictSame(
    seen,
    Array.from({ length: 1_000 }, (_, i) => i)
  )
})

t.test('pages joined by after are the whole range, in both directions', async (t) => {
  const store = await startStore(t)
  const keys: Key[] = []
  for (let i = 0; i < 25; i++) keys.push(['p', `k${String(i).padStart(2, '0')}`])
  await store.atomically((tx) => {
    for (const key of keys) tx.put('n', key, key[1])
    tx.put('n', ['o', 'z'], 'before')
    tx.put('n', ['q'], 'behind')
  })
  for (const reverse of [false, true]) {
    const joined: Key[] = []
    for (;;) {
      const last = joined.at(-1)
      const page = await collect(
        store.range('n', ['p'], { limit: 4, reverse, ...(last === undefined ? {} : { after: last }) })
      )
      joined.push(...page.map(([key]) => key))
      if (page.length < 4) break
    }
    t.strictSame(joined, reverse ? keys.toReversed() : keys)
  }
  t.strictSame(await collect(store.range('n', ['p'], { after: ['a'], limit: 1 })), [
    [keys[0], { value: 'k00', version: 1 }]
  ])
  t.strictSame(await collect(store.range('n', ['p'], { after: ['z'] })), [])
  t.strictSame(await collect(store.range('n', ['p'], { after: ['a'], reverse: true })), [])
  t.strictSame(await collect(store.range('n', ['p'], { limit: 0 })), [])
})

t.test('ranges that are left early hold nothing back: the file does not grow', async (t) => {
  const folder = t.testdir()
  const store = (await startHouse(t, [], { ...bare, dataFolder: folder })).services('store')
  await store.atomically((tx) => {
    for (let i = 0; i < 300; i++) tx.put('n', [i], i)
  })
  for await (const _ of store.range('n', [])) break
  await store.atomically(async (tx) => {
    await tx.range('n', [])[Symbol.asyncIterator]().next()
    tx.put('m', ['x'], 1)
  })
  for (let i = 0; i < 100; i++) await put(store, 'm', ['big'], 'x'.repeat(100_000))
  t.ok(statSync(join(folder, 'data.mdb')).size < 2_000_000)
})

// ---- keys

const part = fc.oneof(
  fc.string({
    unit: fc.constantFrom('a', 'b', ':', '/', '\0', '\x01', '\x1b', 'ä', '日', '😀', '\ud83d', '\ude00', '\uffff')
  }),
  fc.string({ unit: fc.constantFrom('a', '\0'), minLength: 60, maxLength: 70 }),
  fc.double({ noNaN: true, noDefaultInfinity: true }),
  fc.integer({ min: -3, max: 3 })
)
const anyKey = fc.array(part, { minLength: 1, maxLength: 8 })

/** The order of the contract, written down another way. */
function compare(a: Key, b: Key): number {
  for (let i = 0; i < Math.min(a.length, b.length); i++) {
    const [x, y] = [a[i]!, b[i]!]
    if (typeof x !== typeof y) return typeof x === 'number' ? -1 : 1
    if (typeof x === 'number') {
      if (x !== y) return x < Number(y) ? -1 : 1
    } else {
      const [p, q] = [x, String(y)].map((text) => Array.from(text, (point) => point.codePointAt(0)!))
      const at = p!.findIndex((point, i) => point !== q![i])
      if (at >= 0) return at >= q!.length || p![at]! > q![at]! ? 1 : -1
      if (p!.length !== q!.length) return -1
    }
  }
  return a.length - b.length
}

t.test('encoded keys are ordered part by part, come back as they were, and prefixes hold exactly their keys', (t) => {
  const scratch = Buffer.alloc(keyBufferBytes)
  const encode = (key: Key) => encodeKey('c', key, scratch)
  fc.assert(
    fc.property(anyKey, anyKey, fc.nat(8), (a, b, length) => {
      const order = Math.sign(compare(a, b))
      const [x, y] = [encode(a), encode(b)]
      if (order !== (x < y ? -1 : x > y ? 1 : 0)) throw new Error('order')
      if (compare(decodeKey(x) as Key, a) !== 0) throw new Error('round trip')
      const prefix = a.slice(0, length)
      const { low, high } = boundsOf('c', prefix, scratch)
      for (const key of [a, b]) {
        const inside = compare(key.slice(0, prefix.length), prefix) === 0
        const encoded = encode(key)
        if (inside !== (encoded >= low && encoded < high)) throw new Error('prefix')
      }
    }),
    { seed, numRuns: 3_000 }
  )
  t.end()
})

t.test('keys that look alike when joined stay apart, and collections too', async (t) => {
  const store = await startStore(t)
  const long = 'a'.repeat(70)
  const keys: Key[] = [
    ['a', 'b'],
    ['a\0b'],
    ['a/b'],
    ['a:b'],
    ['a', 'b', ''],
    ['', 'a', 'b'],
    [1],
    ['1'],
    [`${long}\0b`],
    [long, 'b'],
    [`${long}\ud800`],
    [`${long}\ufffd`]
  ]
  await store.atomically((tx) => {
    for (const [i, key] of keys.entries()) {
      tx.put('c', key, i)
      tx.put('c2', key, -i)
    }
    tx.put('c', [-0], 'zero')
  })
  for (const [i, key] of keys.entries()) {
    t.equal(await value(store, 'c', key), i)
    t.equal(await value(store, 'c2', key), -i)
  }
  t.equal(await value(store, 'c', [0]), 'zero')
  t.strictSame(
    (await collect(store.range('c', ['a']))).map(([key]) => key),
    [
      ['a', 'b'],
      ['a', 'b', '']
    ]
  )
  t.equal((await collect(store.range('c2', []))).length, keys.length)
})

t.test('a key of another shape or size is refused by its bytes, everywhere, and the largest one works', async (t) => {
  const store = await startStore(t)
  const collection = 'c'.repeat(64)
  // One part has two bytes more than its text.
  for (const largest of ['k'.repeat(1_898), '日'.repeat(632) + 'kk', '\0'.repeat(949)]) {
    await put(store, collection, [largest], largest.length)
    t.equal(await value(store, collection, [largest]), largest.length)
    t.strictSame((await collect(store.range(collection, [largest])))[0]?.[0], [largest])
    await store.atomically((tx) => tx.remove(collection, [largest]))
  }
  const wrong = [
    ['k'.repeat(1_899)],
    ['日'.repeat(633)],
    ['k'.repeat(5_000_000)],
    ['k'.repeat(1_000), 'k'.repeat(900)],
    [],
    [1, 2, 3, 4, 5, 6, 7, 8, 9],
    [Number.NaN],
    [Number.POSITIVE_INFINITY],
    [undefined],
    [null],
    [{}],
    'key'
  ] as unknown as Key[]
  for (const key of wrong) {
    const refused = { code: 'STORE_KEY_INVALID' }
    t.throws(() => store.get('c', key), refused)
    if (key.length > 0) t.throws(() => store.range('c', key), refused)
    t.throws(() => store.range('c', [], { after: key }), refused)
    await t.rejects(put(store, 'c', key, 1), refused)
    await t.rejects(
      store.atomically((tx) => tx.get('c', key)),
      refused
    )
    await t.rejects(store.reserve('c', key, 1, 1), refused)
  }
  for (const collection of ['', 'c'.repeat(65), 'two words', 'ü', 'nul\0']) {
    t.throws(() => store.get(collection, [1]), { code: 'STORE_KEY_INVALID' })
  }
  t.strictSame(await collect(store.range('c', [])), [])
})

t.test('there is no limit to the number of collections', async (t) => {
  const store = await startStore(t)
  await store.atomically((tx) => {
    for (let i = 0; i < 2_000; i++) tx.put(`collection-${i}`, ['k'], i)
  })
  t.equal(await value(store, 'collection-1999', ['k']), 1_999)
  t.equal((await collect(store.range('collection-7', []))).length, 1)
})

// ---- counters, pings, secrets

t.test('a counter is never reserved beyond its limit, and gives back', async (t) => {
  const store = await startStore(t)
  const asked = await Promise.all(Array.from({ length: 500 }, () => store.reserve('quota', ['t'], 3, 100)))
  t.equal(asked.filter(Boolean).length, 33)
  t.equal(await value(store, 'quota', ['t']), 99)
  t.equal(await store.reserve('quota', ['t'], 1, 100), true)
  t.equal(await store.reserve('quota', ['t'], 1, 100), false)
  t.equal(await store.reserve('quota', ['t'], -50, 100), true)
  t.strictSame(await get(store, 'quota', ['t']), { value: 50, version: 35 })
  t.equal(await store.reserve('quota', ['other'], 101, 100), false)
  t.equal(await get(store, 'quota', ['other']), undefined)
  await t.rejects(store.reserve('quota', ['t'], Number.NaN, 100), TypeError)
  await put(store, 'quota', ['text'], 'no number')
  await t.rejects(store.reserve('quota', ['text'], 1, 100), { code: 'STORE_FAILED' })
})

t.test('a counter that a transaction read is checked at its commit', async (t) => {
  const store = await startStore(t)
  let runs = 0
  await store.atomically(async (tx) => {
    const used = (await get<number>(tx, 'quota', ['t']))?.value ?? 0
    if (++runs === 1) await store.reserve('quota', ['t'], 5, 10)
    tx.put('quota', ['t'], used + 1)
  })
  t.equal(await value(store, 'quota', ['t']), 6)
})

t.test('files that can be made again have a folder of their own', async (t) => {
  const dataFolder = t.testdir()
  const store = (await startHouse(t, [], { ...bare, dataFolder })).services('store')
  const path = await store.scratch('rag')
  t.equal(path, join(dataFolder, 'scratch', 'rag'))
  t.equal(statSync(path).mode & 0o777, 0o700)
  t.equal(await store.scratch('rag'), path)
  for (const name of ['', '..', 'a/b', 'A', '/etc']) await t.rejects(store.scratch(name), TypeError)
})

t.test('a secret is made once, kept in a file for its owner only, and found again', async (t) => {
  const folder = t.testdir()
  const house = await startHouse(t, [], { ...bare, dataFolder: folder })
  const store = house.services('store')
  let made = 0
  const ask = () => store.secret('JWT_SECRET', () => `secret-${++made}`)
  const both = await Promise.all([ask(), ask()])
  const path = join(folder, 'JWT_SECRET')
  for (const secret of both) t.match(secret, { value: 'secret-1', path })
  t.strictSame(await ask(), { value: 'secret-1', path, created: false })
  t.equal(statSync(path).mode & 0o777, 0o600)

  chmodSync(path, 0o644)
  writeFileSync(join(folder, 'ADMIN_API_KEY'), '  by hand\n')
  t.equal((await ask()).value, 'secret-1')
  t.equal(statSync(path).mode & 0o777, 0o600, 'closed again')
  t.match(await store.secret('ADMIN_API_KEY', () => 'unused'), { value: 'by hand', created: false })

  writeFileSync(join(folder, 'EMPTY'), '\n')
  await t.rejects(
    store.secret('EMPTY', () => 'x'),
    { code: 'STORE_FAILED', message: new RegExp(join(folder, 'EMPTY')) }
  )
  await t.rejects(
    store.secret('../escape', () => 'x'),
    TypeError
  )
  t.strictSame(readdirSync(folder).sort(), ['ADMIN_API_KEY', 'EMPTY', 'JWT_SECRET', 'data.mdb', 'lock.mdb'])
})

t.test('the store contributes the check database, which goes with it', async (t) => {
  let checks: readonly HealthCheck[] = []
  const health = definePlugin({
    name: 'health',
    apply: (ctx) =>
      ctx.collect('http.checks', {
        update: (now) => {
          checks = now.map(({ item }) => item)
        }
      })
  })
  const house = await startHouse(t, [{ plugin: health }], bare)
  t.strictSame(
    checks.map((check) => check.name),
    ['database']
  )
  await checks[0]?.check()
  await house.services('store').ping()
  const [check] = checks
  await house.kernel.retire('store')
  t.strictSame(checks, [])
  t.equal(house.services('store'), undefined)
  await t.rejects(check?.check() ?? Promise.resolve(), { code: 'STORE_FAILED' })
})

// ---- life

t.test('a swap of the entry keeps the environment, and a transaction that began before it', async (t) => {
  const house = await startHouse(t, [], bare)
  const store = house.services('store')
  const { entered, passed } = { entered: gate(), passed: gate() }
  const running = store.atomically(async (tx) => {
    await tx.get('n', ['a'])
    entered.pass()
    await passed.passed
    tx.put('n', ['a'], 'from before')
  })
  await entered.passed
  await house.kernel.retarget({ id: 'store', plugin: storePlugin, config: { path: t.testdirName } })
  await put(store, 'n', ['b'], 'from after')
  passed.pass()
  await running
  t.equal(await value(store, 'n', ['a']), 'from before')
  t.equal(await value(store, 'n', ['b']), 'from after')
})

t.test('closing waits for transactions under way, then refuses', async (t) => {
  const engine = await openEngine(t.testdir())
  const store = createStore(engine)
  const order: string[] = []
  const { entered, passed } = { entered: gate(), passed: gate() }
  const running = store
    .atomically(async (tx) => {
      entered.pass()
      await passed.passed
      tx.put('n', ['a'], 1)
    })
    .then(() => order.push('committed'))
  await entered.passed
  const closing = engine.close().then(() => order.push('closed'))
  await t.rejects(put(store, 'n', ['b'], 1), { code: 'STORE_FAILED' })
  passed.pass()
  await Promise.all([running, closing, engine.close()])
  t.strictSame(order, ['committed', 'closed'])
  t.throws(() => store.get('n', ['a']), { code: 'STORE_FAILED' })
  t.throws(() => store.range('n', []), { code: 'STORE_FAILED' })
  await t.rejects(store.ping(), { code: 'STORE_FAILED' })
})

t.test('a range that is still walked when the store closes ends with an error', async (t) => {
  const engine = await openEngine(t.testdir())
  const store = createStore(engine)
  await store.atomically((tx) => {
    for (let i = 0; i < 300; i++) tx.put('n', [i], i)
  })
  const range = store.range('n', [])
  await engine.close()
  await t.rejects(collect(range), { code: 'STORE_FAILED' })
})

t.test('what is acknowledged is on disk: the file says that its newest state is flushed', async (t) => {
  const folder = t.testdir()
  const engine = await openEngine(folder)
  const store = createStore(engine)
  for (let i = 0; i < 20; i++) {
    await store.atomically((tx) => tx.put('n', [i], i), { durable: true })
    const { transaction, flushed } = readHead(join(folder, 'data.mdb'))
    t.equal(flushed, transaction)
  }
  await store.flushed()
  await engine.close()
})

/** What the descriptions at the beginning of a data file say: ids of transactions, and the last page of the newest. */
function readHead(path: string) {
  const bytes = readFileSync(path)
  const pageSize = bytes.readUInt32LE(48)
  const [first, second, onDisk] = [24, 24 + pageSize, 24 + pageSize / 2].map((at) => ({
    transaction: bytes.readBigUInt64LE(at + 128),
    lastPage: Number(bytes.readBigUInt64LE(at + 120))
  }))
  const newest = first!.transaction > second!.transaction ? first! : second!
  return { ...newest, flushed: onDisk!.transaction, pageSize, pages: bytes.length / pageSize }
}

/** Starts a process with a store of its own, killed at the end of the test if not before. */
function startProcess(t: T, order: string, folder: string, through: readonly string[] = []) {
  const child = startFixture(t, 'store-process', [order, folder], through)
  const lines = createInterface({ input: child.stdout })[Symbol.asyncIterator]()
  return { child, next: async () => JSON.parse((await lines.next()).value ?? 'null') as unknown, lines }
}

async function kill(child: ChildProcess): Promise<void> {
  if (child.exitCode !== null || child.signalCode !== null) return
  child.kill('SIGKILL')
  await once(child, 'exit')
}

t.test('what was acknowledged survives kill -9', async (t) => {
  const folder = t.testdir()
  let total = 0
  for (let round = 0; round < 3; round++) {
    const writer = startProcess(t, 'writeForEver', folder)
    const acknowledged: number[] = []
    while (acknowledged.length < 200) acknowledged.push(Number(await writer.next()))
    writer.child.kill('SIGKILL')
    for (let line = await writer.lines.next(); !line.done; line = await writer.lines.next()) {
      if (/^\d+$/.test(line.value)) acknowledged.push(Number(line.value))
    }
    await kill(writer.child)

    const engine = await openEngine(folder)
    const store = createStore(engine)
    const missing = acknowledged.filter((id) => store.get('acknowledged', [id]) === undefined)
    t.strictSame(missing, [], `${acknowledged.length} were acknowledged`)
    total += acknowledged.length
    await engine.close()
  }
  t.ok(total >= 600)
})

t.test(
  'a second process is refused by name and pid, however the folder is spelt; a dead one is not in the way',
  async (t) => {
    const folder = t.testdir({ data: {}, 'link.to': t.fixture('symlink', 'data') })
    const path = join(folder, 'data')
    const holder = startProcess(t, 'hold', path)
    t.equal(await holder.next(), 'ready')
    for (const spelling of [
      path,
      join(folder, 'link.to'),
      `./${relative(process.cwd(), path)}`,
      `${folder}/./data/../data/`
    ]) {
      const error = await openEngine(spelling).catch((error: unknown) => error)
      t.ok(isCoded(error, 'STORE_LOCKED'), spelling)
      t.match(error, { detail: { folder: spelling, pid: holder.child.pid } })
      t.match((error as Error).message, spelling)
      t.match((error as Error).message, String(holder.child.pid))
    }
    await kill(holder.child)
    const engine = await openEngine(join(folder, 'link.to'))

    const second = startHouse(t, [], { ...bare, dataFolder: path })
    await t.rejects(second, { code: 'STORE_LOCKED', detail: { pid: process.pid } }, 'in the same process too')
    await createStore(engine).ping()
    await engine.close()
  }
)

t.test('where sockets need a file, one that is left behind is taken over', async (t) => {
  const short = mkdtempSync(join(tmpdir(), 'lock-'))
  t.teardown(() => rmSync(short, { recursive: true }))
  const long = join(t.testdir(), 'long'.repeat(30))
  mkdirSync(long)
  for (const folder of [short, long]) {
    const holder = startProcess(t, 'holdByFile', folder)
    t.equal(await holder.next(), 'ready')
    const refused = (pid: number | undefined) => ({ code: 'STORE_LOCKED', detail: { folder, pid } })
    await t.rejects(lockFolder(folder, false), refused(holder.child.pid))
    await kill(holder.child)
    t.equal(existsSync(join(folder, 'lock.sock')), folder === short)
    const unlock = await lockFolder(folder, false)
    await t.rejects(lockFolder(folder, false), refused(process.pid))
    await unlock()
    await (await lockFolder(folder, false))()
    t.strictSame(readdirSync(folder), [], 'gone when given back')
  }
})

/** Runs a command on a small disk of its own, mounted at `$0`, without being root. */
const onSmallDisk = ['unshare', '--user', '--map-root-user', '--mount', 'sh', '-c']
const mountSmallDisk = 'mount -t tmpfs -o size=6m none "$0" && exec "$@"'
const canMount = spawnSync(onSmallDisk[0]!, [...onSmallDisk.slice(1), mountSmallDisk, tmpdir(), 'true']).status === 0

t.test(
  'a full disk refuses writes as STORE_FULL, keeps what it had, and takes writes again when there is room',
  { skip: canMount ? false : 'this system lets nobody mount a disk of their own' },
  async (t) => {
    const folder = t.testdir()
    const filler = startProcess(t, 'fill', folder, [...onSmallDisk, mountSmallDisk, folder])
    t.strictSame(await filler.next(), {
      codes: ['STORE_FULL'],
      failed: 'STORE_FULL',
      kept: true,
      intact: true,
      huge: true
    })
    t.strictSame(await filler.next(), { codes: [], written: 8 }, 'there is room again')
    t.strictSame(await filler.next(), { codes: ['STORE_FULL'], all: true, unhandled: [] }, 'closed while it was full')
  }
)

// ---- what it finds at its start

t.test('the folder is made with everything above it, for its owner only', async (t) => {
  const folder = join(t.testdir(), 'some.where', 'deep', 'data.d')
  const engine = await openEngine(folder)
  await createStore(engine).ping()
  await engine.close()
  t.equal(statSync(folder).mode & 0o777, 0o700)
  t.strictSame(readdirSync(folder).sort(), ['data.mdb', 'lock.mdb'])
  t.equal(statSync(join(folder, 'data.mdb')).mode & 0o777, 0o600)
})

t.test('a folder that cannot be made or written is named, with what to do', async (t) => {
  const folder = t.testdir({ file: 'not a folder', closed: {} })
  const impossible = [join(folder, 'file'), join(folder, 'file', 'data')]
  if (process.getuid?.() !== 0) {
    chmodSync(join(folder, 'closed'), 0o500)
    impossible.push(join(folder, 'closed'), join(folder, 'closed', 'data'))
  }
  for (const path of impossible) {
    const error = await openEngine(path).catch((error: unknown) => error)
    t.ok(isCoded(error, 'STORE_UNWRITABLE'), path)
    t.match((error as Error).message, path)
    t.match((error as Error).message, /set another path/)
  }
  chmodSync(join(folder, 'closed'), 0o700)
  const house = startHouse(t, [], { ...bare, dataFolder: impossible[0]! })
  await t.rejects(house, { code: 'STORE_UNWRITABLE' })
})

/** A closed store with some megabytes in it. */
async function madeStore(folder: string): Promise<string> {
  const engine = await openEngine(folder)
  const store = createStore(engine)
  for (let i = 0; i < 40; i++) {
    await store.atomically((tx) => {
      for (let j = 0; j < 50; j++) tx.put('n', [i, j], 'x'.repeat(j === 0 ? 30_000 : 400))
    })
  }
  await engine.close()
  return join(folder, 'data.mdb')
}

const digest = (path: string) => createHash('sha256').update(readFileSync(path)).digest('hex')

t.test('a damaged or foreign file is refused by path, and left as it is bit for bit', async (t) => {
  const base = t.testdir()
  const good = await madeStore(join(base, 'good'))
  const size = statSync(good).size
  const overwrite = (path: string, at: number, bytes: Buffer) => {
    const file = readFileSync(path)
    bytes.copy(file, at)
    writeFileSync(path, file)
  }
  const noiseOf = (length: number) => createHash('shake256', { outputLength: length }).update('noise').digest()
  const damages: Readonly<Record<string, (path: string) => void>> = {
    'cut by 40 %': (path) => truncateSync(path, Math.floor(size * 0.6)),
    'cut inside the first page': (path) => truncateSync(path, 100),
    'cut behind the first page': (path) => truncateSync(path, 4_096),
    'zero bytes': (path) => truncateSync(path, 0),
    'noise at the beginning': (path) => overwrite(path, 0, noiseOf(4_096)),
    'noise on the second page': (path) => overwrite(path, 4_096, noiseOf(4_096)),
    'zeros at the beginning': (path) => overwrite(path, 0, Buffer.alloc(8_192)),
    'noise but for the first two pages': (path) => overwrite(path, 8_192, noiseOf(size - 8_192)),
    'a text': (path) => writeFileSync(path, 'Dear diary, today I was mistaken for a database.\n'.repeat(500)),
    'an older LMDB': (path) => {
      for (const at of [28, 4_096 + 28]) overwrite(path, at, Buffer.from([1, 0, 0, 0]))
    }
  }
  for (const [what, damage] of Object.entries(damages)) {
    const folder = join(base, what)
    mkdirSync(folder)
    const path = join(folder, 'data.mdb')
    copyFileSync(good, path)
    damage(path)
    const before = digest(path)
    const error = await openEngine(folder).catch((error: unknown) => error)
    t.ok(isCoded(error, 'STORE_DAMAGED'), `${what}: ${String(error)}`)
    t.match((error as Error).message, path)
    t.equal(digest(path), before, 'untouched')
    t.strictSame(readdirSync(folder), ['data.mdb'])
  }

  const whole = join(base, 'whole')
  mkdirSync(whole)
  copyFileSync(good, join(whole, 'data.mdb'))
  const engine = await openEngine(whole)
  t.equal((await collect(createStore(engine).range('n', []))).length, 2_000, 'the undamaged copy is whole')
  await engine.close()
})

t.test('a file that ends before pages nobody uses is not damaged', async (t) => {
  const folder = t.testdir()
  const path = await madeStore(folder)
  const raw = open<string, Buffer>({
    path: folder,
    noSubdir: false,
    encoding: 'string',
    useVersions: true,
    keyEncoding: 'binary'
  })
  // In one commit: what was to be at the end of the file is gone before it is written.
  await raw.put(Buffer.from('z\0'), '1', 1)
  await raw.transaction(() => {
    raw.putSync(Buffer.from('z\0'), '2', 2)
    raw.putSync(Buffer.from('z\0big'), 'x'.repeat(10_000_000), 1)
    raw.removeSync(Buffer.from('z\0big'))
  })
  await raw.close()
  const { lastPage, pages, pageSize } = readHead(path)
  t.ok(pages < lastPage + 1, 'the file is that short')

  // Only then all of its pages are looked at.
  const broken = join(folder, 'broken')
  mkdirSync(broken)
  const bytes = readFileSync(path)
  const leaf = 2
  for (let page = 2; page < pages; page++) {
    const content = bytes.subarray(page * pageSize, (page + 1) * pageSize)
    if (content.readUInt16LE(18) === leaf && !content.includes('heartwood') && content.includes('xxxx')) content.fill(0)
  }
  writeFileSync(join(broken, 'data.mdb'), bytes)
  await t.rejects(openEngine(broken), { code: 'STORE_DAMAGED' })

  const engine = await openEngine(folder)
  t.equal((await collect(createStore(engine).range('n', []))).length, 2_000)
  await engine.close()
})

t.test('data of a newer format, or of another program, is refused with what to do, and left as it is', async (t) => {
  const base = t.testdir({ newer: {}, versioned: {}, plain: {}, empty: {} })
  const newer = await openEngine(join(base, 'newer'))
  await newer.write((batch) => batch.put('\0heartwood', '2', 2))
  await newer.close()
  for (const [name, useVersions] of [
    ['versioned', true],
    ['plain', false]
  ] as const) {
    const foreign = open({ path: join(base, name), noSubdir: false, useVersions })
    await foreign.put('key', 'value')
    await foreign.close()
  }
  await open({ path: join(base, 'empty'), noSubdir: false }).close()

  const advice: Readonly<Record<string, RegExp>> = {
    newer: /format 2.*reads up to 1.*update Heartwood/,
    versioned: /not written by Heartwood.*set another path/,
    plain: /not written by Heartwood/,
    empty: /not written by Heartwood/
  }
  for (const [name, message] of Object.entries(advice)) {
    const path = join(base, name, 'data.mdb')
    const before = digest(path)
    await t.rejects(openEngine(join(base, name)), { code: 'STORE_FORMAT', message })
    t.equal(digest(path), before, 'untouched')
  }
})

t.test('a first start that was cut short leaves nothing that hinders the next', async (t) => {
  const folder = t.testdir({ 'data.mdb.new': { 'data.mdb': '', 'lock.mdb': 'noise' } })
  const engine = await openEngine(folder)
  await createStore(engine).ping()
  await engine.close()
  t.strictSame(readdirSync(folder).sort(), ['data.mdb', 'lock.mdb'])
})

// ---- against a model

/** A step of a scripted transaction. Keys are small on purpose, so that transactions meet. */
type Step =
  | { readonly do: 'get' | 'put' | 'remove'; readonly key: Key }
  | {
      readonly do: 'range'
      readonly prefix: Key
      readonly limit: number
      readonly reverse: boolean
      readonly after: Key | undefined
    }
  | { readonly do: 'pause' }

const modelKey = fc.tuple(fc.constantFrom('a', 'b'), fc.integer({ min: 0, max: 3 }))
const step: fc.Arbitrary<Step> = fc.oneof(
  fc.record({ do: fc.constantFrom('get', 'put', 'remove'), key: modelKey }),
  fc.record({
    do: fc.constant('range'),
    prefix: fc.constantFrom<Key>([], ['a'], ['b']),
    limit: fc.integer({ min: 1, max: 5 }),
    reverse: fc.boolean(),
    after: fc.option(modelKey, { nil: undefined, freq: 3 })
  }),
  fc.record({ do: fc.constant('pause') })
)
const script = fc.array(step, { minLength: 1, maxLength: 8 })

/** Plays a script; what it writes depends on all it has read so far, so that a wrong read shows. */
async function play(reader: Reader & Pick<Transaction, 'put' | 'remove'>, steps: readonly Step[], name: string) {
  const read: unknown[] = []
  const digest = () =>
    createHash('md5')
      .update(JSON.stringify([name, read]))
      .digest('hex')
  for (const step of steps) {
    if (step.do === 'range') {
      const { prefix, limit, reverse, after } = step
      read.push(await collect(reader.range('n', prefix, { limit, reverse, ...(after === undefined ? {} : { after }) })))
    } else if (step.do === 'pause') await new Promise(setImmediate)
    else if (step.do === 'get') read.push(await reader.get('n', step.key))
    else if (step.do === 'put') reader.put('n', step.key, digest())
    else reader.remove('n', step.key)
  }
  return read
}

/** The contract as a sorted list in memory. */
function createModel() {
  let entries: (readonly [Key, Versioned<unknown>])[] = []
  const at = (key: Key) => entries.findIndex(([other]) => compare(other, key) === 0)
  return {
    entries: () => entries,
    get: <V>(_: string, key: Key) => entries[at(key)]?.[1] as Versioned<V> | undefined,
    async *range<V>(
      _: string,
      prefix: Key,
      options: { limit?: number; reverse?: boolean; after?: Key } = {}
    ): AsyncGenerator<readonly [Key, Versioned<V>]> {
      const { after, limit, reverse } = options
      const inside = entries.filter(
        ([key]) =>
          compare(key.slice(0, prefix.length), prefix) === 0 &&
          (after === undefined || (reverse ? compare(key, after) < 0 : compare(key, after) > 0))
      )
      yield* (reverse ? inside.toReversed() : inside).slice(0, limit) as (readonly [Key, Versioned<V>])[]
    },
    put(_: string, key: Key, value: unknown) {
      const version = (entries[at(key)]?.[1].version ?? 0) + 1
      this.remove(_, key)
      entries = [...entries, [key, { value, version }] as const].sort(([a], [b]) => compare(a, b))
    },
    remove(_: string, key: Key) {
      entries = entries.filter(([other]) => compare(other, key) !== 0)
    }
  }
}

t.test('concurrent transactions read and leave what they would have one after the other', async (t) => {
  const store = await startStore(t)
  await fc.assert(
    fc.asyncProperty(fc.array(script, { minLength: 1, maxLength: 8 }), async (scripts) => {
      await store.atomically(async (tx) => {
        for await (const [key] of tx.range('n', [])) tx.remove('n', key)
      })
      const order: { steps: readonly Step[]; name: string; read: unknown }[] = []
      await Promise.all(
        scripts.map(async (steps, i) => {
          const name = `t${i}`
          const read = await store.atomically((tx) => {
            // Makes it a writer, whose place in the order is the one of its commit.
            tx.put('done', [name], true)
            return play(tx, steps, name)
          })
          order.push({ steps, name, read })
        })
      )
      const model = createModel()
      for (const { steps, name, read } of order) {
        if (JSON.stringify(await play(model, steps, name)) !== JSON.stringify(read))
          throw new Error(`${name} read wrong`)
      }
      const left = await collect(store.range('n', []))
      if (JSON.stringify(left) !== JSON.stringify(model.entries())) throw new Error('another end')
    }),
    { seed, numRuns: 80 }
  )
})
