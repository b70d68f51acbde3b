export type JsonValue = null | boolean | number | bigint | string | readonly JsonValue[] | JsonObject
export interface JsonObject {
  readonly [key: string]: JsonValue
}
export interface Entry {
  readonly id: string
  readonly plugin: string
  readonly config: JsonObject
  readonly disabled: boolean
}
export interface Program {
  readonly entries: readonly Entry[]
}
