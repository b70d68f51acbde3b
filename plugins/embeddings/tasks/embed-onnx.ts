import { readFile } from 'node:fs/promises'
import { createRequire } from 'node:module'
import type { TaskResult } from '../../workers/types.ts'
import { toUnitLength } from '../unit-length.ts'
import { type EmbedBatch, unavailable } from './batch.ts'

export interface OnnxBatch extends EmbedBatch {
  readonly model: string
  readonly tokenizer: string
  readonly tokenizerConfig: string | undefined
  /** Of one text; what comes behind them is left out. */
  readonly maxTokens: number
  /** How the vectors of the tokens become one, where the model does not do that itself. */
  readonly pooling: 'mean' | 'first'
}

/** The parts of the packages that are used. They are not installed with Heartwood. */
interface Runtime {
  readonly InferenceSession: { create(path: string, options: object): Promise<Session> }
  readonly Tensor: new (type: 'int64', data: BigInt64Array, dims: readonly number[]) => Tensor
}

interface Tensor {
  readonly data: ArrayLike<number>
  readonly dims: readonly number[]
}

interface Session {
  readonly inputNames: readonly string[]
  readonly outputNames: readonly string[]
  run(inputs: Readonly<Record<string, Tensor>>): Promise<Readonly<Record<string, Tensor>>>
}

interface Tokenizers {
  readonly Tokenizer: new (
    json: object,
    config: object
  ) => { encode(text: string): { readonly ids: readonly number[] } }
}

interface Model {
  readonly path: string
  readonly runtime: Runtime
  readonly session: Session
  readonly encode: (text: string) => readonly number[]
}

/** Of this thread, the newest. */
let loading: { readonly path: string; readonly model: Promise<Model> } | undefined

/** Vectors of an ONNX model in a folder, one behind the other. */
export default async function embed(batch: OnnxBatch): Promise<TaskResult<Float32Array>> {
  let model: Model
  try {
    if (loading?.path !== batch.model) loading = { path: batch.model, model: load(batch) }
    model = await loading.model
  } catch (error) {
    loading = undefined
    return unavailable('the model cannot be loaded', error)
  }
  try {
    return { ok: true, value: await run(model, batch) }
  } catch (error) {
    return unavailable('the model cannot be run', error)
  }
}

async function load({ model, tokenizer, tokenizerConfig }: OnnxBatch): Promise<Model> {
  const require = createRequire(import.meta.url)
  let runtime: Runtime
  let tokenizers: Tokenizers
  try {
    runtime = require('onnxruntime-node') as Runtime
    tokenizers = require('@huggingface/tokenizers') as Tokenizers
  } catch (error) {
    throw new Error('install it with `npm install onnxruntime-node @huggingface/tokenizers` beside Heartwood', {
      cause: error
    })
  }
  const read = async (path: string) => JSON.parse(await readFile(path, 'utf8')) as object
  const config = tokenizerConfig === undefined ? {} : await read(tokenizerConfig)
  const cut = new tokenizers.Tokenizer(await read(tokenizer), config)
  // One thread each: the threads that embed are so many as shall be at work.
  const session = await runtime.InferenceSession.create(model, { intraOpNumThreads: 1, interOpNumThreads: 1 })
  return { path: model, runtime, session, encode: (text) => cut.encode(text).ids }
}

async function run(
  { runtime, session, encode }: Model,
  { texts, maxTokens, pooling }: OnnxBatch
): Promise<Float32Array> {
  const rows = texts.map((text) => {
    const ids = encode(text)
    // The last one ends the text, as the model has learnt it.
    return ids.length <= maxTokens ? ids : [...ids.slice(0, maxTokens - 1), ids.at(-1)!]
  })
  const width = Math.max(1, ...rows.map((ids) => ids.length))
  const shape = [texts.length, width]
  const ids = new BigInt64Array(texts.length * width)
  const mask = new BigInt64Array(texts.length * width)
  for (const [row, tokens] of rows.entries()) {
    for (const [at, token] of tokens.entries()) {
      ids[row * width + at] = BigInt(token)
      mask[row * width + at] = 1n
    }
  }
  const given: Readonly<Record<string, BigInt64Array>> = {
    input_ids: ids,
    attention_mask: mask,
    token_type_ids: new BigInt64Array(texts.length * width)
  }
  const inputs: Record<string, Tensor> = {}
  for (const name of session.inputNames) {
    const data = given[name]
    if (data === undefined) throw new Error(`it wants '${name}', which no text model does`)
    inputs[name] = new runtime.Tensor('int64', data, shape)
  }
  const outputs = await session.run(inputs)
  const name = ['sentence_embedding', 'last_hidden_state'].find((one) => one in outputs) ?? session.outputNames[0]!
  const { data, dims } = outputs[name]!
  const dimensions = dims.at(-1)!
  if (dims.length === 2) return toUnitLength(Float32Array.from(data), dimensions)
  if (dims.length !== 3) throw new Error(`its output '${name}' has ${dims.length} dimensions, not 2 or 3`)
  const pooled = new Float32Array(texts.length * dimensions)
  for (const [row, tokens] of rows.entries()) {
    const count = pooling === 'first' ? 1 : tokens.length
    for (let token = 0; token < count; token++) {
      const start = (row * width + token) * dimensions
      for (let at = 0; at < dimensions; at++) pooled[row * dimensions + at]! += data[start + at]!
    }
  }
  return toUnitLength(pooled, dimensions)
}
