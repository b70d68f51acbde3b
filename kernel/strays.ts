/** The frame of a stack: whether it awaits the one above it, and its file. */
interface Frame {
  readonly awaits: boolean
  readonly file: string
}

/**
 * Whose an error is that nobody has caught, as far as its stack tells; nothing where it tells nothing.
 *
 * What was thrown came out of a callback: whoever was called first has set it up. What was rejected came out of a call
 * that nobody waited for: the last who waited in it has let it go, or else whoever made the error, since those further
 * out have only called in.
 * @param ownerOf the plugin that a file belongs to
 */
export function ownerOfStray(
  stack: string,
  isRejection: boolean,
  ownerOf: (file: string) => string | undefined
): string | undefined {
  const owned = framesOf(stack).flatMap(({ awaits, file }) => {
    const owner = ownerOf(file)
    return owner === undefined ? [] : { awaits, owner }
  })
  const frame = owned.findLast(({ awaits }) => awaits) ?? owned.at(isRejection ? 0 : -1)
  return frame?.owner
}

function framesOf(stack: string): readonly Frame[] {
  return stack.split('\n').flatMap((line) => {
    const [, awaits, file] = /^\s+at (async )?(?:.*\()?(?:file:\/\/)?(\/[^()]+):\d+:\d+\)?$/.exec(line) ?? []
    return file === undefined ? [] : { awaits: awaits !== undefined, file }
  })
}
