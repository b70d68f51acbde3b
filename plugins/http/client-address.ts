import { BlockList, isIP } from 'node:net'
import { CodedError } from '../../kernel/index.ts'

/** What is known of a request before anybody looks at it. */
export interface Forwarded {
  /** Of the peer. */
  readonly address: string
  header(name: string): string | undefined
}

const maxKnown = 1_000

/** Proxies whose word on where a request comes from is taken. */
export class TrustedProxies {
  readonly #trusted = new BlockList()
  readonly #known = new Map<string, boolean>()

  /**
   * @param proxies addresses, or ranges such as `10.0.0.0/8`
   * @throws CodedError `HTTP_PROXY_INVALID`
   */
  constructor(proxies: readonly string[]) {
    for (const proxy of proxies) {
      const [address = '', bits, ...rest] = proxy.split('/')
      const version = isIP(address)
      const most = version === 6 ? 128 : 32
      const isRange = bits === undefined || (/^\d{1,3}$/.test(bits) && Number(bits) <= most)
      if (version === 0 || !isRange || rest.length > 0) {
        throw new CodedError(
          'HTTP_PROXY_INVALID',
          `trusted_proxies holds '${proxy}', which is no IP address and no range such as 10.0.0.0/8`
        )
      }
      this.#trusted.addSubnet(address, bits === undefined ? most : Number(bits), family(address))
    }
  }

  /**
   * Where a request comes from: its peer, or, as long as those who speak are trusted, whom they name. Read from the
   * near end, since the far end is what the client itself may have written.
   */
  clientOf(request: Forwarded): string {
    let client = request.address
    if (!this.#has(client)) return client
    const forwarded = request.header('x-forwarded-for')
    const hops = (forwarded ?? request.header('x-real-ip') ?? '').split(',')
    for (let at = hops.length - 1; at >= 0; at -= 1) {
      const named = toAddress(hops[at] as string)
      if (named === undefined) break
      client = named
      if (!this.#has(client)) break
    }
    return client
  }

  /** The list takes microseconds to ask, and the same few peers come again and again. */
  #has(address: string): boolean {
    let isTrusted = this.#known.get(address)
    if (isTrusted === undefined) {
      isTrusted = isIP(address) !== 0 && this.#trusted.check(address, family(address))
      if (this.#known.size >= maxKnown) this.#known.clear()
      this.#known.set(address, isTrusted)
    }
    return isTrusted
  }
}

function family(address: string): 'ipv4' | 'ipv6' {
  return address.includes(':') ? 'ipv6' : 'ipv4'
}

/** The address in one hop of a header: some write a port behind it, and brackets around IPv6. */
function toAddress(hop: string): string | undefined {
  const text = hop.trim()
  const bare = /^\[([^\]]*)\](?::\d+)?$/.exec(text)?.[1] ?? /^([\d.]+):\d+$/.exec(text)?.[1] ?? text
  const address = bare.replace(/^::ffff:(?=\d+\.)/i, '')
  return isIP(address) === 0 || address.includes('%') ? undefined : address.toLowerCase()
}

/**
 * Who counts as one client: an IPv4 address, or the 64 bits that a provider gives to one IPv6 customer, who may pick any
 * address below them.
 */
export function networkOf(address: string): string {
  if (!address.includes(':')) return address
  const [head = '', tail] = (address.split('%', 1)[0] as string).split('::')
  const front = head === '' ? [] : head.split(':')
  const back = tail === undefined || tail === '' ? [] : tail.split(':')
  const zeros = tail === undefined ? 0 : Math.max(0, 8 - front.length - back.length)
  const groups = [...front, ...Array<string>(zeros).fill('0'), ...back]
  return groups
    .slice(0, 4)
    .map((group) => group.replace(/^0+(?=.)/, ''))
    .join(':')
}
