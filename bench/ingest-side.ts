/** The bare model of the bench `ingest`, on one thread of a process of its own: answers a text with its time. */
import embed from '../plugins/embeddings/tasks/embed-energetic.ts'
import { bestChunks, chunkText } from '../plugins/rag/chunk.ts'

/** Texts of one call, as many as it is fastest with. */
const batch = 2

await embed({ texts: ['to load it'] })
process.on('message', (text) => {
  void (async () => {
    const texts = chunkText(text as string, bestChunks).map((chunk) => chunk.text)
    const startedAt = performance.now()
    for (let at = 0; at < texts.length; at += batch) {
      const result = await embed({ texts: texts.slice(at, at + batch) })
      if (!result.ok) throw new Error(result.message)
    }
    process.send!({ chunks: texts.length, ms: performance.now() - startedAt })
  })()
})
// The probe lets the process end where nothing but the channel is left.
process.channel?.ref()
process.send!('ready')
