import type { Codebase } from './codebase.ts'
import type { CodeReloaded } from './control.ts'
import { CodedError, isCoded } from './errors.ts'
import { needsOf, realmOf, type Target } from './generation.ts'
import type { Kernel } from './kernel.ts'
import type { Logger } from './log.ts'
import type { Plugin } from './plugin.ts'
import type { Entry } from './program.ts'
import { meets } from './services.ts'

export interface CodeSwapOptions {
  readonly kernel: Kernel
  readonly code: Codebase
  readonly log: Logger
  /** What runs. */
  readonly entries: readonly Entry[]
  /** An entry as it would run with this plugin. @throws CodedError `PLUGIN_CONFIG_INVALID` */
  readonly prepare: (entry: Entry, plugin: Plugin) => Promise<Target>
  /** Resolves when nothing is on its way to another state, or after some time. */
  readonly untilSettled: () => Promise<void>
}

/** A plugin whose entries are to run new code. */
interface Swap {
  readonly plugin: Plugin
  readonly targets: ReadonlyMap<string, Target>
}

/**
 * Puts new code in the place of the old, plugin by plugin: all entries of a plugin, or none. One that will not do is
 * reported and leaves its old code serving.
 * @param fresh plugins by their labels
 * @param files what has changed, for the event
 * @returns the plugins that refuse the config they would get
 */
export async function swapCode(
  options: CodeSwapOptions,
  fresh: ReadonlyMap<string, Plugin>,
  files: ReadonlySet<string>
): Promise<ReadonlyMap<string, Plugin>> {
  const { kernel, code, log } = options
  const waiting = new Map<string, Swap>()
  const misfits = new Map<string, Plugin>()
  for (const [label, plugin] of fresh) {
    try {
      waiting.set(label, { plugin, targets: await prepareAll(options, label, plugin) })
    } catch (error) {
      code.refuse(label, error)
      if (isCoded(error, 'PLUGIN_CONFIG_INVALID')) misfits.set(label, plugin)
    }
  }
  const plugins: CodeReloaded['plugins'][number][] = []
  while (waiting.size > 0) {
    // One may need what another brings.
    const next = [...waiting].find(([, swap]) => lacking(kernel, swap) === undefined) ?? [...waiting][0]
    const [label, swap] = next as [string, Swap]
    waiting.delete(label)
    try {
      await takeOver(options, label, swap)
    } catch (error) {
      code.refuse(label, error)
      continue
    }
    code.adopt(label, swap.plugin)
    plugins.push({ plugin: label, entries: [...swap.targets.keys()] })
    log.info('code was reloaded', plugins.at(-1))
  }
  if (plugins.length > 0) kernel.events.emit('kernel/code-reloaded', { plugins, files: [...files] })
  return misfits
}

async function prepareAll(
  { kernel, entries, prepare }: CodeSwapOptions,
  label: string,
  plugin: Plugin
): Promise<ReadonlyMap<string, Target>> {
  const targets = new Map<string, Target>()
  for (const entry of entries) {
    if (entry.plugin !== label || kernel.fiber(entry.id)?.target === undefined) continue
    targets.set(entry.id, await prepare(entry, plugin))
  }
  return targets
}

/** @returns a service that is not there, though the entry serves now and would have to wait for it */
export function missingService(kernel: Kernel, id: string, target: Target): string | undefined {
  if (kernel.fiber(id)?.current === undefined) return undefined
  const { plugin } = target
  return needsOf(plugin).find((service) => {
    const slot = kernel.services.find(service, realmOf(target, service))
    const requires = plugin.requires as Readonly<Record<string, string>>
    return slot === undefined || !slot.open || !meets(slot.version, requires[service])
  })
}

export function needsMissing(plugin: string, service: string): CodedError {
  return new CodedError('PLUGIN_NEEDS_MISSING', `plugin '${plugin}' needs service '${service}', which is not there`)
}

function lacking(kernel: Kernel, { targets }: Swap): string | undefined {
  for (const [id, target] of targets) {
    const missing = missingService(kernel, id, target)
    if (missing !== undefined) return missing
  }
  return undefined
}

async function takeOver({ kernel, log, untilSettled }: CodeSwapOptions, label: string, swap: Swap): Promise<void> {
  const missing = lacking(kernel, swap)
  if (missing !== undefined) throw needsMissing(label, missing)
  const served = [...swap.targets.keys()].some((id) => kernel.fiber(id)?.current !== undefined)
  const taken: { readonly id: string; readonly old: Target | undefined }[] = []
  for (const [id, target] of swap.targets) {
    const old = kernel.fiber(id)?.target
    if (old?.plugin === swap.plugin) continue
    try {
      await kernel.retarget({ id, ...target })
      taken.push({ id, old })
    } catch (error) {
      // Where nothing served there is nothing to go back to: the newest failure is the one to see.
      if (!served) continue
      for (const { id, old } of taken.reverse()) {
        if (old === undefined || kernel.fiber(id)?.target === undefined) continue
        await kernel.retarget({ id, ...old }).catch((error: unknown) => {
          log.error('the old code could not be put back', { entry: id, error })
        })
      }
      await untilSettled()
      throw error
    }
  }
}
