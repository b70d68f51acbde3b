import { setTimeout as sleep } from 'node:timers/promises'
import { createRandom } from './collections.ts'
import { type Client, httpRequest, openClient } from './load.ts'
import { startServer, startWorker } from './process.ts'
import { defineBench, type Figures, type Side } from './runner.ts'
import { makeToken } from './token.ts'

const chatters = 8
const pauseMs = 20
const words = 5_000

const headers = { Authorization: `Bearer ${makeToken('reader')}` }

/** A book that nobody has embedded before. */
function makeBook(round: number): string {
  const random = createRandom(round + 100)
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

function server(name: string, args: readonly string[]): Side {
  return {
    name,
    async setup() {
      const running = await startServer(new URL('./servers/ingest.js', import.meta.url), { args, cores: 'all' })
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
            const startedAt = performance.now()
            const work = take(reader, makeBook(round))
            const [healthMs, ...chatMs] = await Promise.all([
              worst(health, httpRequest('GET', '/health'), work),
              ...talkers.map((client) => worst(client, talk, work))
            ])
            const { chunks_created: chunks } = await work
            const seconds = (performance.now() - startedAt) / 1_000
            const rssMb = (await running.usage()).rssBytes / 1_048_576
            return { chunksPerSecond: chunks / seconds, healthMs, chatMs: Math.max(...chatMs), rssMb }
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
    `One round: a made book of ${words} words is ingested (chunks, index, embeddings of the encoder that ships, one thread) ` +
    `while ${chatters} clients chat and one polls /health, each ${pauseMs} ms after its answer. Figures of waiting are the ` +
    'longest of the round. "In process" is the same server with the tasks of its threads called in the process itself; ' +
    '"bare model" embeds the same chunks, alone in a process.',
  figures: {
    chunksPerSecond: 'chunks a second',
    healthMs: 'worst /health, ms',
    chatMs: 'worst chat, ms',
    rssMb: 'RSS afterwards, MB'
  },
  sides: [server(ours, []), server(inProcess, ['in-process']), bare],
  claims: [
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
