/** Whose an error is that nobody has caught: stacks as V8 writes them, one frame a word. */
import t from 'tap'
import { ownerOfStray } from '../../kernel/strays.ts'

/** `async a` is a frame of plugin `a` that awaits the one above; `-` is one of nobody's. */
function ownerOf(isRejection: boolean, frames: string): string | undefined {
  const lines = frames.split(', ').map((frame, at) => {
    const [, awaits = '', plugin] = /^(async )?(.+)$/.exec(frame) ?? []
    const place = plugin === '-' ? '/app/kernel/fiber.js:7:1' : `/some where/${plugin}/index.ts.bundle:${at + 1}:9`
    return at % 2 === 0 ? `    at ${awaits}Object.run (${place})` : `    at ${awaits}file://${place}`
  })
  const stack = ['Error: it went wrong', '  over (/some where/nobody/index.ts.bundle:1:1) lines', ...lines].join('\n')
  return ownerOfStray(stack, isRejection, (file) => /^\/some where\/(\w+)\/index\.ts\.bundle$/.exec(file)?.[1])
}

t.test('what was thrown belongs to whoever was called first', async (t) => {
  t.equal(ownerOf(false, 'boom'), 'boom')
  t.equal(ownerOf(false, 'calculator, -, boom, -'), 'boom', 'its callback has called another')
})

t.test('what was rejected belongs to the last who waited, or else to whoever made it', async (t) => {
  t.equal(ownerOf(true, 'boom, -, http, -'), 'boom', 'http has called its handler, which let a promise go')
  t.equal(ownerOf(true, 'store, -, async boom'), 'boom', 'it has waited for the store, and nobody for it')
  t.equal(ownerOf(true, 'store, async tools, async boom, -'), 'boom')
})

t.test('where no plugin is in the stack, or there is none, nobody can tell', async (t) => {
  t.equal(ownerOf(true, '-, -'), undefined)
  for (const stack of ['', 'Error: no frames', 'Error\n    at <anonymous>\n    at node:internal/timers:1:2']) {
    t.equal(
      ownerOfStray(stack, false, () => 'any'),
      undefined
    )
  }
})
