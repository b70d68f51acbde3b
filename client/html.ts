import { Parser } from 'htmlparser2'

export interface Page {
  readonly title: string | undefined
  readonly text: string
}

/** Elements whose text nobody reads. */
const unread = new Set(['script', 'style', 'template', 'noscript', 'svg', 'head', 'nav', 'iframe', 'object'])
/** Elements that stand on lines of their own. */
const blocks = new Set(
  `address article aside blockquote body dd details div dl dt fieldset figcaption figure footer form h1 h2 h3 h4 h5 h6
  header hr li main ol p pre section summary table tbody tfoot thead tr ul`.split(/\s+/)
)

/** What a reader sees of a page: a line for each block, a blank one between paragraphs, headings as in Markdown. */
export function readPage(html: string): Page {
  let title = ''
  let text = ''
  let hidden = 0
  let inTitle = false
  let inPre = 0
  const breakLine = (lines: number) => {
    text = text.replace(/[ \t]+$/, '')
    const present = /\n*$/.exec(text)?.[0].length ?? 0
    if (text !== '') text += '\n'.repeat(Math.max(0, lines - present))
  }
  const parser = new Parser({
    onopentagname(name) {
      if (name === 'title' && !inTitle && title === '') inTitle = true
      if (unread.has(name)) hidden += 1
      if (hidden > 0) return
      if (name === 'br') breakLine(1)
      else if (name === 'td' || name === 'th') text += text === '' || /\s$/.test(text) ? '' : ' '
      else if (blocks.has(name)) {
        breakLine(/^(?:li|tr|dt|dd)$/.test(name) ? 1 : 2)
        const level = /^h([1-6])$/.exec(name)?.[1]
        if (level !== undefined) text += `${'#'.repeat(Number(level))} `
        if (name === 'li') text += '- '
        if (name === 'pre') inPre += 1
      }
    },
    ontext(piece) {
      if (inTitle) title += piece
      if (inTitle || hidden > 0) return
      if (inPre > 0) text += piece
      else {
        const plain = piece.replace(/\s+/g, ' ')
        text += text === '' || /\s$/.test(text) ? plain.trimStart() : plain
      }
    },
    onclosetag(name) {
      if (name === 'title') inTitle = false
      if (unread.has(name)) hidden = Math.max(0, hidden - 1)
      else if (hidden === 0 && blocks.has(name)) {
        if (name === 'pre') inPre = Math.max(0, inPre - 1)
        breakLine(/^(?:li|tr|dt|dd)$/.test(name) ? 1 : 2)
      }
    }
  })
  parser.write(html)
  parser.end()
  const told = title.replace(/\s+/g, ' ').trim()
  return { title: told === '' ? undefined : told, text: text.trim() }
}
