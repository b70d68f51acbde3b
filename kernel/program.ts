import { type TomlDate, TomlError } from 'smol-toml'
import { CodedError } from './errors.ts'
import { didYouMean } from './nearest.ts'
import type { Issue, JsonSchema } from './schema.ts'
import {
  type Inline,
  isArray,
  isTable,
  maxDepth,
  type Path,
  parseToml,
  pathKey,
  type Position,
  positionOf,
  scan,
  type Section,
  type Value
} from './toml.ts'

/**
 * A value of the program file. Integers that a number cannot hold exactly are bigints; dates are `TomlDate`s, which
 * become their RFC 3339 text in JSON; strings hold `${…}` as written. See {@link resolveConfig} for plain JSON.
 */
export type JsonValue = null | boolean | number | bigint | string | TomlDate | readonly JsonValue[] | JsonObject

/** A table: own keys only, never `__proto__`. */
export interface JsonObject {
  readonly [key: string]: JsonValue
}

/** The optional top-level table `[kernel]`. All in milliseconds. */
export interface ProgramSettings {
  /** How long the `apply` of a plugin may take. */
  readonly apply_timeout_ms: number
  /** How long what a generation began may go on after the next one took over. */
  readonly drain_timeout_ms: number
  /** How long one undo may take. */
  readonly undo_timeout_ms: number
  /** How long the whole process may take to end. */
  readonly shutdown_timeout_ms: number
}

/** One thing that runs. */
export interface Entry {
  /** Unique; `a:b` is a child of `a`. */
  readonly id: string
  /** A built-in label, a package name, or a path relative to the program file. */
  readonly plugin: string
  readonly config: JsonObject
  readonly disabled: boolean
  /**
   * Service → the realm in which the entry and all below it see and provide it: one of that label, shared by all who
   * name it, or with `true` one of the entry's own. A bare label stands for every service the entry provides.
   */
  readonly isolate?: string | Readonly<Record<string, boolean | string>>
  /** Service → what is laid over its config for the entry and all below it. */
  readonly intercept?: JsonObject
  /** As older files have it: `parent` wins over the id, `position` is not looked at (the order of the file is). */
  readonly position?: { readonly parent?: string; readonly position?: number }
  /** The included file it stands in; absent for what stands in the program file itself. Never written. */
  readonly source?: string
}

/** What runs, in the order of the file. */
export interface Program {
  readonly settings: ProgramSettings
  readonly entries: readonly Entry[]
}

/** One thing that is wrong with a program. Line and column are 0 where there is no text. */
export interface ProgramFault extends Position {
  /** Which file, where a program may be made of several. */
  readonly file?: string
  /** Holds a suggestion where there is one; never a value of the file. */
  readonly message: string
}

/** A program whose entries can be shown to whoever wrote them. */
export interface LocatedProgram {
  readonly program: Program
  /** Where a key of an entry's config is (of the nearest table around it, where it is not); the entry itself for []. */
  locate(entryId: string, path: readonly string[]): Omit<ProgramFault, 'message'>
}

/** One file, whether it is a program or a part of one. */
export interface ParsedProgram extends LocatedProgram {
  /** As it was read; a byte-order mark is its first character. */
  readonly text: string
  readonly file: string
  /** Where each entry stands in the text: `['entry', 2]`, or longer for one within the config of a group. */
  readonly paths: ReadonlyMap<string, Path>
}

export const defaultSettings: ProgramSettings = {
  apply_timeout_ms: 10_000,
  drain_timeout_ms: 30_000,
  undo_timeout_ms: 10_000,
  shutdown_timeout_ms: 8_000
}

type Kind = 'string' | 'boolean' | 'table'
const entryKeys: Readonly<Record<string, readonly Kind[]>> = {
  id: ['string'],
  plugin: ['string'],
  config: ['table'],
  disabled: ['boolean'],
  isolate: ['string', 'table'],
  intercept: ['table'],
  position: ['table']
}
const programKeys = ['kernel', 'entry']

/** `plugin` of an entry that only holds others: by their ids, or in the array `entries` of its config. */
export const groupPlugin = '@group'
/** `plugin` of an entry that stands for those of another file. */
export const includePlugin = '@include'

const maxBytes = 16 * 1024 * 1024
const maxFaults = 20
const maxIdLength = 256
/** The longest delay a timer can have. */
const maxTimeoutMs = 2_147_483_647

/**
 * Parses a program file and checks it whole; an empty one is an empty program.
 * @param file its name, for messages
 * @param isPart for a file that another one includes: it has no settings
 * @throws CodedError `PROGRAM_INVALID`: message `file:line:column: what` for each fault, one a line; detail
 *   `{ file, faults: ProgramFault[], paths }`
 */
export function parseProgram(source: string | Uint8Array, file: string, isPart = false): ParsedProgram {
  const text = typeof source === 'string' ? source : decode(source, file)
  let places: ReadonlyMap<string, number> | undefined
  const placeOf = (path: Path): Position => {
    places ??= findPlaces(text)
    for (let length = path.length; length > 0; length--) {
      const offset = places.get(pathKey(path.slice(0, length)))
      if (offset !== undefined) return positionOf(text, offset)
    }
    return { line: 1, column: 1 }
  }
  const { faults, program, paths } = check(readTree(text, file), placeOf, isPart)
  if (faults.length > 0) throw invalidProgram(file, faults)
  return {
    program,
    text,
    file,
    paths,
    locate: (entryId, path) => {
      const place = paths.get(entryId) ?? []
      return placeOf(path.length > 0 ? [...place, 'config', ...path] : place)
    }
  }
}

/** @throws CodedError `PROGRAM_INVALID` naming the key, without the piece of the file the parser quotes */
function readTree(text: string, file: string): Record<string, unknown> {
  try {
    return parseToml(text)
  } catch (error) {
    if (!(error instanceof TomlError)) throw error
    const { line, column } = error
    const content = text.split('\n')[line - 1] ?? ''
    const key = /^\s*((?:[\w-]+|"[^"]*"|'[^']*')(?:\s*\.\s*(?:[\w-]+|"[^"]*"|'[^']*'))*)\s*=/.exec(content)?.[1]
    const what = (error.message.split('\n')[0] ?? '').replace(/^Invalid TOML document: /, '')
    const message = `${what}${key === undefined ? '' : ` (key ${key})`}`
    const shown = line === 1 && text.startsWith('\uFEFF') ? column - 1 : column
    // The parser's error quotes the file, which may hold a secret: it is not kept as the cause.
    throw invalidProgram(file, [{ line, column: shown, message }])
  }
}

/**
 * A program given as data, with the checks of the file.
 * @throws CodedError `PROGRAM_INVALID`; its faults have line and column 0
 */
export function programOf(data: {
  readonly settings?: Partial<ProgramSettings>
  readonly entries: readonly (Pick<Entry, 'id' | 'plugin'> & Partial<Entry>)[]
}): Program {
  const { faults, program } = check(
    { ...(data.settings === undefined ? {} : { kernel: { ...data.settings } }), entry: data.entries },
    undefined
  )
  if (faults.length > 0) throw invalidProgram('program', faults)
  return program
}

/**
 * Entries whose plugin is neither built in, nor a path (`./`, `../`, `/`), nor a package (a name with a slash or a
 * dot, or one that begins with `heartwood-`).
 */
export function checkPlugins(located: LocatedProgram, known: readonly string[]): readonly ProgramFault[] {
  const labels = new Set([...known, groupPlugin, includePlugin])
  const strangers = located.program.entries.filter(({ plugin }) => !labels.has(plugin) && isLabel(plugin))
  return strangers.slice(0, maxFaults).map(({ id, plugin }) => ({
    ...located.locate(id, []),
    message: `unknown plugin '${plugin}' in entry '${id}'${didYouMean(plugin, labels)}`
  }))
}

/** True for the name of a built-in plugin, false for a path or a package. */
export function isLabel(plugin: string): boolean {
  return !/[/\\.]/.test(plugin) && !plugin.startsWith('heartwood-')
}

/** What a plugin's schema found wrong with a config, as faults of the file. */
export function issueFaults(
  located: LocatedProgram,
  entryId: string,
  schema: JsonSchema,
  issues: readonly Issue[]
): readonly ProgramFault[] {
  return issues.map(({ path, message }) => {
    const parent = path.slice(0, -1)
    const where = parent.length > 0 ? ` at config.${parent.join('.')}` : ''
    const name = path.at(-1)
    const hint =
      name !== undefined && message === `unknown key ${name}`
        ? didYouMean(name, schemasAt(schema, parent).flatMap(propertyNames))
        : ''
    return { ...located.locate(entryId, path), message: `${message}${where} in entry '${entryId}'${hint}` }
  })
}

/**
 * The config a plugin gets: plain JSON in new objects. `${NAME}` and `${NAME:-default}` come from `env` (a default
 * also stands in for an empty variable); `$${` is a literal `${`; anything else with a `$` stays as it is; what was put
 * in is not looked at again. A string that is one variable and nothing else takes the type the schema has at its path
 * (integer, number or boolean; a string where the schema allows one, or where the text is not of that type). Dates
 * become RFC 3339 text, bigints decimal text: JSON has no exact form for them.
 * @throws CodedError `PROGRAM_VARIABLE_MISSING`, detail `{ missing: { variable, path }[] }`
 */
export function resolveConfig(
  config: JsonObject,
  env: Readonly<Record<string, string | undefined>>,
  schema: JsonSchema = {}
): JsonObject {
  const missing: { readonly variable: string; readonly path: readonly string[] }[] = []
  const resolveString = (text: string, path: readonly string[]): JsonValue => {
    const read = (name: string, fallback: string | undefined) => {
      const value = Object.hasOwn(env, name) ? env[name] : undefined
      if (fallback !== undefined) return value === undefined || value === '' ? fallback : value
      if (value === undefined) missing.push({ variable: name, path })
      return value ?? ''
    }
    const whole = /^\$\{([A-Za-z_]\w*)(?::-([^}]*))?\}$/.exec(text)
    if (whole !== null) return typed(read(whole[1] ?? '', whole[2]), schemasAt(schema, path))
    return text.replace(/\$(\$\{)|\$\{([A-Za-z_]\w*)(?::-([^}]*))?\}/g, (_, literal, name, fallback) =>
      literal === undefined ? read(name, fallback) : literal
    )
  }
  const resolve = (value: JsonValue, path: readonly string[]): JsonValue => {
    if (typeof value === 'string') return value.includes('$') ? resolveString(value, path) : value
    if (typeof value === 'bigint') return String(value)
    if (value === null || typeof value !== 'object') return value
    if (value instanceof Date) return value.toISOString()
    if (isArray(value)) return value.map((item, index) => resolve(item, [...path, String(index)]))
    return Object.fromEntries(Object.entries(value).map(([key, item]) => [key, resolve(item, [...path, key])]))
  }
  const resolved = resolve(config, []) as JsonObject
  if (missing.length > 0) {
    const list = missing.map(({ variable, path }) => `${variable} (at config.${path.join('.')})`).join(', ')
    throw new CodedError(
      'PROGRAM_VARIABLE_MISSING',
      `the configuration needs environment variables that are not set: ${list}; set them or give a default: \${NAME:-default}`,
      { detail: { missing } }
    )
  }
  return resolved
}

function typed(text: string, schemas: readonly JsonSchema[]): JsonValue {
  const types = new Set(schemas.flatMap((schema) => schema['type'] ?? []))
  if (types.has('string')) return text
  if (types.has('boolean') && /^(true|false)$/.test(text)) return text === 'true'
  if (types.has('integer') && /^[+-]?\d+$/.test(text) && Number.isSafeInteger(Number(text))) return Number(text)
  if (types.has('number') && /^[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?$/i.test(text)) return Number(text)
  return text
}

/** Every schema that has a say about the value at `path`. */
function schemasAt(root: JsonSchema, path: readonly string[]): readonly JsonSchema[] {
  let here = spread(root, [root])
  for (const key of path) {
    const next = here.flatMap((schema) => {
      const properties = schema['properties']
      if (isTable(properties) && Object.hasOwn(properties, key)) return [properties[key]]
      const items = /^\d+$/.test(key)
        ? [(schema['prefixItems'] as unknown[] | undefined)?.[Number(key)] ?? schema['items']]
        : []
      return [...items, schema['additionalProperties']]
    })
    here = spread(root, next)
  }
  return here
}

/** The schemas themselves, and those they refer to or are made of. */
function spread(root: JsonSchema, schemas: readonly unknown[]): readonly JsonSchema[] {
  const found = new Set<JsonSchema>()
  const visit = (schema: unknown): void => {
    if (!isTable(schema) || found.has(schema)) return
    found.add(schema)
    if (typeof schema['$ref'] === 'string') visit(lookUp(root, schema['$ref']))
    for (const keyword of ['allOf', 'anyOf', 'oneOf']) {
      if (Array.isArray(schema[keyword])) schema[keyword].forEach(visit)
    }
    for (const keyword of ['if', 'then', 'else']) visit(schema[keyword])
  }
  schemas.forEach(visit)
  return [...found]
}

function lookUp(root: JsonSchema, ref: string): unknown {
  if (!ref.startsWith('#')) return undefined
  let found: unknown = root
  for (const part of ref.split('/').slice(1)) {
    found = isTable(found) ? found[part.replaceAll('~1', '/').replaceAll('~0', '~')] : undefined
  }
  return found
}

function propertyNames(schema: JsonSchema): readonly string[] {
  return isTable(schema['properties']) ? Object.keys(schema['properties']) : []
}

const nowhere: Position = { line: 0, column: 0 }

/** Checks a tree of values; `placeOf` is absent where there is no text. */
function check(
  tree: Record<string, unknown>,
  placeOf: ((path: Path) => Position) | undefined,
  isPart = false
): {
  readonly faults: readonly ProgramFault[]
  readonly program: Program
  readonly paths: ReadonlyMap<string, Path>
} {
  const faults: ProgramFault[] = []
  let more = 0
  const report: Report = (path, message) => {
    if (faults.length === maxFaults) more++
    else faults.push({ ...(placeOf?.(path) ?? nowhere), message })
  }
  const nameOf = (path: Path) => {
    // To find a line takes long in a long text: not for what is only counted.
    const line = faults.length < maxFaults ? placeOf?.(path).line : undefined
    return line === undefined ? `entry ${Number(path.at(-1)) + 1}` : `the entry at line ${line}`
  }

  for (const key of Object.keys(tree)) {
    if (!programKeys.includes(key)) report([key], `unknown key '${key}'${didYouMean(key, programKeys)}`)
  }

  const settings: Record<string, number> = { ...defaultSettings }
  const table = tree['kernel'] ?? {}
  if (!isTable(table)) report(['kernel'], `kernel must be a table, found ${kindOf(table)}`)
  else if (isPart && tree['kernel'] !== undefined) {
    report(['kernel'], 'kernel belongs into the program file, not into an included one')
  } else {
    for (const [key, value] of Object.entries(table)) {
      if (!Object.hasOwn(defaultSettings, key)) {
        report(['kernel', key], `unknown key '${key}' in kernel${didYouMean(key, Object.keys(defaultSettings))}`)
      } else if (!Number.isInteger(value) || Number(value) < 1 || Number(value) > maxTimeoutMs) {
        report(['kernel', key], `kernel.${key} must be an integer from 1 to ${maxTimeoutMs}`)
      } else settings[key] = Number(value)
    }
  }

  const entries: Entry[] = []
  const paths = new Map<string, Path>()
  const addAll = (list: unknown, at: Path, prefix: string): void => {
    if (!Array.isArray(list)) {
      const wanted =
        prefix === '' ? 'entry must be an array of tables ([[entry]])' : 'entries must be an array of tables'
      return report(at, `${wanted}, found ${kindOf(list)}`)
    }
    for (const [index, item] of list.entries()) add(item, [...at, index], prefix)
  }
  const add = (item: unknown, path: Path, prefix: string): void => {
    if (!isTable(item)) return report(path, `an entry must be a table, found ${kindOf(item)}`)
    if (path.length > maxDepth) return report(path, `groups are nested deeper than ${maxDepth} levels`)
    const own = typeof item['id'] === 'string' && item['id'] !== '' ? item['id'] : undefined
    const id = own === undefined || own.startsWith(prefix) ? own : prefix + own
    const named = id === undefined ? nameOf(path) : `entry '${printable(id)}'`
    checkMembers(item, named, (at, message) => report([...path, ...at], message))
    if (id !== undefined) {
      const first = paths.get(id)
      if (first === undefined) paths.set(id, path)
      else report([...path, 'id'], `id '${printable(id)}' is already that of ${nameOf(first)}`)
    }
    const config = (item['config'] ?? {}) as JsonObject
    const members = item['plugin'] === groupPlugin && isTable(config) ? config['entries'] : undefined
    entries.push({
      id: id ?? '',
      plugin: item['plugin'] as string,
      config: members === undefined ? config : {},
      disabled: (item['disabled'] as boolean | undefined) ?? false,
      ...given(item, ['isolate', 'intercept', 'position'])
    })
    if (members !== undefined) addAll(members, [...path, 'config', 'entries'], `${id ?? ''}:`)
  }
  addAll(tree['entry'] ?? [], ['entry'], '')
  if (more > 0) faults.push({ ...nowhere, message: `and ${more} more` })
  return { faults, program: { settings: settings as unknown as ProgramSettings, entries }, paths }
}

type Report = (at: Path, message: string) => void

/** @param named what to call the entry */
function checkMembers(item: Record<string, unknown>, named: string, report: Report): void {
  for (const [key, value] of Object.entries(item)) {
    const kinds = Object.hasOwn(entryKeys, key) ? entryKeys[key] : undefined
    if (kinds === undefined) {
      report([key], `unknown key '${key}' in ${named}${didYouMean(key, Object.keys(entryKeys))}`)
    } else if (value !== undefined && !(kinds as readonly string[]).includes(kindOf(value))) {
      report([key], `${key} of ${named} must be a ${kinds.join(' or a ')}, found ${kindOf(value)}`)
    }
  }
  checkScope(item, named, report)
  for (const key of ['id', 'plugin']) {
    const value = item[key]
    if (value === undefined) report([], `missing ${key} in ${named}`)
    else if (typeof value === 'string' && value.trim() === '') report([key], `${key} of ${named} is blank`)
    else if (typeof value === 'string' && (hasControl(value) || value.length > maxIdLength)) {
      report([key], `${key} of ${named} has control characters or more than ${maxIdLength} characters`)
    }
  }
  const config = item['config'] ?? {}
  const bad = findBad(config, [])
  if (bad !== undefined) report(['config', ...bad.path], `${bad.message} in ${named}`)
  if (!isTable(config)) return
  if (item['plugin'] === groupPlugin) checkKeys(config, ['entries'], named, report)
  if (item['plugin'] === includePlugin) checkInclude(item, config, named, report)
}

function checkInclude(
  item: Record<string, unknown>,
  config: Record<string, unknown>,
  named: string,
  report: Report
): void {
  checkKeys(config, ['path', 'writable'], named, report)
  const { path, writable = false } = config
  if (path === undefined) report(['config'], `missing path in the config of ${named}`)
  else if (typeof path !== 'string') {
    report(['config', 'path'], `path of ${named} must be a string, found ${kindOf(path)}`)
  } else if (path.trim() === '') report(['config', 'path'], `path of ${named} is blank`)
  if (typeof writable !== 'boolean') {
    report(['config', 'writable'], `writable of ${named} must be a boolean, found ${kindOf(writable)}`)
  }
  for (const key of ['isolate', 'intercept']) {
    if (item[key] !== undefined) report([key], `${key} is not for an include, but for a group, in ${named}`)
  }
}

function checkKeys(config: Record<string, unknown>, known: readonly string[], named: string, report: Report): void {
  for (const key of Object.keys(config)) {
    if (known.includes(key)) continue
    report(['config', key], `unknown key '${key}' in the config of ${named}${didYouMean(key, known)}`)
  }
}

/** The optional members of an entry that are there. */
function given(item: Record<string, unknown>, keys: readonly string[]): Partial<Entry> {
  return Object.fromEntries(keys.flatMap((key) => (item[key] === undefined ? [] : [[key, item[key]]])))
}

/** What is wrong within `isolate`, `intercept` and `position`. */
function checkScope({ isolate, intercept, position }: Record<string, unknown>, named: string, report: Report): void {
  for (const [service, realm] of isTable(isolate) ? Object.entries(isolate) : []) {
    if (typeof realm === 'boolean' || (typeof realm === 'string' && realm !== '')) continue
    report(['isolate', service], `isolate.${service} must be true or the label of a realm in ${named}`)
  }
  if (isolate === '') report(['isolate'], `isolate is a label, or a table of services in ${named}`)
  for (const [service, overlay] of isTable(intercept) ? Object.entries(intercept) : []) {
    if (isTable(overlay)) continue
    report(['intercept', service], `intercept.${service} must be a table, found ${kindOf(overlay)} in ${named}`)
  }
  for (const [key, value] of isTable(position) ? Object.entries(position) : []) {
    if (key === 'parent' ? typeof value === 'string' : key === 'position' && Number.isInteger(value)) continue
    report(['position', key], `position takes parent (an entry's id) and position (an integer) in ${named}`)
  }
}

/** The first thing in a config that no config may have. */
function findBad(value: unknown, path: Path): { readonly path: Path; readonly message: string } | undefined {
  if (value === null || typeof value !== 'object' || value instanceof Date) return undefined
  if (path.length > maxDepth) return { path, message: `config is nested deeper than ${maxDepth} levels` }
  if (!Array.isArray(value) && Object.hasOwn(value, '__proto__')) {
    return { path: [...path, '__proto__'], message: "the key '__proto__' is not allowed" }
  }
  for (const [key, item] of Object.entries(value)) {
    const bad = findBad(item, [...path, Array.isArray(value) ? Number(key) : key])
    if (bad !== undefined) return bad
  }
  return undefined
}

function kindOf(value: unknown): string {
  if (isTable(value)) return 'table'
  if (Array.isArray(value)) return 'array'
  if (value instanceof Date) return 'date'
  return value === null ? 'null' : typeof value === 'bigint' ? 'number' : typeof value
}

function hasControl(text: string): boolean {
  return /[\p{Cc}\p{Cs}\u2028\u2029]/u.test(text)
}

/** An id as it may stand in a message. */
function printable(id: string): string {
  return id.slice(0, maxIdLength).replace(/[\p{Cc}\p{Cs}\u2028\u2029]/gu, '\uFFFD')
}

/** The error for what is wrong with a program: one line a fault. @param file the program file */
export function invalidProgram(
  file: string,
  faults: readonly ProgramFault[],
  paths: readonly string[] = [file]
): CodedError {
  const lines = faults.map((fault) => {
    const { line, column, message } = fault
    return `${fault.file ?? file}:${line > 0 ? `${line}:${column}:` : ''} ${message}`
  })
  return new CodedError('PROGRAM_INVALID', lines.join('\n'), { detail: { file, faults, paths } })
}

/** @throws CodedError `PROGRAM_INVALID` when the bytes are no UTF-8 */
function decode(bytes: Uint8Array, file: string): string {
  const refuse = (message: string, position: Position = { line: 1, column: 1 }) =>
    invalidProgram(file, [{ ...position, message }])
  if (bytes.length > maxBytes) throw refuse(`the file is larger than ${maxBytes / 1024 / 1024} MiB`)
  const [first, second] = bytes
  if ((first === 0xff && second === 0xfe) || (first === 0xfe && second === 0xff)) {
    throw refuse('the file is UTF-16; save it as UTF-8')
  }
  if (bytes.length > 1 && (first === 0) !== (second === 0)) {
    throw refuse('the file looks like UTF-16 without a byte-order mark; save it as UTF-8')
  }
  const read = (part: Uint8Array, stream: boolean) => {
    try {
      return new TextDecoder('utf-8', { fatal: true, ignoreBOM: true }).decode(part, { stream })
    } catch {
      return undefined // not UTF-8: the callers say so, with the place
    }
  }
  const text = read(bytes, false)
  if (text !== undefined) return text
  let [valid, broken] = [0, bytes.length + 1]
  while (broken - valid > 1) {
    const middle = (valid + broken) >> 1
    if (read(bytes.subarray(0, middle), true) === undefined) broken = middle
    else valid = middle
  }
  const start = read(bytes.subarray(0, valid), true) ?? ''
  throw refuse('the file is not valid UTF-8 here', positionOf(start, start.length))
}

/** Offsets of keys and elements, by {@link pathKey}. */
function findPlaces(text: string): ReadonlyMap<string, number> {
  const places = new Map<string, number>()
  const note = (path: Path, offset: number) => {
    const key = pathKey(path)
    if (!places.has(key)) places.set(key, offset)
  }
  const visit = (container: Section | Inline, base: Path) => {
    for (const [index, item] of container.items.entries()) {
      let path = base
      const names = 'keys' in item ? item.keys.map(({ name }) => name) : [index]
      for (const name of names) note((path = [...path, name]), item.start)
      const value: Value = 'keys' in item ? item.value : item
      if (value.kind !== 'scalar') visit(value, path)
    }
  }
  for (const section of scan(text)) {
    for (let length = 1; length <= section.path.length; length++) note(section.path.slice(0, length), section.start)
    visit(section, section.path)
  }
  return places
}
