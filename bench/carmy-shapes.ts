/** What both sides of the bench `carmy` are made of, on this side of the process border and on that of the servers. */

/** Reports that a tool makes before it lets others have their turn. */
export const reportsAtOnce = 50

/** The same clock in every process of one machine. */
export function nowMs(): number {
  return Number(process.hrtime.bigint() / 1_000n) / 1_000
}

/** Tools as a catalog shows them. */
export function catalogOf(count: number) {
  return Array.from({ length: count }, (_, at) => ({
    name: `tool_${String(at).padStart(5, '0')}`,
    description: `Finds the orders of a customer whose number begins with ${at}, the newest first`,
    input_schema: {
      type: 'object',
      required: ['customer'],
      additionalProperties: false,
      properties: {
        customer: { type: 'string', minLength: 1, description: 'Number of the customer' },
        limit: { type: 'integer', minimum: 1, maximum: 100, default: 20, description: 'Orders, at most' }
      }
    },
    output_schema: { type: 'object', properties: { orders: { type: 'array', items: { type: 'string' } } } },
    effect: 'read',
    idempotent: false,
    parallel_safe: true,
    confirmation: 'none'
  }))
}

/** One report, as the bare servers write it. */
export function reportFrame(progress: number, total: number): string {
  const data = { execution_id: 'exec_00000000-0000-4000-8000-000000000000', tool: 'report', progress, total }
  return `event: tool.progress\ndata: ${JSON.stringify({ ...data, message: 'on its way' })}\n\n`
}

/** Calls that run until their clients have gone, and when each was told so, by its number. */
export class Watched {
  #began = 0
  readonly #told = new Map<number, number>()

  begin(): void {
    this.#began += 1
  }

  tell(id: number): void {
    this.#told.set(id, nowMs())
  }

  /** Once all that began have been told they are forgotten. */
  seen(): { readonly began: number; readonly told: readonly (readonly [id: number, atMs: number])[] } {
    const began = this.#began
    if (this.#told.size < began) return { began, told: [] }
    const told = [...this.#told]
    this.#told.clear()
    this.#began = 0
    return { began, told }
  }
}
