import { setTimeout as sleep } from 'node:timers/promises'
import { createRandom } from './collections.ts'
import { type Client, httpRequest, openClient } from './load.ts'
import { startServer, startWorker, type Usage } from './process.ts'
import { defineBench, type Figures, type Side } from './runner.ts'
import { makeToken } from './token.ts'

const chatters = 8
const pauseMs = 20
const wordsOfRound = 5_000
/** Of a book of some 300 KB, which goes the way of long texts. */
const bookWords = 60_000
const togetherMs = 10_000
const deleteEveryMs = 1_500

const headers = { Authorization: `Bearer ${makeToken('reader')}` }

/** A book that nobody has embedded before. */
function makeBook(seed: number, words = wordsOfRound): string {
  const random = createRandom(seed + 100)
  const syllables = ['ta', 'rin', 'mol', 'ber', 'sha', 'lo', 'gen', 'pu', 'dis', 'kar', 'vel', 'no']
  const word = () => Array.from({ length: 1 + Math.floor(random() * 3) }, () => pick(syllables, random)).join('')
  const sentences: string[] = []
  for (let written = 0; written < words; written += 12) {
    sentences.push(`The ${word()} of ${word()} was ${word()} and the people of ${word()} ${word()} it again.`)
  }
  return sentences.join(' ')
}

function pick<T>(list: readonly T[], random: () => number): T {
  return list[Math.floor(random() * list.length)]!
}

async function must(client: Client, request: Uint8Array): Promise<string> {
  const reply = await client.send(request)
  if (reply.status !== 200) throw new Error(`the server answered ${reply.status}: ${reply.body}`)
  return reply.body
}

/** Asks until `work` has ended. @returns the longest an answer took, in milliseconds */
async function worst(client: Client, request: Uint8Array, work: Promise<unknown>): Promise<number> {
  let ended = false
  let worstMs = 0
  const end = () => {
    ended = true
  }
  work.then(end, end)
  while (!ended) {
    const sentAt = performance.now()
    await must(client, request)
    worstMs = Math.max(worstMs, performance.now() - sentAt)
    await sleep(pauseMs)
  }
  return worstMs
}

const openRunning = (args: readonly string[]) =>
  startServer(new URL('./servers/ingest.js', import.meta.url), { args, cores: 'all', turns: true })

/** One collection is put into, searched and deleted at once; nobody else is there. */
const together: Side = {
  name: 'all at once',
  async setup() {
    const running = await openRunning([])
    const ask = (client: Client, method: string, path: string, body: object) =>
      client.send(httpRequest(method, `/api/rag/${path}`, { headers, body: { collection: 'shelf', ...body } }))
    return {
      async run(round): Promise<Figures> {
        const clients = await Promise.all(Array.from({ length: 4 }, () => openClient(running.port)))
        const [putter, noter, seeker, remover] = clients as [Client, Client, Client, Client]
        let ended = false
        const until = async (work: (at: number) => Promise<{ readonly status: number }>) => {
          for (let at = 0; !ended; at++) {
            const { status } = await work(at)
            // A search or a deletion may find the collection deleted, an ingest that it is deleted again and again.
            if (![200, 404, 409].includes(status)) throw new Error(`the server answered ${status}`)
          }
        }
        try {
          await ask(putter, 'POST', 'ingest', { content: `A text of round ${round}, so that the model is loaded.` })
          await running.usage()
          const book = makeBook(round + 1_000, bookWords)
          const strategies = ['bm25', 'fuzzy', 'semantic', 'hybrid']
          const others = Promise.all([
            until((at) => ask(noter, 'POST', 'ingest', { content: makeBook(round * 1_000 + at, 200) })),
            until((at) => {
              const query = `the people of ${makeBook(at, 12)}`
              return ask(seeker, 'POST', 'search', { query, strategy: strategies[at % strategies.length] })
            }),
            until(async () => {
              await sleep(deleteEveryMs)
              return ask(remover, 'DELETE', 'collection', {})
            })
          ])
          const puts = until((at) => ask(putter, 'POST', 'ingest', { content: `${at} ${book}`, source: 'book' }))
          await Promise.race([sleep(togetherMs), others, puts])
          const figures = figuresOf(await running.usage())
          ended = true
          for (const client of clients) client.close()
          // What is under way is given up.
          await Promise.allSettled([others, puts])
          return figures
        } finally {
          for (const client of clients) client.close()
        }
      },
      teardown: () => running.stop()
    }
  }
}

function figuresOf({ rssBytes, turns }: Usage): Figures {
  return { rssMb: rssBytes / 1_048_576, turnMs: turns!.wallMs, turnCpuMs: turns!.cpuMs }
}

function server(name: string, args: readonly string[]): Side {
  return {
    name,
    async setup() {
      const running = await openRunning(args)
      const take = async (client: Client, content: string) =>
        JSON.parse(
          await must(
            client,
            httpRequest('POST', '/api/rag/ingest', { headers, body: { collection: 'books', content } })
          )
        ) as { chunks_created: number }
      const talk = httpRequest('POST', '/api/chat', { headers, body: { message: 'Hello there', agent_type: 'writer' } })
      return {
        async run(round): Promise<Figures> {
          // Connections of this round: those that rest while others are measured are closed by the server.
          const open = (count: number) => Promise.all(Array.from({ length: count }, () => openClient(running.port)))
          const [reader] = (await open(1)) as [Client]
          // Loads the model where it was let go.
          await take(reader, `A document of round ${round}, so that the model has been loaded before it is measured.`)
          const [health, ...talkers] = (await open(1 + chatters)) as [Client, ...Client[]]
          try {
            await running.usage()
            const startedAt = performance.now()
            const work = take(reader, makeBook(round))
            const [healthMs, ...chatMs] = await Promise.all([
              worst(health, httpRequest('GET', '/health'), work),
              ...talkers.map((client) => worst(client, talk, work))
            ])
            const { chunks_created: chunks } = await work
            const seconds = (performance.now() - startedAt) / 1_000
            const used = figuresOf(await running.usage())
            return { chunksPerSecond: chunks / seconds, healthMs, chatMs: Math.max(...chatMs), ...used }
          } finally {
            for (const client of [reader, health, ...talkers]) client.close()
          }
        },
        teardown: () => running.stop()
      }
    }
  }
}

const bare: Side = {
  name: 'bare model',
  async setup() {
    const worker = await startWorker(new URL('./ingest-side.js', import.meta.url))
    return {
      async run(round) {
        const { chunks, ms } = await worker.ask<{ chunks: number; ms: number }>(makeBook(round))
        return { chunksPerSecond: (chunks / ms) * 1_000 }
      },
      teardown: () => worker.stop()
    }
  }
}

const ours = 'one thread'
const inProcess = 'in process'

export default defineBench({
  name: 'ingest',
  question: 'How fast is a book taken in, and what do others feel meanwhile?',
  method:
    `One round: a made book of ${wordsOfRound} words is ingested (chunks, index, embeddings of the encoder that ships, one thread) ` +
    `while ${chatters} clients chat and one polls /health, each ${pauseMs} ms after its answer. Figures of waiting are the ` +
    'longest of the round, and so are turns of the event loop; the time that the thread itself takes (by /proc, to about ' +
    '4 ms) tells the same also where others use the machine. "All at once" takes a long book and short texts into one ' +
    `collection, searches it by every strategy and deletes it every ${deleteEveryMs} ms, for ${togetherMs} ms. ` +
    '"In process" is the same server with the tasks of its threads called in the process itself; ' +
    '"bare model" embeds the same chunks, alone in a process.',
  figures: {
    chunksPerSecond: 'chunks a second',
    healthMs: 'worst /health, ms',
    chatMs: 'worst chat, ms',
    rssMb: 'RSS afterwards, MB',
    turnMs: 'worst turn of the event loop, ms',
    turnCpuMs: 'of it, time of its own thread, ms'
  },
  sides: [server(ours, []), server(inProcess, ['in-process']), together, bare],
  claims: [
    {
      name: 'worst turn while one collection is put into, searched and deleted, own time in ms',
      of: (read) => read('all at once', 'turnCpuMs'),
      atMost: 20
    },
    {
      name: 'Q8 chunks a second, against one thread of the bare model',
      of: (read) => read(ours, 'chunksPerSecond') / read('bare model', 'chunksPerSecond'),
      atLeast: 0.9
    },
    {
      name: 'worst /health, against in process (H5)',
      of: (read) => read(ours, 'healthMs') / read(inProcess, 'healthMs'),
      atMost: 1 / 8
    },
    {
      name: 'worst chat, against in process (H5)',
      of: (read) => read(ours, 'chatMs') / read(inProcess, 'chatMs'),
      atMost: 1 / 8
    }
  ]
})
