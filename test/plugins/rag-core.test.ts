import { setImmediate as turn } from 'node:timers/promises'
import fc from 'fast-check'
import t from 'tap'
import {
  coverage,
  createRandom,
  findCollections,
  mistype,
  ndcg,
  readCollection,
  readSpans
} from '../../bench/collections.ts'
import { createTextIndex, inverseFrequency, type TextIndex, toScore } from '../../plugins/rag/bm25.ts'
import { createCache } from '../../plugins/rag/cache.ts'
import { bestChunks, type ChunkOptions, chunkDefaults, chunkText, findChunkStrategy } from '../../plugins/rag/chunk.ts'
import { createCloseMatcher, createMatcher, searchFuzzy } from '../../plugins/rag/fuzzy.ts'
import { assumedTrust, chooseTrust, fuse, gainsOf, type RankedHit } from '../../plugins/rag/fusion.ts'
import { buildSegment, decodeWords } from '../../plugins/rag/segment.ts'
import { createSegments } from '../../plugins/rag/segments.ts'
import { stemmers } from '../../plugins/rag/stem.ts'
import { type Analysis, createAnalyser, foldWord } from '../../plugins/rag/text.ts'
import type { Store, Transaction } from '../../plugins/store/types.ts'
import { multilingual } from '../fixtures/multilingual.ts'
import { collect, startHouse } from '../harness.ts'

type T = Parameters<typeof startHouse>[0]

const seed = Number(process.env['HEARTWOOD_TEST_SEED'] ?? Date.now() % 2 ** 31)
t.comment(`property tests: HEARTWOOD_TEST_SEED=${seed}`)

const analyser = createAnalyser()
const termsOf = (text: string) => [...analyser.analyse(text).terms]
const index = 'notes-1'

async function startIndex(t: T, dataFolder?: string): Promise<{ store: Store; text: TextIndex }> {
  const house = await startHouse(t, [], { http: false, ...(dataFolder === undefined ? {} : { dataFolder }) })
  const store = house.services('store')
  return { store, text: openIndex(store) }
}

const openIndex = (store: Store, cacheBytes = 1 << 20) => createTextIndex(store, { analyser, cacheBytes })

const add = (
  store: Store,
  text: TextIndex,
  texts: readonly string[],
  more?: (tx: Transaction, first: number) => void
) =>
  store.atomically(async (tx) => {
    const first = await text.reserve(tx, index, texts.length)
    await text.add(tx, index, first, buildSegment(texts.map((one) => analyser.analyse(one))))
    more?.(tx, first)
    return first
  })

const remove = (store: Store, text: TextIndex, first: number, count: number) =>
  store.atomically((tx) => text.remove(tx, index, first, count))

const ordinals = async (text: TextIndex, query: string, limit = 10) =>
  (await text.search(index, query, limit)).hits.map(({ ordinal }) => ordinal)

// ---- text

t.test('words are folded, stemmed and rid of stop words in the language of the text', (t) => {
  const rows: readonly (readonly [text: string, terms: readonly string[]])[] = [
    ['The budget owners are meeting on Mondays.', ['budget', 'owner', 'meet', 'mondai']],
    ['Die Häuser und das Haus in der Straße', ['haus', 'haus', 'strass']],
    ['Les chevaux et le cheval dans les journaux', ['cheval', 'cheval', 'journal']],
    ['Las canciones y la canción de los niños', ['cancion', 'cancion', 'nin']],
    ['библиотека, библиотеки и в библиотеке', ['библиотек', 'библиотек', 'библиотек']],
    ['المكتبة والمكتبات', ['مكتب', 'مكتب']],
    ['CAFÉ café cafe\u0301', ['cafe', 'cafe', 'cafe']],
    ['ﬁle №５', ['file', 'no5']],
    ['12,345 and 3.14', ['12345', '3.14']]
  ]
  for (const [text, terms] of rows) t.strictSame(termsOf(text), terms, text)
  t.end()
})

t.test('identifiers are found whole and by their words, however they are joined', (t) => {
  for (const name of ['parseHttpHeader', 'ParseHTTPHeader', 'parse_http_header', 'parse-http-header']) {
    const terms = new Set(termsOf(name))
    for (const part of ['pars', 'http', 'header']) t.ok(terms.has(part), `${part} of ${name}`)
  }
  t.ok(termsOf('loadUserProfile').includes('loaduserprofile'))
  t.ok(termsOf('load_user_profile').includes('loaduserprofile'))
  t.ok(termsOf('an e-mail').includes('email'))
  t.strictSame(termsOf('IL-6'), ['il', '6', 'il6'])
  t.end()
})

t.test('scripts without blanks between words become terms that a query shares', (t) => {
  t.strictSame(termsOf('数据库'), ['数据', '据库'])
  t.strictSame(termsOf('猫'), ['猫'])
  t.ok(termsOf('返却ポストは入口').includes('返却'))
  t.ok(termsOf('도서관은').includes('도서'))
  t.ok(termsOf('책을').includes('책') && termsOf('책이').includes('책'), 'a word of one syllable, under its particles')
  t.ok(termsOf('ห้องสมุดปิดทุกวัน').includes('สมุด'))
  const long = 'ห้องสมุดปิดทุกวัน'.repeat(40)
  t.equal(termsOf(long).filter((term) => term === 'ปิด').length, 40, 'also where it is cut for the segmenter')
  t.end()
})

t.test('the parts of a German compound are terms, and add nothing to its length', (t) => {
  const { terms, length, language } = analyser.analyse('Der Krankenversicherungsbeitrag ist fällig')
  t.equal(language, 'de')
  for (const part of ['Versicherungsbeitrag', 'Beitrag', 'Krankenversicherung']) {
    t.ok(terms.includes(stemmers.de(foldWord(part))), part)
  }
  t.equal(length, 2)
  t.end()
})

t.test('the language of a text is told by its stop words, and that of a query is no more than a guess', (t) => {
  t.equal(analyser.detect('the owner of the budget is in the house'), 'en')
  t.equal(analyser.detect('der Haushalt ist in dem Haus und nicht hier'), 'de')
  t.equal(analyser.detect('le budget est dans la maison avec les autres'), 'fr')
  t.equal(analyser.detect('el presupuesto está en la casa con los otros'), 'es')
  t.equal(analyser.detect('12345 67890'), undefined)
  const words = analyser.analyseQuery('Häuser running', ['en', 'de'], 10)
  t.strictSame(
    words.map(({ terms }) => [...terms].sort()),
    [
      ['haus', 'hauser'],
      ['run', 'running']
    ]
  )
  t.strictSame(analyser.analyseQuery('the and of to', ['en', 'fr'], 10), [])
  t.end()
})

t.test('every text has terms without blanks, as many words as terms, and the same ones each time', (t) => {
  const alphabet = fc.constantFrom(
    ...['a', 'B', 'z', 'é', 'ß', 'İ', '1', '.', ',', '_', '-', ' ', '\n', '\0', "'", '’', '界', 'か', 'が', 'ポ', '한'],
    ...[
      'ไ',
      'ท',
      'ย',
      'ـ',
      'ع',
      'أ',
      'क',
      '्',
      'й',
      'ё',
      '\u0301',
      '\u200d',
      '\u00ad',
      '😀',
      '🇩',
      '\ud800',
      '\udc00',
      'ﬁ',
      '½'
    ]
  )
  fc.assert(
    fc.property(fc.array(alphabet, { maxLength: 60 }), (letters) => {
      const text = letters.join('')
      const one = analyser.analyse(text)
      t.strictSame(one, createAnalyser().analyse(text))
      if (one.terms.some((term) => term === '' || /\s/.test(term))) throw new Error(`a term with a blank in ${text}`)
      if (one.terms.length !== one.words.length || one.length > one.terms.length) throw new Error('lengths differ')
      const asked = new Set(analyser.analyseQuery(text, [one.language], 1_000).flatMap(({ terms }) => terms))
      for (const term of one.terms) if (!asked.has(term)) throw new Error(`'${term}' is not asked for by its own text`)
    }),
    { seed, numRuns: 300 }
  )
  t.end()
})

t.test('English is stemmed as Porter published it', (t) => {
  const rows =
    'caresses:caress ponies:poni cats:cat feed:feed agreed:agre plastered:plaster bled:bled motoring:motor sing:sing conflated:conflat troubled:troubl sized:size hopping:hop falling:fall hissing:hiss fizzed:fizz failing:fail filing:file happy:happi sky:sky relational:relat conditional:condit valenci:valenc digitizer:digit operator:oper feudalism:feudal decisiveness:decis hopefulness:hope callousness:callous sensibiliti:sensibl triplicate:triplic formalize:formal electrical:electr goodness:good revival:reviv allowance:allow inference:infer airliner:airlin adjustable:adjust irritant:irrit replacement:replac adoption:adopt communism:commun activate:activ effective:effect probate:probat rate:rate cease:ceas controlling:control roll:roll'
  for (const row of rows.split(' ')) {
    const [word = '', stem = ''] = row.split(':')
    t.equal(stemmers.en(word), stem, word)
  }
  t.end()
})

// ---- chunks

t.test('the windows of words and characters are those of the specification', (t) => {
  const words = Array.from({ length: 400 }, (_, at) => `w${at}`).join(' ')
  const firsts = chunkText(words, chunkDefaults.word).map(({ text }) => text.split(' ')[0])
  t.strictSame(firsts, ['w0', 'w150', 'w300'])
  t.equal(chunkText(words.split(' ').slice(0, 60).join(' '), chunkDefaults.word).length, 1)
  const starts = chunkText('x'.repeat(1_000), chunkDefaults.character).map(({ start }) => start)
  t.strictSame(starts, [0, 400, 800])
  t.end()
})

t.test('two paragraphs that do not fit together are two chunks', (t) => {
  const one = `one ${'word '.repeat(79)}`.trim()
  const chunks = chunkText(`${one}\n\n${one}`, chunkDefaults.semantic)
  t.strictSame(
    chunks.map(({ text }) => text),
    [one, one]
  )
  t.end()
})

t.test('strategies have aliases, in any case', (t) => {
  t.equal(findChunkStrategy('Words'), 'word')
  t.equal(findChunkStrategy('SENTENCE'), 'semantic')
  t.equal(findChunkStrategy('paragraph'), 'semantic')
  t.equal(findChunkStrategy('chars'), 'character')
  for (const name of ['foo', '', 'constructor', '__proto__']) t.equal(findChunkStrategy(name), undefined, name)
  t.end()
})

t.test('a text with too little to see makes no chunk', (t) => {
  for (const text of [
    '',
    'short',
    '\n\n\t  \n',
    '\u200b\u200b\ufeff\u200b'.repeat(20),
    '\u00a0\u2003\u3000'.repeat(20)
  ]) {
    for (const options of Object.values(chunkDefaults)) t.strictSame(chunkText(text, options), [])
  }
  t.equal(chunkText('図書館は月曜日に休む', chunkDefaults.word).length, 1, 'ten characters of three bytes')
  t.end()
})

t.test('code stays whole and headings stay with what follows', (t) => {
  const code = `\`\`\`js\n${'const a = 1\n'.repeat(25)}\`\`\``
  const text = `# Title\n\n${'An opening sentence. '.repeat(16)}\n\n## Code\n\n${code}\n\nThen there is more text. ${'More. '.repeat(60)}`
  const chunks = chunkText(text, chunkDefaults.semantic)
  t.ok(
    chunks.some((chunk) => chunk.text.includes(code)),
    'the block is in one chunk'
  )
  t.notOk(
    chunks.some((chunk) => /#+ \w+$/.test(chunk.text)),
    'no chunk ends with a heading'
  )
  t.end()
})

t.test('a word, sentence or line is not cut where a chunk can end between two', (t) => {
  const sentences = Array.from({ length: 40 }, (_, at) => `Sentence number ${at} is about harbours and lamps.`)
  for (const { text } of chunkText(sentences.join(' '), chunkDefaults.semantic)) t.match(text, /^Sentence.*\.$/)
  const thai = 'ห้องสมุดปิดทุกวันจันทร์และเปิดวันอังคาร'.repeat(30)
  const segmenter = new Intl.Segmenter('th', { granularity: 'word' })
  const unit = [...segmenter.segment('ห้องสมุดปิดทุกวันจันทร์และเปิดวันอังคาร')].map((one) => one.index)
  for (const { start } of chunkText(thai, chunkDefaults.semantic)) {
    t.ok(unit.includes(start % 'ห้องสมุดปิดทุกวันจันทร์และเปิดวันอังคาร'.length), `a word begins at ${start}`)
  }
  t.end()
})

const graphemes = new Intl.Segmenter('und', { granularity: 'grapheme' })

t.test('chunks hold all of a text at the offsets they tell, and cut no grapheme', (t) => {
  const piece = fc.constantFrom(
    ...[
      'a',
      'word ',
      'A sentence. ',
      '\n',
      '\n\n',
      '\r\n',
      '# Heading\n',
      '= Heading =\n',
      '```\n',
      '~~~\ncode\n~~~\n',
      '   '
    ],
    ...[
      '界',
      '漢字。',
      'かな',
      'ไทย',
      'क्षि',
      'é',
      'e\u0301',
      'o\u0308\u0323',
      '👩‍👩‍👧',
      '🇩🇪',
      '👍🏽',
      '\u200d',
      '한글 ',
      'x'.repeat(70)
    ]
  )
  const options = fc.oneof(
    fc.constantFrom<ChunkOptions>(bestChunks, ...Object.values(chunkDefaults)),
    fc.record<ChunkOptions>({
      strategy: fc.constantFrom('word', 'semantic', 'character'),
      size: fc.integer({ min: 30, max: 90 }),
      overlap: fc.integer({ min: 0, max: 29 })
    })
  )
  fc.assert(
    fc.property(fc.array(piece, { maxLength: 120 }), options, (pieces, options) => {
      const text = pieces.join('')
      const chunks = chunkText(text, options)
      const borders = new Set([...graphemes.segment(text)].map((one) => one.index).concat(text.length))
      let reached = 0
      let last = -1
      for (const chunk of chunks) {
        if (text.slice(chunk.start, chunk.end) !== chunk.text) throw new Error('other text than at its offsets')
        if (chunk.text.trim() === '') throw new Error('a blank chunk')
        if (chunk.start <= last) throw new Error('no progress')
        if (!borders.has(chunk.start) || !borders.has(chunk.end))
          throw new Error(`inside a grapheme: ${chunk.start} to ${chunk.end}`)
        if (text.slice(reached, Math.max(reached, chunk.start)).trim() !== '')
          throw new Error(`lost before ${chunk.start}`)
        if (options.strategy === 'semantic' && chunk.text.length > Math.max(options.size, 30))
          throw new Error('too long')
        last = chunk.start
        reached = Math.max(reached, chunk.end)
      }
      if (chunks.length > 0 && text.slice(reached).trim() !== '') throw new Error('the end is lost')
    }),
    { seed, numRuns: 500 }
  )
  t.end()
})

t.test('two flags in a row are two, wherever a chunk ends', (t) => {
  const chunks = chunkText('word 🇩🇪🇩🇪a# Heading\no\u0308\u0323word ', { strategy: 'semantic', size: 30, overlap: 0 })
  t.strictSame(
    chunks.map(({ start, end }) => [start, end]),
    [
      [0, 9],
      [9, 31]
    ]
  )
  t.end()
})

t.test('one run without a break is cut all the same, in time that grows with its length', (t) => {
  for (const unit of ['a', 'AAAA/BBBB+', '😀', '界', '\u0301', '🇩🇪', '```x\n']) {
    const text = unit.repeat(Math.ceil(220_000 / unit.length))
    for (const options of [...Object.values(chunkDefaults), bestChunks]) {
      const chunks = chunkText(text, options)
      t.equal(chunks[0]?.start, 0)
      t.ok((chunks.at(-1)?.end ?? 0) >= text.trimEnd().length)
      t.ok(Math.max(...chunks.map((one) => one.text.length)) <= 14_000, `${unit.slice(0, 3)} by ${options.strategy}`)
    }
  }
  t.end()
})

// ---- the index

/** BM25 by its definition, over texts that are there. */
function naive(
  texts: ReadonlyMap<number, Analysis>,
  query: string
): readonly (readonly [ordinal: number, raw: number])[] {
  const average = [...texts.values()].reduce((sum, one) => sum + one.length, 0) / Math.max(1, texts.size)
  const sums = new Map<number, number>()
  for (const { weight, terms } of analyser.analyseQuery(query, ['en'], 256)) {
    for (const term of terms) {
      const having = [...texts].filter(([, one]) => one.terms.includes(term))
      const idf = Math.log(1 + (texts.size - having.length + 0.5) / (having.length + 0.5))
      for (const [ordinal, { terms, length }] of having) {
        const count = terms.filter((one) => one === term).length
        const raw = (weight * idf * count * 2.2) / (count + 1.2 * (0.25 + (0.75 * length) / average))
        sums.set(ordinal, (sums.get(ordinal) ?? 0) + raw)
      }
    }
  }
  return [...sums].sort(([a, x], [b, y]) => y - x || a - b)
}

t.test('a segment that is written again while what was left of it is taken away is there whole', async (t) => {
  const real = (await startHouse(t, [], { http: false })).services('store')
  let ranges = 0
  let letGo = () => {}
  const held = new Promise<void>((resolve) => (letGo = resolve))
  const store: Store = {
    ...real,
    range(collection, prefix, options) {
      ranges += collection === 'parts' ? 1 : 0
      const waits = collection === 'parts' && ranges === 2
      return (async function* () {
        if (waits) await held
        yield* real.range(collection, prefix, options)
      })() as ReturnType<Store['range']> as never
    }
  }
  const open = (on: Store) =>
    createSegments(on, {
      collection: 'parts',
      looseCollection: 'loose',
      work,
      clock: () => performance.now(),
      partsAtOnce: 8
    })
  const work = { staging: new Set<string>(), freeing: new Map(), maintained: new Map() }
  const write = async (on: Store, text: string) => {
    await on.atomically((tx) => {
      for (let part = 0; part < 4; part++) tx.put('parts', ['i', '0-1', 'rows', part], text)
    })
  }
  await open(real).stage('i', '0-1', () => write(real, 'left behind'))
  work.staging.clear()
  const segments = open(store)
  const swept = segments.freeLoose([])
  while (ranges < 2) await turn()
  let isBuilt = false
  const built = segments.build('i', '0-1', () => write(real, 'anew')).finally(() => (isBuilt = true))
  for (let turns = 0; turns < 2_000 && !isBuilt; turns++) await turn()
  letGo()
  await Promise.all([swept, built])
  t.strictSame(
    (await collect(real.range<string>('parts', []))).map(([, { value }]) => value),
    ['anew', 'anew', 'anew', 'anew']
  )
})

t.test('whatever is added, removed and merged, the index answers as the definition does', async (t) => {
  const { store } = await startIndex(t)
  const word = fc.constantFrom(
    'cat',
    'dog',
    'harbour',
    'getUserName',
    'user',
    '数据库',
    'e-mail',
    'running',
    'run',
    '7',
    'x'
  )
  const text = fc.array(word, { minLength: 0, maxLength: 12 }).map((words) => words.join(' '))
  const step = fc.oneof(
    { weight: 6, arbitrary: fc.record({ add: fc.array(text, { minLength: 1, maxLength: 5 }) }) },
    { weight: 3, arbitrary: fc.record({ remove: fc.nat(40), count: fc.integer({ min: 1, max: 6 }) }) },
    { weight: 1, arbitrary: fc.constant({ maintain: true }) },
    { weight: 1, arbitrary: fc.constant({ reopen: true }) },
    { weight: 3, arbitrary: fc.record({ query: text }) }
  )
  let round = 0
  await fc.assert(
    fc.asyncProperty(fc.array(step, { minLength: 5, maxLength: 60 }), async (steps) => {
      const name = `property-${round++}`
      let index = openIndex(store, 20_000)
      const there = new Map<number, Analysis>()
      const compare = async (query: string) => {
        const wanted = naive(there, query)
        const found = await index.search(name, query, 100)
        const same =
          found.total === wanted.length &&
          found.hits.every(({ ordinal, raw }, at) => {
            // Sums in another order differ in their last digits, and so may the order of equals.
            const own = wanted.find(([one]) => one === ordinal)
            return own !== undefined && Math.abs(own[1] - raw) < 1e-9 && Math.abs(wanted[at]![1] - raw) < 1e-9
          })
        if (!same) throw new Error(`${query}: ${JSON.stringify({ wanted, found })}`)
      }
      for (const step of steps) {
        if ('add' in step) {
          const analyses = step.add.map((one) => analyser.analyse(one, 'en'))
          await store.atomically(async (tx) => {
            const first = await index.reserve(tx, name, analyses.length)
            await index.add(tx, name, first, buildSegment(analyses))
            analyses.forEach((one, at) => there.set(first + at, one))
          })
        } else if ('remove' in step) {
          const removed = await store.atomically((tx) => index.remove(tx, name, step.remove, step.count))
          let gone = 0
          for (let at = 0; at < step.count; at++) if (there.delete(step.remove + at)) gone += 1
          if (removed !== gone) throw new Error(`removed ${removed} of ${gone}`)
        } else if ('maintain' in step) await index.maintain(name)
        else if ('reopen' in step) index = openIndex(store, 20_000)
        else await compare(step.query)
      }
      await index.maintain(name)
      for (const query of ['cat dog', 'user name', '数据', 'email run']) await compare(query)
      t.equal((await index.size(name)).chunks, there.size)
    }),
    { seed, numRuns: 40 }
  )
})

t.test('a document is in the index when its transaction has committed, and not before or otherwise', async (t) => {
  const { store, text } = await startIndex(t)
  await add(store, text, ['the first harbour'], (tx, first) => tx.put('documents', ['a'], { first }))
  const refused = add(store, text, ['the second harbour'], () => {
    throw new Error('the document is refused')
  })
  await t.rejects(refused, /refused/)
  t.strictSame(await ordinals(text, 'harbour'), [0])
  t.strictSame(await text.size(index), { chunks: 1, length: 2, segments: 1, languages: ['en'] })

  await t.rejects(
    store.atomically(async (tx) => {
      await text.remove(tx, index, 0, 1)
      throw new Error('not deleted after all')
    })
  )
  t.strictSame(await ordinals(text, 'harbour'), [0])
})

t.test('an index is opened as it was left, without building it again', async (t) => {
  const { store, text } = await startIndex(t)
  for (let at = 0; at < 20; at++) await add(store, text, [`harbour number ${at}`, `lamp number ${at}`])
  await remove(store, text, 4, 2)
  const before = await text.search(index, 'harbour 7', 5)

  let reads = 0
  let writes = 0
  const watched: Store = {
    ...store,
    get: (collection, key) => {
      reads += 1
      return store.get(collection, key)
    },
    atomically: (work, options) => {
      writes += 1
      return store.atomically(work, options)
    }
  }
  t.strictSame(await openIndex(watched).search(index, 'harbour 7', 5), before)
  t.equal(writes, 0)
  t.ok(reads < 100, `${reads} reads`)
})

t.test('many small documents become few segments, and leave nothing behind', async (t) => {
  const { store, text } = await startIndex(t)
  for (let at = 0; at < 120; at++) {
    await add(store, text, [`note ${at} about harbour ${at % 7}`])
    await text.maintain(index)
  }
  const { segments, chunks } = await text.size(index)
  t.equal(chunks, 120)
  t.ok(segments <= 16, `${segments} segments`)
  t.equal((await text.search(index, 'harbour', 1_000)).hits.length, 120)
  t.strictSame(await collect(store.range('rag-loose', [])), [])
  const kept = new Set((await collect(store.range('rag-index', [index]))).map(([key]) => key[1]))
  t.equal(kept.size, segments + 1, 'the segments and the head')

  await remove(store, text, 0, 90)
  await text.maintain(index)
  t.equal((await text.search(index, 'harbour', 1_000)).hits.length, 30)
  await store.atomically((tx) => text.drop(tx, index))
  t.strictSame(await text.search(index, 'harbour', 10), { hits: [], total: 0 })
  await text.maintain(index)
  t.strictSame(await collect(store.range('rag-index', [])), [])
  t.strictSame(await collect(store.range('rag-loose', [])), [])
})

t.test('what is staged is found once it is added; what never is goes at the next start', async (t) => {
  const { store, text } = await startIndex(t)
  const segment = buildSegment(['a staged harbour', 'another one'].map((one) => analyser.analyse(one)))
  const first = await store.atomically((tx) => text.reserve(tx, index, 2))
  const staged = await text.stage(index, first, segment)
  t.strictSame(await ordinals(text, 'harbour'), [])
  await text.maintain(index)
  await store.atomically((tx) => text.add(tx, index, first, staged))
  t.strictSame(await ordinals(text, 'harbour'), [first])
  await text.maintain(index)
  t.strictSame(await ordinals(text, 'harbour'), [first], 'maintenance takes it for what it is')

  const next = await store.atomically((tx) => text.reserve(tx, index, 2))
  await text.stage(index, next, segment)
  const before = (await collect(store.range('rag-index', [index]))).length
  await openIndex(store).sweep()
  t.ok((await collect(store.range('rag-index', [index]))).length < before)
  t.strictSame(await collect(store.range('rag-loose', [])), [])
  t.strictSame(await ordinals(text, 'harbour'), [first])

  const last = await store.atomically((tx) => text.reserve(tx, index, 2))
  await text.discard(index, await text.stage(index, last, segment))
  t.strictSame(await collect(store.range('rag-loose', [])), [])
})

t.test('what was staged, added and dropped goes without waiting for a start', async (t) => {
  const { store, text } = await startIndex(t)
  const segment = buildSegment(['a staged harbour', 'another one'].map((one) => analyser.analyse(one)))
  const first = await store.atomically((tx) => text.reserve(tx, index, 2))
  const staged = await text.stage(index, first, segment)
  await store.atomically((tx) => text.add(tx, index, first, staged))
  await store.atomically((tx) => text.drop(tx, index))
  await text.maintain(index)
  t.strictSame(await collect(store.range('rag-index', [])), [])
  t.strictSame(await collect(store.range('rag-loose', [])), [])
})

t.test('a merge lets others through, however long its blocks are', async (t) => {
  const { store } = await startIndex(t)
  let asked = 0
  // Every look at the clock is a turn later, so each of them ends a slice.
  const text = createTextIndex(store, { analyser, cacheBytes: 1 << 20, clock: () => ++asked * 1_000 })
  const words = 1_600
  for (let at = 0; at < 8; at++) {
    const chunk = Array.from({ length: words / 8 }, (_, word) => `w${at * 1_000 + word}q`).join(' ')
    await store.atomically(async (tx) => {
      await text.add(tx, index, await text.reserve(tx, index, 1), buildSegment([analyser.analyse(chunk)]))
    })
  }
  asked = 0
  await text.maintain(index)
  t.equal((await text.size(index)).segments, 1)
  // Terms and words are walked once each, at most 64 at a time.
  t.ok(asked >= (2 * words) / 64, `the clock was asked ${asked} times`)
})

t.test('what does not fit into the cache is not kept, also where all of it belongs together', async (t) => {
  const { store } = await startIndex(t)
  let reads = 0
  const counted: Store = Object.create(store, {
    get: {
      value: (...args: Parameters<Store['get']>) => {
        reads += 1
        return store.get(...args)
      }
    }
  })
  const text = openIndex(counted, 65_536)
  const chunks = Array.from({ length: 1_000 }, (_, at) => analyser.analyse(at === 0 ? 'copper' : 'tin'))
  const names = Array.from({ length: 10 }, (_, at) => `index ${at}`)
  for (const name of names) {
    await store.atomically(async (tx) => {
      await text.add(tx, name, await text.reserve(tx, name, chunks.length), buildSegment(chunks))
    })
  }
  const readsOf = async (some: readonly string[]) => {
    reads = 0
    for (const name of some) t.equal((await text.search(name, 'copper', 1)).hits.length, 1)
    return reads
  }
  const fresh = await readsOf(names.slice(0, 1))
  t.ok((await readsOf(names.slice(0, 1))) < fresh, 'one fits')
  // None was left alone for long.
  for (const at of names.keys()) await readsOf(names.slice(0, at + 1))
  t.ok((await readsOf(names)) >= (names.length / 2) * fresh, 'ten do not')
})

t.test('searches, changes and merges at once mix nothing up', async (t) => {
  const { store, text } = await startIndex(t)
  const live = new Map<number, boolean>()
  let ended = false
  const searching = Promise.all(
    [0, 1].map(async () => {
      let rounds = 0
      while (!ended) {
        const removed = [...live].filter(([, there]) => !there).map(([ordinal]) => ordinal)
        const known = [...live].filter(([, there]) => there).map(([ordinal]) => ordinal)
        const found = new Set(await ordinals(text, 'copper wire', 10_000))
        for (const ordinal of removed) if (found.has(ordinal)) throw new Error(`${ordinal} was found after its removal`)
        for (const ordinal of known)
          if (live.get(ordinal) === true && !found.has(ordinal)) throw new Error(`${ordinal} was missed`)
        rounds += 1
        await new Promise((resolve) => setImmediate(resolve))
      }
      return rounds
    })
  )
  const changing = (async () => {
    const maintained: Promise<void>[] = []
    const random = createRandom(seed)
    for (let at = 0; at < 40; at++) {
      const first = await add(store, text, ['copper wire', 'tin and copper', `wire ${at}`])
      for (let one = first; one < first + 3; one++) live.set(one, true)
      if (random() < 0.5) {
        const gone = Math.floor(random() * (first + 1))
        for (let one = gone; one < gone + 3; one++) live.delete(one)
        await remove(store, text, gone, 3)
        for (let one = gone; one < gone + 3 && one < first + 3; one++) live.set(one, false)
      }
      maintained.push(text.maintain(index))
    }
    await Promise.all(maintained)
  })()
  await changing.finally(() => (ended = true))
  t.ok((await searching).every((rounds) => rounds > 10))
  const there = [...live].filter(([, one]) => one).map(([ordinal]) => ordinal)
  t.strictSame(
    (await ordinals(text, 'copper wire', 10_000)).sort((a, b) => a - b),
    there.sort((a, b) => a - b)
  )
})

t.test('indexes of different names share nothing', async (t) => {
  const { store, text } = await startIndex(t)
  const put = (name: string, one: string) =>
    store.atomically(async (tx) => {
      await text.add(tx, name, await text.reserve(tx, name, 1), buildSegment([analyser.analyse(one)]))
    })
  await put('anna', 'the secret harbour')
  await put('anna\0', 'nothing here')
  await put('berta', 'the public lamp')
  t.equal((await text.search('berta', 'secret harbour', 10)).total, 0)
  t.equal((await text.search('anna\0', 'secret harbour', 10)).total, 0)
  t.equal((await text.search('anna', 'secret harbour', 10)).total, 1)
})

t.test('scores lie between 0 and 1, keep the order, and mean the same for every query', async (t) => {
  const { store, text } = await startIndex(t)
  await add(store, text, ['budget owners meet here', 'budget only in here', 'nothing of it there'])
  const { hits } = await text.search(index, 'budget owners', 10)
  t.strictSame(
    hits.map(({ ordinal }) => ordinal),
    [0, 1]
  )
  t.ok(hits[0]!.score > 0.6 && hits[0]!.score < 0.85, `all of the query: ${hits[0]!.score}`)
  t.ok(hits[1]!.score > 0 && hits[1]!.score < hits[0]!.score)
  const weaker = (await text.search(index, 'budget owners xylophone', 10)).hits[0]!
  t.ok(weaker.score < hits[0]!.score, 'a word that nobody has lowers the score')
  t.equal(toScore(0, 5), 0)
  t.equal(toScore(5, 5), 0.75)
  t.ok(toScore(11, 5) < 1)
  t.equal(toScore(1, 0), 0)
  t.ok(inverseFrequency(10, 10) > 0, 'a word of every chunk still counts')
})

t.test('a query without a usable word finds nothing, one of any length is answered', async (t) => {
  const { store, text } = await startIndex(t)
  await add(store, text, ['The committee will meet on Tuesday to review the harbour plan.'])
  for (const query of ['the and of to', 'a', '!!!', '   ', '', '\u200b', '\ud800']) {
    t.strictSame(await text.search(index, query, 10), { hits: [], total: 0 }, JSON.stringify(query))
  }
  const long = await text.search(index, `harbour ${'lighthouse keeper number 7 '.repeat(4_000)}`, 10)
  t.equal(long.total, 1)
  t.ok(Number.isFinite(long.hits[0]!.score))
  for (const limit of [0, -1]) t.strictSame((await text.search(index, 'harbour', limit)).hits, [])
  t.equal((await text.search(index, 'harbour', 1e9)).hits.length, 1)
})

t.test('a cache holds no more than its limit, and what is asked for stays', (t) => {
  const cache = createCache<number>(100)
  cache.set('hot', 1, 10)
  for (let at = 0; at < 1_000; at++) {
    cache.set(`cold ${at}`, at, 10)
    t.equal(cache.get('hot'), 1)
  }
  const kept = Array.from({ length: 1_000 }, (_, at) => cache.get(`cold ${at}`)).filter((one) => one !== undefined)
  t.ok(kept.length <= 10, `${kept.length} of 1,000`)
  t.end()
})

// ---- fuzzy

t.test('slips are corrected, and told; the exact spelling scores highest', async (t) => {
  const { store, text } = await startIndex(t)
  await add(store, text, [
    'Please receive the parcel before Wednesday and sign the form.',
    'Lamps and ropes for the harbour.'
  ])
  const find = (query: string) => searchFuzzy(text, analyser, index, query, 10)
  const exact = (await find('receive')).hits[0]!
  t.ok((await find('harbour')).hits[0]!.score > (await find('harbor')).hits[0]!.score)
  for (const query of ['recieve', 'Wednesady', 'parecl', 'fomr', 'recieve parecl', 'recive', 'recceive']) {
    const found = await find(query)
    t.equal(found.hits[0]?.ordinal, 0, query)
    t.ok(found.hits[0]!.score < exact.score, `${query} scores below the exact spelling`)
    t.equal(found.corrections.length, query.split(' ').length)
  }
  t.strictSame((await find('recieve')).corrections, [{ word: 'recieve', corrections: ['receive'] }])
  t.strictSame((await find('receive')).corrections, [])
  t.strictSame(await find('xylophone'), { hits: [], total: 0, corrections: [] })
  t.equal((await find('the and of')).total, 0)
})

t.test('the words near a word are those that the distance says', (t) => {
  const distance = (a: string, b: string): number => {
    const rows = [Array.from({ length: b.length + 1 }, (_, at) => at)]
    for (let i = 1; i <= a.length; i++) {
      const row = [i]
      for (let j = 1; j <= b.length; j++) {
        let least = Math.min(
          rows[i - 1]![j]! + 1,
          row[j - 1]! + 1,
          rows[i - 1]![j - 1]! + (a[i - 1] === b[j - 1] ? 0 : 1)
        )
        if (i > 1 && j > 1 && a[i - 1] === b[j - 2] && a[i - 2] === b[j - 1])
          least = Math.min(least, rows[i - 2]![j - 2]! + 1)
        row.push(least)
      }
      rows.push(row)
    }
    return rows[a.length]![b.length]!
  }
  const word = fc.string({ unit: fc.constantFrom('a', 'b', 'c', 'é'), minLength: 1, maxLength: 8 })
  fc.assert(
    fc.property(
      fc.uniqueArray(word, { minLength: 1, maxLength: 150 }),
      word,
      fc.constantFrom(1, 2),
      (list, sought, most) => {
        const words = list.sort()
        const block = decodeWords({
          words: words.join(' '),
          terms: words.map(() => '').join(' '),
          counts: words.map(() => 1)
        })
        const matchers = [createMatcher(sought, most)]
        if (most === 1 && sought.length > 2) matchers.push(createCloseMatcher(sought, most))
        for (const match of matchers) {
          const found: [string, number][] = []
          match(block, (place, edits) => found.push([words[place]!, edits]))
          const wanted = words.flatMap((one): [string, number][] =>
            distance(sought, one) <= most ? [[one, distance(sought, one)]] : []
          )
          const inOrder = (all: [string, number][]) => all.sort(([a], [b]) => (a < b ? -1 : 1))
          t.strictSame(inOrder(found), inOrder(wanted))
        }
      }
    ),
    { seed, numRuns: 300 }
  )
  t.end()
})

// ---- fusion

const list = (...hits: readonly (readonly [id: number, raw: number, score?: number])[]): readonly RankedHit<number>[] =>
  hits.map(([id, raw, score = raw]) => ({ id, raw, score }))

t.test('one list alone is answered in its order', (t) => {
  const hits = list([3, 9, 0.8], [1, 4, 0.5], [2, 1, 0.2])
  for (const fused of [fuse(hits, [], 0.5, 10), fuse([], hits, 0.1, 10)]) {
    t.strictSame(
      fused.hits.map(({ id }) => id),
      [3, 1, 2]
    )
    t.equal(fused.hits[0]!.score, 0.8)
  }
  t.strictSame(fuse([], [], 1, 10).hits, [])
  t.end()
})

t.test('a distrusted list does not outvote sure words; without words it decides', (t) => {
  const lexical = list([1, 10, 0.8], [2, 6, 0.6])
  const semantic = list(...Array.from({ length: 20 }, (_, at): [number, number] => [at + 10, 0.5 - at / 100]))
  t.equal(fuse(lexical, semantic, 0.05, 10).hits[0]!.id, 1)
  const unsure = fuse(list([1, 1, 0.05]), semantic, 0.6, 10)
  t.equal(unsure.hits[0]!.id, 10)
  t.ok(unsure.semanticWeight > fuse(lexical, semantic, 0.6, 10).semanticWeight)
  t.end()
})

t.test('fused scores are in order and between 0 and 1, and every hit comes once', (t) => {
  const hits = fc
    .uniqueArray(fc.record({ id: fc.nat(40), raw: fc.double({ min: -1, max: 30, noNaN: true }) }), {
      selector: (one) => one.id,
      maxLength: 30
    })
    .map((all) =>
      all.sort((a, b) => b.raw - a.raw).map(({ id, raw }) => ({ id, raw, score: Math.min(1, Math.max(0, raw / 30)) }))
    )
  fc.assert(
    fc.property(
      hits,
      hits,
      fc.double({ min: 0, max: 1, noNaN: true }),
      fc.nat(50),
      (lexical, semantic, trust, limit) => {
        const fused = fuse(
          lexical.filter(({ raw }) => raw > 0),
          semantic,
          trust,
          limit
        )
        t.ok(fused.hits.length <= limit)
        t.equal(new Set(fused.hits.map(({ id }) => id)).size, fused.hits.length)
        t.ok(fused.hits.every(({ score }, at) => score >= 0 && score <= 1 && score <= (fused.hits[at - 1]?.score ?? 1)))
      }
    ),
    { seed, numRuns: 300 }
  )
  t.end()
})

t.test('fusion is no worse than its best part, whether the encoder is strong, weak or guessing', (t) => {
  const random = createRandom(11)
  const gauss = () => Math.sqrt(-2 * Math.log(random() || 1e-9)) * Math.cos(2 * Math.PI * random())
  /** Scores of 60 documents, of which the first answers with `gain` above the rest. */
  const ranked = (gain: number, map: (raw: number) => number): readonly RankedHit<number>[] =>
    Array.from({ length: 60 }, (_, id) => ({ id, raw: Math.max(0.01, 0.3 + 0.1 * gauss() + (id === 0 ? gain : 0)) }))
      .sort((a, b) => b.raw - a.raw)
      .map(({ id, raw }) => ({ id, raw, score: map(raw) }))
  const answer = new Map([['0', 1]])
  const quality = (hits: readonly { readonly id: number }[]) =>
    ndcg(
      hits.map(({ id }) => String(id)),
      answer
    )
  for (const [encoder, semanticGain] of Object.entries({ strong: 0.35, middling: 0.2, weak: 0.1, guessing: 0 })) {
    const questions = Array.from({ length: 96 }, () =>
      gainsOf(
        0,
        ranked(0.25, (raw) => Math.min(1, raw * 1.5)),
        ranked(semanticGain, (raw) => Math.min(1, raw))
      )
    )
    const trust = chooseTrust(questions)
    const sums = { lexical: 0, semantic: 0, fused: 0 }
    for (let query = 0; query < 500; query++) {
      const lexical = ranked(0.25, (raw) => Math.min(1, raw * 1.5))
      const semantic = ranked(semanticGain, (raw) => Math.min(1, raw))
      sums.lexical += quality(lexical)
      sums.semantic += quality(semantic)
      sums.fused += quality(fuse(lexical, semantic, trust, 10).hits)
    }
    const share = sums.fused / Math.max(sums.lexical, sums.semantic)
    t.ok(share >= 0.995, `${encoder}: ${share.toFixed(3)} of the best part, trust ${trust}`)
  }
  t.end()
})

t.test('trust follows the questions whose answer is known; few of them, or none, tell little', (t) => {
  const words = list([1, 5, 0.8], [2, 3, 0.6])
  const right = list([1, 0.9], [3, 0.1], [4, 0.05])
  const wrong = list([9, 0.9], [8, 0.1], [7, 0.05])
  t.equal(chooseTrust([]), assumedTrust)
  t.equal(chooseTrust([gainsOf(1, words, right)]), assumedTrust, 'nothing is lost by either')
  const many = (answer: number, semantic: typeof words) =>
    chooseTrust(Array.from({ length: 96 }, () => gainsOf(answer, words, semantic)))
  t.equal(many(1, right), assumedTrust)
  t.ok(many(3, list([3, 0.9], [1, 0.1], [4, 0.05])) >= 0.8)
  const misled = many(1, wrong)
  t.ok(gainsOf(1, words, wrong).at(-1)! < 1, 'a list that is wholly believed may mislead')
  t.equal(fuse(words, wrong, misled, 10).hits[0]!.id, 1)
  t.end()
})

// ---- what is found

t.test('in eleven languages and in code, the text that answers comes first', async (t) => {
  const { store, text } = await startIndex(t)
  await add(
    store,
    text,
    multilingual.map((one) => one.text)
  )
  const missed: string[] = []
  for (const [at, { question, language }] of multilingual.entries()) {
    const [first] = await ordinals(text, question, 1)
    if (first !== at) missed.push(`${language}: ${question}`)
    const fuzzy = await searchFuzzy(text, analyser, index, question, 3)
    t.ok(
      fuzzy.hits.some(({ ordinal }) => ordinal === at),
      `fuzzy: ${question}`
    )
  }
  t.ok(multilingual.length >= 60)
  t.ok(
    missed.length <= multilingual.length * 0.05,
    `${missed.length} of ${multilingual.length} missed: ${missed.join('; ')}`
  )
})

const folder = findCollections()
const skip = folder === undefined ? 'HEARTWOOD_TEST_DATA names no folder with ir' : false

t.test(
  'SciFact: BM25 finds at least as well as is promised, also when every long word is mistyped',
  { skip },
  async (t) => {
    const { documents, queries } = readCollection(folder!, 'scifact')
    const { store } = await startIndex(t)
    const text = openIndex(store, 32 << 20)
    for (let at = 0; at < documents.length; at += 500) {
      await add(
        store,
        text,
        documents.slice(at, at + 500).map((one) => one.text)
      )
    }
    await text.maintain(index)
    const random = createRandom(7)
    const mean = async (find: (query: string) => Promise<readonly { readonly ordinal: number }[]>) => {
      let sum = 0
      for (const { text, answers } of queries) {
        sum += ndcg(
          (await find(text)).map(({ ordinal }) => documents[ordinal]!.id),
          answers
        )
      }
      return sum / queries.length
    }
    const clean = await mean(async (query) => (await text.search(index, query, 10)).hits)
    t.ok(clean >= 0.685, `nDCG@10 ${clean.toFixed(4)}`)
    const mistyped = await mean(
      async (query) => (await searchFuzzy(text, analyser, index, mistype(query, random), 10)).hits
    )
    t.ok(mistyped >= clean * 0.85, `mistyped ${mistyped.toFixed(4)}`)
  }
)

t.test('the default chunks hold what is asked for, in at most 1,200 characters', { skip }, async (t) => {
  const { texts, questions } = readSpans(folder!)
  t.equal(questions.length, 472)
  const { store } = await startIndex(t)
  const text = openIndex(store, 32 << 20)
  const chunks = Object.entries(texts).flatMap(([source, whole]) =>
    chunkText(whole, bestChunks).map((chunk) => ({ ...chunk, source }))
  )
  t.ok(Math.max(...chunks.map((chunk) => chunk.text.length)) <= 1_200)
  await add(
    store,
    text,
    chunks.map((chunk) => chunk.text)
  )
  let sum = 0
  for (const question of questions) {
    const best = (await ordinals(text, question.text, 5)).map((ordinal) => chunks[ordinal]!)
    sum += coverage(
      best.filter((chunk) => chunk.source === question.source),
      question.spans
    )
  }
  t.ok(sum / questions.length >= 0.9, `recall ${(sum / questions.length).toFixed(4)}`)
})
