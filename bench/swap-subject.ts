/** The server that is swapped while it is used, and every kind of swap it goes through. */
import { mkdtemp, readFile, rename, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { type HttpReply, httpRequest, sendOnce } from './load.ts'
import { benchFolder } from './peers.ts'
import { type ProcessOptions, type ServerProcess, startServer } from './process.ts'

const adminSecret = 'the admin secret of a bench'

export const toolNames = ['answer', 'ticks', 'slow', 'write'] as const
export type ToolName = (typeof toolNames)[number]

export interface SubjectOptions extends ProcessOptions {
  /** Longer than any `apply` of this program takes, also on a busy machine; short for one that hangs. */
  readonly applyTimeoutMs?: number
  /** Longer than a slow call or a short stream. */
  readonly drainTimeoutMs?: number
}

const builtins = ['store', 'workers', 'http', 'auth', 'audit', 'admin', 'tools', 'carmy']
const entries = [
  ...builtins.map((name) => `[[entry]]\nid = "${name}"\nplugin = "${name}"\n`),
  ...['left', 'right'].map((name) => `[[entry]]\nid = "${name}"\nplugin = "@group"\n`),
  ...toolNames.map(
    (name) =>
      `[[entry]]\nid = "left:${name}"\nplugin = "./subject.ts"\nconfig = { tool = "${name}", mark = 0 } # of ${name}\n`
  )
].join('\n')

/** Which code and which config made an answer. */
export interface Version {
  readonly code: number
  readonly mark: number
}

/** What the answers of one tool may tell: nothing older than what was acknowledged, nothing that nobody asked for. */
export interface Bounds {
  readonly asked: Version
  readonly done: Version
}

/** A fiber as the admin API shows it. */
interface FiberShown {
  readonly plugin: string
  readonly state: string
  readonly error: string | null
  readonly draining: number
  readonly pending_undo_count: number
}

export interface Subject {
  readonly server: ServerProcess
  readonly folder: string
  readonly drainTimeoutMs: number
  readonly bounds: Readonly<Record<ToolName, Bounds>>
  /** Makes the next swap: the kinds take turns, and every fifth is one that has to be refused. */
  swap(): Promise<Swap>
  /** A change of config, acknowledged. */
  patch(tool: ToolName): Promise<void>
  /**
   * Replaces every part once more and gives what drains a moment to end.
   * @returns how many undos are still to come
   */
  replaceAll(): Promise<number>
  stop(): Promise<void>
}

export interface Swap {
  readonly kind: string
  /** From the request to the acknowledgement. */
  readonly tookMs: number
  readonly isBad: boolean
  /** What was not as it has to be. */
  readonly faults: readonly string[]
}

const goodKinds = ['patch', 'code', 'replace', 'move', 'patch', 'retire', 'provide', 'collector'] as const
const badKinds = ['invalid', 'throws', 'hangs', 'lacking', 'syntax'] as const
const turns: readonly ToolName[] = ['answer', 'ticks', 'answer', 'slow', 'answer', 'write']
/** After which new code on disk must have been taken in. */
const takeInMs = 30_000
const collectors = ['tools', 'http', 'carmy', 'store', 'auth', 'audit', 'admin']

export async function startSubject({
  applyTimeoutMs = 500,
  drainTimeoutMs = 4_000,
  ...options
}: SubjectOptions = {}): Promise<Subject> {
  const folder = await mkdtemp(join(tmpdir(), 'heartwood-bench-'))
  const file = join(folder, 'program.toml')
  const source = (name: string) =>
    readFile(join(benchFolder, 'fixtures', name), 'utf8').then((text) =>
      text.replace('../../kernel/index.ts', 'heartwood')
    )
  const subject = await source('subject.ts')
  const writeCode = (text: string) => replaceFile(join(folder, 'subject.ts'), text)
  const sourceOf = (code: number) => subject.replace('const code = 0', `const code = ${code}`)
  await writeCode(sourceOf(0))
  await writeFile(join(folder, 'lacking.ts'), await source('lacking.ts'))
  const settings = `[kernel]\napply_timeout_ms = ${applyTimeoutMs}\ndrain_timeout_ms = ${drainTimeoutMs}\n\n`
  await writeFile(file, settings + entries)
  const server = await startServer(new URL('../main.js', import.meta.url), {
    ...options,
    // A line for each call would wait for this process to read it: a pipe is written at once, or not at all.
    args: ['serve', '--program', file, '--data', join(folder, 'data'), '--port', '0'],
    env: { ...options.env, ADMIN_API_KEY: adminSecret }
  })

  const first: Version = { code: 0, mark: 0 }
  const bounds = Object.fromEntries(toolNames.map((name) => [name, { asked: first, done: first }])) as Record<
    ToolName,
    Bounds
  >
  let answerGroup = 'left'
  let codeOnDisk = 0
  let count = 0
  const counts = { good: 0, bad: 0, tool: 0, collector: 0 }
  const idOf = (tool: ToolName) => `${tool === 'answer' ? answerGroup : 'left'}:${tool}`
  const nextTool = () => turns[counts.tool++ % turns.length]!

  async function admin(method: string, path: string, body?: unknown): Promise<HttpReply> {
    return sendOnce(
      server.port,
      httpRequest(method, `/api/admin/cordis${path}`, {
        headers: { 'X-Admin-Secret': adminSecret },
        ...(body === undefined ? {} : { body })
      })
    )
  }

  async function done(work: Promise<HttpReply>): Promise<void> {
    const { status, body } = await work
    if (status !== 200) throw new Error(`a good swap was answered ${status}: ${body}`)
  }

  async function remark(tool: ToolName, ask: (config: object) => Promise<HttpReply>): Promise<void> {
    const asked = { ...bounds[tool].asked, mark: bounds[tool].asked.mark + 1 }
    bounds[tool] = { ...bounds[tool], asked }
    await done(ask({ tool, mark: asked.mark }))
    bounds[tool] = { asked, done: asked }
  }

  /** The fibers of the tools, once they are as `isSo` wants them: new code is taken in when it is found on disk. */
  async function untilTools(isSo: (fiber: FiberShown) => boolean, what: string): Promise<readonly FiberShown[]> {
    for (const deadline = performance.now() + takeInMs; ; await sleep(5)) {
      const { fibers } = JSON.parse((await admin('GET', '/services')).body) as { fibers: FiberShown[] }
      const tools = fibers.filter(({ plugin }) => plugin.startsWith('subject-'))
      if (tools.length === toolNames.length && tools.every(isSo)) return tools
      if (performance.now() > deadline) throw new Error(`${what} was not taken in: ${JSON.stringify(tools)}`)
    }
  }

  const patch = (tool: ToolName) => remark(tool, (config) => admin('PATCH', `/entries/${idOf(tool)}`, { config }))
  const replace = (tool: ToolName) =>
    remark(tool, (config) => admin('POST', `/services/${idOf(tool)}/replace`, { config }))

  const good: Readonly<Record<(typeof goodKinds)[number], () => Promise<void>>> = {
    patch: () => patch(nextTool()),
    replace: () => replace(nextTool()),
    async code() {
      codeOnDisk += 1
      const ask = (name: ToolName): Version => ({ ...bounds[name].asked, code: codeOnDisk })
      for (const name of toolNames) bounds[name] = { ...bounds[name], asked: ask(name) }
      await writeCode(sourceOf(codeOnDisk))
      const newest = `subject-${codeOnDisk}`
      await untilTools(({ plugin, state }) => plugin === newest && state === 'Active', 'new code')
      for (const name of toolNames) bounds[name] = { asked: ask(name), done: ask(name) }
    },
    async move() {
      const parent = answerGroup === 'left' ? 'right' : 'left'
      await done(admin('POST', `/entries/${idOf('answer')}/move`, { parent }))
      answerGroup = parent
    },
    retire: () => done(admin('POST', '/services/events_service/retire')),
    provide: () => done(admin('POST', '/services/events_service/provide')),
    async collector() {
      const name = collectors[counts.collector++ % collectors.length]!
      await done(admin('POST', `/services/${name}/replace`, { config: {} }))
    }
  }

  const config = (more: object) => ({ tool: 'answer', mark: bounds.answer.done.mark, ...more })
  const bad: Readonly<Record<(typeof badKinds)[number], () => Promise<HttpReply>>> = {
    invalid: () => admin('PATCH', `/entries/${idOf('answer')}`, { config: config({ mark: 'none' }) }),
    throws: () => admin('PATCH', `/entries/${idOf('answer')}`, { config: config({ fail: 'throw' }) }),
    hangs: () => admin('PATCH', `/entries/${idOf('answer')}`, { config: config({ fail: 'hang' }) }),
    lacking: () => admin('PUT', '/entries', { id: idOf('answer'), plugin: './lacking.ts', config: config({}) }),
    async syntax() {
      await writeCode(`${sourceOf(codeOnDisk)}\n}`)
      const [fiber] = await untilTools(({ error }) => error !== null, 'broken code')
      await writeCode(sourceOf(codeOnDisk))
      await untilTools(({ error }) => error === null, 'the code as it was')
      // Nobody asked, so nobody is answered: it is told where an operator looks.
      return { status: 422, headers: {}, body: JSON.stringify({ error: fiber?.error }) }
    }
  }

  async function refuse(kind: (typeof badKinds)[number]): Promise<Swap> {
    const before = await shown()
    const startedAt = performance.now()
    const { status, body } = await bad[kind]()
    const tookMs = performance.now() - startedAt
    const faults: string[] = []
    const { error, reason } = JSON.parse(body) as { error?: string; reason?: string }
    if (status !== 409 && status !== 422) faults.push(`bad swap '${kind}' was answered ${status}: ${body}`)
    else if ((error ?? reason ?? '') === '') faults.push(`bad swap '${kind}' was refused without a reason: ${body}`)
    if ((await shown()) !== before) faults.push(`bad swap '${kind}' left something behind`)
    if (status === 200) await mend()
    return { kind, tookMs, isBad: true, faults }
  }

  /** Takes a bad swap back that was not refused: the rest is to be measured all the same. */
  const mend = () => done(admin('PUT', '/entries', { id: idOf('answer'), plugin: './subject.ts', config: config({}) }))

  /** What must not change by a swap that was refused: the answers and the program. */
  async function shown(): Promise<string> {
    const { status, body } = await sendOnce(server.port, execute('answer', {}))
    const { data } = JSON.parse(body) as { data: unknown }
    return `${status} ${JSON.stringify(data)}\n${await readFile(file, 'utf8')}`
  }

  async function replaceAll(): Promise<number> {
    await good.provide()
    for (const tool of toolNames) await replace(tool)
    for (const name of builtins) await done(admin('POST', `/services/${name}/replace`, { config: {} }))
    for (let tries = 0; ; tries++) {
      const { body } = await admin('GET', '/services')
      const { fibers } = JSON.parse(body) as { fibers: FiberShown[] }
      if (tries === 20 || fibers.every((fiber) => fiber.draining === 0)) {
        return fibers.reduce((sum, fiber) => sum + fiber.pending_undo_count, 0)
      }
      await sleep(50)
    }
  }

  return {
    server,
    folder,
    drainTimeoutMs,
    bounds,
    patch,
    async swap() {
      count += 1
      if (count % 5 === 0) return refuse(badKinds[counts.bad++ % badKinds.length]!)
      const kind = goodKinds[counts.good++ % goodKinds.length]!
      const startedAt = performance.now()
      await good[kind]()
      return { kind, tookMs: performance.now() - startedAt, isBad: false, faults: [] }
    },
    replaceAll,
    async stop() {
      await server.stop()
      await rm(folder, { recursive: true })
    }
  }
}

export function execute(
  tool: ToolName,
  input: object,
  more: object = {},
  headers: Record<string, string> = {}
): Buffer {
  return httpRequest('POST', '/agent/execute', { headers, body: { tool, arguments: input, ...more } })
}

async function replaceFile(file: string, text: string): Promise<void> {
  await writeFile(`${file}.new`, text)
  await rename(`${file}.new`, file)
}
