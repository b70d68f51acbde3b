import { createHash } from 'node:crypto'
import type { Headers, Reply } from '../http/types.ts'
import type { Catalog, Tools } from '../tools/types.ts'

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

/** @returns both documents as they are now, of one and the same catalog: rendered anew only when that has changed */
export function createDocuments(tools: Tools, server: string): () => Documents {
  let of: Catalog | undefined
  let documents: Documents | undefined
  return () => {
    const catalog = tools.catalog()
    if (documents === undefined || catalog !== of) {
      of = catalog
      documents = {
        discovery: render(discoveryText(server, catalog.version)),
        catalog: render(catalog.text, catalog.version)
      }
    }
    return documents
  }
}

/** The members are in the order of canonical JSON. */
function discoveryText(server: string, toolsVersion: string): string {
  return JSON.stringify({
    capabilities: ['tools', 'streaming', 'idempotency'],
    execute_url: '/agent/execute',
    protocol: 'carmy/1',
    server,
    tools_url: '/agent/tools',
    tools_version: toolsVersion
  })
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
