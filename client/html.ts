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
  let hidden = 0
  let inTitle = false
  let inPre = 0
  /** The blocks so far; each ends with a line break. */
  const blocksSoFar: string[] = []
  let lineBreaks = 0
  /** Pieces of the block under way, and the last character of all; so that a page takes no longer than it is long. */
  let pieces: string[] = []
  let last = ''
  const add = (piece: string) => {
    if (piece === '') return
    pieces.push(piece)
    last = piece.charAt(piece.length - 1)
  }
  const isApart = () => last === '' || /\s/.test(last)
  const breakLine = (lines: number) => {
    const block = withoutEnd(pieces.join(''), ' \t')
    pieces = []
    if (block !== '') {
      const breaks = block.length - withoutEnd(block, '\n').length
      lineBreaks = breaks === block.length ? lineBreaks + breaks : breaks
      blocksSoFar.push(block)
    }
    if (blocksSoFar.length === 0) {
      last = ''
      return
    }
    if (lineBreaks < lines) blocksSoFar.push('\n'.repeat(lines - lineBreaks))
    lineBreaks = Math.max(lineBreaks, lines)
    last = '\n'
  }
  const parser = new Parser({
    onopentagname(name) {
      if (name === 'title' && !inTitle && title === '') inTitle = true
      if (unread.has(name)) hidden += 1
      if (hidden > 0) return
      if (name === 'br') breakLine(1)
      else if (name === 'td' || name === 'th') add(isApart() ? '' : ' ')
      else if (blocks.has(name)) {
        breakLine(/^(?:li|tr|dt|dd)$/.test(name) ? 1 : 2)
        const level = /^h([1-6])$/.exec(name)?.[1]
        if (level !== undefined) add(`${'#'.repeat(Number(level))} `)
        if (name === 'li') add('- ')
        if (name === 'pre') inPre += 1
      }
    },
    ontext(piece) {
      if (inTitle) title += piece
      if (inTitle || hidden > 0) return
      if (inPre > 0) return add(piece)
      const plain = piece.replace(/\s+/g, ' ')
      add(isApart() ? plain.trimStart() : plain)
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
  return { title: told === '' ? undefined : told, text: (blocksSoFar.join('') + pieces.join('')).trim() }
}

/** Without what stands at the end and is one of `characters`. */
function withoutEnd(text: string, characters: string): string {
  let end = text.length
  while (end > 0 && characters.includes(text.charAt(end - 1))) end -= 1
  return text.slice(0, end)
}
