import { secretMask } from './control.ts'
import type { JsonObject, JsonValue } from './program.ts'
import type { JsonSchema } from './schema.ts'

type Rules = Record<string, unknown>

/**
 * The config with every value masked that its schema calls `writeOnly`, under whatever condition. Without a schema
 * nothing is known to be harmless, and every value is masked. What only names an environment variable is no secret and
 * stays.
 */
export function maskSecrets(config: JsonObject, schema: JsonSchema | undefined): JsonObject {
  if (schema === undefined) return mapLeaves(config, [], mask) as JsonObject
  const visit = (value: JsonValue, here: readonly Rules[]): JsonValue => {
    const rules = expand(here, schema)
    if (rules.some((rule) => rule['writeOnly'] === true)) return mask(value)
    if (Array.isArray(value)) {
      return value.map((item: JsonValue, index) =>
        visit(
          item,
          rules.flatMap((rule) => rulesOfItem(rule, index))
        )
      )
    }
    if (!isTable(value)) return value
    return Object.fromEntries(
      Object.entries(value).map(([key, item]) => [
        key,
        visit(
          item,
          rules.flatMap((rule) => rulesOfKey(rule, key))
        )
      ])
    )
  }
  return visit(config, [schema as Rules]) as JsonObject
}

/** The config with every mask replaced by the value that stands in its place in `present`. */
export function unmaskSecrets(config: JsonObject, present: JsonObject = {}): JsonObject {
  const restore = (value: JsonValue, path: readonly string[]): JsonValue => {
    if (value !== secretMask) return value
    const found = path.reduce<unknown>((at, key) => (at as Rules | undefined)?.[key], present)
    return (found as JsonValue | undefined) ?? value
  }
  return mapLeaves(config, [], restore) as JsonObject
}

function mask(value: JsonValue): JsonValue {
  return isReference(value) || value === '' ? value : secretMask
}

function mapLeaves(
  value: JsonValue,
  path: readonly string[],
  map: (value: JsonValue, path: readonly string[]) => JsonValue
): JsonValue {
  if (Array.isArray(value)) return value.map((item: JsonValue, index) => mapLeaves(item, [...path, String(index)], map))
  if (!isTable(value)) return map(value, path)
  return Object.fromEntries(Object.entries(value).map(([key, item]) => [key, mapLeaves(item, [...path, key], map)]))
}

/** Schemas, and all that they say of the same value, whether or not it applies to the one at hand. */
function expand(schemas: readonly Rules[], root: JsonSchema): readonly Rules[] {
  const all = new Set(schemas)
  for (const rules of all) {
    for (const key of ['allOf', 'anyOf', 'oneOf', 'if', 'then', 'else'])
      for (const each of tables(rules[key])) all.add(each)
    for (const each of Object.values(table(rules['dependentSchemas']))) for (const one of tables(each)) all.add(one)
    for (const key of ['$ref', '$dynamicRef']) {
      // What cannot be followed may lead to a secret.
      if (rules[key] !== undefined) all.add(tables(resolveReference(rules[key], root))[0] ?? { writeOnly: true })
    }
  }
  return [...all]
}

/** What `#/$defs/secret` stands for within `root`. */
function resolveReference(reference: unknown, root: JsonSchema): unknown {
  if (typeof reference !== 'string' || !/^#(\/|$)/.test(reference)) return undefined
  const keys = reference.slice(1).split('/').slice(1)
  const names = keys.map((key) => decodeURIComponent(key).replaceAll('~1', '/').replaceAll('~0', '~'))
  return names.reduce<unknown>((at, key) => (at as Rules | undefined)?.[key], root)
}

function rulesOfKey(rules: Rules, key: string): readonly Rules[] {
  const properties = table(rules['properties'])
  const found = Object.hasOwn(properties, key) ? tables(properties[key]) : []
  const patterns = Object.entries(table(rules['patternProperties']))
  const matching = patterns
    .filter(([pattern]) => new RegExp(pattern, 'u').test(key))
    .flatMap(([, rule]) => tables(rule))
  const named = [...found, ...matching]
  return named.length > 0
    ? named
    : [...tables(rules['additionalProperties']), ...tables(rules['unevaluatedProperties'])]
}

function rulesOfItem(rules: Rules, index: number): readonly Rules[] {
  const { prefixItems } = rules
  const own = Array.isArray(prefixItems) ? tables(prefixItems[index]) : []
  return own.length > 0 ? own : [...tables(rules['items']), ...tables(rules['contains'])]
}

function tables(value: unknown): readonly Rules[] {
  return (Array.isArray(value) ? value : [value]).filter(isTable) as readonly Rules[]
}

function table(value: unknown): Rules {
  return isTable(value) ? value : {}
}

function isTable(value: unknown): value is Record<string, JsonValue> {
  return value !== null && typeof value === 'object' && !Array.isArray(value) && !(value instanceof Date)
}

function isReference(value: JsonValue): boolean {
  return typeof value === 'string' && /^\$\{[A-Za-z_]\w*(?::-)?\}$/.test(value)
}
