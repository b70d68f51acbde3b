import { mkdir, writeFile } from 'node:fs/promises'
import { cpus, loadavg, totalmem } from 'node:os'
import { join } from 'node:path'
import { barChart } from './chart.ts'

export type Awaitable<T> = T | Promise<T>

/** What one round of one side measured, by the name of the figure. */
export type Figures = Readonly<Record<string, number>>

/** A side that was set up: measured once a round, in turn with the others. */
export interface RunningSide {
  /** @param round 0, 1, … ; the round of warm-up has the number -1 and is thrown away */
  run(round: number): Awaitable<Figures>
  teardown?(): Awaitable<void>
}

/** One of the things compared. */
export interface Side {
  readonly name: string
  /** Why it cannot be measured here, such as a program that is not installed; it is left out then. */
  missing?(): string | undefined
  setup(): Awaitable<RunningSide>
}

/** Reads a figure of the round at hand. */
export type Read = (side: string, figure: string) => number

/** A number drawn from each round, such as a ratio of two sides, and the goal it is held against. */
export interface Claim {
  readonly name: string
  /** Computed round by round, so that both sides of a ratio met the same machine. */
  of(read: Read): number
  readonly atMost?: number
  readonly atLeast?: number
  /** What is held against the goal: the median of the rounds, or each of them, for what must not happen even once. */
  readonly holds?: 'median' | 'always'
}

export interface Bench {
  readonly name: string
  /** What one wants to know, as a question. */
  readonly question: string
  /** How it is measured: what one round does, on which side of which process border. */
  readonly method: string
  /** Label with its unit for each figure, in the order they are printed: `{ cpuUs: 'CPU a request, µs' }`. */
  readonly figures: Readonly<Record<string, string>>
  readonly sides: readonly Side[]
  readonly claims: readonly Claim[]
  /** At least 5. */
  readonly rounds?: number
}

export interface Summary {
  readonly median: number
  readonly min: number
  readonly max: number
}

export interface ClaimResult extends Summary {
  readonly name: string
  readonly goal: string | undefined
  /** `undefined` without a goal. */
  readonly met: boolean | undefined
}

export interface BenchResult {
  readonly name: string
  readonly question: string
  readonly method: string
  readonly machine: Machine
  readonly takenAt: string
  readonly rounds: number
  /** Sides that were left out, with the reason. */
  readonly skipped: Readonly<Record<string, string>>
  readonly figures: Readonly<Record<string, string>>
  /** Every single measurement: side, figure, round. */
  readonly measured: Readonly<Record<string, Readonly<Record<string, readonly number[]>>>>
  readonly claims: readonly ClaimResult[]
}

const leastRounds = 5

/** @throws TypeError for fewer than five rounds or two sides of one name */
export function defineBench(bench: Bench): Bench {
  if ((bench.rounds ?? leastRounds) < leastRounds) throw new TypeError(`bench '${bench.name}' needs at least 5 rounds`)
  if (new Set(bench.sides.map((side) => side.name)).size < bench.sides.length) {
    throw new TypeError(`bench '${bench.name}' has two sides of one name`)
  }
  return bench
}

/**
 * Sets up every side, measures them in turn, round by round (each round begins with another side, after one round of
 * warm-up), and tears them down, also when one fails.
 */
export async function runBench(bench: Bench, log: (line: string) => void): Promise<BenchResult> {
  const rounds = bench.rounds ?? leastRounds
  const running: RunningSide[] = []
  const perRound: Figures[][] = []
  const skipped: Record<string, string> = {}
  const sides = bench.sides.filter((side) => {
    const reason = side.missing?.()
    if (reason !== undefined) skipped[side.name] = reason
    return reason === undefined
  })
  for (const [name, reason] of Object.entries(skipped)) log(`${name}: ${reason}, skipped`)
  try {
    for (const side of sides) running.push(await side.setup())
    for (let round = -1; round < rounds; round++) {
      log(round < 0 ? 'warming up' : `round ${round + 1} of ${rounds}`)
      const row: Figures[] = []
      for (let step = 0; step < running.length; step++) {
        const at = (step + Math.max(round, 0)) % running.length
        row[at] = await running[at]!.run(round)
      }
      if (round >= 0) perRound.push(row)
    }
  } finally {
    for (const side of running.reverse()) await side.teardown?.()
  }
  const names = sides.map((side) => side.name)
  return {
    name: bench.name,
    question: bench.question,
    method: bench.method,
    machine: describeMachine(),
    takenAt: new Date().toISOString(),
    rounds,
    skipped,
    figures: bench.figures,
    measured: Object.fromEntries(
      names.map((name, at) => [
        name,
        Object.fromEntries(
          Object.keys(bench.figures)
            .filter((figure) => perRound.every((row) => row[at]?.[figure] !== undefined))
            .map((figure) => [figure, perRound.map((row) => row[at]![figure]!)])
        )
      ])
    ),
    claims: bench.claims.map((claim) => judge(claim, perRound, names))
  }
}

function judge(claim: Claim, perRound: readonly (readonly Figures[])[], names: readonly string[]): ClaimResult {
  const values = perRound.map((row) =>
    claim.of((side, figure) => {
      const value = row[names.indexOf(side)]?.[figure]
      if (value === undefined) throw new TypeError(`claim '${claim.name}' reads '${figure}' of '${side}': not measured`)
      return value
    })
  )
  const summary = summarise(values)
  const { atMost, atLeast, holds = 'median' } = claim
  const always = holds === 'always'
  const goal = atMost !== undefined ? `≤ ${atMost}` : atLeast !== undefined ? `≥ ${atLeast}` : undefined
  return {
    name: claim.name,
    ...summary,
    goal: goal === undefined ? undefined : `${goal}${always ? ' always' : ''}`,
    met:
      atMost !== undefined
        ? (always ? summary.max : summary.median) <= atMost
        : atLeast !== undefined
          ? (always ? summary.min : summary.median) >= atLeast
          : undefined
  }
}

export function summarise(values: readonly number[]): Summary {
  const sorted = values.toSorted((a, b) => a - b)
  const middle = sorted.length >> 1
  const median = sorted.length % 2 === 1 ? sorted[middle]! : (sorted[middle - 1]! + sorted[middle]!) / 2
  return { median, min: sorted[0]!, max: sorted.at(-1)! }
}

const significant = new Intl.NumberFormat('en', { maximumSignificantDigits: 3 })

/** Three significant digits, as people read them. */
export function formatNumber(value: number): string {
  return Number.isFinite(value) ? significant.format(value) : String(value)
}

/** The result as a table for a terminal: every side with its median and spread, then the claims. */
export function renderTable(result: BenchResult): string {
  const { machine } = result
  const lines = [
    `${result.name}: ${result.question}`,
    `  ${result.method}`,
    `  ${machine.cores} × ${machine.cpu}, ${machine.memoryGiB} GiB, Node ${machine.node}, ${machine.platform}; ${machine.load}`,
    `  ${result.rounds} rounds, sides in turn; median (least – most)`,
    ...Object.entries(result.skipped).map(([side, reason]) => `  ${side}: ${reason}, skipped`),
    ''
  ]
  const rows: string[][] = [['', ...Object.values(result.figures)]]
  for (const [side, figures] of Object.entries(result.measured)) {
    rows.push([
      side,
      ...Object.keys(result.figures).map((figure) => {
        const values = figures[figure]
        return values === undefined ? '–' : renderSummary(summarise(values))
      })
    ])
  }
  // Where much is measured of few, a column for each of the few is easier to read.
  lines.push(...align(rows[0]!.length > 9 ? rows[0]!.map((_, column) => rows.map((row) => row[column]!)) : rows))
  if (result.claims.length > 0) {
    const claims = result.claims.map((claim) => [
      claim.name,
      renderSummary(claim),
      claim.goal === undefined ? '' : `goal ${claim.goal}`,
      claim.met === undefined ? '' : claim.met ? 'met' : 'MISSED'
    ])
    lines.push('', ...align([['per round', 'median (least – most)', '', ''], ...claims]))
  }
  return `${lines.join('\n')}\n`
}

function renderSummary({ median, min, max }: Summary): string {
  return `${formatNumber(median)} (${formatNumber(min)} – ${formatNumber(max)})`
}

function align(rows: readonly (readonly string[])[]): string[] {
  const widths = rows[0]!.map((_, column) => Math.max(...rows.map((row) => row[column]!.length)))
  return rows.map((row) =>
    `  ${row.map((cell, column) => (column === 0 ? cell.padEnd(widths[0]!) : cell.padStart(widths[column]!))).join('   ')}`.trimEnd()
  )
}

/** Writes `<name>.json` and `<name>.svg` into `folder`. */
export async function writeResult(result: BenchResult, folder: string): Promise<void> {
  await mkdir(folder, { recursive: true })
  await writeFile(join(folder, `${result.name}.json`), `${JSON.stringify(result, null, 2)}\n`)
  const groups = Object.entries(result.figures).map(([figure, label]) => ({
    label,
    bars: Object.entries(result.measured)
      .filter(([, figures]) => figures[figure] !== undefined)
      .map(([side, figures]) => ({ label: side, ...summarise(figures[figure]!) }))
  }))
  const { machine } = result
  const footer = `${result.rounds} rounds in turn, median and spread; ${machine.cores} × ${machine.cpu}, Node ${machine.node}`
  await writeFile(
    join(folder, `${result.name}.svg`),
    barChart({ title: result.question, groups, footer, format: formatNumber })
  )
}

export interface Machine {
  readonly cores: number
  readonly cpu: string
  readonly memoryGiB: number
  readonly node: string
  readonly platform: string
  /** How busy it was during the last minute. */
  readonly load: string
}

export function describeMachine(): Machine {
  const all = cpus()
  return {
    cores: all.length,
    cpu: all[0]?.model.trim() ?? 'unknown CPU',
    memoryGiB: Math.round(totalmem() / 2 ** 30),
    node: process.versions.node,
    platform: `${process.platform} ${process.arch}`,
    load: `load ${loadavg()[0]!.toFixed(1)}`
  }
}
