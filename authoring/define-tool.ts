import type { Awaitable, JsonSchema } from '../kernel/index.ts'
import type { Effect, Tool, ToolContext } from '../plugins/tools/types.ts'

type Scalars = {
  readonly string: string
  readonly number: number
  readonly integer: number
  readonly boolean: boolean
  readonly null: null
}

type Simplify<T> = { [K in keyof T]: T[K] } & {}

type RequiredKeys<S, P> = S extends { readonly required: readonly (infer K)[] } ? Extract<keyof P, K> : never

type FromProperties<S> = S extends { readonly properties: infer P }
  ? Simplify<
      { [K in RequiredKeys<S, P>]: FromSchema<P[K]> } & {
        [K in Exclude<keyof P, RequiredKeys<S, P>>]?: FromSchema<P[K]>
      }
    >
  : S extends { readonly additionalProperties: infer V extends JsonSchema }
    ? Record<string, FromSchema<V>>
    : S extends { readonly additionalProperties: false }
      ? Record<string, never>
      : Record<string, unknown>

type FromType<T, S> = T extends keyof Scalars
  ? Scalars[T]
  : T extends 'array'
    ? S extends { readonly items: infer I }
      ? FromSchema<I>[]
      : unknown[]
    : T extends 'object'
      ? FromProperties<S>
      : unknown

/**
 * The type of the values a JSON Schema takes, as far as its literal tells: `const`, `enum`, `anyOf`, `oneOf`, `type`,
 * `properties` with `required`, `items`. What a schema says otherwise (`$ref`, `allOf`) is `unknown`, and so is a schema
 * whose literal type is lost.
 */
export type FromSchema<S> = S extends { readonly const: infer C }
  ? C
  : S extends { readonly enum: readonly (infer E)[] }
    ? E
    : S extends { readonly anyOf: readonly (infer A)[] }
      ? FromSchema<A>
      : S extends { readonly oneOf: readonly (infer A)[] }
        ? FromSchema<A>
        : S extends { readonly type: readonly (infer T)[] }
          ? FromType<T, S>
          : S extends { readonly type: infer T }
            ? FromType<T, S>
            : unknown

/** A tool whose `run` takes what its input schema describes, and returns what its output schema does. */
export interface ToolDefinition<I extends JsonSchema, O extends JsonSchema>
  extends Omit<Tool<FromSchema<I>, FromSchema<O>>, 'input' | 'output' | 'effect' | 'run'> {
  readonly input: I
  readonly output: O
  readonly effect: Effect
  run(input: FromSchema<I>, context: ToolContext): Awaitable<FromSchema<O>>
}

/** Types a tool by its schemas. At run time nothing but the tool, ready for `ctx.contribute('tools', …)`. */
export function defineTool<const I extends JsonSchema, const O extends JsonSchema>(tool: ToolDefinition<I, O>): Tool {
  return tool as unknown as Tool
}
