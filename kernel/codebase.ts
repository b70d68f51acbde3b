import type { CodeLoader } from './code.ts'
import type { Logger } from './log.ts'
import type { Plugin } from './plugin.ts'
import type { Stamp } from './watch.ts'

/**
 * The code that a program runs. A plugin is loaded once and then stays as it is until other code is adopted, so that
 * all its entries run the same, and a change of config alone builds nothing anew.
 */
export class Codebase {
  readonly #loader: CodeLoader
  readonly #log: Logger
  readonly #onLoad: () => void
  readonly #plugins = new Map<string, Plugin>()
  readonly #loading = new Map<string, Promise<Plugin>>()
  /** Why the newest code of a plugin is not the one that runs. */
  readonly #refusals = new Map<string, unknown>()
  readonly #known = new Set<string>()

  /** @param options.onLoad a plugin has been loaded, or tried to: its files may be others now */
  constructor(options: { readonly loader: CodeLoader; readonly log: Logger; readonly onLoad: () => void }) {
    this.#loader = options.loader
    this.#log = options.log
    this.#onLoad = options.onLoad
  }

  /** The plugin as it runs; `undefined` when it was not loaded yet, or could not be. */
  get(label: string): Plugin | undefined {
    return this.#plugins.get(label)
  }

  /** Whether it was asked for, and may so be known not to load. */
  has(label: string): boolean {
    return this.#known.has(label)
  }

  /** @throws CodedError as {@link CodeLoader}; the next call tries again */
  async load(label: string): Promise<Plugin> {
    const present = this.#plugins.get(label)
    if (present !== undefined) return present
    let loading = this.#loading.get(label)
    if (loading === undefined) {
      loading = this.fresh(label).finally(() => this.#loading.delete(label))
      this.#loading.set(label, loading)
    }
    const plugin = await loading
    if (!this.#plugins.has(label)) this.adopt(label, plugin)
    return this.#plugins.get(label) as Plugin
  }

  /** The plugin as its files are now; not yet what {@link load} answers. @throws CodedError as {@link CodeLoader} */
  async fresh(label: string): Promise<Plugin> {
    this.#known.add(label)
    try {
      return (await this.#loader.load(label)).plugin
    } finally {
      this.#onLoad()
    }
  }

  /** From now on this is the plugin. */
  adopt(label: string, plugin: Plugin): void {
    this.#plugins.set(label, plugin)
    this.#refusals.delete(label)
  }

  /** The newest code will not do: what was there stays, and why is told. */
  refuse(label: string, error: unknown): void {
    this.#refusals.set(label, error)
    this.#log.error('new code was refused', { plugin: label, error })
  }

  refusalOf(label: string): unknown {
    return this.#refusals.get(label)
  }

  /** Plugins whose code depends on one of the files. */
  dependents(files: ReadonlySet<string>): readonly string[] {
    return [...this.#known].filter((label) => [...this.#loader.filesOf(label).keys()].some((file) => files.has(file)))
  }

  /** Every file that code depends on, with what was found there. */
  files(): ReadonlyMap<string, Stamp> {
    return new Map([...this.#known].flatMap((label) => [...this.#loader.filesOf(label)]))
  }

  /** Forgets every other plugin: what comes back is loaded again. */
  keep(labels: ReadonlySet<string>): void {
    for (const known of [this.#plugins, this.#refusals, this.#known]) {
      for (const label of known.keys()) if (!labels.has(label)) known.delete(label)
    }
  }
}
