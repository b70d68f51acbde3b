/**
 * What `import … from 'heartwood'` means: the surface of the kernel, the start of a whole server from code, and the
 * contracts of the built-in plugins (`http.Route`, `tools.Tool`), which also type the services and collections of a
 * context.
 */
export * from '../kernel/index.ts'
export { defineTool, type FromSchema, type ToolDefinition } from './define-tool.ts'
export { type EntryData, type RunningProgram, type StartOptions, startKernel } from './start.ts'
export type * as alerts from '../plugins/alerts/types.ts'
export type * as audit from '../plugins/audit/types.ts'
export type * as auth from '../plugins/auth/types.ts'
export type * as carmy from '../plugins/carmy/types.ts'
export type * as chat from '../plugins/chat/types.ts'
export type * as embeddings from '../plugins/embeddings/types.ts'
export type * as http from '../plugins/http/types.ts'
export type * as jobs from '../plugins/jobs/types.ts'
export type * as mcp from '../plugins/mcp/types.ts'
export type * as rag from '../plugins/rag/types.ts'
export type * as readiness from '../plugins/readiness/types.ts'
export type * as runtimeTools from '../plugins/runtime-tools/types.ts'
export type * as stats from '../plugins/stats/types.ts'
export type * as store from '../plugins/store/types.ts'
export type * as tenants from '../plugins/tenants/types.ts'
export type * as tools from '../plugins/tools/types.ts'
export type * as workers from '../plugins/workers/types.ts'
