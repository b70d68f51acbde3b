/** The public surface of the kernel, and the one file of it that plugins import. */

export type {
  AppliedStep,
  Changed,
  ChangeOptions,
  CodeReloaded,
  EntryInput,
  EntryPatch,
  EventsService,
  FiberStatus,
  KernelControl,
  PendingStep,
  Renamed,
  StepAction
} from './control.ts'
export { CodedError, type ErrorOptions, isCoded, messageOf } from './errors.ts'
export {
  createJsonLogger,
  createLineWriter,
  type LineWriter,
  type LogFields,
  type Logger,
  type LogLevel,
  silentLogger
} from './log.ts'
export {
  type Awaitable,
  type Child,
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
  type Gate,
  type Lease,
  type ListenOptions,
  type Manifest,
  type Overlay,
  type Plugin,
  type ProvideOptions,
  type ServiceName,
  type Services,
  type Undo,
  type UpdateVerdict
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
