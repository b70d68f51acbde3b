#!/usr/bin/env node
import { readFileSync } from 'node:fs'
import { dirname, relative, resolve } from 'node:path'
import { parseArgs } from 'node:util'
import { createLoader } from './authoring/start.ts'
import { isCoded, messageOf } from './kernel/errors.ts'
import { checkProgram, type HostOptions, ProgramHost, planProgram } from './kernel/host.ts'
import { createJsonLogger, createLineWriter, type LineWriter, type Logger, type LogLevel } from './kernel/log.ts'
import { resolveConfig } from './kernel/program.ts'
import { isGroup } from './kernel/tree.ts'

const help = `heartwood ${version()}: a self-hosted agent server that never has to stop

usage: heartwood [command] [options]

commands
  serve      run the program (the default)
  mcp        run the program for one MCP client, over stdin and stdout; nothing listens
  validate   check the program and say all that is wrong with it; exit code 1 when something is
  plan       print the steps from nothing, or from another program, to this one
  backup     copy the data to a new folder, also while a server uses it
  restore    put a backup into a data folder that holds nothing
  plugin new NAME  write a plugin that works, with its test, beside the program file
  rag ingest DIR   take md, txt, json, jsonl and html files into a collection of a running server
  rag search WORDS search a collection of a running server

options
  --program FILE     the program file (default: ./program.toml)
  --from FILE        with plan: the program that runs now; with restore: the folder of the backup
  --to DIR           with backup: where it goes
  --verify           with restore: read every record back
  --data DIR         where the data is kept (wins over the file)
  --host HOST        where to listen (wins over HOST in the environment and over the file)
  --port PORT        likewise, with PORT
  --log-level LEVEL  debug, info (the default), warn or error; lines of JSON on stderr
  --help, --version

options of rag
  --url URL          of the server (default: http://127.0.0.1:3000)
  --token TOKEN      an access token (or HEARTWOOD_TOKEN; or HEARTWOOD_EMAIL and HEARTWOOD_PASSWORD, which last longer)
  --collection NAME  (default: documents)
  --tag TAG          with ingest: a tag of each document; may be given again
  --dry-run          with ingest: say what would be taken in
  --journal FILE     with ingest: where it is noted what has been taken in (default: in DIR); run it again to go on
  --strategy NAME    with search: hybrid, bm25, fuzzy or semantic
  --limit N          with search: hits at most
  --json             with search: the answer as it is
`

const flagOptions = {
  program: { type: 'string', default: 'program.toml' },
  from: { type: 'string' },
  to: { type: 'string' },
  verify: { type: 'boolean', default: false },
  data: { type: 'string' },
  host: { type: 'string' },
  port: { type: 'string' },
  'log-level': { type: 'string', default: 'info' },
  url: { type: 'string', default: 'http://127.0.0.1:3000' },
  token: { type: 'string' },
  collection: { type: 'string', default: 'documents' },
  tag: { type: 'string', multiple: true, default: [] as string[] },
  'dry-run': { type: 'boolean', default: false },
  journal: { type: 'string' },
  strategy: { type: 'string' },
  limit: { type: 'string' },
  json: { type: 'boolean', default: false },
  help: { type: 'boolean', short: 'h', default: false },
  version: { type: 'boolean', default: false }
} as const

type Flags = ReturnType<typeof parseCommand>['values']

/** How long the end of the process waits for whoever reads the log. */
const lastLinesMs = 500

const levels: readonly string[] = ['debug', 'info', 'warn', 'error'] satisfies readonly LogLevel[]

await main()

async function main(): Promise<void> {
  try {
    const { values, positionals } = parseCommand()
    if (values.help) return print(help)
    if (values.version) return print(`${version()}\n`)
    const [command = 'serve', ...rest] = positionals
    if (command === 'plugin') return await plugin(values, rest)
    if (command === 'rag') return await rag(values, rest)
    if (rest.length > 0) throw new TypeError(`unexpected argument '${rest[0]}'; see heartwood --help`)
    if (command === 'serve') return await serve(values)
    if (command === 'mcp') return await mcp(values)
    if (command === 'validate') return await validate(values)
    if (command === 'plan') return await plan(values)
    if (command === 'backup') return print(await (await storeVerbs()).runBackup(await dataFolder(values), values.to))
    if (command === 'restore') {
      return print(await (await storeVerbs()).runRestore(values.from, await dataFolder(values), values.verify))
    }
    throw new TypeError(`unknown command '${command}'; known: serve, mcp, validate, plan, backup, restore, plugin, rag`)
  } catch (error) {
    process.stderr.write(`heartwood: ${messageOf(error)}\n`)
    process.exitCode = 1
  }
}

async function serve(flags: Flags): Promise<void> {
  const { host } = await start(flags, hostOptions(flags, flags.program))
  const notices = host.kernel.collection('notices').items.map((item) => item.item as { label: string; text: string })
  const width = Math.max(...notices.map((notice) => notice.label.length))
  for (const { label, text } of notices) print(`${label.padEnd(width)}  ${text}\n`)
}

/** The same program for the client at the other end of stdin and stdout, until that closes its end. */
async function mcp(flags: Flags): Promise<void> {
  // stdout is the client's: what a plugin prints goes where the log goes.
  for (const name of ['log', 'info', 'debug'] as const) console[name] = (...args) => console.error(...args)
  const { overrides, ...options } = hostOptions(flags, flags.program)
  const http = { ...overrides?.['http'], listen: false }
  const { host, stop } = await start(flags, { ...options, overrides: { ...overrides, http } }).catch(
    (error: unknown) => {
      if (!isCoded(error, 'STORE_LOCKED')) throw error
      const way =
        'A server that runs there speaks MCP too: give its client the address of the server with /mcp behind it'
      throw new TypeError(`${error.message}. ${way}`, { cause: error })
    }
  )
  const service = host.kernel.service('mcp')
  if (service === undefined) {
    await host.stop()
    throw new TypeError(`${flags.program} runs no plugin 'mcp': add an entry with plugin = "mcp"`)
  }
  await service.serveStdio({ input: process.stdin, output: process.stdout, onClosed: stop })
}

/** @returns the running program, and what ends it and the process with it */
async function start(
  flags: Flags,
  options: Omit<HostOptions, 'log'>
): Promise<{ host: ProgramHost; stop: () => void }> {
  const lines = createLineWriter(process.stderr.fd)
  const log = createJsonLogger({
    level: flags['log-level'] as LogLevel,
    write: lines.write,
    readable: (stack) => options.loader.readable(stack)
  })
  // A plugin's stray error is that plugin's failure, not the end of everybody else's requests.
  const host = new ProgramHost({ ...options, log, watch: { settleMs: 200 } })
  process.on('uncaughtException', (error) =>
    log.error('an error was thrown outside of any request', { error, ...host.stray(error, false) })
  )
  process.on('unhandledRejection', (error) =>
    log.error('a rejection was not handled', { error, ...host.stray(error, true) })
  )
  // Node's own printer would put text between the lines of the log.
  process.removeAllListeners('warning')
  process.on('warning', (warning) => {
    const isNews = warning.name !== 'ExperimentalWarning'
    log[isNews ? 'warn' : 'debug'](`the runtime warns: ${warning.message}`, { stack: warning.stack })
  })
  await host.start()
  return { host, stop: stopOnSignals(host, log, lines) }
}

/**
 * The first signal drains and ends with 0; a second one ends at once, as that signal ends any process, and so does a
 * drain that takes too long.
 * @returns drains and ends as well, and is no signal
 */
function stopOnSignals(host: ProgramHost, log: Logger, lines: LineWriter): () => void {
  let stopping = false
  const stop = () => {
    if (stopping) return
    stopping = true
    const { shutdown_timeout_ms: timeoutMs } = host.program.settings
    setTimeout(() => {
      log.error('the stop took too long and was given up', { timeout_ms: timeoutMs })
      void endNow('SIGTERM', lines)
    }, timeoutMs).unref()
    host.stop().then(
      () => exit(0, lines),
      (error: unknown) => {
        log.error('the stop failed', { error })
        return exit(1, lines)
      }
    )
  }
  let signals = 0
  const onSignal = (signal: NodeJS.Signals) => {
    signals += 1
    if (signals > 1) {
      log.warn('ended by a second signal', { signal })
      return void endNow(signal, lines)
    }
    log.info('stopping', { signal })
    stop()
  }
  process.on('SIGTERM', onSignal)
  process.on('SIGINT', onSignal)
  return stop
}

/** Ends with this code, or without one where nobody reads the log: `process.exit` would wait for the thread that writes it. */
async function exit(code: number, lines: LineWriter): Promise<void> {
  if (!(await lines.settled(lastLinesMs))) killSelf('SIGTERM')
  process.exit(code)
}

/**
 * Not by `process.exit`: that takes apart what threads in native code (of the store, of password hashing) still use, and
 * the process now and then ends in a crash. What is on disk needs no way out.
 */
async function endNow(signal: NodeJS.Signals, lines: LineWriter): Promise<void> {
  await lines.settled(lastLinesMs)
  killSelf(signal)
}

function killSelf(signal: NodeJS.Signals): void {
  process.removeAllListeners(signal)
  process.kill(process.pid, signal)
}

async function validate(flags: Flags): Promise<void> {
  const program = await checkProgram(hostOptions(flags, flags.program))
  print(`${flags.program}: valid, ${program.entries.length} entries\n`)
}

async function plan(flags: Flags): Promise<void> {
  const from = flags.from === undefined ? undefined : await checkProgram(hostOptions(flags, flags.from))
  const { program, steps } = await planProgram(hostOptions(flags, flags.program), from)
  const pluginOf = (id: string) =>
    [program, from].flatMap((each) => each?.entries ?? []).find((entry) => entry.id === id)
  for (const { id, action } of steps) print(`${action.padEnd(14)} ${id} (${pluginOf(id)?.plugin})\n`)
  const groups = program.entries.filter(isGroup).length
  const off = program.entries.filter((entry) => entry.disabled).length
  print(`${steps.length} steps; ${program.entries.length} entries, ${groups} of them groups, ${off} disabled\n`)
}

async function plugin(flags: Flags, [verb, name, ...rest]: readonly string[]): Promise<void> {
  if (verb !== 'new' || name === undefined || rest.length > 0) {
    throw new TypeError('usage: heartwood plugin new NAME')
  }
  const { newPlugin } = await import('./authoring/new-plugin.ts')
  const { loader } = hostOptions(flags, flags.program)
  const folder = dirname(resolve(flags.program))
  print(await newPlugin(name, { folder, taken: loader.labels(), cwd: process.cwd() }))
}

async function rag(flags: Flags, [verb, ...words]: readonly string[]): Promise<void> {
  const usage = 'usage: heartwood rag ingest DIR, or heartwood rag search WORDS'
  if ((verb !== 'ingest' && verb !== 'search') || words.length === 0) throw new TypeError(usage)
  const { runIngest, runSearch } = await import('./client/rag.ts')
  const { Server } = await import('./client/server.ts')
  const { collection, strategy, json, journal, limit } = flags
  const server = new Server(flags.url, credential(flags))
  if (verb === 'search') {
    if (limit !== undefined && !/^\d+$/.test(limit)) throw new TypeError(`--limit is a number, found '${limit}'`)
    const most = limit === undefined ? undefined : Number(limit)
    return print(await runSearch({ server, query: words.join(' '), collection, strategy, limit: most, json }))
  }
  const [from, ...rest] = words
  if (from === undefined || rest.length > 0) throw new TypeError(usage)
  const ending = new AbortController()
  process.once('SIGINT', () => ending.abort())
  const options = { server, from, collection, dryRun: flags['dry-run'], journal, tags: flags.tag }
  print(await runIngest({ ...options, screen: process.stderr, nowMs: () => performance.now(), signal: ending.signal }))
  // As any command that was interrupted: what follows it in a script would take it for done.
  if (ending.signal.aborted) process.exitCode = 130
}

function credential({ token = process.env['HEARTWOOD_TOKEN'] }: Flags) {
  const { HEARTWOOD_EMAIL: email, HEARTWOOD_PASSWORD: password } = process.env
  if (token !== undefined && token !== '') return { token }
  if (email !== undefined && password !== undefined) return { email, password }
  const ways = '--token TOKEN, HEARTWOOD_TOKEN, or HEARTWOOD_EMAIL and HEARTWOOD_PASSWORD in the environment'
  throw new TypeError(`say who asks: ${ways}`)
}

/** Loaded where it is needed: the other verbs have no use for a database. */
function storeVerbs() {
  return import('./plugins/store/commands.ts')
}

/** Where the program keeps its data. */
async function dataFolder(flags: Flags): Promise<string> {
  if (flags.data !== undefined) return flags.data
  const { entries } = await checkProgram(hostOptions(flags, flags.program))
  const entry = entries.find(({ plugin, disabled }) => plugin === 'store' && !disabled)
  const { path = './data' } = entry === undefined ? {} : resolveConfig(entry.config, process.env)
  if (typeof path === 'string') return path
  throw new TypeError(`${flags.program} does not say where its data is; name the folder: --data DIR`)
}

function hostOptions(flags: Flags, program: string): Omit<HostOptions, 'log'> {
  const file = resolve(program)
  const { env } = process
  const host = flags.host ?? nonBlank(env['HOST'])
  const port = toPort(flags.port ?? nonBlank(env['PORT']))
  const secrets = { admin_secret: nonBlank(env['ADMIN_API_KEY']), jwt_secret: nonBlank(env['JWT_SECRET']) }
  return {
    program: relative(process.cwd(), file).startsWith('..') ? file : relative(process.cwd(), file),
    loader: createLoader(dirname(file)),
    env,
    overrides: {
      http: given({ host, port }),
      store: given({ path: flags.data }),
      auth: given(secrets)
    }
  }
}

function parseCommand() {
  const parsed = parseArgs({ options: flagOptions, allowPositionals: true })
  const level = parsed.values['log-level']
  if (!levels.includes(level)) throw new TypeError(`--log-level is one of ${levels.join(', ')}, found '${level}'`)
  return parsed
}

function toPort(text: string | undefined): number | undefined {
  if (text === undefined) return undefined
  if (/^\d{1,5}$/.test(text) && Number(text) <= 65_535) return Number(text)
  throw new TypeError(`a port is a number from 0 to 65535, found '${text}'`)
}

function nonBlank(text: string | undefined): string | undefined {
  return text === undefined || text.trim() === '' ? undefined : text
}

/** Only the members that have a value. */
function given(values: Record<string, unknown>): Record<string, unknown> {
  return Object.fromEntries(Object.entries(values).filter(([, value]) => value !== undefined))
}

function version(): string {
  // The package is one folder up when this runs compiled, from dist/.
  const url = new URL(import.meta.url.includes('/dist') ? '../package.json' : './package.json', import.meta.url)
  return (JSON.parse(readFileSync(url, 'utf8')) as { version: string }).version
}

function print(text: string): void {
  process.stdout.write(text)
}
