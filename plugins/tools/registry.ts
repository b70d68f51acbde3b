import {
  type Check,
  CodedError,
  type Collector,
  type Contribution,
  compileSchema,
  type JsonSchema,
  messageOf
} from '../../kernel/index.ts'
import { canonicalJson, sha256 } from './json.ts'
import type { Catalog, Effect, Tool, ToolDescription } from './types.ts'

/** Longest delay a timer takes; a longer one would fire at once. */
export const maxTimeoutMs = 2_147_483_647

const effects: readonly Effect[] = ['none', 'read', 'write', 'external_write', 'destructive']

/** A tool that can be called, with what is derived from it once. */
export interface ListedTool {
  readonly tool: Tool
  readonly contribution: Contribution<Tool>
  readonly description: ToolDescription
  /** The description as canonical JSON. */
  readonly json: string
  readonly checkInput: Check
  readonly checkOutput: Check
  /** What a caller needs to be permitted; `undefined` for a tool that asks nobody. */
  readonly confirmation: string | undefined
  /** What a caller needs where every call needs a permission. */
  readonly permission: string
  /** Whether a successful result may be used again. */
  readonly cacheable: boolean
}

/** What outlives a swap of the registry. Plain data: the next generation may be other code. */
export interface RegistryState {
  revision: number
  /** The catalog the revision stands for. */
  shown: readonly string[]
  /** Compiled schemas, by the schema: a swap of a tool whose schemas are constants compiles nothing. */
  readonly checks: WeakMap<JsonSchema, Check>
}

export interface Registry {
  readonly collector: Collector<Tool>
  find(name: string): ListedTool | undefined
  list(): readonly ToolDescription[]
  catalog(): Catalog
}

interface Table {
  readonly byName: ReadonlyMap<string, ListedTool>
  readonly descriptions: readonly ToolDescription[]
  catalog: Catalog | undefined
}

/**
 * The tools that are there, read from what plugins contribute. A newcomer that is not sound, or whose name is taken,
 * fails alone. One that came before the registry itself cannot be refused any more: it is left out and `report`ed.
 *
 * Codes of a refusal: `INVALID_TOOL_NAME`, `INVALID_TOOL`, `INVALID_SCHEMA`, `DUPLICATE_TOOL`.
 */
export function createRegistry(
  state: RegistryState,
  report: (error: CodedError, contribution: Contribution<Tool>) => void
): Registry {
  /** What {@link derive} made of a tool, by the tool: once for each of its generations, not for each table. */
  const derived = new WeakMap<Tool, ReturnType<typeof derive>>()
  let present: ReadonlySet<Contribution<Tool>> | undefined
  let table: Table = { byName: new Map(), descriptions: [], catalog: undefined }

  function sort(
    all: readonly Contribution<Tool>[],
    refuse: (error: CodedError, contribution: Contribution<Tool>) => void
  ): readonly ListedTool[] {
    const byName = new Map<string, ListedTool>()
    // Those that are there come first, so that a newcomer is the one to be refused.
    const known = all.filter((contribution) => present?.has(contribution))
    for (const contribution of [...known, ...all.filter((contribution) => !present?.has(contribution))]) {
      const tool = contribution.item
      try {
        let parts = derived.get(tool)
        if (parts === undefined) {
          parts = derive(tool, contribution.entry, state.checks)
          derived.set(tool, parts)
        }
        const rival = byName.get(tool.name)
        if (rival !== undefined) {
          throw new CodedError(
            'DUPLICATE_TOOL',
            `tool '${tool.name}' of entry '${contribution.entry}' is there already: entry '${rival.contribution.entry}' has it`
          )
        }
        byName.set(tool.name, { ...parts, contribution })
      } catch (error) {
        refuse(error as CodedError, contribution)
      }
    }
    return [...byName.values()].sort((a, b) => (a.tool.name < b.tool.name ? -1 : 1))
  }

  return {
    collector: {
      check(next) {
        if (present === undefined) return
        sort(next, (error, contribution) => {
          if (!present?.has(contribution)) throw error
        })
      },
      update(now) {
        const listed = sort(now, (error, contribution) => {
          if (!present?.has(contribution)) report(error, contribution)
        })
        present = new Set(now)
        const shown = listed.map((each) => each.json)
        const same = shown.length === state.shown.length && shown.every((json, index) => json === state.shown[index])
        table = {
          byName: new Map(listed.map((each) => [each.tool.name, each])),
          descriptions: listed.map((each) => each.description),
          catalog: same ? table.catalog : undefined
        }
        if (same) return
        state.shown = shown
        state.revision += 1
      }
    },
    find: (name) => table.byName.get(name),
    list: () => table.descriptions,
    catalog() {
      table.catalog ??= render(state.shown)
      return table.catalog
    }
  }
}

function render(tools: readonly string[]): Catalog {
  const text = `{"tools":[${tools.join(',')}]}`
  return { text, version: sha256(text) }
}

/** @throws CodedError when the tool is not sound */
function derive(tool: Tool, entry: string, checks: WeakMap<JsonSchema, Check>): Omit<ListedTool, 'contribution'> {
  const where = `of entry '${entry}'`
  if (typeof tool.name !== 'string' || !/^[A-Za-z0-9_.-]{1,128}$/.test(tool.name)) {
    throw new CodedError(
      'INVALID_TOOL_NAME',
      `the tool name ${JSON.stringify(tool.name)} ${where} is not 1 to 128 letters, digits, '_', '-' and '.'`
    )
  }
  if (tool.name.startsWith('carmy_') !== (tool.system === true)) {
    const rule = tool.system === true ? "does not begin with 'carmy_'" : "begins with 'carmy_', which is reserved"
    throw new CodedError('INVALID_TOOL_NAME', `the tool name '${tool.name}' ${where} ${rule}`)
  }
  const wrong = wrongPart(tool)
  if (wrong !== undefined) throw new CodedError('INVALID_TOOL', `tool '${tool.name}' ${where}: ${wrong}`)
  const description: ToolDescription = {
    name: tool.name,
    description: tool.description,
    input_schema: tool.input,
    output_schema: tool.output,
    effect: tool.effect,
    idempotent: tool.idempotent ?? false,
    parallel_safe: tool.parallelSafe ?? false,
    confirmation: tool.confirmation ?? 'none'
  }
  const compile = (schema: JsonSchema): Check => {
    let check = checks.get(schema)
    if (check === undefined) {
      check = contained(compileSchema(schema))
      checks.set(schema, check)
    }
    return check
  }
  try {
    return {
      tool,
      description,
      json: canonicalJson(description),
      checkInput: compile(tool.input),
      checkOutput: compile(tool.output),
      confirmation:
        tool.effect === 'destructive' || tool.confirmation === 'required' ? `confirm:${tool.name}` : undefined,
      permission: `tool:${tool.name}`,
      cacheable: description.idempotent && (tool.effect === 'none' || tool.effect === 'read')
    }
  } catch (error) {
    throw new CodedError(
      'INVALID_SCHEMA',
      `a schema of tool '${tool.name}' ${where} does not compile: ${messageOf(error)}`,
      {
        cause: error
      }
    )
  }
}

/** A schema that refers to itself follows the value down, and may run out of stack. */
function contained(check: Check): Check {
  return (value) => {
    try {
      return check(value)
    } catch {
      return [{ path: [], message: 'the value is nested too deep to be checked' }]
    }
  }
}

/** Types hold this for TypeScript; a plugin may be JavaScript. */
function wrongPart(tool: Tool): string | undefined {
  const { description, input, output, effect, confirmation, timeoutMs, run, next, verify } = tool as Partial<Tool>
  if (typeof description !== 'string') return 'description has to be a string'
  if (typeof input !== 'object' || input === null) return 'input has to be a JSON Schema'
  if (typeof output !== 'object' || output === null) return 'output has to be a JSON Schema'
  if (effect === undefined || !effects.includes(effect)) return `effect has to be one of ${effects.join(', ')}`
  if (confirmation !== undefined && confirmation !== 'none' && confirmation !== 'required') {
    return "confirmation has to be 'none' or 'required'"
  }
  if (timeoutMs !== undefined && !(Number.isInteger(timeoutMs) && timeoutMs > 0 && timeoutMs <= maxTimeoutMs)) {
    return `timeoutMs has to be a whole number from 1 to ${maxTimeoutMs}`
  }
  if (typeof run !== 'function') return 'run has to be a function'
  if (verify !== undefined && typeof verify !== 'function') return 'verify has to be a function'
  if (next !== undefined && typeof next !== 'function') return 'next has to be a function'
  return undefined
}
