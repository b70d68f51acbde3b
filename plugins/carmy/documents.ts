import { createHash } from 'node:crypto'
import type { Headers, Reply } from '../http/types.ts'
import type { Catalog, Tools } from '../tools/types.ts'
import type { OwnNames, ShownFaces } from './faces.ts'

/** A document that is rendered once and then only compared and sent. */
interface Document {
  readonly etag: string
  readonly full: Reply
  readonly unchanged: Reply
}

export interface Documents {
  readonly discovery: Document
  readonly catalog: Document
}

/** The members of carmy itself that never change. */
const members = {
  execute_url: '/agent/execute',
  protocol: 'carmy/1',
  tools_url: '/agent/tools'
}

export const ownNames: OwnNames = {
  capabilities: ['tools', 'streaming', 'idempotency'],
  members: [...Object.keys(members), 'capabilities', 'server', 'tools_version']
}

/** @returns both documents as they are now, of one and the same catalog: rendered anew only when something has changed */
export function createDocuments(tools: Tools, server: string, faces: () => ShownFaces): () => Documents {
  let of: Catalog | undefined
  let shown: ShownFaces | undefined
  let documents: Documents | undefined
  return () => {
    const catalog = tools.catalog()
    if (documents === undefined || catalog !== of || faces() !== shown) {
      of = catalog
      shown = faces()
      documents = {
        discovery: render(discoveryText(server, catalog.version, shown)),
        catalog: render(catalog.text, catalog.version)
      }
    }
    return documents
  }
}

/** The members are in the order of canonical JSON. */
function discoveryText(server: string, toolsVersion: string, faces: ShownFaces): string {
  const own = Object.entries({
    ...members,
    capabilities: faces.capabilities,
    server,
    tools_version: toolsVersion
  }).map(([name, value]) => [name, `${JSON.stringify(name)}:${JSON.stringify(value)}`] as const)
  const all = [...own, ...faces.members].sort(([a], [b]) => (a < b ? -1 : 1))
  return `{${all.map(([, text]) => text).join(',')}}`
}

function render(text: string, hash = createHash('sha256').update(text).digest('hex')): Document {
  const etag = `"${hash}"`
  const headers: Headers = {
    'content-type': 'application/json',
    etag,
    'cache-control': 'private, max-age=60'
  }
  return { etag, full: { headers, bytes: Buffer.from(text) }, unchanged: { status: 304, headers } }
}

/** @param ifNoneMatch the header: tags in quotes, weak or strong, or `*` */
export function answer(document: Document, ifNoneMatch: string | undefined): Reply {
  return ifNoneMatch !== undefined && matches(ifNoneMatch, document.etag) ? document.unchanged : document.full
}

function matches(ifNoneMatch: string, etag: string): boolean {
  // Anything but visible ASCII is no list of tags, and counts as if it were not there.
  if (!/^[\t\x20-\x7e]*$/.test(ifNoneMatch)) return false
  return ifNoneMatch.split(',').some((part) => {
    const tag = part.trim()
    return tag === '*' || tag.replace(/^(?:W\/)+/, '') === etag
  })
}
