import { CodedError, definePlugin, type Plugin } from '../../kernel/index.ts'
import type { TaskResult, Workers, WorkerTask } from '../../plugins/workers/types.ts'

/** In place of `workers`: runs tasks where they are called. */
export const inProcess: Plugin = definePlugin({
  name: 'in-process',
  provides: ['workers'],
  apply(ctx) {
    const tasks = new Map<string, WorkerTask>()
    ctx.collect('workers.tasks', {
      update(now) {
        for (const { item } of now) tasks.set(item.name, item)
      }
    })
    const run: Workers['run'] = async <T>(task: string | WorkerTask, input: unknown) => {
      const { module } = typeof task === 'string' ? tasks.get(task)! : task
      const { default: work } = (await import(module)) as {
        default: (input: unknown) => Promise<TaskResult<T>>
      }
      const result = await work(input)
      if (!result.ok) throw new CodedError(result.code, result.message)
      return result.value
    }
    ctx.provide('workers', { run, load: () => ({}) })
  }
})
