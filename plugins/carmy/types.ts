import type {} from '../../kernel/index.ts'

/**
 * Another way to reach the tools, as the discovery document tells of it. Contributed to `carmy.faces`; the document and
 * its tag change in the commit that brings the face or takes it away.
 */
export interface Face {
  /** Stands in `capabilities` behind those of carmy itself, in the order of contribution. */
  readonly capability: string
  /** Plain JSON, merged into the document: `{ mcp_url: '/mcp' }`. It is public: no secrets. */
  readonly members: Readonly<Record<string, unknown>>
}

/**
 * Codes of a refusal, for whoever contributes such a thing: `CARMY_FACE_CONFLICT` for a capability or a member that is
 * there already, `CARMY_FACE_INVALID` for a member that JSON cannot hold.
 */
declare module '../../kernel/index.ts' {
  interface Contributions {
    'carmy.faces': Face
  }
}
