/** What a {@link CodedError} may carry beside its message. */
export interface ErrorOptions {
  /** The error this one was made from. */
  readonly cause?: unknown
  /** Facts for machines; never a secret. */
  readonly detail?: Readonly<Record<string, unknown>>
}

/**
 * The one error class of the house. `code` is API: it never changes its meaning. `message` is for people: what was
 * found, where, and what would be right. Neither ever holds a secret.
 */
export class CodedError extends Error {
  override readonly name = 'CodedError'
  readonly code: string
  readonly detail: Readonly<Record<string, unknown>> | undefined

  constructor(code: string, message: string, options: ErrorOptions = {}) {
    super(message, options.cause === undefined ? undefined : { cause: options.cause })
    this.code = code
    this.detail = options.detail
  }
}

/** True for a {@link CodedError}, and for one of the given code when `code` is given. */
export function isCoded(error: unknown, code?: string): error is CodedError {
  return error instanceof CodedError && (code === undefined || error.code === code)
}

/** The message of anything that was thrown. */
export function messageOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error)
}
