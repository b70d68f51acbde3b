import { CodedError, type Collector, type Contribution } from '../../kernel/index.ts'
import type { Face } from './types.ts'

/** What the discovery document says beyond carmy's own. The same object until a face comes or goes. */
export interface ShownFaces {
  /** Those of carmy first. */
  readonly capabilities: readonly string[]
  /** `"name":value` as JSON, by name. */
  readonly members: ReadonlyMap<string, string>
}

/** What is carmy's own, so that no face may call itself or a member so. */
export interface OwnNames {
  readonly capabilities: readonly string[]
  readonly members: readonly string[]
}

export function createFaces(own: OwnNames): { collector: Collector<Face>; shown: () => ShownFaces } {
  let shown = merge(own, [])
  return {
    collector: {
      check: (next) => void merge(own, next),
      update: (now) => (shown = merge(own, now))
    },
    shown: () => shown
  }
}

/** @throws CodedError `CARMY_FACE_CONFLICT`, `CARMY_FACE_INVALID` */
function merge(own: OwnNames, faces: readonly Contribution<Face>[]): ShownFaces {
  const capabilities = new Map(own.capabilities.map((name) => [name, 'carmy']))
  const owners = new Map(own.members.map((name) => [name, 'carmy']))
  const members = new Map<string, string>()
  for (const { item, entry } of faces) {
    claim(capabilities, item.capability, entry)
    for (const [name, value] of Object.entries(item.members)) {
      claim(owners, name, entry)
      members.set(name, `${JSON.stringify(name)}:${toSortedJson(value, name, entry)}`)
    }
  }
  return { capabilities: [...capabilities.keys()], members }
}

function claim(owners: Map<string, string>, name: string, entry: string): void {
  const rival = owners.get(name)
  if (rival !== undefined) {
    throw new CodedError(
      'CARMY_FACE_CONFLICT',
      `'${name}' of entry '${entry}' stands in the discovery document already: '${rival}' has it`
    )
  }
  owners.set(name, entry)
}

/** Compact, with the members of every object in the order of their names. */
function toSortedJson(value: unknown, name: string, entry: string): string {
  const sort = (_key: string, part: unknown): unknown =>
    typeof part === 'object' && part !== null && !Array.isArray(part)
      ? Object.fromEntries(Object.entries(part).sort(([a], [b]) => (a < b ? -1 : 1)))
      : part
  try {
    const text = JSON.stringify(value, sort) as string | undefined
    if (text !== undefined) return text
  } catch {
    // A cycle or a bigint: told below.
  }
  throw new CodedError('CARMY_FACE_INVALID', `the member '${name}' of entry '${entry}' is no JSON`)
}
