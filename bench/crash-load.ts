import { setImmediate as turn } from 'node:timers/promises'

/** The shipped program, as it runs. */
export interface Victim {
  /** Where it listens: `http://127.0.0.1:3000`. */
  readonly url: string
  /** SIGKILL. Resolves when it is gone. */
  kill(): Promise<void>
}

/** An account as its owner knows it. */
interface Account {
  readonly email: string
  /** The refresh token that was given last. */
  token: string
  /** A refresh was under way when the server was killed: whether that token still works, nobody knows. */
  isUncertain: boolean
}

/** A tenant as those who hold its keys know it. */
interface Client {
  readonly id: string
  /** That were shown. */
  readonly keys: string[]
  /** Turns that were answered. */
  answered: number
  /** Turns that were asked for and not answered: counted or not, nobody knows. */
  unanswered: number
}

export interface Acknowledged {
  readonly accounts: number
  readonly refreshes: number
  readonly keys: number
  readonly turns: number
}

const password = 'a long enough password'
const keysPerClient = 20
/** Of what was there before the last kill, so many are looked at again; the end looks at all. */
const sampleSize = 25

/** Clients that never retry, and remember everything they were told is done. */
export class CrashLoad {
  readonly #admin: Readonly<Record<string, string>>
  readonly #random: () => number
  readonly #accounts: Account[] = []
  readonly #clients: Client[] = []
  /** Accounts and tenants that something was done to since they were checked. */
  readonly #touched = new Set<Account | Client>()
  #refreshes = 0
  #made = 0
  #url = ''

  /** @param random 0 to 1, as `Math.random` */
  constructor(adminSecret: string, random: () => number) {
    this.#admin = { 'x-admin-secret': adminSecret }
    this.#random = random
  }

  get acknowledged(): Acknowledged {
    return {
      accounts: this.#accounts.length,
      refreshes: this.#refreshes,
      keys: this.#clients.reduce((sum, { keys }) => sum + keys.length, 0),
      turns: this.#clients.reduce((sum, { answered }) => sum + answered, 0)
    }
  }

  /**
   * Registers, refreshes, makes keys and runs metered turns until so many were acknowledged, then kills in the middle. A
   * password takes longer to hash than all the rest, so three kills of four wait for an account of this life of the
   * server, and fall among what is done while others are being made.
   */
  async runAndKill(victim: Victim, requests: number): Promise<void> {
    this.#url = victim.url
    let acknowledged = 0
    let isOver = false
    const accountsBefore = this.#accounts.length
    const waits = this.#random() < 0.75
    const isDue = () => acknowledged >= requests && (!waits || this.#accounts.length > accountsBefore)
    /** One after the other until it is over. @param act tells whether there was something to do */
    const lane = async (act: () => Promise<boolean>, isHeld = () => false): Promise<void> => {
      try {
        while (!isOver) {
          if (!isHeld() && (await act())) acknowledged += 1
          else await turn()
        }
      } catch (error) {
        // A connection that breaks is what a kill is about.
        if (!(error instanceof UnexpectedAnswer)) return
        isOver = true
        throw error
      }
    }
    // What is quick would otherwise be done thousands of times meanwhile, and looked at again after each kill.
    const waitsForAccount = () => acknowledged >= requests && !isDue()
    const killing = async (): Promise<void> => {
      while (!isOver && !isDue()) await turn()
      for (const more = acknowledged + this.#random() * 20; !isOver && acknowledged < more; ) await turn()
      // In the middle of whatever is under way.
      for (let turns = this.#random() * 200; turns > 0; turns -= 1) await turn()
      await victim.kill()
      isOver = true
    }
    const lanes = 3
    await Promise.all([
      ...Array.from({ length: lanes }, () => lane(() => this.#register())),
      ...Array.from({ length: lanes }, (_, at) => lane(() => this.#refreshOne(at, lanes))),
      ...Array.from({ length: lanes }, (_, at) => lane(() => this.#makeKey(at, lanes), waitsForAccount)),
      ...Array.from({ length: 2 * lanes }, () => lane(() => this.#converse(), waitsForAccount)),
      killing()
    ])
  }

  /**
   * Holds what is there against what was acknowledged: all that was touched since the last look and a sample of the rest.
   * @param all everything
   * @returns what is missing or wrong
   */
  async check(victim: Victim, all = false): Promise<readonly string[]> {
    this.#url = victim.url
    const looksAt = <T extends Account | Client>(items: readonly T[]): readonly T[] =>
      items.filter((item) => all || this.#touched.has(item) || this.#random() * items.length < sampleSize)
    const lost: string[] = []
    for (const account of looksAt(this.#accounts)) lost.push(...(await this.#checkAccount(account)))
    for (const client of looksAt(this.#clients)) lost.push(...(await this.#checkClient(client)))
    this.#touched.clear()
    return lost
  }

  async #checkAccount(account: Account): Promise<readonly string[]> {
    const { email, token, isUncertain } = account
    const lost: string[] = []
    const again = await this.#ask('POST', '/api/auth/register', {}, { email, password, name: 'N' })
    if (again.status !== 400 || again.body['error'] !== 'User already exists') lost.push(`account ${email}`)
    const refreshed = await this.#ask('POST', '/api/auth/refresh', {}, { refresh_token: token })
    if (refreshed.status !== 200 && !(isUncertain && refreshed.status === 401)) lost.push(`session of ${email}`)
    // Whoever lost a session to the kill logs in again.
    const next =
      refreshed.status === 200 ? refreshed : await this.#ask('POST', '/api/auth/login', {}, { email, password })
    if (next.status !== 200) return [...lost, `password of ${email}`]
    account.token = String(next.body['refresh_token'])
    account.isUncertain = false
    return lost
  }

  async #checkClient({ id, keys, answered, unanswered }: Client): Promise<readonly string[]> {
    const lost: string[] = []
    for (const key of keys) {
      const { status } = await this.#ask('GET', '/api/v1/api-keys', bearer(key))
      if (status !== 200) lost.push(`key ${key.slice(0, 13)} of ${id}`)
    }
    const { body } = await this.#ask('GET', `/api/admin/tenants/${id}/usage`, this.#admin)
    const counted = Number(body['monthly_requests'])
    if (!(counted >= answered)) lost.push(`turns of ${id}: ${counted} counted, ${answered} answered`)
    if (!(counted <= answered + unanswered)) {
      lost.push(`turns of ${id}: ${counted} counted, ${answered + unanswered} asked for`)
    }
    return lost
  }

  async #register(): Promise<boolean> {
    const email = `p${this.#made++}@example.org`
    const body = await this.#must('POST', '/api/auth/register', {}, { email, password, name: 'N' })
    const account: Account = { email, token: String(body['refresh_token']), isUncertain: false }
    this.#accounts.push(account)
    this.#touched.add(account)
    return true
  }

  async #refreshOne(lane: number, lanes: number): Promise<boolean> {
    // Only its own: two at once on one token would be a race.
    const at = this.#pick(this.#accounts.length, lane, lanes)
    const account = at === undefined ? undefined : this.#accounts[at]
    if (account === undefined) return false
    this.#touched.add(account)
    account.isUncertain = true
    const body = await this.#must('POST', '/api/auth/refresh', {}, { refresh_token: account.token })
    account.token = String(body['refresh_token'])
    account.isUncertain = false
    this.#refreshes += 1
    return true
  }

  async #makeKey(lane: number, lanes: number): Promise<boolean> {
    const at = this.#pick(this.#clients.length, lane, lanes)
    const client = at === undefined ? undefined : this.#clients[at]
    if (client === undefined || client.keys.length >= keysPerClient) {
      const wanted = { name: 'n', tier: 'enterprise', product_type: 'p', api_key_name: 'k' }
      const body = await this.#must('POST', '/api/admin/provision-client', this.#admin, wanted)
      const made: Client = {
        id: String(body['tenant_id']),
        keys: [String(body['raw_api_key'])],
        answered: 0,
        unanswered: 0
      }
      this.#clients.push(made)
      this.#touched.add(made)
      return true
    }
    this.#touched.add(client)
    const body = await this.#must('POST', '/api/v1/api-keys', bearer(client.keys[0]!), { name: 'k' })
    client.keys.push(String(body['secret']))
    return true
  }

  async #converse(): Promise<boolean> {
    const client = this.#clients[Math.floor(this.#random() * this.#clients.length)]
    if (client === undefined) return false
    this.#touched.add(client)
    const key = client.keys[Math.floor(this.#random() * client.keys.length)]!
    client.unanswered += 1
    await this.#must('POST', '/api/v1/chat', bearer(key), { message: 'what is 2+3?', agent_type: 'writer' })
    client.unanswered -= 1
    client.answered += 1
    return true
  }

  /** Which of so many a lane takes: one of its own. */
  #pick(count: number, lane: number, lanes: number): number | undefined {
    const own = Math.ceil((count - lane) / lanes)
    return own <= 0 ? undefined : lane + lanes * Math.floor(this.#random() * own)
  }

  async #must(method: string, path: string, headers: Record<string, string>, body: object) {
    const answer = await this.#ask(method, path, headers, body)
    if (answer.status !== 200) {
      throw new UnexpectedAnswer(`${path} answered ${answer.status}: ${JSON.stringify(answer.body)}`)
    }
    return answer.body
  }

  async #ask(method: string, path: string, headers: Readonly<Record<string, string>>, body?: object) {
    const response = await fetch(this.#url + path, {
      method,
      headers: { ...headers, ...(body === undefined ? {} : { 'content-type': 'application/json' }) },
      ...(body === undefined ? {} : { body: JSON.stringify(body) })
    })
    const text = await response.text()
    return { status: response.status, body: JSON.parse(text) as Readonly<Record<string, unknown>> }
  }
}

/** The server answered, but not as it should. */
class UnexpectedAnswer extends Error {}

const bearer = (key: string): Record<string, string> => ({ authorization: `Bearer ${key}` })
