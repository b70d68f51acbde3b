/** Where progress is shown: a terminal, or a file that takes lines. */
export interface Screen {
  readonly isTTY?: boolean | undefined
  write(text: string): unknown
}

const barChars = 24
const linePeriodMs = 5_000
const barPeriodMs = 100

/** A bar with rate and time left; where nobody watches, a line now and then. */
export class Progress {
  readonly #screen: Screen
  readonly #totalBytes: number
  readonly #nowMs: () => number
  readonly #startedMs: number
  #shownMs = Number.NEGATIVE_INFINITY
  #bytes = 0
  #documents = 0

  constructor(screen: Screen, totalBytes: number, nowMs: () => number) {
    this.#screen = screen
    this.#totalBytes = totalBytes
    this.#nowMs = nowMs
    this.#startedMs = nowMs()
  }

  /** @param bytes of the files that are done */
  advance(bytes: number, documents: number): void {
    this.#bytes += bytes
    this.#documents += documents
    this.show()
  }

  show(): void {
    const nowMs = this.#nowMs()
    if (nowMs - this.#shownMs < (this.#screen.isTTY === true ? barPeriodMs : linePeriodMs)) return
    this.#shownMs = nowMs
    this.#write(this.#screen.isTTY === true ? `\r\u001B[2K${this.line()}` : `${this.line()}\n`)
  }

  /** Takes the bar away, so that a line can be written. */
  clear(): void {
    if (this.#screen.isTTY === true) this.#write('\r\u001B[2K')
    this.#shownMs = Number.NEGATIVE_INFINITY
  }

  line(): string {
    const seconds = Math.max(0.001, (this.#nowMs() - this.#startedMs) / 1_000)
    const share = this.#totalBytes === 0 ? 1 : Math.min(1, this.#bytes / this.#totalBytes)
    const full = Math.round(share * barChars)
    const left = share === 0 ? '' : `, ${inTime((seconds * (1 - share)) / share)} left`
    const rate = (this.#documents / seconds).toFixed(this.#documents / seconds < 10 ? 1 : 0)
    return `[${'#'.repeat(full)}${'-'.repeat(barChars - full)}] ${Math.floor(share * 100)} %  ${this.#documents} documents, ${rate}/s${left}`
  }

  #write(text: string): void {
    this.#screen.write(text)
  }
}

function inTime(seconds: number): string {
  const whole = Math.ceil(seconds)
  const minutes = Math.floor(whole / 60)
  return minutes < 60
    ? `${minutes}:${String(whole % 60).padStart(2, '0')}`
    : `${Math.floor(minutes / 60)} h ${minutes % 60} min`
}
