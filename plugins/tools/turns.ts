export interface Waiting {
  /** The turn is yours; {@link leaveTurn} when you are done. */
  takeTurn(): void
}

/**
 * Whose turn it is, by the name of the tool: those who wait, in the order in which they came. A name that is not there
 * is free.
 */
export type Turns = Map<string, Set<Waiting>>

/** Takes the turn when it is free, else waits for it. @returns whether it was free */
export function enterTurn(turns: Turns, name: string, who: Waiting): boolean {
  const waiting = turns.get(name)
  if (waiting === undefined) turns.set(name, new Set())
  else waiting.add(who)
  return waiting === undefined
}

/** Passes the turn on. The next one begins in a microtask of its own, so that a long queue does not pile up its calls. */
export function leaveTurn(turns: Turns, name: string): void {
  const waiting = turns.get(name)
  const next = waiting?.values().next().value
  if (next === undefined) {
    turns.delete(name)
    return
  }
  waiting?.delete(next)
  queueMicrotask(() => next.takeTurn())
}

/** Stops waiting. Whose turn is already on its way gets it all the same. */
export function quitTurn(turns: Turns, name: string, who: Waiting): void {
  turns.get(name)?.delete(who)
}
