import t, { type Test } from 'tap'
import { type FoundDocument, findFiles, readDocuments } from '../../client/documents.ts'
import { readPage } from '../../client/html.ts'
import { Progress } from '../../client/progress.ts'

const unexpected = (error: Error): never => {
  throw error
}

async function read(t: Test, files: Record<string, unknown>): Promise<readonly FoundDocument[]> {
  const found: FoundDocument[] = []
  for (const file of await findFiles(t.testdir(files as never))) {
    for await (const document of readDocuments(file, unexpected)) found.push(document)
  }
  return found
}

t.test('the files of a folder are found by name, without what is hidden or cannot be read', async (t) => {
  const folder = t.testdir({
    'b.md': 'b',
    'A.TXT': 'a',
    'c.pdf': '%PDF',
    '.hidden.md': 'x',
    '.git': { 'd.md': 'x' },
    node_modules: { 'e.md': 'x' },
    sub: { 'f 文.html': 'f' },
    link: t.fixture('symlink', 'sub')
  })
  t.strictSame(
    (await findFiles(folder)).map(({ name, bytes }) => [name, bytes]),
    [
      ['A.TXT', 1],
      ['b.md', 1],
      ['sub/f 文.html', 1]
    ]
  )
  t.strictSame(
    (await findFiles(`${folder}/sub/f 文.html`)).map(({ name }) => name),
    ['f 文.html']
  )
  await t.rejects(findFiles(`${folder}/nowhere`), { code: 'ENOENT' })
})

t.test('each kind of file gives its documents, with title and source', async (t) => {
  const documents = await read(t, {
    'a.md': '\uFEFFtext before\n\n# The heading #\n\nmore',
    'b.txt': '# no heading in plain text',
    'c.html': '<title>A &amp; B</title><p>One</p>',
    'd.json': JSON.stringify([
      { content: 'x', title: 'X', url: 'https://x.example', tags: ['t', 1], metadata: { n: 1, o: {} } },
      'plain'
    ]),
    'e.json': '{"size": 3}',
    'f.jsonl': '{"text": "first"}\n\n{"body": "third"}\r\n'
  })
  t.strictSame(documents, [
    { content: 'text before\n\n# The heading #\n\nmore', title: 'The heading', source: 'a.md' },
    { content: '# no heading in plain text', title: 'b.txt', source: 'b.txt' },
    { content: 'One', title: 'A & B', source: 'c.html' },
    { content: 'x', title: 'X', source: 'https://x.example', tags: ['t'], metadata: { n: 1 } },
    { content: 'plain', title: 'd.json', source: 'd.json#2' },
    { content: '{\n  "size": 3\n}', title: 'e.json', source: 'e.json' },
    { content: 'first', title: 'f.jsonl', source: 'f.jsonl#1' },
    { content: 'third', title: 'f.jsonl', source: 'f.jsonl#3' }
  ])
})

t.test('a file that is broken says where', async (t) => {
  await t.rejects(read(t, { 'a.jsonl': '{"text": "good"}\n{"text": \n' }), { message: /^a\.jsonl:2 is no JSON/ })
  await t.rejects(read(t, { 'b.json': '' }), { message: /^b\.json is no JSON/ })
})

t.test('of a page what is read is kept, block by block', (t) => {
  const page = readPage(`<!doctype html><html><head><title> The\n title </title><style>p {}</style></head><body>
    <nav><a href=/>Home</a></nav><h2>Part <em>one</em></h2><p>Some
    text &lt;here&gt;<br>and there.</p><ul><li>a<li>b</ul><pre>x
  y</pre><table><tr><td>1<td>2</table><script>alert(1)</script><p>end</body>`)
  t.equal(page.title, 'The title')
  t.equal(page.text, '## Part one\n\nSome text <here>\nand there.\n\n- a\n- b\n\nx\n  y\n\n1 2\n\nend')
  t.strictSame(readPage(''), { title: undefined, text: '' })
  t.equal(readPage('<p>unclosed <b>bold').text, 'unclosed bold')
  t.equal(readPage('<div>'.repeat(10_000)).text, '')
  t.end()
})

t.test('a page of many elements, or a long heading, takes no longer than it is long', async (t) => {
  const start = performance.now()
  const { text } = readPage(
    `<p>${'<b>x</b> '.repeat(50_000)}${'<p>some words'.repeat(50_000)}<pre>${' '.repeat(500_000)}x`
  )
  t.equal(text.split('\n\n').length, 50_002)
  const [document] = await read(t, { 'a.md': `# a${' #'.repeat(100_000)}b\n` })
  t.equal(document?.title.length, 200_002)
  // It took minutes when each element looked at all of the text before it.
  t.ok(performance.now() - start < 10_000)
})

t.test('progress tells share, rate and the time that is left', (t) => {
  let nowMs = 0
  const written: string[] = []
  const progress = new Progress({ isTTY: true, write: (text) => written.push(text) }, 1_000, () => nowMs)
  nowMs = 2_000
  progress.advance(250, 5)
  t.equal(progress.line(), '[######------------------] 25 %  5 documents, 2.5/s, 0:06 left')
  t.equal(written.length, 1)
  progress.advance(0, 1)
  t.equal(written.length, 1, 'not more often than a person reads')
  t.end()
})
