import { setImmediate as turn } from 'node:timers/promises'
import t from 'tap'
import { definePlugin, type Plugin } from '../../kernel/index.ts'
import type { Embeddings } from '../../plugins/embeddings/types.ts'
import { assumedTrust } from '../../plugins/rag/fusion.ts'
import { createRandom } from '../../bench/collections.ts'
import { type RagHouse, type RagUser, startRag } from '../fixtures/rag-house.ts'

const documents = 40
const sentences = 4
const wordOf = (document: number, sentence: number) =>
  `${'bcdfg'[document % 5]}o${'klmnprst'[document >> 3]}a${'vwxz'[sentence]}um${'bdfk'[document % 4]}i`
const frames = [
  'old bakers in narrow lanes by western walls',
  'young sailors far beyond reefs near white lighthouses',
  'poor farmers under green hills with hungry sheep',
  'rich guests of tall houses around silver fountains',
  'tired pilgrims on dusty roads towards golden temples',
  'proud riders across windy plains before early winter',
  'quiet painters inside bright attics above busy markets',
  'clever merchants along slow rivers through deep forests'
]
/**
 * Each sentence of a document names the same thing with another word, and has all its other words from documents that are
 * about something else.
 */
const textOf = (document: number) =>
  Array.from({ length: sentences }, (_, sentence) => {
    const frame = frames[(document + sentence * 2) % frames.length]
    return `The ${wordOf(document, sentence)} was seen by ${frame}.`
  }).join(' ')

const things = new Map<string, number>()
for (let document = 0; document < documents; document++) {
  for (let sentence = 0; sentence < sentences; sentence++) things.set(wordOf(document, sentence), document)
}

function encoderOf(vectorOf: (text: string) => Float32Array, before?: (texts: readonly string[]) => void): Plugin {
  const embeddings: Embeddings = {
    models: () => [{ name: 'made', dimensions: documents + 1 }],
    async embed(texts) {
      before?.(texts)
      return texts.map((text) => {
        const vector = vectorOf(text)
        const length = Math.hypot(...vector)
        return vector.map((number) => number / length)
      })
    }
  }
  return definePlugin({
    name: 'made-encoder',
    provides: ['embeddings'],
    apply(ctx) {
      ctx.provide('embeddings', embeddings)
    }
  })
}

/** Knows what is named, by whichever word. */
const knowing = (before?: (texts: readonly string[]) => void): Plugin =>
  encoderOf((text) => {
    const vector = new Float32Array(documents + 1)
    vector[documents] = 0.1
    for (const word of text.match(/\w+/g) ?? []) {
      const thing = things.get(word)
      if (thing !== undefined) vector[thing]! += 1
    }
    return vector
  }, before)

/** Its vectors have nothing to do with what a text says. */
const random = createRandom(5)
const guessing = encoderOf(() => Float32Array.from({ length: documents + 1 }, () => random() - 0.5))

const exact = wordOf(7, 2)

async function weightOf(user: RagUser, query = exact): Promise<number> {
  return (await user.found('things', query, 'hybrid', { explain: true })).explain!.semantic_weight!
}

/** What is kept of a collection once it was measured with so many chunks. */
async function measured(house: RagHouse, chunks = documents): Promise<{ readonly trust: number }> {
  for (;;) {
    for await (const [, { value }] of house
      .services('store')
      .range<{ trust: number; chunks: number }>('rag-trusts', [])) {
      if (value.chunks === chunks) return value
    }
    await turn()
  }
}

async function fill(user: RagUser, from = 0, to = documents): Promise<void> {
  for (let at = from; at < to; at++) await user.ingest('things', textOf(at), { source: `${at}` })
}

t.test('an encoder that knows what a collection means is believed more, also by the next generation', async (t) => {
  const house = await startRag(t, { encoder: knowing() })
  const user = house.user()
  await fill(user)
  const assumed = await weightOf(user)
  const { trust } = await measured(house)
  let shown = await weightOf(user)
  for (; shown === assumed; shown = await weightOf(user)) await turn()
  t.ok(trust > assumedTrust && shown > assumed, `${assumed} → ${shown}`)
  await house.kernel.update('rag', { cache_mb: 32 })
  t.equal(await weightOf(user), shown)
  await user.remove('things')
  for await (const [key] of house.services('store').range('rag-trusts', []))
    t.fail(`${key.join(' ')} is left of a collection that is gone`)
})

t.test('an encoder that guesses does not change what the words have found', async (t) => {
  const house = await startRag(t, { encoder: guessing })
  const user = house.user()
  await fill(user)
  await weightOf(user)
  await measured(house)
  const firstOf = async (query: string, strategy: string) =>
    (await user.found('things', query, strategy, { limit: 1 })).results[0]!.metadata['source']
  for (let at = 0; at < documents; at++) {
    const query = `was seen by sailors: ${wordOf(at, 1)}`
    t.equal(await firstOf(query, 'hybrid'), await firstOf(query, 'bm25'), query)
  }
})

t.test('a collection is measured when it has something to tell, and anew when it is twice as large', async (t) => {
  let measurings = 0
  const count = (texts: readonly string[]) => {
    if (texts.length > 20) measurings += 1
  }
  const house = await startRag(t, { encoder: knowing(count) })
  const user = house.user()
  await fill(user, 0, 10)
  for (let at = 0; at < 5; at++) await weightOf(user)
  t.equal(measurings, 0, 'a few chunks tell nothing')
  await fill(user, 10, 18)
  await weightOf(user)
  await measured(house, 18)
  const once = measurings
  await fill(user, 18, 36)
  for (let at = 0; at < 5; at++) await weightOf(user)
  t.equal(measurings, once)
  await fill(user, 36, documents)
  await weightOf(user)
  await measured(house)
  t.ok(measurings > once)
})

t.test('searches go on where the encoder does not tell how far to believe it', async (t) => {
  let refused = 0
  const refuse = (texts: readonly string[]) => {
    if (texts.length <= 20) return
    refused += 1
    throw new Error('too many texts')
  }
  const user = (await startRag(t, { encoder: knowing(refuse) })).user()
  await fill(user)
  const assumed = await weightOf(user)
  while (refused === 0) await turn()
  for (let at = 0; at < 10; at++) t.equal(await weightOf(user), assumed)
  t.equal(refused, 1, 'it is left alone for a while')
})
