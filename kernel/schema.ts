import type { ErrorObject, ValidateFunction } from 'ajv'
import { Ajv2020, type Options } from 'ajv/dist/2020.js'
import { createPatterns, PatternTimeout } from './pattern.ts'

/** A JSON Schema (2020-12) as plain data. */
export type JsonSchema = { readonly [key: string]: unknown }

declare const kValue: unique symbol

/** A JSON Schema whose valid values have the type `T`. At run time nothing but the schema. */
export type Schema<T> = JsonSchema & { readonly [kValue]?: T }

/** Types a schema: `schemaOf<Config>({ type: 'object', … })`. */
export function schemaOf<T>(schema: JsonSchema): Schema<T> {
  return schema as Schema<T>
}

/** One thing that is wrong: where (names and indexes from the root down) and what. */
export interface Issue {
  readonly path: readonly string[]
  readonly message: string
}

/** @returns what is wrong with `value`; empty when nothing is */
export type Check = (value: unknown) => readonly Issue[]

/**
 * - `config`: fills in defaults in place, reports everything that is wrong
 * - `data`: changes nothing, stops at the first thing that is wrong
 * - `query`: turns the strings of a query into numbers and booleans in place, fills in defaults
 */
export type CheckMode = 'config' | 'data' | 'query'

const modes: Readonly<Record<CheckMode, Options>> = {
  config: { allErrors: true, useDefaults: true },
  data: { allErrors: false },
  query: { allErrors: true, useDefaults: true, coerceTypes: true }
}

const cap = 20

/**
 * Compiles a schema once; calling the result is cheap. Values are never coerced but in `query`; `format` is an
 * annotation, as the draft has it. No pattern takes long, whatever the text: where it would, that is what is wrong.
 * @throws Error of the validator for a broken schema
 */
export function compileSchema(schema: JsonSchema, mode: CheckMode = 'data'): Check {
  const patterns = createPatterns()
  const validate: ValidateFunction = new Ajv2020({
    code: { regExp: Object.assign((pattern: string) => patterns.compile(pattern), { code: 'new RegExp' }) },
    strict: true,
    strictTypes: false,
    strictRequired: false,
    allowUnionTypes: true,
    validateFormats: false,
    // Resolved by Ajv, which in strict mode does not know it all the same.
    keywords: ['$anchor'],
    // Compiling the schema of schemas takes 30 times as long as compiling a schema; strict mode finds the same mistakes.
    meta: false,
    validateSchema: false,
    ...modes[mode]
  }).compile(schema)
  return (value) => {
    patterns.begin()
    try {
      return validate(value) ? none : toIssues(validate.errors ?? [])
    } catch (error) {
      if (!(error instanceof PatternTimeout)) throw error
      return [{ path: [], message: 'a text takes too long to be matched with a pattern of the schema' }]
    }
  }
}

const none: readonly Issue[] = Object.freeze([])

/** `- missing url (at calc.url); - …`: issues as one line for people. */
export function renderIssues(issues: readonly Issue[]): string {
  return issues
    .map((issue) => `- ${issue.message}${issue.path.length > 0 ? ` (at ${issue.path.join('.')})` : ''}`)
    .join('; ')
}

function toIssues(errors: readonly ErrorObject[]): readonly Issue[] {
  const issues: Issue[] = []
  for (const error of errors) {
    if (error.keyword === 'if') continue
    const path = error.instancePath.split('/').slice(1).map(unescapePointer)
    issues.push(toIssue(error, path))
    if (issues.length === cap) break
  }
  return issues
}

function toIssue(error: ErrorObject, path: readonly string[]): Issue {
  const params = error.params as Record<string, unknown>
  const here = path.at(-1) ?? 'the value'
  switch (error.keyword) {
    case 'required': {
      const name = String(params['missingProperty'])
      return { path: [...path, name], message: `missing ${name}` }
    }
    case 'additionalProperties':
    case 'unevaluatedProperties': {
      const name = String(params['additionalProperty'] ?? params['unevaluatedProperty'])
      return { path: [...path, name], message: `unknown key ${name}` }
    }
    case 'type':
      return { path, message: `${here} must be ${[params['type']].flat().join(' or ')}` }
    case 'enum':
      return {
        path,
        message: `${here} must be one of ${(params['allowedValues'] as unknown[]).map((value) => JSON.stringify(value)).join(', ')}`
      }
    case 'const':
      return { path, message: `${here} must be ${JSON.stringify(params['allowedValue'])}` }
    default:
      return { path, message: `${here} ${error.message ?? 'is not valid'}` }
  }
}

function unescapePointer(part: string): string {
  return part.replaceAll('~1', '/').replaceAll('~0', '~')
}
