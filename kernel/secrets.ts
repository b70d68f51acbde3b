import { secretMask } from './control.ts'
import type { JsonObject, JsonValue } from './program.ts'
import type { JsonSchema } from './schema.ts'

/**
 * The config with every value that its schema calls `writeOnly` masked. What only names an environment variable is no
 * secret and stays.
 */
export function maskSecrets(config: JsonObject, schema: JsonSchema): JsonObject {
  return mapSecrets(config, schema, (value) => (isReference(value) || value === '' ? value : secretMask))
}

/** The config with every mask replaced by the value that stands in its place in `present`. */
export function unmaskSecrets(config: JsonObject, schema: JsonSchema, present: JsonObject): JsonObject {
  return mapSecrets(config, schema, (value, path) => {
    if (value !== secretMask) return value
    const found = path.reduce<unknown>((at, key) => (at as Record<string, unknown> | undefined)?.[key], present)
    return (found as JsonValue | undefined) ?? value
  })
}

function mapSecrets(
  config: JsonObject,
  schema: JsonSchema,
  map: (value: JsonValue, path: readonly string[]) => JsonValue
): JsonObject {
  const visit = (value: JsonValue, here: unknown, path: readonly string[]): JsonValue => {
    const rules = here as Record<string, unknown> | undefined
    if (rules?.['writeOnly'] === true) return map(value, path)
    if (value === null || typeof value !== 'object' || value instanceof Date) return value
    if (Array.isArray(value))
      return value.map((item: JsonValue, index) => visit(item, rules?.['items'], [...path, String(index)]))
    const properties = rules?.['properties'] as Record<string, unknown> | undefined
    return Object.fromEntries(
      Object.entries(value as JsonObject).map(([key, item]) => {
        const rule =
          properties !== undefined && Object.hasOwn(properties, key) ? properties[key] : rules?.['additionalProperties']
        return [key, visit(item, rule, [...path, key])]
      })
    )
  }
  return visit(config, schema, []) as JsonObject
}

function isReference(value: JsonValue): boolean {
  return typeof value === 'string' && /^\$\{[A-Za-z_]\w*(?::-)?\}$/.test(value)
}
