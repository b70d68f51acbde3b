/**
 * Whose turn it is, by the name of the tool: those who wait, in the order in which they came. A name that is not there
 * is free.
 */
export type Turns = Map<string, Set<() => void>>

/** Takes the turn when it is free; else queues `go`, which then has to {@link leaveTurn} like one that got it at once. */
export function enterTurn(turns: Turns, name: string, go: () => void): boolean {
  const waiting = turns.get(name)
  if (waiting === undefined) turns.set(name, new Set())
  else waiting.add(go)
  return waiting === undefined
}

/** Passes the turn on. The next one starts in a microtask of its own, so that a long queue does not pile up its calls. */
export function leaveTurn(turns: Turns, name: string): void {
  const waiting = turns.get(name)
  const next = waiting?.values().next().value
  if (next === undefined) {
    turns.delete(name)
    return
  }
  waiting?.delete(next)
  queueMicrotask(next)
}

/** Leaves the queue. One whose `go` is already on its way gets it all the same. */
export function quitTurn(turns: Turns, name: string, go: () => void): void {
  turns.get(name)?.delete(go)
}
