/** A kind of tool that can be defined while the server runs, contributed to `runtime-tools.types` by what executes it. */
export interface RuntimeToolType {
  readonly name: 'http' | 'mcp' | 'script' | 'sql'
}

declare module '../../kernel/index.ts' {
  interface Contributions {
    'runtime-tools.types': RuntimeToolType
  }
}
