import { builtinModules } from 'node:module'
import { posix } from 'node:path'
import { readdirSync, readFileSync } from 'node:fs'
import { fileURLToPath } from 'node:url'
import { join } from 'node:path'
import {
  isCallExpression,
  isExportDeclaration,
  isIdentifier,
  isImportDeclaration,
  isImportEqualsDeclaration,
  isImportSpecifier,
  isImportTypeNode,
  isModuleDeclaration,
  isPropertyAccessExpression,
  isNoSubstitutionTemplateLiteral,
  isStringLiteral,
  isVariableDeclaration,
  type Node,
  type SourceFile,
  SyntaxKind
} from 'typescript/unstable/ast'
import { createVirtualFileSystem } from 'typescript/unstable/fs'
import { API } from 'typescript/unstable/sync'

/** The project, seen from the compiled file in `<root>/<out>/test/house/`. */
export const root = fileURLToPath(new URL('../../../', import.meta.url))

/** A path from the root, and the text of the file. */
export type Source = readonly [path: string, text: string]

/** These TypeScript files, and those below these folders. */
export function readSources(...places: readonly string[]): Source[] {
  return places
    .flatMap((place) =>
      place.endsWith('.ts')
        ? [place]
        : readdirSync(join(root, place), { recursive: true, encoding: 'utf8' }).map((path) => posix.join(place, path))
    )
    .filter((path) => path.endsWith('.ts'))
    .map((path): Source => [path, readFileSync(join(root, path), 'utf8')])
}

/** Parses all at once with TypeScript's own parser; nothing is resolved or checked. */
export function parse(sources: readonly Source[]): SourceFile[] {
  const files = sources.map((_, at) => `/house/${at}.ts`)
  const config = { compilerOptions: { noLib: true, noResolve: true, types: [] }, files }
  const texts = Object.fromEntries(sources.map(([, text], at) => [files[at]!, text]))
  const fs = createVirtualFileSystem({ ...texts, '/house/tsconfig.json': JSON.stringify(config) })
  const api = new API({ cwd: '/house', fs })
  try {
    const [project] = api.updateSnapshot({ openProject: '/house/tsconfig.json' }).getProjects()
    return files.map((file, at) => {
      const parsed = project?.program.getSourceFile(file)
      if (parsed === undefined) throw new Error(`${sources[at]![0]} was not parsed`)
      return parsed
    })
  } finally {
    api.close()
  }
}

/** One way in which a file reaches another. */
export interface Import {
  /** A path from the root, the name of a package, `node:…`, or {@link computed}. */
  readonly target: string
  /** Nothing of it is left at run time. `import { type A }` is not: it still loads the module. */
  readonly typeOnly: boolean
}

/** The target of an import whose name is only known at run time. */
export const computed = '<computed>'

/** Every import of a file: static, dynamic, re-exports, `require` however it was made, types, augmentations. */
export function importsOf(path: string, file: SourceFile): readonly Import[] {
  const imports: Import[] = []
  const add = (specifier: Node | undefined, typeOnly: boolean) => {
    const target = specifier && isLiteral(specifier) ? toTarget(path, specifier.text) : computed
    imports.push({ target, typeOnly })
  }

  const makers = new Set(['createRequire'])
  const requires = new Set(['require'])
  const makesRequire = (node: Node | undefined): boolean =>
    node !== undefined &&
    isCallExpression(node) &&
    ((isIdentifier(node.expression) && makers.has(node.expression.text)) ||
      (isPropertyAccessExpression(node.expression) && node.expression.name.text === 'createRequire'))
  walk(file, (node) => {
    if (isImportSpecifier(node) && node.propertyName?.text === 'createRequire') makers.add(node.name.text)
  })
  walk(file, (node) => {
    if (isVariableDeclaration(node) && isIdentifier(node.name) && makesRequire(node.initializer)) {
      requires.add(node.name.text)
    }
  })
  const isRequire = (node: Node): boolean =>
    (isIdentifier(node) && requires.has(node.text)) ||
    makesRequire(node) ||
    (isPropertyAccessExpression(node) && node.name.text === 'resolve' && isRequire(node.expression))

  walk(file, (node) => {
    if (isImportDeclaration(node)) {
      add(node.moduleSpecifier, node.importClause?.phaseModifier === SyntaxKind.TypeKeyword)
    } else if (isExportDeclaration(node) && node.moduleSpecifier) {
      add(node.moduleSpecifier, node.isTypeOnly)
    } else if (isImportTypeNode(node)) {
      add((node.argument as unknown as { readonly literal: Node }).literal, true)
    } else if (isImportEqualsDeclaration(node)) {
      add((node.moduleReference as unknown as { readonly expression?: Node }).expression, node.isTypeOnly)
    } else if (isModuleDeclaration(node) && isStringLiteral(node.name)) {
      add(node.name, true)
    } else if (isCallExpression(node)) {
      if (node.expression.kind === SyntaxKind.ImportKeyword || isRequire(node.expression)) add(node.arguments[0], false)
    }
  })
  return imports
}

const isLiteral = (node: Node) => isStringLiteral(node) || isNoSubstitutionTemplateLiteral(node)

export function walk(node: Node, visit: (node: Node) => void): void {
  visit(node)
  node.forEachChild((child) => walk(child, visit))
}

function toTarget(from: string, specifier: string): string {
  if (specifier.startsWith('.')) return posix.join(posix.dirname(from), specifier)
  if (specifier.startsWith('node:')) return specifier
  const [first, second] = specifier.split('/')
  if (builtinModules.includes(first!)) return `node:${specifier}`
  return first!.startsWith('@') ? `${first}/${second}` : first!
}
