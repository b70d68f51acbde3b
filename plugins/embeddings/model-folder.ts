import { readdir, stat } from 'node:fs/promises'
import { join, resolve } from 'node:path'
import { CodedError, messageOf } from '../../kernel/index.ts'

/** A model in a folder, as Hugging Face lays it out. */
export interface ModelFolder {
  readonly model: string
  readonly tokenizer: string
  /** Settings of the tokenizer, where they are there. */
  readonly tokenizerConfig: string | undefined
  /** Another one for other files. */
  readonly stamp: string
}

const models = ['onnx/model.onnx', 'model.onnx', 'onnx/model_quantized.onnx', 'model_quantized.onnx']

/**
 * @param path a relative one starts at the folder the server was started in
 * @throws CodedError `EMBEDDINGS_FOLDER_INVALID` naming what is missing
 */
export async function findModel(name: string, path: string): Promise<ModelFolder> {
  const folder = resolve(path)
  const refuse = (why: string): CodedError =>
    new CodedError('EMBEDDINGS_FOLDER_INVALID', `embedding model '${name}': ${why}`, {
      detail: { model: name, folder }
    })
  try {
    await readdir(folder)
  } catch (error) {
    throw refuse(`${folder} cannot be read (${messageOf(error)}); path must be a folder with an ONNX model`)
  }
  const found = async (names: readonly string[]) => {
    for (const each of names) {
      const file = join(folder, each)
      const { size, mtimeMs } = (await stat(file).catch(() => undefined)) ?? {}
      if (size !== undefined) return { file, stamp: `${size}-${mtimeMs}` }
    }
    return undefined
  }
  const model = await found(models)
  if (model === undefined) throw refuse(`${folder} has no model; it must have one of ${models.join(', ')}`)
  const tokenizer = await found(['tokenizer.json'])
  if (tokenizer === undefined) throw refuse(`${folder} has no tokenizer.json`)
  return {
    model: model.file,
    tokenizer: tokenizer.file,
    tokenizerConfig: (await found(['tokenizer_config.json']))?.file,
    stamp: `${model.file} ${model.stamp} ${tokenizer.stamp}`
  }
}
