/** The public surface of the kernel, and the one file of it that plugins import. */

export type { AppliedStep, EntryPatch, FiberStatus, KernelControl, PendingStep, StepAction } from './control.ts'
export { CodedError, type ErrorOptions, isCoded, messageOf } from './errors.ts'
export { createJsonLogger, type LogFields, type Logger, type LogLevel, silentLogger } from './log.ts'
export {
  type Awaitable,
  type Collector,
  type CollectionName,
  type Context,
  type Contribution,
  type Contributions,
  definePlugin,
  type EventBus,
  type EventName,
  type Events,
  type FiberState,
  type Lease,
  type ListenOptions,
  type Manifest,
  type Plugin,
  type ServiceName,
  type Services,
  type Undo
} from './plugin.ts'
export type { Entry, JsonObject, JsonValue, Program } from './program.ts'
export {
  type Check,
  type CheckMode,
  compileSchema,
  type Issue,
  type JsonSchema,
  renderIssues,
  type Schema,
  schemaOf
} from './schema.ts'
