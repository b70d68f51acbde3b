import { type Logger, renderIssues } from '../../kernel/index.ts'
import { type Answer, completed } from './answer.ts'
import { writeExactly } from './json.ts'
import type { ListedTool } from './registry.ts'

/** An answer, or why the output is not what the tool promises. */
export type Judged =
  | { readonly answer: Answer; readonly reason?: undefined }
  | { readonly answer?: undefined; readonly reason: string }

/** Makes an answer of what a tool gave, or somebody gave in its place. @param maxBytes of the output as JSON */
export function judgeOutput(
  listed: ListedTool,
  executionId: string,
  output: unknown,
  maxBytes: number,
  log: Logger
): Judged {
  const { text, reason } = writeExactly(output, maxBytes)
  if (text === undefined) return { reason }
  const issues = listed.checkOutput(output)
  if (issues.length > 0) return { reason: renderIssues(issues) }
  return { answer: completed(executionId, text, listed.cacheable, nextAfter(listed, executionId, output, log)) }
}

/** As JSON; nothing where the tool has no advice, or none that can be told. */
function nextAfter({ tool }: ListedTool, execution_id: string, output: unknown, log: Logger): string | undefined {
  if (tool.next === undefined) return undefined
  try {
    return JSON.stringify(tool.next(output))
  } catch (error) {
    log.error('a tool could not say what comes next', { tool: tool.name, execution_id, error })
    return undefined
  }
}
