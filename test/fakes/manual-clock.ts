/** A clock that stands still until the test moves it. Timers fire in the order of their times, within {@link set}. */
export class ManualClock {
  #nowMs: number
  readonly #timers = new Set<{ atMs: number; readonly callback: () => void }>()

  constructor(nowMs = Date.parse('2027-01-15T12:00:00Z')) {
    this.#nowMs = nowMs
  }

  now(): number {
    return this.#nowMs
  }

  /** Timers that are set. */
  get pending(): number {
    return this.#timers.size
  }

  after(delayMs: number, callback: () => void): () => void {
    const timer = { atMs: this.#nowMs + Math.max(0, delayMs), callback }
    this.#timers.add(timer)
    // One that is due already fires soon, as that of a real clock would.
    if (delayMs <= 0) queueMicrotask(() => this.#fire())
    return () => void this.#timers.delete(timer)
  }

  advance(ms: number): void {
    this.set(this.#nowMs + ms)
  }

  /** The clock is set to another time, forth or back, while none passes: whoever waits goes on waiting as long. */
  jump(ms: number): void {
    this.#nowMs += ms
    for (const timer of this.#timers) timer.atMs += ms
  }

  set(nowMs: number): void {
    this.#nowMs = Math.max(this.#nowMs, nowMs)
    this.#fire()
  }

  #fire(): void {
    const due = [...this.#timers].filter(({ atMs }) => atMs <= this.#nowMs).sort((a, b) => a.atMs - b.atMs)
    for (const timer of due) if (this.#timers.delete(timer)) timer.callback()
  }
}
