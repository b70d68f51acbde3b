/**
 * The cycles of a directed graph, each as a closed path that begins with its smallest node, each found once. Walks with
 * a stack of its own, so that depth is no limit.
 */
export function findCycles(edges: ReadonlyMap<string, readonly string[]>): readonly (readonly string[])[] {
  const cycles = new Map<string, readonly string[]>()
  const done = new Set<string>()
  for (const start of edges.keys()) {
    const path: string[] = []
    const at = new Map<string, number>()
    const stack: { readonly node: string; readonly next: Iterator<string> }[] = []
    const enter = (node: string) => {
      at.set(node, path.push(node) - 1)
      stack.push({ node, next: (edges.get(node) ?? []).values() })
    }
    if (!done.has(start)) enter(start)
    for (let frame = stack.at(-1); frame !== undefined; frame = stack.at(-1)) {
      const step = frame.next.next()
      if (step.done === true) {
        stack.pop()
        path.pop()
        at.delete(frame.node)
        done.add(frame.node)
        continue
      }
      const seen = at.get(step.value)
      if (seen !== undefined) {
        const ring = fromSmallest(path.slice(seen))
        cycles.set(JSON.stringify(ring), [...ring, ring[0] as string])
      } else if (!done.has(step.value)) {
        enter(step.value)
      }
    }
  }
  return [...cycles.values()]
}

function fromSmallest(ring: readonly string[]): readonly string[] {
  const smallest = ring.reduce((best, node, index) => (node < (ring[best] as string) ? index : best), 0)
  return [...ring.slice(smallest), ...ring.slice(0, smallest)]
}
