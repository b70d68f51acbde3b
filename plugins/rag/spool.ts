import { setImmediate } from 'node:timers/promises'
import type { Store, Transaction } from '../store/types.ts'
import type { CheckedDocument } from './ingest.ts'
import { kept } from './records.ts'
import { putText, textOf, toWellFormed } from './units.ts'

/** A document that is kept until it has been taken in; its text lies in pieces beside it. */
export interface SpooledDocument extends Omit<CheckedDocument, 'content'> {
  readonly units: number
  readonly pieces: number
}

/** Of one piece, about. */
const pieceUnits = 65_536

/** Keeps a text under the id of a job; durable with the next transaction that is. */
export async function spool(store: Store, id: string, document: CheckedDocument): Promise<SpooledDocument> {
  const { content, ...facts } = document
  let pieces = 0
  for (let start = 0; start < content.length; pieces++) {
    let text = textOf(content, start, start + pieceUnits)
    // Both halves of a pair lie in one piece.
    if (/[\ud800-\udbff]$/.test(text) && start + text.length < content.length) text = text.slice(0, -1)
    start += text.length
    const at = pieces
    await store.atomically((tx) => tx.put(kept.spool, [id, at], toWellFormed(text)))
    await setImmediate()
  }
  return { ...facts, units: content.length, pieces }
}

export async function readSpooled(store: Store, id: string, document: SpooledDocument): Promise<CheckedDocument> {
  const { units, pieces, ...facts } = document
  const content = new Uint16Array(new SharedArrayBuffer(units * 2))
  for (let at = 0, start = 0; at < pieces; at++) {
    const text = (await store.get<string>(kept.spool, [id, at]))?.value ?? ''
    putText(content.subarray(start), text)
    start += text.length
    await setImmediate()
  }
  return { ...facts, content }
}

export function removeSpooled(tx: Transaction, id: string, { pieces }: Pick<SpooledDocument, 'pieces'>): void {
  for (let at = 0; at < pieces; at++) tx.remove(kept.spool, [id, at])
}
