import { createHmac } from 'node:crypto'
import { readdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import type { JsonSchema } from '../../kernel/index.ts'
import type { DispatchReply, Route } from '../../plugins/http/types.ts'
import { hostileKeys, hostileTokens } from '../fixtures/hostile-tokens.ts'
import { naughtyStrings } from '../fixtures/naughty-strings.ts'
import { adminSecret, password, secret, startShipped } from '../fixtures/shipped-house.ts'

/** Every try on every route, and more of them, for a long run. */
const isWhole = process.env['HEARTWOOD_TEST_WHOLE'] !== undefined
const share = 12

const pathOf = ({ path }: Route, params: Readonly<Record<string, string>> = {}): string =>
  path.replaceAll(/\{(\w+)\}/g, (_, name: string) => encodeURIComponent(params[name] ?? 'x'))
/** A text that is no Unicode cannot be in a URL. */
const wellFormed = (text: string): string => text.replaceAll(/\p{Surrogate}/gu, '\ufffd')
const nameOf = ({ method, path }: Route): string => `${method} ${path}`

t.test('every route of the shipped program is guarded, but for those that are meant for everyone', async (t) => {
  const { routes } = await startShipped(t)
  t.ok(routes.length > 40, `${routes.length} routes`)
  const open = routes.filter(({ guard }) => guard === undefined).map(nameOf)
  const meant = [
    /^POST \/api\/auth\/(?:register|login|refresh|logout)$/,
    /^GET \/(?:health(?:\/\w+)?|ready|config\/info|openapi\.json|\.well-known\/[\w/-]+)$/,
    // Those that the contract opens, with secrets of their own.
    /^GET \/api\/agents$/,
    /^[A-Z]+ \/api\/(?:webhooks|oauth|events)\//
  ]
  t.strictSame(
    open.filter((name) => !meant.some((pattern) => pattern.test(name))),
    []
  )
  t.strictSame(
    routes.filter(({ path, guard }) => path.startsWith('/api/admin/') && guard !== 'admin').map(nameOf),
    [],
    'administrators have theirs'
  )
  t.strictSame(
    routes.filter(({ path, guard }) => path.startsWith('/api/v1/') && guard !== 'tenant-key').map(nameOf),
    [],
    'and so have tenants'
  )
})

t.test('AUTH-02: no forged, bent or swollen token opens any route, whichever guard it stands behind', async (t) => {
  const { routes, lines, ask, pair, tenant, credentials } = await startShipped(t)
  const guarded = routes.filter(({ guard }) => guard !== undefined)
  const nowSeconds = Math.floor(Date.now() / 1000)
  const claims = {
    sub: 'u',
    email: 'u@x.test',
    exp: nowSeconds + 900,
    iat: nowSeconds,
    roles: { ares: [{ role: 'admin' }] }
  }
  const sign = (more: object): string => {
    const encode = (value: object) => Buffer.from(JSON.stringify(value)).toString('base64url')
    const signed = `${encode({ alg: 'HS256', typ: 'JWT' })}.${encode({ ...claims, ...more })}`
    return `${signed}.${createHmac('sha256', secret).update(signed).digest('base64url')}`
  }
  t.equal((await ask('GET', '/api/conversations', { headers: { authorization: `Bearer ${sign({})}` } })).status, 200)
  t.equal((await ask('GET', '/api/admin/stats', { headers: { authorization: `Bearer ${sign({})}` } })).status, 200)

  const tokens = [
    ...hostileTokens(secret, claims),
    ['a refresh token', pair['refresh_token'] as string],
    ['one that has expired', sign({ exp: nowSeconds - 120 })],
    ['one of the future', sign({ nbf: nowSeconds + 86_400 })],
    ['one of a tenant that is not there', sign({ tenant_id: 'nobody', roles: undefined })],
    ['one without an end', sign({ exp: undefined })],
    ['one of nobody', sign({ sub: '' })],
    ['one that is a refresh token, too', sign({ jti: '' })]
  ] as const
  t.ok(tokens.length > 250, `${tokens.length} tokens`)
  const key = (credentials['tenant-key']?.['authorization'] ?? '').slice(7)
  const sound = sign({})
  const byHeader = (name: string, authorization: string) => ({ name, headers: { authorization }, query: '' })
  const byQuery = (name: string, token: string) => ({
    name: `${name} in the URL`,
    headers: {},
    query: `?token=${encodeURIComponent(wellFormed(token))}`
  })
  const schemes = [
    `bearer ${sound}`,
    `BEARER ${sound}`,
    `Bearer  ${sound}`,
    `Bearer\t${sound}`,
    `Basic ${sound}`,
    sound
  ]
  const tries = [
    ...tokens.map(([name, token]) => byHeader(name, `Bearer ${token}`)),
    // A tenant's key and an admin secret are no tokens, and open nothing in a URL.
    ...[...tokens, ['a key', key] as const, ['the secret', adminSecret] as const]
      .filter(([, { length }]) => length < 10_000)
      .map(([name, token]) => byQuery(name, token)),
    ...schemes.map((authorization) => byHeader(`the scheme ${authorization.slice(0, 7)}`, authorization)),
    ...hostileKeys(key).map((each) => byHeader(`the key ${each.slice(0, 12)}`, `Bearer ${each}`)),
    ...['', ' ', 'undefined', 'null', adminSecret.slice(1), `${adminSecret}, x`, key, 'x'.repeat(1e6)].map((wrong) => ({
      name: `the secret ${wrong.slice(0, 12)}`,
      headers: { 'x-admin-secret': wrong },
      query: ''
    }))
  ]
  const opened: string[] = []
  let tried = 0
  const seen = new Set<string | undefined>()
  for (const [at, route] of guarded.entries()) {
    const path = pathOf(route, { tenant })
    // Routes of one guard share it: the first of them is asked everything, each other one its share.
    const isFirst = !seen.has(route.guard)
    seen.add(route.guard)
    const mine = tries.filter(({ headers }, index) => {
      if ('x-admin-secret' in headers && route.guard !== 'admin') return false
      return isWhole || isFirst || index % share === at % share
    })
    await Promise.all(
      mine.map(async ({ name, headers, query }) => {
        const { status } = await ask(route.method, path + query, { headers })
        if (status !== 401) opened.push(`${nameOf(route)} answered ${status} to ${name}`)
      })
    )
    tried += mine.length
  }
  t.strictSame(opened.slice(0, 20), [], `${tried} tries on ${guarded.length} routes`)
  t.strictSame(lines.filter(({ level }) => level === 'error').slice(0, 5), [])
  const log = JSON.stringify(lines)
  for (const part of [key.slice(13), adminSecret, secret, pair['refresh_token'] as string]) t.notOk(log.includes(part))
})

/** The routes of accounts, tenants, quotas, and of what belongs to people and tenants. */
const ours =
  /^\/api\/(?:auth|chat|conversations|memory|v1|mcp)\b|^\/api\/admin\/(?:tenants|provision-client|alerts|audit-log|stats|runtime-tools|agent-templates)\b/

interface Property {
  readonly type?: string | readonly string[]
  readonly enum?: readonly unknown[]
}

const propertiesOf = (schema: JsonSchema | undefined): readonly (readonly [string, Property])[] =>
  Object.entries((schema?.['properties'] ?? {}) as Record<string, Property>)
const isText = ({ type }: Property): boolean => type === 'string' || (Array.isArray(type) && type.includes('string'))

/** A value that would be taken. */
function sample(name: string, { type, enum: values }: Property): unknown {
  const known: Readonly<Record<string, unknown>> = {
    email: 'ann@x.test',
    password,
    tier: 'free',
    agent_type: 'writer',
    model: null,
    context_id: null
  }
  if (name in known) return known[name]
  const first = Array.isArray(type) ? type[0] : type
  return values?.[0] ?? (first === 'integer' || first === 'number' ? 1 : first === 'boolean' ? true : 'text')
}

/** More of them from a JSON file with an array of strings. */
const file = process.env['HEARTWOOD_TEST_STRINGS']
const strings = [...naughtyStrings, ...(file === undefined ? [] : (JSON.parse(readFileSync(file, 'utf8')) as string[]))]

t.test(`${strings.length} odd texts in every field, parameter and header end in no error of ours`, async (t) => {
  const { kernel, routes, lines, ask, tenant, credentials } = await startShipped(t)
  const failures: string[] = []
  const places = new Set<string>()
  /** All of them at once, in one place. */
  const fill = async (place: string, toReply: (text: string) => Promise<DispatchReply>): Promise<void> => {
    places.add(place)
    for (const [at, reply] of (await Promise.all(strings.map(toReply))).entries()) tell(place, strings[at] ?? '', reply)
  }
  const tell = (place: string, text: string, { status, body }: DispatchReply): void => {
    const isCoded = status < 400 || typeof (body as { error?: unknown } | undefined)?.error === 'string'
    if (status >= 500 || !isCoded) failures.push(`${place} ${JSON.stringify(text.slice(0, 40))}: ${status}`)
  }
  // The key that goes with the data would end the walk.
  const walked = routes.filter(({ path }) => ours.test(path) && path !== '/api/v1/tenant/data')
  for (const route of walked) {
    const { method } = route
    const name = nameOf(route)
    const headers = credentials[route.guard ?? ''] ?? {}
    const body = Object.fromEntries(
      propertiesOf(route.body).map(([field, property]) => [field, sample(field, property)])
    )
    const given = route.body === undefined ? { headers } : { headers, body }
    const path = pathOf(route, { tenant })
    const params = [...route.path.matchAll(/\{(\w+)\}/g)].map(([, param]) => param as string)
    for (const [field, property] of propertiesOf(route.body)) {
      if (!isText(property)) continue
      await fill(`${name} ${field}`, (text) => ask(method, path, { headers, body: { ...body, [field]: text } }))
    }
    for (const param of params) {
      await fill(`${name} {${param}}`, (text) => {
        return ask(method, pathOf(route, { tenant, [param]: wellFormed(text) }), given)
      })
    }
    for (const [parameter] of propertiesOf(route.query)) {
      await fill(`${name} ?${parameter}`, (text) => {
        return ask(method, `${path}?${new URLSearchParams({ message: 'hi', [parameter]: text }).toString()}`, given)
      })
    }
  }
  for (const header of ['authorization', 'x-admin-secret', 'x-request-id', 'origin', 'x-forwarded-for', 'accept']) {
    for (const path of ['/api/memory', '/api/v1/usage', '/api/admin/stats']) {
      await fill(`header ${header} of ${path}`, (text) => {
        return ask('GET', path, { headers: { ...credentials['user'], [header]: text } })
      })
    }
  }
  t.ok(places.size > 60, `${places.size} places`)
  t.strictSame(failures.slice(0, 20), [])
  t.strictSame(lines.filter(({ level }) => level === 'error').slice(0, 5), [])
  t.strictSame(
    kernel.fibers().filter(({ state }) => state !== 'Active' && state !== 'Inactive'),
    [],
    'everything goes on'
  )
})

const data = process.env['HEARTWOOD_TEST_DATA']

t.test(
  'every text of JSONTestSuite as a body: what is no JSON is refused as such, the rest ends in no error of ours',
  { skip: data === undefined && 'HEARTWOOD_TEST_DATA is not set' },
  async (t) => {
    const { routes, lines, ask, tenant, credentials } = await startShipped(t)
    const folder = join(data as string, 'corpora/json/test_parsing')
    const taking = routes.filter(({ body, path }) => body !== undefined && ours.test(path))
    const failures: string[] = []
    for (const name of readdirSync(folder)) {
      const body = readFileSync(join(folder, name))
      await Promise.all(
        taking.map(async (route) => {
          const headers = { ...credentials[route.guard ?? ''], 'content-type': 'application/json' }
          const { status } = await ask(route.method, pathOf(route, { tenant }), { headers, body })
          const isAbsent = route.bodyOptional === true && body.length === 0
          const isRight = name.startsWith('n_') && !isAbsent ? status === 400 : status < 500
          if (!isRight) failures.push(`${nameOf(route)} answered ${status} to ${name}`)
        })
      )
    }
    t.strictSame(failures.slice(0, 20), [])
    t.strictSame(lines.filter(({ level }) => level === 'error').slice(0, 5), [])
  }
)
