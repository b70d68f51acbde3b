export interface Bar {
  readonly label: string
  readonly median: number
  readonly min: number
  readonly max: number
}

export interface Chart {
  readonly title: string
  /** One block of bars a figure, each on a scale of its own that begins at zero. */
  readonly groups: readonly { readonly label: string; readonly bars: readonly Bar[] }[]
  readonly footer: string
  readonly format: (value: number) => string
}

const width = 760
const left = 190
const right = 190
const rowHeight = 22

/** Horizontal bars with their spread, as an SVG that reads on light and dark pages. */
export function barChart({ title, groups, footer, format }: Chart): string {
  const parts: string[] = []
  let y = 34
  parts.push(text(16, y, title, 'class="title"'))
  for (const { label, bars } of groups) {
    y += 34
    parts.push(text(16, y, label, 'class="figure"'))
    const most = Math.max(...bars.map((bar) => bar.max)) || 1
    const x = (value: number) => left + (Math.max(value, 0) / most) * (width - left - right)
    bars.forEach((bar, at) => {
      y += rowHeight
      const middle = y - 5
      parts.push(
        text(left - 10, y, bar.label, 'text-anchor="end"'),
        `<rect x="${left}" y="${y - 13}" width="${fixed(Math.max(x(bar.median) - left, 1))}" height="15" rx="2" class="${at === 0 ? 'first' : 'bar'}"/>`,
        `<path d="M${fixed(x(bar.min))} ${middle}H${fixed(x(bar.max))}M${fixed(x(bar.min))} ${middle - 4}v8M${fixed(x(bar.max))} ${middle - 4}v8" class="spread"/>`,
        text(
          fixed(x(bar.max) + 8),
          y,
          `${format(bar.median)} (${format(bar.min)} – ${format(bar.max)})`,
          'class="value"'
        )
      )
    })
  }
  y += 34
  parts.push(text(16, y, footer, 'class="value"'))
  return [
    `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${width} ${y + 16}" font-family="system-ui, sans-serif" font-size="13" role="img">`,
    `<title>${escape(title)}</title>`,
    '<style>text{fill:#222}.title{font-size:16px;font-weight:600}.figure{font-weight:600}.value{fill:#666;font-size:11px}.first{fill:#b5552b}.bar{fill:#8a9aa8}.spread{stroke:#222;fill:none}@media(prefers-color-scheme:dark){text{fill:#ddd}.value{fill:#aaa}.spread{stroke:#ddd}}</style>',
    ...parts,
    '</svg>',
    ''
  ].join('\n')
}

function text(x: number | string, y: number, content: string, attributes: string): string {
  return `<text x="${x}" y="${y}" ${attributes}>${escape(content)}</text>`
}

function fixed(value: number): string {
  return value.toFixed(1)
}

function escape(content: string): string {
  return content.replaceAll('&', '&amp;').replaceAll('<', '&lt;').replaceAll('>', '&gt;')
}
