import { existsSync, readdirSync } from 'node:fs'
import { readFile, realpath } from 'node:fs/promises'
import { createRequire, isBuiltin, SourceMap, type SourceMapping, type SourceMapPayload } from 'node:module'
import { basename, dirname, extname, join, relative, resolve, sep } from 'node:path'
import { fileURLToPath, pathToFileURL } from 'node:url'
import { setFlagsFromString } from 'node:v8'
import { constants, Script } from 'node:vm'
import type { BuildFailure, Plugin as BundlerPlugin } from 'esbuild'
import { CodedError, messageOf } from './errors.ts'
import { didYouMean } from './nearest.ts'
import { assertManifest, definePlugin, type Plugin } from './plugin.ts'
import { isLabel } from './program.ts'
import { readStamp, type Stamp, stampOf } from './watch.ts'

export interface LoadedCode {
  readonly plugin: Plugin
  /** Absolute paths of what it was made from. */
  readonly files: readonly string[]
}

/**
 * Turns the `plugin` of an entry into code. A path or a package is bundled anew by every call; a built-in label is the
 * compiled module, or bundled when `fresh` is asked for. Packages and the kernel are not bundled: they are those of the
 * running program. In a bundle `import.meta` is that of its first file, and there is no top-level `await`.
 *
 * Codes of its errors, each naming the plugin: `PLUGIN_NOT_FOUND`; `PLUGIN_BUILD_FAILED` (message with
 * `file:line:column`, detail `faults`); `PLUGIN_LOAD_FAILED` (it threw while it was loaded); `PLUGIN_INVALID` (its
 * default export is no plugin).
 */
export interface CodeLoader {
  /** The built-in plugins. */
  labels(): readonly string[]
  load(plugin: string, options?: { readonly fresh?: boolean }): Promise<LoadedCode>
  /**
   * The files that the last load of a plugin depended on, also one that failed, with what it found there: those it was
   * made from, the path it was given by, and those an import looked for in vain. Nothing for a compiled built-in.
   */
  filesOf(plugin: string): ReadonlyMap<string, Stamp>
  /** The plugin that a file belongs to, as stacks name it: its newest bundle, or its folder. */
  ownerOf(file: string): string | undefined
  /** The stack of an error with places in bundles turned into places in the files they were made from. */
  readable(stack: string): string
}

export interface CodeLoaderOptions {
  /** Folder with one folder for each built-in plugin, named by its label, with `index.js` in it. */
  readonly builtins: string
  /** The same folder before it was compiled (`index.ts`): where a fresh built-in is taken from, if it is there. */
  readonly sources?: string
  /** Folder of the program file: paths and packages are looked up from there. */
  readonly base: string
  /** URL of the module that `heartwood` stands for in a plugin; the kernel's own surface when left out. */
  readonly surface?: string
}

export function createCodeLoader({ builtins, sources, base, surface = kernelSurface }: CodeLoaderOptions): CodeLoader {
  const kernels = [kernelFolder, ...[builtins, sources].flatMap((folder) => folder ?? []).map(besides)]
  /** The newest bundle of each plugin, by its first file. */
  const bundles = new Map<string, Bundle>()
  const stamps = new Map<string, Map<string, Stamp>>()
  let labels: readonly string[] | undefined

  async function loadBundle(plugin: string, specifier: string): Promise<LoadedCode> {
    const shared = new Map<string, unknown>([['heartwood', await import(surface)]])
    const files = new Map<string, Stamp>()
    stamps.set(plugin, files)
    if (/^[./]/.test(specifier)) await look(files, resolve(base, specifier))
    const plugins = [shareHost(kernels, surface, shared), recordFiles(files)]
    const bundle = await build({ plugin, specifier, folder: await realpath(base), plugins, files })
    const { file } = bundle
    bundles.set(file, bundle)
    let exported: unknown
    try {
      exported = evaluate(bundle, shared)
    } catch (error) {
      const stack = error instanceof Error ? loader.readable(error.stack ?? '') : ''
      const place = /\(?(\/[^()\n]+:\d+:\d+)/.exec(stack)?.[1] ?? file
      throw new CodedError(
        'PLUGIN_LOAD_FAILED',
        `${place}: plugin '${plugin}' threw while it was loaded: ${messageOf(error)}`,
        {
          cause: error,
          detail: { plugin, file }
        }
      )
    }
    return { plugin: toPlugin(exported, plugin, file), files: bundle.files }
  }

  const loader: CodeLoader = {
    labels() {
      labels ??= readdirSync(builtins).filter((name) => existsSync(join(builtins, name, 'index.js')))
      return labels
    },
    async load(plugin, { fresh = false } = {}) {
      if (loader.labels().includes(plugin)) {
        const compiled = join(builtins, plugin, 'index.js')
        if (!fresh)
          return { plugin: toPlugin(await importBuiltin(plugin, compiled), plugin, compiled), files: [compiled] }
        const source = join(sources ?? builtins, plugin, 'index.ts')
        return loadBundle(plugin, existsSync(source) ? source : compiled)
      }
      if (isLabel(plugin)) {
        const message = `there is no built-in plugin '${plugin}'${didYouMean(plugin, loader.labels())}`
        throw new CodedError('PLUGIN_NOT_FOUND', message, { detail: { plugin } })
      }
      return loadBundle(plugin, plugin)
    },
    filesOf: (plugin) => stamps.get(plugin) ?? new Map(),
    ownerOf(file) {
      const bundle = file.endsWith('.bundle') ? bundles.get(file.slice(0, -'.bundle'.length)) : undefined
      if (bundle !== undefined) return bundle.plugin
      const [label = ''] = relative(builtins, file).split(sep)
      return loader.labels().includes(label) ? label : undefined
    },
    readable: (stack) =>
      stack.replace(/(\/[^()\n]+)\.bundle:(\d+):(\d+)/g, (place, file: string, line: string, column: string) => {
        const bundle = bundles.get(file)
        return bundle === undefined ? place : (originOf(bundle, Number(line), Number(column)) ?? place)
      })
  }
  return loader
}

const kernelFolder = dirname(fileURLToPath(import.meta.url))
const kernelSurface = new URL(`./index${extname(import.meta.url)}`, import.meta.url).href

function besides(folder: string): string {
  return resolve(folder, '..', 'kernel')
}

async function importBuiltin(plugin: string, file: string): Promise<unknown> {
  try {
    return ((await import(pathToFileURL(file).href)) as { readonly default?: unknown }).default
  } catch (error) {
    const message = `${file}: plugin '${plugin}' threw while it was loaded: ${messageOf(error)}`
    throw new CodedError('PLUGIN_LOAD_FAILED', message, { cause: error, detail: { plugin, file } })
  }
}

function toPlugin(exported: unknown, plugin: string, file: string): Plugin {
  try {
    assertManifest(exported)
  } catch (error) {
    const message = `${file}: the default export of plugin '${plugin}' is no plugin: ${messageOf(error)}`
    throw new CodedError('PLUGIN_INVALID', message, { cause: error, detail: { plugin, file } })
  }
  // An author without the types may export the bare manifest.
  const complete = [exported.inject, exported.optional, exported.provides].every(Array.isArray)
  return complete ? exported : definePlugin(exported as unknown as Parameters<typeof definePlugin>[0])
}

/** A plugin as one CommonJS text. */
interface Bundle {
  /** As entries name it. */
  readonly plugin: string
  readonly text: string
  /** Folder that the names in its source map start from. */
  readonly folder: string
  /** The plugin's own first file. */
  readonly file: string
  readonly files: readonly string[]
}

const stdin = '<stdin>'
const extensions = ['.ts', '.mts', '.js', '.mjs', '.cjs', '.cts', '.json']

interface Build {
  readonly plugin: string
  readonly specifier: string
  readonly folder: string
  readonly plugins: BundlerPlugin[]
  /** Takes what an import looks for in vain. */
  readonly files: Map<string, Stamp>
}

async function build({ plugin, specifier, folder, plugins, files }: Build): Promise<Bundle> {
  // Loaded when needed: most programs consist of built-in plugins.
  const esbuild = await import('esbuild')
  try {
    const { outputFiles, metafile } = await esbuild.build({
      stdin: {
        contents: `export { default } from ${JSON.stringify(specifier)}`,
        resolveDir: folder,
        sourcefile: stdin
      },
      absWorkingDir: folder,
      bundle: true,
      write: false,
      metafile: true,
      platform: 'node',
      format: 'cjs',
      target: 'node20',
      sourcemap: 'inline',
      sourcesContent: false,
      logLevel: 'silent',
      resolveExtensions: extensions,
      define: {
        'import.meta.url': '__url',
        'import.meta.filename': '__filename',
        'import.meta.dirname': '__dirname'
      },
      plugins
    })
    const inputs = Object.keys(metafile.inputs).filter((input) => input !== stdin && !input.startsWith(`${hosted}:`))
    return {
      plugin,
      text: outputFiles[0]?.text ?? '',
      folder,
      file: resolve(folder, metafile.inputs[stdin]?.imports[0]?.path ?? ''),
      files: inputs.map((file) => resolve(folder, file))
    }
  } catch (error) {
    for (const path of missingOf(error, folder)) await look(files, path)
    throw toBuildError(error, plugin, folder)
  }
}

async function look(files: Map<string, Stamp>, path: string): Promise<void> {
  files.set(path, await readStamp(path))
}

/** Every path at which something that could not be resolved would be found. */
function missingOf(error: unknown, folder: string): readonly string[] {
  return ((error as Partial<BuildFailure>).errors ?? []).flatMap(({ text, location }) => {
    const specifier = /^Could not resolve "([./][^"]*)"/.exec(text)?.[1]
    if (specifier === undefined) return []
    const target = resolve(folder, dirname(location?.file ?? ''), specifier)
    const typed = target.replace(/\.([cm]?)js$/, '.$1ts')
    const endings = extensions.flatMap((extension) => [target + extension, join(target, `index${extension}`)])
    return [...new Set([target, typed, ...endings])]
  })
}

/** Reads the files of a bundle, so that what went into it is known to the byte. */
function recordFiles(files: Map<string, Stamp>): BundlerPlugin {
  return {
    name: 'record-files',
    setup(build) {
      build.onLoad({ filter: /./, namespace: 'file' }, async ({ path }) => {
        const contents = await readFile(path)
        files.set(path, stampOf(contents))
        return { contents, loader: 'default' }
      })
    }
  }
}

function toBuildError(error: unknown, plugin: string, folder: string): CodedError {
  const failures = (error as Partial<BuildFailure>).errors ?? []
  const faults = failures.map(({ text, location }) => {
    const nothing = /^No matching export in "(.*)" for import "default"$/.exec(text)?.[1]
    if (nothing !== undefined && location?.file === stdin) {
      return { file: resolve(folder, nothing), line: 1, column: 1, message: 'there is no default export' }
    }
    return {
      file: location === null ? '' : resolve(folder, location.file),
      line: location?.line ?? 0,
      column: (location?.column ?? 0) + 1,
      message: text.replace(/"host:([^"?]+)[^"]*"/, "'$1'")
    }
  })
  if (faults.some(({ file, message }) => file === resolve(folder, stdin) && message.startsWith('Could not resolve'))) {
    const message = `plugin '${plugin}' was not found from ${folder}`
    return new CodedError('PLUGIN_NOT_FOUND', message, { cause: error, detail: { plugin, folder } })
  }
  const places = faults.map(({ file, line, column, message }) => `${file}:${line}:${column}: ${message}`)
  const message = `plugin '${plugin}' cannot be built: ${places.length > 0 ? places.join('\n') : messageOf(error)}`
  return new CodedError('PLUGIN_BUILD_FAILED', message, { cause: error, detail: { plugin, faults } })
}

const hosted = 'host'

/**
 * Keeps the kernel and every package out of the bundle. What is imported becomes a small module that takes its exports
 * from `shared`: a bundle is CommonJS, and `require` cannot load a package that is only an ES module.
 */
function shareHost(kernels: readonly string[], surface: string, shared: Map<string, unknown>): BundlerPlugin {
  const extension = extname(import.meta.url)
  const kernelFile = (path: string, folder: string): string | undefined => {
    if (path === 'heartwood') return fileURLToPath(surface)
    if (!/^[./]/.test(path)) return undefined
    const target = resolve(folder, path)
    const inside = kernels.map((root) => relative(root, target)).find((rest) => rest !== '' && !rest.startsWith('..'))
    return inside === undefined ? undefined : join(kernelFolder, inside.replace(/\.[jt]s$/, extension))
  }
  return {
    name: 'share-host',
    setup(build) {
      build.onResolve({ filter: /./ }, ({ path, importer, kind, resolveDir }) => {
        if (importer === '' || basename(importer) === stdin) return undefined
        const file = kernelFile(path, resolveDir)
        if (file === undefined && /^[./#]/.test(path)) return undefined
        if (kind !== 'import-statement') return { path: file === undefined ? path : 'heartwood', external: true }
        if (isBuiltin(path)) return { path, external: true }
        const pluginData = { importer, specifier: file === undefined ? path : pathToFileURL(file).href }
        return { path, suffix: `?${resolveDir}`, namespace: hosted, pluginData }
      })
      build.onLoad({ filter: /./, namespace: hosted }, async ({ pluginData: { importer, specifier } }) => {
        const exports = await importFrom(importer, specifier)
        const key = `#${shared.size}`
        shared.set(key, exports)
        const names = Object.keys(exports).filter((name) => /^[\p{ID_Start}$_][\p{ID_Continue}$]*$/u.test(name))
        return {
          contents: [
            `const host = __shared.get('${key}')`,
            ...names.map((name, index) => `const v${index} = host.${name}`),
            `export { ${names.map((name, index) => `v${index} as ${name}`).join(', ')} }`
          ].join('\n')
        }
      })
    }
  }
}

/** Imports as the module `file` would. */
function importFrom(file: string, specifier: string): Promise<object> {
  return (compile('(specifier) => import(specifier)', file) as (specifier: string) => Promise<object>)(specifier)
}

/** Runs a bundle. @returns its default export */
function evaluate({ text, file }: Bundle, shared: ReadonlyMap<string, unknown>): unknown {
  const parameters = 'module, exports, require, __filename, __dirname, __url, __shared'
  const run = compile(`(function (${parameters}) {\n${text}\n})`, `${file}.bundle`) as (...values: unknown[]) => void
  const module = { exports: {} as { readonly default?: unknown } }
  const own = createRequire(file)
  const require = (specifier: string): unknown => shared.get(specifier) ?? own(specifier)
  run(module, module.exports, Object.assign(require, own), file, dirname(file), pathToFileURL(file).href, shared)
  return module.exports.default
}

/** Evaluates an expression so that nothing of it stays behind once it is no longer used. */
function compile(text: string, filename: string): unknown {
  const importModuleDynamically = constants.USE_MAIN_CONTEXT_DEFAULT_LOADER
  // V8's compilation cache would keep every version of every plugin.
  setFlagsFromString('--no-compilation-cache')
  try {
    return new Script(text, { filename, lineOffset: -1, importModuleDynamically }).runInThisContext()
  } finally {
    setFlagsFromString('--compilation-cache')
  }
}

/** @returns `file:line:column` of the source for a place in a bundle */
function originOf({ text, folder }: Bundle, line: number, column: number): string | undefined {
  const map = /\/\/# sourceMappingURL=data:application\/json;base64,(\S+)\s*$/.exec(text)?.[1]
  if (map === undefined) return undefined
  const payload = JSON.parse(Buffer.from(map, 'base64').toString()) as SourceMapPayload
  const origin = new SourceMap(payload).findEntry(line - 1, column - 1) as Partial<SourceMapping>
  if (origin.originalSource === undefined || origin.originalLine === undefined) return undefined
  return `${resolve(folder, origin.originalSource)}:${origin.originalLine + 1}:${(origin.originalColumn ?? 0) + 1}`
}
