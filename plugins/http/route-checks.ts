import { type Check, type CheckMode, compileSchema, type JsonSchema } from '../../kernel/index.ts'
import type { Route } from './types.ts'

/** The compiled schemas of a route. */
export interface RouteChecks {
  readonly params: Check | undefined
  readonly query: Check | undefined
  readonly body: Check | undefined
}

/**
 * Checks by what their schemas say, for as long as a route has them: a plugin that is swapped brings routes anew, and
 * compiling takes a millisecond a schema, in which nobody is answered.
 */
export class CompiledRoutes {
  readonly #byRoute = new WeakMap<Route, RouteChecks>()
  readonly #bySchema = new Map<string, WeakRef<Check>>()
  readonly #gone = new FinalizationRegistry<string>((key) => {
    if (this.#bySchema.get(key)?.deref() === undefined) this.#bySchema.delete(key)
  })

  /** @throws Error of the validator for a broken schema */
  of(route: Route): RouteChecks {
    let checks = this.#byRoute.get(route)
    if (checks === undefined) {
      checks = {
        params: this.#compile(route.params, 'data'),
        query: this.#compile(route.query, 'query'),
        body: this.#compile(route.body, 'data')
      }
      this.#byRoute.set(route, checks)
    }
    return checks
  }

  #compile(schema: JsonSchema | undefined, mode: CheckMode): Check | undefined {
    if (schema === undefined) return undefined
    const key = `${mode} ${JSON.stringify(schema)}`
    let check = this.#bySchema.get(key)?.deref()
    if (check === undefined) {
      check = compileSchema(schema, mode)
      this.#bySchema.set(key, new WeakRef(check))
      this.#gone.register(check, key)
    }
    return check
  }
}
